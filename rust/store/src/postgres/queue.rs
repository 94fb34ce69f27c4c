//! The claim queue. Workers that look at the same time pass over each other's finds (SKIP LOCKED); none
//! waits for another.

use holdfast_core::clock::Now;
use holdfast_core::ids::RunId;
use holdfast_core::records::{Key, Name};
use holdfast_core::run::Envelope;
use tokio_postgres::Row;

use super::look::{LEASE_COLUMNS, PgLook, lease_row};
use super::turn::number;
use crate::cells::count;
use crate::error::Result;
use crate::rows::{Candidate, DueWait, Filter, LeaseRow};
use crate::sqlite::look::{parsed, typed, wait_of};
use crate::store::Cell;

pub(super) fn promote_due(look: &PgLook<'_>, wall_ms: u64) -> Result<()> {
    let sql = "UPDATE steps SET ready = 1, due = NULL WHERE (run, id) IN (
                   SELECT run, id FROM steps WHERE due <= $1 FOR UPDATE SKIP LOCKED)";
    look.execute(sql, &[number(wall_ms)]).map(|_| ())
}

/// The leases that have run out. Those that hold are nobody's business, and not locked: a heartbeat waits
/// for no claim.
pub(super) fn lost_leases(look: &PgLook<'_>, now: &Now) -> Result<Vec<LeaseRow>> {
    let sql = format!(
        "SELECT {LEASE_COLUMNS} FROM steps JOIN streams ON streams.key = steps.run
         WHERE owner IS NOT NULL AND (lease_until <= $1 OR lease_boot <> $2)
         ORDER BY lease_until LIMIT 64 FOR UPDATE OF steps SKIP LOCKED"
    );
    let found = look.query(&sql, &[number(now.boot_ms), now.boot_id.as_str().into()])?;
    let mut leases = Vec::with_capacity(found.len());
    for row in &found {
        leases.extend(lease_row(row)?);
    }
    Ok(leases)
}

pub(super) fn due_waits(look: &PgLook<'_>, wall_ms: u64, most: usize) -> Result<Vec<DueWait>> {
    let sql = "WITH due AS (
                   (SELECT run, step, n FROM waits WHERE until <= $1 ORDER BY until LIMIT $2)
                   UNION
                   (SELECT run, step, n FROM waits WHERE what = 'key' AND NOT EXISTS (
                       SELECT 1 FROM keys WHERE scope = 'store' AND key = subject AND settled = 0) LIMIT $2))
               SELECT streams.id, step, what, subject, call, until FROM due
               JOIN waits USING (run, step, n) JOIN streams ON streams.key = waits.run
               FOR UPDATE OF waits SKIP LOCKED";
    let due = |row: &Row| {
        let wait = wait_of((row.get(2), row.get(3), row.get(4), row.get(5)))?;
        Ok(DueWait { run: parsed(row.get(0))?, step: parsed(row.get(1))?, wait })
    };
    look.query(sql, &[number(wall_ms), count(most)])?.iter().map(due).collect()
}

/// Names as a JSON array; none of them: any.
fn list<'n>(names: impl ExactSizeIterator<Item = &'n str>) -> Cell {
    if names.len() == 0 {
        return Cell::Null;
    }
    names.collect::<serde_json::Value>().to_string().into()
}

/// Goes from group to group of steps that a worker may have or not have together, a few looks into the
/// index each, and takes the first of those it may have.
const CANDIDATES: &str = "
    WITH RECURSIVE groups AS (
        (SELECT queue, agent, package FROM steps WHERE ready = 1 ORDER BY queue, agent, package LIMIT 1)
        UNION ALL
        SELECT next.queue, next.agent, next.package FROM groups CROSS JOIN LATERAL (
            SELECT queue, agent, package FROM steps
            WHERE ready = 1 AND (queue, agent, package) > (groups.queue, groups.agent, groups.package)
            ORDER BY queue, agent, package LIMIT 1) AS next)
    SELECT streams.id, found.id, found.concurrency_key
    FROM groups CROSS JOIN LATERAL (
        SELECT id, run, rank, deadline, concurrency_key FROM steps
        WHERE ready = 1 AND queue = groups.queue AND agent = groups.agent AND package = groups.package
        AND (concurrency_key IS NULL OR NOT EXISTS (SELECT 1 FROM steps AS busy
            WHERE busy.concurrency_key = steps.concurrency_key AND busy.status = 'running'
            AND busy.concurrency_key IS NOT NULL))
        ORDER BY rank, coalesce(deadline, 9223372036854775807), run LIMIT $4) AS found
    JOIN streams ON streams.key = found.run
    WHERE ($1::text IS NULL OR groups.queue IN (SELECT json_array_elements_text($1::text::json)))
    AND ($2::text IS NULL OR groups.agent IN (SELECT json_array_elements_text($2::text::json)))
    AND ($3::text IS NULL OR groups.package IN (SELECT json_array_elements_text($3::text::json)))
    ORDER BY found.rank, coalesce(found.deadline, 9223372036854775807), found.run LIMIT $4";

pub(super) fn candidates(look: &PgLook<'_>, filter: &Filter, most: usize) -> Result<Vec<Candidate>> {
    let values = [
        list(filter.queues.iter().map(Name::as_str)),
        list(filter.agents.iter().map(Name::as_str)),
        list(filter.packages.iter().map(String::as_str)),
        count(most),
    ];
    let candidate = |row: &Row| {
        let key: Option<String> = row.get(2);
        Ok(Candidate {
            run: parsed(row.get(0))?,
            step: parsed(row.get(1))?,
            concurrency_key: key.and_then(Key::new),
        })
    };
    look.query(CANDIDATES, &values)?.iter().map(candidate).collect()
}

/// Whether nobody else is taking this step.
pub(super) fn take(look: &PgLook<'_>, candidate: &Candidate) -> Result<bool> {
    let sql = "SELECT 1 FROM steps JOIN streams ON streams.key = steps.run
               WHERE streams.id = $1 AND steps.id = $2 AND ready = 1 FOR UPDATE OF steps SKIP LOCKED";
    let values = [candidate.run.to_string().into(), candidate.step.to_string().into()];
    Ok(look.first(sql, &values)?.is_some())
}

/// What was sent and not delivered. A claim takes them only if no other claim is at it: signals come in the
/// order in which they were sent.
pub(super) fn envelopes(look: &PgLook<'_>, to: Option<RunId>, most: usize) -> Result<Vec<Envelope>> {
    let found = match to {
        Some(to) => look.query(
            "SELECT body FROM envelopes WHERE receiver = $1 AND refused IS NULL ORDER BY id LIMIT $2",
            &[to.to_string().into(), count(most)],
        )?,
        None => look.query(
            "WITH turn AS MATERIALIZED (
                 SELECT pg_try_advisory_xact_lock(hashtext('holdfast envelopes ' || current_schema())) AS mine)
             SELECT body FROM envelopes WHERE refused IS NULL AND (SELECT mine FROM turn)
             ORDER BY id LIMIT $1",
            &[count(most)],
        )?,
    };
    found.iter().map(|row| typed(row.get(0))).collect()
}
