"""Facts about calls and their effects."""

from typing import Literal, TypeAlias

from pydantic import Field

from holdfast.records.base import (
    U64,
    CallId,
    CapabilityId,
    Content,
    Fact,
    Flag,
    GrantId,
    Hmac256,
    Key,
    Name,
    RunId,
    Sha256,
    Text,
)
from holdfast.records.common import Amounts, EffectClass, Failure, Risk, SandboxTier

CallKind: TypeAlias = Literal[
    "tool",
    "model",
    "task",
    "child",
    "step",
    "approval",
    "artifact",
    "media",
    "message",
    "now",
    "timer",
    "signal",
    "receive",
    "commit",
    "cost",
    "log",
    "checkpoint",
    "model_call",
]
"""What agent code asked for. The first group is matched by content, the second by its place."""

KeyScope: TypeAlias = Literal["run", "store"]
"""How far an explicit key reaches."""

AbandonReason: TypeAlias = Literal["accepted", "run_ended"]

EffectStatus: TypeAlias = Literal["succeeded", "failed", "no_effect", "cancelled", "timed_out"]
"""How an effect ended, when that is known."""

DoubtCause: TypeAlias = Literal["raised", "timed_out", "crashed", "fenced"]
"""Why nobody knows."""

Resolution: TypeAlias = Literal["happened", "did_not_happen", "late", "compensated"]

ResolvedBy: TypeAlias = Literal["reconcile", "operator", "late_report", "compensation"]


class CallOpened(Fact):
    """`call.opened`."""

    arguments: Content
    call_digest: Hmac256
    capability: CapabilityId | None = None
    """The one that it uses."""
    effect: EffectClass
    key: Key | None = None
    key_scope: KeyScope | None = None
    key_ttl_ms: U64 | None = None
    """How long a key of the whole store is kept."""
    kind: CallKind
    name: Name
    risk: Risk
    schema_: Sha256 | None = Field(default=None, alias="schema")
    version: Name | None = None


class CallCancelled(Fact):
    """`call.cancelled`: the await was cancelled after so long; the effect, if any, goes on."""

    elapsed_ms: U64


class CallAbandoned(Fact):
    """`call.abandoned`: replayed code no longer makes it."""

    reason: AbandonReason


class CallServed(Fact):
    """`call.served`: another run did it, under the same key of the store or as the one that this is a fork
    of, and its outcome is this call's.
    """

    by_call: CallId
    """The call that did it, and the run that it belongs to."""
    by_run: RunId
    external_id: Key | None = None
    failure: Failure | None = None
    output_error: Failure | None = None
    result: Content | None = None
    status: EffectStatus
    unruled: Flag | None = None
    """No hooks have ruled about the result there: it is not the agent's before they have here."""


class EffectStarted(Fact):
    """`effect.started`: the permit. No write leaves before this record is behind a barrier."""

    arguments: Content
    """What is passed to the tool, after hooks and edits."""
    boot_id: Key
    """`start_by` counts on the clock of this boot."""
    grant: GrantId | None = None
    key: Key
    """Stable over dispatches of one call; no content in it."""
    key_ttl_ms: U64 | None = None
    """How long the key protects against a repeat, counted from the first start."""
    policy: Sha256 | None = None
    """The policy that allowed it."""
    sandbox: SandboxTier
    schema_: Sha256 | None = Field(default=None, alias="schema")
    start_by: U64
    """Later than this on the boot clock, the body does not start: `no_effect`."""
    timeout_ms: U64
    version: Name | None = None


class EffectSettled(Fact):
    """`effect.settled`."""

    elapsed_ms: U64
    external_id: Key | None = None
    """The other side's id for it; opaque, never a person's data."""
    failure: Failure | None = None
    output_error: Failure | None = None
    """It succeeded, but what it returned is not what it declared or cannot be recorded."""
    result: Content | None = None
    status: EffectStatus
    unruled: Flag | None = None
    """Hooks have yet to rule about the result: it is not the agent's before they have."""
    usage: Amounts | None = None


class EffectDoubted(Fact):
    """`effect.doubted`: it may or may not have happened."""

    cause: DoubtCause
    failure: Failure | None = None
    over: Flag | None = None
    """Whoever had the permit can provably no longer act on it."""


class EffectLate(Fact):
    """`effect.late`: what a worker that had lost its lease knew about an effect it had started."""

    external_id: Key | None = None
    failure: Failure | None = None
    result: Content | None = None
    status: EffectStatus


class EffectResolved(Fact):
    """`effect.resolved`: the end of a doubt."""

    external_id: Key | None = None
    forced: Flag
    """Answered although the old permit could still act."""
    reason: Content | None = None
    resolution: Resolution
    result: Content | None = None
    source: ResolvedBy


class EffectCompensated(Fact):
    """`effect.compensated`: a write was undone by another call."""

    by: CallId
    reason: Content | None = None


class CallSketch(Fact):
    """One side of a divergence: what was recorded, or what was attempted."""

    call: CallId | None = None
    call_digest: Hmac256
    effect: EffectClass
    kind: CallKind
    lane: Name
    name: Name


class ReplayDiverged(Fact):
    """`replay.diverged`: the code no longer does what was recorded. The step waits for a person."""

    attempted: CallSketch | None = None
    recorded: list[CallSketch]
    why: Text
