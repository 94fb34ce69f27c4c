//! The fold of approvals, grants and a run's account.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::contracts::approval::ApprovalDecisionKind;
use crate::ids::{CallId, RunId};
use crate::records::{Amounts, ApprovalDigest, GrantCreated, Name};

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

/// One request for approval.
#[serde_with_macros::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Approval {
    pub call: Option<CallId>,
    pub digest: ApprovalDigest,
    pub expires_at: u64,
    pub quorum: u32,
    pub state: ApprovalState,
    /// Who has voted how since the request or its last edit.
    pub votes: BTreeMap<Name, ApprovalDecisionKind>,
}

/// Leave to use a tool.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct GrantState {
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
            expires_at: created.expires_at,
            revoked: false,
            spent_by: Vec::new(),
            tool: created.tool.clone(),
            uses: created.uses,
        }
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
