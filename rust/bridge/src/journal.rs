//! A run's journal in memory, driven from Python with JSON values.

use std::sync::Mutex;

use holdfast_core::canonical::{CanonicalError, to_bytes, to_value};
use holdfast_core::clock::Now;
use holdfast_core::content::Openings;
use holdfast_core::error::Code;
use holdfast_core::ids::{IdError, RunId, StoreId};
use holdfast_core::journal::Journal as Core;
use holdfast_core::records::read;
use holdfast_core::run::Request;
use holdfast_core::state::State;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::PyBytes;
use serde_json::Value;

use crate::enter::enter;
use crate::error::{Raise, internal, refuse};
use crate::records::{kept_head, tree, untree};

/// One run in memory: decide, stamp, apply, keep.
#[pyclass(module = "holdfast._core", frozen)]
#[derive(Debug)]
pub(crate) struct Journal(Mutex<Core>);

impl Journal {
    fn with<T: Send>(&self, py: Python<'_>, work: impl FnOnce(&mut Core) -> T + Send) -> PyResult<T> {
        // The lock is taken without the GIL, so a waiting thread never holds up the one that has it.
        let done = py.detach(|| self.0.lock().ok().map(|mut journal| work(&mut journal)));
        done.ok_or_else(|| internal(py))
    }
}

#[pymethods]
impl Journal {
    #[new]
    #[pyo3(signature = (store, /))]
    fn new(py: Python<'_>, store: &str) -> PyResult<Self> {
        let store = store.parse().map_err(|error: IdError| error.raise(py))?;
        Ok(Self(Mutex::new(Core::new(store))))
    }

    /// Decides a request at a time; returns the texts of the records that it wrote.
    #[pyo3(signature = (request, now, /))]
    fn transact<'py>(
        &self,
        request: &Bound<'py, PyAny>,
        now: &Bound<'py, PyAny>,
    ) -> PyResult<Vec<Bound<'py, PyBytes>>> {
        let py = request.py();
        let (request, now) = (tree(request)?, tree(now)?);
        let request: Request = read(&request).map_err(|error| error.raise(py))?;
        let now: Now = read(&now).map_err(|error| error.raise(py))?;
        let frame =
            self.with(py, |journal| journal.transact(&request, &now))?.map_err(|error| error.raise(py))?;
        texts(py, frame.records.iter().map(holdfast_core::records::Record::bytes))
    }

    /// The texts of all records.
    fn records<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyBytes>>> {
        let records = self.with(py, |journal| journal.records().to_vec())?;
        texts(py, records.iter().map(holdfast_core::records::Record::bytes))
    }

    /// The salted values that open the records' contents, by commitment.
    fn openings<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let openings = self.with(py, |journal| journal.openings.clone())?;
        untree(py, &to_value(&openings).map_err(|error| error.raise(py))?)
    }

    /// The fold at a record, or now.
    #[pyo3(signature = (seq = None, /))]
    fn state<'py>(&self, py: Python<'py>, seq: Option<u64>) -> PyResult<Bound<'py, PyAny>> {
        let state = self.with(py, |journal| match seq {
            Some(seq) => journal.at(seq),
            None => Ok(journal.state().cloned()),
        })?;
        let state = state.map_err(|error| error.raise(py))?;
        untree(py, &described(state.as_ref()).map_err(|error| error.raise(py))?)
    }
}

/// The fold as a tree, with the status that follows from it.
pub(crate) fn described(state: Option<&State>) -> Result<Value, CanonicalError> {
    let Some(state) = state else { return Ok(Value::Null) };
    let mut described = to_value(state)?;
    if let Some(run) = state.as_run() {
        described["status"] = Value::String(run.status().as_str().to_owned());
    }
    Ok(described)
}

fn texts(
    py: Python<'_>,
    texts: impl Iterator<Item = Result<Vec<u8>, CanonicalError>>,
) -> PyResult<Vec<Bound<'_, PyBytes>>> {
    texts.map(|text| text.map(|text| PyBytes::new(py, &text)).map_err(|error| error.raise(py))).collect()
}

/// Checks chain, fold and contents of a run as somebody else would; returns seq and hash of its head.
#[pyfunction]
#[pyo3(signature = (store, run, texts, openings, head = None, /))]
fn run_verify(
    py: Python<'_>,
    store: &str,
    run: &str,
    texts: Vec<PyBackedBytes>,
    openings: &Bound<'_, PyAny>,
    head: Option<&str>,
) -> PyResult<(u64, String)> {
    let kept = kept_head(py, head)?;
    let store: StoreId = store.parse().map_err(|error: IdError| error.raise(py))?;
    let run: RunId = run.parse().map_err(|error: IdError| error.raise(py))?;
    let openings: Openings = read(&tree(openings)?).map_err(|error| error.raise(py))?;
    let texts: Vec<Vec<u8>> = texts.into_iter().map(|text| text.to_vec()).collect();
    let state = enter(py, || Core::audit(store, run, &texts, &openings, None, kept))?;
    let head = state.map(|state| state.head());
    let head =
        head.ok_or_else(|| refuse(py, "CommandError", Code::NoSuchRun, "a run has at least one record"))?;
    Ok((head.seq, head.hash.to_string()))
}

/// What a request would be as canonical bytes; refused if it is not one.
#[pyfunction]
#[pyo3(signature = (request, /))]
fn request_check<'py>(request: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyBytes>> {
    let (py, tree) = (request.py(), tree(request)?);
    let request: Request = read(&tree).map_err(|error| error.raise(py))?;
    Ok(PyBytes::new(py, &to_bytes(&request).map_err(|error| error.raise(py))?))
}

pub(crate) fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_class::<Journal>()?;
    m.add_function(wrap_pyfunction!(run_verify, m)?)?;
    m.add_function(wrap_pyfunction!(request_check, m)?)
}
