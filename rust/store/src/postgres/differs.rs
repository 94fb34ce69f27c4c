//! Whether rows are what a fold says: each expected row is asked for by every one of its cells, and there
//! are no others.

use holdfast_core::ids::StreamId;

use super::look::PgLook;
use super::turn::number;
use crate::cells;
use crate::error::Result;
use crate::rows::{KeyRow, Projection, StepRow, StreamRow};
use crate::store::Cell;

/// Asks for a row by its cells, in the order of the columns.
struct Asked<'l, 'c> {
    look: &'l PgLook<'c>,
    stream: i64,
}

impl Asked<'_, '_> {
    fn count(&self, from: &str, values: &[Cell]) -> Result<usize> {
        let found = self.look.first(&format!("SELECT count(*) FROM {from}"), values)?;
        Ok(usize::try_from(found.map_or(0, |row| row.get::<_, i64>(0))).unwrap_or(0))
    }

    fn has(&self, table: &str, columns: &[&str], values: &[Cell]) -> Result<bool> {
        let asked = |(at, column): (usize, &&str)| format!("{column} IS NOT DISTINCT FROM ${}", at + 1);
        let asked: Vec<String> = columns.iter().enumerate().map(asked).collect();
        Ok(self.count(&format!("{table} WHERE {}", asked.join(" AND ")), values)? == 1)
    }

    fn step(&self, row: &StepRow) -> Result<bool> {
        let found = self.count(
            "steps WHERE run = $1 AND id = $2 AND name = $3 AND queue = $4 AND agent = $5 AND package = $6
             AND status = $7
             AND (ready = $8 AND due IS NOT DISTINCT FROM $9::bigint
                  OR $9::bigint IS NOT NULL AND ready = 1 AND due IS NULL)
             AND rank = $10 AND deadline IS NOT DISTINCT FROM $11::bigint
             AND concurrency_key IS NOT DISTINCT FROM $12::text AND attempt = $13
             AND fence_epoch IS NOT DISTINCT FROM $14::bigint AND fence_n IS NOT DISTINCT FROM $15::bigint",
            &cells::of_step(row),
        )?;
        Ok(found == 1)
    }

    fn waits(&self, row: &StepRow) -> Result<bool> {
        const COLUMNS: [&str; 7] = ["run", "step", "n", "what", "subject", "call", "until"];
        for (n, wait) in row.waits.iter().enumerate() {
            if !self.has("waits", &COLUMNS, &cells::of_wait(row, n, wait))? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Whether somebody else has a key of the whole store by now, who was done with it later or is not.
    fn passed_on(&self, row: &KeyRow) -> Result<bool> {
        let found = self.count(
            "keys WHERE scope = 'store' AND key = $1 AND run <> $2 AND (settled = 0 OR settled > $3)",
            &[row.key.as_str().into(), row.run.into(), number(row.settled)],
        )?;
        Ok(row.scope == "store" && row.settled > 0 && found == 1)
    }

    fn keys(&self, rows: &[KeyRow]) -> Result<bool> {
        let mut here = 0;
        for row in rows {
            match self.has("keys", &["scope", "key", "run", "call", "settled"], &cells::of_key(row))? {
                true => here += 1,
                false if self.passed_on(row)? => {}
                false => return Ok(false),
            }
        }
        Ok(self.count("keys WHERE run = $1", &[self.stream.into()])? == here)
    }

    /// Whether a table has this many rows of the stream, and each of them is found.
    fn all<R>(&self, of_stream: &str, rows: &[R], found: impl Fn(&R) -> Result<bool>) -> Result<bool> {
        if self.count(&format!("{of_stream} = $1"), &[self.stream.into()])? != rows.len() {
            return Ok(false);
        }
        for row in rows {
            if !found(row)? {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

const RUN: [&str; 15] = [
    "stream",
    "id",
    "agent",
    "role",
    "session",
    "parent",
    "fork_of",
    "mode",
    "status",
    "reason",
    "state_version",
    "priority",
    "deadline",
    "labels",
    "created_at",
];
const APPROVAL: [&str; 8] = ["id", "run", "call", "status", "quorum", "votes", "digest", "expires_at"];
const GRANT: [&str; 7] = ["id", "stream", "tool", "uses", "spent", "revoked", "expires_at"];

/// The first table whose rows of the stream are not the expected ones.
pub(super) fn differs(
    look: &PgLook<'_>,
    stream: &StreamRow,
    expected: &Projection,
) -> Result<Option<&'static str>> {
    let asked = Asked { look, stream: stream.key };
    let waits: usize = expected.steps.iter().map(|step| step.waits.len()).sum();
    let whole = [
        (
            "runs",
            asked.all("runs WHERE stream", expected.run.as_slice(), |row| {
                asked.has("runs", &RUN, &cells::of_run(row))
            })?,
        ),
        ("steps", asked.all("steps WHERE run", &expected.steps, |row| asked.step(row))?),
        ("waits", asked.count("waits WHERE run = $1", &[stream.key.into()])? == waits),
        ("waits", asked.all("steps WHERE run", &expected.steps, |row| asked.waits(row))?),
        (
            "approvals",
            asked.all("approvals WHERE run", &expected.approvals, |row| {
                asked.has("approvals", &APPROVAL, &cells::of_approval(row))
            })?,
        ),
        (
            "grants",
            asked.all("grants WHERE stream", &expected.grants, |row| {
                asked.has("grants", &GRANT, &cells::of_grant(row))
            })?,
        ),
        (
            "grant_uses",
            asked.all("grant_uses WHERE run", &expected.grant_uses, |row| {
                asked.has("grant_uses", &["grant_id", "run", "call"], &cells::of_grant_use(row))
            })?,
        ),
        ("keys", asked.keys(&expected.keys)?),
        ("names", names(&asked, stream, expected)?),
    ];
    Ok(whole.into_iter().find_map(|(table, same)| (!same).then_some(table)))
}

/// Names belong to the store's own stream, whatever runs they name.
fn names(asked: &Asked<'_, '_>, stream: &StreamRow, expected: &Projection) -> Result<bool> {
    if stream.id != StreamId::Store {
        return Ok(true);
    }
    if asked.count("names", &[])? != expected.names.len() {
        return Ok(false);
    }
    for (name, run) in &expected.names {
        if !asked.has("names", &["name", "run"], &[name.as_str().into(), run.to_string().into()])? {
            return Ok(false);
        }
    }
    Ok(true)
}
