//! Hearing of new work: commits that make a step ready, or send something to a run, are notified by the server
//! to whoever listens. Nothing depends on it: a notification that was lost, or that a pooler between us and
//! the server never passes on, only means that a worker finds its work when it looks the next time.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::runtime::Builder;

use super::address::PgAddress;
use super::turn::pause;
use crate::error::{Result, StoreError};

/// How soon a listener notices that nobody wants it any more.
const LOOK_EVERY: Duration = Duration::from_secs(1);

#[derive(Debug, Default)]
struct Heard {
    count: u64,
    listening: bool,
    stopped: bool,
}

/// What one handle has heard.
#[derive(Debug)]
pub(super) struct Ear {
    address: PgAddress,
    process: String,
    heard: Mutex<Heard>,
    changed: Condvar,
}

/// The channel of a store, as SQL.
pub(super) const TELL: &str = "SELECT pg_notify('holdfast_' || current_schema(), '')";

impl Ear {
    pub(super) fn new(address: PgAddress, process: String) -> Self {
        Self { address, process, heard: Mutex::default(), changed: Condvar::new() }
    }

    fn heard(&self) -> MutexGuard<'_, Heard> {
        self.heard.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts what was heard: returns when it is more than `seen`, or when the time is over. The first call
    /// starts the thread that listens.
    pub(super) fn wait(self: &Arc<Self>, seen: u64, wait_ms: u64) -> u64 {
        let mut heard = self.heard();
        if !heard.listening && !heard.stopped {
            let ear = Arc::clone(self);
            let thread = std::thread::Builder::new().name("holdfast-ear".to_owned());
            heard.listening = thread.spawn(move || ear.listen()).is_ok();
        }
        let wait = Duration::from_millis(wait_ms);
        let waited =
            self.changed.wait_timeout_while(heard, wait, |heard| heard.count <= seen && !heard.stopped);
        waited.unwrap_or_else(PoisonError::into_inner).0.count
    }

    fn something(&self) {
        self.heard().count += 1;
        self.changed.notify_all();
    }

    fn listen(self: Arc<Self>) {
        let mut tries = 0;
        while !self.heard().stopped {
            if self.listen_once().is_ok() {
                tries = 0;
            }
            self.something(); // whatever was said while nobody listened
            tries += 1;
            if pause(tries).is_err() {
                return;
            }
        }
    }

    /// Listens until the connection is lost or nobody wants to hear.
    fn listen_once(self: &Arc<Self>) -> Result<()> {
        let runtime = Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| StoreError::io("cannot listen to the server", &error))?;
        runtime.block_on(async {
            let ear = Arc::clone(self);
            let (client, mut over) = self.address.listen(&self.process, move || ear.something()).await?;
            let listen = format!("LISTEN holdfast_{}", self.address.schema);
            client.batch_execute(&listen).await.map_err(|error| super::failed(&error))?;
            self.something();
            while tokio::time::timeout(LOOK_EVERY, &mut over).await.is_err() {
                if self.heard().stopped {
                    return Ok(());
                }
            }
            Ok(())
        })
    }

    pub(super) fn stop(&self) {
        self.heard().stopped = true;
        self.changed.notify_all();
    }
}
