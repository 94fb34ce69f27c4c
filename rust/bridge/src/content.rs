//! Contents and call digests: commitments that can be made and checked by hand.

use holdfast_core::canonical::{self, to_value};
use holdfast_core::content::{self, Commit, Opening, Salt, Seed};
use holdfast_core::error::Code;
use holdfast_core::records::{Privacy, read};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use serde_json::Value;

use crate::error::{Raise, refuse};
use crate::records::{tree, untree};

/// A value as a content and what opens it: `(content, opening)`.
#[pyfunction]
#[pyo3(signature = (value, salt, privacy, /))]
fn content_seal<'py>(
    value: &Bound<'py, PyAny>,
    salt: [u8; 16],
    privacy: &str,
) -> PyResult<(Bound<'py, PyAny>, Bound<'py, PyAny>)> {
    let py = value.py();
    let privacy: Privacy = read(&Value::String(privacy.to_owned())).map_err(|error| error.raise(py))?;
    let sealed = content::seal(tree(value)?, Salt(salt), privacy).map_err(|error| error.raise(py))?;
    let content = to_value(&sealed.content).map_err(|error| error.raise(py))?;
    let opening = to_value(&sealed.opening).map_err(|error| error.raise(py))?;
    Ok((untree(py, &content)?, untree(py, &opening)?))
}

/// Checks that an opening opens a commitment.
#[pyfunction]
#[pyo3(signature = (commit, opening, /))]
fn content_check(commit: &str, opening: &Bound<'_, PyAny>) -> PyResult<()> {
    let py = opening.py();
    let commit: Commit = read(&Value::String(commit.to_owned())).map_err(|error| error.raise(py))?;
    let opening: Opening = read(&tree(opening)?).map_err(|error| error.raise(py))?;
    content::check(&commit, &opening).map_err(|error| error.raise(py))
}

/// The identity of a call under a run's seed (64 hex digits).
#[pyfunction]
#[pyo3(signature = (seed, kind, name, arguments, /))]
fn call_digest(seed: &str, kind: &str, name: &str, arguments: &Bound<'_, PyAny>) -> PyResult<String> {
    let py = arguments.py();
    let seed = Seed::from_value(&Value::String(seed.to_owned()))
        .ok_or_else(|| refuse(py, "RecordError", Code::BadValue, "a seed is 64 lowercase hex digits"))?;
    let digest = seed.call_digest(kind, name, &tree(arguments)?).map_err(|error| error.raise(py))?;
    Ok(digest.to_string())
}

/// What bytes are known by, where no salt may make them differ. It goes into sealed contents only.
#[pyfunction]
#[pyo3(signature = (data, /))]
fn bytes_digest(py: Python<'_>, data: &[u8]) -> String {
    py.detach(|| content::commit(Salt([0; 16]), data)).to_string()
}

/// An HMAC-SHA-256, for what leaves Holdfast signed.
#[pyfunction]
#[pyo3(signature = (key, data, /))]
fn hmac_sha256<'py>(py: Python<'py>, key: &[u8], data: &[u8]) -> Bound<'py, PyBytes> {
    PyBytes::new(py, &canonical::hmac_sha256(key, data))
}

pub(crate) fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_function(wrap_pyfunction!(content_seal, m)?)?;
    m.add_function(wrap_pyfunction!(content_check, m)?)?;
    m.add_function(wrap_pyfunction!(bytes_digest, m)?)?;
    m.add_function(wrap_pyfunction!(hmac_sha256, m)?)?;
    m.add_function(wrap_pyfunction!(call_digest, m)?)
}
