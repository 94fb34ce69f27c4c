//! Rows as they are carried to another store.

use holdfast_core::limits;
use tokio_postgres::Row;

use super::look::{PgLook, head_of, unsigned};
use super::turn::number;
use crate::cells::count;
use crate::error::Result;
use crate::rows::{CarriedFrame, EnvelopeRow, FrameRow};
use crate::sqlite::look::{parsed, typed};
use crate::store::Cell;

fn frame(row: &Row) -> Result<CarriedFrame> {
    let leaf: Option<i64> = row.get(8);
    Ok(CarriedFrame {
        stream: parsed(row.get(2))?,
        leaf: leaf.map(unsigned).transpose()?,
        row: FrameRow {
            pos: row.get(0),
            stream: row.get(1),
            first_seq: unsigned(row.get(3))?,
            last_seq: unsigned(row.get(4))?,
            head: head_of(row.get(5)),
            at: 0,
            body: row.get(6),
            contents: row.get(7),
        },
    })
}

/// As many as a page has room for, and always one.
fn page(look: &PgLook<'_>, from: &str, order: &str, after: Cell) -> Result<Vec<CarriedFrame>> {
    let sql = format!(
        "SELECT pos, stream, id, first_seq, last_seq, head, body, contents, n FROM (
             SELECT near.*, sum(octet_length(body) + coalesce(octet_length(contents), 0))
                 OVER (ORDER BY {order} ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS bytes
             FROM (SELECT frames.*, streams.id, {from} ORDER BY {order} LIMIT $2) AS near) AS page
         WHERE coalesce(bytes, 0) < $3 ORDER BY {order}"
    );
    let values = [after, count(limits::CARRIED_TOGETHER_MAX), count(limits::PAGE_BYTES_MAX)];
    look.query(&sql, &values)?.iter().map(frame).collect()
}

pub(super) fn sealed_frames(look: &PgLook<'_>, after: Option<u64>) -> Result<Vec<CarriedFrame>> {
    let from = "leaves.n FROM leaves JOIN frames ON frames.pos = leaves.pos
                JOIN streams ON streams.key = frames.stream WHERE leaves.n > $1";
    page(look, from, "n", after.map_or(Cell::Integer(-1), number))
}

pub(super) fn unsealed_frames(look: &PgLook<'_>, after: i64) -> Result<Vec<CarriedFrame>> {
    let from = "NULL::bigint AS n FROM unsealed JOIN frames ON frames.pos = unsealed.pos
                JOIN streams ON streams.key = frames.stream WHERE frames.pos > $1";
    page(look, from, "pos", after.into())
}

pub(super) fn envelope_rows(look: &PgLook<'_>) -> Result<Vec<EnvelopeRow>> {
    let envelope = |row: &Row| {
        let (envelope, sent_at) = (typed(row.get(0))?, unsigned(row.get(1))?);
        Ok(EnvelopeRow { envelope, sent_at, refused: row.get(2) })
    };
    look.query("SELECT body, sent_at, refused FROM envelopes ORDER BY id", &[])?
        .iter()
        .map(envelope)
        .collect()
}
