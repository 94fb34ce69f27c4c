//! Which recorded call a replayed call is, told as stories.
#![allow(clippy::as_conversions, clippy::expect_used, clippy::panic, clippy::unwrap_used)]

mod world;

use std::collections::BTreeSet;

use holdfast_core::ids::CallId;
use holdfast_core::matching::{Asked, Calm, Delivery, Match, Matcher, Player, Then};
use holdfast_core::records::*;
use holdfast_core::run::*;
use serde_json::{Value, json};
use world::*;

fn tool(lane: &str, tool: &str, args: &Value) -> Asked {
    Asked {
        digest: SEED.call_digest("tool", tool, args).unwrap(),
        effect: EffectClass::Write,
        key: None,
        kind: CallKind::Tool,
        lane: name(lane),
        name: name(tool),
    }
}

fn refund(lane: &str, order: u32) -> Asked {
    tool(lane, "refund", &json!({"order": order}))
}

fn search(lane: &str) -> Asked {
    Asked { effect: EffectClass::Read, ..tool(lane, "search", &json!({})) }
}

fn at_place(lane: &str, kind: CallKind) -> Asked {
    Asked { effect: EffectClass::Internal, kind, ..tool(lane, kind.as_str(), &json!({})) }
}

/// A step in which these calls were made and succeeded, in this order.
fn recorded(calls: &[Asked]) -> (World, Claim) {
    let (mut world, claim) = World::claimed();
    for (n, asked) in calls.iter().enumerate() {
        let call = u8::try_from(n + 1).unwrap();
        world.open_call(claim, call, asked, json!({}));
        world.start_call(claim, call);
        world.settle_call(claim, call, EffectStatus::Succeeded);
    }
    (world, claim)
}

fn matcher(world: &World) -> Matcher {
    Matcher::new(world.run(), step_id(1))
}

fn served(call: u8) -> Match {
    Match::Recorded(call_id(call), Then::Serve)
}

#[test]
fn the_same_code_gets_the_same_calls_back_and_new_ones_run() {
    let (world, _) = recorded(&[refund("0", 1), search("0"), refund("0", 2)]);
    let mut matcher = matcher(&world);
    assert_eq!(matcher.ask(&refund("0", 1), false), served(1));
    assert_eq!(matcher.ask(&search("0"), false), served(2));
    assert_eq!(matcher.ask(&refund("0", 2), false), served(3));
    assert_eq!(matcher.ask(&refund("0", 3), false), Match::New);
    assert_eq!(matcher.end(), None);
}

#[test]
fn two_equal_calls_are_two_effects() {
    let (world, _) = recorded(&[refund("0", 1), refund("0", 1)]);
    let mut matcher = matcher(&world);
    assert_eq!(matcher.ask(&refund("0", 1), false), served(1));
    assert_eq!(matcher.ask(&refund("0", 1), false), served(2));
    assert_eq!(matcher.ask(&refund("0", 1), false), Match::New);
}

#[test]
fn lanes_that_run_in_another_order_still_find_their_own_calls() {
    let (world, _) = recorded(&[refund("0.1", 1), refund("0.2", 1), refund("0.2", 2)]);
    let mut matcher = matcher(&world);
    assert_eq!(matcher.ask(&refund("0.2", 1), false), served(2));
    assert_eq!(matcher.ask(&refund("0.1", 1), false), served(1));
    assert_eq!(matcher.ask(&refund("0.1", 2), false), Match::WhenQuiet, "only another lane has it");
    assert_eq!(matcher.ask(&refund("0.1", 2), true), served(3));
}

#[test]
fn a_new_write_where_another_was_recorded_diverges_at_once() {
    let (world, _) = recorded(&[refund("0", 1)]);
    let mut matcher = matcher(&world);
    let Match::Diverged(diverged) = matcher.ask(&refund("0", 2), false) else { panic!("it was to diverge") };
    assert_eq!(diverged.recorded.iter().map(|sketch| sketch.call).collect::<Vec<_>>(), [Some(call_id(1))]);
    assert_eq!(diverged.attempted.unwrap().call_digest, refund("0", 2).digest);
    assert_eq!(matcher.missing(), [call_id(1)]);
}

#[test]
fn a_new_write_parks_while_writes_of_other_lanes_are_unaccounted_for() {
    let (world, _) = recorded(&[refund("0.1", 1)]);
    let mut matcher = matcher(&world);
    assert_eq!(matcher.ask(&search("0.2"), false), Match::New, "a new read simply runs");
    assert_eq!(matcher.ask(&refund("0.2", 2), false), Match::Parked);
    let stuck = matcher.stuck(&refund("0.2", 2));
    assert_eq!((stuck.recorded.len(), stuck.attempted.is_some()), (1, true));
    assert_eq!(matcher.ask(&refund("0.1", 1), false), served(1));
    assert_eq!(matcher.ask(&refund("0.2", 2), false), Match::New);
}

#[test]
fn a_step_does_not_end_while_recorded_writes_were_not_made_again() {
    let (world, _) = recorded(&[search("0"), refund("0", 1)]);
    let mut matcher = matcher(&world);
    assert_eq!(matcher.ask(&search("0"), false), served(1));
    let missing = matcher.end().expect("a divergence");
    assert_eq!((missing.attempted, missing.recorded.len()), (None, 1));
    matcher.ask(&refund("0", 1), false);
    assert_eq!(matcher.end(), None);
    let (world, _) = recorded(&[search("0")]);
    assert_eq!(
        Matcher::new(world.run(), step_id(1)).end(),
        None,
        "a read that is not made again is no effect lost"
    );
}

#[test]
fn children_messages_and_commits_count_like_writes() {
    for kind in [CallKind::Child, CallKind::Message, CallKind::Step, CallKind::Commit] {
        let (world, _) = recorded(&[at_place("0", kind)]);
        let mut matcher = matcher(&world);
        assert!(matcher.end().is_some(), "{kind}");
        assert!(matches!(matcher.ask(&refund("0", 1), false), Match::Diverged(_)), "{kind}");
        assert_eq!(matcher.ask(&at_place("0", kind), false), served(1), "{kind}");
        assert_eq!(matcher.end(), None, "{kind}");
    }
}

#[test]
fn clocks_timers_and_commits_match_by_their_place_in_a_lane() {
    let now = |lane| at_place(lane, CallKind::Now);
    let (world, _) = recorded(&[now("0.1"), now("0.2"), now("0.1")]);
    let mut matcher = matcher(&world);
    assert_eq!(matcher.ask(&now("0.2"), false), served(2));
    assert_eq!(matcher.ask(&now("0.1"), false), served(1));
    assert_eq!(matcher.ask(&now("0.1"), false), served(3));
    assert_eq!(matcher.ask(&now("0.1"), false), Match::New);
}

#[test]
fn a_key_is_the_callers_own_identity_in_the_whole_run() {
    let keyed = |lane, order| Asked { key: Some(key("order-1")), ..refund(lane, order) };
    let (world, _) = recorded(&[keyed("0", 1)]);
    let mut matcher = matcher(&world);
    assert_eq!(matcher.ask(&keyed("0.7", 1), false), served(1), "in any lane, as often as asked");
    assert_eq!(matcher.ask(&keyed("0", 1), false), served(1));
    assert_eq!(matcher.ask(&keyed("0", 2), false), Match::Conflict(call_id(1)));
    assert_eq!(matcher.ask(&refund("0", 1), false), Match::New, "without the key it is another call");
}

#[test]
fn in_an_attached_step_only_keys_count() {
    let mut world = World::empty();
    let step = NewStep { kind: StepKind::Attached, ..new_step(1, &[]) };
    world.ask(dana(), Command::Create { run: Box::new(new_run(1)), steps: vec![step] }).unwrap();
    let claim = world.claim(1, "w1").unwrap();
    let keyed = |k: &str, order| Asked { key: Some(key(k)), ..refund("0", order) };
    world.open_call(claim, 1, &keyed("tool-1", 1), json!({}));
    world.start_call(claim, 1);
    world.settle_call(claim, 1, EffectStatus::Succeeded);
    let mut matcher = matcher(&world);
    assert_eq!(matcher.ask(&refund("0", 1), false), Match::KeyNeeded);
    assert_eq!(matcher.ask(&keyed("tool-1", 1), false), served(1));
    assert_eq!(matcher.ask(&keyed("tool-1", 2), false), Match::Conflict(call_id(1)));
    assert_eq!(matcher.ask(&keyed("tool-2", 2), false), Match::New);
}

#[test]
fn what_replay_does_with_a_call_follows_from_how_it_was_left() {
    let then = |world: &World, asked: &Asked| match matcher(world).ask(asked, false) {
        Match::Recorded(_, then) => then,
        other => panic!("{other:?}"),
    };
    let left = |effect: EffectClass, end: &dyn Fn(&mut World, Claim)| {
        let (mut world, claim) = World::claimed();
        let asked = Asked { effect, ..refund("0", 1) };
        world.open_call(claim, 1, &asked, json!({}));
        end(&mut world, claim);
        then(&world, &asked)
    };
    let start = |world: &mut World, claim: Claim| world.start_call(claim, 1);
    let settle = |status: EffectStatus| {
        move |world: &mut World, claim: Claim| {
            world.start_call(claim, 1);
            world.settle_call(claim, 1, status);
        }
    };
    assert_eq!(left(EffectClass::Write, &|_, _| {}), Then::GoOn);
    assert_eq!(left(EffectClass::Write, &start), Then::Resolve, "a write that left is never simply repeated");
    assert_eq!(left(EffectClass::Read, &start), Then::RunAgain);
    assert_eq!(left(EffectClass::Write, &settle(EffectStatus::Succeeded)), Then::Serve);
    assert_eq!(left(EffectClass::Write, &settle(EffectStatus::Failed)), Then::Serve);
    assert_eq!(left(EffectClass::Write, &settle(EffectStatus::NoEffect)), Then::RunAgain);
    assert_eq!(left(EffectClass::Read, &settle(EffectStatus::TimedOut)), Then::Serve);
    let doubted = |world: &mut World, claim: Claim| {
        world.start_call(claim, 1);
        world.say(claim, 1, EffectDoubted { cause: DoubtCause::Raised, failure: None, over: None }).unwrap();
    };
    assert_eq!(left(EffectClass::Write, &doubted), Then::Resolve);
    let denied = |world: &mut World, claim: Claim| {
        let decided = PolicyDecided {
            decision: holdfast_core::contracts::policy::Decision::Deny,
            errors: vec![],
            obligations: vec![],
            policy: digest("policy"),
            reasons: vec![],
        };
        world.say(claim, 1, decided).unwrap();
    };
    assert_eq!(left(EffectClass::Write, &denied), Then::Serve);
    let denied_and_retried = |world: &mut World, claim: Claim| {
        denied(world, claim);
        let fail = Command::Fail { claim, failure: failure(false), message: None, ended_by: vec![] };
        world.ask(worker("w1"), fail).unwrap();
        world.ask(dana(), Command::RetryRun { reason: None }).unwrap();
    };
    assert_eq!(left(EffectClass::Write, &denied_and_retried), Then::AskAgain);
}

#[test]
fn after_an_accepted_divergence_the_abandoned_call_is_out_of_the_way() {
    let (mut world, claim) = recorded(&[refund("0", 1)]);
    let waits = vec![wait_for(WaitOn::Divergence, None, None)];
    world.ask(worker("w1"), Command::Wait { claim, waits }).unwrap();
    let accept = Command::DecideDivergence {
        step: step_id(1),
        decision: DivergenceDecision::Accept,
        unclaimed: matcher(&world).missing(),
        reason: None,
    };
    world.ask(dana(), accept).unwrap();
    let mut matcher = matcher(&world);
    assert_eq!(matcher.ask(&refund("0", 2), false), Match::New);
    assert_eq!(matcher.end(), None);
}

#[test]
fn an_abandoned_call_is_still_served_by_its_key_and_leaves_it_if_nothing_came_of_it() {
    let keyed = |order| Asked { key: Some(key("k")), ..refund("0", order) };
    let accepted = |settles: bool| {
        let (mut world, claim) = World::claimed();
        world.open_call(claim, 1, &keyed(1), json!({}));
        if settles {
            world.start_call(claim, 1);
            world.settle_call(claim, 1, EffectStatus::Succeeded);
        }
        let waits = vec![wait_for(WaitOn::Divergence, None, None)];
        world.ask(worker("w1"), Command::Wait { claim, waits }).unwrap();
        let (step, unclaimed) = (step_id(1), vec![call_id(1)]);
        let decision = DivergenceDecision::Accept;
        let accept = Command::DecideDivergence { step, decision, unclaimed, reason: None };
        world.ask(dana(), accept).unwrap();
        matcher(&world)
    };
    assert_eq!(accepted(true).ask(&keyed(1), false), served(1), "it happened, and happens no second time");
    assert_eq!(accepted(true).ask(&keyed(2), false), Match::Conflict(call_id(1)));
    assert_eq!(accepted(false).ask(&keyed(1), false), Match::New);
    assert_eq!(accepted(false).ask(&keyed(2), false), Match::New, "nothing came of it");
}

fn awaited(calls: &[u8]) -> BTreeSet<CallId> {
    calls.iter().map(|n| call_id(*n)).collect()
}

#[test]
fn recorded_outcomes_reach_the_code_in_the_journals_order_and_new_ones_after_them() {
    let (world, _) = recorded(&[refund("0.1", 1), refund("0.2", 2), refund("0.1", 3)]);
    let mut delivery = Delivery::new(world.run(), step_id(1));
    let fresh = [call_id(9)];
    assert_eq!(delivery.next(&awaited(&[2]), &fresh, Calm::Quiet), None, "the first is not awaited yet");
    assert_eq!(delivery.next(&awaited(&[1, 2]), &fresh, Calm::Busy), None, "the code may still be asking");
    assert_eq!(delivery.next(&awaited(&[1, 2]), &fresh, Calm::Quiet), Some(call_id(1)));
    assert_eq!(delivery.next(&awaited(&[2]), &fresh, Calm::Quiet), Some(call_id(2)));
    assert_eq!(
        delivery.next(&awaited(&[]), &fresh, Calm::Quiet),
        None,
        "a recorded outcome is still to come"
    );
    assert_eq!(
        delivery.next(&awaited(&[3]), &[], Calm::Busy),
        Some(call_id(3)),
        "alone, there is no order to keep"
    );
    assert_eq!(delivery.next(&awaited(&[]), &fresh, Calm::Quiet), Some(call_id(9)));
}

#[test]
fn a_replay_lasts_until_every_recorded_call_is_made_again() {
    let (mut world, claim) = World::claimed();
    world.open_call(claim, 1, &refund("0", 1), json!({}));
    world.open_call(claim, 2, &refund("0", 2), json!({}));
    let mut player = Player::new(world.run(), step_id(1));
    assert!(player.replays(), "no outcome is recorded, and yet a timer would come too early");
    player.ask(call_id(8), refund("0", 1), false);
    assert!(player.replays());
    player.ask(call_id(9), refund("0", 2), false);
    assert!(!player.replays());
}

#[test]
fn after_the_whole_grace_order_gives_way_to_progress() {
    let (world, _) = recorded(&[refund("0.1", 1), refund("0.2", 2)]);
    let mut delivery = Delivery::new(world.run(), step_id(1));
    assert_eq!(delivery.next(&awaited(&[2]), &[], Calm::Still), Some(call_id(2)));
    assert_eq!(delivery.next(&awaited(&[]), &[call_id(9)], Calm::Still), Some(call_id(9)));
}

#[test]
fn what_was_recorded_after_a_cancelled_await_waits_until_it_is_cancelled_again() {
    let (mut world, claim) = recorded(&[]);
    for call in [1, 2, 3] {
        world.open_call(claim, call, &refund("0", call.into()), json!({}));
        world.start_call(claim, call);
    }
    world.settle_call(claim, 1, EffectStatus::Succeeded);
    world.say(claim, 2, CallCancelled { elapsed_ms: 40 }).unwrap();
    world.settle_call(claim, 3, EffectStatus::Succeeded);
    let mut delivery = Delivery::new(world.run(), step_id(1));
    assert_eq!(delivery.next(&awaited(&[1, 2, 3]), &[], Calm::Quiet), Some(call_id(1)));
    assert_eq!(delivery.outstanding(), Some((call_id(2), 40)));
    assert_eq!(delivery.next(&awaited(&[2, 3]), &[], Calm::Quiet), None);
    delivery.lift(call_id(2));
    assert_eq!(delivery.next(&awaited(&[3]), &[], Calm::Quiet), Some(call_id(3)));

    world.settle_call(claim, 2, EffectStatus::Succeeded);
    let fail = Command::Fail { claim, failure: failure(true), message: None, ended_by: vec![] };
    world.ask(worker("w1"), fail).unwrap();
    assert_eq!(
        Delivery::new(world.run(), step_id(1)).outstanding(),
        None,
        "a scheduled retry voids the mark"
    );
}

#[test]
fn in_a_fork_what_is_inherited_comes_before_what_is_new() {
    let (mut world, _) = recorded(&[refund("0", 1), refund("0", 1), refund("0", 2)]);
    let signal = || Command::Signal { name: name("go"), payload: value(json!(1)) };
    world.ask(dana(), signal()).unwrap();
    let at = world.run().head.seq;
    let fork = Command::Fork {
        run: run_id(2),
        labels: std::collections::BTreeMap::new(),
        package: package("1"),
        effects: ForkEffects::Serve,
        reason: None,
    };
    let mut forked = World { journal: world.journal.fork_at(at).unwrap(), ..world };
    forked.ask(dana(), fork).unwrap();
    let claim = forked.claim(1, "w2").unwrap();
    forked.open_call(claim, 4, &refund("0", 4), json!({}));
    forked.start_call(claim, 4);
    forked.settle_call(claim, 4, EffectStatus::Succeeded);
    forked.ask(dana(), signal()).unwrap();

    let mut matcher = matcher(&forked);
    assert_eq!(matcher.ask(&refund("0", 1), false), served(1));
    assert_eq!(matcher.ask(&refund("0", 1), false), served(2));
    let mut delivery = Delivery::new(forked.run(), step_id(1));
    let order: Vec<_> =
        (0..4).filter_map(|_| delivery.next(&awaited(&[1, 2, 3, 4]), &[], Calm::Quiet)).collect();
    assert_eq!(order, [1, 2, 3, 4].map(call_id));
    let mail: Vec<u64> = forked.run().signals.iter().map(|mail| mail.position).collect();
    assert!(mail.is_sorted() && mail[0] < mail[1], "two signals, two positions: {mail:?}");
}

#[test]
fn a_key_asked_for_again_while_its_call_is_under_way_is_the_same_call() {
    let keyed = |lane, order| Asked { key: Some(key("order-1")), ..refund(lane, order) };
    let (mut world, claim) = recorded(&[]);
    let mut live = matcher(&world);
    assert_eq!(live.ask(&keyed("0.1", 1), false), Match::New);
    world.open_call(claim, 1, &keyed("0.1", 1), json!({}));
    live.opened(call_id(1), keyed("0.1", 1));
    assert_eq!(live.ask(&keyed("0.2", 1), false), Match::Busy(call_id(1)));
    assert_eq!(live.ask(&keyed("0.2", 2), false), Match::Conflict(call_id(1)));
    assert_eq!(live.end(), None);
    assert_eq!(
        matcher(&world).ask(&keyed("0.1", 1), false),
        Match::Recorded(call_id(1), Then::GoOn),
        "after a crash"
    );
}

#[test]
fn another_name_at_the_same_place_is_a_divergence() {
    let signal = |wanted| Asked { name: name(wanted), ..at_place("0", CallKind::Signal) };
    let (world, _) = recorded(&[signal("approve")]);
    assert!(matches!(matcher(&world).ask(&signal("reject"), false), Match::Diverged(_)));
    assert_eq!(matcher(&world).ask(&signal("approve"), false), served(1));
}

#[test]
fn an_outcome_that_nobody_awaits_any_more_holds_up_nobody() {
    let (mut world, claim) = recorded(&[refund("0", 1), search("0"), refund("0", 3)]);
    world.say(claim, 1, CallCancelled { elapsed_ms: 40 }).unwrap();
    let mut delivery = Delivery::new(world.run(), step_id(1));
    delivery.lift(call_id(1));
    assert_eq!(delivery.next(&awaited(&[2]), &[], Calm::Quiet), Some(call_id(2)), "its await was cancelled");
    assert_eq!(
        delivery.next(&awaited(&[1]), &[], Calm::Quiet),
        Some(call_id(1)),
        "awaited after all, it is there"
    );

    let mut delivery = Delivery::new(world.run(), step_id(1));
    delivery.lift(call_id(1));
    assert_eq!(
        delivery.next(&awaited(&[3]), &[], Calm::Still),
        Some(call_id(3)),
        "the read is no longer made"
    );
    assert_eq!(
        delivery.next(&awaited(&[]), &[call_id(9)], Calm::Quiet),
        Some(call_id(9)),
        "one grace was enough"
    );
}

#[test]
fn a_call_that_runs_again_keeps_the_place_of_its_first_outcome() {
    let (mut world, claim) = World::claimed();
    for (n, status) in [(1, EffectStatus::NoEffect), (2, EffectStatus::Succeeded)] {
        world.open_call(claim, n, &refund("0", n.into()), json!({}));
        world.start_call(claim, n);
        world.settle_call(claim, n, status);
    }
    let mut delivery = Delivery::new(world.run(), step_id(1));
    assert_eq!(delivery.next(&awaited(&[1, 2]), &[], Calm::Quiet), None, "the first is on its way once more");
    assert_eq!(delivery.next(&awaited(&[1, 2]), &[call_id(1)], Calm::Quiet), Some(call_id(1)));
    assert_eq!(delivery.next(&awaited(&[2]), &[], Calm::Quiet), Some(call_id(2)));
}
