//! Why a value has no canonical bytes.

use crate::error::{Code, Coded};
use crate::limits;

/// What is wrong, without where: the hot paths carry only this.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    #[error("NaN and infinities are not JSON")]
    NotFinite,
    #[error("an integer beyond +-(2^53-1) is not exact in every JSON reader")]
    IntegerTooLarge,
    #[error("a number outside the range of a double")]
    NumberOutOfRange,
    #[error("a string holds a lone surrogate")]
    LoneSurrogate,
    #[error("an object has the same key twice")]
    DuplicateKey,
    #[error("nested deeper than {} levels", limits::DEPTH_MAX)]
    TooDeep,
    #[error("larger than {} bytes", limits::JSON_BYTES_MAX)]
    TooLarge,
    #[error("more than {} values", limits::JSON_VALUES_MAX)]
    TooManyValues,
    #[error("an object key of type {0} is not a string")]
    KeyNotString(String),
    #[error("a value of type {0} is not JSON")]
    NotJson(String),
    #[error("not JSON text: {what} at byte {offset}")]
    Syntax { what: &'static str, offset: usize },
}

impl Coded for Refusal {
    fn code(&self) -> Code {
        match self {
            Self::NotFinite => Code::NotFinite,
            Self::IntegerTooLarge => Code::IntegerTooLarge,
            Self::NumberOutOfRange => Code::NumberOutOfRange,
            Self::LoneSurrogate => Code::LoneSurrogate,
            Self::DuplicateKey => Code::DuplicateKey,
            Self::TooDeep => Code::TooDeep,
            Self::TooLarge => Code::TooLarge,
            Self::TooManyValues => Code::TooManyValues,
            Self::KeyNotString(_) => Code::KeyNotString,
            Self::NotJson(_) => Code::NotJson,
            Self::Syntax { .. } => Code::BadJson,
        }
    }
}

/// A refusal and the place of the value: `$`, `$.args[3].name`, `$["odd key"]`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{refusal} (at {path})")]
pub struct CanonicalError {
    pub refusal: Refusal,
    pub path: String,
}

impl Coded for CanonicalError {
    fn code(&self) -> Code {
        self.refusal.code()
    }
}

/// One more member in a path; keys that are not plain words are quoted and cut.
pub fn push_key(path: &mut String, key: &str) {
    let plain = key.chars().all(|c| c.is_ascii_alphanumeric() || c == '_') && !key.is_empty();
    if plain && key.len() <= 64 {
        path.push('.');
        path.push_str(key);
        return;
    }
    let shown: String = key.chars().take(32).flat_map(char::escape_default).collect();
    let cut = if key.chars().nth(32).is_some() { "..." } else { "" };
    path.push_str("[\"");
    path.push_str(&shown);
    path.push_str(cut);
    path.push_str("\"]");
}

/// One more element in a path.
pub fn push_index(path: &mut String, index: usize) {
    path.push('[');
    path.push_str(&index.to_string());
    path.push(']');
}
