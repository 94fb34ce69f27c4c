//! State as the fold of records, per kind of stream. Live execution, resume, replay, time travel and
//! verification all use this one `apply`; it refuses a record that cannot follow what precedes it.
//!
//! A fold can be kept ([`Serialize`]) and resumed: from a snapshot plus the rest it is the same as from
//! the start.

mod calls;
mod capabilities;
mod govern;
mod run;
mod run_apply;
mod run_apply_calls;
mod run_apply_govern;
mod session;
mod steps;
mod store;

use serde::{Deserialize, Serialize};

pub use crate::call::CallPhase;
pub use calls::{Call, Late, Outcome, Permitted, Placed, Replay, Situation, replay};
pub use capabilities::{Capabilities, Held};
pub use govern::{Approval, ApprovalState, GrantState, Spending};
pub use run::{ChildState, End, ForkOrigin, Mail, RunState};
pub use session::SessionState;
pub use steps::{Refresh, Step};
pub use store::StoreState;

use crate::chain::Head;
use crate::content::Openings;
use crate::error::{Code, Coded};
use crate::ids::{StoreId, StreamId};
use crate::records::{Body, Record, RecordHash, genesis};

/// A record that cannot follow what precedes it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{kind} at {seq} cannot follow: {why}")]
pub struct Illegal {
    pub kind: String,
    pub seq: u64,
    pub why: &'static str,
}

impl Coded for Illegal {
    fn code(&self) -> Code {
        Code::RecordIllegal
    }
}

impl Illegal {
    pub(crate) fn new(record: &Record, why: &'static str) -> Self {
        Self { kind: record.kind().to_owned(), seq: record.seq, why }
    }
}

/// The fold of one stream.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "stream", rename_all = "snake_case")]
pub enum State {
    Run(Box<RunState>),
    Session(Box<SessionState>),
    Store(Box<StoreState>),
}

impl State {
    /// The fold of a stream's first record. A fork begins from its parent's fold at the fork point.
    pub fn first(record: &Record, openings: &Openings, parent: Option<&RunState>) -> Result<Self, Illegal> {
        Self::first_hashed(record, hash_of(record)?, openings, parent)
    }

    /// The same for a record whose hash is known already.
    pub fn first_hashed(
        record: &Record,
        hash: RecordHash,
        openings: &Openings,
        parent: Option<&RunState>,
    ) -> Result<Self, Illegal> {
        let head = head_after(record, hash);
        match (record.stream, &record.body) {
            (StreamId::Run(_), Body::RunCreated(_)) => {
                RunState::created(record, head, openings).map(|run| Self::Run(Box::new(run)))
            }
            (StreamId::Run(_), Body::RunForked(forked)) => {
                let parent = parent.ok_or_else(|| Illegal::new(record, "the parent's fold is missing"))?;
                RunState::forked(record, head, forked, parent).map(|run| Self::Run(Box::new(run)))
            }
            (StreamId::Session(id), Body::SessionCreated(created)) if created.session == id => {
                Ok(Self::Session(Box::new(SessionState::created(head))))
            }
            (StreamId::Store, Body::StoreCreated(created))
                if record.prev == genesis(created.store, StreamId::Store) =>
            {
                Ok(Self::Store(Box::new(StoreState::created(head, created))))
            }
            (StreamId::Run(_) | StreamId::Session(_) | StreamId::Store, _) => {
                Err(Illegal::new(record, "a stream begins with its own creation"))
            }
        }
    }

    /// The fold after one more record. The caller has checked the chain.
    pub fn apply(&mut self, record: &Record, openings: &Openings) -> Result<(), Illegal> {
        self.apply_hashed(record, hash_of(record)?, openings)
    }

    /// The same for a record whose hash is known already: who has just written or read its bytes does
    /// not make them again.
    pub fn apply_hashed(
        &mut self,
        record: &Record,
        hash: RecordHash,
        openings: &Openings,
    ) -> Result<(), Illegal> {
        let head = head_after(record, hash);
        match self {
            Self::Run(run) => run.apply(record, head, openings),
            Self::Session(session) => session.apply(record, head),
            Self::Store(store) => store.apply(record, head),
        }
    }

    pub fn head(&self) -> Head {
        match self {
            Self::Run(run) => run.head,
            Self::Session(session) => session.head,
            Self::Store(store) => store.head,
        }
    }

    pub fn as_run(&self) -> Option<&RunState> {
        match self {
            Self::Run(run) => Some(run),
            Self::Session(_) | Self::Store(_) => None,
        }
    }
}

fn hash_of(record: &Record) -> Result<RecordHash, Illegal> {
    record.hash().map_err(|_| Illegal::new(record, "it has no canonical bytes"))
}

fn head_after(record: &Record, hash: RecordHash) -> Head {
    Head { at: record.at, hash, seq: record.seq, stream: record.stream }
}

/// Folds a whole stream from its start.
pub fn fold(
    store: StoreId,
    records: &[Record],
    openings: &Openings,
    parent: Option<&RunState>,
) -> Result<Option<State>, Illegal> {
    let mut state = None;
    for record in records {
        match &mut state {
            None if record.prev != genesis(store, record.stream) => {
                return Err(Illegal::new(record, "its prev is not the stream's origin"));
            }
            None => state = Some(State::first(record, openings, parent)?),
            Some(state) => state.apply(record, openings)?,
        }
    }
    Ok(state)
}
