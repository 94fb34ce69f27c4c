//! The rows of a store, and what a transaction can do with them. Both engines have the same rows; what
//! stands here says nothing of how they are kept.

use std::collections::BTreeMap;

use holdfast_core::clock::Now;
use holdfast_core::content::Commit;
use holdfast_core::evidence::Hash;
use holdfast_core::ids::{CallId, EnvelopeId, GrantId, RunId, StepId, StreamId};
use holdfast_core::records::{Key, Name, RecordHash, Wait};
use holdfast_core::run::{Envelope, Lease};

use crate::error::Result;

/// A stream's row. `key` is the store's own number for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamRow {
    pub key: i64,
    pub id: StreamId,
    pub last_seq: u64,
    pub head: RecordHash,
    pub at: u64,
}

/// The records of one stream that were committed together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FrameRow {
    /// Given by the store.
    pub pos: i64,
    pub stream: i64,
    pub first_seq: u64,
    pub last_seq: u64,
    pub head: RecordHash,
    /// The time of its last record.
    pub at: u64,
    pub body: String,
    pub contents: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunRow {
    pub stream: i64,
    pub id: RunId,
    pub agent: String,
    pub role: String,
    pub session: Option<String>,
    pub parent: Option<String>,
    pub fork_of: Option<String>,
    pub mode: &'static str,
    pub status: &'static str,
    pub reason: Option<&'static str>,
    pub state_version: u64,
    pub priority: i32,
    pub deadline: Option<u64>,
    pub labels: String,
    /// The time in its id.
    pub created_at: u64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StepRow {
    pub run: i64,
    pub id: StepId,
    pub name: String,
    pub queue: String,
    pub agent: String,
    pub package: String,
    pub status: &'static str,
    pub ready: bool,
    pub due: Option<u64>,
    pub deadline: Option<u64>,
    pub concurrency_key: Option<String>,
    pub attempt: u32,
    /// The time in its id, in seconds, less its priority: orders by priority with ageing at any time.
    pub rank: i64,
    /// The newest fence that was given out for it.
    pub fence: Option<(u32, u32)>,
    pub waits: Vec<Wait>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApprovalRow {
    pub id: String,
    pub run: i64,
    pub call: Option<String>,
    pub status: &'static str,
    pub quorum: u32,
    pub votes: usize,
    pub digest: String,
    pub expires_at: u64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GrantRow {
    pub id: String,
    pub stream: i64,
    pub tool: String,
    pub uses: u32,
    pub spent: usize,
    pub revoked: bool,
    pub expires_at: u64,
}

/// Who holds a key: a run its own, or a call one of the whole store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyRow {
    pub scope: &'static str,
    pub key: String,
    pub run: i64,
    pub call: Option<String>,
    /// 0 as long as nobody knows what came of it. Then 1 for a run; for a call, until when its outcome is
    /// everybody's who comes with the key.
    pub settled: u64,
}

/// The call that holds a key of the whole store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeyHeld {
    pub run: RunId,
    pub call: CallId,
    /// Until when its outcome is kept; none, while nobody knows it.
    pub kept_until: Option<u64>,
}

/// A call of a run that has spent a grant of its session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GrantUseRow {
    pub grant: String,
    pub run: i64,
    pub call: String,
}

/// Every row that follows from one stream.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Projection {
    pub run: Option<RunRow>,
    pub steps: Vec<StepRow>,
    pub approvals: Vec<ApprovalRow>,
    pub grants: Vec<GrantRow>,
    pub grant_uses: Vec<GrantUseRow>,
    pub keys: Vec<KeyRow>,
    pub names: Vec<(Name, RunId)>,
}

/// A lease, and the process that holds it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaseRow {
    pub run: RunId,
    pub step: StepId,
    pub lease: Lease,
    pub process: String,
}

/// A step that could be claimed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Candidate {
    pub run: RunId,
    pub step: StepId,
    pub concurrency_key: Option<Key>,
}

/// A wait that a scheduler can end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DueWait {
    pub run: RunId,
    pub step: StepId,
    pub wait: Wait,
}

/// What a claim looks for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Filter {
    /// One of these queues; none: any of them.
    pub queues: Vec<Name>,
    pub agents: Vec<Name>,
    /// Fingerprints of packages; none: any.
    pub packages: Vec<String>,
}

/// A frame in the tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeafRow {
    pub n: u64,
    pub pos: i64,
    pub hash: Hash,
    pub frame: SealedFrame,
}

/// What of a frame is in the tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SealedFrame {
    pub stream: StreamId,
    pub first_seq: u64,
    pub last_seq: u64,
    pub head: RecordHash,
}

/// A seal.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct SealRow {
    pub size: u64,
    /// The frame that records it.
    pub pos: i64,
    /// In hex.
    pub root: String,
    /// The signed note.
    pub checkpoint: String,
}

/// A frame as it is carried to another store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CarriedFrame {
    pub stream: StreamId,
    /// Its number in the tree, if a seal covers it.
    pub leaf: Option<u64>,
    pub row: FrameRow,
}

/// An envelope that was not delivered, and why if its receiver refused it.
#[derive(Debug, Clone, PartialEq)]
pub struct EnvelopeRow {
    pub envelope: Envelope,
    pub sent_at: u64,
    pub refused: Option<String>,
}

/// Reading, in one consistent view.
pub trait Look {
    fn stream(&self, id: StreamId) -> Result<Option<StreamRow>>;
    /// The streams after a key, in the order of their keys.
    fn streams(&self, after: i64, most: usize) -> Result<Vec<StreamRow>>;
    /// The frames of a stream that hold or follow the record after `after`, at most a page of them.
    fn frames(&self, stream: i64, after: u64) -> Result<Vec<FrameRow>>;
    /// The frame that holds a record.
    fn frame(&self, stream: i64, seq: u64) -> Result<Option<FrameRow>>;
    fn snapshot(&self, stream: i64) -> Result<Option<(u64, String)>>;
    /// The newest frame: position and head.
    fn newest(&self) -> Result<Option<(i64, RecordHash)>>;
    fn lease(&self, run: i64, step: StepId) -> Result<Option<LeaseRow>>;
    fn run_of_key(&self, key: &Key) -> Result<Option<RunId>>;
    /// How many calls have spent a grant of a session.
    fn grant_spent(&self, grant: GrantId) -> Result<u32>;
    /// Who holds a key of the whole store.
    fn key_held(&self, key: &Key) -> Result<Option<KeyHeld>>;
    fn key_busy(&self, key: &Key) -> Result<bool>;
    fn has_open_forks(&self, run: RunId) -> Result<bool>;
    /// The blobs that a stream refers to, and how long they are.
    fn blob_refs(&self, stream: i64) -> Result<BTreeMap<Commit, u64>>;
    fn refers_to(&self, blob: &Commit) -> Result<bool>;
    /// Whether the rows of a stream are these, to the last cell; else the table that differs. Leases are
    /// left out, which follow from no record, and a step that was due may have become ready.
    fn differs(&self, stream: &StreamRow, expected: &Projection) -> Result<Option<&'static str>>;

    // The tree.
    /// How many leaves there are.
    fn leaves(&self) -> Result<u64>;
    /// The leaves from a number on, with their frames; one whose frame is gone ends them.
    fn leaf_rows(&self, from: u64, most: usize) -> Result<Vec<LeafRow>>;
    /// A kept hash: of a leaf at level 0, of a complete subtree above.
    fn node(&self, level: u32, n: u64) -> Result<Option<Hash>>;
    /// Frames that are no leaves yet, in an order that never changes.
    fn unsealed(&self, most: usize) -> Result<Vec<(i64, SealedFrame)>>;
    /// The newest frame of a stream among the first leaves that begins at or before a record.
    fn newest_leaf(&self, stream: i64, size: u64, until: u64) -> Result<Option<LeafRow>>;
    /// The frames that are leaves, after a number, in the order of their numbers; at most a page of them.
    fn sealed_frames(&self, after: Option<u64>) -> Result<Vec<CarriedFrame>>;
    /// The frames that are no leaves yet, after a position; at most a page of them.
    fn unsealed_frames(&self, after: i64) -> Result<Vec<CarriedFrame>>;
    /// Everything that was sent and not delivered.
    fn envelope_rows(&self) -> Result<Vec<EnvelopeRow>>;
    /// The seals, newest first.
    fn seals(&self, most: usize) -> Result<Vec<SealRow>>;
}

/// Writing, in one transaction.
pub trait Rows: Look {
    fn add_stream(&mut self, id: StreamId, head: RecordHash) -> Result<i64>;
    /// Inserts the frame and moves its stream's row on to its end.
    fn add_frame(&mut self, frame: &FrameRow) -> Result<i64>;
    fn put_snapshot(&mut self, stream: i64, seq: u64, state: &str) -> Result<()>;
    fn put_run(&mut self, row: &RunRow) -> Result<()>;
    fn put_step(&mut self, row: &StepRow) -> Result<()>;
    fn put_approval(&mut self, row: &ApprovalRow) -> Result<()>;
    fn put_grant(&mut self, row: &GrantRow) -> Result<()>;
    fn put_grant_use(&mut self, row: &GrantUseRow) -> Result<()>;
    /// Who is not done with a key of the whole store, or was done with it later, keeps it.
    fn put_key(&mut self, row: &KeyRow) -> Result<()>;
    /// Gives up a key, if it is still this one's.
    fn drop_key(&mut self, row: &KeyRow) -> Result<()>;
    fn put_name(&mut self, name: &Name, run: Option<RunId>) -> Result<()>;
    fn set_lease(&mut self, run: i64, step: StepId, lease: &Lease) -> Result<()>;
    fn drop_lease(&mut self, run: i64, step: StepId) -> Result<()>;
    fn put_envelope(&mut self, envelope: &Envelope, sent_at: u64) -> Result<()>;
    fn drop_envelope(&mut self, id: EnvelopeId) -> Result<()>;
    fn refuse_envelope(&mut self, id: EnvelopeId, code: &str) -> Result<()>;
    /// Until this transaction ends, nobody removes a blob; or `alone`, nobody comes to refer to it either.
    fn hold_blob(&mut self, blob: &Commit, alone: bool) -> Result<()>;
    fn put_blob_ref(&mut self, blob: &Commit, stream: i64, bytes: u64) -> Result<()>;
    fn drop_blob_ref(&mut self, blob: &Commit, stream: i64) -> Result<()>;
    /// Takes the salted values of these contents away, and every copy of them in snapshots.
    fn erase(&mut self, stream: i64, commits: &[Commit]) -> Result<u64>;
    fn put_leaf(&mut self, n: u64, pos: i64, hash: &Hash) -> Result<()>;
    fn put_node(&mut self, level: u32, n: u64, hash: &Hash) -> Result<()>;
    fn put_seal(&mut self, seal: &SealRow) -> Result<()>;
    /// Removes every row that follows from the frames of a stream.
    fn clear_projections(&mut self, stream: &StreamRow) -> Result<()>;

    // The claim queue.
    fn promote_due(&mut self, wall_ms: u64) -> Result<()>;
    /// The leases that may be lost: those that have run out, and those of other processes.
    fn leases(&mut self, now: &Now) -> Result<Vec<LeaseRow>>;
    /// The waits whose time has come, and those for a key that nobody holds without an outcome.
    fn due_waits(&mut self, wall_ms: u64, most: usize) -> Result<Vec<DueWait>>;
    /// Steps that are ready and whose concurrency key nobody holds, in the order in which they are offered.
    fn candidates(&mut self, filter: &Filter, most: usize) -> Result<Vec<Candidate>>;
    /// Whether nobody else is taking this step at the same time.
    fn take(&mut self, candidate: &Candidate) -> Result<bool>;
    fn envelopes(&mut self, to: Option<RunId>, most: usize) -> Result<Vec<Envelope>>;
}
