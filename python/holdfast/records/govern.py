"""Facts about who allowed what: hooks, policy, approvals, grants, budgets, sandboxes, capabilities."""

from typing import Literal, TypeAlias

from pydantic import Field

from holdfast.contracts.approval import ApprovalDecisionKind, ApprovalLifecycleStatus
from holdfast.contracts.capability import Constraint, Right
from holdfast.contracts.hook import HookClass, HookOutcome, HookPoint, HookResponse
from holdfast.contracts.policy import Decision, Obligation
from holdfast.records.base import (
    I32,
    U32,
    U64,
    ApprovalId,
    CapabilityId,
    Content,
    Fact,
    Flag,
    GrantId,
    Key,
    Name,
    RunId,
    Sha256,
    Text,
    Token,
)
from holdfast.records.common import Account, Actor, Amounts, EffectClass, Risk, SandboxTier

SupersedeReason: TypeAlias = Literal["edited", "policy_changed", "tool_changed"]

ApprovalCancelReason: TypeAlias = Literal["run_ended", "call_ended", "withdrawn"]

SandboxGuard: TypeAlias = Literal["network", "filesystem", "cpu", "memory", "processes", "time"]

SandboxEnd: TypeAlias = Literal["exited", "killed", "timed_out", "not_started"]


class HookRuled(Fact):
    """`hook.ruled`: the response itself, accepted or why it was refused."""

    denies: Flag | None = None
    """It failed, and by its failure policy the call is denied."""
    elapsed_ms: U64
    hook: Name
    invocation: U32
    outcome: HookOutcome
    point: HookPoint
    reason: Text | None = None
    response: HookResponse | None = None


class HookApplied(Fact):
    """`hook.applied`: an accepted response took effect."""

    class_: HookClass = Field(alias="class")
    hook: Name
    point: HookPoint


class Reason(Fact):
    """One reason of a decision."""

    code: Token
    rule: Name | None = None
    summary: Text | None = None


class PolicyDecided(Fact):
    """`policy.decided`."""

    decision: Decision
    errors: list[Reason]
    obligations: list[Obligation]
    policy: Sha256
    reasons: list[Reason]


class PolicyActivated(Fact):
    """`policy.activated`: in the store's stream."""

    policy: Sha256
    previous: Sha256 | None = None
    text: Content


class ApprovalRequested(Fact):
    """`approval.requested`. `digest` binds everything that is shown."""

    allowed: list[ApprovalDecisionKind]
    approval: ApprovalId
    arguments: Content
    digest: Sha256
    effect: EffectClass
    expires_at: U64
    policy: Sha256
    quorum: U32
    risk: Risk
    roles: list[Name]
    sandbox: SandboxTier
    schema_: Sha256 | None = Field(default=None, alias="schema")
    tool: Name
    version: Name | None = None


class ApprovalDispatched(Fact):
    """`approval.dispatched`: somebody was told, or could not be."""

    approval: ApprovalId
    dispatcher: Name
    reason_code: Token | None = None
    status: ApprovalLifecycleStatus


class ApprovalVoted(Fact):
    """`approval.voted`: by the record's actor."""

    approval: ApprovalId
    digest: Sha256
    reason: Content | None = None
    role: Name | None = None
    scope: "GrantScope | None" = None
    """What a vote for the session would allow from then on."""
    vote: ApprovalDecisionKind


class GrantScope(Fact):
    """What a grant for a session is good for."""

    constraints: list[Constraint]
    expires_at: U64
    uses: U32


class GrantBound(Fact):
    """What a grant for a session dies with: it is for the tool as it was, under the policy that asked, and
    for requests that want no more approvers than gave it."""

    policy: Sha256
    quorum: U32
    roles: list[Name]
    sandbox: SandboxTier
    schema_: Sha256 | None = Field(default=None, alias="schema")
    version: Name | None = None


class ApprovalDecided(Fact):
    """`approval.decided`: once per request. Without a signature a name is a claim."""

    approval: ApprovalId
    decision: ApprovalDecisionKind
    digest: Sha256
    key_id: Key | None = None
    reason: Content | None = None
    reason_code: Token
    signature: Key | None = None
    voters: list[Actor]


class ApprovalEdited(Fact):
    """`approval.edited`: by an approver; earlier votes are void."""

    approval: ApprovalId
    arguments: Content
    digest: Sha256
    reason: Content | None = None


class ApprovalTimedOut(Fact):
    """`approval.timed_out`."""

    approval: ApprovalId


class ApprovalSuperseded(Fact):
    """`approval.superseded`: ask again."""

    approval: ApprovalId
    by: ApprovalId | None = None
    reason: SupersedeReason


class ApprovalCancelled(Fact):
    """`approval.cancelled`."""

    approval: ApprovalId
    reason: ApprovalCancelReason


class GrantCreated(Fact):
    """`grant.created`: in the run's stream for one call, in the session's for a session grant."""

    approval: ApprovalId | None = None
    bound: GrantBound | None = None
    """Of a grant for a session."""
    constraints: list[Constraint]
    digest: Sha256 | None = None
    expires_at: U64
    grant: GrantId
    tool: Name
    uses: U32


class GrantSpent(Fact):
    """`grant.spent`: by the record's call. One of a session binds to no single request."""

    digest: Sha256 | None = None
    grant: GrantId


class GrantRevoked(Fact):
    """`grant.revoked`."""

    grant: GrantId
    reason: Content | None = None


class BudgetReserved(Fact):
    """`budget.reserved`: belongs to the record's dispatch."""

    amounts: Amounts


class BudgetSettled(Fact):
    """`budget.settled`. `assumed`: nobody knows, so all of it is charged."""

    amounts: Amounts
    assumed: Flag


class BudgetRefused(Fact):
    """`budget.refused`."""

    account: Account
    asked: U64
    limit: U64
    used: U64


class BudgetEscrowed(Fact):
    """`budget.escrowed`: it left this account for a child."""

    amounts: Amounts
    child: RunId


class BudgetRaised(Fact):
    """`budget.raised`: a person gave the run more."""

    amounts: Amounts
    reason: Content | None = None


class BudgetReturned(Fact):
    """`budget.returned`: what a child left over."""

    amounts: Amounts
    child: RunId


class SandboxStarted(Fact):
    """`sandbox.started`: what really enforces what."""

    enforces: list[SandboxGuard]
    tier: SandboxTier


class SandboxFinished(Fact):
    """`sandbox.finished`."""

    end: SandboxEnd
    exit_code: I32 | None = None


class CapabilityGranted(Fact):
    """`capability.granted`: when the run was made, or by another run that handed it over."""

    capability: CapabilityId
    constraints: list[Constraint]
    expires_at: U64 | None = None
    from_run: RunId | None = None
    rights: list[Right]
    target: Key


class CapabilityAttenuated(Fact):
    """`capability.attenuated`: a child that allows no more than its parent."""

    capability: CapabilityId
    constraints: list[Constraint]
    expires_at: U64 | None = None
    parent: CapabilityId
    rights: list[Right]


class CapabilityTransferred(Fact):
    """`capability.transferred`."""

    capability: CapabilityId
    to: RunId


class CapabilityRevoked(Fact):
    """`capability.revoked`: with everything derived from it."""

    capability: CapabilityId
    reason: Content | None = None
