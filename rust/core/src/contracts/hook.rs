//! Hooks: 22 points, 20 response classes, what a hook declares, sees and answers. The tokens are
//! those of the source contract; which class is allowed at which point is in `hook_matrix.rs`.

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};

pub use super::hook_matrix::HookSpecError;
use crate::content::Content;
use crate::ids::{CallId, RunId, SessionId, StepId};
use crate::records::macros::{facts, tokens};
use crate::records::read::{adjacent, internal, rethrow, unknown_tag};
use crate::records::{Key, Name, Package, Privacy, ReadError, Text, Token, read};

tokens! {
    pub enum HookPoint {
        RunStarting = "run_starting",
        BeforeContextAssembly = "before_context_assembly",
        AfterContextAssembly = "after_context_assembly",
        BeforeProviderProjection = "before_provider_projection",
        BeforeModelCall = "before_model_call",
        OnModelDelta = "on_model_delta",
        AfterModelCall = "after_model_call",
        BeforeStructuredOutputValidation = "before_structured_output_validation",
        AfterStructuredOutputValidation = "after_structured_output_validation",
        BeforeToolCall = "before_tool_call",
        AfterToolCall = "after_tool_call",
        BeforeApprovalRequest = "before_approval_request",
        AfterApprovalDecision = "after_approval_decision",
        BeforeSubagentStart = "before_subagent_start",
        AfterSubagentTerminal = "after_subagent_terminal",
        BeforeIsolationProcessStart = "before_isolation_process_start",
        AfterIsolationProcessExit = "after_isolation_process_exit",
        OnRunCancelRequested = "on_run_cancel_requested",
        BeforeRunComplete = "before_run_complete",
        AfterRunTerminal = "after_run_terminal",
        BeforeCompaction = "before_compaction",
        AfterCompaction = "after_compaction",
    }
    /// What a response does; a hook needs the right of the same name.
    pub enum HookClass {
        Observe = "observe",
        InjectContext = "inject_context",
        ModifyProjection = "modify_projection",
        RequestCompaction = "request_compaction",
        ModifyValidationHints = "modify_validation_hints",
        ModifyToolRequest = "modify_tool_request",
        ModifyApprovalRequest = "modify_approval_request",
        Deny = "deny",
        RequestApproval = "request_approval",
        RequestRetry = "request_retry",
        RewriteToolResult = "rewrite_tool_result",
        ModifySubagentRequest = "modify_subagent_request",
        ModifyProcessRequest = "modify_process_request",
        ValidateDetach = "validate_detach",
        RequestUsageRollupRepair = "request_usage_rollup_repair",
        RequestCleanupRepair = "request_cleanup_repair",
        MarkProtectedContext = "mark_protected_context",
        RequestProjectionAuditRepair = "request_projection_audit_repair",
        StopCompletionWithRepairNeeded = "stop_completion_with_repair_needed",
        StopRun = "stop_run",
    }
    pub enum HookSource {
        HostConfig = "host_config",
        InProcess = "in_process",
        Extension = "extension",
        SdkDefault = "sdk_default",
        TestOnlyFake = "test_only_fake",
    }
    pub enum HookPhase {
        Early = "early",
        Normal = "normal",
        Late = "late",
    }
    pub enum HookOverflow {
        DropObserveOnly = "drop_observe_only",
        SummarizeAndContinue = "summarize_and_continue",
        FailHookInvocation = "fail_hook_invocation",
    }
    pub enum HookFailure {
        FailOpenObserveOnly = "fail_open_observe_only",
        Deny = "deny",
        InterruptRun = "interrupt_run",
        FailRun = "fail_run",
    }
    pub enum HookPrivacy {
        EnvelopeAndRedactedSummary = "envelope_and_redacted_summary",
        ContentRefsOnly = "content_refs_only",
        ContentCaptureAllowed = "content_capture_allowed",
    }
    /// How one invocation ended. The last two are ours: the source had no word for failing closed.
    pub enum HookOutcome {
        Completed = "completed",
        AppliedJournaledMutation = "applied_journaled_mutation",
        RejectedMutationRight = "rejected_mutation_right",
        RejectedPointMatrix = "rejected_point_matrix",
        RejectedPolicy = "rejected_policy",
        TimedOutFailOpen = "timed_out_fail_open",
        FailedOpen = "failed_open",
        Cancelled = "cancelled",
        TimedOutFailClosed = "timed_out_fail_closed",
        FailedClosed = "failed_closed",
    }
    /// What a policy reference refers to.
    pub enum PolicyRefKind {
        Approval = "approval",
        Permission = "permission",
        Sandbox = "sandbox",
        Context = "context",
        Privacy = "privacy",
        Retention = "retention",
        Redaction = "redaction",
        RuntimePackage = "runtime_package",
        Host = "host",
    }
}

facts! {
    pub struct PolicyRef {
        pub id: Key,
        pub kind: PolicyRefKind,
        pub version: Option<Name>,
    }

    pub struct HookOrdering {
        pub order: i32,
        pub phase: HookPhase,
    }

    pub struct HookTimeout {
        pub timeout_ms: u64,
    }

    pub struct HookRights {
        pub rights: Vec<HookClass>,
    }

    pub struct HookQueue {
        pub capacity: u32,
        pub terminal_reserve: u32,
    }

    /// What a hook declares.
    pub struct HookSpec {
        pub execution: HookExecution,
        pub executor_ref: Key,
        pub failure: HookFailure,
        pub hook_id: Name,
        pub mutation_rights: HookRights,
        pub ordering: HookOrdering,
        pub point: HookPoint,
        pub policy_ref: PolicyRef,
        pub privacy: HookPrivacy,
        pub source: HookSource,
        pub timeout: HookTimeout,
    }

    /// What a hook is shown of its subject.
    pub struct HookView {
        /// The subject itself, as far as the hook's privacy allows.
        pub extras: Map<String, Value>,
        pub privacy: Privacy,
        pub summary: Option<Text>,
    }

    /// What a hook is called with.
    pub struct HookInput {
        pub agent: Name,
        pub attempt: Option<u32>,
        pub call: Option<CallId>,
        pub cancelled: bool,
        pub hook_id: Name,
        pub package: Package,
        pub point: HookPoint,
        pub run: RunId,
        pub session: Option<SessionId>,
        pub step: Option<StepId>,
        pub turn: Option<u32>,
        pub view: HookView,
    }

    /// A payload that only says why.
    pub struct HookRemark {
        pub extras: Option<Map<String, Value>>,
        pub summary: Option<Content>,
    }

    /// A payload that stops something, with a code for programs.
    pub struct HookStop {
        pub code: Token,
        pub extras: Option<Map<String, Value>>,
        pub summary: Option<Content>,
    }

    /// A payload that puts a new value in the place of the old one.
    pub struct HookChange {
        pub extras: Option<Map<String, Value>>,
        pub summary: Option<Content>,
        pub value: Content,
    }

    /// A payload of further context.
    pub struct HookItems {
        pub extras: Option<Map<String, Value>>,
        pub items: Vec<Content>,
    }

    /// A payload of ids that compaction must keep.
    pub struct HookProtect {
        pub extras: Option<Map<String, Value>>,
        pub items: Vec<Key>,
    }
}

/// Whether the runtime waits for a hook.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(tag = "mode", rename_all = "snake_case", deny_unknown_fields)]
pub enum HookExecution {
    Blocking {},
    NonBlocking { overflow: HookOverflow, queue: HookQueue },
}

impl<'de> Deserialize<'de> for HookExecution {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Nothing {}
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Observer {
            overflow: HookOverflow,
            queue: HookQueue,
        }
        let read_mode = |value: &Value| {
            let (mode, rest) = internal(value, "mode")?;
            match mode.as_str() {
                "blocking" => read(&rest).map(|Nothing {}| Self::Blocking {}),
                "non_blocking" => {
                    read(&rest).map(|Observer { overflow, queue }| Self::NonBlocking { overflow, queue })
                }
                _ => Err(unknown_tag("mode", &["blocking", "non_blocking"])),
            }
        };
        read_mode(&Value::deserialize(deserializer)?).map_err(rethrow)
    }
}

macro_rules! responses {
    ($($variant:ident($payload:ty) = $token:literal $class:ident;)*) => {
        /// What a hook answers: its class as `type`, and a payload of that class.
        #[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
        #[serde(tag = "type", content = "payload", deny_unknown_fields)]
        pub enum HookResponse { $(#[serde(rename = $token)] $variant($payload)),* }

        impl HookResponse {
            pub fn class(&self) -> HookClass {
                match self { $(Self::$variant(_) => HookClass::$class),* }
            }

            fn read(value: &Value) -> Result<Self, ReadError> {
                let (token, payload) = adjacent(value, "type", "payload")?;
                let read = match token.as_str() {
                    $($token => read(&payload).map(Self::$variant),)*
                    _ => return Err(unknown_tag("type", &[$($token),*])),
                };
                read.map_err(|error| error.within("payload"))
            }
        }
    };
}

responses! {
    ObserveOnly(HookRemark) = "observe_only" Observe;
    InjectContext(HookItems) = "inject_context" InjectContext;
    ModifyProjection(HookChange) = "modify_projection" ModifyProjection;
    RequestCompaction(HookRemark) = "request_compaction" RequestCompaction;
    ModifyValidationHints(HookChange) = "modify_validation_hints" ModifyValidationHints;
    ModifyToolRequest(HookChange) = "modify_tool_request" ModifyToolRequest;
    ModifyApprovalRequest(HookChange) = "modify_approval_request" ModifyApprovalRequest;
    Deny(HookStop) = "deny" Deny;
    RequestApproval(HookRemark) = "request_approval" RequestApproval;
    RequestRetry(HookRemark) = "request_retry" RequestRetry;
    RewriteToolResult(HookChange) = "rewrite_tool_result" RewriteToolResult;
    ModifySubagentRequest(HookChange) = "modify_subagent_request" ModifySubagentRequest;
    ModifyProcessRequest(HookChange) = "modify_process_request" ModifyProcessRequest;
    ValidateDetach(HookRemark) = "validate_detach" ValidateDetach;
    RequestUsageRollupRepair(HookRemark) = "request_usage_rollup_repair" RequestUsageRollupRepair;
    RequestCleanupRepair(HookRemark) = "request_cleanup_repair" RequestCleanupRepair;
    MarkProtectedContext(HookProtect) = "mark_protected_context" MarkProtectedContext;
    RequestProjectionAuditRepair(HookRemark) = "request_projection_audit_repair" RequestProjectionAuditRepair;
    StopCompletionWithRepairNeeded(HookStop) = "stop_completion_with_repair_needed" StopCompletionWithRepairNeeded;
    StopRun(HookStop) = "stop_run" StopRun;
}

impl<'de> Deserialize<'de> for HookResponse {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::read(&Value::deserialize(deserializer)?).map_err(rethrow)
    }
}
