//! Typed reading with typed errors: serde's complaints become a closed set of faults with a code
//! and a path, instead of text to be matched.

use std::fmt;

use serde::de::{self, DeserializeOwned, IntoDeserializer, Visitor, value};
use serde_json::Value;

use crate::canonical::{CanonicalError, from_text};
use crate::error::{Code, Coded};

/// What is wrong with a record or a contract.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    MissingField,
    UnknownField,
    WrongType,
    UnknownToken,
    BadValue,
    UnknownKind,
    NewerFormat,
    NotCanonical,
    RecordTooLarge,
}

impl Fault {
    const ALL: &'static [Self] = &[
        Self::MissingField,
        Self::UnknownField,
        Self::WrongType,
        Self::UnknownToken,
        Self::BadValue,
        Self::UnknownKind,
        Self::NewerFormat,
        Self::NotCanonical,
        Self::RecordTooLarge,
    ];

    pub fn code(self) -> Code {
        match self {
            Self::MissingField => Code::MissingField,
            Self::UnknownField => Code::UnknownField,
            Self::WrongType => Code::WrongType,
            Self::UnknownToken => Code::UnknownToken,
            Self::BadValue => Code::BadValue,
            Self::UnknownKind => Code::UnknownKind,
            Self::NewerFormat => Code::NewerFormat,
            Self::NotCanonical => Code::NotCanonical,
            Self::RecordTooLarge => Code::RecordTooLarge,
        }
    }
}

/// Why a record or a contract cannot be read. Texts name fields and tokens, never values.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    #[error("{message} (at {path})")]
    Shape { fault: Fault, path: String, message: String },
    #[error(transparent)]
    Json(#[from] CanonicalError),
}

impl ReadError {
    pub fn new(fault: Fault, path: impl Into<String>, message: impl Into<String>) -> Self {
        Self::Shape { fault, path: path.into(), message: message.into() }
    }

    pub fn path(&self) -> &str {
        match self {
            Self::Shape { path, .. } => path,
            Self::Json(error) => &error.path,
        }
    }

    /// The same error, one level further out.
    #[must_use]
    pub fn within(self, field: &str) -> Self {
        match self {
            Self::Shape { fault, path, message } => {
                let rest = path.strip_prefix('$').unwrap_or(&path);
                Self::Shape { fault, path: format!("$.{field}{rest}"), message }
            }
            Self::Json(error) => Self::Json(error),
        }
    }
}

impl Coded for ReadError {
    fn code(&self) -> Code {
        match self {
            Self::Shape { fault, .. } => fault.code(),
            Self::Json(error) => error.code(),
        }
    }
}

/// Reads a typed value from a tree.
pub fn read<T: DeserializeOwned>(value: &Value) -> Result<T, ReadError> {
    // Keeping track of the path costs more than reading, and only a refusal needs it.
    if let Ok(read) = T::deserialize(Tree(value)) {
        return Ok(read);
    }
    serde_path_to_error::deserialize(Tree(value)).map_err(|error| {
        let path = match error.path().to_string().as_str() {
            "." => "$".to_owned(),
            path => format!("$.{path}"),
        };
        let found = error.into_inner();
        ReadError::Shape { fault: found.fault, path: path + &found.inner, message: found.message }
    })
}

/// Takes the tag out of an internally tagged union: the tag, and the object without it.
pub(crate) fn internal(value: &Value, tag: &'static str) -> Result<(String, Value), ReadError> {
    let Value::Object(members) = value else {
        return Err(ReadError::new(Fault::WrongType, "$", "wrong type, expected an object"));
    };
    let mut members = members.clone();
    match members.remove(tag) {
        Some(Value::String(token)) => Ok((token, Value::Object(members))),
        Some(_) => Err(ReadError::new(Fault::WrongType, format!("$.{tag}"), "wrong type, expected a token")),
        None => Err(ReadError::new(Fault::MissingField, "$", format!("missing field '{tag}'"))),
    }
}

/// Takes an adjacently tagged union apart: the tag, and what stands beside it.
pub(crate) fn adjacent(
    value: &Value,
    tag: &'static str,
    content: &'static str,
) -> Result<(String, Value), ReadError> {
    let (token, rest) = internal(value, tag)?;
    let Value::Object(mut rest) = rest else { return Ok((token, rest)) };
    let inner = rest.remove(content);
    if let Some(extra) = rest.keys().next() {
        let shown = shown(extra);
        return Err(ReadError::new(
            Fault::UnknownField,
            format!("$.{shown}"),
            format!("unknown field '{shown}'"),
        ));
    }
    let missing = || ReadError::new(Fault::MissingField, "$", format!("missing field '{content}'"));
    Ok((token, inner.ok_or_else(missing)?))
}

pub(crate) fn unknown_tag(tag: &'static str, expected: &[&str]) -> ReadError {
    let message = format!("unknown token, expected one of {}", expected.join(" "));
    ReadError::new(Fault::UnknownToken, format!("$.{tag}"), message)
}

fn shown(key: &str) -> String {
    key.chars().take(64).flat_map(char::escape_default).collect()
}

/// Carries an error of ours through serde's slot without losing its fault and path: serde lets a
/// hand-written `Deserialize` hand over text only, so they travel in it, and `Found` takes them out.
pub(crate) fn rethrow<E: de::Error>(error: ReadError) -> E {
    match error {
        ReadError::Shape { fault, path, message } => {
            let index = Fault::ALL.iter().position(|known| *known == fault).unwrap_or(0);
            E::custom(format!("{MARK}{index}{MARK}{path}{MARK}{message}"))
        }
        ReadError::Json(error) => E::custom(error),
    }
}

const MARK: char = '\u{1}';

/// Reads a typed value from JSON text.
pub fn read_text<T: DeserializeOwned>(text: &[u8]) -> Result<T, ReadError> {
    read(&from_text(text)?)
}

/// Serde's error slot.
#[derive(Debug)]
struct Found {
    fault: Fault,
    /// The path below the one that serde knows.
    inner: String,
    message: String,
}

impl Found {
    fn new(fault: Fault, message: String) -> Self {
        Self { fault, inner: String::new(), message }
    }

    /// Takes apart what [`rethrow`] put together.
    fn carried(text: &str) -> Option<Self> {
        let mut parts = text.strip_prefix(MARK)?.splitn(3, MARK);
        let fault = Fault::ALL.get(parts.next()?.parse::<usize>().ok()?)?;
        let inner = parts.next()?.trim_start_matches('$').to_owned();
        Some(Self { fault: *fault, inner, message: parts.next()?.to_owned() })
    }
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Found {}

impl de::Error for Found {
    fn custom<T: fmt::Display>(message: T) -> Self {
        let text = message.to_string();
        Self::carried(&text).unwrap_or_else(|| Self::new(Fault::BadValue, text))
    }
    fn invalid_type(_: de::Unexpected<'_>, expected: &dyn de::Expected) -> Self {
        Self::new(Fault::WrongType, format!("wrong type, expected {expected}"))
    }
    fn invalid_value(_: de::Unexpected<'_>, expected: &dyn de::Expected) -> Self {
        Self::new(Fault::BadValue, format!("bad value, expected {expected}"))
    }
    fn invalid_length(len: usize, expected: &dyn de::Expected) -> Self {
        Self::new(Fault::BadValue, format!("{len} elements, expected {expected}"))
    }
    fn unknown_variant(_: &str, expected: &'static [&'static str]) -> Self {
        Self::new(Fault::UnknownToken, format!("unknown token, expected one of {}", expected.join(" ")))
    }
    fn unknown_field(field: &str, _: &'static [&'static str]) -> Self {
        Self::new(Fault::UnknownField, format!("unknown field '{}'", shown(field)))
    }
    fn missing_field(field: &'static str) -> Self {
        Self::new(Fault::MissingField, format!("missing field '{field}'"))
    }
    fn duplicate_field(field: &'static str) -> Self {
        Self::new(Fault::BadValue, format!("field '{field}' twice"))
    }
}

/// A tree as serde reads it. Unlike `serde_json`'s own, it refuses null for an optional field: what is
/// absent is omitted, so that one record has one spelling.
#[derive(Clone, Copy)]
struct Tree<'a>(&'a Value);

impl<'de> de::Deserializer<'de> for Tree<'_> {
    type Error = Found;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Found> {
        match self.0 {
            Value::Null => visitor.visit_unit(),
            Value::Bool(b) => visitor.visit_bool(*b),
            Value::Number(n) => match (n.as_u64(), n.as_i64(), n.as_f64()) {
                (Some(n), _, _) => visitor.visit_u64(n),
                (None, Some(n), _) => visitor.visit_i64(n),
                (None, None, Some(x)) => visitor.visit_f64(x),
                (None, None, None) => Err(de::Error::custom("not a number")),
            },
            Value::String(s) => visitor.visit_str(s),
            Value::Array(items) => {
                let mut seq = value::SeqDeserializer::new(items.iter().map(Tree));
                let read = visitor.visit_seq(&mut seq)?;
                seq.end().map(|()| read)
            }
            Value::Object(members) => {
                let entries = members.iter().map(|(key, member)| (key.as_str(), Tree(member)));
                let mut map = value::MapDeserializer::new(entries);
                let read = visitor.visit_map(&mut map)?;
                map.end().map(|()| read)
            }
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Found> {
        match self.0 {
            Value::Null => {
                Err(de::Error::invalid_type(de::Unexpected::Unit, &"a value (omit what is absent)"))
            }
            _ => visitor.visit_some(self),
        }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, Found> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Found> {
        match self.0 {
            Value::String(token) => visitor.visit_enum(token.as_str().into_deserializer()),
            _ => Err(de::Error::invalid_type(de::Unexpected::Other("no token"), &"a token")),
        }
    }

    /// Serde would read an array as a struct's fields in order; that is a second spelling.
    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Found> {
        match self.0 {
            Value::Object(_) => self.deserialize_any(visitor),
            _ => Err(de::Error::invalid_type(de::Unexpected::Other("no object"), &"an object")),
        }
    }

    /// `serde_json`'s own map would take null for an empty one.
    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Found> {
        self.deserialize_struct("", &[], visitor)
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit
        unit_struct seq tuple tuple_struct identifier ignored_any
    }
}

impl IntoDeserializer<'_, Found> for Tree<'_> {
    type Deserializer = Self;
    fn into_deserializer(self) -> Self {
        self
    }
}
