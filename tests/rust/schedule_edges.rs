//! What schedules have reached: the facts of their journals, and the edges of the table of calls.

use std::collections::BTreeSet;

use holdfast_core::call::{CallEvent, CallPhase, Traits, call_after};
use holdfast_core::contracts::approval::ApprovalDecisionKind;
use holdfast_core::contracts::policy::Decision;
use holdfast_core::journal::Journal;
use holdfast_core::records::*;
use holdfast_core::state::State;

/// Which facts about calls a journal has: what the schedules must have reached.
pub(crate) fn reached(records: &[Record], found: &mut BTreeSet<String>) {
    for record in records {
        let told = match &record.body {
            Body::EffectSettled(body) => format!("effect.settled {}", body.status),
            Body::EffectDoubted(body) => format!("effect.doubted {}", body.cause),
            Body::EffectResolved(body) => format!("effect.resolved {} {}", body.resolution, body.source),
            Body::PolicyDecided(body) => format!("policy.decided {}", body.decision),
            Body::ApprovalDecided(body) => format!("approval.decided {}", body.decision),
            Body::HookRuled(body) => format!("hook.ruled {}", body.outcome),
            Body::BudgetSettled(body) => format!("budget.settled assumed={}", body.assumed),
            Body::EffectStarted(_) => format!("effect.started {}", record.dispatch.unwrap().min(2)),
            other => other.kind().to_owned(),
        };
        found.insert(told);
    }
}

/// What a record means for its call, as the table of calls has it.
fn event(body: &Body) -> Option<CallEvent> {
    Some(match body {
        Body::EffectStarted(_) => CallEvent::Started,
        Body::EffectSettled(body) => CallEvent::Settled(body.status),
        Body::EffectDoubted(_) => CallEvent::Doubted,
        Body::EffectResolved(_) => CallEvent::Resolved,
        Body::EffectLate(_) => CallEvent::Late,
        Body::EffectCompensated(_) => CallEvent::Compensated,
        Body::BudgetRefused(_) | Body::ApprovalTimedOut(_) => CallEvent::Denied,
        Body::PolicyDecided(body) if body.decision == Decision::Deny => CallEvent::Denied,
        Body::ApprovalDecided(body) if body.decision == ApprovalDecisionKind::Denied => CallEvent::Denied,
        Body::HookRuled(body) if body.denies == Some(true) => CallEvent::Denied,
        Body::HookRuled(body) => match body.response.as_ref().map(|said| said.class().as_str()) {
            Some("deny") => CallEvent::Denied,
            Some("request_retry") if body.outcome.as_str() == "applied_journaled_mutation" => {
                CallEvent::Redone
            }
            _ => return None,
        },
        _ => return None,
    })
}

/// The edges of the table of calls that a journal walked, by folding it anew.
pub(crate) fn edges(journal: &Journal, found: &mut BTreeSet<String>) {
    let mut state: Option<State> = None;
    for record in journal.records() {
        let openings = &journal.openings;
        let run = state.as_ref().and_then(State::as_run);
        let call = record.call.and_then(|id| run.and_then(|run| run.calls.get(&id)));
        if let (Some(call), Some(event)) = (call, event(&record.body)) {
            let write = call.effect == EffectClass::Write;
            found.insert(format!("{:?} {event:?} {}", call.phase, if write { "write" } else { "read" }));
        }
        match &mut state {
            Some(state) => state.apply(record, openings).unwrap(),
            None => state = Some(State::first(record, openings, None).unwrap()),
        }
    }
}

/// The edges that calls of tools can walk; commits, timers, what is received without being sent off, and what
/// people accept after a divergence are walked by the stories of runs.
pub(crate) fn legal() -> BTreeSet<String> {
    let mut legal = BTreeSet::new();
    let flags = [true, false];
    for (effect, word) in [(EffectClass::Write, "write"), (EffectClass::Read, "read")] {
        for phase in CallPhase::ALL {
            for event in CallEvent::ALL {
                let traits = flags.iter().flat_map(|keyed| {
                    flags.iter().flat_map(move |rerun| {
                        let unresolved = false;
                        [Traits { effect, keyed: *keyed, rerun: *rerun, unresolved }]
                    })
                });
                let received = *phase == CallPhase::Open
                    && matches!(event, CallEvent::Settled(status) if *status != EffectStatus::NoEffect);
                let apart = received
                    || matches!(event, CallEvent::Done | CallEvent::Abandoned)
                    || *phase == CallPhase::Abandoned;
                if !apart && traits.into_iter().any(|traits| call_after(*phase, traits, *event).is_some()) {
                    legal.insert(format!("{phase:?} {event:?} {word}"));
                }
            }
        }
    }
    legal
}
