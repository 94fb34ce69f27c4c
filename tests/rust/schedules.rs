//! Many workers, crashes at every boundary, late and doubled answers, votes, revocations, changing policies,
//! budgets of one: seeded schedules over the pure core, beside a provider that keeps its own ledger. The
//! checkers read that ledger and the journal, and know nothing of how either was made. A failure is a seed.
#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used, clippy::as_conversions)]
#![allow(clippy::cast_possible_truncation, clippy::print_stdout)]

#[path = "schedule_edges.rs"]
mod schedule_edges;
mod world;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use holdfast_core::contracts::approval::{ApprovalDecisionKind, ApprovalLifecycleStatus};
use holdfast_core::contracts::capability::{Comparison, Constraint, Right};
use holdfast_core::contracts::hook::HookSpec;
use holdfast_core::contracts::policy::Decision;
use holdfast_core::contracts::tool::{SandboxNeed, ToolApproval, ToolSpec};
use holdfast_core::error::Coded;
use holdfast_core::gateway::{Answer, Ask, Entering, Passage};
use holdfast_core::hooks::{HookAnswer, Hooks};
use holdfast_core::ids::{ApprovalId, CallId, GrantId, SessionId};
use holdfast_core::journal::TransactError;
use holdfast_core::ledger::Permit;
use holdfast_core::policy::ActivePolicy;
use holdfast_core::records::*;
use holdfast_core::run::*;
use holdfast_core::state::{GrantState, Outcome};
use schedule_edges::{edges, legal, reached};
use serde_json::{Value, json};
use world::gate::*;
use world::*;

const WORKERS: [&str; 3] = ["w1", "w2", "w3"];
const KEY_TTL_MS: u64 = 120_000;
/// What approvers put in the place of the arguments, and up to what they allow a session to go on.
const EDITED: u64 = 2;
const SCOPE: u64 = 2;

/// A small generator: the same seed, the same schedule, on every machine.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % sides
    }

    fn one_in(&mut self, n: u64) -> bool {
        self.roll(n) == 0
    }
}

/// What the outside world did, by its own account.
#[derive(Debug, Clone)]
struct Done {
    arguments: Value,
    call: CallId,
    dispatch: u32,
    /// It had this key before, and did nothing new.
    repeated: bool,
    true_ms: u64,
}

/// A body that runs on although nobody waits for it.
#[derive(Debug, Clone)]
struct Stray {
    boot_id: String,
    permit: Permit,
    tool: ToolSpec,
    until: u64,
}

struct Job {
    ask: Ask,
    passage: Passage,
    tool: ToolSpec,
}

struct Worker {
    claim: Option<Claim>,
    job: Option<Job>,
    name: &'static str,
    /// A report about what it did before it lost its claim.
    untold: Vec<(Claim, Permit, bool)>,
}

struct Play {
    world: World,
    dice: Dice,
    workers: Vec<Worker>,
    provider: Vec<Done>,
    strays: Vec<Stray>,
    policies: Vec<Arc<ActivePolicy>>,
    /// From which record on which policy was active.
    active: Vec<(u64, usize)>,
    true_ms: u64,
    hooks: Arc<Hooks>,
    limit: Option<u64>,
    dispatchers: Vec<Name>,
    /// Grants of the session that were revoked, and how many records there were then.
    revoked: BTreeMap<GrantId, u64>,
}

fn tools() -> Vec<ToolSpec> {
    let write = |name: &str| tool(name, EffectClass::Write);
    vec![
        write("plain"),
        ToolSpec { key_ttl_ms: Some(KEY_TTL_MS), max_attempts: 3, ..write("keyed") },
        ToolSpec { reconciles: true, ..write("asked") },
        ToolSpec { approval: ToolApproval::Always, reconciles: true, ..write("wire") },
        ToolSpec { max_attempts: 2, ..tool("look", EffectClass::Read) },
        ToolSpec { sandbox: SandboxNeed::Required, ..write("boxed") },
        ToolSpec { sandbox: SandboxNeed::Required, ..tool("boxed look", EffectClass::Read) },
    ]
}

fn policies() -> Vec<Arc<ActivePolicy>> {
    let leads = json!({"dana": ["lead"], "eve": ["lead"], "mallory": ["intern"]});
    let ask = |quorum| {
        let approvers = json!({"expires_ms": 300_000, "quorum": quorum, "roles": ["lead"]});
        json!([{"decide": "ask", "effects": ["write"], "approvers": approvers}])
    };
    vec![
        policy(&json!([]), &leads),
        policy(&ask(1), &leads),
        policy(&ask(2), &leads),
        policy(&json!([{"decide": "deny", "tools": ["wire", "plain"]}]), &leads),
    ]
}

fn guard() -> HookSpec {
    hook("guard", "before_tool_call", &["deny", "modify_tool_request", "request_approval"], "deny")
}

impl Play {
    fn new(seed: u64) -> Self {
        let mut dice = Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x5851_f42d);
        let limit = dice.one_in(3).then(|| 1 + dice.roll(3));
        let budget_ = limit.map(|limit| budget(limit, OnExceeded::Refuse));
        let mut world = World::empty();
        let retry = RetryPolicy { backoff_max_ms: 1, backoff_ms: 1, max_attempts: 1000 };
        let step = NewStep { kind: StepKind::Attached, retry, ..new_step(1, &[]) };
        let session = dice.one_in(2).then(|| SessionId::new(1_763_251_200_000, [3; 10]));
        let held = NewCapability {
            constraints: vec![],
            expires_at: None,
            rights: vec![Right::Call, Right::Grant],
            target: key("*"),
        };
        let capabilities = dice.one_in(3).then(|| vec![held]);
        let dispatchers = if dice.one_in(3) { vec![name("chat")] } else { vec![] };
        let run = NewRun { budget: budget_, capabilities, session, ..new_run(1) };
        world.ask(dana(), Command::Create { run: Box::new(run), steps: vec![step] }).unwrap();
        let mut specs = Vec::new();
        if dice.one_in(2) {
            specs.push(guard());
        }
        if dice.one_in(3) {
            specs.push(hook("after", "after_tool_call", &["request_retry", "rewrite_tool_result"], "deny"));
        }
        let worker = |name| Worker { claim: None, job: None, name, untold: Vec::new() };
        let mut play = Self {
            world,
            dice,
            workers: WORKERS.map(worker).into_iter().collect(),
            provider: Vec::new(),
            strays: Vec::new(),
            policies: policies(),
            active: Vec::new(),
            true_ms: 0,
            hooks: Arc::new(Hooks::new(specs).unwrap()),
            limit,
            dispatchers,
            revoked: BTreeMap::new(),
        };
        play.activate(0);
        play
    }

    fn activate(&mut self, which: usize) {
        self.world.journal.policy = Some(self.policies[which].clone());
        self.active.push((self.world.journal.records().len() as u64 + 1, which));
    }

    fn tick(&mut self, ms: u64) {
        self.world.tick(ms);
        self.true_ms += ms;
    }

    /// The body does what it does: the provider of a keyed tool does it once per key, while it remembers it.
    fn act(&mut self, permit: &Permit, tool: &ToolSpec) {
        let before = self.provider.iter().find(|done| done.call == permit.call && !done.repeated);
        let remembered = |done: &Done| self.true_ms - done.true_ms < KEY_TTL_MS;
        let repeated = tool.key_ttl_ms.is_some() && before.is_some_and(remembered);
        let (arguments, call, dispatch) = (permit.arguments.clone(), permit.call, permit.dispatch);
        self.provider.push(Done { arguments, call, dispatch, repeated, true_ms: self.true_ms });
    }

    fn happened(&self, call: CallId) -> bool {
        self.provider.iter().any(|done| done.call == call)
    }

    fn ask(&mut self, by: Actor, command: Command) -> Result<holdfast_core::journal::Frame, &'static str> {
        match self.world.ask(by, command) {
            Ok(frame) => Ok(frame),
            Err(TransactError::Refused(refused)) => Err(refused.code().as_str()),
            Err(bug) => panic!("decided what cannot be folded: {bug:?}"),
        }
    }

    /// One move of somebody.
    fn step(&mut self) {
        match self.dice.roll(20) {
            0..=10 => {
                let at = self.dice.roll(3) as usize;
                self.work(at);
            }
            11 | 12 => {
                let ms = [50, 2_000, 12_000, 31_000, 70_000, 400_000][self.dice.roll(6) as usize];
                self.tick(ms);
            }
            13 => self.recover(),
            14 => self.decide_approval(),
            15 => self.wake(),
            16 => self.resolve(),
            17 => self.stray(),
            18 => self.meddle(),
            _ => self.tell_late(),
        }
    }

    fn work(&mut self, at: usize) {
        let actor = worker(self.workers[at].name);
        let Some(claim) = self.workers[at].claim else {
            self.claim(at);
            return;
        };
        let Some(mut job) = self.workers[at].job.take() else {
            self.begin(at, claim);
            return;
        };
        if self.dice.one_in(25) {
            self.crash(at, &job, claim);
            return;
        }
        let next = match job.ask.clone() {
            Ask::Commit { command } => match self.ask(actor, *command) {
                Ok(frame) => {
                    let gate = frame.gate.unwrap();
                    Some(job.passage.told(gate, Some(json!(1))))
                }
                Err("stale_fence") => {
                    self.workers[at].claim = None;
                    None
                }
                Err(_) => None,
            },
            Ask::Validate { arguments } => Some(job.passage.answer(Answer::Valid { arguments })),
            Ask::RunHook { hook, .. } => {
                let told = self.hook_says(hook.as_str());
                Some(job.passage.answer(Answer::Hook { elapsed_ms: 1, told }))
            }
            Ask::RunEvaluator { .. } => {
                let decision = Some(Decision::Allow);
                Some(job.passage.answer(Answer::Evaluated { decision, summary: None }))
            }
            Ask::RunEffect { permit, .. } => self.body(at, claim, &permit, &mut job),
            Ask::Reconcile { permit } => {
                let knows = !self.dice.one_in(4);
                let said =
                    if self.happened(permit.call) { Resolution::Happened } else { Resolution::DidNotHappen };
                let resolution = knows.then_some(said);
                let result = (resolution == Some(Resolution::Happened)).then(|| value(json!(1)));
                Some(job.passage.answer(Answer::Reconciled { external_id: None, resolution, result }))
            }
            Ask::Wait { wait, .. } => {
                let waits = vec![wait];
                let waited = self.ask(actor.clone(), Command::Wait { claim, waits });
                if waited.is_ok() || waited == Err("stale_fence") {
                    self.workers[at].claim = None;
                }
                None
            }
            Ask::Dispatch { .. } => {
                use ApprovalLifecycleStatus as Status;
                let status =
                    if self.dice.one_in(3) { Status::DispatcherUnavailable } else { Status::Dispatched };
                Some(job.passage.answer(Answer::Dispatched { reason_code: None, status }))
            }
            Ask::Run { .. } | Ask::Stop { .. } | Ask::Done { .. } => None,
        };
        if let Some(ask) = next {
            self.workers[at].job = Some(Job { ask, ..job });
        }
    }

    fn claim(&mut self, at: usize) {
        let name_ = self.workers[at].name;
        if self.world.claim(1, name_).is_ok() {
            let fence = self.world.step(1).fence.unwrap();
            self.workers[at].claim = Some(Claim { fence, step: step_id(1) });
        }
    }

    fn begin(&mut self, at: usize, claim: Claim) {
        if self.dice.one_in(12) {
            let released = Command::Release { claim, reason: ReleaseReason::Yielded };
            if self.ask(worker(self.workers[at].name), released).is_ok() {
                self.workers[at].claim = None;
            }
            return;
        }
        let known = tools();
        let boxed = self.dice.one_in(8);
        let which = if boxed { 5 + self.dice.roll(2) as usize } else { self.dice.roll(5) as usize };
        let key_text = format!("{}-{}", known[which].name.as_str(), self.dice.roll(2));
        let entering: Entering = entering(known[which].clone(), &key_text, json!({"cents": which}));
        let entering = Entering { dispatchers: self.dispatchers.clone(), ..entering };
        let (passage, ask) = Passage::open(claim, entering, self.hooks.clone(), Arc::new([]));
        self.workers[at].job = Some(Job { ask, passage, tool: known[which].clone() });
    }

    fn hook_says(&mut self, hook: &str) -> HookAnswer {
        let respond = |kind: &str, payload: Value| HookAnswer::Response {
            response: json!({"type": kind, "payload": payload}),
        };
        match (hook, self.dice.roll(10)) {
            ("guard", 0) => respond("deny", json!({"code": "no"})),
            ("guard", 1) => respond("modify_tool_request", json!({"value": {"cents": 99}})),
            ("guard", 2) => respond("request_approval", json!({})),
            ("after", 0 | 1) => respond("request_retry", json!({})),
            ("after", 2) => respond("rewrite_tool_result", json!({"value": 2})),
            (_, 3) => HookAnswer::Failed {},
            (_, 4) => HookAnswer::TimedOut {},
            _ => respond("observe_only", json!({})),
        }
    }

    /// What can happen between a permit and its report.
    fn body(&mut self, at: usize, claim: Claim, permit: &Permit, job: &mut Job) -> Option<Ask> {
        let write = job.tool.effect == EffectClass::Write;
        let boots = permit.boot_id.as_str() == self.world.now.boot_id;
        if !boots || self.world.now.boot_ms > permit.start_by {
            let report = Box::new(report(EffectStatus::NoEffect, None));
            return Some(job.passage.answer(Answer::Ran { report }));
        }
        let unknown = |over| Answer::Unknown {
            cause: DoubtCause::Raised,
            failure: None,
            message: None,
            over,
            sandbox: None,
        };
        match self.dice.roll(10) {
            0 => return Some(job.ask.clone()), // stopped just before the body; it may begin later
            1 => {
                let nothing =
                    if self.dice.one_in(4) { EffectStatus::Cancelled } else { EffectStatus::NoEffect };
                let report = Box::new(report(nothing, None));
                return Some(job.passage.answer(Answer::Ran { report }));
            }
            2 if write => {
                self.act(permit, &job.tool);
                return Some(job.passage.answer(unknown(true)));
            }
            3 if write => {
                // Given up at its deadline, and still running.
                let until = permit.start_by + permit.timeout_ms;
                let boot_id = self.world.now.boot_id.clone();
                self.strays.push(Stray { boot_id, permit: permit.clone(), tool: job.tool.clone(), until });
                return Some(job.passage.answer(unknown(false)));
            }
            4 => {
                self.act(permit, &job.tool);
                self.workers[at].untold.push((claim, permit.clone(), true));
                self.workers[at].claim = None; // it hangs after the body, and will report late
                return None;
            }
            _ => {}
        }
        self.act(permit, &job.tool);
        let status = match (write, self.dice.roll(16)) {
            (_, 0 | 1) => EffectStatus::Failed,
            (false, 2) => EffectStatus::Cancelled,
            (false, 3) => EffectStatus::TimedOut,
            _ => EffectStatus::Succeeded,
        };
        let report = Box::new(report(status, Some(json!(1))));
        Some(job.passage.answer(Answer::Ran { report }))
    }

    /// A worker dies: before the body, in it, or after it. Its process is gone, or only stopped.
    fn crash(&mut self, at: usize, job: &Job, claim: Claim) {
        if let Ask::RunEffect { permit, .. } = &job.ask {
            let in_time = self.world.now.boot_ms <= permit.start_by
                && permit.boot_id.as_str() == self.world.now.boot_id;
            if in_time && self.dice.one_in(2) {
                self.act(permit, &job.tool);
            }
        }
        if self.dice.one_in(2) {
            self.world.journal.gone.insert(name(self.workers[at].name));
            let _ = self.ask(system(), Command::Recover { step: claim.step });
            self.world.journal.gone.clear();
        }
        self.workers[at].claim = None;
    }

    fn recover(&mut self) {
        let _ = self.ask(system(), Command::Recover { step: step_id(1) });
    }

    fn approvals(&self) -> Vec<ApprovalId> {
        self.world.run().approvals.keys().copied().collect()
    }

    fn decide_approval(&mut self) {
        let approvals = self.approvals();
        if approvals.is_empty() {
            return;
        }
        let id = approvals[self.dice.roll(approvals.len() as u64) as usize];
        let who = ["dana", "eve", "mallory", "w1"][self.dice.roll(4) as usize];
        let by =
            Actor { id: name(who), r#type: if who == "w1" { ActorType::Agent } else { ActorType::Human } };
        let command = match self.dice.roll(10) {
            0 | 1 => vote(id, false),
            2 => Command::Edit { approval: id, arguments: value(json!({"cents": EDITED})), reason: None },
            3 | 4 => self.for_session(id),
            _ => vote(id, true),
        };
        let _ = self.ask(by, command);
    }

    fn for_session(&mut self, approval: ApprovalId) -> Command {
        let most = Constraint { argument: key("cents"), comparison: Comparison::Max, value: json!(SCOPE) };
        let expires_at = self.world.now.wall_ms + 100_000;
        let scope = GrantScope { constraints: vec![most], expires_at, uses: 1 + self.dice.roll(2) as u32 };
        let vote = ApprovalDecisionKind::ApprovedForSession;
        Command::Vote { approval, reason: None, scope: Some(scope), vote }
    }

    fn wake(&mut self) {
        for wait in self.world.step(1).waits.clone() {
            let command = Command::Wake { step: step_id(1), on: wait.on, subject: wait.subject };
            let _ = self.ask(system(), command);
        }
        let package = package("1");
        let _ = self.ask(dana(), Command::Resume { package, reason: None });
    }

    fn resolve(&mut self) {
        let doubted = |call: &&holdfast_core::state::Call| call.doubt.is_some();
        let mut calls = self.world.run().calls.values();
        let Some((call, dispatch)) = calls.find(doubted).map(|call| (call.id, call.dispatch)) else { return };
        let resolution = if self.happened(call) { Resolution::Happened } else { Resolution::DidNotHappen };
        let _ = self.ask(dana(), resolve(call, dispatch, resolution));
    }

    /// A body that nobody waits for acts, if its time is not over.
    fn stray(&mut self) {
        let Some(stray) = self.strays.pop() else { return };
        if stray.boot_id == self.world.now.boot_id && self.world.now.boot_ms <= stray.until {
            self.act(&stray.permit, &stray.tool);
        }
    }

    fn meddle(&mut self) {
        match self.dice.roll(7) {
            4 => {
                let held: Vec<_> = self.world.run().capabilities.held.keys().copied().collect();
                if let Some(capability) = held.first().copied().filter(|_| self.dice.one_in(3)) {
                    let gone = Command::RevokeCapability { capability, claim: None, reason: None };
                    let _ = self.ask(dana(), gone);
                }
            }
            5 => {
                if let Some(one) = self.world.journal.session_grants.last_mut() {
                    one.grant.revoked = true;
                    self.revoked.insert(one.id, self.world.journal.records().len() as u64);
                }
            }
            6 => self.compensate(),
            0 => {
                let which = self.dice.roll(self.policies.len() as u64) as usize;
                self.activate(which);
            }
            1 => {
                let grants: Vec<_> = self.world.run().grants.keys().copied().collect();
                if let Some(grant) = grants.first().copied() {
                    let _ = self.ask(dana(), Command::Revoke { grant, reason: None });
                }
            }
            2 => {
                // The machine starts again: every process is gone.
                self.world.now.boot_id = format!("boot-{}", self.true_ms);
                self.world.now.boot_ms = 0;
                self.strays.clear();
                for worker in &mut self.workers {
                    (worker.claim, worker.job) = (None, None);
                    worker.untold.clear();
                }
            }
            _ => self.activate(0),
        }
    }

    /// A worker says that one write undid another.
    fn compensate(&mut self) {
        let at = self.dice.roll(3) as usize;
        let Some(claim) = self.workers[at].claim else { return };
        let done = |call: &&holdfast_core::state::Call| {
            call.effect == EffectClass::Write && call.outcome == Some(Outcome::Succeeded)
        };
        let calls: Vec<CallId> = self.world.run().calls.values().filter(done).map(|call| call.id).collect();
        if let [call, .., by] = calls[..] {
            let actor = worker(self.workers[at].name);
            let _ = self.ask(actor, Command::Compensated { claim, by, call, reason: None });
        }
    }

    fn tell_late(&mut self) {
        let at = self.dice.roll(3) as usize;
        let Some((claim, permit, ended)) = self.workers[at].untold.pop() else { return };
        let told = Box::new(report(EffectStatus::Succeeded, Some(json!(1)).filter(|_| ended)));
        let (call, dispatch) = (permit.call, permit.dispatch);
        let actor = worker(self.workers[at].name);
        let late = Command::Late { claim, call, dispatch, report: told.clone() };
        if self.ask(actor.clone(), late).is_err() {
            let _ = self.ask(actor, Command::Settle { claim, call, dispatch, report: told });
        }
        if self.dice.one_in(3) {
            self.workers[at].untold.push((claim, permit, ended)); // and once more
        }
    }
}

/// Where the records of each call stand, with what they say.
fn of_call(records: &[Record], call: CallId) -> Vec<&Record> {
    records.iter().filter(|record| record.call == Some(call)).collect()
}

/// A journal, a line each.
fn story(records: &[Record]) -> String {
    let line = |record: &Record| {
        let told = match &record.body {
            Body::EffectStarted(body) => format!("by {} start_by {}", body.boot_id.as_str(), body.start_by),
            Body::EffectDoubted(body) => format!("{} over {:?}", body.cause, body.over),
            Body::EffectResolved(body) => format!("{} {}", body.resolution, body.source),
            Body::EffectSettled(body) => body.status.to_string(),
            _ => String::new(),
        };
        let (fence, call) = (record.fence.map(|fence| fence.1), record.call.map(|call| call.to_string()));
        let place = (record.seq, record.at % 10_000_000, fence, call, record.dispatch);
        format!("{place:?} {} {told}\n", record.kind())
    };
    records.iter().map(line).collect()
}

fn check(play: &Play) {
    let records = play.world.journal.records();
    let mut calls: BTreeSet<CallId> = play.provider.iter().map(|done| done.call).collect();
    calls.extend(records.iter().filter_map(|record| record.call));
    for call in calls {
        let said = of_call(records, call);
        let done: Vec<&Done> = play.provider.iter().filter(|done| done.call == call).collect();
        let write = said.iter().any(
            |record| matches!(&record.body, Body::CallOpened(opened) if opened.effect == EffectClass::Write),
        );
        let new = done.iter().filter(|done| !done.repeated).count();
        assert!(!write || new <= 1, "promise 2: {call} happened {new} times: {done:#?}\n{}", story(records));
        let mut sent = BTreeSet::new();
        for done in &done {
            let permit = said.iter().find(|record| {
                matches!(record.body, Body::EffectStarted(_)) && record.dispatch == Some(done.dispatch)
            });
            let permit = permit.expect("promise 1: nothing acts before it is written");
            let Body::EffectStarted(body) = &permit.body else { continue };
            let passed = &play.world.journal.openings[&body.arguments.commit].value;
            assert_eq!(passed, &done.arguments, "promise 5: what was written is what ran");
            assert!(sent.insert(done.dispatch), "promise 2: one permit, at most one dispatch");
        }
        check_allowed(play, &said);
    }
    check_approvals(play);
    if let (Some(limit), Some(used)) = (play.limit, play.world.run().spending.used.tool_calls) {
        assert!(used <= limit, "no overshoot: {used} of {limit}");
    }
    let limit = usize::try_from(play.limit.unwrap_or(u64::MAX)).unwrap_or(usize::MAX);
    assert!(play.provider.len() <= limit, "no overshoot: {} of {limit}", play.provider.len());
}

/// Promises 5 and 6: every permit has what it needs, under the policy that was active.
fn check_allowed(play: &Play, said: &[&Record]) {
    let mut denied = false;
    let mut spent: Option<&Record> = None;
    let mut edited = false;
    let gone = play.world.journal.records().iter().find(|one| one.kind() == "capability.revoked");
    for record in said {
        match &record.body {
            Body::ApprovalEdited(_) => edited = true,
            Body::HookRuled(body) if body.point.as_str() == "before_tool_call" => {
                let says_no = body.response.as_ref().is_some_and(|said| said.class().as_str() == "deny");
                denied |= body.denies == Some(true) || says_no;
            }
            Body::PolicyDecided(body) => denied |= body.decision == Decision::Deny,
            Body::ApprovalTimedOut(_) => denied = true,
            Body::GrantSpent(_) => spent = Some(record),
            Body::EffectStarted(body) => {
                assert!(!denied, "promise 6: what was denied never ran");
                let at = record.seq;
                let active = play.active.iter().rev().find(|(from, _)| *from <= at).unwrap().1;
                assert_eq!(body.policy, Some(play.policies[active].digest), "the active policy allowed it");
                let opened = said.iter().find_map(|record| match &record.body {
                    Body::CallOpened(opened) => Some(opened),
                    _ => None,
                });
                let opened = opened.unwrap();
                let lacks = opened.capability.is_some() && gone.is_some_and(|gone| gone.seq < at);
                assert!(!lacks, "what was revoked lets nothing act");
                let passed = &play.world.journal.openings[&body.arguments.commit].value["cents"];
                let own = edited && *passed != json!(EDITED) && *passed != json!(99);
                assert!(!own, "an approver's arguments run, not the agent's: {passed}");
                let write = opened.effect == EffectClass::Write;
                let asks = write && (matches!(active, 1 | 2) || opened.name.as_str() == "wire");
                let refuses = active == 3 && matches!(opened.name.as_str(), "wire" | "plain");
                assert!(!refuses, "the active policy denies it");
                assert!(!asks || spent.is_some(), "promise 5: nobody approved {}", opened.name.as_str());
            }
            _ => {}
        }
    }
}

/// Promise 5: one decision per request, by people who may; one call per grant; exactly what was shown.
fn check_approvals(play: &Play) {
    let records = play.world.journal.records();
    let mut decided = BTreeSet::new();
    let mut votes: BTreeSet<(ApprovalId, Name)> = BTreeSet::new();
    let mut spenders: BTreeMap<_, BTreeSet<CallId>> = BTreeMap::new();
    for record in records {
        match &record.body {
            Body::ApprovalVoted(body) => {
                assert_eq!(record.by.r#type, ActorType::Human, "promise 5: people approve");
                assert!(
                    ["dana", "eve"].contains(&record.by.id.as_str()) || !has_roles(records, body.approval)
                );
                assert!(votes.insert((body.approval, record.by.id.clone())), "one person, one vote");
            }
            Body::ApprovalDecided(body) => {
                assert!(decided.insert(body.approval), "one request, one decision");
                let requested = request(records, body.approval);
                let for_it = votes.iter().filter(|(id, _)| *id == body.approval).count();
                let approved = body.decision.as_str() != "denied";
                assert!(!approved || for_it >= requested.quorum as usize, "the quorum");
                assert!(!approved || record.at < requested.expires_at, "not after its time");
            }
            Body::GrantSpent(body) => {
                spenders.entry(body.grant).or_default().insert(record.call.unwrap());
                let of_session = play.world.journal.session_grants.iter().find(|one| one.id == body.grant);
                let uses = of_session.map_or(1, |one| one.grant.uses as usize);
                assert!(spenders[&body.grant].len() <= uses, "one grant, so many calls");
                if let Some(one) = of_session {
                    check_session_grant(play, record, &one.grant, play.revoked.get(&one.id).copied());
                }
                let revoked = records.iter().any(|other| {
                    other.seq < record.seq
                        && matches!(&other.body, Body::GrantRevoked(revoked) if revoked.grant == body.grant)
                });
                assert!(!revoked, "a revoked grant lets nothing act");
            }
            _ => {}
        }
    }
}

/// A session's grant is spent within its scope and its time, and not once it is revoked.
fn check_session_grant(play: &Play, record: &Record, grant: &GrantState, revoked: Option<u64>) {
    assert!(record.at < grant.expires_at, "not after its time");
    assert!(revoked.is_none_or(|at| record.seq <= at), "a revoked grant lets nothing act");
    let records = play.world.journal.records();
    let started = records.iter().find(|one| one.seq > record.seq && one.call == record.call);
    let Some(Body::EffectStarted(body)) = started.map(|one| &one.body) else { return };
    let cents = &play.world.journal.openings[&body.arguments.commit].value["cents"];
    assert!(cents.as_u64().unwrap() <= SCOPE, "within its scope");
}

fn request(records: &[Record], id: ApprovalId) -> &ApprovalRequested {
    let found = records.iter().find_map(|record| match &record.body {
        Body::ApprovalRequested(body) if body.approval == id => Some(&**body),
        _ => None,
    });
    found.unwrap()
}

fn has_roles(records: &[Record], id: ApprovalId) -> bool {
    !request(records, id).roles.is_empty()
}

#[test]
fn under_any_schedule_the_promises_hold() {
    let seeds: u64 = std::env::var("HOLDFAST_SEEDS").ok().and_then(|n| n.parse().ok()).unwrap_or(1500);
    let (mut found, mut walked) = (BTreeSet::new(), BTreeSet::new());
    let (mut records, mut effects) = (0, 0);
    for seed in 0..seeds {
        let played = std::panic::catch_unwind(|| {
            let mut play = Play::new(seed);
            for _ in 0..300 {
                play.step();
            }
            check(&play);
            play
        });
        let Ok(play) = played else { panic!("seed {seed} breaks a promise: see above") };
        reached(play.world.journal.records(), &mut found);
        edges(&play.world.journal, &mut walked);
        records += play.world.journal.records().len();
        effects += play.provider.len();
    }
    println!("{seeds} schedules, {records} records, {effects} effects");
    let expected = [
        "approval.decided approved",
        "approval.decided approved_for_session",
        "approval.dispatched",
        "approval.edited",
        "capability.revoked",
        "effect.compensated",
        "approval.decided denied",
        "approval.requested",
        "approval.superseded",
        "approval.timed_out",
        "approval.voted",
        "budget.refused",
        "budget.reserved",
        "budget.settled assumed=false",
        "budget.settled assumed=true",
        "call.opened",
        "effect.doubted crashed",
        "effect.doubted raised",
        "effect.late",
        "effect.resolved did_not_happen operator",
        "effect.resolved did_not_happen reconcile",
        "effect.resolved happened operator",
        "effect.resolved happened reconcile",
        "effect.resolved late late_report",
        "effect.settled failed",
        "effect.settled no_effect",
        "effect.settled succeeded",
        "effect.started 1",
        "effect.started 2",
        "grant.created",
        "grant.revoked",
        "grant.spent",
        "hook.ruled applied_journaled_mutation",
        "hook.ruled completed",
        "hook.ruled failed_closed",
        "hook.ruled rejected_policy",
        "hook.ruled timed_out_fail_closed",
        "policy.decided allow",
        "policy.decided ask",
        "policy.decided deny",
    ];
    let missing: Vec<_> = expected.iter().filter(|fact| !found.contains(**fact)).collect();
    assert!(missing.is_empty(), "the schedules never reached {missing:?}");
    let missing: Vec<_> = legal().into_iter().filter(|edge| !walked.contains(edge)).collect();
    assert!(missing.is_empty(), "the schedules never walked {missing:?}");
}
