//! A store, as Python opens it: commands in, answers out. Values cross as JSON trees; records as the bytes
//! that were hashed.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use holdfast_core::canonical::to_bytes;
use holdfast_core::clock::Now;
use holdfast_core::content::{CallDigest, Commit};
use holdfast_core::error::Code;
use holdfast_core::ids::{IdError, RunId, StreamId};
use holdfast_core::limits;
use holdfast_core::records::{Actor, Labels, Name, ReadError, Text, read};
use holdfast_core::run::Command;
use holdfast_store::StoreError;
use holdfast_store::clock::{Clock, FakeClock as Fake};
use holdfast_store::engine::{Durability, Engine, ReadRecord, Told};
use holdfast_store::open::{Address, Opened, Options, open};
use holdfast_store::sqlite::backup::backup;
use holdfast_store::store::{Cell, Store as Kept};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyFloat, PyInt, PyList, PyString, PyTuple};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::enter::{enter, enter_briefly};
use crate::error::{Raise, refuse};
use crate::records::{tree, untree};
use crate::store_call::{Call, tell};

/// Reads a typed value from a Python object.
pub(crate) fn typed<T: DeserializeOwned>(value: &Bound<'_, PyAny>) -> PyResult<T> {
    let py = value.py();
    read(&tree(value)?).map_err(|error: ReadError| error.raise(py))
}

/// A serde value as Python objects.
pub(crate) fn objects<'py, T: serde::Serialize>(py: Python<'py>, value: &T) -> PyResult<Bound<'py, PyAny>> {
    crate::canonical::objects(py, &to_bytes(value).map_err(|error| error.raise(py))?)
}

pub(crate) fn id<T: std::str::FromStr<Err = IdError>>(py: Python<'_>, text: &str) -> PyResult<T> {
    text.parse().map_err(|error: IdError| error.raise(py))
}

pub(crate) fn durability(py: Python<'_>, text: &str) -> PyResult<Durability> {
    match text {
        "commit" => Ok(Durability::Commit),
        "soon" => Ok(Durability::Soon),
        "barrier" => Ok(Durability::Barrier),
        _ => Err(refuse(py, "RecordError", Code::UnknownToken, "durability is commit, soon or barrier")),
    }
}

pub(crate) fn names(py: Python<'_>, texts: Vec<String>) -> PyResult<Vec<Name>> {
    let name = |text| Name::new(text).ok_or_else(|| refuse(py, "RecordError", Code::BadValue, "not a name"));
    texts.into_iter().map(name).collect()
}

/// A clock that stands until it is moved.
#[pyclass(module = "holdfast._core", frozen)]
#[derive(Debug)]
pub(crate) struct FakeClock(Arc<Fake>);

#[pymethods]
impl FakeClock {
    #[new]
    #[pyo3(signature = (now, /))]
    fn new(now: &Bound<'_, PyAny>) -> PyResult<Self> {
        Ok(Self(Arc::new(Fake::new(typed::<Now>(now)?))))
    }

    #[pyo3(signature = (now, /))]
    fn set(&self, now: &Bound<'_, PyAny>) -> PyResult<()> {
        self.0.set(typed::<Now>(now)?);
        Ok(())
    }

    fn now<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        objects(py, &self.0.now())
    }
}

/// How Python asks for a store to be opened.
pub(crate) fn options(
    read_only: bool,
    turn_wait_ms: Option<u64>,
    clock: Option<&Bound<'_, FakeClock>>,
    migrate: bool,
) -> Options {
    let mut options = Options { read_only, migrate, ..Options::default() };
    if let Some(wait) = turn_wait_ms {
        options.turn_wait_ms = wait;
    }
    if let Some(clock) = clock {
        options.clock = Some(clock.get().0.clone());
    }
    options
}

#[pyclass(module = "holdfast._core", frozen)]
#[derive(Debug)]
pub(crate) struct Store {
    pub(crate) engine: Arc<Engine>,
    pub(crate) opened: Opened,
}

impl Store {
    /// The digest by which a call of a run is known.
    pub(crate) fn call_digest(
        &self,
        py: Python<'_>,
        run: RunId,
        (kind, name): (&str, &str),
        arguments: &Value,
    ) -> PyResult<CallDigest> {
        match enter_briefly(py, || self.engine.call_digest_at_once(run, kind, name, arguments).transpose())? {
            Some(digest) => Ok(digest),
            None => enter(py, || self.engine.call_digest(run, kind, name, arguments)),
        }
    }
}

type Wrote = (u64, u64, String, Option<i64>);
type Row<'py> = (u64, i64, Bound<'py, PyBytes>, String, Option<Bound<'py, PyString>>);

#[pymethods]
impl Store {
    #[new]
    #[pyo3(signature = (url, /, *, read_only = false, turn_wait_ms = None, clock = None, migrate = false))]
    fn new(
        py: Python<'_>,
        url: &str,
        read_only: bool,
        turn_wait_ms: Option<u64>,
        clock: Option<&Bound<'_, FakeClock>>,
        migrate: bool,
    ) -> PyResult<Self> {
        let options = options(read_only, turn_wait_ms, clock, migrate);
        enter(py, || {
            let opened = open(&Address::parse(url)?, &options)?;
            let engine = Arc::new(Engine::new(opened.store(), read_only)?);
            Ok::<_, StoreError>(Self { engine, opened })
        })
    }

    #[getter]
    fn id(&self) -> String {
        self.kept().id().to_string()
    }

    /// The store's clock, in milliseconds since the epoch: ids are made from it.
    #[getter]
    fn wall_ms(&self) -> u64 {
        self.kept().now().wall_ms
    }

    /// The boot that the store's clock counts from, and how long ago it was.
    #[getter]
    fn boot(&self) -> (String, u64) {
        let now = self.kept().now();
        (now.boot_id, now.boot_ms)
    }

    /// Where its files are; none in memory.
    #[getter]
    fn folder(&self) -> Option<PathBuf> {
        self.kept().path().map(Path::to_owned)
    }

    /// Whether it is in this process's memory: nothing waits for a disk or a server.
    #[getter]
    fn is_memory(&self) -> bool {
        matches!(self.opened, Opened::Sqlite(_)) && self.kept().path().is_none()
    }

    #[getter]
    fn epoch(&self) -> u32 {
        self.kept().epoch()
    }

    /// Makes a call and waits for it.
    #[pyo3(signature = (call, /))]
    fn run<'py>(&self, py: Python<'py>, call: &Call) -> PyResult<Bound<'py, PyAny>> {
        let call = call.take();
        tell(py, enter(py, || self.engine.call(call?))?)
    }

    /// Makes calls, and waits for all of them: the answers in their order, an exception for one that was
    /// refused.
    #[pyo3(signature = (calls, /))]
    fn run_all<'py>(&self, py: Python<'py>, calls: &Bound<'py, PyList>) -> PyResult<Vec<Bound<'py, PyAny>>> {
        let taken = |call: Bound<'py, PyAny>| Ok(call.cast::<Call>()?.get().take());
        let calls = calls.iter().map(taken).collect::<PyResult<Result<Vec<_>, _>>>()?;
        let told = enter(py, || Ok::<_, StoreError>(self.engine.calls(calls?)))?;
        let answer = |told: Result<Told, StoreError>| match told {
            Ok(told) => tell(py, told),
            Err(error) => Ok(error.raise(py).into_value(py).into_bound(py).into_any()),
        };
        told.into_iter().map(answer).collect()
    }

    #[pyo3(signature = (parent, at, by, command, /))]
    fn fork(
        &self,
        py: Python<'_>,
        parent: &str,
        at: u64,
        by: &Bound<'_, PyAny>,
        command: &Bound<'_, PyAny>,
    ) -> PyResult<Wrote> {
        let parent: RunId = id(py, parent)?;
        let (by, command): (Actor, Command) = (typed(by)?, typed(command)?);
        let written = enter(py, || self.engine.fork(parent, at, &by, command))?;
        Ok((written.first_seq, written.last_seq, written.head.to_string(), written.pos))
    }

    #[pyo3(signature = (by, labels, /))]
    fn create_session(&self, by: &Bound<'_, PyAny>, labels: &Bound<'_, PyAny>) -> PyResult<String> {
        let (by_, labels): (Actor, Labels) = (typed(by)?, typed(labels)?);
        enter(by.py(), || self.engine.create_session(&by_, &labels)).map(|id| id.to_string())
    }

    /// A page of a stream: `([(seq, position, text, hash, contents)], more)`.
    #[pyo3(signature = (stream, after, /))]
    fn read<'py>(&self, py: Python<'py>, stream: &str, after: u64) -> PyResult<(Vec<Row<'py>>, bool)> {
        let stream: StreamId = id(py, stream)?;
        let page = enter(py, || self.engine.read(stream, after))?;
        let mut shared: Option<(i64, Bound<'py, PyString>)> = None;
        let row = |record: ReadRecord| {
            // The records of a frame share what is kept beside it.
            let contents = record.contents.as_ref().map(|contents| match &shared {
                Some((pos, text)) if *pos == record.pos => text.clone(),
                _ => {
                    let text = PyString::new(py, contents);
                    shared = Some((record.pos, text.clone()));
                    text
                }
            });
            (record.seq, record.pos, PyBytes::new(py, &record.text), record.hash.to_string(), contents)
        };
        Ok((page.records.into_iter().map(row).collect(), page.more))
    }

    /// The fold of a stream, now or at a record.
    #[pyo3(signature = (stream, seq = None, /))]
    fn state<'py>(&self, py: Python<'py>, stream: &str, seq: Option<u64>) -> PyResult<Bound<'py, PyAny>> {
        let stream: StreamId = id(py, stream)?;
        let state = enter(py, || match (stream, seq) {
            (StreamId::Run(run), Some(seq)) => self.engine.state_at(run, seq),
            _ => self.engine.state(stream),
        })?;
        untree(py, &crate::journal::described(state.as_ref()).map_err(|error| error.raise(py))?)
    }

    #[pyo3(signature = (data, /))]
    fn put_blob(&self, py: Python<'_>, data: &[u8]) -> PyResult<String> {
        enter(py, || self.engine.put_blob(data)).map(|commit| commit.to_string())
    }

    #[pyo3(signature = (commit, /))]
    fn get_blob<'py>(&self, py: Python<'py>, commit: &str) -> PyResult<Bound<'py, PyBytes>> {
        let commit: Commit =
            read(&Value::String(commit.to_owned())).map_err(|error: ReadError| error.raise(py))?;
        let bytes = enter(py, || self.engine.get_blob(&commit))?;
        Ok(PyBytes::new(py, &bytes))
    }

    /// One reading statement: `(columns, rows)`.
    #[pyo3(signature = (query, parameters, /))]
    fn sql<'py>(
        &self,
        py: Python<'py>,
        query: &str,
        parameters: &Bound<'py, PyList>,
    ) -> PyResult<(Vec<String>, Vec<Bound<'py, PyTuple>>)> {
        let parameters = parameters.iter().map(|value| cell(&value)).collect::<PyResult<Vec<_>>>()?;
        let table = enter(py, || self.kept().sql(query, &parameters, limits::SQL_ROWS_MAX))?;
        let rows = table.rows.iter().map(|row| {
            let cells = row.iter().map(|cell| uncell(py, cell)).collect::<PyResult<Vec<_>>>()?;
            PyTuple::new(py, cells)
        });
        Ok((table.columns, rows.collect::<PyResult<_>>()?))
    }

    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let stats = enter(py, || self.kept().stats())?;
        objects(py, &stats)
    }

    #[pyo3(signature = (run, by, reason = None, /))]
    fn forget(&self, run: &str, by: &Bound<'_, PyAny>, reason: Option<String>) -> PyResult<u64> {
        let py = by.py();
        let (run, by): (RunId, Actor) = (id(py, run)?, typed(by)?);
        let long = || refuse(py, "RecordError", Code::BadValue, "a reason longer than text_chars_max");
        let reason = reason.map(|reason| Text::new(reason).ok_or_else(long)).transpose()?;
        enter(py, || self.engine.forget(run, &by, reason.as_ref()))
    }

    /// Removes blobs that nothing refers to: `(count, bytes)`.
    #[pyo3(signature = (older_than_ms, dry_run, /))]
    fn collect(&self, py: Python<'_>, older_than_ms: Option<u64>, dry_run: bool) -> PyResult<(u64, u64)> {
        enter(py, || self.engine.collect(older_than_ms, dry_run))
    }

    #[pyo3(signature = (target, /))]
    fn backup<'py>(&self, py: Python<'py>, target: &str) -> PyResult<Bound<'py, PyAny>> {
        let done = enter(py, || match &self.opened {
            Opened::Sqlite(sqlite) => backup(&self.engine, sqlite, Path::new(target)),
            Opened::Postgres(_) => Err(StoreError::BadBackup(
                "a store on PostgreSQL is backed up with the server's own tools".to_owned(),
            )),
        })?;
        objects(py, &done)
    }

    /// Waits until there may be something new to claim; what was heard so far, or None where nobody tells.
    #[pyo3(signature = (seen, wait_ms, /))]
    fn heard(&self, py: Python<'_>, seen: u64, wait_ms: u64) -> Option<u64> {
        py.detach(|| self.kept().heard(seen, wait_ms))
    }

    fn barrier(&self, py: Python<'_>) -> PyResult<()> {
        enter(py, || self.engine.barrier())
    }

    fn rest(&self, py: Python<'_>) {
        py.detach(|| self.kept().rest());
    }

    fn close(&self, py: Python<'_>) -> PyResult<()> {
        enter(py, || self.kept().close())
    }
}

impl Store {
    fn kept(&self) -> &Arc<dyn Kept> {
        self.engine.store()
    }
}

fn cell(value: &Bound<'_, PyAny>) -> PyResult<Cell> {
    if value.is_none() {
        Ok(Cell::Null)
    } else if value.is_instance_of::<PyInt>() {
        let number = value.extract();
        number
            .map(Cell::Integer)
            .map_err(|_| refuse(value.py(), "StoreError", Code::BadSql, "an integer beyond 64 bits"))
    } else if value.is_instance_of::<PyFloat>() {
        Ok(Cell::Real(value.extract()?))
    } else if value.is_instance_of::<PyBytes>() {
        Ok(Cell::Bytes(value.extract()?))
    } else if value.is_instance_of::<PyString>() {
        Ok(Cell::Text(value.extract()?))
    } else {
        Err(refuse(value.py(), "StoreError", Code::BadSql, "a parameter is None, int, float, str or bytes"))
    }
}

fn uncell<'py>(py: Python<'py>, cell: &Cell) -> PyResult<Bound<'py, PyAny>> {
    Ok(match cell {
        Cell::Null => py.None().into_bound(py),
        Cell::Integer(number) => number.into_pyobject(py)?.into_any(),
        Cell::Real(number) => number.into_pyobject(py)?.into_any(),
        Cell::Text(text) => text.into_pyobject(py)?.into_any(),
        Cell::Bytes(bytes) => PyBytes::new(py, bytes).into_any(),
    })
}

pub(crate) fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add("BUCKETS", cfg!(feature = "objects"))?; // whether this build speaks to them
    m.add_class::<Call>()?;
    m.add_class::<FakeClock>()?;
    m.add_class::<Store>()
}
