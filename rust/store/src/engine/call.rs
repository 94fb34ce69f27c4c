//! The calls of the door: what a command does before its turn, in it, and after it. A thread waits for its
//! call; whoever serves an event loop hands over many at once, which share turns and syncs.

use holdfast_core::ids::{RunId, StreamId};
use holdfast_core::records::Actor;
use holdfast_core::run::{Command, NewRun, NewStep, draft};

use super::claim::{ClaimRequest, Claimed};
use super::desk::{self, Written};
use super::queue::{Durability, Job};
use super::{Engine, is_outcome, same_run};
use crate::error::{Result, StoreError};

/// Something that the store is asked to do.
#[derive(Debug, Clone)]
pub enum Call {
    /// A new run. Under a key that a run has already, that run is the answer if agent and input are the
    /// same.
    Create { by: Actor, run: Box<NewRun>, steps: Vec<NewStep>, durability: Durability },
    /// A command on a run.
    Command { run: RunId, by: Actor, command: Box<Command>, durability: Durability },
    /// The best step that a worker may have.
    Claim(Box<ClaimRequest>),
    /// A new run whose first step its maker works on at once: made and claimed in one turn.
    Begin { by: Actor, run: Box<NewRun>, steps: Vec<NewStep>, claim: Box<ClaimRequest> },
}

/// What it answers.
#[derive(Debug)]
pub enum Told {
    Created(RunId),
    Written(Written),
    Claimed(Option<Claimed>),
}

impl Engine {
    /// Makes one call, and waits for it.
    pub fn call(&self, call: Call) -> Result<Told> {
        let answer = self.queue.submit(self.prepare(call)?, |batch| self.lead(batch))?;
        self.told(answer)
    }

    /// Makes several calls at once, and waits for all of them. Each has its own answer.
    pub fn calls(&self, calls: Vec<Call>) -> Vec<Result<Told>> {
        let mut refused = Vec::new();
        let mut jobs = Vec::with_capacity(calls.len());
        for (at, call) in calls.into_iter().enumerate() {
            match self.prepare(call) {
                Ok(job) => jobs.push(job),
                Err(error) => refused.push((at, error)),
            }
        }
        let answers = self.queue.submit_all(jobs, |batch| self.lead(batch));
        let mut told: Vec<Result<Told>> = answers.into_iter().map(|answer| self.told(answer?)).collect();
        for (at, error) in refused {
            told.insert(at, Err(error)); // in order, so each comes to stand where it was asked
        }
        told
    }

    /// What can be done before the turn, so that nobody waits for it.
    fn prepare(&self, call: Call) -> Result<Job> {
        self.store.ready(true)?; // before any lock: in a forked child one may be held for ever
        match call {
            Call::Create { by, run, steps, durability } => {
                let request = desk::request(&by, Command::Create { run: run.clone(), steps })?;
                Ok(Job::new(durability, false, move |desk| {
                    if let Some(key) = &run.key
                        && let Some(found) = desk.rows.run_of_key(key)?
                    {
                        return same_run(desk, found, &run).map(Told::Created);
                    }
                    desk.command(run.id, &request).map(|_| Told::Created(run.id))
                }))
            }
            Call::Command { run, by, command, durability } => {
                self.check_blobs(&command)?;
                let outcome = is_outcome(&command);
                let request = desk::request(&by, *command)?;
                let mut drafts = draft(&request);
                let command = Job::new(durability, outcome, move |desk| {
                    // A second try drafts them anew.
                    desk.drafted(run, &request, std::mem::take(&mut drafts)).map(Told::Written)
                });
                Ok(Job { about: Some(StreamId::Run(run)), ..command })
            }
            Call::Begin { by, run, steps, claim } => {
                claim.check()?;
                let id = run.id;
                let request = desk::request(&by, Command::Create { run, steps })?;
                Ok(Job::new(Durability::Commit, false, move |desk| {
                    desk.command(id, &request)?;
                    desk.begin(id, &claim).map(Told::Claimed)
                }))
            }
            Call::Claim(request) => {
                request.check()?;
                let claim =
                    Job::new(Durability::Commit, false, move |desk| desk.claim(&request).map(Told::Claimed));
                Ok(Job { sees_latest: true, ..claim })
            }
        }
    }

    /// What is done after the turn.
    fn told(&self, answer: super::Answer) -> Result<Told> {
        let told = answer.downcast::<Told>().map_err(|_| StoreError::Panicked)?;
        match &*told {
            Told::Written(written) => {
                // The command is done, whatever becomes of this. The next who claims delivers what is left.
                let _ = self.deliver(&written.receivers);
            }
            Told::Claimed(Some(claimed)) => {
                if let Some(seed) = claimed.replay.as_ref().and_then(|replay| replay.seed.as_ref()) {
                    self.remember(claimed.run, seed);
                }
            }
            Told::Created(_) | Told::Claimed(None) => {}
        }
        Ok(*told)
    }

    /// See [`Call::Create`].
    pub fn create_run(
        &self,
        by: &Actor,
        run: &NewRun,
        steps: &[NewStep],
        durability: Durability,
    ) -> Result<RunId> {
        let (run, steps) = (Box::new(run.clone()), steps.to_vec());
        match self.call(Call::Create { by: by.clone(), run, steps, durability })? {
            Told::Created(run) => Ok(run),
            _ => Err(StoreError::Panicked),
        }
    }

    /// See [`Call::Command`].
    pub fn command(
        &self,
        run: RunId,
        by: &Actor,
        command: Command,
        durability: Durability,
    ) -> Result<Written> {
        let call = Call::Command { run, by: by.clone(), command: Box::new(command), durability };
        match self.call(call)? {
            Told::Written(written) => Ok(written),
            _ => Err(StoreError::Panicked),
        }
    }

    /// See [`Call::Claim`].
    pub fn claim(&self, request: &ClaimRequest) -> Result<Option<Claimed>> {
        match self.call(Call::Claim(Box::new(request.clone())))? {
            Told::Claimed(claimed) => Ok(claimed),
            _ => Err(StoreError::Panicked),
        }
    }
}
