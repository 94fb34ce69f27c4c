"""Facts about steps, their leases and the run's state."""

from typing import Literal, TypeAlias

from holdfast.records.base import U64, CallId, Content, Fact, Flag, Key, Name, StepId
from holdfast.records.common import Failure, RetryPolicy

StepKind: TypeAlias = Literal["replayed", "attached"]
"""How a step goes on after a crash."""

StepStatus: TypeAlias = Literal[
    "pending",
    "running",
    "waiting",
    "retry_scheduled",
    "completed",
    "failed",
    "cancelled",
]

WaitOn: TypeAlias = Literal[
    "approval",
    "timer",
    "signal",
    "message",
    "child",
    "doubt",
    "budget",
    "key",
    "divergence",
    "package",
    "restored",
    "interrupted",
    "paused",
]
"""What a step can wait for."""

ReleaseReason: TypeAlias = Literal["yielded", "shutdown", "paused"]

StepCancelReason: TypeAlias = Literal["run_cancelled", "sibling_failed", "run_ended"]


class StepCreated(Fact):
    """`step.created`."""

    after: list[StepId]
    concurrency_key: Key | None = None
    input: Content | None = None
    kind: StepKind
    name: Name
    not_before: U64 | None = None
    queue: Name
    retry: RetryPolicy
    timeout_ms: U64 | None = None


class StepClaimed(Fact):
    """`step.claimed`: a worker has the step under the record's fence. The lease itself lives in a row."""

    lease_ms: U64
    state_version: U64
    worker: Name


class StepRetryScheduled(Fact):
    """`step.retry_scheduled`: the attempt failed and another follows."""

    ended_by: list[CallId]
    """The calls whose outcomes ended the attempt: the exception, its causes and group members."""
    failure: Failure
    not_before: U64


class Wait(Fact):
    """One thing that a step waits for."""

    call: CallId | None = None
    on: WaitOn
    subject: Key | None = None
    """What it is about: an approval, a signal's name, a child, a key."""
    until: U64 | None = None
    """When it gives up or fires."""


class StepWaiting(Fact):
    """`step.waiting`: the lease is released; any one of these wakes the step."""

    waits: list[Wait]


class StepWoken(Fact):
    """`step.woken`."""

    on: WaitOn
    subject: Key | None = None


class StepCompleted(Fact):
    """`step.completed`."""

    result: Content | None = None


class StepFailed(Fact):
    """`step.failed`: for good."""

    ended_by: list[CallId]
    """As in `step.retry_scheduled`."""
    failure: Failure


class StepCancelled(Fact):
    """`step.cancelled`."""

    reason: StepCancelReason


class LeaseExpired(Fact):
    """`lease.expired`: found by whoever recovered the step."""

    owner: Name
    progressed: Flag
    """Whether that claim had committed anything; if not, it costs an attempt."""


class LeaseReleased(Fact):
    """`lease.released`: given back without an outcome."""

    reason: ReleaseReason


class StatePatched(Fact):
    """`state.patched`: an RFC 7396 merge patch that leads from version `base` to `next`."""

    base: U64
    next: U64
    patch: Content


class StateConflict(Fact):
    """`state.conflict`: a patch that was made for another version."""

    actual: U64
    expected: U64
