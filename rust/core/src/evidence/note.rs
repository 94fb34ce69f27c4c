//! Signed notes and checkpoints as C2SP has them: a text, and under it a line for each signature. A
//! checkpoint is a note whose text names a log, its size and its root. Keys are Ed25519, written as one line:
//! `<name>+<id>+<key>`, the id being the start of a hash over name and key.
//!
//! A witness signs what it has seen with a time (`cosignature/v1`); its keys have another type, so that one
//! never passes for the other.

use std::fmt;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use ed25519_dalek::{Signer as _, SigningKey, VerifyingKey};
use sha2::{Digest as _, Sha256};

use super::tree::Hash;
use crate::error::{Code, Coded};
use crate::limits;
use crate::mutants::{Mutant, mutant};

const ED25519: u8 = 1;
const COSIGNATURE: u8 = 4;
const SEED: usize = 32;

/// Why a note, a key or a checkpoint cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoteError {
    #[error("the key is not a key: {0}")]
    BadKey(&'static str),
    #[error("the signed note cannot be read: {0}")]
    BadNote(&'static str),
    #[error("no signature of the key {0} is on the note")]
    Unsigned(String),
    #[error("the signature of {0} is not its own, or of another text")]
    Forged(String),
}

impl Coded for NoteError {
    fn code(&self) -> Code {
        match self {
            Self::BadKey(_) => Code::BadKey,
            Self::BadNote(_) => Code::BadSeal,
            Self::Unsigned(_) => Code::SealUnsigned,
            Self::Forged(_) => Code::SealForged,
        }
    }
}

fn is_name(name: &str) -> bool {
    let odd = |c: char| c.is_whitespace() || c.is_control() || c == '+';
    (1..=limits::NAME_CHARS_MAX).contains(&name.chars().count()) && !name.contains(odd)
}

fn key_id(name: &str, kind: u8, public: &[u8; 32]) -> [u8; 4] {
    let hash: Hash =
        Sha256::new_with_prefix(name).chain_update([b'\n', kind]).chain_update(public).finalize().into();
    [hash[0], hash[1], hash[2], hash[3]]
}

fn hex4(id: [u8; 4]) -> String {
    format!("{:08x}", u32::from_be_bytes(id))
}

/// `name+id+base64(type, key)`: its parts.
fn key_parts(text: &str) -> Result<(String, String, u8, [u8; 32]), NoteError> {
    let mut parts = text.trim_end_matches('\n').splitn(3, '+');
    let (Some(name), Some(id), Some(key)) = (parts.next(), parts.next(), parts.next()) else {
        return Err(NoteError::BadKey("it is not <name>+<id>+<key>"));
    };
    let key = BASE64_STANDARD.decode(key).map_err(|_| NoteError::BadKey("its last part is not base64"))?;
    let (Some((kind, key)), true) = (key.split_first(), is_name(name)) else {
        return Err(NoteError::BadKey("its name or its last part is empty or odd"));
    };
    let key = <[u8; 32]>::try_from(key).map_err(|_| NoteError::BadKey("it has not 32 bytes"))?;
    Ok((name.to_owned(), id.to_owned(), *kind, key))
}

/// A key that signatures are checked with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VerifierKey {
    pub name: String,
    id: [u8; 4],
    kind: u8,
    public: [u8; 32],
}

impl VerifierKey {
    pub fn parse(text: &str) -> Result<Self, NoteError> {
        let (name, id, kind, public) = key_parts(text)?;
        if !matches!(kind, ED25519 | COSIGNATURE) {
            return Err(NoteError::BadKey("its type is not Ed25519"));
        }
        let found = key_id(&name, kind, &public);
        if hex4(found) != id {
            return Err(NoteError::BadKey("its id is not that of its name and key"));
        }
        VerifyingKey::from_bytes(&public).map_err(|_| NoteError::BadKey("it is no point of the curve"))?;
        Ok(Self { name, id: found, kind, public })
    }

    /// Name and id, as records have it.
    pub fn key_id(&self) -> String {
        format!("{}+{}", self.name, hex4(self.id))
    }

    /// Whether it belongs to a witness.
    pub fn is_witness(&self) -> bool {
        self.kind == COSIGNATURE
    }

    pub fn public(&self) -> &[u8; 32] {
        &self.public
    }

    /// Whether a signature is this key's over bytes.
    pub fn verifies(&self, bytes: &[u8], signature: &[u8]) -> bool {
        let (Ok(key), Ok(signature)) =
            (VerifyingKey::from_bytes(&self.public), ed25519_dalek::Signature::from_slice(signature))
        else {
            return false;
        };
        key.verify_strict(bytes, &signature).is_ok() || mutant(Mutant::LooseSignature)
    }
}

impl fmt::Display for VerifierKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let key = BASE64_STANDARD.encode([&[self.kind][..], &self.public].concat());
        write!(f, "{}+{}+{key}", self.name, hex4(self.id))
    }
}

/// A key that signs. Its text is a secret.
#[derive(Clone)]
pub struct SignerKey {
    key: SigningKey,
    public: VerifierKey,
}

impl fmt::Debug for SignerKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SignerKey({}, ..)", self.public.key_id())
    }
}

const PRIVATE: &str = "PRIVATE+KEY+";

impl SignerKey {
    /// A key from fresh random bytes; `witness` says of which type.
    pub fn from_seed(name: &str, seed: [u8; SEED], witness: bool) -> Result<Self, NoteError> {
        if !is_name(name) {
            return Err(NoteError::BadKey("a name has no space, no '+' and 1 to 256 characters"));
        }
        let key = SigningKey::from_bytes(&seed);
        let (public, kind) = (key.verifying_key().to_bytes(), if witness { COSIGNATURE } else { ED25519 });
        let public = VerifierKey { name: name.to_owned(), id: key_id(name, kind, &public), kind, public };
        Ok(Self { key, public })
    }

    pub fn parse(text: &str) -> Result<Self, NoteError> {
        let text = text.strip_prefix(PRIVATE).ok_or(NoteError::BadKey("it is not a private key"))?;
        let (name, id, kind, seed) = key_parts(text)?;
        let key = Self::from_seed(&name, seed, kind == COSIGNATURE)?;
        if kind != key.public.kind || hex4(key.public.id) != id {
            return Err(NoteError::BadKey("its id is not that of its name and key"));
        }
        Ok(key)
    }

    /// The secret line.
    pub fn secret(&self) -> String {
        let key = BASE64_STANDARD.encode([&[self.public.kind][..], &self.key.to_bytes()].concat());
        format!("{PRIVATE}{}+{}+{key}", self.public.name, hex4(self.public.id))
    }

    pub fn verifier(&self) -> &VerifierKey {
        &self.public
    }

    /// The signature over bytes.
    pub fn sign(&self, bytes: &[u8]) -> [u8; 64] {
        self.key.sign(bytes).to_bytes()
    }
}

/// One line under a note.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Signature {
    pub name: String,
    id: [u8; 4],
    bytes: Vec<u8>,
}

/// A text and what is signed under it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Note {
    /// With the newline at its end.
    pub text: String,
    pub signatures: Vec<Signature>,
}

const MARK: &str = "\u{2014} ";

impl Note {
    pub fn new(text: String) -> Self {
        Self { text, signatures: Vec::new() }
    }

    pub fn parse(note: &str) -> Result<Self, NoteError> {
        let bad = NoteError::BadNote;
        if note.len() > limits::NOTE_BYTES_MAX {
            return Err(bad("it is longer than note_bytes_max"));
        }
        let odd = |c: char| c.is_control() && c != '\n';
        if note.contains(odd) {
            return Err(bad("it has control characters"));
        }
        let at = note.rfind("\n\n").ok_or(bad("no blank line before its signatures"))?;
        let (text, lines) = (&note[..=at], &note[at + 2..]);
        let lines = lines.strip_suffix('\n').ok_or(bad("its last line does not end"))?;
        let signatures = lines.split('\n').map(signature).collect::<Result<Vec<_>, _>>()?;
        if signatures.len() > limits::NOTE_SIGNATURES_MAX {
            return Err(bad("more than note_signatures_max signatures"));
        }
        Ok(Self { text: text.to_owned(), signatures })
    }

    /// Adds a signature of the log's own key.
    pub fn sign(&mut self, key: &SignerKey) {
        let bytes = key.sign(self.text.as_bytes()).to_vec();
        self.add(Signature { name: key.public.name.clone(), id: key.public.id, bytes });
    }

    /// Adds what a witness says: that it saw this at a time, in seconds, after all that it saw before.
    pub fn cosign(&mut self, key: &SignerKey, seconds: u64) {
        let signed = key.sign(witnessed(seconds, &self.text).as_bytes());
        let bytes = [&seconds.to_be_bytes()[..], &signed].concat();
        self.add(Signature { name: key.public.name.clone(), id: key.public.id, bytes });
    }

    /// Adds the signatures of another copy of the same note.
    pub fn merge(&mut self, other: Self) -> Result<(), NoteError> {
        if other.text != self.text {
            return Err(NoteError::BadNote("the signatures are under another text"));
        }
        other.signatures.into_iter().for_each(|signature| self.add(signature));
        Ok(())
    }

    /// Takes over what a key has signed on another copy of the same note, once it is checked; whether that is
    /// new. The first word of a key stays: of a witness it is the older one, which says more.
    pub fn adopt(&mut self, copy: &Self, key: &VerifierKey) -> Result<bool, NoteError> {
        if copy.text != self.text {
            return Err(NoteError::BadNote("the signatures are under another text"));
        }
        copy.signed_by(key)?;
        if self.signed_by(key).is_ok() {
            return Ok(false);
        }
        if self.signatures.len() >= limits::NOTE_SIGNATURES_MAX {
            return Err(NoteError::BadNote("more than note_signatures_max signatures"));
        }
        let of = |one: &&Signature| one.name == key.name && one.id == key.id;
        copy.signatures.iter().find(of).cloned().into_iter().for_each(|found| self.add(found));
        Ok(true)
    }

    fn add(&mut self, signature: Signature) {
        let same = |known: &Signature| known.name == signature.name && known.id == signature.id;
        self.signatures.retain(|known| !same(known));
        self.signatures.push(signature);
    }

    /// Whether a key has signed it; a witness says when. A signature under its name that is not its own is
    /// an error.
    pub fn signed_by(&self, key: &VerifierKey) -> Result<Option<u64>, NoteError> {
        let of = |one: &&Signature| one.name == key.name && one.id == key.id;
        let found = self.signatures.iter().find(of);
        let found = found.ok_or_else(|| NoteError::Unsigned(key.key_id()))?;
        let forged = || NoteError::Forged(key.key_id());
        if !key.is_witness() {
            let good = key.verifies(self.text.as_bytes(), &found.bytes);
            return if good { Ok(None) } else { Err(forged()) };
        }
        let (time, bytes) = found.bytes.split_first_chunk::<8>().ok_or_else(forged)?;
        let seconds = u64::from_be_bytes(*time);
        let good = key.verifies(witnessed(seconds, &self.text).as_bytes(), bytes);
        if good { Ok(Some(seconds)) } else { Err(forged()) }
    }
}

fn witnessed(seconds: u64, text: &str) -> String {
    format!("cosignature/v1\ntime {seconds}\n{text}")
}

fn signature(line: &str) -> Result<Signature, NoteError> {
    let bad = || NoteError::BadNote("a signature's line is not one");
    let (name, bytes) = line.strip_prefix(MARK).and_then(|rest| rest.split_once(' ')).ok_or_else(bad)?;
    let bytes = BASE64_STANDARD.decode(bytes).map_err(|_| bad())?;
    let (id, bytes) = bytes.split_first_chunk::<4>().ok_or_else(bad)?;
    if !is_name(name) || bytes.is_empty() {
        return Err(bad());
    }
    Ok(Signature { name: name.to_owned(), id: *id, bytes: bytes.to_vec() })
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.text)?;
        self.signatures.iter().try_for_each(|one| {
            let bytes = BASE64_STANDARD.encode([&one.id[..], &one.bytes].concat());
            writeln!(f, "{MARK}{} {bytes}", one.name)
        })
    }
}

/// What a log says of itself: its name, how many leaves it has, and their root.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Checkpoint {
    pub origin: String,
    pub size: u64,
    pub root: Hash,
    pub extensions: Vec<String>,
}

impl Checkpoint {
    /// The text of a note.
    pub fn text(&self) -> String {
        let root = BASE64_STANDARD.encode(self.root);
        let mut text = format!("{}\n{}\n{root}\n", self.origin, self.size);
        for line in &self.extensions {
            text.push_str(line);
            text.push('\n');
        }
        text
    }

    pub fn parse(text: &str) -> Result<Self, NoteError> {
        let bad = NoteError::BadNote;
        let mut lines = text.strip_suffix('\n').ok_or(bad("its text does not end"))?.split('\n');
        let (Some(origin), Some(size), Some(root)) = (lines.next(), lines.next(), lines.next()) else {
            return Err(bad("a checkpoint has three lines"));
        };
        let number: u64 = size.parse().map_err(|_| bad("its size is not a number"))?;
        let root = BASE64_STANDARD.decode(root).ok().and_then(|root| Hash::try_from(root).ok());
        let root = root.ok_or(bad("its root is not a hash"))?;
        let extensions: Vec<String> = lines.map(str::to_owned).collect();
        if origin.is_empty() || number.to_string() != size || extensions.iter().any(String::is_empty) {
            return Err(bad("a line of it is empty or odd"));
        }
        Ok(Self { origin: origin.to_owned(), size: number, root, extensions })
    }
}
