//! Claiming work, and what a claim does on the way: it fires what is due, takes back what was lost, and
//! delivers what was sent, so that no service has to run for it.

use holdfast_core::ids::{RunId, SessionId, StepId, StreamId};
use holdfast_core::limits;
use holdfast_core::records::{Actor, Fence, Name, Package, StepKind};
use holdfast_core::run::{Command, Envelope, Refused};
use serde_json::Value;

use super::desk::{self, Desk};
use super::gateway::value_at;
use super::replay::Replay;
use super::{Durability, Engine};
use crate::error::{Result, StoreError};
use crate::rows::Filter;

/// What a worker asks for.
#[derive(Debug, Clone)]
pub struct ClaimRequest {
    pub worker: Name,
    pub lease_ms: u64,
    pub filter: Filter,
    /// The worker's package; without one, the run's own.
    pub package: Option<Package>,
    pub strict: bool,
    /// Only a step of this run.
    pub run: Option<RunId>,
}

/// What a worker gets.
#[derive(Debug)]
pub struct Claimed {
    pub run: RunId,
    pub step: StepId,
    pub name: String,
    pub agent: String,
    pub attempt: u32,
    pub fence: Fence,
    pub state_version: u64,
    pub state: Option<Value>,
    pub input: Option<Value>,
    /// The step's own input, if it has one.
    pub step_input: Option<Value>,
    pub kind: StepKind,
    pub role: String,
    pub session: Option<SessionId>,
    pub worker: Name,
    pub lease_ms: u64,
    /// How long an attempt at the step may take.
    pub timeout_ms: Option<u64>,
    /// What a replayed step is played again with: made in the claim's turn, so that nobody asks for another.
    pub replay: Option<Box<Replay>>,
}

/// What a chore or a candidate that came to nothing means: a refusal is no failure of the claim.
fn unless_refused<T>(done: Result<T>) -> Result<Option<T>> {
    match done {
        Ok(done) => Ok(Some(done)),
        Err(error) if error.is_of_engine() => Err(error),
        Err(_) => Ok(None),
    }
}

impl ClaimRequest {
    /// Said before a turn: a candidate that refuses is passed over, and every one would refuse this.
    pub(super) fn check(&self) -> Result<()> {
        match self.lease_ms {
            ..limits::LEASE_MS_MIN => Err(Refused::LimitExceeded("lease_ms_min").into()),
            limits::LEASE_MS_MIN..=limits::LEASE_MS_MAX => Ok(()),
            _ => Err(Refused::LimitExceeded("lease_ms_max").into()),
        }
    }
}

impl Engine {
    /// Hands envelopes to those they are for; what cannot be delivered now waits for the next claim.
    pub(super) fn deliver(&self, receivers: &[RunId]) -> Result<()> {
        for run in receivers.iter().copied() {
            self.run(Durability::Commit, false, move |desk| {
                for envelope in desk.rows.envelopes(Some(run), limits::CHORES_MAX)? {
                    desk.deliver(&envelope)?;
                }
                Ok(())
            })?;
        }
        Ok(())
    }
}

impl Desk<'_> {
    pub(super) fn claim(&mut self, request: &ClaimRequest) -> Result<Option<Claimed>> {
        self.chores()?;
        self.rows.promote_due(self.now.wall_ms)?;
        if let Some(run) = request.run {
            return self.claim_of(run, request);
        }
        for candidate in self.rows.candidates(&request.filter, limits::CANDIDATES_MAX)? {
            if !self.rows.take(&candidate)? {
                continue;
            }
            let claimed = self.claim_step(candidate.run, candidate.step, request);
            if let Some(Some(claimed)) = unless_refused(claimed)? {
                return Ok(Some(claimed));
            }
        }
        Ok(None)
    }

    /// A step of a run that was made in this turn. Whoever may not have it now asks for it like any other: the
    /// run is there.
    pub(super) fn begin(&mut self, run: RunId, request: &ClaimRequest) -> Result<Option<Claimed>> {
        Ok(unless_refused(self.claim_of(run, request))?.flatten())
    }

    /// A step of one run.
    fn claim_of(&mut self, run: RunId, request: &ClaimRequest) -> Result<Option<Claimed>> {
        let Some(found) = self.run(run)? else { return Err(Refused::NoSuchRun.into()) };
        let mine = |agents: &[Name]| agents.is_empty() || agents.contains(&found.agent);
        let steps: Vec<StepId> =
            if mine(&request.filter.agents) { found.steps.keys().copied().collect() } else { Vec::new() };
        for step in steps {
            if let Some(Some(claimed)) = unless_refused(self.claim_step(run, step, request))? {
                return Ok(Some(claimed));
            }
        }
        Ok(None)
    }

    fn chores(&mut self) -> Result<()> {
        for envelope in self.rows.envelopes(None, limits::CHORES_MAX)? {
            self.deliver(&envelope)?;
        }
        for due in self.rows.due_waits(self.now.wall_ms, limits::CHORES_MAX)? {
            let command = Command::Wake { step: due.step, on: due.wait.on, subject: due.wait.subject };
            unless_refused(self.chore(due.run, command))?;
        }
        let lost = self.lost_leases()?;
        for (run, step) in lost {
            unless_refused(self.chore(run, Command::Recover { step }))?;
        }
        Ok(())
    }

    fn lost_leases(&mut self) -> Result<Vec<(RunId, StepId)>> {
        let (now, store) = (self.now, self.store);
        let lost = |row: &crate::rows::LeaseRow| {
            row.lease.boot_id != now.boot_id
                || row.lease.expires_boot_ms <= now.boot_ms
                || store.is_gone(&row.process)
        };
        let rows = self.rows.leases(now)?;
        Ok(rows.into_iter().filter(lost).take(limits::CHORES_MAX).map(|row| (row.run, row.step)).collect())
    }

    /// Journaled once by its receiver; the row goes with it. One that the receiver cannot take stays,
    /// with the reason, and is not tried again.
    fn deliver(&mut self, envelope: &Envelope) -> Result<()> {
        let command = Command::Deliver { envelope: Box::new(envelope.clone()) };
        match self.chore(envelope.to, command) {
            Ok(_) => self.rows.drop_envelope(envelope.id),
            Err(error) if error.is_of_engine() => Err(error),
            Err(error) => {
                use holdfast_core::error::Coded as _;
                self.rows.refuse_envelope(envelope.id, error.code().as_str())
            }
        }
    }

    fn claim_step(&mut self, id: RunId, step: StepId, request: &ClaimRequest) -> Result<Option<Claimed>> {
        let run = self.run(id)?.ok_or(StoreError::from(Refused::NoSuchRun))?;
        let package = request.package.clone().unwrap_or_else(|| run.package.clone());
        let (worker, lease_ms, strict) = (request.worker.clone(), request.lease_ms, request.strict);
        let by = Actor { id: worker.clone(), r#type: holdfast_core::records::ActorType::Worker };
        let command = Command::Claim { step, worker: worker.clone(), lease_ms, package, strict };
        self.command(id, &desk::request(&by, command)?)?;
        // A claim that were forgotten would be given out again, under the same fence.
        self.barrier |= self.store.forgets();
        let Some(run) = self.run(id)? else { return Ok(None) };
        let Some((found, fence)) = run.steps.get(&step).and_then(|s| Some((s, s.live_fence()?))) else {
            return Ok(None); // under `strict` it waits for a person instead
        };
        let mut claimed = Claimed {
            run: id,
            step,
            name: found.name.as_str().to_owned(),
            agent: run.agent.as_str().to_owned(),
            attempt: found.attempt,
            fence,
            state_version: run.state_version,
            state: run.state.clone(),
            input: None,
            step_input: None,
            kind: found.kind,
            role: run.role.as_str().to_owned(),
            session: run.session,
            worker,
            lease_ms,
            timeout_ms: found.timeout_ms,
            replay: None,
        };
        let (input, own) = (run.input.clone(), found.input.clone().map(|content| (found.created, content)));
        let Some(run) = self.loaded(StreamId::Run(id)).and_then(|loaded| loaded.state.as_run()) else {
            return Ok(None);
        };
        claimed.input = value_at(&*self.rows, self.store, run, 1, &input)?;
        if let Some((position, content)) = own {
            claimed.step_input = value_at(&*self.rows, self.store, run, position, &content)?;
        }
        if claimed.kind == StepKind::Replayed {
            claimed.replay = Some(Box::new(self.replay(id, step)?));
        }
        Ok(Some(claimed))
    }
}
