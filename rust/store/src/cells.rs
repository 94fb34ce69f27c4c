//! The cells of rows, in the order of their columns: what is written, and what an audit looks for. Both
//! engines have the same.

use holdfast_core::records::{Key, Wait};

use crate::rows::{ApprovalRow, GrantRow, GrantUseRow, KeyRow, RunRow, StepRow};
use crate::store::Cell;

impl From<&str> for Cell {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<String> for Cell {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl From<i64> for Cell {
    fn from(number: i64) -> Self {
        Self::Integer(number)
    }
}

impl From<i32> for Cell {
    fn from(number: i32) -> Self {
        Self::Integer(number.into())
    }
}

impl From<u32> for Cell {
    fn from(number: u32) -> Self {
        Self::Integer(number.into())
    }
}

/// Times, counts and sizes; none of them comes near the end of what a column holds.
impl From<u64> for Cell {
    fn from(number: u64) -> Self {
        Self::Integer(signed(number))
    }
}

impl From<bool> for Cell {
    fn from(yes: bool) -> Self {
        Self::Integer(yes.into())
    }
}

impl<T: Into<Cell>> From<Option<T>> for Cell {
    fn from(value: Option<T>) -> Self {
        value.map_or(Self::Null, Into::into)
    }
}

pub(crate) fn signed(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

fn text(text: &str) -> Cell {
    text.into()
}

fn time(ms: Option<u64>) -> Cell {
    ms.into()
}

pub(crate) fn count(count: usize) -> Cell {
    Cell::Integer(i64::try_from(count).unwrap_or(i64::MAX))
}

/// `stream, id, agent, role, session, parent, fork_of, mode, status, reason, state_version, priority,
/// deadline, labels, created_at`
pub(crate) fn of_run(row: &RunRow) -> [Cell; 15] {
    [
        row.stream.into(),
        row.id.to_string().into(),
        text(&row.agent),
        text(&row.role),
        row.session.clone().into(),
        row.parent.clone().into(),
        row.fork_of.clone().into(),
        text(row.mode),
        text(row.status),
        row.reason.map_or(Cell::Null, text),
        time(Some(row.state_version)),
        row.priority.into(),
        time(row.deadline),
        text(&row.labels),
        time(Some(row.created_at)),
    ]
}

/// `run, id, name, queue, agent, package, status, ready, due, rank, deadline, concurrency_key, attempt,
/// fence_epoch, fence_n`
pub(crate) fn of_step(row: &StepRow) -> [Cell; 15] {
    [
        row.run.into(),
        row.id.to_string().into(),
        text(&row.name),
        text(&row.queue),
        text(&row.agent),
        text(&row.package),
        text(row.status),
        row.ready.into(),
        time(row.due),
        row.rank.into(),
        time(row.deadline),
        row.concurrency_key.clone().into(),
        row.attempt.into(),
        row.fence.map(|fence| fence.0).into(),
        row.fence.map(|fence| fence.1).into(),
    ]
}

/// `run, step, n, what, subject, call, until`
pub(crate) fn of_wait(row: &StepRow, n: usize, wait: &Wait) -> [Cell; 7] {
    [
        row.run.into(),
        row.id.to_string().into(),
        count(n),
        text(wait.on.as_str()),
        wait.subject.as_ref().map_or(Cell::Null, |subject| text(Key::as_str(subject))),
        wait.call.map(|call| call.to_string()).into(),
        time(wait.until),
    ]
}

/// `id, run, call, status, quorum, votes, digest, expires_at`
pub(crate) fn of_approval(row: &ApprovalRow) -> [Cell; 8] {
    [
        text(&row.id),
        row.run.into(),
        row.call.clone().into(),
        text(row.status),
        row.quorum.into(),
        count(row.votes),
        text(&row.digest),
        time(Some(row.expires_at)),
    ]
}

/// `id, stream, tool, uses, spent, revoked, expires_at`
pub(crate) fn of_grant(row: &GrantRow) -> [Cell; 7] {
    [
        text(&row.id),
        row.stream.into(),
        text(&row.tool),
        row.uses.into(),
        count(row.spent),
        row.revoked.into(),
        time(Some(row.expires_at)),
    ]
}

/// `grant_id, run, call`
pub(crate) fn of_grant_use(row: &GrantUseRow) -> [Cell; 3] {
    [text(&row.grant), row.run.into(), text(&row.call)]
}

/// `scope, key, run, call, settled`
pub(crate) fn of_key(row: &KeyRow) -> [Cell; 5] {
    [
        text(row.scope),
        text(&row.key),
        row.run.into(),
        row.call.clone().into(),
        Cell::Integer(signed(row.settled)),
    ]
}
