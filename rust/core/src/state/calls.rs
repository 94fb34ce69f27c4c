//! The fold of a call: its phase, its outcome, and what replay does with that outcome.

use serde::{Deserialize, Serialize};

use crate::call::{CallEvent, CallPhase, Traits, call_after};
use crate::content::{CallDigest, Content};
use crate::contracts::policy::Decision;
use crate::ids::{CallId, StepId};
use crate::limits;
use crate::mutants::{Mutant, mutant};
use crate::records::{
    CallKind, CallOpened, CallSketch, DoubtCause, EffectClass, EffectStatus, Failure, Fence, Key, KeyScope,
    Name, PolicyDigest, Privacy, Reason, Risk, SandboxTier, SchemaDigest,
};

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
    /// A commit for another version of the state.
    Conflict,
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
        Self::Conflict,
        Self::DeniedByPerson,
        Self::DeniedByRule,
    ];

    /// Whether it is the outcome of everybody who comes with the same key of the store.
    pub fn is_kept(self) -> bool {
        matches!(self, Self::Succeeded | Self::Unrecordable | Self::WriteFailed)
    }

    pub(super) fn settled(status: EffectStatus, effect: EffectClass, output_error: bool) -> Self {
        match status {
            EffectStatus::Succeeded if output_error => Self::Unrecordable,
            EffectStatus::Succeeded => Self::Succeeded,
            // A child that failed stays so: asking once more would hear the same.
            EffectStatus::Failed if matches!(effect, EffectClass::Write | EffectClass::Internal) => {
                Self::WriteFailed
            }
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
        // The next try sees the state as it is.
        (Outcome::Conflict, Situation::Retried { ended_attempt: true, .. }) => Replay::RunAgain,
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
            | Outcome::Conflict
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
    pub position: u64,
    pub result: Option<Content>,
    pub status: EffectStatus,
}

/// When and where a permit left, and how long it may act.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Permitted {
    /// The time of the record.
    pub at: u64,
    pub boot_id: Key,
    pub fence: Option<Fence>,
    /// Whoever had it can no longer act on it.
    pub over: bool,
    pub sandbox: SandboxTier,
    pub schema: Option<SchemaDigest>,
    pub start_by: u64,
    pub timeout_ms: u64,
    pub version: Option<Name>,
}

impl Permitted {
    /// When it can no longer act, on the clock of its boot.
    pub fn end(&self) -> u64 {
        let body = self.start_by.saturating_add(self.timeout_ms);
        body.saturating_add(limits::PERMIT_GRACE_MS)
    }
}

/// A content, and the position of the record that holds it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Placed {
    pub content: Content,
    pub position: u64,
}

/// One call.
#[serde_with_macros::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Call {
    pub arguments: Content,
    /// The await was cancelled: at which position, after how long. Void after a scheduled retry.
    pub await_cancelled: Option<(u64, u64)>,
    /// What policy said last, and which policy.
    pub decided: Option<(Decision, PolicyDigest)>,
    pub digest: CallDigest,
    /// How often it was sent off.
    pub dispatch: u32,
    pub doubt: Option<DoubtCause>,
    pub effect: EffectClass,
    /// What was passed to the tool, after hooks and edits.
    pub effective: Option<Placed>,
    pub external_id: Option<Key>,
    pub failure: Option<Failure>,
    /// When its timer fires.
    pub fires_at: Option<u64>,
    /// The permit that left first: what its key protects is counted from there.
    pub first_permit: Option<Permitted>,
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
    pub output_error: Option<Failure>,
    /// Of the permits before the newest one that nobody knows to be over, the one that may act longest.
    pub older_permit: Option<Permitted>,
    /// The newest permit.
    pub permit: Option<Permitted>,
    /// The idempotency key of its permits, the same in all of them, and how long it protects.
    pub permit_key: Option<Key>,
    pub permit_key_ttl_ms: Option<u64>,
    pub phase: CallPhase,
    /// Why it was denied.
    #[serde(default)]
    pub reasons: Vec<Reason>,
    /// What people are not shown of its arguments.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub redacted: Vec<Name>,
    pub result: Option<Content>,
    /// The position of the record that says how it ended.
    pub result_at: Option<u64>,
    /// Replay sends it off, or asks about it, once more.
    pub rerun: bool,
    pub risk: Risk,
    pub schema: Option<SchemaDigest>,
    /// Another run did it: under the same key of the store, or as the one that this is a fork of.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub served: bool,
    /// Of what the run has done that this is a fork of, the call that this one was served.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub served_by: Option<CallId>,
    /// Its key is one of the whole store, and is kept for so long.
    pub shared_ms: Option<u64>,
    pub step: StepId,
    /// When something was last said about it, if its key is one of the whole store.
    pub told_ms: Option<u64>,
    /// An older dispatch of it was in doubt when the newest one left: why.
    pub unresolved: Option<DoubtCause>,
    /// Hooks have yet to rule about its result.
    #[serde(default)]
    pub unruled: bool,
    pub version: Option<Name>,
}

/// How long the key of a call is kept, if it is one of the whole store.
fn shared_ms(opened: &CallOpened) -> Option<u64> {
    let shared = opened.key.is_some() && opened.key_scope == Some(KeyScope::Store);
    shared.then(|| opened.key_ttl_ms.unwrap_or(limits::SHARED_KEY_MS))
}

/// A key of the whole store that a call holds: nobody else does under it what this call did, or may have done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Holding<'c> {
    pub key: &'c Key,
    /// Its outcome is known, and is everybody's who comes with the key.
    pub settled: bool,
    /// When it is given up, once it has settled.
    pub until: u64,
}

impl Call {
    /// The key of the store that it holds. A write has it from its permit on until it is given up; what provably
    /// did nothing, and what was undone, leave it to others. A read has it once there is something to serve: who
    /// reads at the same time does no harm. What a fork inherited, the run that it came from holds, and what was
    /// served the run that did it.
    pub fn holding(&self, base: u64) -> Option<Holding<'_>> {
        let (key, ms) = (self.key.as_ref()?, self.shared_ms?);
        let own = self.effective.as_ref().is_some_and(|sent| sent.position > base);
        let (held, settled) = match (self.phase, self.outcome) {
            (CallPhase::Open, _) => (false, false),
            (CallPhase::Started | CallPhase::Doubted, _) | (CallPhase::Settled, None) => {
                (self.effect == EffectClass::Write, false)
            }
            // Nobody will say what came of it: whoever comes is told that.
            (CallPhase::Abandoned, None) => (self.effect == EffectClass::Write, true),
            (CallPhase::Settled | CallPhase::Abandoned, Some(outcome)) => {
                (outcome.is_kept() && !self.rerun, true)
            }
        };
        let until = self.told_ms.unwrap_or(0).saturating_add(ms);
        (own && held && !self.served).then_some(Holding { key, settled, until })
    }

    /// Whether nothing has been sent off for it, or what was provably did nothing.
    pub fn is_unsent(&self) -> bool {
        match self.phase {
            CallPhase::Open => true,
            CallPhase::Settled => self.rerun,
            CallPhase::Started | CallPhase::Doubted | CallPhase::Abandoned => false,
        }
    }

    /// Whether it is a write that happened, or may have, here or where it was served from.
    pub fn may_have_happened(&self) -> bool {
        let sent = self.dispatch > 0 || self.served;
        self.effect == EffectClass::Write && sent && self.outcome != Some(Outcome::NoEffect)
    }

    /// How private what it was given is.
    pub(crate) fn sent_privacy(&self) -> Privacy {
        let sent = self.effective.as_ref().map_or(self.arguments.privacy, |sent| sent.content.privacy);
        sent.max(self.arguments.privacy)
    }

    /// Given up by an accepted divergence after something had come of it: that is served under its key, and
    /// nothing is made anew. What provably did not happen is nothing.
    pub(crate) fn left_outcome(&self) -> bool {
        self.phase == CallPhase::Abandoned && self.outcome.is_some() && !self.rerun
    }

    pub(super) fn new(id: CallId, step: StepId, lane: Name, position: u64, opened: &CallOpened) -> Self {
        Self {
            arguments: opened.arguments.clone(),
            await_cancelled: None,
            decided: None,
            digest: opened.call_digest,
            dispatch: 0,
            doubt: None,
            effect: opened.effect,
            effective: None,
            external_id: None,
            failure: None,
            fires_at: None,
            first_permit: None,
            id,
            key: opened.key.clone(),
            kind: opened.kind,
            lane,
            late: None,
            name: opened.name.clone(),
            opened: position,
            outcome: None,
            outcome_at: None,
            output_error: None,
            older_permit: None,
            permit: None,
            permit_key: None,
            permit_key_ttl_ms: None,
            phase: CallPhase::Open,
            reasons: Vec::new(),
            redacted: Vec::new(),
            result: None,
            result_at: None,
            rerun: false,
            risk: opened.risk,
            schema: opened.schema,
            served: false,
            served_by: None,
            shared_ms: shared_ms(opened),
            step,
            told_ms: None,
            unresolved: None,
            unruled: false,
            version: opened.version.clone(),
        }
    }

    /// What the table of calls must know of it.
    pub fn traits(&self) -> Traits {
        let (keyed, unresolved) = (self.permit_key_ttl_ms.is_some(), self.unresolved.is_some());
        Traits { effect: self.effect, keyed, rerun: self.rerun, unresolved }
    }

    /// Where an event would lead, if it is legal now.
    pub fn after(&self, event: CallEvent) -> Option<CallPhase> {
        call_after(self.phase, self.traits(), event)
    }

    /// Whether an event is legal now.
    pub fn allows(&self, event: CallEvent) -> bool {
        self.after(event).is_some()
    }

    /// The outcome that a settled status is for this call.
    pub(super) fn outcome_of(&self, status: EffectStatus, output_error: bool) -> Outcome {
        Outcome::settled(status, self.effect, output_error)
    }

    pub(super) fn settle(&mut self, position: u64, outcome: Outcome, result: Option<&Content>) {
        self.phase = CallPhase::Settled;
        (self.doubt, self.unresolved) = (None, None);
        self.outcome = Some(outcome);
        self.rerun = outcome == Outcome::NoEffect;
        // A read that runs again keeps the place of its first outcome.
        self.outcome_at = self.outcome_at.or(Some(position));
        self.result_at = Some(position);
        self.result = result.cloned();
        (self.failure, self.output_error, self.unruled) = (None, None, false);
        self.reasons.clear();
    }

    /// Whether a report about the newest dispatch says how the whole call ended: that it did nothing does not,
    /// while an older one is in doubt.
    pub fn ends_doubt(&self, status: EffectStatus) -> bool {
        let nothing = matches!(status, EffectStatus::NoEffect | EffectStatus::Cancelled);
        !(nothing && self.unresolved.is_some()) || mutant(Mutant::ForgetDoubt)
    }

    /// Nothing has been sent off, so it can still be denied or done by its own frame.
    pub fn is_undecided(&self) -> bool {
        self.allows(CallEvent::Denied)
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
