//! The thread that makes the calls of event loops, so that no loop ever waits for a disk, a server or another
//! process. Whoever asks goes on at once; the thread takes all that was asked meanwhile, so that they share
//! turns and syncs, and puts the answers where the loop that asked finds them, in the order of the calls. A loop
//! hears of answers by a pipe that it watches beside its sockets: nothing here waits for an interpreter.

use std::collections::VecDeque;
use std::io::{PipeReader, PipeWriter, Read, Write};
use std::os::fd::{AsRawFd, RawFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use super::{Call, Engine, Told};
use crate::error::{Result, StoreError};

/// A call, and where its answer goes.
#[derive(Debug)]
struct Asked {
    call: Call,
    number: u64,
    post: Arc<Post>,
}

#[derive(Debug, Default)]
struct Line {
    asked: Vec<Asked>,
    leads: bool,
    closed: bool,
}

#[derive(Debug)]
struct Shared {
    engine: Arc<Engine>,
    line: Mutex<Line>,
    changed: Condvar,
}

impl Shared {
    fn line(&self) -> MutexGuard<'_, Line> {
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What was asked for, when there is something; nothing when nobody will ask any more.
    fn next(&self) -> Vec<Asked> {
        let mut line = self.line();
        while line.asked.is_empty() && !line.closed {
            line = self.changed.wait(line).unwrap_or_else(PoisonError::into_inner);
        }
        line.leads = !line.asked.is_empty();
        std::mem::take(&mut line.asked)
    }

    fn lead(&self) {
        loop {
            let (calls, addresses): (Vec<Call>, Vec<(u64, Arc<Post>)>) =
                self.next().into_iter().map(|asked| (asked.call, (asked.number, asked.post))).unzip();
            if calls.is_empty() {
                return self.changed.notify_all();
            }
            let made = catch_unwind(AssertUnwindSafe(|| self.engine.calls(calls)));
            let mut told = made.unwrap_or_default().into_iter();
            for (number, post) in addresses {
                post.put(number, told.next().unwrap_or(Err(StoreError::Panicked)));
            }
        }
    }
}

/// The thread of one handle; it starts with the first call.
#[derive(Debug, Clone)]
pub struct Leader(Arc<Shared>);

impl Leader {
    pub fn new(engine: Arc<Engine>) -> Self {
        Self(Arc::new(Shared { engine, line: Mutex::default(), changed: Condvar::new() }))
    }

    /// Makes a call soon; its answer comes to `post` under `number`.
    pub fn submit(&self, post: &Arc<Post>, number: u64, call: Call) -> Result<()> {
        let mut line = self.0.line();
        if line.closed {
            return Err(StoreError::Closed);
        }
        if !line.leads {
            let (shared, thread) = (Arc::clone(&self.0), std::thread::Builder::new());
            let started = thread.name("holdfast-leader".to_owned()).spawn(move || shared.lead());
            started.map_err(|error| StoreError::io("cannot start a thread", &error))?;
            line.leads = true;
        }
        line.asked.push(Asked { call, number, post: Arc::clone(post) });
        self.0.changed.notify_all();
        Ok(())
    }

    /// Takes nothing more, and returns when every call that was asked for was made.
    pub fn close(&self) {
        let mut line = self.0.line();
        line.closed = true;
        self.0.changed.notify_all();
        while line.leads {
            line = self.0.changed.wait(line).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// Answers on their way to one loop.
#[derive(Debug)]
pub struct Post {
    due: Mutex<Due>,
    reader: PipeReader,
}

#[derive(Debug)]
struct Due {
    answers: VecDeque<(u64, Result<Told>)>,
    writer: PipeWriter,
    /// One byte is in the pipe: there are answers.
    rung: bool,
}

impl Post {
    pub fn new() -> Result<Self> {
        let pipe = std::io::pipe().map_err(|error| StoreError::io("cannot make a pipe", &error))?;
        let (reader, writer) = pipe;
        Ok(Self { due: Mutex::new(Due { answers: VecDeque::new(), writer, rung: false }), reader })
    }

    fn due(&self) -> MutexGuard<'_, Due> {
        self.due.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn put(&self, number: u64, told: Result<Told>) {
        let mut due = self.due();
        due.answers.push_back((number, told));
        if !due.rung {
            // The pipe is empty, so this never waits; and both of its ends are ours.
            due.rung = due.writer.write_all(&[0]).is_ok();
        }
    }

    /// What a loop watches: it can be read from while there are answers.
    pub fn watched(&self) -> RawFd {
        self.reader.as_raw_fd()
    }

    /// Some answers, in the order of their calls, with the numbers that these had.
    pub fn take(&self, most: usize) -> Vec<(u64, Result<Told>)> {
        let mut due = self.due();
        let most = most.min(due.answers.len());
        let taken = due.answers.drain(..most).collect();
        if due.answers.is_empty() && std::mem::take(&mut due.rung) {
            let _ = (&self.reader).read(&mut [0]); // the byte is there
        }
        taken
    }
}
