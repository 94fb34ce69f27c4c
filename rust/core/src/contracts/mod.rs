//! Contracts that are not records: what hosts, hooks, tools and approvers exchange with the core.
//! Serde types here, pydantic twins in `holdfast.contracts`, fixtures for both.

pub mod approval;
pub mod capability;
pub mod hook;
mod hook_matrix;
pub mod policy;
pub mod source;
pub mod tool;
