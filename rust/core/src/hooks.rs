//! Hooks: in which order they are asked, what becomes of an answer, and what a failure means. Pure: who
//! runs the bodies says what they came to, and gets the record and what follows from it.
//!
//! A hook that guards or changes something never fails open. An answer that the matrix or the hook's rights
//! do not allow is a failure like any other.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::content::{Content, Sealed, seal};
use crate::contracts::hook::{
    HookClass, HookExecution, HookFailure, HookOutcome, HookPhase, HookPoint, HookResponse, HookSpec,
    HookSpecError,
};
use crate::entropy::{Entropy, Source};
use crate::limits;
use crate::mutants::{Mutant, mutant};
use crate::records::{HookRuled, Privacy, ReadError, read};

/// The points that are called; a hook at any other is refused when it is registered.
pub const LIVE: &[HookPoint] = &[
    HookPoint::RunStarting,
    HookPoint::BeforeToolCall,
    HookPoint::AfterToolCall,
    HookPoint::BeforeApprovalRequest,
    HookPoint::AfterApprovalDecision,
    HookPoint::BeforeSubagentStart,
    HookPoint::AfterSubagentTerminal,
    HookPoint::BeforeIsolationProcessStart,
    HookPoint::AfterIsolationProcessExit,
    HookPoint::OnRunCancelRequested,
    HookPoint::BeforeRunComplete,
    HookPoint::AfterRunTerminal,
];

/// What the body of a hook came to.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "snake_case", deny_unknown_fields)]
pub enum HookAnswer {
    /// A response with plain values where records hold contents.
    Response {
        response: Value,
    },
    /// What it put in the place of the arguments or the result is not what the tool declares.
    Invalid {
        response: Value,
    },
    Failed {},
    TimedOut {},
    Cancelled {},
}

/// One hook that was asked.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Invocation {
    pub answer: HookAnswer,
    pub elapsed_ms: u64,
    pub spec: Arc<HookSpec>,
}

/// What an answer leads to.
#[derive(Debug, Clone, PartialEq)]
pub enum Act {
    Nothing,
    Deny,
    /// This value in the place of the arguments, the request or the result.
    Rewrite(Value),
    AskPerson,
    /// A read, or a step's work, once more.
    Again,
    /// Further context for the agent.
    Inject(Vec<Value>),
    /// The run is to stop.
    Stop,
    /// The step waits for a person.
    Interrupt,
    /// The run is to fail.
    Fail,
}

/// What is recorded of an invocation, and what follows from it.
#[derive(Debug, Clone, PartialEq)]
pub struct Ruled {
    pub act: Act,
    pub body: HookRuled,
    pub sealed: Vec<Sealed>,
}

/// The hooks of a package, in the order in which they are asked.
#[derive(Debug, Clone, Default)]
pub struct Hooks {
    blocking: Vec<Arc<HookSpec>>,
    observers: Vec<Arc<HookSpec>>,
}

impl Hooks {
    /// The rules of registration, for all of them together.
    pub fn new(mut specs: Vec<HookSpec>) -> Result<Self, HookSpecError> {
        if specs.len() > limits::HOOKS_MAX {
            return Err(HookSpecError::TooMany);
        }
        specs.sort_by(|one, other| order(one).cmp(&order(other)));
        for (at, spec) in specs.iter().enumerate() {
            spec.validate()?;
            if !LIVE.contains(&spec.point) {
                return Err(HookSpecError::NotLive(spec.point));
            }
            if specs[..at].iter().any(|other| other.hook_id == spec.hook_id) {
                return Err(HookSpecError::Duplicate(spec.hook_id.clone()));
            }
        }
        let specs = specs.into_iter().map(Arc::new);
        let (blocking, observers) = specs.partition(|spec| spec.execution == HookExecution::Blocking {});
        Ok(Self { blocking, observers })
    }

    /// The n-th hook of a point that the runtime waits for.
    pub fn at(&self, point: HookPoint, n: usize) -> Option<&Arc<HookSpec>> {
        self.blocking.iter().filter(|spec| spec.point == point).nth(n)
    }

    /// The hooks of a point that only hear of it.
    pub fn observers(&self, point: HookPoint) -> impl Iterator<Item = &Arc<HookSpec>> {
        self.observers.iter().filter(move |spec| spec.point == point)
    }
}

fn order(spec: &HookSpec) -> (HookPoint, HookPhase, i32, &str) {
    (spec.point, spec.ordering.phase, spec.ordering.order, spec.hook_id.as_str())
}

/// What an answer leads to, before it is recorded.
pub(crate) fn act(invocation: &Invocation, repeatable: bool) -> Act {
    let nothing = Entropy([0; 32]);
    rule(invocation, 1, repeatable, &Source::new(&nothing, 0)).act
}

/// Rules about one answer. `repeatable`: what the hook is about may be made once more.
pub(crate) fn rule(invocation: &Invocation, number: u32, repeatable: bool, source: &Source<'_>) -> Ruled {
    let spec = &invocation.spec;
    let mut sealed = Vec::new();
    let (outcome, response, act) = match &invocation.answer {
        HookAnswer::Failed {} => failed(spec, HookOutcome::FailedOpen, HookOutcome::FailedClosed),
        HookAnswer::TimedOut {} => {
            failed(spec, HookOutcome::TimedOutFailOpen, HookOutcome::TimedOutFailClosed)
        }
        HookAnswer::Cancelled {} => failed(spec, HookOutcome::Cancelled, HookOutcome::Cancelled),
        HookAnswer::Response { response } | HookAnswer::Invalid { response } => {
            match typed(response, source, &mut sealed) {
                Err(_) => failed(spec, HookOutcome::FailedOpen, HookOutcome::FailedClosed),
                Ok(typed) => {
                    let valid = !matches!(invocation.answer, HookAnswer::Invalid { .. });
                    let (outcome, act) = answered(spec, &typed, response, repeatable, valid);
                    (outcome, Some(typed), act)
                }
            }
        }
    };
    // After the call there is nothing left to stop: whatever the failure policy, the result is withheld.
    let after = spec.point == HookPoint::AfterToolCall && act == Act::Interrupt;
    let closes = matches!(act, Act::Deny | Act::Fail) || after;
    let denies = closes && outcome != HookOutcome::AppliedJournaledMutation;
    let body = HookRuled {
        denies: denies.then_some(true),
        elapsed_ms: invocation.elapsed_ms,
        hook: spec.hook_id.clone(),
        invocation: number,
        outcome,
        point: spec.point,
        reason: None,
        response,
    };
    Ruled { act, body, sealed }
}

type Answered = (HookOutcome, Option<HookResponse>, Act);

/// A failure opens nothing, unless the hook guards nothing.
fn failed(spec: &HookSpec, open: HookOutcome, closed: HookOutcome) -> Answered {
    let opens = !spec.is_security_relevant() && spec.failure == HookFailure::FailOpenObserveOnly;
    if opens || mutant(Mutant::HookFailsOpen) {
        (open, None, Act::Nothing)
    } else {
        (closed, None, by_failure(spec.failure))
    }
}

fn by_failure(failure: HookFailure) -> Act {
    match failure {
        HookFailure::FailOpenObserveOnly => Act::Nothing,
        HookFailure::Deny => Act::Deny,
        HookFailure::InterruptRun => Act::Interrupt,
        HookFailure::FailRun => Act::Fail,
    }
}

/// What a response leads to, if matrix, rights and its subject allow it.
fn answered(
    spec: &HookSpec,
    response: &HookResponse,
    plain: &Value,
    repeatable: bool,
    valid: bool,
) -> (HookOutcome, Act) {
    let class = response.class();
    if class == HookClass::Observe {
        return (HookOutcome::Completed, Act::Nothing);
    }
    let rejected = |outcome| (outcome, by_failure(spec.failure));
    if !spec.point.permits(class) && !mutant(Mutant::AnyResponse) {
        return rejected(HookOutcome::RejectedPointMatrix);
    }
    if !spec.mutation_rights.rights.contains(&class) && !mutant(Mutant::AnyRight) {
        return rejected(HookOutcome::RejectedMutationRight);
    }
    if class == HookClass::RequestRetry && !repeatable && !mutant(Mutant::RetryWrite) {
        return (HookOutcome::RejectedPolicy, Act::Nothing);
    }
    if !valid {
        return rejected(HookOutcome::RejectedPolicy);
    }
    (HookOutcome::AppliedJournaledMutation, act_of(class, plain))
}

fn act_of(class: HookClass, plain: &Value) -> Act {
    match class {
        HookClass::Deny => Act::Deny,
        HookClass::ModifyToolRequest
        | HookClass::ModifyApprovalRequest
        | HookClass::ModifyProcessRequest
        | HookClass::ModifySubagentRequest
        | HookClass::RewriteToolResult => {
            plain.pointer("/payload/value").cloned().map_or(Act::Nothing, Act::Rewrite)
        }
        HookClass::RequestApproval => Act::AskPerson,
        HookClass::RequestRetry => Act::Again,
        HookClass::InjectContext => {
            let items = plain.pointer("/payload/items").and_then(Value::as_array);
            Act::Inject(items.cloned().unwrap_or_default())
        }
        HookClass::StopRun => Act::Stop,
        HookClass::StopCompletionWithRepairNeeded => Act::Interrupt,
        // That it was said is on record for who repairs or audits.
        HookClass::ValidateDetach | HookClass::RequestUsageRollupRepair | HookClass::RequestCleanupRepair => {
            Act::Nothing
        }
        // At points that are not live yet.
        HookClass::Observe
        | HookClass::ModifyProjection
        | HookClass::RequestCompaction
        | HookClass::ModifyValidationHints
        | HookClass::MarkProtectedContext
        | HookClass::RequestProjectionAuditRepair => Act::Nothing,
    }
}

/// A response with its values sealed where records hold contents.
fn typed(response: &Value, source: &Source<'_>, sealed: &mut Vec<Sealed>) -> Result<HookResponse, ReadError> {
    let mut tree = response.clone();
    let injects = tree.get("type").and_then(Value::as_str) == Some("inject_context");
    if let Some(payload) = tree.get_mut("payload").and_then(Value::as_object_mut) {
        let mut kept = |value: &mut Value| -> Result<(), ReadError> {
            let made = seal(value.take(), source.salt(), Privacy::Internal)?;
            *value = Content::to_tree(&made.content);
            sealed.push(made);
            Ok(())
        };
        for position in ["summary", "value"] {
            if let Some(value) = payload.get_mut(position) {
                kept(value)?;
            }
        }
        if let Some(Value::Array(items)) = payload.get_mut("items").filter(|_| injects) {
            items.iter_mut().try_for_each(kept)?;
        }
    }
    let typed = read(&tree);
    if typed.is_err() {
        sealed.clear(); // no record will hold them
    }
    typed
}
