//! A run in memory, a clock that is driven by hand, and short words for what tests say.
#![allow(dead_code, unreachable_pub)] // each test file uses its own part

pub mod commands;
pub mod gate;

use std::collections::BTreeMap;

use holdfast_core::canonical::{Digest, Domain};
use holdfast_core::clock::Now;
use holdfast_core::content::{Salt, Seed, seal};
use holdfast_core::entropy::Entropy;
use holdfast_core::error::Coded;
use holdfast_core::ids::{CallId, RunId, StepId, StoreId};
use holdfast_core::journal::{Frame, Journal, TransactError};
use holdfast_core::records::*;
use holdfast_core::run::*;
use holdfast_core::state::RunState;
use serde_json::{Value, json};

pub const SEED: Seed = Seed([9; 32]);

pub fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

pub fn key(text: &str) -> Key {
    Key::new(text).unwrap()
}

pub fn value(value: Value) -> Payload {
    Payload { privacy: Privacy::Internal, value }
}

pub fn worker(id: &str) -> Actor {
    Actor { id: name(id), r#type: ActorType::Worker }
}

pub fn dana() -> Actor {
    Actor { id: name("dana"), r#type: ActorType::Human }
}

pub fn system() -> Actor {
    Actor { id: name("holdfast"), r#type: ActorType::System }
}

pub fn digest<D: Domain>(text: &str) -> Digest<D> {
    Digest::of_bytes(&[text.as_bytes()])
}

pub fn run_id(n: u8) -> RunId {
    RunId::new(1_763_251_200_000, [n; 10])
}

pub fn step_id(n: u8) -> StepId {
    StepId::new(1_763_251_200_000, [n; 10])
}

pub fn call_id(n: u8) -> CallId {
    CallId::new(1_763_251_200_000, [n; 10])
}

pub fn store_id() -> StoreId {
    StoreId::new(1_763_251_200_000, [0; 10])
}

pub fn package(version: &str) -> Package {
    Package {
        agent: name(version),
        hooks: digest("hooks"),
        instructions: digest("instructions"),
        models: digest("models"),
        policy: digest("policy"),
        python: name("3.11"),
        tools: digest("tools"),
    }
}

pub fn new_run(n: u8) -> NewRun {
    NewRun {
        agent: name("support"),
        budget: None,
        capabilities: None,
        deadline: None,
        id: run_id(n),
        input: value(json!("my parcel never came")),
        key: None,
        labels: BTreeMap::new(),
        mode: RunMode::Live,
        package: package("1"),
        parent: None,
        priority: 0,
        role: name("support"),
        session: None,
        state: value(json!({})),
    }
}

pub fn new_step(n: u8, after: &[u8]) -> NewStep {
    NewStep {
        after: after.iter().map(|n| step_id(*n)).collect(),
        concurrency_key: None,
        id: step_id(n),
        input: None,
        kind: StepKind::Replayed,
        name: name("main"),
        not_before: None,
        queue: name("default"),
        retry: RetryPolicy { backoff_max_ms: 60_000, backoff_ms: 1000, max_attempts: 3 },
        timeout_ms: None,
    }
}

pub fn failure(retryable: bool) -> Failure {
    Failure { code: None, error: name("ValueError"), message: None, retryable, source: FailureSource::Agent }
}

pub fn wait_for(on: WaitOn, subject: Option<&str>, until: Option<u64>) -> Wait {
    Wait { call: None, on, subject: subject.map(key), until }
}

/// A journal and a clock.
#[derive(Clone)]
pub struct World {
    pub journal: Journal,
    pub now: Now,
    pub requests: u32,
}

impl World {
    pub fn empty() -> Self {
        let now = Now { boot_id: "boot-1".into(), boot_ms: 1000, wall_ms: 1_763_251_200_000 };
        Self { journal: Journal::new(store_id()), now, requests: 0 }
    }

    /// A created run with these steps: (number, after).
    pub fn with_steps(steps: &[(u8, &[u8])]) -> Self {
        let mut world = Self::empty();
        let steps = steps.iter().map(|(n, after)| new_step(*n, after)).collect();
        world.ask(dana(), Command::Create { run: Box::new(new_run(1)), steps }).unwrap();
        world
    }

    pub fn one_step() -> Self {
        Self::with_steps(&[(1, &[])])
    }

    /// A run whose only step is claimed by w1.
    pub fn claimed() -> (Self, Claim) {
        let mut world = Self::one_step();
        let claim = world.claim(1, "w1").unwrap();
        (world, claim)
    }

    pub fn tick(&mut self, ms: u64) {
        self.now.wall_ms += ms;
        self.now.boot_ms += ms;
    }

    pub fn ask(&mut self, by: Actor, command: Command) -> Result<Frame, TransactError> {
        self.requests += 1;
        let mut entropy = [0u8; 32];
        entropy[..4].copy_from_slice(&self.requests.to_be_bytes());
        self.journal.transact(&Request { by, command, entropy: Entropy(entropy) }, &self.now)
    }

    /// The code with which a command is refused; a refused command must have written nothing.
    pub fn refused(&mut self, by: Actor, command: Command) -> &'static str {
        let before =
            (self.journal.records().len(), self.journal.state().cloned(), self.journal.leases.clone());
        let code = self.ask(by, command).expect_err("it was to be refused").code().as_str();
        let after =
            (self.journal.records().len(), self.journal.state().cloned(), self.journal.leases.clone());
        assert!(before == after, "a refused command changed something");
        code
    }

    /// The kinds that a command wrote.
    pub fn wrote(&mut self, by: Actor, command: Command) -> Vec<String> {
        let frame = self.ask(by, command).unwrap();
        frame.records.iter().map(|record| record.kind().to_owned()).collect()
    }

    pub fn claim(&mut self, step: u8, worker_id: &str) -> Result<Claim, TransactError> {
        let command = Command::Claim {
            step: step_id(step),
            worker: name(worker_id),
            lease_ms: 30_000,
            package: package("1"),
            strict: false,
        };
        self.ask(worker(worker_id), command)?;
        let fence = self.run().steps[&step_id(step)].fence.unwrap();
        Ok(Claim { fence, step: step_id(step) })
    }

    pub fn run(&self) -> &RunState {
        self.journal.run().unwrap()
    }

    pub fn step(&self, n: u8) -> &holdfast_core::state::Step {
        &self.run().steps[&step_id(n)]
    }

    /// The values of the results of calls.
    pub fn results(&self, calls: &[u8]) -> Vec<Value> {
        let value = |n: &u8| {
            let content = self.run().calls[&call_id(*n)].result.clone().unwrap();
            holdfast_core::content::open(&content, &self.journal.openings).unwrap().clone()
        };
        calls.iter().map(value).collect()
    }

    pub fn kinds(&self) -> Vec<&str> {
        self.journal.records().iter().map(Record::kind).collect()
    }

    pub fn texts(&self) -> Vec<Vec<u8>> {
        self.journal.records().iter().map(|record| record.bytes().unwrap()).collect()
    }

    fn under(&self, claim: Claim, call: u8, body: impl Into<Body>) -> Draft {
        let mut draft = Draft::new(body, worker("w1"));
        draft.attempt = Some(self.run().steps[&claim.step].attempt);
        (draft.step, draft.fence, draft.call) = (Some(claim.step), Some(claim.fence), Some(call_id(call)));
        draft.dispatch = self.run().calls.get(&call_id(call)).map(|call| call.dispatch).filter(|n| *n > 0);
        draft
    }

    /// Opens a call in a lane, as the gateway will.
    pub fn open_call(&mut self, claim: Claim, call: u8, asked: &holdfast_core::matching::Asked, args: Value) {
        let sealed = seal(args, Salt([call; 16]), Privacy::Internal).unwrap();
        let body = CallOpened {
            arguments: sealed.content.clone(),
            call_digest: asked.digest,
            capability: None,
            effect: asked.effect,
            key: asked.key.clone(),
            key_scope: None,
            key_ttl_ms: None,
            kind: asked.kind,
            name: asked.name.clone(),
            risk: Risk::Low,
            schema: None,
            version: None,
        };
        let mut draft = self.under(claim, call, body);
        draft.lane = Some(asked.lane.clone());
        draft.sealed = vec![sealed];
        self.journal.write(vec![draft], &self.now).unwrap();
    }

    /// What a permit of a call says.
    pub fn permit(&self, call: u8, key_text: &str, key_ttl_ms: Option<u64>) -> EffectStarted {
        EffectStarted {
            arguments: self.run().calls[&call_id(call)].arguments.clone(),
            boot_id: key(&self.now.boot_id),
            grant: None,
            key: key(key_text),
            key_ttl_ms,
            policy: None,
            sandbox: SandboxTier::None,
            schema: None,
            start_by: self.now.boot_ms + 1000,
            timeout_ms: 1000,
            version: None,
        }
    }

    pub fn start_call(&mut self, claim: Claim, call: u8) {
        let body = self.permit(call, "hf_0", None);
        let dispatch = self.run().calls[&call_id(call)].dispatch + 1;
        let draft = Draft { dispatch: Some(dispatch), ..self.under(claim, call, body) };
        self.journal.write(vec![draft], &self.now).unwrap();
    }

    pub fn settle_call(&mut self, claim: Claim, call: u8, status: EffectStatus) {
        let dispatch = self.run().calls[&call_id(call)].dispatch;
        let body = EffectSettled {
            elapsed_ms: 5,
            external_id: None,
            failure: None,
            output_error: None,
            result: None,
            status,
            unruled: None,
            usage: None,
        };
        let draft = Draft { dispatch: Some(dispatch), ..self.under(claim, call, body) };
        self.journal.write(vec![draft], &self.now).unwrap();
    }

    /// Writes any fact of a call.
    pub fn say(&mut self, claim: Claim, call: u8, body: impl Into<Body>) -> Result<Frame, TransactError> {
        let draft = self.under(claim, call, body);
        self.journal.write(vec![draft], &self.now)
    }
}
