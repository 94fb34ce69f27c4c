//! Typed, domain-separated digests: `sha256(domain + "\n" + bytes)`, written `sha256:<64 hex>`.
//! A digest of one domain is another type than a digest of another, and never has its bytes.

use std::fmt;
use std::marker::PhantomData;

use hmac::{Hmac, KeyInit, Mac as _};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq;

use super::error::CanonicalError;
use super::writer::Writer;

/// What a digest is of. The tag is hashed before the bytes and is never reused.
pub trait Domain: Copy + fmt::Debug + Ord + 'static {
    const TAG: &'static str;
}

/// The domains, one empty type each.
pub mod domains {
    macro_rules! domains {
        ($($(#[$doc:meta])* $name:ident = $tag:literal;)*) => {
            $($(#[$doc])*
            #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
            pub enum $name {}
            impl super::Domain for $name { const TAG: &'static str = $tag; })*
            /// Every tag, for docs and parity tests.
            pub const ALL: &[&str] = &[$($tag),*];
        };
    }
    domains! {
        /// Any value of a user's own; what `canonical.digest` uses unless told otherwise.
        Value = "holdfast/value/v1";
        /// A record: what the next record's `prev` holds.
        Record = "holdfast/record/v1";
        /// The `prev` of a stream's first record: over the ids of store and stream.
        Stream = "holdfast/stream/v1";
        /// A content: over its salt and its bytes.
        Content = "holdfast/content/v1";
        /// A call's identity: keyed, over kind, name and arguments as agent code gave them.
        Call = "holdfast/call/v1";
        /// The per-run key of call digests, derived from the run's seed.
        CallKey = "holdfast/call-key/v1";
        /// Random values of agent code, derived from the run's seed.
        Random = "holdfast/random/v1";
        /// A secret's keyed digest.
        Secret = "holdfast/secret/v1";
        /// A part of a package fingerprint.
        Package = "holdfast/package/v1";
        /// A policy.
        Policy = "holdfast/policy/v1";
        /// A tool's schema.
        Schema = "holdfast/schema/v1";
        /// What an approver is shown and a grant is bound to.
        Approval = "holdfast/approval/v1";
        /// A call's idempotency key: over the call's id.
        Permit = "holdfast/permit/v1";
        /// A snapshot of folded state.
        Snapshot = "holdfast/snapshot/v1";
    }
}

/// A SHA-256 digest of one domain.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Digest<D: Domain>([u8; 32], PhantomData<D>);

/// An HMAC-SHA-256 as other people's protocols have it: without a domain, for what leaves Holdfast signed.
pub fn hmac_sha256(key: &[u8], bytes: &[u8]) -> [u8; 32] {
    let mut block = [0u8; 64];
    match block.get_mut(..key.len()) {
        Some(start) => start.copy_from_slice(key),
        None => block[..32].copy_from_slice(&Sha256::digest(key)), // a longer key is its hash
    }
    let mut mac = <Hmac<Sha256> as KeyInit>::new(&block.into());
    mac.update(bytes);
    mac.finalize().into_bytes().into()
}

/// An HMAC-SHA-256 of one domain, written `hmac:<64 hex>`. Comparing two takes the same time always.
#[derive(Clone, Copy)]
pub struct Mac<D: Domain>([u8; 32], PhantomData<D>);

impl<D: Domain> Digest<D> {
    pub const PREFIX: &'static str = "sha256:";

    /// The digest of bytes that are already canonical (or of a content's raw bytes).
    pub fn of_bytes(parts: &[&[u8]]) -> Self {
        let mut hash = Sha256::new_with_prefix(D::TAG);
        hash.update(b"\n");
        for part in parts {
            hash.update(part);
        }
        Self(hash.finalize().into(), PhantomData)
    }

    /// The digest of a serde type's canonical bytes.
    pub fn of<T: Serialize + ?Sized>(value: &T) -> Result<Self, CanonicalError> {
        Ok(Self::of_bytes(&[&super::to_bytes(value)?]))
    }

    pub fn bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// Reads its text.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        Some(Self(unhex(text.strip_prefix(Self::PREFIX)?)?, PhantomData))
    }

    pub(crate) fn with_text<T>(&self, read: impl FnOnce(&str) -> T) -> T {
        read(spell(Self::PREFIX, &self.0).as_str())
    }
}

impl Digest<domains::Stream> {
    /// A stream's origin in the place of the hash of a record before its first.
    pub fn into_prev(self) -> Digest<domains::Record> {
        Digest(self.0, PhantomData)
    }
}

impl<D: Domain> Mac<D> {
    pub const PREFIX: &'static str = "hmac:";

    /// The keyed digest of bytes.
    pub fn keyed(key: &[u8; 32], bytes: &[u8]) -> Self {
        let mut block = [0u8; 64]; // HMAC pads a short key with zeros to its hash's block
        block[..32].copy_from_slice(key);
        let mut mac = <Hmac<Sha256> as KeyInit>::new(&block.into());
        mac.update(D::TAG.as_bytes());
        mac.update(b"\n");
        mac.update(bytes);
        Self(mac.finalize().into_bytes().into(), PhantomData)
    }

    /// Whether the two are the same, in constant time.
    pub fn is(&self, other: &Self) -> bool {
        self.0.ct_eq(&other.0).into()
    }

    pub fn bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

/// `sha256:<hex>` of what a writer holds, domain included, as ASCII.
pub fn digest_with(writer: &Writer) -> [u8; 71] {
    let mut text = [0u8; 71];
    text[..7].copy_from_slice(b"sha256:");
    write_hex(&mut text[7..], &Sha256::digest(writer.bytes()));
    text
}

/// A digest's text, on the stack: journals hold several in each record.
struct Spelled {
    bytes: [u8; 71],
    length: usize,
}

impl Spelled {
    fn as_str(&self) -> &str {
        std::str::from_utf8(&self.bytes[..self.length]).unwrap_or_default()
    }
}

fn spell(prefix: &str, bytes: &[u8; 32]) -> Spelled {
    let (mut spelled, at) = ([0u8; 71], prefix.len());
    spelled[..at].copy_from_slice(prefix.as_bytes());
    write_hex(&mut spelled[at..at + 64], bytes);
    Spelled { bytes: spelled, length: at + 64 }
}

/// Reads a digest from text without keeping the text.
struct Text {
    prefix: &'static str,
    pattern: &'static str,
}

impl de::Visitor<'_> for Text {
    type Value = [u8; 32];
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string")
    }
    fn visit_str<E: de::Error>(self, text: &str) -> Result<[u8; 32], E> {
        let bytes = text.strip_prefix(self.prefix).and_then(unhex);
        bytes.ok_or_else(|| E::invalid_value(de::Unexpected::Str("..."), &self.pattern))
    }
}

/// Bytes as lowercase hex digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    let mut digits = vec![0u8; bytes.len() * 2];
    write_hex(&mut digits, bytes);
    String::from_utf8(digits).unwrap_or_default()
}

fn write_hex(out: &mut [u8], bytes: &[u8]) {
    const HEX: &[u8; 16] = b"0123456789abcdef";
    for (pair, byte) in out.chunks_exact_mut(2).zip(bytes) {
        pair[0] = HEX[usize::from(byte >> 4)];
        pair[1] = HEX[usize::from(byte & 15)];
    }
}

/// What each byte is worth as a lowercase hex digit; those that are none have a bit that no digit has.
const NIBBLES: [u8; 256] = {
    let mut table = [0xf0; 256];
    let (mut at, mut worth) = (0, 0);
    while at < 16 {
        let digit = if at < 10 { 0x30 + at } else { 0x61 - 10 + at };
        table[digit] = worth;
        (at, worth) = (at + 1, worth + 1);
    }
    table
};

/// Exactly `N` bytes from lowercase hex digits. A record has several digests, and nearly all of them are good:
/// a table, and one look at the end, instead of a question at each digit.
pub(crate) fn unhex<const N: usize>(text: &str) -> Option<[u8; N]> {
    if text.len() != 2 * N {
        return None;
    }
    let (mut bytes, mut odd) = ([0u8; N], 0);
    for (byte, pair) in bytes.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
        let (high, low) = (NIBBLES[usize::from(pair[0])], NIBBLES[usize::from(pair[1])]);
        odd |= high | low;
        *byte = (high << 4) | (low & 0x0f);
    }
    (odd < 16).then_some(bytes)
}

macro_rules! textual {
    ($type:ident, $pattern:literal) => {
        impl<D: Domain> fmt::Display for $type<D> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(spell(Self::PREFIX, &self.0).as_str())
            }
        }
        impl<D: Domain> fmt::Debug for $type<D> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{self}")
            }
        }
        impl<D: Domain> Serialize for $type<D> {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(spell(Self::PREFIX, &self.0).as_str())
            }
        }
        impl<'de, D: Domain> Deserialize<'de> for $type<D> {
            fn deserialize<T: Deserializer<'de>>(deserializer: T) -> Result<Self, T::Error> {
                let bytes = deserializer.deserialize_str(Text { prefix: Self::PREFIX, pattern: $pattern })?;
                Ok(Self(bytes, PhantomData))
            }
        }
        impl<D: Domain> schemars::JsonSchema for $type<D> {
            fn inline_schema() -> bool {
                true
            }
            fn schema_name() -> std::borrow::Cow<'static, str> {
                stringify!($type).into()
            }
            fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
                schemars::json_schema!({"type": "string", "pattern": $pattern})
            }
        }
    };
}
textual!(Digest, "^sha256:[0-9a-f]{64}$");
textual!(Mac, "^hmac:[0-9a-f]{64}$");

impl<D: Domain> PartialEq for Mac<D> {
    fn eq(&self, other: &Self) -> bool {
        self.is(other)
    }
}
impl<D: Domain> Eq for Mac<D> {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_of_one_domain_is_not_that_of_another() {
        let (a, b) =
            (Digest::<domains::Record>::of_bytes(&[b"{}"]), Digest::<domains::Content>::of_bytes(&[b"{}"]));
        assert_ne!(a.bytes(), b.bytes());
    }

    #[test]
    fn a_digest_is_sha256_over_domain_line_and_bytes() {
        let digest = Digest::<domains::Record>::of_bytes(&[b"{", b"}"]);
        let plain: [u8; 32] = Sha256::digest(b"holdfast/record/v1\n{}").into();
        assert_eq!(digest.bytes(), &plain);
    }

    #[test]
    fn text_round_trips_and_anything_else_is_refused() {
        let digest = Digest::<domains::Value>::of_bytes(&[b"1"]);
        let read = |text: &str| {
            let tree = serde_json::Value::String(text.to_owned());
            serde_json::from_value::<Digest<domains::Value>>(tree).ok()
        };
        assert_eq!(read(&digest.to_string()), Some(digest));
        let upper = digest.to_string().to_uppercase();
        for bad in
            ["", "sha256:", "sha256:0", &upper, &format!("{digest}0"), &format!("hmac:{}", "0".repeat(64))]
        {
            assert_eq!(read(bad), None, "{bad}");
        }
    }
}
