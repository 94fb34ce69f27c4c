//! What a worker does under its claim, and how steps and runs end.

use super::request::{Claim, Decided, Entry, Envelope, EnvelopeBody, LeaseChange, Payload, seal_into};
use super::{Case, Refused};
use crate::content::{Sealed, seal};
use crate::entropy::Source;
use crate::ids::{CallId, StepId, StreamId};
use crate::limits;
use crate::mutants::{Mutant, mutant};
use crate::records::{
    Actor, ApprovalCancelReason, ApprovalCancelled, Body, CallKind, DoubtCause, Draft, EffectDoubted,
    EndReason, EndStatus, Failure, Fault, Fence, OnParentEnd, ReadError, RunFinished, SandboxTier,
    StateConflict, StatePatched, StepCancelReason, StepCancelled, StepCompleted, StepFailed,
    StepRetryScheduled, StepStatus, StepWaiting, Wait, WaitOn,
};
use crate::state::{ApprovalState, Call, CallPhase, Replay, RunState, Situation, Step, replay};

impl Case<'_> {
    /// A patch for the version that the worker saw. A commit call gets its conflict recorded, so that
    /// replay sees it again; otherwise it is a refusal that may be tried again.
    pub(super) fn patch(
        &self,
        claim: &Claim,
        patch: &Payload,
        expected: u64,
        call: Option<CallId>,
    ) -> Result<Decided, Refused> {
        let step = self.held(claim)?;
        let actual = self.open_run()?.state_version;
        if expected != actual && !mutant(Mutant::AnyVersion) {
            let Some(call) = self.own_call(call, step, CallKind::Commit)? else {
                return Err(Refused::StateConflict { expected, actual });
            };
            let conflict = StateConflict { actual, expected };
            return Ok(Decided::of(vec![self.call_draft(conflict, step, call, Some(claim.fence))]));
        }
        let mut draft = self.patched(patch, step, claim.fence)?;
        draft.call = self.own_call(call, step, CallKind::Commit)?;
        Ok(Decided::of(vec![draft]))
    }

    pub(super) fn patched(&self, patch: &Payload, step: &Step, fence: Fence) -> Result<Draft, Refused> {
        if !patch.value.is_object() {
            return Err(Refused::PatchNotObject);
        }
        let base = self.run()?.state_version;
        let sealed = patch.seal(&self.source)?;
        let body = StatePatched { base, next: base + 1, patch: sealed.content.clone() };
        Ok(Draft { sealed: vec![sealed], ..self.step_draft(body, step, Some(fence)) })
    }

    /// Refused in its own transaction if what is awaited is already there, so no wake-up is lost.
    pub(super) fn wait(&self, claim: &Claim, waits: &[Wait]) -> Result<Decided, Refused> {
        let step = self.held(claim)?;
        let run = self.open_run()?;
        if run.cancel_requested {
            return Err(Refused::CancelRequested);
        }
        if waits.is_empty() {
            return Err(Refused::NothingToWaitFor);
        }
        if waits.len() > limits::WAITS_MAX {
            return Err(Refused::LimitExceeded("waits_max"));
        }
        for wait in waits {
            self.check_time(wait.until)?;
            check_wait(wait)?;
            if self.has_come(run, step, wait) && !mutant(Mutant::LoseWakeUp) {
                return Err(Refused::WaitOver(wait.on));
            }
        }
        self.check_no_running_write(step)?;
        let body = StepWaiting { waits: waits.to_vec() };
        let mut decided = Decided::of(vec![self.step_draft(body, step, Some(claim.fence))]);
        decided.lease = Some(LeaseChange::Drop(step.id));
        Ok(decided)
    }

    /// Another attempt if the failure and the policy allow one, else the end of step and run.
    pub(super) fn fail(
        &self,
        claim: &Claim,
        failure: &Failure,
        message: Option<&Payload>,
        ended_by: &[CallId],
    ) -> Result<Decided, Refused> {
        let step = self.held(claim)?;
        let run = self.open_run()?;
        if run.cancel_requested {
            return self.confirm_cancel(claim);
        }
        if self.open_writes(step).next().is_some() {
            return Err(Refused::OpenWrite);
        }
        if ended_by.len() > limits::WAITS_MAX {
            return Err(Refused::LimitExceeded("waits_max"));
        }
        let mut sealed = Vec::new();
        let message = quoting(run, step, message);
        let message = seal_into(message.as_ref(), &self.source, &mut sealed)?;
        let failure = Failure { message, ..failure.clone() };
        let mut decided = Decided { lease: Some(LeaseChange::Drop(step.id)), ..Decided::nothing() };
        let tries_left = step.failed_tries + 1 < step.retry.max_attempts || mutant(Mutant::AttemptsUnlimited);
        if failure.retryable && tries_left && !would_fail_again(run, step, ended_by) {
            let pause = step.retry.backoff_ms(step.failed_tries + 1, self.source.jitter());
            let not_before = self.now.wall_ms.saturating_add(pause);
            let body = StepRetryScheduled { ended_by: ended_by.to_vec(), failure, not_before };
            decided.drafts.push(Draft { sealed, ..self.step_draft(body, step, Some(claim.fence)) });
            return Ok(decided);
        }
        let failed = StepFailed { ended_by: ended_by.to_vec(), failure };
        self.fail_for_good(step, failed, sealed, Some(claim.fence), &mut decided)?;
        Ok(decided)
    }

    /// The step fails, its siblings are cancelled and fenced, the run fails.
    pub(super) fn fail_for_good(
        &self,
        step: &Step,
        body: StepFailed,
        sealed: Vec<Sealed>,
        fence: Option<Fence>,
        decided: &mut Decided,
    ) -> Result<(), Refused> {
        let failure = body.failure.clone();
        decided.drafts.push(Draft { sealed, ..self.step_draft(body, step, fence) });
        self.cancel_steps(Some(step.id), StepCancelReason::SiblingFailed, decided)?;
        self.finish(EndStatus::Failed, EndReason::Fault, None, Some(failure), decided)
    }

    /// The step completes, and with the last one the run.
    pub(super) fn complete(
        &self,
        claim: &Claim,
        result: Option<&Payload>,
        patch: Option<&Payload>,
        expected: Option<u64>,
    ) -> Result<Decided, Refused> {
        let step = self.held(claim)?;
        let run = self.open_run()?;
        let actual = run.state_version;
        if let (Some(_), Some(expected)) = (patch, expected)
            && expected != actual
            && !mutant(Mutant::AnyVersion)
        {
            return Err(Refused::StateConflict { expected, actual });
        }
        if self.open_writes(step).next().is_some() && !mutant(Mutant::EndWithOpenWrite) {
            return Err(Refused::OpenWrite);
        }
        let mut decided = Decided { lease: Some(LeaseChange::Drop(step.id)), ..Decided::nothing() };
        if let Some(patch) = patch {
            decided.drafts.push(self.patched(patch, step, claim.fence)?);
        }
        let mut sealed = Vec::new();
        let content = seal_into(result, &self.source, &mut sealed)?;
        let body = StepCompleted { result: content.clone() };
        decided.drafts.push(Draft { sealed, ..self.step_draft(body, step, Some(claim.fence)) });
        let others_done = run
            .steps
            .values()
            .filter(|other| other.id != step.id)
            .all(|other| other.status == StepStatus::Completed);
        if others_done || mutant(Mutant::FinishEarly) {
            self.finish(EndStatus::Completed, EndReason::Normal, content, None, &mut decided)?;
        } else {
            self.finish_cancel(step.id, &mut decided)?;
        }
        Ok(decided)
    }

    /// Notes, costs, artifacts, checkpoints and `x.*`, with contents sealed at the kind's positions.
    pub(super) fn append(&self, claim: Option<&Claim>, entries: &[Entry]) -> Result<Decided, Refused> {
        let run = self.run()?;
        let step = claim.map(|claim| self.held(claim)).transpose()?;
        let guarded = run.steps.values().any(|step| step.live_fence().is_some());
        if step.is_none() && guarded && self.by.r#type == crate::records::ActorType::Worker {
            return Err(Refused::ClaimNeeded);
        }
        let count = u64::try_from(entries.len()).unwrap_or(u64::MAX);
        if run.phase.is_ended() && run.evidence.saturating_add(count) > limits::EVIDENCE_MAX {
            return Err(Refused::LimitExceeded("evidence_max"));
        }
        let mut drafts = Vec::with_capacity(entries.len());
        let mut drafted = self.drafted.take().into_iter();
        for entry in entries {
            let draft = match drafted.next() {
                Some(draft) => draft,
                None => draft(entry, self.by, &self.source)?,
            };
            if let Body::CheckpointCreated(body) = &draft.body
                && let Some((place, offset)) = body.progress()
                && run.checkpoints.get(&place).is_some_and(|last| offset < *last)
                && !mutant(Mutant::OffsetsGoBack)
            {
                return Err(Refused::OffsetBack(offset));
            }
            if run.phase.is_ended() && !draft.body.may_follow_end() {
                return Err(Refused::RunEnded(run.status()));
            }
            drafts.push(Draft {
                step: step.map(|step| step.id),
                attempt: step.map(|step| step.attempt),
                fence: claim.map(|claim| claim.fence),
                ..draft
            });
        }
        Ok(Decided::of(drafts))
    }

    /// Writes of a step that left and whose outcome is not known.
    fn open_writes<'s>(&'s self, step: &Step) -> impl Iterator<Item = &'s Call> + use<'s> {
        let id = step.id;
        let calls = self.view.state.map(|run| &run.calls).into_iter().flat_map(|calls| calls.values());
        calls.filter(move |call| call.step == id && call.is_open_write())
    }

    /// Those of them that nobody has called in doubt yet.
    fn running_writes<'s>(&'s self, step: &Step) -> impl Iterator<Item = &'s Call> + use<'s> {
        self.open_writes(step).filter(|call| call.phase == CallPhase::Started)
    }

    /// A worker lets go of a step only after the bodies of its writes have settled.
    pub(super) fn check_no_running_write(&self, step: &Step) -> Result<(), Refused> {
        if self.running_writes(step).next().is_some() { Err(Refused::OpenWrite) } else { Ok(()) }
    }

    /// A worker that is gone can no longer report: what it had sent off is in doubt. `over`: its process is
    /// provably gone too, so nothing of it can still act.
    pub(super) fn doubt_running_writes(
        &self,
        step: &Step,
        cause: DoubtCause,
        over: bool,
        decided: &mut Decided,
    ) {
        let told = |call: &Call, drafts: &[Draft]| {
            drafts
                .iter()
                .any(|draft| draft.call == Some(call.id) && matches!(draft.body, Body::EffectDoubted(_)))
        };
        for call in self.running_writes(step) {
            if told(call, &decided.drafts) {
                continue; // a recovered step that is cancelled in the same frame
            }
            // A body in a process of its own may outlive its worker by a moment: its time is waited for.
            let boxed = call.permit.as_ref().is_some_and(|permit| permit.sandbox != SandboxTier::None);
            let over = over && (!boxed || mutant(Mutant::SandboxDiesWithWorker));
            let body = EffectDoubted { cause, failure: None, over: over.then_some(true) };
            let draft = Draft { dispatch: Some(call.dispatch), ..self.call_draft(body, step, call.id, None) };
            decided.drafts.push(draft);
        }
    }

    /// Cancels every open step but one; what they had sent off is in doubt.
    pub(super) fn cancel_steps(
        &self,
        except: Option<StepId>,
        reason: StepCancelReason,
        decided: &mut Decided,
    ) -> Result<(), Refused> {
        let open = |step: &&Step| Some(step.id) != except && !step.is_ended();
        for step in self.run()?.steps.values().filter(open) {
            self.doubt_running_writes(step, DoubtCause::Fenced, false, decided);
            decided.drafts.push(self.step_draft(StepCancelled { reason }, step, None));
        }
        Ok(())
    }

    /// The terminal record, with what ends along with the run.
    pub(super) fn finish(
        &self,
        status: EndStatus,
        reason: EndReason,
        result: Option<crate::content::Content>,
        failure: Option<Failure>,
        decided: &mut Decided,
    ) -> Result<(), Refused> {
        let run = self.run()?;
        for (id, approval) in run.approvals.iter().filter(|(_, found)| found.state == ApprovalState::Pending)
        {
            let body = ApprovalCancelled { approval: *id, reason: ApprovalCancelReason::RunEnded };
            decided.drafts.push(Draft { call: approval.call, ..self.draft(body) });
        }
        let patches =
            decided.drafts.iter().filter(|draft| matches!(draft.body, Body::StatePatched(_))).count();
        let state_version = run.state_version + u64::try_from(patches).unwrap_or(0);
        let value = decided.drafts.iter().flat_map(|draft| &draft.sealed);
        let payload = |s: &Sealed| Payload { privacy: s.content.privacy, value: s.opening.value.clone() };
        let value = result.as_ref().and_then(|c| value.clone().find(|s| s.content == *c).map(payload));
        let told = failure.clone().map(|failure| Failure { message: None, ..failure });
        decided.drafts.push(self.draft(RunFinished { failure, reason, result, state_version, status }));
        self.tell_relatives(run, (status, reason, told), value, decided);
        Ok(())
    }

    /// The parent hears of the end; children that end with their parent are asked to.
    fn tell_relatives(
        &self,
        run: &RunState,
        (status, reason, failure): (EndStatus, EndReason, Option<Failure>),
        result: Option<Payload>,
        decided: &mut Decided,
    ) {
        let envelope =
            |to, body| Envelope { body, from: StreamId::Run(run.id), id: self.source.envelope_id(), to };
        if let Some(parent) = run.parent {
            let returned = run.left_over();
            decided.envelopes.push(envelope(
                parent,
                EnvelopeBody::ChildEnded { failure, reason, result, returned, status },
            ));
        }
        let ends = |(_, child): &(_, &crate::state::ChildState)| {
            child.ended.is_none() && child.on_parent_end == OnParentEnd::End
        };
        for (child, _) in run.children.iter().filter(ends) {
            decided.envelopes.push(envelope(*child, EnvelopeBody::Cancel {}));
        }
    }
}

/// The error came from recorded outcomes, and all of them would be served again.
fn would_fail_again(run: &RunState, step: &Step, ended_by: &[CallId]) -> bool {
    let newest_write = run.calls_of(step.id).iter().filter(|c| c.must_be_claimed()).map(|c| c.opened).max();
    let served = |id: &CallId| {
        let call = run.calls.get(id);
        call.and_then(|call| call.outcome.map(|outcome| (call, outcome))).is_some_and(|(call, outcome)| {
            let write_after = newest_write.is_some_and(|write| write > call.opened);
            replay(outcome, Situation::Retried { ended_attempt: true, write_after }) == Replay::Served
        })
    };
    !ended_by.is_empty() && ended_by.iter().all(served)
}

/// What code says of its failure may quote what its calls were given: it is as private as the most private of
/// them.
fn quoting(run: &RunState, step: &Step, message: Option<&Payload>) -> Option<Payload> {
    let Payload { privacy, value } = message?;
    let calls = run.calls.values().filter(|call| call.step == step.id);
    let given = calls.map(Call::sent_privacy).max().unwrap_or(*privacy);
    let privacy = if mutant(Mutant::MessagesLeak) { *privacy } else { (*privacy).max(given) };
    Some(Payload { privacy, value: value.clone() })
}

/// Whether a wait names what can end it.
fn check_wait(wait: &Wait) -> Result<(), Refused> {
    let named = match wait.on {
        WaitOn::Timer => wait.until.is_some(),
        WaitOn::Signal | WaitOn::Child | WaitOn::Approval | WaitOn::Key => wait.subject.is_some(),
        WaitOn::Doubt => wait.call.is_some(),
        WaitOn::Message
        | WaitOn::Budget
        | WaitOn::Divergence
        | WaitOn::Package
        | WaitOn::Restored
        | WaitOn::Interrupted
        | WaitOn::Paused => true,
    };
    if named { Ok(()) } else { Err(Refused::BadWait(wait.on)) }
}

/// One entry of the low-level door as a draft, with its contents sealed.
pub(super) fn draft(entry: &Entry, by: &Actor, source: &Source<'_>) -> Result<Draft, Refused> {
    let info = crate::records::KINDS.iter().find(|info| info.token == entry.kind);
    let open = entry.kind.starts_with("x.") || info.is_some_and(|info| info.door);
    if !open && !mutant(Mutant::DoorWide) {
        return Err(Refused::KindReserved);
    }
    let mut body = entry.body.clone();
    let mut sealed = Vec::new();
    let positions = info.map_or(&["content"][..], |info| info.contents);
    for position in entry.blobs.keys() {
        if !positions.contains(&position.as_str()) || body.get(position).is_some() {
            let message = format!("no content of this kind stands at '{position}', or a value does");
            return Err(ReadError::new(Fault::UnknownField, "$.blobs", message).into());
        }
    }
    for position in positions {
        if let (Some(content), Some(members)) = (entry.blobs.get(*position), body.as_object_mut()) {
            members.insert((*position).to_owned(), content.to_tree());
        } else if let Some(value) = body.get_mut(*position) {
            let made = seal(value.take(), source.salt(), entry.privacy)?;
            *value = made.content.to_tree();
            sealed.push(made);
        }
    }
    let body = match Body::read(&entry.kind, &body)? {
        Body::Unknown(..) => {
            return Err(ReadError::new(Fault::UnknownKind, "$.kind", "not a kind").into());
        }
        known => known,
    };
    let blobs = entry.blobs.values().cloned().collect();
    Ok(Draft { blobs, sealed, privacy: entry.privacy, ..Draft::new(body, by.clone()) })
}
