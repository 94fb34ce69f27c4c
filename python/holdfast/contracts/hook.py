"""Hooks: 22 points, 20 response classes, what a hook declares, sees and answers. The tokens are
those of the source contract; which class is allowed at which point, the core says
(`holdfast.primitives.hook_matrix`).
"""

from typing import Annotated, Literal, TypeAlias

from pydantic import Field

from holdfast.records.base import (
    I32,
    U32,
    U64,
    CallId,
    Content,
    Fact,
    Flag,
    Json,
    Key,
    Name,
    Privacy,
    RunId,
    SessionId,
    StepId,
    Text,
    Token,
    adjacent,
)
from holdfast.records.common import Package

HookPoint: TypeAlias = Literal[
    "run_starting",
    "before_context_assembly",
    "after_context_assembly",
    "before_provider_projection",
    "before_model_call",
    "on_model_delta",
    "after_model_call",
    "before_structured_output_validation",
    "after_structured_output_validation",
    "before_tool_call",
    "after_tool_call",
    "before_approval_request",
    "after_approval_decision",
    "before_subagent_start",
    "after_subagent_terminal",
    "before_isolation_process_start",
    "after_isolation_process_exit",
    "on_run_cancel_requested",
    "before_run_complete",
    "after_run_terminal",
    "before_compaction",
    "after_compaction",
]

HookClass: TypeAlias = Literal[
    "observe",
    "inject_context",
    "modify_projection",
    "request_compaction",
    "modify_validation_hints",
    "modify_tool_request",
    "modify_approval_request",
    "deny",
    "request_approval",
    "request_retry",
    "rewrite_tool_result",
    "modify_subagent_request",
    "modify_process_request",
    "validate_detach",
    "request_usage_rollup_repair",
    "request_cleanup_repair",
    "mark_protected_context",
    "request_projection_audit_repair",
    "stop_completion_with_repair_needed",
    "stop_run",
]
"""What a response does; a hook needs the right of the same name."""

HookSource: TypeAlias = Literal["host_config", "in_process", "extension", "sdk_default", "test_only_fake"]

HookPhase: TypeAlias = Literal["early", "normal", "late"]

HookOverflow: TypeAlias = Literal["drop_observe_only", "summarize_and_continue", "fail_hook_invocation"]

HookFailure: TypeAlias = Literal["fail_open_observe_only", "deny", "interrupt_run", "fail_run"]

HookPrivacy: TypeAlias = Literal[
    "envelope_and_redacted_summary",
    "content_refs_only",
    "content_capture_allowed",
]

HookOutcome: TypeAlias = Literal[
    "completed",
    "applied_journaled_mutation",
    "rejected_mutation_right",
    "rejected_point_matrix",
    "rejected_policy",
    "timed_out_fail_open",
    "failed_open",
    "cancelled",
    "timed_out_fail_closed",
    "failed_closed",
]
"""How one invocation ended. The last two are ours: the source had no word for failing closed."""

PolicyRefKind: TypeAlias = Literal[
    "approval",
    "permission",
    "sandbox",
    "context",
    "privacy",
    "retention",
    "redaction",
    "runtime_package",
    "host",
]
"""What a policy reference refers to."""


class PolicyRef(Fact):
    """The policy that something refers to."""

    id: Key
    kind: PolicyRefKind
    version: Name | None = None


class HookOrdering(Fact):
    """When a hook runs among those of its point."""

    order: I32
    phase: HookPhase


class HookTimeout(Fact):
    """How long a hook may take."""

    timeout_ms: U64


class HookRights(Fact):
    """The classes of response that a hook may give."""

    rights: list[HookClass]


class HookQueue(Fact):
    """The queue of a hook that nobody waits for."""

    capacity: U32
    terminal_reserve: U32


class HookBlocking(Fact):
    """The runtime waits for the hook."""

    mode: Literal["blocking"]


class HookNonBlocking(Fact):
    """The runtime does not wait: the hook may only observe."""

    mode: Literal["non_blocking"]
    overflow: HookOverflow
    queue: HookQueue


HookExecution: TypeAlias = Annotated[HookBlocking | HookNonBlocking, Field(discriminator="mode")]
"""Whether the runtime waits for a hook."""


class HookSpec(Fact):
    """What a hook declares."""

    execution: HookExecution
    executor_ref: Key
    failure: HookFailure
    hook_id: Name
    mutation_rights: HookRights
    ordering: HookOrdering
    point: HookPoint
    policy_ref: PolicyRef
    privacy: HookPrivacy
    source: HookSource
    timeout: HookTimeout


class HookView(Fact):
    """What a hook is shown of its subject."""

    extras: dict[str, Json]
    """The subject itself, as far as the hook's privacy allows."""
    privacy: Privacy
    summary: Text | None = None


class HookInput(Fact):
    """What a hook is called with."""

    agent: Name
    attempt: U32 | None = None
    call: CallId | None = None
    cancelled: Flag
    hook_id: Name
    package: Package
    point: HookPoint
    run: RunId
    session: SessionId | None = None
    step: StepId | None = None
    turn: U32 | None = None
    view: HookView


class HookRemark(Fact):
    """A payload that only says why."""

    extras: dict[str, Json] | None = None
    summary: Content | None = None


class HookStop(Fact):
    """A payload that stops something, with a code for programs."""

    code: Token
    extras: dict[str, Json] | None = None
    summary: Content | None = None


class HookChange(Fact):
    """A payload that puts a new value in the place of the old one."""

    extras: dict[str, Json] | None = None
    summary: Content | None = None
    value: Content


class HookItems(Fact):
    """A payload of further context."""

    extras: dict[str, Json] | None = None
    items: list[Content]


class HookProtect(Fact):
    """A payload of ids that compaction must keep."""

    extras: dict[str, Json] | None = None
    items: list[Key]


class HookRemarkResponse(Fact):
    """An answer that says why, and no more."""

    payload: HookRemark
    type: Literal[
        "observe_only",
        "request_compaction",
        "request_approval",
        "request_retry",
        "validate_detach",
        "request_usage_rollup_repair",
        "request_cleanup_repair",
        "request_projection_audit_repair",
    ]


class HookItemsResponse(Fact):
    """An answer that adds context."""

    payload: HookItems
    type: Literal["inject_context"]


class HookChangeResponse(Fact):
    """An answer that puts a new value in the place of the old one."""

    payload: HookChange
    type: Literal[
        "modify_projection",
        "modify_validation_hints",
        "modify_tool_request",
        "modify_approval_request",
        "rewrite_tool_result",
        "modify_subagent_request",
        "modify_process_request",
    ]


class HookStopResponse(Fact):
    """An answer that stops something."""

    payload: HookStop
    type: Literal["deny", "stop_completion_with_repair_needed", "stop_run"]


class HookProtectResponse(Fact):
    """An answer that names what compaction must keep."""

    payload: HookProtect
    type: Literal["mark_protected_context"]


HookResponse: TypeAlias = Annotated[
    HookRemarkResponse | HookItemsResponse | HookChangeResponse | HookStopResponse | HookProtectResponse,
    Field(discriminator="type"),
    adjacent("type", "payload"),
]
"""What a hook answers: its class as `type` (`observe` is spelled `observe_only`), and a payload of it."""
