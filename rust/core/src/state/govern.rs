//! The fold of approvals, grants and a run's account.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::calls::Placed;
use crate::contracts::approval::{ApprovalDecisionKind, ApprovalLifecycleStatus};
use crate::contracts::capability::Constraint;
use crate::ids::{ApprovalId, CallId, RunId};
use crate::records::{
    Amounts, ApprovalDigest, ApprovalRequested, GrantBound, GrantCreated, GrantScope, Name,
};

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
    /// Who was told of it, and how that went.
    #[serde(default)]
    pub dispatched: BTreeMap<Name, ApprovalLifecycleStatus>,
    /// An approver has put other arguments in the place of these: the call goes through the rooms with them.
    #[serde(default)]
    pub edited: bool,
    pub expires_at: u64,
    pub quorum: u32,
    pub requested: ApprovalRequested,
    /// What the votes for the session would allow.
    #[serde(default)]
    pub scopes: Vec<GrantScope>,
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
            dispatched: BTreeMap::new(),
            edited: false,
            expires_at: requested.expires_at,
            quorum: requested.quorum,
            requested: requested.clone(),
            scopes: Vec::new(),
            state: ApprovalState::Pending,
            votes: BTreeMap::new(),
        }
    }
}

/// Leave to use a tool.
#[serde_with_macros::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct GrantState {
    /// The request that it answers, and what is bound to it.
    pub approval: Option<(ApprovalId, ApprovalDigest)>,
    /// Of a session's: what it dies with.
    pub bound: Option<GrantBound>,
    #[serde(default)]
    pub constraints: Vec<Constraint>,
    pub expires_at: u64,
    pub revoked: bool,
    /// The calls that have spent it; one call spends it once, however often it is dispatched.
    pub spent_by: Vec<CallId>,
    pub tool: Name,
    pub uses: u32,
}

impl GrantState {
    pub(crate) fn new(created: &GrantCreated) -> Self {
        Self {
            approval: created.approval.zip(created.digest),
            bound: created.bound.clone(),
            constraints: created.constraints.clone(),
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
    /// What people gave beyond the budget.
    #[serde(default, skip_serializing_if = "is_nothing")]
    pub raised: Amounts,
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

fn is_nothing(amounts: &Amounts) -> bool {
    *amounts == Amounts::default()
}

/// Adds amounts; an absent amount is none.
pub(super) fn add(total: &mut Amounts, more: &Amounts) {
    let most = u64::try_from(crate::limits::INTEGER_MAX).unwrap_or(u64::MAX);
    let plus = |a: Option<u64>, b: Option<u64>| -> Option<u64> {
        match (a, b) {
            (None, None) => None,
            // Kept within what JSON can say: a sum beyond it could not be kept at all.
            (a, b) => Some(a.unwrap_or(0).saturating_add(b.unwrap_or(0)).min(most)),
        }
    };
    total.children = plus(total.children, more.children);
    total.tokens = plus(total.tokens, more.tokens);
    total.tool_calls = plus(total.tool_calls, more.tool_calls);
    total.usd_micros = plus(total.usd_micros, more.usd_micros);
}
