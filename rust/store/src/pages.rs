//! Frames of a stream page by page, with their records read: nearly all of an audit's time goes into that, so
//! it is done on every processor, and for the next page while the one before is looked at.

use holdfast_core::chain;
use holdfast_core::limits;
use holdfast_core::records::{ReadError, Record, RecordHash};

use crate::engine::texts;
use crate::error::Result;
use crate::rows::{FrameRow, StreamRow};
use crate::store::Store;

/// A record and the hash of its text.
pub(crate) type Read = std::result::Result<(Record, RecordHash), ReadError>;

/// Reads records on every processor.
pub(crate) fn read_all(texts: &[&[u8]]) -> Vec<Read> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(limits::AUDIT_THREADS_MAX);
    let each = texts.len().div_ceil(threads).max(limits::AUDIT_RECORDS_MIN);
    if texts.len() <= each {
        return chain::read_all(texts);
    }
    std::thread::scope(|scope| {
        let (first, rest) = texts.split_at(each);
        let others: Vec<_> =
            rest.chunks(each).map(|texts| scope.spawn(move || chain::read_all(texts))).collect();
        let mut read = chain::read_all(first);
        for other in others {
            read.extend(other.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        }
        read
    })
}

/// Some frames that follow each other, each with its records; one whose records cannot be told apart has none.
pub(crate) struct Page {
    pub(crate) frames: Vec<(FrameRow, Result<Vec<Read>>)>,
    /// Whether frames follow where the stream's row says that it ends.
    pub(crate) beyond: bool,
}

impl Page {
    /// The frames after a record, up to where the stream's row says that it ends.
    pub(crate) fn read(store: &dyn Store, row: &StreamRow, after: u64) -> Result<Self> {
        let mut frames = Vec::new();
        store.look(&mut |look| {
            frames = look.frames(row.key, after)?;
            Ok(())
        })?;
        let all = frames.len();
        frames.retain(|frame| frame.first_seq <= row.last_seq);
        let beyond = frames.len() < all;
        let split: Vec<_> = frames.iter().map(texts).collect();
        let whole: Vec<&[u8]> = split.iter().flatten().flatten().copied().collect();
        let mut read = read_all(&whole).into_iter();
        let records: Vec<Result<Vec<Read>>> = split
            .into_iter()
            .map(|texts| texts.map(|texts| read.by_ref().take(texts.len()).collect()))
            .collect();
        Ok(Self { frames: frames.into_iter().zip(records).collect(), beyond })
    }

    /// The last record that it has.
    pub(crate) fn last_seq(&self) -> Option<u64> {
        self.frames.last().map(|(frame, _)| frame.last_seq)
    }
}
