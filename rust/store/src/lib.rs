//! Everything of Holdfast that touches a disk or a socket: the `Store` trait, its engines, blobs.
//! Nothing is here yet but the wall itself: this crate may use the core's public API and the
//! operating system, and decides nothing.

pub use holdfast_core as core;
