//! New runs, new steps, forks.

use std::collections::BTreeSet;

use super::request::{Claim, Decided, NewRun, NewStep, Payload, seal_into};
use super::{Case, Refused};
use crate::call::CallPhase;
use crate::ids::{CallId, RunId, StepId};
use crate::limits;
use crate::mutants::{Mutant, mutant};
use crate::records::{
    ActorType, Budget, CallKind, Draft, EffectClass, ForkEffects, Labels, Package, RunCreated, RunForked,
    StepCreated, StepStatus,
};
use crate::state::Call;

/// The behaviour of fold, matching and decide that this build writes; old numbers are kept for ever.
pub(crate) const RULES: u32 = 1;

impl Case<'_> {
    pub(super) fn create(&self, run: &NewRun, steps: &[NewStep]) -> Result<Decided, Refused> {
        if self.view.state.is_some() {
            return Err(Refused::RunExists);
        }
        if steps.is_empty() {
            return Err(Refused::NoSteps);
        }
        if !run.state.value.is_object() {
            return Err(Refused::PatchNotObject);
        }
        check_labels(&run.labels)?;
        check_budget(run.budget.as_ref())?;
        self.check_time(run.deadline)?;
        let mut drafts = vec![self.created(run)?];
        drafts.extend(self.endowed(run.capabilities.as_deref().unwrap_or_default())?);
        let mut known = BTreeSet::new();
        for step in steps {
            drafts.push(self.step_created(step, &known)?);
            known.insert(step.id);
        }
        Ok(Decided::of(drafts))
    }

    fn created(&self, run: &NewRun) -> Result<Draft, Refused> {
        let (input, state) = (run.input.seal(&self.source)?, run.state.seal(&self.source)?);
        let seed = Payload { privacy: crate::records::Privacy::Secret, value: self.source.seed().to_value() };
        let seed = seed.seal(&self.source)?;
        let body = RunCreated {
            agent: run.agent.clone(),
            budget: run.budget.clone(),
            deadline: run.deadline,
            input: input.content.clone(),
            key: run.key.clone(),
            labels: run.labels.clone(),
            mode: run.mode,
            package: run.package.clone(),
            parent: run.parent,
            priority: run.priority,
            restricted: run.capabilities.is_some().then_some(true),
            role: run.role.clone(),
            rules: RULES,
            seed: seed.content.clone(),
            session: run.session,
            state: state.content.clone(),
        };
        Ok(Draft { sealed: vec![input, state, seed], ..self.draft(body) })
    }

    fn step_created(&self, step: &NewStep, known: &BTreeSet<StepId>) -> Result<Draft, Refused> {
        if known.contains(&step.id) || !step.after.iter().all(|after| known.contains(after)) {
            return Err(Refused::BadStep);
        }
        if known.len() >= limits::STEPS_MAX {
            return Err(Refused::LimitExceeded("steps_max"));
        }
        match step.retry.max_attempts {
            ..limits::ATTEMPTS_MIN => return Err(Refused::LimitExceeded("attempts_min")),
            limits::ATTEMPTS_MIN..=limits::ATTEMPTS_MAX => {}
            _ => return Err(Refused::LimitExceeded("attempts_max")),
        }
        self.check_time(step.not_before)?;
        let mut sealed = Vec::new();
        let body = StepCreated {
            after: step.after.clone(),
            concurrency_key: step.concurrency_key.clone(),
            input: seal_into(step.input.as_ref(), &self.source, &mut sealed)?,
            kind: step.kind,
            name: step.name.clone(),
            not_before: step.not_before,
            queue: step.queue.clone(),
            retry: step.retry.clone(),
            timeout_ms: step.timeout_ms,
        };
        Ok(Draft { step: Some(step.id), sealed, ..self.draft(body) })
    }

    /// By a worker inside the run, or by a person.
    pub(super) fn add_step(
        &self,
        call: Option<CallId>,
        claim: Option<&Claim>,
        step: &NewStep,
    ) -> Result<Decided, Refused> {
        let adder = claim.map(|claim| self.held(claim)).transpose()?;
        let call = match adder {
            Some(adder) => self.own_call(call, adder, CallKind::Step)?,
            None if self.by.r#type == ActorType::Worker => return Err(Refused::ClaimNeeded),
            None => None,
        };
        let run = self.open_run()?;
        if run.cancel_requested {
            return Err(Refused::CancelRequested);
        }
        let known = run.steps.keys().copied().collect();
        // The record belongs to the new step, so the adder's fence does not stand on it.
        Ok(Decided::of(vec![Draft { call, ..self.step_created(step, &known)? }]))
    }

    pub(super) fn fork(
        &self,
        run: RunId,
        labels: &Labels,
        package: &Package,
        effects: ForkEffects,
        reason: Option<&Payload>,
    ) -> Result<Decided, Refused> {
        let parent = self.view.parent.ok_or(Refused::BadForkPoint)?;
        if self.view.state.is_some() || run == parent.id {
            return Err(Refused::RunExists);
        }
        // A write that was under way is the parent's: the fork could neither make it nor learn what came of it.
        let under_way = |call: &Call| call.phase == CallPhase::Started && call.effect == EffectClass::Write;
        if parent.phase.is_ended() || parent.calls.values().any(under_way) {
            return Err(Refused::BadForkPoint);
        }
        // Without a step that is left to do, it would never end.
        if parent.steps.values().all(|step| step.status == StepStatus::Completed) {
            return Err(Refused::BadForkPoint);
        }
        // So is a child that had not ended: it tells its parent, and nobody else, how it ends.
        if parent.children.values().any(|child| child.ended.is_none()) && !mutant(Mutant::ForkOrphans) {
            return Err(Refused::BadForkPoint);
        }
        if parent.newer {
            return Err(Refused::NewerFormat);
        }
        let depth = parent.fork.as_ref().map_or(1, |fork| fork.depth + 1);
        if depth > limits::FORK_DEPTH_MAX {
            return Err(Refused::LimitExceeded("fork_depth_max"));
        }
        check_labels(labels)?;
        let mut sealed = Vec::new();
        let body = RunForked {
            at: parent.head.seq,
            depth,
            effects,
            head: parent.head.hash,
            labels: labels.clone(),
            package: package.clone(),
            parent: parent.id,
            reason: seal_into(reason, &self.source, &mut sealed)?,
        };
        Ok(Decided::of(vec![Draft { sealed, ..self.draft(body) }]))
    }

    /// A time that people set lies within the horizon.
    pub(super) fn check_time(&self, at: Option<u64>) -> Result<(), Refused> {
        match at {
            Some(at) if at > self.now.wall_ms.saturating_add(limits::HORIZON_MS) => {
                Err(Refused::LimitExceeded("horizon_ms"))
            }
            _ => Ok(()),
        }
    }
}

fn check_labels(labels: &Labels) -> Result<(), Refused> {
    let long = |text: &String| text.chars().count() > limits::NAME_CHARS_MAX;
    if labels.len() > limits::LABELS_MAX {
        return Err(Refused::LimitExceeded("labels_max"));
    }
    if labels.iter().any(|(key, value)| long(key) || long(value)) {
        return Err(Refused::LimitExceeded("name_chars_max"));
    }
    Ok(())
}

/// A limit that nobody would hold is none: code in the agent's own process takes what memory it wants.
fn check_budget(budget: Option<&Budget>) -> Result<(), Refused> {
    match budget.and_then(|budget| budget.memory_bytes) {
        Some(_) => Err(Refused::Unenforceable("memory_bytes")),
        None => Ok(()),
    }
}
