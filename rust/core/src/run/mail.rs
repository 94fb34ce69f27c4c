//! What reaches a run from outside: wake-ups, signals, envelopes; and what it sends.

use super::request::{Claim, Decided, Envelope, EnvelopeBody, Payload, seal_into};
use super::{Case, Refused};
use crate::budget;
use crate::capability::{Leave, Wanted, leave};
use crate::content::Sealed;
use crate::contracts::capability::Right;
use crate::ids::{ApprovalId, CallId, EnvelopeId, RunId, StepId, StreamId};
use crate::limits;
use crate::mutants::{Mutant, mutant};
use crate::records::{
    Amounts, BudgetEscrowed, BudgetReturned, CallKind, CapabilityGranted, ChildEnded, ChildSpawned, Draft,
    EnvelopeKind, EnvelopeReceived, Key, MessageReceived, MessageSent, Name, OnParentEnd, SignalReceived,
    StepStatus, StepWoken, TimerFired, Wait, WaitOn,
};
use crate::state::{ApprovalState, CallPhase, RunState, Step};
use crate::transitions::RunPhase;

impl Case<'_> {
    /// Whether what a wait is for is there. What only a person can answer is never there by itself.
    pub(super) fn has_come(&self, run: &RunState, step: &Step, wait: &Wait) -> bool {
        let subject = wait.subject.as_ref().map(Key::as_str);
        if wait.until.is_some_and(|until| until <= self.now.wall_ms) {
            return true; // it fires, or it gives up
        }
        match wait.on {
            WaitOn::Paused => run.phase != RunPhase::Paused,
            WaitOn::Signal => run.signals.iter().any(|mail| mail.name.as_ref().map(Name::as_str) == subject),
            WaitOn::Message => !run.messages.is_empty(),
            WaitOn::Child => {
                let child = subject.and_then(|id| id.parse::<RunId>().ok());
                child.and_then(|id| run.children.get(&id)).is_none_or(|child| child.ended.is_some())
            }
            WaitOn::Approval => {
                let approval = subject.and_then(|id| id.parse::<ApprovalId>().ok());
                let found = approval.and_then(|id| run.approvals.get(&id));
                found.is_none_or(|found| {
                    found.state != ApprovalState::Pending || found.expires_at <= self.now.wall_ms
                })
            }
            WaitOn::Doubt => {
                let call = wait.call.and_then(|id| run.calls.get(&id)).filter(|call| call.step == step.id);
                call.is_none_or(|call| call.phase != CallPhase::Doubted)
            }
            WaitOn::Key => wait.subject.as_ref().is_some_and(|key| self.view.settled_keys.contains(key)),
            WaitOn::Budget
            | WaitOn::Divergence
            | WaitOn::Package
            | WaitOn::Restored
            | WaitOn::Interrupted
            | WaitOn::Timer => false,
        }
    }

    /// A scheduler found that what a step waits for has come. What needs a person has its own command.
    pub(super) fn wake(&self, id: StepId, on: WaitOn, subject: Option<&Key>) -> Result<Decided, Refused> {
        let run = self.open_run()?;
        let step = self.waiting_on(id, on)?;
        let asked = |wait: &&Wait| wait.on == on && wait.subject.as_ref() == subject;
        let mut come =
            step.waits.iter().filter(asked).filter(|wait| self.has_come(run, step, wait)).peekable();
        if come.peek().is_none() && !mutant(Mutant::WakeUnanswered) {
            let waits = step.waits.iter().any(|wait| asked(&wait));
            return Err(if waits { Refused::NotAnswered(on) } else { Refused::NotWaiting(on) });
        }
        let mut drafts: Vec<Draft> = come.filter_map(|wait| self.timer_fired(run, step, wait)).collect();
        drafts.push(self.step_draft(StepWoken { on, subject: subject.cloned() }, step, None));
        Ok(Decided::of(drafts))
    }

    /// The end of a timer's call.
    fn timer_fired(&self, run: &RunState, step: &Step, wait: &Wait) -> Option<Draft> {
        let call = wait.call.filter(|_| wait.on == WaitOn::Timer).and_then(|id| run.calls.get(&id))?;
        let fires_at = call.fires_at.filter(|_| call.is_undecided())?;
        Some(self.call_draft(TimerFired { fires_at }, step, call.id, None))
    }

    pub(super) fn signal(
        &self,
        name: &Name,
        payload: &Payload,
        envelope: Option<EnvelopeId>,
    ) -> Result<Decided, Refused> {
        let run = self.open_run()?;
        room_for_mail(run)?;
        let sealed = payload.seal(&self.source)?;
        let body = SignalReceived { envelope, name: name.clone(), payload: sealed.content.clone() };
        let mut drafts = vec![Draft { sealed: vec![sealed], ..self.draft(body) }];
        drafts.extend(self.woken(run, WaitOn::Signal, Some(name.as_str())));
        Ok(Decided::of(drafts))
    }

    /// Every step that waits for this child.
    fn woken_by_child(&self, run: &RunState, child: RunId) -> Vec<Draft> {
        let subject = Key::new(child.to_string());
        let on = WaitOn::Child;
        let waits = |step: &&Step| {
            step.status == StepStatus::Waiting
                && step.waits.iter().any(|wait| wait.on == on && wait.subject == subject)
        };
        let woken = run.steps.values().filter(waits);
        woken.map(|step| self.step_draft(StepWoken { on, subject: subject.clone() }, step, None)).collect()
    }

    /// Wakes the first step that waits for this.
    fn woken(&self, run: &RunState, on: WaitOn, subject: Option<&str>) -> Option<Draft> {
        let matches = |wait: &&Wait| wait.on == on && wait.subject.as_ref().map(Key::as_str) == subject;
        let mut waiting = run.steps.values().filter(|step| step.status == StepStatus::Waiting);
        let (step, wait) =
            waiting.find_map(|step| step.waits.iter().find(matches).map(|wait| (step, wait)))?;
        Some(self.step_draft(StepWoken { on, subject: wait.subject.clone() }, step, None))
    }

    /// Journaled once; an envelope that comes again changes nothing.
    pub(super) fn deliver(&self, envelope: &Envelope) -> Result<Decided, Refused> {
        let run = self.run()?;
        if envelope.to != run.id {
            return Err(Refused::Misaddressed);
        }
        if run.envelopes.contains(&envelope.id) && !mutant(Mutant::DeliverTwice) {
            return Ok(Decided::nothing());
        }
        self.open_run()?;
        let (kind, decided) = match &envelope.body {
            EnvelopeBody::Message { content, correlation, reply_to } => (
                EnvelopeKind::Message,
                self.message(run, envelope, content, correlation.as_ref(), *reply_to)?,
            ),
            EnvelopeBody::Signal { name, payload } => {
                (EnvelopeKind::Signal, self.signal(name, payload, Some(envelope.id))?)
            }
            EnvelopeBody::Cancel {} => (EnvelopeKind::Cancel, self.cancel(None)?),
            EnvelopeBody::ChildEnded { failure, reason, result, returned, status } => {
                let StreamId::Run(child) = envelope.from else { return Err(Refused::NoSuchChild) };
                let mut sealed = Vec::new();
                let result = seal_into(result.as_ref(), &self.source, &mut sealed)?;
                let returned = returned.clone();
                let failure = failure.clone();
                let body = ChildEnded { child, failure, reason: *reason, result, returned, status: *status };
                (EnvelopeKind::ChildEnded, self.child_ended(run, body, sealed)?)
            }
            EnvelopeBody::Capability { capability, constraints, expires_at, rights, target } => {
                let given = CapabilityGranted {
                    capability: *capability,
                    constraints: constraints.clone(),
                    expires_at: *expires_at,
                    from_run: None,
                    rights: rights.clone(),
                    target: target.clone(),
                };
                (EnvelopeKind::Capability, self.capability_came(run, envelope.from, given)?)
            }
            EnvelopeBody::CapabilityRevoked { capability } => {
                (EnvelopeKind::CapabilityRevoked, self.capability_went(run, *capability)?)
            }
        };
        let received = EnvelopeReceived { envelope: envelope.id, from: envelope.from, kind };
        let mut drafts = vec![self.draft(received)];
        drafts.extend(decided.drafts);
        Ok(Decided { drafts, ..decided })
    }

    fn message(
        &self,
        run: &RunState,
        envelope: &Envelope,
        content: &Payload,
        correlation: Option<&Key>,
        reply_to: Option<EnvelopeId>,
    ) -> Result<Decided, Refused> {
        room_for_mail(run)?;
        let StreamId::Run(from) = envelope.from else { return Err(Refused::Misaddressed) };
        let sealed = content.seal(&self.source)?;
        let body = MessageReceived {
            content: sealed.content.clone(),
            correlation: correlation.cloned(),
            envelope: envelope.id,
            from,
            reply_to,
        };
        let mut drafts = vec![Draft { sealed: vec![sealed], ..self.draft(body) }];
        drafts.extend(self.woken(run, WaitOn::Message, None));
        Ok(Decided::of(drafts))
    }

    fn child_ended(&self, run: &RunState, body: ChildEnded, sealed: Vec<Sealed>) -> Result<Decided, Refused> {
        let child =
            run.children.get(&body.child).filter(|child| child.may_end()).ok_or(Refused::NoSuchChild)?;
        let (id, returned) = (body.child, body.returned.clone());
        let mut drafts = vec![Draft { call: child.call, sealed, ..self.draft(body) }];
        if run.spending.escrowed.contains_key(&id) {
            drafts.push(self.draft(BudgetReturned { amounts: returned, child: id }));
        }
        drafts.extend(self.woken_by_child(run, id));
        Ok(Decided::of(drafts))
    }

    pub(super) fn child_spawned(
        &self,
        child: RunId,
        agent: &Name,
        input: &Payload,
        escrow: &Amounts,
        on_parent_end: OnParentEnd,
    ) -> Result<(ChildSpawned, Sealed), Refused> {
        let sealed = input.seal(&self.source)?;
        let body = ChildSpawned {
            agent: agent.clone(),
            capabilities: Vec::new(),
            child,
            escrow: escrow.clone(),
            input: sealed.content.clone(),
            on_parent_end,
        };
        Ok((body, sealed))
    }

    /// A child takes its slice of the budget with it.
    pub(super) fn spawn(
        &self,
        call: Option<CallId>,
        claim: &Claim,
        (mut body, sealed): (ChildSpawned, Sealed),
    ) -> Result<Decided, Refused> {
        let step = self.held(claim)?;
        let run = self.open_run()?;
        if run.cancel_requested {
            return Err(Refused::CancelRequested);
        }
        let child = body.child;
        let wanted = Wanted {
            arguments: &sealed.opening.value,
            named: None,
            right: Right::Spawn,
            target: body.agent.as_str(),
            wall_ms: self.now.wall_ms,
        };
        let leave = leave(&run.capabilities, &self.view.revoked_elsewhere, &wanted);
        if matches!(leave, Leave::No(_)) && !mutant(Mutant::AnyoneSpawns) {
            return Err(Refused::NoSuchCapability);
        }
        if !mutant(Mutant::ChildUnbounded) {
            body.escrow = budget::slice(run, &body.escrow);
        }
        let amounts = budget::with_child(run, &body.escrow);
        if run.children.contains_key(&child) || child == run.id {
            return Err(Refused::ChildExists);
        }
        if run.children.len() >= limits::CHILDREN_MAX {
            return Err(Refused::LimitExceeded("children_max"));
        }
        if !run.affords(&amounts) && !mutant(Mutant::EscrowUnchecked) {
            return Err(Refused::BudgetExceeded);
        }
        let call = self.own_call(call, step, CallKind::Child)?;
        let fence = Some(claim.fence);
        let mut drafts = vec![Draft { call, sealed: vec![sealed], ..self.step_draft(body, step, fence) }];
        if amounts != Amounts::default() {
            drafts.push(self.step_draft(BudgetEscrowed { amounts, child }, step, fence));
        }
        Ok(Decided::of(drafts))
    }

    pub(super) fn send(
        &self,
        call: Option<CallId>,
        claim: &Claim,
        to: RunId,
        content: &Payload,
        (correlation, reply_to): (Option<&Key>, Option<EnvelopeId>),
    ) -> Result<Decided, Refused> {
        let step = self.held(claim)?;
        let run = self.open_run()?;
        let sealed = content.seal(&self.source)?;
        let id = self.source.envelope_id();
        let body = MessageSent {
            content: sealed.content.clone(),
            correlation: correlation.cloned(),
            envelope: id,
            expires_at: None,
            reply_to,
            to,
        };
        let call = self.own_call(call, step, CallKind::Message)?;
        let draft = Draft { call, sealed: vec![sealed], ..self.step_draft(body, step, Some(claim.fence)) };
        let body =
            EnvelopeBody::Message { content: content.clone(), correlation: correlation.cloned(), reply_to };
        let envelope = Envelope { body, from: StreamId::Run(run.id), id, to };
        Ok(Decided { drafts: vec![draft], envelopes: vec![envelope], ..Decided::default() })
    }
}

fn room_for_mail(run: &RunState) -> Result<(), Refused> {
    let room =
        run.budget.as_ref().and_then(|budget| budget.mailbox).and_then(|room| usize::try_from(room).ok());
    if run.signals.len() + run.messages.len() >= room.unwrap_or(limits::MAILBOX_MAX).min(limits::MAILBOX_MAX)
    {
        return Err(Refused::LimitExceeded("mailbox_max"));
    }
    Ok(())
}
