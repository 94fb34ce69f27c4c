//! Barriers: one small commit that waits for the disk (and for standbys, where the server is told to) makes
//! everything durable that was committed before it. Whoever finds none running makes one for all.
//!
//! A server that crashed has lost what no barrier had reached, and says nothing about it. But a crash ends every
//! connection: a barrier over one that was there before a commit began, and still is, covers that commit. What
//! was begun before the connection was made is looked for, and what cannot be looked for counts as lost.

use std::collections::{BTreeSet, VecDeque};
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use holdfast_core::limits;

use super::address::PgAddress;
use super::link::Link;
use super::open::register;
use super::turn::{Frame, has_frame, pause};
use crate::clock::Stopwatch;
use crate::error::{Result, StoreError};

const TOUCH: &str = "UPDATE processes SET barriers = barriers + 1 WHERE id = $1";

#[derive(Debug, Default)]
struct Progress {
    committed: u64,
    synced: u64,
    wanted: u64,
    running: bool,
    lingering: bool,
    stopped: bool,
    /// Commits that no barrier has reached.
    unsynced: VecDeque<Unsynced>,
    /// Commits that a crash of the server took back, or may have.
    lost: BTreeSet<u64>,
}

/// A commit that no barrier has reached.
#[derive(Debug, Clone)]
struct Unsynced {
    number: u64,
    began: Moment,
    /// None, if it wrote no frame.
    frames: Vec<Frame>,
}

/// Moments of a handle, in their order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Moment(u64);

/// The connection that barriers go over, and when it had been made.
#[derive(Debug)]
struct Line {
    link: Link,
    made: Moment,
}

/// The barriers of one handle.
#[derive(Debug)]
pub(super) struct Syncer {
    address: PgAddress,
    process: String,
    wait_ms: u64,
    line: Mutex<Option<Line>>,
    moments: AtomicU64,
    progress: Mutex<Progress>,
    changed: Condvar,
    pub(super) syncs: AtomicU64,
}

impl Syncer {
    pub(super) fn new(address: PgAddress, process: String, wait_ms: u64, link: Option<Link>) -> Self {
        Self {
            address,
            process,
            wait_ms,
            line: Mutex::new(link.map(|link| Line { link, made: Moment(0) })),
            moments: AtomicU64::new(1),
            progress: Mutex::default(),
            changed: Condvar::new(),
            syncs: AtomicU64::new(0),
        }
    }

    fn progress(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Now.
    pub(super) fn moment(&self) -> Moment {
        Moment(self.moments.fetch_add(1, Ordering::SeqCst))
    }

    /// Counts a commit, whose transaction had not begun at a moment.
    pub(super) fn committed(&self, began: Moment, frames: Vec<Frame>) -> u64 {
        let mut progress = self.progress();
        progress.committed += 1;
        let number = progress.committed;
        progress.unsynced.push_back(Unsynced { number, began, frames });
        number
    }

    fn is_synced(&self, number: u64) -> bool {
        self.progress().synced >= number
    }

    /// Whether there is more that no barrier has reached than should be kept in mind.
    pub(super) fn is_behind(&self) -> bool {
        self.progress().unsynced.len() > limits::UNSYNCED_MAX
    }

    /// Returns when commits are durable, all of them: of one that a crash took back nobody may act on the rest
    /// as if it were there.
    pub(super) fn wait(&self, numbers: RangeInclusive<u64>) -> Result<()> {
        let number = *numbers.end();
        let mut progress = self.progress();
        loop {
            if progress.lost.range(numbers.clone()).next().is_some() {
                return Err(gone());
            }
            if progress.synced >= number {
                return Ok(());
            }
            if progress.running {
                progress = self.changed.wait(progress).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            progress.running = true;
            let covers = progress.committed;
            let pending: Vec<Unsynced> = progress.unsynced.iter().cloned().collect();
            drop(progress);
            let synced = self.sync(&pending);
            self.syncs.fetch_add(1, Ordering::Relaxed);
            progress = self.progress();
            progress.running = false;
            self.changed.notify_all();
            match synced {
                Ok(lost) => {
                    progress.lost.extend(lost);
                    progress.synced = progress.synced.max(covers);
                    progress.unsynced.retain(|commit| commit.number > covers);
                }
                Err(error) => return Err(error), // the next who waits tries again
            }
        }
    }

    /// One barrier. Returns the commits that it should cover, and that are not there.
    fn sync(&self, pending: &[Unsynced]) -> Result<Vec<u64>> {
        let mut slot = self.line.lock().unwrap_or_else(PoisonError::into_inner);
        let (waited, mut tries) = (Stopwatch::start(), 0);
        loop {
            match self.try_sync(&mut slot, pending) {
                Err(StoreError::Unreachable(told)) => {
                    *slot = None;
                    if waited.elapsed_ms() > self.wait_ms {
                        return Err(StoreError::Unreachable(told));
                    }
                    tries += 1;
                    pause(tries)?;
                }
                done => return done,
            }
        }
    }

    fn try_sync(&self, slot: &mut Option<Line>, pending: &[Unsynced]) -> Result<Vec<u64>> {
        if slot.as_ref().is_none_or(|line| line.link.is_closed()) {
            let link = Link::open(&self.address, &self.process, true)?;
            *slot = Some(Line { link, made: self.moment() });
        }
        let Line { link, made } = slot.as_mut().ok_or(StoreError::Closed)?;
        self.touch(link)?;
        let mut lost = Vec::new();
        for commit in pending.iter().filter(|commit| commit.began <= *made) {
            if !is_there(link, commit)? {
                lost.push(commit.number);
            }
        }
        Ok(lost)
    }

    /// Writes a row, and waits until that is durable: a transaction that wrote nothing waits for nothing. Our
    /// row may be gone, when somebody else saw no connection of ours.
    fn touch(&self, link: &mut Link) -> Result<()> {
        if link.execute(TOUCH, &[self.process.as_str().into()])? == 1 {
            return Ok(());
        }
        register(link, &self.process)?;
        match link.execute(TOUCH, &[self.process.as_str().into()])? {
            1 => Ok(()),
            _ => Err(StoreError::Failed("the row of this process cannot be written".to_owned())),
        }
    }

    /// Has a commit synced within [`limits::LINGER_MS`], by somebody who waits anyway or by a thread of its own.
    pub(super) fn soon(self: &Arc<Self>, number: u64) {
        let mut progress = self.progress();
        progress.wanted = progress.wanted.max(number);
        if !progress.lingering {
            let syncer = Arc::clone(self);
            let thread = std::thread::Builder::new().name("holdfast-sync".to_owned());
            progress.lingering = thread.spawn(move || syncer.linger()).is_ok();
            if !progress.lingering {
                drop(progress);
                let _ = self.wait(number..=number); // no thread to be had: the caller waits after all
                return;
            }
        }
        self.changed.notify_all();
    }

    fn linger(&self) {
        let linger = Duration::from_millis(limits::LINGER_MS);
        let mut progress = self.progress();
        while !progress.stopped {
            if progress.wanted <= progress.synced {
                progress = self.changed.wait(progress).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            let wanted = progress.wanted;
            let waited = self.changed.wait_timeout_while(progress, linger, |progress| {
                !progress.stopped && progress.synced < wanted
            });
            drop(waited.unwrap_or_else(PoisonError::into_inner));
            let failed = self.wait(wanted..=wanted).is_err();
            progress = self.progress();
            if failed {
                progress.wanted = progress.synced; // whoever must know it is durable waits for it
            }
        }
    }

    /// Lets the lingering thread go; everything that was committed is synced, and our row goes.
    pub(super) fn stop(&self) -> Result<()> {
        let wanted = {
            let mut progress = self.progress();
            progress.stopped = true;
            progress.committed
        };
        self.changed.notify_all();
        // Whoever waited for what a crash took back was told so.
        let done = self
            .wait(wanted..=wanted)
            .or_else(|error| if self.is_synced(wanted) { Ok(()) } else { Err(error) });
        if let Some(Line { mut link, .. }) = self.line.lock().unwrap_or_else(PoisonError::into_inner).take() {
            let _ = link.execute("DELETE FROM processes WHERE id = $1", &[self.process.as_str().into()]);
            link.close();
        }
        done
    }
}

/// Whether a commit survived. One that wrote no frame may have read what did not.
fn is_there(link: &mut Link, commit: &Unsynced) -> Result<bool> {
    for frame in &commit.frames {
        if !has_frame(link, frame)? {
            return Ok(false);
        }
    }
    Ok(!commit.frames.is_empty())
}

fn gone() -> StoreError {
    StoreError::Unreachable(
        "the server crashed and lost what was committed just before; it was not acknowledged".to_owned(),
    )
}
