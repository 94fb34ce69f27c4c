//! Large contents, one file each, named by their commitment. A file is written under a temporary name,
//! synced, renamed, and its folder synced, all before any frame refers to it. It holds its own salt, so
//! that removing the file leaves nothing to guess from, and ends in a SHA-256 of everything before.
//!
//! ```text
//! "HFB1" | flags (1 byte: 1 = zstd) | salt (16) | length of the value (8, big endian) | bytes | SHA-256 (32)
//! ```
//!
//! No path comes from user data: a name is 64 hex digits of a parsed commitment.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use holdfast_core::content::{Commit, Salt, commit};
use holdfast_core::limits;
use holdfast_core::mutants::{Mutant, mutant};
use sha2::{Digest as _, Sha256};

use crate::clock::{random, random_name, wall_ms};
use crate::error::{Result, StoreError};
use crate::sqlite::folder::sync_folder;

const MAGIC: &[u8; 4] = b"HFB1";
const HEADER: usize = 4 + 1 + 16 + 8;
const SUM: usize = 32;
/// No blob is stored in more bytes than this.
pub(crate) const STORED_MAX: usize = limits::BLOB_BYTES_MAX + HEADER + SUM;
const COMPRESSED: u8 = 1;
/// Below this, compressing costs more than it saves.
const COMPRESS_FROM: usize = 512;

/// Where blobs are kept.
#[derive(Debug)]
pub enum Blobs {
    Folder(PathBuf),
    /// With the time at which each was put there.
    Memory(Mutex<BTreeMap<Commit, (u64, Vec<u8>)>>),
    Elsewhere(Box<dyn Shelf>),
}

/// Another place for blobs, which knows no more of them than their names and bytes. What is put there is
/// durable when `put` returns, and never changes: who comes second finds the first one's.
pub trait Shelf: Send + Sync + std::fmt::Debug {
    fn put(&self, name: &Commit, stored: &[u8]) -> Result<()>;
    fn get(&self, name: &Commit) -> Result<Option<Vec<u8>>>;
    fn has(&self, name: &Commit) -> Result<bool>;
    /// Whether it was there.
    fn remove(&self, name: &Commit) -> Result<bool>;
    fn list(&self) -> Result<Vec<BlobFile>>;
}

/// A blob as it lies there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlobFile {
    pub commit: Commit,
    pub bytes: u64,
    /// When it was written, in milliseconds since the epoch.
    pub modified_ms: u64,
}

/// What a blob opens to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Blob {
    pub salt: Salt,
    pub bytes: Vec<u8>,
}

impl Blobs {
    pub(crate) fn memory() -> Self {
        Self::Memory(Mutex::new(BTreeMap::new()))
    }

    /// Keeps bytes under a fresh salt; returns their commitment.
    pub fn put(&self, bytes: &[u8]) -> Result<Commit> {
        self.put_salted(Salt(random()?), bytes)
    }

    /// Keeps bytes under a salt. What is there already stays as it is.
    pub fn put_salted(&self, salt: Salt, bytes: &[u8]) -> Result<Commit> {
        if bytes.len() > limits::BLOB_BYTES_MAX {
            return Err(StoreError::LimitExceeded("blob_bytes_max"));
        }
        let name = commit(salt, bytes);
        let stored = pack(salt, bytes)?;
        match self {
            Self::Memory(kept) => {
                let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
                kept.entry(name).or_insert((wall_ms(), stored));
            }
            Self::Folder(folder) => write_file(folder, &name, &stored)?,
            Self::Elsewhere(shelf) => shelf.put(&name, &stored)?,
        }
        Ok(name)
    }

    /// Reads a blob, and checks what was read: the sum, and the commitment.
    pub fn get(&self, name: &Commit) -> Result<Blob> {
        let stored = match self {
            Self::Memory(kept) => {
                let kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
                kept.get(name).map(|(_, stored)| stored.clone()).ok_or(StoreError::NoSuchBlob(*name))?
            }
            Self::Folder(folder) => read_file(folder, name)?,
            Self::Elsewhere(shelf) => shelf.get(name)?.ok_or(StoreError::NoSuchBlob(*name))?,
        };
        open(name, &stored).ok_or(StoreError::BlobForged(*name))
    }

    /// Whether a blob is there. One that cannot be asked for is not taken for missing.
    pub fn has(&self, name: &Commit) -> Result<bool> {
        match self {
            Self::Memory(kept) => Ok(kept.lock().unwrap_or_else(PoisonError::into_inner).contains_key(name)),
            Self::Folder(folder) => Ok(place(folder, name).is_file()),
            Self::Elsewhere(shelf) => shelf.has(name),
        }
    }

    /// Removes a blob, durably; whether it was there.
    pub fn remove(&self, name: &Commit) -> Result<bool> {
        match self {
            Self::Memory(kept) => {
                Ok(kept.lock().unwrap_or_else(PoisonError::into_inner).remove(name).is_some())
            }
            Self::Folder(folder) => {
                let path = place(folder, name);
                match fs::remove_file(&path) {
                    Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(false),
                    Err(error) => Err(StoreError::io("cannot remove a blob", &error)),
                    Ok(()) => sync_folder(path.parent().unwrap_or(folder)).map(|()| true),
                }
            }
            Self::Elsewhere(shelf) => shelf.remove(name),
        }
    }

    /// Every blob that lies there, and the temporary files that interrupted writers left.
    pub fn list(&self) -> Result<(Vec<BlobFile>, Vec<PathBuf>)> {
        match self {
            Self::Memory(kept) => {
                let kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
                let file = |(commit, (put_ms, stored)): (&Commit, &(u64, Vec<u8>))| BlobFile {
                    commit: *commit,
                    bytes: u64::try_from(stored.len()).unwrap_or(u64::MAX),
                    modified_ms: *put_ms,
                };
                Ok((kept.iter().map(file).collect(), Vec::new()))
            }
            Self::Folder(folder) => list_folder(folder),
            Self::Elsewhere(shelf) => Ok((shelf.list()?, Vec::new())),
        }
    }
}

/// What stored bytes open to, if it is what the name says.
fn open(name: &Commit, stored: &[u8]) -> Option<Blob> {
    unpack(stored).filter(|blob| commit(blob.salt, &blob.bytes) == *name)
}

/// Whether stored bytes are the blob of that name.
#[cfg_attr(not(feature = "objects"), allow(dead_code))]
pub(crate) fn is_blob(name: &Commit, stored: &[u8]) -> bool {
    open(name, stored).is_some()
}

/// The blob that a file of this name is.
pub(crate) fn parse_name(name: &str) -> Option<Commit> {
    let tree = serde_json::Value::String(format!("sha256:{name}"));
    holdfast_core::records::read::<Commit>(&tree).ok()
}

pub(crate) fn hex_name(name: &Commit) -> String {
    name.to_string().trim_start_matches("sha256:").to_owned()
}

fn place(folder: &Path, name: &Commit) -> PathBuf {
    let name = hex_name(name);
    folder.join(&name[..2]).join(name)
}

fn pack(salt: Salt, bytes: &[u8]) -> Result<Vec<u8>> {
    let told = |e: &std::io::Error| StoreError::io("cannot compress a blob", e);
    let smaller = match bytes.len() {
        ..COMPRESS_FROM => None,
        _ => Some(zstd::bulk::compress(bytes, 3).map_err(|e| told(&e))?),
    };
    let (flags, body) = match &smaller {
        Some(smaller) if smaller.len() + bytes.len() / 16 < bytes.len() => (COMPRESSED, smaller.as_slice()),
        _ => (0, bytes),
    };
    let mut stored = Vec::with_capacity(HEADER + body.len() + SUM);
    stored.extend_from_slice(MAGIC);
    stored.push(flags);
    stored.extend_from_slice(&salt.0);
    stored.extend_from_slice(&u64::try_from(bytes.len()).unwrap_or(u64::MAX).to_be_bytes());
    stored.extend_from_slice(body);
    let sum = Sha256::digest(&stored);
    stored.extend_from_slice(&sum);
    Ok(stored)
}

fn unpack(stored: &[u8]) -> Option<Blob> {
    let (rest, sum) = stored.split_at_checked(stored.len().checked_sub(SUM)?)?;
    if rest.len() < HEADER || Sha256::digest(rest).as_slice() != sum || &rest[..4] != MAGIC {
        return None;
    }
    let salt = Salt(rest[5..21].try_into().ok()?);
    let length = usize::try_from(u64::from_be_bytes(rest[21..29].try_into().ok()?)).ok()?;
    let body = &rest[HEADER..];
    if length > limits::BLOB_BYTES_MAX {
        return None;
    }
    let bytes = match rest[4] {
        0 => body.to_vec(),
        COMPRESSED => zstd::bulk::decompress(body, length).ok()?,
        _ => return None,
    };
    (bytes.len() == length).then_some(Blob { salt, bytes })
}

fn write_file(folder: &Path, name: &Commit, stored: &[u8]) -> Result<()> {
    let path = place(folder, name);
    let told = |error: &std::io::Error| StoreError::io("cannot write a blob", error);
    if path.is_file() {
        return Ok(());
    }
    let inner = path.parent().unwrap_or(folder);
    if !inner.is_dir() {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(inner).map_err(|e| told(&e))?;
        sync_folder(folder)?;
    }
    if mutant(Mutant::HastyBlobs) {
        return fs::write(&path, stored).map_err(|e| told(&e));
    }
    let hidden = inner.join(format!(".{}.new", random_name()?));
    let written = (|| {
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&hidden)?;
        file.write_all(stored)?;
        file.sync_all()?;
        fs::rename(&hidden, &path)
    })();
    if let Err(error) = written {
        let _ = fs::remove_file(&hidden);
        return Err(told(&error));
    }
    sync_folder(inner)
}

fn read_file(folder: &Path, name: &Commit) -> Result<Vec<u8>> {
    const O_NOFOLLOW: i32 = 0o400_000;
    let opened = OpenOptions::new().read(true).custom_flags(O_NOFOLLOW).open(place(folder, name));
    let file: File = match opened {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            return Err(StoreError::NoSuchBlob(*name));
        }
        Err(error) => return Err(StoreError::io("cannot read a blob", &error)),
        Ok(file) => file,
    };
    let most = u64::try_from(STORED_MAX).unwrap_or(u64::MAX);
    let mut stored = Vec::new();
    file.take(most).read_to_end(&mut stored).map_err(|e| StoreError::io("cannot read a blob", &e))?;
    Ok(stored)
}

fn list_folder(folder: &Path) -> Result<(Vec<BlobFile>, Vec<PathBuf>)> {
    let told = |error: &std::io::Error| StoreError::io("cannot list the blobs", error);
    let (mut blobs, mut left_over) = (Vec::new(), Vec::new());
    let inner = match fs::read_dir(folder) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok((blobs, left_over)),
        found => found.map_err(|e| told(&e))?,
    };
    for inner in inner {
        let inner = inner.map_err(|e| told(&e))?.path();
        if !inner.is_dir() {
            continue;
        }
        for entry in fs::read_dir(&inner).map_err(|e| told(&e))? {
            let entry = entry.map_err(|e| told(&e))?;
            let name = entry.file_name().to_string_lossy().into_owned();
            let found = entry.metadata().map_err(|e| told(&e))?;
            match parse_name(&name) {
                Some(commit) => blobs.push(BlobFile {
                    commit,
                    bytes: found.len(),
                    modified_ms: u64::try_from(found.mtime()).unwrap_or(0).saturating_mul(1000),
                }),
                None => left_over.push(entry.path()),
            }
        }
    }
    blobs.sort_by_key(|blob| blob.commit);
    Ok((blobs, left_over))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_blob_comes_back_and_every_flipped_byte_of_its_file_is_noticed() {
        for bytes in [b"".to_vec(), b"short".to_vec(), b"long ".repeat(400)] {
            let stored = pack(Salt([7; 16]), &bytes).unwrap();
            assert_eq!(unpack(&stored), Some(Blob { salt: Salt([7; 16]), bytes }));
            for at in 0..stored.len() {
                let mut damaged = stored.clone();
                damaged[at] ^= 0x10;
                assert_eq!(unpack(&damaged), None, "byte {at}");
            }
            for most in 0..stored.len() {
                assert_eq!(unpack(&stored[..most]), None);
            }
        }
    }
}
