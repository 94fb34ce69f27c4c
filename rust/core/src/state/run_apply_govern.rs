//! How records about hooks, policy, approvals, grants and budgets change a run.

use super::Illegal;
use super::calls::{Outcome, Placed};
use super::govern::{Approval, ApprovalState, GrantState, add};
use super::run::RunState;
use crate::budget::{is_limit, raises};
use crate::call::{CallEvent, CallPhase};
use crate::contracts::approval::ApprovalDecisionKind;
use crate::contracts::hook::{HookOutcome, HookPoint, HookResponse};
use crate::contracts::policy::{Decision, ObligationKind};
use crate::ids::{ApprovalId, CallId, GrantId};
use crate::records::{
    Account, Amounts, ApprovalDecided, Body, BudgetReturned, Failure, FailureSource, GrantSpent, HookRuled,
    Name, OnExceeded, PolicyDecided, Reason, Record, Token,
};
use crate::redact;

type Done = Result<(), Illegal>;

impl RunState {
    pub(super) fn change_governance(&mut self, record: &Record) -> Done {
        match &record.body {
            Body::HookRuled(body) => self.ruled(record, body),
            Body::PolicyDecided(body) => self.policy_decided(record, body),
            Body::ApprovalRequested(body) => {
                let approval = Approval::new(record.call, self.position(record), body);
                match self.approvals.insert(body.approval, approval) {
                    None => Ok(()),
                    Some(_) => Err(Illegal::new(record, "the request exists")),
                }
            }
            Body::ApprovalDispatched(body) => {
                if let Some(approval) = self.approvals.get_mut(&body.approval) {
                    approval.dispatched.insert(body.dispatcher.clone(), body.status);
                }
                Ok(())
            }
            Body::ApprovalVoted(body) => {
                let voter = record.by.id.clone();
                let approval = self.pending(body.approval, record)?;
                if approval.digest != body.digest {
                    return Err(Illegal::new(record, "it votes about something else"));
                }
                approval.votes.insert(voter, body.vote);
                approval.scopes.extend(body.scope.clone());
                Ok(())
            }
            Body::ApprovalDecided(body) => self.decided(record, body),
            Body::ApprovalEdited(body) => {
                let position = self.position(record);
                let approval = self.pending(body.approval, record)?;
                approval.digest = body.digest;
                approval.arguments = Placed { content: body.arguments.clone(), position };
                approval.edited = true;
                approval.votes.clear();
                approval.scopes.clear();
                Ok(())
            }
            Body::ApprovalTimedOut(body) => {
                self.end_approval(body.approval, ApprovalState::TimedOut, record)?;
                self.deny(record, vec![reason("approval.timeout", None)])
            }
            Body::ApprovalSuperseded(body) => {
                self.end_approval(body.approval, ApprovalState::Superseded, record)
            }
            Body::ApprovalCancelled(body) => {
                self.end_approval(body.approval, ApprovalState::Cancelled, record)
            }
            Body::CapabilityGranted(_)
            | Body::CapabilityAttenuated(_)
            | Body::CapabilityTransferred(_)
            | Body::CapabilityRevoked(_) => self.capabilities.apply(record),
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
            Some(call) if call.is_undecided() => {
                call.settle(position, Outcome::DeniedByPerson, None);
                call.reasons = vec![reason(body.reason_code.as_str(), None)];
            }
            Some(call) if call.phase != CallPhase::Abandoned => {
                return Err(Illegal::new(record, "the call was sent off already"));
            }
            Some(_) | None => {}
        }
        Ok(())
    }

    fn change_account(&mut self, record: &Record) -> Done {
        match (&record.body, record.call) {
            (Body::GrantCreated(body), _) => match self.grants.insert(body.grant, GrantState::new(body)) {
                None => Ok(()),
                Some(_) => Err(Illegal::new(record, "the grant exists")),
            },
            (Body::GrantSpent(body), Some(call)) => self.spent(record, call, body),
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
            // Where a run asks instead, the call stays open and waits.
            (Body::BudgetRefused(body), Some(_)) if self.asks_for(body.account) => Ok(()),
            (Body::BudgetRefused(_), Some(_)) => self.deny(record, vec![reason("budget.exceeded", None)]),
            (Body::BudgetEscrowed(body), _) => {
                self.spending.escrowed.insert(body.child, body.amounts.clone());
                Ok(())
            }
            (Body::BudgetRaised(body), _) if !raises(self, &body.amounts) => {
                Err(Illegal::new(record, "there is nothing to raise"))
            }
            (Body::BudgetRaised(body), _) => {
                add(&mut self.spending.raised, &body.amounts);
                Ok(())
            }
            (Body::BudgetReturned(body), _) => self.returned(record, body),
            _ => Err(Illegal::new(record, "it belongs to no call")),
        }
    }

    /// A grant that answers a request is in this stream, and is spent with what it is bound to. A session's is
    /// not: it is spent without, and what is left of it follows from all that spent it.
    fn spent(&mut self, record: &Record, call: CallId, body: &GrantSpent) -> Done {
        match (self.grants.get_mut(&body.grant), body.digest) {
            (Some(grant), Some(digest)) if grant.approval.is_some_and(|(_, bound)| bound == digest) => {
                grant.spent_by.push(call);
                Ok(())
            }
            (Some(_), _) => Err(Illegal::new(record, "the grant is bound to something else")),
            (None, None) if self.session.is_some() && self.fork.is_none() => {
                self.session_spent.insert((call, body.grant));
                Ok(())
            }
            (None, _) => Err(Illegal::new(record, "no such grant")),
        }
    }

    /// Whether what a record starts may be: the leave that it names was given and spent by the very call, and
    /// where a person had to be asked it names one.
    pub(super) fn check_leave(&self, record: &Record, grant: Option<GrantId>) -> Done {
        let call = record.call.and_then(|id| self.calls.get(&id));
        let Some(call) = call else { return Err(Illegal::new(record, "no such call")) };
        let Some(grant) = grant else {
            let asked = call.decided.is_some_and(|(decision, _)| decision == Decision::Ask);
            return if asked { Err(Illegal::new(record, "nobody has allowed it")) } else { Ok(()) };
        };
        let own = self.grants.get(&grant).is_some_and(|found| found.spent_by.contains(&call.id));
        if own || self.session_spent.contains(&(call.id, grant)) {
            return Ok(());
        }
        Err(Illegal::new(record, "its grant was not spent by it"))
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

    /// Settles the record's call as denied, and remembers why.
    fn deny(&mut self, record: &Record, reasons: Vec<Reason>) -> Done {
        self.settle_own(record, Outcome::DeniedByRule)?;
        if record.call.is_some() {
            self.call_mut(record)?.reasons = reasons;
        }
        Ok(())
    }

    fn policy_decided(&mut self, record: &Record, body: &PolicyDecided) -> Done {
        if record.call.is_some() {
            let call = self.call_mut(record)?;
            call.decided = Some((body.decision, body.policy));
            let hidden = body.obligations.iter().filter(|one| one.kind == ObligationKind::Redact);
            // What was once hidden stays so, whatever policy says later.
            let known = hidden.flat_map(|one| &one.fields).chain(&call.redacted);
            call.redacted = redact::fields(known);
        }
        if body.decision == Decision::Deny {
            return self.deny(record, body.errors.iter().chain(&body.reasons).cloned().collect());
        }
        Ok(())
    }

    /// A hook that failed closed denies as one that says so does; at the other end it may put another
    /// result in the place of the tool's, or want a read once more.
    fn ruled(&mut self, record: &Record, body: &HookRuled) -> Done {
        match body.point {
            HookPoint::AfterToolCall => return self.ruled_after(record, body),
            HookPoint::BeforeToolCall
            | HookPoint::BeforeApprovalRequest
            | HookPoint::AfterApprovalDecision => {}
            _ => return Ok(()), // about no call, or about its sandbox: its outcome says what became of it
        }
        let applied = body.outcome == HookOutcome::AppliedJournaledMutation;
        let code = match &body.response {
            Some(HookResponse::Deny(stop)) if applied => stop.code.as_str().to_owned(),
            _ if body.denies == Some(true) => "hook.failed".to_owned(),
            _ => return Ok(()),
        };
        self.deny(record, vec![reason(&code, Some(&body.hook))])
    }

    fn ruled_after(&mut self, record: &Record, body: &HookRuled) -> Done {
        let position = self.position(record);
        let call = self.call_mut(record)?;
        call.unruled = false;
        if body.denies == Some(true) {
            // It happened, and nobody may see what came of it.
            call.outcome = Some(Outcome::Unrecordable);
            call.result = None;
            call.output_error = Some(Failure {
                code: Token::new("hook.failed"),
                error: body.hook.clone(),
                message: None,
                retryable: false,
                source: FailureSource::Hook,
            });
        }
        if body.outcome != HookOutcome::AppliedJournaledMutation {
            return Ok(());
        }
        match &body.response {
            Some(HookResponse::RewriteToolResult(change)) => {
                call.result = Some(change.value.clone());
                call.result_at = Some(position);
            }
            Some(HookResponse::RequestRetry(_)) if call.allows(CallEvent::Redone) => call.rerun = true,
            Some(HookResponse::RequestRetry(_)) => {
                return Err(Illegal::new(record, "a write is not made once more"));
            }
            _ => {}
        }
        Ok(())
    }

    /// Whether a call that does not fit into an account waits for a person.
    pub(crate) fn asks_for(&self, account: Account) -> bool {
        !is_limit(account) && self.budget.as_ref().is_some_and(|budget| budget.on_exceeded == OnExceeded::Ask)
    }
}

fn reason(code: &str, rule: Option<&Name>) -> Reason {
    let code = Token::new(code).unwrap_or_else(Token::unknown);
    Reason { code, rule: rule.cloned(), summary: None }
}
