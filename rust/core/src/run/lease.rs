//! Claims, heartbeats, releases, recovery.

use super::request::{Claim, Decided, Lease, LeaseChange};
use super::{Case, Refused};
use crate::ids::StepId;
use crate::limits;
use crate::mutants::{Mutant, mutant};
use crate::records::{
    ActorType, DoubtCause, Failure, FailureSource, Fence, LeaseExpired, LeaseReleased, Name, Package,
    ReleaseReason, RunResumed, StepClaimed, StepFailed, StepStatus, StepWaiting, Token, Wait, WaitOn,
};
use crate::state::{RunState, Step};
use crate::transitions::{RunPhase, StepEvent, step_after};

impl Case<'_> {
    /// The step goes to a worker under a new fence. A worker with another package than the run's says so:
    /// the change is recorded, or under `strict` the step waits for a person.
    pub(super) fn claim(
        &self,
        id: StepId,
        worker: &Name,
        lease_ms: u64,
        package: &Package,
        strict: bool,
    ) -> Result<Decided, Refused> {
        let run = self.open_run()?;
        let step = self.step(id)?;
        if self.by.r#type != ActorType::Worker {
            return Err(Refused::NotAWorker);
        }
        self.claimable(run, step)?;
        let lease = self.lease(worker, lease_ms)?;
        let changed = run.package.changed(package);
        if strict && !changed.is_empty() {
            let wait = Wait { call: None, on: WaitOn::Package, subject: None, until: None };
            return Ok(Decided::of(vec![self.step_draft(StepWaiting { waits: vec![wait] }, step, None)]));
        }
        let mut drafts = Vec::new();
        if !changed.is_empty() {
            drafts.push(self.draft(RunResumed { changed, package: package.clone(), reason: None }));
        }
        let claimed = StepClaimed { lease_ms, state_version: run.state_version, worker: worker.clone() };
        drafts.push(self.step_draft(claimed, step, Some(lease.fence)));
        Ok(Decided { drafts, lease: Some(LeaseChange::Set(id, lease)), ..Decided::default() })
    }

    fn claimable(&self, run: &RunState, step: &Step) -> Result<(), Refused> {
        if run.phase == RunPhase::Paused {
            return Err(Refused::RunPaused);
        }
        if run.cancel_requested {
            return Err(Refused::CancelRequested);
        }
        if step_after(step.status, StepEvent::Claimed).is_none() && !mutant(Mutant::ClaimTwice) {
            return Err(Refused::StepStatus(step.status));
        }
        if !run.is_unblocked(step) && !mutant(Mutant::ClaimBlocked) {
            return Err(Refused::StepBlocked);
        }
        if let Some(due) = step.not_before.filter(|due| *due > self.now.wall_ms) {
            return Err(Refused::NotBefore(due));
        }
        let runs_here = |key| {
            let other = |other: &&Step| {
                other.status == StepStatus::Running && other.concurrency_key.as_ref() == Some(key)
            };
            run.steps.values().any(|step| other(&step))
        };
        match &step.concurrency_key {
            Some(key) if self.view.busy_keys.contains(key) || runs_here(key) => Err(Refused::KeyBusy),
            _ => Ok(()),
        }
    }

    fn lease(&self, worker: &Name, lease_ms: u64) -> Result<Lease, Refused> {
        let last = self.run()?.last_fence.map_or(0, |fence| fence.1);
        let next = if mutant(Mutant::FenceStands) { last.max(1) } else { last + 1 };
        Ok(Lease {
            boot_id: self.now.boot_id.clone(),
            expires_boot_ms: self.expiry(lease_ms)?,
            fence: Fence(self.view.epoch, next),
            owner: worker.clone(),
        })
    }

    fn expiry(&self, lease_ms: u64) -> Result<u64, Refused> {
        match lease_ms {
            ..limits::LEASE_MS_MIN => Err(Refused::LimitExceeded("lease_ms_min")),
            limits::LEASE_MS_MIN..=limits::LEASE_MS_MAX => Ok(self.now.boot_ms.saturating_add(lease_ms)),
            _ => Err(Refused::LimitExceeded("lease_ms_max")),
        }
    }

    /// Only the row moves.
    pub(super) fn heartbeat(&self, claim: &Claim, lease_ms: u64) -> Result<Decided, Refused> {
        let step = self.held(claim)?;
        let lease = Lease {
            boot_id: self.now.boot_id.clone(),
            expires_boot_ms: self.expiry(lease_ms)?,
            fence: claim.fence,
            owner: step.owner.clone().ok_or(Refused::NoSuchStep)?,
        };
        Ok(Decided { lease: Some(LeaseChange::Set(claim.step, lease)), ..Decided::nothing() })
    }

    /// Given back without an outcome; it costs no attempt.
    pub(super) fn release(&self, claim: &Claim, reason: ReleaseReason) -> Result<Decided, Refused> {
        let step = self.held(claim)?;
        self.check_no_running_write(step)?;
        let mut decided =
            Decided::of(vec![self.step_draft(LeaseReleased { reason }, step, Some(claim.fence))]);
        decided.lease = Some(LeaseChange::Drop(claim.step));
        self.finish_cancel(step.id, &mut decided)?;
        Ok(decided)
    }

    /// The step is taken back. A claim that committed nothing costs an attempt, so that a step that kills
    /// its workers ends as failed.
    pub(super) fn recover(&self, id: StepId) -> Result<Decided, Refused> {
        let run = self.open_run()?;
        let step = self.step(id)?;
        let (StepStatus::Running, Some(owner)) = (step.status, &step.owner) else {
            return Err(Refused::StepStatus(step.status));
        };
        if !self.is_lost(step, owner) {
            return Err(Refused::LeaseLive);
        }
        let expired = LeaseExpired { owner: owner.clone(), progressed: step.progressed };
        let mut decided = Decided::of(vec![self.step_draft(expired, step, None)]);
        decided.lease = Some(LeaseChange::Drop(id));
        let gone = self.view.gone.contains(owner) || self.is_of_another_boot(id);
        self.doubt_running_writes(step, DoubtCause::Crashed, gone, &mut decided);
        let exhausted = !step.progressed && step.failed_tries + 1 >= step.retry.max_attempts;
        if run.cancel_requested {
            self.finish_cancel(id, &mut decided)?;
        } else if exhausted && !mutant(Mutant::AttemptsUnlimited) {
            let failure = Failure {
                code: Token::new("attempts_exhausted"),
                error: Name::new("AttemptsExhausted").ok_or(Refused::NoSuchStep)?,
                message: None,
                retryable: false,
                source: FailureSource::Runtime,
            };
            let failed = StepFailed { ended_by: Vec::new(), failure };
            self.fail_for_good(step, failed, Vec::new(), None, &mut decided)?;
        }
        Ok(decided)
    }

    fn is_of_another_boot(&self, step: StepId) -> bool {
        self.view.leases.get(&step).is_some_and(|lease| lease.boot_id != self.now.boot_id)
    }

    /// Whether nobody holds the step any more: its row is gone or run out, the machine was started
    /// again, or the owner's process is provably gone.
    fn is_lost(&self, step: &Step, owner: &Name) -> bool {
        if mutant(Mutant::RecoverLive) || self.view.gone.contains(owner) {
            return true;
        }
        match self.view.leases.get(&step.id) {
            None => true,
            Some(lease) => {
                let expired = lease.boot_id != self.now.boot_id || lease.expires_boot_ms <= self.now.boot_ms;
                expired || Some(lease.fence) != step.fence
            }
        }
    }
}
