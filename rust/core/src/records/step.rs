//! Facts about steps, their leases and the run's state.

use super::common::{Failure, Key, Name, RetryPolicy};
use super::macros::{facts, tokens};
use crate::content::Content;
use crate::ids::{CallId, StepId};

tokens! {
    /// How a step goes on after a crash.
    pub enum StepKind {
        /// Run again from the top; what was recorded is served.
        Replayed = "replayed",
        /// A framework resumes from its own checkpoint; calls carry their own ids.
        Attached = "attached",
    }
    pub enum StepStatus {
        Pending = "pending",
        Running = "running",
        Waiting = "waiting",
        RetryScheduled = "retry_scheduled",
        Completed = "completed",
        Failed = "failed",
        Cancelled = "cancelled",
    }
    /// What a step can wait for.
    pub enum WaitOn {
        Approval = "approval",
        Timer = "timer",
        Signal = "signal",
        Message = "message",
        Child = "child",
        Doubt = "doubt",
        Budget = "budget",
        Key = "key",
        Divergence = "divergence",
        Package = "package",
        Restored = "restored",
        Interrupted = "interrupted",
        Paused = "paused",
    }
    pub enum ReleaseReason {
        /// The worker is done with it for now.
        Yielded = "yielded",
        Shutdown = "shutdown",
        /// The run was paused under the worker.
        Paused = "paused",
    }
    pub enum StepCancelReason {
        RunCancelled = "run_cancelled",
        /// Another step of the run failed for good.
        SiblingFailed = "sibling_failed",
        RunEnded = "run_ended",
    }
}

facts! {
    /// `step.created`.
    pub struct StepCreated {
        pub after: Vec<StepId>,
        pub concurrency_key: Option<Key>,
        pub input: Option<Content>,
        pub kind: StepKind,
        pub name: Name,
        pub not_before: Option<u64>,
        pub queue: Name,
        pub retry: RetryPolicy,
        pub timeout_ms: Option<u64>,
    }

    /// `step.claimed`: a worker has the step under the record's fence. The lease itself lives in a row.
    pub struct StepClaimed {
        pub lease_ms: u64,
        pub state_version: u64,
        pub worker: Name,
    }

    /// `step.retry_scheduled`: the attempt failed and another follows.
    pub struct StepRetryScheduled {
        /// The calls whose outcomes ended the attempt: the exception, its causes and group members.
        pub ended_by: Vec<CallId>,
        pub failure: Failure,
        pub not_before: u64,
    }

    /// One thing that a step waits for.
    pub struct Wait {
        pub call: Option<CallId>,
        pub on: WaitOn,
        /// What it is about: an approval, a signal's name, a child, a key.
        pub subject: Option<Key>,
        /// When it gives up or fires.
        pub until: Option<u64>,
    }

    /// `step.waiting`: the lease is released; any one of these wakes the step.
    pub struct StepWaiting {
        pub waits: Vec<Wait>,
    }

    /// `step.woken`.
    pub struct StepWoken {
        pub on: WaitOn,
        pub subject: Option<Key>,
    }

    /// `step.completed`.
    pub struct StepCompleted {
        pub result: Option<Content>,
    }

    /// `step.failed`: for good.
    pub struct StepFailed {
        /// As in `step.retry_scheduled`.
        pub ended_by: Vec<CallId>,
        pub failure: Failure,
    }

    /// `step.cancelled`.
    pub struct StepCancelled {
        pub reason: StepCancelReason,
    }

    /// `lease.expired`: found by whoever recovered the step.
    pub struct LeaseExpired {
        pub owner: Name,
        /// Whether that claim had committed anything; if not, it costs an attempt.
        pub progressed: bool,
    }

    /// `lease.released`: given back without an outcome.
    pub struct LeaseReleased {
        pub reason: ReleaseReason,
    }

    /// `state.patched`: an RFC 7396 merge patch that leads from version `base` to `next`.
    pub struct StatePatched {
        pub base: u64,
        pub next: u64,
        pub patch: Content,
    }

    /// `state.conflict`: a patch that was made for another version.
    pub struct StateConflict {
        pub actual: u64,
        pub expected: u64,
    }
}
