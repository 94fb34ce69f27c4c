//! Calls that their own frame does, and what ends those that wait, told as stories.
#![allow(clippy::as_conversions, clippy::expect_used, clippy::panic, clippy::unwrap_used)]

mod world;

use holdfast_core::ids::{RunId, StreamId};
use holdfast_core::matching::{Asked, Calm, Match, Player, Then};
use holdfast_core::records::*;
use holdfast_core::run::*;
use holdfast_core::state::{CallPhase, Outcome, Refresh};
use serde_json::{Value, json};
use world::commands::*;
use world::*;

fn opening(n: u8, kind: CallKind, called: &str) -> Opening {
    Opening {
        arguments: value(json!(null)),
        call: call_id(n),
        digest: SEED.call_digest(kind.as_str(), called, &json!(null)).unwrap(),
        key: None,
        kind,
        lane: name("0"),
        name: name(called),
    }
}

fn act(claim: Claim, n: u8, kind: CallKind, called: &str, act: Act) -> Command {
    Command::Act { act: Box::new(act), call: Box::new(opening(n, kind, called)), claim }
}

fn take(claim: Claim, n: u8) -> Command {
    Command::Take { call: call_id(n), claim }
}

fn note(kind: &str, body: Value) -> Act {
    let entry = Entry {
        blobs: std::collections::BTreeMap::new(),
        body,
        kind: kind.to_owned(),
        privacy: Privacy::Internal,
    };
    Act::Note { entry: Box::new(entry) }
}

fn outcome(world: &World, n: u8) -> Option<Outcome> {
    world.run().calls[&call_id(n)].outcome
}

#[test]
fn a_call_whose_answer_is_known_is_opened_and_done_in_one_frame() {
    let (mut world, claim) = World::claimed();
    let known = Act::Answer { result: value(json!(17)) };
    world.ask(worker("w1"), act(claim, 1, CallKind::Now, "now", known)).unwrap();
    assert_eq!(world.kinds()[3..], ["call.opened", "effect.settled"]);
    assert_eq!(outcome(&world, 1), Some(Outcome::Succeeded));
}

#[test]
fn a_timer_ends_when_its_time_has_come_and_not_before() {
    let (mut world, claim) = World::claimed();
    let fires_at = world.now.wall_ms + 60_000;
    world.ask(worker("w1"), act(claim, 1, CallKind::Timer, "sleep", Act::Timer { fires_at })).unwrap();
    assert_eq!(world.refused(worker("w1"), take(claim, 1)), "not_answered");
    assert_eq!(outcome(&world, 1), None);
    world.now.wall_ms += 60_000;
    world.ask(worker("w1"), take(claim, 1)).unwrap();
    assert_eq!(outcome(&world, 1), Some(Outcome::Succeeded));
    assert_eq!(world.refused(worker("w1"), take(claim, 1)), "no_such_call", "it has ended");
}

#[test]
fn each_signal_is_taken_once_by_its_name_and_in_its_order() {
    let (mut world, claim) = World::claimed();
    for n in [1, 2] {
        world.ask(worker("w1"), act(claim, n, CallKind::Signal, "go", Act::Await {})).unwrap();
    }
    assert_eq!(world.refused(worker("w1"), take(claim, 1)), "not_answered");
    for (called, told) in [("stop", 0), ("go", 1), ("go", 2)] {
        let signal = Command::Signal { name: name(called), payload: value(json!(told)) };
        world.ask(dana(), signal).unwrap();
    }
    world.ask(worker("w1"), take(claim, 1)).unwrap();
    world.ask(worker("w1"), take(claim, 2)).unwrap();
    let left: Vec<&str> =
        world.run().signals.iter().map(|mail| mail.name.as_ref().unwrap().as_str()).collect();
    assert_eq!(left, ["stop"]);
    let results: Vec<Value> = world.results(&[1, 2]);
    assert_eq!(results, [json!(1), json!(2)]);
}

#[test]
fn a_timer_that_fired_while_nobody_was_there_waits_for_calls_that_were_made_before() {
    let (mut world, claim) = World::claimed();
    let fires_at = world.now.wall_ms + 60_000;
    world.ask(worker("w1"), act(claim, 1, CallKind::Timer, "sleep", Act::Timer { fires_at })).unwrap();
    world.ask(worker("w1"), act(claim, 2, CallKind::Signal, "go", Act::Await {})).unwrap();
    let timer = wait_for(WaitOn::Timer, None, Some(fires_at));
    let waits = vec![Wait { call: Some(call_id(1)), ..timer }];
    world.ask(worker("w1"), Command::Wait { claim, waits }).unwrap();
    world.now.wall_ms += 60_000;
    world.ask(system(), Command::Wake { step: step_id(1), on: WaitOn::Timer, subject: None }).unwrap();
    assert_eq!(outcome(&world, 1), Some(Outcome::Succeeded));

    let asked = |kind: CallKind, called: &str| Asked {
        digest: opening(1, kind, called).digest,
        effect: EffectClass::Internal,
        key: None,
        kind,
        lane: name("0"),
        name: name(called),
    };
    let mut player = Player::new(world.run(), step_id(1));
    let awaited = std::collections::BTreeSet::from([call_id(1)]);
    player.ask(call_id(8), asked(CallKind::Timer, "sleep"), false);
    assert_eq!(player.next(&awaited, &[], Calm::Quiet), None, "the signal was awaited when it fired");
    assert_eq!(player.next(&awaited, &[], Calm::Busy), None);
    player.ask(call_id(9), asked(CallKind::Signal, "go"), false);
    assert_eq!(player.next(&awaited, &[], Calm::Busy), Some(call_id(1)));
}

#[test]
fn a_timer_that_is_open_at_the_cut_is_due_in_the_fork_when_the_parents_is() {
    let (mut world, claim) = World::claimed();
    let fires_at = world.now.wall_ms + 60_000;
    world.ask(worker("w1"), act(claim, 1, CallKind::Timer, "sleep", Act::Timer { fires_at })).unwrap();
    let fork = Command::Fork {
        run: run_id(2),
        labels: std::collections::BTreeMap::new(),
        package: package("2"),
        effects: ForkEffects::Serve,
        reason: None,
    };
    let at = world.run().head.seq;
    let mut forked = World { journal: world.journal.fork_at(at).unwrap(), ..world };
    forked.ask(dana(), fork).unwrap();
    let claim = forked.claim(1, "w2").unwrap();
    assert_eq!(forked.refused(worker("w2"), take(claim, 1)), "not_answered");
    forked.now.wall_ms += 60_000;
    forked.ask(worker("w2"), take(claim, 1)).unwrap();
    assert_eq!(outcome(&forked, 1), Some(Outcome::Succeeded));
}

#[test]
fn a_commit_for_another_version_is_a_conflict_on_record() {
    let (mut world, claim) = World::claimed();
    let commit = |version| Act::Commit { expected_version: version, patch: value(json!({"n": version})) };
    world.ask(worker("w1"), act(claim, 1, CallKind::Commit, "commit", commit(0))).unwrap();
    world.ask(worker("w1"), act(claim, 2, CallKind::Commit, "commit", commit(0))).unwrap();
    assert_eq!((outcome(&world, 1), outcome(&world, 2)), (Some(Outcome::Succeeded), Some(Outcome::Conflict)));
    assert_eq!(world.run().state, Some(json!({"n": 0})));
    assert_eq!(world.run().state_version, 1);

    let ended = Command::Fail { claim, failure: failure(true), message: None, ended_by: vec![call_id(2)] };
    world.ask(worker("w1"), ended).unwrap();
    assert!(world.run().calls[&call_id(2)].rerun, "the next try sees the state as it is");
    assert_eq!(world.run().steps[&step_id(1)].refresh_after, Some(1));
    world.now.wall_ms += 60_000;
    let claim = world.claim(1, "w2").unwrap();
    let step = world.run().steps[&step_id(1)].clone();
    let refresh = Refresh { after: 1, position: world.run().head.seq, version: 1 };
    assert_eq!((step.refresh_after, step.refreshes), (None, vec![refresh]), "the state of this very claim");

    let conflict = Failure { code: Token::new("state_conflict"), ..failure(true) };
    let ended = Command::Fail { claim, failure: conflict, message: None, ended_by: vec![] };
    world.ask(worker("w2"), ended).unwrap();
    assert_eq!(
        world.run().steps[&step_id(1)].refresh_after,
        Some(1),
        "a conflict at the end of the step, too"
    );
}

#[test]
fn the_end_of_a_step_commits_for_the_version_that_it_saw() {
    let (mut world, claim) = World::claimed();
    let commit = Act::Commit { expected_version: 0, patch: value(json!({"n": 1})) };
    world.ask(worker("w1"), act(claim, 1, CallKind::Commit, "commit", commit)).unwrap();
    let end = |expected_version| Command::Complete {
        claim,
        expected_version: Some(expected_version),
        patch: Some(value(json!({"m": 1}))),
        result: None,
    };
    assert_eq!(world.refused(worker("w1"), end(0)), "state_conflict");
    world.ask(worker("w1"), end(1)).unwrap();
    assert_eq!(world.run().state, Some(json!({"m": 1, "n": 1})));
}

#[test]
fn the_end_of_a_child_ends_the_call_that_waits_for_it() {
    let (mut world, claim) = World::claimed();
    let spawn = |n: u8| Act::Spawn {
        agent: name("helper"),
        child: run_id(n),
        escrow: Amounts::default(),
        input: value(json!({})),
        on_parent_end: OnParentEnd::End,
    };
    world.ask(worker("w1"), act(claim, 1, CallKind::Child, "helper", spawn(8))).unwrap();
    world.ask(worker("w1"), act(claim, 2, CallKind::Child, "helper", spawn(9))).unwrap();
    for (n, child) in [(3, 8), (4, 9)] {
        let called = run_id(child).to_string();
        world.ask(worker("w1"), act(claim, n, CallKind::Receive, &called, Act::Await {})).unwrap();
    }
    assert_eq!(world.refused(worker("w1"), take(claim, 3)), "not_answered");
    ended(&mut world, run_id(8), EndStatus::Completed);
    ended(&mut world, run_id(9), EndStatus::Failed);
    world.ask(worker("w1"), take(claim, 3)).unwrap();
    world.ask(worker("w1"), take(claim, 4)).unwrap();
    assert_eq!(outcome(&world, 3), Some(Outcome::Succeeded));
    assert_eq!(outcome(&world, 4), Some(Outcome::WriteFailed), "it stays failed, and is served again");
    assert_eq!(world.results(&[3]), [json!("from the child")]);
}

fn ended(world: &mut World, child: RunId, status: EndStatus) {
    let completed = status == EndStatus::Completed;
    let body = EnvelopeBody::ChildEnded {
        failure: (!completed).then(|| failure(false)),
        reason: if completed { EndReason::Normal } else { EndReason::Fault },
        result: completed.then(|| value(json!("from the child"))),
        returned: Amounts::default(),
        status,
    };
    let id =
        holdfast_core::ids::EnvelopeId::new(world.now.wall_ms, [u8::try_from(world.requests).unwrap(); 10]);
    let envelope = Envelope { body, from: StreamId::Run(child), id, to: run_id(1) };
    world.ask(system(), Command::Deliver { envelope: Box::new(envelope) }).unwrap();
}

#[test]
fn what_is_written_down_settles_its_call_and_costs_are_spent() {
    let (mut world, claim) = World::claimed();
    let log = note("note.logged", json!({"level": "info", "text": "hello"}));
    world.ask(worker("w1"), act(claim, 1, CallKind::Log, "info", log)).unwrap();
    let cost = note("cost.recorded", json!({"amounts": {"tokens": 7}}));
    world.ask(worker("w1"), act(claim, 2, CallKind::Cost, "cost", cost)).unwrap();
    assert_eq!(
        (outcome(&world, 1), outcome(&world, 2)),
        (Some(Outcome::Succeeded), Some(Outcome::Succeeded))
    );
    assert_eq!(world.run().spending.used.tokens, Some(7));
    let wrong = note("note.logged", json!({"level": "info", "text": "hello"}));
    assert_eq!(world.refused(worker("w1"), act(claim, 3, CallKind::Cost, "cost", wrong)), "bad_call");
    let answer = Act::Answer { result: value(json!(1)) };
    assert_eq!(world.refused(worker("w1"), act(claim, 3, CallKind::Tool, "refund", answer)), "bad_call");
}

#[test]
fn offsets_of_a_stream_never_go_back_for_a_consumer() {
    let (mut world, claim) = World::claimed();
    let at = |consumer: &str, offset: u64| {
        let body = json!({"consumer": consumer, "kind": "stream", "name": "orders", "offset": offset});
        note("checkpoint.created", body)
    };
    world.ask(worker("w1"), act(claim, 1, CallKind::Checkpoint, "orders", at("a", 10))).unwrap();
    let back = act(claim, 2, CallKind::Checkpoint, "orders", at("a", 9));
    assert_eq!(world.refused(worker("w1"), back), "offset_back");
    world.ask(worker("w1"), act(claim, 2, CallKind::Checkpoint, "orders", at("a", 10))).unwrap();
    world.ask(worker("w1"), act(claim, 3, CallKind::Checkpoint, "orders", at("b", 1))).unwrap();
}

#[test]
fn only_the_fence_that_holds_opens_takes_and_diverges() {
    let (mut world, claim) = World::claimed();
    let fires_at = world.now.wall_ms;
    world.ask(worker("w1"), act(claim, 1, CallKind::Timer, "sleep", Act::Timer { fires_at })).unwrap();
    let stale = Claim { fence: Fence(claim.fence.0, claim.fence.1 + 1), ..claim };
    let divergence =
        || Box::new(Player::new(world.run(), step_id(1)).stuck(&write_call("0", "pay", &json!({}))));
    let late = [
        act(stale, 2, CallKind::Signal, "go", Act::Await {}),
        take(stale, 1),
        Command::CancelAwait { call: call_id(1), claim: stale, elapsed_ms: 1 },
        Command::Diverge { claim: stale, divergence: divergence() },
    ];
    for command in late {
        assert_eq!(world.refused(worker("w2"), command), "stale_fence");
    }
    assert_eq!(world.run().calls[&call_id(1)].phase, CallPhase::Open);
}

#[test]
fn a_divergence_stops_the_step_until_a_person_decides() {
    let (mut world, claim) = World::claimed();
    let divergence =
        Box::new(Player::new(world.run(), step_id(1)).stuck(&write_call("0", "pay", &json!({}))));
    world.ask(worker("w1"), Command::Diverge { claim, divergence }).unwrap();
    assert_eq!(world.run().status(), RunStatus::Waiting);
    let woken = Command::DecideDivergence {
        decision: DivergenceDecision::Retry,
        reason: None,
        step: step_id(1),
        unclaimed: vec![],
    };
    assert_eq!(world.refused(worker("w1"), woken.clone()), "not_a_person");
    world.ask(dana(), woken).unwrap();
    assert_eq!(world.run().steps[&step_id(1)].status, StepStatus::Pending);
}

#[test]
fn a_player_serves_what_was_recorded_and_remembers_what_it_opened() {
    let (mut world, claim) = World::claimed();
    let answer = Act::Answer { result: value(json!(17)) };
    world.ask(worker("w1"), act(claim, 1, CallKind::Now, "now", answer)).unwrap();
    let mut player = Player::new(world.run(), step_id(1));
    let now = Asked {
        digest: SEED.call_digest("now", "now", &json!(null)).unwrap(),
        effect: EffectClass::Internal,
        key: None,
        kind: CallKind::Now,
        lane: name("0"),
        name: name("now"),
    };
    assert!(player.replays());
    assert_eq!(player.ask(call_id(7), now.clone(), false), Match::Recorded(call_id(1), Then::Serve));
    assert_eq!(player.ask(call_id(7), now, false), Match::New);
    let keyed = Asked { key: Some(key("k")), ..write_call("0", "pay", &json!({})) };
    assert_eq!(player.ask(call_id(8), keyed.clone(), false), Match::New);
    player.opened(call_id(8));
    assert_eq!(player.ask(call_id(9), keyed.clone(), false), Match::Busy(call_id(8)));
    player.settled(call_id(8));
    assert_eq!(player.ask(call_id(9), keyed, false), Match::Recorded(call_id(8), Then::Serve));
    assert_eq!(player.end(), None);
}

#[test]
fn a_paused_run_makes_no_calls() {
    use world::gate::{entering, through, tool};
    let (mut world, claim) = World::claimed();
    world.ask(dana(), Command::Pause { reason: None }).unwrap();
    let answer = Act::Answer { result: value(json!(1)) };
    assert_eq!(world.refused(worker("w1"), act(claim, 1, CallKind::Now, "now", answer)), "run_paused");
    let pay = through(&entering(tool("pay", EffectClass::Write), "k1", json!({})), vec![]);
    let enter = Command::Enter { claim, call: Box::new(pay) };
    assert_eq!(world.refused(worker("w1"), enter), "run_paused");
}

/// A call of another run that has succeeded.
fn done_elsewhere() -> KeyHolder {
    let outcome = holdfast_core::gateway::HeldOutcome {
        external_id: None,
        failure: None,
        message: None,
        output_error: None,
        result: Some(value(json!("receipt"))),
        status: EffectStatus::Succeeded,
        unruled: false,
    };
    KeyHolder::Settled { run: run_id(2), call: call_id(7), outcome: Box::new(outcome) }
}

#[test]
fn a_fork_does_not_do_again_what_its_parent_has_done() {
    use holdfast_core::gateway::Gate;
    use world::gate::{entering, through, tool};
    let pay = |called: &str, cents: u32| {
        through(&entering(tool("pay", EffectClass::Write), called, json!({"cents": cents})), vec![])
    };
    let (mut world, claim) = World::claimed();
    let at = u64::try_from(world.journal.records().len()).unwrap();
    world.permitted(claim, &pay("k1", 5));
    let performed = |tool| world.run().performed(&name(tool)).len();
    assert_eq!((performed("pay"), performed("other")), (1, 0));
    let mut fork = World { journal: world.journal.fork_at(at).unwrap(), ..world.clone() };
    let begin = |effects| Command::Fork {
        run: run_id(2),
        labels: std::collections::BTreeMap::new(),
        package: package("1"),
        effects,
        reason: None,
    };
    let mut again = fork.clone();
    fork.ask(dana(), begin(ForkEffects::Serve)).unwrap();
    let claim = fork.claim(1, "w1").unwrap();
    let repeat = || Command::Enter { claim, call: Box::new(pay("k2", 5)) };
    for unknown in [KeyHolder::Open, KeyHolder::Forgotten] {
        fork.journal.done_before = Some(unknown);
        assert_eq!(fork.refused(worker("w1"), repeat()), "fork_would_repeat");
    }
    let done = done_elsewhere();
    fork.journal.done_before = Some(done.clone());
    let records = fork.journal.records().len();
    let Gate::Served { call } = fork.enter(claim, &pay("k2", 5)) else { panic!("it acts") };
    assert_eq!(fork.since(records), ["call.opened", "call.served"]);
    let found = &fork.run().calls[&call];
    assert_eq!(
        (found.outcome, found.dispatch, found.served_by),
        (Some(Outcome::Succeeded), 0, Some(call_id(7)))
    );
    // The same call is served again, whatever is left to serve; another one may act.
    fork.journal.done_before = Some(KeyHolder::Forgotten);
    assert_eq!(fork.enter(claim, &pay("k2", 5)), Gate::Served { call });
    fork.journal.done_before = None;
    fork.permitted(claim, &pay("k3", 6));
    again.ask(dana(), begin(ForkEffects::Perform)).unwrap();
    again.journal.done_before = Some(done);
    let claim = again.claim(1, "w1").unwrap();
    again.permitted(claim, &pay("k2", 5));
}

#[test]
fn what_another_run_does_under_a_key_of_the_store_is_waited_for_and_served() {
    use holdfast_core::gateway::{Entering, Gate};
    use world::gate::{entering, settled, through, tool};
    let (mut world, claim) = World::claimed();
    let pay = through(&entering(tool("pay", EffectClass::Write), "k1", json!({"cents": 5})), vec![]);
    let pay = Entering { key_shared_ms: Some(1000), ..pay };
    let enter = |call: &Entering| Command::Enter { claim, call: Box::new(call.clone()) };

    for (holder, code) in
        [(KeyHolder::Other, "idempotency_conflict"), (KeyHolder::Forgotten, "key_forgotten")]
    {
        world.journal.key_holder = Some(holder);
        assert_eq!(world.refused(worker("w1"), enter(&pay)), code);
    }
    world.journal.key_holder = Some(KeyHolder::Open);
    let Gate::Wait { call, wait } = world.enter(claim, &pay) else { panic!("it acts") };
    assert_eq!((wait.on, wait.subject.as_ref()), (WaitOn::Key, pay.key.as_ref()));
    assert_eq!(world.run().calls[&call].phase, CallPhase::Open);
    assert_eq!(world.run().calls[&call].holding(0), None);
    world.journal.key_holder = Some(done_elsewhere());
    assert_eq!(world.enter(claim, &pay), Gate::Served { call });
    let found = &world.run().calls[&call];
    assert_eq!((found.outcome, found.dispatch, found.holding(0)), (Some(Outcome::Succeeded), 0, None));
    assert_eq!(world.kinds().last(), Some(&"call.served"));

    // Whoever is first holds the key from its permit on, and gives it up when nothing came of it.
    world.journal.key_holder = None;
    let first = through(&entering(tool("pay", EffectClass::Write), "k2", json!({"cents": 6})), vec![]);
    let permit = world.permitted(claim, &Entering { key_shared_ms: Some(1000), ..first });
    let holding = |world: &World| world.run().calls[&permit.call].holding(0).map(|held| held.settled);
    assert_eq!(holding(&world), Some(false));
    let mut nothing = world.clone();
    nothing.ask(worker("w1"), settled(claim, &permit, EffectStatus::NoEffect)).unwrap();
    assert_eq!(holding(&nothing), None);
    world.ask(worker("w1"), settled(claim, &permit, EffectStatus::Succeeded)).unwrap();
    assert_eq!(holding(&world), Some(true));
}
