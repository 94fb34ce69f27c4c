//! Through the rooms: hooks, capabilities, policy, a person. One frame holds all that they said.

use serde_json::Value;

use super::enter::{Caller, simple_wait};
use super::{Edited, Gate, Rooms, newest_edit};
use crate::approval::{Shown, stands};
use crate::capability::{Leave, Wanted, leave};
use crate::content::Sealed;
use crate::contracts::approval::{ApprovalDecisionKind, ApprovalLifecycleStatus};
use crate::contracts::capability::Right;
use crate::contracts::hook::HookPoint;
use crate::contracts::policy::{Approvers, Decision};
use crate::contracts::tool::SandboxNeed;
use crate::hooks::{self, Act, Ruled};
use crate::ids::{ApprovalId, CallId, CapabilityId, GrantId};
use crate::limits;
use crate::mutants::{Mutant, mutant};
use crate::policy::{self, Question, Ruling};
use crate::records::{
    Actor, ActorType, ApprovalDispatched, ApprovalRequested, Body, CallOpened, Draft, EffectClass,
    GrantSpent, HookRuled, Key, KeyScope, Name, RefusalNoted, Token, Wait, WaitOn,
};
use crate::run::{Case, Decided, Refused};
use crate::state::{ApprovalState, Call};

/// What hooks made of a call on its way.
#[derive(Default)]
struct Heard {
    /// A hook wants a person to look.
    asks: Option<Name>,
    /// Changes of who must approve.
    tightened: Vec<Value>,
    /// One of them said more than nothing.
    spoke: bool,
    /// One of them has the last word.
    stops: Option<Gate>,
}

impl Case<'_> {
    pub(super) fn rooms(
        &self,
        caller: &Caller<'_>,
        call: Option<&Call>,
        mut drafts: Vec<Draft>,
    ) -> Result<Decided, Refused> {
        let edited = call.and_then(|call| self.edited(caller, call));
        let rooms = match &caller.entering.rooms {
            Some(rooms) if rooms.based_on == edited.as_ref().map(|edited| edited.approval) => rooms,
            _ => return Ok(Decided::gate(Gate::Rooms { edited, redact: caller.redact.clone() })),
        };
        let id = call.map_or(caller.entering.call, |call| call.id);
        let arguments = &rooms.effective.value;
        let leave = self.leave(caller, arguments);
        if call.is_none() {
            drafts.push(self.opened(caller, leave)?);
        }
        if rooms.edit_unfit {
            drafts.push(self.unfit_edit(caller, id));
        }
        let before = drafts.len();
        let heard = self.hear(caller, id, rooms, &mut drafts)?;
        if let Some(gate) = heard.stops {
            return Ok(Decided { gate: Some(gate), ..Decided::of(drafts) });
        }
        let ruling = self.ruling(caller, rooms, leave, &heard);
        let decision = ruling.decided.decision;
        let quiet = !heard.spoke && before <= 1;
        let tool = &caller.entering.tool;
        let here = tool.effect == EffectClass::Pure && tool.sandbox == SandboxNeed::None;
        if here && decision == Decision::Allow && quiet {
            return Ok(Decided::gate(Gate::Run { arguments: arguments.clone() }));
        }
        let approvers = ruling.approvers.clone();
        drafts.push(self.of_call(caller, id, ruling.decided));
        match decision {
            Decision::Deny => Ok(Decided { gate: Some(Gate::Served { call: id }), ..Decided::of(drafts) }),
            Decision::Allow => self.dispatch(caller, call, arguments, None, drafts),
            Decision::Ask => match self.standing(caller, rooms, &approvers, heard.asks.is_some()) {
                Some(grant) => {
                    drafts.push(self.of_call(caller, id, GrantSpent { digest: None, grant }));
                    self.dispatch(caller, call, arguments, Some(grant), drafts)
                }
                None if rooms.approval_hooks => {
                    Ok(Decided::gate(Gate::BeforeApproval { redact: caller.redact.clone() }))
                }
                None => self.ask_person(caller, call, rooms, &approvers, drafts),
            },
        }
    }

    /// The arguments that an approver put in the place of the agent's, if one did.
    fn edited(&self, caller: &Caller<'_>, call: &Call) -> Option<Edited> {
        let (approval, _) = newest_edit(caller.run, call.id)?;
        let arguments = self.view.edited.clone()?;
        (!mutant(Mutant::EditForgotten)).then_some(Edited { approval, arguments })
    }

    fn unfit_edit(&self, caller: &Caller<'_>, call: CallId) -> Draft {
        let token = |text: &str| Token::new(text).unwrap_or_else(Token::unknown);
        let (code, operation) = (token("bad_arguments"), token("approval.edit"));
        self.of_call(caller, call, RefusalNoted { code, operation, step: Some(caller.step.id) })
    }

    /// Whether the run holds what the call needs.
    pub(super) fn leave(&self, caller: &Caller<'_>, arguments: &Value) -> Leave {
        let wanted = Wanted {
            arguments,
            named: caller.entering.capability,
            right: Right::Call,
            target: caller.entering.tool.name.as_str(),
            wall_ms: self.now.wall_ms,
        };
        leave(&caller.run.capabilities, &self.view.revoked_elsewhere, &wanted)
    }

    /// What the hooks came to, in their order; whoever stops the call has the last word.
    fn hear(
        &self,
        caller: &Caller<'_>,
        id: CallId,
        rooms: &Rooms,
        drafts: &mut Vec<Draft>,
    ) -> Result<Heard, Refused> {
        let mut heard = Heard::default();
        for ruled in self.rule(&rooms.invocations)? {
            let (hook, point) = (ruled.body.hook.clone(), ruled.body.point);
            heard.spoke |= ruled.act != Act::Nothing || ruled.body.response.is_none();
            drafts.push(self.hook_draft(caller, id, ruled.body, ruled.sealed));
            match ruled.act {
                Act::Rewrite(change) if point == HookPoint::BeforeApprovalRequest => {
                    heard.tightened.push(change);
                }
                // A rewrite is folded into what was validated; the rest is for other points.
                Act::Nothing | Act::Again | Act::Rewrite(_) | Act::Inject(_) => {}
                Act::AskPerson => heard.asks = Some(hook),
                Act::Deny | Act::Stop | Act::Fail | Act::Interrupt => {
                    heard.stops = Some(stopped(&ruled.act, id, hook));
                    return Ok(heard);
                }
            }
        }
        Ok(heard)
    }

    pub(super) fn rule(&self, invocations: &[hooks::Invocation]) -> Result<Vec<Ruled>, Refused> {
        if invocations.len() > limits::HOOKS_MAX {
            return Err(Refused::LimitExceeded("hooks_max"));
        }
        let numbered = (1..).zip(invocations);
        Ok(numbered
            .map(|(number, invocation)| hooks::rule(invocation, number, false, &self.source))
            .collect())
    }

    fn ruling(&self, caller: &Caller<'_>, rooms: &Rooms, leave: Leave, heard: &Heard) -> Ruling {
        if let Leave::No(code) = leave {
            return Ruling::refusal(caller.policy.digest, code);
        }
        let arguments = &rooms.effective.value;
        let question = self.question(caller, arguments, &rooms.evaluations, heard.asks.as_ref());
        let mut ruling = policy::decide(caller.policy, &question);
        for change in &heard.tightened {
            ruling.tighten(change);
        }
        ruling
    }

    /// What the rules say about a call that somebody has allowed before: what it is and where it would run
    /// may have changed since.
    pub(super) fn still(&self, caller: &Caller<'_>, arguments: &Value) -> Decision {
        let decision = policy::decide(caller.policy, &self.question(caller, arguments, &[], None));
        if mutant(Mutant::AllowedForEver) { Decision::Allow } else { decision.decided.decision }
    }

    pub(super) fn question<'q>(
        &self,
        caller: &'q Caller<'_>,
        arguments: &'q Value,
        evaluations: &'q [policy::Evaluation],
        wants_approval: Option<&'q Name>,
    ) -> Question<'q> {
        let capability = match self.leave(caller, arguments) {
            Leave::By(id) => caller.run.capabilities.held.get(&id).map(|held| &held.target),
            Leave::Unrestricted | Leave::No(_) => None,
        };
        Question {
            agent: &caller.run.agent,
            arguments,
            capability,
            evaluations,
            guards: &caller.entering.guards,
            labels: &caller.run.labels,
            redact: &caller.redact,
            role: &caller.run.role,
            sandbox: caller.entering.sandbox,
            session: caller.run.session,
            tool: policy::About::of(&caller.entering.tool),
            wants_approval,
            wall_ms: self.now.wall_ms,
        }
    }

    /// A grant of the session that stands in for the person whom a rule wants to ask. It does not for a hook
    /// or an evaluator that asks: these have looked at this very call.
    fn standing(
        &self,
        caller: &Caller<'_>,
        rooms: &Rooms,
        approvers: &Approvers,
        hook_asks: bool,
    ) -> Option<GrantId> {
        let looked = rooms.evaluations.iter().any(|one| one.decision != Some(Decision::Allow));
        if hook_asks || looked || caller.run.fork.is_some() {
            return None;
        }
        let (tool, wall_ms) = (&caller.entering.tool.name, self.now.wall_ms);
        let mut grants = self.view.session_grants.iter();
        let found = grants.find(|one| {
            let (grant, arguments) = (&one.grant, &rooms.effective.value);
            let left = one.spent < grant.uses || mutant(Mutant::GrantAnyUses);
            left && stands(grant, tool, &caller.bound(), Some(approvers), arguments, wall_ms)
        });
        found.map(|one| one.id)
    }

    pub(super) fn opened(&self, caller: &Caller<'_>, leave: Leave) -> Result<Draft, Refused> {
        let entering = caller.entering;
        if caller.run.calls.contains_key(&entering.call) {
            return Err(Refused::CallBusy); // an id is for one call
        }
        let sealed = caller.sealed(entering.arguments.value.clone(), &self.source)?;
        let capability: Option<CapabilityId> = match leave {
            Leave::By(id) => Some(id),
            Leave::Unrestricted | Leave::No(_) => entering.capability,
        };
        let body = CallOpened {
            arguments: sealed.content.clone(),
            call_digest: entering.digest,
            capability,
            effect: entering.tool.effect,
            key: entering.key.clone(),
            key_scope: entering.key.as_ref().map(|_| match entering.key_shared_ms {
                Some(_) => KeyScope::Store,
                None => KeyScope::Run,
            }),
            key_ttl_ms: entering.key_shared_ms,
            kind: entering.kind,
            name: entering.tool.name.clone(),
            risk: entering.tool.risk,
            schema: Some(caller.entering.tool.schema),
            version: Some(entering.tool.version.clone()),
        };
        let draft = self.of_call(caller, entering.call, body);
        Ok(Draft { lane: Some(entering.lane.clone()), sealed: vec![sealed], ..draft })
    }

    pub(super) fn hook_draft(
        &self,
        caller: &Caller<'_>,
        call: CallId,
        body: HookRuled,
        sealed: Vec<Sealed>,
    ) -> Draft {
        let by = Actor { id: body.hook.clone(), r#type: ActorType::Hook };
        Draft { by, sealed, ..self.of_call(caller, call, body) }
    }

    pub(super) fn of_call(&self, caller: &Caller<'_>, call: CallId, body: impl Into<Body>) -> Draft {
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
        let sealed = caller.sealed(rooms.effective.value.clone(), &self.source)?;
        let mut allowed = vec![ApprovalDecisionKind::Approved, ApprovalDecisionKind::Denied];
        if caller.run.session.is_some() {
            allowed.insert(1, ApprovalDecisionKind::ApprovedForSession);
        }
        let body = ApprovalRequested {
            allowed,
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
        let subject = Key::new(approval.to_string());
        let wait = Wait { call: Some(id), on: WaitOn::Approval, subject, until: Some(expires_at) };
        Ok(self.tell_people(caller, (id, approval), wait, entering.dispatchers.clone(), drafts))
    }

    /// Has dispatchers tell people of a request, once it is written that they will.
    pub(super) fn tell_people(
        &self,
        caller: &Caller<'_>,
        (call, approval): (CallId, ApprovalId),
        wait: Wait,
        dispatchers: Vec<Name>,
        mut drafts: Vec<Draft>,
    ) -> Decided {
        if dispatchers.is_empty() {
            return Decided { gate: Some(Gate::Wait { call, wait }), ..Decided::of(drafts) };
        }
        for dispatcher in &dispatchers {
            let (dispatcher, reason_code) = (dispatcher.clone(), None);
            let status = ApprovalLifecycleStatus::DispatchIntentRecorded;
            let body = ApprovalDispatched { approval, dispatcher, reason_code, status };
            drafts.push(self.of_call(caller, call, body));
        }
        Decided { gate: Some(Gate::Dispatch { approval, call, dispatchers, wait }), ..Decided::of(drafts) }
    }
}

/// What a hook that stops a call leads to.
pub(super) fn stopped(act: &Act, call: CallId, hook: Name) -> Gate {
    match act {
        Act::Interrupt => Gate::Wait { call, wait: simple_wait(WaitOn::Interrupted, call) },
        Act::Fail | Act::Stop => Gate::Stop { call, hook },
        _ => Gate::Served { call },
    }
}
