//! The tables of legal transitions, one per machine. `decide` and the fold both ask here; what is not
//! in a table is refused by the one and called illegal by the other.

use crate::mutants::{Mutant, mutant};
use crate::records::{EndStatus, StepStatus};

/// What can happen to a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StepEvent {
    Claimed,
    Expired,
    Released,
    RetryScheduled,
    Waiting,
    Woken,
    Completed,
    Failed,
    Cancelled,
    Reopened,
}

impl StepEvent {
    pub const ALL: &'static [Self] = &[
        Self::Claimed,
        Self::Expired,
        Self::Released,
        Self::RetryScheduled,
        Self::Waiting,
        Self::Woken,
        Self::Completed,
        Self::Failed,
        Self::Cancelled,
        Self::Reopened,
    ];
}

/// A step after an event, if the event is legal.
pub fn step_after(status: StepStatus, event: StepEvent) -> Option<StepStatus> {
    use StepEvent as E;
    use StepStatus as S;
    match (status, event) {
        (S::Pending | S::RetryScheduled, E::Claimed) => Some(S::Running),
        (S::Running, E::Expired | E::Released) | (S::Waiting, E::Woken) => Some(S::Pending),
        (S::Running, E::RetryScheduled) => Some(S::RetryScheduled),
        // Not only a running step waits: one can be parked before its next claim.
        (S::Running | S::Pending | S::RetryScheduled, E::Waiting) => Some(S::Waiting),
        (S::Running, E::Completed) => Some(S::Completed),
        // A step whose last lease expired without progress fails after it is pending again.
        (S::Running | S::Pending, E::Failed) => Some(S::Failed),
        (S::Pending | S::Running | S::Waiting | S::RetryScheduled, E::Cancelled) => Some(S::Cancelled),
        (S::Failed | S::Cancelled, E::Reopened) => Some(S::Pending),
        (S::Completed, E::Cancelled) if mutant(Mutant::CancelCompletedStep) => Some(S::Cancelled),
        (
            S::Pending
            | S::Running
            | S::Waiting
            | S::RetryScheduled
            | S::Completed
            | S::Failed
            | S::Cancelled,
            E::Claimed
            | E::Expired
            | E::Released
            | E::RetryScheduled
            | E::Waiting
            | E::Woken
            | E::Completed
            | E::Failed
            | E::Cancelled
            | E::Reopened,
        ) => None,
    }
}

/// Where a run stands between its beginning and its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RunPhase {
    Open,
    Paused,
    Completed,
    Failed,
    Cancelled,
}

impl RunPhase {
    pub const ALL: &'static [Self] =
        &[Self::Open, Self::Paused, Self::Completed, Self::Failed, Self::Cancelled];

    pub fn is_ended(self) -> bool {
        matches!(self, Self::Completed | Self::Failed | Self::Cancelled)
    }
}

/// What can happen to a run as a whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RunEvent {
    Paused,
    Unpaused,
    CancelRequested,
    Finished(EndStatus),
    Retried,
}

impl RunEvent {
    pub const ALL: &'static [Self] = &[
        Self::Paused,
        Self::Unpaused,
        Self::CancelRequested,
        Self::Finished(EndStatus::Completed),
        Self::Finished(EndStatus::Failed),
        Self::Finished(EndStatus::Cancelled),
        Self::Retried,
    ];
}

/// A run after an event, if the event is legal. `completed` and `cancelled` are final.
pub fn run_after(phase: RunPhase, event: RunEvent) -> Option<RunPhase> {
    use RunEvent as E;
    use RunPhase as P;
    match (phase, event) {
        (P::Open, E::Paused) => Some(P::Paused),
        (P::Paused, E::Unpaused) | (P::Failed, E::Retried) => Some(P::Open),
        (P::Open | P::Paused, E::CancelRequested) => Some(phase),
        (P::Open | P::Paused, E::Finished(EndStatus::Completed)) => Some(P::Completed),
        (P::Open | P::Paused, E::Finished(EndStatus::Failed)) => Some(P::Failed),
        (P::Open | P::Paused, E::Finished(EndStatus::Cancelled)) => Some(P::Cancelled),
        (P::Completed | P::Cancelled, E::Retried) if mutant(Mutant::RetryAnyEnd) => Some(P::Open),
        (
            P::Open | P::Paused | P::Completed | P::Failed | P::Cancelled,
            E::Paused | E::Unpaused | E::CancelRequested | E::Finished(_) | E::Retried,
        ) => None,
    }
}
