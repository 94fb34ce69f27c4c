//! The one door from Python into the core: the GIL is released, a panic becomes an error with a
//! code, and a typed error becomes its Python exception. Only `canonical` goes around it, because
//! it walks Python objects and may not let go of the GIL.

use std::panic::{AssertUnwindSafe, catch_unwind};

use pyo3::prelude::*;

use crate::error::{Raise, internal};

/// Runs `work` without the GIL.
pub(crate) fn enter<T, E, F>(py: Python<'_>, work: F) -> PyResult<T>
where
    T: Send,
    E: Raise + Send,
    F: FnOnce() -> Result<T, E> + Send,
{
    mapped(py, py.detach(|| catch_unwind(AssertUnwindSafe(work))))
}

/// Runs what takes microseconds and waits for nobody, with the GIL: to let go of it would cost many times as
/// much wherever another thread wants it.
pub(crate) fn enter_briefly<T, E: Raise>(py: Python<'_>, work: impl FnOnce() -> Result<T, E>) -> PyResult<T> {
    mapped(py, catch_unwind(AssertUnwindSafe(work)))
}

fn mapped<T, E: Raise>(py: Python<'_>, done: std::thread::Result<Result<T, E>>) -> PyResult<T> {
    match done {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(error)) => Err(error.raise(py)),
        Err(_) => Err(internal(py)),
    }
}
