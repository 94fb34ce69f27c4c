"""Facts between runs and around them: messages, children, signals, timers, the store, evidence."""

from typing import Literal, TypeAlias

from pydantic import Field

from holdfast.records.base import (
    U32,
    U64,
    ArtifactId,
    CapabilityId,
    Content,
    EnvelopeId,
    Fact,
    Json,
    Key,
    Labels,
    Media,
    Name,
    RunId,
    SessionId,
    Sha256,
    StepId,
    StoreId,
    StreamId,
    Text,
    Token,
)
from holdfast.records.common import Amounts, Failure, Package, PackagePart
from holdfast.records.run import EndReason, EndStatus

EnvelopeKind: TypeAlias = Literal[
    "message",
    "signal",
    "cancel",
    "child_ended",
    "budget_returned",
    "capability",
    "capability_revoked",
]
"""What an envelope carries."""

OnParentEnd: TypeAlias = Literal["end", "hand_on"]
"""What becomes of a child when its parent ends."""

DivergenceDecision: TypeAlias = Literal["retry", "accept", "fork"]

PackageDecision: TypeAlias = Literal["continue", "wait", "fork", "refuse"]

CheckpointKind: TypeAlias = Literal["stream", "context", "workspace", "framework"]

ArtifactKind: TypeAlias = Literal[
    "file",
    "image",
    "audio",
    "video",
    "frame",
    "audio_segment",
    "video_segment",
    "transcript",
    "embedding",
    "derived",
]
"""What an artifact is; media kinds carry their lineage."""

LogLevel: TypeAlias = Literal["debug", "info", "warning", "error"]


class EnvelopeReceived(Fact):
    """`envelope.received`: journaled once by the receiver."""

    envelope: EnvelopeId
    from_: StreamId = Field(alias="from")
    kind: EnvelopeKind


class MessageSent(Fact):
    """`message.sent`."""

    content: Content
    correlation: Key | None = None
    envelope: EnvelopeId
    expires_at: U64 | None = None
    reply_to: EnvelopeId | None = None
    to: RunId


class MessageReceived(Fact):
    """`message.received`: queued, or handed to the record's call."""

    content: Content
    correlation: Key | None = None
    envelope: EnvelopeId
    from_: RunId = Field(alias="from")
    reply_to: EnvelopeId | None = None


class ChildSpawned(Fact):
    """`child.spawned`."""

    agent: Name
    capabilities: list[CapabilityId]
    child: RunId
    escrow: Amounts
    input: Content
    on_parent_end: OnParentEnd


class ChildEnded(Fact):
    """`child.ended`."""

    child: RunId
    failure: Failure | None = None
    reason: EndReason
    result: Content | None = None
    returned: Amounts
    status: EndStatus


class SignalReceived(Fact):
    """`signal.received`: queued, or handed to the record's call."""

    envelope: EnvelopeId | None = None
    name: Name
    payload: Content


class TimerSet(Fact):
    """`timer.set`: belongs to the record's call."""

    fires_at: U64


class TimerFired(Fact):
    """`timer.fired`."""

    fires_at: U64


class ReplayDecided(Fact):
    """`replay.decided`: what a person wants after a divergence."""

    decision: DivergenceDecision
    reason: Content | None = None


class PackageDecided(Fact):
    """`package.decided`: how a run goes on under another package."""

    changed: list[PackagePart]
    decision: PackageDecision
    package: Package
    reason: Content | None = None


class SessionCreated(Fact):
    """`session.created`."""

    labels: Labels
    session: SessionId


class StoreCreated(Fact):
    """`store.created`: the first record of the store's stream."""

    format: U32
    store: StoreId


class StoreRestored(Fact):
    """`store.restored`: a new epoch; fences of the old one are never issued again."""

    epoch: U32
    head: Sha256
    seq: U64


class SealSigned(Fact):
    """`seal.signed`: a signed head over everything committed so far."""

    checkpoint: Text
    key_id: Key
    origin: Key
    root: Key
    size: U64


class CostRecorded(Fact):
    """`cost.recorded`."""

    amounts: Amounts
    input_tokens: U64 | None = None
    model: Name | None = None
    output_tokens: U64 | None = None
    provider: Name | None = None


class ArtifactCreated(Fact):
    """`artifact.created`."""

    artifact: ArtifactId
    content: Content | None = None
    derived_from: list[ArtifactId]
    kind: ArtifactKind
    media: Media
    name: Name
    uri: Content | None = None


class CheckpointCreated(Fact):
    """`checkpoint.created`: the newest per stream and consumer counts; offsets never go back."""

    backpressure: Text | None = None
    chunk: U64 | None = None
    consumer: Name | None = None
    data: Content | None = None
    kind: CheckpointKind
    name: Name
    offset: U64 | None = None
    partial: Content | None = None
    watermark: U64 | None = None


class NameTaken(Fact):
    """`name.taken`: in the store's stream."""

    name: Name
    run: RunId


class NameReleased(Fact):
    """`name.released`."""

    name: Name
    run: RunId


class ContentErased(Fact):
    """`content.erased`: these commitments can no longer be opened."""

    commits: list[Sha256]
    reason: Text | None = None


class RefusalNoted(Fact):
    """`refusal.noted`: something was asked for and refused, and that is worth knowing."""

    code: Token
    operation: Token
    step: StepId | None = None


class NoteLogged(Fact):
    """`note.logged`."""

    level: LogLevel
    text: Content


class Extension(Fact):
    """`x.<vendor>.<name>`: anybody's own fact. `data` is hashed as it is and stays; `content` can go."""

    content: Content | None = None
    data: dict[str, Json]
