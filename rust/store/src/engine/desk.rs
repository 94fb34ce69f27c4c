//! Where one command is worked on, inside a turn: load, decide, stamp, fold, write. Everything is decided
//! and folded before the first row is written, so a refused command has written nothing.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use holdfast_core::canonical::to_bytes;
use holdfast_core::chain::{Head, Stamped, StampedFrame, stamp};
use holdfast_core::clock::Now;
use holdfast_core::content::{Commit, Content, Openings, Sealed};
use holdfast_core::gateway::Gate;
use holdfast_core::ids::{RunId, StreamId};
use holdfast_core::limits;
use holdfast_core::mutants::{Mutant, mutant};
use holdfast_core::records::{
    Actor, Body, Draft, Fold, Key, KeyScope, Record, RecordHash, RunStatus, WaitOn,
};
use holdfast_core::run::{Command, Decided, Envelope, LeaseChange, Request, View, decide_drafted};
use holdfast_core::state::{RunState, State};

use super::cache::{Cache, Loaded};
use super::gateway::{
    Memory, Served, asks_ancestors, asks_capabilities, asks_policy, asks_session, needs_barrier,
};
use super::load;
use super::project::{project, write};
use crate::clock::entropy;
use crate::error::{Result, StoreError};
use crate::rows::{FrameRow, Projection, Rows, StreamRow};
use crate::store::Store;

/// The folds that a batch has taken out of the cache.
#[derive(Debug, Default)]
pub(crate) struct Working(pub(crate) BTreeMap<StreamId, Loaded>);

/// What a command wrote.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Written {
    pub stream: StreamId,
    /// None if it was so already and nothing was written.
    pub pos: Option<i64>,
    pub first_seq: u64,
    pub last_seq: u64,
    pub head: RecordHash,
    /// Runs that were sent something.
    pub receivers: Vec<RunId>,
    /// What a call at the door was told, and how it ended if it has.
    pub gate: Option<Gate>,
    pub served: Option<Box<Served>>,
    /// How the run stands after it.
    pub status: Option<RunStatus>,
}

/// One command's place in a turn.
pub(crate) struct Desk<'a> {
    pub(crate) rows: &'a mut dyn Rows,
    pub(crate) now: &'a Now,
    pub(crate) store: &'a dyn Store,
    pub(crate) working: &'a mut Working,
    pub(crate) cache: &'a Mutex<Cache>,
    pub(crate) memory: &'a Memory,
    /// What was written lets something act: nobody hears of it before it is on the disk.
    pub(crate) barrier: bool,
}

impl Desk<'_> {
    /// Brings a stream's fold up to its row: what another process wrote is noticed here.
    fn fetch(&mut self, stream: StreamId) -> Result<bool> {
        if self.working.0.contains_key(&stream) {
            return Ok(true);
        }
        let Some(row) = self.rows.stream(stream)? else { return Ok(false) };
        let cached = self.cache.lock().unwrap_or_else(PoisonError::into_inner).take(stream);
        let current = |loaded: &Loaded| {
            let head = loaded.state.head();
            (head.seq == row.last_seq && head.hash == row.head) || mutant(Mutant::StaleCache)
        };
        let (blobs, store) = (self.store.blobs(), self.store.id());
        let loaded = match cached {
            Some(loaded) if current(&loaded) => Some(loaded),
            Some(loaded) => load::advance(&*self.rows, blobs, store, &row, loaded)?,
            None => load::load(&*self.rows, blobs, store, &row)?,
        };
        let found = loaded.is_some();
        self.working.0.extend(loaded.map(|loaded| (stream, loaded)));
        Ok(found)
    }

    pub(super) fn loaded(&self, stream: StreamId) -> Option<&Loaded> {
        self.working.0.get(&stream)
    }

    pub(crate) fn state(&mut self, stream: StreamId) -> Result<Option<&State>> {
        self.fetch(stream)?;
        Ok(self.loaded(stream).map(|loaded| &loaded.state))
    }

    pub(crate) fn run(&mut self, run: RunId) -> Result<Option<&RunState>> {
        Ok(self.state(StreamId::Run(run))?.and_then(State::as_run))
    }

    /// Decides a command on a run and writes what follows from it.
    pub(crate) fn command(&mut self, run: RunId, request: &Request) -> Result<Written> {
        self.drafted(run, request, Vec::new())
    }

    /// The same for an append whose entries were drafted before the turn.
    pub(crate) fn drafted(&mut self, run: RunId, request: &Request, drafts: Vec<Draft>) -> Result<Written> {
        let stream = StreamId::Run(run);
        self.fetch(stream)?;
        if asks_policy(&request.command) {
            self.fetch(StreamId::Store)?;
        }
        if asks_session(&request.command)
            && let Some(session) = self.run(run)?.and_then(|run| run.session)
        {
            self.fetch(StreamId::Session(session))?;
        }
        if asks_ancestors(&request.command) {
            self.fetch_ancestors(run)?;
        }
        if matches!(request.command, Command::Enter { .. }) {
            self.fetch_key_holder(&request.command)?;
        }
        if asks_capabilities(&request.command) {
            self.fetch_holders(run, &request.command)?;
        }
        let mut decided = self.decide(run, request, drafts, None)?;
        let (gate, session) = (decided.gate.take(), decided.session.take());
        let mut written = self.write(stream, decided, None)?;
        if let Some((session, draft)) = session {
            self.note(StreamId::Session(session), vec![*draft])?; // in the same transaction: both or none
        }
        if tells_outcome(&request.command) || matches!(gate, Some(Gate::RuleResult { .. })) {
            written.served = self.served(run, gate.as_ref())?;
        }
        written.gate = gate;
        written.status = self.run(run)?.map(RunState::status);
        Ok(written)
    }

    /// The same for what Holdfast does by itself.
    pub(crate) fn chore(&mut self, run: RunId, command: Command) -> Result<Written> {
        self.command(run, &request(&Actor::system(), command)?)
    }

    /// A fork of a run at a record.
    pub(crate) fn fork(&mut self, parent: RunId, at: u64, request: &Request) -> Result<Written> {
        let Command::Fork { run, .. } = &request.command else { return Err(StoreError::Panicked) };
        let (blobs, store) = (self.store.blobs(), self.store.id());
        let folded = load::fold_run_at(&*self.rows, blobs, store, StreamId::Run(parent), at)?;
        self.fetch(StreamId::Run(*run))?;
        let decided = self.decide(*run, request, Vec::new(), folded.as_ref())?;
        self.write(StreamId::Run(*run), decided, folded.as_ref())
    }

    fn decide(
        &self,
        run: RunId,
        request: &Request,
        drafts: Vec<Draft>,
        parent: Option<&RunState>,
    ) -> Result<Decided> {
        let loaded = self.loaded(StreamId::Run(run));
        let mut view = View {
            state: loaded.and_then(|loaded| loaded.state.as_run()),
            epoch: self.store.epoch(),
            parent,
            ..View::default()
        };
        if let Some(loaded) = loaded {
            self.shared_rows(run, loaded.key, &request.command, &mut view)?;
            self.gateway_rows(&request.command, &mut view)?;
        }
        Ok(decide_drafted(&view, request, drafts, self.now)?)
    }

    /// The shared rows that a command names.
    fn shared_rows(&self, run: RunId, key: i64, command: &Command, view: &mut View<'_>) -> Result<()> {
        match command {
            Command::Claim { step, .. } => {
                let step = view.state.and_then(|run| run.steps.get(step));
                if let Some(held) = step.and_then(|step| step.concurrency_key.clone())
                    && self.rows.key_busy(&held)?
                {
                    view.busy_keys.insert(held);
                }
            }
            Command::Recover { step } => {
                if let Some(row) = self.rows.lease(key, *step)? {
                    if self.store.is_gone(&row.process) {
                        view.gone.insert(row.lease.owner.clone());
                    }
                    view.leases.insert(*step, row.lease);
                }
            }
            Command::Wait { waits, .. } => {
                for wait in waits.iter().filter(|wait| wait.on == WaitOn::Key) {
                    self.settled_key(wait.subject.as_ref(), view)?;
                }
            }
            Command::Wake { on: WaitOn::Key, subject, .. } => self.settled_key(subject.as_ref(), view)?,
            Command::Erase { .. } => view.open_forks = self.rows.has_open_forks(run)?,
            _ => {}
        }
        Ok(())
    }

    /// Notes a key of the whole store that nobody holds without an outcome.
    fn settled_key(&self, key: Option<&Key>, view: &mut View<'_>) -> Result<()> {
        if let Some(key) = key
            && self.rows.key_held(key)?.is_none_or(|held| held.kept_until.is_some())
        {
            view.settled_keys.insert(key.clone());
        }
        Ok(())
    }

    /// Drafts of the store's own stream or of a session.
    pub(crate) fn note(&mut self, stream: StreamId, drafts: Vec<Draft>) -> Result<Written> {
        self.fetch(stream)?;
        self.write(stream, Decided { drafts, ..Decided::default() }, None)
    }

    /// Stamps, folds and writes.
    fn write(&mut self, stream: StreamId, decided: Decided, parent: Option<&RunState>) -> Result<Written> {
        let loaded = self.working.0.remove(&stream);
        let start = loaded.as_ref().map_or_else(|| Head::start(self.store.id(), stream), |l| l.state.head());
        let Decided { drafts, lease, envelopes, .. } = decided;
        if drafts.is_empty() {
            return self.write_rows_only(stream, loaded, lease.as_ref(), start);
        }
        let run = loaded.as_ref().and_then(|loaded| loaded.state.as_run());
        let projects = loaded.is_none()
            || drafts.iter().any(|draft| changes_rows(&draft.body) || shares_key(run, draft));
        let before = match &loaded {
            Some(loaded) if projects => project(&loaded.state, loaded.key)?,
            _ => Projection::default(),
        };
        // From here to the first row a failure drops the fold; the next command folds it anew.
        let mut head = start;
        let stamped = stamp(&mut head, drafts, self.now.wall_ms)?;
        if stamped.body.len() > limits::FRAME_BYTES_MAX {
            return Err(StoreError::LimitExceeded("frame_bytes_max"));
        }
        let (key, kept) = loaded.as_ref().map_or((None, 0), |loaded| (Some(loaded.key), loaded.kept));
        let state = folded(loaded.map(|loaded| loaded.state), &stamped.records, parent)?;
        let large = self.large_contents(&stamped.records)?;
        self.barrier |= needs_barrier(&state, &stamped.records);
        let mut frame = frame(&start, &head, stamped)?;
        frame.stream = match key {
            Some(key) => key,
            None => self.rows.add_stream(stream, start.hash)?,
        };
        let (key, pos) = (frame.stream, self.rows.add_frame(&frame)?);
        for content in large {
            self.rows.put_blob_ref(&content.commit, key, content.bytes)?;
        }
        if projects {
            write(self.rows, &before, &project(&state, key)?)?;
        }
        self.change_rows(key, lease.as_ref(), &envelopes)?;
        let mut loaded = Loaded { key, state, kept };
        self.keep_snapshot(&mut loaded, parent.is_some())?;
        self.working.0.insert(stream, loaded);
        Ok(Written {
            stream,
            pos: Some(pos),
            first_seq: start.seq + 1,
            last_seq: head.seq,
            head: head.hash,
            receivers: envelopes.iter().map(|envelope| envelope.to).collect(),
            gate: None,
            served: None,
            status: None,
        })
    }

    /// A heartbeat, or something that was so already.
    fn write_rows_only(
        &mut self,
        stream: StreamId,
        loaded: Option<Loaded>,
        lease: Option<&LeaseChange>,
        head: Head,
    ) -> Result<Written> {
        if let Some(loaded) = loaded {
            self.change_rows(loaded.key, lease, &[])?;
            self.working.0.insert(stream, loaded);
        }
        let (first_seq, last_seq, receivers) = (head.seq + 1, head.seq, Vec::new());
        let (gate, served, status) = (None, None, None);
        Ok(Written {
            stream,
            pos: None,
            first_seq,
            last_seq,
            head: head.hash,
            receivers,
            gate,
            served,
            status,
        })
    }

    /// Puts what is too large for the frame into blobs, before the frame refers to them, and checks that
    /// the blobs which an entry names are there.
    fn large_contents(&mut self, records: &[Stamped]) -> Result<Vec<Content>> {
        let mut large = Vec::new();
        for stamped in records {
            for sealed in stamped.sealed.iter().filter(|sealed| is_large(sealed)) {
                self.rows.hold_blob(&sealed.content.commit, false)?;
                self.store.blobs().put_salted(sealed.opening.salt, &sealed.bytes)?;
                large.push(sealed.content.clone());
            }
            for content in &stamped.blobs {
                self.rows.hold_blob(&content.commit, false)?;
                if !self.store.blobs().has(&content.commit)? {
                    return Err(StoreError::NoSuchBlob(content.commit));
                }
                large.push(content.clone());
            }
        }
        Ok(large)
    }

    fn change_rows(&mut self, key: i64, lease: Option<&LeaseChange>, envelopes: &[Envelope]) -> Result<()> {
        match lease {
            Some(LeaseChange::Set(step, lease)) => self.rows.set_lease(key, *step, lease)?,
            Some(LeaseChange::Drop(step)) => self.rows.drop_lease(key, *step)?,
            None => {}
        }
        envelopes.iter().try_for_each(|envelope| self.rows.put_envelope(envelope, self.now.wall_ms))
    }

    /// Keeps the fold now and then, so that a cold command reads it and a short tail. A fork's is kept
    /// at once: it cannot be folded without its parent.
    fn keep_snapshot(&mut self, loaded: &mut Loaded, at_once: bool) -> Result<()> {
        let seq = loaded.state.head().seq;
        if at_once || seq.saturating_sub(loaded.kept) >= limits::SNAPSHOT_RECORDS {
            let text = String::from_utf8(to_bytes(&loaded.state)?).map_err(|_| StoreError::Panicked)?;
            self.rows.put_snapshot(loaded.key, seq, &text)?;
            loaded.kept = seq;
        }
        Ok(())
    }

    /// Keeps a fold that was made anew, if it is one that would be kept.
    pub(crate) fn keep_fold(&mut self, key: i64, state: &State) -> Result<()> {
        let forked = state.as_run().is_some_and(|run| run.fork.is_some());
        let mut loaded = Loaded { key, state: state.clone(), kept: 0 };
        self.keep_snapshot(&mut loaded, forked)
    }

    /// The contents of a stream's records that are kept as blobs.
    pub(crate) fn blob_contents(&self, row: &StreamRow) -> Result<Vec<Content>> {
        let (mut found, mut after) = (Vec::new(), 0);
        while after < row.last_seq {
            let frames = self.rows.frames(row.key, after)?;
            let Some(last) = frames.last() else { break };
            after = last.last_seq;
            for frame in &frames {
                let inline = load::openings(frame)?;
                for text in load::texts(frame)? {
                    for content in Record::parse(text)?.contents() {
                        let inline = inline.contains_key(&content.commit);
                        if !inline && self.store.blobs().has(&content.commit)? {
                            found.push(content);
                        }
                    }
                }
            }
        }
        Ok(found)
    }

    /// Erases contents: the values, the blobs' rows and the snapshots that hold copies. Returns the blobs
    /// whose files may go once this is durable.
    pub(crate) fn erase(&mut self, run: RunId, request: &Request) -> Result<(u64, Vec<Commit>)> {
        let Command::Erase { commits, .. } = &request.command else { return Err(StoreError::Panicked) };
        self.command(run, request)?;
        let stream = StreamId::Run(run);
        let key = self.loaded(stream).map(|loaded| loaded.key).ok_or(StoreError::Panicked)?;
        let refs = self.rows.blob_refs(key)?;
        let (mut erased, mut unused) = (self.rows.erase(key, commits)?, Vec::new());
        for blob in refs.into_keys().filter(|blob| commits.contains(blob)) {
            self.rows.drop_blob_ref(&blob, key)?;
            erased += 1;
            if !self.rows.refers_to(&blob)? {
                unused.push(blob); // another run may have the same one
            }
        }
        self.working.0.remove(&stream); // its fold still holds what is gone
        Ok((erased, unused))
    }
}

/// Whether a record is about a call that has a key of the whole store, which has a row.
fn shares_key(run: Option<&RunState>, draft: &Draft) -> bool {
    if let Body::CallOpened(opened) = &draft.body {
        return opened.key_scope == Some(KeyScope::Store);
    }
    let call = draft.call.and_then(|id| run?.calls.get(&id));
    call.is_some_and(|call| call.shared_ms.is_some())
}

/// Whether a record may change a row that follows from its stream. How calls stand is in no row, and most of
/// what is written is about calls.
fn changes_rows(body: &Body) -> bool {
    match body.folds() {
        Fold::Nothing | Fold::Call => false,
        Fold::Govern => matches!(
            body,
            Body::ApprovalRequested(_)
                | Body::ApprovalVoted(_)
                | Body::ApprovalDecided(_)
                | Body::ApprovalEdited(_)
                | Body::ApprovalTimedOut(_)
                | Body::ApprovalSuperseded(_)
                | Body::ApprovalCancelled(_)
                | Body::GrantCreated(_)
                | Body::GrantSpent(_)
                | Body::GrantRevoked(_)
        ),
        Fold::Run | Fold::Step | Fold::State | Fold::Flow => true,
    }
}

/// Whether whoever asked wants to know how the call ended; who reports an outcome knows it.
fn tells_outcome(command: &Command) -> bool {
    matches!(command, Command::Enter { .. } | Command::RuleResult { .. } | Command::Resolve { .. })
}

/// A request with fresh randomness.
pub(crate) fn request(by: &Actor, command: Command) -> Result<Request> {
    Ok(Request { by: by.clone(), command, entropy: entropy()? })
}

fn is_large(sealed: &Sealed) -> bool {
    sealed.bytes.len() > limits::INLINE_BYTES_MAX
}

fn frame(start: &Head, head: &Head, stamped: StampedFrame) -> Result<FrameRow> {
    let utf8 = |bytes: Vec<u8>| String::from_utf8(bytes).map_err(|_| StoreError::Panicked);
    let sealed = stamped.records.iter().flat_map(|stamped| &stamped.sealed);
    let contents = holdfast_core::frame::contents(sealed.filter(|sealed| !is_large(sealed)));
    if contents.as_ref().is_some_and(|contents| contents.len() > limits::FRAME_BYTES_MAX) {
        return Err(StoreError::LimitExceeded("frame_bytes_max"));
    }
    Ok(FrameRow {
        pos: 0,
        stream: 0,
        first_seq: start.seq + 1,
        last_seq: head.seq,
        head: head.hash,
        at: head.at,
        body: utf8(stamped.body)?,
        contents: contents.map(utf8).transpose()?,
    })
}

/// A stream's fold after new records.
fn folded(state: Option<State>, records: &[Stamped], parent: Option<&RunState>) -> Result<State> {
    let mut state = state;
    let mut openings = Openings::new();
    for Stamped { hash, record, sealed, .. } in records {
        if matches!(record.body.folds(), Fold::Run | Fold::State) {
            openings.extend(sealed.iter().map(|sealed| (sealed.content.commit, sealed.opening.clone())));
        }
        if let Some(state) = &mut state {
            state.apply_hashed(record, *hash, &openings)?;
        } else {
            state = Some(State::first_hashed(record, *hash, &openings, parent)?);
        }
    }
    state.ok_or(StoreError::Panicked)
}
