"""The envelope of a record: one typed fact in its place, its canonical bytes and its hash.

``body`` is typed by ``kind``: the closed table in :data:`BODIES`, or :class:`Extension` for
``x.<vendor>.<name>``. The readers refuse what the core refuses, with the same code. A kind that this
Holdfast does not know is ``unknown_kind``, a newer record schema ``newer_format``.
"""

from typing import Final, NamedTuple, Self

from pydantic import ConfigDict, SerializeAsAny, TypeAdapter, model_validator

from holdfast._core import canonical_digest, canonical_dumps, canonical_loads, record_kinds
from holdfast.errors import RecordError
from holdfast.records import call, flow, govern, run, step
from holdfast.records.base import (
    RECORD_BYTES_MAX,
    U32,
    U64,
    CallId,
    Fact,
    Fence,
    Json,
    Name,
    Privacy,
    Sha256,
    StepId,
    StreamId,
)
from holdfast.records.common import Actor
from holdfast.records.read import read, refusal

VERSION: Final = 1
"""The record schema that this build writes."""

DOMAIN: Final = "holdfast/record/v1"


class KindInfo(NamedTuple):
    """One row of the core's table of kinds."""

    token: str
    home: str
    """The streams that hold it: ``run``, ``session``, ``store``, ``run or session`` or ``any``."""
    class_: str
    """``critical``, ``evidence`` or ``note``."""
    contents: list[str]
    """The positions of contents in its body; ``[]`` stands for each element of a list."""
    door: bool
    """Whether ``ctx.record`` may append it."""


KINDS: Final = {row[0]: KindInfo(*row) for row in record_kinds()}

BODIES: Final[dict[str, type[Fact]]] = {
    "run.created": run.RunCreated,
    "run.forked": run.RunForked,
    "run.resumed": run.RunResumed,
    "run.retried": run.RunRetried,
    "run.paused": run.RunPaused,
    "run.unpaused": run.RunUnpaused,
    "run.cancel_requested": run.RunCancelRequested,
    "run.finished": run.RunFinished,
    "step.created": step.StepCreated,
    "step.claimed": step.StepClaimed,
    "step.retry_scheduled": step.StepRetryScheduled,
    "step.waiting": step.StepWaiting,
    "step.woken": step.StepWoken,
    "step.completed": step.StepCompleted,
    "step.failed": step.StepFailed,
    "step.cancelled": step.StepCancelled,
    "lease.expired": step.LeaseExpired,
    "lease.released": step.LeaseReleased,
    "state.patched": step.StatePatched,
    "state.conflict": step.StateConflict,
    "call.opened": call.CallOpened,
    "call.cancelled": call.CallCancelled,
    "call.abandoned": call.CallAbandoned,
    "call.served": call.CallServed,
    "effect.started": call.EffectStarted,
    "effect.settled": call.EffectSettled,
    "effect.doubted": call.EffectDoubted,
    "effect.late": call.EffectLate,
    "effect.resolved": call.EffectResolved,
    "effect.compensated": call.EffectCompensated,
    "replay.diverged": call.ReplayDiverged,
    "replay.decided": flow.ReplayDecided,
    "package.decided": flow.PackageDecided,
    "hook.ruled": govern.HookRuled,
    "hook.applied": govern.HookApplied,
    "policy.decided": govern.PolicyDecided,
    "policy.activated": govern.PolicyActivated,
    "approval.requested": govern.ApprovalRequested,
    "approval.dispatched": govern.ApprovalDispatched,
    "approval.voted": govern.ApprovalVoted,
    "approval.decided": govern.ApprovalDecided,
    "approval.edited": govern.ApprovalEdited,
    "approval.timed_out": govern.ApprovalTimedOut,
    "approval.superseded": govern.ApprovalSuperseded,
    "approval.cancelled": govern.ApprovalCancelled,
    "grant.created": govern.GrantCreated,
    "grant.spent": govern.GrantSpent,
    "grant.revoked": govern.GrantRevoked,
    "budget.reserved": govern.BudgetReserved,
    "budget.settled": govern.BudgetSettled,
    "budget.refused": govern.BudgetRefused,
    "budget.escrowed": govern.BudgetEscrowed,
    "budget.raised": govern.BudgetRaised,
    "budget.returned": govern.BudgetReturned,
    "sandbox.started": govern.SandboxStarted,
    "sandbox.finished": govern.SandboxFinished,
    "capability.granted": govern.CapabilityGranted,
    "capability.attenuated": govern.CapabilityAttenuated,
    "capability.transferred": govern.CapabilityTransferred,
    "capability.revoked": govern.CapabilityRevoked,
    "envelope.received": flow.EnvelopeReceived,
    "message.sent": flow.MessageSent,
    "message.received": flow.MessageReceived,
    "child.spawned": flow.ChildSpawned,
    "child.ended": flow.ChildEnded,
    "signal.received": flow.SignalReceived,
    "timer.set": flow.TimerSet,
    "timer.fired": flow.TimerFired,
    "session.created": flow.SessionCreated,
    "store.created": flow.StoreCreated,
    "store.restored": flow.StoreRestored,
    "seal.signed": flow.SealSigned,
    "name.taken": flow.NameTaken,
    "name.released": flow.NameReleased,
    "cost.recorded": flow.CostRecorded,
    "artifact.created": flow.ArtifactCreated,
    "checkpoint.created": flow.CheckpointCreated,
    "content.erased": flow.ContentErased,
    "refusal.noted": flow.RefusalNoted,
    "note.logged": flow.NoteLogged,
    "x.*": flow.Extension,
}
"""The type of each kind's body, in the order of the core's table; ``x.*`` for everybody's own kinds."""

_ADAPTERS: Final = {kind: TypeAdapter(body) for kind, body in BODIES.items()}
_TOKEN: Final = frozenset("abcdefghijklmnopqrstuvwxyz0123456789_")


def _row(kind: str) -> str | None:
    """The key of a kind in the tables."""
    if kind in KINDS:
        return kind
    parts = kind.split(".")
    own = len(parts) >= 3 and parts[0] == "x" and all(part and _TOKEN.issuperset(part) for part in parts)
    return "x.*" if own and len(kind) <= 256 else None


def _unknown(path: str) -> RecordError:
    return refusal("unknown_kind", path, "a kind that this build does not know")


def _fits(home: str, stream: str) -> bool:
    return home == "any" or ("store" if stream == "store" else stream.partition("_")[0]) in {
        "run": ("run",),
        "session": ("ses",),
        "store": ("store",),
        "run or session": ("run", "ses"),
    }.get(home, ())


class _Envelope(Fact):
    at: U64
    """Milliseconds since the epoch, never less than the record before. For people only."""
    attempt: U32 | None = None
    by: Actor
    call: CallId | None = None
    cause: U64 | None = None
    """The seq of the record that led to it."""
    dispatch: U32 | None = None
    fence: Fence | None = None
    kind: str
    lane: Name | None = None
    prev: Sha256
    """The hash of the record before."""
    privacy: Privacy
    seq: U64
    step: StepId | None = None
    stream: StreamId
    turn: U32 | None = None
    v: U32


class _Shape(_Envelope):
    body: Json


class _Newer(Fact):
    """What the chain needs of a record of a newer schema; what else it has is not looked at."""

    model_config = ConfigDict(extra="ignore")

    at: U64
    kind: str
    prev: Sha256
    seq: U64
    stream: StreamId
    v: U32


class Record(_Envelope):
    """One fact in a stream."""

    body: SerializeAsAny[Fact]

    @model_validator(mode="after")
    def _stands(self) -> Self:
        _check_place(self)
        return self

    def bytes(self) -> bytes:
        """The record's canonical bytes: what is stored and hashed."""
        return canonical_dumps(write(self))

    def hash(self) -> str:
        """The hash that the next record's ``prev`` holds."""
        return canonical_digest(write(self), domain=DOMAIN)


_SHAPE: Final = TypeAdapter(_Shape)
_NEWER: Final = TypeAdapter(_Newer)


def write(fact: Fact) -> dict[str, Json]:
    """A fact as JSON, without what is absent.

    >>> from holdfast.records import StateConflict
    >>> write(StateConflict(actual=4, expected=3))
    {'actual': 4, 'expected': 3}
    """
    return fact.model_dump(mode="json")


def read_body(kind: str, value: object) -> Fact:
    """Reads the body of a kind.

    >>> read_body("state.conflict", {"actual": 4, "expected": 3})
    StateConflict(actual=4, expected=3)
    """
    row = _row(kind)
    if row is None:
        raise _unknown("$.kind")
    return read(_ADAPTERS[row], value)


def read_record(text: bytes | str) -> Record:
    """Reads a record from its canonical text.

    Raises:
        RecordError: with the code that the core gives, and the path.
        CanonicalError: if the text is not JSON.
    """
    stored = text.encode() if isinstance(text, str) else text
    if len(stored) > RECORD_BYTES_MAX:
        raise refusal("record_too_large", "$", "a record larger than record_bytes_max")
    tree = canonical_loads(stored)
    version = tree.get("v") if isinstance(tree, dict) else None
    if type(version) is int and version > VERSION:
        raise _newer(read(_NEWER, tree), canonical=canonical_dumps(tree) == stored)
    shape = read(_SHAPE, tree)
    try:
        body = read_body(shape.kind, shape.body)
    except RecordError as error:
        raise error if error.code == "unknown_kind" else _within_body(error) from None
    record = _placed(shape, body)
    if record.bytes() != stored:
        raise refusal("not_canonical", "$", "the text is not canonical")
    return record


def _newer(shape: _Newer, *, canonical: bool) -> RecordError:
    """What is wrong with a record of a newer schema: its body and its kind are not looked at."""
    if shape.seq == 0:
        return refusal("bad_value", "$.seq", "counts from 1")
    if not canonical:
        return refusal("not_canonical", "$", "the text is not canonical")
    return refusal("newer_format", "$.v", "a record of a newer Holdfast")


def _within_body(error: RecordError) -> RecordError:
    path = str(error.path)
    message = str(error.args[0]).removesuffix(f" (at {path})")
    return refusal(error.code, "$.body" + path.removeprefix("$"), message)


def _placed(shape: _Shape, body: Fact) -> Record:
    """The record of parts that have been read; what is left to check is that they belong together."""
    fields = {name: getattr(shape, name) for name in _Envelope.model_fields}
    record = Record.model_construct(**fields, body=body)
    _check_place(record)
    return record


def _check_place(record: Record) -> None:
    row = _row(record.kind)
    if row is None:
        raise _unknown("$.kind")
    if type(record.body) is not BODIES[row]:
        raise refusal("wrong_type", "$.body", f"{record.kind} has a body of type {BODIES[row].__name__}")
    if row in KINDS and not _fits(KINDS[row].home, record.stream):
        raise refusal("bad_value", "$.stream", f"a stream of this kind holds no {record.kind}")
    for count, number in (("v", record.v), ("seq", record.seq)):
        if number == 0:
            raise refusal("bad_value", f"$.{count}", "counts from 1")
