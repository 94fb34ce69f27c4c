//! A key of the whole store: what one run does under it, no other does. Whoever comes second goes through every
//! room like anybody else, so that nobody learns by a key what it may not do; but where it would be sent off
//! it waits until the first one's outcome is known, and gets that.

use super::Gate;
use super::enter::Caller;
use crate::ids::{CallId, RunId};
use crate::records::{Body, CallServed, Draft, EffectStatus, Failure, Key, Wait, WaitOn};
use crate::run::{Case, Decided, KeyHolder, Payload, Refused, seal_into};

/// The outcome of a call that holds a key, with its values.
#[derive(Debug, Clone, PartialEq)]
pub struct HeldOutcome {
    pub external_id: Option<Key>,
    pub failure: Option<Failure>,
    pub message: Option<Payload>,
    pub output_error: Option<Failure>,
    pub result: Option<Payload>,
    pub status: EffectStatus,
    /// No hooks have ruled about the result.
    pub unruled: bool,
}

impl Case<'_> {
    /// Another run has the key: its outcome is served, or waited for.
    pub(super) fn held_elsewhere(
        &self,
        caller: &Caller<'_>,
        call: CallId,
        holder: &KeyHolder,
        mut drafts: Vec<Draft>,
    ) -> Result<Decided, Refused> {
        // Nothing that would have let it act is written: a grant is not spent on what somebody else did.
        drafts.retain(|draft| !matches!(draft.body, Body::GrantSpent(_)));
        match holder {
            KeyHolder::Forgotten => Err(Refused::KeyForgotten),
            KeyHolder::Other => Err(Refused::IdempotencyConflict),
            KeyHolder::Open => {
                let subject = caller.entering.key.clone();
                let wait = Wait { call: Some(call), on: WaitOn::Key, subject, until: None };
                Ok(Decided { gate: Some(Gate::Wait { call, wait }), ..Decided::of(drafts) })
            }
            KeyHolder::Settled { run, call: by, outcome } => {
                let whole = outcome.status == EffectStatus::Succeeded && outcome.output_error.is_none();
                let unruled = outcome.unruled || whole && caller.entering.result_hooks;
                self.serve(caller, call, (*run, *by), outcome, unruled, drafts)
            }
        }
    }

    /// What a call of another run came to is what this one comes to.
    pub(super) fn serve(
        &self,
        caller: &Caller<'_>,
        call: CallId,
        (by_run, by_call): (RunId, CallId),
        outcome: &HeldOutcome,
        unruled: bool,
        mut drafts: Vec<Draft>,
    ) -> Result<Decided, Refused> {
        let mut sealed = Vec::new();
        let failure = match &outcome.failure {
            Some(failure) => {
                let message = seal_into(outcome.message.as_ref(), &self.source, &mut sealed)?;
                Some(Failure { message, ..failure.clone() })
            }
            None => None,
        };
        let body = CallServed {
            by_call,
            by_run,
            external_id: outcome.external_id.clone(),
            failure,
            output_error: outcome.output_error.clone().map(|error| Failure { message: None, ..error }),
            result: seal_into(outcome.result.as_ref(), &self.source, &mut sealed)?,
            status: outcome.status,
            unruled: unruled.then_some(true),
        };
        drafts.push(Draft { sealed, ..self.of_call(caller, call, body) });
        let gate = if unruled { Gate::RuleResult { call } } else { Gate::Served { call } };
        Ok(Decided { gate: Some(gate), ..Decided::of(drafts) })
    }
}
