//! Facts about a run as a whole.

use super::common::{Budget, Failure, Key, Labels, Name, Package, PackagePart, RecordHash};
use super::macros::{facts, tokens};
use crate::content::Content;
use crate::ids::{RunId, SessionId, StepId};

tokens! {
    pub enum RunMode {
        Live = "live",
        /// Another code over a recorded run: effects are served or refused.
        Shadow = "shadow",
        Replay = "replay",
    }
    pub enum RunStatus {
        Pending = "pending",
        Running = "running",
        Waiting = "waiting",
        Paused = "paused",
        Completed = "completed",
        Failed = "failed",
        Cancelled = "cancelled",
    }
    pub enum EndStatus {
        Completed = "completed",
        Failed = "failed",
        Cancelled = "cancelled",
    }
    /// Why a run ended.
    pub enum EndReason {
        Normal = "normal",
        Fault = "fault",
        Quota = "quota",
        Killed = "killed",
        Deadline = "deadline",
        Shutdown = "shutdown",
        Cancelled = "cancelled",
    }
    /// What a fork does with a write that its parent has performed.
    pub enum ForkEffects {
        /// Serve the parent's outcome, or ask.
        Serve = "serve",
        Perform = "perform",
    }
}

facts! {
    /// `run.created`: the first record of a run.
    pub struct RunCreated {
        pub agent: Name,
        pub budget: Option<Budget>,
        pub deadline: Option<u64>,
        pub input: Content,
        /// The caller's own identity for this run.
        pub key: Option<Key>,
        pub labels: Labels,
        pub mode: RunMode,
        pub package: Package,
        pub parent: Option<RunId>,
        pub priority: i32,
        /// It holds only the capabilities that it is given; else all that its agent registered.
        pub restricted: Option<bool>,
        pub role: Name,
        /// Numbers the behaviour of fold, matching and decide.
        pub rules: u32,
        /// Of call digests and random values.
        pub seed: Content,
        pub session: Option<SessionId>,
        pub state: Content,
    }

    /// `run.forked`: the first record of a fork. What precedes it is the parent's prefix up to `at`.
    pub struct RunForked {
        pub at: u64,
        pub depth: u32,
        pub effects: ForkEffects,
        /// The hash of the parent's record `at`.
        pub head: RecordHash,
        pub labels: Labels,
        pub package: Package,
        pub parent: RunId,
        pub reason: Option<Content>,
    }

    /// `run.resumed`: under which package, and what of it changed.
    pub struct RunResumed {
        pub changed: Vec<PackagePart>,
        pub package: Package,
        pub reason: Option<Content>,
    }

    /// `run.retried`: a failed run is open again; these steps are tried again.
    pub struct RunRetried {
        pub reason: Option<Content>,
        pub steps: Vec<StepId>,
    }

    /// `run.paused`.
    pub struct RunPaused {
        pub reason: Option<Content>,
    }

    /// `run.unpaused`.
    pub struct RunUnpaused {
        pub reason: Option<Content>,
    }

    /// `run.cancel_requested`: cooperative first; `run.finished` follows.
    pub struct RunCancelRequested {
        pub reason: Option<Content>,
    }

    /// `run.finished`: the terminal record. Only evidence may follow, or `run.retried` after a failure.
    pub struct RunFinished {
        pub failure: Option<Failure>,
        pub reason: EndReason,
        pub result: Option<Content>,
        pub state_version: u64,
        pub status: EndStatus,
    }
}
