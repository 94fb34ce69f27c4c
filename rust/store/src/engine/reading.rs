//! Reading records and values back, a page at a time: no reader holds a view for long.

use std::sync::Arc;

use holdfast_core::content::{Content, open};
use holdfast_core::ids::{RunId, StreamId};
use holdfast_core::records::RecordHash;
use holdfast_core::state::State;
use serde_json::Value;

use super::{Engine, load};
use crate::error::{Result, StoreError};
use crate::rows::Look;
use crate::store::Store;

/// A record as it is kept.
#[derive(Debug, Clone)]
pub struct ReadRecord {
    pub seq: u64,
    pub pos: i64,
    pub text: Vec<u8>,
    pub hash: RecordHash,
    /// What is kept beside its frame, as JSON text.
    pub contents: Option<Arc<str>>,
}

/// Records of one stream, in order.
#[derive(Debug, Clone, Default)]
pub struct Page {
    pub records: Vec<ReadRecord>,
    /// Whether more follow.
    pub more: bool,
}

impl Engine {
    /// The records of a stream after `after`, at most a page of them.
    pub fn read(&self, stream: StreamId, after: u64) -> Result<Page> {
        let mut page = None;
        self.store.look(&mut |look| {
            page =
                look.stream(stream)?.map(|row| read_page(look, row.key, row.last_seq, after)).transpose()?;
            Ok(())
        })?;
        page.ok_or_else(|| holdfast_core::run::Refused::NoSuchRun.into())
    }

    /// The fold of a stream now.
    pub fn state(&self, stream: StreamId) -> Result<Option<State>> {
        let mut state = None;
        self.store.look(&mut |look| {
            let Some(row) = look.stream(stream)? else { return Ok(()) };
            state = load::load(look, self.store.blobs(), self.store.id(), &row)?.map(|loaded| loaded.state);
            Ok(())
        })?;
        Ok(state)
    }

    /// The fold of a run at a record.
    pub fn state_at(&self, run: RunId, seq: u64) -> Result<Option<State>> {
        let mut state = None;
        self.store.look(&mut |look| {
            let (blobs, store) = (self.store.blobs(), self.store.id());
            state = load::fold_run_at(look, blobs, store, StreamId::Run(run), seq)?;
            Ok(())
        })?;
        Ok(state.map(|run| State::Run(Box::new(run))))
    }

    /// Runs that have not ended.
    pub(crate) fn open_runs(&self) -> Result<Vec<RunId>> {
        let sql =
            "SELECT id FROM runs WHERE status NOT IN ('completed', 'failed', 'cancelled') ORDER BY stream";
        let table = self.store.sql(sql, &[], usize::MAX)?;
        let id = |row: Vec<crate::store::Cell>| match row.into_iter().next() {
            Some(crate::store::Cell::Text(id)) => Ok(id.parse()?),
            _ => Err(StoreError::Corrupt("a run has no id".to_owned())),
        };
        table.rows.into_iter().map(id).collect()
    }
}

fn read_page(look: &dyn Look, key: i64, last_seq: u64, after: u64) -> Result<Page> {
    let mut records = Vec::new();
    for frame in look.frames(key, after)? {
        let contents: Option<Arc<str>> = frame.contents.as_deref().map(Arc::from);
        for (seq, text) in (frame.first_seq..).zip(load::texts(&frame)?) {
            if seq > after {
                let hash = holdfast_core::frame::hash(text);
                let (text, contents) = (text.to_vec(), contents.clone());
                records.push(ReadRecord { seq, pos: frame.pos, text, hash, contents });
            }
        }
    }
    let more = records.last().is_some_and(|last| last.seq < last_seq);
    Ok(Page { records, more })
}

/// The value of a content of a stream's record, unless it was erased.
pub(super) fn value_of(
    look: &dyn Look,
    store: &dyn Store,
    stream: StreamId,
    seq: u64,
    content: &Content,
) -> Result<Option<Value>> {
    let Some(row) = look.stream(stream)? else { return Ok(None) };
    let Some(frame) = look.frame(row.key, seq)? else { return Ok(None) };
    let openings = load::openings(&frame)?;
    if openings.contains_key(&content.commit) {
        return Ok(Some(open(content, &openings)?.clone()));
    }
    match store.blobs().get(&content.commit) {
        Ok(blob) => Ok(Some(holdfast_core::canonical::from_text(&blob.bytes)?)),
        Err(StoreError::NoSuchBlob(_)) => Ok(None),
        Err(error) => Err(error),
    }
}
