//! The closed set of kinds, plus the open `x.<vendor>.<name>`. A token that is taken out of this table
//! is never used again.

use serde::Serialize;
use serde_json::Value;

use super::read::{Fault, ReadError, read};
use super::{call, flow, govern, run, step};
use crate::canonical::{CanonicalError, Writer, write_serde};
use crate::ids::StreamId;

/// Which kind of stream a record belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Home {
    Run,
    Session,
    Store,
    /// A run or a session.
    RunOrSession,
    Any,
}

impl Home {
    pub fn holds(self, stream: StreamId) -> bool {
        match (self, stream) {
            (Self::Any, _)
            | (Self::Run | Self::RunOrSession, StreamId::Run(_))
            | (Self::Session | Self::RunOrSession, StreamId::Session(_))
            | (Self::Store, StreamId::Store) => true,
            (Self::Run | Self::Session | Self::RunOrSession, StreamId::Store)
            | (Self::Run | Self::Store, StreamId::Session(_))
            | (Self::Session | Self::Store, StreamId::Run(_)) => false,
        }
    }

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Run => "run",
            Self::Session => "session",
            Self::Store => "store",
            Self::RunOrSession => "run or session",
            Self::Any => "any",
        }
    }
}

/// How a process that does not know the kind must treat it, and whether it may follow the end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// Changes what follows: who does not know it may only read.
    Critical,
    /// Says more about what happened: may follow the end, changes nothing there.
    Evidence,
    /// For people: anybody may skip it.
    Note,
}

impl Class {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Critical => "critical",
            Self::Evidence => "evidence",
            Self::Note => "note",
        }
    }
}

/// Which part of a run's state it changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fold {
    Run,
    Step,
    State,
    Call,
    Govern,
    Flow,
    /// Nothing folds from it: it is read from the journal.
    Nothing,
}

/// One row of the table.
#[derive(Debug, Clone, Copy)]
pub struct KindInfo {
    pub token: &'static str,
    pub home: Home,
    pub class: Class,
    pub fold: Fold,
    /// The positions of contents in its body; `[]` stands for each element of a list.
    pub contents: &'static [&'static str],
    /// Whether the low-level door may append it.
    pub door: bool,
}

#[allow(clippy::disallowed_methods, reason = "its caller encodes what was read and compares the bytes")]
fn plain<T: serde::de::DeserializeOwned>(text: &str) -> Option<T> {
    serde_json::from_str(text).ok()
}

macro_rules! door {
    () => {
        false
    };
    (door) => {
        true
    };
}

macro_rules! row {
    ($token:literal $home:ident $class:ident $fold:ident $($door:ident)? [$($content:literal),*]) => {
        KindInfo {
            token: $token,
            home: Home::$home,
            class: Class::$class,
            fold: Fold::$fold,
            contents: &[$($content),*],
            door: door!($($door)?),
        }
    };
}

macro_rules! kinds {
    ($($variant:ident($type:ty) = $token:literal $home:ident $class:ident $fold:ident $($door:ident)? [$($content:literal),*];)*) => {
        /// The typed body of a record.
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub enum Body {
            $($variant(Box<$type>),)*
            /// `x.<vendor>.<name>`.
            Extension(String, Box<flow::Extension>),
            /// A kind of a newer Holdfast with its body, or a newer version with the whole record: can be
            /// read, verified and exported.
            Unknown(String, Box<Value>),
        }

        $(impl From<$type> for Body {
            fn from(body: $type) -> Self {
                Body::$variant(Box::new(body))
            }
        })*

        /// The table of kinds.
        pub const KINDS: &[KindInfo] = &[$(row!($token $home $class $fold $($door)? [$($content),*])),*];

        impl Body {
            pub fn kind(&self) -> &str {
                match self {
                    $(Body::$variant(_) => $token,)*
                    Body::Extension(kind, _) | Body::Unknown(kind, _) => kind,
                }
            }

            /// The kind's row; extensions and unknown kinds have none.
            pub fn info(&self) -> Option<&'static KindInfo> {
                match self {
                    $(Body::$variant(_) => {
                        const ROW: &KindInfo = &row!($token $home $class $fold $($door)? [$($content),*]);
                        Some(ROW)
                    })*
                    Body::Extension(..) | Body::Unknown(..) => None,
                }
            }

            /// Reads the body of a kind; an unknown kind is kept as it is.
            pub fn read(kind: &str, body: &Value) -> Result<Self, ReadError> {
                match kind {
                    $($token => read(body).map(|found| Body::$variant(Box::new(found))),)*
                    _ if is_extension(kind) => {
                        read(body).map(|found| Body::Extension(kind.to_owned(), Box::new(found)))
                    }
                    _ if super::common::Token::new(kind).is_some() => {
                        Ok(Body::Unknown(kind.to_owned(), Box::new(body.clone())))
                    }
                    _ => Err(ReadError::new(Fault::UnknownKind, "$", "not the token of a kind")),
                }
            }

            /// Reads the body of a known kind from its text; nothing if it is anything but plain.
            pub(super) fn read_plain(kind: &str, body: &str) -> Option<Self> {
                match kind {
                    $($token => plain(body).map(|found| Body::$variant(Box::new(found))),)*
                    _ if is_extension(kind) => {
                        plain(body).map(|found| Body::Extension(kind.to_owned(), Box::new(found)))
                    }
                    _ => None,
                }
            }

            /// Pushes it into a writer.
            pub(super) fn write(&self, out: &mut Writer) -> Result<(), CanonicalError> {
                match self {
                    $(Body::$variant(body) => write_serde(out, &**body),)*
                    Body::Extension(_, body) => write_serde(out, &**body),
                    Body::Unknown(_, body) => write_serde(out, &**body),
                }
            }

            pub(super) fn serialize_into<S: serde::ser::SerializeStruct>(&self, out: &mut S) -> Result<(), S::Error> {
                match self {
                    $(Body::$variant(body) => out.serialize_field("body", &**body),)*
                    Body::Extension(_, body) => out.serialize_field("body", &**body),
                    Body::Unknown(_, body) => out.serialize_field("body", &**body),
                }
            }
        }

        pub(super) fn generate(generator: &mut schemars::SchemaGenerator) -> Vec<(&'static str, schemars::Schema)> {
            vec![
                $(($token, generator.subschema_for::<$type>()),)*
                ("x.*", generator.subschema_for::<flow::Extension>()),
            ]
        }
    };
}

kinds! {
    RunCreated(run::RunCreated) = "run.created" Run Critical Run ["input", "seed", "state"];
    RunForked(run::RunForked) = "run.forked" Run Critical Run ["reason"];
    RunResumed(run::RunResumed) = "run.resumed" Run Critical Run ["reason"];
    RunRetried(run::RunRetried) = "run.retried" Run Critical Run ["reason"];
    RunPaused(run::RunPaused) = "run.paused" Run Critical Run ["reason"];
    RunUnpaused(run::RunUnpaused) = "run.unpaused" Run Critical Run ["reason"];
    RunCancelRequested(run::RunCancelRequested) = "run.cancel_requested" Run Critical Run ["reason"];
    RunFinished(run::RunFinished) = "run.finished" Run Critical Run ["failure.message", "result"];

    StepCreated(step::StepCreated) = "step.created" Run Critical Step ["input"];
    StepClaimed(step::StepClaimed) = "step.claimed" Run Critical Step [];
    StepRetryScheduled(step::StepRetryScheduled) = "step.retry_scheduled" Run Critical Step ["failure.message"];
    StepWaiting(step::StepWaiting) = "step.waiting" Run Critical Step [];
    StepWoken(step::StepWoken) = "step.woken" Run Critical Step [];
    StepCompleted(step::StepCompleted) = "step.completed" Run Critical Step ["result"];
    StepFailed(step::StepFailed) = "step.failed" Run Critical Step ["failure.message"];
    StepCancelled(step::StepCancelled) = "step.cancelled" Run Critical Step [];
    LeaseExpired(step::LeaseExpired) = "lease.expired" Run Critical Step [];
    LeaseReleased(step::LeaseReleased) = "lease.released" Run Critical Step [];
    StatePatched(step::StatePatched) = "state.patched" Run Critical State ["patch"];
    StateConflict(step::StateConflict) = "state.conflict" Run Critical State [];

    CallOpened(call::CallOpened) = "call.opened" Run Critical Call ["arguments"];
    CallCancelled(call::CallCancelled) = "call.cancelled" Run Critical Call [];
    CallAbandoned(call::CallAbandoned) = "call.abandoned" Run Critical Call [];
    CallServed(call::CallServed) = "call.served" Run Critical Call ["failure.message", "output_error.message", "result"];
    EffectStarted(call::EffectStarted) = "effect.started" Run Critical Call ["arguments"];
    EffectSettled(call::EffectSettled) = "effect.settled" Run Critical Call ["failure.message", "output_error.message", "result"];
    EffectDoubted(call::EffectDoubted) = "effect.doubted" Run Critical Call ["failure.message"];
    EffectLate(call::EffectLate) = "effect.late" Run Evidence Call ["failure.message", "result"];
    EffectResolved(call::EffectResolved) = "effect.resolved" Run Evidence Call ["reason", "result"];
    EffectCompensated(call::EffectCompensated) = "effect.compensated" Run Critical Call ["reason"];
    ReplayDiverged(call::ReplayDiverged) = "replay.diverged" Run Critical Nothing [];
    ReplayDecided(flow::ReplayDecided) = "replay.decided" Run Critical Nothing ["reason"];
    PackageDecided(flow::PackageDecided) = "package.decided" Run Critical Flow ["reason"];

    HookRuled(govern::HookRuled) = "hook.ruled" Run Critical Govern [
        "response.payload.items[]", "response.payload.summary", "response.payload.value"];
    HookApplied(govern::HookApplied) = "hook.applied" Run Critical Nothing [];
    PolicyDecided(govern::PolicyDecided) = "policy.decided" Run Critical Govern [];
    PolicyActivated(govern::PolicyActivated) = "policy.activated" Store Critical Nothing ["text"];
    ApprovalRequested(govern::ApprovalRequested) = "approval.requested" Run Critical Govern ["arguments"];
    ApprovalDispatched(govern::ApprovalDispatched) = "approval.dispatched" Run Critical Govern [];
    ApprovalVoted(govern::ApprovalVoted) = "approval.voted" Run Critical Govern ["reason"];
    ApprovalDecided(govern::ApprovalDecided) = "approval.decided" Run Critical Govern ["reason"];
    ApprovalEdited(govern::ApprovalEdited) = "approval.edited" Run Critical Govern ["arguments", "reason"];
    ApprovalTimedOut(govern::ApprovalTimedOut) = "approval.timed_out" Run Critical Govern [];
    ApprovalSuperseded(govern::ApprovalSuperseded) = "approval.superseded" Run Critical Govern [];
    ApprovalCancelled(govern::ApprovalCancelled) = "approval.cancelled" Run Critical Govern [];
    GrantCreated(govern::GrantCreated) = "grant.created" RunOrSession Critical Govern [];
    GrantSpent(govern::GrantSpent) = "grant.spent" Run Critical Govern [];
    GrantRevoked(govern::GrantRevoked) = "grant.revoked" RunOrSession Critical Govern ["reason"];
    BudgetReserved(govern::BudgetReserved) = "budget.reserved" Run Critical Govern [];
    BudgetSettled(govern::BudgetSettled) = "budget.settled" Run Critical Govern [];
    BudgetRefused(govern::BudgetRefused) = "budget.refused" Run Critical Govern [];
    BudgetEscrowed(govern::BudgetEscrowed) = "budget.escrowed" Run Critical Govern [];
    BudgetRaised(govern::BudgetRaised) = "budget.raised" Run Critical Govern ["reason"];
    BudgetReturned(govern::BudgetReturned) = "budget.returned" Run Critical Govern [];
    SandboxStarted(govern::SandboxStarted) = "sandbox.started" Run Critical Nothing [];
    SandboxFinished(govern::SandboxFinished) = "sandbox.finished" Run Critical Nothing [];
    CapabilityGranted(govern::CapabilityGranted) = "capability.granted" Run Critical Govern [];
    CapabilityAttenuated(govern::CapabilityAttenuated) = "capability.attenuated" Run Critical Govern [];
    CapabilityTransferred(govern::CapabilityTransferred) = "capability.transferred" Run Critical Govern [];
    CapabilityRevoked(govern::CapabilityRevoked) = "capability.revoked" Run Critical Govern ["reason"];

    EnvelopeReceived(flow::EnvelopeReceived) = "envelope.received" RunOrSession Critical Flow [];
    MessageSent(flow::MessageSent) = "message.sent" Run Critical Flow ["content"];
    MessageReceived(flow::MessageReceived) = "message.received" Run Critical Flow ["content"];
    ChildSpawned(flow::ChildSpawned) = "child.spawned" Run Critical Flow ["input"];
    ChildEnded(flow::ChildEnded) = "child.ended" Run Critical Flow ["failure.message", "result"];
    SignalReceived(flow::SignalReceived) = "signal.received" Run Critical Flow ["payload"];
    TimerSet(flow::TimerSet) = "timer.set" Run Critical Call [];
    TimerFired(flow::TimerFired) = "timer.fired" Run Critical Call [];

    SessionCreated(flow::SessionCreated) = "session.created" Session Critical Nothing [];
    StoreCreated(flow::StoreCreated) = "store.created" Store Critical Nothing [];
    StoreRestored(flow::StoreRestored) = "store.restored" Store Critical Nothing [];
    SealSigned(flow::SealSigned) = "seal.signed" Store Critical Nothing [];
    NameTaken(flow::NameTaken) = "name.taken" Store Critical Nothing [];
    NameReleased(flow::NameReleased) = "name.released" Store Critical Nothing [];

    CostRecorded(flow::CostRecorded) = "cost.recorded" Run Evidence Nothing door [];
    ArtifactCreated(flow::ArtifactCreated) = "artifact.created" RunOrSession Critical Nothing door ["content", "uri"];
    CheckpointCreated(flow::CheckpointCreated) = "checkpoint.created" RunOrSession Critical Nothing door ["data", "partial"];
    ContentErased(flow::ContentErased) = "content.erased" Any Evidence Nothing [];
    RefusalNoted(flow::RefusalNoted) = "refusal.noted" Any Evidence Nothing [];
    NoteLogged(flow::NoteLogged) = "note.logged" Any Note Nothing door ["text"];
}

/// Whether a token is `x.<vendor>.<name>`.
pub(super) fn is_extension(kind: &str) -> bool {
    super::common::Token::new(kind).is_some() && kind.starts_with("x.") && kind.split('.').count() >= 3
}

impl Body {
    /// What agent code has written down; where it is a call, that is all the call does.
    pub(crate) fn is_noted(&self) -> bool {
        matches!(
            self,
            Self::NoteLogged(_)
                | Self::CostRecorded(_)
                | Self::ArtifactCreated(_)
                | Self::CheckpointCreated(_)
        )
    }

    pub fn class(&self) -> Class {
        match self {
            Self::Extension(..) => Class::Note,
            Self::Unknown(kind, _) if kind.starts_with("note.") => Class::Note,
            known => known.info().map_or(Class::Critical, |info| info.class),
        }
    }

    /// Which part of a run's state it changes.
    pub fn folds(&self) -> Fold {
        self.info().map_or(Fold::Nothing, |info| info.fold)
    }

    /// Whether a claim under which it was written got anywhere; sending a call off once more does not.
    pub fn is_progress(&self) -> bool {
        matches!(
            self,
            Self::StatePatched(_)
                | Self::StateConflict(_)
                | Self::CallOpened(_)
                | Self::EffectSettled(_)
                | Self::ApprovalRequested(_)
                | Self::ChildSpawned(_)
                | Self::MessageSent(_)
                | Self::StepWaiting(_)
                | Self::NoteLogged(_)
                | Self::ArtifactCreated(_)
                | Self::CheckpointCreated(_)
                | Self::Extension(..)
        )
    }

    /// Whether only a worker writes it, so that it always stands under a fence.
    pub fn needs_fence(&self) -> bool {
        matches!(
            self,
            Self::StepClaimed(_)
                | Self::StepRetryScheduled(_)
                | Self::StepCompleted(_)
                | Self::LeaseReleased(_)
                | Self::StatePatched(_)
                | Self::StateConflict(_)
                | Self::CallOpened(_)
                | Self::CallCancelled(_)
                | Self::EffectStarted(_)
                | Self::EffectSettled(_)
                | Self::ChildSpawned(_)
                | Self::MessageSent(_)
        )
    }

    /// Whether the record may follow the terminal record of its run.
    pub fn may_follow_end(&self) -> bool {
        use crate::contracts::hook::HookPoint;
        match self {
            Self::HookRuled(ruled) => ruled.point == HookPoint::AfterRunTerminal,
            Self::HookApplied(applied) => applied.point == HookPoint::AfterRunTerminal,
            other => other.class() != Class::Critical,
        }
    }

    /// Whether a stream of that kind may hold it.
    pub fn fits(&self, stream: StreamId) -> bool {
        match self {
            Self::Extension(..) | Self::Unknown(..) => true,
            known => known.info().is_some_and(|info| info.home.holds(stream)),
        }
    }
}

impl Serialize for Body {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        use serde::ser::SerializeStruct;
        let mut out = serializer.serialize_struct("Body", 2)?;
        self.serialize_into(&mut out)?;
        out.serialize_field("kind", self.kind())?;
        out.end()
    }
}
