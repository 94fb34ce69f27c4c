//! Records, contracts, ids and merge patches, checked by the core.

use holdfast_core::canonical::{from_text, to_bytes};
use holdfast_core::chain;
use holdfast_core::contracts::hook::{HookPoint, HookSpec};
use holdfast_core::error::Code;
use holdfast_core::ids::{self, StoreId, StreamId};
use holdfast_core::merge;
use holdfast_core::records::{self, Body, Fault, KINDS, ReadError, Record, RecordHash};
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::PyBytes;
use serde_json::Value;

use crate::canonical::objects;
use crate::enter::{enter, enter_briefly};
use crate::error::{Raise, refuse};
use crate::walk::with_written;

/// A Python value as a tree.
pub(crate) fn tree(value: &Bound<'_, PyAny>) -> PyResult<Value> {
    let py = value.py();
    with_written(value, None, |writer| from_text(writer.bytes()))?.map_err(|error| error.raise(py))
}

/// A tree as Python objects.
pub(crate) fn untree<'py>(py: Python<'py>, value: &Value) -> PyResult<Bound<'py, PyAny>> {
    objects(py, &to_bytes(value).map_err(|error| error.raise(py))?)
}

type KindRow = (&'static str, &'static str, &'static str, Vec<&'static str>, bool);

/// The table of kinds: token, home, class, positions of contents, door.
#[pyfunction]
fn record_kinds() -> Vec<KindRow> {
    let row =
        |k: &records::KindInfo| (k.token, k.home.as_str(), k.class.as_str(), k.contents.to_vec(), k.door);
    KINDS.iter().map(row).collect()
}

/// Schemas of all kinds and contracts, as JSON text.
#[pyfunction]
fn schemas(py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
    untree(py, &records::schemas())
}

/// Checks a record's text and returns its hash. Unknown kinds and newer versions are refused.
#[pyfunction]
#[pyo3(signature = (text, /))]
fn record_check(py: Python<'_>, text: &[u8]) -> PyResult<String> {
    enter(py, || {
        let record = Record::parse(text)?;
        if record.v > records::VERSION {
            return Err(ReadError::new(Fault::NewerFormat, "$.v", "a version that this build does not know"));
        }
        known(&record.body)?;
        Ok::<_, ReadError>(record.hash()?.to_string())
    })
}

fn known(body: &Body) -> Result<(), ReadError> {
    match body {
        Body::Unknown(..) => {
            Err(ReadError::new(Fault::UnknownKind, "$.kind", "a kind that this build does not know"))
        }
        _ => Ok(()),
    }
}

/// Checks the body of a kind and returns its canonical bytes.
#[pyfunction]
#[pyo3(signature = (kind, body, /))]
fn body_check<'py>(kind: &str, body: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyBytes>> {
    let (py, tree) = (body.py(), tree(body)?);
    let bytes = enter(py, || {
        let body = Body::read(kind, &tree)?;
        known(&body)?;
        let written = holdfast_core::canonical::to_value(&body)?;
        Ok::<_, ReadError>(to_bytes(&written["body"])?)
    })?;
    Ok(PyBytes::new(py, &bytes))
}

/// Checks a contract and returns its canonical bytes.
#[pyfunction]
#[pyo3(signature = (name, value, /))]
fn contract_check<'py>(name: &str, value: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyBytes>> {
    let (py, tree) = (value.py(), tree(value)?);
    let bytes = enter(py, || Ok::<_, ReadError>(to_bytes(&records::read_contract(name, &tree)?)?))?;
    Ok(PyBytes::new(py, &bytes))
}

/// Checks a hook's declaration against the rules of registration.
#[pyfunction]
#[pyo3(signature = (spec, /))]
fn hook_spec_check(spec: &Bound<'_, PyAny>) -> PyResult<()> {
    let (py, tree) = (spec.py(), tree(spec)?);
    let spec: HookSpec = enter(py, || records::read(&tree))?;
    spec.validate().map_err(|error| error.raise(py))
}

type HookRow = (&'static str, bool, Vec<&'static str>);

/// The hook matrix: point, whether it is security-critical, the classes it allows.
#[pyfunction]
fn hook_matrix() -> Vec<HookRow> {
    let classes = |point: HookPoint| {
        holdfast_core::contracts::hook::HookClass::ALL
            .iter()
            .filter(move |class| point.permits(**class))
            .map(|class| class.as_str())
            .collect()
    };
    HookPoint::ALL
        .iter()
        .map(|point| (point.as_str(), point.is_security_critical(), classes(*point)))
        .collect()
}

/// A new id of a type, from a wall clock in milliseconds and ten random bytes.
#[pyfunction]
#[pyo3(signature = (prefix, at_ms, random = None, /))]
fn id_new(py: Python<'_>, prefix: &str, at_ms: u64, random: Option<[u8; 10]>) -> PyResult<String> {
    // Drawn here, though Python could: it would let go of the GIL for it, and somebody else would take it.
    let random = enter_briefly(py, || random.map_or_else(holdfast_store::clock::random, Ok))?;
    ids::mint(prefix, at_ms, random)
        .ok_or_else(|| refuse(py, "RecordError", Code::BadId, "no id type has this prefix"))
}

/// Checks an id and returns its prefix.
#[pyfunction]
#[pyo3(signature = (id, /))]
fn id_check(py: Python<'_>, id: &str) -> PyResult<&'static str> {
    ids::check(id).map_err(|error| error.raise(py))
}

/// `target` after an RFC 7396 merge patch.
#[pyfunction]
#[pyo3(signature = (target, patch, /))]
fn merge_patch<'py>(target: &Bound<'py, PyAny>, patch: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    let (mut value, patch) = (tree(target)?, tree(patch)?);
    merge::merge(&mut value, &patch);
    untree(target.py(), &value)
}

/// The merge patch that leads from one state to another.
#[pyfunction]
#[pyo3(signature = (before, after, /))]
fn merge_diff<'py>(before: &Bound<'py, PyAny>, after: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    let py = before.py();
    let patch = merge::diff(&tree(before)?, &tree(after)?).map_err(|error| error.raise(py))?;
    untree(py, &patch)
}

/// A head that was kept elsewhere.
pub(crate) fn kept_head(py: Python<'_>, head: Option<&str>) -> PyResult<Option<RecordHash>> {
    let read_head =
        |text: &str| records::read(&Value::String(text.to_owned())).map_err(|error| error.raise(py));
    head.map(read_head).transpose()
}

/// Checks the chain of a stream's records, against a head that was kept elsewhere if there is one; returns
/// seq and hash of its head.
#[pyfunction]
#[pyo3(signature = (store, stream, texts, head = None, /))]
fn chain_verify(
    py: Python<'_>,
    store: &str,
    stream: &str,
    texts: Vec<PyBackedBytes>,
    head: Option<&str>,
) -> PyResult<(u64, String)> {
    let kept = kept_head(py, head)?;
    let store: StoreId = store.parse().map_err(|error: ids::IdError| error.raise(py))?;
    let stream: StreamId = stream.parse().map_err(|error: ids::IdError| error.raise(py))?;
    let head = enter(py, move || chain::verify(store, stream, texts.iter().map(|text| &**text), kept))?;
    Ok((head.seq, head.hash.to_string()))
}

pub(crate) fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_function(wrap_pyfunction!(record_kinds, m)?)?;
    m.add_function(wrap_pyfunction!(schemas, m)?)?;
    m.add_function(wrap_pyfunction!(record_check, m)?)?;
    m.add_function(wrap_pyfunction!(body_check, m)?)?;
    m.add_function(wrap_pyfunction!(contract_check, m)?)?;
    m.add_function(wrap_pyfunction!(hook_spec_check, m)?)?;
    m.add_function(wrap_pyfunction!(hook_matrix, m)?)?;
    m.add_function(wrap_pyfunction!(id_new, m)?)?;
    m.add_function(wrap_pyfunction!(id_check, m)?)?;
    m.add_function(wrap_pyfunction!(merge_patch, m)?)?;
    m.add_function(wrap_pyfunction!(merge_diff, m)?)?;
    m.add_function(wrap_pyfunction!(chain_verify, m)?)
}
