//! The engine: runs the core's decisions in a store's turns. It is the only place that commits.

mod cache;
mod call;
mod claim;
mod desk;
mod export;
mod gateway;
mod import;
mod leader;
mod load;
mod project;
mod queue;
mod reading;
mod replay;
mod seal;
mod shared;

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};

use holdfast_core::canonical::{is_canonical, to_bytes};
use holdfast_core::clock::Now;
use holdfast_core::content::Commit;
use holdfast_core::ids::{RunId, SessionId, StreamId};
use holdfast_core::limits;
use holdfast_core::mutants::{Mutant, mutant};
use holdfast_core::records::{
    Actor, Body, Draft, Fault, Labels, Media, ReadError, Record, SessionCreated, StoreCreated, StoreRestored,
    Text,
};
use holdfast_core::run::{Act, Command, NewRun};
use holdfast_core::state::State;

use crate::clock::random;
use crate::error::{Result, StoreError};
use crate::rows::Rows;
use crate::store::{Committed, Store, Work};
use cache::Cache;
use desk::{Desk, Working};
use gateway::Memory;
use queue::{Answer, Job, Queue, Ticket};

pub use call::{Call, Told};
pub use claim::{ClaimRequest, Claimed};
pub use desk::Written;
pub use export::Exported;
pub use gateway::Served;
pub(crate) use import::Import;
pub use leader::{Leader, Post};
pub(crate) use load::{add_blobs, fold_run_at, fold_stream, openings, openings_of, snapshot, texts};
pub(crate) use project::{project, write as write_projection};
pub use queue::Durability;
pub use reading::{Page, ReadRecord};
pub use replay::{Committed as CommittedPatch, Replay};

/// The format of journals that this build writes.
const FORMAT: u32 = 1;
/// A store that can be told what to do.
#[derive(Debug)]
pub struct Engine {
    store: Arc<dyn Store>,
    queue: Queue,
    cache: Mutex<Cache>,
    memory: Memory,
}

/// One job as a part of a turn.
struct Part<'a> {
    engine: &'a Engine,
    working: &'a Mutex<Working>,
    ticket: &'a Ticket,
}

impl Work for Part<'_> {
    fn run(&mut self, rows: &mut dyn Rows, now: &Now) -> Result<()> {
        let mut working = self.working.lock().unwrap_or_else(PoisonError::into_inner);
        let mut job = self.ticket.job();
        let store = &*self.engine.store;
        let (cache, memory) = (&self.engine.cache, &self.engine.memory);
        let mut desk = Desk { rows, now, store, working: &mut working, cache, memory, barrier: false };
        // Its own failure, where each work is committed by itself: those before it stay.
        let ran = catch_unwind(AssertUnwindSafe(|| (job.operation)(&mut desk)));
        let answer = ran.unwrap_or(Err(StoreError::Panicked));
        if desk.barrier {
            job.durability = Durability::Barrier; // whatever its caller asked for
        }
        if let Err(error) = &answer
            && error.is_of_engine()
        {
            return Err(error.clone());
        }
        job.answer = Some(answer);
        if mutant(Mutant::AnswerEarly) {
            self.ticket.done();
        }
        Ok(())
    }

    fn sees_latest(&self) -> bool {
        self.ticket.job().sees_latest
    }

    fn about(&self) -> Option<StreamId> {
        self.ticket.job().about
    }

    fn committed(&mut self) {
        let working = std::mem::take(&mut *self.working.lock().unwrap_or_else(PoisonError::into_inner));
        self.engine.cache.lock().unwrap_or_else(PoisonError::into_inner).put_back(working.0);
    }

    fn undone(&mut self) {
        *self.working.lock().unwrap_or_else(PoisonError::into_inner) = Working::default();
        self.ticket.job().answer = None; // an answer that was ready speaks of what is not there
    }

    fn failed(&mut self, error: StoreError) {
        self.undone();
        self.ticket.job().answer = Some(Err(error));
    }
}

impl Engine {
    /// An engine on a store; the store's own stream begins when it has none yet.
    pub fn new(store: Arc<dyn Store>, read_only: bool) -> Result<Self> {
        let engine =
            Self { store, queue: Queue::default(), cache: Mutex::new(Cache::new()), memory: Memory::new() };
        if !read_only {
            engine.begin()?;
        }
        Ok(engine)
    }

    fn begin(&self) -> Result<()> {
        let mut begun = false;
        self.store.look(&mut |look| {
            begun = look.stream(StreamId::Store)?.is_some();
            Ok(())
        })?;
        if begun {
            return Ok(());
        }
        let store = self.store.id();
        self.run(Durability::Barrier, false, move |desk| {
            if desk.state(StreamId::Store)?.is_some() {
                return Ok(());
            }
            let body = StoreCreated { format: FORMAT, store };
            desk.note(StreamId::Store, vec![Draft::new(body, Actor::system())]).map(|_| ())
        })
    }

    pub fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }

    /// Runs an operation in a turn, with others or alone.
    fn run<T: Send + 'static>(
        &self,
        durability: Durability,
        outcome: bool,
        operation: impl FnMut(&mut Desk<'_>) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        self.run_job(Job::new(durability, outcome, operation))
    }

    fn run_job<T: Send + 'static>(&self, job: Job) -> Result<T> {
        self.store.ready(true)?; // before any lock: in a forked child one may be held for ever
        let answer: Answer = self.queue.submit(job, |batch| self.lead(batch))?;
        answer.downcast::<T>().map(|answer| *answer).map_err(|_| StoreError::Panicked)
    }

    /// One batch: turn, answers, barrier, the rest of the answers.
    fn lead(&self, batch: &[Arc<Ticket>]) {
        let done = self.turn(batch);
        let committed = match done {
            Ok(committed) => committed,
            Err(error) => {
                self.queue.hand_over();
                for ticket in batch {
                    ticket.job().answer.get_or_insert_with(|| Err(error.clone()));
                    ticket.done();
                }
                return;
            }
        };
        let wants = |ticket: &Arc<Ticket>| {
            let job = ticket.job();
            if matches!(job.answer, Some(Ok(_))) { job.durability } else { Durability::Commit }
        };
        let (waiting, rest): (Vec<_>, Vec<_>) = batch.iter().partition(|t| wants(t) == Durability::Barrier);
        if rest.iter().any(|ticket| wants(ticket) == Durability::Soon) && waiting.is_empty() {
            self.store.barrier_soon(committed);
        }
        if waiting.is_empty() {
            self.queue.hand_over();
        } else {
            self.queue.gather();
        }
        for ticket in rest {
            ticket.done();
        }
        if waiting.is_empty() {
            return;
        }
        let synced = self.store.barrier(committed);
        self.queue.gathered();
        for ticket in waiting {
            if let Err(error) = &synced {
                ticket.job().answer = Some(Err(error.clone()));
            }
            ticket.done();
        }
    }

    /// The turn of a batch. On a full disk the outcomes of work that was done get the reserve.
    fn turn(&self, batch: &[Arc<Ticket>]) -> Result<Committed> {
        let first = self.try_turn(batch);
        let Err(StoreError::DiskFull(_)) = &first else { return first };
        let outcomes: Vec<Arc<Ticket>> = batch.iter().filter(|t| t.job().outcome).cloned().collect();
        if outcomes.is_empty() || !self.store.free_reserve() {
            return first;
        }
        let second = self.try_turn(&outcomes);
        self.store.keep_reserve(); // what is left of it is for the next outcome, not for new work
        if let (Ok(_), Err(full)) = (&second, first) {
            for ticket in batch.iter().filter(|ticket| !ticket.job().outcome) {
                ticket.job().answer = Some(Err(full.clone()));
            }
        }
        second
    }

    fn try_turn(&self, batch: &[Arc<Ticket>]) -> Result<Committed> {
        let working = Mutex::new(Working::default());
        let mut parts: Vec<Part<'_>> =
            batch.iter().map(|ticket| Part { engine: self, working: &working, ticket }).collect();
        let mut works: Vec<&mut dyn Work> = Vec::with_capacity(parts.len());
        for part in &mut parts {
            works.push(part);
        }
        let done = catch_unwind(AssertUnwindSafe(|| self.store.turn(&mut works)));
        let done = done.unwrap_or(Err(StoreError::Panicked));
        if done.is_err() {
            parts.iter_mut().for_each(Work::undone); // nothing of it happened
        }
        done
    }

    /// Runs what is no command: repairs.
    pub(crate) fn with_desk(
        &self,
        operation: impl FnMut(&mut Desk<'_>) -> Result<()> + Send + 'static,
    ) -> Result<()> {
        self.run(Durability::Barrier, false, operation)
    }

    /// Blobs that entries name are what the entries say, before the turn begins: reading them takes time.
    fn check_blobs(&self, command: &Command) -> Result<()> {
        let entries = match command {
            Command::Append { entries, .. } => entries.as_slice(),
            Command::Act { act, .. } => match &**act {
                Act::Note { entry } => std::slice::from_ref(&**entry),
                _ => return Ok(()),
            },
            _ => return Ok(()),
        };
        for content in entries.iter().flat_map(|entry| entry.blobs.values()) {
            let blob = self.store.blobs().get(&content.commit)?;
            let json = content.media == Media::json();
            let sized = u64::try_from(blob.bytes.len()).ok() == Some(content.bytes);
            if !sized || (json && !is_canonical(&blob.bytes).unwrap_or(false)) {
                let message =
                    "the blob has another length, or is not the canonical JSON that its media type says";
                return Err(ReadError::new(Fault::BadValue, "$.blobs", message).into());
            }
        }
        Ok(())
    }

    /// A fork of a run, from a record on.
    pub fn fork(&self, parent: RunId, at: u64, by: &Actor, command: Command) -> Result<Written> {
        let request = desk::request(by, command)?;
        self.run(Durability::Barrier, false, move |desk| desk.fork(parent, at, &request))
    }

    pub fn create_session(&self, by: &Actor, labels: &Labels) -> Result<SessionId> {
        let (by, labels, random) = (by.clone(), labels.clone(), random()?);
        self.run(Durability::Barrier, false, move |desk| {
            let session = SessionId::new(desk.now.wall_ms, random);
            let body = SessionCreated { labels: labels.clone(), session };
            desk.note(StreamId::Session(session), vec![Draft::new(body, by.clone())])?;
            Ok(session)
        })
    }

    /// Erases some contents: values and salts go, commitments stay.
    fn erase(&self, run: RunId, by: &Actor, command: Command) -> Result<u64> {
        let request = desk::request(by, command)?;
        let (erased, blobs): (u64, Vec<Commit>) =
            self.run(Durability::Barrier, false, move |desk| desk.erase(run, &request))?;
        // Forks that were folded over it hold copies of what is gone.
        self.cache.lock().unwrap_or_else(PoisonError::into_inner).clear();
        for blob in blobs {
            self.remove_unused(blob, false)?;
        }
        Ok(erased)
    }

    /// Erases every content of an ended run that is still there. Returns how many there were.
    pub fn forget(&self, run: RunId, by: &Actor, reason: Option<&Text>) -> Result<u64> {
        let (mut erased, mut count) = (BTreeSet::new(), 0);
        let (mut found, mut after) = (Vec::new(), 0);
        loop {
            let page = self.read(StreamId::Run(run), after)?;
            for read in &page.records {
                let record = Record::parse(&read.text)?;
                if let Body::ContentErased(gone) = &record.body {
                    erased.extend(gone.commits.iter().copied());
                }
                found.extend(record.contents().into_iter().map(|content| content.commit));
                after = read.seq;
            }
            if !page.more {
                break;
            }
        }
        let left: BTreeSet<Commit> = found.into_iter().filter(|commit| !erased.contains(commit)).collect();
        let left: Vec<Commit> = left.into_iter().collect();
        for commits in left.chunks(limits::ERASED_TOGETHER_MAX) {
            let command = Command::Erase { commits: commits.to_vec(), reason: reason.cloned() };
            count += self.erase(run, by, command)?;
        }
        self.store.scrub()?; // also when all was erased before: a reader may have been in the way then
        Ok(count)
    }

    /// Removes a blob unless something refers to it, while nobody else can come to.
    fn remove_unused(&self, commit: Commit, dry_run: bool) -> Result<bool> {
        let remove = Job::new(Durability::Commit, false, move |desk| {
            desk.rows.hold_blob(&commit, true)?;
            let unused = !desk.rows.refers_to(&commit)?;
            if unused && !dry_run {
                desk.store.blobs().remove(&commit)?;
            }
            Ok(unused)
        });
        self.run_job(Job { sees_latest: true, ..remove })
    }

    /// Removes blobs that nothing refers to and that are older than the grace. Returns count and bytes.
    pub fn collect(&self, older_than_ms: Option<u64>, dry_run: bool) -> Result<(u64, u64)> {
        self.store.ready(true)?;
        let older_than_ms = older_than_ms.unwrap_or(limits::BLOB_GRACE_MS);
        let (files, left_over) = self.store.blobs().list()?;
        let mut collected = (0, 0);
        let now = self.store.now().wall_ms;
        let old = files.into_iter().filter(|file| now.saturating_sub(file.modified_ms) >= older_than_ms);
        for file in old {
            if self.remove_unused(file.commit, dry_run)? {
                collected = (collected.0 + 1, collected.1 + file.bytes);
            }
        }
        if !dry_run && older_than_ms > 0 {
            for path in left_over {
                let _ = std::fs::remove_file(path); // a writer's temporary file: it is not missed
            }
        }
        Ok(collected)
    }

    /// Keeps bytes as a blob, durably; a record may refer to it afterwards.
    pub fn put_blob(&self, bytes: &[u8]) -> Result<Commit> {
        self.store.ready(true)?;
        self.store.blobs().put(bytes)
    }

    /// The bytes of a blob, checked against its commitment.
    pub fn get_blob(&self, name: &Commit) -> Result<Vec<u8>> {
        self.store.ready(false)?;
        Ok(self.store.blobs().get(name)?.bytes)
    }

    /// Makes everything that was committed so far durable.
    pub fn barrier(&self) -> Result<()> {
        self.run(Durability::Barrier, false, |_| Ok(()))
    }

    /// The store came back from a backup: a new epoch, and every open run waits for a person.
    pub(crate) fn restored(&self, epoch: u32) -> Result<u64> {
        self.run(Durability::Commit, false, move |desk| {
            let Some(State::Store(state)) = desk.state(StreamId::Store)? else {
                return Err(StoreError::BadBackup("the backup has no stream of its own".to_owned()));
            };
            let (head, seq) = (state.head.hash, state.head.seq);
            let body = StoreRestored { epoch, head, seq };
            desk.note(StreamId::Store, vec![Draft::new(body, Actor::system())]).map(|_| ())
        })?;
        let mut parked = 0;
        for run in self.open_runs()? {
            let parks = move |desk: &mut Desk<'_>| desk.chore(run, Command::Restored {});
            self.run(Durability::Commit, false, parks)?;
            parked += 1;
        }
        self.barrier()?;
        Ok(parked)
    }
}

/// What a worker reports about work that was done: it must find room even on a full disk.
fn is_outcome(command: &Command) -> bool {
    matches!(
        command,
        Command::Patch { .. }
            | Command::Wait { .. }
            | Command::Fail { .. }
            | Command::Complete { .. }
            | Command::ConfirmCancel { .. }
            | Command::Release { .. }
            | Command::Settle { .. }
            | Command::Doubt { .. }
            | Command::RuleResult { .. }
            | Command::Late { .. }
            | Command::Resolve { .. }
            | Command::Take { .. }
            | Command::CancelAwait { .. }
            | Command::Diverge { .. }
    )
}

/// Whether the run under a key is the one that is asked for.
fn same_run(desk: &mut Desk<'_>, found: RunId, asked: &NewRun) -> Result<RunId> {
    let conflict = Err(StoreError::KeyConflict(found));
    let Some(run) = desk.run(found)? else { return conflict };
    if run.agent != asked.agent {
        return conflict;
    }
    let input = run.input.clone();
    let value = reading::value_of(&*desk.rows, desk.store, StreamId::Run(found), 1, &input)?;
    match value {
        Some(value) if to_bytes(&value)? == to_bytes(&asked.input.value)? => Ok(found),
        _ => conflict,
    }
}
