//! The last two rooms, the budget and the ledger, and the permit that comes out of them.

use serde_json::Value;

use super::Gate;
use super::enter::{Caller, simple_wait};
use crate::budget;
use crate::call::CallEvent;
use crate::content::Content;
use crate::contracts::tool::SandboxNeed;
use crate::ids::{CallId, GrantId};
use crate::ledger::{self, Permit};
use crate::mutants::{Mutant, mutant};
use crate::records::{
    Body, Draft, EffectSettled, EffectStarted, EffectStatus, Failure, FailureSource, Key, Name,
    SandboxStarted, SandboxTier, Token, WaitOn,
};
use crate::run::{Case, Decided, Refused};
use crate::state::{Call, CallPhase};

impl Case<'_> {
    /// Gives a call its permit, if the budget has room for it.
    pub(super) fn dispatch(
        &self,
        caller: &Caller<'_>,
        call: Option<&Call>,
        arguments: &Value,
        grant: Option<GrantId>,
        mut drafts: Vec<Draft>,
    ) -> Result<Decided, Refused> {
        let entering = caller.entering;
        let id = call.map_or(entering.call, |call| call.id);
        if call.is_some_and(|call| !call.allows(CallEvent::Started)) {
            return Err(Refused::CallBusy);
        }
        // A read that was on its way may go again, whatever others did meanwhile.
        let free = call.is_some_and(|call| call.phase == CallPhase::Started) || mutant(Mutant::KeyOfOneRun);
        if let Some(holder) = self.view.key_holder.as_ref().filter(|_| !free) {
            return self.held_elsewhere(caller, id, holder, drafts);
        }
        if lacks_sandbox(caller) {
            return Ok(self.unsandboxed(caller, call, drafts));
        }
        // What an older dispatch has set aside is charged: nobody knows what it used.
        let older = call.and_then(|call| budget::assume(caller.run, call));
        drafts.extend(older.map(|body| self.of_call(caller, id, body)));
        let asked = budget::asked(entering.kind, &entering.reserve);
        match budget::reserve(caller.run, &asked, || self.meanwhile(caller, id)) {
            budget::Room::Fits(reserved) => {
                drafts.extend(reserved.into_iter().map(|body| self.of_call(caller, id, body)));
            }
            // It was sent off before, so it cannot be refused any more: it stays in doubt.
            budget::Room::Full(_) if call.is_some_and(Call::is_open_write) => {
                return Ok(Decided::gate(Gate::Wait { call: id, wait: simple_wait(WaitOn::Doubt, id) }));
            }
            budget::Room::Full(refused) => {
                // Nothing that would have let it act is written: a grant is not spent on a refusal.
                drafts.retain(|draft| !matches!(draft.body, Body::GrantSpent(_)));
                let gate = if caller.run.asks_for(refused.account) {
                    Gate::Wait { call: id, wait: simple_wait(WaitOn::Budget, id) }
                } else {
                    Gate::Served { call: id }
                };
                drafts.push(self.of_call(caller, id, refused));
                return Ok(Decided { gate: Some(gate), ..Decided::of(drafts) });
            }
        }
        let number = call.map_or(1, |call| call.dispatch + 1);
        let permit = self.permit(id, number, arguments, entering.tool.timeout_ms);
        self.start(caller, &permit, grant, &mut drafts)?;
        let gate = Gate::Permit { permit: Box::new(permit), redact: caller.redact.clone() };
        Ok(Decided { gate: Some(gate), ..Decided::of(drafts) })
    }

    /// What is on its way when a call is sent off. What an earlier claim of the same step had started and
    /// nobody settled is not: who had it has lost it, and a write is in doubt.
    fn meanwhile(&self, caller: &Caller<'_>, call: CallId) -> budget::Meanwhile {
        let fence = Some(caller.claim.fence);
        let others = caller.run.calls.values().filter(|one| one.id != call);
        let busy = others.filter(|one| match one.phase {
            CallPhase::Started => {
                let held = one.permit.as_ref().is_some_and(|permit| permit.fence == fence);
                held || one.step != caller.step.id
            }
            CallPhase::Doubted => ledger::may_act_for(one, self.now) > 0,
            CallPhase::Open | CallPhase::Settled | CallPhase::Abandoned => false,
        });
        let on_their_way = u64::try_from(busy.count()).unwrap_or(u64::MAX);
        budget::Meanwhile { on_their_way, wall_ms: self.now.wall_ms }
    }

    fn start(
        &self,
        caller: &Caller<'_>,
        permit: &Permit,
        grant: Option<GrantId>,
        drafts: &mut Vec<Draft>,
    ) -> Result<(), Refused> {
        let (id, dispatch, entering) = (permit.call, Some(permit.dispatch), caller.entering);
        let sealed = caller.sealed(permit.arguments.clone(), &self.source)?;
        let body = started(caller, permit, sealed.content.clone(), grant);
        drafts.push(Draft { dispatch, sealed: vec![sealed], ..self.of_call(caller, id, body) });
        if entering.sandbox != SandboxTier::None {
            let body = SandboxStarted { enforces: entering.guards.clone(), tier: entering.sandbox };
            drafts.push(Draft { dispatch, ..self.of_call(caller, id, body) });
        }
        Ok(())
    }

    /// A tool that needs a sandbox, and there is none: it provably did not happen.
    fn unsandboxed(&self, caller: &Caller<'_>, call: Option<&Call>, mut drafts: Vec<Draft>) -> Decided {
        let id = call.map_or(caller.entering.call, |call| call.id);
        match call.map(|call| call.phase) {
            None | Some(CallPhase::Open) => {}
            Some(CallPhase::Settled) => return Decided::gate(Gate::Served { call: id }),
            Some(CallPhase::Started | CallPhase::Doubted | CallPhase::Abandoned) => {
                return Decided::gate(Gate::Wait { call: id, wait: simple_wait(WaitOn::Doubt, id) });
            }
        }
        drafts.retain(|draft| !matches!(draft.body, Body::GrantSpent(_)));
        let failure = Failure {
            code: Token::new("sandbox_missing"),
            error: Name::new("SandboxMissing").unwrap_or_else(Name::unknown),
            message: None,
            retryable: false,
            source: FailureSource::Sandbox,
        };
        let body = EffectSettled {
            elapsed_ms: 0,
            external_id: None,
            failure: Some(failure),
            output_error: None,
            result: None,
            status: EffectStatus::NoEffect,
            unruled: None,
            usage: None,
        };
        drafts.push(self.of_call(caller, id, body));
        Decided { gate: Some(Gate::Served { call: id }), ..Decided::of(drafts) }
    }

    pub(super) fn permit(&self, call: CallId, dispatch: u32, arguments: &Value, timeout_ms: u64) -> Permit {
        Permit {
            arguments: arguments.clone(),
            boot_id: Key::new(self.now.boot_id.clone()).unwrap_or_else(Key::none),
            call,
            dispatch,
            key: ledger::key_of(call),
            start_by: ledger::start_by(self.now),
            timeout_ms,
        }
    }
}

fn lacks_sandbox(caller: &Caller<'_>) -> bool {
    let entering = caller.entering;
    entering.tool.sandbox == SandboxNeed::Required
        && entering.sandbox == SandboxTier::None
        && !mutant(Mutant::SandboxOptional)
}

fn started(
    caller: &Caller<'_>,
    permit: &Permit,
    arguments: Content,
    grant: Option<GrantId>,
) -> EffectStarted {
    let entering = caller.entering;
    EffectStarted {
        arguments,
        boot_id: permit.boot_id.clone(),
        grant,
        key: permit.key.clone(),
        key_ttl_ms: entering.tool.key_ttl_ms,
        policy: Some(caller.policy.digest),
        sandbox: entering.sandbox,
        schema: Some(caller.entering.tool.schema),
        start_by: permit.start_by,
        timeout_ms: permit.timeout_ms,
        version: Some(entering.tool.version.clone()),
    }
}
