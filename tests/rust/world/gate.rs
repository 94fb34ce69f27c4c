//! Tools, calls and policies for tests of the gateway.

use std::sync::Arc;

use holdfast_core::contracts::policy::Policy;
use holdfast_core::contracts::tool::{SandboxNeed, ToolApproval, ToolSpec};
use holdfast_core::gateway::{Entering, Gate, Report, Rooms};
use holdfast_core::hooks::{HookAnswer, Invocation};
use holdfast_core::ledger::{Permit, Tool};
use holdfast_core::policy::ActivePolicy;
use serde_json::json;

use super::*;

pub fn tool(name_: &str, effect: EffectClass) -> ToolSpec {
    ToolSpec {
        approval: ToolApproval::Policy,
        compensates: false,
        description: None,
        effect,
        input: serde_json::Map::new(),
        key_ttl_ms: None,
        max_attempts: 1,
        name: name(name_),
        output: None,
        reconciles: false,
        risk: Risk::Low,
        sandbox: SandboxNeed::None,
        secrets: vec![],
        timeout_ms: 1000,
        version: name("1"),
    }
}

pub fn policy(rules: &Value, approvers: &Value) -> Arc<ActivePolicy> {
    let rules: Vec<Value> = rules.as_array().unwrap().iter().map(rule).collect();
    let policy: Policy = read(&json!({"approvers": approvers, "rules": rules})).unwrap();
    Arc::new(ActivePolicy::new(policy).unwrap())
}

/// A rule with only what a test says.
fn rule(given: &Value) -> Value {
    let mut whole = json!({"agents": [], "capabilities": [], "effects": [], "labels": {}, "name": "a rule",
        "obligations": [], "risks": [], "roles": [], "sessions": [], "tools": [], "when": []});
    whole.as_object_mut().unwrap().extend(given.as_object().unwrap().clone());
    whole
}

pub fn entering(spec: ToolSpec, key_text: &str, args: Value) -> Entering {
    let digest = SEED.call_digest("tool", spec.name.as_str(), &args).unwrap();
    let mut id = [0u8; 10];
    id.iter_mut().zip(key_text.bytes()).for_each(|(to, from)| *to = from);
    Entering {
        arguments: value(args),
        call: CallId::new(1_763_251_200_000, id),
        capability: None,
        decision_hooks: false,
        decision_ruled: None,
        digest,
        dispatchers: vec![],
        guards: vec![],
        key: Some(key(key_text)),
        key_shared_ms: None,
        kind: CallKind::Tool,
        lane: name("0"),
        recorded: None,
        result_hooks: false,
        redact: vec![],
        reserve: Amounts::default(),
        rooms: None,
        sandbox: SandboxTier::None,
        tool: Arc::new(Tool::new(spec).unwrap()),
    }
}

/// The same after rooms in which these hooks spoke.
pub fn through(entering: &Entering, invocations: Vec<Invocation>) -> Entering {
    let effective = entering.arguments.clone();
    let rooms = Rooms {
        approval_hooks: false,
        based_on: None,
        edit_unfit: false,
        effective,
        evaluations: vec![],
        invocations,
    };
    Entering { rooms: Some(rooms), ..entering.clone() }
}

pub fn hook(
    name_: &str,
    point: &str,
    rights: &[&str],
    failure: &str,
) -> holdfast_core::contracts::hook::HookSpec {
    read(&json!({
        "execution": {"mode": "blocking"}, "executor_ref": "test", "failure": failure, "hook_id": name_,
        "mutation_rights": {"rights": rights}, "ordering": {"order": 100, "phase": "normal"}, "point": point,
        "policy_ref": {"id": "p", "kind": "host"}, "privacy": "content_capture_allowed",
        "source": "in_process", "timeout": {"timeout_ms": 250},
    }))
    .unwrap()
}

pub fn said(spec: &holdfast_core::contracts::hook::HookSpec, response: Value) -> Invocation {
    let answer = HookAnswer::Response { response };
    Invocation { answer, elapsed_ms: 1, spec: Arc::new(spec.clone()) }
}

pub fn report(status: EffectStatus, result: Option<Value>) -> Report {
    Report {
        elapsed_ms: 5,
        external_id: None,
        failure: None,
        message: None,
        output_error: None,
        result: result.map(value),
        sandbox: None,
        status,
        unruled: false,
        usage: None,
    }
}

pub fn settled(claim: Claim, permit: &Permit, status: EffectStatus) -> Command {
    let report = Box::new(report(status, Some(json!({"id": "r1"}))));
    Command::Settle { claim, call: permit.call, dispatch: permit.dispatch, report }
}

pub fn doubt(claim: Claim, permit: &Permit, over: bool) -> Command {
    Command::Doubt {
        claim,
        call: permit.call,
        cause: DoubtCause::Raised,
        dispatch: permit.dispatch,
        failure: None,
        message: None,
        over,
        sandbox: None,
    }
}

pub fn resolve(call: CallId, dispatch: u32, resolution: Resolution) -> Command {
    let result = (resolution == Resolution::Happened).then(|| value(json!({"id": "r1"})));
    Command::Resolve {
        claim: None,
        call,
        dispatch,
        external_id: None,
        force: false,
        reason: None,
        resolution,
        result,
    }
}

pub fn vote(approval: holdfast_core::ids::ApprovalId, yes: bool) -> Command {
    use holdfast_core::contracts::approval::ApprovalDecisionKind as Kind;
    Command::Vote {
        approval,
        reason: None,
        scope: None,
        vote: if yes { Kind::Approved } else { Kind::Denied },
    }
}

impl World {
    /// A run with one attached step that w1 has claimed.
    pub fn attached() -> (Self, Claim) {
        Self::attached_with(None)
    }

    pub fn attached_with(budget: Option<Budget>) -> (Self, Claim) {
        let mut world = Self::empty();
        let step = NewStep { kind: StepKind::Attached, ..new_step(1, &[]) };
        let run = NewRun { budget, ..new_run(1) };
        world.ask(dana(), Command::Create { run: Box::new(run), steps: vec![step] }).unwrap();
        let claim = world.claim(1, "w1").unwrap();
        (world, claim)
    }

    /// What the door says to a call.
    pub fn enter(&mut self, claim: Claim, entering: &Entering) -> Gate {
        self.try_enter(claim, entering).unwrap()
    }

    pub fn try_enter(&mut self, claim: Claim, entering: &Entering) -> Result<Gate, TransactError> {
        let call = Box::new(entering.clone());
        let owner = self.run().steps[&claim.step].owner.clone().unwrap_or_else(|| name("w1"));
        let by = Actor { id: owner, r#type: ActorType::Worker };
        Ok(self.ask(by, Command::Enter { claim, call })?.gate.unwrap())
    }

    pub fn permitted(&mut self, claim: Claim, entering: &Entering) -> Permit {
        match self.enter(claim, entering) {
            Gate::Permit { permit, .. } => *permit,
            other => panic!("no permit: {other:?}"),
        }
    }

    /// The newest request for approval.
    pub fn approval(&self) -> holdfast_core::ids::ApprovalId {
        *self.run().approvals.iter().max_by_key(|(_, found)| found.arguments.position).unwrap().0
    }

    /// The kinds of the records of the newest frame that a call wrote.
    pub fn since(&self, records: usize) -> Vec<&str> {
        self.kinds().split_off(records)
    }

    pub fn outcome(&self, call: CallId) -> Option<holdfast_core::state::Outcome> {
        self.run().calls[&call].outcome
    }
}

pub fn budget(tool_calls: u64, on_exceeded: OnExceeded) -> Budget {
    Budget {
        children: None,
        concurrency: None,
        mailbox: None,
        memory_bytes: None,
        on_exceeded,
        tokens: None,
        tool_calls: Some(tool_calls),
        usd_micros: None,
        wall_ms: None,
    }
}
