//! The gateway, as Python drives it: tools and hooks are read once, a passage says what to do next. What it
//! wants committed comes out as a call of the store, and the store's answer goes back in.

use std::sync::{Arc, Mutex, PoisonError};

use holdfast_core::canonical::to_value;
use holdfast_core::contracts::hook::{HookPoint, HookSpec};
use holdfast_core::contracts::policy::Policy;
use holdfast_core::contracts::tool::ToolSpec;
use holdfast_core::error::Code;
use holdfast_core::gateway::{Answer, Ask, At, Entering, Gate, Passage as Way, Round as Asking};
use holdfast_core::hooks::Hooks as Ordered;
use holdfast_core::ids::{GrantId, RunId, SessionId};
use holdfast_core::ledger::{Tool as Registered, key_of};
use holdfast_core::policy::ActivePolicy;
use holdfast_core::records::{Actor, EffectClass};
use holdfast_core::redact;
use holdfast_core::run::{Claim, Command};
use holdfast_core::schema::Schema as Checker;
use holdfast_store::engine::{Call as Asked, Durability, Served, Written};
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use serde_json::{Map, Value};

use crate::enter::enter;
use crate::error::{Raise, refuse};
use crate::records::{tree, untree};
use crate::store::{Store, id, names, objects, typed};
use crate::store_call::Call;

/// A tool as it was registered.
#[pyclass(frozen, module = "holdfast._core")]
#[derive(Debug)]
pub(crate) struct Tool(Arc<Registered>);

#[pymethods]
impl Tool {
    #[new]
    #[pyo3(signature = (spec, /))]
    fn new(py: Python<'_>, spec: &Bound<'_, PyAny>) -> PyResult<Self> {
        let spec: ToolSpec = typed(spec)?;
        Ok(Self(Arc::new(Registered::new(spec).map_err(|error| error.raise(py))?)))
    }

    /// The digest of its schemas: what an approval is bound to.
    #[getter]
    fn schema(&self) -> String {
        self.0.schema.to_string()
    }
}

/// The hooks of a package, checked and in their order.
#[pyclass(frozen, module = "holdfast._core")]
#[derive(Debug)]
pub(crate) struct Hooks(Arc<Ordered>);

#[pymethods]
impl Hooks {
    #[new]
    #[pyo3(signature = (specs, /))]
    fn new(py: Python<'_>, specs: &Bound<'_, PyAny>) -> PyResult<Self> {
        let specs: Vec<HookSpec> = typed(specs)?;
        Ok(Self(Arc::new(Ordered::new(specs).map_err(|error| error.raise(py))?)))
    }

    /// The hooks that only hear of a point.
    #[pyo3(signature = (point, /))]
    fn observers(&self, point: &Bound<'_, PyAny>) -> PyResult<Vec<String>> {
        let point: HookPoint = typed(point)?;
        Ok(self.0.observers(point).map(|spec| spec.hook_id.as_str().to_owned()).collect())
    }
}

/// What the door said, on its way from the store to a passage.
#[pyclass(frozen, module = "holdfast._core")]
#[derive(Debug)]
pub(crate) struct Gated {
    gate: Gate,
    served: Option<Box<Served>>,
}

impl Gated {
    pub(crate) fn of(written: Written) -> Option<Self> {
        written.gate.map(|gate| Self { gate, served: written.served })
    }
}

#[pymethods]
impl Gated {
    /// What it said.
    fn gate<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        objects(py, &self.gate)
    }

    /// How the call ended that it speaks of, with the values that agent code gets.
    fn served<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        objects(py, &self.served)
    }
}

/// One call on its way through the gateway.
#[pyclass(frozen, module = "holdfast._core")]
#[derive(Debug)]
pub(crate) struct Passage {
    way: Mutex<Way>,
    first: Mutex<Option<Ask>>,
    last: Mutex<Option<Box<Command>>>,
    run: RunId,
    by: Actor,
    write: bool,
}

#[pymethods]
impl Passage {
    /// `call` has what is the call's own: arguments, id, capability, dispatchers, guards, key, key_shared_ms, kind, lane,
    /// recorded, reserve, sandbox.
    #[new]
    #[pyo3(signature = (store, run, by, claim, tool, hooks, evaluators, call, /))]
    #[expect(clippy::too_many_arguments, reason = "one place calls it, with all of them")]
    fn new(
        py: Python<'_>,
        store: &Store,
        run: &str,
        by: &Bound<'_, PyAny>,
        claim: &Bound<'_, PyAny>,
        tool: &Tool,
        hooks: &Hooks,
        evaluators: Vec<String>,
        call: &Bound<'_, PyAny>,
    ) -> PyResult<Self> {
        let (run, by, claim): (RunId, Actor, Claim) = (id(py, run)?, typed(by)?, typed(claim)?);
        let evaluators = names(py, evaluators)?;
        let Value::Object(mut members) = tree(call)? else {
            return Err(refuse(py, "RecordError", Code::WrongType, "a call is an object"));
        };
        let text = |name: &str| members.get(name).and_then(Value::as_str).unwrap_or_default().to_owned();
        let kind = text("kind");
        let arguments = members.get("arguments").and_then(|payload| payload.get("value"));
        let arguments = arguments.cloned().unwrap_or(Value::Null);
        let name = tool.0.name.as_str().to_owned();
        let digest = store.call_digest(py, run, (&kind, &name), &arguments)?;
        let members = entering(&mut members, &to_value(&digest).map_err(|error| error.raise(py))?);
        let shape: Shape = holdfast_core::records::read(&members).map_err(|error| error.raise(py))?;
        let entering = shape.with(Arc::clone(&tool.0));
        let write = tool.0.effect == EffectClass::Write;
        let (way, first) = Way::open(claim, entering, Arc::clone(&hooks.0), evaluators.into());
        let (way, first, last) = (Mutex::new(way), Mutex::new(Some(first)), Mutex::new(None));
        Ok(Self { way, first, last, run, by, write })
    }

    /// What to do first.
    fn begin<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        let first = self.first.lock().unwrap_or_else(PoisonError::into_inner).take();
        match first {
            Some(ask) => self.asked(py, ask),
            None => Err(refuse(py, "HoldfastError", Code::Internal, "the passage has begun")),
        }
    }

    /// What to do after the store has answered.
    #[pyo3(signature = (gated, /))]
    fn told<'py>(&self, py: Python<'py>, gated: &Gated) -> PyResult<Bound<'py, PyTuple>> {
        let result = gated.served.as_ref().and_then(|served| served.result.clone());
        let gate = gated.gate.clone();
        let ask = self.way.lock().unwrap_or_else(PoisonError::into_inner).told(gate, result);
        self.asked(py, ask)
    }

    /// The last commit once more: the store was busy or full.
    fn retry<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        match self.last.lock().unwrap_or_else(PoisonError::into_inner).clone() {
            Some(command) => self.asked(py, Ask::Commit { command }),
            None => Err(refuse(py, "HoldfastError", Code::Internal, "nothing was committed")),
        }
    }

    /// The last outcome as a late report: another worker has the step. None if no outcome was known.
    fn late(&self) -> Option<Call> {
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner).clone()?;
        let Command::Settle { claim, call, dispatch, report } = *last else { return None };
        let command = Box::new(Command::Late { claim, call, dispatch, report });
        let (run, by) = (self.run, self.by.clone());
        Some(Call::new(Asked::Command { run, by, command, durability: Durability::Barrier }))
    }

    /// What to do after what was asked for was done.
    #[pyo3(signature = (answer, /))]
    fn answer<'py>(&self, py: Python<'py>, answer: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyTuple>> {
        let answer: Answer = typed(answer)?;
        let ask = self.way.lock().unwrap_or_else(PoisonError::into_inner).answer(answer);
        self.asked(py, ask)
    }
}

impl Passage {
    /// `(what, details)`; a commit's details are a call of the store.
    fn asked<'py>(&self, py: Python<'py>, ask: Ask) -> PyResult<Bound<'py, PyTuple>> {
        if let Ask::Commit { command } = ask {
            let durability = match &*command {
                Command::Enter { .. } => Durability::Commit, // the store makes it a barrier where it must be
                _ if self.write => Durability::Soon,
                _ => Durability::Commit,
            };
            // Only outcomes are tried again or told late; at the door one knocks anew.
            if !matches!(*command, Command::Enter { .. }) {
                *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Some(command.clone());
            }
            let (run, by) = (self.run, self.by.clone());
            return committed(py, Asked::Command { run, by, command, durability });
        }
        told(py, &ask)
    }
}

fn committed(py: Python<'_>, call: Asked) -> PyResult<Bound<'_, PyTuple>> {
    let call = Call::new(call).into_pyobject(py)?.into_any();
    PyTuple::new(py, ["commit".into_pyobject(py)?.into_any(), call])
}

fn told<'py>(py: Python<'py>, ask: &Ask) -> PyResult<Bound<'py, PyTuple>> {
    let told = objects(py, ask)?;
    let what = told.get_item("ask")?;
    told.del_item("ask")?;
    PyTuple::new(py, [what, told])
}

/// What is the call's own of an [`Entering`].
#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Shape {
    arguments: holdfast_core::run::Payload,
    call: holdfast_core::ids::CallId,
    capability: Option<holdfast_core::ids::CapabilityId>,
    digest: holdfast_core::content::CallDigest,
    dispatchers: Vec<holdfast_core::records::Name>,
    guards: Vec<holdfast_core::records::SandboxGuard>,
    key: Option<holdfast_core::records::Key>,
    key_shared_ms: Option<u64>,
    kind: holdfast_core::records::CallKind,
    lane: holdfast_core::records::Name,
    recorded: Option<holdfast_core::ids::CallId>,
    #[serde(default)]
    redact: Vec<holdfast_core::records::Name>,
    reserve: holdfast_core::records::Amounts,
    sandbox: holdfast_core::records::SandboxTier,
}

impl Shape {
    fn with(self, tool: Arc<Registered>) -> Entering {
        Entering {
            arguments: self.arguments,
            call: self.call,
            capability: self.capability,
            decision_hooks: false,
            decision_ruled: None,
            digest: self.digest,
            dispatchers: self.dispatchers,
            guards: self.guards,
            key: self.key,
            key_shared_ms: self.key_shared_ms,
            kind: self.kind,
            lane: self.lane,
            recorded: self.recorded,
            result_hooks: false,
            redact: self.redact,
            reserve: self.reserve,
            rooms: None,
            sandbox: self.sandbox,
            tool,
        }
    }
}

fn entering(members: &mut Map<String, Value>, digest: &Value) -> Value {
    let mut whole = std::mem::take(members);
    whole.insert("digest".to_owned(), digest.clone());
    Value::Object(whole)
}

/// One round of the hooks of a point that is about no call, or about its sandbox.
#[pyclass(frozen, module = "holdfast._core")]
#[derive(Debug)]
pub(crate) struct Round {
    way: Mutex<Asking>,
    first: Mutex<Option<Ask>>,
    run: RunId,
    by: Actor,
}

#[pymethods]
impl Round {
    /// None if there are no hooks to ask there. `call` is an id and a dispatch.
    #[staticmethod]
    #[pyo3(signature = (run, by, claim, call, point, subject, hooks, /))]
    #[expect(clippy::too_many_arguments, reason = "one place calls it, with all of them")]
    fn open(
        py: Python<'_>,
        run: &str,
        by: &Bound<'_, PyAny>,
        claim: Option<&Bound<'_, PyAny>>,
        call: Option<(String, u32)>,
        point: &Bound<'_, PyAny>,
        subject: &Bound<'_, PyAny>,
        hooks: &Hooks,
    ) -> PyResult<Option<Self>> {
        let (run, by): (RunId, Actor) = (id(py, run)?, typed(by)?);
        let claim: Option<Claim> = claim.map(typed).transpose()?;
        let call = call.map(|(call, dispatch)| Ok::<_, PyErr>((id(py, &call)?, dispatch))).transpose()?;
        let at = At { call, claim, point: typed(point)? };
        let Some((round, first)) = Asking::open(at, tree(subject)?, Arc::clone(&hooks.0)) else {
            return Ok(None);
        };
        Ok(Some(Self { way: Mutex::new(round), first: Mutex::new(Some(first)), run, by }))
    }

    fn begin<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        let first = self.first.lock().unwrap_or_else(PoisonError::into_inner).take();
        match first {
            Some(ask) => self.asked(py, ask),
            None => Err(refuse(py, "HoldfastError", Code::Internal, "the round has begun")),
        }
    }

    #[pyo3(signature = (answer, /))]
    fn answer<'py>(&self, py: Python<'py>, answer: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyTuple>> {
        let answer: Answer = typed(answer)?;
        let ask = self.way.lock().unwrap_or_else(PoisonError::into_inner).answer(answer);
        self.asked(py, ask)
    }
}

impl Round {
    fn asked<'py>(&self, py: Python<'py>, ask: Ask) -> PyResult<Bound<'py, PyTuple>> {
        if let Ask::Commit { command } = ask {
            let (run, by, durability) = (self.run, self.by.clone(), Durability::Commit);
            return committed(py, Asked::Command { run, by, command, durability });
        }
        told(py, &ask)
    }
}

/// A JSON Schema of a tool that comes from elsewhere.
#[pyclass(frozen, module = "holdfast._core")]
#[derive(Debug)]
pub(crate) struct Schema(Checker);

#[pymethods]
impl Schema {
    #[new]
    #[pyo3(signature = (schema, /))]
    fn new(py: Python<'_>, schema: &Bound<'_, PyAny>) -> PyResult<Self> {
        Ok(Self(Checker::new(&tree(schema)?).map_err(|error| error.raise(py))?))
    }

    /// The path of the first part that does not fit, and which word of the schema it does not fit; none if
    /// all does.
    #[pyo3(signature = (value, /))]
    fn check(&self, value: &Bound<'_, PyAny>) -> PyResult<Option<(String, String)>> {
        Ok(self.0.check(&tree(value)?).map(|unfit| (unfit.path, unfit.keyword)))
    }
}

/// Takes a grant of a session back.
#[pyfunction]
#[pyo3(signature = (store, by, session, grant, reason = None, /))]
fn revoke_session_grant(
    py: Python<'_>,
    store: &Store,
    by: &Bound<'_, PyAny>,
    session: &str,
    grant: &str,
    reason: Option<&str>,
) -> PyResult<()> {
    let by: Actor = typed(by)?;
    let (session, grant): (SessionId, GrantId) = (id(py, session)?, id(py, grant)?);
    enter(py, || store.engine.revoke_session_grant(&by, session, grant, reason))
}

/// A digest of a secret that says nothing to who has not the run's seed.
#[pyfunction]
#[pyo3(signature = (store, run, name, secret, /))]
fn secret_digest(
    py: Python<'_>,
    store: &Store,
    run: &str,
    name: &str,
    secret: &Bound<'_, PyAny>,
) -> PyResult<String> {
    let (run, secret): (RunId, Value) = (id(py, run)?, tree(secret)?);
    enter(py, || store.engine.secret_digest(run, name, &secret)).map(|digest| digest.to_string())
}

/// Reads a policy, makes it the active one and returns its digest.
#[pyfunction]
#[pyo3(signature = (store, by, policy, /))]
fn activate_policy(
    py: Python<'_>,
    store: &Store,
    by: &Bound<'_, PyAny>,
    policy: &Bound<'_, PyAny>,
) -> PyResult<String> {
    let (by, policy): (Actor, Policy) = (typed(by)?, typed(policy)?);
    let policy = ActivePolicy::new(policy).map_err(|error| error.raise(py))?;
    enter(py, || store.engine.activate_policy(&by, policy)).map(|digest| digest.to_string())
}

/// The active policy and its digest; none if there never was one.
#[pyfunction]
#[pyo3(signature = (store, /))]
fn active_policy<'py>(py: Python<'py>, store: &Store) -> PyResult<Bound<'py, PyAny>> {
    match enter(py, || store.engine.policy())? {
        None => Ok(py.None().into_bound(py)),
        Some(active) => {
            let told = (active.digest.to_string(), objects(py, &active.policy)?);
            Ok(told.into_pyobject(py)?.into_any())
        }
    }
}

/// The digest that a policy would have.
#[pyfunction]
#[pyo3(signature = (policy, /))]
fn policy_digest(py: Python<'_>, policy: &Bound<'_, PyAny>) -> PyResult<String> {
    let policy: Policy = typed(policy)?;
    ActivePolicy::new(policy).map(|active| active.digest.to_string()).map_err(|error| error.raise(py))
}

/// Arguments as people and hooks see them: a marker stands in each of the fields.
#[pyfunction]
#[pyo3(signature = (value, fields, /))]
fn redacted<'py>(value: &Bound<'py, PyAny>, fields: Vec<String>) -> PyResult<Bound<'py, PyAny>> {
    let fields = names(value.py(), fields)?;
    untree(value.py(), &redact::redacted(&tree(value)?, &fields))
}

/// What somebody made of what was shown, with the values behind the markers; none if one stands for nothing.
#[pyfunction]
#[pyo3(signature = (made, real, fields, /))]
fn restored<'py>(
    made: &Bound<'py, PyAny>,
    real: &Bound<'py, PyAny>,
    fields: Vec<String>,
) -> PyResult<Option<Bound<'py, PyAny>>> {
    let (py, fields) = (made.py(), names(made.py(), fields)?);
    let restored = redact::restored(tree(made)?, &tree(real)?, &fields);
    restored.map(|value| untree(py, &value)).transpose()
}

/// The idempotency key of a call.
#[pyfunction]
#[pyo3(signature = (call, /))]
fn permit_key(py: Python<'_>, call: &str) -> PyResult<String> {
    Ok(key_of(id(py, call)?).as_str().to_owned())
}

pub(crate) fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_class::<Tool>()?;
    m.add_class::<Hooks>()?;
    m.add_class::<Gated>()?;
    m.add_class::<Passage>()?;
    m.add_class::<Round>()?;
    m.add_class::<Schema>()?;
    m.add_function(wrap_pyfunction!(revoke_session_grant, m)?)?;
    m.add_function(wrap_pyfunction!(secret_digest, m)?)?;
    m.add_function(wrap_pyfunction!(activate_policy, m)?)?;
    m.add_function(wrap_pyfunction!(active_policy, m)?)?;
    m.add_function(wrap_pyfunction!(policy_digest, m)?)?;
    m.add_function(wrap_pyfunction!(redacted, m)?)?;
    m.add_function(wrap_pyfunction!(restored, m)?)?;
    m.add_function(wrap_pyfunction!(permit_key, m)?)
}
