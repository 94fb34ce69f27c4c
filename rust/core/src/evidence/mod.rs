//! Evidence: what proves a journal to somebody who does not trust whoever keeps it. A tree over everything
//! that was committed, signed heads of it, and the audit of a bundle. Pure: files and keys on disks are
//! others' business.

mod bundle;
mod facts;
mod manifest;
mod note;
mod statement;
mod tree;

pub use bundle::{BundleError, Proof, StreamAudit, StreamReport, frame_leaf, line};
pub use facts::{CallFacts, Facts};
pub use manifest::{FileRow, MANIFEST, Manifest, VERSION};
pub use note::{Checkpoint, Note, NoteError, Signature, SignerKey, VerifierKey};
pub use statement::{Envelope, PAYLOAD_TYPE, pre_authentication};
pub use tree::{
    Hash, Nodes, Range, TILE, consistency, empty_root, inclusion, leaf_hash, node_hash, read_hash, root_of,
    spell_hash, verify_consistency, verify_inclusion,
};
