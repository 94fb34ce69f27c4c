//! A run's account: reserve before, settle after, and never more than there is. A reservation belongs to a
//! dispatch; one that started and was never settled is charged in full. Beside the accounts stand limits: how
//! many bodies are on their way at once, and how long after its beginning a run may still send one off. What
//! does not fit into an account can be asked for; what does not fit into a limit is refused.

use crate::mutants::{Mutant, mutant};
use crate::records::{Account, Amounts, Body, BudgetRefused, BudgetReserved, BudgetSettled, CallKind};
use crate::state::{Call, RunState};

/// Whether a dispatch fits into the account.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Room {
    Fits(Vec<Body>),
    Full(BudgetRefused),
}

/// What a dispatch of a tool takes by itself: one call.
pub fn asked(kind: CallKind, wanted: &Amounts) -> Amounts {
    let calls =
        if kind == CallKind::Tool { Some(wanted.tool_calls.unwrap_or(1).max(1)) } else { wanted.tool_calls };
    Amounts { tool_calls: calls, ..wanted.clone() }
}

/// Whether it is a limit: nobody is asked for more of it.
pub fn is_limit(account: Account) -> bool {
    matches!(account, Account::Concurrency | Account::WallMs)
}

/// What a dispatch is held against beside the accounts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Meanwhile {
    /// Bodies of the run that are on their way, or may be.
    pub on_their_way: u64,
    pub wall_ms: u64,
}

/// Sets amounts aside for a dispatch. Runs without a budget keep no account.
pub fn reserve(run: &RunState, asked: &Amounts, meanwhile: impl FnOnce() -> Meanwhile) -> Room {
    let Some(budget) = &run.budget else { return Room::Fits(Vec::new()) };
    if budget.concurrency.is_some() || budget.wall_ms.is_some() {
        let meanwhile = meanwhile();
        // A run whose beginning is not known has no time left.
        let age = run.began_at.map_or(u64::MAX - 1, |began| meanwhile.wall_ms.saturating_sub(began));
        let rows = [
            (Account::WallMs, budget.wall_ms, age),
            (Account::Concurrency, budget.concurrency, meanwhile.on_their_way),
        ];
        for (account, limit, used) in rows {
            let full = limit.filter(|limit| used >= *limit && !mutant(Mutant::Overspend));
            if let Some(limit) = full {
                return Room::Full(BudgetRefused { account, asked: 1, limit, used });
            }
        }
    }
    let (taken, limits) = (run.spending.taken(), run.limits());
    let rows = [
        (Account::Tokens, limits.tokens, taken.tokens, asked.tokens),
        (Account::UsdMicros, limits.usd_micros, taken.usd_micros, asked.usd_micros),
        (Account::ToolCalls, limits.tool_calls, taken.tool_calls, asked.tool_calls),
        (Account::Children, limits.children, taken.children, asked.children),
    ];
    for (account, limit, used, asked) in rows {
        let (Some(limit), used, asked) = (limit, used.unwrap_or(0), asked.unwrap_or(0)) else { continue };
        // An account may have gone beyond its limit: then nothing fits, not even nothing.
        let fits = used.checked_add(asked).is_some_and(|sum| sum <= limit);
        if !fits && !mutant(Mutant::Overspend) {
            return Room::Full(BudgetRefused { account, asked, limit, used });
        }
    }
    Room::Fits(vec![BudgetReserved { amounts: asked.clone() }.into()])
}

/// Whether somebody can give a run these: it bounds each of them, and they are not nothing.
pub fn raises(run: &RunState, amounts: &Amounts) -> bool {
    let Some(budget) = &run.budget else { return false };
    let rows = [
        (budget.children, amounts.children),
        (budget.tokens, amounts.tokens),
        (budget.tool_calls, amounts.tool_calls),
        (budget.usd_micros, amounts.usd_micros),
    ];
    let unbounded = rows.iter().any(|(limit, more)| limit.is_none() && more.is_some());
    !unbounded && rows.iter().any(|(_, more)| more.is_some_and(|more| more > 0))
}

/// What a child gets: of every account that the run bounds, what was asked for it, or nothing. What it were not
/// given it could otherwise use without end.
pub fn slice(run: &RunState, asked: &Amounts) -> Amounts {
    let Some(budget) = &run.budget else { return asked.clone() };
    let bounded = |limit: Option<u64>, asked: Option<u64>| asked.or(limit.map(|_| 0));
    Amounts {
        children: bounded(budget.children, asked.children),
        tokens: bounded(budget.tokens, asked.tokens),
        tool_calls: bounded(budget.tool_calls, asked.tool_calls),
        usd_micros: bounded(budget.usd_micros, asked.usd_micros),
    }
}

/// What leaves the account with a child: its slice, and the child itself. It cannot return that.
pub fn with_child(run: &RunState, slice: &Amounts) -> Amounts {
    let counts = run.budget.as_ref().is_some_and(|budget| budget.children.is_some());
    if !counts || mutant(Mutant::ChildFree) {
        return slice.clone();
    }
    Amounts { children: Some(slice.children.unwrap_or(0).saturating_add(1)), ..slice.clone() }
}

/// What a dispatch took, when that is known; what was set aside for it, when it is not.
pub fn settle(run: &RunState, call: &Call, usage: Option<&Amounts>) -> Option<Body> {
    let reserved = run.spending.reserved.get(&call.id)?;
    let used = |used: Option<u64>, reserved: Option<u64>| used.or(reserved);
    let amounts = match usage {
        Some(usage) => Amounts {
            children: used(usage.children, reserved.children),
            tokens: used(usage.tokens, reserved.tokens),
            tool_calls: used(usage.tool_calls, reserved.tool_calls),
            usd_micros: used(usage.usd_micros, reserved.usd_micros),
        },
        None => reserved.clone(),
    };
    Some(BudgetSettled { amounts, assumed: false }.into())
}

/// What a dispatch took that nobody will ever know of: all that was set aside.
pub fn assume(run: &RunState, call: &Call) -> Option<Body> {
    let amounts = run.spending.reserved.get(&call.id)?.clone();
    Some(BudgetSettled { amounts, assumed: true }.into())
}

/// What provably did not happen costs nothing.
pub fn give_back(run: &RunState, call: &Call) -> Option<Body> {
    run.spending.reserved.get(&call.id)?;
    Some(BudgetSettled { amounts: Amounts::default(), assumed: false }.into())
}
