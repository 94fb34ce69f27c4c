//! What can go wrong with a store. One enum: whichever operation meets it, a full disk is a full disk.
//! Messages name files, processes and places, never users' values.

use holdfast_core::canonical::CanonicalError;
use holdfast_core::chain::ChainError;
use holdfast_core::content::{Commit, ContentError};
use holdfast_core::error::{Code, Coded};
use holdfast_core::evidence::NoteError;
use holdfast_core::ids::{IdError, RunId};
use holdfast_core::journal::TransactError;
use holdfast_core::records::ReadError;
use holdfast_core::run::Refused;
use holdfast_core::state::Illegal;

pub type Result<T> = std::result::Result<T, StoreError>;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// The core refused the command, or what it decided cannot be written.
    #[error(transparent)]
    Command(#[from] TransactError),
    #[error(transparent)]
    Chain(#[from] ChainError),
    #[error(transparent)]
    Content(#[from] ContentError),
    #[error(transparent)]
    Id(#[from] IdError),
    #[error("{0}")]
    Note(#[from] NoteError),
    #[error("the key belongs to {0}, which has another agent or another input")]
    KeyConflict(RunId),
    #[error("'{0}' is not the address of a store")]
    BadUrl(String),
    #[error("there is no store in {0}")]
    NoSuchStore(String),
    #[error("{0}")]
    NotAStore(String),
    #[error("the server cannot be reached: {0}")]
    Unreachable(String),
    #[error("large contents cannot be reached: {0}")]
    BlobsUnreachable(String),
    #[error("the store keeps its large contents in {kept}, not in {given}")]
    OtherBlobs { kept: String, given: String },
    #[error("the server does not let us in: {0}")]
    Login(String),
    #[error("no encrypted connection: {0}")]
    Tls(String),
    #[error("the server is too old: {0}")]
    OldServer(String),
    /// Somebody else was faster; whoever runs works runs this one again, so nobody hears of it.
    #[error("somebody else was faster: {0}")]
    Conflict(String),
    #[error("the store was written by a newer Holdfast: {0}")]
    NewerStore(String),
    #[error("the store needs migration {0}, which older processes cannot live with")]
    MigrationNeeded(String),
    #[error("migration {0} is not the one that was applied to this store")]
    MigrationChanged(u32),
    #[error("{path} lies on {kind}, where locks and syncs cannot be trusted")]
    NetworkFilesystem { path: String, kind: &'static str },
    #[error("the store is open for reading only")]
    ReadOnly,
    #[error("no permission: {0}")]
    NoPermission(String),
    #[error("the disk is full: {0}")]
    DiskFull(String),
    #[error("no turn within {waited_ms} ms: {holder}")]
    Busy { holder: String, waited_ms: u64 },
    #[error("the store takes nothing more: {0}")]
    Poisoned(String),
    #[error("{0} is no longer the file that this handle opened")]
    Replaced(&'static str),
    #[error("the journal ends at position {found}, but position {marked} was once acknowledged as durable")]
    Truncated { found: i64, marked: i64 },
    /// What a row or a frame holds is not what it should be.
    #[error("damaged: {0}")]
    Corrupt(String),
    /// The database file itself is damaged.
    #[error("the database is damaged: {0}")]
    Malformed(String),
    #[error("the store is closed")]
    Closed,
    #[error("this handle belongs to the process {0}")]
    Forked(u32),
    #[error("{0}")]
    Failed(String),
    #[error("there is no blob {0}")]
    NoSuchBlob(Commit),
    #[error("the blob {0} is not what was put there")]
    BlobForged(Commit),
    #[error("{0}")]
    BadSql(String),
    #[error("{0} exists")]
    TargetExists(String),
    #[error("{0}")]
    BadBackup(String),
    #[error("the bound {0} is exceeded")]
    LimitExceeded(&'static str),
    #[error("a bug of Holdfast stopped the batch that the command was in; nothing of it was written")]
    Panicked,
}

impl From<Refused> for StoreError {
    fn from(error: Refused) -> Self {
        Self::Command(error.into())
    }
}

impl From<ReadError> for StoreError {
    fn from(error: ReadError) -> Self {
        Self::Command(error.into())
    }
}

impl From<Illegal> for StoreError {
    fn from(error: Illegal) -> Self {
        Self::Command(error.into())
    }
}

impl From<CanonicalError> for StoreError {
    fn from(error: CanonicalError) -> Self {
        Self::Command(ReadError::from(error).into())
    }
}

impl StoreError {
    /// Whether the core said no: the command is refused, and the store is as well as before.
    pub fn is_refusal(&self) -> bool {
        matches!(self, Self::Command(TransactError::Refused(_) | TransactError::Unwritable(_)))
    }

    /// Whether the engine failed under the command, and with it the whole batch; otherwise only this
    /// command did, before it wrote anything.
    pub(crate) fn is_of_engine(&self) -> bool {
        matches!(
            self,
            Self::Failed(_)
                | Self::Malformed(_)
                | Self::DiskFull(_)
                | Self::Busy { .. }
                | Self::ReadOnly
                | Self::NoPermission(_)
                | Self::Poisoned(_)
                | Self::Replaced(_)
                | Self::NewerStore(_)
                | Self::Unreachable(_)
                | Self::BlobsUnreachable(_)
                | Self::Login(_)
                | Self::Tls(_)
                | Self::Conflict(_)
                | Self::Panicked
        )
    }

    /// A failed operation on a file, told by what it means for the user.
    pub(crate) fn io(what: &str, error: &std::io::Error) -> Self {
        use std::io::ErrorKind as K;
        let told = format!("{what}: {error}");
        match error.kind() {
            K::PermissionDenied => Self::NoPermission(told),
            K::ReadOnlyFilesystem => Self::ReadOnly,
            K::StorageFull | K::QuotaExceeded | K::FileTooLarge => Self::DiskFull(told),
            _ => Self::Failed(told),
        }
    }
}

impl Coded for StoreError {
    fn code(&self) -> Code {
        match self {
            Self::Command(error) => error.code(),
            Self::Chain(error) => error.code(),
            Self::Content(error) => error.code(),
            Self::Id(error) => error.code(),
            Self::Note(error) => error.code(),
            Self::KeyConflict(_) => Code::KeyConflict,
            Self::BadUrl(_) => Code::BadUrl,
            Self::NoSuchStore(_) => Code::NoSuchStore,
            Self::NotAStore(_) => Code::NotAStore,
            Self::Unreachable(_) | Self::BlobsUnreachable(_) => Code::StoreUnreachable,
            Self::OtherBlobs { .. } => Code::OtherBlobs,
            Self::Login(_) => Code::StoreLogin,
            Self::Tls(_) => Code::StoreTls,
            Self::OldServer(_) => Code::OldServer,
            Self::Conflict(_) => Code::StoreBusy,
            Self::NewerStore(_) => Code::NewerStore,
            Self::MigrationNeeded(_) => Code::MigrationNeeded,
            Self::MigrationChanged(_) => Code::MigrationChanged,
            Self::NetworkFilesystem { .. } => Code::NetworkFilesystem,
            Self::ReadOnly => Code::ReadOnlyStore,
            Self::NoPermission(_) => Code::NoPermission,
            Self::DiskFull(_) => Code::DiskFull,
            Self::Busy { .. } => Code::StoreBusy,
            Self::Poisoned(_) => Code::StorePoisoned,
            Self::Replaced(_) => Code::StoreReplaced,
            Self::Truncated { .. } => Code::StoreTruncated,
            Self::Corrupt(_) | Self::Malformed(_) => Code::StoreCorrupt,
            Self::Closed => Code::StoreClosed,
            Self::Forked(_) => Code::StoreForked,
            Self::Failed(_) => Code::StoreFailed,
            Self::NoSuchBlob(_) => Code::NoSuchBlob,
            Self::BlobForged(_) => Code::BlobForged,
            Self::BadSql(_) => Code::BadSql,
            Self::TargetExists(_) => Code::TargetExists,
            Self::BadBackup(_) => Code::BadBackup,
            Self::LimitExceeded(_) => Code::LimitExceeded,
            Self::Panicked => Code::Internal,
        }
    }
}
