//! How facts and tokens are written down: a struct or an enum, closed, with one spelling.

/// Structs that cross the boundary: closed, absent options omitted.
macro_rules! facts {
    ($($(#[$meta:meta])* pub struct $name:ident { $($body:tt)* })*) => {
        $(#[serde_with_macros::skip_serializing_none]
        #[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
        #[serde(deny_unknown_fields)]
        $(#[$meta])*
        pub struct $name { $($body)* })*
    };
}

/// Closed sets of tokens. A removed token is never used again.
macro_rules! tokens {
    ($($(#[$meta:meta])* pub enum $name:ident { $($(#[$doc:meta])* $variant:ident = $token:literal,)* })*) => {
        $($(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize,
            schemars::JsonSchema)]
        pub enum $name { $($(#[$doc])* #[serde(rename = $token)] $variant),* }
        impl $name {
            pub const ALL: &'static [Self] = &[$(Self::$variant),*];
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $token),* }
            }
            pub fn parse(text: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|token| token.as_str() == text)
            }
        }
        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.as_str())
            }
        })*
    };
}

/// Strings with a pattern: `Name`, `Key` and their like.
macro_rules! strings {
    ($($(#[$meta:meta])* pub struct $name:ident($max:expr, $allowed:expr, $pattern:literal);)*) => {
        $($(#[$meta])*
        #[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
        pub struct $name(String);
        impl $name {
            pub const PATTERN: &'static str = $pattern;
            pub fn new(text: impl Into<String>) -> Option<Self> {
                let text = text.into();
                let allowed: fn(&str) -> bool = $allowed;
                (text.chars().count() <= $max && allowed(&text)).then_some(Self(text))
            }
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }
        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(&self.0)
            }
        }
        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                Self::new(String::deserialize(deserializer)?)
                    .ok_or_else(|| serde::de::Error::custom(concat!("not a ", stringify!($name), ": ", $pattern)))
            }
        }
        impl schemars::JsonSchema for $name {
            fn inline_schema() -> bool {
                true
            }
            fn schema_name() -> std::borrow::Cow<'static, str> {
                stringify!($name).into()
            }
            fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
                schemars::json_schema!({"type": "string", "pattern": $pattern, "maxLength": $max})
            }
        })*
    };
}

pub(crate) use {facts, strings, tokens};
