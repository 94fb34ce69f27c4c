//! What the gateway needs of a store: the active policy, the values behind recorded contents, a run's seed;
//! and the rule that no permit for a write leaves before its barrier, which nobody can ask to be spared.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use holdfast_core::canonical::to_value;
use holdfast_core::chain::Stamped;
use holdfast_core::content::{CallDigest, Content, Seed, seal};
use holdfast_core::entropy::Entropy;
use holdfast_core::gateway::{Gate, edited_arguments, recorded_arguments, revoke_of_session};
use holdfast_core::ids::{CallId, CapabilityId, GrantId, RunId, SessionId, StreamId};
use holdfast_core::mutants::{Mutant, mutant};
use holdfast_core::policy::ActivePolicy;
use holdfast_core::records::{
    Actor, Body, Draft, EffectClass, Failure, Key, PolicyActivated, PolicyDigest, Privacy, Reason, Record,
    read,
};
use holdfast_core::run::{Act, Command, Refused, SessionGrant, View, awaited_content};
use holdfast_core::state::{Outcome, Placed, RunState, State};
use lru::LruCache;
use serde_json::Value;

use super::desk::Desk;
use super::{Durability, Engine, load, reading};
use crate::clock::entropy;
use crate::error::{Result, StoreError};
use crate::rows::Look;
use crate::store::Store;

/// How a call ended, with the values that agent code gets.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Served {
    pub call: CallId,
    /// The result, or the message of the failure, was erased.
    pub erased: bool,
    pub external_id: Option<Key>,
    pub failure: Option<Failure>,
    pub message: Option<Value>,
    pub name: String,
    pub outcome: Option<Outcome>,
    pub output_error: Option<Failure>,
    pub reasons: Vec<Reason>,
    pub result: Option<Value>,
}

/// What a process remembers of the gateway: nothing that the journal does not say.
#[derive(Debug)]
pub(crate) struct Memory {
    policy: Mutex<Option<Arc<ActivePolicy>>>,
    seeds: Mutex<LruCache<RunId, Seed>>,
}

impl Memory {
    pub(super) fn new() -> Self {
        let most = std::num::NonZeroUsize::new(holdfast_core::limits::CACHED_STREAMS_MAX);
        let seeds = LruCache::new(most.unwrap_or(std::num::NonZeroUsize::MIN));
        Self { policy: Mutex::new(None), seeds: Mutex::new(seeds) }
    }

    fn seeds(&self) -> MutexGuard<'_, LruCache<RunId, Seed>> {
        self.seeds.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether a command is decided by the active policy.
pub(super) fn asks_policy(command: &Command) -> bool {
    matches!(command, Command::Enter { .. } | Command::Vote { .. } | Command::Edit { .. })
}

/// Whether a command is decided with the grants of the run's session.
pub(super) fn asks_session(command: &Command) -> bool {
    matches!(command, Command::Enter { .. } | Command::Vote { .. })
}

/// Whether a command is decided by what the runs have done that a fork came from.
pub(super) fn asks_ancestors(command: &Command) -> bool {
    match command {
        Command::Enter { .. } => true,
        Command::Act { act, .. } => matches!(**act, Act::Spawn { .. }),
        _ => false,
    }
}

/// Whether a command is decided by what the run holds.
pub(super) fn asks_capabilities(command: &Command) -> bool {
    match command {
        Command::Enter { .. }
        | Command::Attenuate { .. }
        | Command::Transfer { .. }
        | Command::Spawn { .. } => true,
        Command::Act { act, .. } => matches!(**act, Act::Spawn { .. }),
        _ => false,
    }
}

/// What a walk over the runs that had a capability, or what it was made of, came to.
#[derive(Default)]
struct Walk {
    revoked: bool,
    /// Runs that would have to be asked too.
    missing: BTreeSet<RunId>,
}

/// Asks every run that has, had or gave a capability whether it is revoked there: what was made of what, where
/// it came from, where it went to, and what a fork inherited.
fn walk<'r>(run: RunId, id: CapabilityId, state: impl Fn(RunId) -> Option<&'r RunState>) -> Walk {
    let mut found = Walk::default();
    let mut seen = BTreeSet::new();
    let mut left = vec![(run, id)];
    while let Some((run, id)) = left.pop() {
        if !seen.insert((run, id)) {
            continue;
        }
        let Some(state) = state(run) else {
            found.missing.insert(run);
            continue;
        };
        let Some(held) = state.capabilities.held.get(&id) else { continue };
        found.revoked |= held.revoked;
        left.extend(held.parent.map(|parent| (run, parent)));
        left.extend(held.from_run.map(|from| (from, id)));
        left.extend(held.to.map(|to| (to, id)));
        left.extend(state.fork.as_ref().map(|fork| (fork.parent, id)));
    }
    found
}

/// Whether a frame lets something act, so that nobody may hear of it before it is on the disk.
pub(super) fn needs_barrier(state: &State, records: &[Stamped]) -> bool {
    if mutant(Mutant::EarlyPermit) {
        return false;
    }
    let writes = |record: &Record| {
        let call = record.call.and_then(|id| state.as_run()?.calls.get(&id));
        call.is_none_or(|call| call.effect == EffectClass::Write)
    };
    records.iter().any(|Stamped { record, .. }| match &record.body {
        Body::EffectStarted(_) => writes(record),
        Body::ApprovalDecided(_)
        | Body::GrantRevoked(_)
        | Body::CapabilityRevoked(_)
        | Body::EffectResolved(_) => true,
        _ => false,
    })
}

/// The run whose own record stands at a position, and the record's seq there: an older one is an ancestor's.
pub(super) fn place(look: &dyn Look, run: &RunState, position: u64) -> Result<Option<(RunId, u64)>> {
    let (mut id, mut base) = (run.id, run.base);
    while position <= base {
        let Some(row) = look.stream(StreamId::Run(id))? else { return Ok(None) };
        let Some(frame) = look.frame(row.key, 1)? else { return Ok(None) };
        let texts = load::texts(&frame)?;
        let Some(first) = texts.first() else { return Ok(None) };
        let Body::RunForked(forked) = Record::parse(first)?.body else { return Ok(None) };
        (id, base) = (forked.parent, base.saturating_sub(forked.at));
    }
    Ok(Some((id, position - base)))
}

/// The value of a content of a run, by the position of its record.
pub(super) fn value_at(
    look: &dyn Look,
    store: &dyn Store,
    run: &RunState,
    position: u64,
    content: &Content,
) -> Result<Option<Value>> {
    match place(look, run, position)? {
        Some((id, seq)) => reading::value_of(look, store, StreamId::Run(id), seq, content),
        None => Ok(None),
    }
}

impl Desk<'_> {
    /// The active policy, parsed once per process and compared with the store's own stream each time.
    fn active_policy(&self) -> Result<Option<Arc<ActivePolicy>>> {
        let Some(State::Store(state)) = self.loaded(StreamId::Store).map(|loaded| &loaded.state) else {
            return Ok(None);
        };
        let (Some(digest), Some(at)) = (state.policy, state.policy_at) else { return Ok(None) };
        let mut kept = self.memory.policy.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(policy) = kept.as_ref().filter(|policy| policy.digest == digest) {
            return Ok(Some(Arc::clone(policy)));
        }
        let policy = Arc::new(self.read_policy(digest, at)?);
        *kept = Some(Arc::clone(&policy));
        Ok(Some(policy))
    }

    fn read_policy(&self, digest: PolicyDigest, at: u64) -> Result<ActivePolicy> {
        let lost = || StoreError::Corrupt("the active policy cannot be read".to_owned());
        let stream = self.loaded(StreamId::Store).ok_or_else(lost)?.key;
        let frame = self.rows.frame(stream, at)?.ok_or_else(lost)?;
        let texts = load::texts(&frame)?;
        let place = usize::try_from(at - frame.first_seq).map_err(|_| lost())?;
        let record = Record::parse(texts.get(place).ok_or_else(lost)?)?;
        let Body::PolicyActivated(activated) = record.body else { return Err(lost()) };
        let text = reading::value_of(&*self.rows, self.store, StreamId::Store, at, &activated.text)?;
        let policy = ActivePolicy::new(read(&text.ok_or_else(lost)?).map_err(|_| lost())?)?;
        if policy.digest == digest { Ok(policy) } else { Err(lost()) }
    }

    /// What a call at the door, or a vote, is decided with.
    pub(super) fn gateway_rows(&self, command: &Command, view: &mut View<'_>) -> Result<()> {
        if asks_policy(command) {
            view.policy = self.active_policy()?;
        }
        let Some(run) = view.state else { return Ok(()) };
        if let Command::Transfer { to, .. } = command {
            let receiver = self.loaded(StreamId::Run(*to)).and_then(|loaded| loaded.state.as_run());
            view.receiver_open = receiver.is_some_and(|run| !run.phase.is_ended());
        }
        if asks_capabilities(command) {
            view.revoked_elsewhere = self.revoked_elsewhere(run);
        }
        if let (true, Some(session)) = (asks_session(command), run.session) {
            self.session_rows(session, view)?;
        }
        if let Command::Take { call, .. } = command
            && let Some(Placed { content, position }) = awaited_content(run, *call)
        {
            view.came = value_at(&*self.rows, self.store, run, position, &content)?;
        }
        if let (true, Command::Act { call, .. }) = (asks_ancestors(command), command) {
            view.done_before = self.child_before(run, call);
        }
        if let Command::Enter { call, .. } = command {
            view.done_before = self.done_before(run, call)?;
            let value = |placed: Option<&Placed>| match placed {
                Some(Placed { content, position }) => {
                    value_at(&*self.rows, self.store, run, *position, content)
                }
                None => Ok(None),
            };
            view.key_holder = self.key_holder(run, call)?;
            view.effective = value(recorded_arguments(run, call))?;
            view.edited = value(edited_arguments(run, call))?;
        }
        Ok(())
    }

    /// The capabilities of a run that are revoked where they came from or went to, or where what they were
    /// made of did. Every run that is asked was loaded before.
    fn revoked_elsewhere(&self, run: &RunState) -> BTreeSet<CapabilityId> {
        let held = run.capabilities.held.keys().copied();
        held.filter(|id| walk(run.id, *id, |id| self.run_loaded(id)).revoked).collect()
    }

    pub(super) fn run_loaded(&self, id: RunId) -> Option<&RunState> {
        self.loaded(StreamId::Run(id)).and_then(|loaded| loaded.state.as_run())
    }

    /// Loads the runs that a fork came from: what they have done, it does not do again.
    pub(super) fn fetch_ancestors(&mut self, run: RunId) -> Result<()> {
        let mut next = Some(run);
        while let Some(id) = next {
            next = self.run(id)?.and_then(|run| run.fork.as_ref().map(|fork| fork.parent));
        }
        Ok(())
    }

    /// Loads every run that has a word in what a run holds.
    pub(super) fn fetch_holders(&mut self, run: RunId, command: &Command) -> Result<()> {
        if let Command::Transfer { to, .. } = command {
            self.state(StreamId::Run(*to))?;
        }
        loop {
            let Some(state) = self.run_loaded(run) else { return Ok(()) };
            let mut missing = BTreeSet::new();
            for id in state.capabilities.held.keys() {
                missing.extend(walk(run, *id, |id| self.run_loaded(id)).missing);
            }
            let mut found = false;
            for id in missing {
                found |= self.state(StreamId::Run(id))?.is_some();
            }
            if !found {
                return Ok(());
            }
        }
    }

    /// The grants of a session that may still be spent, and how often they were.
    fn session_rows(&self, session: SessionId, view: &mut View<'_>) -> Result<()> {
        let loaded = self.loaded(StreamId::Session(session));
        let Some(State::Session(state)) = loaded.map(|loaded| &loaded.state) else { return Ok(()) };
        view.session = true;
        for (id, grant) in state.grants.iter().filter(|(_, grant)| !grant.revoked) {
            let (grant, spent) = (grant.clone(), self.rows.grant_spent(*id)?);
            view.session_grants.push(SessionGrant { grant, id: *id, spent });
        }
        Ok(())
    }

    /// How the call ended that the door speaks of.
    pub(super) fn served(&mut self, run: RunId, gate: Option<&Gate>) -> Result<Option<Box<Served>>> {
        let Some(Gate::Served { call } | Gate::RuleResult { call }) = gate else { return Ok(None) };
        self.state(StreamId::Run(run))?;
        let Some(run) = self.loaded(StreamId::Run(run)).and_then(|loaded| loaded.state.as_run()) else {
            return Ok(None);
        };
        let Some(call) = run.calls.get(call) else { return Ok(None) };
        let value = |content: Option<&Content>| match (content, call.result_at) {
            (Some(content), Some(at)) => value_at(&*self.rows, self.store, run, at, content),
            _ => Ok(None),
        };
        let told = call.failure.as_ref().and_then(|failure| failure.message.as_ref());
        let (result, message) = (value(call.result.as_ref())?, value(told)?);
        let erased = call.result.is_some() != result.is_some();
        Ok(Some(Box::new(Served {
            call: call.id,
            erased,
            external_id: call.external_id.clone(),
            failure: call.failure.clone(),
            message,
            name: call.name.as_str().to_owned(),
            outcome: call.outcome,
            output_error: call.output_error.clone(),
            reasons: call.reasons.clone(),
            result,
        })))
    }
}

impl Engine {
    /// Makes a policy the active one, and says which it is. The same policy again changes nothing.
    pub fn activate_policy(&self, by: &Actor, policy: ActivePolicy) -> Result<PolicyDigest> {
        let (by, entropy) = (by.clone(), entropy()?);
        let digest = policy.digest;
        self.run(Durability::Barrier, false, move |desk| {
            let previous = match desk.state(StreamId::Store)? {
                Some(State::Store(state)) if state.policy == Some(digest) => return Ok(digest),
                Some(State::Store(state)) => state.policy,
                _ => return Err(StoreError::Corrupt("the store has no stream of its own".to_owned())),
            };
            let text = to_value(&policy.policy)?;
            let sealed = seal(text, salt(&entropy), Privacy::Internal)?;
            let body = PolicyActivated { policy: digest, previous, text: sealed.content.clone() };
            let draft = Draft { sealed: vec![sealed], ..Draft::new(body, by.clone()) };
            desk.note(StreamId::Store, vec![draft])?;
            Ok(digest)
        })
    }

    /// The active policy; none if there never was one.
    pub fn policy(&self) -> Result<Option<Arc<ActivePolicy>>> {
        self.run(Durability::Commit, false, |desk| {
            desk.state(StreamId::Store)?;
            desk.active_policy()
        })
    }

    /// Takes a grant of a session back. Again changes nothing.
    pub fn revoke_session_grant(
        &self,
        by: &Actor,
        session: SessionId,
        grant: GrantId,
        reason: Option<&str>,
    ) -> Result<()> {
        let (by, entropy) = (by.clone(), entropy()?);
        let reason = reason.map(|text| Value::String(text.to_owned()));
        self.run(Durability::Barrier, false, move |desk| {
            let Some(State::Session(state)) = desk.state(StreamId::Session(session))? else {
                return Err(Refused::NoSuchSession.into());
            };
            let reason = reason.clone().map(|text| seal(text, salt(&entropy), Privacy::Internal));
            match revoke_of_session(state, &by, grant, reason.transpose()?)? {
                Some(draft) => desk.note(StreamId::Session(session), vec![draft]).map(|_| ()),
                None => Ok(()),
            }
        })
    }

    /// A digest of a secret that says nothing to who has not the run's seed.
    pub fn secret_digest(&self, run: RunId, name: &str, secret: &Value) -> Result<CallDigest> {
        self.call_digest(run, "secret", name, secret)
    }

    /// The digest by which a call of a run is known.
    pub fn call_digest(&self, run: RunId, kind: &str, name: &str, arguments: &Value) -> Result<CallDigest> {
        Ok(self.seed(run)?.call_digest(kind, name, arguments)?)
    }

    /// The same, if nobody has to take a turn for it.
    pub fn call_digest_at_once(
        &self,
        run: RunId,
        kind: &str,
        name: &str,
        arguments: &Value,
    ) -> Option<Result<CallDigest>> {
        let seed = self.memory.seeds().get(&run).cloned()?;
        Some(seed.call_digest(kind, name, arguments).map_err(Into::into))
    }

    /// What everything that a run makes up follows from.
    pub(super) fn seed(&self, run: RunId) -> Result<Seed> {
        let kept = self.memory.seeds().get(&run).cloned();
        if let Some(seed) = kept {
            return Ok(seed);
        }
        let found = self.run(Durability::Commit, false, move |desk| {
            desk.state(StreamId::Run(run))?;
            desk.seed(run)
        })?;
        let seed = found.ok_or_else(|| StoreError::Corrupt(format!("the seed of {run} cannot be read")))?;
        self.remember(run, &seed);
        Ok(seed)
    }

    /// From now on nobody takes a turn for a seed. It was read in a turn that is over: one that was undone
    /// may have been about a run that does not exist.
    pub(super) fn remember(&self, run: RunId, seed: &Seed) {
        self.memory.seeds().put(run, seed.clone());
    }
}

impl Desk<'_> {
    /// The seed of a run that was fetched; none if it is lost.
    pub(super) fn seed(&self, run: RunId) -> Result<Option<Seed>> {
        let run = self.run_of(run)?;
        let value = value_at(&*self.rows, self.store, run, 1, &run.seed)?;
        Ok(value.as_ref().and_then(Seed::from_value))
    }
}

fn salt(entropy: &Entropy) -> holdfast_core::content::Salt {
    let mut salt = [0u8; 16];
    salt.copy_from_slice(&entropy.0[..16]);
    holdfast_core::content::Salt(salt)
}
