//! Records: one typed, canonical, hash-chained fact each. One file per family of bodies; the table of
//! kinds is in `kinds.rs`, the envelope in `record.rs`. Facts only: what follows from them is folded in
//! `state`, what may follow them is decided in `run`.

mod call;
mod common;
mod contents;
mod envelope;
mod flow;
mod govern;
mod kinds;
pub(crate) mod macros;
pub(crate) mod read;
mod record;
mod run;
mod schema;
mod step;

pub use call::*;
pub use common::*;
pub use flow::*;
pub use govern::*;
pub use kinds::{Body, Class, Fold, KINDS, KindInfo};
pub use read::{Fault, ReadError, read, read_text};
pub(crate) use record::hash_text;
pub use record::{Draft, Record, VERSION, genesis};
pub use run::*;
pub use schema::{contract_names, read_contract, schemas};
pub use step::*;
