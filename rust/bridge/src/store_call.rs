//! Calls of the store's door: made from Python values on the caller's thread, run there or by the thread that
//! serves an event loop.

use std::sync::{Mutex, PoisonError};

use holdfast_core::error::Code;
use holdfast_core::ids::RunId;
use holdfast_core::records::{Actor, Name, Package, RunStatus};
use holdfast_core::run::{Claim, Command, Entry, NewRun, NewStep};
use holdfast_store::StoreError;
use holdfast_store::engine::{Call as Asked, ClaimRequest, Claimed, Told};
use holdfast_store::rows::Filter;
use pyo3::prelude::*;
use pyo3::types::PyList;
use serde_json::Value;

use crate::error::refuse;
use crate::gateway::Gated;
use crate::records::untree;
use crate::replay::Player;
use crate::store::{durability, id, names, typed};

/// Something that a store is asked to do. It can be done once.
#[pyclass(frozen, module = "holdfast._core")]
#[derive(Debug)]
pub(crate) struct Call(Mutex<Option<Asked>>);

impl Call {
    pub(crate) fn new(asked: Asked) -> Self {
        Self(Mutex::new(Some(asked)))
    }

    pub(crate) fn take(&self) -> Result<Asked, StoreError> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take().ok_or(StoreError::Panicked)
    }
}

#[pymethods]
impl Call {
    #[staticmethod]
    #[pyo3(signature = (by, run, steps, durability, /))]
    fn create(
        py: Python<'_>,
        by: &Bound<'_, PyAny>,
        run: &Bound<'_, PyAny>,
        steps: &Bound<'_, PyAny>,
        durability: &str,
    ) -> PyResult<Self> {
        let (by, run, steps): (Actor, NewRun, Vec<NewStep>) = (typed(by)?, typed(run)?, typed(steps)?);
        let durability = self::durability(py, durability)?;
        Ok(Self::new(Asked::Create { by, run: Box::new(run), steps, durability }))
    }

    /// A new run, and a claim of its first step, as one call: its answer is the claim's.
    #[staticmethod]
    #[pyo3(signature = (create, claim, /))]
    fn begin(py: Python<'_>, create: &Self, claim: &Self) -> PyResult<Self> {
        let wrong = || refuse(py, "RecordError", Code::WrongType, "a run is made and then claimed");
        create.begins(claim).map(Self::new).ok_or_else(wrong)
    }

    #[staticmethod]
    #[pyo3(signature = (run, by, command, durability, /))]
    fn command(
        py: Python<'_>,
        run: &str,
        by: &Bound<'_, PyAny>,
        command: &Bound<'_, PyAny>,
        durability: &str,
    ) -> PyResult<Self> {
        let (run, durability): (RunId, _) = (id(py, run)?, self::durability(py, durability)?);
        let (by, command): (Actor, Command) = (typed(by)?, typed(command)?);
        Ok(Self::new(Asked::Command { run, by, command: Box::new(command), durability }))
    }

    /// Entries of the low-level door, in one frame.
    #[staticmethod]
    #[pyo3(signature = (run, by, claim, entries, durability, /))]
    fn append(
        py: Python<'_>,
        run: &str,
        by: &Bound<'_, PyAny>,
        claim: Option<&Bound<'_, PyAny>>,
        entries: &Bound<'_, PyList>,
        durability: &str,
    ) -> PyResult<Self> {
        let (run, durability): (RunId, _) = (id(py, run)?, self::durability(py, durability)?);
        let by: Actor = typed(by)?;
        let claim: Option<Claim> = claim.map(typed).transpose()?;
        let entries = entries.iter().map(|entry| typed(&entry)).collect::<PyResult<Vec<Entry>>>()?;
        let command = Box::new(Command::Append { claim, entries });
        Ok(Self::new(Asked::Command { run, by, command, durability }))
    }

    #[staticmethod]
    #[pyo3(signature = (worker, lease_ms, queues, agents, packages, package = None, strict = false, run = None, /))]
    #[expect(clippy::too_many_arguments, reason = "one place calls it, with all of them")]
    fn claim(
        py: Python<'_>,
        worker: String,
        lease_ms: u64,
        queues: Vec<String>,
        agents: Vec<String>,
        packages: Vec<String>,
        package: Option<&Bound<'_, PyAny>>,
        strict: bool,
        run: Option<&str>,
    ) -> PyResult<Self> {
        let run: Option<RunId> = run.map(|run| id(py, run)).transpose()?;
        let worker = Name::new(worker)
            .ok_or_else(|| refuse(py, "RecordError", Code::BadValue, "a worker's name is not a name"))?;
        let filter = Filter { queues: names(py, queues)?, agents: names(py, agents)?, packages };
        let package: Option<Package> = package.map(typed).transpose()?;
        Ok(Self::new(Asked::Claim(Box::new(ClaimRequest { worker, lease_ms, filter, package, strict, run }))))
    }
}

impl Call {
    fn begins(&self, claim: &Self) -> Option<Asked> {
        let (Ok(Asked::Create { by, run, steps, .. }), Ok(Asked::Claim(claim))) = (self.take(), claim.take())
        else {
            return None;
        };
        Some(Asked::Begin { by, run, steps, claim })
    }
}

/// An answer: a run's id; `(first seq, last seq, head, position, the run's status)`, or what the gateway's
/// door said; a claim or none.
pub(crate) fn tell(py: Python<'_>, told: Told) -> PyResult<Bound<'_, PyAny>> {
    match told {
        Told::Created(run) => Ok(run.to_string().into_pyobject(py)?.into_any()),
        Told::Written(written) if written.gate.is_some() => {
            Ok(Gated::of(written).into_pyobject(py)?.into_any())
        }
        Told::Written(written) => {
            let status = written.status.map(RunStatus::as_str);
            let wrote = (written.first_seq, written.last_seq, written.head.to_string(), written.pos, status);
            Ok(wrote.into_pyobject(py)?.into_any())
        }
        Told::Claimed(None) => Ok(py.None().into_bound(py)),
        Told::Claimed(Some(mut claimed)) => {
            let replay = claimed.replay.take();
            let told = untree(py, &tree(&claimed))?;
            if let Some(replay) = replay {
                told.set_item("player", Player::of(claimed.run, *replay))?;
            }
            Ok(told)
        }
    }
}

/// A claim as a tree.
fn tree(claimed: &Claimed) -> Value {
    serde_json::json!({
        "run": claimed.run.to_string(),
        "step": claimed.step.to_string(),
        "name": claimed.name,
        "agent": claimed.agent,
        "attempt": claimed.attempt,
        "fence": [claimed.fence.0, claimed.fence.1],
        "state_version": claimed.state_version,
        "state": claimed.state,
        "input": claimed.input,
        "kind": claimed.kind.as_str(),
        "role": claimed.role,
        "session": claimed.session.map(|session| session.to_string()),
        "step_input": claimed.step_input,
        "worker": claimed.worker.as_str(),
        "lease_ms": claimed.lease_ms,
        "timeout_ms": claimed.timeout_ms,
    })
}
