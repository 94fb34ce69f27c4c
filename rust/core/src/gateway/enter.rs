//! A call at the door: what it is, what the rooms say, and whether it gets its permit.

use serde_json::Value;

use super::rooms::stopped;
use super::{Entering, Gate, newest_approval, recorded, unspent_approval};
use crate::approval::{Bound, covers, stands, still_binds};
use crate::budget;
use crate::call::CallPhase;
use crate::capability::Leave;
use crate::content::{Sealed, seal};
use crate::contracts::approval::ApprovalLifecycleStatus;
use crate::contracts::policy::Decision;
use crate::entropy::Source;
use crate::hooks::Act;
use crate::ids::{ApprovalId, GrantId};
use crate::ledger::{self, WayOut};
use crate::limits;
use crate::mutants::{Mutant, mutant};
use crate::policy::{self, ActivePolicy, Question};
use crate::records::{
    ApprovalCancelReason, ApprovalCancelled, ApprovalSuperseded, ApprovalTimedOut, Draft, EffectClass,
    EffectResolved, GrantSpent, Key, Name, Privacy, Resolution, ResolvedBy, StepKind, SupersedeReason, Wait,
    WaitOn,
};
use crate::run::{Case, Claim, Decided, KeyHolder, Refused};
use crate::state::{Approval, ApprovalState, Call, Outcome, RunState, Step};
use crate::transitions::RunPhase;

/// The grant that is spent already, and a decision to record if policy changed.
type StillAllowed = (Option<GrantId>, Vec<Draft>);

/// A call at the door, with what every question about it needs.
pub(super) struct Caller<'a> {
    pub(super) claim: &'a Claim,
    pub(super) entering: &'a Entering,
    pub(super) policy: &'a ActivePolicy,
    /// What nobody on the way is shown of the arguments.
    pub(super) redact: Vec<Name>,
    pub(super) run: &'a RunState,
    pub(super) step: &'a Step,
}

impl Caller<'_> {
    pub(super) fn bound(&self) -> Bound<'_> {
        Bound {
            policy: self.policy.digest,
            sandbox: self.entering.sandbox,
            schema: Some(self.entering.tool.schema),
            version: Some(&self.entering.tool.version),
        }
    }

    /// Seals arguments. Of those with something in them that is not to be seen, none leave by themselves.
    pub(super) fn sealed(&self, value: Value, source: &Source<'_>) -> Result<Sealed, Refused> {
        let given = self.entering.arguments.privacy;
        let privacy = if self.redact.is_empty() { given } else { given.max(Privacy::Sensitive) };
        Ok(seal(value, source.salt(), privacy)?)
    }
}

impl Case<'_> {
    /// What becomes of a call. What was recorded is served or gone on with; what is new goes through the
    /// rooms.
    pub(crate) fn enter(&self, claim: &Claim, entering: &Entering) -> Result<Decided, Refused> {
        let step = self.held(claim)?;
        let run = self.open_run()?;
        if run.cancel_requested {
            return Err(Refused::CancelRequested);
        }
        if run.phase == RunPhase::Paused && !mutant(Mutant::ActWhilePaused) {
            return Err(Refused::RunPaused);
        }
        check_tool(entering)?;
        check_key(entering)?;
        if step.kind == StepKind::Attached && entering.key.is_none() && !mutant(Mutant::NoKeyNeeded) {
            return Err(Refused::KeyNeeded);
        }
        let policy = self.policy();
        let redact = self.redact(entering, run, policy);
        let caller = Caller { claim, entering, policy, redact, run, step };
        let known = recorded(run, entering);
        let same = |call: &Call| {
            call.kind == entering.kind
                && call.name == entering.tool.name
                && call.shared_ms.is_some() == entering.key_shared_ms.is_some()
                && call.digest.is(&entering.digest)
        };
        if !known.is_none_or(same) && !mutant(Mutant::AnyKeyUse) {
            return Err(Refused::IdempotencyConflict);
        }
        match (known, self.done_before(run, entering)) {
            (None, Some(done)) => self.done_by_parent(&caller, None, done),
            (Some(call), Some(done)) if call.is_unsent() => self.done_by_parent(&caller, Some(call), done),
            (None, None) => self.rooms(&caller, None, Vec::new()),
            (Some(call), _) => self.known(&caller, call),
        }
    }

    /// What nobody on the way is shown of a call's arguments.
    fn redact(&self, entering: &Entering, run: &RunState, policy: &ActivePolicy) -> Vec<Name> {
        let question = Question {
            agent: &run.agent,
            arguments: &entering.arguments.value,
            capability: None,
            evaluations: &[],
            guards: &[],
            labels: &run.labels,
            redact: &entering.redact,
            role: &run.role,
            sandbox: entering.sandbox,
            session: run.session,
            tool: policy::About::of(&entering.tool),
            wants_approval: None,
            wall_ms: self.now.wall_ms,
        };
        policy::redactions(policy, &question)
    }

    /// What the run that a fork came from has done with the same tool and arguments, before or after the
    /// fork: the fork does not do it again.
    fn done_before(&self, run: &RunState, entering: &Entering) -> Option<&KeyHolder> {
        let write = entering.tool.effect == EffectClass::Write;
        self.view.done_before.as_ref().filter(|_| run.serves() && write && !mutant(Mutant::ForkRepeats))
    }

    /// Such a call gets what its like came to there, each of them once, as the hooks there have left it.
    /// Where nobody can say that, or where the fork makes more of them than there were, a person decides.
    fn done_by_parent(
        &self,
        caller: &Caller<'_>,
        known: Option<&Call>,
        done: &KeyHolder,
    ) -> Result<Decided, Refused> {
        let KeyHolder::Settled { run, call: by, outcome } = done else {
            return Err(Refused::ForkWouldRepeat);
        };
        let (call, drafts) = match known {
            None => {
                let leave = self.leave(caller, &caller.entering.arguments.value);
                (caller.entering.call, vec![self.opened(caller, leave)?])
            }
            Some(call) if call.step == caller.step.id => {
                let asked = newest_approval(caller.run, call.id);
                let open = asked.filter(|(_, approval)| approval.state == ApprovalState::Pending);
                let cancelled = open.map(|(approval, _)| {
                    let body = ApprovalCancelled { approval, reason: ApprovalCancelReason::CallEnded };
                    self.of_call(caller, call.id, body)
                });
                (call.id, cancelled.into_iter().collect())
            }
            Some(_) => return Err(Refused::ForkWouldRepeat),
        };
        self.serve(caller, call, (*run, *by), outcome, outcome.unruled, drafts)
    }

    fn known(&self, caller: &Caller<'_>, call: &Call) -> Result<Decided, Refused> {
        let held_here = call.permit.as_ref().is_some_and(|permit| permit.fence == Some(caller.claim.fence));
        match call.phase {
            // Another step's: only that one sends it off again.
            CallPhase::Settled if call.rerun && call.step != caller.step.id => {
                Ok(Decided::gate(Gate::Served { call: call.id }))
            }
            CallPhase::Settled if call.rerun && unspent_approval(caller.run, call).is_some() => {
                self.open(caller, call)
            }
            CallPhase::Settled if call.rerun && call.outcome == Some(Outcome::DeniedByRule) => {
                self.rooms(caller, Some(call), Vec::new())
            }
            CallPhase::Settled if call.rerun => self.again(caller, call),
            CallPhase::Settled if call.unruled => Ok(Decided::gate(Gate::RuleResult { call: call.id })),
            CallPhase::Settled => Ok(Decided::gate(Gate::Served { call: call.id })),
            CallPhase::Open => self.open(caller, call),
            // It is on its way in this very attempt, or in another step of the run.
            CallPhase::Started if held_here || call.step != caller.step.id => Err(Refused::CallBusy),
            CallPhase::Started if call.effect == EffectClass::Write => Err(Refused::CallBusy),
            CallPhase::Started if unspent_approval(caller.run, call).is_some() => self.open(caller, call),
            CallPhase::Started => self.again(caller, call),
            CallPhase::Doubted if call.step != caller.step.id => Err(Refused::CallBusy),
            CallPhase::Doubted => self.doubted(caller, call),
            CallPhase::Abandoned if call.outcome.is_some() && call.unruled => {
                Ok(Decided::gate(Gate::RuleResult { call: call.id }))
            }
            CallPhase::Abandoned if call.outcome.is_some() => {
                Ok(Decided::gate(Gate::Served { call: call.id }))
            }
            CallPhase::Abandoned => Err(Refused::NoSuchCall),
        }
    }

    /// A call that was opened and not sent off: what it waited for may have come.
    fn open(&self, caller: &Caller<'_>, call: &Call) -> Result<Decided, Refused> {
        if call.step != caller.step.id {
            return Err(Refused::CallBusy);
        }
        let Some((id, approval)) = newest_approval(caller.run, call.id) else {
            return self.rooms(caller, Some(call), Vec::new());
        };
        let binds = still_binds(&approval.requested, &caller.bound());
        let expired = approval.expires_at <= self.now.wall_ms && !mutant(Mutant::ApprovalNeverExpires);
        match approval.state {
            ApprovalState::Pending if expired => {
                let body = ApprovalTimedOut { approval: id };
                let draft = self.of_call(caller, call.id, body);
                Ok(Decided { gate: Some(Gate::Served { call: call.id }), ..Decided::of(vec![draft]) })
            }
            ApprovalState::Pending if !binds => {
                let changed = approval.requested.policy != caller.policy.digest;
                let reason =
                    if changed { SupersedeReason::PolicyChanged } else { SupersedeReason::ToolChanged };
                let body = ApprovalSuperseded { approval: id, by: None, reason };
                self.rooms(caller, Some(call), vec![self.of_call(caller, call.id, body)])
            }
            ApprovalState::Pending => {
                // Who was not told yet, or was told by somebody who did not live to say so, is told again.
                let told = |name: &&Name| {
                    approval.dispatched.get(*name) == Some(&ApprovalLifecycleStatus::Dispatched)
                };
                let dispatchers = caller.entering.dispatchers.iter().filter(|name| !told(name)).cloned();
                let wait = approval_wait(call, id, approval);
                Ok(self.tell_people(caller, (call.id, id), wait, dispatchers.collect(), Vec::new()))
            }
            ApprovalState::Approved | ApprovalState::ApprovedForSession => {
                match self.granted(caller, id, approval)? {
                    Some((grant, arguments)) if binds && self.may_go(caller, &arguments) => {
                        self.spend(caller, call, (id, approval, grant), &arguments)
                    }
                    _ => self.rooms(caller, Some(call), Vec::new()),
                }
            }
            ApprovalState::Denied
            | ApprovalState::TimedOut
            | ApprovalState::Superseded
            | ApprovalState::Cancelled => self.rooms(caller, Some(call), Vec::new()),
        }
    }

    /// The grant of an approved request, if it can be spent, and the arguments that it is for.
    fn granted(
        &self,
        caller: &Caller<'_>,
        id: ApprovalId,
        approval: &Approval,
    ) -> Result<Option<(GrantId, Value)>, Refused> {
        let Some(arguments) = &self.view.effective else { return Ok(None) };
        if !covers(id, approval, caller.run.id, arguments)? {
            return Ok(None);
        }
        let mut grants = caller.run.grants.iter();
        let own = grants.find(|(_, grant)| grant.approval.is_some_and(|(approval, _)| approval == id));
        Ok(own
            .filter(|(_, grant)| {
                let revoked = grant.revoked && !mutant(Mutant::RevokedGrant);
                let expired = grant.expires_at <= self.now.wall_ms && !mutant(Mutant::ApprovalNeverExpires);
                !revoked && !expired && grant.left() > 0
            })
            .map(|(grant, _)| (*grant, arguments.clone())))
    }

    /// What was approved is what runs: the grant is spent in the frame that lets it.
    fn spend(
        &self,
        caller: &Caller<'_>,
        call: &Call,
        (id, approval, grant): (ApprovalId, &Approval, GrantId),
        arguments: &Value,
    ) -> Result<Decided, Refused> {
        let mut drafts = Vec::new();
        match &caller.entering.decision_ruled {
            None if caller.entering.decision_hooks => {
                return Ok(Decided::gate(Gate::Decided { approval: id, call: call.id }));
            }
            None => {}
            Some(invocations) => {
                for ruled in self.rule(invocations)? {
                    let hook = ruled.body.hook.clone();
                    drafts.push(self.hook_draft(caller, call.id, ruled.body, ruled.sealed));
                    if matches!(ruled.act, Act::Deny | Act::Stop | Act::Fail | Act::Interrupt) {
                        let gate = Some(stopped(&ruled.act, call.id, hook));
                        return Ok(Decided { gate, ..Decided::of(drafts) });
                    }
                }
            }
        }
        drafts.push(self.of_call(caller, call.id, GrantSpent { digest: Some(approval.digest), grant }));
        self.dispatch(caller, Some(call), arguments, Some(grant), drafts)
    }

    /// Whether the run still holds what the call needs, and no rule denies it.
    fn may_go(&self, caller: &Caller<'_>, arguments: &Value) -> bool {
        let held = !matches!(self.leave(caller, arguments), Leave::No(_));
        held && self.still(caller, arguments) != Decision::Deny
    }

    /// Sends a call off once more, with what it was sent off with. What policy said then must still be what
    /// the active policy says; a person's leave must still hold.
    fn again(&self, caller: &Caller<'_>, call: &Call) -> Result<Decided, Refused> {
        let Some(arguments) = self.view.effective.clone() else {
            return self.rooms(caller, Some(call), Vec::new());
        };
        if call.dispatch >= limits::DISPATCHES_MAX {
            return Err(Refused::LimitExceeded("dispatches_max"));
        }
        match self.still_allowed(caller, call, &arguments)? {
            Some((grant, drafts)) => self.dispatch(caller, Some(call), &arguments, grant, drafts),
            None => self.rooms(caller, Some(call), Vec::new()),
        }
    }

    /// Whether what allowed a call before allows it still; with the decision to record if policy changed.
    fn still_allowed(
        &self,
        caller: &Caller<'_>,
        call: &Call,
        arguments: &Value,
    ) -> Result<Option<StillAllowed>, Refused> {
        if !self.may_go(caller, arguments) {
            return Ok(None);
        }
        if let Some((id, approval)) = newest_approval(caller.run, call.id) {
            let grants = caller.run.grants.iter();
            let mut spent = grants.filter(|(_, grant)| grant.spent_by.contains(&call.id));
            let grant = spent.find(|(_, grant)| grant.approval.is_some_and(|(of, _)| of == id));
            let holds = grant.is_some_and(|(_, grant)| {
                (!grant.revoked || mutant(Mutant::RevokedGrant)) && grant.expires_at > self.now.wall_ms
            });
            let covered = covers(id, approval, caller.run.id, arguments)?;
            let binds = still_binds(&approval.requested, &caller.bound());
            return Ok((holds && covered && binds).then(|| (grant.map(|(id, _)| *id), Vec::new())));
        }
        let mut spent = caller.run.session_spent.iter().filter(|(by, _)| *by == call.id);
        if let Some((_, grant)) = spent.next_back() {
            let (tool, bound) = (&caller.entering.tool.name, caller.bound());
            let found = self.view.session_grants.iter().find(|one| one.id == *grant);
            let holds =
                found.is_some_and(|one| stands(&one.grant, tool, &bound, None, arguments, self.now.wall_ms));
            return Ok(holds.then(|| (Some(*grant), Vec::new())));
        }
        match call.decided {
            // A person was asked, and who was asked is not known here: a fork's are its parent's.
            Some((Decision::Ask, _)) => Ok(None),
            Some((Decision::Allow, digest)) if digest == caller.policy.digest => {
                let allowed = self.still(caller, arguments) == Decision::Allow;
                Ok(allowed.then(|| (None, Vec::new())))
            }
            _ => {
                let ruling = policy::decide(caller.policy, &self.question(caller, arguments, &[], None));
                let allowed = ruling.decided.decision == Decision::Allow;
                let draft = self.of_call(caller, call.id, ruling.decided);
                Ok(allowed.then(|| (None, vec![draft])))
            }
        }
    }

    /// A write whose outcome nobody knows, and the ways out of that.
    fn doubted(&self, caller: &Caller<'_>, call: &Call) -> Result<Decided, Refused> {
        let wait = |until| Gate::Wait { call: call.id, wait: doubt_wait(call, until) };
        if call.late.as_ref().is_some_and(|late| call.ends_doubt(late.status)) {
            let body = EffectResolved {
                external_id: None,
                forced: false,
                reason: None,
                resolution: Resolution::Late,
                result: None,
                source: ResolvedBy::LateReport,
            };
            let draft = Draft { dispatch: Some(call.dispatch), ..self.of_call(caller, call.id, body) };
            let mut drafts: Vec<Draft> = budget::settle(caller.run, call, None)
                .map(|b| self.of_call(caller, call.id, b))
                .into_iter()
                .collect();
            drafts.push(draft);
            return Ok(Decided { gate: Some(Gate::Served { call: call.id }), ..Decided::of(drafts) });
        }
        let (tool, Some(arguments)) = (&caller.entering.tool, &self.view.effective) else {
            return Ok(Decided::gate(wait(None))); // what it was sent off with was erased
        };
        let own = call.permit.as_ref().is_some_and(|permit| permit.fence == Some(caller.claim.fence));
        // Within one claim it is tried as often as the tool says; another claim may try once more.
        let tries_left = !own || call.dispatch < tool.max_attempts;
        match ledger::way_out(call, tool, tries_left, self.now) {
            WayOut::Again if call.dispatch < limits::DISPATCHES_MAX => {
                match self.still_allowed(caller, call, arguments)? {
                    Some((grant, drafts)) => self.dispatch(caller, Some(call), arguments, grant, drafts),
                    None => Ok(Decided::gate(wait(None))),
                }
            }
            WayOut::Reconcile => {
                let permit = self.permit(call.id, call.dispatch, arguments, tool.timeout_ms);
                Ok(Decided::gate(Gate::Reconcile { permit: Box::new(permit) }))
            }
            WayOut::ReconcileAt(until) => Ok(Decided::gate(wait(Some(until)))),
            WayOut::Again | WayOut::Person => Ok(Decided::gate(wait(None))),
        }
    }
}

fn check_tool(entering: &Entering) -> Result<(), Refused> {
    let tool = &entering.tool;
    let timed = (limits::TOOL_TIMEOUT_MS_MIN..=limits::TOOL_TIMEOUT_MS_MAX).contains(&tool.timeout_ms);
    if timed && tool.max_attempts > 0 { Ok(()) } else { Err(Refused::BadTool) }
}

fn check_key(entering: &Entering) -> Result<(), Refused> {
    match entering.key_shared_ms {
        None => Ok(()),
        Some(_) if entering.key.is_none() => Err(Refused::KeyNeeded),
        Some(ms) if ms > limits::HORIZON_MS => Err(Refused::LimitExceeded("horizon_ms")),
        Some(_) => Ok(()),
    }
}

pub(super) fn simple_wait(on: WaitOn, call: crate::ids::CallId) -> Wait {
    Wait { call: Some(call), on, subject: None, until: None }
}

fn approval_wait(call: &Call, id: ApprovalId, approval: &Approval) -> Wait {
    let subject = Key::new(id.to_string());
    Wait { call: Some(call.id), on: WaitOn::Approval, subject, until: Some(approval.expires_at) }
}

fn doubt_wait(call: &Call, until: Option<u64>) -> Wait {
    Wait { call: Some(call.id), on: WaitOn::Doubt, subject: None, until }
}
