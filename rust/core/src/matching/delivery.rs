//! In which order outcomes reach agent code: the order of the journal, live and in replay, one at a time.
//! In replay a recorded outcome waits until every earlier one was delivered, and new ones wait until all
//! recorded ones were.

use std::collections::{BTreeMap, BTreeSet};

use crate::ids::CallId;
use crate::mutants::{Mutant, mutant};
use crate::state::{CallPhase, RunState};

/// How quiet the step is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Calm {
    /// Agent code may still be about to ask for something.
    Busy,
    /// Nothing has moved for some turns of the loop.
    Quiet,
    /// Nothing of ours runs and it has been quiet for the whole grace: order gives way to progress.
    Still,
}

/// The outcomes of one replay of a step, and which of them agent code has.
#[derive(Debug, Clone, Default)]
pub struct Delivery {
    /// Recorded outcomes that are served, by seq; what was delivered is taken out.
    recorded: BTreeMap<u64, CallId>,
    /// Awaits that were cancelled when recorded: seq, call, after how long.
    cancelled: BTreeMap<u64, (CallId, u64)>,
}

impl Delivery {
    pub fn new(run: &RunState, step: crate::ids::StepId) -> Self {
        let mut delivery = Self::default();
        for call in run.calls_of(step) {
            if let (Some(seq), CallPhase::Settled, false) = (call.outcome_seq, call.phase, call.rerun) {
                delivery.recorded.insert(seq, call.id);
            }
            if let Some((seq, elapsed)) = call.await_cancelled {
                delivery.cancelled.insert(seq, (call.id, elapsed));
            }
        }
        delivery
    }

    /// The awaits whose cancellation is still outstanding, with their recorded time: what was recorded
    /// after them waits until [`Delivery::lift`], at most that time plus the grace.
    pub fn outstanding(&self) -> Option<(CallId, u64)> {
        self.cancelled.values().next().copied()
    }

    /// The await was cancelled again, or its time is over.
    pub fn lift(&mut self, call: CallId) {
        self.cancelled.retain(|_, (cancelled, _)| *cancelled != call);
    }

    /// The outcome that agent code gets next, if one may go now: among the recorded ones that are
    /// `awaited`, or the first of the `fresh` ones.
    pub fn next(&mut self, awaited: &BTreeSet<CallId>, fresh: &[CallId], calm: Calm) -> Option<CallId> {
        let barrier = self.cancelled.keys().next().copied().unwrap_or(u64::MAX);
        let mut open = self.recorded.range(..barrier);
        let due = if mutant(Mutant::AnyOrder) || calm == Calm::Still {
            open.find(|(_, call)| awaited.contains(call))
        } else {
            open.next().filter(|(_, call)| awaited.contains(call))
        };
        if let Some((seq, call)) = due.map(|(seq, call)| (*seq, *call)) {
            // With a single outcome in sight there is nothing to put in order.
            let alone = self.recorded.len() == 1 && fresh.is_empty();
            if calm == Calm::Busy && !alone {
                return None;
            }
            self.recorded.remove(&seq);
            return Some(call);
        }
        let all_delivered = self.recorded.is_empty() && self.cancelled.is_empty();
        let may_go = all_delivered || calm == Calm::Still || mutant(Mutant::AnyOrder);
        let alone = fresh.len() == 1 && all_delivered;
        fresh.first().copied().filter(|_| may_go && (calm != Calm::Busy || alone))
    }
}
