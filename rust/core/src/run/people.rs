//! What people, schedulers and supervisors do: cancel, pause, retry, resume, decide.

use super::request::{Claim, Decided, LeaseChange, Payload, seal_into};
use super::{Case, Refused};
use crate::budget;
use crate::content::Commit;
use crate::ids::{CallId, StepId};
use crate::limits;
use crate::mutants::{Mutant, mutant};
use crate::records::{
    AbandonReason, ActorType, Amounts, BudgetRaised, CallAbandoned, ContentErased, DivergenceDecision,
    DoubtCause, Draft, EndReason, EndStatus, LeaseExpired, Package, PackageDecided, PackageDecision,
    ReplayDecided, RunCancelRequested, RunPaused, RunResumed, RunRetried, RunUnpaused, StepCancelReason,
    StepCancelled, StepStatus, StepWaiting, StepWoken, Text, Wait, WaitOn,
};
use crate::state::Step;
use crate::transitions::RunPhase;

impl Case<'_> {
    pub(crate) fn person(&self) -> Result<(), Refused> {
        if self.by.r#type == ActorType::Human || mutant(Mutant::AnyoneIsAPerson) {
            Ok(())
        } else {
            Err(Refused::NotAPerson)
        }
    }

    /// Cooperative: workers are asked; without a worker the run ends at once. Asked again it does nothing
    /// more: whoever got no answer to the first may ask until it has one.
    pub(super) fn cancel(&self, reason: Option<&Payload>) -> Result<Decided, Refused> {
        let run = self.open_run()?;
        if run.cancel_requested {
            return Ok(Decided::nothing());
        }
        let mut sealed = Vec::new();
        let body = RunCancelRequested { reason: seal_into(reason, &self.source, &mut sealed)? };
        let mut decided = Decided::of(vec![Draft { sealed, ..self.draft(body) }]);
        if !run.steps.values().any(|step| step.status == StepStatus::Running) {
            self.end_cancelled(None, &mut decided)?;
        }
        Ok(decided)
    }

    pub(super) fn confirm_cancel(&self, claim: &Claim) -> Result<Decided, Refused> {
        let step = self.held(claim)?;
        if !self.open_run()?.cancel_requested {
            return Err(Refused::NotCancelRequested);
        }
        let mut decided = Decided { lease: Some(LeaseChange::Drop(step.id)), ..Decided::nothing() };
        self.check_no_running_write(step)?;
        let body = StepCancelled { reason: StepCancelReason::RunCancelled };
        decided.drafts.push(self.step_draft(body, step, Some(claim.fence)));
        self.finish_cancel_after(step.id, true, &mut decided)?;
        Ok(decided)
    }

    /// Ends a run that is to be cancelled once the last worker has let go of it.
    pub(super) fn finish_cancel(&self, leaving: StepId, decided: &mut Decided) -> Result<(), Refused> {
        self.finish_cancel_after(leaving, false, decided)
    }

    fn finish_cancel_after(
        &self,
        leaving: StepId,
        ended: bool,
        decided: &mut Decided,
    ) -> Result<(), Refused> {
        let run = self.run()?;
        let busy = |step: &Step| step.id != leaving && step.status == StepStatus::Running;
        if run.cancel_requested && !run.steps.values().any(busy) {
            let completed = decided.drafts.iter().any(|draft| draft.body.kind() == "step.completed");
            self.end_cancelled((ended || completed).then_some(leaving), decided)?;
        }
        Ok(())
    }

    fn end_cancelled(&self, except: Option<StepId>, decided: &mut Decided) -> Result<(), Refused> {
        self.cancel_steps(except, StepCancelReason::RunCancelled, decided)?;
        self.finish(EndStatus::Cancelled, EndReason::Cancelled, None, None, decided)
    }

    /// At once: workers are fenced off.
    pub(super) fn end(&self, reason: EndReason) -> Result<Decided, Refused> {
        let run = self.open_run()?;
        if !matches!(self.by.r#type, ActorType::Human | ActorType::System) {
            return Err(Refused::NotAPerson);
        }
        let status = match reason {
            EndReason::Deadline if run.deadline.is_none_or(|deadline| deadline > self.now.wall_ms) => {
                return Err(Refused::DeadlineNotDue);
            }
            EndReason::Deadline | EndReason::Quota => EndStatus::Failed,
            EndReason::Killed | EndReason::Shutdown => EndStatus::Cancelled,
            EndReason::Normal | EndReason::Fault | EndReason::Cancelled => return Err(Refused::BadEndReason),
        };
        let mut decided = Decided::nothing();
        self.cancel_steps(None, StepCancelReason::RunEnded, &mut decided)?;
        self.finish(status, reason, None, None, &mut decided)?;
        Ok(decided)
    }

    pub(super) fn pause(&self, reason: Option<&Payload>) -> Result<Decided, Refused> {
        if self.open_run()?.phase == RunPhase::Paused {
            return Err(Refused::RunPaused);
        }
        let mut sealed = Vec::new();
        let body = RunPaused { reason: seal_into(reason, &self.source, &mut sealed)? };
        Ok(Decided::of(vec![Draft { sealed, ..self.draft(body) }]))
    }

    /// Goes on; steps that waited on the pause wake.
    pub(super) fn unpause(&self, reason: Option<&Payload>) -> Result<Decided, Refused> {
        if self.open_run()?.phase != RunPhase::Paused {
            return Err(Refused::NotPaused);
        }
        let mut sealed = Vec::new();
        let body = RunUnpaused { reason: seal_into(reason, &self.source, &mut sealed)? };
        let mut drafts = vec![Draft { sealed, ..self.draft(body) }];
        drafts.extend(self.wake_all(&[WaitOn::Paused])?);
        Ok(Decided::of(drafts))
    }

    /// A person has looked: steps that waited for one go on.
    pub(super) fn resume(&self, package: &Package, reason: Option<&Payload>) -> Result<Decided, Refused> {
        let run = self.open_run()?;
        self.person()?;
        let woken = self.wake_all(&[WaitOn::Restored, WaitOn::Interrupted, WaitOn::Budget])?;
        if woken.is_empty() {
            return Err(Refused::NotWaiting(WaitOn::Interrupted));
        }
        let mut sealed = Vec::new();
        let reason = seal_into(reason, &self.source, &mut sealed)?;
        let body = RunResumed { changed: run.package.changed(package), package: package.clone(), reason };
        let mut drafts = vec![Draft { sealed, ..self.draft(body) }];
        drafts.extend(woken);
        Ok(Decided::of(drafts))
    }

    /// A person gives more of what the budget bounds; steps that waited for that ask for it again.
    pub(super) fn raise(&self, amounts: &Amounts, reason: Option<&Payload>) -> Result<Decided, Refused> {
        let run = self.open_run()?;
        self.person()?;
        if !budget::raises(run, amounts) && !mutant(Mutant::RaiseUnbounded) {
            return Err(Refused::BudgetUnlimited);
        }
        let mut sealed = Vec::new();
        let reason = seal_into(reason, &self.source, &mut sealed)?;
        let body = BudgetRaised { amounts: amounts.clone(), reason };
        let mut drafts = vec![Draft { sealed, ..self.draft(body) }];
        drafts.extend(self.wake_all(&[WaitOn::Budget])?);
        Ok(Decided::of(drafts))
    }

    /// Every open step is parked on `restored`; a lease from before the backup holds no longer, and what
    /// its worker had sent off is in doubt.
    pub(super) fn restored(&self) -> Result<Decided, Refused> {
        let run = self.open_run()?;
        if self.by.r#type != ActorType::System {
            return Err(Refused::NotAPerson);
        }
        let mut decided = Decided::nothing();
        for step in run.steps.values().filter(|step| !step.is_ended()) {
            match (step.status, &step.owner, step.waits.first()) {
                (StepStatus::Running, Some(owner), _) => {
                    let expired = LeaseExpired { owner: owner.clone(), progressed: true };
                    decided.drafts.push(self.step_draft(expired, step, None));
                    self.doubt_running_writes(step, DoubtCause::Crashed, false, &mut decided);
                }
                (StepStatus::Waiting, _, Some(wait)) if wait.on == WaitOn::Restored => continue,
                (StepStatus::Waiting, _, Some(wait)) => {
                    let body = StepWoken { on: wait.on, subject: wait.subject.clone() };
                    decided.drafts.push(self.step_draft(body, step, None));
                }
                _ => {}
            }
            let wait = Wait { call: None, on: WaitOn::Restored, subject: None, until: None };
            decided.drafts.push(self.step_draft(StepWaiting { waits: vec![wait] }, step, None));
        }
        Ok(decided)
    }

    /// The values go, the commitments stay.
    pub(super) fn erase(&self, commits: &[Commit], reason: Option<&Text>) -> Result<Decided, Refused> {
        let run = self.run()?;
        if !run.phase.is_ended() && !mutant(Mutant::EraseOpen) {
            return Err(Refused::RunOpen(run.status()));
        }
        if self.view.open_forks {
            return Err(Refused::OpenForks);
        }
        if run.evidence >= limits::EVIDENCE_MAX {
            return Err(Refused::LimitExceeded("evidence_max"));
        }
        let body = ContentErased { commits: commits.to_vec(), reason: reason.cloned() };
        Ok(Decided::of(vec![self.draft(body)]))
    }

    fn wake_all(&self, on: &[WaitOn]) -> Result<Vec<Draft>, Refused> {
        let wakes = |step: &Step| step.waits.iter().find(|wait| on.contains(&wait.on)).map(|wait| wait.on);
        let steps = self.run()?.steps.values().filter(|step| step.status == StepStatus::Waiting);
        let woken = steps.filter_map(|step| wakes(step).map(|on| (step, on)));
        Ok(woken.map(|(step, on)| self.step_draft(StepWoken { on, subject: None }, step, None)).collect())
    }

    /// A failed run is open again: the steps that failed, and those that were cancelled for it.
    pub(super) fn retry_run(&self, reason: Option<&Payload>) -> Result<Decided, Refused> {
        let run = self.run()?;
        if run.phase != RunPhase::Failed && !mutant(Mutant::RetryAnyEnd) {
            return Err(Refused::NotFailed);
        }
        let again = |step: &&Step| matches!(step.status, StepStatus::Failed | StepStatus::Cancelled);
        let steps = run.steps.values().filter(again).map(|step| step.id).collect();
        let mut sealed = Vec::new();
        let body = RunRetried { reason: seal_into(reason, &self.source, &mut sealed)?, steps };
        Ok(Decided::of(vec![Draft { sealed, ..self.draft(body) }]))
    }

    /// `retry`: the code was fixed. `accept`: what it no longer does is abandoned, by this person.
    /// `fork`: the run stays as it is and the person goes on in a fork.
    pub(super) fn decide_divergence(
        &self,
        id: StepId,
        decision: DivergenceDecision,
        unclaimed: &[CallId],
        reason: Option<&Payload>,
    ) -> Result<Decided, Refused> {
        let run = self.open_run()?;
        self.person()?;
        let step = self.waiting_on(id, WaitOn::Divergence)?;
        let mut sealed = Vec::new();
        let body = ReplayDecided { decision, reason: seal_into(reason, &self.source, &mut sealed)? };
        let mut drafts = vec![Draft { sealed, ..self.step_draft(body, step, None) }];
        if decision == DivergenceDecision::Accept {
            for call in unclaimed {
                match run.calls.get(call).filter(|call| call.step == id) {
                    None => return Err(Refused::NoSuchCall),
                    Some(call) if call.is_open_write() => return Err(Refused::OpenWrite),
                    Some(_) => {}
                }
                let body = CallAbandoned { reason: AbandonReason::Accepted };
                drafts.push(self.call_draft(body, step, *call, None));
            }
        }
        if decision != DivergenceDecision::Fork {
            let body = StepWoken { on: WaitOn::Divergence, subject: None };
            drafts.push(self.step_draft(body, step, None));
        }
        Ok(Decided::of(drafts))
    }

    pub(super) fn decide_package(
        &self,
        id: StepId,
        decision: PackageDecision,
        package: &Package,
        reason: Option<&Payload>,
    ) -> Result<Decided, Refused> {
        let run = self.open_run()?;
        self.person()?;
        let step = self.waiting_on(id, WaitOn::Package)?;
        let mut sealed = Vec::new();
        let reason = seal_into(reason, &self.source, &mut sealed)?;
        // Only `continue` moves the run to the new package; the fold keeps the old one otherwise.
        let goes_on = decision == PackageDecision::Continue;
        let kept = if goes_on { package } else { &run.package };
        let changed = run.package.changed(package);
        let body = PackageDecided { changed, decision, package: kept.clone(), reason };
        let mut decided = Decided::of(vec![Draft { sealed, ..self.step_draft(body, step, None) }]);
        match decision {
            PackageDecision::Continue => {
                let body = StepWoken { on: WaitOn::Package, subject: None };
                decided.drafts.push(self.step_draft(body, step, None));
            }
            PackageDecision::Refuse => {
                self.cancel_steps(None, StepCancelReason::RunCancelled, &mut decided)?;
                self.finish(EndStatus::Cancelled, EndReason::Cancelled, None, None, &mut decided)?;
            }
            PackageDecision::Wait | PackageDecision::Fork => {}
        }
        Ok(decided)
    }

    pub(super) fn waiting_on(&self, id: StepId, on: WaitOn) -> Result<&Step, Refused> {
        let step = self.step(id)?;
        let waits = step.status == StepStatus::Waiting && step.waits.iter().any(|wait| wait.on == on);
        if waits { Ok(step) } else { Err(Refused::NotWaiting(on)) }
    }
}
