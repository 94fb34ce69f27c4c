//! Canonical bytes: RFC 8785 (JCS) over I-JSON, and the only bytes that may be hashed.
//!
//! One [`Writer`] makes them. It is pushed to by whoever holds a value: the bridge walking Python
//! objects, [`parse()`] reading JSON text, [`to_bytes`] walking a serde type. What cannot be written
//! in exactly one way is refused with a [`CanonicalError`] that names the path.

mod digest;
mod error;
mod number;
mod parse;
pub(crate) mod scan;
mod serde_writer;
mod value;
mod writer;

pub use digest::{Digest, Domain, Mac, digest_with, domains, hmac_sha256};
pub(crate) use digest::{hex, unhex};
pub use error::{CanonicalError, Refusal, push_index, push_key};
pub use parse::{Sink, canonical_text, is_canonical, parse};
pub use serde_writer::{to_bytes, write_serde};
pub use value::{from_text, to_value, write_value};
pub use writer::{Writer, key_order, key_rank};
