//! Stories of calls at the door: what lets them act, what stops them, and what becomes of a doubt.
#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used)]

mod world;

use holdfast_core::call::{CallEvent, CallPhase, Traits, call_after};
use holdfast_core::contracts::tool::{ToolApproval, ToolSpec};
use holdfast_core::error::Coded;
use holdfast_core::gateway::{Entering, Gate};
use holdfast_core::hooks::{HookAnswer, Hooks, Invocation};
use holdfast_core::records::*;
use holdfast_core::run::*;
use holdfast_core::state::Outcome;
use serde_json::{Value, json};
use world::gate::*;
use world::*;

fn refund(args: Value) -> Entering {
    entering(tool("refund", EffectClass::Write), "k1", args)
}

fn asked(args: Value) -> Entering {
    through(&refund(args), vec![])
}

fn code(world: &mut World, claim: Claim, entering: &Entering) -> &'static str {
    world.try_enter(claim, entering).expect_err("it was to be refused").code().as_str()
}

#[test]
fn a_call_that_nobody_minds_is_opened_decided_and_permitted_in_one_frame() {
    let (mut world, claim) = World::attached();
    let before = world.kinds().len();
    let permit = world.permitted(claim, &asked(json!({"cents": 5})));
    assert_eq!(world.since(before), ["call.opened", "policy.decided", "effect.started"]);
    assert_eq!(permit.arguments, json!({"cents": 5}));
    assert!(permit.key.as_str().starts_with("hf_") && permit.key.as_str().len() == 43);
    let before = world.kinds().len();
    world.ask(worker("w1"), settled(claim, &permit, EffectStatus::Succeeded)).unwrap();
    assert_eq!(world.since(before), ["effect.settled"]);

    // Asked again, also in another key order of its arguments, it is the same call, and is served.
    let before = world.kinds().len();
    let again = refund(json!({"cents": 5.0}));
    assert_eq!(world.enter(claim, &again), Gate::Served { call: permit.call });
    assert_eq!(world.since(before).len(), 0);
    assert_eq!(world.outcome(permit.call), Some(Outcome::Succeeded));
}

#[test]
fn hooks_are_asked_only_about_what_is_new() {
    let (mut world, claim) = World::attached();
    let knock = refund(json!({}));
    let before = world.kinds().len();
    assert_eq!(world.enter(claim, &knock), Gate::Rooms { edited: None, redact: vec![] });
    assert_eq!(world.since(before).len(), 0);
    let permit = world.permitted(claim, &through(&knock, vec![]));
    world.ask(worker("w1"), settled(claim, &permit, EffectStatus::Succeeded)).unwrap();
    assert_eq!(world.enter(claim, &knock), Gate::Served { call: permit.call });
}

#[test]
fn a_key_with_other_arguments_or_another_tool_is_a_conflict_and_a_call_without_a_key_is_refused() {
    let (mut world, claim) = World::attached();
    let permit = world.permitted(claim, &asked(json!({"cents": 5})));
    world.ask(worker("w1"), settled(claim, &permit, EffectStatus::Succeeded)).unwrap();
    assert_eq!(code(&mut world, claim, &asked(json!({"cents": 6}))), "idempotency_conflict");
    let other = entering(tool("email", EffectClass::Write), "k1", json!({"cents": 5}));
    assert_eq!(code(&mut world, claim, &other), "idempotency_conflict");
    let bare = Entering { key: None, ..asked(json!({})) };
    assert_eq!(code(&mut world, claim, &bare), "key_needed");
}

#[test]
fn two_calls_under_two_keys_are_two_effects_and_one_that_runs_is_busy() {
    let (mut world, claim) = World::attached();
    let first = world.permitted(claim, &asked(json!({"cents": 5})));
    assert_eq!(code(&mut world, claim, &asked(json!({"cents": 5}))), "call_busy");
    let second = entering(tool("refund", EffectClass::Write), "k2", json!({"cents": 5}));
    let second = world.permitted(claim, &through(&second, vec![]));
    assert!(first.call != second.call && first.key != second.key);
}

#[test]
fn a_stale_worker_changes_nothing_and_its_late_result_settles_an_open_doubt() {
    let (mut world, claim) = World::attached();
    let permit = world.permitted(claim, &asked(json!({})));
    world.tick(70_000);
    world.ask(system(), Command::Recover { step: claim.step }).unwrap();
    let newer = world.claim(1, "w2").unwrap();
    for command in [
        settled(claim, &permit, EffectStatus::Succeeded),
        settled(claim, &permit, EffectStatus::NoEffect),
        doubt(claim, &permit, true),
        Command::Enter { claim, call: Box::new(asked(json!({}))) },
        Command::Enter {
            claim,
            call: Box::new(through(&entering(tool("x", EffectClass::Write), "k9", json!(1)), vec![])),
        },
        commands::complete(claim),
        commands::fail(claim, true),
    ] {
        assert_eq!(world.refused(worker("w1"), command), "stale_fence");
    }
    // The new worker cannot know, and waits.
    let waits = world.enter(newer, &refund(json!({})));
    assert!(matches!(&waits, Gate::Wait { wait, .. } if wait.on == WaitOn::Doubt), "{waits:?}");
    let Gate::Wait { wait, .. } = waits else { return };
    world.ask(worker("w2"), Command::Wait { claim: newer, waits: vec![wait] }).unwrap();

    let told = Box::new(report(EffectStatus::Succeeded, Some(json!({"id": "r7"}))));
    let late = Command::Late { claim, call: permit.call, dispatch: 1, report: told };
    let before = world.kinds().len();
    world.ask(worker("w1"), late.clone()).unwrap();
    assert_eq!(world.since(before), ["effect.late", "effect.resolved", "step.woken"]);
    assert_eq!(world.outcome(permit.call), Some(Outcome::Succeeded));
    // A second report is kept, and changes nothing.
    world.ask(worker("w1"), late).unwrap();
    let newest = world.claim(1, "w2").unwrap();
    assert_eq!(world.enter(newest, &refund(json!({}))), Gate::RuleResult { call: permit.call });
}

#[test]
fn a_worker_reports_only_what_it_started_and_only_about_the_newest_dispatch() {
    let (mut world, claim) = World::attached();
    let permit = world.permitted(claim, &asked(json!({})));
    let older = holdfast_core::ledger::Permit { dispatch: 2, ..permit.clone() };
    assert_eq!(
        world.refused(worker("w1"), settled(claim, &older, EffectStatus::Succeeded)),
        "other_dispatch"
    );
    assert_eq!(world.refused(worker("w1"), settled(claim, &permit, EffectStatus::TimedOut)), "not_running");
    world.ask(worker("w1"), settled(claim, &permit, EffectStatus::Succeeded)).unwrap();
    assert_eq!(world.refused(worker("w1"), settled(claim, &permit, EffectStatus::Succeeded)), "not_running");
    assert_eq!(world.refused(worker("w1"), doubt(claim, &permit, true)), "not_running");
}

#[test]
fn a_read_that_another_worker_started_is_not_settled_by_this_one() {
    let (mut world, claim) = World::attached();
    let look = through(&entering(tool("look", EffectClass::Read), "k1", json!({})), vec![]);
    let permit = world.permitted(claim, &look);
    world.tick(31_000);
    world.ask(system(), Command::Recover { step: claim.step }).unwrap();
    let newer = world.claim(1, "w2").unwrap();
    assert_eq!(world.refused(worker("w2"), settled(newer, &permit, EffectStatus::Succeeded)), "not_running");
    assert_eq!(world.permitted(newer, &look).dispatch, 2, "a read simply runs again");
}

#[test]
fn a_grant_covers_the_arguments_that_were_shown_and_no_others() {
    let (mut world, claim) = World::attached();
    world.journal.policy = Some(asks(1));
    world.enter(claim, &asked(json!({"cents": 5})));
    let (id, run) = (world.approval(), world.run());
    let covers =
        |args: Value| holdfast_core::approval::covers(id, &run.approvals[&id], run.id, &args).unwrap();
    assert!(covers(json!({"cents": 5.0})));
    assert!(!covers(json!({"cents": 6})) && !covers(json!({"cents": 5, "to": "mallory"})));
}

fn keyed(ttl: u64) -> ToolSpec {
    ToolSpec { key_ttl_ms: Some(ttl), max_attempts: 3, ..tool("refund", EffectClass::Write) }
}

/// A write whose worker died in the middle, and the claim of the next one.
fn crashed(spec: &ToolSpec, gone: bool) -> (World, Claim, holdfast_core::ledger::Permit) {
    let (mut world, claim) = World::attached();
    let permit = world.permitted(claim, &through(&entering(spec.clone(), "k1", json!({"cents": 5})), vec![]));
    if gone {
        world.journal.gone.insert(name("w1"));
    } else {
        world.tick(31_000);
    }
    world.ask(system(), Command::Recover { step: claim.step }).unwrap();
    world.journal.gone.clear();
    let newer = world.claim(1, "w2").unwrap();
    (world, newer, permit)
}

#[test]
fn a_key_that_still_protects_lets_the_same_call_go_again_and_one_that_does_not_never() {
    let spec = keyed(3_600_000);
    let again = |spec: &ToolSpec| entering(spec.clone(), "k1", json!({"cents": 5}));
    let (mut world, claim, permit) = crashed(&spec, true);
    let second = world.permitted(claim, &again(&spec));
    assert_eq!((second.call, second.dispatch), (permit.call, 2));
    assert_eq!((&second.key, &second.arguments), (&permit.key, &permit.arguments));

    for changed in [
        ToolSpec { version: name("2"), ..spec.clone() },
        ToolSpec { input: serde_json::Map::from_iter([("a".to_owned(), json!(1))]), ..spec.clone() },
        ToolSpec { key_ttl_ms: None, ..spec.clone() },
    ] {
        let (mut world, claim, _) = crashed(&spec, true);
        assert!(matches!(world.enter(claim, &again(&changed)), Gate::Wait { .. }));
    }
    let (mut world, claim, _) = crashed(&spec, true);
    world.tick(3_300_000); // within the ttl, but not its margin
    assert!(matches!(world.enter(claim, &again(&spec)), Gate::Wait { .. }));
    let (mut world, claim, _) = crashed(&spec, true);
    world.now.wall_ms -= 1_000_000; // a clock that went back knows nothing of the time that passed
    assert!(matches!(world.enter(claim, &again(&spec)), Gate::Wait { .. }));
}

/// Found by a reader: the first body was given up and lives, and only the repeat's permit was looked at.
#[test]
fn an_older_permit_that_may_still_act_is_waited_for_too() {
    let spec = ToolSpec { reconciles: true, max_attempts: 2, ..keyed(120_000) };
    let call = entering(spec, "k1", json!({"cents": 5}));
    let (mut world, claim) = World::attached();
    let first = world.permitted(claim, &through(&call, vec![]));
    world.ask(worker("w1"), doubt(claim, &first, false)).unwrap();
    let second = world.permitted(claim, &call);
    world.ask(worker("w1"), doubt(claim, &second, true)).unwrap();
    let told = world.enter(claim, &call);
    assert!(matches!(&told, Gate::Wait { wait, .. } if wait.until.is_some()), "{told:?}");
    assert_eq!(world.refused(dana(), resolve(first.call, 2, Resolution::DidNotHappen)), "permit_may_act");
    world.tick(16_000);
    assert!(matches!(world.enter(claim, &call), Gate::Reconcile { .. }));
}

/// Found by a reader: two people look at one doubt, and the second answers when there is another.
#[test]
fn what_is_said_about_one_dispatch_resolves_no_other() {
    let (mut world, claim, permit) = crashed(&tool("refund", EffectClass::Write), true);
    world.ask(dana(), resolve(permit.call, 1, Resolution::DidNotHappen)).unwrap();
    let second = world.permitted(claim, &refund(json!({"cents": 5})));
    world.ask(worker("w2"), doubt(claim, &second, true)).unwrap();
    assert_eq!(
        world.refused(person("erik"), resolve(permit.call, 1, Resolution::DidNotHappen)),
        "other_dispatch"
    );
    world.ask(person("erik"), resolve(permit.call, 2, Resolution::Happened)).unwrap();
}

/// Found by a schedule: the repeat did nothing, and what it repeated had happened.
#[test]
fn a_repeat_that_did_nothing_says_nothing_about_what_it_repeats() {
    let spec = keyed(120_000);
    let call = entering(spec.clone(), "k1", json!({"cents": 5}));
    let (mut world, claim, permit) = crashed(&spec, true);
    let second = world.permitted(claim, &call);
    let told = world.ask(worker("w2"), settled(claim, &second, EffectStatus::NoEffect)).unwrap();
    assert_eq!(told.gate, Some(Gate::Again {}));
    assert_eq!(world.run().calls[&permit.call].phase, CallPhase::Doubted);
    world.tick(120_000);
    let told = world.enter(claim, &call);
    assert!(matches!(&told, Gate::Wait { wait, .. } if wait.on == WaitOn::Doubt), "{told:?}");
}

#[test]
fn a_tool_is_asked_whether_it_happened_only_when_the_old_permit_can_no_longer_act() {
    let spec = ToolSpec { reconciles: true, ..tool("refund", EffectClass::Write) };
    let call = entering(spec.clone(), "k1", json!({"cents": 5}));
    let (mut world, claim, permit) = crashed(&spec, true);
    let Gate::Reconcile { permit: asked } = world.enter(claim, &call) else { panic!("its process is gone") };
    assert_eq!((asked.call, &asked.key), (permit.call, &permit.key));
    let did_not = Command::Resolve {
        claim: Some(claim),
        call: permit.call,
        dispatch: 1,
        external_id: None,
        force: false,
        reason: None,
        resolution: Resolution::DidNotHappen,
        result: None,
    };
    world.ask(worker("w2"), did_not).unwrap();
    let second = world.permitted(claim, &call);
    assert_eq!((second.dispatch, &second.key), (2, &permit.key));

    // A worker that was only stopped may still act: nobody asks before its time is over.
    let (mut world, claim) = World::attached();
    let permit = world.permitted(claim, &through(&call, vec![]));
    world.ask(worker("w1"), doubt(claim, &permit, false)).unwrap();
    let Gate::Wait { wait, .. } = world.enter(claim, &call) else { panic!("the body is alive") };
    assert_eq!(wait.until, Some(world.now.wall_ms + 10_000 + 1000 + 5000));
    assert_eq!(world.refused(dana(), resolve(permit.call, 1, Resolution::DidNotHappen)), "permit_may_act");
    world.tick(16_000);
    assert!(matches!(world.enter(claim, &call), Gate::Reconcile { .. }));
}

#[test]
fn a_person_ends_a_doubt_and_the_run_goes_on_from_the_answer() {
    for (resolution, outcome) in [
        (Resolution::Happened, Outcome::Succeeded),
        (Resolution::DidNotHappen, Outcome::NoEffect),
        (Resolution::Compensated, Outcome::Compensated),
    ] {
        let (mut world, claim, permit) = crashed(&tool("refund", EffectClass::Write), true);
        let call = refund(json!({"cents": 5}));
        let Gate::Wait { wait, .. } = world.enter(claim, &call) else { panic!("nobody knows") };
        world.ask(worker("w2"), Command::Wait { claim, waits: vec![wait] }).unwrap();
        assert_eq!(world.refused(worker("w2"), resolve(permit.call, 1, resolution)), "not_a_person");
        world.ask(dana(), resolve(permit.call, 1, resolution)).unwrap();
        assert_eq!(world.outcome(permit.call), Some(outcome));
        assert_eq!(world.refused(dana(), resolve(permit.call, 1, resolution)), "not_in_doubt");
        let newer = world.claim(1, "w3").unwrap();
        match world.enter(newer, &call) {
            Gate::Permit { permit: again, .. } => {
                assert_eq!((outcome, again.dispatch, again.key), (Outcome::NoEffect, 2, permit.key.clone()));
            }
            Gate::RuleResult { call } => assert_eq!((outcome, call), (Outcome::Succeeded, permit.call)),
            other => assert_eq!(other, Gate::Served { call: permit.call }),
        }
    }
}

#[test]
fn force_is_a_persons_and_is_recorded() {
    let (mut world, claim) = World::attached();
    let permit = world.permitted(claim, &asked(json!({})));
    world.ask(worker("w1"), doubt(claim, &permit, false)).unwrap();
    let mut forced = resolve(permit.call, 1, Resolution::DidNotHappen);
    if let Command::Resolve { force, .. } = &mut forced {
        *force = true;
    }
    world.ask(dana(), forced).unwrap();
    let last = world.journal.records().last().unwrap();
    assert!(matches!(&last.body, Body::EffectResolved(body) if body.forced), "{last:?}");
}

#[test]
fn what_is_said_of_a_failure_is_as_private_as_the_arguments() {
    let (mut world, claim) = World::attached();
    let mut call = asked(json!({"card": "4242"}));
    call.arguments.privacy = Privacy::Sensitive;
    let permit = world.permitted(claim, &call);
    let mut told = doubt(claim, &permit, false);
    if let Command::Doubt { failure: why, message, .. } = &mut told {
        (*why, *message) = (Some(failure(false)), Some(value(json!("lost 4242"))));
    }
    world.ask(worker("w1"), told).unwrap();
    let Body::EffectDoubted(body) = &world.journal.records().last().unwrap().body else { panic!("doubted") };
    let message = body.failure.as_ref().and_then(|failure| failure.message.as_ref());
    assert_eq!(message.unwrap().privacy, Privacy::Sensitive);
}

#[test]
fn what_was_abandoned_after_it_happened_is_served_under_its_key_and_not_done_again() {
    let (mut world, claim) = World::claimed();
    let call = asked(json!({"cents": 5}));
    let permit = world.permitted(claim, &call);
    world.ask(worker("w1"), settled(claim, &permit, EffectStatus::Succeeded)).unwrap();
    let waits = vec![wait_for(WaitOn::Divergence, None, None)];
    world.ask(worker("w1"), Command::Wait { claim, waits }).unwrap();
    let (step, unclaimed, decision) = (step_id(1), vec![permit.call], DivergenceDecision::Accept);
    world.ask(dana(), Command::DecideDivergence { step, decision, unclaimed, reason: None }).unwrap();
    let claim = world.claim(1, "w2").unwrap();
    let again = Entering { call: call_id(77), ..call };
    assert_eq!(world.enter(claim, &again), Gate::Served { call: permit.call });
}

fn leads() -> Value {
    json!({"dana": ["lead"], "eve": ["lead"], "mallory": ["intern"]})
}

fn asks(quorum: u32) -> std::sync::Arc<holdfast_core::policy::ActivePolicy> {
    let approvers = json!({"expires_ms": 7_200_000, "quorum": quorum, "roles": ["lead"]});
    policy(&json!([{"decide": "ask", "approvers": approvers}]), &leads())
}

fn person(id: &str) -> Actor {
    Actor { id: name(id), r#type: ActorType::Human }
}

#[test]
fn what_was_approved_is_what_runs_once_and_a_decision_never_flips() {
    let (mut world, claim) = World::attached();
    world.journal.policy = Some(asks(2));
    let call = refund(json!({"cents": 5}));
    let before = world.kinds().len();
    let Gate::Wait { wait, .. } = world.enter(claim, &through(&call, vec![])) else { panic!("it asks") };
    assert_eq!(world.since(before), ["call.opened", "policy.decided", "approval.requested"]);
    world.ask(worker("w1"), Command::Wait { claim, waits: vec![wait] }).unwrap();
    let approval = world.approval();
    for (who, why) in [
        (person("mallory"), "not_an_approver"),
        (person("zoe"), "not_an_approver"),
        (worker("w1"), "self_approval"),
        (system(), "self_approval"),
        (Actor { id: name("dana"), r#type: ActorType::Agent }, "self_approval"),
        (Actor { id: name("dana"), r#type: ActorType::Hook }, "self_approval"),
    ] {
        assert_eq!(world.refused(who, vote(approval, true)), why);
    }
    assert_eq!(world.wrote(person("dana"), vote(approval, true)), ["approval.voted"]);
    assert_eq!(world.refused(person("dana"), vote(approval, true)), "already_voted");
    let decided = world.wrote(person("eve"), vote(approval, true));
    assert_eq!(decided, ["approval.voted", "approval.decided", "grant.created", "step.woken"]);
    assert_eq!(world.refused(person("eve"), vote(approval, false)), "approval_over");

    let claim = world.claim(1, "w2").unwrap();
    let before = world.kinds().len();
    let permit = world.permitted(claim, &call);
    assert_eq!(world.since(before), ["grant.spent", "effect.started"]);
    assert_eq!(permit.arguments, json!({"cents": 5}));
    world.ask(worker("w2"), settled(claim, &permit, EffectStatus::Succeeded)).unwrap();
    // The leave was for one call.
    let other = entering(tool("refund", EffectClass::Write), "k2", json!({"cents": 5}));
    assert!(matches!(world.enter(claim, &through(&other, vec![])), Gate::Wait { .. }));
}

#[test]
fn who_must_approve_holds_whoever_makes_the_call_ask() {
    let (mut world, claim) = World::attached();
    let approvers = json!({"expires_ms": 7_200_000, "quorum": 2, "roles": ["lead"]});
    world.journal.policy = Some(policy(&json!([{"decide": "allow", "approvers": approvers}]), &leads()));
    let always = ToolSpec { approval: ToolApproval::Always, ..tool("refund", EffectClass::Write) };
    let call = entering(always, "k1", json!({"cents": 5}));
    assert!(matches!(world.enter(claim, &through(&call, vec![])), Gate::Wait { .. }));
    let approval = world.approval();
    assert_eq!(world.refused(person("zoe"), vote(approval, true)), "not_an_approver");
    assert_eq!(world.wrote(person("dana"), vote(approval, true)), ["approval.voted"], "one of two");
    let other = entering(tool("refund", EffectClass::Write), "k2", json!({"cents": 5}));
    assert!(matches!(world.enter(claim, &through(&other, vec![])), Gate::Permit { .. }), "nobody asks");
}

#[test]
fn one_denial_denies_for_good() {
    let (mut world, claim) = World::attached();
    world.journal.policy = Some(asks(2));
    let call = refund(json!({}));
    world.enter(claim, &through(&call, vec![]));
    let approval = world.approval();
    world.ask(person("dana"), vote(approval, true)).unwrap();
    world.ask(person("eve"), vote(approval, false)).unwrap();
    assert_eq!(world.refused(person("dana"), vote(approval, true)), "approval_over");
    assert_eq!(world.enter(claim, &call), Gate::Served { call: call.call });
    assert_eq!(world.outcome(call.call), Some(Outcome::DeniedByPerson));
}

#[test]
fn an_approval_dies_with_time_policy_version_schema_and_revocation() {
    let approved = |spec: &ToolSpec| {
        let (mut world, claim) = World::attached();
        world.journal.policy = Some(asks(1));
        let call = entering(spec.clone(), "k1", json!({"cents": 5}));
        world.enter(claim, &through(&call, vec![]));
        world.ask(person("dana"), vote(world.approval(), true)).unwrap();
        (world, claim, call)
    };
    let spec = tool("refund", EffectClass::Write);
    let (mut world, claim, call) = approved(&spec);
    assert!(matches!(world.enter(claim, &call), Gate::Permit { .. }), "the control: it would have run");

    for changed in [
        ToolSpec { version: name("2"), ..spec.clone() },
        ToolSpec { input: serde_json::Map::from_iter([("a".to_owned(), json!(1))]), ..spec.clone() },
    ] {
        let (mut world, claim, _) = approved(&spec);
        let call = entering(changed, "k1", json!({"cents": 5}));
        assert_eq!(
            world.enter(claim, &call),
            Gate::Rooms { edited: None, redact: vec![] },
            "asked again, from the hooks on"
        );
        assert!(matches!(world.enter(claim, &through(&call, vec![])), Gate::Wait { .. }));
    }
    let (mut world, claim, call) = approved(&spec);
    world.journal.policy = Some(asks(2));
    assert!(matches!(world.enter(claim, &through(&call, vec![])), Gate::Wait { .. }), "another policy");
    let (mut world, claim, call) = approved(&spec);
    world.tick(7_200_001);
    let claim = world.claim(1, "w1").unwrap_or(claim);
    assert!(matches!(world.enter(claim, &through(&call, vec![])), Gate::Wait { .. }), "it has expired");
    let (mut world, claim, call) = approved(&spec);
    let grant = *world.run().grants.keys().next().unwrap();
    assert_eq!(world.refused(worker("w1"), Command::Revoke { grant, reason: None }), "not_a_person");
    world.ask(dana(), Command::Revoke { grant, reason: None }).unwrap();
    assert!(matches!(world.enter(claim, &through(&call, vec![])), Gate::Wait { .. }), "it was revoked");
}

#[test]
fn a_request_that_nobody_answers_in_time_denies_and_a_late_vote_counts_for_nothing() {
    let (mut world, claim) = World::attached();
    world.journal.policy = Some(asks(1));
    let call = refund(json!({}));
    world.enter(claim, &through(&call, vec![]));
    let approval = world.approval();
    world.tick(7_200_000);
    assert_eq!(world.refused(person("dana"), vote(approval, true)), "approval_expired");
    assert_eq!(world.enter(claim, &call), Gate::Served { call: call.call });
    assert_eq!(world.kinds().last(), Some(&"approval.timed_out"));
    assert_eq!(world.outcome(call.call), Some(Outcome::DeniedByRule));
}

#[test]
fn a_vote_under_a_changed_policy_decides_nothing_and_the_step_asks_anew() {
    let (mut world, claim) = World::attached();
    world.journal.policy = Some(asks(1));
    let call = refund(json!({}));
    let Gate::Wait { wait, .. } = world.enter(claim, &through(&call, vec![])) else { panic!("it asks") };
    world.ask(worker("w1"), Command::Wait { claim, waits: vec![wait] }).unwrap();
    world.journal.policy = Some(policy(&json!([{"decide": "deny"}]), &leads()));
    let approval = world.approval();
    assert_eq!(world.wrote(person("dana"), vote(approval, true)), ["approval.superseded", "step.woken"]);
    let claim = world.claim(1, "w1").unwrap();
    assert_eq!(world.enter(claim, &through(&call, vec![])), Gate::Served { call: call.call });
    assert_eq!(world.outcome(call.call), Some(Outcome::DeniedByRule), "an approval cannot overrule a deny");
}

/// What the door says to a call of a tool under some rules.
fn says(rules: Option<Value>, spec: ToolSpec, args: Value) -> &'static str {
    let (mut world, claim) = World::attached();
    world.journal.policy = rules.map(|rules| policy(&rules, &json!({})));
    match world.enter(claim, &through(&entering(spec, "k1", args), vec![])) {
        Gate::Permit { .. } => "permit",
        Gate::Wait { .. } => "wait",
        Gate::Served { .. } => "served",
        other => panic!("{other:?}"),
    }
}

#[test]
fn deny_wins_over_ask_wins_over_allow_and_a_tools_own_wish_never_loosens() {
    let write = || tool("refund", EffectClass::Write);
    let risky = || ToolSpec { risk: Risk::High, ..write() };
    let with = |approval, spec| ToolSpec { approval, ..spec };
    let rule = |decide: &str| json!({ "decide": decide });
    assert_eq!(says(None, write(), json!({})), "permit");
    assert_eq!(says(None, risky(), json!({})), "wait");
    assert_eq!(says(None, with(ToolApproval::Never, risky()), json!({})), "permit");
    assert_eq!(says(Some(json!([rule("ask")])), with(ToolApproval::Never, write()), json!({})), "wait");
    assert_eq!(says(Some(json!([rule("allow")])), with(ToolApproval::Always, write()), json!({})), "wait");
    assert_eq!(says(Some(json!([rule("allow")])), risky(), json!({})), "permit");
    assert_eq!(says(Some(json!([rule("allow"), rule("ask")])), write(), json!({})), "wait");
    assert_eq!(says(Some(json!([rule("ask"), rule("allow")])), write(), json!({})), "wait");
    assert_eq!(says(Some(json!([rule("deny"), rule("ask"), rule("allow")])), write(), json!({})), "served");
}

#[test]
fn a_condition_that_cannot_be_judged_never_helps_and_an_obligation_is_met_or_refuses() {
    let write = || tool("refund", EffectClass::Write);
    let risky = || ToolSpec { risk: Risk::High, ..write() };
    let small = json!({"argument": "cents", "comparison": "max", "value": 5000});
    let allow = Some(json!([{"decide": "allow", "when": [small.clone()]}]));
    assert_eq!(says(allow.clone(), risky(), json!({"cents": 5000})), "permit");
    assert_eq!(says(allow.clone(), risky(), json!({"cents": 5001})), "wait");
    assert_eq!(says(allow, risky(), json!({})), "wait", "no such argument");
    let deny = Some(json!([{"decide": "deny", "when": [small]}]));
    assert_eq!(says(deny.clone(), write(), json!({"cents": "5"})), "served", "not a number");
    assert_eq!(says(deny, write(), json!({"cents": 5001})), "permit");
    assert_eq!(says(Some(json!([{"decide": "deny", "tools": ["email*"]}])), write(), json!({})), "permit");
    assert_eq!(says(Some(json!([{"decide": "deny", "tools": ["re*d"]}])), write(), json!({})), "served");
    let sandbox = json!({"fields": [], "kind": "sandbox", "roles": [], "tier": "subprocess"});
    let obliged = Some(json!([{"decide": "allow", "obligations": [sandbox]}]));
    assert_eq!(says(obliged, write(), json!({})), "served", "there is no such sandbox here");
}

#[test]
fn evaluators_only_tighten_and_one_that_fails_denies() {
    use holdfast_core::contracts::policy::Decision;
    use holdfast_core::policy::Evaluation;
    for (said, denies_all, expected) in [
        (Some(Decision::Allow), false, "permit"),
        (Some(Decision::Allow), true, "served"),
        (Some(Decision::Ask), false, "wait"),
        (Some(Decision::Deny), false, "served"),
        (None, false, "served"),
    ] {
        let (mut world, claim) = World::attached();
        world.journal.policy = denies_all.then(|| policy(&json!([{"decide": "deny"}]), &json!({})));
        let mut call = asked(json!({}));
        let evaluation = Evaluation { decision: said, evaluator: name("limits"), summary: None };
        call.rooms.as_mut().unwrap().evaluations.push(evaluation);
        let told = match world.enter(claim, &call) {
            Gate::Permit { .. } => "permit",
            Gate::Wait { .. } => "wait",
            _ => "served",
        };
        assert_eq!(told, expected, "{said:?}");
    }
}

#[test]
fn a_hook_that_fails_is_late_or_oversteps_never_opens_the_door() {
    let deny = json!({"type": "deny", "payload": {"code": "too.much"}});
    let rewrite = json!({"type": "modify_tool_request", "payload": {"value": {"cents": 1}}});
    let retry = json!({"type": "request_retry", "payload": {}});
    let spec = |failure| hook("guard", "before_tool_call", &["deny", "observe"], failure);
    let answers = [
        (
            "observes",
            HookAnswer::Response { response: json!({"type": "observe_only", "payload": {}}) },
            "permit",
        ),
        ("denies", HookAnswer::Response { response: deny }, "served"),
        ("without the right", HookAnswer::Response { response: rewrite }, "closed"),
        ("not in the matrix", HookAnswer::Response { response: retry }, "closed"),
        ("nonsense", HookAnswer::Response { response: json!({"type": "explode"}) }, "closed"),
        ("failed", HookAnswer::Failed {}, "closed"),
        ("too late", HookAnswer::TimedOut {}, "closed"),
        ("cancelled", HookAnswer::Cancelled {}, "closed"),
    ];
    let again = json!({"type": "request_retry", "payload": {}});
    for (failure, opens) in [("deny", false), ("interrupt_run", false), ("fail_run", false)] {
        let spec = hook("guard", "before_tool_call", &["observe", "request_retry"], failure);
        let (mut world, claim) = World::attached();
        let told = world.enter(claim, &through(&refund(json!({})), vec![said(&spec, again.clone())]));
        assert_eq!(matches!(told, Gate::Permit { .. }), opens, "a right that the point does not allow");
    }
    for (what, answer, expected) in answers {
        for (failure, closed) in [("deny", "served"), ("interrupt_run", "wait"), ("fail_run", "stop")] {
            let (mut world, claim) = World::attached();
            let spec = std::sync::Arc::new(spec(failure));
            let spoken = Invocation { answer: answer.clone(), elapsed_ms: 3, spec };
            let told = match world.enter(claim, &through(&refund(json!({})), vec![spoken])) {
                Gate::Permit { .. } => "permit",
                Gate::Wait { wait, .. } if wait.on == WaitOn::Interrupted => "wait",
                Gate::Served { .. } => "served",
                Gate::Stop { .. } => "stop",
                other => panic!("{other:?}"),
            };
            let expected = if expected == "closed" { closed } else { expected };
            assert_eq!(told, expected, "{what} under {failure}");
            assert!(world.kinds().contains(&"hook.ruled"), "what it said is recorded");
        }
    }
}

#[test]
fn hooks_are_refused_where_nobody_calls_them_and_under_a_name_that_is_taken() {
    use holdfast_core::contracts::hook::HookPoint;
    let live = holdfast_core::hooks::LIVE;
    assert_eq!(live.len(), 12);
    for point in HookPoint::ALL {
        let spec = hook("a", point.as_str(), &["observe"], "deny");
        let told = Hooks::new(vec![spec]).map_or_else(|error| error.code().as_str(), |_| "ok");
        assert_eq!(told, if live.contains(point) { "ok" } else { "point_not_live" }, "{point}");
    }
    let twice = vec![
        hook("a", "before_tool_call", &["observe"], "deny"),
        hook("a", "after_tool_call", &["observe"], "deny"),
    ];
    assert_eq!(Hooks::new(twice).unwrap_err().code().as_str(), "hook_exists");
}

#[test]
fn a_result_is_not_the_agents_before_hooks_have_ruled_and_a_write_is_never_made_again_for_one() {
    for (effect, again) in [(EffectClass::Write, false), (EffectClass::Read, true)] {
        let (mut world, claim) = World::attached();
        let spec = ToolSpec { max_attempts: 2, ..tool("refund", effect) };
        let call = entering(spec, "k1", json!({}));
        let permit = world.permitted(claim, &through(&call, vec![]));
        let mut told = report(EffectStatus::Succeeded, Some(json!(1)));
        told.unruled = true;
        let settle = Command::Settle { claim, call: permit.call, dispatch: 1, report: Box::new(told) };
        assert_eq!(
            world.ask(worker("w1"), settle).unwrap().gate,
            Some(Gate::RuleResult { call: permit.call })
        );
        assert_eq!(world.enter(claim, &call), Gate::RuleResult { call: permit.call }, "also after a crash");
        let spec = hook("after", "after_tool_call", &["request_retry", "rewrite_tool_result"], "deny");
        let invocations = vec![said(&spec, json!({"type": "request_retry", "payload": {}}))];
        world
            .ask(worker("w1"), Command::RuleResult { attempts: 2, claim, call: permit.call, invocations })
            .unwrap();
        match world.enter(claim, &call) {
            Gate::Permit { permit, .. } => assert!(again && permit.dispatch == 2),
            other => assert!(!again && other == Gate::Served { call: permit.call }, "{other:?}"),
        }
    }
}

#[test]
fn a_budget_of_one_is_one_call_and_what_did_not_happen_costs_nothing() {
    let call = |n: &str| through(&entering(tool("refund", EffectClass::Write), n, json!({})), vec![]);
    let (mut world, claim) = World::attached_with(Some(budget(1, OnExceeded::Refuse)));
    let permit = world.permitted(claim, &call("k1"));
    let second = call("k2");
    assert_eq!(world.enter(claim, &second), Gate::Served { call: second.call });
    assert_eq!(world.outcome(second.call), Some(Outcome::DeniedByRule));
    world.ask(worker("w1"), settled(claim, &permit, EffectStatus::NoEffect)).unwrap();
    let third = world.permitted(claim, &call("k3"));
    world.ask(worker("w1"), settled(claim, &third, EffectStatus::Succeeded)).unwrap();
    assert_eq!(world.run().spending.used.tool_calls, Some(1));
    let fourth = call("k4");
    assert_eq!(world.enter(claim, &fourth), Gate::Served { call: fourth.call });

    let (mut world, claim) = World::attached_with(Some(budget(0, OnExceeded::Ask)));
    let told = world.enter(claim, &call("k1"));
    assert!(matches!(&told, Gate::Wait { wait, .. } if wait.on == WaitOn::Budget), "{told:?}");
}

#[test]
fn a_pure_call_that_nobody_minds_leaves_no_trace() {
    let (mut world, claim) = World::attached();
    let call = entering(tool("parse", EffectClass::Pure), "k1", json!({"text": "1"}));
    let before = world.kinds().len();
    assert_eq!(world.enter(claim, &through(&call, vec![])), Gate::Run { arguments: json!({"text": "1"}) });
    assert_eq!(world.since(before).len(), 0);
}

/// Every edge of the table, spelled out once more: what stands here is what may happen, and nothing else.
#[test]
fn the_table_of_calls_has_these_edges_and_no_others() {
    let mut edges = std::collections::BTreeSet::new();
    for effect in [EffectClass::Pure, EffectClass::Read, EffectClass::Write, EffectClass::Internal] {
        for flags in 0..8u8 {
            let (keyed, rerun, unresolved) = (flags & 1 > 0, flags & 2 > 0, flags & 4 > 0);
            for (phase, event) in CallPhase::ALL
                .iter()
                .flat_map(|phase| CallEvent::ALL.iter().map(move |event| (*phase, *event)))
            {
                let write = effect == EffectClass::Write;
                let found = call_after(phase, Traits { effect, keyed, rerun, unresolved }, event);
                if let Some(next) = found {
                    edges.insert(format!("{phase:?} {event:?} {next:?}"));
                }
                let unknown = event == CallEvent::Settled(EffectStatus::TimedOut);
                assert!(!(write && unknown && found.is_some()), "a write that timed out is unknown");
                let repeats =
                    event == CallEvent::Started && matches!(phase, CallPhase::Started | CallPhase::Doubted);
                assert!(!(write && repeats && !keyed && found.is_some()), "never a silent repeat");
                assert!(!(write && phase == CallPhase::Started && repeats && found.is_some()));
            }
        }
    }
    let expected = include_str!("call_edges.txt");
    assert_eq!(edges.into_iter().collect::<Vec<_>>(), expected.lines().collect::<Vec<_>>());
}
