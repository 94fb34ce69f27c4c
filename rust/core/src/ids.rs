//! Type-prefixed ids: a prefix and a UUIDv7 in 26 characters of lowercase Crockford base32
//! (`run_01k4...`). Parsing is strict: one id has one spelling. Time and randomness are arguments.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::error::{Code, Coded};

const ALPHABET: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";
const BODY: usize = 26;
/// What each byte is worth as a digit; those that are none have a bit that no digit has.
const WORTH: [u8; 256] = {
    let mut table = [0x80; 256];
    let (mut at, mut byte) = (0, 0u8);
    while at < 128 {
        let (mut digit, mut worth) = (0, 0);
        while digit < ALPHABET.len() {
            if ALPHABET[digit] == byte {
                table[at] = worth;
            }
            (digit, worth) = (digit + 1, worth + 1);
        }
        (at, byte) = (at + 1, byte + 1);
    }
    table
};

/// Why a string is not an id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum IdError {
    #[error("an id that begins with '{0}_' was expected")]
    Prefix(&'static str),
    #[error("an id has 26 characters after its prefix, lowercase Crockford base32")]
    Spelling,
    #[error("the id is not a UUIDv7")]
    NotV7,
    #[error("a stream is 'store', a run id or a session id")]
    NotAStream,
}

impl Coded for IdError {
    fn code(&self) -> Code {
        match self {
            Self::Prefix(_) | Self::Spelling | Self::NotV7 | Self::NotAStream => Code::BadId,
        }
    }
}

/// A UUIDv7 from a wall clock in milliseconds and ten random bytes.
fn uuid7(at_ms: u64, random: [u8; 10]) -> u128 {
    let mut bytes = [0u8; 16];
    bytes[..6].copy_from_slice(&at_ms.to_be_bytes()[2..]);
    bytes[6..].copy_from_slice(&random);
    bytes[6] = (bytes[6] & 0x0F) | 0x70;
    bytes[8] = (bytes[8] & 0x3F) | 0x80;
    u128::from_be_bytes(bytes)
}

/// An id's text, on the stack: journals hold several in each record.
struct Spelled {
    bytes: [u8; 40],
    length: usize,
}

impl Spelled {
    fn as_str(&self) -> &str {
        std::str::from_utf8(&self.bytes[..self.length]).unwrap_or_default()
    }
}

fn spell(prefix: &str, id: u128) -> Spelled {
    let (mut bytes, at) = ([0u8; 40], prefix.len());
    bytes[..at].copy_from_slice(prefix.as_bytes());
    bytes[at] = b'_';
    // In parts of at most twelve digits: they fit 64 bits, whose shifts are quick.
    let digits = &mut bytes[at + 1..=at + BODY];
    for (shift, places) in [(120, 0..2), (60, 2..14), (0, 14..BODY)] {
        let mut left = u64::try_from((id >> shift) & ((1 << 60) - 1)).unwrap_or(0);
        for place in digits[places].iter_mut().rev() {
            *place = ALPHABET[usize::try_from(left & 31).unwrap_or(0)];
            left >>= 5;
        }
    }
    Spelled { bytes, length: at + 1 + BODY }
}

/// Reads an id from text without keeping the text.
struct Text<T>(std::marker::PhantomData<T>);

impl<T: FromStr<Err = IdError>> de::Visitor<'_> for Text<T> {
    type Value = T;
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string")
    }
    fn visit_str<E: de::Error>(self, text: &str) -> Result<T, E> {
        text.parse().map_err(E::custom)
    }
}

fn read_body(text: &str) -> Result<u128, IdError> {
    if text.len() != BODY || text.as_bytes()[0] > b'7' {
        return Err(IdError::Spelling); // 26 digits hold 130 bits: the first may only fill three
    }
    let (mut id, mut odd) = (0u128, 0);
    for byte in text.bytes() {
        let digit = WORTH[usize::from(byte)];
        odd |= digit;
        id = (id << 5) | u128::from(digit & 31);
    }
    if odd > 31 {
        return Err(IdError::Spelling);
    }
    if (id >> 76) & 0xF != 7 || (id >> 62) & 3 != 2 {
        return Err(IdError::NotV7);
    }
    Ok(id)
}

/// The pattern of the 26 characters: a UUIDv7 has its version in the eleventh and its variant in the
/// fourteenth.
macro_rules! body {
    () => {
        "[0-7][0-9a-hjkmnp-tv-z]{9}[ef][0-9a-hjkmnp-tv-z]{2}[89abrstv][0-9a-hjkmnp-tv-z]{12}"
    };
}

macro_rules! ids {
    ($($(#[$doc:meta])* $name:ident = $prefix:literal;)*) => {
        $($(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(u128);

        impl $name {
            pub const PREFIX: &'static str = $prefix;
            pub const PATTERN: &'static str = concat!("^", $prefix, "_", body!(), "$");

            /// A new id from a wall clock in milliseconds and ten random bytes.
            pub fn new(at_ms: u64, random: [u8; 10]) -> Self {
                Self(uuid7(at_ms, random))
            }

            /// The wall clock, in milliseconds, that it was made from.
            pub fn at_ms(self) -> u64 {
                u64::try_from(self.0 >> 80).unwrap_or(0)
            }

            pub(crate) fn with_text<T>(self, read: impl FnOnce(&str) -> T) -> T {
                read(spell($prefix, self.0).as_str())
            }
        }
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(spell($prefix, self.0).as_str())
            }
        }
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{self}")
            }
        }
        impl FromStr for $name {
            type Err = IdError;
            fn from_str(text: &str) -> Result<Self, IdError> {
                let body = text.strip_prefix($prefix).and_then(|rest| rest.strip_prefix('_'));
                read_body(body.ok_or(IdError::Prefix($prefix))?).map(Self)
            }
        }
        textual!($name, $name::PATTERN);)*

        /// The type of an id, told from its prefix.
        pub const PREFIXES: &[&str] = &[$($prefix),*];

        /// Checks an id of any type.
        pub fn check(text: &str) -> Result<&'static str, IdError> {
            let (prefix, _) = text.split_once('_').ok_or(IdError::Spelling)?;
            match prefix {
                $($prefix => text.parse::<$name>().map(|_| $prefix),)*
                _ => Err(IdError::Spelling),
            }
        }

        /// A new id of the type with that prefix.
        pub fn mint(prefix: &str, at_ms: u64, random: [u8; 10]) -> Option<String> {
            match prefix {
                $($prefix => Some($name::new(at_ms, random).to_string()),)*
                _ => None,
            }
        }
    };
}

macro_rules! textual {
    ($name:ident, $pattern:expr) => {
        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                self.with_text(|text| serializer.serialize_str(text))
            }
        }
        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                deserializer.deserialize_str(Text(std::marker::PhantomData))
            }
        }
        impl JsonSchema for $name {
            fn inline_schema() -> bool {
                true
            }
            fn schema_name() -> Cow<'static, str> {
                stringify!($name).into()
            }
            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                json_schema!({"type": "string", "pattern": $pattern})
            }
        }
    };
}

ids! {
    /// The store itself: part of every stream's first `prev`.
    StoreId = "sto";
    RunId = "run";
    SessionId = "ses";
    StepId = "step";
    CallId = "call";
    ApprovalId = "apr";
    GrantId = "grant";
    ArtifactId = "art";
    EnvelopeId = "env";
    CapabilityId = "cap";
}

/// What owns a journal.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum StreamId {
    Run(RunId),
    Session(SessionId),
    Store,
}

impl StreamId {
    pub(crate) fn with_text<T>(self, read: impl FnOnce(&str) -> T) -> T {
        match self {
            Self::Run(id) => id.with_text(read),
            Self::Session(id) => id.with_text(read),
            Self::Store => read("store"),
        }
    }
}

impl fmt::Display for StreamId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Run(id) => id.fmt(f),
            Self::Session(id) => id.fmt(f),
            Self::Store => f.write_str("store"),
        }
    }
}

impl From<RunId> for StreamId {
    fn from(run: RunId) -> Self {
        Self::Run(run)
    }
}

impl fmt::Debug for StreamId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl FromStr for StreamId {
    type Err = IdError;
    fn from_str(text: &str) -> Result<Self, IdError> {
        if text == "store" {
            return Ok(Self::Store);
        }
        if text.starts_with("ses_") {
            return text.parse().map(Self::Session);
        }
        text.parse().map(Self::Run).map_err(|error| match error {
            IdError::Prefix(_) => IdError::NotAStream,
            other @ (IdError::Spelling | IdError::NotV7 | IdError::NotAStream) => other,
        })
    }
}

textual!(StreamId, concat!("^(store|(run|ses)_", body!(), ")$"));

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_has_one_spelling_and_keeps_its_time_order() {
        let early = RunId::new(1_763_251_200_123, [0xFF; 10]);
        let late = RunId::new(1_763_251_200_124, [0; 10]);
        assert_eq!(early.to_string().parse(), Ok(early));
        assert!(early < late && early.to_string() < late.to_string());
        assert_eq!(early.to_string().len(), "run_".len() + 26);
    }

    #[test]
    fn every_other_spelling_is_refused() {
        let id = RunId::new(1_763_251_200_123, [7; 10]).to_string();
        let body = &id[4..];
        for bad in [
            String::new(),
            "run_".into(),
            body.into(),
            id.to_uppercase(),
            format!("step_{body}"),
            format!("{id}0"),
            id.replace("run_", "run-"),
            format!("run_8{}", &body[1..]),
            format!("run_i{}", &body[1..]),
            format!("run_{}", "0".repeat(26)),
        ] {
            assert!(bad.parse::<RunId>().is_err(), "{bad}");
            assert!(bad.parse::<StreamId>().is_err(), "{bad}");
        }
        assert_eq!("store".parse::<StreamId>(), Ok(StreamId::Store));
    }
}
