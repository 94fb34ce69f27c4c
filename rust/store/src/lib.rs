//! Everything of Holdfast that touches a disk or a socket: the [`Store`] trait and its engines, blobs,
//! and the [`Engine`] that runs the core's decisions in transactions. This crate decides nothing.

pub mod blobs;
pub mod bundle;
mod cells;
pub mod clock;
pub mod copy;
pub mod doctor;
pub mod engine;
pub mod error;
pub mod open;
mod pages;
pub mod postgres;
pub mod rows;
mod seals;
mod shelf;
pub mod sqlite;
pub mod store;
pub mod verify;

pub use engine::Engine;
pub use error::StoreError;
pub use holdfast_core as core;
pub use store::Store;
