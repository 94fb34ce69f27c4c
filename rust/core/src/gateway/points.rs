//! The hook points that are about no call, or about its sandbox: a run starts, is to be cancelled, completes,
//! has ended; a process of its own starts and exits. [`Round`] asks the hooks of one point in their order and
//! has what they said written down; what follows from it is done by who asked.

use std::sync::Arc;

use serde::Serialize;
use serde_json::Value;

use super::passage::Ask;
use super::{Answer, Gate};
use crate::contracts::hook::HookPoint;
use crate::hooks::{self, Act, HookAnswer, Hooks, Invocation};
use crate::ids::CallId;
use crate::limits;
use crate::records::{Actor, ActorType, Draft, Name};
use crate::run::{Case, Claim, Command, Decided, Refused};

/// What follows from what the hooks of a point said.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum PointAct {
    Go,
    Deny,
    /// The step's work once more.
    Again,
    /// The step waits for a person.
    Interrupt,
    /// The run is to stop.
    Stop,
    /// The run is to fail.
    Fail,
}

/// The same, with what was put in the place of the subject.
#[serde_with_macros::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PointRuled {
    pub act: PointAct,
    /// Further context for the agent.
    pub context: Vec<Value>,
    /// Who has the last word.
    pub hook: Option<Name>,
    pub value: Option<Value>,
}

impl PointRuled {
    fn nothing() -> Self {
        Self { act: PointAct::Go, context: Vec::new(), hook: None, value: None }
    }

    /// Whether a hook has the last word.
    fn hear(&mut self, act: Act, hook: &Name) -> bool {
        let last = match act {
            Act::Nothing | Act::AskPerson => return false,
            Act::Rewrite(value) => {
                self.value = Some(value);
                return false;
            }
            Act::Inject(items) => {
                self.context.extend(items);
                return false;
            }
            Act::Deny => PointAct::Deny,
            Act::Again => PointAct::Again,
            Act::Interrupt => PointAct::Interrupt,
            Act::Stop => PointAct::Stop,
            Act::Fail => PointAct::Fail,
        };
        (self.act, self.hook) = (last, Some(hook.clone()));
        true
    }
}

/// Where a round of hooks belongs.
#[derive(Debug, Clone, PartialEq)]
pub struct At {
    pub call: Option<(CallId, u32)>,
    /// None once the run has ended.
    pub claim: Option<Claim>,
    pub point: HookPoint,
}

/// One round of the hooks of a point.
#[derive(Debug, Clone)]
pub struct Round {
    at: At,
    hooks: Arc<Hooks>,
    asked: usize,
    ruled: Vec<Invocation>,
    subject: Value,
}

impl Round {
    /// Begins; none if nobody is to be asked.
    pub fn open(at: At, subject: Value, hooks: Arc<Hooks>) -> Option<(Self, Ask)> {
        let mut round = Self { at, hooks, asked: 0, ruled: Vec::new(), subject };
        let first = round.hook()?;
        Some((round, first))
    }

    fn hook(&mut self) -> Option<Ask> {
        let spec = self.hooks.at(self.at.point, self.asked)?;
        let (hook, timeout_ms) = (spec.hook_id.clone(), spec.timeout.timeout_ms);
        Some(Ask::RunHook { hook, point: self.at.point, subject: self.subject.clone(), timeout_ms })
    }

    fn commit(&mut self) -> Ask {
        let (at, invocations) = (self.at.clone(), std::mem::take(&mut self.ruled));
        let (call, claim, point) = (at.call, at.claim, at.point);
        Ask::Commit { command: Box::new(Command::RulePoint { call, claim, invocations, point }) }
    }

    /// What a hook came to; each accepted change is what the next one sees.
    pub fn answer(&mut self, answer: Answer) -> Ask {
        let Answer::Hook { elapsed_ms, told } = answer else { return self.commit() };
        let Some(spec) = self.hooks.at(self.at.point, self.asked).cloned() else { return self.commit() };
        self.asked += 1;
        let invocation = Invocation { answer: told, elapsed_ms, spec };
        let mut so_far = PointRuled::nothing();
        let last = so_far.hear(hooks::act(&invocation, true), &invocation.spec.hook_id);
        self.ruled.push(invocation);
        if let Some(value) = so_far.value {
            self.subject = value;
        }
        if last {
            return self.commit();
        }
        match self.hook() {
            Some(next) => next,
            None => self.commit(),
        }
    }

    /// Those who were not asked because who waits was interrupted: they failed.
    pub fn interrupted(&mut self) -> Ask {
        self.answer(Answer::Hook { elapsed_ms: 0, told: HookAnswer::Cancelled {} })
    }
}

impl Case<'_> {
    /// Writes down what the hooks of a point said, and says what follows.
    pub(crate) fn rule_point(
        &self,
        claim: Option<&Claim>,
        about: Option<(CallId, u32)>,
        point: HookPoint,
        invocations: &[Invocation],
    ) -> Result<Decided, Refused> {
        let run = self.run()?;
        let step = claim.map(|claim| self.held(claim)).transpose()?;
        let ended = run.phase.is_ended();
        let counted = run.evidence.saturating_add(u64::try_from(invocations.len()).unwrap_or(u64::MAX));
        match (step.is_some(), point == HookPoint::AfterRunTerminal) {
            (false, true) if ended && counted <= limits::EVIDENCE_MAX => {}
            (true, false) if !ended => {}
            _ => return Err(Refused::NotRunning),
        }
        if let (Some(step), Some((id, dispatch))) = (step, about) {
            let call = run.calls.get(&id).filter(|call| call.step == step.id && call.dispatch == dispatch);
            call.ok_or(Refused::NoSuchCall)?;
        }
        if invocations.len() > limits::HOOKS_MAX || invocations.iter().any(|one| one.spec.point != point) {
            return Err(Refused::NotRunning);
        }
        let mut ruling = PointRuled::nothing();
        let mut drafts = Vec::with_capacity(invocations.len());
        for (number, invocation) in (1..).zip(invocations) {
            let ruled = hooks::rule(invocation, number, true, &self.source);
            let hook = ruled.body.hook.clone();
            let by = Actor { id: hook.clone(), r#type: ActorType::Hook };
            let draft = match (step, claim) {
                (Some(step), Some(claim)) => self.step_draft(ruled.body, step, Some(claim.fence)),
                _ => self.draft(ruled.body),
            };
            let (call, dispatch) = about.unzip();
            drafts.push(Draft { by, call, dispatch, sealed: ruled.sealed, ..draft });
            if ruling.hear(ruled.act, &hook) {
                break;
            }
        }
        Ok(Decided { gate: Some(Gate::Ruled { ruled: ruling }), ..Decided::of(drafts) })
    }
}
