//! Group commit. Commands queue up; whoever finds the store free becomes the leader, runs all that are
//! waiting in one turn, and hands over after one batch. Alone, a command neither waits for company nor
//! hops to another thread.
//!
//! Answers leave after COMMIT; those that asked for a barrier leave after the sync. While it runs, commands
//! that want a barrier too gather for the next turn, because their sync could not begin before this one has
//! ended. The turn begins when the sync is over, when [`limits::GATHERED_MIN`] have gathered, so that the processor is not
//! idle while the disk works, or when a command comes that wants no barrier. A batch that fails fails every
//! command in it, each with its own error.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::Thread;

use holdfast_core::ids::StreamId;
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
    /// See [`Work::sees_latest`](crate::store::Work::sees_latest).
    pub(crate) sees_latest: bool,
    /// The stream that it will ask for first.
    pub(crate) about: Option<StreamId>,
    pub(crate) answer: Option<Result<Answer>>,
}

impl Job {
    pub(crate) fn new<T: Send + 'static>(
        durability: Durability,
        outcome: bool,
        mut operation: impl FnMut(&mut Desk<'_>) -> Result<T> + Send + 'static,
    ) -> Self {
        let operation: Operation = Box::new(move |desk| Ok(Box::new(operation(desk)?)));
        Self { operation, durability, outcome, sees_latest: false, about: None, answer: None }
    }
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

    /// Makes the waiting thread the leader.
    fn leads(&self) {
        self.next.store(LEADS, Ordering::Release);
        self.waiter.unpark();
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
    led: Led,
}

/// Whether somebody sees to the next turn.
#[derive(Default, Clone, Copy, PartialEq, Eq)]
enum Led {
    /// Nobody: whoever comes leads.
    #[default]
    No,
    Yes,
    /// A sync is running, and whoever waits for it hands over: only those who do not want a barrier lead.
    Gathers,
}

impl Line {
    fn hand_over(&mut self) {
        self.led = match self.tickets.front() {
            Some(next) => {
                next.leads();
                Led::Yes
            }
            None => Led::No,
        };
    }
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

    /// Runs a job, alone or with others; `lead` runs a batch, and calls [`Queue::hand_over`] or
    /// [`Queue::gather`] when the next batch may begin.
    pub(crate) fn submit(&self, job: Job, lead: impl Fn(&[Arc<Ticket>])) -> Result<Answer> {
        self.submit_all(vec![job], lead).pop().unwrap_or(Err(StoreError::Panicked))
    }

    /// The same for several jobs of one caller; each has its own answer.
    pub(crate) fn submit_all(&self, jobs: Vec<Job>, lead: impl Fn(&[Arc<Ticket>])) -> Vec<Result<Answer>> {
        if jobs.is_empty() {
            return Vec::new();
        }
        let patient = jobs.iter().all(|job| job.durability == Durability::Barrier);
        let ticket = |job| {
            let (next, waiter) = (AtomicU8::new(WAITING), std::thread::current());
            Arc::new(Ticket { next, waiter, job: Mutex::new(job) })
        };
        let tickets: Vec<Arc<Ticket>> = jobs.into_iter().map(ticket).collect();
        let mut leads = {
            let mut line = self.line();
            line.tickets.extend(tickets.iter().cloned());
            let enough = !patient || line.tickets.len() >= limits::GATHERED_MIN;
            let leads = line.led == Led::No || line.led == Led::Gathers && enough;
            if leads {
                line.led = Led::Yes;
            }
            leads
        };
        // Whoever leads before its turn in the line may find its own job not in the batch.
        while std::mem::take(&mut leads) || waits_to_lead(&tickets) {
            let batch: Vec<Arc<Ticket>> = {
                let mut line = self.line();
                let most = line.tickets.len().min(limits::BATCH_COMMANDS_MAX);
                line.tickets.drain(..most).collect()
            };
            lead(&batch);
        }
        let answer = |ticket: &Arc<Ticket>| ticket.job().answer.take().unwrap_or(Err(StoreError::Panicked));
        tickets.iter().map(answer).collect()
    }

    /// Lets those who want a barrier gather; somebody who does not is made the next leader.
    pub(crate) fn gather(&self) {
        let mut line = self.line();
        if line.tickets.len() >= limits::GATHERED_MIN {
            return line.hand_over();
        }
        match line.tickets.iter().find(|ticket| ticket.job().durability != Durability::Barrier) {
            Some(next) => next.leads(),
            None => line.led = Led::Gathers,
        }
    }

    /// Ends the gathering, if nobody has done so: whoever waits longest is the next leader.
    pub(crate) fn gathered(&self) {
        let mut line = self.line();
        if line.led == Led::Gathers {
            line.hand_over();
        }
    }

    /// Makes whoever waits longest the next leader.
    pub(crate) fn hand_over(&self) {
        self.line().hand_over();
    }
}

/// Waits for every answer, or for the lead: whether it is the lead, which is taken with that.
fn waits_to_lead(tickets: &[Arc<Ticket>]) -> bool {
    let leads = |ticket: &Arc<Ticket>| {
        let taken = ticket.next.compare_exchange(LEADS, WAITING, Ordering::AcqRel, Ordering::Acquire);
        taken.is_ok()
    };
    loop {
        if tickets.iter().any(leads) {
            return true;
        }
        if tickets.iter().all(|ticket| ticket.next.load(Ordering::Acquire) == DONE) {
            return false;
        }
        std::thread::park();
    }
}
