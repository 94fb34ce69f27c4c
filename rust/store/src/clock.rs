//! The clocks and the randomness of the machine: the only place that reads them.

use std::sync::Mutex;

use holdfast_core::clock::Now;
use holdfast_core::entropy::Entropy;
use rustix::time::{ClockId, clock_gettime};

use crate::error::{Result, StoreError};

/// Where an engine reads the time.
pub trait Clock: Send + Sync + std::fmt::Debug {
    fn now(&self) -> Now;
}

/// The machine's clocks: the wall, and CLOCK_BOOTTIME with the id of this boot.
#[derive(Debug)]
pub struct SystemClock {
    boot_id: String,
}

impl SystemClock {
    pub fn new() -> Self {
        let boot_id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id");
        Self { boot_id: boot_id.map_or_else(|_| "unknown".to_owned(), |id| id.trim().to_owned()) }
    }
}

impl Default for SystemClock {
    fn default() -> Self {
        Self::new()
    }
}

fn millis(id: ClockId) -> u64 {
    let time = clock_gettime(id);
    let (seconds, nanos) =
        (u64::try_from(time.tv_sec).unwrap_or(0), u64::try_from(time.tv_nsec).unwrap_or(0));
    seconds.saturating_mul(1000).saturating_add(nanos / 1_000_000)
}

impl Clock for SystemClock {
    fn now(&self) -> Now {
        Now {
            boot_id: self.boot_id.clone(),
            boot_ms: millis(ClockId::Boottime),
            wall_ms: millis(ClockId::Realtime),
        }
    }
}

/// A clock that stands until it is moved: for tests, in Rust and in Python.
#[derive(Debug)]
pub struct FakeClock(Mutex<Now>);

impl FakeClock {
    pub fn new(now: Now) -> Self {
        Self(Mutex::new(now))
    }

    pub fn set(&self, now: Now) {
        *self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = now;
    }
}

impl Clock for FakeClock {
    fn now(&self) -> Now {
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clone()
    }
}

/// Fresh random bytes for one request.
pub(crate) fn entropy() -> Result<Entropy> {
    random().map(Entropy)
}

/// Fresh random bytes.
pub fn random<const N: usize>() -> Result<[u8; N]> {
    let mut bytes = [0u8; N];
    getrandom::fill(&mut bytes)
        .map_err(|error| StoreError::Failed(format!("the system gave no random bytes: {error}")))?;
    Ok(bytes)
}

/// The wall clock of the machine.
pub(crate) fn wall_ms() -> u64 {
    millis(ClockId::Realtime)
}

/// A name that nobody else has: sixteen hex digits.
pub(crate) fn random_name() -> Result<String> {
    Ok(format!("{:016x}", u64::from_be_bytes(random()?)))
}

/// Milliseconds that a wait took, on a clock that only goes on.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Stopwatch(u64);

impl Stopwatch {
    pub(crate) fn start() -> Self {
        Self(millis(ClockId::Monotonic))
    }

    pub(crate) fn elapsed_ms(self) -> u64 {
        millis(ClockId::Monotonic).saturating_sub(self.0)
    }
}
