//! Commands on runs: stories, and for every command at least one accepted and one refused row.
#![allow(clippy::as_conversions, clippy::expect_used, clippy::panic, clippy::unwrap_used)]

mod world;

use std::collections::BTreeMap;

use holdfast_core::clock::Now;
use holdfast_core::matching::Asked;
use holdfast_core::records::*;
use holdfast_core::run::*;
use holdfast_core::state::Outcome;
use serde_json::json;
use world::commands::*;
use world::*;

#[test]
fn a_run_is_created_claimed_patched_and_completed() {
    let (mut world, claim) = World::claimed();
    world.ask(worker("w1"), patch(claim, 0)).unwrap();
    let last = world.wrote(
        worker("w1"),
        Command::Complete {
            claim,
            expected_version: None,
            result: Some(value(json!("ok"))),
            patch: Some(value(json!({"m": 2}))),
        },
    );
    assert_eq!(last, ["state.patched", "step.completed", "run.finished"]);
    assert_eq!(
        world.kinds(),
        [
            "run.created",
            "step.created",
            "step.claimed",
            "state.patched",
            "state.patched",
            "step.completed",
            "run.finished"
        ]
    );
    let run = world.run();
    assert_eq!((run.status(), run.state_version), (RunStatus::Completed, 2));
    assert_eq!(run.state, Some(json!({"n": 1, "m": 2})));
    assert!(world.journal.leases.is_empty());
}

#[test]
fn a_worker_that_lost_its_step_can_do_nothing_at_all() {
    let (mut world, stale) = World::claimed();
    world.tick(30_000);
    world.ask(system(), Command::Recover { step: step_id(1) }).unwrap();
    let fresh = world.claim(1, "w2").unwrap();
    assert!(fresh.fence > stale.fence);
    let step = Box::new(new_step(7, &[]));
    for command in [
        Command::Heartbeat { claim: stale, lease_ms: 30_000 },
        Command::Release { claim: stale, reason: ReleaseReason::Yielded },
        patch(stale, 0),
        wait(stale, vec![wait_for(WaitOn::Signal, Some("go"), None)]),
        fail(stale, true),
        complete(stale),
        Command::ConfirmCancel { claim: stale },
        Command::Append { claim: Some(stale), entries: vec![] },
        Command::AddStep { call: None, claim: Some(stale), step },
        Command::Spawn {
            call: None,
            claim: stale,
            child: run_id(9),
            agent: name("child"),
            input: value(json!(1)),
            escrow: Amounts::default(),
            on_parent_end: OnParentEnd::End,
        },
        Command::Send {
            call: None,
            claim: stale,
            to: run_id(9),
            content: value(json!(1)),
            correlation: None,
            reply_to: None,
        },
    ] {
        assert_eq!(world.refused(worker("w1"), command), "stale_fence");
    }
    assert_eq!(world.run().status(), RunStatus::Running);
}

#[test]
fn a_lease_is_recovered_only_when_it_is_over() {
    let (mut world, claim) = World::claimed();
    let recover = Command::Recover { step: step_id(1) };
    assert_eq!(world.refused(system(), recover.clone()), "lease_live");
    world.tick(29_999);
    assert_eq!(world.refused(system(), recover.clone()), "lease_live");
    world.ask(worker("w1"), Command::Heartbeat { claim, lease_ms: 30_000 }).unwrap();
    world.tick(29_999);
    assert_eq!(world.refused(system(), recover.clone()), "lease_live");

    let mut other_boot = world.clone();
    other_boot.now = Now { boot_id: "boot-2".into(), boot_ms: 0, wall_ms: 0 };
    assert_eq!(other_boot.wrote(system(), recover.clone()), ["lease.expired"]);

    let mut gone = world.clone();
    gone.journal.gone.insert(name("w1"));
    assert_eq!(gone.wrote(system(), recover.clone()), ["lease.expired"]);

    world.tick(1);
    assert_eq!(world.wrote(system(), recover.clone()), ["lease.expired"]);
    assert_eq!(world.refused(system(), recover), "step_status");
}

#[test]
fn a_wall_clock_that_jumps_moves_no_lease() {
    let (mut world, _) = World::claimed();
    world.now.wall_ms += 1_000_000_000;
    assert_eq!(world.refused(system(), Command::Recover { step: step_id(1) }), "lease_live");
    world.now.wall_ms = 0;
    world.tick(30_000);
    assert_eq!(world.wrote(system(), Command::Recover { step: step_id(1) }), ["lease.expired"]);
    let times: Vec<u64> = world.journal.records().iter().map(|record| record.at).collect();
    assert!(times.is_sorted());
}

#[test]
fn a_step_that_kills_its_workers_ends_as_failed_and_progress_costs_nothing() {
    let mut world = World::one_step();
    let recover = Command::Recover { step: step_id(1) };
    for attempt in 1..=2 {
        world.claim(1, "w1").unwrap();
        world.tick(30_000);
        assert_eq!(world.wrote(system(), recover.clone()), ["lease.expired"]);
        assert_eq!(world.step(1).attempt, attempt + 1);
    }
    let claim = world.claim(1, "w1").unwrap();
    world.ask(worker("w1"), patch(claim, 0)).unwrap();
    world.tick(30_000);
    assert_eq!(world.wrote(system(), recover.clone()), ["lease.expired"]);
    assert_eq!(world.step(1).attempt, 3, "a claim that committed something costs no attempt");

    world.claim(1, "w1").unwrap();
    world.tick(30_000);
    assert_eq!(world.wrote(system(), recover), ["lease.expired", "step.failed", "run.finished"]);
    assert_eq!(world.run().status(), RunStatus::Failed);
}

#[test]
fn failures_are_retried_with_backoff_until_the_policy_says_no() {
    let mut world = World::one_step();
    let mut claim = world.claim(1, "w1").unwrap();
    for _ in 0..2 {
        assert_eq!(world.wrote(worker("w1"), fail(claim, true)), ["step.retry_scheduled"]);
        let due = world.step(1).not_before.unwrap();
        assert!(due >= world.now.wall_ms + 500);
        assert_eq!(world.refused(worker("w1"), claim_as(1, "w1", "1", false)), "not_before");
        world.tick(60_000);
        claim = world.claim(1, "w1").unwrap();
    }
    assert_eq!(world.wrote(worker("w1"), fail(claim, true)), ["step.failed", "run.finished"]);

    let (mut world, claim) = World::claimed();
    assert_eq!(world.wrote(worker("w1"), fail(claim, false)), ["step.failed", "run.finished"]);
    assert_eq!(world.refused(worker("w1"), fail(claim, false)), "stale_fence");
}

#[test]
fn a_failure_that_would_only_be_served_again_is_final_at_once() {
    let (mut world, claim) = World::claimed();
    world.open_call(claim, 1, &write_call("0", "refund", &json!({})), json!({}));
    world.start_call(claim, 1);
    world.settle_call(claim, 1, EffectStatus::Failed);
    let failed = Command::Fail { claim, failure: failure(true), message: None, ended_by: vec![call_id(1)] };
    assert_eq!(world.wrote(worker("w1"), failed), ["step.failed", "run.finished"]);

    let (mut world, claim) = World::claimed();
    world.open_call(claim, 1, &read_call("0", "search"), json!({}));
    world.start_call(claim, 1);
    world.settle_call(claim, 1, EffectStatus::Failed);
    let failed = Command::Fail { claim, failure: failure(true), message: None, ended_by: vec![call_id(1)] };
    assert_eq!(world.wrote(worker("w1"), failed), ["step.retry_scheduled"]);
    assert!(world.run().calls[&call_id(1)].rerun);
}

#[test]
fn when_a_step_fails_its_siblings_are_fenced_and_their_writes_are_in_doubt() {
    let mut world = World::with_steps(&[(1, &[]), (2, &[]), (3, &[1])]);
    let (one, two) = (world.claim(1, "w1").unwrap(), world.claim(2, "w2").unwrap());
    world.open_call(two, 1, &write_call("0", "refund", &json!({})), json!({}));
    world.start_call(two, 1);
    let wrote = world.wrote(worker("w1"), fail(one, false));
    assert_eq!(wrote, ["step.failed", "effect.doubted", "step.cancelled", "step.cancelled", "run.finished"]);
    assert_eq!(world.refused(worker("w2"), complete(two)), "stale_fence");
    assert_eq!(world.run().calls[&call_id(1)].doubt, Some(DoubtCause::Fenced));
    assert_eq!(world.run().status(), RunStatus::Failed);
}

#[test]
fn steps_run_in_their_order_and_the_run_completes_with_the_last() {
    let mut world = World::with_steps(&[(1, &[]), (2, &[]), (3, &[1, 2])]);
    assert_eq!(world.refused(worker("w1"), claim_as(3, "w1", "1", false)), "step_blocked");
    for n in [1, 2] {
        let claim = world.claim(n, "w1").unwrap();
        assert_eq!(world.wrote(worker("w1"), complete(claim)), ["step.completed"]);
    }
    let claim = world.claim(3, "w1").unwrap();
    assert_eq!(world.wrote(worker("w1"), complete(claim)), ["step.completed", "run.finished"]);
}

#[test]
fn one_step_at_a_time_runs_under_a_concurrency_key() {
    let mut world = World::empty();
    let keyed = |n| NewStep { concurrency_key: Some(key("customer-7")), ..new_step(n, &[]) };
    let create = Command::Create { run: Box::new(new_run(1)), steps: vec![keyed(1), keyed(2)] };
    world.ask(dana(), create).unwrap();
    let claim = world.claim(1, "w1").unwrap();
    assert_eq!(world.refused(worker("w2"), claim_as(2, "w2", "1", false)), "key_busy");
    world.ask(worker("w1"), complete(claim)).unwrap();
    world.journal.busy_keys.insert(key("customer-7"));
    assert_eq!(world.refused(worker("w2"), claim_as(2, "w2", "1", false)), "key_busy");
    world.journal.busy_keys.clear();
    world.claim(2, "w2").unwrap();
}

#[test]
fn cancelling_asks_the_worker_first_and_ends_without_one() {
    let mut idle = World::one_step();
    let cancel = || Command::Cancel { reason: Some(value(json!("no longer needed"))) };
    assert_eq!(idle.wrote(dana(), cancel()), ["run.cancel_requested", "step.cancelled", "run.finished"]);
    assert_eq!(idle.refused(dana(), cancel()), "run_ended");

    let (mut world, claim) = World::claimed();
    assert_eq!(world.refused(worker("w1"), Command::ConfirmCancel { claim }), "not_cancel_requested");
    assert_eq!(world.wrote(dana(), cancel()), ["run.cancel_requested"]);
    assert!(world.wrote(dana(), cancel()).is_empty(), "asked again, nothing more is written");
    let waits = wait(claim, vec![wait_for(WaitOn::Message, None, None)]);
    assert_eq!(world.refused(worker("w1"), waits), "cancel_requested");
    let mut failing = world.clone();
    assert_eq!(failing.wrote(worker("w1"), fail(claim, true)), ["step.cancelled", "run.finished"]);
    let mut gone = world.clone();
    gone.tick(30_000);
    let wrote = gone.wrote(system(), Command::Recover { step: step_id(1) });
    assert_eq!(wrote, ["lease.expired", "step.cancelled", "run.finished"]);
    let mut released = world.clone();
    let release = Command::Release { claim, reason: ReleaseReason::Shutdown };
    assert_eq!(released.wrote(worker("w1"), release), ["lease.released", "step.cancelled", "run.finished"]);
    assert_eq!(
        world.wrote(worker("w1"), Command::ConfirmCancel { claim }),
        ["step.cancelled", "run.finished"]
    );
    assert_eq!(world.run().status(), RunStatus::Cancelled);
}

#[test]
fn a_worker_that_vanishes_from_a_cancelled_run_leaves_its_write_in_doubt_once() {
    let (mut world, claim) = World::claimed();
    world.ask(dana(), Command::Cancel { reason: None }).unwrap();
    world.open_call(claim, 1, &write_call("0", "refund", &json!({})), json!({}));
    world.start_call(claim, 1);
    world.tick(30_000);
    let wrote = world.wrote(system(), Command::Recover { step: step_id(1) });
    assert_eq!(wrote, ["lease.expired", "effect.doubted", "step.cancelled", "run.finished"]);
}

#[test]
fn ending_at_once_fences_the_worker_and_tells_parent_and_children() {
    let mut world = World::empty();
    let run = NewRun { parent: Some(run_id(8)), deadline: Some(world.now.wall_ms + 10), ..new_run(1) };
    world.ask(dana(), Command::Create { run: Box::new(run), steps: vec![new_step(1, &[])] }).unwrap();
    let claim = world.claim(1, "w1").unwrap();
    for (n, on_parent_end) in [(5, OnParentEnd::End), (6, OnParentEnd::HandOn)] {
        let spawn = Command::Spawn {
            call: None,
            claim,
            child: run_id(n),
            agent: name("c"),
            input: value(json!(1)),
            escrow: Amounts::default(),
            on_parent_end,
        };
        world.ask(worker("w1"), spawn).unwrap();
    }
    let end = |reason| Command::End { reason };
    assert_eq!(world.refused(system(), end(EndReason::Deadline)), "deadline_not_due");
    assert_eq!(world.refused(system(), end(EndReason::Normal)), "bad_end_reason");
    world.tick(10);
    let frame = world.ask(system(), end(EndReason::Deadline)).unwrap();
    let told: Vec<_> = frame.envelopes.iter().map(|envelope| (envelope.to, &envelope.body)).collect();
    assert!(
        matches!(told[0], (to, EnvelopeBody::ChildEnded { status: EndStatus::Failed, .. }) if to == run_id(8))
    );
    assert_eq!(told[1], (run_id(5), &EnvelopeBody::Cancel {}));
    assert_eq!(told.len(), 2);
    assert_eq!(world.refused(worker("w1"), complete(claim)), "stale_fence");
    assert_eq!(world.refused(system(), end(EndReason::Killed)), "run_ended");
}

#[test]
fn only_a_failed_run_can_be_retried_and_then_it_goes_on() {
    let (mut world, claim) = World::claimed();
    let retry = || Command::RetryRun { reason: Some(value(json!("fixed"))) };
    assert_eq!(world.refused(dana(), retry()), "not_failed");
    world.ask(worker("w1"), fail(claim, false)).unwrap();
    let cancel = Command::Cancel { reason: None };
    assert_eq!(world.refused(dana(), cancel), "run_ended");
    assert_eq!(world.wrote(dana(), retry()), ["run.retried"]);
    assert_eq!((world.run().status(), world.step(1).failed_tries), (RunStatus::Running, 0));
    let claim = world.claim(1, "w1").unwrap();
    world.ask(worker("w1"), complete(claim)).unwrap();
    assert_eq!(world.refused(dana(), retry()), "not_failed", "completed is final");
}

#[test]
fn after_the_end_only_evidence_is_taken() {
    let (mut world, claim) = World::claimed();
    world.ask(worker("w1"), complete(claim)).unwrap();
    let entry = |kind: &str, body| Entry {
        blobs: BTreeMap::new(),
        body,
        kind: kind.into(),
        privacy: Privacy::Internal,
    };
    let append = |kind: &str, body| Command::Append { claim: None, entries: vec![entry(kind, body)] };
    let note = json!({"level": "info", "text": "looked at it"});
    assert_eq!(world.wrote(dana(), append("note.logged", note)), ["note.logged"]);
    assert_eq!(
        world.wrote(dana(), append("cost.recorded", json!({"amounts": {"tokens": 3}}))),
        ["cost.recorded"]
    );
    let artifact = json!({"artifact": "art_01kbjqxr9zenst9s2c5gj6b0mc", "derived_from": [], "kind": "file",
        "media": "text/plain", "name": "late", "content": "x"});
    assert_eq!(world.refused(dana(), append("artifact.created", artifact)), "run_ended");
    assert_eq!(world.run().evidence, 2);
    for command in [
        Command::Signal { name: name("go"), payload: value(json!(1)) },
        Command::Pause { reason: None },
        claim_as(1, "w1", "1", false),
        Command::AddStep { call: None, claim: None, step: Box::new(new_step(4, &[])) },
    ] {
        let by = if matches!(command, Command::Claim { .. }) { worker("w1") } else { dana() };
        assert_eq!(world.refused(by, command), "run_ended");
    }
}

#[test]
fn the_low_level_door_seals_contents_and_keeps_reserved_kinds_out() {
    let (mut world, claim) = World::claimed();
    let entry = |kind: &str, body| Entry {
        blobs: BTreeMap::new(),
        body,
        kind: kind.into(),
        privacy: Privacy::Sensitive,
    };
    let entries = vec![
        entry("note.logged", json!({"level": "info", "text": "card 4242"})),
        entry("x.acme.shipped", json!({"data": {"n": null}, "content": {"to": "dana"}})),
        entry("checkpoint.created", json!({"kind": "stream", "name": "orders", "offset": 7, "data": [1]})),
    ];
    let append = Command::Append { claim: Some(claim), entries };
    assert_eq!(world.wrote(worker("w1"), append), ["note.logged", "x.acme.shipped", "checkpoint.created"]);
    let journal = String::from_utf8(world.texts().concat()).unwrap();
    assert!(!journal.contains("4242") && !journal.contains("dana\"},\"data"));
    for kind in ["run.finished", "effect.settled", "approval.decided", "state.patched", "y.acme.thing"] {
        let append = Command::Append { claim: Some(claim), entries: vec![entry(kind, json!({}))] };
        assert_eq!(world.refused(worker("w1"), append), "kind_reserved", "{kind}");
    }
    let bad = |kind, body| Command::Append { claim: Some(claim), entries: vec![entry(kind, body)] };
    assert_eq!(
        world.refused(worker("w1"), bad("note.logged", json!({"level": "loud", "text": 1}))),
        "unknown_token"
    );
    assert_eq!(world.refused(worker("w1"), bad("x.acme", json!({"data": {}}))), "unknown_kind");
    let unclaimed = Command::Append { claim: None, entries: vec![] };
    assert_eq!(world.refused(worker("w2"), unclaimed), "claim_needed");
}

#[test]
fn a_patch_for_an_old_version_is_refused_or_recorded_for_a_commit() {
    let (mut world, claim) = World::claimed();
    world.ask(worker("w1"), patch(claim, 0)).unwrap();
    assert_eq!(world.refused(worker("w1"), patch(claim, 0)), "state_conflict");
    let list = Command::Patch { claim, patch: value(json!([1])), expected_version: 1, call: None };
    assert_eq!(world.refused(worker("w1"), list), "patch_not_object");
    let asked = Asked { kind: CallKind::Commit, effect: EffectClass::Internal, ..read_call("0", "commit") };
    world.open_call(claim, 1, &asked, json!({}));
    let commit = |version| Command::Patch {
        claim,
        patch: value(json!({})),
        expected_version: version,
        call: Some(call_id(1)),
    };
    assert_eq!(world.wrote(worker("w1"), commit(0)), ["state.conflict"]);
    assert_eq!(world.run().calls[&call_id(1)].outcome, Some(Outcome::Conflict));
    world.open_call(claim, 2, &asked, json!({}));
    let commit =
        Command::Patch { claim, patch: value(json!({"a": 1})), expected_version: 1, call: Some(call_id(2)) };
    assert_eq!(world.wrote(worker("w1"), commit), ["state.patched"]);
    assert_eq!(world.run().calls[&call_id(2)].outcome, Some(Outcome::Succeeded));
}

#[test]
fn bad_commands_on_a_new_run_are_refused() {
    let mut world = World::empty();
    let create = |run: NewRun, steps: Vec<NewStep>| Command::Create { run: Box::new(run), steps };
    assert_eq!(world.refused(dana(), Command::Pause { reason: None }), "no_such_run");
    assert_eq!(world.refused(dana(), create(new_run(1), vec![])), "no_steps");
    assert_eq!(world.refused(dana(), create(new_run(1), vec![new_step(1, &[2])])), "bad_step");
    assert_eq!(
        world.refused(dana(), create(new_run(1), vec![new_step(1, &[]), new_step(1, &[])])),
        "bad_step"
    );
    let far = NewRun { deadline: Some(u64::MAX >> 12), ..new_run(1) };
    assert_eq!(world.refused(dana(), create(far, vec![new_step(1, &[])])), "limit_exceeded");
    let labels = (0..65).map(|n| (n.to_string(), String::new())).collect();
    assert_eq!(
        world.refused(dana(), create(NewRun { labels, ..new_run(1) }, vec![new_step(1, &[])])),
        "limit_exceeded"
    );
    let state = NewRun { state: value(json!([])), ..new_run(1) };
    assert_eq!(world.refused(dana(), create(state, vec![new_step(1, &[])])), "patch_not_object");
    let tries = RetryPolicy { max_attempts: 0, backoff_ms: 0, backoff_max_ms: 0 };
    let endless = NewStep { retry: tries, ..new_step(1, &[]) };
    assert_eq!(world.refused(dana(), create(new_run(1), vec![endless])), "limit_exceeded");
    world.ask(dana(), create(new_run(1), vec![new_step(1, &[])])).unwrap();
    assert_eq!(world.refused(dana(), create(new_run(1), vec![new_step(1, &[])])), "run_exists");
    assert_eq!(world.refused(dana(), claim_as(1, "w1", "1", false)), "not_a_worker");
    assert_eq!(world.refused(worker("w1"), claim_as(9, "w1", "1", false)), "no_such_step");
    let short = Command::Claim {
        step: step_id(1),
        worker: name("w1"),
        lease_ms: 1,
        package: package("1"),
        strict: false,
    };
    assert_eq!(world.refused(worker("w1"), short), "limit_exceeded");
    let claim = world.claim(1, "w1").unwrap();
    assert_eq!(world.refused(worker("w2"), claim_as(1, "w2", "1", false)), "step_status");
    assert_eq!(world.refused(worker("w1"), wait(claim, vec![])), "nothing_to_wait_for");
    let many = vec![wait_for(WaitOn::Message, None, None); 1025];
    assert_eq!(world.refused(worker("w1"), wait(claim, many)), "limit_exceeded");
    assert_eq!(
        world.refused(worker("w1"), Command::Heartbeat { claim, lease_ms: u64::MAX }),
        "limit_exceeded"
    );
    assert_eq!(
        world.wrote(
            worker("w1"),
            Command::AddStep { call: None, claim: Some(claim), step: Box::new(new_step(2, &[1])) }
        ),
        ["step.created"]
    );
    let again = Command::AddStep { call: None, claim: Some(claim), step: Box::new(new_step(2, &[])) };
    assert_eq!(world.refused(worker("w1"), again), "bad_step");
    let sent = Command::Send {
        call: None,
        claim,
        to: run_id(2),
        content: value(json!(1)),
        correlation: None,
        reply_to: None,
    };
    assert_eq!(world.ask(worker("w1"), sent).unwrap().envelopes.len(), 1);
}

#[test]
fn a_fork_goes_on_from_the_parents_prefix_and_takes_no_rights_along() {
    let (mut world, claim) = World::claimed();
    world.ask(worker("w1"), patch(claim, 0)).unwrap();
    let at = world.run().head.seq;
    world.ask(worker("w1"), patch(claim, 1)).unwrap();
    let fork = |run| Command::Fork {
        run,
        labels: BTreeMap::new(),
        package: package("2"),
        effects: ForkEffects::Serve,
        reason: None,
    };
    let mut forked = World { journal: world.journal.fork_at(at).unwrap(), ..world.clone() };
    assert_eq!(forked.refused(dana(), fork(run_id(1))), "run_exists");
    assert_eq!(forked.wrote(dana(), fork(run_id(2))), ["run.forked"]);
    let run = forked.run();
    assert_eq!((run.state_version, run.state.clone()), (1, Some(json!({"n": 1}))));
    assert_eq!((run.status(), run.steps[&step_id(1)].status), (RunStatus::Running, StepStatus::Pending));
    assert_eq!(forked.refused(worker("w1"), patch(claim, 1)), "stale_fence");
    let own = forked.claim(1, "w2").unwrap();
    forked.ask(worker("w2"), complete(own)).unwrap();
    assert_eq!(world.refused(dana(), fork(run_id(2))), "bad_fork_point", "a fork needs its parent's fold");

    world.ask(worker("w1"), complete(claim)).unwrap();
    let end = world.run().head.seq;
    let mut late = World { journal: world.journal.fork_at(end).unwrap(), ..world.clone() };
    assert_eq!(late.refused(dana(), fork(run_id(3))), "bad_fork_point");
}

#[test]
fn what_its_own_frame_does_settles_the_call_that_asked_for_it() {
    let (mut world, claim) = World::claimed();
    let asked = |kind| Asked { kind, effect: EffectClass::Internal, ..read_call("0", "x") };
    for (n, kind) in
        [(1, CallKind::Message), (2, CallKind::Child), (3, CallKind::Step), (4, CallKind::Commit)]
    {
        world.open_call(claim, n, &asked(kind), json!(n));
    }
    let send = |call| Command::Send {
        call: Some(call_id(call)),
        claim,
        to: run_id(9),
        content: value(json!(1)),
        correlation: None,
        reply_to: None,
    };
    assert_eq!(world.refused(worker("w1"), send(2)), "no_such_call", "of another kind");
    world.ask(worker("w1"), send(1)).unwrap();
    assert_eq!(world.refused(worker("w1"), send(1)), "no_such_call", "it was sent already");
    let spawn = Command::Spawn {
        call: Some(call_id(2)),
        claim,
        child: run_id(9),
        agent: name("child"),
        input: value(json!(1)),
        escrow: Amounts::default(),
        on_parent_end: OnParentEnd::End,
    };
    world.ask(worker("w1"), spawn).unwrap();
    let step = Box::new(new_step(2, &[]));
    world.ask(worker("w1"), Command::AddStep { call: Some(call_id(3)), claim: Some(claim), step }).unwrap();
    for n in [1, 2, 3] {
        assert_eq!(world.run().calls[&call_id(n)].outcome, Some(Outcome::Succeeded), "{n}");
    }
    assert_eq!(world.run().children[&run_id(9)].call, Some(call_id(2)));
    let commit = |call| Command::Patch {
        claim,
        patch: value(json!({})),
        expected_version: 0,
        call: Some(call_id(call)),
    };
    assert_eq!(world.refused(worker("w1"), commit(1)), "no_such_call");
    world.ask(worker("w1"), commit(4)).unwrap();
}

#[test]
fn a_step_that_dies_in_the_same_read_each_time_ends_as_failed() {
    let mut world = World::one_step();
    let claim = world.claim(1, "w1").unwrap();
    world.open_call(claim, 1, &read_call("0", "search"), json!({}));
    world.start_call(claim, 1);
    world.tick(30_000);
    world.ask(system(), Command::Recover { step: step_id(1) }).unwrap();
    for _ in 0..3 {
        let claim = world.claim(1, "w1").unwrap();
        world.start_call(claim, 1);
        world.tick(30_000);
        world.ask(system(), Command::Recover { step: step_id(1) }).unwrap();
    }
    assert_eq!(world.run().status(), RunStatus::Failed);
}

#[test]
fn a_retried_run_reads_again_what_failed_it_and_a_retried_child_reports_again() {
    let (mut world, claim) = World::claimed();
    world.open_call(claim, 1, &read_call("0", "search"), json!({}));
    world.start_call(claim, 1);
    world.settle_call(claim, 1, EffectStatus::Failed);
    let failed = Command::Fail { claim, failure: failure(false), message: None, ended_by: vec![call_id(1)] };
    world.ask(worker("w1"), failed).unwrap();
    world.ask(dana(), Command::RetryRun { reason: None }).unwrap();
    assert!(world.run().calls[&call_id(1)].rerun);
}

#[test]
fn a_child_gets_no_more_than_its_parent_has_left() {
    let mut world = World::empty();
    let budget = Budget {
        children: None,
        concurrency: None,
        mailbox: None,
        memory_bytes: None,
        on_exceeded: OnExceeded::Refuse,
        tokens: None,
        tool_calls: None,
        usd_micros: Some(100),
        wall_ms: None,
    };
    let run = Box::new(NewRun { budget: Some(budget), parent: Some(run_id(8)), ..new_run(1) });
    world.ask(dana(), Command::Create { run, steps: vec![new_step(1, &[])] }).unwrap();
    let claim = world.claim(1, "w1").unwrap();
    let spawn = |n, usd| Command::Spawn {
        call: None,
        claim,
        child: run_id(n),
        agent: name("child"),
        input: value(json!(1)),
        escrow: Amounts { usd_micros: Some(usd), ..Amounts::default() },
        on_parent_end: OnParentEnd::HandOn,
    };
    assert_eq!(world.refused(worker("w1"), spawn(5, 101)), "budget_exceeded");
    world.ask(worker("w1"), spawn(5, 60)).unwrap();
    assert_eq!(world.refused(worker("w1"), spawn(6, 41)), "budget_exceeded");
    let frame = world.ask(worker("w1"), complete(claim)).unwrap();
    let EnvelopeBody::ChildEnded { returned, .. } = &frame.envelopes[0].body else {
        panic!("the parent is told")
    };
    assert_eq!(returned.usd_micros, Some(40), "what a grandchild holds is not left over");
}

/// A run with one step that is claimed, and a budget of so many tool calls and children.
fn bounded(tool_calls: Option<u64>, children: Option<u64>) -> (World, Claim) {
    child_of(None, tool_calls, children)
}

fn child_of(
    parent: Option<holdfast_core::ids::RunId>,
    tool_calls: Option<u64>,
    children: Option<u64>,
) -> (World, Claim) {
    let mut world = World::empty();
    let budget = Budget {
        children,
        concurrency: None,
        mailbox: None,
        memory_bytes: None,
        on_exceeded: OnExceeded::Ask,
        tokens: None,
        tool_calls,
        usd_micros: None,
        wall_ms: None,
    };
    let run = Box::new(NewRun { budget: Some(budget), parent, ..new_run(1) });
    world.ask(dana(), Command::Create { run, steps: vec![new_step(1, &[])] }).unwrap();
    let claim = world.claim(1, "w1").unwrap();
    (world, claim)
}

fn child(claim: Claim, n: u8, escrow: Amounts) -> Command {
    let (agent, input, on_parent_end) = (name("child"), value(json!(1)), OnParentEnd::End);
    Command::Spawn { call: None, claim, child: run_id(n), agent, input, escrow, on_parent_end }
}

#[test]
fn a_child_has_a_bound_wherever_its_parent_has_one() {
    let (mut world, claim) = bounded(Some(5), None);
    world.ask(worker("w1"), child(claim, 5, Amounts::default())).unwrap();
    let nothing = Amounts { tool_calls: Some(0), ..Amounts::default() };
    assert_eq!(given(&world), nothing, "what it was not given, it does not have");
    let (mut world, claim) = World::claimed();
    world.ask(worker("w1"), child(claim, 5, Amounts::default())).unwrap();
    assert_eq!(given(&world), Amounts::default(), "a run without a budget bounds nothing");
}

/// The slice of the newest child.
fn given(world: &World) -> Amounts {
    let spawned = world.journal.records().iter().rev().find_map(|record| match &record.body {
        Body::ChildSpawned(body) => Some(body.escrow.clone()),
        _ => None,
    });
    spawned.unwrap()
}

#[test]
fn a_child_itself_is_charged_and_never_returned() {
    let (mut world, claim) = bounded(None, Some(3));
    let with = |children| Amounts { children: Some(children), ..Amounts::default() };
    assert_eq!(world.refused(worker("w1"), child(claim, 5, with(3))), "budget_exceeded");
    world.ask(worker("w1"), child(claim, 5, with(1))).unwrap();
    assert_eq!(world.refused(worker("w1"), child(claim, 6, with(1))), "budget_exceeded");
    let body = EnvelopeBody::ChildEnded {
        failure: None,
        reason: EndReason::Normal,
        result: None,
        returned: with(1),
        status: EndStatus::Completed,
    };
    let id = holdfast_core::ids::EnvelopeId::new(1, [1; 10]);
    let envelope = Box::new(Envelope { body, from: run_id(5).into(), id, to: run_id(1) });
    world.ask(system(), Command::Deliver { envelope }).unwrap();
    assert_eq!(world.run().spending.used.children, Some(1));
    world.ask(worker("w1"), child(claim, 6, with(1))).unwrap();
    assert_eq!(world.refused(worker("w1"), child(claim, 7, with(0))), "budget_exceeded");
}

#[test]
fn a_child_that_is_tried_again_has_nothing_of_what_it_gave_back() {
    for parent in [None, Some(run_id(8))] {
        let (mut world, claim) = child_of(parent, Some(5), None);
        world.ask(worker("w1"), fail(claim, false)).unwrap();
        world.ask(dana(), Command::RetryRun { reason: None }).unwrap();
        let one = Amounts { tool_calls: Some(1), ..Amounts::default() };
        assert_eq!(world.run().affords(&one), parent.is_none());
    }
}

#[test]
fn a_person_gives_more_of_what_is_bounded_and_whoever_waited_goes_on() {
    let (mut world, claim) = bounded(Some(0), None);
    let raise = |amounts| Command::Raise { amounts, reason: Some(value(json!("worth it"))) };
    let calls = |n| Amounts { tool_calls: Some(n), ..Amounts::default() };
    world.ask(worker("w1"), wait(claim, vec![wait_for(WaitOn::Budget, None, None)])).unwrap();
    assert_eq!(world.refused(worker("w1"), raise(calls(2))), "not_a_person");
    for nothing in [Amounts::default(), calls(0), Amounts { tokens: Some(5), ..calls(2) }] {
        assert_eq!(world.refused(dana(), raise(nothing)), "budget_unlimited");
    }
    assert_eq!(world.wrote(dana(), raise(calls(2))), ["budget.raised", "step.woken"]);
    assert_eq!(world.wrote(dana(), raise(calls(1))), ["budget.raised"]);
    assert_eq!(world.run().limits(), calls(3));
    assert_eq!(world.run().left_over(), calls(0), "what a person gave is not the parent's");
    assert!(world.run().affords(&calls(3)) && !world.run().affords(&calls(4)));
    let (mut unbounded, _) = World::claimed();
    assert_eq!(unbounded.refused(dana(), raise(calls(2))), "budget_unlimited");
}

#[test]
fn a_worker_without_a_claim_adds_no_step_and_ends_no_run() {
    let mut world = World::one_step();
    let add = Command::AddStep { call: None, claim: None, step: Box::new(new_step(2, &[])) };
    assert_eq!(world.refused(worker("w1"), add.clone()), "claim_needed");
    assert_eq!(world.refused(worker("w1"), Command::End { reason: EndReason::Killed }), "not_a_person");
    assert_eq!(world.wrote(dana(), add), ["step.created"]);
    let wrote = world.wrote(system(), Command::End { reason: EndReason::Killed });
    assert_eq!(wrote, ["step.cancelled", "step.cancelled", "run.finished"]);
}

#[test]
fn a_fork_opens_again_what_failed_before_the_cut() {
    let (mut world, claim) = World::claimed();
    world.ask(worker("w1"), fail(claim, false)).unwrap();
    let cut = world.run().head.seq - 1;
    assert_eq!(world.journal.records()[usize::try_from(cut).unwrap() - 1].kind(), "step.failed");
    let fork = Command::Fork {
        run: run_id(2),
        labels: Labels::new(),
        package: package("1"),
        effects: ForkEffects::Serve,
        reason: None,
    };
    let mut forked = World { journal: world.journal.fork_at(cut).unwrap(), ..world };
    forked.ask(dana(), fork).unwrap();
    let claim = forked.claim(1, "w2").unwrap();
    assert_eq!(forked.wrote(worker("w2"), complete(claim)), ["step.completed", "run.finished"]);
}

#[test]
fn a_fork_is_not_cut_while_a_child_is_open() {
    let (mut world, claim) = World::claimed();
    let spawn = Command::Spawn {
        call: None,
        claim,
        child: run_id(9),
        agent: name("child"),
        input: value(json!(1)),
        escrow: Amounts::default(),
        on_parent_end: OnParentEnd::HandOn,
    };
    let before = world.run().head.seq;
    world.ask(worker("w1"), spawn).unwrap();
    let fork = |run| Command::Fork {
        run,
        labels: Labels::new(),
        package: package("1"),
        effects: ForkEffects::Serve,
        reason: None,
    };
    let cut = |at| World { journal: world.journal.fork_at(at).unwrap(), ..world.clone() };
    assert_eq!(cut(world.run().head.seq).refused(dana(), fork(run_id(2))), "bad_fork_point");
    assert_eq!(cut(before).wrote(dana(), fork(run_id(2))), ["run.forked"]);
}

#[test]
fn after_a_restore_every_open_step_waits_for_a_person_and_what_was_sent_off_is_in_doubt() {
    let (mut world, claim) = World::claimed();
    let asked = write_call("0", "refund", &json!({"order": "42"}));
    world.open_call(claim, 1, &asked, json!({"order": "42"}));
    world.start_call(claim, 1);
    assert_eq!(world.refused(dana(), Command::Restored {}), "not_a_person");
    let kinds = world.wrote(system(), Command::Restored {});
    assert_eq!(kinds, ["lease.expired", "effect.doubted", "step.waiting"]);
    assert_eq!(world.run().status(), RunStatus::Waiting);
    assert_eq!(world.wrote(system(), Command::Restored {}), Vec::<String>::new());
    assert_eq!(world.refused(worker("w1"), complete(claim)), "stale_fence");
    let resume = || Command::Resume { package: package("1"), reason: None };
    assert_eq!(world.wrote(dana(), resume()), ["run.resumed", "step.woken"]);
}

#[test]
fn after_a_restore_a_step_that_waited_for_something_else_waits_for_the_person_first() {
    let (mut world, claim) = World::claimed();
    world.ask(worker("w1"), wait(claim, vec![wait_for(WaitOn::Signal, Some("go"), None)])).unwrap();
    assert_eq!(world.wrote(system(), Command::Restored {}), ["step.woken", "step.waiting"]);
    let go = Command::Signal { name: name("go"), payload: value(json!(1)) };
    assert_eq!(world.wrote(dana(), go), ["signal.received"]);
    assert_eq!(world.step(1).waits, [wait_for(WaitOn::Restored, None, None)]);
}

#[test]
fn only_contents_of_an_ended_run_are_erased() {
    let mut world = World::one_step();
    let erase = || Command::Erase { commits: vec![digest("x")], reason: None };
    assert_eq!(world.refused(dana(), erase()), "run_open");
    world.ask(dana(), Command::End { reason: EndReason::Killed }).unwrap();
    assert_eq!(world.wrote(dana(), erase()), ["content.erased"]);
}
