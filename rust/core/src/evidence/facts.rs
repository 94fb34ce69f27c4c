//! What a bundle claims about its run, in a form that a small program can compute again: the state, the calls
//! and what became of them, approvals, costs, and how it ended. Each is a plain tabulation of records, so that
//! the verifier inside a bundle, which shares no code with this, comes to the same.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::call::CallPhase;
use crate::ids::{ApprovalId, CallId, RunId, StepId};
use crate::records::{
    Amounts, Body, CallKind, EffectClass, EffectStatus, EndReason, EndStatus, Name, Record, RecordHash,
    Resolution, RunStatus, StepStatus,
};
use crate::state::{ApprovalState, RunState};

/// One line of the ledger.
#[serde_with_macros::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CallFacts {
    /// How often nobody knew what became of it.
    pub doubted: u64,
    pub effect: EffectClass,
    pub kind: CallKind,
    pub name: Name,
    /// The record that opened it.
    pub opened: u64,
    /// Where it stands.
    pub phase: Option<CallPhase>,
    /// The newest word about a doubt.
    pub resolved: Option<Resolution>,
    /// The run that did it under the same key of the store.
    pub served: Option<RunId>,
    /// The newest outcome.
    pub settled: Option<EffectStatus>,
    /// The records that sent it off.
    pub started: Vec<u64>,
}

/// How a run ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EndFacts {
    pub reason: EndReason,
    pub status: EndStatus,
}

/// What follows from a run's own records; the state also from those that a fork began with.
#[serde_with_macros::skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Facts {
    /// What became of each request.
    pub approvals: BTreeMap<ApprovalId, ApprovalState>,
    pub calls: BTreeMap<CallId, CallFacts>,
    /// Sums of what was recorded, by account.
    pub costs: BTreeMap<String, u64>,
    pub end: Option<EndFacts>,
    pub head: Option<RecordHash>,
    pub records: u64,
    /// None if a part of it was erased or is withheld.
    pub state: Option<Value>,
    pub state_version: u64,
    pub status: Option<RunStatus>,
    /// With those that a fork began with.
    pub steps: BTreeMap<StepId, StepStatus>,
}

impl Facts {
    /// One more record.
    pub fn add(&mut self, record: &Record) {
        self.records = record.seq;
        match &record.body {
            Body::CallOpened(opened) => {
                let facts = CallFacts {
                    doubted: 0,
                    effect: opened.effect,
                    kind: opened.kind,
                    name: opened.name.clone(),
                    opened: record.seq,
                    phase: None,
                    resolved: None,
                    served: None,
                    settled: None,
                    started: Vec::new(),
                };
                self.calls.extend(record.call.map(|call| (call, facts)));
            }
            Body::CallServed(served) => self.of(record, |call| {
                (call.served, call.settled) = (Some(served.by_run), Some(served.status));
            }),
            Body::EffectStarted(_) => self.of(record, |call| call.started.push(record.seq)),
            Body::EffectSettled(settled) => self.of(record, |call| call.settled = Some(settled.status)),
            Body::EffectDoubted(_) => self.of(record, |call| call.doubted += 1),
            Body::EffectResolved(word) => self.of(record, |call| call.resolved = Some(word.resolution)),
            Body::CostRecorded(cost) => self.cost(&cost.amounts),
            Body::RunFinished(end) => self.end = Some(EndFacts { reason: end.reason, status: end.status }),
            Body::RunRetried(_) => self.end = None,
            _ => {}
        }
    }

    fn of(&mut self, record: &Record, change: impl FnOnce(&mut CallFacts)) {
        if let Some(call) = record.call.and_then(|call| self.calls.get_mut(&call)) {
            change(call); // a call that a fork inherited has its line in the parent's
        }
    }

    fn cost(&mut self, amounts: &Amounts) {
        let parts = [
            ("children", amounts.children),
            ("tokens", amounts.tokens),
            ("tool_calls", amounts.tool_calls),
            ("usd_micros", amounts.usd_micros),
        ];
        for (account, amount) in parts {
            if let Some(amount) = amount {
                let sum = self.costs.entry(account.to_owned()).or_default();
                *sum = sum.saturating_add(amount);
            }
        }
    }

    /// The rest, from the fold.
    #[must_use]
    pub fn close(mut self, run: &RunState) -> Self {
        self.head = Some(run.head.hash);
        self.state.clone_from(&run.state);
        self.state_version = run.state_version;
        self.status = Some(run.status());
        self.approvals = run.approvals.iter().map(|(id, approval)| (*id, approval.state)).collect();
        self.steps = run.steps.iter().map(|(id, step)| (*id, step.status)).collect();
        for (id, call) in &mut self.calls {
            call.phase = run.calls.get(id).map(|known| known.phase);
        }
        self
    }
}
