//! Reading rows.

use std::cell::RefCell;
use std::collections::BTreeMap;

use holdfast_core::canonical::Digest;
use holdfast_core::content::Commit;
use holdfast_core::evidence::Hash;
use holdfast_core::ids::{GrantId, RunId, StepId, StreamId};
use holdfast_core::limits;
use holdfast_core::records::{Fence, Key, Name, RecordHash};
use holdfast_core::run::Lease;
use tokio_postgres::Row;

use super::link::Link;
use super::turn::number;
use super::{carry, differs, tree};
use crate::cells::count;
use crate::error::{Result, StoreError};
use crate::rows::{
    CarriedFrame, EnvelopeRow, FrameRow, KeyHeld, LeafRow, LeaseRow, Look, Projection, SealRow, SealedFrame,
    StreamRow,
};
use crate::sqlite::look::{commit_of, key_held, parsed};
use crate::sqlite::open::head;
use crate::store::Cell;

/// Rows as one transaction sees them.
pub(super) struct PgLook<'c>(RefCell<&'c mut Link>);

pub(super) fn unsigned(value: i64) -> Result<u64> {
    u64::try_from(value).map_err(|_| StoreError::Corrupt("a count is below zero".to_owned()))
}

/// A frame's head. One that cannot be read is none that fits: whoever checks the frame names it.
pub(super) fn head_of(text: &str) -> RecordHash {
    head(text).unwrap_or_else(|_| Digest::of_bytes(&[b"unreadable"]))
}

pub(super) const STREAM: &str = "SELECT key, id, last_seq, head, at FROM streams WHERE id = $1";
pub(super) const STREAM_LOCKED: &str =
    "SELECT key, id, last_seq, head, at FROM streams WHERE id = $1 FOR UPDATE";

pub(super) fn stream_row(row: &Row) -> Result<StreamRow> {
    Ok(StreamRow {
        key: row.get(0),
        id: parsed(row.get(1))?,
        last_seq: unsigned(row.get(2))?,
        head: head(row.get(3))?,
        at: unsigned(row.get(4))?,
    })
}

pub(super) const LEASE_COLUMNS: &str =
    "streams.id, steps.id, lease_boot, lease_until, fence_epoch, fence_n, owner, process";

pub(super) fn lease_row(row: &Row) -> Result<Option<LeaseRow>> {
    let small = |at: usize| row.get::<_, Option<i64>>(at).and_then(|n| u32::try_from(n).ok());
    let owner: Option<String> = row.get(6);
    let (Some(boot_id), Some(until), Some(epoch), Some(n), Some(owner)) =
        (row.get(2), row.get::<_, Option<i64>>(3), small(4), small(5), owner.and_then(Name::new))
    else {
        return Ok(None);
    };
    let lease = Lease { boot_id, expires_boot_ms: unsigned(until)?, fence: Fence(epoch, n), owner };
    let process: Option<String> = row.get(7);
    Ok(Some(LeaseRow {
        run: parsed(row.get(0))?,
        step: parsed(row.get(1))?,
        lease,
        process: process.unwrap_or_default(),
    }))
}

impl<'c> PgLook<'c> {
    pub(super) fn new(link: &'c mut Link) -> Self {
        Self(RefCell::new(link))
    }

    pub(super) fn into_link(self) -> &'c mut Link {
        self.0.into_inner()
    }

    pub(super) fn query(&self, sql: &str, values: &[Cell]) -> Result<Vec<Row>> {
        self.0.borrow_mut().query(sql, values)
    }

    /// The first row of an answer.
    pub(super) fn first(&self, sql: &str, values: &[Cell]) -> Result<Option<Row>> {
        Ok(self.query(sql, values)?.into_iter().next())
    }

    pub(super) fn execute(&self, sql: &str, values: &[Cell]) -> Result<u64> {
        self.0.borrow_mut().execute(sql, values)
    }

    pub(super) fn later(&self, sql: &str, values: Vec<Cell>, rows: Option<u64>) -> Result<()> {
        self.0.borrow_mut().later(sql, values, rows)
    }
}

/// A frame of the columns pos, first_seq, last_seq, head, body, contents.
fn frame_row(row: &Row, stream: i64) -> FrameRow {
    FrameRow {
        pos: row.get(0),
        stream,
        first_seq: u64::try_from(row.get::<_, i64>(1)).unwrap_or(0),
        last_seq: u64::try_from(row.get::<_, i64>(2)).unwrap_or(0),
        head: head_of(row.get(3)),
        at: 0,
        body: row.get(4),
        contents: row.get(5),
    }
}

impl Look for PgLook<'_> {
    fn stream(&self, id: StreamId) -> Result<Option<StreamRow>> {
        self.first(STREAM, &[id.to_string().into()])?.as_ref().map(stream_row).transpose()
    }

    fn streams(&self, after: i64, most: usize) -> Result<Vec<StreamRow>> {
        let sql = "SELECT key, id, last_seq, head, at FROM streams WHERE key > $1 ORDER BY key LIMIT $2";
        self.query(sql, &[after.into(), count(most)])?.iter().map(stream_row).collect()
    }

    fn frames(&self, stream: i64, after: u64) -> Result<Vec<FrameRow>> {
        // From the frame that holds the record after `after`: the last that begins at or before it; as many
        // as a page has room for, and always one.
        let sql = "SELECT pos, first_seq, last_seq, head, body, contents FROM (
                       SELECT *, sum(octet_length(body) + coalesce(octet_length(contents), 0))
                           OVER (ORDER BY first_seq ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS bytes,
                           sum(last_seq - first_seq + 1)
                           OVER (ORDER BY first_seq ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS records
                       FROM (SELECT * FROM frames WHERE stream = $1 AND first_seq >= coalesce((
                               SELECT max(first_seq) FROM frames WHERE stream = $1 AND first_seq <= $2), 0)
                           AND last_seq >= $2 ORDER BY first_seq LIMIT $3) AS near) AS page
                   WHERE coalesce(bytes, 0) < $4 AND coalesce(records, 0) < $3 ORDER BY first_seq";
        let values = [
            stream.into(),
            number(after + 1),
            count(limits::PAGE_RECORDS_MAX),
            count(limits::PAGE_BYTES_MAX),
        ];
        Ok(self.query(sql, &values)?.iter().map(|row| frame_row(row, stream)).collect())
    }

    fn frame(&self, stream: i64, seq: u64) -> Result<Option<FrameRow>> {
        let sql = "SELECT pos, first_seq, last_seq, head, body, contents FROM frames
                   WHERE stream = $1 AND first_seq <= $2 AND last_seq >= $2 ORDER BY first_seq DESC LIMIT 1";
        Ok(self.first(sql, &[stream.into(), number(seq)])?.map(|row| frame_row(&row, stream)))
    }

    fn snapshot(&self, stream: i64) -> Result<Option<(u64, String)>> {
        let found = self.first("SELECT seq, state FROM snapshots WHERE stream = $1", &[stream.into()])?;
        found.map(|row| Ok((unsigned(row.get(0))?, row.get(1)))).transpose()
    }

    fn newest(&self) -> Result<Option<(i64, RecordHash)>> {
        let found = self.first("SELECT pos, head FROM frames ORDER BY pos DESC LIMIT 1", &[])?;
        Ok(found.map(|row| (row.get(0), head_of(row.get(1)))))
    }

    fn lease(&self, run: i64, step: StepId) -> Result<Option<LeaseRow>> {
        let sql = format!(
            "SELECT {LEASE_COLUMNS} FROM steps JOIN streams ON streams.key = steps.run
             WHERE run = $1 AND steps.id = $2 AND owner IS NOT NULL"
        );
        let found = self.first(&sql, &[run.into(), step.to_string().into()])?;
        found.as_ref().map_or(Ok(None), lease_row)
    }

    fn run_of_key(&self, key: &Key) -> Result<Option<RunId>> {
        let sql = "SELECT streams.id FROM keys JOIN streams ON streams.key = keys.run
                   WHERE scope = 'run' AND keys.key = $1";
        self.first(sql, &[key.as_str().into()])?.map(|row| parsed(row.get(0))).transpose()
    }

    fn grant_spent(&self, grant: GrantId) -> Result<u32> {
        let sql = "SELECT count(*) FROM grant_uses WHERE grant_id = $1";
        let spent: i64 = self.first(sql, &[grant.to_string().into()])?.map_or(0, |row| row.get(0));
        Ok(u32::try_from(spent).unwrap_or(u32::MAX))
    }

    fn key_held(&self, key: &Key) -> Result<Option<KeyHeld>> {
        let sql = "SELECT streams.id, call, settled FROM keys JOIN streams ON streams.key = keys.run
                   WHERE scope = 'store' AND keys.key = $1";
        let found = self.first(sql, &[key.as_str().into()])?;
        found.map(|row| key_held(row.get(0), row.get(1), row.get(2))).transpose()
    }

    fn key_busy(&self, key: &Key) -> Result<bool> {
        let sql = "SELECT 1 FROM steps WHERE concurrency_key = $1 AND status = 'running'
                   AND concurrency_key IS NOT NULL LIMIT 1";
        Ok(self.first(sql, &[key.as_str().into()])?.is_some())
    }

    fn has_open_forks(&self, run: RunId) -> Result<bool> {
        let sql = "SELECT 1 FROM runs WHERE fork_of = $1
                   AND status NOT IN ('completed', 'failed', 'cancelled') LIMIT 1";
        Ok(self.first(sql, &[run.to_string().into()])?.is_some())
    }

    fn blob_refs(&self, stream: i64) -> Result<BTreeMap<Commit, u64>> {
        let sql = "SELECT commitment, bytes FROM blob_refs WHERE stream = $1";
        let found = self.query(sql, &[stream.into()])?;
        found.iter().map(|row| Ok((commit_of(row.get(0))?, unsigned(row.get(1))?))).collect()
    }

    fn refers_to(&self, blob: &Commit) -> Result<bool> {
        let sql = "SELECT 1 FROM blob_refs WHERE commitment = $1 LIMIT 1";
        Ok(self.first(sql, &[blob.to_string().into()])?.is_some())
    }

    fn differs(&self, stream: &StreamRow, expected: &Projection) -> Result<Option<&'static str>> {
        differs::differs(self, stream, expected)
    }

    fn leaves(&self) -> Result<u64> {
        tree::leaves(self)
    }

    fn leaf_rows(&self, from: u64, most: usize) -> Result<Vec<LeafRow>> {
        tree::leaf_rows(self, from, most)
    }

    fn node(&self, level: u32, n: u64) -> Result<Option<Hash>> {
        tree::node(self, level, n)
    }

    fn unsealed(&self, most: usize) -> Result<Vec<(i64, SealedFrame)>> {
        tree::unsealed(self, most)
    }

    fn newest_leaf(&self, stream: i64, size: u64, until: u64) -> Result<Option<LeafRow>> {
        tree::newest_leaf(self, stream, size, until)
    }

    fn sealed_frames(&self, after: Option<u64>) -> Result<Vec<CarriedFrame>> {
        carry::sealed_frames(self, after)
    }

    fn unsealed_frames(&self, after: i64) -> Result<Vec<CarriedFrame>> {
        carry::unsealed_frames(self, after)
    }

    fn envelope_rows(&self) -> Result<Vec<EnvelopeRow>> {
        carry::envelope_rows(self)
    }

    fn seals(&self, most: usize) -> Result<Vec<SealRow>> {
        tree::seals(self, most)
    }
}
