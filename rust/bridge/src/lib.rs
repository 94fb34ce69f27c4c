//! `holdfast._core`: the core and the store, as Python sees them. Thin: types are converted, errors
//! mapped, the GIL released; nothing is decided here. Nothing in this module is a public API.

mod canonical;
mod content;
mod enter;
mod error;
mod journal;
mod records;
mod walk;

use pyo3::prelude::*;

#[pymodule]
fn _core(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add("__version__", env!("CARGO_PKG_VERSION"))?;
    error::register(m)?;
    canonical::register(m)?;
    records::register(m)?;
    content::register(m)?;
    journal::register(m)
}
