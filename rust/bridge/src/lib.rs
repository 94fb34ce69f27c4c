//! `holdfast._core`: the core and the store, as Python sees them. Thin: types are converted, errors
//! mapped, the GIL released; nothing is decided here. Nothing in this module is a public API.

mod canonical;
mod content;
mod enter;
mod error;
mod evidence;
mod gateway;
mod journal;
mod leader;
mod records;
mod replay;
mod store;
mod store_call;
mod store_care;
mod walk;

use pyo3::prelude::*;

/// Records are many small values; the allocator of the C library takes a third of the time of a command.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[pymodule]
fn _core(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add("__version__", env!("CARGO_PKG_VERSION"))?;
    error::register(m)?;
    canonical::register(m)?;
    records::register(m)?;
    content::register(m)?;
    journal::register(m)?;
    store::register(m)?;
    leader::register(m)?;
    gateway::register(m)?;
    replay::register(m)?;
    store_care::register(m)?;
    evidence::register(m)
}
