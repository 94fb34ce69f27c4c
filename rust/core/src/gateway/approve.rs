//! What people say: votes, decisions, edits, revocations; and that they were told.

use super::Gate;
use crate::approval::{Shown, Unfit, may_vote, outcome};
use crate::contracts::approval::{ApprovalDecisionKind, ApprovalLifecycleStatus};
use crate::contracts::policy::Decision;
use crate::contracts::tool::ToolApproval;
use crate::ids::{ApprovalId, GrantId};
use crate::limits;
use crate::mutants::{Mutant, mutant};
use crate::policy::{self, About, Question};
use crate::records::{
    Actor, ActorType, ApprovalDecided, ApprovalDispatched, ApprovalEdited, ApprovalSuperseded, ApprovalVoted,
    Draft, GrantBound, GrantCreated, GrantRevoked, GrantScope, Key, Name, StepStatus, StepWoken,
    SupersedeReason, Token, WaitOn,
};
use crate::run::{Case, Claim, Decided, Payload, Refused, seal_into};
use crate::state::{Approval, ApprovalState, RunState, SessionState};

impl Case<'_> {
    /// One vote. A denial decides, and so does the last vote of a quorum: once, for good. A request that
    /// was made under another policy is asked anew instead.
    pub(crate) fn vote(
        &self,
        id: ApprovalId,
        vote: ApprovalDecisionKind,
        scope: Option<&GrantScope>,
        reason: Option<&Payload>,
    ) -> Result<Decided, Refused> {
        let run = self.open_run()?;
        let approval = run.approvals.get(&id).ok_or(Refused::NoSuchApproval)?;
        let active = self.policy();
        may_vote(approval, self.by, vote, &active.policy, self.now.wall_ms)
            .map_err(|unfit| self.unfit(unfit, approval))?;
        self.check_scope(vote, scope)?;
        if approval.requested.policy != active.digest {
            return Ok(self.superseded(run, (id, approval), SupersedeReason::PolicyChanged, Vec::new()));
        }
        let mut sealed = Vec::new();
        let told = seal_into(reason, &self.source, &mut sealed)?;
        let body = ApprovalVoted {
            approval: id,
            digest: approval.digest,
            reason: told.clone(),
            role: approval.requested.roles.first().cloned(),
            scope: scope.cloned(),
            vote,
        };
        let mut drafts = vec![Draft { call: approval.call, sealed, ..self.draft(body) }];
        let decision = outcome(approval, vote);
        let state = match decision {
            None => ApprovalState::Pending,
            Some(ApprovalDecisionKind::Denied) => ApprovalState::Denied,
            Some(ApprovalDecisionKind::Approved) => ApprovalState::Approved,
            Some(ApprovalDecisionKind::ApprovedForSession) => ApprovalState::ApprovedForSession,
        };
        if let Some(decision) = decision {
            self.decided(run, (id, approval), decision, told, &mut drafts);
        }
        let gate = Some(Gate::Voted { approval: id, state });
        let session = match (state, run.session) {
            (ApprovalState::ApprovedForSession, Some(session)) => {
                let scopes: Vec<&GrantScope> = approval.scopes.iter().chain(scope).collect();
                Some((session, Box::new(self.draft(self.session_grant((id, approval), &scopes)))))
            }
            _ => None,
        };
        Ok(Decided { gate, session, ..Decided::of(drafts) })
    }

    /// A vote for the session says what for; no other vote does.
    fn check_scope(&self, vote: ApprovalDecisionKind, scope: Option<&GrantScope>) -> Result<(), Refused> {
        let for_session = vote == ApprovalDecisionKind::ApprovedForSession;
        match scope {
            None if !for_session => return Ok(()),
            Some(scope) if for_session => {
                let timely = self.now.wall_ms < scope.expires_at
                    && scope.expires_at <= self.now.wall_ms.saturating_add(limits::HORIZON_MS);
                let used = (1..=limits::GRANT_USES_MAX).contains(&scope.uses);
                if timely && used && scope.constraints.len() <= limits::CONSTRAINTS_MAX {
                    return if self.view.session { Ok(()) } else { Err(Refused::NoSuchSession) };
                }
            }
            _ => {}
        }
        Err(Refused::BadScope)
    }

    /// What all who voted allow: every constraint holds, for the shortest time, the fewest uses.
    fn session_grant(&self, (id, approval): (ApprovalId, &Approval), scopes: &[&GrantScope]) -> GrantCreated {
        let requested = &approval.requested;
        let bound = GrantBound {
            policy: requested.policy,
            quorum: approval.quorum,
            roles: requested.roles.clone(),
            sandbox: requested.sandbox,
            schema: requested.schema,
            version: requested.version.clone(),
        };
        GrantCreated {
            approval: Some(id),
            bound: Some(bound),
            constraints: scopes.iter().flat_map(|scope| scope.constraints.clone()).collect(),
            digest: Some(approval.digest),
            expires_at: scopes.iter().map(|scope| scope.expires_at).min().unwrap_or(0),
            grant: self.source.grant_id(),
            tool: requested.tool.clone(),
            uses: scopes.iter().map(|scope| scope.uses).min().unwrap_or(0),
        }
    }

    /// An approver puts other arguments in the place of those that were shown. The request is over; the call
    /// goes through the rooms with them and is asked about anew, if it still has to be.
    pub(crate) fn edit(
        &self,
        id: ApprovalId,
        arguments: &Payload,
        reason: Option<&Payload>,
    ) -> Result<Decided, Refused> {
        let run = self.open_run()?;
        let approval = run.approvals.get(&id).ok_or(Refused::NoSuchApproval)?;
        let (active, approved) = (self.policy(), ApprovalDecisionKind::Approved);
        match may_vote(approval, self.by, approved, &active.policy, self.now.wall_ms) {
            Ok(()) | Err(Unfit::Twice) => {}
            Err(Unfit::NoRole) if mutant(Mutant::AnyEditor) => {}
            Err(unfit) => return Err(self.unfit(unfit, approval)),
        }
        if approval.requested.policy != active.digest {
            return Ok(self.superseded(run, (id, approval), SupersedeReason::PolicyChanged, Vec::new()));
        }
        if !arguments.value.is_object() {
            return Err(Refused::PatchNotObject);
        }
        if self.would_deny(run, approval, arguments) {
            return Err(Refused::EditDenied);
        }
        let made = arguments.seal(&self.source)?;
        let requested = &approval.requested;
        let shown = Shown {
            approval: id,
            arguments: &arguments.value,
            call: approval.call,
            expires_at: requested.expires_at,
            policy: requested.policy,
            run: run.id,
            sandbox: requested.sandbox,
            schema: requested.schema,
            tool: &requested.tool,
            version: requested.version.as_ref(),
        };
        let (digest, content) = (shown.digest()?, made.content.clone());
        let mut sealed = vec![made];
        let reason = seal_into(reason, &self.source, &mut sealed)?;
        let body = ApprovalEdited { approval: id, arguments: content, digest, reason };
        let draft = Draft { call: approval.call, sealed, ..self.draft(body) };
        Ok(self.superseded(run, (id, approval), SupersedeReason::Edited, vec![draft]))
    }

    /// Whether rules alone deny edited arguments; hooks and evaluators are asked when the call comes again.
    fn would_deny(&self, run: &RunState, approval: &Approval, arguments: &Payload) -> bool {
        let requested = &approval.requested;
        let mut question = Question {
            agent: &run.agent,
            arguments: &arguments.value,
            capability: None,
            evaluations: &[],
            guards: &[],
            labels: &run.labels,
            redact: &[],
            role: &run.role,
            sandbox: requested.sandbox,
            session: run.session,
            tool: About {
                approval: ToolApproval::Policy,
                effect: requested.effect,
                name: &requested.tool,
                risk: requested.risk,
            },
            wants_approval: None,
            wall_ms: self.now.wall_ms,
        };
        let redact = policy::redactions(self.policy(), &question);
        question.redact = &redact;
        let ruling = policy::decide(self.policy(), &question);
        // An obligation is judged where the sandbox is known.
        ruling.decided.decision == Decision::Deny && ruling.decided.errors.is_empty()
    }

    /// A dispatcher has told people, or could not. Whatever it says, nothing is released by it.
    pub(crate) fn people_told(
        &self,
        claim: &Claim,
        id: ApprovalId,
        dispatcher: &Name,
        status: ApprovalLifecycleStatus,
        reason_code: Option<&Token>,
    ) -> Result<Decided, Refused> {
        use ApprovalLifecycleStatus as Status;
        let run = self.open_run()?;
        let step = self.held(claim)?;
        let approval = run.approvals.get(&id).ok_or(Refused::NoSuchApproval)?;
        let told =
            matches!(status, Status::Dispatched | Status::DispatcherUnavailable | Status::RecoveryRequired);
        if !told || !approval.dispatched.contains_key(dispatcher) {
            return Err(Refused::NotRunning);
        }
        let reason_code = reason_code.cloned();
        let body = ApprovalDispatched { approval: id, dispatcher: dispatcher.clone(), reason_code, status };
        let draft = Draft { call: approval.call, ..self.step_draft(body, step, Some(claim.fence)) };
        let gate = Some(Gate::Voted { approval: id, state: approval.state });
        Ok(Decided { gate, ..Decided::of(vec![draft]) })
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

    fn superseded(
        &self,
        run: &RunState,
        (id, approval): (ApprovalId, &Approval),
        reason: SupersedeReason,
        mut drafts: Vec<Draft>,
    ) -> Decided {
        let body = ApprovalSuperseded { approval: id, by: None, reason };
        drafts.push(Draft { call: approval.call, ..self.draft(body) });
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
        let code = match decision {
            ApprovalDecisionKind::Denied => "approval.denied",
            ApprovalDecisionKind::Approved => "approval.approved",
            ApprovalDecisionKind::ApprovedForSession => "approval.approved_for_session",
        };
        let human = |id: &Name| Actor { id: id.clone(), r#type: ActorType::Human };
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
                bound: None,
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

/// Takes a session's grant back: what is spent already is not undone, what comes again under it is asked.
pub fn revoke_of_session(
    session: &SessionState,
    by: &Actor,
    grant: GrantId,
    reason: Option<crate::content::Sealed>,
) -> Result<Option<Draft>, Refused> {
    if by.r#type != ActorType::Human {
        return Err(Refused::NotAPerson);
    }
    match session.grants.get(&grant) {
        None => Err(Refused::NoSuchGrant),
        Some(found) if found.revoked => Ok(None),
        Some(_) => {
            let content = reason.as_ref().map(|sealed| sealed.content.clone());
            let sealed = reason.into_iter().collect();
            Ok(Some(Draft { sealed, ..Draft::new(GrantRevoked { grant, reason: content }, by.clone()) }))
        }
    }
}
