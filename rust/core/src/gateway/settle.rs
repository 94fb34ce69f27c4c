//! What comes back: outcomes, doubts, late reports, and the ways in which a doubt ends.

use super::{Gate, Report};
use crate::budget;
use crate::call::CallEvent;
use crate::contracts::hook::HookPoint;
use crate::hooks::{self, Act, Invocation};
use crate::ids::CallId;
use crate::ledger;
use crate::limits;
use crate::mutants::{Mutant, mutant};
use crate::records::{
    Actor, ActorType, Body, DoubtCause, Draft, EffectClass, EffectCompensated, EffectDoubted, EffectLate,
    EffectResolved, EffectSettled, EffectStatus, Failure, Key, Resolution, ResolvedBy, SandboxFinished,
    StepStatus, StepWoken, WaitOn,
};
use crate::run::{Case, Claim, Decided, Payload, Refused, seal_into};
use crate::state::{Call, CallPhase, Outcome, RunState, Step};

impl Case<'_> {
    /// The call of a claimed step, if the report is about its newest dispatch.
    fn dispatched(&self, claim: &Claim, (id, told): (CallId, u32)) -> Result<(&Step, &Call), Refused> {
        let step = self.held(claim)?;
        let call = self.run()?.calls.get(&id).filter(|call| call.step == step.id);
        let call = call.ok_or(Refused::NoSuchCall)?;
        let ours = call.permit.as_ref().is_some_and(|permit| permit.fence == Some(claim.fence));
        if call.phase != CallPhase::Started || (!ours && !mutant(Mutant::AnyReporter)) {
            return Err(Refused::NotRunning);
        }
        if call.dispatch != told && !mutant(Mutant::AnyDispatch) {
            return Err(Refused::OtherDispatch { told, newest: call.dispatch });
        }
        Ok((step, call))
    }

    fn of_dispatch(&self, body: impl Into<Body>, step: &Step, call: &Call, claim: Option<&Claim>) -> Draft {
        let draft = self.call_draft(body, step, call.id, claim.map(|claim| claim.fence));
        Draft { dispatch: Some(call.dispatch), ..draft }
    }

    /// The outcome is known.
    pub(crate) fn settle(
        &self,
        claim: &Claim,
        about: (CallId, u32),
        report: &Report,
    ) -> Result<Decided, Refused> {
        let run = self.open_run()?;
        let (step, call) = self.dispatched(claim, about)?;
        if !call.allows(CallEvent::Settled(report.status)) {
            return Err(Refused::NotRunning);
        }
        let charged = match report.status {
            EffectStatus::NoEffect => budget::give_back(run, call),
            EffectStatus::Succeeded
            | EffectStatus::Failed
            | EffectStatus::Cancelled
            | EffectStatus::TimedOut => budget::settle(run, call, report.usage.as_ref()),
        };
        let mut sealed = Vec::new();
        let body = EffectSettled {
            elapsed_ms: report.elapsed_ms,
            external_id: report.external_id.clone(),
            failure: self.told(call, report, &mut sealed)?,
            output_error: report.output_error.clone(),
            result: seal_into(report.result.as_ref(), &self.source, &mut sealed)?,
            status: report.status,
            unruled: report.unruled.then_some(true),
            usage: report.usage.clone(),
        };
        let settled = Draft { sealed, ..self.of_dispatch(body, step, call, Some(claim)) };
        let charged = charged.map(|body| self.of_dispatch(body, step, call, Some(claim)));
        let sandbox = report.sandbox.clone().map(|body| self.of_dispatch(body, step, call, Some(claim)));
        let drafts = sandbox.into_iter().chain(charged).chain([settled]).collect();
        let gate = match call.after(CallEvent::Settled(report.status)) {
            Some(CallPhase::Doubted) => Gate::Again {},
            _ if report.unruled => Gate::RuleResult { call: call.id },
            _ => Gate::Served { call: call.id },
        };
        Ok(Decided { gate: Some(gate), ..Decided::of(drafts) })
    }

    fn told(
        &self,
        call: &Call,
        report: &Report,
        sealed: &mut Vec<crate::content::Sealed>,
    ) -> Result<Option<Failure>, Refused> {
        let Some(failure) = &report.failure else { return Ok(None) };
        let message = seal_into(quoting(call, report.message.as_ref()).as_ref(), &self.source, sealed)?;
        Ok(Some(Failure { message, ..failure.clone() }))
    }

    /// A write that may or may not have happened: never settled by a guess.
    pub(crate) fn doubt(
        &self,
        claim: &Claim,
        about: (CallId, u32),
        cause: DoubtCause,
        (failure, message, sandbox): (Option<&Failure>, Option<&Payload>, Option<&SandboxFinished>),
        over: bool,
    ) -> Result<Decided, Refused> {
        self.open_run()?;
        let (step, call) = self.dispatched(claim, about)?;
        if !call.allows(CallEvent::Doubted) {
            return Err(Refused::NotRunning);
        }
        let mut sealed = Vec::new();
        let message = seal_into(quoting(call, message).as_ref(), &self.source, &mut sealed)?;
        let failure = failure.map(|failure| Failure { message, ..failure.clone() });
        let body = EffectDoubted { cause, failure, over: over.then_some(true) };
        let draft = Draft { sealed, ..self.of_dispatch(body, step, call, Some(claim)) };
        let finished = sandbox.cloned().map(|body| self.of_dispatch(body, step, call, Some(claim)));
        let drafts = finished.into_iter().chain([draft]).collect();
        Ok(Decided { gate: Some(Gate::Again {}), ..Decided::of(drafts) })
    }

    /// Hooks rule about a result before the agent gets it.
    pub(crate) fn rule_result(
        &self,
        claim: &Claim,
        id: CallId,
        attempts: u32,
        invocations: &[Invocation],
    ) -> Result<Decided, Refused> {
        let run = self.open_run()?;
        let step = self.held(claim)?;
        let call = run.calls.get(&id).filter(|call| call.step == step.id).ok_or(Refused::NoSuchCall)?;
        let settled = call.phase == CallPhase::Settled;
        let left = call.phase == CallPhase::Abandoned && call.outcome.is_some();
        if !(settled || left) || !call.unruled {
            return Err(Refused::NotRunning);
        }
        if invocations.len() > limits::HOOKS_MAX {
            return Err(Refused::LimitExceeded("hooks_max"));
        }
        let repeatable = settled && call.effect != EffectClass::Write && call.dispatch < attempts;
        let mut gate = Gate::Served { call: id };
        let mut drafts = Vec::with_capacity(invocations.len());
        for (at, invocation) in (1..).zip(invocations) {
            if invocation.spec.point != HookPoint::AfterToolCall {
                return Err(Refused::NotRunning);
            }
            let ruled = hooks::rule(invocation, at, repeatable, &self.source);
            match ruled.act {
                Act::Again if matches!(gate, Gate::Served { .. }) => gate = Gate::Again {},
                Act::Fail => gate = Gate::Stop { call: id, hook: ruled.body.hook.clone() },
                _ => {}
            }
            let by = Actor { id: ruled.body.hook.clone(), r#type: ActorType::Hook };
            let draft = self.of_dispatch(ruled.body, step, call, Some(claim));
            drafts.push(Draft { by, sealed: ruled.sealed, ..draft });
        }
        Ok(Decided { gate: Some(gate), ..Decided::of(drafts) })
    }

    /// What a worker that lost its lease knows about what it had started. It settles a doubt that is open,
    /// and changes nothing else.
    pub(crate) fn late(
        &self,
        claim: &Claim,
        (id, told): (CallId, u32),
        report: &Report,
    ) -> Result<Decided, Refused> {
        let run = self.run()?;
        let step = self.step(claim.step)?;
        let call = run.calls.get(&id).filter(|call| call.step == step.id).ok_or(Refused::NoSuchCall)?;
        let ours = call.permit.as_ref().is_some_and(|permit| permit.fence == Some(claim.fence));
        if call.dispatch != told || !ours {
            return Err(Refused::OtherDispatch { told, newest: call.dispatch });
        }
        let unknown = report.status == EffectStatus::TimedOut && call.effect == EffectClass::Write;
        if unknown || !call.allows(CallEvent::Late) || call.phase == CallPhase::Started {
            return Err(Refused::NotRunning);
        }
        if run.phase.is_ended() && run.evidence.saturating_add(2) > limits::EVIDENCE_MAX {
            return Err(Refused::LimitExceeded("evidence_max"));
        }
        let mut sealed = Vec::new();
        let body = EffectLate {
            external_id: report.external_id.clone(),
            failure: self.told(call, report, &mut sealed)?,
            result: seal_into(report.result.as_ref(), &self.source, &mut sealed)?,
            status: report.status,
        };
        let mut drafts = vec![Draft { sealed, ..self.of_dispatch(body, step, call, Some(claim)) }];
        if call.phase == CallPhase::Doubted && call.ends_doubt(report.status) {
            let usage = report.usage.as_ref();
            let charged = match report.status {
                EffectStatus::NoEffect => budget::give_back(run, call),
                _ => budget::settle(run, call, usage),
            };
            let charged = charged.filter(|_| !run.phase.is_ended());
            drafts.extend(charged.map(|body| self.of_dispatch(body, step, call, None)));
            let body = EffectResolved {
                external_id: report.external_id.clone(),
                forced: false,
                reason: None,
                resolution: Resolution::Late,
                result: None,
                source: ResolvedBy::LateReport,
            };
            drafts.push(self.of_dispatch(body, step, call, None));
            drafts.extend(self.woken_from_doubt(run, call));
        }
        Ok(Decided::of(drafts))
    }

    /// The end of a doubt. Nobody may say that it did not happen while it still can.
    pub(crate) fn resolve(
        &self,
        claim: Option<&Claim>,
        (id, looked_at): (CallId, u32),
        resolution: Resolution,
        (result, external_id, reason): (Option<&Payload>, Option<&Key>, Option<&Payload>),
        force: bool,
    ) -> Result<Decided, Refused> {
        let run = self.run()?;
        let call = run.calls.get(&id).ok_or(Refused::NoSuchCall)?;
        let step = self.step(call.step)?;
        match claim {
            Some(claim) if self.held(claim)?.id != call.step => return Err(Refused::NoSuchCall),
            Some(_) => {}
            None => self.person()?,
        }
        if !call.allows(CallEvent::Resolved) || resolution == Resolution::Late {
            return Err(Refused::NotInDoubt);
        }
        if call.dispatch != looked_at && !mutant(Mutant::ResolveAny) {
            return Err(Refused::OtherDispatch { told: looked_at, newest: call.dispatch });
        }
        let left = ledger::may_act_for(call, self.now);
        let forced = force && claim.is_none();
        if left > 0 && !forced && !mutant(Mutant::ResolveAtOnce) {
            return Err(Refused::PermitMayAct(left));
        }
        if run.phase.is_ended() && run.evidence >= limits::EVIDENCE_MAX {
            return Err(Refused::LimitExceeded("evidence_max"));
        }
        let mut sealed = Vec::new();
        let body = EffectResolved {
            external_id: external_id.cloned(),
            forced: forced && left > 0,
            reason: seal_into(reason, &self.source, &mut sealed)?,
            resolution,
            result: seal_into(result, &self.source, &mut sealed)?,
            source: if claim.is_some() { ResolvedBy::Reconcile } else { ResolvedBy::Operator },
        };
        let charged = match resolution {
            Resolution::DidNotHappen => budget::give_back(run, call),
            Resolution::Happened | Resolution::Late | Resolution::Compensated => {
                budget::settle(run, call, None)
            }
        };
        let charged = charged.filter(|_| !run.phase.is_ended());
        let mut drafts: Vec<Draft> =
            charged.map(|body| self.of_dispatch(body, step, call, claim)).into_iter().collect();
        drafts.push(Draft { sealed, ..self.of_dispatch(body, step, call, claim) });
        drafts.extend(self.woken_from_doubt(run, call));
        Ok(Decided { gate: Some(Gate::Served { call: id }), ..Decided::of(drafts) })
    }

    /// The step that waited because of this doubt goes on.
    fn woken_from_doubt(&self, run: &RunState, call: &Call) -> Option<Draft> {
        let step = run.steps.get(&call.step).filter(|step| step.status == StepStatus::Waiting)?;
        let wait = step.waits.iter().find(|wait| wait.on == WaitOn::Doubt && wait.call == Some(call.id))?;
        let body = StepWoken { on: WaitOn::Doubt, subject: wait.subject.clone() };
        (!run.phase.is_ended()).then(|| self.step_draft(body, step, None))
    }

    /// A write that succeeded was undone by another call, which succeeded too.
    pub(crate) fn compensated(
        &self,
        claim: &Claim,
        id: CallId,
        by: CallId,
        reason: Option<&Payload>,
    ) -> Result<Decided, Refused> {
        let run = self.open_run()?;
        let step = self.held(claim)?;
        let succeeded = |id| {
            let call = run.calls.get(&id).filter(|call: &&Call| call.step == step.id);
            call.filter(|call| call.outcome == Some(Outcome::Succeeded))
        };
        let (Some(call), Some(_)) = (succeeded(id), succeeded(by)) else { return Err(Refused::NoSuchCall) };
        // What another run did under the same key is not undone here.
        if id == by || call.served || !call.allows(CallEvent::Compensated) {
            return Err(Refused::NotRunning);
        }
        let mut sealed = Vec::new();
        let reason = seal_into(reason, &self.source, &mut sealed)?;
        let draft = self.call_draft(EffectCompensated { by, reason }, step, id, Some(claim.fence));
        Ok(Decided::of(vec![Draft { sealed, ..draft }]))
    }
}

/// What a body says of its failure may quote its arguments: it is as private as they are.
fn quoting(call: &Call, message: Option<&Payload>) -> Option<Payload> {
    let Payload { privacy, value } = message?;
    let privacy = if mutant(Mutant::MessagesLeak) { *privacy } else { (*privacy).max(call.sent_privacy()) };
    Some(Payload { privacy, value: value.clone() })
}
