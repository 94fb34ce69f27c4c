//! How records about calls, approvals, budgets and other runs change a run.

use super::Illegal;
use super::calls::{Call, CallPhase, Late, Outcome};
use super::govern::{Approval, ApprovalState, GrantState, add};
use super::run::{ChildState, Mail, RunState};
use super::run_apply::step_of;
use crate::contracts::approval::ApprovalDecisionKind;
use crate::contracts::hook::{HookClass, HookOutcome};
use crate::contracts::policy::Decision;
use crate::ids::ApprovalId;
use crate::mutants::{Mutant, mutant};
use crate::records::{
    Amounts, ApprovalDecided, Body, BudgetReturned, EffectClass, EffectResolved, EffectStarted, EffectStatus,
    Key, Name, Record, Resolution,
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
    fn check_key(&self, record: &Record, key: Option<&Key>) -> Done {
        let holds = |call: &Call| call.key.as_ref() == key && call.phase != CallPhase::Abandoned;
        if key.is_some() && self.calls.values().any(holds) {
            return Err(Illegal::new(record, "another call holds the key"));
        }
        Ok(())
    }

    pub(super) fn change_call(&mut self, record: &Record) -> Done {
        if let Body::CallOpened(opened) = &record.body {
            let (step, Some(id)) = (step_of(record)?, record.call) else {
                return Err(Illegal::new(record, "a call has an id"));
            };
            let lane = record.lane.clone().or_else(|| Name::new("0"));
            let lane = lane.ok_or_else(|| Illegal::new(record, "a call has a lane"))?;
            self.check_key(record, opened.key.as_ref())?;
            return match self.calls.insert(id, Call::new(id, step, lane, self.position(record), opened)) {
                None => Ok(()),
                Some(_) => Err(Illegal::new(record, "the call exists")),
            };
        }
        // A settled receive takes the signal or message that its cause names.
        if let (Body::EffectSettled(_), Some(cause)) = (&record.body, record.cause) {
            self.signals.retain(|mail| mail.position != cause);
            self.messages.retain(|mail| mail.position != cause);
        }
        let position = self.position(record);
        let call = self.call_mut(record)?;
        check_dispatch(call, record)?;
        match &record.body {
            Body::CallCancelled(body) => call.await_cancelled = Some((position, body.elapsed_ms)),
            Body::CallAbandoned(_) => call.phase = CallPhase::Abandoned,
            Body::EffectStarted(body) => return start(call, record, body),
            Body::EffectSettled(body) => {
                let early = matches!(body.status, EffectStatus::NoEffect | EffectStatus::Cancelled);
                let allowed = match call.phase {
                    CallPhase::Started => true,
                    CallPhase::Open => early || call.effect != EffectClass::Write,
                    CallPhase::Doubted | CallPhase::Settled | CallPhase::Abandoned => false,
                };
                let unknown = body.status == EffectStatus::TimedOut && call.effect == EffectClass::Write;
                if !allowed || unknown {
                    return Err(Illegal::new(
                        record,
                        "the effect is not running, or nobody knows how it ended",
                    ));
                }
                let outcome = call.outcome_of(body.status, body.output_error.is_some());
                call.settle(position, outcome, body.result.as_ref());
            }
            Body::EffectDoubted(body) if call.phase == CallPhase::Started => {
                (call.phase, call.doubt) = (CallPhase::Doubted, Some(body.cause));
            }
            Body::EffectLate(body) => {
                call.late = Some(Late { result: body.result.clone(), status: body.status });
            }
            Body::EffectResolved(body) if body.resolution == Resolution::Late && call.late.is_none() => {
                return Err(Illegal::new(record, "there is no late report"));
            }
            Body::EffectResolved(body) if call.phase == CallPhase::Doubted => resolve(call, position, body),
            Body::EffectCompensated(_) if call.phase == CallPhase::Settled => {
                call.settle(position, Outcome::Compensated, None);
            }
            Body::TimerSet(body) => call.fires_at = Some(body.fires_at),
            Body::TimerFired(_) if call.fires_at.is_some() && call.is_undecided() => {
                call.settle(position, Outcome::Succeeded, None);
            }
            _ => return Err(Illegal::new(record, "the call's phase does not allow it")),
        }
        Ok(())
    }

    pub(super) fn change_governance(&mut self, record: &Record) -> Done {
        match &record.body {
            Body::HookRuled(body) => {
                let denied = body.outcome == HookOutcome::AppliedJournaledMutation
                    && body.response.as_ref().is_some_and(|response| response.class() == HookClass::Deny);
                if denied { self.settle_own(record, Outcome::DeniedByRule) } else { Ok(()) }
            }
            Body::PolicyDecided(body) if body.decision == Decision::Deny => {
                self.settle_own(record, Outcome::DeniedByRule)
            }
            Body::PolicyDecided(_) => Ok(()),
            Body::ApprovalRequested(body) => {
                let approval = Approval {
                    call: record.call,
                    digest: body.digest,
                    expires_at: body.expires_at,
                    quorum: body.quorum,
                    state: ApprovalState::Pending,
                    votes: std::collections::BTreeMap::new(),
                };
                match self.approvals.insert(body.approval, approval) {
                    None => Ok(()),
                    Some(_) => Err(Illegal::new(record, "the request exists")),
                }
            }
            Body::ApprovalVoted(body) => {
                let voter = record.by.id.clone();
                let approval = self.pending(body.approval, record)?;
                if approval.digest != body.digest {
                    return Err(Illegal::new(record, "it votes about something else"));
                }
                approval.votes.insert(voter, body.vote);
                Ok(())
            }
            Body::ApprovalDecided(body) => self.decided(record, body),
            Body::ApprovalEdited(body) => {
                let approval = self.pending(body.approval, record)?;
                approval.digest = body.digest;
                approval.votes.clear();
                Ok(())
            }
            Body::ApprovalTimedOut(body) => self.end_approval(body.approval, ApprovalState::TimedOut, record),
            Body::ApprovalSuperseded(body) => {
                self.end_approval(body.approval, ApprovalState::Superseded, record)
            }
            Body::ApprovalCancelled(body) => {
                self.end_approval(body.approval, ApprovalState::Cancelled, record)
            }
            _ => self.change_account(record),
        }
    }

    fn pending(&mut self, id: ApprovalId, record: &Record) -> Result<&mut Approval, Illegal> {
        let approval =
            self.approvals.get_mut(&id).filter(|approval| approval.state == ApprovalState::Pending);
        approval.ok_or_else(|| Illegal::new(record, "no such pending request"))
    }

    fn end_approval(&mut self, id: ApprovalId, state: ApprovalState, record: &Record) -> Done {
        self.pending(id, record)?.state = state;
        Ok(())
    }

    fn decided(&mut self, record: &Record, body: &ApprovalDecided) -> Done {
        let approval = self.pending(body.approval, record)?;
        if approval.digest != body.digest {
            return Err(Illegal::new(record, "it decides about something else"));
        }
        approval.state = match body.decision {
            ApprovalDecisionKind::Approved => ApprovalState::Approved,
            ApprovalDecisionKind::ApprovedForSession => ApprovalState::ApprovedForSession,
            ApprovalDecisionKind::Denied => ApprovalState::Denied,
        };
        let denied = approval.call.filter(|_| body.decision == ApprovalDecisionKind::Denied);
        let position = self.position(record);
        match denied.and_then(|id| self.calls.get_mut(&id)) {
            Some(call) if call.is_undecided() => call.settle(position, Outcome::DeniedByPerson, None),
            Some(_) => return Err(Illegal::new(record, "the call was sent off already")),
            None => {}
        }
        Ok(())
    }

    fn change_account(&mut self, record: &Record) -> Done {
        match (&record.body, record.call) {
            (Body::GrantCreated(body), _) => match self.grants.insert(body.grant, GrantState::new(body)) {
                None => Ok(()),
                Some(_) => Err(Illegal::new(record, "the grant exists")),
            },
            // A session's grant is not in this stream; what is left of it is a shared row.
            (Body::GrantSpent(body), Some(call)) => {
                if let Some(grant) = self.grants.get_mut(&body.grant) {
                    grant.spent_by.push(call);
                }
                Ok(())
            }
            (Body::GrantRevoked(body), _) => match self.grants.get_mut(&body.grant) {
                Some(grant) => {
                    grant.revoked = true;
                    Ok(())
                }
                None => Err(Illegal::new(record, "no such grant")),
            },
            (Body::BudgetReserved(body), Some(call)) => {
                self.spending.reserved.insert(call, body.amounts.clone());
                Ok(())
            }
            (Body::BudgetSettled(body), Some(call)) => {
                self.spending.reserved.remove(&call);
                add(&mut self.spending.used, &body.amounts);
                Ok(())
            }
            (Body::BudgetEscrowed(body), _) => {
                self.spending.escrowed.insert(body.child, body.amounts.clone());
                Ok(())
            }
            (Body::BudgetReturned(body), _) => self.returned(record, body),
            _ => Err(Illegal::new(record, "it belongs to no call")),
        }
    }

    /// What a child did not return, it used.
    fn returned(&mut self, record: &Record, body: &BudgetReturned) -> Done {
        let Some(escrow) = self.spending.escrowed.remove(&body.child) else {
            return Err(Illegal::new(record, "the child held nothing"));
        };
        let minus = |a: Option<u64>, b: Option<u64>| a.map(|a| a.saturating_sub(b.unwrap_or(0)));
        let used = Amounts {
            children: minus(escrow.children, body.amounts.children),
            tokens: minus(escrow.tokens, body.amounts.tokens),
            tool_calls: minus(escrow.tool_calls, body.amounts.tool_calls),
            usd_micros: minus(escrow.usd_micros, body.amounts.usd_micros),
        };
        add(&mut self.spending.used, &used);
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
                let child = ChildState { call: record.call, ended: None, on_parent_end: body.on_parent_end };
                if self.children.insert(body.child, child).is_some() {
                    return Err(Illegal::new(record, "the child exists"));
                }
                self.settle_own(record, Outcome::Succeeded)?;
            }
            Body::MessageSent(_) => self.settle_own(record, Outcome::Succeeded)?,
            Body::ChildEnded(body) => {
                match self.children.get_mut(&body.child).filter(|child| child.may_end()) {
                    Some(child) => child.ended = Some(body.status),
                    None => return Err(Illegal::new(record, "no such running child")),
                }
            }
            Body::PackageDecided(body) => self.package = body.package.clone(),
            _ => return Err(Illegal::new(record, "it changes nothing between runs")),
        }
        Ok(())
    }
}

/// A permit leaves: from an open call, from one that replay sends off again, or from one in doubt if the
/// other side honours the key. All permits of a call carry one key.
fn start(call: &mut Call, record: &Record, body: &EffectStarted) -> Done {
    let allowed = match call.phase {
        CallPhase::Open => true,
        CallPhase::Settled => call.rerun,
        CallPhase::Started => call.effect != EffectClass::Write,
        CallPhase::Doubted => call.permit_key_ttl_ms.is_some() || mutant(Mutant::RepeatDoubtedWrite),
        CallPhase::Abandoned => false,
    };
    if !allowed || record.dispatch != Some(call.dispatch + 1) {
        return Err(Illegal::new(record, "the call may not be dispatched, or not under this number"));
    }
    if call.permit_key.as_ref().is_some_and(|key| *key != body.key) {
        return Err(Illegal::new(record, "the call was dispatched under another key"));
    }
    call.permit_key = Some(body.key.clone());
    call.permit_key_ttl_ms = call.permit_key_ttl_ms.or(body.key_ttl_ms);
    call.dispatch += 1;
    (call.phase, call.doubt, call.rerun, call.outcome) = (CallPhase::Started, None, false, None);
    call.late = None;
    Ok(())
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
        }
        (Resolution::DidNotHappen, _) => call.settle(position, Outcome::NoEffect, None),
        (Resolution::Compensated, _) => call.settle(position, Outcome::Compensated, None),
    }
}
