//! One run's journal in memory: decide, stamp, apply, keep. What the store does with a disk under it,
//! this does without one; tests, demonstrations and `memory:` tools drive the core through it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde_json::Value;

use crate::chain::{Auditor, ChainError, Flaw, Head, stamp};
use crate::clock::Now;
use crate::content::{Commit, Openings, erase, open};
use crate::error::{Code, Coded};
use crate::gateway::{Entering, Gate, edited_arguments, recorded_arguments};
use crate::ids::{CapabilityId, RunId, StepId, StoreId, StreamId};
use crate::policy::ActivePolicy;
use crate::records::{Actor, Body, ContentErased, Draft, Key, Name, ReadError, Record, RecordHash};
use crate::run::{
    Command, Decided, Envelope, KeyHolder, Lease, LeaseChange, Refused, Request, SessionGrant, View,
    awaited_content, decide,
};
use crate::state::{GrantState, Illegal, Placed, RunState, State};

/// Why nothing was written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TransactError {
    #[error(transparent)]
    Refused(#[from] Refused),
    #[error(transparent)]
    Unwritable(#[from] ReadError),
    /// What was decided cannot be folded: a bug of ours, caught before it is written.
    #[error(transparent)]
    Illegal(#[from] Illegal),
}

impl Coded for TransactError {
    fn code(&self) -> Code {
        match self {
            Self::Refused(error) => error.code(),
            Self::Unwritable(error) => error.code(),
            Self::Illegal(error) => error.code(),
        }
    }
}

/// The records that one command wrote, and what it sends.
#[derive(Debug, Clone, PartialEq)]
pub struct Frame {
    pub envelopes: Vec<Envelope>,
    /// What a call at the door was told.
    pub gate: Option<Gate>,
    pub records: Vec<Record>,
}

/// A run's journal.
#[derive(Debug, Clone)]
pub struct Journal {
    pub busy_keys: BTreeSet<Key>,
    pub epoch: u32,
    pub gone: BTreeSet<Name>,
    /// Who holds the key of the whole store that the next call comes with, if that is another run.
    pub key_holder: Option<KeyHolder>,
    pub leases: BTreeMap<StepId, Lease>,
    pub openings: Openings,
    /// What the run that this is a fork of has sent off.
    pub done_before: Option<KeyHolder>,
    /// The active policy.
    pub policy: Option<Arc<ActivePolicy>>,
    pub settled_keys: BTreeSet<Key>,
    /// Capabilities that other runs say are revoked.
    pub revoked_elsewhere: BTreeSet<CapabilityId>,
    /// The grants of the run's session.
    pub session_grants: Vec<SessionGrant>,
    parent: Option<RunState>,
    records: Vec<Record>,
    state: Option<State>,
    store: StoreId,
}

impl Journal {
    pub fn new(store: StoreId) -> Self {
        Self {
            busy_keys: BTreeSet::new(),
            epoch: 1,
            gone: BTreeSet::new(),
            key_holder: None,
            leases: BTreeMap::new(),
            openings: Openings::new(),
            done_before: None,
            policy: None,
            settled_keys: BTreeSet::new(),
            revoked_elsewhere: BTreeSet::new(),
            session_grants: Vec::new(),
            parent: None,
            records: Vec::new(),
            state: None,
            store,
        }
    }

    /// An empty journal for a fork of this run at `seq`.
    pub fn fork_at(&self, seq: u64) -> Result<Self, Illegal> {
        let mut fork = Self::new(self.store);
        fork.epoch = self.epoch;
        fork.parent = self.at(seq)?.and_then(|state| state.as_run().cloned());
        fork.openings.clone_from(&self.openings);
        Ok(fork)
    }

    pub fn records(&self) -> &[Record] {
        &self.records
    }

    pub fn run(&self) -> Option<&RunState> {
        self.state.as_ref().and_then(State::as_run)
    }

    pub fn state(&self) -> Option<&State> {
        self.state.as_ref()
    }

    fn came(&self, command: &Command) -> Option<Value> {
        let Command::Take { call, .. } = command else { return None };
        let placed = awaited_content(self.run()?, *call)?;
        open(&placed.content, &self.openings).ok().cloned()
    }

    /// Decides a request and, if it is not refused, writes what follows from it. All or nothing.
    pub fn transact(&mut self, request: &Request, now: &Now) -> Result<Frame, TransactError> {
        let view = View {
            state: self.run(),
            epoch: self.epoch,
            leases: self.leases.clone(),
            parent: self.parent.as_ref(),
            gone: self.gone.clone(),
            busy_keys: self.busy_keys.clone(),
            settled_keys: self.settled_keys.clone(),
            policy: self.policy.clone(),
            effective: self.effective(&request.command, recorded_arguments),
            edited: self.effective(&request.command, edited_arguments),
            revoked_elsewhere: self.revoked_elsewhere.clone(),
            receiver_open: true,
            session: true,
            session_grants: self.session_grants.clone(),
            done_before: self.done_before.clone(),
            came: self.came(&request.command),
            key_holder: self.key_holder.clone(),
            open_forks: false,
        };
        let decided = decide(&view, request, now)?;
        let stream = match &request.command {
            Command::Create { run, .. } => StreamId::Run(run.id),
            Command::Fork { run, .. } => StreamId::Run(*run),
            _ => self.head().map_or(StreamId::Store, |head| head.stream),
        };
        self.commit(stream, &decided, now)
    }

    /// The arguments that a call at the door would be sent off with, if it was recorded.
    fn effective(
        &self,
        command: &Command,
        placed: for<'r> fn(&'r RunState, &Entering) -> Option<&'r Placed>,
    ) -> Option<Value> {
        let (Command::Enter { call, .. }, Some(run)) = (command, self.run()) else { return None };
        let placed = placed(run, call)?;
        open(&placed.content, &self.openings).ok().cloned()
    }

    /// Writes drafts that were made elsewhere: what tests plant.
    pub fn write(&mut self, drafts: Vec<Draft>, now: &Now) -> Result<Frame, TransactError> {
        let stream = self.head().map_or(StreamId::Store, |head| head.stream);
        self.commit(stream, &Decided { drafts, ..Decided::default() }, now)
    }

    fn head(&self) -> Option<Head> {
        self.state.as_ref().map(State::head)
    }

    fn commit(&mut self, stream: StreamId, decided: &Decided, now: &Now) -> Result<Frame, TransactError> {
        let mut head = self.head().unwrap_or_else(|| Head::start(self.store, stream));
        let stamped = stamp(&mut head, decided.drafts.clone(), now.wall_ms)?;
        let records: Vec<Record> = stamped.records.into_iter().map(|stamped| stamped.record).collect();
        let mut openings = self.openings.clone();
        openings.extend(decided.openings());
        let mut state = self.state.clone();
        for record in &records {
            match &mut state {
                Some(state) => state.apply(record, &openings)?,
                None => state = Some(State::first(record, &openings, self.parent.as_ref())?),
            }
        }
        (self.state, self.openings) = (state, openings);
        self.follow_grants(decided, &records);
        self.records.extend(records.iter().cloned());
        match &decided.lease {
            Some(LeaseChange::Set(step, lease)) => {
                self.leases.insert(*step, lease.clone());
            }
            Some(LeaseChange::Drop(step)) => {
                self.leases.remove(step);
            }
            None => {}
        }
        Ok(Frame { envelopes: decided.envelopes.clone(), gate: decided.gate.clone(), records })
    }

    /// What the session's stream would say.
    fn follow_grants(&mut self, decided: &Decided, records: &[Record]) {
        if let Some((_, draft)) = &decided.session
            && let Body::GrantCreated(created) = &draft.body
        {
            let grant = GrantState::new(created);
            self.session_grants.push(SessionGrant { grant, id: created.grant, spent: 0 });
        }
        for record in records {
            if let Body::GrantSpent(spent) = &record.body {
                let grants = self.session_grants.iter_mut().filter(|one| one.id == spent.grant);
                grants.for_each(|one| one.spent += 1);
            }
        }
    }

    /// Erases contents and says so in the journal.
    pub fn erase(&mut self, commits: &[Commit], by: Actor, now: &Now) -> Result<usize, TransactError> {
        let body = ContentErased { commits: commits.to_vec(), reason: None };
        self.write(vec![Draft::new(body, by)], now)?;
        let erased = erase(&mut self.openings, commits);
        Ok(erased)
    }

    /// The fold up to a record.
    pub fn at(&self, seq: u64) -> Result<Option<State>, Illegal> {
        let prefix: Vec<Record> = self.records.iter().filter(|record| record.seq <= seq).cloned().collect();
        crate::state::fold(self.store, &prefix, &self.openings, self.parent.as_ref())
    }

    /// Checks chain, fold and contents of records given as text, as somebody else would; against a head
    /// that was kept elsewhere, if there is one.
    pub fn audit(
        store: StoreId,
        run: RunId,
        texts: &[Vec<u8>],
        openings: &Openings,
        parent: Option<&RunState>,
        expected: Option<RecordHash>,
    ) -> Result<Option<State>, ChainError> {
        let mut auditor = Auditor::new(store, StreamId::Run(run));
        let mut state: Option<State> = None;
        for text in texts {
            let record = auditor.next(text)?;
            auditor.contents(&record, openings)?;
            let folded = match &mut state {
                Some(state) => state.apply(&record, openings),
                None => State::first(&record, openings, parent).map(|first| state = Some(first)),
            };
            let bad = |illegal: Illegal| Flaw::Illegal(illegal.why.to_owned());
            folded.map_err(|illegal| ChainError {
                flaw: bad(illegal),
                seq: record.seq,
                stream: record.stream,
            })?;
        }
        auditor.end(expected)?;
        Ok(state)
    }
}
