//! What the replay of a step needs of a store: its player, the state that its code begins with, and how its
//! recorded calls ended.

use holdfast_core::content::Seed;
use holdfast_core::gateway::Gate;
use holdfast_core::ids::{CallId, RunId, StepId, StreamId};
use holdfast_core::matching::Player;
use holdfast_core::records::{Body, CallKind, Record, RunStatus};
use holdfast_core::run::Refused;
use holdfast_core::state::{Outcome, RunState};
use serde_json::Value;

use super::desk::Desk;
use super::gateway::{Served, place, value_at};
use super::{Durability, Engine, load};
use crate::error::{Result, StoreError};

/// A replay that is about to begin.
#[derive(Debug)]
pub struct Replay {
    pub player: Player,
    /// What the calls of the run are known by; none if it is lost.
    pub seed: Option<Seed>,
    /// The state that the step saw at its first claim, and its version.
    pub state: Option<Value>,
    pub version: u64,
    /// The version after the step's own newest commit.
    pub committed: u64,
    /// Where it goes on with another state, after a conflict.
    pub fresh: Vec<Fresh>,
}

/// The state as a try that followed a conflict saw it.
#[derive(Debug)]
pub struct Fresh {
    /// After how many commits of the step.
    pub after: u64,
    pub state: Option<Value>,
    pub version: u64,
}

/// What a recorded commit did.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct Committed {
    /// None if it was erased, or if the commit was a conflict.
    pub patch: Option<Value>,
    /// The version of the state after it.
    pub version: u64,
}

impl Engine {
    /// Begins the replay of a step that nobody has claimed for it.
    pub fn replay(&self, run: RunId, step: StepId) -> Result<Replay> {
        self.run(Durability::Commit, false, move |desk| {
            desk.state(StreamId::Run(run))?;
            desk.replay(run, step)
        })
    }

    /// How a recorded call ended, and what it committed if it is a commit.
    pub fn outcome(&self, run: RunId, call: CallId) -> Result<(Served, Option<Committed>)> {
        self.run(Durability::Commit, false, move |desk| {
            let served = desk.served(run, Some(&Gate::Served { call }))?;
            let served = served.ok_or_else(|| StoreError::from(Refused::NoSuchCall))?;
            let committed = desk.committed(desk.run_of(run)?, call)?;
            Ok((*served, committed))
        })
    }

    /// Whether a run is to be cancelled, and the status that people see.
    pub fn status(&self, run: RunId) -> Result<(bool, RunStatus)> {
        self.run(Durability::Commit, false, move |desk| {
            desk.state(StreamId::Run(run))?;
            let run = desk.run_of(run)?;
            Ok((run.cancel_requested, run.status()))
        })
    }

    /// The n-th block of random bytes of a lane of a run.
    pub fn random(&self, run: RunId, lane: &str, n: u64) -> Result<[u8; 32]> {
        Ok(self.seed(run)?.random(lane, n))
    }
}

impl Desk<'_> {
    /// The replay of a step of a run that was fetched.
    pub(super) fn replay(&self, run: RunId, step: StepId) -> Result<Replay> {
        let (seed, run) = (self.seed(run)?, self.run_of(run)?);
        let player = Player::new(run, step);
        let found = run.steps.get(&step).ok_or_else(|| StoreError::from(Refused::NoSuchStep))?;
        let (position, version) = found.first_claim.unwrap_or((run.base + run.head.seq, run.state_version));
        let seen = |position, version| {
            if version == run.state_version { Ok(run.state.clone()) } else { self.state_at(run, position) }
        };
        let state = seen(position, version)?;
        let fresh = found
            .refreshes
            .iter()
            .map(|at| {
                let state = seen(at.position, at.version)?;
                Ok(Fresh { after: at.after, state, version: at.version })
            })
            .collect::<Result<Vec<_>>>()?;
        let own = run.calls_of(step).into_iter().rev();
        let newest = own
            .filter(|call| call.kind == CallKind::Commit)
            .find(|call| call.outcome == Some(Outcome::Succeeded));
        let committed = match newest.map(|call| call.id) {
            Some(call) => self.committed(run, call)?.map_or(version, |committed| committed.version),
            None => version,
        };
        Ok(Replay { player, seed, state, version, committed, fresh })
    }

    pub(super) fn run_of(&self, run: RunId) -> Result<&RunState> {
        let loaded = self.loaded(StreamId::Run(run)).and_then(|loaded| loaded.state.as_run());
        loaded.ok_or_else(|| Refused::NoSuchRun.into())
    }

    fn state_at(&self, run: &RunState, position: u64) -> Result<Option<Value>> {
        let Some((id, seq)) = place(&*self.rows, run, position)? else { return Ok(None) };
        let (blobs, store) = (self.store.blobs(), self.store.id());
        let folded = load::fold_run_at(&*self.rows, blobs, store, StreamId::Run(id), seq)?;
        Ok(folded.and_then(|run| run.state))
    }

    fn committed(&self, run: &RunState, call: CallId) -> Result<Option<Committed>> {
        let Some(call) = run.calls.get(&call).filter(|call| call.kind == CallKind::Commit) else {
            return Ok(None);
        };
        let Some(at) = call.result_at else { return Ok(None) };
        let Some((id, seq)) = place(&*self.rows, run, at)? else { return Ok(None) };
        let Some(row) = self.rows.stream(StreamId::Run(id))? else { return Ok(None) };
        let Some(frame) = self.rows.frame(row.key, seq)? else { return Ok(None) };
        let nth = usize::try_from(seq - frame.first_seq).map_err(|_| StoreError::Panicked)?;
        let Some(text) = load::texts(&frame)?.get(nth).copied() else { return Ok(None) };
        match Record::parse(text)?.body {
            Body::StatePatched(body) => {
                let patch = value_at(&*self.rows, self.store, run, at, &body.patch)?;
                Ok(Some(Committed { patch, version: body.next }))
            }
            Body::StateConflict(body) => Ok(Some(Committed { patch: None, version: body.actual })),
            _ => Ok(None),
        }
    }
}
