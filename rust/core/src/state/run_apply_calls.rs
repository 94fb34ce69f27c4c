//! How records about calls and other runs change a run.

use super::Illegal;
use super::calls::{Call, Late, Outcome, Permitted, Placed};
use super::run::{ChildState, Mail, RunState};
use super::run_apply::step_of;
use crate::call::{CallEvent, CallPhase};
use crate::ids::CallId;
use crate::mutants::{Mutant, mutant};
use crate::records::{
    Body, CallOpened, CallServed, EffectResolved, EffectSettled, EffectStarted, Key, Name, Record, Resolution,
};

type Done = Result<(), Illegal>;

impl RunState {
    /// The call that a record belongs to. A new step's record names that step, not the one that added it.
    pub(super) fn call_mut(&mut self, record: &Record) -> Result<&mut Call, Illegal> {
        let call = record.call.and_then(|id| self.calls.get_mut(&id));
        let call = call.ok_or_else(|| Illegal::new(record, "no such call"))?;
        let foreign = record.step.is_some_and(|step| step != call.step);
        if foreign && !matches!(record.body, Body::StepCreated(_)) {
            return Err(Illegal::new(record, "the call belongs to another step"));
        }
        Ok(call)
    }

    /// A key is held by one call of the run.
    fn hold_key(&mut self, record: &Record, id: CallId, key: Option<&Key>) -> Done {
        let Some(key) = key else { return Ok(()) };
        match self.keys.insert(key.clone(), id) {
            None => Ok(()),
            Some(_) => Err(Illegal::new(record, "another call holds the key")),
        }
    }

    fn call_opened(&mut self, record: &Record, opened: &CallOpened) -> Done {
        let (step, Some(id)) = (step_of(record)?, record.call) else {
            return Err(Illegal::new(record, "a call has an id"));
        };
        let lane = record.lane.clone().or_else(|| Name::new("0"));
        let lane = lane.ok_or_else(|| Illegal::new(record, "a call has a lane"))?;
        if self.calls.contains_key(&id) {
            return Err(Illegal::new(record, "the call exists"));
        }
        self.hold_key(record, id, opened.key.as_ref())?;
        let call = Call::new(id, step, lane, self.position(record), opened);
        self.calls.insert(id, call);
        Ok(())
    }

    pub(super) fn change_call(&mut self, record: &Record) -> Done {
        if let Body::CallOpened(opened) = &record.body {
            return self.call_opened(record, opened);
        }
        if let Body::EffectStarted(body) = &record.body {
            self.check_leave(record, body.grant)?;
        }
        // A settled receive takes the signal or message that its cause names.
        if let (Body::EffectSettled(_), Some(cause)) = (&record.body, record.cause) {
            self.signals.retain(|mail| mail.position != cause);
            self.messages.retain(|mail| mail.position != cause);
        }
        let (position, forked) = (self.position(record), self.fork.is_some());
        let call = self.call_mut(record)?;
        check_dispatch(call, record)?;
        call.told_ms = call.shared_ms.map(|_| record.at);
        match &record.body {
            Body::CallCancelled(body) => call.await_cancelled = Some((position, body.elapsed_ms)),
            Body::CallAbandoned(_) => {
                call.phase = CallPhase::Abandoned;
                // What came of it is served to whoever asks under its key; else the key is free again.
                let kept = call.left_outcome() && !mutant(Mutant::AbandonedRepeats);
                let key = call.key.clone().filter(|_| !kept);
                let id = call.id;
                self.keys.retain(|held, holder| *holder != id || Some(held) != key.as_ref());
            }
            Body::EffectStarted(body) => return start(call, record, position, body),
            // What a repeat did not do, what it repeats may still have done.
            Body::EffectSettled(body)
                if call.after(CallEvent::Settled(body.status)) == Some(CallPhase::Doubted) =>
            {
                (call.phase, call.doubt) = (CallPhase::Doubted, call.unresolved);
                if let Some(permit) = &mut call.permit {
                    permit.over = true;
                }
            }
            Body::EffectSettled(body) if call.allows(CallEvent::Settled(body.status)) => {
                settle(call, position, body);
            }
            Body::CallServed(body)
                if (forked || call.shared_ms.is_some()) && call.allows(CallEvent::Done) =>
            {
                settle(call, position, &as_settled(body));
                call.served = true;
                call.served_by = call.shared_ms.is_none().then_some(body.by_call);
            }
            Body::EffectDoubted(body) if call.allows(CallEvent::Doubted) => {
                (call.phase, call.doubt) = (CallPhase::Doubted, Some(body.cause));
                if let Some(permit) = &mut call.permit {
                    permit.over = body.over == Some(true);
                }
            }
            Body::EffectLate(body) if call.allows(CallEvent::Late) => {
                call.late = Some(Late { position, result: body.result.clone(), status: body.status });
            }
            Body::EffectResolved(body) if body.resolution == Resolution::Late && call.late.is_none() => {
                return Err(Illegal::new(record, "there is no late report"));
            }
            Body::EffectResolved(body) if call.allows(CallEvent::Resolved) => resolve(call, position, body),
            Body::EffectCompensated(_) if call.allows(CallEvent::Compensated) => {
                call.settle(position, Outcome::Compensated, None);
            }
            Body::TimerSet(body) => call.fires_at = Some(body.fires_at),
            Body::TimerFired(_) if call.fires_at.is_some() && call.allows(CallEvent::Done) => {
                call.settle(position, Outcome::Succeeded, None);
            }
            _ => return Err(Illegal::new(record, "the call's phase does not allow it")),
        }
        Ok(())
    }

    pub(super) fn change_flow(&mut self, record: &Record) -> Done {
        match &record.body {
            Body::EnvelopeReceived(body) => {
                if !self.envelopes.insert(body.envelope) {
                    return Err(Illegal::new(record, "the envelope was received before"));
                }
            }
            Body::MessageReceived(body) => self.messages.push(Mail {
                from: Some(body.from),
                name: None,
                payload: body.content.clone(),
                position: self.position(record),
            }),
            Body::SignalReceived(body) => self.signals.push(Mail {
                from: None,
                name: Some(body.name.clone()),
                payload: body.payload.clone(),
                position: self.position(record),
            }),
            Body::ChildSpawned(body) => {
                let child = ChildState {
                    call: record.call,
                    ended: None,
                    ended_at: None,
                    failure: None,
                    on_parent_end: body.on_parent_end,
                    result: None,
                };
                if self.children.insert(body.child, child).is_some() {
                    return Err(Illegal::new(record, "the child exists"));
                }
                self.settle_own(record, Outcome::Succeeded)?;
            }
            Body::MessageSent(_) => self.settle_own(record, Outcome::Succeeded)?,
            Body::ChildEnded(body) => {
                let position = self.position(record);
                match self.children.get_mut(&body.child).filter(|child| child.may_end()) {
                    Some(child) => {
                        (child.ended, child.ended_at) = (Some(body.status), Some(position));
                        (child.failure, child.result) = (body.failure.clone(), body.result.clone());
                    }
                    None => return Err(Illegal::new(record, "no such running child")),
                }
            }
            Body::PackageDecided(body) => self.package = body.package.clone(),
            _ => return Err(Illegal::new(record, "it changes nothing between runs")),
        }
        Ok(())
    }
}

/// A permit leaves. All permits of a call carry one key.
fn start(call: &mut Call, record: &Record, position: u64, body: &EffectStarted) -> Done {
    if !call.allows(CallEvent::Started) || record.dispatch != Some(call.dispatch + 1) {
        return Err(Illegal::new(record, "the call may not be dispatched, or not under this number"));
    }
    if call.permit_key.as_ref().is_some_and(|key| *key != body.key) {
        return Err(Illegal::new(record, "the call was dispatched under another key"));
    }
    call.permit_key = Some(body.key.clone());
    call.permit_key_ttl_ms = call.permit_key_ttl_ms.or(body.key_ttl_ms);
    call.effective = Some(Placed { content: body.arguments.clone(), position });
    let permit = Permitted {
        at: record.at,
        boot_id: body.boot_id.clone(),
        fence: record.fence,
        over: false,
        sandbox: body.sandbox,
        schema: body.schema,
        start_by: body.start_by,
        timeout_ms: body.timeout_ms,
        version: body.version.clone(),
    };
    call.first_permit.get_or_insert_with(|| permit.clone());
    let older = call.permit.replace(permit).filter(|older| !older.over);
    if older
        .as_ref()
        .is_some_and(|older| call.older_permit.as_ref().is_none_or(|old| old.end() <= older.end()))
    {
        call.older_permit = older;
    }
    call.dispatch += 1;
    call.unresolved = call.doubt.or(call.unresolved);
    (call.phase, call.doubt, call.rerun, call.outcome) = (CallPhase::Started, None, false, None);
    (call.late, call.unruled, call.served, call.served_by) = (None, false, false, None);
    Ok(())
}

/// The outcome of a call is known.
fn settle(call: &mut Call, position: u64, body: &EffectSettled) {
    let outcome = call.outcome_of(body.status, body.output_error.is_some());
    call.settle(position, outcome, body.result.as_ref());
    call.failure.clone_from(&body.failure);
    call.output_error.clone_from(&body.output_error);
    call.external_id.clone_from(&body.external_id);
    call.unruled = body.unruled == Some(true);
}

/// What another run did is to this call what its own effect would have been.
fn as_settled(body: &CallServed) -> EffectSettled {
    EffectSettled {
        elapsed_ms: 0,
        external_id: body.external_id.clone(),
        failure: body.failure.clone(),
        output_error: body.output_error.clone(),
        result: body.result.clone(),
        status: body.status,
        unruled: body.unruled,
        usage: None,
    }
}

/// What is said about an effect is said about its newest dispatch: a report of an older one says nothing
/// about the one that may be on its way.
fn check_dispatch(call: &Call, record: &Record) -> Done {
    let about_effect = matches!(
        record.body,
        Body::EffectSettled(_) | Body::EffectDoubted(_) | Body::EffectLate(_) | Body::EffectResolved(_)
    );
    let names = record.dispatch.unwrap_or(0);
    if about_effect && names != call.dispatch && !mutant(Mutant::AnyDispatch) {
        return Err(Illegal::new(record, "it is about another dispatch"));
    }
    Ok(())
}

fn resolve(call: &mut Call, position: u64, body: &EffectResolved) {
    let late = call.late.take();
    match (body.resolution, late) {
        (Resolution::Happened | Resolution::Late, None) | (Resolution::Happened, Some(_)) => {
            call.settle(position, Outcome::Succeeded, body.result.as_ref());
        }
        (Resolution::Late, Some(late)) => {
            let outcome = call.outcome_of(late.status, false);
            call.settle(position, outcome, late.result.as_ref());
            call.result_at = Some(late.position);
        }
        (Resolution::DidNotHappen, _) => call.settle(position, Outcome::NoEffect, None),
        (Resolution::Compensated, _) => call.settle(position, Outcome::Compensated, None),
    }
    // Nobody has looked at this result yet.
    call.unruled = call.outcome == Some(Outcome::Succeeded);
}
