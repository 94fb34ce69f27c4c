//! Evidence, as Python drives it: keys, notes, seals, the pages of a bundle and its audit. Files are Python's.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use holdfast_core::canonical::{from_text, to_bytes};
use holdfast_core::content::{Commit, Salt, commit};
use holdfast_core::evidence::{
    BundleError, Checkpoint, Envelope, Facts, Hash, Manifest, Note, NoteError, Proof, SignerKey, StreamAudit,
    StreamReport, VerifierKey, read_hash, spell_hash, verify_consistency,
};
use holdfast_core::ids::{StoreId, StreamId};
use holdfast_core::records::{Actor, Privacy, read};
use holdfast_core::state::RunState;
use holdfast_store::bundle::Lines;
use holdfast_store::clock::random;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use serde_json::json;
use sha2::{Digest as _, Sha256};

use crate::enter::enter;
use crate::error::Raise;
use crate::records::untree;
use crate::store::{Store, id, objects, typed};

pub(crate) fn notes(py: Python<'_>, texts: Vec<String>) -> PyResult<Vec<Note>> {
    texts.into_iter().map(|text| Note::parse(&text).map_err(|error| error.raise(py))).collect()
}

pub(crate) fn verifiers(py: Python<'_>, texts: Vec<String>) -> PyResult<Vec<VerifierKey>> {
    texts.into_iter().map(|text| VerifierKey::parse(&text).map_err(|error| error.raise(py))).collect()
}

fn note(py: Python<'_>, text: &str) -> PyResult<Note> {
    Note::parse(text).map_err(|error| error.raise(py))
}

fn signer(py: Python<'_>, text: &str) -> PyResult<SignerKey> {
    SignerKey::parse(text.trim_end()).map_err(|error| error.raise(py))
}

fn verifier(py: Python<'_>, text: &str) -> PyResult<VerifierKey> {
    VerifierKey::parse(text).map_err(|error| error.raise(py))
}

/// A new key: its secret line and its public one.
#[pyfunction]
#[pyo3(signature = (name, witness, /))]
fn key_generate(py: Python<'_>, name: &str, witness: bool) -> PyResult<(String, String)> {
    let seed: [u8; 32] = enter(py, random)?;
    let key = SignerKey::from_seed(name, seed, witness).map_err(|error| error.raise(py))?;
    Ok((key.secret(), key.verifier().to_string()))
}

/// The public line of a secret one.
#[pyfunction]
#[pyo3(signature = (secret, /))]
fn key_public(py: Python<'_>, secret: &str) -> PyResult<String> {
    Ok(signer(py, secret)?.verifier().to_string())
}

/// Name and id of a public line, and whether it belongs to a witness.
#[pyfunction]
#[pyo3(signature = (key, /))]
fn key_read(py: Python<'_>, key: &str) -> PyResult<(String, bool)> {
    let key = verifier(py, key)?;
    Ok((key.key_id(), key.is_witness()))
}

/// A text, signed.
#[pyfunction]
#[pyo3(signature = (text, secrets, /))]
fn note_sign(py: Python<'_>, text: String, secrets: Vec<String>) -> PyResult<String> {
    let mut note = Note::new(text);
    for secret in secrets {
        note.sign(&signer(py, &secret)?);
    }
    Ok(note.to_string())
}

/// What is signed, once the key is found to have signed it; of a witness, when.
#[pyfunction]
#[pyo3(signature = (text, key, /))]
fn note_open(py: Python<'_>, text: &str, key: &str) -> PyResult<(String, Option<u64>)> {
    let (note, key) = (note(py, text)?, verifier(py, key)?);
    let when = note.signed_by(&key).map_err(|error| error.raise(py))?;
    Ok((note.text, when))
}

/// A seal with a witness's signature.
#[pyfunction]
#[pyo3(signature = (text, secret, seconds, /))]
fn note_cosign(py: Python<'_>, text: &str, secret: &str, seconds: u64) -> PyResult<String> {
    let (mut note, key) = (note(py, text)?, signer(py, secret)?);
    Checkpoint::parse(&note.text).map_err(|error| error.raise(py))?;
    if !key.verifier().is_witness() {
        return Err(NoteError::BadKey("it is not a witness's: keys generate --witness").raise(py));
    }
    note.cosign(&key, seconds);
    Ok(note.to_string())
}

/// A note with the signatures of another copy of it too.
#[pyfunction]
#[pyo3(signature = (text, other, /))]
fn note_merge(py: Python<'_>, text: &str, other: &str) -> PyResult<String> {
    let (mut first, other) = (note(py, text)?, note(py, other)?);
    first.merge(other).map_err(|error| error.raise(py))?;
    Ok(first.to_string())
}

fn checkpoint(py: Python<'_>, text: &str) -> PyResult<Checkpoint> {
    Checkpoint::parse(&note(py, text)?.text).map_err(|error| error.raise(py))
}

/// What a seal says: origin, size, root, extensions, and who has signed it.
#[pyfunction]
#[pyo3(signature = (text, /))]
fn checkpoint_read<'py>(py: Python<'py>, text: &str) -> PyResult<Bound<'py, PyAny>> {
    let found = checkpoint(py, text)?;
    let names: Vec<String> = note(py, text)?.signatures.into_iter().map(|one| one.name).collect();
    let told = json!({
        "extensions": found.extensions, "origin": found.origin, "root": spell_hash(&found.root),
        "signatures": names, "size": found.size,
    });
    untree(py, &told)
}

/// Whether a path proves that what a later seal covers begins with what an earlier one does.
#[pyfunction]
#[pyo3(signature = (old, new, path, /))]
fn consistency_check(py: Python<'_>, old: &str, new: &str, path: Vec<String>) -> PyResult<bool> {
    let (old, new) = (checkpoint(py, old)?, checkpoint(py, new)?);
    let path: Option<Vec<Hash>> = path.into_iter().map(|text| read_hash(&text)).collect();
    Ok(path.is_some_and(|path| verify_consistency((old.size, &old.root), (new.size, &new.root), &path)))
}

/// Seals everything that was committed so far.
#[pyfunction]
#[pyo3(signature = (store, by, secret, /))]
fn store_seal<'py>(
    py: Python<'py>,
    store: &Store,
    by: &Bound<'py, PyAny>,
    secret: &str,
) -> PyResult<Bound<'py, PyAny>> {
    let (by, key): (Actor, _) = (typed(by)?, signer(py, secret)?);
    objects(py, &enter(py, || store.engine.seal(&key, &by))?)
}

/// Keeps what keys have signed on a copy of a seal.
#[pyfunction]
#[pyo3(signature = (store, copy, keys, /))]
fn store_witnessed<'py>(
    py: Python<'py>,
    store: &Store,
    copy: &str,
    keys: Vec<String>,
) -> PyResult<Bound<'py, PyAny>> {
    let (copy, keys) = (note(py, copy)?, verifiers(py, keys)?);
    objects(py, &enter(py, || store.engine.witnessed(&copy, &keys))?)
}

/// The seals, newest first.
#[pyfunction]
#[pyo3(signature = (store, most, /))]
fn store_seals<'py>(py: Python<'py>, store: &Store, most: usize) -> PyResult<Bound<'py, PyAny>> {
    objects(py, &enter(py, || store.engine.seals(most))?)
}

/// What proves that the tree at one size begins with the tree at another.
#[pyfunction]
#[pyo3(signature = (store, old, new, /))]
fn store_consistency(py: Python<'_>, store: &Store, old: u64, new: u64) -> PyResult<Vec<String>> {
    enter(py, || store.engine.consistency(old, new))
}

/// The proof that a stream is under a seal of this size; none if none of its frames is.
#[pyfunction]
#[pyo3(signature = (store, stream, size, until, /))]
fn store_inclusion<'py>(
    py: Python<'py>,
    store: &Store,
    stream: &str,
    size: u64,
    until: u64,
) -> PyResult<Option<Bound<'py, PyAny>>> {
    let stream: StreamId = id(py, stream)?;
    let found = enter(py, || store.engine.inclusion(stream, size, until))?;
    let proof = found.map(|(leaf, path)| Proof {
        first_seq: leaf.frame.first_seq,
        head: leaf.frame.head,
        last_seq: leaf.frame.last_seq,
        leaf: leaf.n,
        path,
    });
    proof.map(|proof| objects(py, &proof)).transpose()
}

type ExportedPage<'py> = (Bound<'py, PyBytes>, u64, bool, Vec<String>, Vec<String>);

/// Lines of a stream: `(text, last seq, more, withheld, blobs)`.
#[pyfunction]
#[pyo3(signature = (store, stream, after, until, include, /))]
fn store_export<'py>(
    py: Python<'py>,
    store: &Store,
    stream: &str,
    after: u64,
    until: u64,
    include: &Bound<'py, PyAny>,
) -> PyResult<ExportedPage<'py>> {
    let (stream, include): (StreamId, Vec<Privacy>) = (id(py, stream)?, typed(include)?);
    let page = enter(py, || store.engine.export(stream, after, until, &include))?;
    let names = |commits: BTreeSet<Commit>| commits.iter().map(ToString::to_string).collect();
    let text = PyBytes::new(py, &page.text);
    Ok((text, page.last_seq, page.more, names(page.withheld), names(page.blobs)))
}

/// The salt of a blob and its bytes.
#[pyfunction]
#[pyo3(signature = (store, commit, /))]
fn store_salted_blob<'py>(py: Python<'py>, store: &Store, commit: &str) -> PyResult<Bound<'py, PyBytes>> {
    let commit: Commit = named(py, commit)?;
    let bytes = enter(py, || store.engine.salted_blob(&commit))?;
    Ok(PyBytes::new(py, &bytes))
}

fn named(py: Python<'_>, text: &str) -> PyResult<Commit> {
    read(&serde_json::Value::String(text.to_owned())).map_err(|error| error.raise(py))
}

/// A payload in a signed envelope, as JSON text.
#[pyfunction]
#[pyo3(signature = (payload, secret, /))]
fn envelope_sign<'py>(py: Python<'py>, payload: &[u8], secret: &str) -> PyResult<Bound<'py, PyBytes>> {
    let envelope = Envelope::sign(payload, &signer(py, secret)?);
    Ok(PyBytes::new(py, &to_bytes(&envelope).map_err(|error| error.raise(py))?))
}

/// The payload of an envelope, once the key is found to have signed it.
#[pyfunction]
#[pyo3(signature = (envelope, key, /))]
fn envelope_open<'py>(py: Python<'py>, envelope: &[u8], key: &str) -> PyResult<Bound<'py, PyBytes>> {
    let tree = from_text(envelope).map_err(|error| error.raise(py))?;
    let envelope: Envelope = read(&tree).map_err(|error| error.raise(py))?;
    let payload = envelope.open(&verifier(py, key)?).map_err(|error| error.raise(py))?;
    Ok(PyBytes::new(py, &payload))
}

/// The SHA-256 of a file, piece by piece.
#[pyclass(module = "holdfast._core", frozen)]
#[derive(Debug, Default)]
pub(crate) struct FileHash(Mutex<(Sha256, u64)>);

#[pymethods]
impl FileHash {
    #[new]
    fn new() -> Self {
        Self::default()
    }

    #[pyo3(signature = (piece, /))]
    fn update(&self, py: Python<'_>, piece: &[u8]) {
        py.detach(|| {
            let mut so_far = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            so_far.0.update(piece);
            so_far.1 += u64::try_from(piece.len()).unwrap_or(0);
        });
    }

    /// Its digest in hex, and how many bytes there were.
    fn end(&self) -> (String, u64) {
        let so_far = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        (spell_hash(&so_far.0.clone().finalize().into()), so_far.1)
    }
}

/// Reads a manifest strictly, and returns it.
#[pyfunction]
#[pyo3(signature = (text, /))]
fn manifest_read<'py>(py: Python<'py>, text: &[u8]) -> PyResult<Bound<'py, PyAny>> {
    objects(py, &Manifest::parse(text).map_err(|error| error.raise(py))?)
}

#[derive(Debug, Default)]
struct Auditing {
    blobs: Arc<BTreeMap<Commit, u64>>,
    seal: Option<(u64, Hash)>,
    stream: Option<(StreamAudit, Lines)>,
    forked: Option<Box<RunState>>,
    ended: BTreeMap<StreamId, StreamReport>,
}

/// The audit of a bundle: blobs and seal first, then stream after stream, each piece by piece.
#[pyclass(module = "holdfast._core", frozen)]
#[derive(Debug)]
pub(crate) struct BundleAudit {
    store: StoreId,
    inner: Mutex<Auditing>,
}

impl BundleAudit {
    fn inner(&self) -> MutexGuard<'_, Auditing> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn nothing_open() -> BundleError {
    BundleError::Altered { file: "streams".to_owned(), what: "no stream is being read".to_owned() }
}

#[pymethods]
impl BundleAudit {
    #[new]
    #[pyo3(signature = (store, /))]
    fn new(py: Python<'_>, store: &str) -> PyResult<Self> {
        let store = store.parse().map_err(|error: holdfast_core::ids::IdError| error.raise(py))?;
        Ok(Self { store, inner: Mutex::default() })
    }

    /// A content that is a file: its salt and its bytes.
    #[pyo3(signature = (name, data, /))]
    fn blob(&self, py: Python<'_>, name: &str, data: &[u8]) -> PyResult<()> {
        let name = named(py, name)?;
        enter(py, || {
            let parts = data.split_first_chunk::<16>();
            let (salt, bytes) = parts
                .filter(|(salt, bytes)| commit(Salt(**salt), bytes) == name)
                .ok_or_else(|| BundleError::Altered {
                    file: format!("blobs/{name}"),
                    what: "it is not what was committed to".to_owned(),
                })?;
            let _ = salt;
            let length = u64::try_from(bytes.len()).unwrap_or(0);
            Arc::make_mut(&mut self.inner().blobs).insert(name, length);
            Ok::<_, BundleError>(())
        })
    }

    /// The seal that proofs lead to.
    #[pyo3(signature = (text, /))]
    fn seal(&self, py: Python<'_>, text: &str) -> PyResult<()> {
        let found = checkpoint(py, text)?;
        let ours = format!("holdfast/{}/", self.store);
        if !found.origin.starts_with(&ours) {
            return Err(NoteError::BadNote("it is of another store").raise(py));
        }
        self.inner().seal = Some((found.size, found.root));
        Ok(())
    }

    /// The next stream; its proof, if it is under the seal; the record that a fork of it follows.
    #[pyo3(signature = (stream, proof, fork_at, /))]
    fn begin(
        &self,
        py: Python<'_>,
        stream: &str,
        proof: Option<&Bound<'_, PyAny>>,
        fork_at: Option<u64>,
    ) -> PyResult<()> {
        let stream: StreamId = id(py, stream)?;
        let proof: Option<Proof> = proof.map(typed).transpose()?;
        let mut inner = self.inner();
        let mut audit = StreamAudit::new(self.store, stream, Arc::clone(&inner.blobs));
        if let Some(proof) = proof {
            let what = "there is no seal";
            let seal = inner.seal.as_ref().ok_or(BundleError::Unproven { stream, what });
            let (size, root) = seal.map_err(|error| error.raise(py))?;
            audit.prove(proof, *size, root).map_err(|error| error.raise(py))?;
        }
        if let Some(seq) = fork_at {
            audit.fork_at(seq);
        }
        inner.stream = Some((audit, Lines::default()));
        Ok(())
    }

    /// The proof that the stream was under an older seal, too.
    #[pyo3(signature = (seal, proof, /))]
    fn earlier(&self, py: Python<'_>, seal: &str, proof: &Bound<'_, PyAny>) -> PyResult<()> {
        let (seal, proof): (_, Proof) = (checkpoint(py, seal)?, typed(proof)?);
        enter(py, || {
            let mut inner = self.inner();
            let (audit, _) = inner.stream.as_mut().ok_or_else(nothing_open)?;
            audit.prove_earlier(proof, seal.size, &seal.root)
        })
    }

    /// A piece of its file.
    #[pyo3(signature = (piece, /))]
    fn push(&self, py: Python<'_>, piece: &[u8]) -> PyResult<()> {
        enter(py, || {
            let mut inner = self.inner();
            let Auditing { stream, forked, .. } = &mut *inner;
            let (audit, lines) = stream.as_mut().ok_or_else(nothing_open)?;
            lines.push(audit, piece, forked.as_deref())
        })
    }

    /// The end of its file: records, opened and erased contents, those left out, the last sealed record.
    #[pyo3(signature = (withheld, /))]
    fn end<'py>(&self, py: Python<'py>, withheld: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        let withheld: BTreeSet<Commit> = typed(withheld)?;
        let told = enter(py, || {
            let mut inner = self.inner();
            let (audit, lines) = inner.stream.take().ok_or_else(nothing_open)?;
            if !lines.is_whole() {
                return Err(audit.altered("its last line does not end"));
            }
            let report = audit.end(&withheld)?;
            inner.forked.clone_from(&report.forked);
            let spelled = |commits: &BTreeSet<Commit>| -> Vec<String> {
                commits.iter().map(ToString::to_string).collect()
            };
            let (left, named) = (spelled(&report.withheld), spelled(&report.named));
            let told = json!({
                "earlier": report.earlier, "erased": report.erased, "head": report.head.to_string(),
                "named": named, "opened": report.opened, "records": report.records,
                "sealed": report.sealed, "withheld": left,
            });
            if let Some(state) = &report.state {
                inner.ended.insert(state.head().stream, report);
            }
            Ok(told)
        })?;
        untree(py, &told)
    }

    /// What follows from the records of a run, as the text of facts.json.
    #[pyo3(signature = (run, /))]
    fn facts<'py>(&self, py: Python<'py>, run: &str) -> PyResult<Bound<'py, PyBytes>> {
        let facts = self.facts_of(py, run)?;
        Ok(PyBytes::new(py, &to_bytes(&facts).map_err(|error| error.raise(py))?))
    }

    /// Whether that is what a bundle claims.
    #[pyo3(signature = (run, claimed, /))]
    fn check_facts(&self, py: Python<'_>, run: &str, claimed: &[u8]) -> PyResult<()> {
        let facts = self.facts_of(py, run)?;
        enter(py, || {
            let altered = |what: String| BundleError::Altered { file: "facts.json".to_owned(), what };
            let tree = from_text(claimed).map_err(|error| altered(error.to_string()))?;
            let claimed: Facts = read(&tree).map_err(|error| altered(error.to_string()))?;
            facts.check(&claimed)
        })
    }

    /// The fold of a stream.
    #[pyo3(signature = (stream, /))]
    fn state<'py>(&self, py: Python<'py>, stream: &str) -> PyResult<Bound<'py, PyAny>> {
        let stream: StreamId = id(py, stream)?;
        let state = self.inner().ended.get(&stream).and_then(|report| report.state.clone());
        untree(py, &crate::journal::described(state.as_ref()).map_err(|error| error.raise(py))?)
    }
}

impl BundleAudit {
    fn facts_of(&self, py: Python<'_>, run: &str) -> PyResult<Facts> {
        let stream: StreamId = id(py, run)?;
        let facts = self.inner().ended.get(&stream).map(|report| report.facts.clone());
        facts.ok_or_else(|| {
            let what = "the run's stream is not there".to_owned();
            BundleError::Altered { file: format!("streams/{stream}.jsonl"), what }.raise(py)
        })
    }
}

pub(crate) fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_class::<BundleAudit>()?;
    m.add_class::<FileHash>()?;
    m.add_function(wrap_pyfunction!(key_generate, m)?)?;
    m.add_function(wrap_pyfunction!(key_public, m)?)?;
    m.add_function(wrap_pyfunction!(key_read, m)?)?;
    m.add_function(wrap_pyfunction!(note_sign, m)?)?;
    m.add_function(wrap_pyfunction!(note_open, m)?)?;
    m.add_function(wrap_pyfunction!(note_cosign, m)?)?;
    m.add_function(wrap_pyfunction!(note_merge, m)?)?;
    m.add_function(wrap_pyfunction!(checkpoint_read, m)?)?;
    m.add_function(wrap_pyfunction!(consistency_check, m)?)?;
    m.add_function(wrap_pyfunction!(store_seal, m)?)?;
    m.add_function(wrap_pyfunction!(store_witnessed, m)?)?;
    m.add_function(wrap_pyfunction!(store_seals, m)?)?;
    m.add_function(wrap_pyfunction!(store_consistency, m)?)?;
    m.add_function(wrap_pyfunction!(store_inclusion, m)?)?;
    m.add_function(wrap_pyfunction!(store_export, m)?)?;
    m.add_function(wrap_pyfunction!(store_salted_blob, m)?)?;
    m.add_function(wrap_pyfunction!(envelope_sign, m)?)?;
    m.add_function(wrap_pyfunction!(envelope_open, m)?)?;
    m.add_function(wrap_pyfunction!(manifest_read, m)?)
}
