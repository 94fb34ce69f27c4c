//! The SQLite engine: one database in a folder, shared by processes, or one in memory.
//!
//! A turn is taken with `flock` on a file that only we open, runs as one `BEGIN IMMEDIATE` transaction
//! and is committed without a sync; barriers are ours (see [`sync`]). After each commit, before anybody
//! hears of it, the files must still be the ones at their paths.

pub mod backup;
mod care;
mod carry;
mod differs;
pub(crate) mod folder;
mod locks;
pub(crate) mod look;
pub mod migrate;
pub mod open;
pub(crate) mod people;
mod rows;
pub(crate) mod sync;
mod tree;
mod writeback;

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use holdfast_core::clock::Now;
use holdfast_core::ids::StoreId;
use holdfast_core::limits;
use holdfast_core::mutants::{Mutant, mutant};
use rusqlite::{Connection, ErrorCode};

use crate::blobs::Blobs;
use crate::clock::{Clock, Stopwatch};
use crate::error::{Result, StoreError};
use crate::rows::Look;
use crate::sqlite::folder::{Folder, Turn};
use crate::sqlite::rows::SqlRows;
use crate::sqlite::sync::Syncer;
use crate::sqlite::writeback::{WriteBack, checkpoint};
use crate::store::{Cell, Committed, Stats, Store, Table, Work};
use crate::verify::Problem;

/// SQLite's page; the log has one in each frame.
const PAGE_BYTES: u64 = 4096;

/// What SQLite complained about, told by what it means for the user.
pub(crate) fn failed(error: &rusqlite::Error) -> StoreError {
    let told = format!("SQLite: {error}");
    match error.sqlite_error_code() {
        Some(ErrorCode::DiskFull) => StoreError::DiskFull(told),
        // Not the store is for reading only, but its folder: the files beside the database cannot be made.
        Some(ErrorCode::ReadOnly) if matches!(extended(error), 520 | 1288 | 1544) => {
            StoreError::NoPermission(told)
        }
        Some(ErrorCode::ReadOnly) => StoreError::ReadOnly,
        // The index of the log could not grow.
        Some(ErrorCode::SystemIoFailure) if extended(error) == 4874 => StoreError::DiskFull(told),
        Some(ErrorCode::PermissionDenied | ErrorCode::CannotOpen) => StoreError::NoPermission(told),
        Some(ErrorCode::NotADatabase) => {
            StoreError::NotAStore("holdfast.db is not an SQLite database".to_owned())
        }
        Some(ErrorCode::DatabaseCorrupt) => StoreError::Malformed(told),
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => {
            StoreError::Busy { holder: "another program has the database".to_owned(), waited_ms: 0 }
        }
        _ => StoreError::Failed(told),
    }
}

/// SQLite's extended code.
fn extended(error: &rusqlite::Error) -> i32 {
    error.sqlite_error().map_or(0, |found| found.extended_code)
}

/// Whether nothing more may be written after this.
fn is_fatal(error: &StoreError) -> bool {
    matches!(error, StoreError::Failed(_) | StoreError::Malformed(_) | StoreError::Replaced(_))
}

/// What a handle says after it.
fn poisoned_by(error: &StoreError) -> StoreError {
    match error {
        StoreError::Replaced(_) => error.clone(),
        other => StoreError::Poisoned(other.to_string()),
    }
}

#[derive(Debug)]
struct Writer {
    connection: Option<Connection>,
    /// The frames that were in the log when it was last written back.
    written_back: u64,
}

/// A store on SQLite.
#[derive(Debug)]
pub struct SqliteStore {
    id: StoreId,
    epoch: u32,
    schema: u32,
    pid: u32,
    read_only: bool,
    clock: Arc<dyn Clock>,
    folder: Option<Arc<Folder>>,
    syncer: Option<Arc<Syncer>>,
    log: Option<Arc<WriteBack>>,
    writer: Mutex<Writer>,
    readers: Mutex<Vec<Connection>>,
    poison: Arc<OnceLock<StoreError>>,
    blobs: Blobs,
    turn_wait_ms: AtomicU64,
    commits: AtomicU64,
    barriers: AtomicU64,
    commands: AtomicU64,
    closed: AtomicBool,
}

impl SqliteStore {
    fn writer(&self) -> MutexGuard<'_, Writer> {
        self.writer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Refused in a forked child, after the end, and once the store is poisoned.
    fn check_usable(&self) -> Result<()> {
        let process = std::process::id();
        if process != self.pid && !mutant(Mutant::UseForkedHandle) {
            return Err(StoreError::Forked(self.pid));
        }
        match self.poison.get() {
            Some(why) if !mutant(Mutant::IgnorePoison) => Err(why.clone()),
            _ => Ok(()),
        }
    }

    /// How long a command waits for its turn.
    pub fn set_turn_wait_ms(&self, wait_ms: u64) {
        self.turn_wait_ms.store(wait_ms, Ordering::Relaxed);
    }

    /// From here on this handle takes nothing, and neither does any other that sees the mark.
    fn poison(&self, error: &StoreError) {
        if self.poison.set(poisoned_by(error)).is_ok()
            && let Some(folder) = &self.folder
        {
            folder.poison(&error.to_string());
        }
    }

    fn take_turn(&self) -> Result<Option<Turn<'_>>> {
        let Some(folder) = &self.folder else { return Ok(None) };
        if mutant(Mutant::NoTurn) {
            return Ok(None);
        }
        let turn = folder.take_turn(self.turn_wait_ms.load(Ordering::Relaxed))?;
        match folder.poisoned() {
            Some(why) if !mutant(Mutant::IgnorePoison) => Err(StoreError::Poisoned(why)),
            _ => Ok(Some(turn)),
        }
    }

    /// One transaction, up to and with COMMIT. The caller holds the turn.
    fn transact(&self, connection: &mut Connection, works: &mut [&mut dyn Work]) -> Result<SqlDone> {
        let turn = Transaction::begin(connection)?;
        migrate::check_writer(turn.0, self.schema)?;
        let now = self.clock.now();
        let process = self.folder.as_ref().map_or("", |folder| folder.process_id());
        let mut rows = SqlRows::new(turn.0, process);
        for work in works.iter_mut() {
            work.run(&mut rows, &now)?;
        }
        let done = rows.done();
        turn.commit()?;
        Ok(done)
    }

    /// Has the log written back when it has grown. The caller holds the turn.
    fn write_back(&self, writer: &mut Writer) -> Result<()> {
        let (Some(connection), Some(syncer)) = (&writer.connection, &self.syncer) else { return Ok(()) };
        let logged = syncer.files().logged();
        if logged < writer.written_back {
            writer.written_back = 0; // the log has begun anew
        }
        let grown = (logged - writer.written_back) * PAGE_BYTES;
        if !self.is_rest(grown) {
            return Ok(());
        }
        writer.written_back = logged;
        if checkpoint(connection)? {
            self.folder.iter().for_each(|folder| folder.keep_reserve(false));
        }
        Ok(())
    }

    /// Whether what is left in the log is to be written back now, in the turn: little, after a pass beside
    /// the turns, or too much for another one.
    fn is_rest(&self, grown: u64) -> bool {
        let Some(log) = &self.log else { return false };
        if log.take_ended() {
            return true;
        }
        if grown < limits::WAL_BYTES {
            return false;
        }
        if grown >= limits::WAL_BYTES_MAX {
            log.wait(); // the disk cannot keep up: whoever writes waits for it
            log.take_ended();
            return true;
        }
        let (poison, folder, syncer) = (Arc::clone(&self.poison), self.folder.clone(), self.syncer.clone());
        let check = move || syncer.map_or(Ok(()), |syncer| syncer.files().check());
        !log.begin(check, move |error| {
            if is_fatal(error)
                && poison.set(poisoned_by(error)).is_ok()
                && let Some(folder) = folder
            {
                folder.poison(&error.to_string());
            }
        })
    }

    /// A reader's connection, opened when there is none to spare; in memory there is only the writer's.
    fn with_reader<T>(&self, read: impl FnOnce(&mut Connection) -> Result<T>) -> Result<T> {
        let process = std::process::id();
        if process != self.pid {
            return Err(StoreError::Forked(self.pid));
        }
        let Some(folder) = &self.folder else {
            let mut writer = self.writer();
            return read(writer.connection.as_mut().ok_or(StoreError::Closed)?);
        };
        if self.closed.load(Ordering::Acquire) {
            return Err(StoreError::Closed);
        }
        let spare = self.readers.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let mut connection = match spare {
            Some(connection) => connection,
            None => open::reader(folder.path())?,
        };
        let done = read(&mut connection);
        self.readers.lock().unwrap_or_else(PoisonError::into_inner).push(connection);
        done
    }
}

/// A transaction whose statements are prepared once: rusqlite's own parses them anew each time.
struct Transaction<'c>(&'c Connection);

impl<'c> Transaction<'c> {
    fn begin(connection: &'c Connection) -> Result<Self> {
        let transaction = Self(connection);
        transaction.execute("BEGIN IMMEDIATE")?;
        Ok(transaction)
    }

    fn execute(&self, sql: &str) -> Result<()> {
        let mut statement = self.0.prepare_cached(sql).map_err(|e| failed(&e))?;
        statement.execute([]).map(|_| ()).map_err(|e| failed(&e))
    }

    fn commit(self) -> Result<()> {
        self.execute("COMMIT")
    }
}

impl Drop for Transaction<'_> {
    fn drop(&mut self) {
        if !self.0.is_autocommit() {
            let _ = self.execute("ROLLBACK"); // if this fails too, the next BEGIN does
        }
    }
}

/// What a transaction did.
struct SqlDone {
    newest: Option<(i64, holdfast_core::records::RecordHash)>,
}

impl Store for SqliteStore {
    fn id(&self) -> StoreId {
        self.id
    }

    fn epoch(&self) -> u32 {
        self.epoch
    }

    fn process(&self) -> &str {
        self.folder.as_ref().map_or("", |folder| folder.process_id())
    }

    fn path(&self) -> Option<&Path> {
        self.folder.as_ref().map(|folder| folder.path())
    }

    fn now(&self) -> Now {
        self.clock.now()
    }

    fn ready(&self, to_write: bool) -> Result<()> {
        self.check_usable()?;
        if self.closed.load(Ordering::Acquire) {
            return Err(StoreError::Closed);
        }
        if to_write && self.read_only { Err(StoreError::ReadOnly) } else { Ok(()) }
    }

    fn turn(&self, works: &mut [&mut dyn Work]) -> Result<Committed> {
        self.ready(true)?;
        let mut writer = self.writer();
        let turn = self.take_turn()?;
        let connection = writer.connection.as_mut().ok_or(StoreError::Closed)?;
        let done = self.transact(connection, works).and_then(|done| {
            self.syncer.as_ref().map_or(Ok(()), |syncer| syncer.files().check())?;
            Ok(done)
        });
        let done = match done {
            Ok(done) => done,
            Err(error) => {
                if is_fatal(&error) {
                    self.poison(&error);
                }
                return Err(error);
            }
        };
        for work in works.iter_mut() {
            work.committed();
        }
        let number = self.syncer.as_ref().map_or(0, |syncer| syncer.committed());
        self.commits.fetch_add(1, Ordering::Relaxed);
        self.commands.fetch_add(u64::try_from(works.len()).unwrap_or(0), Ordering::Relaxed);
        // What was committed is in the log; on a full disk it is written back later.
        if let Err(error) = self.write_back(&mut writer)
            && is_fatal(&error)
        {
            self.poison(&error);
        }
        drop(turn);
        Ok(Committed { first: number, number, newest: done.newest })
    }

    fn barrier(&self, committed: Committed) -> Result<()> {
        self.barriers.fetch_add(1, Ordering::Relaxed);
        let Some(syncer) = &self.syncer else { return Ok(()) };
        if let Err(error) = syncer.wait(committed.number) {
            self.poison(&error);
            self.check_usable()?;
            return Err(error);
        }
        if let (Some(folder), Some((pos, head))) = (&self.folder, &committed.newest) {
            folder.mark(*pos, head);
        }
        Ok(())
    }

    fn barrier_soon(&self, committed: Committed) {
        let (Some(syncer), Some(folder)) = (&self.syncer, &self.folder) else { return };
        let (poison, folder) = (Arc::clone(&self.poison), Arc::clone(folder));
        syncer.soon(committed.number, move |error| {
            if poison.set(StoreError::Poisoned(error.to_string())).is_ok() {
                folder.poison(&error.to_string());
            }
        });
    }

    fn look(&self, read: &mut dyn FnMut(&dyn Look) -> Result<()>) -> Result<()> {
        self.with_reader(|connection| {
            // One view for all that is read, and never for long: readers page.
            let view = connection.unchecked_transaction().map_err(|e| failed(&e))?;
            read(&look::SqlLook(&view))
        })
    }

    fn is_gone(&self, process: &str) -> bool {
        self.folder.as_ref().is_some_and(|folder| folder.is_gone(process))
    }

    fn blobs(&self) -> &Blobs {
        &self.blobs
    }

    fn sql(&self, query: &str, parameters: &[Cell], most: usize) -> Result<Table> {
        self.with_reader(|connection| people::query(connection, query, parameters, most))
    }

    fn stats(&self) -> Result<Stats> {
        people::stats(self)
    }

    fn check_files(&self) -> Result<Vec<Problem>> {
        let mut found = self.with_reader(|connection| people::check(connection))?;
        if let Some((ends, marked)) = self.truncation()? {
            let error = StoreError::Truncated { found: ends, marked };
            let (code, what) = (holdfast_core::error::Coded::code(&error).as_str(), error.to_string());
            found.push(Problem { code, stream: None, seq: None, pos: Some(marked), what });
        }
        Ok(found)
    }

    fn scrub(&self) -> Result<()> {
        self.check_usable()?;
        if self.folder.is_none() {
            return Ok(());
        }
        let mut writer = self.writer();
        let _turn = self.take_turn()?;
        writer.written_back = 0;
        let connection = writer.connection.as_ref().ok_or(StoreError::Closed)?;
        let clock = Stopwatch::start();
        loop {
            self.log.iter().for_each(|log| log.wait());
            let busy: i64 = connection
                .query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |row| row.get(0))
                .map_err(|e| failed(&e))?;
            if busy == 0 {
                return Ok(());
            }
            let waited_ms = clock.elapsed_ms();
            if waited_ms >= limits::SCRUB_WAIT_MS {
                let holder = "a reader still sees what was erased".to_owned();
                return Err(StoreError::Busy { holder, waited_ms });
            }
            // Another process may be writing the log back, which is over soon.
            std::thread::park_timeout(Duration::from_millis(1));
        }
    }

    fn keep_reserve(&self) {
        self.folder.iter().for_each(|folder| folder.keep_reserve(true));
    }

    fn free_reserve(&self) -> bool {
        self.folder.as_ref().is_some_and(|folder| folder.free_reserve())
    }

    fn rest(&self) {
        if std::process::id() == self.pid {
            self.log.iter().for_each(|log| log.wait());
        }
    }

    fn close(&self) -> Result<()> {
        if std::process::id() != self.pid {
            return Ok(()); // a forked child: the handle is its parent's, and any lock in it may be held for ever
        }
        self.closed.store(true, Ordering::Release);
        let mut writer = self.writer();
        let Some(connection) = writer.connection.take() else { return Ok(()) };
        let stopped = self.syncer.as_ref().map_or(Ok(()), |syncer| syncer.stop());
        self.log.iter().for_each(|log| log.wait()); // its connection is closed before this one
        self.readers.lock().unwrap_or_else(PoisonError::into_inner).clear();
        if self.poison.get().is_some() {
            // SQLite would write the log back; after a failed sync nobody may.
            std::mem::forget(connection);
            return Ok(());
        }
        // Under the turn: the last one to close writes the log back and removes it.
        let turn = self.take_turn();
        let newest = look::SqlLook(&connection).newest().ok().flatten();
        // What the mark will speak of may be another process's, and not yet on the disk.
        if let Some(Err(error)) = self.syncer.as_ref().map(|syncer| syncer.sync_now()) {
            self.poison(&error); // all that was promised is on the disk; who opens it next looks first
            std::mem::forget(connection);
            return stopped;
        }
        drop(connection);
        if let (Ok(()), Some((pos, head)), Some(folder)) = (&stopped, newest, &self.folder)
            && !self.read_only
        {
            folder.mark(pos, &head);
        }
        drop(turn);
        self.folder.iter().for_each(|folder| folder.leave());
        stopped
    }
}

impl Drop for SqliteStore {
    fn drop(&mut self) {
        if std::process::id() == self.pid {
            let _ = self.close();
            return;
        }
        // A forked child: closing SQLite here would give up locks of its parent.
        let writer = self.writer.get_mut().unwrap_or_else(PoisonError::into_inner);
        std::mem::forget(writer.connection.take());
        std::mem::forget(std::mem::take(self.readers.get_mut().unwrap_or_else(PoisonError::into_inner)));
    }
}
