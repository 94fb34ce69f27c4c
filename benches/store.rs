//! What the store does per second, beside what the disk allows, in one process and in interleaved rounds.
//! Prints one JSON object per line: `{"name": .., "rounds": [..], "unit": ..}`. `benches/store.py` runs it,
//! sets it beside Python's peers and writes the page.
//!
//! `cargo bench -p holdfast-store --bench store -- FOLDER [quick|growth]`; with `writer FOLDER N` it is one of
//! several processes, with `part FOLDER threads|batch|single` it does one kind of work for a profiler.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, clippy::expect_used, clippy::print_stdout)]
#![allow(clippy::as_conversions, clippy::cast_precision_loss, missing_docs)]

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command as Process, Stdio};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Instant;

use holdfast_core::canonical::Digest;
use holdfast_core::ids::{RunId, StepId, StreamId};
use holdfast_core::records::{Actor, Labels, Name, Package, Privacy, RetryPolicy, RunMode, StepKind};
use holdfast_core::run::{Command, Entry, NewRun, NewStep, Payload};
use holdfast_store::engine::{Durability, Engine};
use holdfast_store::open::{Address, Options, open};
use holdfast_store::verify::{Scope, verify};
use serde_json::{Value, json};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const THREADS: usize = 64;
const RECORDS: usize = 5;

fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

fn payload(value: Value) -> Payload {
    Payload { privacy: Privacy::Internal, value }
}

fn engine(folder: &Path) -> Arc<Engine> {
    let store = open(&Address::Folder(folder.to_owned()), &Options::default()).unwrap();
    Arc::new(Engine::new(store.store(), false).unwrap())
}

fn random() -> [u8; 10] {
    let mut bytes = [0u8; 10];
    let mut file = File::open("/dev/urandom").unwrap();
    std::io::Read::read_exact(&mut file, &mut bytes).unwrap();
    bytes
}

fn new_run(random: [u8; 10]) -> (NewRun, NewStep) {
    let digest = Digest::of_bytes(&[b"x"]);
    let package = Package {
        agent: name("1"),
        hooks: digest,
        instructions: digest,
        models: digest,
        policy: digest,
        python: name("3.11"),
        tools: digest,
    };
    let run = NewRun {
        agent: name("import"),
        budget: None,
        capabilities: None,
        deadline: None,
        id: RunId::new(1_763_251_200_123, random),
        input: payload(json!({"file": "a.csv"})),
        key: None,
        labels: Labels::new(),
        mode: RunMode::Live,
        package,
        parent: None,
        priority: 0,
        role: name("import"),
        session: None,
        state: payload(json!({})),
    };
    let step = NewStep {
        after: vec![],
        concurrency_key: None,
        id: StepId::new(1_763_251_200_123, random),
        input: None,
        kind: StepKind::Attached,
        name: name("main"),
        not_before: None,
        queue: name("default"),
        retry: RetryPolicy { backoff_max_ms: 1, backoff_ms: 1, max_attempts: 3 },
        timeout_ms: None,
    };
    (run, step)
}

fn create(engine: &Engine, durability: Durability) -> RunId {
    let (run, step) = new_run(random());
    engine.create_run(&Actor::system(), &run, &[step], durability).unwrap()
}

fn notes(count: usize) -> Vec<Entry> {
    let body = json!({"level": "info", "text": "a note of some forty characters, as usual"});
    let entry =
        Entry { blobs: BTreeMap::new(), body, kind: "note.logged".into(), privacy: Privacy::Internal };
    vec![entry; count]
}

/// Records of some 300 bytes without a content beside them.
fn events(count: usize) -> Vec<Entry> {
    let body = json!({"data": {"n": 17, "what": "moved"}});
    let entry =
        Entry { blobs: BTreeMap::new(), body, kind: "x.acme.moved".into(), privacy: Privacy::Internal };
    vec![entry; count]
}

fn append(engine: &Engine, run: RunId, entries: Vec<Entry>, durability: Durability) {
    let command = Command::Append { claim: None, entries };
    engine.command(run, &Actor::system(), command, durability).unwrap();
}

/// Times some work and returns how many per second.
fn rate(count: usize, work: impl FnOnce()) -> f64 {
    let begun = Instant::now();
    work();
    count as f64 / begun.elapsed().as_secs_f64()
}

fn told(name: &str, unit: &str, rounds: &[f64]) {
    println!("{}", json!({"name": name, "rounds": rounds, "unit": unit}));
}

/// Bare appends of 2 KB, each synced.
fn bare(file: &mut File, count: usize) -> f64 {
    let block = [b'x'; 2048];
    rate(count, || {
        for _ in 0..count {
            file.write_all(&block).unwrap();
            file.sync_data().unwrap();
        }
    })
}

/// The limit of group commit: threads that append to one file and share its syncs.
fn bare_group(path: &Path, per_thread: usize) -> f64 {
    let file = OpenOptions::new().append(true).create(true).open(path).unwrap();
    let state = (Mutex::new((0u64, 0u64, false)), Condvar::new());
    rate(THREADS * per_thread, || {
        std::thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    for _ in 0..per_thread {
                        (&file).write_all(&[b'x'; 2048]).unwrap();
                        let mut now = state.0.lock().unwrap();
                        now.0 += 1;
                        let mine = now.0;
                        while now.1 < mine {
                            if now.2 {
                                now = state.1.wait(now).unwrap();
                                continue;
                            }
                            now.2 = true;
                            let covers = now.0;
                            drop(now);
                            file.sync_data().unwrap();
                            now = state.0.lock().unwrap();
                            (now.1, now.2) = (covers, false);
                            state.1.notify_all();
                        }
                    }
                });
            }
        });
    })
}

fn concurrent(engine: &Arc<Engine>, runs: &[RunId], per_thread: usize) -> f64 {
    rate(runs.len() * per_thread, || {
        std::thread::scope(|scope| {
            for run in runs {
                scope.spawn(|| {
                    for _ in 0..per_thread {
                        append(engine, *run, notes(RECORDS), Durability::Barrier);
                    }
                });
            }
        });
    })
}

/// One of several processes on a folder: waits for a line, appends, says that it is done.
fn writer(folder: &Path, count: usize) {
    let engine = engine(folder);
    let run = create(&engine, Durability::Barrier);
    println!("ready");
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    for _ in 0..count {
        append(&engine, run, notes(RECORDS), Durability::Barrier);
    }
    println!("done");
    engine.store().close().unwrap();
}

fn processes(folder: &Path, many: usize, count: usize) -> f64 {
    use std::io::{BufRead, BufReader};
    let me = std::env::current_exe().unwrap();
    let start = || {
        let mut child = Process::new(&me);
        child.arg("writer").arg(folder).arg(count.to_string()).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = child.spawn().unwrap();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        out.read_line(&mut line).unwrap();
        (child, out)
    };
    let mut children: Vec<_> = (0..many).map(|_| start()).collect();
    let done = rate(many * count, || {
        for (child, _) in &mut children {
            child.stdin.as_mut().unwrap().write_all(b"go\n").unwrap();
        }
        for (_, out) in &mut children {
            let mut line = String::new();
            out.read_line(&mut line).unwrap();
        }
    });
    for (mut child, _) in children {
        child.wait().unwrap();
    }
    done
}

fn interleaved(folder: &Path, rounds: usize, scale: usize) {
    let engine = engine(&folder.join("store"));
    let mut file = File::create(folder.join("bare")).unwrap();
    let runs: Vec<RunId> = (0..THREADS).map(|_| create(&engine, Durability::Commit)).collect();
    let batch = create(&engine, Durability::Barrier);
    let names = [
        "bare append + fdatasync, 2 KB",
        "one durable commit of 5 records",
        "bare group commit, 64 threads",
        "64 threads, durable commits of 5 records",
        "batch of 1000 records, one frame",
        "batch of 1000 records, one frame, durable",
    ];
    let mut samples = vec![Vec::new(); names.len()];
    for _ in 0..rounds {
        samples[0].push(bare(&mut file, 4 * scale));
        samples[1].push(rate(4 * scale, || {
            (0..4 * scale).for_each(|_| append(&engine, runs[0], notes(RECORDS), Durability::Barrier));
        }));
        samples[2].push(bare_group(&folder.join("group"), 2 * scale));
        samples[3].push(concurrent(&engine, &runs, scale));
        for (at, durability) in [(4, Durability::Commit), (5, Durability::Barrier)] {
            let batches = vec![events(1000); scale / 5]; // made before the clock starts
            samples[at].push(rate(scale / 5 * 1000, || {
                for entries in batches {
                    append(&engine, batch, entries, durability);
                }
            }));
        }
    }
    for (name, rounds) in names.iter().zip(&samples) {
        let unit = if name.starts_with("batch") { "records/s" } else { "commits/s" };
        told(name, unit, rounds);
    }
    let verified: Vec<f64> = (0..rounds.min(5))
        .map(|_| {
            let begun = Instant::now();
            let scope = Scope { stream: Some(StreamId::Run(batch)), ..Scope::default() };
            let report = verify(&engine, &scope, &mut |_, _| true).unwrap();
            assert!(report.ok());
            report.records as f64 / begun.elapsed().as_secs_f64()
        })
        .collect();
    told("read back and verify", "records/s", &verified);
    engine.store().close().unwrap();
    let shared = folder.join("shared");
    self::engine(&shared).store().close().unwrap();
    let (mut one, mut four) = (Vec::new(), Vec::new());
    for _ in 0..rounds.min(7) {
        one.push(processes(&shared, 1, 4 * scale));
        four.push(processes(&shared, 4, scale));
    }
    told("1 process, durable commits", "commits/s", &one);
    told("4 processes on one folder, durable commits", "commits/s", &four);
}

/// One kind of work for some seconds, to look at with a profiler.
fn part(folder: &Path, what: &str) {
    let engine = engine(folder);
    let runs: Vec<RunId> = (0..THREADS).map(|_| create(&engine, Durability::Commit)).collect();
    let begun = Instant::now();
    let mut rounds = Vec::new();
    while begun.elapsed().as_secs() < 4 {
        rounds.push(match what {
            "threads" => concurrent(&engine, &runs, 100),
            "batch" => {
                let batches = vec![events(1000); 100];
                rate(100_000, || {
                    for batch in batches {
                        append(&engine, runs[0], batch, Durability::Commit);
                    }
                })
            }
            _ => rate(400, || {
                (0..400).for_each(|_| append(&engine, runs[0], notes(RECORDS), Durability::Barrier));
            }),
        });
    }
    told(what, "per second", &rounds);
    let stats = engine.store().stats().unwrap();
    println!("{}", json!({"commands": stats.commands, "turns": stats.commits, "syncs": stats.syncs}));
    let begun = Instant::now();
    let report = verify(&engine, &Scope::default(), &mut |_, _| true).unwrap();
    told("verify", "records/s", &[report.records as f64 / begun.elapsed().as_secs_f64()]);
    engine.store().close().unwrap();
}

/// How the figures change while a run grows to a million records and a store to a million runs.
fn growth(folder: &Path) {
    let millis = |begun: Instant| begun.elapsed().as_secs_f64() * 1000.0;
    let path = folder.join("long");
    let mut store = engine(&path);
    let run = create(&store, Durability::Barrier);
    let mut records = 2;
    for target in [10_000, 100_000, 1_000_000] {
        while records < target {
            append(&store, run, events(1000), Durability::Commit);
            records += 1000;
        }
        let rounds: Vec<f64> = (0..5)
            .map(|_| {
                rate(200, || (0..200).for_each(|_| append(&store, run, notes(RECORDS), Durability::Commit)))
            })
            .collect();
        told(&format!("append of 5 records, run of {target} records"), "commits/s", &rounds);
        records += 5000;
        let (mut opened, mut cold) = (Vec::new(), Vec::new());
        for _ in 0..5 {
            store.store().close().unwrap();
            let begun = Instant::now();
            store = engine(&path);
            opened.push(millis(begun));
            let begun = Instant::now();
            append(&store, run, notes(1), Durability::Commit);
            cold.push(millis(begun));
        }
        told(&format!("open, store of {target} records"), "ms", &opened);
        told(&format!("cold command, run of {target} records"), "ms", &cold);
    }
    store.store().close().unwrap();
    many_runs(&folder.join("wide"));
}

fn many_runs(folder: &Path) {
    let store = engine(folder);
    let mut runs = 0;
    for target in [10_000, 100_000, 1_000_000] {
        let begun = Instant::now();
        let more = target - runs;
        std::thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    (0..more / THREADS).for_each(|_| {
                        create(&store, Durability::Commit);
                    });
                });
            }
        });
        told(
            &format!("runs created up to {target}"),
            "runs/s",
            &[more as f64 / begun.elapsed().as_secs_f64()],
        );
        runs = target;
        let request = holdfast_store::engine::ClaimRequest {
            worker: name("w"),
            lease_ms: 60_000,
            filter: holdfast_store::rows::Filter::default(),
            package: None,
            strict: false,
            run: None,
        };
        let claims: Vec<f64> = (0..5)
            .map(|_| {
                rate(50, || {
                    for _ in 0..50 {
                        let claimed = store.claim(&request).unwrap().unwrap();
                        let claim = holdfast_core::run::Claim { fence: claimed.fence, step: claimed.step };
                        let command =
                            Command::Complete { claim, expected_version: None, result: None, patch: None };
                        let by = Actor { id: name("w"), r#type: holdfast_core::records::ActorType::Worker };
                        store.command(claimed.run, &by, command, Durability::Commit).unwrap();
                    }
                })
            })
            .collect();
        told(&format!("claim and finish, {target} runs"), "runs/s", &claims);
    }
    store.store().close().unwrap();
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|word| word != "--bench").collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["writer", folder, count] => writer(Path::new(folder), count.parse().unwrap()),
        ["part", folder, what] => part(Path::new(folder), what),
        [folder, "growth"] => growth(&PathBuf::from(folder)),
        [folder, "quick"] => interleaved(&PathBuf::from(folder), 3, 50),
        [folder] => interleaved(&PathBuf::from(folder), 15, 100),
        _ => println!("usage: store FOLDER [quick|growth]"),
    }
}
