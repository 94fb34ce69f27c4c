//! A frame: the records of one stream that were committed together, kept as the text of a JSON array.
//! The records' own bytes stand in it unchanged, so a reader hashes slices and encodes nothing again.

use std::collections::BTreeMap;

use serde_json::value::RawValue;

use crate::canonical::scan::value_end;
use crate::canonical::{CanonicalError, from_text, hex};
use crate::content::{Commit, Opening, Salt, Sealed, commit};
use crate::records::{RecordHash, hash_text};

#[cfg(test)]
fn join<'a>(texts: impl IntoIterator<Item = &'a [u8]>) -> Vec<u8> {
    let mut body = vec![b'['];
    for text in texts {
        if body.len() > 1 {
            body.push(b',');
        }
        body.extend_from_slice(text);
    }
    body.push(b']');
    body
}

/// The bytes that are kept of a content beside its value.
const KEPT_BESIDE: usize = 140;

/// What is kept beside a frame: salt and value of each content by its commitment, as the text of a JSON
/// object. The values' own bytes stand in it unchanged.
pub fn contents<'a>(sealed: impl IntoIterator<Item = &'a Sealed>) -> Option<Vec<u8>> {
    let by_commit: BTreeMap<Commit, &Sealed> = sealed.into_iter().map(|s| (s.content.commit, s)).collect();
    let mut text = Vec::new();
    for (commit, sealed) in by_commit {
        text.push(if text.is_empty() { b'{' } else { b',' });
        text.reserve(sealed.bytes.len() + KEPT_BESIDE);
        text.push(b'"');
        commit.with_text(|commit| text.extend_from_slice(commit.as_bytes()));
        text.extend_from_slice(b"\":{\"salt\":\"");
        text.extend_from_slice(hex(&sealed.opening.salt.0).as_bytes());
        text.extend_from_slice(b"\",\"value\":");
        text.extend_from_slice(&sealed.bytes);
        text.push(b'}');
    }
    if text.is_empty() {
        return None;
    }
    text.push(b'}');
    Some(text)
}

/// A content as it is kept beside a frame: its value as it stands there.
#[derive(Debug, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Kept<'a> {
    salt: Salt,
    #[serde(borrow)]
    value: &'a RawValue,
}

impl Kept<'_> {
    /// Salt and value, under the limits of one value.
    pub fn opening(&self) -> Result<Opening, CanonicalError> {
        Ok(Opening { salt: self.salt, value: from_text(self.value.get().as_bytes())? })
    }

    /// Whether it opens a commitment. The value's bytes are hashed as they stand: only canonical ones,
    /// as they were written, can be right.
    pub fn opens(&self, commitment: &Commit) -> bool {
        commit(self.salt, self.value.get().as_bytes()) == *commitment
    }
}

/// What is kept beside a frame, by commitment, or nothing if it cannot be read.
#[allow(clippy::disallowed_methods, reason = "each value is hashed as it stands; nothing is trusted before")]
pub fn kept(contents: &str) -> Option<BTreeMap<Commit, Kept<'_>>> {
    serde_json::from_str(contents).ok()
}

/// The texts of a frame's records, or nothing if it is not an array of objects without space between.
/// Whether each is a record is for its reader to say.
pub fn split(body: &[u8]) -> Option<Vec<&[u8]>> {
    let inner = body.strip_prefix(b"[")?.strip_suffix(b"]")?;
    let mut texts = Vec::new();
    let (mut at, mut rest) = (0, inner);
    while !rest.is_empty() {
        if at > 0 {
            rest = rest.strip_prefix(b",")?;
        }
        let end = object_end(rest)?;
        texts.push(&rest[..end]);
        (at, rest) = (at + 1, &rest[end..]);
    }
    Some(texts)
}

/// Where the object that the text begins with ends.
pub(crate) fn object_end(text: &[u8]) -> Option<usize> {
    if text.first() == Some(&b'{') { value_end(text, 0) } else { None }
}

/// The hash of a record's text.
pub fn hash(text: &[u8]) -> RecordHash {
    hash_text(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_joined_is_split_into_the_same_texts() {
        let texts: [&[u8]; 3] = [br#"{"a":"]}\"{["}"#, br#"{"b":[{},[1,"\\"]]}"#, b"{}"];
        for most in 0..=3 {
            let body = join(texts[..most].iter().copied());
            assert_eq!(split(&body).as_deref(), Some(&texts[..most]));
        }
    }

    #[test]
    fn what_is_no_frame_is_not_split() {
        for bad in
            ["", "[", "]", "{}", "[1]", "[{}", "[{},]", "[,{}]", "[{} ,{}]", "[{}{}]", "[{\"a]", "[{\"\\"]
        {
            assert_eq!(split(bad.as_bytes()), None, "{bad}");
        }
    }
}
