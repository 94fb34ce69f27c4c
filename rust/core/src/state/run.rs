//! What a run is at any point of its journal. How each record changes it is in `run_apply.rs`.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::Illegal;
use super::calls::Call;
use super::capabilities::Capabilities;
use super::govern::{Approval, GrantState, Spending, add};
use super::steps::Step;
use crate::chain::Head;
use crate::content::{Content, Openings, open};
use crate::ids::{ApprovalId, CallId, EnvelopeId, GrantId, RunId, SessionId, StepId, StreamId};
use crate::records::{
    Amounts, Body, Budget, EndReason, EndStatus, Failure, Fence, ForkEffects, Key, Labels, Name, OnParentEnd,
    Package, Record, RunForked, RunMode, RunStatus, StepStatus,
};
use crate::transitions::RunPhase;

/// How a run ended, for now: a failed one may be retried.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct End {
    pub reason: EndReason,
    pub seq: u64,
    pub status: EndStatus,
}

/// Where a fork came from.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ForkOrigin {
    pub at: u64,
    pub depth: u32,
    pub effects: ForkEffects,
    pub parent: RunId,
}

/// A signal or a message that nobody has taken yet.
#[serde_with_macros::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Mail {
    pub from: Option<RunId>,
    /// Of a signal.
    pub name: Option<Name>,
    pub payload: Content,
    pub position: u64,
}

/// A child as its parent knows it.
#[serde_with_macros::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ChildState {
    pub call: Option<CallId>,
    pub ended: Option<EndStatus>,
    /// The position of the record that says so.
    pub ended_at: Option<u64>,
    pub failure: Option<Failure>,
    pub on_parent_end: OnParentEnd,
    pub result: Option<Content>,
}

impl ChildState {
    /// A child that failed can be retried, and then ends once more.
    pub(crate) fn may_end(&self) -> bool {
        matches!(self.ended, None | Some(EndStatus::Failed))
    }
}

/// The fold of a run's journal.
#[serde_with_macros::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunState {
    pub agent: Name,
    pub approvals: BTreeMap<ApprovalId, Approval>,
    /// When it began, if its time is limited.
    pub began_at: Option<u64>,
    /// How many records of its ancestors a fork begins with. Positions (of calls, outcomes, mail, causes)
    /// count these too, so that what is inherited comes before what is new.
    pub base: u64,
    pub budget: Option<Budget>,
    pub calls: BTreeMap<CallId, Call>,
    pub cancel_requested: bool,
    #[serde(default)]
    pub capabilities: Capabilities,
    /// How far the consumers of streams have come, by stream and consumer.
    #[serde(default)]
    pub checkpoints: BTreeMap<String, u64>,
    pub children: BTreeMap<RunId, ChildState>,
    pub deadline: Option<u64>,
    pub end: Option<End>,
    /// Received, so never received again.
    pub envelopes: BTreeSet<EnvelopeId>,
    /// Records after the end.
    pub evidence: u64,
    pub fork: Option<ForkOrigin>,
    pub grants: BTreeMap<GrantId, GrantState>,
    pub head: Head,
    pub id: RunId,
    pub input: Content,
    pub key: Option<Key>,
    /// Which call holds a key.
    #[serde(default)]
    pub keys: BTreeMap<Key, CallId>,
    pub labels: Labels,
    /// The highest fence that was ever given out here.
    pub last_fence: Option<Fence>,
    pub messages: Vec<Mail>,
    pub mode: RunMode,
    /// Written in part by a newer Holdfast: may be read, not changed.
    pub newer: bool,
    pub package: Package,
    pub parent: Option<RunId>,
    pub phase: RunPhase,
    pub priority: i32,
    pub role: Name,
    pub rules: u32,
    pub seed: Content,
    pub session: Option<SessionId>,
    /// Which call spent which grant of the session.
    #[serde(default)]
    pub session_spent: BTreeSet<(CallId, GrantId)>,
    pub signals: Vec<Mail>,
    pub spending: Spending,
    /// None once a patch of it was erased.
    pub state: Option<Value>,
    pub state_version: u64,
    pub steps: BTreeMap<StepId, Step>,
}

impl RunState {
    /// The fold of `run.created`.
    pub(super) fn created(record: &Record, head: Head, openings: &Openings) -> Result<Self, Illegal> {
        let (StreamId::Run(id), Body::RunCreated(created)) = (record.stream, &record.body) else {
            return Err(Illegal::new(record, "a run begins with run.created"));
        };
        if record.seq != 1 {
            return Err(Illegal::new(record, "a stream begins at 1"));
        }
        let state = open(&created.state, openings).ok().cloned();
        if state.as_ref().is_some_and(|state| !state.is_object()) {
            return Err(Illegal::new(record, "a state is an object"));
        }
        Ok(Self {
            agent: created.agent.clone(),
            approvals: BTreeMap::new(),
            began_at: limited(created.budget.as_ref(), record),
            base: 0,
            budget: created.budget.clone(),
            calls: BTreeMap::new(),
            cancel_requested: false,
            capabilities: Capabilities::new(created.restricted == Some(true)),
            checkpoints: BTreeMap::new(),
            children: BTreeMap::new(),
            deadline: created.deadline,
            end: None,
            envelopes: BTreeSet::new(),
            evidence: 0,
            fork: None,
            grants: BTreeMap::new(),
            head,
            id,
            input: created.input.clone(),
            key: created.key.clone(),
            keys: BTreeMap::new(),
            labels: created.labels.clone(),
            last_fence: None,
            messages: Vec::new(),
            mode: created.mode,
            newer: false,
            package: created.package.clone(),
            parent: created.parent,
            phase: RunPhase::Open,
            priority: created.priority,
            role: created.role.clone(),
            rules: created.rules,
            seed: created.seed.clone(),
            session: created.session,
            session_spent: BTreeSet::new(),
            signals: Vec::new(),
            spending: Spending::default(),
            state,
            state_version: 0,
            steps: BTreeMap::new(),
        })
    }

    /// The fold of `run.forked` over the parent's fold at the fork point. Grants, approvals,
    /// reservations, leases, open children and the account stay with the parent. A timer that is open at the cut
    /// is due when the parent's is, as any open call takes the parent's outcome: nobody would set it again.
    pub(super) fn forked(
        record: &Record,
        head: Head,
        forked: &RunForked,
        parent: &Self,
    ) -> Result<Self, Illegal> {
        let StreamId::Run(id) = record.stream else {
            return Err(Illegal::new(record, "a fork is a run"));
        };
        if parent.id != forked.parent || parent.head.seq != forked.at || parent.head.hash != forked.head {
            return Err(Illegal::new(record, "this is not the parent's fold at the fork point"));
        }
        let mut fork = parent.clone();
        fork.began_at = limited(parent.budget.as_ref(), record);
        fork.id = id;
        fork.base = parent.base + forked.at;
        fork.head = head;
        fork.fork = Some(ForkOrigin {
            at: forked.at,
            depth: forked.depth,
            effects: forked.effects,
            parent: forked.parent,
        });
        fork.labels = forked.labels.clone();
        fork.package = forked.package.clone();
        fork.parent = None;
        fork.key = None;
        fork.cancel_requested = false;
        fork.phase = RunPhase::Open;
        fork.approvals.clear();
        fork.grants.clear();
        fork.session_spent.clear();
        fork.children.retain(|_, child| child.ended.is_some());
        fork.spending = Spending::default();
        for step in fork.steps.values_mut().filter(|step| step.status != StepStatus::Completed) {
            step.status = StepStatus::Pending;
            step.failed_tries = 0;
            step.waits.clear();
            step.owner = None;
            step.not_before = None;
        }
        Ok(fork)
    }

    /// A record's place among all that the run has behind it.
    pub(super) fn position(&self, record: &Record) -> u64 {
        self.base + record.seq
    }

    /// The status that people see; it follows from phase and steps.
    pub fn status(&self) -> RunStatus {
        match self.phase {
            RunPhase::Paused => RunStatus::Paused,
            RunPhase::Completed => RunStatus::Completed,
            RunPhase::Failed => RunStatus::Failed,
            RunPhase::Cancelled => RunStatus::Cancelled,
            RunPhase::Open if self.last_fence.is_none() && !self.any(StepStatus::Waiting) => {
                RunStatus::Pending
            }
            RunPhase::Open if self.any(StepStatus::Waiting) && !self.can_go_on() => RunStatus::Waiting,
            RunPhase::Open => RunStatus::Running,
        }
    }

    fn any(&self, status: StepStatus) -> bool {
        self.steps.values().any(|step| step.status == status)
    }

    /// Whether a step runs or could be claimed without anybody's help.
    fn can_go_on(&self) -> bool {
        self.steps.values().any(|step| match step.status {
            StepStatus::Running | StepStatus::RetryScheduled => true,
            StepStatus::Pending => self.is_unblocked(step),
            StepStatus::Waiting | StepStatus::Completed | StepStatus::Failed | StepStatus::Cancelled => false,
        })
    }

    /// What its budget bounds.
    fn bounds(&self) -> Amounts {
        self.budget.as_ref().map_or_else(Amounts::default, |budget| Amounts {
            children: budget.children,
            tokens: budget.tokens,
            tool_calls: budget.tool_calls,
            usd_micros: budget.usd_micros,
        })
    }

    /// How much of each account it may use: its budget, and what people gave it since.
    pub fn limits(&self) -> Amounts {
        let mut limits = self.bounds();
        add(&mut limits, &self.spending.raised);
        limits
    }

    /// What is left of the budget when the run ends: what its parent gets back. What a person gave is not the
    /// parent's.
    pub fn left_over(&self) -> Amounts {
        self.left_of(&self.bounds())
    }

    fn left_of(&self, limits: &Amounts) -> Amounts {
        let left = |limit: Option<u64>, used: Option<u64>| {
            limit.map(|limit| limit.saturating_sub(used.unwrap_or(0)))
        };
        let used = self.spending.taken();
        Amounts {
            children: left(limits.children, used.children),
            tokens: left(limits.tokens, used.tokens),
            tool_calls: left(limits.tool_calls, used.tool_calls),
            usd_micros: left(limits.usd_micros, used.usd_micros),
        }
    }

    /// Whether the budget has room for amounts beside what is used, reserved and held by children.
    pub fn affords(&self, asked: &Amounts) -> bool {
        let left = self.left_of(&self.limits());
        let fits = |asked: Option<u64>, left: Option<u64>| left.is_none_or(|left| asked.unwrap_or(0) <= left);
        fits(asked.children, left.children)
            && fits(asked.tokens, left.tokens)
            && fits(asked.tool_calls, left.tool_calls)
            && fits(asked.usd_micros, left.usd_micros)
    }

    /// Whether it is a fork that does nothing again.
    pub fn serves(&self) -> bool {
        self.fork.as_ref().is_some_and(|fork| fork.effects == ForkEffects::Serve)
    }

    /// The writes by a tool that happened, or may have, here or where this is a fork of, in the order in which
    /// they were opened.
    pub fn performed(&self, tool: &Name) -> Vec<&Call> {
        let done = |call: &&Call| call.name == *tool && call.may_have_happened();
        let mut found: Vec<&Call> = self.calls.values().filter(done).collect();
        found.sort_by_key(|call| call.opened);
        found
    }

    /// Whether everything that a step comes after has completed.
    pub fn is_unblocked(&self, step: &Step) -> bool {
        step.after
            .iter()
            .all(|id| self.steps.get(id).is_some_and(|step| step.status == StepStatus::Completed))
    }

    /// The calls of a step in the order in which they were opened.
    pub fn calls_of(&self, step: StepId) -> Vec<&Call> {
        let mut calls: Vec<&Call> = self.calls.values().filter(|call| call.step == step).collect();
        calls.sort_by_key(|call| call.opened);
        calls
    }
}

/// When a run begins whose time is limited.
fn limited(budget: Option<&Budget>, record: &Record) -> Option<u64> {
    budget.and_then(|budget| budget.wall_ms).map(|_| record.at)
}
