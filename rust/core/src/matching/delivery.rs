//! In which order outcomes reach agent code: the order of the journal, live and in replay, one at a time.
//! In replay a recorded outcome waits until every earlier one was delivered, and new ones wait until all
//! recorded ones were.

use std::collections::{BTreeMap, BTreeSet};

use crate::ids::{CallId, StepId};
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

/// A recorded outcome's place.
#[derive(Debug, Clone, Copy)]
struct Place {
    call: CallId,
    /// It runs again: the place is kept for its new outcome.
    rerun: bool,
}

/// The outcomes of one replay of a step, and which of them agent code has.
#[derive(Debug, Clone, Default)]
pub struct Delivery {
    /// Recorded outcomes by position; what was delivered is taken out.
    recorded: BTreeMap<u64, Place>,
    /// Outcomes that hold up nobody: passed over, no longer awaited, or of another step.
    loose: BTreeSet<CallId>,
    /// Awaits that were cancelled when recorded: position, call, after how long.
    cancelled: BTreeMap<u64, (CallId, u64)>,
}

impl Delivery {
    pub fn new(run: &RunState, step: StepId) -> Self {
        let mut delivery = Self::default();
        for call in run.calls_of(step) {
            if let (Some(at), CallPhase::Settled) = (call.outcome_at, call.phase) {
                delivery.recorded.insert(at, Place { call: call.id, rerun: call.rerun });
            }
            if let Some((at, elapsed)) = call.await_cancelled {
                delivery.cancelled.insert(at, (call.id, elapsed));
            }
        }
        delivery
    }

    /// Whether there is a recorded outcome or cancellation that has yet to come.
    pub fn is_pending(&self) -> bool {
        !self.recorded.is_empty() || !self.cancelled.is_empty()
    }

    /// The awaits whose cancellation is still outstanding, with their recorded time: what was recorded
    /// after them waits until [`Delivery::lift`], at most that time plus the grace.
    pub fn outstanding(&self) -> Option<(CallId, u64)> {
        self.cancelled.values().next().copied()
    }

    /// Whether a recorded outcome has yet to be delivered at its place.
    pub fn has_place(&self, call: CallId) -> bool {
        self.recorded.values().any(|place| place.call == call)
    }

    /// After how long the await of a call was cancelled when it was recorded, if that has not come again.
    pub fn cancelled(&self, call: CallId) -> Option<u64> {
        self.cancelled.values().find(|(cancelled, _)| *cancelled == call).map(|(_, elapsed)| *elapsed)
    }

    /// The await was cancelled again, or its time is over: nobody need wait for its outcome any more.
    pub fn lift(&mut self, call: CallId) {
        self.cancelled.retain(|_, (cancelled, _)| *cancelled != call);
        if self.recorded.values().any(|place| place.call == call && !place.rerun) {
            self.loosen(call);
        }
    }

    /// An outcome that is served and has no place in this step: one of another step, found by its key.
    pub fn loosen(&mut self, call: CallId) {
        self.recorded.retain(|_, place| place.call != call);
        self.loose.insert(call);
    }

    /// The outcome that agent code gets next, if one may go now: among the recorded ones that are
    /// `awaited`, or the first of the `fresh` ones, in the order in which they were recorded.
    pub fn next(&mut self, awaited: &BTreeSet<CallId>, fresh: &[CallId], calm: Calm) -> Option<CallId> {
        if let Some(call) = self.loose.intersection(awaited).next().copied() {
            self.loose.remove(&call);
            return Some(call);
        }
        let ready = |place: &Place| {
            if place.rerun { fresh.contains(&place.call) } else { awaited.contains(&place.call) }
        };
        let barrier = self.cancelled.keys().next().copied().unwrap_or(u64::MAX);
        let mut open = self.recorded.range(..barrier);
        let due = if mutant(Mutant::AnyOrder) || calm == Calm::Still {
            open.find(|(_, place)| ready(place))
        } else {
            open.next().filter(|(_, place)| ready(place))
        };
        match due.map(|(at, place)| (*at, place.call)) {
            Some((at, call)) => self.deliver(at, call, fresh, calm),
            None => self.next_fresh(fresh, calm),
        }
    }

    fn deliver(&mut self, at: u64, call: CallId, fresh: &[CallId], calm: Calm) -> Option<CallId> {
        // With a single outcome in sight there is nothing to put in order.
        let alone = self.recorded.len() == 1 && fresh.iter().all(|other| *other == call);
        if calm == Calm::Busy && !alone {
            return None;
        }
        // What was passed over holds up nobody again.
        let passed: Vec<CallId> = self.recorded.range(..at).map(|(_, place)| place.call).collect();
        for call in passed {
            self.loosen(call);
        }
        self.recorded.remove(&at);
        Some(call)
    }

    fn next_fresh(&mut self, fresh: &[CallId], calm: Calm) -> Option<CallId> {
        let all_delivered = self.recorded.is_empty() && self.cancelled.is_empty();
        let may_go = all_delivered || calm == Calm::Still || mutant(Mutant::AnyOrder);
        let alone = fresh.len() == 1 && all_delivered;
        let call = fresh.first().copied().filter(|_| may_go && (calm != Calm::Busy || alone))?;
        if !all_delivered {
            let passed: Vec<CallId> = self.recorded.values().map(|place| place.call).collect();
            for call in passed {
                self.loosen(call);
            }
        }
        Some(call)
    }
}
