//! The rows of the tree: leaves, kept subtrees, seals.

use holdfast_core::evidence::Hash;
use rusqlite::{Connection, OptionalExtension, Row, params};

use super::failed;
use super::look::{head_of, parsed, text, unsigned};
use crate::cells::signed;
use crate::error::{Result, StoreError};
use crate::rows::{LeafRow, SealRow, SealedFrame};

fn hash(bytes: &[u8]) -> Result<Hash> {
    bytes.try_into().map_err(|_| StoreError::Corrupt("a hash in the tree has not 32 bytes".to_owned()))
}

fn count(most: usize) -> i64 {
    i64::try_from(most).unwrap_or(i64::MAX)
}

/// From a row of position, stream, first and last seq and head, beginning at a column.
fn frame(row: &Row<'_>, at: usize) -> Result<SealedFrame> {
    let number = |at: usize| unsigned(row.get::<_, i64>(at).map_err(|e| failed(&e))?);
    Ok(SealedFrame {
        stream: parsed(&text(row, at)?)?,
        first_seq: number(at + 1)?,
        last_seq: number(at + 2)?,
        head: head_of(row, at + 3)?,
    })
}

fn leaf(row: &Row<'_>) -> Result<LeafRow> {
    let number = |at: usize| row.get::<_, i64>(at).map_err(|e| failed(&e));
    let bytes: Vec<u8> = row.get(2).map_err(|e| failed(&e))?;
    Ok(LeafRow { n: unsigned(number(0)?)?, pos: number(1)?, hash: hash(&bytes)?, frame: frame(row, 3)? })
}

const LEAF: &str =
    "SELECT leaves.n, leaves.pos, leaves.hash, streams.id, frames.first_seq, frames.last_seq, frames.head
     FROM leaves JOIN frames ON frames.pos = leaves.pos JOIN streams ON streams.key = frames.stream";

pub(super) fn leaves(connection: &Connection) -> Result<u64> {
    let sql = "SELECT coalesce(max(n) + 1, 0) FROM leaves";
    let mut statement = connection.prepare_cached(sql).map_err(|e| failed(&e))?;
    unsigned(statement.query_row([], |row| row.get(0)).map_err(|e| failed(&e))?)
}

pub(super) fn leaf_rows(connection: &Connection, from: u64, most: usize) -> Result<Vec<LeafRow>> {
    let sql = format!("{LEAF} WHERE leaves.n >= ?1 ORDER BY leaves.n LIMIT ?2");
    let mut statement = connection.prepare_cached(&sql).map_err(|e| failed(&e))?;
    let mut rows = statement.query(params![signed(from), count(most)]).map_err(|e| failed(&e))?;
    let mut found = Vec::new();
    while let Some(row) = rows.next().map_err(|e| failed(&e))? {
        found.push(leaf(row)?);
    }
    Ok(found)
}

pub(super) fn newest_leaf(
    connection: &Connection,
    stream: i64,
    size: u64,
    until: u64,
) -> Result<Option<LeafRow>> {
    let sql = format!(
        "{LEAF} WHERE frames.stream = ?1 AND leaves.n < ?2 AND frames.first_seq <= ?3
         ORDER BY frames.first_seq DESC LIMIT 1"
    );
    let mut statement = connection.prepare_cached(&sql).map_err(|e| failed(&e))?;
    let values = params![stream, signed(size), signed(until)];
    let mut rows = statement.query(values).map_err(|e| failed(&e))?;
    rows.next().map_err(|e| failed(&e))?.map(leaf).transpose()
}

pub(super) fn node(connection: &Connection, level: u32, n: u64) -> Result<Option<Hash>> {
    let found: Option<Vec<u8>> = if level == 0 {
        let mut statement =
            connection.prepare_cached("SELECT hash FROM leaves WHERE n = ?1").map_err(|e| failed(&e))?;
        statement.query_row([signed(n)], |row| row.get(0)).optional().map_err(|e| failed(&e))?
    } else {
        let sql = "SELECT hash FROM nodes WHERE level = ?1 AND n = ?2";
        let mut statement = connection.prepare_cached(sql).map_err(|e| failed(&e))?;
        statement.query_row(params![level, signed(n)], |row| row.get(0)).optional().map_err(|e| failed(&e))?
    };
    found.map(|bytes| hash(&bytes)).transpose()
}

pub(super) fn unsealed(connection: &Connection, most: usize) -> Result<Vec<(i64, SealedFrame)>> {
    // One process writes at a time, so here positions are the order of commits.
    let sql = "SELECT frames.pos, streams.id, frames.first_seq, frames.last_seq, frames.head FROM frames
               JOIN streams ON streams.key = frames.stream
               WHERE frames.pos > coalesce((SELECT pos FROM leaves ORDER BY n DESC LIMIT 1), 0)
               ORDER BY frames.pos LIMIT ?1";
    let mut statement = connection.prepare_cached(sql).map_err(|e| failed(&e))?;
    let mut rows = statement.query([count(most)]).map_err(|e| failed(&e))?;
    let mut found = Vec::new();
    while let Some(row) = rows.next().map_err(|e| failed(&e))? {
        found.push((row.get(0).map_err(|e| failed(&e))?, frame(row, 1)?));
    }
    Ok(found)
}

pub(super) fn seals(connection: &Connection, most: usize) -> Result<Vec<SealRow>> {
    let sql = "SELECT size, pos, root, checkpoint FROM seals ORDER BY size DESC LIMIT ?1";
    let mut statement = connection.prepare_cached(sql).map_err(|e| failed(&e))?;
    let mut rows = statement.query([count(most)]).map_err(|e| failed(&e))?;
    let mut found = Vec::new();
    while let Some(row) = rows.next().map_err(|e| failed(&e))? {
        let number = |at: usize| row.get::<_, i64>(at).map_err(|e| failed(&e));
        let (size, pos) = (unsigned(number(0)?)?, number(1)?);
        found.push(SealRow { size, pos, root: text(row, 2)?, checkpoint: text(row, 3)? });
    }
    Ok(found)
}
