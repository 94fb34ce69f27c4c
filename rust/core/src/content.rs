//! Contents: users' values, kept beside the records and committed to by a salted hash.
//!
//! A record holds only a [`Content`]; the salt and the value live next to the frame and can be
//! erased without breaking the chain. The salt makes the commitment useless for guessing.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::canonical::{CanonicalError, Digest, Mac, Writer, domains, hex, to_bytes, unhex, write_value};
use crate::error::{Code, Coded};
use crate::records::{Media, Privacy};

pub type Commit = Digest<domains::Content>;
pub type CallDigest = Mac<domains::Call>;

/// A user's value as a record holds it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Content {
    /// Length of the committed bytes.
    pub bytes: u64,
    /// Over the salt and the bytes.
    pub commit: Commit,
    /// `application/json` means canonical JSON; anything else, raw bytes.
    pub media: Media,
    pub privacy: Privacy,
}

impl Content {
    /// The tree that it is written as.
    pub(crate) fn to_tree(&self) -> Value {
        let mut members = serde_json::Map::new();
        members.insert("bytes".to_owned(), self.bytes.into());
        members.insert("commit".to_owned(), self.commit.to_string().into());
        members.insert("media".to_owned(), self.media.as_str().into());
        members.insert("privacy".to_owned(), self.privacy.as_str().into());
        Value::Object(members)
    }
}

/// Sixteen random bytes, written as hex.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Salt(pub [u8; 16]);

impl Serialize for Salt {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&hex(&self.0))
    }
}

impl<'de> Deserialize<'de> for Salt {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let salt =
            unhex(&text).ok_or_else(|| serde::de::Error::custom("a salt is 32 lowercase hex digits"))?;
        Ok(Self(salt))
    }
}

/// A value and the salt that opens its commitment.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Opening {
    pub salt: Salt,
    pub value: Value,
}

/// A value on its way into a record: what the record will hold, and what is kept beside it.
#[derive(Debug, Clone, PartialEq)]
pub struct Sealed {
    /// The value in canonical form: what the commitment is over, and what is kept.
    pub bytes: Vec<u8>,
    pub content: Content,
    pub opening: Opening,
}

/// What opens the commitments of a frame or a stream; an erased content is simply not there.
pub type Openings = BTreeMap<Commit, Opening>;

/// Why a content cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ContentError {
    #[error("the content {0} was erased")]
    Erased(Commit),
    #[error("what is kept for the content {0} is not what was committed to")]
    Forged(Commit),
    #[error(transparent)]
    NotCanonical(#[from] CanonicalError),
}

impl Coded for ContentError {
    fn code(&self) -> Code {
        match self {
            Self::Erased(_) => Code::ContentErased,
            Self::Forged(_) => Code::ContentForged,
            Self::NotCanonical(error) => error.code(),
        }
    }
}

fn value_bytes(value: &Value) -> Result<Vec<u8>, CanonicalError> {
    let mut writer = Writer::new();
    let written = write_value(&mut writer, value);
    written.map_err(|refusal| CanonicalError { refusal, path: writer.path() })?;
    Ok(writer.into_bytes())
}

/// The commitment to bytes under a salt.
pub fn commit(salt: Salt, bytes: &[u8]) -> Commit {
    Digest::of_bytes(&[&salt.0, bytes])
}

/// Seals a JSON value under a salt.
pub fn seal(value: Value, salt: Salt, privacy: Privacy) -> Result<Sealed, CanonicalError> {
    let bytes = value_bytes(&value)?;
    let content = Content {
        bytes: u64::try_from(bytes.len()).unwrap_or(u64::MAX),
        commit: commit(salt, &bytes),
        media: Media::json(),
        privacy,
    };
    Ok(Sealed { bytes, content, opening: Opening { salt, value } })
}

/// The value that a content commits to, checked against the commitment.
pub fn open<'a>(content: &Content, openings: &'a Openings) -> Result<&'a Value, ContentError> {
    let opening = openings.get(&content.commit).ok_or(ContentError::Erased(content.commit))?;
    check(&content.commit, opening)?;
    Ok(&opening.value)
}

/// Whether an opening opens a commitment.
pub fn check(commitment: &Commit, opening: &Opening) -> Result<(), ContentError> {
    if commit(opening.salt, &value_bytes(&opening.value)?) == *commitment {
        Ok(())
    } else {
        Err(ContentError::Forged(*commitment))
    }
}

/// Erases contents: the chain stays valid, a later [`open`] says so. Returns how many were there.
pub fn erase(openings: &mut Openings, commits: &[Commit]) -> usize {
    commits.iter().filter(|commit| openings.remove(commit).is_some()).count()
}

/// A run's seed: thirty-two random bytes from which its call key and its random values follow. It is
/// itself a content of the run, so erasing it leaves nothing to guess arguments from.
#[derive(Clone, PartialEq, Eq)]
pub struct Seed(pub [u8; 32]);

impl std::fmt::Debug for Seed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Seed(..)")
    }
}

impl Seed {
    /// Reads the seed's content: 64 hex digits.
    pub fn from_value(value: &Value) -> Option<Self> {
        unhex(value.as_str()?).map(Self)
    }

    /// The seed as the content that is sealed.
    pub fn to_value(&self) -> Value {
        Value::String(hex(&self.0))
    }

    fn call_key(&self) -> [u8; 32] {
        *Mac::<domains::CallKey>::keyed(&self.0, b"").bytes()
    }

    /// A call's identity: its kind, its name and its arguments as agent code gave them.
    pub fn call_digest(
        &self,
        kind: &str,
        name: &str,
        arguments: &Value,
    ) -> Result<CallDigest, CanonicalError> {
        #[derive(Serialize)]
        struct Identity<'a> {
            arguments: &'a Value,
            kind: &'a str,
            name: &'a str,
        }
        let bytes = to_bytes(&Identity { arguments, kind, name })?;
        Ok(Mac::keyed(&self.call_key(), &bytes))
    }

    /// The n-th block of random bytes of a lane; the same in every replay.
    pub fn random(&self, lane: &str, n: u64) -> [u8; 32] {
        *Mac::<domains::Random>::keyed(&self.0, format!("{n}\n{lane}").as_bytes()).bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_sealed_value_opens_until_it_is_erased_and_never_after_it_was_changed() {
        let sealed = seal(json!({"cents": 1999}), Salt([7; 16]), Privacy::Internal).unwrap();
        let mut openings = Openings::from([(sealed.content.commit, sealed.opening.clone())]);
        assert_eq!(open(&sealed.content, &openings), Ok(&json!({"cents": 1999})));

        openings.insert(sealed.content.commit, Opening { value: json!({"cents": 1}), ..sealed.opening });
        assert_eq!(open(&sealed.content, &openings), Err(ContentError::Forged(sealed.content.commit)));

        assert_eq!(erase(&mut openings, &[sealed.content.commit]), 1);
        assert_eq!(open(&sealed.content, &openings), Err(ContentError::Erased(sealed.content.commit)));
    }

    #[test]
    fn equal_values_under_other_salts_have_other_commitments() {
        let commit = |salt| seal(json!("no"), Salt([salt; 16]), Privacy::Internal).unwrap().content.commit;
        assert_ne!(commit(1), commit(2));
    }

    #[test]
    fn a_call_digest_depends_on_run_kind_name_and_arguments_and_nothing_else() {
        let digest = |seed, kind, name, args| Seed([seed; 32]).call_digest(kind, name, &args).unwrap();
        let one = digest(1, "tool", "refund", json!({"a": 1, "b": 2}));
        assert!(one.is(&digest(1, "tool", "refund", json!({"b": 2.0, "a": 1}))));
        for other in [
            digest(2, "tool", "refund", json!({"a": 1, "b": 2})),
            digest(1, "task", "refund", json!({"a": 1, "b": 2})),
            digest(1, "tool", "refund2", json!({"a": 1, "b": 2})),
            digest(1, "tool", "refund", json!({"a": 1, "b": 3})),
        ] {
            assert!(!one.is(&other));
        }
    }
}
