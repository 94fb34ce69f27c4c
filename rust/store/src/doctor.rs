//! What is wrong with a store, in words, and the repair of what is derived. Records are never repaired:
//! a damaged journal is named, and a backup is the cure.

use std::sync::Arc;

use holdfast_core::ids::StepId;
use holdfast_core::limits;
use holdfast_core::records::StepStatus;
use holdfast_core::run::Command;

use crate::engine::{Engine, fold_stream, project, write_projection};
use crate::error::{Result, StoreError};
use crate::open::{Address, Opened, Options, open};
use crate::postgres::PgStore;
use crate::rows::{Projection, StreamRow};
use crate::sqlite::SqliteStore;
use crate::store::Stats;
use crate::verify::{Report, Scope, verify};

/// What may be done beside looking.
#[derive(Debug, Clone, Copy, Default)]
pub struct Treatment {
    /// Makes every row anew from the journal.
    pub rebuild: bool,
    /// Goes on without acknowledged records that are missing at the end.
    pub accept_loss: bool,
}

/// What a doctor found and did.
#[derive(Debug, Clone, serde::Serialize)]
pub struct Findings {
    pub stats: Stats,
    pub report: Report,
    /// Why the store was poisoned, if it was.
    pub poisoned: Option<String>,
    /// The store ends before what was once durable: (ends at, was durable to).
    pub truncated: Option<(i64, i64)>,
    pub rebuilt: u64,
    pub advice: Vec<String>,
    /// Whether the store can be used now.
    pub healthy: bool,
}

/// Looks at a store, treats it as asked, and lifts the poison if all is well.
pub fn doctor(
    address: &Address,
    options: &Options,
    treatment: Treatment,
    progress: &mut dyn FnMut(u64, u64) -> bool,
) -> Result<Findings> {
    let options = Options { repair: true, read_only: false, ..options.clone() };
    match open(address, &options)? {
        Opened::Sqlite(store) => look_at_folder(&store, treatment, progress),
        Opened::Postgres(store) => look_at_server(store, treatment, progress),
    }
}

/// A server poisons nothing and forgets nothing that it acknowledged: what is left is the audit.
fn look_at_server(
    store: Arc<PgStore>,
    treatment: Treatment,
    progress: &mut dyn FnMut(u64, u64) -> bool,
) -> Result<Findings> {
    let engine = Engine::new(store, true)?;
    let rebuilt = if treatment.rebuild { rebuild(&engine, true)? } else { 0 };
    let report = verify(&engine, &Scope::default(), progress)?;
    let stats = engine.store().stats()?;
    let advice = advice(&report, None, None, &stats);
    engine.store().close()?;
    let healthy = report.ok();
    Ok(Findings { stats, report, poisoned: None, truncated: None, rebuilt, advice, healthy })
}

fn look_at_folder(
    store: &Arc<SqliteStore>,
    treatment: Treatment,
    progress: &mut dyn FnMut(u64, u64) -> bool,
) -> Result<Findings> {
    let poisoned = store.poison_mark();
    // What the page cache believes after a failed sync is not what is on the disk.
    store.read_from_disk()?;
    let engine = Engine::new(store.clone(), true)?;
    let rebuilt = if treatment.rebuild { store.while_poisoned(|| rebuild(&engine, true))? } else { 0 };
    let mut truncated = store.truncation()?;
    if truncated.is_some() && treatment.accept_loss {
        store.accept_end()?;
        truncated = None;
    }
    let report = verify(&engine, &Scope::default(), progress)?;
    let healthy = report.ok() && truncated.is_none();
    if healthy && poisoned.is_some() {
        store.lift_poison()?;
    }
    let stats = engine.store().stats()?;
    let advice = advice(&report, poisoned.as_ref(), truncated, &stats);
    engine.store().close()?;
    Ok(Findings { stats, report, poisoned, truncated, rebuilt, advice, healthy })
}

fn advice(
    report: &Report,
    poisoned: Option<&String>,
    truncated: Option<(i64, i64)>,
    stats: &Stats,
) -> Vec<String> {
    let mut advice = Vec::new();
    let derived = report.listed.iter().filter(|problem| problem.code == "rows_differ").count();
    if derived > 0 {
        advice.push("Rows differ from the journal: make them anew with --rebuild.".to_owned());
    }
    if report.listed.len() > derived {
        advice.push("The journal or its files are damaged: restore a backup into a new folder.".to_owned());
    }
    if let Some((found, marked)) = truncated {
        advice.push(format!(
            "Frames {} to {marked} were once durable and are missing: restore a backup, or go on without them with --accept-loss.",
            found + 1
        ));
    }
    if poisoned.is_some() && report.ok() && truncated.is_none() {
        advice.push("The store was poisoned and is well on the disk: the mark is lifted.".to_owned());
    }
    if stats.wal_bytes > 16 * limits::WAL_BYTES {
        advice.push(format!(
            "The write-ahead log has grown to {} bytes: a process that reads for long holds it.",
            stats.wal_bytes
        ));
    }
    advice
}

/// Makes every projection anew from the frames. Leases count as expired afterwards: whoever had a step has lost
/// it, and that is written, unless the store is only just arriving.
pub(crate) fn rebuild(engine: &Engine, recover: bool) -> Result<u64> {
    let mut rebuilt = 0;
    let mut after = 0;
    loop {
        let mut rows: Vec<StreamRow> = Vec::new();
        engine.store().look(&mut |look| {
            rows = look.streams(after, 1000)?;
            Ok(())
        })?;
        let Some(last) = rows.last() else { return Ok(rebuilt) };
        after = last.key;
        for row in rows {
            engine.rebuild(&row, recover)?;
            rebuilt += 1;
        }
    }
}

impl Engine {
    /// Makes the rows of one stream anew, as it stands now: others may write to it meanwhile. A step without a
    /// lease that nobody recovers would never be offered again.
    pub(crate) fn rebuild(&self, row: &StreamRow, recover: bool) -> Result<()> {
        let id = row.id;
        self.with_desk(move |desk| {
            let gone = || StoreError::Corrupt(format!("{id} is gone"));
            let row = desk.rows.stream(id)?.ok_or_else(gone)?;
            let state = fold_stream(&*desk.rows, desk.store.blobs(), desk.store.id(), &row)?;
            let Some(state) = state else {
                return Err(StoreError::Corrupt(format!("{} has no records", row.id)));
            };
            desk.rows.clear_projections(&row)?;
            write_projection(desk.rows, &Projection::default(), &project(&state, row.key)?)?;
            for content in desk.blob_contents(&row)? {
                desk.rows.put_blob_ref(&content.commit, row.key, content.bytes)?;
            }
            desk.keep_fold(row.key, &state)?;
            let Some(run) = state.as_run().filter(|_| recover) else { return Ok(()) };
            let running = run.steps.values().filter(|step| step.status == StepStatus::Running);
            let steps: Vec<StepId> = running.map(|step| step.id).collect();
            steps.into_iter().try_for_each(|step| desk.chore(run.id, Command::Recover { step }).map(|_| ()))
        })
    }
}
