//! The PostgreSQL engine: one schema of a database, shared by processes on many machines.
//!
//! Each work of a turn is a transaction of its own, committed without waiting for the disk; a barrier is one
//! small synchronous commit, which makes everything durable that was committed before it, by anyone. Works run
//! under REPEATABLE READ: a work sees one state of the store, and where somebody else has written what it
//! would write, the server refuses and the work is run again. What two works could do to each other without
//! writing the same row is made to meet in one: a run's key, a running step's concurrency key, a grant's row.
//! Claims run under READ COMMITTED, so that workers who look at the same time pass over each other's finds;
//! what they write is guarded by the stream's own row, as everything is.
//!
//! When a connection is lost after COMMIT was sent, nobody knows what became of it: the next connection
//! looks, when the server is done with it, whether the frame is there. A commit is never repeated to find out.

mod address;
mod blobs;
mod carry;
mod differs;
mod ear;
mod link;
mod look;
mod migrate;
mod open;
mod people;
mod queue;
mod rows;
mod sync;
mod tree;
mod turn;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use holdfast_core::clock::Now;
use holdfast_core::ids::StoreId;
use tokio_postgres::error::SqlState;

pub use address::PgAddress;
pub use migrate::plan;
pub use open::{is_there, open};

use crate::blobs::Blobs;
use crate::clock::{Clock, Stopwatch};
use crate::error::{Result, StoreError};
use crate::rows::Look;
use crate::store::{Cell, Committed, Stats, Store, Table, Work};
use crate::verify::Problem;
use ear::Ear;
use link::Link;
use sync::Syncer;

/// The name of the boot that leases are measured in: the server's clock is one for all.
const BOOT: &str = "postgresql";

/// What the server complained about, told by what it means for the user. Only the message itself: details
/// quote values.
fn failed(error: &tokio_postgres::Error) -> StoreError {
    let Some(told) = error.as_db_error() else {
        return StoreError::Unreachable(format!("PostgreSQL: {error}"));
    };
    let (code, told) = (told.code(), format!("PostgreSQL: {}", told.message()));
    match code.code() {
        "40001" | "40P01" | "23505" => StoreError::Conflict(told),
        "55P03" | "57014" => StoreError::Busy { holder: told, waited_ms: 0 },
        "57P01" | "57P02" | "57P03" | "57P05" | "53300" | "25P03" => StoreError::Unreachable(told),
        "53100" => StoreError::DiskFull(told),
        "42501" => StoreError::NoPermission(told),
        "28P01" | "28000" => StoreError::Login(told),
        "25006" => StoreError::ReadOnly,
        "3D000" => StoreError::NoSuchStore(told),
        "XX001" | "XX002" => StoreError::Malformed(told),
        class if class.starts_with("08") => StoreError::Unreachable(told),
        _ => StoreError::Failed(told),
    }
}

/// The same while connecting, where what is lost was never there.
fn connecting(error: &tokio_postgres::Error) -> StoreError {
    use std::error::Error as _;
    let cause = error.source().map_or_else(String::new, |cause| format!(": {cause}"));
    let told = format!("PostgreSQL: {error}{}", if error.to_string().contains(&cause) { "" } else { &cause });
    match error.code() {
        Some(code) if *code == SqlState::UNDEFINED_DATABASE => StoreError::NoSuchStore(told),
        Some(_) => failed(error),
        None if told.contains("TLS") || told.contains("certificate") => StoreError::Tls(told),
        None if told.contains("password") || told.contains("authentication") => StoreError::Login(told),
        None => StoreError::Unreachable(told),
    }
}

/// The server's clock, carried on between two looks at it by the machine's own, which nobody sets back. It
/// never lags behind: what a permit allows by this clock, the server allows too.
#[derive(Debug)]
struct ServerClock {
    own: Arc<dyn Clock>,
    /// Whether the tests' clock stands in for the server's.
    is_given: bool,
    /// The server's time less our own, as it was last seen.
    ahead_ms: Mutex<i128>,
}

impl ServerClock {
    fn seen(&self, server_ms: u64, asked_boot_ms: u64) {
        let ahead = i128::from(server_ms) - i128::from(asked_boot_ms);
        *self.ahead_ms.lock().unwrap_or_else(PoisonError::into_inner) = ahead;
    }

    fn boot_ms(&self) -> u64 {
        self.own.now().boot_ms
    }

    fn now(&self) -> Now {
        let own = self.own.now();
        if self.is_given {
            return own;
        }
        let ahead = *self.ahead_ms.lock().unwrap_or_else(PoisonError::into_inner);
        let ms = u64::try_from(i128::from(own.boot_ms) + ahead).unwrap_or(0);
        Now { boot_id: BOOT.to_owned(), boot_ms: ms, wall_ms: ms }
    }

    /// The time of a transaction, as the server says it.
    fn at(&self, server_ms: u64) -> Now {
        if self.is_given {
            return self.own.now();
        }
        Now { boot_id: BOOT.to_owned(), boot_ms: server_ms, wall_ms: server_ms }
    }
}

/// A store on PostgreSQL.
#[derive(Debug)]
pub struct PgStore {
    id: StoreId,
    epoch: u32,
    schema: u32,
    pid: u32,
    process: String,
    read_only: bool,
    address: PgAddress,
    clock: ServerClock,
    /// Writes; none while the connection is lost.
    writer: Mutex<Option<Link>>,
    readers: Mutex<Vec<Link>>,
    syncer: Arc<Syncer>,
    ear: Arc<Ear>,
    blobs: Blobs,
    wait_ms: u64,
    commits: AtomicU64,
    barriers: AtomicU64,
    commands: AtomicU64,
    closed: AtomicBool,
}

impl PgStore {
    fn check_process(&self) -> Result<()> {
        if std::process::id() == self.pid { Ok(()) } else { Err(StoreError::Forked(self.pid)) }
    }

    /// A connection for reading, made when there is none to spare. One that is lost is replaced as long as
    /// there is time for it: what only reads can be done twice.
    fn with_reader<T>(&self, read: impl Fn(&mut Link) -> Result<T>) -> Result<T> {
        self.check_process()?;
        let (waited, mut tries) = (Stopwatch::start(), 0);
        loop {
            if self.closed.load(Ordering::Acquire) {
                return Err(StoreError::Closed);
            }
            let spare = self.readers.lock().unwrap_or_else(PoisonError::into_inner).pop();
            let found = match spare {
                Some(link) if !link.is_closed() => Ok(link),
                _ => Link::open(&self.address, &self.process, false),
            };
            let done = found.and_then(|mut link| {
                let done = read(&mut link);
                self.keep_reader(link, &done);
                done
            });
            match done {
                Err(StoreError::Unreachable(_)) if waited.elapsed_ms() < self.wait_ms => {
                    tries += 1;
                    turn::pause(tries)?;
                }
                done => return done,
            }
        }
    }

    fn keep_reader<T>(&self, link: Link, done: &Result<T>) {
        if !link.is_closed() && !matches!(done, Err(StoreError::Unreachable(_))) {
            self.readers.lock().unwrap_or_else(PoisonError::into_inner).push(link);
        }
    }
}

impl Store for PgStore {
    fn id(&self) -> StoreId {
        self.id
    }

    fn epoch(&self) -> u32 {
        self.epoch
    }

    fn process(&self) -> &str {
        &self.process
    }

    fn now(&self) -> Now {
        self.clock.now()
    }

    fn ready(&self, to_write: bool) -> Result<()> {
        self.check_process()?;
        if self.closed.load(Ordering::Acquire) {
            return Err(StoreError::Closed);
        }
        if to_write && self.read_only { Err(StoreError::ReadOnly) } else { Ok(()) }
    }

    fn turn(&self, works: &mut [&mut dyn Work]) -> Result<Committed> {
        self.ready(true)?;
        Ok(self.take_turn(works))
    }

    fn barrier(&self, committed: Committed) -> Result<()> {
        self.barriers.fetch_add(1, Ordering::Relaxed);
        self.syncer.wait(committed.first..=committed.number)
    }

    fn forgets(&self) -> bool {
        true
    }

    fn barrier_soon(&self, committed: Committed) {
        self.syncer.soon(committed.number);
    }

    fn look(&self, read: &mut dyn FnMut(&dyn Look) -> Result<()>) -> Result<()> {
        self.check_process()?;
        // Run again when the connection is lost in the middle: what was read is replaced.
        let read = Mutex::new(read);
        self.with_reader(|link| {
            link.begin("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY", "SELECT 1")?;
            let view = look::PgLook::new(link);
            let done = read.lock().unwrap_or_else(PoisonError::into_inner)(&view);
            let ended = view.into_link().rollback();
            done.and(ended)
        })
    }

    /// A lost connection does not prove that a process is gone: its lease must run out.
    fn is_gone(&self, _process: &str) -> bool {
        false
    }

    fn blobs(&self) -> &Blobs {
        &self.blobs
    }

    fn sql(&self, query: &str, parameters: &[Cell], most: usize) -> Result<Table> {
        self.with_reader(|link| people::query(link, query, parameters, most))
    }

    fn stats(&self) -> Result<Stats> {
        people::stats(self)
    }

    fn check_files(&self) -> Result<Vec<Problem>> {
        self.with_reader(people::check)
    }

    /// The server overwrites what was erased when it cleans up, which is its administrator's.
    fn scrub(&self) -> Result<()> {
        self.ready(true)
    }

    fn heard(&self, seen: u64, wait_ms: u64) -> Option<u64> {
        self.ready(false).ok().map(|()| self.ear.wait(seen, wait_ms))
    }

    fn free_reserve(&self) -> bool {
        false
    }

    fn keep_reserve(&self) {}

    fn close(&self) -> Result<()> {
        if std::process::id() != self.pid || self.closed.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        self.ear.stop();
        let stopped = self.syncer.stop();
        if let Some(link) = self.writer.lock().unwrap_or_else(PoisonError::into_inner).take() {
            link.close();
        }
        for link in self.readers.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
            link.close();
        }
        stopped
    }
}
