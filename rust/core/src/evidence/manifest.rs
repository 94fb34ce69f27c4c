//! The manifest of a bundle: every file in it with its length and hash, in one canonical JSON text. Any byte
//! of a bundle is under it, the verifier inside included.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::bundle::BundleError;
use crate::canonical::{from_text, to_bytes};
use crate::content::Commit;
use crate::ids::{RunId, StoreId, StreamId};
use crate::records::read;

/// What a bundle calls itself.
pub const VERSION: &str = "holdfast/bundle/v1";
/// The manifest's own name.
pub const MANIFEST: &str = "manifest.json";

/// One file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileRow {
    pub bytes: u64,
    pub name: String,
    /// 64 hex digits.
    pub sha256: String,
}

/// What a bundle is made of.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    pub bundle: String,
    /// The versions of what its records are written in.
    pub contracts: BTreeMap<String, u32>,
    /// In the order of their names.
    pub files: Vec<FileRow>,
    /// After which record of it a run was forked, for those that the run came from.
    pub forks: BTreeMap<RunId, u64>,
    pub run: RunId,
    pub store: StoreId,
    /// In the order in which they are audited: a fork comes after what it came from.
    pub streams: Vec<StreamId>,
    /// Contents that are there and were left out.
    pub withheld: BTreeSet<Commit>,
}

fn altered(what: impl Into<String>) -> BundleError {
    BundleError::Altered { file: MANIFEST.to_owned(), what: what.into() }
}

impl Manifest {
    /// Reads a manifest; only its canonical text is one.
    pub fn parse(text: &[u8]) -> Result<Self, BundleError> {
        let tree = from_text(text).map_err(|error| altered(error.to_string()))?;
        let manifest: Self = read(&tree).map_err(|error| altered(error.to_string()))?;
        if to_bytes(&manifest).ok().as_deref() != Some(text) {
            return Err(altered("it is not in its canonical form"));
        }
        if manifest.bundle != VERSION {
            return Err(altered(format!("it is a {}, and this reads {VERSION}", manifest.bundle)));
        }
        let sorted = manifest.files.is_sorted_by(|a, b| a.name < b.name);
        if !sorted || manifest.files.iter().any(|file| file.name == MANIFEST) {
            return Err(altered("its files are not in order"));
        }
        if !manifest.streams.contains(&StreamId::Run(manifest.run)) {
            return Err(altered("it does not name its run among its streams"));
        }
        Ok(manifest)
    }

    pub fn file(&self, name: &str) -> Option<&FileRow> {
        let at = self.files.binary_search_by(|file| file.name.as_str().cmp(name)).ok()?;
        self.files.get(at)
    }
}
