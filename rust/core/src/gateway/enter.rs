//! A call at the door: what it is, what the rooms say, and whether it gets its permit.

use serde_json::Value;

use super::{Entering, Gate, Rooms, newest_approval, recorded, unspent_approval};
use crate::approval::{Bound, Shown, covers, still_binds};
use crate::budget;
use crate::call::{CallEvent, CallPhase};
use crate::content::{Content, Sealed};
use crate::contracts::approval::ApprovalDecisionKind;
use crate::contracts::hook::HookPoint;
use crate::contracts::policy::{Approvers, Decision};
use crate::hooks::{self, Act, Ruled};
use crate::ids::{ApprovalId, GrantId};
use crate::ledger::{self, Permit, WayOut};
use crate::limits;
use crate::mutants::{Mutant, mutant};
use crate::policy::{self, ActivePolicy, Question};
use crate::records::{
    Actor, ActorType, ApprovalRequested, ApprovalSuperseded, ApprovalTimedOut, Body, CallOpened, Draft,
    EffectClass, EffectResolved, EffectStarted, GrantSpent, Key, KeyScope, Name, Resolution, ResolvedBy,
    StepKind, SupersedeReason, Wait, WaitOn,
};
use crate::run::{Case, Claim, Decided, Refused};
use crate::state::{Approval, ApprovalState, Call, Outcome, RunState, Step};

/// The grant that is spent already, and a decision to record if policy changed.
type StillAllowed = (Option<GrantId>, Vec<Draft>);

/// A call at the door, with what every question about it needs.
struct Caller<'a> {
    claim: &'a Claim,
    entering: &'a Entering,
    policy: &'a ActivePolicy,
    run: &'a RunState,
    step: &'a Step,
}

impl Caller<'_> {
    fn bound(&self) -> Bound<'_> {
        Bound {
            policy: self.policy.digest,
            sandbox: self.entering.sandbox,
            schema: Some(self.entering.tool.schema),
            version: Some(&self.entering.tool.version),
        }
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
        check_tool(entering)?;
        if step.kind == StepKind::Attached && entering.key.is_none() && !mutant(Mutant::NoKeyNeeded) {
            return Err(Refused::KeyNeeded);
        }
        let policy = self.policy();
        let caller = Caller { claim, entering, policy, run, step };
        match recorded(run, entering) {
            None => self.rooms(&caller, None, Vec::new()),
            Some(call) => {
                let same = call.kind == entering.kind
                    && call.name == entering.tool.name
                    && call.digest.is(&entering.digest);
                if !same && !mutant(Mutant::AnyKeyUse) {
                    return Err(Refused::IdempotencyConflict);
                }
                self.known(&caller, call)
            }
        }
    }

    fn known(&self, caller: &Caller<'_>, call: &Call) -> Result<Decided, Refused> {
        let held_here = call.permit.as_ref().is_some_and(|permit| permit.fence == Some(caller.claim.fence));
        match call.phase {
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
                Ok(Decided::gate(Gate::Wait { call: call.id, wait: approval_wait(call, id, approval) }))
            }
            ApprovalState::Approved | ApprovalState::ApprovedForSession => {
                match self.granted(caller, id, approval)? {
                    Some((grant, arguments)) if binds => {
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
        (_, approval, grant): (ApprovalId, &Approval, GrantId),
        arguments: &Value,
    ) -> Result<Decided, Refused> {
        let spent = GrantSpent { digest: approval.digest, grant };
        let drafts = vec![self.of_call(caller, call.id, spent)];
        self.dispatch(caller, Some(call), arguments, Some(grant), drafts)
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
        if let Some((id, approval)) = newest_approval(caller.run, call.id) {
            let grants = caller.run.grants.iter();
            let grant = grants.clone().find(|(_, grant)| grant.spent_by.contains(&call.id));
            let holds = grant.is_some_and(|(_, grant)| {
                (!grant.revoked || mutant(Mutant::RevokedGrant)) && grant.expires_at > self.now.wall_ms
            });
            let covered = covers(id, approval, caller.run.id, arguments)?;
            let binds = still_binds(&approval.requested, &caller.bound());
            return Ok((holds && covered && binds).then(|| (grant.map(|(id, _)| *id), Vec::new())));
        }
        match call.decided {
            Some((Decision::Allow, digest)) if digest == caller.policy.digest => Ok(Some((None, Vec::new()))),
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

    /// Through the rooms: hooks, policy, a person, the budget, the ledger. One frame holds all they said.
    fn rooms(
        &self,
        caller: &Caller<'_>,
        call: Option<&Call>,
        mut drafts: Vec<Draft>,
    ) -> Result<Decided, Refused> {
        let Some(rooms) = &caller.entering.rooms else { return Ok(Decided::gate(Gate::Rooms {})) };
        let id = call.map_or(caller.entering.call, |call| call.id);
        if call.is_none() {
            drafts.push(self.opened(caller)?);
        }
        let mut asks = None;
        let mut tightened = Vec::new();
        let mut spoke = false;
        for ruled in self.rule(rooms)? {
            let hook = ruled.body.hook.clone();
            spoke |= ruled.act != Act::Nothing || ruled.body.response.is_none();
            let point = ruled.body.point;
            drafts.push(self.hook_draft(caller, id, ruled.body, ruled.sealed));
            let gate = match ruled.act {
                Act::Nothing | Act::Again => continue,
                Act::Rewrite(change) if point == HookPoint::BeforeApprovalRequest => {
                    tightened.push(change);
                    continue;
                }
                Act::Rewrite(_) => continue, // folded into what was validated
                Act::AskPerson => {
                    asks = Some(hook);
                    continue;
                }
                Act::Deny => Gate::Served { call: id },
                Act::Fail => Gate::Stop { call: id, hook },
                Act::Interrupt => Gate::Wait { call: id, wait: simple_wait(WaitOn::Interrupted, id) },
            };
            return Ok(Decided { gate: Some(gate), ..Decided::of(drafts) });
        }
        let arguments = &rooms.effective.value;
        let question = self.question(caller, arguments, &rooms.evaluations, asks.as_ref());
        let mut ruling = policy::decide(caller.policy, &question);
        for change in &tightened {
            ruling.tighten(change);
        }
        let decision = ruling.decided.decision;
        let quiet = !spoke && drafts.len() <= 1 + rooms.invocations.len();
        if caller.entering.tool.effect == EffectClass::Pure && decision == Decision::Allow && quiet {
            return Ok(Decided::gate(Gate::Run { arguments: arguments.clone() }));
        }
        drafts.push(self.of_call(caller, id, ruling.decided));
        match decision {
            Decision::Deny => Ok(Decided { gate: Some(Gate::Served { call: id }), ..Decided::of(drafts) }),
            Decision::Ask if rooms.approval_hooks => Ok(Decided::gate(Gate::BeforeApproval {})),
            Decision::Ask => self.ask_person(caller, call, rooms, &ruling.approvers, drafts),
            Decision::Allow => self.dispatch(caller, call, arguments, None, drafts),
        }
    }

    /// What the hooks came to, in their order.
    fn rule(&self, rooms: &Rooms) -> Result<Vec<Ruled>, Refused> {
        if rooms.invocations.len() > limits::HOOKS_MAX {
            return Err(Refused::LimitExceeded("hooks_max"));
        }
        let numbered = (1..).zip(&rooms.invocations);
        Ok(numbered
            .map(|(number, invocation)| hooks::rule(invocation, number, false, &self.source))
            .collect())
    }

    fn question<'q>(
        &self,
        caller: &'q Caller<'_>,
        arguments: &'q Value,
        evaluations: &'q [policy::Evaluation],
        wants_approval: Option<&'q Name>,
    ) -> Question<'q> {
        Question {
            agent: &caller.run.agent,
            arguments,
            evaluations,
            labels: &caller.run.labels,
            role: &caller.run.role,
            sandbox: caller.entering.sandbox,
            session: caller.run.session,
            tool: &caller.entering.tool,
            wants_approval,
            wall_ms: self.now.wall_ms,
        }
    }

    fn opened(&self, caller: &Caller<'_>) -> Result<Draft, Refused> {
        let entering = caller.entering;
        if caller.run.calls.contains_key(&entering.call) {
            return Err(Refused::CallBusy); // an id is for one call
        }
        let sealed = entering.arguments.seal(&self.source)?;
        let body = CallOpened {
            arguments: sealed.content.clone(),
            call_digest: entering.digest,
            capability: None,
            effect: entering.tool.effect,
            key: entering.key.clone(),
            key_scope: entering.key.as_ref().map(|_| KeyScope::Run),
            key_ttl_ms: None,
            kind: entering.kind,
            name: entering.tool.name.clone(),
            risk: entering.tool.risk,
            schema: Some(caller.entering.tool.schema),
            version: Some(entering.tool.version.clone()),
        };
        let draft = self.of_call(caller, entering.call, body);
        Ok(Draft { lane: Some(entering.lane.clone()), sealed: vec![sealed], ..draft })
    }

    fn hook_draft(
        &self,
        caller: &Caller<'_>,
        call: crate::ids::CallId,
        body: crate::records::HookRuled,
        sealed: Vec<Sealed>,
    ) -> Draft {
        let by = Actor { id: body.hook.clone(), r#type: ActorType::Hook };
        Draft { by, sealed, ..self.of_call(caller, call, body) }
    }

    fn of_call(&self, caller: &Caller<'_>, call: crate::ids::CallId, body: impl Into<Body>) -> Draft {
        self.call_draft(body, caller.step, call, Some(caller.claim.fence))
    }

    /// A person is asked; the call waits.
    fn ask_person(
        &self,
        caller: &Caller<'_>,
        call: Option<&Call>,
        rooms: &Rooms,
        approvers: &Approvers,
        mut drafts: Vec<Draft>,
    ) -> Result<Decided, Refused> {
        let entering = caller.entering;
        let pending = caller.run.approvals.values().filter(|one| one.state == ApprovalState::Pending).count();
        if pending >= limits::APPROVALS_MAX {
            return Err(Refused::LimitExceeded("approvals_max"));
        }
        let id = call.map_or(entering.call, |call| call.id);
        let approval = self.source.approval_id();
        let expires_at = self.now.wall_ms.saturating_add(approvers.expires_ms);
        let tool = &entering.tool;
        let shown = Shown {
            approval,
            arguments: &rooms.effective.value,
            call: Some(id),
            expires_at,
            policy: caller.policy.digest,
            run: caller.run.id,
            sandbox: entering.sandbox,
            schema: Some(caller.entering.tool.schema),
            tool: &tool.name,
            version: Some(&tool.version),
        };
        let digest = shown.digest()?;
        let sealed = rooms.effective.seal(&self.source)?;
        let body = ApprovalRequested {
            allowed: vec![ApprovalDecisionKind::Approved, ApprovalDecisionKind::Denied],
            approval,
            arguments: sealed.content.clone(),
            digest,
            effect: tool.effect,
            expires_at,
            policy: caller.policy.digest,
            quorum: approvers.quorum,
            risk: tool.risk,
            roles: approvers.roles.clone(),
            sandbox: entering.sandbox,
            schema: Some(caller.entering.tool.schema),
            tool: tool.name.clone(),
            version: Some(tool.version.clone()),
        };
        drafts.push(Draft { sealed: vec![sealed], ..self.of_call(caller, id, body) });
        let wait = Wait {
            call: Some(id),
            on: WaitOn::Approval,
            subject: Key::new(approval.to_string()),
            until: Some(expires_at),
        };
        Ok(Decided { gate: Some(Gate::Wait { call: id, wait }), ..Decided::of(drafts) })
    }

    /// The budget and the ledger: the last two rooms.
    fn dispatch(
        &self,
        caller: &Caller<'_>,
        call: Option<&Call>,
        arguments: &Value,
        grant: Option<GrantId>,
        mut drafts: Vec<Draft>,
    ) -> Result<Decided, Refused> {
        let entering = caller.entering;
        let id = call.map_or(entering.call, |call| call.id);
        if call.is_some_and(|call| !call.allows(CallEvent::Started)) {
            return Err(Refused::CallBusy);
        }
        // What an older dispatch has set aside is charged: nobody knows what it used.
        let older = call.and_then(|call| budget::assume(caller.run, call));
        drafts.extend(older.map(|body| self.of_call(caller, id, body)));
        let asked = budget::asked(entering.kind, &entering.reserve);
        match budget::reserve(caller.run, &asked) {
            budget::Room::Fits(reserved) => {
                drafts.extend(reserved.into_iter().map(|body| self.of_call(caller, id, body)));
            }
            // It was sent off before, so it cannot be refused any more: it stays in doubt.
            budget::Room::Full(_) if call.is_some_and(Call::is_open_write) => {
                return Ok(Decided::gate(Gate::Wait { call: id, wait: simple_wait(WaitOn::Budget, id) }));
            }
            budget::Room::Full(refused) => {
                // Nothing that would have let it act is written: a grant is not spent on a refusal.
                drafts.retain(|draft| !matches!(draft.body, Body::GrantSpent(_)));
                drafts.push(self.of_call(caller, id, refused));
                let gate = if caller.run.asks_for_budget() {
                    Gate::Wait { call: id, wait: simple_wait(WaitOn::Budget, id) }
                } else {
                    Gate::Served { call: id }
                };
                return Ok(Decided { gate: Some(gate), ..Decided::of(drafts) });
            }
        }
        let number = call.map_or(1, |call| call.dispatch + 1);
        let permit = self.permit(id, number, arguments, entering.tool.timeout_ms);
        let sealed = crate::content::seal(arguments.clone(), self.source.salt(), entering.arguments.privacy)?;
        let body = started(caller, &permit, sealed.content.clone(), grant);
        let draft = self.of_call(caller, id, body);
        drafts.push(Draft { dispatch: Some(number), sealed: vec![sealed], ..draft });
        Ok(Decided { gate: Some(Gate::Permit { permit: Box::new(permit) }), ..Decided::of(drafts) })
    }

    fn permit(&self, call: crate::ids::CallId, dispatch: u32, arguments: &Value, timeout_ms: u64) -> Permit {
        Permit {
            arguments: arguments.clone(),
            boot_id: Key::new(self.now.boot_id.clone()).unwrap_or_else(Key::none),
            call,
            dispatch,
            key: ledger::key_of(call),
            start_by: ledger::start_by(self.now),
            timeout_ms,
        }
    }
}

fn check_tool(entering: &Entering) -> Result<(), Refused> {
    let tool = &entering.tool;
    let timed = (limits::TOOL_TIMEOUT_MS_MIN..=limits::TOOL_TIMEOUT_MS_MAX).contains(&tool.timeout_ms);
    if timed && tool.max_attempts > 0 { Ok(()) } else { Err(Refused::BadTool) }
}

fn simple_wait(on: WaitOn, call: crate::ids::CallId) -> Wait {
    Wait { call: Some(call), on, subject: None, until: None }
}

fn approval_wait(call: &Call, id: ApprovalId, approval: &Approval) -> Wait {
    let subject = Key::new(id.to_string());
    Wait { call: Some(call.id), on: WaitOn::Approval, subject, until: Some(approval.expires_at) }
}

fn doubt_wait(call: &Call, until: Option<u64>) -> Wait {
    Wait { call: Some(call.id), on: WaitOn::Doubt, subject: None, until }
}

fn started(
    caller: &Caller<'_>,
    permit: &Permit,
    arguments: Content,
    grant: Option<GrantId>,
) -> EffectStarted {
    let entering = caller.entering;
    EffectStarted {
        arguments,
        boot_id: permit.boot_id.clone(),
        grant,
        key: permit.key.clone(),
        key_ttl_ms: entering.tool.key_ttl_ms,
        policy: Some(caller.policy.digest),
        sandbox: entering.sandbox,
        schema: Some(caller.entering.tool.schema),
        start_by: permit.start_by,
        timeout_ms: permit.timeout_ms,
        version: Some(entering.tool.version.clone()),
    }
}
