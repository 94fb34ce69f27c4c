//! Rows as they are carried to another store.

use holdfast_core::limits;
use rusqlite::{Connection, Params, Row};

use super::failed;
use super::look::{head_of, optional_text, parsed, text, typed, unsigned};
use crate::cells::signed;
use crate::error::Result;
use crate::rows::{CarriedFrame, EnvelopeRow, FrameRow};

const FRAME: &str =
    "SELECT frames.pos, frames.stream, streams.id, frames.first_seq, frames.last_seq, frames.head,
    frames.body, frames.contents, leaves.n FROM frames JOIN streams ON streams.key = frames.stream
    LEFT JOIN leaves ON leaves.pos = frames.pos";

fn frame(row: &Row<'_>) -> Result<CarriedFrame> {
    let number = |at: usize| row.get::<_, i64>(at).map_err(|e| failed(&e));
    let leaf: Option<i64> = row.get(8).map_err(|e| failed(&e))?;
    Ok(CarriedFrame {
        stream: parsed(&text(row, 2)?)?,
        leaf: leaf.map(unsigned).transpose()?,
        row: FrameRow {
            pos: number(0)?,
            stream: number(1)?,
            first_seq: unsigned(number(3)?)?,
            last_seq: unsigned(number(4)?)?,
            head: head_of(row, 5)?,
            at: 0,
            body: text(row, 6)?,
            contents: optional_text(row, 7)?,
        },
    })
}

fn page(connection: &Connection, sql: &str, values: impl Params) -> Result<Vec<CarriedFrame>> {
    let mut statement = connection.prepare_cached(sql).map_err(|e| failed(&e))?;
    let mut rows = statement.query(values).map_err(|e| failed(&e))?;
    let (mut found, mut bytes) = (Vec::new(), 0);
    while let Some(row) = rows.next().map_err(|e| failed(&e))? {
        let carried = frame(row)?;
        bytes += carried.row.body.len() + carried.row.contents.as_ref().map_or(0, String::len);
        found.push(carried);
        if bytes >= limits::PAGE_BYTES_MAX || found.len() >= limits::CARRIED_TOGETHER_MAX {
            break;
        }
    }
    Ok(found)
}

pub(super) fn sealed_frames(connection: &Connection, after: Option<u64>) -> Result<Vec<CarriedFrame>> {
    let sql = format!("{FRAME} WHERE leaves.n > ?1 ORDER BY leaves.n");
    page(connection, &sql, [after.map_or(-1, signed)])
}

pub(super) fn unsealed_frames(connection: &Connection, after: i64) -> Result<Vec<CarriedFrame>> {
    let sql = format!("{FRAME} WHERE leaves.n IS NULL AND frames.pos > ?1 ORDER BY frames.pos");
    page(connection, &sql, [after])
}

pub(super) fn envelope_rows(connection: &Connection) -> Result<Vec<EnvelopeRow>> {
    let sql = "SELECT body, sent_at, refused FROM envelopes ORDER BY id";
    let mut statement = connection.prepare(sql).map_err(|e| failed(&e))?;
    let mut rows = statement.query([]).map_err(|e| failed(&e))?;
    let mut found = Vec::new();
    while let Some(row) = rows.next().map_err(|e| failed(&e))? {
        found.push(EnvelopeRow {
            envelope: typed(&text(row, 0)?)?,
            sent_at: unsigned(row.get(1).map_err(|e| failed(&e))?)?,
            refused: optional_text(row, 2)?,
        });
    }
    Ok(found)
}
