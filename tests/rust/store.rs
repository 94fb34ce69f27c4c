//! The engine on a store: group commit, batches that fail, cold folds, envelopes, forks. Stores that fail on
//! purpose are wrappers of the real one.
#![allow(clippy::as_conversions, clippy::expect_used, clippy::panic, clippy::unwrap_used)]

#[path = "world/mod.rs"]
mod world;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use holdfast_core::clock::Now;
use holdfast_core::error::Coded;
use holdfast_core::ids::{RunId, StoreId, StreamId};
use holdfast_core::records::*;
use holdfast_core::run::*;
use holdfast_store::StoreError;
use holdfast_store::blobs::Blobs;
use holdfast_store::clock::FakeClock;
use holdfast_store::engine::{ClaimRequest, Durability, Engine};
use holdfast_store::open::{Address, Opened, Options, open};
use holdfast_store::rows::{Filter, Look};
use holdfast_store::sqlite::SqliteStore;
use holdfast_store::store::{Cell, Committed, Stats, Store, Table, Work};
use holdfast_store::verify::{Problem, Scope, verify};
use serde_json::json;
use world::{dana, name, new_run, new_step, run_id, value};

type Done<T> = Result<T, StoreError>;

fn now() -> Now {
    Now { boot_id: "boot-1".into(), boot_ms: 1000, wall_ms: 1_763_251_200_000 }
}

fn sqlite(address: &Address) -> (Arc<SqliteStore>, Arc<FakeClock>) {
    let clock = Arc::new(FakeClock::new(now()));
    let options = Options { clock: Some(clock.clone()), ..Options::default() };
    let Opened::Sqlite(store) = open(address, &options).unwrap() else { panic!("a store on SQLite") };
    (store, clock)
}

fn memory() -> Engine {
    Engine::new(sqlite(&Address::Memory).0, false).unwrap()
}

fn note(text: &str) -> Command {
    let body = json!({"level": "info", "text": text});
    let (kind, privacy) = ("note.logged".to_owned(), Privacy::Internal);
    Command::Append { claim: None, entries: vec![Entry { blobs: BTreeMap::new(), body, kind, privacy }] }
}

fn created(engine: &Engine, n: u8) -> RunId {
    engine.create_run(&dana(), &new_run(n), &[new_step(n, &[])], Durability::Commit).unwrap()
}

fn kinds(engine: &Engine, run: RunId) -> Vec<String> {
    let page = engine.read(StreamId::Run(run), 0).unwrap();
    let kind = |text: &[u8]| Record::parse(text).unwrap().kind().to_owned();
    page.records.iter().map(|record| kind(&record.text)).collect()
}

/// What goes wrong with a [`Faulty`] store.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Fault {
    Panic,
    DiskFull,
    Barrier,
}

/// The real store, with a fault in the n-th turn or barrier.
#[derive(Debug)]
struct Faulty {
    inner: Arc<SqliteStore>,
    fault: Fault,
    at: u64,
    turns: AtomicU64,
    reserve: AtomicU64,
}

impl Faulty {
    fn engine(fault: Fault, at: u64) -> Engine {
        let inner = sqlite(&Address::Memory).0;
        let (turns, reserve) = (AtomicU64::new(0), AtomicU64::new(1));
        Engine::new(Arc::new(Self { inner, fault, at, turns, reserve }), false).unwrap()
    }
}

impl Store for Faulty {
    fn turn(&self, works: &mut [&mut dyn Work]) -> Done<Committed> {
        let turn = self.turns.fetch_add(1, Ordering::SeqCst);
        match self.fault {
            Fault::Panic if turn == self.at => panic!("planted"),
            Fault::DiskFull if turn >= self.at && self.reserve.load(Ordering::SeqCst) == 1 => {
                Err(StoreError::DiskFull("planted".into()))
            }
            _ => self.inner.turn(works),
        }
    }
    fn barrier(&self, committed: Committed) -> Done<()> {
        match self.fault {
            Fault::Barrier if self.turns.load(Ordering::SeqCst) > self.at => {
                Err(StoreError::Failed("planted".into()))
            }
            _ => self.inner.barrier(committed),
        }
    }
    fn keep_reserve(&self) {}
    fn free_reserve(&self) -> bool {
        self.reserve.swap(0, Ordering::SeqCst) == 1
    }
    fn id(&self) -> StoreId {
        self.inner.id()
    }
    fn epoch(&self) -> u32 {
        self.inner.epoch()
    }
    fn process(&self) -> &str {
        self.inner.process()
    }
    fn now(&self) -> Now {
        self.inner.now()
    }
    fn ready(&self, to_write: bool) -> Done<()> {
        self.inner.ready(to_write)
    }
    fn barrier_soon(&self, committed: Committed) {
        self.inner.barrier_soon(committed);
    }
    fn look(&self, read: &mut dyn FnMut(&dyn Look) -> Done<()>) -> Done<()> {
        self.inner.look(read)
    }
    fn is_gone(&self, process: &str) -> bool {
        self.inner.is_gone(process)
    }
    fn blobs(&self) -> &Blobs {
        self.inner.blobs()
    }
    fn sql(&self, query: &str, parameters: &[Cell], most: usize) -> Done<Table> {
        self.inner.sql(query, parameters, most)
    }
    fn stats(&self) -> Done<Stats> {
        self.inner.stats()
    }
    fn check_files(&self) -> Done<Vec<Problem>> {
        self.inner.check_files()
    }
    fn scrub(&self) -> Done<()> {
        self.inner.scrub()
    }
    fn close(&self) -> Done<()> {
        self.inner.close()
    }
}

#[test]
fn many_threads_share_commits_and_each_gets_its_own_answer() {
    let folder = tempfile::tempdir().unwrap();
    let (store, _) = sqlite(&Address::Folder(folder.path().join("runs")));
    let engine = Engine::new(store.clone(), false).unwrap();
    let runs: Vec<RunId> = (1..=16).map(|n| created(&engine, n)).collect();
    std::thread::scope(|scope| {
        for run in &runs {
            scope.spawn(|| {
                for n in 3..=52u64 {
                    let written = engine.command(*run, &dana(), note("x"), Durability::Barrier).unwrap();
                    assert_eq!((written.first_seq, written.last_seq), (n, n));
                    let wrong = Command::Heartbeat {
                        claim: Claim { fence: Fence(1, 9), step: world::step_id(1) },
                        lease_ms: 1000,
                    };
                    let refused = engine.command(*run, &dana(), wrong, Durability::Commit).unwrap_err();
                    assert!(["stale_fence", "no_such_step"].contains(&refused.code().as_str()));
                }
            });
        }
    });
    let stats = store.stats().unwrap();
    assert!(stats.commits < stats.commands, "{} commits of {} commands", stats.commits, stats.commands);
    assert!(stats.syncs <= stats.commits);
    let report = verify(&engine, &Scope::default(), &mut |_, _| true).unwrap();
    assert_eq!((report.ok(), report.records), (true, 1 + 16 * 52));
}

#[test]
fn a_panic_in_a_batch_fails_its_commands_and_hangs_none() {
    let engine = Faulty::engine(Fault::Panic, 2);
    let run = created(&engine, 1);
    let failed = engine.command(run, &dana(), note("lost"), Durability::Commit).unwrap_err();
    assert_eq!(failed.code().as_str(), "internal");
    engine.command(run, &dana(), note("kept"), Durability::Commit).unwrap();
    assert_eq!(kinds(&engine, run), ["run.created", "step.created", "note.logged"]);
}

#[test]
fn a_barrier_that_fails_is_told_to_those_who_waited_for_it() {
    let engine = Faulty::engine(Fault::Barrier, 1);
    let run = created(&engine, 1);
    let failed = engine.command(run, &dana(), note("a"), Durability::Barrier).unwrap_err();
    assert_eq!(failed.code().as_str(), "store_failed");
    engine.command(run, &dana(), note("b"), Durability::Commit).unwrap();
}

#[test]
fn on_a_full_disk_only_the_outcome_of_work_gets_the_reserve() {
    let engine = Faulty::engine(Fault::DiskFull, 3);
    let run = created(&engine, 1);
    let request = ClaimRequest {
        worker: name("w1"),
        lease_ms: 30_000,
        filter: Filter::default(),
        package: None,
        strict: false,
        run: None,
    };
    let claimed = engine.claim(&request).unwrap().unwrap();
    let refused = engine.command(run, &dana(), note("x"), Durability::Commit).unwrap_err();
    assert_eq!(refused.code().as_str(), "disk_full");
    let claim = Claim { fence: claimed.fence, step: claimed.step };
    let outcome =
        Command::Complete { claim, expected_version: None, result: Some(value(json!("done"))), patch: None };
    engine.command(run, &world::worker("w1"), outcome, Durability::Commit).unwrap();
    assert_eq!(kinds(&engine, run)[2..], ["step.claimed", "step.completed", "run.finished"]);
}

#[test]
fn a_cold_command_on_a_long_run_reads_a_snapshot_and_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let address = Address::Folder(folder.path().join("runs"));
    let mut heads = Vec::new();
    for round in 0..2 {
        let (store, _) = sqlite(&address);
        let engine = Engine::new(store.clone(), false).unwrap();
        let run = if round == 0 { created(&engine, 1) } else { run_id(1) };
        for _ in 0..3 {
            let Command::Append { claim, entries } = note("n") else { unreachable!() };
            let entries = vec![entries[0].clone(); 450];
            let written =
                engine.command(run, &dana(), Command::Append { claim, entries }, Durability::Commit).unwrap();
            heads.push((written.last_seq, written.head));
        }
        let snapshots = store.sql("SELECT seq FROM snapshots", &[], 10).unwrap();
        assert_eq!(snapshots.rows, vec![vec![Cell::Integer(if round == 0 { 1352 } else { 2702 })]]);
        assert!(verify(&engine, &Scope::default(), &mut |_, _| true).unwrap().ok());
        store.close().unwrap();
    }
    assert_eq!(heads.last().unwrap().0, 2702);
}

#[test]
fn what_one_run_sends_the_other_has_once_and_what_cannot_be_delivered_is_kept_with_the_reason() {
    let engine = memory();
    let (sender, receiver, ended) = (created(&engine, 1), created(&engine, 2), created(&engine, 3));
    engine.command(ended, &dana(), Command::End { reason: EndReason::Killed }, Durability::Commit).unwrap();
    let filter = Filter { agents: vec![name("support")], ..Filter::default() };
    let request = ClaimRequest {
        worker: name("w1"),
        lease_ms: 30_000,
        filter,
        package: None,
        strict: false,
        run: None,
    };
    let claimed = engine.claim(&request).unwrap().unwrap();
    assert_eq!(claimed.run, sender);
    let claim = Claim { fence: claimed.fence, step: claimed.step };
    for to in [receiver, ended] {
        let content = value(json!("hello"));
        let send = Command::Send { call: None, claim, to, content, correlation: None, reply_to: None };
        engine.command(sender, &world::worker("w1"), send, Durability::Commit).unwrap();
    }
    assert_eq!(kinds(&engine, receiver)[2..], ["envelope.received", "message.received"]);
    let left = engine.store().sql("SELECT receiver, refused FROM envelopes", &[], 10).unwrap();
    assert_eq!(left.rows, vec![vec![Cell::Text(ended.to_string()), Cell::Text("run_ended".into())]]);
}

#[test]
fn a_fork_is_folded_from_its_parent_and_both_verify() {
    let folder = tempfile::tempdir().unwrap();
    let address = Address::Folder(folder.path().join("runs"));
    let (store, _) = sqlite(&address);
    let engine = Engine::new(store.clone(), false).unwrap();
    let parent = created(&engine, 1);
    engine.command(parent, &dana(), note("before"), Durability::Commit).unwrap();
    let fork = Command::Fork {
        run: run_id(2),
        labels: Labels::new(),
        package: world::package("1"),
        effects: ForkEffects::Serve,
        reason: None,
    };
    engine.fork(parent, 3, &dana(), fork).unwrap();
    store.close().unwrap();
    let (store, _) = sqlite(&address);
    let engine = Engine::new(store.clone(), false).unwrap();
    engine.command(run_id(2), &dana(), note("after"), Durability::Commit).unwrap();
    assert_eq!(kinds(&engine, run_id(2)), ["run.forked", "note.logged"]);
    let report = verify(&engine, &Scope::default(), &mut |_, _| true).unwrap();
    assert_eq!((report.listed, report.records), (vec![], 1 + 3 + 2));
}
