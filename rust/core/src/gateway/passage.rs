//! One call on its way: says what to do next, and hears what came of it. It holds no run and reads no
//! clock; what it wants written it hands out as a command, and what the door said to that comes back.

use std::collections::VecDeque;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Edited, Entering, Gate, Report, Rooms};
use crate::contracts::approval::ApprovalLifecycleStatus;
use crate::contracts::hook::{HookPoint, HookSpec};
use crate::contracts::policy::Decision;
use crate::hooks::{self, Act, HookAnswer, Hooks, Invocation};
use crate::ids::{ApprovalId, CallId};
use crate::ledger::Permit;
use crate::policy::Evaluation;
use crate::records::{
    DoubtCause, EffectStatus, Failure, Key, Name, Resolution, SandboxFinished, Text, Token, Wait,
};
use crate::redact::{redacted, restored};
use crate::run::{Claim, Command, Payload};

/// What is to be done next.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "ask", rename_all = "snake_case")]
pub enum Ask {
    /// Whether these are arguments of the tool: a hook put them in the place of others.
    Validate {
        arguments: Value,
    },
    /// The subject is what a hook at this point is about: arguments, or a result.
    RunHook {
        hook: Name,
        point: HookPoint,
        subject: Value,
        timeout_ms: u64,
    },
    RunEvaluator {
        evaluator: Name,
        arguments: Value,
    },
    /// Has somebody told of a request for approval.
    Dispatch {
        approval: ApprovalId,
        dispatcher: Name,
    },
    /// Have this decided and committed, and say what the door said.
    Commit {
        command: Box<Command>,
    },
    /// A body that does nothing to the world; nobody needs to hear how it ends.
    Run {
        arguments: Value,
    },
    /// The body, once, unless it is too late to start it.
    RunEffect {
        permit: Box<Permit>,
        /// The arguments as observers see them, if they do not see all of them.
        shown: Option<Value>,
    },
    Reconcile {
        permit: Box<Permit>,
    },
    /// Nothing more can be done now.
    Wait {
        call: CallId,
        wait: Wait,
    },
    /// A hook wants the run to fail.
    Stop {
        call: CallId,
        hook: Name,
    },
    /// The call has ended: its outcome is in the journal.
    Done {
        call: CallId,
    },
}

/// What came of it.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(tag = "answer", rename_all = "snake_case", deny_unknown_fields)]
pub enum Answer {
    Valid {
        arguments: Value,
    },
    Invalid {},
    Hook {
        elapsed_ms: u64,
        told: HookAnswer,
    },
    Evaluated {
        decision: Option<Decision>,
        summary: Option<Text>,
    },
    /// The body ended and how is known.
    Ran {
        report: Box<Report>,
    },
    /// The body ended, or was given up, and nobody knows.
    Unknown {
        cause: DoubtCause,
        failure: Option<Failure>,
        message: Option<Payload>,
        over: bool,
        sandbox: Option<SandboxFinished>,
    },
    /// Somebody was told of a request, or could not be.
    Dispatched {
        reason_code: Option<Token>,
        status: ApprovalLifecycleStatus,
    },
    /// The tool says that it happened, that it did not, or that it cannot tell.
    Reconciled {
        external_id: Option<Key>,
        resolution: Option<Resolution>,
        result: Option<Payload>,
    },
}

#[derive(Debug, Clone, PartialEq)]
enum Stage {
    /// Something is being decided.
    AtDoor,
    Hook(usize),
    Validating(usize, HookAnswer, u64),
    /// Whether what an approver put in the place of the arguments is what the tool takes.
    ValidatingEdit,
    /// A hook after a person's decision.
    Deciding(usize),
    Dispatching(Box<Telling>),
    Evaluator(usize),
    Body(Box<Permit>),
    Asking(Box<Permit>),
    After(usize, CallId),
    Over,
}

/// People are being told of a request.
#[derive(Debug, Clone, PartialEq)]
struct Telling {
    approval: ApprovalId,
    call: CallId,
    left: VecDeque<Name>,
    wait: Wait,
}

/// One call on its way.
#[derive(Debug, Clone)]
pub struct Passage {
    claim: Claim,
    entering: Entering,
    hooks: Arc<Hooks>,
    evaluators: Arc<[Name]>,
    point: HookPoint,
    /// What hooks are not shown of the arguments.
    redact: Vec<Name>,
    stage: Stage,
    rooms: Rooms,
    ruled: Vec<Invocation>,
    /// Who is still to be told of a request, after what was told is written down.
    telling: Option<Box<Telling>>,
    /// What hooks after the call rule about.
    result: Value,
    again: bool,
    /// How often this passage has sent it off.
    sent: u32,
}

impl Passage {
    /// Begins, and says what to do first.
    pub fn open(
        claim: Claim,
        mut entering: Entering,
        hooks: Arc<Hooks>,
        evaluators: Arc<[Name]>,
    ) -> (Self, Ask) {
        entering.decision_hooks = hooks.at(HookPoint::AfterApprovalDecision, 0).is_some();
        entering.result_hooks = hooks.at(HookPoint::AfterToolCall, 0).is_some();
        let rooms = Rooms {
            approval_hooks: hooks.at(HookPoint::BeforeApprovalRequest, 0).is_some(),
            based_on: None,
            edit_unfit: false,
            effective: entering.arguments.clone(),
            evaluations: Vec::new(),
            invocations: Vec::new(),
        };
        let mut passage = Self {
            claim,
            entering,
            hooks,
            evaluators,
            point: HookPoint::BeforeToolCall,
            redact: Vec::new(),
            stage: Stage::AtDoor,
            rooms,
            ruled: Vec::new(),
            telling: None,
            result: Value::Null,
            again: false,
            sent: 0,
        };
        // Nobody to ask: what is new goes through at once. Else hooks are asked only if it is new.
        let alone = passage.spec(0).is_none() && passage.evaluators.is_empty();
        let first = passage.knock(alone);
        (passage, first)
    }

    /// The n-th hook of the point that the call is at.
    fn spec(&self, n: usize) -> Option<&Arc<HookSpec>> {
        self.hooks.at(self.point, n)
    }

    /// Asks the door, with what the rooms said or without.
    fn knock(&mut self, with_rooms: bool) -> Ask {
        self.stage = Stage::AtDoor;
        let rooms = with_rooms.then(|| self.rooms.clone());
        let call = Box::new(Entering { rooms, ..self.entering.clone() });
        Ask::Commit { command: Box::new(Command::Enter { claim: self.claim, call }) }
    }

    fn commit(&mut self, command: Command) -> Ask {
        self.stage = Stage::AtDoor;
        Ask::Commit { command: Box::new(command) }
    }

    /// What the door said; `result` is the value that hooks are to rule about, if they are to.
    pub fn told(&mut self, gate: Gate, result: Option<Value>) -> Ask {
        if let Some(telling) = self.telling.take() {
            return self.tell(telling);
        }
        if std::mem::take(&mut self.again) {
            return self.knock(false);
        }
        match gate {
            Gate::Again {} => {
                self.point = HookPoint::BeforeToolCall;
                self.knock(false)
            }
            Gate::Rooms { edited, redact } => {
                self.redact = redact;
                self.begin_rooms(edited)
            }
            Gate::Dispatch { approval, call, dispatchers, wait } => {
                self.tell(Box::new(Telling { approval, call, left: dispatchers.into(), wait }))
            }
            Gate::Decided { approval, call } => {
                self.point = HookPoint::AfterApprovalDecision;
                self.ruled.clear();
                self.result = serde_json::json!({"approval": approval, "call": call, "decision": "approved"});
                self.next_deciding(0)
            }
            Gate::BeforeApproval { redact } => {
                self.redact = redact;
                self.ask_hooks(HookPoint::BeforeApprovalRequest)
            }
            Gate::Run { arguments } => self.ends(Ask::Run { arguments }),
            Gate::Permit { permit, redact } => {
                self.sent += 1;
                self.entering.decision_ruled = None; // it was about the decision that let this one go
                self.stage = Stage::Body(permit.clone());
                let shown = (!redact.is_empty()).then(|| redacted(&permit.arguments, &redact));
                Ask::RunEffect { permit, shown }
            }
            Gate::Reconcile { permit } => {
                self.stage = Stage::Asking(permit.clone());
                Ask::Reconcile { permit }
            }
            Gate::RuleResult { call } => {
                self.result = result.unwrap_or(Value::Null);
                self.ruled.clear();
                self.point = HookPoint::AfterToolCall;
                self.next_after(0, call)
            }
            Gate::Wait { call, wait } => self.ends(Ask::Wait { call, wait }),
            Gate::Stop { call, hook } => self.ends(Ask::Stop { call, hook }),
            Gate::Served { call } => self.ends(Ask::Done { call }),
            // Not said to a call; the journal knows.
            Gate::Voted { .. } | Gate::Ruled { .. } => self.knock(false),
        }
    }

    /// What an approver put in the place of the arguments goes the whole way, as the agent's own would.
    fn begin_rooms(&mut self, edited: Option<Edited>) -> Ask {
        self.rooms.invocations.clear();
        self.rooms.evaluations.clear();
        self.rooms.edit_unfit = false;
        self.rooms.approval_hooks = self.hooks.at(HookPoint::BeforeApprovalRequest, 0).is_some();
        self.rooms.based_on = edited.as_ref().map(|edited| edited.approval);
        self.rooms.effective = self.entering.arguments.clone();
        match edited {
            Some(Edited { arguments, .. }) => {
                self.stage = Stage::ValidatingEdit;
                Ask::Validate { arguments }
            }
            None => self.ask_hooks(HookPoint::BeforeToolCall),
        }
    }

    /// Tells the next of those who tell people; when all have, the call waits.
    fn tell(&mut self, telling: Box<Telling>) -> Ask {
        if let Some(dispatcher) = telling.left.front().cloned() {
            let approval = telling.approval;
            self.stage = Stage::Dispatching(telling);
            return Ask::Dispatch { approval, dispatcher };
        }
        let Telling { call, wait, .. } = *telling;
        self.ends(Ask::Wait { call, wait })
    }

    fn dispatched(
        &mut self,
        mut telling: Box<Telling>,
        status: ApprovalLifecycleStatus,
        reason_code: Option<Token>,
    ) -> Ask {
        let Some(dispatcher) = telling.left.pop_front() else { return self.tell(telling) };
        let (approval, claim) = (telling.approval, self.claim);
        self.telling = Some(telling);
        self.commit(Command::Dispatched { approval, claim, dispatcher, reason_code, status })
    }

    fn next_deciding(&mut self, at: usize) -> Ask {
        let subject = self.result.clone();
        if let Some(spec) = self.spec(at) {
            let (hook, timeout_ms) = (spec.hook_id.clone(), spec.timeout.timeout_ms);
            self.stage = Stage::Deciding(at);
            return Ask::RunHook { hook, point: self.point, subject, timeout_ms };
        }
        self.entering.decision_ruled = Some(std::mem::take(&mut self.ruled));
        self.point = HookPoint::BeforeToolCall;
        self.knock(false)
    }

    fn ends(&mut self, ask: Ask) -> Ask {
        self.stage = Stage::Over;
        ask
    }

    fn ask_hooks(&mut self, point: HookPoint) -> Ask {
        self.point = point;
        self.next_hook(0)
    }

    fn next_hook(&mut self, at: usize) -> Ask {
        let next = self.spec(at).map(|spec| (spec.hook_id.clone(), spec.timeout.timeout_ms));
        match next {
            Some((hook, timeout_ms)) => {
                self.stage = Stage::Hook(at);
                let subject = redacted(&self.rooms.effective.value, &self.redact);
                Ask::RunHook { hook, point: self.point, subject, timeout_ms }
            }
            None if self.point == HookPoint::BeforeApprovalRequest => {
                self.rooms.approval_hooks = false;
                self.knock(true)
            }
            None => self.next_evaluator(0),
        }
    }

    fn next_evaluator(&mut self, at: usize) -> Ask {
        match self.evaluators.get(at).cloned() {
            Some(evaluator) => {
                self.stage = Stage::Evaluator(at);
                Ask::RunEvaluator { evaluator, arguments: self.rooms.effective.value.clone() }
            }
            None => self.knock(true),
        }
    }

    fn next_after(&mut self, at: usize, call: CallId) -> Ask {
        let subject = self.result.clone();
        if let Some(spec) = self.spec(at) {
            let (hook, timeout_ms) = (spec.hook_id.clone(), spec.timeout.timeout_ms);
            self.stage = Stage::After(at, call);
            return Ask::RunHook { hook, point: self.point, subject, timeout_ms };
        }
        let attempts = self.entering.tool.max_attempts;
        let invocations = std::mem::take(&mut self.ruled);
        self.commit(Command::RuleResult { attempts, claim: self.claim, call, invocations })
    }

    /// What came of what was asked. An answer to something else is a bug of who drives: the door is asked
    /// again, and nothing is lost.
    pub fn answer(&mut self, answer: Answer) -> Ask {
        match (std::mem::replace(&mut self.stage, Stage::AtDoor), answer) {
            (Stage::Hook(at), Answer::Hook { elapsed_ms, told }) => self.hook(at, told, elapsed_ms),
            (Stage::Validating(at, told, elapsed_ms), Answer::Valid { arguments }) => {
                self.rooms.effective.value = arguments;
                self.keep(at, told, elapsed_ms);
                self.next_hook(at + 1)
            }
            (Stage::Validating(at, told, elapsed_ms), Answer::Invalid {}) => self.unfit(at, told, elapsed_ms),
            (Stage::ValidatingEdit, Answer::Valid { arguments }) => {
                self.rooms.effective.value = arguments;
                self.ask_hooks(HookPoint::BeforeToolCall)
            }
            (Stage::ValidatingEdit, Answer::Invalid {}) => {
                self.rooms.edit_unfit = true;
                self.ask_hooks(HookPoint::BeforeToolCall)
            }
            (Stage::Deciding(at), Answer::Hook { elapsed_ms, told }) => {
                let invocation = self.invocation(at, told, elapsed_ms);
                self.ruled.extend(invocation);
                self.next_deciding(at + 1)
            }
            (Stage::Dispatching(telling), Answer::Dispatched { reason_code, status }) => {
                self.dispatched(telling, status, reason_code)
            }
            (Stage::Evaluator(at), Answer::Evaluated { decision, summary }) => {
                let evaluator = self.evaluators[at].clone();
                self.rooms.evaluations.push(Evaluation { evaluator, decision, summary });
                self.next_evaluator(at + 1)
            }
            (Stage::Body(permit), Answer::Ran { report }) => self.ran(&permit, *report),
            (Stage::Body(permit), Answer::Unknown { cause, failure, message, over, sandbox }) => {
                let (call, dispatch, claim) = (permit.call, permit.dispatch, self.claim);
                self.commit(Command::Doubt { call, cause, claim, dispatch, failure, message, over, sandbox })
            }
            (Stage::Asking(permit), Answer::Reconciled { external_id, resolution, result }) => {
                self.reconciled(&permit, external_id, resolution, result)
            }
            (Stage::After(at, call), Answer::Hook { elapsed_ms, told }) => {
                self.after(at, call, told, elapsed_ms)
            }
            (_, _) => self.knock(false),
        }
    }

    fn invocation(&self, at: usize, answer: HookAnswer, elapsed_ms: u64) -> Option<Invocation> {
        let spec = self.spec(at)?.clone();
        Some(Invocation { answer, elapsed_ms, spec })
    }

    fn keep(&mut self, at: usize, answer: HookAnswer, elapsed_ms: u64) {
        let invocation = self.invocation(at, answer, elapsed_ms);
        self.rooms.invocations.extend(invocation);
    }

    /// What a hook put in the place of the arguments is not what the tool takes.
    fn unfit(&mut self, at: usize, told: HookAnswer, elapsed_ms: u64) -> Ask {
        let told = match told {
            HookAnswer::Response { response } => HookAnswer::Invalid { response },
            other => other,
        };
        self.keep(at, told, elapsed_ms);
        self.knock(true)
    }

    /// Each accepted change is what the next hook sees; whoever stops the call has the last word.
    fn hook(&mut self, at: usize, answer: HookAnswer, elapsed_ms: u64) -> Ask {
        let Some(invocation) = self.invocation(at, answer.clone(), elapsed_ms) else {
            return self.knock(false);
        };
        match hooks::act(&invocation, true) {
            Act::Rewrite(arguments) if self.point == HookPoint::BeforeToolCall => {
                // What it was not shown stays what it is.
                let real = &self.rooms.effective.value;
                match restored(arguments, real, &self.redact) {
                    Some(arguments) => {
                        self.stage = Stage::Validating(at, answer, elapsed_ms);
                        Ask::Validate { arguments }
                    }
                    None => self.unfit(at, answer, elapsed_ms),
                }
            }
            Act::Deny | Act::Interrupt | Act::Fail | Act::Stop => {
                self.rooms.invocations.push(invocation);
                self.rooms.approval_hooks = false;
                self.knock(true)
            }
            Act::Nothing | Act::Rewrite(_) | Act::AskPerson | Act::Again | Act::Inject(_) => {
                self.rooms.invocations.push(invocation);
                self.next_hook(at + 1)
            }
        }
    }

    fn after(&mut self, at: usize, call: CallId, answer: HookAnswer, elapsed_ms: u64) -> Ask {
        let Some(invocation) = self.invocation(at, answer, elapsed_ms) else { return self.knock(false) };
        if let Act::Rewrite(result) = hooks::act(&invocation, true) {
            self.result = result;
        }
        self.ruled.push(invocation);
        self.next_after(at + 1, call)
    }

    fn ran(&mut self, permit: &Permit, report: Report) -> Ask {
        let tried = permit.dispatch;
        let rules = self.hooks.at(HookPoint::AfterToolCall, 0).is_some();
        // What provably did not happen may be tried again, under the same key.
        self.again = report.status == EffectStatus::NoEffect && tried < self.entering.tool.max_attempts;
        let unruled = rules && report.status == EffectStatus::Succeeded && report.output_error.is_none();
        let report = Box::new(Report { unruled, ..report });
        let (call, dispatch, claim) = (permit.call, permit.dispatch, self.claim);
        self.commit(Command::Settle { call, claim, dispatch, report })
    }

    fn reconciled(
        &mut self,
        permit: &Permit,
        external_id: Option<Key>,
        resolution: Option<Resolution>,
        result: Option<Payload>,
    ) -> Ask {
        let call = permit.call;
        let Some(resolution) = resolution else {
            let wait =
                Wait { call: Some(call), on: crate::records::WaitOn::Doubt, subject: None, until: None };
            return self.ends(Ask::Wait { call, wait });
        };
        // What happened is looked at by hooks; what did not is tried again, as often as the tool says.
        self.again = resolution != Resolution::DidNotHappen || self.sent < self.entering.tool.max_attempts;
        let (claim, dispatch, force, reason) = (Some(self.claim), permit.dispatch, false, None);
        self.commit(Command::Resolve {
            claim,
            call,
            dispatch,
            external_id,
            force,
            reason,
            resolution,
            result,
        })
    }
}
