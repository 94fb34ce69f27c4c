//! Any sequence of commands, from many workers, with any clock: the invariants hold.
//!
//! The checkers are written against the journal alone, apart from the code that made it. A failure prints
//! the commands that led to it.
#![allow(clippy::as_conversions, clippy::expect_used, clippy::panic, clippy::unwrap_used)]

mod world;

use std::collections::BTreeMap;

use holdfast_core::canonical::{from_text, to_bytes};
use holdfast_core::content::Openings;
use holdfast_core::ids::StepId;
use holdfast_core::journal::{Journal, TransactError};
use holdfast_core::records::*;
use holdfast_core::run::*;
use holdfast_core::state::{State, fold};
use proptest::prelude::*;
use serde_json::json;
use world::*;

const WORKERS: [&str; 3] = ["w1", "w2", "w3"];

/// One move of the world; claims are those that a worker once got, stale or not.
#[derive(Debug, Clone)]
enum Move {
    Claim { step: u8, worker: usize, version: u8 },
    Heartbeat { held: usize },
    Release { held: usize },
    Recover { step: u8 },
    Patch { held: usize, behind: u64 },
    Wait { held: usize, on: usize },
    Fail { held: usize, retryable: bool },
    Complete { held: usize, patch: bool },
    ConfirmCancel { held: usize },
    AddStep { step: u8, after: u8 },
    Wake { step: u8, on: usize },
    Signal,
    Message { envelope: u8 },
    Cancel,
    Kill,
    Pause,
    Unpause,
    Resume,
    Retry,
    Note { held: Option<usize> },
    Call { held: usize, call: u8, settle: bool },
    Tick { ms: u64 },
    Reboot,
    WallJump { ms: u64, back: bool },
}

fn moves() -> impl Strategy<Value = Vec<Move>> {
    let step = 1u8..5;
    let held = 0usize..6;
    let one = prop_oneof![
        8 => (step.clone(), 0usize..3, 1u8..3).prop_map(|(step, worker, version)| Move::Claim { step, worker, version }),
        2 => held.clone().prop_map(|held| Move::Heartbeat { held }),
        2 => held.clone().prop_map(|held| Move::Release { held }),
        4 => step.clone().prop_map(|step| Move::Recover { step }),
        6 => (held.clone(), 0u64..2).prop_map(|(held, behind)| Move::Patch { held, behind }),
        3 => (held.clone(), 0usize..4).prop_map(|(held, on)| Move::Wait { held, on }),
        3 => (held.clone(), prop::bool::weighted(0.8)).prop_map(|(held, retryable)| Move::Fail { held, retryable }),
        4 => (held.clone(), any::<bool>()).prop_map(|(held, patch)| Move::Complete { held, patch }),
        1 => held.clone().prop_map(|held| Move::ConfirmCancel { held }),
        1 => (step.clone(), 0u8..5).prop_map(|(step, after)| Move::AddStep { step, after }),
        3 => (step.clone(), 0usize..4).prop_map(|(step, on)| Move::Wake { step, on }),
        2 => Just(Move::Signal),
        2 => (0u8..3).prop_map(|envelope| Move::Message { envelope }),
        1 => Just(Move::Cancel),
        1 => Just(Move::Kill),
        1 => Just(Move::Pause),
        1 => Just(Move::Unpause),
        1 => Just(Move::Resume),
        1 => Just(Move::Retry),
        2 => prop::option::of(held.clone()).prop_map(|held| Move::Note { held }),
        4 => (held, 1u8..6, any::<bool>()).prop_map(|(held, call, settle)| Move::Call { held, call, settle }),
        4 => prop_oneof![Just(100u64), Just(30_000), Just(70_000)].prop_map(|ms| Move::Tick { ms }),
        1 => Just(Move::Reboot),
        1 => (0u64..10_000_000, any::<bool>()).prop_map(|(ms, back)| Move::WallJump { ms, back }),
    ];
    proptest::collection::vec(one, 1..60)
}

fn waits(on: usize, world: &World) -> Wait {
    match on {
        0 => wait_for(WaitOn::Signal, Some("go"), None),
        1 => wait_for(WaitOn::Timer, None, Some(world.now.wall_ms + 1000)),
        2 => wait_for(WaitOn::Message, None, None),
        _ => wait_for(WaitOn::Interrupted, None, None),
    }
}

/// Plays one move; `claims` are those that workers think they have.
fn play(world: &mut World, claims: &mut Vec<(usize, Claim)>, made: &Move) -> Result<(), TransactError> {
    if let Move::Claim { step, worker: index, version } = made {
        let command = Command::Claim {
            step: step_id(*step),
            worker: name(WORKERS[*index]),
            lease_ms: 30_000,
            package: package(&version.to_string()),
            strict: *version == 2,
        };
        world.ask(worker(WORKERS[*index]), command)?;
        if let Some(fence) = world.run().steps[&step_id(*step)].live_fence() {
            claims.insert(0, (*index, Claim { fence, step: step_id(*step) }));
        }
        return Ok(());
    }
    let held = |n: &usize| claims.get(n % claims.len().max(1)).copied();
    let command = work(world, &held, made).or_else(|| outside(world, made));
    match (command, made) {
        (Some((actor, command)), _) => world.ask(actor, command).map(|_| ()),
        (None, Move::Call { held: n, call, settle }) => {
            if let Some((_, claim)) = held(n) {
                play_call(world, claim, *call, *settle);
            }
            Ok(())
        }
        (None, time) => {
            pass(world, time);
            Ok(())
        }
    }
}

/// What a worker asks for under a claim.
fn work(
    world: &World,
    held: &dyn Fn(&usize) -> Option<(usize, Claim)>,
    made: &Move,
) -> Option<(Actor, Command)> {
    let (n, command): (&usize, Box<dyn Fn(Claim) -> Command>) = match made {
        Move::Heartbeat { held } => (held, Box::new(|claim| Command::Heartbeat { claim, lease_ms: 30_000 })),
        Move::Release { held } => {
            (held, Box::new(|claim| Command::Release { claim, reason: ReleaseReason::Yielded }))
        }
        Move::Patch { held, behind } => {
            let expected_version = world.run().state_version.saturating_sub(*behind);
            let patch = value(json!({"n": held}));
            (
                held,
                Box::new(move |claim| Command::Patch {
                    claim,
                    patch: patch.clone(),
                    expected_version,
                    call: None,
                }),
            )
        }
        Move::Wait { held, on } => {
            let waits = vec![waits(*on, world)];
            (held, Box::new(move |claim| Command::Wait { claim, waits: waits.clone() }))
        }
        Move::Fail { held, retryable } => (held, Box::new(|claim| commands::fail(claim, *retryable))),
        Move::Complete { held, patch } => {
            let patch = patch.then(|| value(json!({"last": held})));
            (
                held,
                Box::new(move |claim| Command::Complete {
                    claim,
                    expected_version: None,
                    result: None,
                    patch: patch.clone(),
                }),
            )
        }
        Move::ConfirmCancel { held } => (held, Box::new(|claim| Command::ConfirmCancel { claim })),
        Move::Note { held: Some(held) } => (held, Box::new(|claim| note(Some(claim)))),
        _ => return None,
    };
    held(n).map(|(index, claim)| (worker(WORKERS[index]), command(claim)))
}

fn note(claim: Option<Claim>) -> Command {
    let body = json!({"level": "info", "text": "note"});
    Command::Append {
        claim,
        entries: vec![Entry {
            blobs: BTreeMap::new(),
            body,
            kind: "note.logged".into(),
            privacy: Privacy::Internal,
        }],
    }
}

/// What people, schedulers and other runs ask for.
fn outside(world: &World, made: &Move) -> Option<(Actor, Command)> {
    Some(match made {
        Move::Recover { step } => (system(), Command::Recover { step: step_id(*step) }),
        Move::AddStep { step, after } => {
            let after: &[u8] = if *after == 0 { &[] } else { std::slice::from_ref(after) };
            (dana(), Command::AddStep { call: None, claim: None, step: Box::new(new_step(*step, after)) })
        }
        Move::Wake { step, on } => {
            let wait = waits(*on, world);
            (system(), Command::Wake { step: step_id(*step), on: wait.on, subject: wait.subject })
        }
        Move::Signal => (dana(), Command::Signal { name: name("go"), payload: value(json!(1)) }),
        Move::Message { envelope } => {
            let body = EnvelopeBody::Message { content: value(json!(1)), correlation: None, reply_to: None };
            let id = holdfast_core::ids::EnvelopeId::new(1, [*envelope; 10]);
            let envelope = Envelope { body, from: run_id(9).into(), id, to: run_id(1) };
            (system(), Command::Deliver { envelope: Box::new(envelope) })
        }
        Move::Cancel => (dana(), Command::Cancel { reason: None }),
        Move::Kill => (dana(), Command::End { reason: EndReason::Killed }),
        Move::Pause => (dana(), Command::Pause { reason: None }),
        Move::Unpause => (dana(), Command::Unpause { reason: None }),
        Move::Resume => (dana(), Command::Resume { package: package("1"), reason: None }),
        Move::Retry => (dana(), Command::RetryRun { reason: None }),
        Move::Note { held: None } => (dana(), note(None)),
        _ => return None,
    })
}

/// What time does.
fn pass(world: &mut World, made: &Move) {
    match made {
        Move::Tick { ms } => world.tick(*ms),
        Move::Reboot => {
            world.now.boot_id = format!("boot-{}", world.now.wall_ms);
            world.now.boot_ms = 0;
        }
        Move::WallJump { ms, back: true } => world.now.wall_ms = world.now.wall_ms.saturating_sub(*ms),
        Move::WallJump { ms, back: false } => world.now.wall_ms += ms,
        _ => {}
    }
}

/// A write goes through as the gateway will do it: opened, started, settled or left.
fn play_call(world: &mut World, claim: Claim, call: u8, settle: bool) {
    let live = world.run().steps[&claim.step].live_fence() == Some(claim.fence);
    if !live || world.run().phase.is_ended() || world.run().calls.contains_key(&call_id(call)) {
        return;
    }
    let asked = holdfast_core::matching::Asked {
        digest: SEED.call_digest("tool", "refund", &json!(call)).unwrap(),
        effect: EffectClass::Write,
        key: None,
        kind: CallKind::Tool,
        lane: name("0"),
        name: name("refund"),
    };
    world.open_call(claim, call, &asked, json!(call));
    world.start_call(claim, call);
    if settle {
        world.settle_call(claim, call, EffectStatus::Succeeded);
    }
}

fn count_try(tries: &mut BTreeMap<StepId, u32>, step: StepId) {
    let tries = tries.entry(step).or_default();
    *tries += 1;
    assert!(*tries <= 3, "tries are bounded");
}

/// What must hold of any journal, read from its records alone.
fn check(records: &[Record]) {
    let mut live: BTreeMap<StepId, Fence> = BTreeMap::new();
    let mut last_fence = None;
    let mut ended = false;
    let mut version = 0;
    let mut tries: BTreeMap<StepId, u32> = BTreeMap::new();
    for (at, record) in records.iter().enumerate() {
        assert_eq!(record.seq, at as u64 + 1, "seq is contiguous");
        if at > 0 {
            assert_eq!(record.prev, records[at - 1].hash().unwrap(), "the chain holds");
            assert!(record.at >= records[at - 1].at, "time does not go back");
        }
        if ended {
            let retried = matches!(record.body, Body::RunRetried(_));
            assert!(retried || record.body.may_follow_end(), "{} after the end", record.kind());
            ended = !retried;
        }
        let step = record.step;
        match &record.body {
            Body::StepClaimed(_) => {
                let fence = record.fence.expect("a claim has a fence");
                assert!(last_fence.is_none_or(|last| fence > last), "fences only grow");
                last_fence = Some(fence);
                assert!(live.insert(step.unwrap(), fence).is_none(), "at most one live fence per step");
            }
            Body::StepRetryScheduled(_) => count_try(&mut tries, step.unwrap()),
            Body::LeaseExpired(expired) if !expired.progressed => count_try(&mut tries, step.unwrap()),
            Body::StatePatched(patched) => {
                assert_eq!((patched.base, patched.next), (version, version + 1), "versions grow by one");
                version += 1;
            }
            Body::RunFinished(finished) => {
                ended = true;
                assert_eq!(finished.state_version, version);
            }
            Body::RunRetried(_) => tries.clear(),
            _ => {}
        }
        let under = record.fence.filter(|_| !matches!(record.body, Body::StepClaimed(_)));
        if let (Some(fence), Some(step)) = (under, step) {
            assert_eq!(live.get(&step), Some(&fence), "{} under a fence that does not hold", record.kind());
        }
        let ends_claim =
            ["step.waiting", "step.completed", "step.failed", "step.cancelled", "step.retry_scheduled"];
        if ends_claim.contains(&record.kind()) || record.kind().starts_with("lease.") {
            live.remove(&step.unwrap());
        }
    }
    let envelopes: Vec<_> = records
        .iter()
        .filter_map(|record| match &record.body {
            Body::EnvelopeReceived(received) => Some(received.envelope),
            _ => None,
        })
        .collect();
    let mut once = envelopes.clone();
    once.sort_unstable();
    once.dedup();
    assert_eq!(once.len(), envelopes.len(), "an envelope is journaled once");
}

fn resumed_from_snapshot(world: &World, at: usize) -> State {
    let records = world.journal.records();
    let openings = &world.journal.openings;
    let half = fold(store_id(), &records[..at], openings, None).unwrap().unwrap();
    let kept = to_bytes(&half).unwrap();
    let mut resumed: State = read(&from_text(&kept).unwrap()).unwrap();
    for record in &records[at..] {
        resumed.apply(record, openings).unwrap();
    }
    resumed
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: ProptestConfig::default().cases.max(2000),
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn any_sequence_of_commands_keeps_the_invariants(made in moves(), cut in any::<prop::sample::Index>()) {
        let mut world = World::with_steps(&[(1, &[]), (2, &[]), (3, &[1])]);
        let mut claims = Vec::new();
        for one in &made {
            match play(&mut world, &mut claims, one) {
                Ok(()) | Err(TransactError::Refused(_)) => {}
                Err(bug) => prop_assert!(false, "decided what cannot be folded: {bug:?} after {one:?}"),
            }
        }
        let records = world.journal.records();
        check(records);

        let live = world.journal.state().unwrap();
        let folded = fold(store_id(), records, &world.journal.openings, None).unwrap().unwrap();
        prop_assert_eq!(&folded, live, "the fold of the journal is the live state");
        let audited = Journal::audit(store_id(), run_id(1), &world.texts(), &world.journal.openings, None, None).unwrap();
        prop_assert_eq!(audited.as_ref(), Some(live));
        let resumed = resumed_from_snapshot(&world, 1 + cut.index(records.len()));
        prop_assert_eq!(&resumed, live, "a fold resumed from a snapshot is the same");

        let erased = fold(store_id(), records, &Openings::new(), None).unwrap().unwrap();
        let (run, bare) = (live.as_run().unwrap(), erased.as_run().unwrap());
        prop_assert_eq!((run.status(), run.state_version), (bare.status(), bare.state_version));
    }
}
