//! Barriers: one small commit that waits for the disk (and for standbys, where the server is told to) makes
//! everything durable that was committed before it. Whoever finds none running makes one for all.
//!
//! A server that crashed has lost what no barrier had reached, and says nothing about it. So the frames since
//! the last barrier are remembered, and after the connection was lost they are looked for before the next
//! barrier counts.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use holdfast_core::limits;

use super::address::PgAddress;
use super::link::Link;
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
    /// Commits that no barrier has reached, with their numbers.
    unsynced: VecDeque<(u64, Frame)>,
    /// Up to here a server lost what was committed: (first number, last number).
    lost: Option<(u64, u64)>,
}

/// The barriers of one handle.
#[derive(Debug)]
pub(super) struct Syncer {
    address: PgAddress,
    process: String,
    wait_ms: u64,
    link: Mutex<Option<Link>>,
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
            link: Mutex::new(link),
            progress: Mutex::default(),
            changed: Condvar::new(),
            syncs: AtomicU64::new(0),
        }
    }

    fn progress(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a commit.
    pub(super) fn committed(&self, frames: Vec<Frame>) -> u64 {
        let mut progress = self.progress();
        progress.committed += 1;
        let number = progress.committed;
        progress.unsynced.extend(frames.into_iter().map(|frame| (number, frame)));
        number
    }

    /// Whether there is more that no barrier has reached than should be kept in mind.
    pub(super) fn is_behind(&self) -> bool {
        self.progress().unsynced.len() > limits::UNSYNCED_MAX
    }

    /// Returns when a commit is durable.
    pub(super) fn wait(&self, number: u64) -> Result<()> {
        let mut progress = self.progress();
        loop {
            if progress.lost.is_some_and(|(first, last)| (first..=last).contains(&number)) {
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
            let pending: Vec<Frame> = progress.unsynced.iter().map(|(_, frame)| frame.clone()).collect();
            drop(progress);
            let synced = self.sync(&pending);
            self.syncs.fetch_add(1, Ordering::Relaxed);
            progress = self.progress();
            progress.running = false;
            self.changed.notify_all();
            match synced {
                Ok(whole) => {
                    if !whole {
                        progress.lost = Some((progress.synced + 1, covers));
                    }
                    progress.synced = progress.synced.max(covers);
                    progress.unsynced.retain(|(number, _)| *number > covers);
                }
                Err(error) => return Err(error), // the next who waits tries again
            }
        }
    }

    /// One barrier. False: it is there, and some of what it should cover is not.
    fn sync(&self, pending: &[Frame]) -> Result<bool> {
        let mut slot = self.link.lock().unwrap_or_else(PoisonError::into_inner);
        let (waited, mut tries) = (Stopwatch::start(), 0);
        loop {
            let fresh = slot.as_ref().is_none_or(Link::is_closed);
            match self.try_sync(&mut slot, if fresh { pending } else { &[] }) {
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

    fn try_sync(&self, slot: &mut Option<Link>, pending: &[Frame]) -> Result<bool> {
        if slot.as_ref().is_none_or(Link::is_closed) {
            *slot = Some(Link::open(&self.address, &self.process, true)?);
        }
        let link = slot.as_mut().ok_or(StoreError::Closed)?;
        link.execute(TOUCH, &[self.process.as_str().into()])?;
        for frame in pending {
            if !has_frame(link, frame)? {
                return Ok(false);
            }
        }
        Ok(true)
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
                let _ = self.wait(number); // no thread to be had: the caller waits after all
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
            let failed = self.wait(wanted).is_err();
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
        let done = self.wait(wanted);
        if let Some(mut link) = self.link.lock().unwrap_or_else(PoisonError::into_inner).take() {
            let _ = link.execute("DELETE FROM processes WHERE id = $1", &[self.process.as_str().into()]);
            link.close();
        }
        done
    }
}

fn gone() -> StoreError {
    StoreError::Unreachable(
        "the server crashed and lost what was committed just before; it was not acknowledged".to_owned(),
    )
}
