//! Facts between runs and around them: messages, children, signals, timers, the store, evidence.

use serde_json::{Map, Value};

use super::common::{Amounts, Failure, Key, Name, Package, PackagePart, RecordHash, Text, Token};
use super::macros::{facts, tokens};
use super::run::{EndReason, EndStatus};
use crate::content::{Commit, Content};
use crate::ids::{ArtifactId, CapabilityId, EnvelopeId, RunId, SessionId, StepId, StoreId, StreamId};

tokens! {
    /// What an envelope carries.
    pub enum EnvelopeKind {
        Message = "message",
        Signal = "signal",
        Cancel = "cancel",
        ChildEnded = "child_ended",
        BudgetReturned = "budget_returned",
        Capability = "capability",
        CapabilityRevoked = "capability_revoked",
    }
    /// What becomes of a child when its parent ends.
    pub enum OnParentEnd {
        End = "end",
        HandOn = "hand_on",
    }
    pub enum DivergenceDecision {
        Retry = "retry",
        Accept = "accept",
        Fork = "fork",
    }
    pub enum PackageDecision {
        Continue = "continue",
        Wait = "wait",
        Fork = "fork",
        Refuse = "refuse",
    }
    pub enum CheckpointKind {
        Stream = "stream",
        Context = "context",
        Workspace = "workspace",
        Framework = "framework",
    }
    /// What an artifact is; media kinds carry their lineage.
    pub enum ArtifactKind {
        File = "file",
        Image = "image",
        Audio = "audio",
        Video = "video",
        Frame = "frame",
        AudioSegment = "audio_segment",
        VideoSegment = "video_segment",
        Transcript = "transcript",
        Embedding = "embedding",
        Derived = "derived",
    }
    pub enum LogLevel {
        Debug = "debug",
        Info = "info",
        Warning = "warning",
        Error = "error",
    }
}

facts! {
    /// `envelope.received`: journaled once by the receiver.
    pub struct EnvelopeReceived {
        pub envelope: EnvelopeId,
        pub from: StreamId,
        pub kind: EnvelopeKind,
    }

    /// `message.sent`.
    pub struct MessageSent {
        pub content: Content,
        pub correlation: Option<Key>,
        pub envelope: EnvelopeId,
        pub expires_at: Option<u64>,
        pub reply_to: Option<EnvelopeId>,
        pub to: RunId,
    }

    /// `message.received`: queued, or handed to the record's call.
    pub struct MessageReceived {
        pub content: Content,
        pub correlation: Option<Key>,
        pub envelope: EnvelopeId,
        pub from: RunId,
        pub reply_to: Option<EnvelopeId>,
    }

    /// `child.spawned`.
    pub struct ChildSpawned {
        pub agent: Name,
        pub capabilities: Vec<CapabilityId>,
        pub child: RunId,
        pub escrow: Amounts,
        pub input: Content,
        pub on_parent_end: OnParentEnd,
    }

    /// `child.ended`.
    pub struct ChildEnded {
        pub child: RunId,
        pub failure: Option<Failure>,
        pub reason: EndReason,
        pub result: Option<Content>,
        pub returned: Amounts,
        pub status: EndStatus,
    }

    /// `signal.received`: queued, or handed to the record's call.
    pub struct SignalReceived {
        pub envelope: Option<EnvelopeId>,
        pub name: Name,
        pub payload: Content,
    }

    /// `timer.set`: belongs to the record's call.
    pub struct TimerSet {
        pub fires_at: u64,
    }

    /// `timer.fired`.
    pub struct TimerFired {
        pub fires_at: u64,
    }

    /// `replay.decided`: what a person wants after a divergence.
    pub struct ReplayDecided {
        pub decision: DivergenceDecision,
        pub reason: Option<Content>,
    }

    /// `package.decided`: how a run goes on under another package.
    pub struct PackageDecided {
        pub changed: Vec<PackagePart>,
        pub decision: PackageDecision,
        pub package: Package,
        pub reason: Option<Content>,
    }

    /// `session.created`.
    pub struct SessionCreated {
        pub labels: super::common::Labels,
        pub session: SessionId,
    }

    /// `store.created`: the first record of the store's stream.
    pub struct StoreCreated {
        pub format: u32,
        pub store: StoreId,
    }

    /// `store.restored`: a new epoch; fences of the old one are never issued again.
    pub struct StoreRestored {
        pub epoch: u32,
        pub head: RecordHash,
        pub seq: u64,
    }

    /// `seal.signed`: a signed head over everything committed so far.
    pub struct SealSigned {
        pub checkpoint: Text,
        pub key_id: Key,
        pub origin: Key,
        pub root: Key,
        pub size: u64,
    }

    /// `cost.recorded`.
    pub struct CostRecorded {
        pub amounts: Amounts,
        pub input_tokens: Option<u64>,
        pub model: Option<Name>,
        pub output_tokens: Option<u64>,
        pub provider: Option<Name>,
    }

    /// `artifact.created`.
    pub struct ArtifactCreated {
        pub artifact: ArtifactId,
        pub content: Option<Content>,
        pub derived_from: Vec<ArtifactId>,
        pub kind: ArtifactKind,
        pub media: super::common::Media,
        pub name: Name,
        pub uri: Option<Content>,
    }

    /// `checkpoint.created`: the newest per stream and consumer counts; offsets never go back.
    pub struct CheckpointCreated {
        pub backpressure: Option<Text>,
        pub chunk: Option<u64>,
        pub consumer: Option<Name>,
        pub data: Option<Content>,
        pub kind: CheckpointKind,
        pub name: Name,
        pub offset: Option<u64>,
        pub partial: Option<Content>,
        pub watermark: Option<u64>,
    }

    /// `name.taken`: in the store's stream.
    pub struct NameTaken {
        pub name: Name,
        pub run: RunId,
    }

    /// `name.released`.
    pub struct NameReleased {
        pub name: Name,
        pub run: RunId,
    }

    /// `content.erased`: these commitments can no longer be opened.
    pub struct ContentErased {
        pub commits: Vec<Commit>,
        pub reason: Option<Text>,
    }

    /// `refusal.noted`: something was asked for and refused, and that is worth knowing.
    pub struct RefusalNoted {
        pub code: Token,
        pub operation: Token,
        pub step: Option<StepId>,
    }

    /// `note.logged`.
    pub struct NoteLogged {
        pub level: LogLevel,
        pub text: Content,
    }

    /// `x.<vendor>.<name>`: anybody's own fact. `data` is hashed as it is and stays; `content` can go.
    pub struct Extension {
        pub content: Option<Content>,
        pub data: Map<String, Value>,
    }
}

impl CheckpointCreated {
    /// Of a stream: which stream and consumer, and how far.
    pub(crate) fn progress(&self) -> Option<(String, u64)> {
        let consumer = self.consumer.as_ref().map_or("", Name::as_str);
        let place = format!("{}\n{consumer}", self.name.as_str());
        self.offset.filter(|_| self.kind == CheckpointKind::Stream).map(|offset| (place, offset))
    }
}
