//! The tagged shapes of the source approval decisions and records (`decision`, `record_type` +
//! `record`), read and written for those who have them. Nothing of ours is stored in these shapes: ids are
//! any text, and an absent actor of a denial is null.

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use super::approval::{ApprovalDecisionKind, ApprovalLifecycleStatus};
use super::hook::PolicyRef;
use crate::records::macros::{facts, tokens};
use crate::records::read::{adjacent, internal, rethrow, unknown_tag};
use crate::records::{Key, Privacy, ReadError, Text, Token, read};

tokens! {
    pub enum SourceKind {
        Sdk = "sdk",
        Host = "host",
        User = "user",
        System = "system",
        Developer = "developer",
        Memory = "memory",
        Compaction = "compaction",
        Hook = "hook",
        Extension = "extension",
        Tool = "tool",
        RemoteChannel = "remote_channel",
        ScheduledTask = "scheduled_task",
        Subagent = "subagent",
        ExternalRuntime = "external_runtime",
        Replay = "replay",
    }
    pub enum Trust {
        Trusted = "trusted",
        SdkGenerated = "sdk_generated",
        HostProvided = "host_provided",
        UserProvided = "user_provided",
        External = "external",
        Untrusted = "untrusted",
    }
    pub enum Retention {
        Ephemeral = "ephemeral",
        RunScoped = "run_scoped",
        SessionScoped = "session_scoped",
        Durable = "durable",
        Persistent = "persistent",
        HostPolicy = "host_policy",
    }
    pub enum DestinationKind {
        Agent = "agent",
        AgentPool = "agent_pool",
        Topic = "topic",
        Provider = "provider",
        ContextProjection = "context_projection",
        Journal = "journal",
        EventStream = "event_stream",
        Telemetry = "telemetry",
        OutputSink = "output_sink",
        Host = "host",
        User = "user",
        RemoteChannel = "remote_channel",
        Tool = "tool",
        Extension = "extension",
        Subagent = "subagent",
        ExternalRuntime = "external_runtime",
    }
    pub enum SourceEffectKind {
        ProviderRequest = "provider_request",
        ToolExecution = "tool_execution",
        ApprovalDispatch = "approval_dispatch",
        MemoryWrite = "memory_write",
        ExtensionAction = "extension_action",
        OutputDelivery = "output_delivery",
        FileWrite = "file_write",
        ProcessStart = "process_start",
        ProcessSignal = "process_signal",
        IsolatedProcessStart = "isolated_process_start",
        ChildAgentStart = "child_agent_start",
        RunMessageDelivery = "run_message_delivery",
        ChildArtifactShutdown = "child_artifact_shutdown",
        DetachTransfer = "detach_transfer",
        HookMutation = "hook_mutation",
    }
    pub enum SourceEffectStatus {
        Completed = "completed",
        Failed = "failed",
        TimedOut = "timed_out",
        Cancelled = "cancelled",
        DeniedBeforeExecution = "denied_before_execution",
        Unknown = "unknown",
    }
}

facts! {
    pub struct Correlation {
        pub key: Key,
        pub value: Key,
    }

    pub struct SourceRef {
        pub correlation: Option<Vec<Correlation>>,
        pub id: Key,
        pub kind: SourceKind,
        pub privacy: Privacy,
        pub redacted_summary: Option<Text>,
        pub trust: Trust,
    }

    pub struct DestinationRef {
        pub correlation: Option<Vec<Correlation>>,
        pub id: Key,
        pub kind: DestinationKind,
        pub privacy: Privacy,
        pub redacted_summary: Option<Text>,
        pub retention: Retention,
    }

    /// What a fact of the source is about; its kinds are many and only passed through.
    pub struct EntityRef {
        pub id: Key,
        pub kind: Token,
        pub privacy: Privacy,
        pub redacted_summary: Option<Text>,
        pub source: Option<SourceRef>,
    }

    pub struct SourceEffectIntent {
        pub content_refs: Option<Vec<Key>>,
        pub dedupe_key: Option<Key>,
        pub destination: Option<DestinationRef>,
        pub effect_id: Key,
        pub idempotency_key: Option<Key>,
        pub kind: SourceEffectKind,
        pub policy_refs: Option<Vec<PolicyRef>>,
        pub redacted_summary: Text,
        pub source: SourceRef,
        pub subject_ref: EntityRef,
    }

    pub struct SourceEffectResult {
        pub content_refs: Option<Vec<Key>>,
        pub effect_id: Key,
        pub error_ref: Option<Key>,
        pub external_operation_id: Option<Key>,
        pub reconciliation_ref: Option<Key>,
        pub redacted_summary: Text,
        pub terminal_status: SourceEffectStatus,
    }
}

/// An option that is spelled null when it is absent, as the source spells it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(transparent)]
pub struct Nullable<T>(pub Option<T>);

impl<T> Default for Nullable<T> {
    fn default() -> Self {
        Self(None)
    }
}

impl<'de, T: serde::de::DeserializeOwned> Deserialize<'de> for Nullable<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match Value::deserialize(deserializer)? {
            Value::Null => Ok(Self(None)),
            value => read(&value).map(|found| Self(Some(found))).map_err(rethrow),
        }
    }
}

/// A decision as the source tags it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(tag = "decision", rename_all = "snake_case", deny_unknown_fields)]
pub enum SourceDecision {
    Approved {
        actor_ref: SourceRef,
    },
    ApprovedForSession {
        actor_ref: SourceRef,
    },
    Denied {
        #[schemars(default)]
        actor_ref: Nullable<SourceRef>,
        reason_code: Token,
    },
}

impl SourceDecision {
    pub fn kind(&self) -> ApprovalDecisionKind {
        match self {
            Self::Approved { .. } => ApprovalDecisionKind::Approved,
            Self::ApprovedForSession { .. } => ApprovalDecisionKind::ApprovedForSession,
            Self::Denied { .. } => ApprovalDecisionKind::Denied,
        }
    }

    fn read(value: &Value) -> Result<Self, ReadError> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Yes {
            actor_ref: SourceRef,
        }
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct No {
            #[serde(default)]
            actor_ref: Nullable<SourceRef>,
            reason_code: Token,
        }
        let (decision, rest) = internal(value, "decision")?;
        match decision.as_str() {
            "approved" => read(&rest).map(|Yes { actor_ref }| Self::Approved { actor_ref }),
            "approved_for_session" => {
                read(&rest).map(|Yes { actor_ref }| Self::ApprovedForSession { actor_ref })
            }
            "denied" => {
                read(&rest).map(|No { actor_ref, reason_code }| Self::Denied { actor_ref, reason_code })
            }
            _ => Err(unknown_tag("decision", &["approved", "approved_for_session", "denied"])),
        }
    }
}

impl<'de> Deserialize<'de> for SourceDecision {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::read(&Value::deserialize(deserializer)?).map_err(rethrow)
    }
}

facts! {
    /// The request stays as it came.
    pub struct SourceRequested {
        pub request: serde_json::Map<String, Value>,
    }

    pub struct SourceDispatchIntent {
        pub effect_intent: SourceEffectIntent,
        pub request_id: Key,
    }

    pub struct SourceDispatchResult {
        pub effect_result: SourceEffectResult,
        pub lifecycle_status: ApprovalLifecycleStatus,
        pub request_id: Key,
    }

    pub struct SourceResponded {
        pub decision: SourceDecision,
        pub request_id: Key,
    }

    pub struct SourceDenied {
        pub reason_code: Token,
        pub request_id: Key,
    }
}

/// An approval record as the source tags it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(tag = "record_type", content = "record", rename_all = "snake_case", deny_unknown_fields)]
pub enum SourceApprovalRecord {
    Requested(SourceRequested),
    DispatchIntent(Box<SourceDispatchIntent>),
    DispatchResult(SourceDispatchResult),
    Responded(SourceResponded),
    Denied(SourceDenied),
}

impl SourceApprovalRecord {
    fn read(value: &Value) -> Result<Self, ReadError> {
        const TAGS: &[&str] = &["requested", "dispatch_intent", "dispatch_result", "responded", "denied"];
        let (kind, record) = adjacent(value, "record_type", "record")?;
        let found = match kind.as_str() {
            "requested" => read(&record).map(Self::Requested),
            "dispatch_intent" => read(&record).map(Self::DispatchIntent),
            "dispatch_result" => read(&record).map(Self::DispatchResult),
            "responded" => read(&record).map(Self::Responded),
            "denied" => read(&record).map(Self::Denied),
            _ => return Err(unknown_tag("record_type", TAGS)),
        };
        found.map_err(|error| error.within("record"))
    }
}

impl<'de> Deserialize<'de> for SourceApprovalRecord {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::read(&Value::deserialize(deserializer)?).map_err(rethrow)
    }
}
