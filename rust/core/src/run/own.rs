//! Calls that their own frame does: the time, a timer, a commit, a child, a step, a note. They need no gateway,
//! because nothing outside the journal happens. Most are opened and done in one frame; those that wait for a
//! time, a signal or a child are opened first, and [`Case::take`] ends them by what has come.

use serde::{Deserialize, Serialize};

use super::request::{Claim, Decided, Entry, LeaseChange, NewStep, Payload, seal_into};
use super::{Case, Refused};
use crate::content::CallDigest;
use crate::ids::{CallId, RunId};
use crate::mutants::{Mutant, mutant};
use crate::records::{
    Amounts, Body, BudgetSettled, CallCancelled, CallKind, CallOpened, Draft, EffectClass, EffectSettled,
    EffectStatus, Key, KeyScope, Name, OnParentEnd, Privacy, ReplayDiverged, Risk, StateConflict, StepKind,
    StepWaiting, TimerFired, TimerSet, Wait, WaitOn,
};
use crate::state::{Call, Mail, Placed, RunState, Step};
use crate::transitions::RunPhase;

/// A call as agent code makes it.
#[serde_with_macros::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Opening {
    pub arguments: Payload,
    pub call: CallId,
    pub digest: CallDigest,
    pub key: Option<Key>,
    pub kind: CallKind,
    pub lane: Name,
    pub name: Name,
}

/// What its frame does.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "act", rename_all = "snake_case", deny_unknown_fields)]
pub enum Act {
    /// Its answer is known.
    Answer {
        result: Payload,
    },
    /// It ends when the time has come.
    Timer {
        fires_at: u64,
    },
    /// It ends with a signal, or with the end of a child.
    Await {},
    /// A patch of the state; one for another version is a conflict, which is recorded.
    Commit {
        expected_version: u64,
        patch: Payload,
    },
    Spawn {
        agent: Name,
        child: RunId,
        escrow: Amounts,
        input: Payload,
        on_parent_end: OnParentEnd,
    },
    AddStep {
        step: Box<NewStep>,
    },
    /// A note, a cost, an artifact or a checkpoint.
    Note {
        entry: Box<Entry>,
    },
}

impl Act {
    fn fits(&self, kind: CallKind) -> bool {
        match self {
            Self::Answer { .. } => kind == CallKind::Now,
            Self::Timer { .. } => kind == CallKind::Timer,
            Self::Await {} => matches!(kind, CallKind::Signal | CallKind::Receive),
            Self::Commit { .. } => kind == CallKind::Commit,
            Self::Spawn { .. } => kind == CallKind::Child,
            Self::AddStep { .. } => kind == CallKind::Step,
            Self::Note { entry } => match entry.kind.as_str() {
                "note.logged" => kind == CallKind::Log,
                "cost.recorded" => matches!(kind, CallKind::Cost | CallKind::ModelCall),
                "artifact.created" => matches!(kind, CallKind::Artifact | CallKind::Media),
                "checkpoint.created" => kind == CallKind::Checkpoint,
                _ => false,
            },
        }
    }
}

impl Case<'_> {
    pub(super) fn decide_own(&self, command: &super::Command) -> Result<Decided, Refused> {
        use super::Command as C;
        match command {
            C::Act { claim, call, act } => self.act(claim, call, act),
            C::Take { claim, call } => self.take(claim, *call),
            C::CancelAwait { claim, call, elapsed_ms } => self.cancel_await(claim, *call, *elapsed_ms),
            C::Diverge { claim, divergence } => self.diverge(claim, divergence),
            _ => Err(Refused::NoSuchCall), // not one of them
        }
    }

    fn act(&self, claim: &Claim, opening: &Opening, act: &Act) -> Result<Decided, Refused> {
        let step = self.held(claim)?;
        let run = self.open_run()?;
        if run.cancel_requested {
            return Err(Refused::CancelRequested);
        }
        if run.phase == RunPhase::Paused && !mutant(Mutant::ActWhilePaused) {
            return Err(Refused::RunPaused);
        }
        if !act.fits(opening.kind) {
            return Err(Refused::BadCall(opening.kind));
        }
        // What such a child has done, another would do again.
        if matches!(act, Act::Spawn { .. }) && run.serves() && self.view.done_before.is_some() {
            return Err(Refused::ForkWouldRepeat);
        }
        if run.calls.contains_key(&opening.call) {
            return Err(Refused::CallBusy); // an id is for one call
        }
        match &opening.key {
            Some(key) if run.keys.contains_key(key) => return Err(Refused::IdempotencyConflict),
            None if step.kind == StepKind::Attached => return Err(Refused::KeyNeeded),
            Some(_) | None => {}
        }
        let opened = self.own_opened(opening, step, claim)?;
        let mut decided = self.done(claim, opening, act)?;
        decided.drafts.insert(0, opened);
        Ok(decided)
    }

    fn own_opened(&self, opening: &Opening, step: &Step, claim: &Claim) -> Result<Draft, Refused> {
        let sealed = opening.arguments.seal(&self.source)?;
        let body = CallOpened {
            arguments: sealed.content.clone(),
            call_digest: opening.digest,
            capability: None,
            effect: EffectClass::Internal,
            key: opening.key.clone(),
            key_scope: opening.key.as_ref().map(|_| KeyScope::Run),
            key_ttl_ms: None,
            kind: opening.kind,
            name: opening.name.clone(),
            risk: Risk::Low,
            schema: None,
            version: None,
        };
        let draft = self.call_draft(body, step, opening.call, Some(claim.fence));
        Ok(Draft { lane: Some(opening.lane.clone()), sealed: vec![sealed], ..draft })
    }

    /// The rest of the frame.
    fn done(&self, claim: &Claim, opening: &Opening, act: &Act) -> Result<Decided, Refused> {
        let step = self.held(claim)?;
        let of_call = |body: Body| self.call_draft(body, step, opening.call, Some(claim.fence));
        match act {
            Act::Answer { result } => {
                Ok(Decided::of(vec![self.answered(claim, opening.call, Some(result), None)?]))
            }
            Act::Timer { fires_at } => {
                self.check_time(Some(*fires_at))?;
                Ok(Decided::of(vec![of_call(TimerSet { fires_at: *fires_at }.into())]))
            }
            Act::Await {} => Ok(Decided::nothing()),
            Act::Commit { expected_version, patch } => {
                let (expected, actual) = (*expected_version, self.run()?.state_version);
                if expected != actual && !mutant(Mutant::AnyVersion) {
                    return Ok(Decided::of(vec![of_call(StateConflict { actual, expected }.into())]));
                }
                let draft = self.patched(patch, step, claim.fence)?;
                Ok(Decided::of(vec![Draft { call: Some(opening.call), ..draft }]))
            }
            Act::Spawn { agent, child, escrow, input, on_parent_end } => {
                let body = self.child_spawned(*child, agent, input, escrow, *on_parent_end)?;
                Ok(of_first(self.spawn(None, claim, body)?, opening.call))
            }
            Act::AddStep { step } => Ok(of_first(self.add_step(None, Some(claim), step)?, opening.call)),
            Act::Note { entry } => {
                let mut decided =
                    of_first(self.append(Some(claim), std::slice::from_ref(&**entry))?, opening.call);
                // What it cost has been spent: the account may go below nothing, and the next call is refused.
                if let Some(Body::CostRecorded(cost)) = decided.drafts.first().map(|draft| &draft.body) {
                    let amounts = cost.amounts.clone();
                    decided.drafts.push(of_call(BudgetSettled { amounts, assumed: false }.into()));
                }
                Ok(decided)
            }
        }
    }

    fn answered(
        &self,
        claim: &Claim,
        call: CallId,
        result: Option<&Payload>,
        cause: Option<u64>,
    ) -> Result<Draft, Refused> {
        let step = self.held(claim)?;
        let mut sealed = Vec::new();
        let body = EffectSettled {
            elapsed_ms: 0,
            external_id: None,
            failure: None,
            output_error: None,
            result: seal_into(result, &self.source, &mut sealed)?,
            status: EffectStatus::Succeeded,
            unruled: None,
            usage: None,
        };
        Ok(Draft { cause, sealed, ..self.call_draft(body, step, call, Some(claim.fence)) })
    }

    /// Ends a call by what it waited for, if that is there.
    fn take(&self, claim: &Claim, id: CallId) -> Result<Decided, Refused> {
        let step = self.held(claim)?;
        let run = self.open_run()?;
        let own = |call: &&Call| call.step == step.id && call.is_undecided();
        let call = run.calls.get(&id).filter(own).ok_or(Refused::NoSuchCall)?;
        let draft = match call.kind {
            CallKind::Timer => {
                let due = call.fires_at.filter(|at| *at <= self.now.wall_ms || mutant(Mutant::TakeEarly));
                let fires_at = due.ok_or(Refused::NotAnswered(WaitOn::Timer))?;
                self.call_draft(TimerFired { fires_at }, step, id, Some(claim.fence))
            }
            CallKind::Signal => {
                let mail = signal(run, call).ok_or(Refused::NotAnswered(WaitOn::Signal))?;
                let result = self.came(mail.payload.privacy);
                self.answered(claim, id, result.as_ref(), Some(mail.position))?
            }
            CallKind::Receive => {
                let child = child(run, call).and_then(|child| child.ended_at.map(|at| (child, at)));
                let (child, at) = child.ok_or(Refused::NotAnswered(WaitOn::Child))?;
                let privacy = child.result.as_ref().map_or(Privacy::Internal, |content| content.privacy);
                let result = self.came(privacy);
                let draft = self.answered(claim, id, result.as_ref(), Some(at))?;
                told_failure(draft, child)
            }
            _ => return Err(Refused::NoSuchCall),
        };
        Ok(Decided::of(vec![draft]))
    }

    /// The value of what came, unless it was erased.
    fn came(&self, privacy: Privacy) -> Option<Payload> {
        self.view.came.clone().map(|value| Payload { privacy, value })
    }

    /// Agent code no longer awaits it; what it does goes on.
    fn cancel_await(&self, claim: &Claim, id: CallId, elapsed_ms: u64) -> Result<Decided, Refused> {
        let step = self.held(claim)?;
        let run = self.open_run()?;
        let own = run.calls.get(&id).is_some_and(|call| call.step == step.id);
        if !own {
            return Err(Refused::NoSuchCall);
        }
        let body = CallCancelled { elapsed_ms };
        Ok(Decided::of(vec![self.call_draft(body, step, id, Some(claim.fence))]))
    }

    /// The code no longer makes what was recorded: the step stops, and a person decides.
    fn diverge(&self, claim: &Claim, divergence: &ReplayDiverged) -> Result<Decided, Refused> {
        let step = self.held(claim)?;
        let run = self.open_run()?;
        if run.cancel_requested {
            return Err(Refused::CancelRequested);
        }
        self.check_no_running_write(step)?;
        let fence = Some(claim.fence);
        let wait = Wait { call: None, on: WaitOn::Divergence, subject: None, until: None };
        let drafts = vec![
            self.step_draft(divergence.clone(), step, fence),
            self.step_draft(StepWaiting { waits: vec![wait] }, step, fence),
        ];
        Ok(Decided { drafts, lease: Some(LeaseChange::Drop(step.id)), ..Decided::nothing() })
    }
}

/// The first draft is the call's outcome.
fn of_first(mut decided: Decided, call: CallId) -> Decided {
    if let Some(first) = decided.drafts.first_mut() {
        first.call = Some(call);
    }
    decided
}

/// A child that did not complete is a failure of whoever waited for it.
fn told_failure(mut draft: Draft, child: &crate::state::ChildState) -> Draft {
    if let Body::EffectSettled(body) = &mut draft.body
        && child.ended != Some(crate::records::EndStatus::Completed)
    {
        body.status = EffectStatus::Failed;
        body.failure.clone_from(&child.failure);
    }
    draft
}

/// The first signal of the name that a call waits for.
fn signal<'r>(run: &'r RunState, call: &Call) -> Option<&'r Mail> {
    run.signals.iter().find(|mail| mail.name.as_ref() == Some(&call.name))
}

/// The child whose end a call waits for.
fn child<'r>(run: &'r RunState, call: &Call) -> Option<&'r crate::state::ChildState> {
    run.children.get(&call.name.as_str().parse().ok()?)
}

/// Where the value stands that would end a call.
pub fn awaited_content(run: &RunState, call: CallId) -> Option<Placed> {
    let call = run.calls.get(&call)?;
    match call.kind {
        CallKind::Signal => {
            signal(run, call).map(|mail| Placed { content: mail.payload.clone(), position: mail.position })
        }
        CallKind::Receive => child(run, call)
            .and_then(|child| Some(Placed { content: child.result.clone()?, position: child.ended_at? })),
        _ => None,
    }
}
