//! Calls that another run stands for: who holds a key of the whole store, what the run has done that a fork
//! came from, and what came of it there.

use std::collections::BTreeSet;

use holdfast_core::canonical::to_bytes;
use holdfast_core::content::Content;
use holdfast_core::gateway::{Entering, HeldOutcome};
use holdfast_core::ids::{CallId, StreamId};
use holdfast_core::records::{CallKind, EffectStatus, Privacy};
use holdfast_core::run::{Command, KeyHolder, Opening, Payload};
use holdfast_core::state::{Call, Outcome, Placed, RunState};
use serde_json::Value;

use super::desk::Desk;
use super::gateway::value_at;
use crate::error::{Result, StoreError};
use crate::rows::KeyHeld;

impl Desk<'_> {
    /// Loads the run that holds the key which a call comes with.
    pub(super) fn fetch_key_holder(&mut self, command: &Command) -> Result<()> {
        let Command::Enter { call, .. } = command else { return Ok(()) };
        if let Some(held) = self.key_held(call)? {
            self.state(StreamId::Run(held.run))?;
        }
        Ok(())
    }

    /// Who holds the key that a call comes with. What has outlived its time is nobody's.
    fn key_held(&self, entering: &Entering) -> Result<Option<KeyHeld>> {
        let (Some(_), Some(key)) = (entering.key_shared_ms, &entering.key) else { return Ok(None) };
        let over = |held: &KeyHeld| held.kept_until.is_some_and(|until| until <= self.now.wall_ms);
        Ok(self.rows.key_held(key)?.filter(|held| !over(held)))
    }

    /// The same as the call that comes must know it, if it is another one.
    pub(super) fn key_holder(&self, run: &RunState, entering: &Entering) -> Result<Option<KeyHolder>> {
        let own = entering.key.as_ref().and_then(|key| run.keys.get(key));
        let another = |held: &KeyHeld| held.run != run.id || own != Some(&held.call);
        let Some(held) = self.key_held(entering)?.filter(another) else { return Ok(None) };
        let lost = || StoreError::Corrupt("who holds a key of the store cannot be read".to_owned());
        let holder = self.run_of(held.run)?;
        let call = holder.calls.get(&held.call).ok_or_else(lost)?;
        let Some(given) = self.value_in(holder, Some(call.opened), Some(&call.arguments))? else {
            return Ok(Some(KeyHolder::Forgotten));
        };
        let (same_kind, same_tool) = (call.kind == entering.kind, call.name == entering.tool.name);
        if !same_kind || !same_tool || comparable(&given)? != comparable(&entering.arguments.value)? {
            return Ok(Some(KeyHolder::Other));
        }
        if held.kept_until.is_none() {
            return Ok(Some(KeyHolder::Open));
        }
        let Some(outcome) = self.held_outcome(holder, call)? else { return Ok(Some(KeyHolder::Forgotten)) };
        Ok(Some(KeyHolder::Settled { run: holder.id, call: call.id, outcome: Box::new(outcome) }))
    }

    /// The runs that a fork came from, the nearest first. Each was loaded before.
    fn ancestors<'d>(&'d self, run: &'d RunState) -> impl Iterator<Item = &'d RunState> {
        let parent = |run: &RunState| run.fork.as_ref().and_then(|fork| self.run_loaded(fork.parent));
        std::iter::successors(parent(run), move |run| parent(run))
    }

    /// What the runs that a fork came from have done of what it is about to do, if they have: the first such
    /// call that it has neither inherited nor been served.
    pub(super) fn done_before(&self, run: &RunState, entering: &Entering) -> Result<Option<KeyHolder>> {
        let mut used: BTreeSet<CallId> = run.calls.values().filter_map(|own| own.served_by).collect();
        used.extend(run.calls.values().filter(|own| !own.is_unsent()).map(|own| own.id));
        let mut found = None;
        for parent in self.ancestors(run) {
            for call in parent.performed(&entering.tool.name) {
                if !self.is_same(parent, call, entering)? {
                    continue;
                }
                found.get_or_insert(KeyHolder::Forgotten);
                if !used.contains(&call.id) {
                    return self.came_to(parent, call).map(Some);
                }
                used.extend(call.served_by); // the same effect, where it was done
            }
        }
        Ok(found)
    }

    /// Whether a call that was made is the one that comes: with the same arguments, as code gave them or as
    /// they were sent after hooks and people had changed them.
    fn is_same(&self, run: &RunState, call: &Call, entering: &Entering) -> Result<bool> {
        if call.digest.is(&entering.digest) {
            return Ok(true);
        }
        let Some(Placed { content, position }) = &call.effective else { return Ok(false) };
        match self.value_in(run, Some(*position), Some(content))? {
            Some(sent) => Ok(comparable(&sent)? == comparable(&entering.arguments.value)?),
            None => Ok(false),
        }
    }

    /// Whether the runs that a fork came from have started the child that it is about to start.
    pub(super) fn child_before(&self, run: &RunState, opening: &Opening) -> Option<KeyHolder> {
        let started = |parent: &RunState| {
            let mut children = parent.calls.values().filter(|call| call.kind == CallKind::Child);
            children.any(|call| call.digest.is(&opening.digest) && !run.calls.contains_key(&call.id))
        };
        self.ancestors(run).any(started).then_some(KeyHolder::Forgotten)
    }

    /// What a call of another run came to, for one that it stands for. A failure is not passed on: whoever
    /// forks a run to mend it wants another.
    fn came_to(&self, run: &RunState, call: &Call) -> Result<KeyHolder> {
        let (id, call_id) = (run.id, call.id);
        match call.outcome {
            Some(Outcome::Succeeded | Outcome::Unrecordable) => {
                Ok(self.held_outcome(run, call)?.map_or(KeyHolder::Forgotten, |outcome| KeyHolder::Settled {
                    run: id,
                    call: call_id,
                    outcome: Box::new(outcome),
                }))
            }
            Some(_) => Ok(KeyHolder::Forgotten),
            None => Ok(KeyHolder::Open),
        }
    }

    /// What came of a call, with its values; none, if they were erased or nobody knows.
    fn held_outcome(&self, run: &RunState, call: &Call) -> Result<Option<HeldOutcome>> {
        if call.outcome.is_none() {
            return Ok(None); // it was abandoned, and nobody will say
        }
        let told = call.failure.as_ref().and_then(|failure| failure.message.as_ref());
        let result = self.value_in(run, call.result_at, call.result.as_ref())?;
        let message = self.value_in(run, call.result_at, told)?;
        if call.result.is_some() != result.is_some() {
            return Ok(None);
        }
        let payload = |content: Option<&Content>, value: Option<Value>| {
            let privacy = content.map_or(Privacy::Internal, |content| content.privacy);
            value.map(|value| Payload { privacy, value })
        };
        let failed = call.outcome == Some(Outcome::WriteFailed);
        Ok(Some(HeldOutcome {
            external_id: call.external_id.clone(),
            failure: call.failure.clone(),
            message: payload(told, message),
            output_error: call.output_error.clone(),
            result: payload(call.result.as_ref(), result),
            status: if failed { EffectStatus::Failed } else { EffectStatus::Succeeded },
            unruled: call.unruled,
        }))
    }

    fn value_in(&self, run: &RunState, at: Option<u64>, content: Option<&Content>) -> Result<Option<Value>> {
        match (at, content) {
            (Some(at), Some(content)) => value_at(&*self.rows, self.store, run, at, content),
            _ => Ok(None),
        }
    }
}

/// Arguments as they can be compared over runs. What stands for a secret is another text in each run, so that
/// nobody can tell equal secrets: only its name counts.
fn comparable(arguments: &Value) -> Result<Vec<u8>> {
    let mut arguments = arguments.clone();
    if let Some(members) = arguments.as_object_mut() {
        for value in members.values_mut() {
            if let Some(handle) = value.as_object_mut().filter(|one| one.contains_key("$secret")) {
                handle.remove("digest");
            }
        }
    }
    Ok(to_bytes(&arguments)?)
}
