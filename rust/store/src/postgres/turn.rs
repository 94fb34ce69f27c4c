//! One turn: each work in a transaction of its own, run again where somebody else was faster.

use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::time::Duration;

use holdfast_core::limits;
use holdfast_core::records::RecordHash;

use super::PgStore;
use super::link::Link;
use super::look::{STREAM, STREAM_LOCKED, stream_row, unsigned};
use super::rows::PgRows;
use crate::cells::signed;
use crate::clock::{Stopwatch, random};
use crate::error::{Result, StoreError};
use crate::store::{Cell, Committed, Work};

/// Every transaction begins with it: the server's time, and what a writer must know.
const FIRST: &str = "SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint,
    (SELECT value FROM meta WHERE name = 'min_writer'), (SELECT value FROM meta WHERE name = 'epoch')";

/// A frame that a work wrote: where a look for it begins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Frame {
    pub(super) pos: i64,
    pub(super) head: RecordHash,
}

/// What became of one attempt.
enum Attempt {
    Committed(Vec<Frame>),
    /// Somebody else was faster: nothing of it happened.
    Again(StoreError),
    /// The connection was lost before anything was committed.
    Lost(StoreError),
    /// The connection was lost after COMMIT was sent.
    Unknown(Vec<Frame>, StoreError),
    Failed(StoreError),
}

impl PgStore {
    pub(super) fn take_turn(&self, works: &mut [&mut dyn Work]) -> Committed {
        let mut writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        let mut told = Committed::default();
        let mut lost = None;
        for work in works.iter_mut() {
            let began = self.syncer.moment();
            let done = match &lost {
                None => self.transact(&mut writer, *work),
                Some(error) => Err(StoreError::clone(error)),
            };
            match done {
                Ok(frames) => {
                    told.newest = frames.last().map(|frame| (frame.pos, frame.head)).or(told.newest);
                    told.number = self.syncer.committed(began, frames);
                    told.first = if told.first == 0 { told.number } else { told.first };
                    self.commits.fetch_add(1, Ordering::Relaxed);
                    work.committed();
                }
                Err(error) => {
                    if matches!(error, StoreError::Unreachable(_)) {
                        lost = Some(error.clone()); // nobody else of this turn need wait for it too
                    }
                    work.failed(error);
                }
            }
        }
        self.commands.fetch_add(u64::try_from(works.len()).unwrap_or(0), Ordering::Relaxed);
        if self.syncer.is_behind() {
            self.syncer.soon(told.number);
        }
        told
    }

    fn transact(&self, writer: &mut Option<Link>, work: &mut dyn Work) -> Result<Vec<Frame>> {
        let waited = Stopwatch::start();
        let mut tries = 0;
        loop {
            let link = self.connected(writer, waited)?;
            let error = match self.attempt(link, work, tries) {
                Attempt::Committed(frames) => return Ok(frames),
                Attempt::Failed(error) => {
                    let _ = link.rollback(); // if this fails too, the next transaction does
                    return Err(error);
                }
                Attempt::Again(error) => {
                    if link.rollback().is_err() {
                        *writer = None;
                    }
                    error
                }
                Attempt::Lost(error) => {
                    *writer = None;
                    error
                }
                Attempt::Unknown(frames, error) => {
                    *writer = None;
                    if self.was_committed(writer, &frames, waited)? {
                        return Ok(frames);
                    }
                    error
                }
            };
            work.undone();
            tries += 1;
            if waited.elapsed_ms() > self.wait_ms {
                return Err(match error {
                    StoreError::Conflict(holder) => {
                        StoreError::Busy { holder, waited_ms: waited.elapsed_ms() }
                    }
                    other => other,
                });
            }
            pause(tries)?;
        }
    }

    /// The writing connection, made anew as long as there is time for it.
    fn connected<'l>(&self, writer: &'l mut Option<Link>, waited: Stopwatch) -> Result<&'l mut Link> {
        if writer.as_ref().is_some_and(Link::is_closed) {
            *writer = None;
        }
        let mut tries = 0;
        while writer.is_none() {
            match Link::open(&self.address, &self.process, false) {
                Ok(link) => *writer = Some(link),
                Err(StoreError::Unreachable(_)) if waited.elapsed_ms() < self.wait_ms => {
                    tries += 1;
                    pause(tries)?;
                }
                Err(error) => return Err(error),
            }
        }
        writer.as_mut().ok_or(StoreError::Closed)
    }

    fn attempt(&self, link: &mut Link, work: &mut dyn Work, tries: u32) -> Attempt {
        let ran = self.run(link, work, tries);
        let frames = match ran {
            Ok(frames) => frames,
            Err(StoreError::Conflict(told)) => return Attempt::Again(StoreError::Conflict(told)),
            Err(StoreError::Unreachable(told)) => return Attempt::Lost(StoreError::Unreachable(told)),
            Err(error) => return Attempt::Failed(error),
        };
        match link.commit() {
            Ok(()) => Attempt::Committed(frames),
            Err(StoreError::Conflict(told)) => Attempt::Again(StoreError::Conflict(told)),
            Err(StoreError::Unreachable(told)) => Attempt::Unknown(frames, StoreError::Unreachable(told)),
            Err(error) => Attempt::Failed(error),
        }
    }

    /// Everything up to COMMIT.
    fn run(&self, link: &mut Link, work: &mut dyn Work, tries: u32) -> Result<Vec<Frame>> {
        let how = if work.sees_latest() { "READ COMMITTED" } else { "REPEATABLE READ" };
        let asked = self.clock.boot_ms();
        let how = format!("BEGIN ISOLATION LEVEL {how} READ WRITE");
        // Who lost a race takes the locks before it reads, so that it cannot lose for ever.
        let locks = tries > 1;
        let (first, seen) = match work.about() {
            Some(stream) => {
                let sql = if locks { STREAM_LOCKED } else { STREAM };
                let (first, rows) = link.begin_with(&how, FIRST, sql, &[stream.to_string().into()])?;
                (first, Some((stream, rows.first().map(stream_row).transpose()?)))
            }
            None => (link.begin(&how, FIRST)?, None),
        };
        let server_ms = unsigned(first.get(0))?;
        self.clock.seen(server_ms, asked);
        self.check_writer(first.get(1), first.get(2))?;
        let now = self.clock.at(server_ms);
        let mut rows = PgRows::new(link, &self.process, locks, seen);
        work.run(&mut rows, &now)?;
        rows.finish()
    }

    /// Another process may have migrated the store, or restored it, since it was opened.
    fn check_writer(&self, min_writer: Option<&str>, epoch: Option<&str>) -> Result<()> {
        let needed: u32 = min_writer.and_then(|needed| needed.parse().ok()).unwrap_or(0);
        if needed > self.schema {
            let told = format!("it needs schema {needed}, this process has {}", self.schema);
            return Err(StoreError::NewerStore(told));
        }
        if epoch.and_then(|epoch| epoch.parse().ok()) == Some(self.epoch) {
            return Ok(());
        }
        Err(StoreError::Poisoned(
            "the store came back from a backup since it was opened: open it again".to_owned(),
        ))
    }

    /// Whether a commit that nobody answered happened. The place of its last frame is had only when the
    /// transaction that took it has ended, either way. One that wrote no frame can be run again.
    fn was_committed(&self, writer: &mut Option<Link>, frames: &[Frame], waited: Stopwatch) -> Result<bool> {
        let Some(frame) = frames.last() else { return Ok(false) };
        let mut tries = 0;
        loop {
            let link = self.connected(writer, waited)?;
            match look_for(link, frame) {
                Ok(found) => return Ok(found),
                Err(StoreError::Unreachable(_) | StoreError::Conflict(_))
                    if waited.elapsed_ms() < self.wait_ms =>
                {
                    *writer = None;
                    tries += 1;
                    pause(tries)?;
                }
                Err(error) => return Err(unknown(&error)),
            }
        }
    }
}

/// A commit whose end could not be learnt. Whoever asked must look before it asks again.
fn unknown(error: &StoreError) -> StoreError {
    StoreError::Unreachable(format!("the commit may or may not have happened ({error})"))
}

fn look_for(link: &mut Link, frame: &Frame) -> Result<bool> {
    link.begin("BEGIN ISOLATION LEVEL READ COMMITTED", "SELECT 1")?;
    // The server may still be at it. To take the same place waits for that; a lock of the stream's row would
    // not where the row is new too, and seen by nobody.
    link.execute("INSERT INTO unsealed (pos) VALUES ($1) ON CONFLICT DO NOTHING", &[frame.pos.into()])?;
    let found = has_frame(link, frame)?;
    link.rollback()?;
    Ok(found)
}

/// Whether a frame is there, and the one that was meant.
pub(super) fn has_frame(link: &mut Link, frame: &Frame) -> Result<bool> {
    let sql = "SELECT 1 FROM frames WHERE pos = $1 AND head = $2";
    Ok(!link.query(sql, &[frame.pos.into(), frame.head.to_string().into()])?.is_empty())
}

/// Waits a little longer each time, and never as long as somebody else does.
pub(super) fn pause(tries: u32) -> Result<()> {
    let most = limits::SERVER_PAUSE_MS << tries.min(7);
    let [byte] = random::<1>()?;
    let ms = most / 2 + most * u64::from(byte) / 512;
    std::thread::park_timeout(Duration::from_millis(ms)); // who is woken earlier tries earlier
    Ok(())
}

/// The cells of a page's bounds.
pub(super) fn number(number: u64) -> Cell {
    Cell::Integer(signed(number))
}
