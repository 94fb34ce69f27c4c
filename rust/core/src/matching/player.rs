//! One replay of one step, as whoever drives it sees it: what a call is, which outcome agent code gets next, and
//! whether the end is one. Agent code, its tasks and its clock are the driver's; every decision is here.

use std::collections::{BTreeMap, BTreeSet};

use super::{Asked, Calm, Delivery, Match, Matcher, Then};
use crate::ids::{CallId, StepId};
use crate::records::{CallKind, ReplayDiverged};
use crate::state::{Outcome, RunState};

/// A replay: the matcher, the order of outcomes, and what was asked for and is not opened yet.
#[derive(Debug)]
pub struct Player {
    matcher: Matcher,
    delivery: Delivery,
    asked: BTreeMap<CallId, Asked>,
    fires_at: BTreeMap<CallId, u64>,
    fresh_after: Option<usize>,
}

impl Player {
    pub fn new(run: &RunState, step: StepId) -> Self {
        let calls = run.calls_of(step);
        let commits = || calls.iter().filter(|call| call.kind == CallKind::Commit);
        let conflict = commits().find(|call| call.rerun && call.outcome == Some(Outcome::Conflict));
        let before = |at: u64| {
            commits().filter(|call| call.opened < at && call.outcome == Some(Outcome::Succeeded)).count()
        };
        Self {
            matcher: Matcher::new(run, step),
            delivery: Delivery::new(run, step),
            asked: BTreeMap::new(),
            fires_at: calls.iter().filter_map(|call| Some((call.id, call.fires_at?))).collect(),
            fresh_after: conflict.map(|call| before(call.opened)),
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

    /// After a retry for a conflict: after how many commits the view is the fresh state.
    pub fn fresh_after(&self) -> Option<usize> {
        self.fresh_after
    }

    /// Whether a recorded outcome is still to be delivered, or a cancelled await to be cancelled again.
    pub fn replays(&self) -> bool {
        self.delivery.is_pending()
    }

    pub fn next(&mut self, awaited: &BTreeSet<CallId>, fresh: &[CallId], calm: Calm) -> Option<CallId> {
        self.delivery.next(awaited, fresh, calm)
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
