//! Every bound of Holdfast, in one place. Docs refer to these names; an error that reports a bound
//! names the constant in lower case (`limit_exceeded: depth_max`).

/// The largest integer that every JSON reader keeps exact: 2^53 - 1.
pub const INTEGER_MAX: i64 = 9_007_199_254_740_991;
/// Nesting of arrays and objects in any JSON that enters.
pub const DEPTH_MAX: usize = 64;
/// Bytes of one JSON document, read or written.
pub const JSON_BYTES_MAX: usize = 16 * 1024 * 1024;
/// Values (scalars and containers) in one JSON document: bounds memory where bytes alone do not.
pub const JSON_VALUES_MAX: usize = 1_000_000;

/// Bytes of one record in canonical form.
pub const RECORD_BYTES_MAX: usize = 256 * 1024;
/// Records that one command may write.
pub const FRAME_RECORDS_MAX: usize = 10_000;
/// Characters of free text inside a record (codes, names and the like are shorter).
pub const TEXT_CHARS_MAX: usize = 2048;
/// Characters of a name: agent, tool, queue, worker, lane, signal.
pub const NAME_CHARS_MAX: usize = 256;
/// Characters of an explicit key or a concurrency key.
pub const KEY_CHARS_MAX: usize = 512;
/// Labels of a run.
pub const LABELS_MAX: usize = 64;

/// Bytes of the records that one command writes.
pub const FRAME_BYTES_MAX: usize = 16 * 1024 * 1024;
/// Commands that are committed together.
pub const BATCH_COMMANDS_MAX: usize = 512;
/// Commands that are worth a turn of their own while a sync runs.
pub const GATHERED_MIN: usize = 16;
/// How long the outcome of a call may stay unsynced when nobody waits for it, in milliseconds.
pub const LINGER_MS: u64 = 3;
/// Bytes of a content that is kept in the frame; a larger one is a blob.
pub const INLINE_BYTES_MAX: usize = 64 * 1024;
/// Bytes of one blob.
pub const BLOB_BYTES_MAX: usize = 1024 * 1024 * 1024;
/// Folded streams that a process keeps in memory.
pub const CACHED_STREAMS_MAX: usize = 4096;
/// Records after which a stream's fold is kept anew.
pub const SNAPSHOT_RECORDS: u64 = 1000;
/// Bytes of the write-ahead log after which it is written back.
pub const WAL_BYTES: u64 = 8 * 1024 * 1024;
/// Bytes of the write-ahead log after which whoever writes waits until it is written back.
pub const WAL_BYTES_MAX: u64 = 64 * 1024 * 1024;
/// How long erasing waits for readers of the write-ahead log, in milliseconds.
pub const SCRUB_WAIT_MS: u64 = 1000;
/// Bytes that are kept free on the disk for the outcomes of running effects.
pub const RESERVE_BYTES: u64 = 1024 * 1024;
/// Frames that are checked when a store is opened.
pub const OPEN_FRAMES_MAX: u64 = 1000;
/// Records that are checked when a store is opened, but for the rest of a frame.
pub const OPEN_RECORDS_MAX: usize = 2_000;
/// Records that one page of a reader holds.
pub const PAGE_RECORDS_MAX: usize = 10_000;
/// Bytes of one page of a reader.
pub const PAGE_BYTES_MAX: usize = 4 * 1024 * 1024;
/// How long a command waits for its turn, in milliseconds.
pub const TURN_WAIT_MS: u64 = 30_000;
/// Frames of one page that is carried to another store.
pub const CARRIED_TOGETHER_MAX: usize = 1_000;
/// How long the first pause before a work is run again lasts, on a server; each is twice the one before.
pub const SERVER_PAUSE_MS: u64 = 2;
/// How long a request to an object storage may take, in milliseconds, and one more for each KiB that it moves.
/// Less than a server lets a transaction be idle: contents are put in the middle of one.
pub const OBJECT_WAIT_MS: u64 = 20_000;
/// Commits on a server that no barrier has reached, before one is made without anybody asking.
pub const UNSYNCED_MAX: usize = 4096;
/// Rows that one query for people returns.
pub const SQL_ROWS_MAX: usize = 100_000;
/// Threads that read records in an audit.
pub const AUDIT_THREADS_MAX: usize = 8;
/// The fewest records that are worth a thread in an audit.
pub const AUDIT_RECORDS_MIN: usize = 128;
/// How often a stream is audited anew because others wrote to it meanwhile.
pub const AUDIT_TRIES: usize = 10;
/// Problems that a report lists; the count goes on.
pub const PROBLEMS_MAX: usize = 100;
/// Due waits, envelopes and expired leases that one claim sees to.
pub const CHORES_MAX: usize = 64;
/// Steps that one claim tries.
pub const CANDIDATES_MAX: usize = 32;
/// Contents that one record says were erased.
pub const ERASED_TOGETHER_MAX: usize = 1_000;
/// A signed note, and the signatures on it.
pub const NOTE_BYTES_MAX: usize = 64 * 1024;
pub const NOTE_SIGNATURES_MAX: usize = 100;
/// Frames that one turn of the sealer numbers.
pub const SEALED_TOGETHER_MAX: usize = 10_000;
/// How much older a step has to be to come before one whose priority is one higher, in milliseconds.
pub const AGEING_MS: u64 = 60_000;
/// How long a blob that nothing refers to is kept, in milliseconds.
pub const BLOB_GRACE_MS: u64 = 24 * 60 * 60 * 1000;

/// Steps of one run.
pub const STEPS_MAX: usize = 1_000;
/// Children of one run.
pub const CHILDREN_MAX: usize = 10_000;
/// Forks of forks.
pub const FORK_DEPTH_MAX: u32 = 64;
/// Signals and messages queued at one run.
pub const MAILBOX_MAX: usize = 10_000;
/// Things that one step may wait for at once.
pub const WAITS_MAX: usize = 1024;
/// Evidence records that may follow the end of a run.
pub const EVIDENCE_MAX: u64 = 10_000;

/// The shortest and the longest lease, in milliseconds.
pub const LEASE_MS_MIN: u64 = 100;
pub const LEASE_MS_MAX: u64 = 24 * 60 * 60 * 1000;
/// How long after a permit was written its body may begin, in milliseconds.
pub const START_WINDOW_MS: u64 = 10_000;
/// How much longer than its timeout a body is given before anybody asks whether it happened.
pub const PERMIT_GRACE_MS: u64 = 5_000;
/// The shortest and the longest time that a tool's body may take, in milliseconds.
pub const TOOL_TIMEOUT_MS_MIN: u64 = 1;
pub const TOOL_TIMEOUT_MS_MAX: u64 = 24 * 60 * 60 * 1000;
/// How long a request for approval stands unless a rule says otherwise, in milliseconds.
pub const APPROVAL_MS: u64 = 24 * 60 * 60 * 1000;
/// Requests for approval that one run may have open.
pub const APPROVALS_MAX: usize = 1_000;
/// Calls that one grant of a session is good for.
pub const GRANT_USES_MAX: u32 = 1_000_000;
/// Restrictions of one grant or capability.
pub const CONSTRAINTS_MAX: usize = 64;
/// Capabilities of one run.
pub const CAPABILITIES_MAX: usize = 10_000;
/// How long a key of the whole store is kept, unless its caller says otherwise: thirty days.
pub const SHARED_KEY_MS: u64 = 30 * 24 * 60 * 60 * 1000;
/// How often one call is sent off.
pub const DISPATCHES_MAX: u32 = 100;
/// Hooks of one package, and rulings of hooks about one call.
pub const HOOKS_MAX: usize = 256;
/// Bodies that were abandoned at their deadline and still run, in one process.
pub const ABANDONED_MAX: usize = 64;

/// The fewest and the most attempts of one step.
pub const ATTEMPTS_MIN: u32 = 1;
pub const ATTEMPTS_MAX: u32 = 1000;
/// The furthest a timer, a deadline or an expiry may lie ahead: ten years.
pub const HORIZON_MS: u64 = 10 * 366 * 24 * 60 * 60 * 1000;

const _: () = assert!(RECORD_BYTES_MAX < JSON_BYTES_MAX);
const _: () = assert!(TEXT_CHARS_MAX < RECORD_BYTES_MAX);
const _: () = assert!(NAME_CHARS_MAX <= KEY_CHARS_MAX);
const _: () = assert!(LEASE_MS_MIN < LEASE_MS_MAX && LEASE_MS_MAX < HORIZON_MS);
