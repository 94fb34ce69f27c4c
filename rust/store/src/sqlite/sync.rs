//! Making commits durable. SQLite commits with `synchronous=NORMAL`, which writes the log but does not
//! sync it; the sync is ours, after the turn is over, so that threads and processes share syncs. A sync
//! covers every commit that was visible when it began, whoever made it: all are in the same log.
//!
//! A sync that failed says nothing about what reached the disk, and a second one would not either: the
//! caller poisons the store.

use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use holdfast_core::limits;
use holdfast_core::mutants::{Mutant, mutant};

use crate::error::{Result, StoreError};
use crate::sqlite::folder::{DATABASE, SHM, WAL};
use crate::sqlite::locks;

/// The log and the database as this handle opened them.
#[derive(Debug)]
pub(crate) struct Files {
    database: (PathBuf, u64, u64),
    wal_path: PathBuf,
    wal: File,
    wal_id: (u64, u64),
    index: Option<File>,
}

impl Drop for Files {
    fn drop(&mut self) {
        if !locks::are_of_files() {
            std::mem::forget(self.index.take()); // SQLite has locks on it, for this and for other handles
        }
    }
}

/// Where the index of the log says how many frames the log has: a number of four bytes, as the machine
/// writes them. <https://sqlite.org/walformat.html#the_wal_index_header>
const FRAMES_AT: u64 = 16;

impl Files {
    pub(crate) fn open(folder: &Path) -> Result<Self> {
        let told = |error: &std::io::Error| StoreError::io("cannot open the write-ahead log", error);
        let (path, wal_path) = (folder.join(DATABASE), folder.join(WAL));
        let database = std::fs::metadata(&path).map_err(|e| told(&e))?;
        let wal = File::open(&wal_path).map_err(|e| told(&e))?;
        let found = wal.metadata().map_err(|e| told(&e))?;
        let wal_id = (found.dev(), found.ino());
        let index = File::open(folder.join(SHM)).map_err(|e| told(&e))?;
        Ok(Self {
            database: (path, database.dev(), database.ino()),
            wal_path,
            wal,
            wal_id,
            index: Some(index),
        })
    }

    /// Whether the files at their paths are still the ones that this handle writes to. Another copy of
    /// SQLite in this process can drop our locks and delete the log under us when it closes.
    pub(crate) fn check(&self) -> Result<()> {
        if mutant(Mutant::AnyWal) {
            return Ok(());
        }
        let id = |path: &Path| std::fs::metadata(path).ok().map(|found| (found.dev(), found.ino()));
        let (path, device, inode) = &self.database;
        if id(path) != Some((*device, *inode)) {
            return Err(StoreError::Replaced(DATABASE));
        }
        if id(&self.wal_path) != Some(self.wal_id) {
            return Err(StoreError::Replaced(WAL));
        }
        Ok(())
    }

    /// The frames that are in the log, whoever wrote them; none if that cannot be told.
    pub(crate) fn logged(&self) -> u64 {
        let mut frames = [0; 4];
        match self.index.as_ref().map(|index| index.read_exact_at(&mut frames, FRAMES_AT)) {
            Some(Ok(())) => u64::from(u32::from_ne_bytes(frames)),
            _ => 0,
        }
    }

    fn sync(&self) -> Result<()> {
        if mutant(Mutant::NoSync) {
            return Ok(());
        }
        let synced = self.wal.sync_data();
        synced.map_err(|error| StoreError::io("cannot sync the write-ahead log", &error))
    }
}

#[derive(Debug, Default)]
struct Progress {
    /// The newest commit of this handle.
    committed: u64,
    /// Every commit up to this one is durable.
    synced: u64,
    running: bool,
    /// A commit that is to be durable soon, and the thread that sees to it.
    wanted: u64,
    lingering: bool,
    stopped: bool,
    failed: Option<StoreError>,
}

/// Shares syncs among the threads of a handle.
#[derive(Debug)]
pub(crate) struct Syncer {
    files: Files,
    progress: Mutex<Progress>,
    changed: Condvar,
    pub(crate) syncs: AtomicU64,
}

impl Syncer {
    pub(crate) fn new(files: Files) -> Self {
        Self {
            files,
            progress: Mutex::new(Progress::default()),
            changed: Condvar::new(),
            syncs: AtomicU64::new(0),
        }
    }

    pub(crate) fn files(&self) -> &Files {
        &self.files
    }

    fn progress(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a commit; the caller holds the turn.
    pub(crate) fn committed(&self) -> u64 {
        let mut progress = self.progress();
        progress.committed += 1;
        progress.committed
    }

    /// Returns when a commit is durable. Whoever finds no sync running makes one for all.
    pub(crate) fn wait(&self, number: u64) -> Result<()> {
        let mut progress = self.progress();
        loop {
            if let Some(error) = &progress.failed {
                return Err(error.clone());
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
            drop(progress);
            let synced = self.files.sync();
            self.syncs.fetch_add(1, Ordering::Relaxed);
            progress = self.progress();
            progress.running = false;
            match synced {
                Ok(()) => progress.synced = progress.synced.max(covers),
                Err(error) => progress.failed = Some(error),
            }
            self.changed.notify_all();
        }
    }

    /// Has a commit synced within [`limits::LINGER_MS`], by somebody who waits anyway or by the lingering thread,
    /// which is started when it is first needed.
    pub(crate) fn soon(self: &Arc<Self>, number: u64, failed: impl Fn(&StoreError) + Send + 'static) {
        let mut progress = self.progress();
        progress.wanted = progress.wanted.max(number);
        if !progress.lingering {
            let syncer = Arc::clone(self);
            let thread = std::thread::Builder::new().name("holdfast-sync".to_owned());
            progress.lingering = thread.spawn(move || syncer.linger(&failed)).is_ok();
            if !progress.lingering {
                drop(progress);
                let _ = self.wait(number); // no thread to be had: the caller waits after all
                return;
            }
        }
        self.changed.notify_all();
    }

    fn linger(&self, failed: &(impl Fn(&StoreError) + Send)) {
        let linger = Duration::from_millis(limits::LINGER_MS);
        let mut progress = self.progress();
        while !progress.stopped {
            if progress.wanted <= progress.synced || progress.failed.is_some() {
                progress = self.changed.wait(progress).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            let wanted = progress.wanted;
            let waited = self.changed.wait_timeout_while(progress, linger, |progress| {
                !progress.stopped && progress.synced < wanted && progress.failed.is_none()
            });
            drop(waited.unwrap_or_else(PoisonError::into_inner));
            if let Err(error) = self.wait(wanted) {
                failed(&error);
            }
            progress = self.progress();
        }
    }

    /// Makes everything durable that is in the log now, whoever wrote it.
    pub(crate) fn sync_now(&self) -> Result<()> {
        self.files.sync()
    }

    /// Lets the lingering thread go; everything that was committed is synced.
    pub(crate) fn stop(&self) -> Result<()> {
        let wanted = {
            let mut progress = self.progress();
            progress.stopped = true;
            progress.committed
        };
        self.changed.notify_all();
        self.wait(wanted)
    }
}
