//! What people say: votes, decisions, revocations.

use super::Gate;
use crate::approval::{Unfit, may_vote, outcome};
use crate::contracts::approval::ApprovalDecisionKind;
use crate::ids::{ApprovalId, GrantId};
use crate::records::{
    Actor, ActorType, ApprovalDecided, ApprovalSuperseded, ApprovalVoted, Draft, GrantCreated, GrantRevoked,
    Key, StepStatus, StepWoken, SupersedeReason, Token, WaitOn,
};
use crate::run::{Case, Decided, Payload, Refused, seal_into};
use crate::state::{Approval, ApprovalState, RunState};

impl Case<'_> {
    /// One vote. A denial decides, and so does the last vote of a quorum: once, for good. A request that
    /// was made under another policy is asked anew instead.
    pub(crate) fn vote(
        &self,
        id: ApprovalId,
        vote: ApprovalDecisionKind,
        reason: Option<&Payload>,
    ) -> Result<Decided, Refused> {
        let run = self.open_run()?;
        let approval = run.approvals.get(&id).ok_or(Refused::NoSuchApproval)?;
        let active = self.policy();
        may_vote(approval, self.by, vote, &active.policy, self.now.wall_ms)
            .map_err(|unfit| self.unfit(unfit, approval))?;
        if approval.requested.policy != active.digest {
            return Ok(self.superseded(run, id, approval));
        }
        let mut sealed = Vec::new();
        let told = seal_into(reason, &self.source, &mut sealed)?;
        let body = ApprovalVoted {
            approval: id,
            digest: approval.digest,
            reason: told.clone(),
            role: approval.requested.roles.first().cloned(),
            vote,
        };
        let mut drafts = vec![Draft { call: approval.call, sealed, ..self.draft(body) }];
        let state = match outcome(approval, vote) {
            None => ApprovalState::Pending,
            Some(decision) => {
                self.decided(run, (id, approval), decision, told, &mut drafts);
                if decision == ApprovalDecisionKind::Denied {
                    ApprovalState::Denied
                } else {
                    ApprovalState::Approved
                }
            }
        };
        Ok(Decided { gate: Some(Gate::Voted { approval: id, state }), ..Decided::of(drafts) })
    }

    fn unfit(&self, unfit: Unfit, approval: &Approval) -> Refused {
        match unfit {
            Unfit::Inside => Refused::SelfApproval,
            Unfit::Over(state) => {
                let first = approval.votes.keys().next_back().cloned();
                Refused::ApprovalOver(state.as_str(), first)
            }
            Unfit::Expired => Refused::ApprovalExpired,
            Unfit::NotAllowed => Refused::DecisionNotAllowed,
            Unfit::NoRole => Refused::NotAnApprover(self.by.id.clone()),
            Unfit::Twice => Refused::AlreadyVoted(self.by.id.clone()),
        }
    }

    fn superseded(&self, run: &RunState, id: ApprovalId, approval: &Approval) -> Decided {
        let body = ApprovalSuperseded { approval: id, by: None, reason: SupersedeReason::PolicyChanged };
        let mut drafts = vec![Draft { call: approval.call, ..self.draft(body) }];
        drafts.extend(self.woken_by_approval(run, id));
        let gate = Gate::Voted { approval: id, state: ApprovalState::Superseded };
        Decided { gate: Some(gate), ..Decided::of(drafts) }
    }

    /// The decision, the leave that follows from it, and the step that waited for it.
    fn decided(
        &self,
        run: &RunState,
        (id, approval): (ApprovalId, &Approval),
        decision: ApprovalDecisionKind,
        reason: Option<crate::content::Content>,
        drafts: &mut Vec<Draft>,
    ) {
        let denied = decision == ApprovalDecisionKind::Denied;
        let code = if denied { "approval.denied" } else { "approval.approved" };
        let human = |id: &crate::records::Name| Actor { id: id.clone(), r#type: ActorType::Human };
        let mut voters: Vec<Actor> = approval.votes.keys().map(human).collect();
        voters.push(self.by.clone());
        let body = ApprovalDecided {
            approval: id,
            decision,
            digest: approval.digest,
            key_id: None,
            reason,
            reason_code: Token::new(code).unwrap_or_else(Token::unknown),
            signature: None,
            voters,
        };
        drafts.push(Draft { call: approval.call, ..self.draft(body) });
        if !denied {
            let body = GrantCreated {
                approval: Some(id),
                constraints: Vec::new(),
                digest: Some(approval.digest),
                expires_at: approval.expires_at,
                grant: self.source.grant_id(),
                tool: approval.requested.tool.clone(),
                uses: 1,
            };
            drafts.push(Draft { call: approval.call, ..self.draft(body) });
        }
        drafts.extend(self.woken_by_approval(run, id));
    }

    fn woken_by_approval(&self, run: &RunState, id: ApprovalId) -> Vec<Draft> {
        let subject = Key::new(id.to_string());
        let waiting = run.steps.values().filter(|step| step.status == StepStatus::Waiting);
        let waits = waiting.filter(|step| {
            step.waits.iter().any(|wait| wait.on == WaitOn::Approval && wait.subject == subject)
        });
        let body = || StepWoken { on: WaitOn::Approval, subject: subject.clone() };
        waits.map(|step| self.step_draft(body(), step, None)).collect()
    }

    /// Leave that was not used yet is taken back.
    pub(crate) fn revoke(&self, id: GrantId, reason: Option<&Payload>) -> Result<Decided, Refused> {
        let run = self.open_run()?;
        self.person()?;
        match run.grants.get(&id) {
            None => return Err(Refused::NoSuchGrant),
            Some(grant) if grant.revoked => return Ok(Decided::nothing()),
            Some(_) => {}
        }
        let mut sealed = Vec::new();
        let body = GrantRevoked { grant: id, reason: seal_into(reason, &self.source, &mut sealed)? };
        Ok(Decided::of(vec![Draft { sealed, ..self.draft(body) }]))
    }
}
