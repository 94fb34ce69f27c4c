//! Requests for approval: what a decision is bound to, who may decide, and when it is decided.

use serde::Serialize;
use serde_json::Value;

use crate::canonical::{CanonicalError, Digest};
use crate::contracts::approval::ApprovalDecisionKind;
use crate::contracts::policy::{Approvers, Policy};
use crate::ids::{ApprovalId, CallId, RunId};
use crate::mutants::{Mutant, mutant};
use crate::records::{
    Actor, ActorType, ApprovalDigest, ApprovalRequested, Name, PolicyDigest, SandboxTier, SchemaDigest,
};
use crate::state::{Approval, ApprovalState, GrantState};

/// Everything that an approver is shown and a grant is bound to. What is rendered for people is rendered
/// from these values.
#[serde_with_macros::skip_serializing_none]
#[derive(Debug, Clone, Serialize)]
pub struct Shown<'a> {
    pub approval: ApprovalId,
    /// As they would be passed to the tool.
    pub arguments: &'a Value,
    pub call: Option<CallId>,
    pub expires_at: u64,
    pub policy: PolicyDigest,
    pub run: RunId,
    pub sandbox: SandboxTier,
    pub schema: Option<SchemaDigest>,
    pub tool: &'a Name,
    pub version: Option<&'a Name>,
}

impl Shown<'_> {
    pub fn digest(&self) -> Result<ApprovalDigest, CanonicalError> {
        Digest::of(self)
    }
}

/// What a tool is now, as far as a request was bound to it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Bound<'a> {
    pub policy: PolicyDigest,
    pub sandbox: SandboxTier,
    pub schema: Option<SchemaDigest>,
    pub version: Option<&'a Name>,
}

/// Whether a request still speaks of what would run.
pub fn still_binds(requested: &ApprovalRequested, now: &Bound<'_>) -> bool {
    let then = Bound {
        policy: requested.policy,
        sandbox: requested.sandbox,
        schema: requested.schema,
        version: requested.version.as_ref(),
    };
    then == *now || mutant(Mutant::StaleApproval)
}

/// Whether the arguments that would be passed are the ones that were approved.
pub fn covers(
    id: ApprovalId,
    approval: &Approval,
    run: RunId,
    arguments: &Value,
) -> Result<bool, CanonicalError> {
    if mutant(Mutant::AnyArguments) {
        return Ok(true);
    }
    let requested = &approval.requested;
    let shown = Shown {
        approval: id,
        arguments,
        call: approval.call,
        expires_at: requested.expires_at,
        policy: requested.policy,
        run,
        sandbox: requested.sandbox,
        schema: requested.schema,
        tool: &requested.tool,
        version: requested.version.as_ref(),
    };
    Ok(shown.digest()? == approval.digest)
}

/// Whether a grant of a session is good for a call: of this tool as it was, under the same policy, within its
/// scope and its time, and given by no fewer and no others than are asked for now (unless it is spent already).
pub fn stands(
    grant: &GrantState,
    tool: &Name,
    now: &Bound<'_>,
    asked: Option<&Approvers>,
    arguments: &Value,
    wall_ms: u64,
) -> bool {
    let Some(bound) = &grant.bound else { return false };
    let then = Bound {
        policy: bound.policy,
        sandbox: bound.sandbox,
        schema: bound.schema,
        version: bound.version.as_ref(),
    };
    let enough = asked.is_none_or(|asked| {
        let roles = &asked.roles;
        let fit = !bound.roles.is_empty() && bound.roles.iter().all(|role| roles.contains(role));
        asked.quorum <= bound.quorum && (roles.is_empty() || fit)
    });
    let within = grant.constraints.iter().all(|one| one.holds(arguments).unwrap_or(false));
    let revoked = grant.revoked && !mutant(Mutant::RevokedGrant);
    let expired = grant.expires_at <= wall_ms && !mutant(Mutant::ApprovalNeverExpires);
    let scoped = grant.tool == *tool && within && enough;
    (then == *now || mutant(Mutant::StaleApproval))
        && !revoked
        && !expired
        && (scoped || mutant(Mutant::GrantAnyScope))
}

/// Why a vote does not count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unfit {
    /// Agents, tools, hooks and workers approve nothing.
    Inside,
    Over(ApprovalState),
    Expired,
    NotAllowed,
    NoRole,
    Twice,
}

/// Whether somebody's vote counts.
pub fn may_vote(
    approval: &Approval,
    by: &Actor,
    vote: ApprovalDecisionKind,
    policy: &Policy,
    wall_ms: u64,
) -> Result<(), Unfit> {
    if by.r#type != ActorType::Human && !mutant(Mutant::ApproveFromInside) {
        return Err(Unfit::Inside);
    }
    if approval.state != ApprovalState::Pending && !mutant(Mutant::DecideTwice) {
        return Err(Unfit::Over(approval.state));
    }
    if approval.expires_at <= wall_ms && !mutant(Mutant::ApprovalNeverExpires) {
        return Err(Unfit::Expired);
    }
    if !approval.requested.allowed.contains(&vote) {
        return Err(Unfit::NotAllowed);
    }
    let needed = &approval.requested.roles;
    let has = policy.approvers.get(by.id.as_str());
    let fits = needed.is_empty() || has.is_some_and(|roles| roles.iter().any(|role| needed.contains(role)));
    if !fits && !mutant(Mutant::AnyApprover) {
        return Err(Unfit::NoRole);
    }
    if approval.votes.contains_key(&by.id) && !mutant(Mutant::VoteTwice) {
        return Err(Unfit::Twice);
    }
    Ok(())
}

/// What a request comes to with one more vote: one denial denies, a quorum approves, else it stays open.
pub fn outcome(approval: &Approval, vote: ApprovalDecisionKind) -> Option<ApprovalDecisionKind> {
    if vote == ApprovalDecisionKind::Denied {
        return Some(vote);
    }
    let for_it = || approval.votes.values().filter(|vote| **vote != ApprovalDecisionKind::Denied);
    let enough = u32::try_from(for_it().count() + 1).unwrap_or(u32::MAX) >= approval.quorum;
    // For the session only if everybody said so.
    let session = |vote: &ApprovalDecisionKind| *vote == ApprovalDecisionKind::ApprovedForSession;
    let decision =
        if session(&vote) && for_it().all(session) { vote } else { ApprovalDecisionKind::Approved };
    (enough || mutant(Mutant::NoQuorum)).then_some(decision)
}
