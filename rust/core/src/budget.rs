//! A run's account: reserve before, settle after, and never more than there is. A reservation belongs to a
//! dispatch; one that started and was never settled is charged in full.

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
    let calls = if kind == CallKind::Tool { Some(wanted.tool_calls.unwrap_or(1)) } else { wanted.tool_calls };
    Amounts { tool_calls: calls, ..wanted.clone() }
}

/// Sets amounts aside for a dispatch. Runs without a budget keep no account.
pub fn reserve(run: &RunState, asked: &Amounts) -> Room {
    let Some(budget) = &run.budget else { return Room::Fits(Vec::new()) };
    let taken = run.spending.taken();
    let rows = [
        (Account::Tokens, budget.tokens, taken.tokens, asked.tokens),
        (Account::UsdMicros, budget.usd_micros, taken.usd_micros, asked.usd_micros),
        (Account::ToolCalls, budget.tool_calls, taken.tool_calls, asked.tool_calls),
        (Account::Children, budget.children, taken.children, asked.children),
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
