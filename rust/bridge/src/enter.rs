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
    match py.detach(|| catch_unwind(AssertUnwindSafe(work))) {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(error)) => Err(error.raise(py)),
        Err(_) => Err(internal(py)),
    }
}
