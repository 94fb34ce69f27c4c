//! Core errors as Python exceptions: one class per operation (in `holdfast.errors`), the code, what
//! to do, and where. The classes live in Python because an abi3 extension cannot derive exceptions
//! with fields on every version that we support.

use holdfast_core::canonical::CanonicalError;
use holdfast_core::chain::ChainError;
use holdfast_core::content::ContentError;
use holdfast_core::contracts::hook::HookSpecError;
use holdfast_core::error::{Code, Coded};
use holdfast_core::evidence::{BundleError, NoteError};
use holdfast_core::ids::IdError;
use holdfast_core::journal::TransactError;
use holdfast_core::merge::DiffError;
use holdfast_core::records::ReadError;
use holdfast_core::schema::BadSchema;
use holdfast_core::state::Illegal;
use holdfast_store::StoreError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

/// How an operation's error crosses.
pub(crate) trait Raise: Coded {
    /// Its class in `holdfast.errors`.
    const CLASS: &'static str;

    /// Its further fields.
    fn fields(&self, _: &Bound<'_, PyDict>) -> PyResult<()> {
        Ok(())
    }

    fn raise(&self, py: Python<'_>) -> PyErr {
        let fields = PyDict::new(py);
        match self.fields(&fields) {
            Ok(()) => build(py, Self::CLASS, self.code(), &self.to_string(), &fields),
            Err(error) => error,
        }
    }
}

impl Raise for CanonicalError {
    const CLASS: &'static str = "CanonicalError";
    fn fields(&self, fields: &Bound<'_, PyDict>) -> PyResult<()> {
        fields.set_item("path", &self.path)
    }
}

impl Raise for ReadError {
    const CLASS: &'static str = "RecordError";
    fn fields(&self, fields: &Bound<'_, PyDict>) -> PyResult<()> {
        fields.set_item("path", self.path())
    }
}

impl Raise for ContentError {
    const CLASS: &'static str = "RecordError";
}

impl Raise for IdError {
    const CLASS: &'static str = "RecordError";
}

impl Raise for HookSpecError {
    const CLASS: &'static str = "RecordError";
}

impl Raise for BadSchema {
    const CLASS: &'static str = "RecordError";
}

impl Raise for TransactError {
    const CLASS: &'static str = "CommandError";
}

impl Raise for StoreError {
    const CLASS: &'static str = "StoreError";
    fn raise(&self, py: Python<'_>) -> PyErr {
        match self {
            Self::Command(error) => error.raise(py),
            Self::Chain(error) => error.raise(py),
            Self::Content(error) => error.raise(py),
            Self::Id(error) => error.raise(py),
            Self::Note(error) => error.raise(py),
            Self::KeyConflict(_) => {
                build(py, "CommandError", self.code(), &self.to_string(), &PyDict::new(py))
            }
            _ => build(py, Self::CLASS, self.code(), &self.to_string(), &PyDict::new(py)),
        }
    }
}

impl Raise for Illegal {
    const CLASS: &'static str = "RecordError";
}

impl Raise for DiffError {
    const CLASS: &'static str = "StateError";
}

impl Raise for ChainError {
    const CLASS: &'static str = "VerifyError";
    fn fields(&self, fields: &Bound<'_, PyDict>) -> PyResult<()> {
        fields.set_item("stream", self.stream.to_string())?;
        fields.set_item("seq", self.seq)
    }
}

impl Raise for BundleError {
    const CLASS: &'static str = "VerifyError";
    fn fields(&self, fields: &Bound<'_, PyDict>) -> PyResult<()> {
        let (stream, seq) = self.place();
        fields.set_item("stream", stream.map(|stream| stream.to_string()))?;
        fields.set_item("seq", seq)
    }
}

impl Raise for NoteError {
    const CLASS: &'static str = "VerifyError";
}

/// A panic in the core: a bug, said as such.
pub(crate) fn internal(py: Python<'_>) -> PyErr {
    build(py, "HoldfastError", Code::Internal, "Holdfast has a bug: its core panicked", &PyDict::new(py))
}

/// An error of the bridge itself, without an enum of its own.
pub(crate) fn refuse(py: Python<'_>, class: &str, code: Code, message: &str) -> PyErr {
    build(py, class, code, message, &PyDict::new(py))
}

fn build(py: Python<'_>, class: &str, code: Code, message: &str, fields: &Bound<'_, PyDict>) -> PyErr {
    let make = || -> PyResult<Bound<'_, PyAny>> {
        fields.set_item("code", code.as_str())?;
        fields.set_item("fix", code.fix())?;
        py.import("holdfast.errors")?.getattr(class)?.call((message,), Some(fields))
    };
    make().map_or_else(|error| error, PyErr::from_value)
}

/// Every code with what to do about it.
#[pyfunction]
fn error_codes() -> Vec<(&'static str, &'static str)> {
    Code::ALL.iter().map(|code| (code.as_str(), code.fix())).collect()
}

pub(crate) fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_function(wrap_pyfunction!(error_codes, m)?)
}
