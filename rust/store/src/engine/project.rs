//! The rows that follow from a fold. They are compared before and after a frame, and what changed is
//! written with it; doctor makes them all anew from the same functions.

use holdfast_core::canonical::{Digest, domains, to_bytes};
use holdfast_core::limits;
use holdfast_core::records::{Fence, RunStatus, StepStatus};
use holdfast_core::state::{GrantState, RunState, State, Step};
use holdfast_core::transitions::RunPhase;

use crate::error::{Result, StoreError};
use crate::rows::{ApprovalRow, GrantRow, GrantUseRow, KeyRow, Projection, Rows, RunRow, StepRow};

pub(crate) fn project(state: &State, key: i64) -> Result<Projection> {
    match state {
        State::Run(run) => project_run(run, key),
        State::Session(session) => {
            let grants = session.grants.iter().map(|(id, grant)| grant_row(id.to_string(), grant, key));
            Ok(Projection { grants: grants.collect(), ..Projection::default() })
        }
        State::Store(store) => {
            let names = store.names.iter().map(|(name, run)| (name.clone(), *run)).collect();
            Ok(Projection { names, ..Projection::default() })
        }
    }
}

fn project_run(run: &RunState, key: i64) -> Result<Projection> {
    let package = Digest::<domains::Package>::of(&run.package)?.to_string();
    let approvals = run.approvals.iter().map(|(id, approval)| ApprovalRow {
        id: id.to_string(),
        run: key,
        call: approval.call.map(|call| call.to_string()),
        status: approval.state.as_str(),
        quorum: approval.quorum,
        votes: approval.votes.len(),
        digest: approval.digest.to_string(),
        expires_at: approval.expires_at,
    });
    let uses = run.session_spent.iter().map(|(call, grant)| GrantUseRow {
        grant: grant.to_string(),
        run: key,
        call: call.to_string(),
    });
    let held = run.key.iter().map(|held| KeyRow {
        scope: "run",
        key: held.as_str().to_owned(),
        run: key,
        call: None,
        settled: u64::from(run.phase.is_ended()),
    });
    let shared = run.calls.values().filter_map(|call| {
        let holding = call.holding(run.base)?;
        Some(KeyRow {
            scope: "store",
            key: holding.key.as_str().to_owned(),
            run: key,
            call: Some(call.id.to_string()),
            settled: if holding.settled { holding.until } else { 0 },
        })
    });
    Ok(Projection {
        run: Some(run_row(run, key)?),
        steps: run.steps.values().map(|step| step_row(run, step, key, &package)).collect(),
        approvals: approvals.collect(),
        grants: run.grants.iter().map(|(id, grant)| grant_row(id.to_string(), grant, key)).collect(),
        grant_uses: uses.collect(),
        keys: held.chain(shared).collect(),
        names: Vec::new(),
    })
}

fn run_row(run: &RunState, key: i64) -> Result<RunRow> {
    let labels = String::from_utf8(to_bytes(&run.labels)?).map_err(|_| StoreError::Panicked)?;
    Ok(RunRow {
        stream: key,
        id: run.id,
        agent: run.agent.as_str().to_owned(),
        role: run.role.as_str().to_owned(),
        session: run.session.map(|id| id.to_string()),
        parent: run.parent.map(|id| id.to_string()),
        fork_of: run.fork.as_ref().map(|fork| fork.parent.to_string()),
        mode: run.mode.as_str(),
        status: RunStatus::as_str(run.status()),
        reason: run.end.as_ref().map(|end| end.reason.as_str()),
        state_version: run.state_version,
        priority: run.priority,
        deadline: run.deadline,
        labels,
        created_at: run.id.at_ms(),
    })
}

fn step_row(run: &RunState, step: &Step, key: i64, package: &str) -> StepRow {
    let open = run.phase == RunPhase::Open && !run.cancel_requested;
    let claimable = open
        && matches!(step.status, StepStatus::Pending | StepStatus::RetryScheduled)
        && run.is_unblocked(step);
    StepRow {
        run: key,
        id: step.id,
        name: step.name.as_str().to_owned(),
        queue: step.queue.as_str().to_owned(),
        agent: run.agent.as_str().to_owned(),
        package: package.to_owned(),
        status: step.status.as_str(),
        ready: claimable && step.not_before.is_none(),
        due: step.not_before.filter(|_| claimable),
        deadline: run.deadline,
        concurrency_key: step.concurrency_key.as_ref().map(|key| key.as_str().to_owned()),
        attempt: step.attempt,
        rank: rank(step.id.at_ms(), run.priority),
        fence: step.fence.map(|Fence(epoch, n)| (epoch, n)),
        waits: if step.status == StepStatus::Waiting { step.waits.clone() } else { Vec::new() },
    }
}

fn rank(at_ms: u64, priority: i32) -> i64 {
    let seconds = |ms: u64| i64::try_from(ms / 1000).unwrap_or(i64::MAX);
    seconds(at_ms) - i64::from(priority) * seconds(limits::AGEING_MS)
}

fn grant_row(id: String, grant: &GrantState, key: i64) -> GrantRow {
    GrantRow {
        id,
        stream: key,
        tool: grant.tool.as_str().to_owned(),
        uses: grant.uses,
        spent: grant.spent_by.len(),
        revoked: grant.revoked,
        expires_at: grant.expires_at,
    }
}

/// Writes what is in `after` and was not in `before`.
pub(crate) fn write(rows: &mut dyn Rows, before: &Projection, after: &Projection) -> Result<()> {
    if let Some(run) = after.run.as_ref().filter(|run| before.run.as_ref() != Some(*run)) {
        rows.put_run(run)?;
    }
    for row in after.steps.iter().filter(|row| !before.steps.contains(row)) {
        rows.put_step(row)?;
    }
    for row in after.approvals.iter().filter(|row| !before.approvals.contains(row)) {
        rows.put_approval(row)?;
    }
    for row in after.grants.iter().filter(|row| !before.grants.contains(row)) {
        rows.put_grant(row)?;
    }
    for row in after.grant_uses.iter().filter(|row| !before.grant_uses.contains(row)) {
        rows.put_grant_use(row)?;
    }
    for row in after.keys.iter().filter(|row| !before.keys.contains(row)) {
        rows.put_key(row)?;
    }
    for row in before
        .keys
        .iter()
        .filter(|row| !after.keys.iter().any(|kept| (kept.scope, &kept.key) == (row.scope, &row.key)))
    {
        rows.drop_key(row)?;
    }
    for (name, run) in after.names.iter().filter(|named| !before.names.contains(named)) {
        rows.put_name(name, Some(*run))?;
    }
    for (name, _) in before.names.iter().filter(|(name, _)| !after.names.iter().any(|(n, _)| n == name)) {
        rows.put_name(name, None)?;
    }
    Ok(())
}
