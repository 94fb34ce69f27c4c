//! Reading rows.

use std::collections::BTreeMap;

use holdfast_core::canonical::{Digest, from_text};
use holdfast_core::content::Commit;
use holdfast_core::evidence::Hash;
use holdfast_core::ids::{GrantId, RunId, StepId, StreamId};
use holdfast_core::limits;
use holdfast_core::records::{Fence, Key, Name, RecordHash, Wait, WaitOn, read};
use holdfast_core::run::Lease;
use rusqlite::{Connection, OptionalExtension, Row};
use serde_json::Value;

use super::differs::differs;
use super::{carry, failed, open, tree};
use crate::cells::signed;
use crate::error::{Result, StoreError};
use crate::rows::{
    CarriedFrame, EnvelopeRow, FrameRow, KeyHeld, LeafRow, LeaseRow, Look, Projection, SealRow, SealedFrame,
    StreamRow,
};

/// Rows as one connection sees them.
pub(super) struct SqlLook<'c>(pub(super) &'c Connection);

pub(super) fn unsigned(value: i64) -> Result<u64> {
    u64::try_from(value).map_err(|_| StoreError::Corrupt("a count is below zero".to_owned()))
}

/// A text column; damaged characters are replaced, so that what reads the text can say what is wrong.
pub(super) fn text(row: &Row<'_>, at: usize) -> Result<String> {
    Ok(optional_text(row, at)?.unwrap_or_default())
}

/// The same where there may be none.
pub(super) fn optional_text(row: &Row<'_>, at: usize) -> Result<Option<String>> {
    let value = row.get_ref(at).map_err(|e| failed(&e))?;
    let bytes = value.as_bytes_or_null().map_err(|_| StoreError::Corrupt("a text is none".to_owned()))?;
    Ok(bytes.map(|bytes| String::from_utf8_lossy(bytes).into_owned()))
}

/// A frame's head. One that cannot be read is none that fits: whoever checks the frame names it.
pub(super) fn head_of(row: &Row<'_>, at: usize) -> Result<RecordHash> {
    let text = text(row, at)?;
    Ok(open::head(&text).unwrap_or_else(|_| Digest::of_bytes(&[b"unreadable"])))
}

/// Reads a value that is kept as text.
pub(crate) fn parsed<T: std::str::FromStr>(text: &str) -> Result<T> {
    text.parse().map_err(|_| StoreError::Corrupt("an id in a row is not an id".to_owned()))
}

fn stream_row(row: &Row<'_>) -> Result<StreamRow> {
    let number = |at: usize| row.get::<_, i64>(at).map_err(|e| failed(&e));
    Ok(StreamRow {
        key: number(0)?,
        id: parsed(&text(row, 1)?)?,
        last_seq: unsigned(number(2)?)?,
        head: open::head(&text(row, 3)?)?,
        at: unsigned(number(4)?)?,
    })
}

pub(crate) type WaitParts = (String, Option<String>, Option<String>, Option<i64>);

fn lossy(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

pub(crate) fn wait_of((what, subject, call, until): WaitParts) -> Result<Wait> {
    let corrupt = || StoreError::Corrupt("a wait in a row is not a wait".to_owned());
    let on = WaitOn::ALL.iter().find(|on| on.as_str() == what).copied().ok_or_else(corrupt)?;
    let subject = subject.map(|text| Key::new(text).ok_or_else(corrupt)).transpose()?;
    let call = call.map(|text| parsed(&text)).transpose()?;
    Ok(Wait { call, on, subject, until: until.map(unsigned).transpose()? })
}

pub(super) const LEASE_COLUMNS: &str =
    "streams.id, steps.id, lease_boot, lease_until, fence_epoch, fence_n, owner, process";

/// A frame of the columns pos, first_seq, last_seq, head, body, contents.
fn frame_row(row: &Row<'_>, stream: i64) -> Result<FrameRow> {
    let number = |at: usize| row.get::<_, i64>(at).map_err(|e| failed(&e));
    Ok(FrameRow {
        pos: number(0)?,
        stream,
        first_seq: u64::try_from(number(1)?).unwrap_or(0),
        last_seq: u64::try_from(number(2)?).unwrap_or(0),
        head: head_of(row, 3)?,
        at: 0,
        body: text(row, 4)?,
        contents: optional_text(row, 5)?,
    })
}

pub(super) fn lease_row(row: &Row<'_>) -> Result<Option<LeaseRow>> {
    let text = |at: usize| row.get::<_, Option<String>>(at).map_err(|e| failed(&e));
    let number = |at: usize| row.get::<_, Option<i64>>(at).map_err(|e| failed(&e));
    let small = |at: usize| Ok::<_, StoreError>(number(at)?.and_then(|n| u32::try_from(n).ok()));
    let (Some(boot_id), Some(until), Some(epoch), Some(n), Some(owner)) =
        (text(2)?, number(3)?, small(4)?, small(5)?, text(6)?.and_then(Name::new))
    else {
        return Ok(None);
    };
    let lease = Lease { boot_id, expires_boot_ms: unsigned(until)?, fence: Fence(epoch, n), owner };
    let (run, step) = (parsed(&text(0)?.unwrap_or_default())?, parsed(&text(1)?.unwrap_or_default())?);
    Ok(Some(LeaseRow { run, step, lease, process: text(7)?.unwrap_or_default() }))
}

/// Of the columns run, call, settled.
pub(crate) fn key_held(run: &str, call: &str, settled: i64) -> Result<KeyHeld> {
    let kept_until = u64::try_from(settled).ok().filter(|until| *until > 0);
    Ok(KeyHeld { run: parsed(run)?, call: parsed(call)?, kept_until })
}

impl Look for SqlLook<'_> {
    fn stream(&self, id: StreamId) -> Result<Option<StreamRow>> {
        let sql = "SELECT key, id, last_seq, head, at FROM streams WHERE id = ?1";
        let mut statement = self.0.prepare_cached(sql).map_err(|e| failed(&e))?;
        let mut rows = statement.query([id.to_string()]).map_err(|e| failed(&e))?;
        rows.next().map_err(|e| failed(&e))?.map(stream_row).transpose()
    }

    fn streams(&self, after: i64, most: usize) -> Result<Vec<StreamRow>> {
        let sql = "SELECT key, id, last_seq, head, at FROM streams WHERE key > ?1 ORDER BY key LIMIT ?2";
        let mut statement = self.0.prepare_cached(sql).map_err(|e| failed(&e))?;
        let most = i64::try_from(most).unwrap_or(i64::MAX);
        let mut rows = statement.query((after, most)).map_err(|e| failed(&e))?;
        let mut found = Vec::new();
        while let Some(row) = rows.next().map_err(|e| failed(&e))? {
            found.push(stream_row(row)?);
        }
        Ok(found)
    }

    fn frame(&self, stream: i64, seq: u64) -> Result<Option<FrameRow>> {
        let sql = "SELECT pos, first_seq, last_seq, head, body, contents FROM frames
                   WHERE stream = ?1 AND first_seq <= ?2 AND last_seq >= ?2 ORDER BY first_seq DESC LIMIT 1";
        let mut statement = self.0.prepare_cached(sql).map_err(|e| failed(&e))?;
        let mut rows = statement.query((stream, signed(seq))).map_err(|e| failed(&e))?;
        rows.next().map_err(|e| failed(&e))?.map(|row| frame_row(row, stream)).transpose()
    }

    fn frames(&self, stream: i64, after: u64) -> Result<Vec<FrameRow>> {
        // From the frame that holds the record after `after`: the last that begins at or before it.
        let sql = "SELECT pos, first_seq, last_seq, head, body, contents FROM frames
                   WHERE stream = ?1 AND first_seq >= coalesce((SELECT max(first_seq) FROM frames
                   WHERE stream = ?1 AND first_seq <= ?2), 0) AND last_seq >= ?2 ORDER BY first_seq";
        let mut statement = self.0.prepare_cached(sql).map_err(|e| failed(&e))?;
        let mut rows = statement.query((stream, signed(after + 1))).map_err(|e| failed(&e))?;
        let (mut found, mut bytes, mut records) = (Vec::new(), 0, 0);
        while let Some(row) = rows.next().map_err(|e| failed(&e))? {
            let frame = frame_row(row, stream)?;
            bytes += frame.body.len() + frame.contents.as_ref().map_or(0, String::len);
            records += usize::try_from(frame.last_seq.saturating_sub(frame.first_seq)).unwrap_or(0) + 1;
            found.push(frame);
            if bytes >= limits::PAGE_BYTES_MAX || records >= limits::PAGE_RECORDS_MAX {
                break;
            }
        }
        Ok(found)
    }

    fn snapshot(&self, stream: i64) -> Result<Option<(u64, String)>> {
        let sql = "SELECT seq, state FROM snapshots WHERE stream = ?1";
        let mut statement = self.0.prepare_cached(sql).map_err(|e| failed(&e))?;
        let found: Option<(i64, String)> = statement
            .query_row([stream], |row| {
                Ok((row.get(0)?, lossy(row.get_ref(1)?.as_bytes().unwrap_or_default())))
            })
            .optional()
            .map_err(|e| failed(&e))?;
        found.map(|(seq, state)| Ok((unsigned(seq)?, state))).transpose()
    }

    fn newest(&self) -> Result<Option<(i64, RecordHash)>> {
        let sql = "SELECT pos, head FROM frames ORDER BY pos DESC LIMIT 1";
        let mut statement = self.0.prepare_cached(sql).map_err(|e| failed(&e))?;
        let mut rows = statement.query([]).map_err(|e| failed(&e))?;
        let Some(row) = rows.next().map_err(|e| failed(&e))? else { return Ok(None) };
        let pos: i64 = row.get(0).map_err(|e| failed(&e))?;
        Ok(Some((pos, head_of(row, 1)?)))
    }

    fn lease(&self, run: i64, step: StepId) -> Result<Option<LeaseRow>> {
        let sql = format!(
            "SELECT {LEASE_COLUMNS} FROM steps JOIN streams ON streams.key = steps.run
             WHERE run = ?1 AND steps.id = ?2 AND owner IS NOT NULL"
        );
        let mut statement = self.0.prepare_cached(&sql).map_err(|e| failed(&e))?;
        let mut rows = statement.query((run, step.to_string())).map_err(|e| failed(&e))?;
        match rows.next().map_err(|e| failed(&e))? {
            Some(row) => lease_row(row),
            None => Ok(None),
        }
    }

    fn run_of_key(&self, key: &Key) -> Result<Option<RunId>> {
        let sql = "SELECT streams.id FROM keys JOIN streams ON streams.key = keys.run
                   WHERE scope = 'run' AND keys.key = ?1";
        let mut statement = self.0.prepare_cached(sql).map_err(|e| failed(&e))?;
        let found: Option<String> =
            statement.query_row([key.as_str()], |row| row.get(0)).optional().map_err(|e| failed(&e))?;
        found.map(|id| parsed(&id)).transpose()
    }

    fn grant_spent(&self, grant: GrantId) -> Result<u32> {
        let sql = "SELECT count(*) FROM grant_uses WHERE grant_id = ?1";
        let mut statement = self.0.prepare_cached(sql).map_err(|e| failed(&e))?;
        let spent: i64 =
            statement.query_row([grant.to_string()], |row| row.get(0)).map_err(|e| failed(&e))?;
        Ok(u32::try_from(spent).unwrap_or(u32::MAX))
    }

    fn key_held(&self, key: &Key) -> Result<Option<KeyHeld>> {
        let sql = "SELECT streams.id, call, settled FROM keys JOIN streams ON streams.key = keys.run
                   WHERE scope = 'store' AND keys.key = ?1";
        let mut statement = self.0.prepare_cached(sql).map_err(|e| failed(&e))?;
        let row = |row: &Row<'_>| Ok((row.get(0)?, row.get(1)?, row.get(2)?));
        let found: Option<(String, String, i64)> =
            statement.query_row([key.as_str()], row).optional().map_err(|e| failed(&e))?;
        found.map(|(run, call, settled)| key_held(&run, &call, settled)).transpose()
    }

    fn key_busy(&self, key: &Key) -> Result<bool> {
        let sql = "SELECT 1 FROM steps WHERE concurrency_key = ?1 AND status = 'running'
                   AND concurrency_key IS NOT NULL LIMIT 1";
        let mut statement = self.0.prepare_cached(sql).map_err(|e| failed(&e))?;
        statement.exists([key.as_str()]).map_err(|e| failed(&e))
    }

    fn has_open_forks(&self, run: RunId) -> Result<bool> {
        let sql = "SELECT 1 FROM runs WHERE fork_of = ?1
                   AND status NOT IN ('completed', 'failed', 'cancelled') LIMIT 1";
        let mut statement = self.0.prepare_cached(sql).map_err(|e| failed(&e))?;
        statement.exists([run.to_string()]).map_err(|e| failed(&e))
    }

    fn blob_refs(&self, stream: i64) -> Result<BTreeMap<Commit, u64>> {
        let sql = "SELECT commitment, bytes FROM blob_refs WHERE stream = ?1";
        let mut statement = self.0.prepare_cached(sql).map_err(|e| failed(&e))?;
        let mut rows = statement.query([stream]).map_err(|e| failed(&e))?;
        let mut found = BTreeMap::new();
        while let Some(row) = rows.next().map_err(|e| failed(&e))? {
            found.insert(commit_of(text(row, 0)?)?, unsigned(row.get(1).map_err(|e| failed(&e))?)?);
        }
        Ok(found)
    }

    fn refers_to(&self, blob: &Commit) -> Result<bool> {
        let sql = "SELECT 1 FROM blob_refs WHERE commitment = ?1";
        let mut statement = self.0.prepare_cached(sql).map_err(|e| failed(&e))?;
        statement.exists([blob.to_string()]).map_err(|e| failed(&e))
    }

    fn differs(&self, stream: &StreamRow, expected: &Projection) -> Result<Option<&'static str>> {
        differs(self.0, stream, expected)
    }

    fn leaves(&self) -> Result<u64> {
        tree::leaves(self.0)
    }

    fn leaf_rows(&self, from: u64, most: usize) -> Result<Vec<LeafRow>> {
        tree::leaf_rows(self.0, from, most)
    }

    fn node(&self, level: u32, n: u64) -> Result<Option<Hash>> {
        tree::node(self.0, level, n)
    }

    fn unsealed(&self, most: usize) -> Result<Vec<(i64, SealedFrame)>> {
        tree::unsealed(self.0, most)
    }

    fn newest_leaf(&self, stream: i64, size: u64, until: u64) -> Result<Option<LeafRow>> {
        tree::newest_leaf(self.0, stream, size, until)
    }

    fn sealed_frames(&self, after: Option<u64>) -> Result<Vec<CarriedFrame>> {
        carry::sealed_frames(self.0, after)
    }

    fn unsealed_frames(&self, after: i64) -> Result<Vec<CarriedFrame>> {
        carry::unsealed_frames(self.0, after)
    }

    fn envelope_rows(&self) -> Result<Vec<EnvelopeRow>> {
        carry::envelope_rows(self.0)
    }

    fn seals(&self, most: usize) -> Result<Vec<SealRow>> {
        tree::seals(self.0, most)
    }
}

pub(crate) fn commit_of(text: String) -> Result<Commit> {
    read(&Value::String(text)).map_err(|_| StoreError::Corrupt("a row names no content".to_owned()))
}

/// Reads a typed value that a row keeps as JSON.
pub(crate) fn typed<T: serde::de::DeserializeOwned>(text: &str) -> Result<T> {
    let tree =
        from_text(text.as_bytes()).map_err(|_| StoreError::Corrupt("a row's JSON is none".to_owned()))?;
    read(&tree).map_err(|error| StoreError::Corrupt(format!("a row cannot be read: {error}")))
}
