//! One replay of one step, as whoever drives it sees it: what a call is, which outcome agent code gets next, and
//! whether the end is one. Agent code, its tasks and its clock are the driver's; every decision is here.

use std::collections::{BTreeMap, BTreeSet};

use super::{Asked, Calm, Delivery, Match, Matcher, Then};
use crate::ids::{CallId, StepId};
use crate::mutants::{Mutant, mutant};
use crate::records::{CallKind, ReplayDiverged};
use crate::state::RunState;

/// A replay: the matcher, the order of outcomes, and what was asked for and is not opened yet.
#[derive(Debug)]
pub struct Player {
    matcher: Matcher,
    delivery: Delivery,
    asked: BTreeMap<CallId, Asked>,
    fires_at: BTreeMap<CallId, u64>,
    /// Where the recorded calls were opened.
    opened_at: BTreeMap<CallId, u64>,
    /// Where timers fired: not by the code, so that nothing says that it had come so far.
    fired_at: BTreeMap<CallId, u64>,
}

impl Player {
    pub fn new(run: &RunState, step: StepId) -> Self {
        let calls = run.calls_of(step);
        Self {
            matcher: Matcher::new(run, step),
            delivery: Delivery::new(run, step),
            asked: BTreeMap::new(),
            fires_at: calls.iter().filter_map(|call| Some((call.id, call.fires_at?))).collect(),
            opened_at: calls.iter().map(|call| (call.id, call.opened)).collect(),
            fired_at: calls
                .iter()
                .filter(|call| call.kind == CallKind::Timer)
                .filter_map(|call| Some((call.id, call.outcome_at?)))
                .collect(),
        }
    }

    /// Says what a call is. A new one gets this id once it is [`Player::opened`].
    pub fn ask(&mut self, id: CallId, asked: Asked, quiet: bool) -> Match {
        let found = self.matcher.ask(&asked, quiet);
        if let Match::Recorded(recorded, Then::Serve) = found
            && !self.delivery.has_place(recorded)
        {
            self.delivery.loosen(recorded); // asked for once more under its key, or another step's: it holds up nobody
        }
        if found == Match::New {
            self.asked.insert(id, asked);
        }
        found
    }

    /// A new call stands in the journal.
    pub fn opened(&mut self, id: CallId) {
        if let Some(asked) = self.asked.remove(&id) {
            self.matcher.opened(id, asked);
        }
    }

    /// A call of this attempt has ended.
    pub fn settled(&mut self, id: CallId) {
        self.opened(id);
        self.matcher.settled(id);
    }

    /// When a recorded timer fires.
    pub fn fires_at(&self, id: CallId) -> Option<u64> {
        self.fires_at.get(&id).copied()
    }

    /// Whether a recorded outcome is still to be delivered, a cancelled await to be cancelled again, or a
    /// recorded call to be made again: no timer that had not fired by then fires before that.
    pub fn replays(&self) -> bool {
        self.delivery.is_pending()
            || (self.matcher.first_unclaimed().is_some() && !mutant(Mutant::TimersOvertake))
    }

    /// The outcome that agent code gets next. A timer that fired while nobody was there waits until the code
    /// has made the calls that were recorded before; if it never does, [`Calm::Still`] lets it go.
    pub fn next(&mut self, awaited: &BTreeSet<CallId>, fresh: &[CallId], calm: Calm) -> Option<CallId> {
        if self.fired_at.is_empty() || calm == Calm::Still || mutant(Mutant::TimersOvertake) {
            return self.delivery.next(awaited, fresh, calm);
        }
        let unclaimed = self.matcher.first_unclaimed().and_then(|id| self.opened_at.get(&id)).copied();
        let early = |call: &CallId| {
            let fired = self.fired_at.get(call).zip(unclaimed);
            fired.is_some_and(|(fired, unclaimed)| unclaimed < *fired)
        };
        let awaited = awaited.iter().filter(|call| !early(call)).copied().collect();
        self.delivery.next(&awaited, fresh, calm)
    }

    /// After how long the await of a call was cancelled when it was recorded, if that has not come again.
    pub fn cancelled(&self, id: CallId) -> Option<u64> {
        self.delivery.cancelled(id)
    }

    /// The first of those.
    pub fn outstanding(&self) -> Option<(CallId, u64)> {
        self.delivery.outstanding()
    }

    pub fn lift(&mut self, id: CallId) {
        self.delivery.lift(id);
    }

    /// An outcome of another step, found by its key, has no place here.
    pub fn loosen(&mut self, id: CallId) {
        self.delivery.loosen(id);
    }

    /// A parked call that will never be made: what diverged.
    pub fn stuck(&self, asked: &Asked) -> ReplayDiverged {
        self.matcher.stuck(asked)
    }

    /// What diverged, if the code has ended without making recorded writes.
    pub fn end(&self) -> Option<ReplayDiverged> {
        self.matcher.end()
    }
}
