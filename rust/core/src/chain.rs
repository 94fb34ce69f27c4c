//! The hash chain of a stream: each record holds the hash of the one before. Checking it needs only
//! the records' text and the ids of store and stream; nothing is encoded again.

use crate::canonical::Writer;
use crate::content::{self, Content, ContentError, Openings, Sealed};
use crate::error::{Code, Coded};
use crate::ids::{StoreId, StreamId};
use crate::mutants::{Mutant, mutant};
use crate::records::{Draft, Fault, ReadError, Record, RecordHash, genesis, hash_text};

/// Where a stream stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Head {
    pub at: u64,
    pub hash: RecordHash,
    pub seq: u64,
    pub stream: StreamId,
}

impl Head {
    /// Before the first record.
    pub fn start(store: StoreId, stream: StreamId) -> Self {
        Self { at: 0, hash: genesis(store, stream), seq: 0, stream }
    }
}

/// What is wrong with the first bad record.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Flaw {
    #[error("it cannot be read: {0}")]
    Unreadable(#[from] ReadError),
    #[error("it belongs to another stream")]
    OtherStream,
    #[error("its seq is {found}, expected {expected}")]
    WrongSeq { expected: u64, found: u64 },
    #[error("its prev is not the hash of the record before it")]
    BrokenLink,
    #[error("its time is before that of the record before it")]
    TimeWentBack,
    #[error("the fold refuses it: {0}")]
    Illegal(String),
    #[error("a content of it: {0}")]
    Content(#[from] ContentError),
    #[error("the stream does not end in the expected head")]
    WrongHead,
}

/// The first bad record of a stream and why.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("record {seq} of {stream} is bad: {flaw}")]
pub struct ChainError {
    pub flaw: Flaw,
    /// Its place: one after the last good record.
    pub seq: u64,
    pub stream: StreamId,
}

impl Coded for ChainError {
    fn code(&self) -> Code {
        match &self.flaw {
            Flaw::Unreadable(ReadError::Shape { fault: Fault::NewerFormat, .. }) => Code::NewerFormat,
            Flaw::Unreadable(_) => Code::RecordUnreadable,
            Flaw::OtherStream => Code::RecordMoved,
            Flaw::WrongSeq { .. } => Code::RecordMissing,
            Flaw::BrokenLink => Code::ChainBroken,
            Flaw::TimeWentBack => Code::TimeWentBack,
            Flaw::Illegal(_) => Code::RecordIllegal,
            Flaw::Content(error) => error.code(),
            Flaw::WrongHead => Code::HeadMismatch,
        }
    }
}

/// A record in its place, its hash, and what opens its contents.
#[derive(Debug, Clone, PartialEq)]
pub struct Stamped {
    pub blobs: Vec<Content>,
    pub hash: RecordHash,
    pub record: Record,
    pub sealed: Vec<Sealed>,
}

/// Records that are committed together, and the text that is kept of them: see [`crate::frame`].
#[derive(Debug, Clone, Default, PartialEq)]
pub struct StampedFrame {
    pub body: Vec<u8>,
    pub records: Vec<Stamped>,
}

/// Most records are no longer than this.
const RECORD_BYTES_USUAL: usize = 640;

/// Gives drafts their places after `head`, and moves it on.
pub fn stamp(head: &mut Head, drafts: Vec<Draft>, wall_ms: u64) -> Result<StampedFrame, ReadError> {
    let mut frame = StampedFrame {
        body: Vec::with_capacity(drafts.len() * RECORD_BYTES_USUAL),
        records: Vec::with_capacity(drafts.len()),
    };
    frame.body.push(b'[');
    let mut writer = Writer::new();
    for mut draft in drafts {
        head.at = head.at.max(wall_ms);
        head.seq += if mutant(Mutant::SeqSkips) { 2 } else { 1 };
        let (sealed, blobs) = (std::mem::take(&mut draft.sealed), std::mem::take(&mut draft.blobs));
        let record = Record::place(draft, head.stream, head.seq, head.at, head.hash);
        let text = record.write(&mut writer)?;
        if text.len() > crate::limits::RECORD_BYTES_MAX {
            return Err(ReadError::new(Fault::RecordTooLarge, "$", "a record larger than record_bytes_max"));
        }
        let hash = hash_text(text);
        if !mutant(Mutant::PrevFrozen) {
            head.hash = hash;
        }
        if frame.body.len() > 1 {
            frame.body.push(b',');
        }
        frame.body.extend_from_slice(text);
        frame.records.push(Stamped { blobs, hash, record, sealed });
    }
    frame.body.push(b']');
    Ok(frame)
}

/// Checks records one by one, in memory that does not grow.
#[derive(Debug)]
pub struct Auditor {
    head: Head,
    writer: Writer,
}

impl Auditor {
    pub fn new(store: StoreId, stream: StreamId) -> Self {
        Self { head: Head::start(store, stream), writer: Writer::new() }
    }

    /// Goes on after a head that was checked before.
    pub fn after(head: Head) -> Self {
        Self { head, writer: Writer::new() }
    }

    pub fn head(&self) -> Head {
        self.head
    }

    /// Checks the next record of the stream.
    pub fn next(&mut self, text: &[u8]) -> Result<Record, ChainError> {
        let read = Record::parse_with(text, &mut self.writer).map(|record| (record, hash_text(text)));
        self.link(read)
    }

    /// The same for a record that was read, and its text hashed, by [`read_all`].
    pub fn link(&mut self, read: Result<(Record, RecordHash), ReadError>) -> Result<Record, ChainError> {
        let expected = self.head.seq + 1;
        let stream = self.head.stream;
        let bad = |flaw| ChainError { flaw, seq: expected, stream };
        let (record, hash) = read.map_err(|error| bad(error.into()))?;
        if record.stream != self.head.stream {
            return Err(bad(Flaw::OtherStream));
        }
        if record.seq != expected {
            return Err(bad(Flaw::WrongSeq { expected, found: record.seq }));
        }
        if record.prev != self.head.hash {
            return Err(bad(Flaw::BrokenLink));
        }
        if record.at < self.head.at {
            return Err(bad(Flaw::TimeWentBack));
        }
        self.head = Head { at: record.at, hash, seq: record.seq, stream: record.stream };
        Ok(record)
    }

    /// The head, if it is the one that was kept elsewhere.
    pub fn end(&self, expected: Option<RecordHash>) -> Result<Head, ChainError> {
        match expected {
            Some(expected) if expected != self.head.hash => {
                Err(ChainError { flaw: Flaw::WrongHead, seq: self.head.seq + 1, stream: self.head.stream })
            }
            _ => Ok(self.head),
        }
    }

    /// Checks the openings that are there against what the record commits to.
    pub fn contents(&self, record: &Record, openings: &Openings) -> Result<(), ChainError> {
        let bad = |flaw| ChainError { flaw, seq: record.seq, stream: record.stream };
        for found in record.contents() {
            if let Some(opening) = openings.get(&found.commit) {
                content::check(&found.commit, opening).map_err(|error| bad(error.into()))?;
            }
        }
        Ok(())
    }
}

/// Reads records and hashes their texts: the part of an audit that needs no order.
pub fn read_all(texts: &[&[u8]]) -> Vec<Result<(Record, RecordHash), ReadError>> {
    let mut writer = Writer::new();
    let read = |text: &&[u8]| Ok((Record::parse_with(text, &mut writer)?, hash_text(text)));
    texts.iter().map(read).collect()
}

/// Checks a whole stream and returns its head. With a head that was kept elsewhere, a missing end or a
/// stream that was written anew is found too; without one it cannot be.
pub fn verify<'a>(
    store: StoreId,
    stream: StreamId,
    texts: impl IntoIterator<Item = &'a [u8]>,
    expected: Option<RecordHash>,
) -> Result<Head, ChainError> {
    let mut auditor = Auditor::new(store, stream);
    for text in texts {
        auditor.next(text)?;
    }
    auditor.end(expected)
}
