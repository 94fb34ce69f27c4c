//! Approvals as hosts and dispatchers see them. Tokens of the source contract, in snake_case.

use super::hook::PolicyRef;
use crate::ids::{ApprovalId, CallId, RunId, SessionId};
use crate::records::macros::{facts, tokens};
use crate::records::{Actor, Amounts, EffectClass, Key, Name, Package, Risk, Text, Token};

tokens! {
    pub enum ApprovalDecisionKind {
        Approved = "approved",
        ApprovedForSession = "approved_for_session",
        Denied = "denied",
    }
    pub enum ApprovalLifecycleStatus {
        Requested = "requested",
        DispatchIntentRecorded = "dispatch_intent_recorded",
        Dispatched = "dispatched",
        Approved = "approved",
        ApprovedForSession = "approved_for_session",
        Denied = "denied",
        TimedOut = "timed_out",
        Cancelled = "cancelled",
        DispatcherUnavailable = "dispatcher_unavailable",
        RecoveryRequired = "recovery_required",
    }
    pub enum ApprovalTerminalStatus {
        Approved = "approved",
        ApprovedForSession = "approved_for_session",
        Denied = "denied",
        TimedOut = "timed_out",
        Cancelled = "cancelled",
        DispatcherUnavailable = "dispatcher_unavailable",
        RecoveryRequired = "recovery_required",
    }
    pub enum DispatcherScope {
        Host = "host",
        SourceScoped = "source_scoped",
        Headless = "headless",
    }
}

facts! {
    /// What a dispatcher hands to people. `requested_args_ref` and the summary are made from the
    /// bytes that the approval's digest covers.
    pub struct ApprovalRequest {
        pub agent_id: Name,
        pub allowed_decisions: Vec<ApprovalDecisionKind>,
        pub approval_dispatch_effect_id: Key,
        pub approval_request_id: ApprovalId,
        pub canonical_tool_name: Name,
        pub created_at_millis: u64,
        pub destination: Key,
        pub dispatcher_scope: DispatcherScope,
        pub effect_class: EffectClass,
        pub policy_refs: Vec<PolicyRef>,
        pub redacted_args_summary: Text,
        pub requested_args_ref: crate::content::Commit,
        pub risk_class: Risk,
        pub run_id: RunId,
        pub runtime_package_fingerprint: Package,
        pub session_id: Option<SessionId>,
        pub source: Actor,
        pub timeout_ms: u64,
        pub tool_call_id: CallId,
        pub tool_source: Key,
        pub turn_id: u32,
    }

    /// How a request ended for the caller.
    pub struct ApprovalBrokerOutcome {
        pub approval_request_id: ApprovalId,
        pub decision: Option<ApprovalDecisionKind>,
        pub reason_code: Token,
        pub status: ApprovalTerminalStatus,
    }

    /// A budget account as it is listed and shown.
    pub struct BudgetAccount {
        pub escrowed: Amounts,
        pub limit: Amounts,
        pub reserved: Amounts,
        pub run: RunId,
        pub used: Amounts,
    }
}

impl ApprovalTerminalStatus {
    /// Only these let the tool run.
    pub fn releases_tool_execution(self) -> bool {
        matches!(self, Self::Approved | Self::ApprovedForSession)
    }
}
