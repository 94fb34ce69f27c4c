//! The rows of the tree: leaves, kept subtrees, seals.

use holdfast_core::evidence::Hash;
use tokio_postgres::Row;

use super::look::{PgLook, head_of, unsigned};
use super::turn::number;
use crate::cells::count;
use crate::error::{Result, StoreError};
use crate::rows::{LeafRow, SealRow, SealedFrame};
use crate::sqlite::look::parsed;

const LEAF: &str =
    "SELECT leaves.n, leaves.pos, leaves.hash, streams.id, frames.first_seq, frames.last_seq, frames.head
     FROM leaves JOIN frames ON frames.pos = leaves.pos JOIN streams ON streams.key = frames.stream";

fn hash(bytes: &[u8]) -> Result<Hash> {
    bytes.try_into().map_err(|_| StoreError::Corrupt("a hash in the tree has not 32 bytes".to_owned()))
}

fn frame(row: &Row, at: usize) -> Result<SealedFrame> {
    Ok(SealedFrame {
        stream: parsed(row.get(at))?,
        first_seq: unsigned(row.get(at + 1))?,
        last_seq: unsigned(row.get(at + 2))?,
        head: head_of(row.get(at + 3)),
    })
}

fn leaf(row: &Row) -> Result<LeafRow> {
    Ok(LeafRow { n: unsigned(row.get(0))?, pos: row.get(1), hash: hash(row.get(2))?, frame: frame(row, 3)? })
}

pub(super) fn leaves(look: &PgLook<'_>) -> Result<u64> {
    let found = look.first("SELECT coalesce(max(n) + 1, 0) FROM leaves", &[])?;
    found.map_or(Ok(0), |row| unsigned(row.get(0)))
}

pub(super) fn leaf_rows(look: &PgLook<'_>, from: u64, most: usize) -> Result<Vec<LeafRow>> {
    let sql = format!("{LEAF} WHERE leaves.n >= $1 ORDER BY leaves.n LIMIT $2");
    look.query(&sql, &[number(from), count(most)])?.iter().map(leaf).collect()
}

pub(super) fn newest_leaf(look: &PgLook<'_>, stream: i64, size: u64, until: u64) -> Result<Option<LeafRow>> {
    let sql = format!(
        "{LEAF} WHERE frames.stream = $1 AND leaves.n < $2 AND frames.first_seq <= $3
         ORDER BY frames.first_seq DESC LIMIT 1"
    );
    look.first(&sql, &[stream.into(), number(size), number(until)])?.as_ref().map(leaf).transpose()
}

pub(super) fn node(look: &PgLook<'_>, level: u32, n: u64) -> Result<Option<Hash>> {
    let found = if level == 0 {
        look.first("SELECT hash FROM leaves WHERE n = $1", &[number(n)])?
    } else {
        look.first("SELECT hash FROM nodes WHERE level = $1 AND n = $2", &[level.into(), number(n)])?
    };
    found.map(|row| hash(row.get(0))).transpose()
}

pub(super) fn unsealed(look: &PgLook<'_>, most: usize) -> Result<Vec<(i64, SealedFrame)>> {
    let sql = "SELECT frames.pos, streams.id, frames.first_seq, frames.last_seq, frames.head
               FROM unsealed JOIN frames ON frames.pos = unsealed.pos
               JOIN streams ON streams.key = frames.stream ORDER BY unsealed.pos LIMIT $1";
    let found = look.query(sql, &[count(most)])?;
    found.iter().map(|row| Ok((row.get(0), frame(row, 1)?))).collect()
}

pub(super) fn seals(look: &PgLook<'_>, most: usize) -> Result<Vec<SealRow>> {
    let sql = "SELECT size, pos, root, checkpoint FROM seals ORDER BY size DESC LIMIT $1";
    let seal = |row: &Row| {
        Ok(SealRow { size: unsigned(row.get(0))?, pos: row.get(1), root: row.get(2), checkpoint: row.get(3) })
    };
    look.query(sql, &[count(most)])?.iter().map(seal).collect()
}
