//! Facts about calls and their effects.

use super::common::{Amounts, EffectClass, Failure, Key, Name, PolicyDigest, Risk, SchemaDigest, Text};
use super::govern::SandboxTier;
use super::macros::{facts, tokens};
use crate::content::{CallDigest, Content};
use crate::ids::{CallId, CapabilityId, GrantId, RunId};

tokens! {
    /// What agent code asked for. The first group is matched by content, the second by its place.
    pub enum CallKind {
        Tool = "tool",
        Model = "model",
        Task = "task",
        Child = "child",
        Step = "step",
        Approval = "approval",
        Artifact = "artifact",
        Media = "media",
        Message = "message",
        Now = "now",
        Timer = "timer",
        Signal = "signal",
        Receive = "receive",
        Commit = "commit",
        Cost = "cost",
        Log = "log",
        Checkpoint = "checkpoint",
        ModelCall = "model_call",
    }
    /// How far an explicit key reaches.
    pub enum KeyScope {
        Run = "run",
        Store = "store",
    }
    pub enum AbandonReason {
        /// A person accepted a divergence; this call was recorded and not made again.
        Accepted = "accepted",
        RunEnded = "run_ended",
    }
    /// How an effect ended, when that is known.
    pub enum EffectStatus {
        Succeeded = "succeeded",
        /// It happened, and failed in a known way.
        Failed = "failed",
        /// It provably did not happen.
        NoEffect = "no_effect",
        Cancelled = "cancelled",
        /// Reads only: a write that timed out is in doubt.
        TimedOut = "timed_out",
    }
    /// Why nobody knows.
    pub enum DoubtCause {
        Raised = "raised",
        TimedOut = "timed_out",
        Crashed = "crashed",
        Fenced = "fenced",
    }
    pub enum Resolution {
        Happened = "happened",
        DidNotHappen = "did_not_happen",
        Late = "late",
        Compensated = "compensated",
    }
    pub enum ResolvedBy {
        Reconcile = "reconcile",
        Operator = "operator",
        LateReport = "late_report",
        Compensation = "compensation",
    }
}

/// How a kind of call is found again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum By {
    /// Kind, name and digest of the arguments.
    Content,
    /// Lane, kind and the how-manieth.
    Place,
}

impl CallKind {
    pub fn matched_by(self) -> By {
        match self {
            Self::Tool
            | Self::Model
            | Self::Task
            | Self::Child
            | Self::Step
            | Self::Approval
            | Self::Artifact
            | Self::Media
            | Self::Message => By::Content,
            Self::Now
            | Self::Timer
            | Self::Signal
            | Self::Receive
            | Self::Commit
            | Self::Cost
            | Self::Log
            | Self::Checkpoint
            | Self::ModelCall => By::Place,
        }
    }

    /// Whether making it once more, or not at all, changes something outside the step.
    pub fn acts(self, effect: EffectClass) -> bool {
        effect == EffectClass::Write
            || matches!(self, Self::Commit | Self::Child | Self::Message | Self::Step)
    }
}

facts! {
    /// `call.opened`.
    pub struct CallOpened {
        pub arguments: Content,
        pub call_digest: CallDigest,
        /// The one that it uses.
        pub capability: Option<CapabilityId>,
        pub effect: EffectClass,
        pub key: Option<Key>,
        pub key_scope: Option<KeyScope>,
        /// How long a key of the whole store is kept.
        pub key_ttl_ms: Option<u64>,
        pub kind: CallKind,
        pub name: Name,
        pub risk: Risk,
        pub schema: Option<SchemaDigest>,
        pub version: Option<Name>,
    }

    /// `call.cancelled`: the await was cancelled after so long; the effect, if any, goes on.
    pub struct CallCancelled {
        pub elapsed_ms: u64,
    }

    /// `call.abandoned`: replayed code no longer makes it.
    pub struct CallAbandoned {
        pub reason: AbandonReason,
    }

    /// `call.served`: another run did it, under the same key of the store or as the one that this is a fork
    /// of, and its outcome is this call's.
    pub struct CallServed {
        /// The call that did it, and the run that it belongs to.
        pub by_call: CallId,
        pub by_run: RunId,
        pub external_id: Option<Key>,
        pub failure: Option<Failure>,
        pub output_error: Option<Failure>,
        pub result: Option<Content>,
        pub status: EffectStatus,
        /// No hooks have ruled about the result there: it is not the agent's before they have here.
        pub unruled: Option<bool>,
    }

    /// `effect.started`: the permit. No write leaves before this record is behind a barrier.
    pub struct EffectStarted {
        /// What is passed to the tool, after hooks and edits.
        pub arguments: Content,
        /// `start_by` counts on the clock of this boot.
        pub boot_id: Key,
        pub grant: Option<GrantId>,
        /// Stable over dispatches of one call; no content in it.
        pub key: Key,
        /// How long the key protects against a repeat, counted from the first start.
        pub key_ttl_ms: Option<u64>,
        /// The policy that allowed it.
        pub policy: Option<PolicyDigest>,
        pub sandbox: SandboxTier,
        pub schema: Option<SchemaDigest>,
        /// Later than this on the boot clock, the body does not start: `no_effect`.
        pub start_by: u64,
        pub timeout_ms: u64,
        pub version: Option<Name>,
    }

    /// `effect.settled`.
    pub struct EffectSettled {
        pub elapsed_ms: u64,
        /// The other side's id for it; opaque, never a person's data.
        pub external_id: Option<Key>,
        pub failure: Option<Failure>,
        /// It succeeded, but what it returned is not what it declared or cannot be recorded.
        pub output_error: Option<Failure>,
        pub result: Option<Content>,
        pub status: EffectStatus,
        /// Hooks have yet to rule about the result: it is not the agent's before they have.
        pub unruled: Option<bool>,
        pub usage: Option<Amounts>,
    }

    /// `effect.doubted`: it may or may not have happened.
    pub struct EffectDoubted {
        pub cause: DoubtCause,
        pub failure: Option<Failure>,
        /// Whoever had the permit can provably no longer act on it.
        pub over: Option<bool>,
    }

    /// `effect.late`: what a worker that had lost its lease knew about an effect it had started.
    pub struct EffectLate {
        pub external_id: Option<Key>,
        pub failure: Option<Failure>,
        pub result: Option<Content>,
        pub status: EffectStatus,
    }

    /// `effect.resolved`: the end of a doubt.
    pub struct EffectResolved {
        pub external_id: Option<Key>,
        /// Answered although the old permit could still act.
        pub forced: bool,
        pub reason: Option<Content>,
        pub resolution: Resolution,
        pub result: Option<Content>,
        pub source: ResolvedBy,
    }

    /// `effect.compensated`: a write was undone by another call.
    pub struct EffectCompensated {
        pub by: CallId,
        pub reason: Option<Content>,
    }

    /// One side of a divergence: what was recorded, or what was attempted.
    pub struct CallSketch {
        pub call: Option<CallId>,
        pub call_digest: CallDigest,
        pub effect: EffectClass,
        pub kind: CallKind,
        pub lane: Name,
        pub name: Name,
    }

    /// `replay.diverged`: the code no longer does what was recorded. The step waits for a person.
    pub struct ReplayDiverged {
        pub attempted: Option<CallSketch>,
        pub recorded: Vec<CallSketch>,
        pub why: Text,
    }
}
