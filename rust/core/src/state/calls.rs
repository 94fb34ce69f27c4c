//! The fold of a call: its phase, its outcome, and what replay does with that outcome.

use serde::{Deserialize, Serialize};

use crate::content::{CallDigest, Content};
use crate::ids::{CallId, StepId};
use crate::mutants::{Mutant, mutant};
use crate::records::{CallKind, CallOpened, CallSketch, DoubtCause, EffectClass, EffectStatus, Key, Name};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CallPhase {
    /// Not sent off: being decided, or waiting.
    Open,
    /// A permit left and no outcome is known yet.
    Started,
    /// It may or may not have happened; `doubt` says why.
    Doubted,
    Settled,
    /// Recorded, and no longer made by the code; a person accepted that.
    Abandoned,
}

/// How a call ended, as far as replay must tell it apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    Succeeded,
    /// Its result is not what it declared, or cannot be recorded.
    Unrecordable,
    WriteFailed,
    ReadFailed,
    NoEffect,
    Cancelled,
    Compensated,
    DeniedByPerson,
    DeniedByRule,
}

impl Outcome {
    pub const ALL: &'static [Self] = &[
        Self::Succeeded,
        Self::Unrecordable,
        Self::WriteFailed,
        Self::ReadFailed,
        Self::NoEffect,
        Self::Cancelled,
        Self::Compensated,
        Self::DeniedByPerson,
        Self::DeniedByRule,
    ];

    pub(super) fn settled(status: EffectStatus, effect: EffectClass, output_error: bool) -> Self {
        match status {
            EffectStatus::Succeeded if output_error => Self::Unrecordable,
            EffectStatus::Succeeded => Self::Succeeded,
            EffectStatus::Failed if effect == EffectClass::Write => Self::WriteFailed,
            EffectStatus::Failed | EffectStatus::TimedOut => Self::ReadFailed,
            EffectStatus::NoEffect => Self::NoEffect,
            EffectStatus::Cancelled => Self::Cancelled,
        }
    }
}

/// Why the code is being run again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Situation {
    /// After a crash or a wait.
    Resumed,
    /// After `step.retry_scheduled`.
    Retried {
        /// The call is among those that ended the attempt.
        ended_attempt: bool,
        /// A write or a commit of the step was opened after it.
        write_after: bool,
    },
    /// After `run.retried`.
    RunRetried,
}

/// What replay does with a recorded outcome.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Replay {
    Served,
    /// The same call and key once more.
    RunAgain,
    /// Hooks, policy and approvers are asked once more.
    AskedAgain,
}

/// The replay table.
pub fn replay(outcome: Outcome, situation: Situation) -> Replay {
    match (outcome, situation) {
        (Outcome::NoEffect, _) => Replay::RunAgain,
        (Outcome::ReadFailed, Situation::Retried { ended_attempt: true, write_after: false }) => {
            Replay::RunAgain
        }
        (Outcome::WriteFailed, Situation::Retried { .. }) if mutant(Mutant::RerunFailedWrite) => {
            Replay::RunAgain
        }
        (Outcome::DeniedByRule, Situation::RunRetried) => Replay::AskedAgain,
        (
            Outcome::Succeeded
            | Outcome::Unrecordable
            | Outcome::WriteFailed
            | Outcome::ReadFailed
            | Outcome::Cancelled
            | Outcome::Compensated
            | Outcome::DeniedByPerson
            | Outcome::DeniedByRule,
            _,
        ) => Replay::Served,
    }
}

/// A late report.
#[serde_with_macros::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Late {
    pub result: Option<Content>,
    pub status: EffectStatus,
}

/// One call.
#[serde_with_macros::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Call {
    pub arguments: Content,
    /// The await was cancelled: at which position, after how long. Void after a scheduled retry.
    pub await_cancelled: Option<(u64, u64)>,
    pub digest: CallDigest,
    /// How often it was sent off.
    pub dispatch: u32,
    pub doubt: Option<DoubtCause>,
    pub effect: EffectClass,
    /// When its timer fires.
    pub fires_at: Option<u64>,
    pub id: CallId,
    pub key: Option<Key>,
    pub kind: CallKind,
    pub lane: Name,
    /// What a worker that had lost its lease reported.
    pub late: Option<Late>,
    pub name: Name,
    pub opened: u64,
    pub outcome: Option<Outcome>,
    /// The position of its outcome: the order in which outcomes reach agent code.
    pub outcome_at: Option<u64>,
    /// The idempotency key of its permits, the same in all of them, and how long it protects.
    pub permit_key: Option<Key>,
    pub permit_key_ttl_ms: Option<u64>,
    pub phase: CallPhase,
    pub result: Option<Content>,
    /// Replay sends it off, or asks about it, once more.
    pub rerun: bool,
    pub step: StepId,
}

impl Call {
    pub(super) fn new(id: CallId, step: StepId, lane: Name, position: u64, opened: &CallOpened) -> Self {
        Self {
            arguments: opened.arguments.clone(),
            await_cancelled: None,
            digest: opened.call_digest,
            dispatch: 0,
            doubt: None,
            effect: opened.effect,
            fires_at: None,
            id,
            key: opened.key.clone(),
            kind: opened.kind,
            lane,
            late: None,
            name: opened.name.clone(),
            opened: position,
            outcome: None,
            outcome_at: None,
            permit_key: None,
            permit_key_ttl_ms: None,
            phase: CallPhase::Open,
            result: None,
            rerun: false,
            step,
        }
    }

    /// The outcome that a settled status is for this call.
    pub(super) fn outcome_of(&self, status: EffectStatus, output_error: bool) -> Outcome {
        Outcome::settled(status, self.effect, output_error)
    }

    pub(super) fn settle(&mut self, position: u64, outcome: Outcome, result: Option<&Content>) {
        self.phase = CallPhase::Settled;
        self.doubt = None;
        self.outcome = Some(outcome);
        self.rerun = outcome == Outcome::NoEffect;
        // A read that runs again keeps the place of its first outcome.
        self.outcome_at = self.outcome_at.or(Some(position));
        self.result = result.cloned();
    }

    /// Nothing has been sent off, so it can still be denied or done by its own frame.
    pub fn is_undecided(&self) -> bool {
        self.phase == CallPhase::Open || (self.phase == CallPhase::Settled && self.rerun)
    }

    /// A write that was sent off and whose outcome is not known.
    pub fn is_open_write(&self) -> bool {
        self.effect == EffectClass::Write && matches!(self.phase, CallPhase::Started | CallPhase::Doubted)
    }

    /// Whether a replaying step must account for it.
    pub fn must_be_claimed(&self) -> bool {
        self.kind.acts(self.effect) && self.phase != CallPhase::Abandoned
    }

    pub fn sketch(&self) -> CallSketch {
        CallSketch {
            call: Some(self.id),
            call_digest: self.digest,
            effect: self.effect,
            kind: self.kind,
            lane: self.lane.clone(),
            name: self.name.clone(),
        }
    }
}
