//! Facts about who allowed what: hooks, policy, approvals, grants, budgets, sandboxes, capabilities.

use super::common::{
    Account, Actor, Amounts, ApprovalDigest, EffectClass, Key, Name, PolicyDigest, Risk, SchemaDigest, Text,
    Token,
};
use super::macros::{facts, tokens};
use crate::content::Content;
use crate::contracts::approval::{ApprovalDecisionKind, ApprovalLifecycleStatus};
use crate::contracts::capability::{Constraint, Right};
use crate::contracts::hook::{HookClass, HookOutcome, HookPoint, HookResponse};
use crate::contracts::policy::{Decision, Obligation};
use crate::ids::{ApprovalId, CapabilityId, GrantId, RunId};

tokens! {
    pub enum SupersedeReason {
        Edited = "edited",
        PolicyChanged = "policy_changed",
        ToolChanged = "tool_changed",
    }
    pub enum ApprovalCancelReason {
        RunEnded = "run_ended",
        CallEnded = "call_ended",
        Withdrawn = "withdrawn",
    }
    pub enum SandboxTier {
        None = "none",
        Subprocess = "subprocess",
        Bubblewrap = "bubblewrap",
        Container = "container",
        Wasm = "wasm",
        Remote = "remote",
    }
    pub enum SandboxGuard {
        Network = "network",
        Filesystem = "filesystem",
        Cpu = "cpu",
        Memory = "memory",
        Processes = "processes",
        Time = "time",
    }
    pub enum SandboxEnd {
        Exited = "exited",
        Killed = "killed",
        TimedOut = "timed_out",
        NotStarted = "not_started",
    }
}

facts! {
    /// `hook.ruled`: the response itself, accepted or why it was refused.
    pub struct HookRuled {
        /// It failed, and by its failure policy the call is denied.
        pub denies: Option<bool>,
        pub elapsed_ms: u64,
        pub hook: Name,
        pub invocation: u32,
        pub outcome: HookOutcome,
        pub point: HookPoint,
        pub reason: Option<Text>,
        pub response: Option<HookResponse>,
    }

    /// `hook.applied`: an accepted response took effect.
    pub struct HookApplied {
        pub class: HookClass,
        pub hook: Name,
        pub point: HookPoint,
    }

    /// One reason of a decision.
    pub struct Reason {
        pub code: Token,
        pub rule: Option<Name>,
        pub summary: Option<Text>,
    }

    /// `policy.decided`.
    pub struct PolicyDecided {
        pub decision: Decision,
        pub errors: Vec<Reason>,
        pub obligations: Vec<Obligation>,
        pub policy: PolicyDigest,
        pub reasons: Vec<Reason>,
    }

    /// `policy.activated`: in the store's stream.
    pub struct PolicyActivated {
        pub policy: PolicyDigest,
        pub previous: Option<PolicyDigest>,
        pub text: Content,
    }

    /// `approval.requested`. `digest` binds everything that is shown.
    pub struct ApprovalRequested {
        pub allowed: Vec<ApprovalDecisionKind>,
        pub approval: ApprovalId,
        pub arguments: Content,
        pub digest: ApprovalDigest,
        pub effect: EffectClass,
        pub expires_at: u64,
        pub policy: PolicyDigest,
        pub quorum: u32,
        pub risk: Risk,
        pub roles: Vec<Name>,
        pub sandbox: SandboxTier,
        pub schema: Option<SchemaDigest>,
        pub tool: Name,
        pub version: Option<Name>,
    }

    /// `approval.dispatched`: somebody was told, or could not be.
    pub struct ApprovalDispatched {
        pub approval: ApprovalId,
        pub dispatcher: Name,
        pub reason_code: Option<Token>,
        pub status: ApprovalLifecycleStatus,
    }

    /// `approval.voted`: by the record's actor.
    pub struct ApprovalVoted {
        pub approval: ApprovalId,
        pub digest: ApprovalDigest,
        pub reason: Option<Content>,
        pub role: Option<Name>,
        /// What a vote for the session would allow from then on.
        pub scope: Option<GrantScope>,
        pub vote: ApprovalDecisionKind,
    }

    /// What a grant for a session is good for.
    pub struct GrantScope {
        pub constraints: Vec<Constraint>,
        pub expires_at: u64,
        pub uses: u32,
    }

    /// What a grant for a session dies with: it is for the tool as it was, under the policy that asked, and
    /// for requests that want no more approvers than gave it.
    pub struct GrantBound {
        pub policy: PolicyDigest,
        pub quorum: u32,
        pub roles: Vec<Name>,
        pub sandbox: SandboxTier,
        pub schema: Option<SchemaDigest>,
        pub version: Option<Name>,
    }

    /// `approval.decided`: once per request. Without a signature a name is a claim.
    pub struct ApprovalDecided {
        pub approval: ApprovalId,
        pub decision: ApprovalDecisionKind,
        pub digest: ApprovalDigest,
        pub key_id: Option<Key>,
        pub reason: Option<Content>,
        pub reason_code: Token,
        pub signature: Option<Key>,
        pub voters: Vec<Actor>,
    }

    /// `approval.edited`: by an approver; earlier votes are void.
    pub struct ApprovalEdited {
        pub approval: ApprovalId,
        pub arguments: Content,
        pub digest: ApprovalDigest,
        pub reason: Option<Content>,
    }

    /// `approval.timed_out`.
    pub struct ApprovalTimedOut {
        pub approval: ApprovalId,
    }

    /// `approval.superseded`: ask again.
    pub struct ApprovalSuperseded {
        pub approval: ApprovalId,
        pub by: Option<ApprovalId>,
        pub reason: SupersedeReason,
    }

    /// `approval.cancelled`.
    pub struct ApprovalCancelled {
        pub approval: ApprovalId,
        pub reason: ApprovalCancelReason,
    }

    /// `grant.created`: in the run's stream for one call, in the session's for a session grant.
    pub struct GrantCreated {
        pub approval: Option<ApprovalId>,
        /// Of a grant for a session.
        pub bound: Option<GrantBound>,
        pub constraints: Vec<Constraint>,
        pub digest: Option<ApprovalDigest>,
        pub expires_at: u64,
        pub grant: GrantId,
        pub tool: Name,
        pub uses: u32,
    }

    /// `grant.spent`: by the record's call. One of a session binds to no single request.
    pub struct GrantSpent {
        pub digest: Option<ApprovalDigest>,
        pub grant: GrantId,
    }

    /// `grant.revoked`.
    pub struct GrantRevoked {
        pub grant: GrantId,
        pub reason: Option<Content>,
    }

    /// `budget.reserved`: belongs to the record's dispatch.
    pub struct BudgetReserved {
        pub amounts: Amounts,
    }

    /// `budget.settled`. `assumed`: nobody knows, so all of it is charged.
    pub struct BudgetSettled {
        pub amounts: Amounts,
        pub assumed: bool,
    }

    /// `budget.refused`.
    pub struct BudgetRefused {
        pub account: Account,
        pub asked: u64,
        pub limit: u64,
        pub used: u64,
    }

    /// `budget.escrowed`: it left this account for a child.
    pub struct BudgetEscrowed {
        pub amounts: Amounts,
        pub child: RunId,
    }

    /// `budget.raised`: a person gave the run more.
    pub struct BudgetRaised {
        pub amounts: Amounts,
        pub reason: Option<Content>,
    }

    /// `budget.returned`: what a child left over.
    pub struct BudgetReturned {
        pub amounts: Amounts,
        pub child: RunId,
    }

    /// `sandbox.started`: what really enforces what.
    pub struct SandboxStarted {
        pub enforces: Vec<SandboxGuard>,
        pub tier: SandboxTier,
    }

    /// `sandbox.finished`.
    pub struct SandboxFinished {
        pub end: SandboxEnd,
        pub exit_code: Option<i32>,
    }

    /// `capability.granted`: when the run was made, or by another run that handed it over.
    pub struct CapabilityGranted {
        pub capability: CapabilityId,
        pub constraints: Vec<Constraint>,
        pub expires_at: Option<u64>,
        pub from_run: Option<RunId>,
        pub rights: Vec<Right>,
        pub target: Key,
    }

    /// `capability.attenuated`: a child that allows no more than its parent.
    pub struct CapabilityAttenuated {
        pub capability: CapabilityId,
        pub constraints: Vec<Constraint>,
        pub expires_at: Option<u64>,
        pub parent: CapabilityId,
        pub rights: Vec<Right>,
    }

    /// `capability.transferred`.
    pub struct CapabilityTransferred {
        pub capability: CapabilityId,
        pub to: RunId,
    }

    /// `capability.revoked`: with everything derived from it.
    pub struct CapabilityRevoked {
        pub capability: CapabilityId,
        pub reason: Option<Content>,
    }
}
