//! The cells of rows, in the order of their columns: what is written, and what an audit looks for.

use holdfast_core::records::{Key, Wait};
use rusqlite::types::Value;

use super::look::signed;
use crate::rows::{ApprovalRow, GrantRow, GrantUseRow, KeyRow, RunRow, StepRow};

fn text(text: &str) -> Value {
    Value::Text(text.to_owned())
}

fn time(ms: Option<u64>) -> Value {
    ms.map_or(Value::Null, |ms| Value::Integer(signed(ms)))
}

fn count(count: usize) -> Value {
    Value::Integer(i64::try_from(count).unwrap_or(i64::MAX))
}

/// `stream, id, agent, role, session, parent, fork_of, mode, status, reason, state_version, priority,
/// deadline, labels, created_at`
pub(super) fn of_run(row: &RunRow) -> [Value; 15] {
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
        row.reason.map_or(Value::Null, text),
        time(Some(row.state_version)),
        row.priority.into(),
        time(row.deadline),
        text(&row.labels),
        time(Some(row.created_at)),
    ]
}

/// `run, id, name, queue, agent, package, status, ready, due, rank, deadline, concurrency_key, attempt,
/// fence_epoch, fence_n`
pub(super) fn of_step(row: &StepRow) -> [Value; 15] {
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
pub(super) fn of_wait(row: &StepRow, n: usize, wait: &Wait) -> [Value; 7] {
    [
        row.run.into(),
        row.id.to_string().into(),
        count(n),
        text(wait.on.as_str()),
        wait.subject.as_ref().map_or(Value::Null, |subject| text(Key::as_str(subject))),
        wait.call.map(|call| call.to_string()).into(),
        time(wait.until),
    ]
}

/// `id, run, call, status, quorum, votes, digest, expires_at`
pub(super) fn of_approval(row: &ApprovalRow) -> [Value; 8] {
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
pub(super) fn of_grant(row: &GrantRow) -> [Value; 7] {
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
pub(super) fn of_grant_use(row: &GrantUseRow) -> [Value; 3] {
    [text(&row.grant), row.run.into(), text(&row.call)]
}

/// `scope, key, run, call, settled`
pub(super) fn of_key(row: &KeyRow) -> [Value; 5] {
    [text(row.scope), text(&row.key), row.run.into(), row.call.clone().into(), row.settled.into()]
}
