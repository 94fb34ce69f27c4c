//! The contract of an engine under a store. What it says holds for SQLite on a folder, SQLite in memory
//! and PostgreSQL alike; `holdfast.conformance.store` tests it from outside.
//!
//! 1. A work is atomic: it sees everything that was committed before, and after an error none of it
//!    happened. The works of a turn see each other's writes in order. An engine may run a turn as one
//!    transaction, which then fails as a whole, or each work as its own; what other processes do between
//!    two works, a work either sees whole or is run again.
//! 2. What a turn committed survives the death of any process at any instant.
//! 3. [`Store::barrier`] makes durable what the turn committed and everything that was visible to it,
//!    whoever wrote it. After it returned, a power cut loses nothing of that.
//! 4. After a failed write or sync nothing is accepted through any handle until the store was checked.
//! 5. Positions of frames only grow. On PostgreSQL they are not the order of commits.

use std::path::Path;

use holdfast_core::clock::Now;
use holdfast_core::ids::{StoreId, StreamId};
use holdfast_core::records::RecordHash;

use crate::blobs::Blobs;
use crate::error::{Result, StoreError};
use crate::rows::{Look, Rows};
use crate::verify::Problem;

/// One command's part of a turn. It decides before it writes; what it refuses it keeps to itself, and an
/// error means that the engine failed under it.
pub trait Work {
    fn run(&mut self, rows: &mut dyn Rows, now: &Now) -> Result<()>;
    /// Whether each of its looks sees what is committed by then, and not all of them the same moment: for
    /// whoever looks among all runs, or after it got a lock.
    fn sees_latest(&self) -> bool;
    /// The stream that it will ask for first, if that is known.
    fn about(&self) -> Option<StreamId>;
    /// What it wrote is committed, and will not be run again.
    fn committed(&mut self);
    /// What it wrote was taken back: it may be run again.
    fn undone(&mut self);
    /// It failed by itself, and others of its turn did not.
    fn failed(&mut self, error: StoreError);
}

/// What a turn committed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Committed {
    /// Counts the commits of this handle: the first and the newest of the turn.
    pub first: u64,
    pub number: u64,
    /// The newest frame at the end of the turn, if the turn wrote one.
    pub newest: Option<(i64, RecordHash)>,
}

/// What a store is and how it does, for people.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Stats {
    pub store: StoreId,
    pub epoch: u32,
    pub engine: String,
    pub schema: u32,
    pub frames: u64,
    pub streams: u64,
    pub runs: std::collections::BTreeMap<String, u64>,
    pub database_bytes: u64,
    pub wal_bytes: u64,
    pub blob_bytes: u64,
    pub blobs: u64,
    pub processes: Vec<ProcessInfo>,
    pub barriers: u64,
    pub syncs: u64,
    pub commits: u64,
    pub commands: u64,
}

/// A process that has the store open.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct ProcessInfo {
    pub id: String,
    pub pid: u32,
    pub schema: u32,
    pub started_ms: u64,
    pub version: String,
}

/// One value of a query for people.
#[derive(Debug, Clone, PartialEq)]
pub enum Cell {
    Null,
    Integer(i64),
    Real(f64),
    Text(String),
    Bytes(Vec<u8>),
}

/// The columns and rows of a query for people.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Table {
    pub columns: Vec<String>,
    pub rows: Vec<Vec<Cell>>,
}

pub trait Store: Send + Sync + std::fmt::Debug {
    fn id(&self) -> StoreId;
    fn epoch(&self) -> u32;
    /// Who this handle is among the processes that share the store.
    fn process(&self) -> &str;
    /// Where its files are, if they are in a folder.
    fn path(&self) -> Option<&Path> {
        None
    }
    /// The clock that leases and expiries of this store are measured on.
    fn now(&self) -> Now;
    /// Refuses a handle that is closed, forked or poisoned, or for writing one that only reads.
    fn ready(&self, to_write: bool) -> Result<()>;
    fn turn(&self, works: &mut [&mut dyn Work]) -> Result<Committed>;
    fn barrier(&self, committed: Committed) -> Result<()>;
    /// Whether what no barrier has reached can be lost while the processes that wrote it live on: a server
    /// crashes without them, a machine does not.
    fn forgets(&self) -> bool {
        false
    }
    /// Sees to it that the commit is durable within milliseconds, without waiting for it.
    fn barrier_soon(&self, committed: Committed);
    fn look(&self, read: &mut dyn FnMut(&dyn Look) -> Result<()>) -> Result<()>;
    /// Whether a process is provably gone.
    fn is_gone(&self, process: &str) -> bool;
    fn blobs(&self) -> &Blobs;
    fn sql(&self, query: &str, parameters: &[Cell], most: usize) -> Result<Table>;
    fn stats(&self) -> Result<Stats>;
    /// What is wrong with the files under the rows, and with rows that belong to nothing.
    fn check_files(&self) -> Result<Vec<Problem>>;
    /// Removes what was erased from every file that still holds a copy of it.
    fn scrub(&self) -> Result<()>;
    /// Waits until there may be something new to claim, where the engine is told of it: what it has heard so
    /// far, to be passed the next time. None where nobody tells, and looking now and then is all there is.
    fn heard(&self, _seen: u64, _wait_ms: u64) -> Option<u64> {
        None
    }
    /// Frees what was kept for outcomes on a full disk; whether there was any.
    fn free_reserve(&self) -> bool;
    /// Sets aside again what there is room for.
    fn keep_reserve(&self);
    /// Returns when no thread of the engine's own is at work, so that the process may fork.
    fn rest(&self) {}
    fn close(&self) -> Result<()>;
}
