//! Group commit. Commands queue up; whoever finds the store free becomes the leader, runs all that are
//! waiting in one turn, and hands over after one batch. Alone, a command neither waits for company nor
//! hops to another thread.
//!
//! Answers leave after COMMIT; those that asked for a barrier leave after the sync, which the next leader
//! does not wait for. A batch that fails fails every command in it, each with its own error.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::Thread;

use holdfast_core::limits;

use super::desk::Desk;
use crate::error::{Result, StoreError};

/// How durable a command is when its answer leaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Durability {
    /// It survives the process; a power cut may take it.
    Commit,
    /// The same, and it is on the disk within milliseconds.
    Soon,
    /// On the disk, with everything that was committed before it.
    Barrier,
}

/// What a command answers, in whatever form its caller expects.
pub(crate) type Answer = Box<dyn std::any::Any + Send>;
pub(crate) type Operation = Box<dyn FnMut(&mut Desk<'_>) -> Result<Answer> + Send>;

/// A command on its way.
pub(crate) struct Job {
    pub(crate) operation: Operation,
    pub(crate) durability: Durability,
    /// The outcome of work that was done: on a full disk the reserve is for these.
    pub(crate) outcome: bool,
    pub(crate) answer: Option<Result<Answer>>,
}

const WAITING: u8 = 0;
const LEADS: u8 = 1;
const DONE: u8 = 2;

/// A job, who waits for it, and what that thread is to do next.
pub(crate) struct Ticket {
    next: AtomicU8,
    waiter: Thread,
    job: Mutex<Job>,
}

impl Ticket {
    pub(crate) fn job(&self) -> MutexGuard<'_, Job> {
        self.job.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets the waiting thread go on.
    pub(crate) fn done(&self) {
        self.next.store(DONE, Ordering::Release);
        self.waiter.unpark();
    }
}

#[derive(Default)]
struct Line {
    tickets: VecDeque<Arc<Ticket>>,
    led: bool,
}

/// The commands that wait for a turn.
#[derive(Default)]
pub(crate) struct Queue(Mutex<Line>);

impl std::fmt::Debug for Queue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Queue(..)")
    }
}

impl Queue {
    fn line(&self) -> MutexGuard<'_, Line> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs a job, alone or with others; `lead` runs a batch, and calls [`Queue::hand_over`] when the
    /// next batch may begin.
    pub(crate) fn submit(&self, job: Job, lead: impl FnOnce(&[Arc<Ticket>])) -> Result<Answer> {
        let ticket = Arc::new(Ticket {
            next: AtomicU8::new(WAITING),
            waiter: std::thread::current(),
            job: Mutex::new(job),
        });
        let leads = {
            let mut line = self.line();
            line.tickets.push_back(Arc::clone(&ticket));
            !std::mem::replace(&mut line.led, true)
        };
        if leads || waits_to_lead(&ticket) {
            let batch: Vec<Arc<Ticket>> = {
                let mut line = self.line();
                let most = line.tickets.len().min(limits::BATCH_COMMANDS_MAX);
                line.tickets.drain(..most).collect()
            };
            lead(&batch);
        }
        let answer = ticket.job().answer.take();
        answer.unwrap_or(Err(StoreError::Panicked))
    }

    /// Makes whoever waits longest the next leader.
    pub(crate) fn hand_over(&self) {
        let mut line = self.line();
        match line.tickets.front() {
            Some(next) => {
                next.next.store(LEADS, Ordering::Release);
                next.waiter.unpark();
            }
            None => line.led = false,
        }
    }
}

/// Waits for the answer, or for the lead: whether it is the lead.
fn waits_to_lead(ticket: &Ticket) -> bool {
    loop {
        match ticket.next.load(Ordering::Acquire) {
            DONE => return false,
            LEADS => return true,
            _ => std::thread::park(),
        }
    }
}
