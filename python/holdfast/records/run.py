"""Facts about a run as a whole."""

from typing import Literal, TypeAlias

from holdfast.records.base import (
    I32,
    U32,
    U64,
    Content,
    Fact,
    Flag,
    Key,
    Labels,
    Name,
    RunId,
    SessionId,
    Sha256,
    StepId,
)
from holdfast.records.common import Budget, Failure, Package, PackagePart

RunMode: TypeAlias = Literal["live", "shadow", "replay"]

RunStatus: TypeAlias = Literal["pending", "running", "waiting", "paused", "completed", "failed", "cancelled"]

EndStatus: TypeAlias = Literal["completed", "failed", "cancelled"]

EndReason: TypeAlias = Literal["normal", "fault", "quota", "killed", "deadline", "shutdown", "cancelled"]
"""Why a run ended."""

ForkEffects: TypeAlias = Literal["serve", "perform"]
"""What a fork does with a write that its parent has performed."""


class RunCreated(Fact):
    """`run.created`: the first record of a run."""

    agent: Name
    budget: Budget | None = None
    deadline: U64 | None = None
    input: Content
    key: Key | None = None
    """The caller's own identity for this run."""
    labels: Labels
    mode: RunMode
    package: Package
    parent: RunId | None = None
    priority: I32
    restricted: Flag | None = None
    """It holds only the capabilities that it is given; else all that its agent registered."""
    role: Name
    rules: U32
    """Numbers the behaviour of fold, matching and decide."""
    seed: Content
    """Of call digests and random values."""
    session: SessionId | None = None
    state: Content


class RunForked(Fact):
    """`run.forked`: the first record of a fork. What precedes it is the parent's prefix up to `at`."""

    at: U64
    depth: U32
    effects: ForkEffects
    head: Sha256
    """The hash of the parent's record `at`."""
    labels: Labels
    package: Package
    parent: RunId
    reason: Content | None = None


class RunResumed(Fact):
    """`run.resumed`: under which package, and what of it changed."""

    changed: list[PackagePart]
    package: Package
    reason: Content | None = None


class RunRetried(Fact):
    """`run.retried`: a failed run is open again; these steps are tried again."""

    reason: Content | None = None
    steps: list[StepId]


class RunPaused(Fact):
    """`run.paused`."""

    reason: Content | None = None


class RunUnpaused(Fact):
    """`run.unpaused`."""

    reason: Content | None = None


class RunCancelRequested(Fact):
    """`run.cancel_requested`: cooperative first; `run.finished` follows."""

    reason: Content | None = None


class RunFinished(Fact):
    """`run.finished`: the terminal record. Only evidence may follow, or `run.retried` after a failure."""

    failure: Failure | None = None
    reason: EndReason
    result: Content | None = None
    state_version: U64
    status: EndStatus
