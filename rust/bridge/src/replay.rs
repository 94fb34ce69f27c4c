//! The replay of one step, as Python drives it: agent code asks, the player says what a call is and which
//! outcome comes next.

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

use holdfast_core::canonical::to_value;
use holdfast_core::error::Code;
use holdfast_core::ids::{CallId, RunId, StepId};
use holdfast_core::matching::{Asked, Calm, Match, Player as Core, Then, commit_rest};
use holdfast_core::records::{Actor, CallKind, EffectClass, Key, Name};
use holdfast_core::run::{Act, Claim, Command, Opening, Payload};
use holdfast_store::engine::{Call as StoreCall, Durability, Replay};
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedStr;
use pyo3::types::{PyBytes, PyList, PyTuple};
use serde_json::Value;

use crate::enter::enter;
use crate::error::{Raise, refuse};
use crate::records::{tree, untree};
use crate::store::{Store, id, objects, typed};
use crate::store_call::Call;

/// One replay of one step.
#[pyclass(frozen, module = "holdfast._core")]
#[derive(Debug)]
pub(crate) struct Player {
    core: Mutex<Core>,
    run: RunId,
    /// What agent code sees first, and its version.
    state: Value,
    version: u64,
    committed: u64,
    /// What it sees after so many commits, and its version.
    fresh: Vec<(u64, Value, u64)>,
}

impl Player {
    pub(crate) fn of(run: RunId, replay: Replay) -> Self {
        let known = |state: Option<Value>| state.unwrap_or_else(|| Value::Object(serde_json::Map::new()));
        let fresh = replay.fresh.into_iter().map(|at| (at.after, known(at.state), at.version)).collect();
        let (state, version, committed) = (known(replay.state), replay.version, replay.committed);
        Self { core: Mutex::new(replay.player), run, state, version, committed, fresh }
    }

    fn core(&self) -> MutexGuard<'_, Core> {
        self.core.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn asked(
        &self,
        py: Python<'_>,
        store: &Store,
        (kind, name): (&str, &str),
        (effect, lane): (&str, &str),
        key: Option<&str>,
        arguments: &Value,
    ) -> PyResult<Asked> {
        let digest = store.call_digest(py, self.run, (kind, name), arguments)?;
        let word = |what: &str| refuse(py, "RecordError", Code::BadValue, &format!("not a {what}"));
        Ok(Asked {
            digest,
            effect: EffectClass::parse(effect).ok_or_else(|| word("class of effects"))?,
            key: key.map(|key| Key::new(key).ok_or_else(|| word("key"))).transpose()?,
            kind: CallKind::parse(kind).ok_or_else(|| word("kind of calls"))?,
            lane: Name::new(lane).ok_or_else(|| word("lane"))?,
            name: Name::new(name).ok_or_else(|| word("name"))?,
        })
    }
}

#[pymethods]
impl Player {
    #[new]
    #[pyo3(signature = (store, run, step, /))]
    fn new(py: Python<'_>, store: &Store, run: &str, step: &str) -> PyResult<Self> {
        let (run, step): (RunId, StepId) = (id(py, run)?, id(py, step)?);
        Ok(Self::of(run, enter(py, || store.engine.replay(run, step))?))
    }

    /// The state that the step's code begins with, its version, and the version after the step's newest commit.
    fn state<'py>(&self, py: Python<'py>) -> PyResult<(Bound<'py, PyAny>, u64, u64)> {
        Ok((untree(py, &self.state)?, self.version, self.committed))
    }

    /// What a call is: `(what, call, details)`.
    #[pyo3(signature = (store, call, kind, name, effect, lane, key, arguments, quiet, /))]
    #[expect(clippy::too_many_arguments, reason = "one place calls it, with all of them")]
    fn ask<'py>(
        &self,
        py: Python<'py>,
        store: &Store,
        call: &str,
        kind: &str,
        name: &str,
        effect: &str,
        lane: &str,
        key: Option<&str>,
        arguments: &Bound<'py, PyAny>,
        quiet: bool,
    ) -> PyResult<Bound<'py, PyTuple>> {
        let asked = self.asked(py, store, (kind, name), (effect, lane), key, &tree(arguments)?)?;
        let found = self.core().ask(id(py, call)?, asked, quiet);
        let told = |what: &str, call: Option<CallId>, detail: Bound<'py, PyAny>| {
            let call = call.map(|call| call.to_string()).into_pyobject(py)?.into_any();
            PyTuple::new(py, [what.into_pyobject(py)?.into_any(), call, detail])
        };
        let none = || py.None().into_bound(py);
        match found {
            Match::Recorded(call, then) => told(word(then), Some(call), none()),
            Match::WhenQuiet => told("when_quiet", None, none()),
            Match::New => told("new", None, none()),
            Match::Parked => told("parked", None, none()),
            Match::Conflict(call) => told("conflict", Some(call), none()),
            Match::Busy(call) => told("busy", Some(call), none()),
            Match::KeyNeeded => told("key_needed", None, none()),
            Match::Diverged(divergence) => told("diverged", None, objects(py, &*divergence)?),
        }
    }

    /// A new call stands in the journal.
    #[pyo3(signature = (call, /))]
    fn opened(&self, py: Python<'_>, call: &str) -> PyResult<()> {
        self.core().opened(id(py, call)?);
        Ok(())
    }

    /// A call of this attempt has ended.
    #[pyo3(signature = (call, /))]
    fn settled(&self, py: Python<'_>, call: &str) -> PyResult<()> {
        self.core().settled(id(py, call)?);
        Ok(())
    }

    #[pyo3(signature = (call, /))]
    fn fires_at(&self, py: Python<'_>, call: &str) -> PyResult<Option<u64>> {
        Ok(self.core().fires_at(id(py, call)?))
    }

    /// The state that the step goes on with after so many commits, and its version, if that is another one
    /// than these made: a conflict was tried again there.
    #[pyo3(signature = (commits, /))]
    fn fresh<'py>(&self, py: Python<'py>, commits: u64) -> PyResult<Option<(Bound<'py, PyAny>, u64)>> {
        let found = self.fresh.iter().find(|(after, ..)| *after == commits);
        found.map(|(_, state, version)| Ok((untree(py, state)?, *version))).transpose()
    }

    /// Whether a recorded outcome is still to be delivered, or a recorded call to be made again.
    #[getter]
    fn replays(&self) -> bool {
        self.core().replays()
    }

    /// The outcome that agent code gets next, if one may go now.
    #[pyo3(signature = (awaited, fresh, calm, /))]
    fn next(
        &self,
        py: Python<'_>,
        awaited: &Bound<'_, PyList>,
        fresh: &Bound<'_, PyList>,
        calm: &str,
    ) -> PyResult<Option<String>> {
        let call = |call: Bound<'_, PyAny>| id(py, call.extract::<PyBackedStr>()?.as_ref());
        let awaited: BTreeSet<CallId> = awaited.iter().map(call).collect::<PyResult<_>>()?;
        let fresh: Vec<CallId> = fresh.iter().map(call).collect::<PyResult<_>>()?;
        let calm = match calm {
            "busy" => Calm::Busy,
            "quiet" => Calm::Quiet,
            "still" => Calm::Still,
            _ => return Err(refuse(py, "RecordError", Code::UnknownToken, "calm is busy, quiet or still")),
        };
        Ok(self.core().next(&awaited, &fresh, calm).map(|call| call.to_string()))
    }

    /// The next await whose cancellation was recorded and has not come again, and after how long it came.
    fn outstanding(&self) -> Option<(String, u64)> {
        self.core().outstanding().map(|(call, elapsed)| (call.to_string(), elapsed))
    }

    /// After how long the await of a call was cancelled when it was recorded, if that has not come again.
    #[pyo3(signature = (call, /))]
    fn cancelled(&self, py: Python<'_>, call: &str) -> PyResult<Option<u64>> {
        Ok(self.core().cancelled(id(py, call)?))
    }

    #[pyo3(signature = (call, /))]
    fn lift(&self, py: Python<'_>, call: &str) -> PyResult<()> {
        self.core().lift(id(py, call)?);
        Ok(())
    }

    /// What diverged, when a parked call will never be made.
    #[pyo3(signature = (store, kind, name, effect, lane, key, arguments, /))]
    #[expect(clippy::too_many_arguments, reason = "one place calls it, with all of them")]
    fn stuck<'py>(
        &self,
        py: Python<'py>,
        store: &Store,
        kind: &str,
        name: &str,
        effect: &str,
        lane: &str,
        key: Option<&str>,
        arguments: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let asked = self.asked(py, store, (kind, name), (effect, lane), key, &tree(arguments)?)?;
        objects(py, &self.core().stuck(&asked))
    }

    /// What diverged, if the code has ended without making recorded writes.
    fn end<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        self.core().end().map(|divergence| objects(py, &divergence)).transpose()
    }

    /// The call of the store that opens a call which its own frame does.
    #[pyo3(signature = (store, by, claim, call, kind, name, lane, key, arguments, act, durability, /))]
    #[expect(clippy::too_many_arguments, reason = "one place calls it, with all of them")]
    fn act(
        &self,
        py: Python<'_>,
        store: &Store,
        by: &Bound<'_, PyAny>,
        claim: &Bound<'_, PyAny>,
        call: &str,
        kind: &str,
        name: &str,
        lane: &str,
        key: Option<&str>,
        arguments: &Bound<'_, PyAny>,
        act: &Bound<'_, PyAny>,
        durability: &str,
    ) -> PyResult<Call> {
        let (by, claim, act): (Actor, Claim, Act) = (typed(by)?, typed(claim)?, typed(act)?);
        let arguments: Payload = typed(arguments)?;
        let asked = self.asked(py, store, (kind, name), ("internal", lane), key, &arguments.value)?;
        let opening = Opening {
            arguments,
            call: id(py, call)?,
            digest: asked.digest,
            key: asked.key,
            kind: asked.kind,
            lane: asked.lane,
            name: asked.name,
        };
        let command = Box::new(Command::Act { act: Box::new(act), call: Box::new(opening), claim });
        let durability: Durability = crate::store::durability(py, durability)?;
        Ok(Call::new(StoreCall::Command { run: self.run, by, command, durability }))
    }
}

fn word(then: Then) -> &'static str {
    match then {
        Then::Serve => "serve",
        Then::RunAgain => "run_again",
        Then::AskAgain => "ask_again",
        Then::GoOn => "go_on",
        Then::Resolve => "resolve",
    }
}

/// How a recorded call ended, with its values; and what it committed, if it is a commit.
#[pyfunction]
#[pyo3(signature = (store, run, call, /))]
fn call_outcome<'py>(
    py: Python<'py>,
    store: &Store,
    run: &str,
    call: &str,
) -> PyResult<(Bound<'py, PyAny>, Bound<'py, PyAny>)> {
    let (run, call): (RunId, CallId) = (id(py, run)?, id(py, call)?);
    let (served, committed) = enter(py, || store.engine.outcome(run, call))?;
    Ok((objects(py, &served)?, objects(py, &committed)?))
}

/// Whether a run is to be cancelled, and its status.
#[pyfunction]
#[pyo3(signature = (store, run, /))]
fn run_status(py: Python<'_>, store: &Store, run: &str) -> PyResult<(bool, &'static str)> {
    let run: RunId = id(py, run)?;
    enter(py, || store.engine.status(run)).map(|(cancel, status)| (cancel, status.as_str()))
}

/// The n-th block of random bytes of a lane of a run: the same in every attempt.
#[pyfunction]
#[pyo3(signature = (store, run, lane, n, /))]
fn run_random<'py>(
    py: Python<'py>,
    store: &Store,
    run: &str,
    lane: &str,
    n: u64,
) -> PyResult<Bound<'py, PyBytes>> {
    let run: RunId = id(py, run)?;
    let bytes = enter(py, || store.engine.random(run, lane, n))?;
    Ok(PyBytes::new(py, &bytes))
}

/// What a replayed commit holds beyond the recorded one; none if it does not hold all of that.
#[pyfunction]
#[pyo3(signature = (recorded, attempted, /))]
fn commit_left<'py>(
    py: Python<'py>,
    recorded: &Bound<'py, PyAny>,
    attempted: &Bound<'py, PyAny>,
) -> PyResult<Option<Bound<'py, PyAny>>> {
    let rest = commit_rest(&tree(recorded)?, &tree(attempted)?);
    rest.map(|rest| untree(py, &to_value(&rest).map_err(|error| error.raise(py))?)).transpose()
}

pub(crate) fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_class::<Player>()?;
    m.add_function(wrap_pyfunction!(call_outcome, m)?)?;
    m.add_function(wrap_pyfunction!(run_status, m)?)?;
    m.add_function(wrap_pyfunction!(run_random, m)?)?;
    m.add_function(wrap_pyfunction!(commit_left, m)?)
}
