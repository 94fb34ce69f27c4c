//! The door that every call goes through. The rooms (hooks, policy, approval, budget, ledger) know nothing of
//! each other; here they are strung together, in one order, and what they say becomes one frame. Only the
//! engine commits it, and a permit is of use to nobody before it has.
//!
//! [`Passage`] drives one call: it says what to do next, and who does it says what came of it. Nothing of a
//! passage outlives its process; after a crash the journal alone says where the call stands, and the same
//! question put to the same journal gets the same answer.

mod approve;
mod dispatch;
mod enter;
mod passage;
mod points;
mod rooms;
mod settle;
mod shared;

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;

pub use approve::revoke_of_session;
pub use passage::{Answer, Ask, Passage};
pub use points::{At, PointAct, PointRuled, Round};
pub use shared::HeldOutcome;

use crate::content::CallDigest;
use crate::hooks::Invocation;
use crate::ids::{ApprovalId, CallId, CapabilityId};
use crate::ledger::{Permit, Tool};
use crate::policy::Evaluation;
use crate::records::{
    Amounts, CallKind, EffectStatus, Failure, Key, Name, SandboxFinished, SandboxGuard, SandboxTier, Wait,
};
use crate::run::Payload;
use crate::state::{ApprovalState, Call, CallPhase, Placed, RunState};

/// A call that wants to pass.
#[serde_with_macros::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Entering {
    /// As agent code gave them.
    pub arguments: Payload,
    /// The id that it gets if it is new.
    pub call: CallId,
    /// The capability that it uses, if the caller names one.
    pub capability: Option<CapabilityId>,
    /// There are hooks to ask after a person has decided; what they said, once they were asked.
    pub decision_hooks: bool,
    pub decision_ruled: Option<Vec<Invocation>>,
    pub digest: CallDigest,
    /// Who tells people of a request for approval.
    pub dispatchers: Vec<Name>,
    /// What the sandbox really enforces.
    pub guards: Vec<SandboxGuard>,
    /// The caller's own identity for it; in an attached step every call has one.
    pub key: Option<Key>,
    /// Its key is one of the whole store, and is kept for so long.
    pub key_shared_ms: Option<u64>,
    pub kind: CallKind,
    pub lane: Name,
    /// In a replayed step: the recorded call that it is.
    pub recorded: Option<CallId>,
    /// There are hooks that are to rule about its result.
    #[serde(default)]
    pub result_hooks: bool,
    /// What nobody on the way is shown of the arguments, beside what rules say.
    #[serde(default)]
    pub redact: Vec<Name>,
    /// What it may use of the budget.
    pub reserve: Amounts,
    /// What hooks and evaluators said; none if they were not asked.
    pub rooms: Option<Rooms>,
    /// Where its body would run.
    pub sandbox: SandboxTier,
    pub tool: Arc<Tool>,
}

/// What was said about a call on its way.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rooms {
    /// There are hooks to ask before a person is, and they were not asked yet.
    pub approval_hooks: bool,
    /// The request whose edited arguments these are based on; none: on the agent's own.
    pub based_on: Option<ApprovalId>,
    /// What an approver put in the place of the arguments is not what the tool takes: it is left out.
    pub edit_unfit: bool,
    /// The arguments after hooks.
    pub effective: Payload,
    pub evaluations: Vec<Evaluation>,
    pub invocations: Vec<Invocation>,
}

/// How a body ended.
#[serde_with_macros::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Report {
    pub elapsed_ms: u64,
    pub external_id: Option<Key>,
    pub failure: Option<Failure>,
    /// The message of the failure.
    pub message: Option<Payload>,
    pub output_error: Option<Failure>,
    pub result: Option<Payload>,
    /// How its sandbox ended, if it had one.
    pub sandbox: Option<SandboxFinished>,
    pub status: EffectStatus,
    /// There are hooks that are to rule about the result.
    pub unruled: bool,
    pub usage: Option<Amounts>,
}

/// What the door says.
#[serde_with_macros::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "gate", rename_all = "snake_case")]
pub enum Gate {
    /// Ask hooks and evaluators, then come again. Nothing was written.
    Rooms { edited: Option<Edited>, redact: Vec<Name> },
    /// Ask the hooks that come before a person is asked, then come again. Nothing was written.
    BeforeApproval { redact: Vec<Name> },
    /// It does nothing to the world and nobody had anything to say: run it. Nothing was written.
    Run { arguments: Value },
    /// Come again: what was written changes what there is to say.
    Again {},
    /// Run it, once.
    Permit { permit: Box<Permit>, redact: Vec<Name> },
    /// It has ended: its outcome is in the journal.
    Served { call: CallId },
    /// It has ended, and hooks are to rule about its result.
    RuleResult { call: CallId },
    /// Ask the tool whether it happened.
    Reconcile { permit: Box<Permit> },
    /// It cannot go on now.
    Wait { call: CallId, wait: Wait },
    /// A hook wants the run to fail.
    Stop { call: CallId, hook: Name },
    /// Have these tell people of a request; then it waits.
    Dispatch { approval: ApprovalId, call: CallId, dispatchers: Vec<Name>, wait: Wait },
    /// A person has decided: ask the hooks that come after that, then come again. Nothing was written.
    Decided { approval: ApprovalId, call: CallId },
    /// What the hooks of a point came to.
    Ruled { ruled: PointRuled },
    /// A vote was counted.
    Voted { approval: ApprovalId, state: ApprovalState },
}

/// What an approver put in the place of the arguments.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Edited {
    pub approval: ApprovalId,
    pub arguments: Value,
}

/// The call that is meant, if it was recorded.
fn recorded<'r>(run: &'r RunState, entering: &Entering) -> Option<&'r Call> {
    let id = match (&entering.key, entering.recorded) {
        (Some(key), _) => run.keys.get(key).copied(),
        // Its own id is in the journal once it was opened: it comes again after a doubt, or to be tried again.
        (None, recorded) => recorded.or(Some(entering.call)),
    };
    id.and_then(|id| run.calls.get(&id))
}

/// The newest request for approval about a call.
fn newest_approval(run: &RunState, call: CallId) -> Option<(ApprovalId, &crate::state::Approval)> {
    let about = run.approvals.iter().filter(|(_, approval)| approval.call == Some(call));
    about.max_by_key(|(_, approval)| approval.arguments.position).map(|(id, approval)| (*id, approval))
}

/// The newest request about a call whose arguments an approver has edited.
pub(crate) fn newest_edit(run: &RunState, call: CallId) -> Option<(ApprovalId, &crate::state::Approval)> {
    let edited = run.approvals.iter().filter(|(_, one)| one.call == Some(call) && one.edited);
    edited.max_by_key(|(_, approval)| approval.arguments.position).map(|(id, approval)| (*id, approval))
}

/// Where the arguments stand that an approver has put in the place of a recorded call's.
pub fn edited_arguments<'r>(run: &'r RunState, entering: &Entering) -> Option<&'r Placed> {
    let (_, approval) = newest_edit(run, recorded(run, entering)?.id)?;
    Some(&approval.arguments)
}

/// The same, if it may still let the call act: it is open, or granted and not spent.
fn unspent_approval<'r>(run: &'r RunState, call: &Call) -> Option<(ApprovalId, &'r crate::state::Approval)> {
    newest_approval(run, call.id).filter(|(id, approval)| match approval.state {
        ApprovalState::Pending => true,
        ApprovalState::Approved | ApprovalState::ApprovedForSession => {
            let own = |grant: &&crate::state::GrantState| grant.approval.is_some_and(|(of, _)| of == *id);
            run.grants.values().find(own).is_some_and(|grant| !grant.spent_by.contains(&call.id))
        }
        ApprovalState::Denied
        | ApprovalState::TimedOut
        | ApprovalState::Superseded
        | ApprovalState::Cancelled => false,
    })
}

/// The arguments that a recorded call would be sent off with: whoever decides needs their value.
pub fn recorded_arguments<'r>(run: &'r RunState, entering: &Entering) -> Option<&'r Placed> {
    let call = recorded(run, entering)?;
    match (call.phase, unspent_approval(run, call)) {
        (CallPhase::Open | CallPhase::Settled | CallPhase::Started, Some((_, approval))) => {
            Some(&approval.arguments)
        }
        (CallPhase::Abandoned, _) => None,
        _ => call.effective.as_ref(),
    }
}
