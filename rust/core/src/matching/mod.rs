//! Which recorded call a replayed call is. Pure: the journal's calls and what agent code asks for go in,
//! one [`Match`] comes out; who drives it runs, serves, parks or stops accordingly.
//!
//! Calls with arguments match by content, the rest by their place in a lane, and a key beats both. A write
//! that was not recorded never runs while a recorded one is unaccounted for: either it is that write, made
//! differently, or the code has changed; both are for a person to decide.

mod commit;
mod delivery;
mod player;

use std::collections::{BTreeMap, BTreeSet};

pub use commit::commit_rest;
pub use delivery::{Calm, Delivery};
pub use player::Player;

use crate::content::CallDigest;
use crate::ids::{CallId, StepId};
use crate::mutants::{Mutant, mutant};
use crate::records::{By, CallKind, CallSketch, EffectClass, Key, Name, ReplayDiverged, StepKind, Text};
use crate::state::{Call, CallPhase, Outcome, RunState};

/// What agent code asks for.
#[derive(Debug, Clone, PartialEq)]
pub struct Asked {
    pub digest: CallDigest,
    pub effect: EffectClass,
    pub key: Option<Key>,
    pub kind: CallKind,
    pub lane: Name,
    pub name: Name,
}

/// What to do with a recorded call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Then {
    /// Give the recorded outcome back.
    Serve,
    /// Run it again: the same call, the same key.
    RunAgain,
    /// Ask hooks, policy and approvers again.
    AskAgain,
    /// It was opened and not sent off: go on with it.
    GoOn,
    /// It was sent off and nobody knows: resolve the doubt.
    Resolve,
}

/// What a call is.
#[derive(Debug, Clone, PartialEq)]
pub enum Match {
    Recorded(CallId, Then),
    /// Its only match lies in another lane: ask again when the step is quiet.
    WhenQuiet,
    /// It was not recorded, and may run.
    New,
    /// It was not recorded, and recorded writes are unaccounted for: it waits.
    Parked,
    /// The key was used with other arguments.
    Conflict(CallId),
    /// The key is held by a call that is being made now: its outcome serves both.
    Busy(CallId),
    /// In an attached step every call needs a key.
    KeyNeeded,
    Diverged(Box<ReplayDiverged>),
}

/// What matching must know of a recorded call.
#[derive(Debug, Clone)]
struct Known {
    asked: Asked,
    id: CallId,
    outcome: Option<Outcome>,
    phase: CallPhase,
    rerun: bool,
}

impl Known {
    fn of(call: &Call) -> Self {
        let asked = Asked {
            digest: call.digest,
            effect: call.effect,
            key: call.key.clone(),
            kind: call.kind,
            lane: call.lane.clone(),
            name: call.name.clone(),
        };
        Self { asked, id: call.id, outcome: call.outcome, phase: call.phase, rerun: call.rerun }
    }

    fn acts(&self) -> bool {
        self.asked.kind.acts(self.asked.effect)
    }

    fn sketch(&self) -> CallSketch {
        CallSketch { call: Some(self.id), ..sketch(&self.asked) }
    }
}

fn sketch(asked: &Asked) -> CallSketch {
    CallSketch {
        call: None,
        call_digest: asked.digest,
        effect: asked.effect,
        kind: asked.kind,
        lane: asked.lane.clone(),
        name: asked.name.clone(),
    }
}

/// One replay of one step.
#[derive(Debug, Clone)]
pub struct Matcher {
    calls: BTreeMap<CallId, Known>,
    /// Which call of the run holds a key.
    keys: BTreeMap<Key, CallId>,
    /// The step's calls, in the order in which they were opened.
    order: Vec<CallId>,
    claimed: BTreeSet<CallId>,
    places: BTreeMap<(Name, CallKind), usize>,
    attached: bool,
}

impl Matcher {
    /// Begins a replay of a step.
    pub fn new(run: &RunState, step: StepId) -> Self {
        Self {
            calls: run.calls.values().map(|call| (call.id, Known::of(call))).collect(),
            keys: run.calls.values().filter_map(|call| Some((call.key.clone()?, call.id))).collect(),
            order: run.calls_of(step).iter().map(|call| call.id).collect(),
            claimed: BTreeSet::new(),
            places: BTreeMap::new(),
            attached: run.steps.get(&step).is_some_and(|step| step.kind == StepKind::Attached),
        }
    }

    /// Says what a call is, and claims it if it is a recorded one.
    pub fn ask(&mut self, asked: &Asked, quiet: bool) -> Match {
        if let Some(key) = &asked.key {
            return self.by_key(asked, key);
        }
        if self.attached {
            return Match::KeyNeeded;
        }
        let found = match asked.kind.matched_by() {
            By::Content => self.by_content(asked, quiet),
            By::Place => self.by_place(asked),
        };
        match found {
            Found::Call(id) => self.claim(id),
            Found::Elsewhere => Match::WhenQuiet,
            Found::Other => {
                let why = "another call was recorded at this place";
                Match::Diverged(Box::new(self.divergence(Some(asked), why)))
            }
            Found::Nothing => self.not_recorded(asked),
        }
    }

    fn claim(&mut self, id: CallId) -> Match {
        self.claimed.insert(id);
        Match::Recorded(id, self.calls.get(&id).map_or(Then::GoOn, then))
    }

    /// A key is the caller's own identity, in the whole run.
    fn by_key(&mut self, asked: &Asked, key: &Key) -> Match {
        let holder = self.keys.get(key).and_then(|id| self.calls.get(id)).cloned();
        match holder {
            None => self.not_recorded(asked),
            // Given up before anything came of it: the key is free again.
            Some(call) if call.phase == CallPhase::Abandoned && (call.outcome.is_none() || call.rerun) => {
                self.not_recorded(asked)
            }
            Some(call) if !same_call(&call.asked, asked) => Match::Conflict(call.id),
            Some(call) if self.is_busy(&call) => Match::Busy(call.id),
            Some(call) => self.claim(call.id),
        }
    }

    /// Unsettled, and in the hands of this attempt or of another step.
    fn is_busy(&self, call: &Known) -> bool {
        let settled = matches!(call.phase, CallPhase::Settled | CallPhase::Abandoned);
        !settled && (self.claimed.contains(&call.id) || !self.order.contains(&call.id))
    }

    /// A call that this attempt has opened: from now on it is one of the recorded ones, and claimed.
    pub fn opened(&mut self, id: CallId, asked: Asked) {
        self.claimed.insert(id);
        self.order.push(id);
        self.keys.extend(asked.key.clone().map(|key| (key, id)));
        self.calls.insert(id, Known { asked, id, outcome: None, phase: CallPhase::Open, rerun: false });
    }

    /// A call of this attempt has ended: whoever asks for it by its key is served.
    pub fn settled(&mut self, id: CallId) {
        if let Some(call) = self.calls.get_mut(&id) {
            (call.phase, call.rerun) = (CallPhase::Settled, false);
        }
    }

    fn by_content(&self, asked: &Asked, quiet: bool) -> Found {
        let same = |call: &&Known| same_call(&call.asked, asked) && call.asked.key.is_none();
        let mut candidates = self.unclaimed().filter(same).peekable();
        match candidates.peek().map(|call| call.id) {
            None => Found::Nothing,
            Some(first) => match candidates.find(|call| call.asked.lane == asked.lane) {
                Some(own) => Found::Call(own.id),
                None if quiet || mutant(Mutant::CrossLaneAtOnce) => Found::Call(first),
                None => Found::Elsewhere,
            },
        }
    }

    fn by_place(&mut self, asked: &Asked) -> Found {
        let place = self.places.entry((asked.lane.clone(), asked.kind)).or_insert(0);
        let n = *place;
        *place += 1;
        let same = |call: &&Known| {
            let known = &call.asked;
            known.lane == asked.lane && known.kind == asked.kind && known.key.is_none()
        };
        let calls = self.order.iter().filter_map(|id| self.calls.get(id));
        match calls.filter(same).nth(n) {
            None => Found::Nothing,
            Some(call) if call.asked.name == asked.name => Found::Call(call.id),
            Some(_) => Found::Other,
        }
    }

    /// The step's recorded calls that nobody has asked for yet.
    fn unclaimed(&self) -> impl Iterator<Item = &Known> {
        let calls =
            self.order.iter().filter(|id| !self.claimed.contains(id)).filter_map(|id| self.calls.get(id));
        calls.filter(|call| call.phase != CallPhase::Abandoned)
    }

    /// The first of them.
    pub fn first_unclaimed(&self) -> Option<CallId> {
        self.unclaimed().next().map(|call| call.id)
    }

    fn unclaimed_writes(&self) -> impl Iterator<Item = &Known> {
        self.unclaimed().filter(|call| call.acts())
    }

    fn not_recorded(&self, asked: &Asked) -> Match {
        if !asked.kind.acts(asked.effect) || mutant(Mutant::NeverPark) {
            return Match::New;
        }
        if self.unclaimed_writes().any(|call| call.asked.lane == asked.lane) {
            return Match::Diverged(Box::new(
                self.divergence(Some(asked), "another write was recorded in this lane"),
            ));
        }
        if self.unclaimed_writes().next().is_some() { Match::Parked } else { Match::New }
    }

    /// Everything is parked or waiting, nothing runs, and it has been quiet for the grace: the code no
    /// longer makes what was recorded.
    pub fn stuck(&self, parked: &Asked) -> ReplayDiverged {
        self.divergence(Some(parked), "a new write, while recorded writes were never made again")
    }

    /// At the end of the step's code: recorded writes that it did not make.
    pub fn end(&self) -> Option<ReplayDiverged> {
        let missing = self.unclaimed_writes().next().is_some() && !mutant(Mutant::EndUnclaimed);
        missing.then(|| self.divergence(None, "the code ended without making recorded writes"))
    }

    /// Recorded calls of the step that were not asked for: what `accept` abandons.
    pub fn missing(&self) -> Vec<CallId> {
        self.unclaimed_writes().map(|call| call.id).collect()
    }

    fn divergence(&self, asked: Option<&Asked>, why: &str) -> ReplayDiverged {
        ReplayDiverged {
            attempted: asked.map(sketch),
            recorded: self.unclaimed_writes().map(Known::sketch).collect(),
            why: Text::new(why).unwrap_or_else(Text::empty),
        }
    }
}

/// Whether a recorded call is what is asked for.
fn same_call(call: &Asked, asked: &Asked) -> bool {
    call.kind == asked.kind && call.name == asked.name && call.digest.is(&asked.digest)
}

enum Found {
    Call(CallId),
    /// At its place stands something else.
    Other,
    Elsewhere,
    Nothing,
}

fn then(call: &Known) -> Then {
    match (call.phase, call.asked.effect) {
        (CallPhase::Settled, _) if !call.rerun => Then::Serve,
        (CallPhase::Settled, _) if call.outcome == Some(Outcome::DeniedByRule) => Then::AskAgain,
        (CallPhase::Settled, _)
        | (CallPhase::Started, EffectClass::Pure | EffectClass::Read | EffectClass::Internal) => {
            Then::RunAgain
        }
        (CallPhase::Abandoned, _) if call.outcome.is_some() => Then::Serve,
        (CallPhase::Open | CallPhase::Abandoned, _) => Then::GoOn,
        (CallPhase::Started, EffectClass::Write) if mutant(Mutant::RepeatStartedWrite) => Then::RunAgain,
        (CallPhase::Started | CallPhase::Doubted, _) => Then::Resolve,
    }
}
