//! The fold of a step.

use serde::{Deserialize, Serialize};

use super::Illegal;
use crate::content::Content;
use crate::ids::{CallId, StepId};
use crate::records::{Fence, Key, Name, Record, RetryPolicy, StepCreated, StepKind, StepStatus, Wait};
use crate::transitions::{StepEvent, step_after};

/// Where a try that follows a conflict sees the state afresh.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refresh {
    /// After how many commits of the step.
    pub after: u64,
    /// The position of the claim whose state it is: the same in every later try.
    pub position: u64,
    pub version: u64,
}

/// A claimable unit of work.
#[serde_with_macros::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Step {
    pub after: Vec<StepId>,
    /// Grows with every failed try, for ever.
    pub attempt: u32,
    pub concurrency_key: Option<Key>,
    /// The position of the record that made it.
    #[serde(default)]
    pub created: u64,
    /// The calls whose outcomes ended it, once it has failed.
    pub ended_by: Vec<CallId>,
    /// Failed tries since it was created or its run was retried: what `max_attempts` bounds.
    pub failed_tries: u32,
    /// Of the newest claim; it holds while the step is running.
    pub fence: Option<Fence>,
    /// The position of its first claim, and the version of the state then: where its code begins.
    pub first_claim: Option<(u64, u64)>,
    pub id: StepId,
    pub input: Option<Content>,
    pub kind: StepKind,
    pub name: Name,
    pub not_before: Option<u64>,
    pub owner: Option<Name>,
    /// Whether the newest claim has committed anything.
    pub progressed: bool,
    pub queue: Name,
    /// After how many commits the next claim sees the state afresh, if a conflict ended the last one.
    #[serde(default)]
    pub refresh_after: Option<u64>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub refreshes: Vec<Refresh>,
    pub result: Option<Content>,
    pub retry: RetryPolicy,
    pub status: StepStatus,
    pub timeout_ms: Option<u64>,
    pub waits: Vec<Wait>,
}

impl Step {
    pub(super) fn new(id: StepId, position: u64, created: &StepCreated) -> Self {
        Self {
            after: created.after.clone(),
            attempt: 1,
            concurrency_key: created.concurrency_key.clone(),
            created: position,
            ended_by: Vec::new(),
            failed_tries: 0,
            fence: None,
            first_claim: None,
            id,
            input: created.input.clone(),
            kind: created.kind,
            name: created.name.clone(),
            not_before: created.not_before,
            owner: None,
            progressed: false,
            queue: created.queue.clone(),
            refresh_after: None,
            refreshes: Vec::new(),
            result: None,
            retry: created.retry.clone(),
            status: StepStatus::Pending,
            timeout_ms: created.timeout_ms,
            waits: Vec::new(),
        }
    }

    /// Moves on by the table.
    pub(super) fn go(&mut self, event: StepEvent, record: &Record) -> Result<(), Illegal> {
        match step_after(self.status, event) {
            Some(status) => {
                self.status = status;
                Ok(())
            }
            None => Err(Illegal::new(record, "the step's status does not allow it")),
        }
    }

    /// The fence, while it holds.
    pub fn live_fence(&self) -> Option<Fence> {
        self.fence.filter(|_| self.status == StepStatus::Running)
    }

    pub fn is_ended(&self) -> bool {
        matches!(self.status, StepStatus::Completed | StepStatus::Failed | StepStatus::Cancelled)
    }

    /// A claim: where its code begins, and where it goes on with the state as it is now.
    pub(super) fn claimed(&mut self, position: u64, version: u64) {
        self.first_claim.get_or_insert((position, version));
        if let Some(after) = self.refresh_after.take() {
            self.refreshes.retain(|refresh| refresh.after < after);
            self.refreshes.push(Refresh { after, position, version });
        }
    }

    /// A failed try: the next one has another number.
    pub(super) fn count_try(&mut self) {
        self.attempt += 1;
        self.failed_tries += 1;
    }
}
