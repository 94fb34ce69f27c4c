//! Audits and repairs of a store: long work whose progress Python watches from another thread.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use holdfast_core::ids::StreamId;
use holdfast_core::records::RecordHash;
use holdfast_store::copy::copy;
use holdfast_store::doctor::{Treatment, doctor};
use holdfast_store::open::{Address, Options, plan};
use holdfast_store::sqlite::backup::restore;
use holdfast_store::verify::{Scope, verify};
use pyo3::prelude::*;

use crate::enter::enter;
use crate::error::Raise;
use crate::evidence::{notes, verifiers};
use crate::store::{Store, objects, typed};

/// How far long work has come, and whether it is to stop. Nobody calls back into Python for it.
#[pyclass(module = "holdfast._core", frozen)]
#[derive(Debug, Default)]
pub(crate) struct Progress {
    done: AtomicU64,
    total: AtomicU64,
    stopped: AtomicBool,
}

#[pymethods]
impl Progress {
    #[new]
    fn new() -> Self {
        Self::default()
    }

    #[getter]
    fn done(&self) -> u64 {
        self.done.load(Ordering::Relaxed)
    }

    #[getter]
    fn total(&self) -> u64 {
        self.total.load(Ordering::Relaxed)
    }

    fn stop(&self) {
        self.stopped.store(true, Ordering::Relaxed);
    }
}

impl Progress {
    fn tell(&self, done: u64, total: u64) -> bool {
        self.done.store(done, Ordering::Relaxed);
        self.total.store(total, Ordering::Relaxed);
        !self.stopped.load(Ordering::Relaxed)
    }
}

/// Audits a store, or one stream of it, against heads that were kept elsewhere.
#[pyfunction]
#[pyo3(signature = (store, stream, heads, seals, keys, progress, /))]
fn store_verify<'py>(
    py: Python<'py>,
    store: &Bound<'py, Store>,
    stream: Option<&str>,
    heads: &Bound<'py, PyAny>,
    seals: Vec<String>,
    keys: Vec<String>,
    progress: &Bound<'py, Progress>,
) -> PyResult<Bound<'py, PyAny>> {
    let parse =
        |text: &str| text.parse::<StreamId>().map_err(|error: holdfast_core::ids::IdError| error.raise(py));
    let stream = stream.map(parse).transpose()?;
    let texts: BTreeMap<String, RecordHash> = typed(heads)?;
    let heads = texts.into_iter().map(|(text, head)| Ok((parse(&text)?, head)));
    let scope = Scope {
        stream,
        heads: heads.collect::<PyResult<_>>()?,
        seals: notes(py, seals)?,
        keys: verifiers(py, keys)?,
    };
    let (store, progress) = (store.get(), progress.get());
    let report = enter(py, || verify(&store.engine, &scope, &mut |done, total| progress.tell(done, total)))?;
    objects(py, &report)
}

/// Looks at a store, treats it as asked, and lifts the poison if all is well.
#[pyfunction]
#[pyo3(signature = (url, rebuild, accept_loss, progress, /))]
fn store_doctor<'py>(
    py: Python<'py>,
    url: &str,
    rebuild: bool,
    accept_loss: bool,
    progress: &Bound<'py, Progress>,
) -> PyResult<Bound<'py, PyAny>> {
    let (treatment, progress) = (Treatment { rebuild, accept_loss }, progress.get());
    let findings = enter(py, || {
        let address = Address::parse(url)?;
        doctor(&address, &Options::default(), treatment, &mut |done, total| progress.tell(done, total))
    })?;
    objects(py, &findings)
}

/// Makes a store from a backup, under a new epoch.
#[pyfunction]
#[pyo3(signature = (backup, target, /))]
fn store_restore<'py>(py: Python<'py>, backup: &str, target: &str) -> PyResult<Bound<'py, PyAny>> {
    let restored = enter(py, || restore(Path::new(backup), Path::new(target), &Options::default()))?;
    objects(py, &restored)
}

/// Copies a store to another address, where none is yet.
#[pyfunction]
#[pyo3(signature = (source, target, progress, /))]
fn store_copy<'py>(
    py: Python<'py>,
    source: &str,
    target: &str,
    progress: &Bound<'py, Progress>,
) -> PyResult<Bound<'py, PyAny>> {
    let progress = progress.get();
    let copied = enter(py, || {
        let (source, target) = (Address::parse(source)?, Address::parse(target)?);
        copy(&source, &target, &mut |done, total| progress.tell(done, total))
    })?;
    objects(py, &copied)
}

/// The migrations of this build, and which of them a store has.
#[pyfunction]
#[pyo3(signature = (url, /))]
fn store_plan<'py>(py: Python<'py>, url: &str) -> PyResult<Bound<'py, PyAny>> {
    let planned = enter(py, || plan(&Address::parse(url)?))?;
    objects(py, &planned)
}

pub(crate) fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_class::<Progress>()?;
    m.add_function(wrap_pyfunction!(store_verify, m)?)?;
    m.add_function(wrap_pyfunction!(store_doctor, m)?)?;
    m.add_function(wrap_pyfunction!(store_restore, m)?)?;
    m.add_function(wrap_pyfunction!(store_copy, m)?)?;
    m.add_function(wrap_pyfunction!(store_plan, m)?)
}
