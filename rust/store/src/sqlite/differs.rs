//! Whether rows are what a fold says: each expected row is asked for by every one of its cells, and there
//! are no others. A damaged cell need not be readable for that, it is just not found.

use rusqlite::{Connection, Params, params, params_from_iter};

use super::failed;
use crate::cells::{self, signed};
use crate::error::Result;
use crate::rows::{ApprovalRow, GrantRow, GrantUseRow, KeyRow, Projection, RunRow, StepRow, StreamRow};

struct Asked<'c>(&'c Connection);

impl Asked<'_> {
    fn count(&self, from: &str, values: impl Params) -> Result<usize> {
        let sql = format!("SELECT count(*) FROM {from}");
        let mut statement = self.0.prepare_cached(&sql).map_err(|e| failed(&e))?;
        let count: i64 = statement.query_row(values, |row| row.get(0)).map_err(|e| failed(&e))?;
        Ok(usize::try_from(count).unwrap_or(0))
    }

    fn run(&self, row: &RunRow) -> Result<bool> {
        let found = self.count(
            "runs WHERE stream = ?1 AND id IS ?2 AND agent IS ?3 AND role IS ?4 AND session IS ?5
             AND parent IS ?6 AND fork_of IS ?7 AND mode IS ?8 AND status IS ?9 AND reason IS ?10
             AND state_version IS ?11 AND priority IS ?12 AND deadline IS ?13 AND labels IS ?14
             AND created_at IS ?15",
            params_from_iter(cells::of_run(row)),
        )?;
        Ok(found == 1)
    }

    fn step(&self, row: &StepRow) -> Result<bool> {
        let found = self.count(
            "steps WHERE run = ?1 AND id = ?2 AND name IS ?3 AND queue IS ?4 AND agent IS ?5
             AND package IS ?6 AND status IS ?7
             AND (ready IS ?8 AND due IS ?9 OR ?9 IS NOT NULL AND ready IS 1 AND due IS NULL)
             AND rank IS ?10 AND deadline IS ?11 AND concurrency_key IS ?12 AND attempt IS ?13
             AND fence_epoch IS ?14 AND fence_n IS ?15",
            params_from_iter(cells::of_step(row)),
        )?;
        Ok(found == 1)
    }

    fn waits(&self, row: &StepRow) -> Result<bool> {
        for (n, wait) in row.waits.iter().enumerate() {
            let found = self.count(
                "waits WHERE run = ?1 AND step = ?2 AND n = ?3 AND what IS ?4 AND subject IS ?5 AND call IS ?6
                 AND until IS ?7",
                params_from_iter(cells::of_wait(row, n, wait)),
            )?;
            if found != 1 {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn approval(&self, row: &ApprovalRow) -> Result<bool> {
        let found = self.count(
            "approvals WHERE id = ?1 AND run IS ?2 AND call IS ?3 AND status IS ?4 AND quorum IS ?5
             AND votes IS ?6 AND digest IS ?7 AND expires_at IS ?8",
            params_from_iter(cells::of_approval(row)),
        )?;
        Ok(found == 1)
    }

    fn grant(&self, row: &GrantRow) -> Result<bool> {
        let found = self.count(
            "grants WHERE id = ?1 AND stream IS ?2 AND tool IS ?3 AND uses IS ?4 AND spent IS ?5
             AND revoked IS ?6 AND expires_at IS ?7",
            params_from_iter(cells::of_grant(row)),
        )?;
        Ok(found == 1)
    }

    fn grant_use(&self, row: &GrantUseRow) -> Result<bool> {
        let found = self.count(
            "grant_uses WHERE grant_id = ?1 AND run = ?2 AND call = ?3",
            params_from_iter(cells::of_grant_use(row)),
        )?;
        Ok(found == 1)
    }

    fn key(&self, row: &KeyRow) -> Result<bool> {
        let found = self.count(
            "keys WHERE scope = ?1 AND key = ?2 AND run IS ?3 AND call IS ?4 AND settled IS ?5",
            params_from_iter(cells::of_key(row)),
        )?;
        Ok(found == 1)
    }

    /// Whether somebody else has a key of the whole store by now, who was done with it later or is not.
    fn passed_on(&self, row: &KeyRow) -> Result<bool> {
        let found = self.count(
            "keys WHERE scope = 'store' AND key = ?1 AND run IS NOT ?2 AND (settled = 0 OR settled > ?3)",
            params![row.key, row.run, signed(row.settled)],
        )?;
        Ok(row.scope == "store" && row.settled > 0 && found == 1)
    }

    fn keys(&self, stream: i64, rows: &[KeyRow]) -> Result<bool> {
        let mut here = 0;
        for row in rows {
            match self.key(row)? {
                true => here += 1,
                false if self.passed_on(row)? => {}
                false => return Ok(false),
            }
        }
        Ok(self.count("keys WHERE run = ?1", [stream])? == here)
    }

    /// Whether a table has this many rows of the stream, and each of them is found.
    fn all<R>(
        &self,
        of_stream: &str,
        stream: i64,
        rows: &[R],
        found: impl Fn(&R) -> Result<bool>,
    ) -> Result<bool> {
        if self.count(of_stream, [stream])? != rows.len() {
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

/// The first table whose rows of the stream are not the expected ones.
pub(super) fn differs(
    connection: &Connection,
    stream: &StreamRow,
    expected: &Projection,
) -> Result<Option<&'static str>> {
    let asked = Asked(connection);
    let key = stream.key;
    let waits: usize = expected.steps.iter().map(|step| step.waits.len()).sum();
    let whole = [
        ("runs", asked.all("runs WHERE stream = ?1", key, expected.run.as_slice(), |row| asked.run(row))?),
        ("steps", asked.all("steps WHERE run = ?1", key, &expected.steps, |row| asked.step(row))?),
        ("waits", asked.count("waits WHERE run = ?1", [key])? == waits),
        ("waits", asked.all("steps WHERE run = ?1", key, &expected.steps, |row| asked.waits(row))?),
        (
            "approvals",
            asked.all("approvals WHERE run = ?1", key, &expected.approvals, |row| asked.approval(row))?,
        ),
        ("grants", asked.all("grants WHERE stream = ?1", key, &expected.grants, |row| asked.grant(row))?),
        (
            "grant_uses",
            asked.all("grant_uses WHERE run = ?1", key, &expected.grant_uses, |row| asked.grant_use(row))?,
        ),
        ("keys", asked.keys(key, &expected.keys)?),
        ("names", names(&asked, stream, expected)?),
    ];
    Ok(whole.into_iter().find_map(|(table, same)| (!same).then_some(table)))
}

/// Names belong to the store's own stream, whatever runs they name.
fn names(asked: &Asked<'_>, stream: &StreamRow, expected: &Projection) -> Result<bool> {
    if stream.id != holdfast_core::ids::StreamId::Store {
        return Ok(true);
    }
    asked.all("names WHERE ?1 IS NOT NULL", stream.key, &expected.names, |(name, run)| {
        Ok(asked.count("names WHERE name = ?1 AND run IS ?2", params![name.as_str(), run.to_string()])? == 1)
    })
}
