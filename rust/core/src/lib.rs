//! The pure core of Holdfast. No I/O, no clock, no randomness, no threads: facts go in, decisions
//! and bytes come out. The store commits them, the bridge carries them to Python.
#![forbid(unsafe_code)]

pub mod approval;
pub mod budget;
pub mod call;
pub mod canonical;
pub mod capability;
pub mod chain;
pub mod clock;
pub mod content;
pub mod contracts;
pub mod entropy;
pub mod error;
pub mod evidence;
pub mod frame;
pub mod gateway;
pub mod hooks;
pub mod ids;
pub mod journal;
pub mod ledger;
pub mod limits;
pub mod matching;
pub mod merge;
pub mod mutants;
pub mod policy;
pub mod records;
pub mod redact;
pub mod run;
pub mod schema;
pub mod state;
pub mod transitions;
