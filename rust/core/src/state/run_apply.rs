//! How each record changes a run: the run itself, its steps, its state. Calls, approvals and what comes
//! from other runs are in `run_apply_calls.rs`.

use super::Illegal;
use super::calls::{Call, Outcome, Replay, Situation, replay};
use super::govern::add;
use super::run::{End, RunState};
use super::steps::Step;
use crate::call::CallPhase;
use crate::chain::Head;
use crate::content::{ContentError, Openings, open};
use crate::error::Code;
use crate::ids::{CallId, StepId};
use crate::merge::merge;
use crate::mutants::{Mutant, mutant};
use crate::records::{Body, CallKind, Failure, Fold, Record, RunRetried, StatePatched, Token};
use crate::transitions::{RunEvent, StepEvent, run_after};

type Done = Result<(), Illegal>;

impl RunState {
    /// The fold after one more record of this run.
    pub(super) fn apply(&mut self, record: &Record, head: Head, openings: &Openings) -> Done {
        if record.stream != self.head.stream || record.seq != self.head.seq + 1 {
            return Err(Illegal::new(record, "it is not the next record of this run"));
        }
        self.newer |= record.is_newer();
        if !self.newer {
            self.check_end(record)?;
            self.check_fence(record)?;
            self.change(record, openings)?;
        }
        // What follows something unknown cannot be judged: the chain still holds, and nobody may act here.
        self.head = head;
        Ok(())
    }

    /// After the end only evidence follows, and it changes nothing.
    fn check_end(&self, record: &Record) -> Done {
        let allowed = record.body.may_follow_end() || matches!(record.body, Body::RunRetried(_));
        if self.phase.is_ended() && !allowed && !mutant(Mutant::FoldAfterEnd) {
            return Err(Illegal::new(record, "only evidence may follow the end"));
        }
        Ok(())
    }

    /// What carries a fence carries the live one; a claim carries one that was never given out.
    fn check_fence(&mut self, record: &Record) -> Done {
        let Some(fence) = record.fence else {
            let allowed = !record.body.needs_fence() || mutant(Mutant::FoldAnyFence);
            return if allowed { Ok(()) } else { Err(Illegal::new(record, "a worker's record has a fence")) };
        };
        let step = step_of(record)?;
        let live = self.steps.get(&step).and_then(Step::live_fence);
        let allowed = match &record.body {
            Body::StepClaimed(_) => self.last_fence.is_none_or(|last| fence > last),
            // What a worker that lost its lease still knows, and that it was refused.
            Body::EffectLate(_) | Body::RefusalNoted(_) => true,
            _ => live == Some(fence) || (self.phase.is_ended() && record.body.may_follow_end()),
        };
        if !allowed && !mutant(Mutant::FoldAnyFence) {
            return Err(Illegal::new(record, "its fence does not hold"));
        }
        if let Some(step) = self.steps.get_mut(&step).filter(|step| step.live_fence() == Some(fence)) {
            step.progressed |= record.body.is_progress();
        }
        Ok(())
    }

    fn change(&mut self, record: &Record, openings: &Openings) -> Done {
        if !record.body.fits(record.stream) {
            return Err(Illegal::new(record, "it belongs to another kind of stream"));
        }
        if self.phase.is_ended() && !matches!(record.body, Body::RunRetried(_)) {
            self.evidence += 1;
            // The run stays as it ended; what became of its effects is remembered for a retry.
            let about_effect = matches!(record.body, Body::EffectLate(_) | Body::EffectResolved(_));
            return if about_effect { self.change_call(record) } else { Ok(()) };
        }
        match record.body.folds() {
            Fold::Run => self.change_run(record),
            Fold::Step => self.change_step(record),
            Fold::State => self.change_state(record, openings),
            Fold::Call => self.change_call(record),
            Fold::Govern => self.change_governance(record),
            Fold::Flow => self.change_flow(record),
            Fold::Nothing if record.body.is_noted() => self.noted(record),
            Fold::Nothing => Ok(()),
        }
    }

    fn noted(&mut self, record: &Record) -> Done {
        if let Body::CheckpointCreated(body) = &record.body
            && let Some((place, offset)) = body.progress()
        {
            self.checkpoints.insert(place, offset);
        }
        self.settle_own(record, Outcome::Succeeded)
    }

    fn change_run(&mut self, record: &Record) -> Done {
        match &record.body {
            Body::RunResumed(body) => {
                self.package = body.package.clone();
                Ok(())
            }
            Body::RunRetried(body) => self.retried(record, body),
            Body::RunPaused(_) => self.go(RunEvent::Paused, record),
            Body::RunUnpaused(_) => self.go(RunEvent::Unpaused, record),
            Body::RunCancelRequested(_) => {
                self.cancel_requested = true;
                self.go(RunEvent::CancelRequested, record)
            }
            Body::RunFinished(body) => {
                self.end = Some(End { reason: body.reason, seq: record.seq, status: body.status });
                self.go(RunEvent::Finished(body.status), record)
            }
            _ => Err(Illegal::new(record, "the run exists")),
        }
    }

    fn go(&mut self, event: RunEvent, record: &Record) -> Done {
        match run_after(self.phase, event) {
            Some(phase) => {
                self.phase = phase;
                Ok(())
            }
            None => Err(Illegal::new(record, "the run's status does not allow it")),
        }
    }

    fn retried(&mut self, record: &Record, body: &RunRetried) -> Done {
        self.go(RunEvent::Retried, record)?;
        self.end = None;
        self.evidence = 0;
        self.cancel_requested = false;
        if self.parent.is_some() && !mutant(Mutant::RetriedKeepsSlice) {
            let returned = self.left_over(); // its parent has it back, and may have used it
            add(&mut self.spending.used, &returned);
        }
        for id in &body.steps {
            let step = self.step_mut(*id, record)?;
            step.go(StepEvent::Reopened, record)?;
            step.attempt += 1;
            step.failed_tries = 0;
            step.not_before = None;
            let ended_by = std::mem::take(&mut step.ended_by);
            self.mark_reruns(*id, &ended_by);
        }
        let open = |call: &&mut Call| body.steps.contains(&call.step) && call.phase != CallPhase::Abandoned;
        for call in self.calls.values_mut().filter(open) {
            let again = call.outcome.map(|outcome| replay(outcome, Situation::RunRetried));
            call.rerun |= again.is_some_and(|again| again != Replay::Served);
            call.await_cancelled = None;
        }
        Ok(())
    }

    fn change_state(&mut self, record: &Record, openings: &Openings) -> Done {
        match &record.body {
            Body::StatePatched(body) => self.patched(record, body, openings),
            _ => self.settle_own(record, Outcome::Conflict),
        }
    }

    fn patched(&mut self, record: &Record, body: &StatePatched, openings: &Openings) -> Done {
        let follows = body.base == self.state_version && body.next == body.base + 1;
        if !follows && !mutant(Mutant::FoldAnyVersion) {
            return Err(Illegal::new(record, "it patches another version"));
        }
        match open(&body.patch, openings) {
            Ok(patch) if patch.is_object() => {
                if let Some(state) = &mut self.state {
                    merge(state, patch);
                }
            }
            Err(ContentError::Erased(_)) => self.state = None,
            Ok(_) | Err(_) => return Err(Illegal::new(record, "its patch is not one")),
        }
        self.state_version = body.next;
        self.settle_own(record, Outcome::Succeeded)
    }

    fn change_step(&mut self, record: &Record) -> Done {
        let id = step_of(record)?;
        if let Body::StepCreated(created) = &record.body {
            let position = self.position(record);
            let known = created.after.iter().all(|after| self.steps.contains_key(after));
            if !known || self.steps.insert(id, Step::new(id, position, created)).is_some() {
                return Err(Illegal::new(record, "the step exists, or comes after one that does not"));
            }
            return self.settle_own(record, Outcome::Succeeded);
        }
        if let Body::StepClaimed(_) = &record.body {
            self.last_fence = self.last_fence.max(record.fence);
        }
        let position = self.position(record);
        let step = self.step_mut(id, record)?;
        match &record.body {
            Body::StepClaimed(body) => {
                step.claimed(position, body.state_version);
                step.go(StepEvent::Claimed, record)?;
                let fence = record.fence.ok_or_else(|| Illegal::new(record, "a claim has a fence"))?;
                (step.fence, step.owner, step.progressed) = (Some(fence), Some(body.worker.clone()), false);
                step.not_before = None;
                Ok(())
            }
            Body::StepRetryScheduled(body) => {
                step.go(StepEvent::RetryScheduled, record)?;
                step.count_try();
                step.not_before = Some(body.not_before);
                self.mark_reruns(id, &body.ended_by);
                self.refresh_after_conflict(id, &body.failure, &body.ended_by);
                Ok(())
            }
            Body::StepWaiting(body) => {
                step.waits.clone_from(&body.waits);
                step.go(StepEvent::Waiting, record)
            }
            Body::StepWoken(_) => {
                step.waits.clear();
                step.go(StepEvent::Woken, record)
            }
            Body::StepCompleted(body) => {
                step.result.clone_from(&body.result);
                step.go(StepEvent::Completed, record)
            }
            Body::StepFailed(body) => {
                step.ended_by.clone_from(&body.ended_by);
                step.go(StepEvent::Failed, record)?;
                self.refresh_after_conflict(id, &body.failure, &body.ended_by);
                Ok(())
            }
            Body::StepCancelled(_) => step.go(StepEvent::Cancelled, record),
            Body::LeaseExpired(body) => {
                step.go(StepEvent::Expired, record)?;
                if !body.progressed {
                    step.count_try();
                }
                Ok(())
            }
            _ => step.go(StepEvent::Released, record),
        }
    }

    /// Before another try: which outcomes are not served again, and no await counts as cancelled.
    fn mark_reruns(&mut self, step: StepId, ended_by: &[CallId]) {
        let newest_write = self
            .calls
            .values()
            .filter(|call| call.step == step && call.must_be_claimed())
            .map(|call| call.opened)
            .max();
        for call in self.calls.values_mut().filter(|call| call.step == step) {
            let situation = Situation::Retried {
                ended_attempt: ended_by.contains(&call.id),
                write_after: newest_write.is_some_and(|write| write > call.opened),
            };
            call.rerun |= call.outcome.is_some_and(|outcome| replay(outcome, situation) == Replay::RunAgain);
            call.await_cancelled = None;
        }
    }

    /// Another step has changed the state under a commit, or under the end of the step: after the commits
    /// that stand, the next try sees it as it is then.
    fn refresh_after_conflict(&mut self, step: StepId, failure: &Failure, ended_by: &[CallId]) {
        let commits =
            || self.calls.values().filter(|call| call.step == step && call.kind == CallKind::Commit);
        let conflict = |call: &&Call| ended_by.contains(&call.id) && call.outcome == Some(Outcome::Conflict);
        let refused = commits().filter(conflict).map(|call| call.opened).min();
        let code = failure.code.as_ref().map(Token::as_str);
        let at_end = ended_by.is_empty() && code == Some(Code::StateConflict.as_str());
        if refused.is_none() && !at_end {
            return;
        }
        let stands = |call: &&Call| {
            call.outcome == Some(Outcome::Succeeded) && refused.is_none_or(|refused| call.opened < refused)
        };
        let after = u64::try_from(commits().filter(stands).count()).unwrap_or(u64::MAX);
        if let Some(step) = self.steps.get_mut(&step) {
            step.refresh_after = Some(after);
        }
    }

    fn step_mut(&mut self, id: StepId, record: &Record) -> Result<&mut Step, Illegal> {
        self.steps.get_mut(&id).ok_or_else(|| Illegal::new(record, "no such step"))
    }

    /// Settles the call that a record belongs to, if it belongs to one.
    pub(super) fn settle_own(&mut self, record: &Record, outcome: Outcome) -> Done {
        if record.call.is_none() {
            return Ok(());
        }
        let position = self.position(record);
        let call = self.call_mut(record)?;
        if !call.is_undecided() {
            return Err(Illegal::new(record, "the call was sent off already"));
        }
        call.settle(position, outcome, None);
        Ok(())
    }
}

pub(super) fn step_of(record: &Record) -> Result<StepId, Illegal> {
    record.step.ok_or_else(|| Illegal::new(record, "it belongs to no step"))
}
