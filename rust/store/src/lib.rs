//! Everything of Holdfast that touches a disk or a socket: the [`Store`] trait and its engines, blobs,
//! and the [`Engine`] that runs the core's decisions in transactions. This crate decides nothing.

pub mod blobs;
pub mod bundle;
pub mod clock;
pub mod doctor;
pub mod engine;
pub mod error;
pub mod rows;
mod seals;
pub mod sqlite;
pub mod store;
pub mod verify;

pub use engine::Engine;
pub use error::StoreError;
pub use holdfast_core as core;
pub use store::Store;
