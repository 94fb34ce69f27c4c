"""The tagged shapes of the source approval decisions and records (`decision`, `record_type` +
`record`), read and written for those who have them. Nothing of ours is stored in these shapes: ids are
any text, and an absent actor of a denial is null.
"""

from typing import Annotated, Literal, TypeAlias

from pydantic import Field

from holdfast.contracts.approval import ApprovalLifecycleStatus
from holdfast.contracts.hook import PolicyRef
from holdfast.records.base import Fact, Json, Key, Nullable, Privacy, Text, Token, adjacent

SourceKind: TypeAlias = Literal[
    "sdk",
    "host",
    "user",
    "system",
    "developer",
    "memory",
    "compaction",
    "hook",
    "extension",
    "tool",
    "remote_channel",
    "scheduled_task",
    "subagent",
    "external_runtime",
    "replay",
]

Trust: TypeAlias = Literal[
    "trusted",
    "sdk_generated",
    "host_provided",
    "user_provided",
    "external",
    "untrusted",
]

Retention: TypeAlias = Literal[
    "ephemeral",
    "run_scoped",
    "session_scoped",
    "durable",
    "persistent",
    "host_policy",
]

DestinationKind: TypeAlias = Literal[
    "agent",
    "agent_pool",
    "topic",
    "provider",
    "context_projection",
    "journal",
    "event_stream",
    "telemetry",
    "output_sink",
    "host",
    "user",
    "remote_channel",
    "tool",
    "extension",
    "subagent",
    "external_runtime",
]

SourceEffectKind: TypeAlias = Literal[
    "provider_request",
    "tool_execution",
    "approval_dispatch",
    "memory_write",
    "extension_action",
    "output_delivery",
    "file_write",
    "process_start",
    "process_signal",
    "isolated_process_start",
    "child_agent_start",
    "run_message_delivery",
    "child_artifact_shutdown",
    "detach_transfer",
    "hook_mutation",
]

SourceEffectStatus: TypeAlias = Literal[
    "completed",
    "failed",
    "timed_out",
    "cancelled",
    "denied_before_execution",
    "unknown",
]


class Correlation(Fact):
    """A key and a value of another system."""

    key: Key
    value: Key


class SourceRef(Fact):
    """Who or what something came from."""

    correlation: list[Correlation] | None = None
    id: Key
    kind: SourceKind
    privacy: Privacy
    redacted_summary: Text | None = None
    trust: Trust


class DestinationRef(Fact):
    """Where something goes, and how long it is kept there."""

    correlation: list[Correlation] | None = None
    id: Key
    kind: DestinationKind
    privacy: Privacy
    redacted_summary: Text | None = None
    retention: Retention


class EntityRef(Fact):
    """What a fact of the source is about; its kinds are many and only passed through."""

    id: Key
    kind: Token
    privacy: Privacy
    redacted_summary: Text | None = None
    source: SourceRef | None = None


class SourceEffectIntent(Fact):
    """What was about to be done."""

    content_refs: list[Key] | None = None
    dedupe_key: Key | None = None
    destination: DestinationRef | None = None
    effect_id: Key
    idempotency_key: Key | None = None
    kind: SourceEffectKind
    policy_refs: list[PolicyRef] | None = None
    redacted_summary: Text
    source: SourceRef
    subject_ref: EntityRef


class SourceEffectResult(Fact):
    """How that ended."""

    content_refs: list[Key] | None = None
    effect_id: Key
    error_ref: Key | None = None
    external_operation_id: Key | None = None
    reconciliation_ref: Key | None = None
    redacted_summary: Text
    terminal_status: SourceEffectStatus


class SourceApproval(Fact):
    """Yes, once or for the session."""

    actor_ref: SourceRef
    decision: Literal["approved", "approved_for_session"]


class SourceDenial(Fact):
    """No; by somebody, or by nobody that is known."""

    actor_ref: Annotated[SourceRef | None, Nullable()] = None
    decision: Literal["denied"]
    reason_code: Token


SourceDecision: TypeAlias = Annotated[SourceApproval | SourceDenial, Field(discriminator="decision")]
"""A decision as the source tags it."""


class SourceRequested(Fact):
    """The request itself, as it came."""

    request: dict[str, Json]


class SourceDispatchIntent(Fact):
    """Somebody is about to be told."""

    effect_intent: SourceEffectIntent
    request_id: Key


class SourceDispatchResult(Fact):
    """Somebody was told, or could not be."""

    effect_result: SourceEffectResult
    lifecycle_status: ApprovalLifecycleStatus
    request_id: Key


class SourceResponded(Fact):
    """Somebody answered."""

    decision: SourceDecision
    request_id: Key


class SourceDenied(Fact):
    """The request was denied without an answer."""

    reason_code: Token
    request_id: Key


class SourceRequestedRecord(Fact):
    """Tagged `requested`."""

    record: SourceRequested
    record_type: Literal["requested"]


class SourceDispatchIntentRecord(Fact):
    """Tagged `dispatch_intent`."""

    record: SourceDispatchIntent
    record_type: Literal["dispatch_intent"]


class SourceDispatchResultRecord(Fact):
    """Tagged `dispatch_result`."""

    record: SourceDispatchResult
    record_type: Literal["dispatch_result"]


class SourceRespondedRecord(Fact):
    """Tagged `responded`."""

    record: SourceResponded
    record_type: Literal["responded"]


class SourceDeniedRecord(Fact):
    """Tagged `denied`."""

    record: SourceDenied
    record_type: Literal["denied"]


SourceApprovalRecord: TypeAlias = Annotated[
    SourceRequestedRecord
    | SourceDispatchIntentRecord
    | SourceDispatchResultRecord
    | SourceRespondedRecord
    | SourceDeniedRecord,
    Field(discriminator="record_type"),
    adjacent("record_type", "record"),
]
"""An approval record as the source tags it."""
