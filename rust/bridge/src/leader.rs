//! The thread that makes the calls of event loops, as Python's loops ask it and hear from it.

use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use holdfast_store::engine::{Leader as Thread, Post as Answers};
use pyo3::prelude::*;

use crate::enter::{enter, enter_briefly};
use crate::error::Raise;
use crate::store::Store;
use crate::store_call::{Call, tell};

/// The thread of one handle; it starts with the first call.
#[pyclass(frozen, module = "holdfast._core")]
#[derive(Debug)]
pub(crate) struct Leader(Thread);

#[pymethods]
impl Leader {
    #[new]
    #[pyo3(signature = (store, /))]
    fn new(store: &Store) -> Self {
        Self(Thread::new(Arc::clone(&store.engine)))
    }

    /// Where a loop asks, and finds its answers.
    fn post(&self, py: Python<'_>) -> PyResult<Post> {
        let answers = enter_briefly(py, Answers::new)?;
        Ok(Post { leader: self.0.clone(), answers: Arc::new(answers), asked: AtomicU64::new(0) })
    }

    /// Takes nothing more, and returns when every call that was asked for was made.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        enter(py, || {
            self.0.close();
            Ok::<_, holdfast_store::StoreError>(())
        })
    }
}

/// The calls of one loop, and their answers.
#[pyclass(frozen, module = "holdfast._core")]
#[derive(Debug)]
pub(crate) struct Post {
    leader: Thread,
    answers: Arc<Answers>,
    asked: AtomicU64,
}

#[pymethods]
impl Post {
    /// What the loop watches.
    fn fileno(&self) -> RawFd {
        self.answers.watched()
    }

    /// Makes a call soon, and says under which number its answer will come.
    #[pyo3(signature = (call, /))]
    fn submit(&self, py: Python<'_>, call: &Call) -> PyResult<u64> {
        let number = self.asked.fetch_add(1, Ordering::Relaxed);
        enter_briefly(py, || self.leader.submit(&self.answers, number, call.take()?))?;
        Ok(number)
    }

    /// Some answers, in the order of their calls; an exception for one that was refused.
    #[pyo3(signature = (most, /))]
    fn take<'py>(&self, py: Python<'py>, most: usize) -> PyResult<Vec<(u64, Bound<'py, PyAny>)>> {
        let answer = |(number, told)| {
            let told = match told {
                Ok(told) => tell(py, told),
                Err(error) => {
                    let error: holdfast_store::StoreError = error;
                    Ok(error.raise(py).into_value(py).into_bound(py).into_any())
                }
            };
            // What cannot be told is heard as an error: nobody waits for ever.
            let told = told.unwrap_or_else(|error| error.into_value(py).into_bound(py).into_any());
            Ok((number, told))
        };
        self.answers.take(most).into_iter().map(answer).collect()
    }
}

pub(crate) fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_class::<Leader>()?;
    m.add_class::<Post>()
}
