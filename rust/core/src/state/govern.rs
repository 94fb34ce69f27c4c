//! The fold of approvals, grants and a run's account.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::calls::Placed;
use crate::contracts::approval::ApprovalDecisionKind;
use crate::ids::{ApprovalId, CallId, RunId};
use crate::records::{Amounts, ApprovalDigest, ApprovalRequested, GrantCreated, Name};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ApprovalState {
    Pending,
    Approved,
    ApprovedForSession,
    Denied,
    TimedOut,
    Superseded,
    Cancelled,
}

impl ApprovalState {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Approved => "approved",
            Self::ApprovedForSession => "approved_for_session",
            Self::Denied => "denied",
            Self::TimedOut => "timed_out",
            Self::Superseded => "superseded",
            Self::Cancelled => "cancelled",
        }
    }
}

/// One request for approval: what was asked, and how it stands.
#[serde_with_macros::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Approval {
    /// What would be passed to the tool; the newest edit of it.
    pub arguments: Placed,
    pub call: Option<CallId>,
    pub digest: ApprovalDigest,
    pub expires_at: u64,
    pub quorum: u32,
    pub requested: ApprovalRequested,
    pub state: ApprovalState,
    /// Who has voted how since the request or its last edit.
    pub votes: BTreeMap<Name, ApprovalDecisionKind>,
}

impl Approval {
    pub(super) fn new(call: Option<CallId>, position: u64, requested: &ApprovalRequested) -> Self {
        Self {
            arguments: Placed { content: requested.arguments.clone(), position },
            call,
            digest: requested.digest,
            expires_at: requested.expires_at,
            quorum: requested.quorum,
            requested: requested.clone(),
            state: ApprovalState::Pending,
            votes: BTreeMap::new(),
        }
    }
}

/// Leave to use a tool.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct GrantState {
    /// The request that it answers, and what is bound to it.
    pub approval: Option<(ApprovalId, ApprovalDigest)>,
    pub expires_at: u64,
    pub revoked: bool,
    /// The calls that have spent it; one call spends it once, however often it is dispatched.
    pub spent_by: Vec<CallId>,
    pub tool: Name,
    pub uses: u32,
}

impl GrantState {
    pub(super) fn new(created: &GrantCreated) -> Self {
        Self {
            approval: created.approval.zip(created.digest),
            expires_at: created.expires_at,
            revoked: false,
            spent_by: Vec::new(),
            tool: created.tool.clone(),
            uses: created.uses,
        }
    }

    /// How many calls may still spend it.
    pub fn left(&self) -> u32 {
        self.uses.saturating_sub(u32::try_from(self.spent_by.len()).unwrap_or(u32::MAX))
    }
}

/// A run's account: what is used, what is set aside for running calls, what children hold.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Spending {
    pub escrowed: BTreeMap<RunId, Amounts>,
    pub reserved: BTreeMap<CallId, Amounts>,
    pub used: Amounts,
}

impl Spending {
    /// What is used, set aside or held by children.
    pub(crate) fn taken(&self) -> Amounts {
        let mut taken = self.used.clone();
        self.reserved.values().chain(self.escrowed.values()).for_each(|amounts| add(&mut taken, amounts));
        taken
    }
}

/// Adds amounts; an absent amount is none.
pub(super) fn add(total: &mut Amounts, more: &Amounts) {
    fn plus(a: Option<u64>, b: Option<u64>) -> Option<u64> {
        match (a, b) {
            (None, None) => None,
            (a, b) => Some(a.unwrap_or(0).saturating_add(b.unwrap_or(0))),
        }
    }
    total.children = plus(total.children, more.children);
    total.tokens = plus(total.tokens, more.tokens);
    total.tool_calls = plus(total.tool_calls, more.tool_calls);
    total.usd_micros = plus(total.usd_micros, more.usd_micros);
}
