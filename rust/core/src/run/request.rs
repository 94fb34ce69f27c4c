//! What is asked of a run, what is known when it is decided, and what comes out.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::own::{Act, Opening};
use super::refused::Refused;
use crate::content::{Commit, Content, Openings, Sealed, seal};
use crate::contracts::approval::{ApprovalDecisionKind, ApprovalLifecycleStatus};
use crate::contracts::capability::{Constraint, Right};
use crate::contracts::hook::HookPoint;
use crate::entropy::{Entropy, Source};
use crate::gateway::{Entering, Gate, HeldOutcome, Report};
use crate::hooks::Invocation;
use crate::ids::{ApprovalId, CallId, CapabilityId, EnvelopeId, GrantId, RunId, SessionId, StepId, StreamId};
use crate::policy::ActivePolicy;
use crate::records::{
    Actor, Amounts, Budget, DivergenceDecision, DoubtCause, Draft, EndReason, EndStatus, Failure, Fence,
    ForkEffects, GrantScope, Key, Labels, Name, OnParentEnd, Package, PackageDecision, Privacy,
    ReleaseReason, ReplayDiverged, Resolution, RetryPolicy, RunMode, SandboxFinished, StepKind, Text, Token,
    Wait, WaitOn,
};
use crate::state::{GrantState, RunState};

/// One command by somebody.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Request {
    pub by: Actor,
    pub command: Command,
    /// Salts, ids and jitter are derived from it.
    pub entropy: Entropy,
}

/// A user's value on its way into the journal.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Payload {
    pub privacy: Privacy,
    pub value: Value,
}

impl Payload {
    pub(crate) fn seal(&self, source: &Source<'_>) -> Result<Sealed, Refused> {
        Ok(seal(self.value.clone(), source.salt(), self.privacy)?)
    }
}

/// Seals what may be absent; `sealed` collects what opens it.
pub(crate) fn seal_into(
    payload: Option<&Payload>,
    source: &Source<'_>,
    sealed: &mut Vec<Sealed>,
) -> Result<Option<Content>, Refused> {
    let Some(payload) = payload else { return Ok(None) };
    let made = payload.seal(source)?;
    let content = made.content.clone();
    sealed.push(made);
    Ok(Some(content))
}

/// A worker's right to act on a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Claim {
    pub fence: Fence,
    pub step: StepId,
}

/// The row of a lease. Renewals touch only this.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Lease {
    pub boot_id: String,
    pub expires_boot_ms: u64,
    pub fence: Fence,
    pub owner: Name,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LeaseChange {
    Set(StepId, Lease),
    Drop(StepId),
}

/// A call of another run that stands for one that comes: it holds the same key of the whole store, or a fork
/// came from its run.
#[derive(Debug, Clone, PartialEq)]
pub enum KeyHolder {
    /// It is another call than the one that comes: another tool, or other arguments.
    Other,
    /// What it was, or what came of it, was erased, or was never known.
    Forgotten,
    /// Nobody knows what came of it yet.
    Open,
    Settled {
        run: RunId,
        call: CallId,
        outcome: Box<HeldOutcome>,
    },
}

/// The stream's state and the shared rows that the command names, read in the same transaction.
#[derive(Debug, Default)]
pub struct View<'a> {
    pub state: Option<&'a RunState>,
    pub epoch: u32,
    pub leases: BTreeMap<StepId, Lease>,
    /// For `fork`: the parent's fold at the fork point.
    pub parent: Option<&'a RunState>,
    /// Workers whose processes are provably gone.
    pub gone: BTreeSet<Name>,
    /// Concurrency keys under which a step of another run is running.
    pub busy_keys: BTreeSet<Key>,
    /// Keys of the whole store that nobody holds without an outcome.
    pub settled_keys: BTreeSet<Key>,
    /// For `enter`: who holds the call's key of the whole store, if that is another run.
    pub key_holder: Option<KeyHolder>,
    /// The active policy; none if no policy was ever activated.
    pub policy: Option<std::sync::Arc<ActivePolicy>>,
    /// For `enter`: the value of the arguments that the recorded call would be sent off with.
    pub effective: Option<Value>,
    /// For `enter`: what an approver put in the place of the arguments, if one did.
    pub edited: Option<Value>,
    /// For `enter` and commands on capabilities: those that another run, from which they came or to which
    /// they went, says are revoked.
    pub revoked_elsewhere: BTreeSet<CapabilityId>,
    /// For `transfer`: whether the receiver is there and open.
    pub receiver_open: bool,
    /// The session of the run is there, and its grants: for `enter` and `vote`.
    pub session: bool,
    pub session_grants: Vec<SessionGrant>,
    /// For `enter` in a fork: the next call with the same arguments that the runs which it came from have
    /// sent off; [`KeyHolder::Forgotten`] if each of them was served here, or inherited. For the start of a
    /// child, which is never served: whether they have started such a one.
    pub done_before: Option<KeyHolder>,
    /// For `take`: the value of what came.
    pub came: Option<Value>,
    /// For `erase`: whether a fork of the run is open and still needs what it inherited.
    pub open_forks: bool,
}

/// A grant of a session, and how many calls have spent it.
#[derive(Debug, Clone, PartialEq)]
pub struct SessionGrant {
    pub grant: GrantState,
    pub id: GrantId,
    pub spent: u32,
}

/// A capability that a new run is given.
#[serde_with_macros::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NewCapability {
    pub constraints: Vec<Constraint>,
    pub expires_at: Option<u64>,
    pub rights: Vec<Right>,
    pub target: Key,
}

/// What a new run is.
#[serde_with_macros::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NewRun {
    pub agent: Name,
    pub budget: Option<Budget>,
    /// All that it holds; none: everything that its agent registered.
    pub capabilities: Option<Vec<NewCapability>>,
    pub deadline: Option<u64>,
    pub id: RunId,
    pub input: Payload,
    pub key: Option<Key>,
    pub labels: Labels,
    pub mode: RunMode,
    pub package: Package,
    pub parent: Option<RunId>,
    pub priority: i32,
    pub role: Name,
    pub session: Option<SessionId>,
    pub state: Payload,
}

/// What a new step is.
#[serde_with_macros::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NewStep {
    pub after: Vec<StepId>,
    pub concurrency_key: Option<Key>,
    pub id: StepId,
    pub input: Option<Payload>,
    pub kind: StepKind,
    pub name: Name,
    pub not_before: Option<u64>,
    pub queue: Name,
    pub retry: RetryPolicy,
    pub timeout_ms: Option<u64>,
}

/// What one run sends to another.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Envelope {
    pub body: EnvelopeBody,
    pub from: StreamId,
    pub id: EnvelopeId,
    pub to: RunId,
}

#[serde_with_macros::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum EnvelopeBody {
    Message {
        content: Payload,
        correlation: Option<Key>,
        reply_to: Option<EnvelopeId>,
    },
    Signal {
        name: Name,
        payload: Payload,
    },
    Cancel {},
    ChildEnded {
        /// Without its message, which stays with the child.
        failure: Option<Failure>,
        reason: EndReason,
        result: Option<Payload>,
        returned: Amounts,
        status: EndStatus,
    },
    /// With every restriction of what it was made of.
    Capability {
        capability: CapabilityId,
        constraints: Vec<Constraint>,
        expires_at: Option<u64>,
        rights: Vec<Right>,
        target: Key,
    },
    CapabilityRevoked {
        capability: CapabilityId,
    },
}

/// What can be asked of a run.
#[serde_with_macros::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "command", rename_all = "snake_case", deny_unknown_fields)]
pub enum Command {
    Create {
        run: Box<NewRun>,
        steps: Vec<NewStep>,
    },
    /// `run` is the new run; the parent's fold at the fork point is in the view.
    Fork {
        run: RunId,
        labels: Labels,
        package: Package,
        effects: ForkEffects,
        reason: Option<Payload>,
    },

    Claim {
        step: StepId,
        worker: Name,
        lease_ms: u64,
        package: Package,
        strict: bool,
    },
    Heartbeat {
        claim: Claim,
        lease_ms: u64,
    },
    Release {
        claim: Claim,
        reason: ReleaseReason,
    },
    /// Takes a step back whose lease has run out or whose owner is gone.
    Recover {
        step: StepId,
    },

    Patch {
        claim: Claim,
        patch: Payload,
        expected_version: u64,
        call: Option<CallId>,
    },
    Wait {
        claim: Claim,
        waits: Vec<Wait>,
    },
    /// The attempt failed: another is scheduled, or the step and its run fail.
    Fail {
        claim: Claim,
        failure: Failure,
        message: Option<Payload>,
        ended_by: Vec<CallId>,
    },
    Complete {
        claim: Claim,
        /// The version that the patch is for; none: whatever it is.
        expected_version: Option<u64>,
        result: Option<Payload>,
        patch: Option<Payload>,
    },
    /// A call that its own frame does.
    Act {
        act: Box<Act>,
        call: Box<Opening>,
        claim: Claim,
    },
    /// What a call waited for has come.
    Take {
        call: CallId,
        claim: Claim,
    },
    /// Agent code has cancelled the await of a call.
    CancelAwait {
        call: CallId,
        claim: Claim,
        elapsed_ms: u64,
    },
    /// The step's code does something else than was recorded.
    Diverge {
        claim: Claim,
        divergence: Box<ReplayDiverged>,
    },
    /// The worker has stopped because the run is to be cancelled.
    ConfirmCancel {
        claim: Claim,
    },
    /// A call at the door of the gateway.
    Enter {
        claim: Claim,
        call: Box<Entering>,
    },
    /// The body of a dispatch has ended, and how is known.
    Settle {
        claim: Claim,
        call: CallId,
        dispatch: u32,
        report: Box<Report>,
    },
    /// The body of a write has ended or was given up, and nobody knows whether it happened.
    Doubt {
        claim: Claim,
        call: CallId,
        cause: DoubtCause,
        dispatch: u32,
        failure: Option<Failure>,
        message: Option<Payload>,
        /// The body has ended: it can no longer act.
        over: bool,
        /// How its sandbox ended, if it had one.
        sandbox: Option<SandboxFinished>,
    },
    /// What hooks say about a result.
    RuleResult {
        /// How often the tool may be tried, if a hook wants it once more.
        attempts: u32,
        claim: Claim,
        call: CallId,
        invocations: Vec<Invocation>,
    },
    /// What a worker that lost its lease knows about an effect that it had started.
    Late {
        claim: Claim,
        call: CallId,
        dispatch: u32,
        report: Box<Report>,
    },
    /// The end of a doubt: by the tool's own word under a claim, by a person without one.
    Resolve {
        claim: Option<Claim>,
        call: CallId,
        /// The one that was looked at.
        dispatch: u32,
        external_id: Option<Key>,
        /// Although the permit might still act.
        force: bool,
        reason: Option<Payload>,
        resolution: Resolution,
        result: Option<Payload>,
    },
    /// A write was undone by another call.
    Compensated {
        claim: Claim,
        by: CallId,
        call: CallId,
        reason: Option<Payload>,
    },
    /// A person's vote about a request for approval.
    Vote {
        approval: ApprovalId,
        reason: Option<Payload>,
        /// What a vote for the session would allow.
        scope: Option<GrantScope>,
        vote: ApprovalDecisionKind,
    },
    /// An approver puts other arguments in the place of those of a request.
    Edit {
        approval: ApprovalId,
        arguments: Payload,
        reason: Option<Payload>,
    },
    /// A dispatcher has told people of a request, or could not.
    Dispatched {
        approval: ApprovalId,
        claim: Claim,
        dispatcher: Name,
        reason_code: Option<Token>,
        status: ApprovalLifecycleStatus,
    },
    /// What the hooks of a point said that is about no call, or about its sandbox.
    RulePoint {
        call: Option<(CallId, u32)>,
        claim: Option<Claim>,
        invocations: Vec<Invocation>,
        point: HookPoint,
    },
    /// A capability that allows less than the one that it is made of.
    Attenuate {
        capability: CapabilityId,
        claim: Claim,
        constraints: Vec<Constraint>,
        expires_at: Option<u64>,
        parent: CapabilityId,
        rights: Vec<Right>,
    },
    /// A capability goes to another run, and is no longer held here.
    Transfer {
        capability: CapabilityId,
        claim: Claim,
        to: RunId,
    },
    /// A capability is taken back, and with it all that was made of it, wherever it is.
    RevokeCapability {
        capability: CapabilityId,
        claim: Option<Claim>,
        reason: Option<Payload>,
    },
    Revoke {
        grant: GrantId,
        reason: Option<Payload>,
    },
    /// The low-level door: notes, costs, artifacts, checkpoints and `x.*` only.
    Append {
        claim: Option<Claim>,
        entries: Vec<Entry>,
    },
    AddStep {
        call: Option<CallId>,
        claim: Option<Claim>,
        step: Box<NewStep>,
    },
    Spawn {
        call: Option<CallId>,
        claim: Claim,
        child: RunId,
        agent: Name,
        input: Payload,
        escrow: Amounts,
        on_parent_end: OnParentEnd,
    },
    Send {
        call: Option<CallId>,
        claim: Claim,
        to: RunId,
        content: Payload,
        correlation: Option<Key>,
        reply_to: Option<EnvelopeId>,
    },

    /// What the step waited for has come.
    Wake {
        step: StepId,
        on: WaitOn,
        subject: Option<Key>,
    },
    Signal {
        name: Name,
        payload: Payload,
    },
    Deliver {
        envelope: Box<Envelope>,
    },

    Cancel {
        reason: Option<Payload>,
    },
    /// At once, without asking the worker: killed, deadline, quota, shutdown.
    End {
        reason: EndReason,
    },
    Pause {
        reason: Option<Payload>,
    },
    Unpause {
        reason: Option<Payload>,
    },
    /// A person lets steps go on that waited on `restored`, `interrupted` or `budget`.
    Resume {
        package: Package,
        reason: Option<Payload>,
    },
    /// A person gives a run more than its budget; steps that waited on `budget` go on.
    Raise {
        amounts: Amounts,
        reason: Option<Payload>,
    },
    /// The store came back from a backup: what happened after it is unknown here, so every open step
    /// waits until a person has looked.
    Restored {},
    /// These contents are erased; only of a run that has ended, and that no open fork needs.
    Erase {
        commits: Vec<Commit>,
        reason: Option<Text>,
    },
    /// Opens a failed run again.
    RetryRun {
        reason: Option<Payload>,
    },
    DecideDivergence {
        step: StepId,
        decision: DivergenceDecision,
        unclaimed: Vec<CallId>,
        reason: Option<Payload>,
    },
    DecidePackage {
        step: StepId,
        decision: PackageDecision,
        package: Package,
        reason: Option<Payload>,
    },
}

/// One entry of the low-level door: the body with plain values where the kind has contents.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Entry {
    /// Positions whose contents are kept already: blobs, by what the record will hold. The store has
    /// checked that they are there.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub blobs: BTreeMap<String, Content>,
    pub body: Value,
    pub kind: String,
    pub privacy: Privacy,
}

/// What a decision changes.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Decided {
    pub drafts: Vec<Draft>,
    pub lease: Option<LeaseChange>,
    pub envelopes: Vec<Envelope>,
    /// What a call at the door is told.
    pub gate: Option<Gate>,
    /// A grant that goes into the session's stream, in the same turn.
    pub session: Option<(SessionId, Box<Draft>)>,
}

impl Decided {
    /// Nothing to write, and something to tell.
    pub(crate) fn gate(gate: Gate) -> Self {
        Self { gate: Some(gate), ..Self::default() }
    }

    /// Nothing to write: it was so already.
    pub(crate) fn nothing() -> Self {
        Self::default()
    }

    pub(crate) fn of(drafts: Vec<Draft>) -> Self {
        Self { drafts, ..Self::default() }
    }

    /// What opens the contents of the drafts.
    pub fn openings(&self) -> Openings {
        let sealed = self.drafts.iter().flat_map(|draft| &draft.sealed);
        sealed.map(|sealed| (sealed.content.commit, sealed.opening.clone())).collect()
    }
}
