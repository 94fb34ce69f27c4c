//! The pure core of Holdfast. No I/O, no clock, no randomness, no threads: facts go in, decisions
//! and bytes come out. The store commits them, the bridge carries them to Python.
#![forbid(unsafe_code)]

pub mod canonical;
pub mod chain;
pub mod clock;
pub mod content;
pub mod contracts;
pub mod entropy;
pub mod error;
pub mod frame;
pub mod ids;
pub mod journal;
pub mod limits;
pub mod matching;
pub mod merge;
pub mod mutants;
pub mod records;
pub mod run;
pub mod state;
pub mod transitions;
