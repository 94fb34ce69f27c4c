//! Writing the log back into the database. The greater part is done beside the turns, by a thread with a
//! connection of its own: copying pages and syncing them takes tens of milliseconds, and nobody has to wait
//! for that. While others commit, such a pass never comes to the end of the log, so the next turn after it
//! writes back the little that is left, and the log begins anew.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use rusqlite::Connection;

use super::failed;
use super::open::writer;
use crate::error::{Result, StoreError};

/// Whether a pass is under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Pass {
    None,
    Runs,
    /// It has ended, and the rest is for the next turn.
    Ended,
}

/// The passes beside the turns of one handle.
#[derive(Debug)]
pub(super) struct WriteBack {
    path: PathBuf,
    pass: Mutex<Pass>,
    changed: Condvar,
}

impl WriteBack {
    pub(super) fn new(folder: &Path) -> Self {
        Self { path: folder.to_owned(), pass: Mutex::new(Pass::None), changed: Condvar::new() }
    }

    fn pass(&self) -> MutexGuard<'_, Pass> {
        self.pass.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins a pass, unless one is under way; `failed` hears what goes wrong in it. Whether one is. What is
    /// at the path must still be what `check` knows.
    pub(super) fn begin(
        self: &Arc<Self>,
        check: impl FnOnce() -> Result<()> + Send + 'static,
        failed: impl FnOnce(&StoreError) + Send + 'static,
    ) -> bool {
        let mut pass = self.pass();
        if *pass != Pass::None {
            return true;
        }
        let this = Arc::clone(self);
        let thread = std::thread::Builder::new().name("holdfast-log".to_owned());
        let spawned = thread.spawn(move || {
            let _ended = Ended(&this); // also if it panics: somebody may wait for it
            if let Err(error) = write_back(&this.path, check) {
                failed(&error);
            }
        });
        if spawned.is_ok() {
            *pass = Pass::Runs;
        }
        spawned.is_ok()
    }

    /// Whether a pass has ended since this was asked last.
    pub(super) fn take_ended(&self) -> bool {
        let mut pass = self.pass();
        let ended = *pass == Pass::Ended;
        if ended {
            *pass = Pass::None;
        }
        ended
    }

    /// Returns when no pass is under way.
    pub(super) fn wait(&self) {
        let mut pass = self.pass();
        while *pass == Pass::Runs {
            pass = self.changed.wait(pass).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

fn write_back(folder: &Path, check: impl FnOnce() -> Result<()>) -> Result<()> {
    let connection = writer(folder)?;
    check()?;
    checkpoint(&connection).map(|_| ())
}

/// Says that a pass has ended, whichever way.
struct Ended<'a>(&'a WriteBack);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        *self.0.pass() = Pass::Ended;
        self.0.changed.notify_all();
    }
}

/// Writes back as much of the log as readers allow; whether nobody else was just doing so.
pub(super) fn checkpoint(connection: &Connection) -> Result<bool> {
    let busy: i64 = connection
        .query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |row| row.get(0))
        .map_err(|e| failed(&e))?;
    Ok(busy == 0)
}
