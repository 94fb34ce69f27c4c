//! Time as an argument. The engine reads the clocks and passes what it read; nothing here does.

use serde::{Deserialize, Serialize};

/// One reading of the clocks.
///
/// `wall_ms` is for people (record times, timers, expiries that people set). Leases are measured on
/// `boot_ms`, which no one can set back, and hold only within one `boot_id`: after another boot every
/// lease has expired.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Now {
    pub boot_id: String,
    pub boot_ms: u64,
    pub wall_ms: u64,
}
