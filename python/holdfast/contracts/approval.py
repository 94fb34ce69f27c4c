"""Approvals as hosts and dispatchers see them. Tokens of the source contract, in snake_case."""

from typing import Literal, TypeAlias

from holdfast.contracts.hook import PolicyRef
from holdfast.records.base import (
    U32,
    U64,
    ApprovalId,
    CallId,
    Fact,
    Key,
    Name,
    RunId,
    SessionId,
    Sha256,
    Text,
    Token,
)
from holdfast.records.common import Actor, Amounts, EffectClass, Package, Risk

ApprovalDecisionKind: TypeAlias = Literal["approved", "approved_for_session", "denied"]

ApprovalLifecycleStatus: TypeAlias = Literal[
    "requested",
    "dispatch_intent_recorded",
    "dispatched",
    "approved",
    "approved_for_session",
    "denied",
    "timed_out",
    "cancelled",
    "dispatcher_unavailable",
    "recovery_required",
]

ApprovalTerminalStatus: TypeAlias = Literal[
    "approved",
    "approved_for_session",
    "denied",
    "timed_out",
    "cancelled",
    "dispatcher_unavailable",
    "recovery_required",
]

DispatcherScope: TypeAlias = Literal["host", "source_scoped", "headless"]


class ApprovalRequest(Fact):
    """What a dispatcher hands to people. `requested_args_ref` and the summary are made from the bytes
    that the approval's digest covers.
    """

    agent_id: Name
    allowed_decisions: list[ApprovalDecisionKind]
    approval_dispatch_effect_id: Key
    approval_request_id: ApprovalId
    canonical_tool_name: Name
    created_at_millis: U64
    destination: Key
    dispatcher_scope: DispatcherScope
    effect_class: EffectClass
    policy_refs: list[PolicyRef]
    redacted_args_summary: Text
    requested_args_ref: Sha256
    risk_class: Risk
    run_id: RunId
    runtime_package_fingerprint: Package
    session_id: SessionId | None = None
    source: Actor
    timeout_ms: U64
    tool_call_id: CallId
    tool_source: Key
    turn_id: U32


class ApprovalBrokerOutcome(Fact):
    """How a request ended for the caller."""

    approval_request_id: ApprovalId
    decision: ApprovalDecisionKind | None = None
    reason_code: Token
    status: ApprovalTerminalStatus


class BudgetAccount(Fact):
    """A budget account as it is listed and shown."""

    escrowed: Amounts
    limit: Amounts
    reserved: Amounts
    run: RunId
    used: Amounts
