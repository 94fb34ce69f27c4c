//! Commands on runs, steps, leases and state. `decide` is pure: a view, a request and the time go in,
//! drafts of records and changes of rows come out, or a refusal that changes nothing. The engine commits.
//!
//! Worker commands carry their claim, and the fence is checked here and nowhere else: while a step is
//! running under a fence, only that fence acts on it. Safety never depends on a clock; a lease that has
//! run out by the clock still holds until somebody recovers the step.

mod capability;
mod create;
mod lease;
mod mail;
mod own;
mod people;
mod refused;
mod request;
mod work;

pub use own::{Act, Opening, awaited_content};
pub use refused::Refused;
pub(crate) use request::seal_into;
pub use request::{
    Claim, Command, Decided, Entry, Envelope, EnvelopeBody, KeyHolder, Lease, LeaseChange, NewCapability,
    NewRun, NewStep, Payload, Request, SessionGrant, View,
};

use std::cell::Cell;

use crate::clock::Now;
use crate::entropy::Source;
use crate::ids::{CallId, StepId};
use crate::limits;
use crate::mutants::{Mutant, mutant};
use crate::policy::ActivePolicy;
use crate::records::{Actor, Body, CallKind, Draft, Fence};
use crate::state::{Call, RunState, Step};

/// What every decision has at hand.
pub(crate) struct Case<'a> {
    pub(crate) view: &'a View<'a>,
    pub(crate) by: &'a Actor,
    pub(crate) now: &'a Now,
    pub(crate) source: Source<'a>,
    /// Entries that were drafted beforehand.
    drafted: Cell<Vec<Draft>>,
}

/// Decides one request.
pub fn decide(view: &View<'_>, request: &Request, now: &Now) -> Result<Decided, Refused> {
    decide_drafted(view, request, Vec::new(), now)
}

/// The same, with what [`draft`] made of the same request: what it decides is the same.
pub fn decide_drafted(
    view: &View<'_>,
    request: &Request,
    drafted: Vec<Draft>,
    now: &Now,
) -> Result<Decided, Refused> {
    let source = Source::new(&request.entropy, now.wall_ms);
    let case = Case { view, by: &request.by, now, source, drafted: Cell::new(drafted) };
    let decided = case.decide(&request.command)?;
    if decided.drafts.len() > limits::FRAME_RECORDS_MAX {
        return Err(Refused::LimitExceeded("frame_records_max"));
    }
    Ok(decided)
}

/// Reads and seals the entries of an append, which takes most of its time and needs neither the run nor
/// the clock. None if one of them is refused, or if it is another command: deciding tells why, in its order.
pub fn draft(request: &Request) -> Vec<Draft> {
    let Command::Append { entries, .. } = &request.command else { return Vec::new() };
    let source = Source::new(&request.entropy, 0);
    let drafts: Result<_, Refused> =
        entries.iter().map(|entry| work::draft(entry, &request.by, &source)).collect();
    drafts.unwrap_or_default()
}

impl<'a> Case<'a> {
    fn decide(&self, command: &Command) -> Result<Decided, Refused> {
        match command {
            Command::Create { run, steps } => self.create(run, steps),
            Command::Fork { run, labels, package, effects, reason } => {
                self.fork(*run, labels, package, *effects, reason.as_ref())
            }
            Command::Claim { step, worker, lease_ms, package, strict } => {
                self.claim(*step, worker, *lease_ms, package, *strict)
            }
            Command::Heartbeat { claim, lease_ms } => self.heartbeat(claim, *lease_ms),
            Command::Release { claim, reason } => self.release(claim, *reason),
            Command::Recover { step } => self.recover(*step),
            Command::Patch { claim, patch, expected_version, call } => {
                self.patch(claim, patch, *expected_version, *call)
            }
            Command::Wait { claim, waits } => self.wait(claim, waits),
            Command::Fail { claim, failure, message, ended_by } => {
                self.fail(claim, failure, message.as_ref(), ended_by)
            }
            Command::Complete { claim, expected_version, result, patch } => {
                self.complete(claim, result.as_ref(), patch.as_ref(), *expected_version)
            }
            Command::Act { .. }
            | Command::Take { .. }
            | Command::CancelAwait { .. }
            | Command::Diverge { .. } => self.decide_own(command),
            Command::Enter { .. }
            | Command::Settle { .. }
            | Command::Doubt { .. }
            | Command::RuleResult { .. }
            | Command::Late { .. }
            | Command::Resolve { .. }
            | Command::Compensated { .. }
            | Command::Vote { .. }
            | Command::Edit { .. }
            | Command::Dispatched { .. }
            | Command::RulePoint { .. }
            | Command::Revoke { .. } => self.decide_call(command),
            Command::Attenuate { .. } | Command::Transfer { .. } | Command::RevokeCapability { .. } => {
                self.decide_capability(command)
            }
            Command::ConfirmCancel { claim } => self.confirm_cancel(claim),
            Command::Append { claim, entries } => self.append(claim.as_ref(), entries),
            Command::AddStep { call, claim, step } => self.add_step(*call, claim.as_ref(), step),
            Command::Spawn { call, claim, child, agent, input, escrow, on_parent_end } => {
                let body = self.child_spawned(*child, agent, input, escrow, *on_parent_end)?;
                self.spawn(*call, claim, body)
            }
            Command::Send { call, claim, to, content, correlation, reply_to } => {
                self.send(*call, claim, *to, content, (correlation.as_ref(), *reply_to))
            }
            Command::Wake { step, on, subject } => self.wake(*step, *on, subject.as_ref()),
            Command::Signal { name, payload } => self.signal(name, payload, None),
            Command::Deliver { envelope } => self.deliver(envelope),
            Command::Cancel { .. }
            | Command::End { .. }
            | Command::Pause { .. }
            | Command::Unpause { .. }
            | Command::Resume { .. }
            | Command::Raise { .. }
            | Command::Restored {}
            | Command::Erase { .. }
            | Command::RetryRun { .. }
            | Command::DecideDivergence { .. }
            | Command::DecidePackage { .. } => self.decide_person(command),
        }
    }

    /// What people, schedulers and supervisors do to a run.
    fn decide_person(&self, command: &Command) -> Result<Decided, Refused> {
        match command {
            Command::Cancel { reason } => self.cancel(reason.as_ref()),
            Command::End { reason } => self.end(*reason),
            Command::Pause { reason } => self.pause(reason.as_ref()),
            Command::Unpause { reason } => self.unpause(reason.as_ref()),
            Command::Resume { package, reason } => self.resume(package, reason.as_ref()),
            Command::Raise { amounts, reason } => self.raise(amounts, reason.as_ref()),
            Command::Restored {} => self.restored(),
            Command::Erase { commits, reason } => self.erase(commits, reason.as_ref()),
            Command::RetryRun { reason } => self.retry_run(reason.as_ref()),
            Command::DecideDivergence { step, decision, unclaimed, reason } => {
                self.decide_divergence(*step, *decision, unclaimed, reason.as_ref())
            }
            Command::DecidePackage { step, decision, package, reason } => {
                self.decide_package(*step, *decision, package, reason.as_ref())
            }
            _ => Err(Refused::NoSuchRun), // not one of them
        }
    }

    /// The commands of the gateway.
    fn decide_call(&self, command: &Command) -> Result<Decided, Refused> {
        match command {
            Command::Enter { claim, call } => self.enter(claim, call),
            Command::Settle { claim, call, dispatch, report } => {
                self.settle(claim, (*call, *dispatch), report)
            }
            Command::Doubt { claim, call, cause, dispatch, failure, message, over, sandbox } => {
                let told = (failure.as_ref(), message.as_ref(), sandbox.as_ref());
                self.doubt(claim, (*call, *dispatch), *cause, told, *over)
            }
            Command::RuleResult { attempts, claim, call, invocations } => {
                self.rule_result(claim, *call, *attempts, invocations)
            }
            Command::Late { claim, call, dispatch, report } => self.late(claim, (*call, *dispatch), report),
            Command::Resolve { claim, call, dispatch, external_id, force, reason, resolution, result } => {
                let told = (result.as_ref(), external_id.as_ref(), reason.as_ref());
                self.resolve(claim.as_ref(), (*call, *dispatch), *resolution, told, *force)
            }
            Command::Compensated { claim, by, call, reason } => {
                self.compensated(claim, *call, *by, reason.as_ref())
            }
            Command::Vote { approval, reason, scope, vote } => {
                self.vote(*approval, *vote, scope.as_ref(), reason.as_ref())
            }
            Command::Edit { approval, arguments, reason } => self.edit(*approval, arguments, reason.as_ref()),
            Command::Dispatched { approval, claim, dispatcher, reason_code, status } => {
                self.people_told(claim, *approval, dispatcher, *status, reason_code.as_ref())
            }
            Command::RulePoint { call, claim, invocations, point } => {
                self.rule_point(claim.as_ref(), *call, *point, invocations)
            }
            Command::Revoke { grant, reason } => self.revoke(*grant, reason.as_ref()),
            _ => Err(Refused::NoSuchCall), // not one of them
        }
    }

    /// The run, if it exists and this build may act on it.
    pub(crate) fn run(&self) -> Result<&'a RunState, Refused> {
        let run = self.view.state.ok_or(Refused::NoSuchRun)?;
        if run.newer && !mutant(Mutant::ActOnNewer) { Err(Refused::NewerFormat) } else { Ok(run) }
    }

    /// The run, if it has not ended.
    pub(crate) fn open_run(&self) -> Result<&'a RunState, Refused> {
        let run = self.run()?;
        if run.phase.is_ended() && !mutant(Mutant::ActAfterEnd) {
            Err(Refused::RunEnded(run.status()))
        } else {
            Ok(run)
        }
    }

    /// The policy that calls are decided by.
    pub(crate) fn policy(&self) -> &'a ActivePolicy {
        self.view.policy.as_deref().unwrap_or_else(|| ActivePolicy::none())
    }

    pub(crate) fn step(&self, id: StepId) -> Result<&'a Step, Refused> {
        self.run()?.steps.get(&id).ok_or(Refused::NoSuchStep)
    }

    /// The step of a claim, if the claim's fence holds. A stale worker gets no further, whatever it asks.
    pub(crate) fn held(&self, claim: &Claim) -> Result<&'a Step, Refused> {
        let step = self.step(claim.step)?;
        if step.live_fence() == Some(claim.fence) || mutant(Mutant::AnyFence) {
            Ok(step)
        } else {
            Err(Refused::StaleFence { held: claim.fence, newest: step.fence })
        }
    }

    /// A call of a claimed step that its own frame will settle: open, and of this kind.
    fn own_call(&self, call: Option<CallId>, step: &Step, kind: CallKind) -> Result<Option<CallId>, Refused> {
        let Some(id) = call else { return Ok(None) };
        let found = self.run()?.calls.get(&id);
        let own = |call: &Call| call.step == step.id && call.kind == kind && call.is_undecided();
        if found.is_some_and(own) || mutant(Mutant::SettleAnyCall) {
            Ok(call)
        } else {
            Err(Refused::NoSuchCall)
        }
    }

    pub(crate) fn draft(&self, body: impl Into<Body>) -> Draft {
        Draft::new(body, self.by.clone())
    }

    /// A draft that belongs to a step, under a fence when the step is held.
    pub(crate) fn step_draft(&self, body: impl Into<Body>, step: &Step, fence: Option<Fence>) -> Draft {
        Draft { step: Some(step.id), attempt: Some(step.attempt), fence, ..self.draft(body) }
    }

    pub(crate) fn call_draft(
        &self,
        body: impl Into<Body>,
        step: &Step,
        call: CallId,
        fence: Option<Fence>,
    ) -> Draft {
        Draft { call: Some(call), ..self.step_draft(body, step, fence) }
    }
}
