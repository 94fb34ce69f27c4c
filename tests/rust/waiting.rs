//! Waiting is a state: what a step waits for, who may answer, and what wakes it.
#![allow(clippy::as_conversions, clippy::expect_used, clippy::panic, clippy::unwrap_used)]

mod world;

use holdfast_core::ids::EnvelopeId;
use holdfast_core::records::*;
use holdfast_core::run::*;
use holdfast_core::state::Outcome;
use serde_json::json;
use world::commands::*;
use world::*;

#[test]
fn a_wait_frees_the_step_and_only_its_answer_wakes_it() {
    let (mut world, claim) = World::claimed();
    let until = world.now.wall_ms + 5000;
    let waits = vec![wait_for(WaitOn::Signal, Some("go"), None), wait_for(WaitOn::Timer, None, Some(until))];
    assert_eq!(world.wrote(worker("w1"), wait(claim, waits)), ["step.waiting"]);
    assert_eq!(world.run().status(), RunStatus::Waiting);
    assert!(world.journal.leases.is_empty());
    let wake = |on, subject: Option<&str>| Command::Wake { step: step_id(1), on, subject: subject.map(key) };
    assert_eq!(world.refused(system(), wake(WaitOn::Timer, None)), "not_answered");
    assert_eq!(world.refused(system(), wake(WaitOn::Signal, Some("go"))), "not_answered");
    assert_eq!(world.refused(system(), wake(WaitOn::Child, None)), "not_waiting");
    assert_eq!(world.refused(worker("w1"), complete(claim)), "stale_fence");

    let mut timer = world.clone();
    timer.tick(5000);
    assert_eq!(timer.wrote(system(), wake(WaitOn::Timer, None)), ["step.woken"]);

    let signal = |n: &str| Command::Signal { name: name(n), payload: value(json!(1)) };
    assert_eq!(world.wrote(dana(), signal("other")), ["signal.received"]);
    assert_eq!(world.wrote(dana(), signal("go")), ["signal.received", "step.woken"]);
    let claim = world.claim(1, "w1").unwrap();
    let again = wait(claim, vec![wait_for(WaitOn::Signal, Some("go"), None)]);
    assert_eq!(world.refused(worker("w1"), again), "wait_over", "the signal is there: no wake-up is lost");
}

#[test]
fn every_kind_of_wait_has_an_answer_that_wakes_it() {
    let child = run_id(9).to_string();
    let spawn = |claim| Command::Spawn {
        call: None,
        claim,
        child: run_id(9),
        agent: name("c"),
        input: value(json!(1)),
        escrow: Amounts { usd_micros: Some(100), ..Amounts::default() },
        on_parent_end: OnParentEnd::End,
    };
    let envelope = |n: u8, body| {
        let id = EnvelopeId::new(1, [n; 10]);
        Command::Deliver { envelope: Box::new(Envelope { body, from: run_id(9).into(), id, to: run_id(1) }) }
    };
    let ended = EnvelopeBody::ChildEnded {
        failure: None,
        reason: EndReason::Normal,
        result: Some(value(json!(2))),
        returned: Amounts { usd_micros: Some(40), ..Amounts::default() },
        status: EndStatus::Completed,
    };
    let message = EnvelopeBody::Message { content: value(json!("hi")), correlation: None, reply_to: None };

    let (mut world, claim) = World::claimed();
    assert_eq!(world.wrote(worker("w1"), spawn(claim)), ["child.spawned", "budget.escrowed"]);
    assert_eq!(world.refused(worker("w1"), spawn(claim)), "child_exists");
    world.ask(worker("w1"), wait(claim, vec![wait_for(WaitOn::Child, Some(&child), None)])).unwrap();
    let wrote = world.wrote(system(), envelope(1, ended.clone()));
    assert_eq!(wrote, ["envelope.received", "child.ended", "budget.returned", "step.woken"]);
    assert_eq!(world.run().spending.used.usd_micros, Some(60));
    assert_eq!(world.wrote(system(), envelope(1, ended.clone())), Vec::<String>::new(), "delivered twice");
    assert_eq!(world.refused(system(), envelope(2, ended)), "no_such_child");

    let (mut world, claim) = World::claimed();
    world.ask(worker("w1"), wait(claim, vec![wait_for(WaitOn::Message, None, None)])).unwrap();
    let wrote = world.wrote(system(), envelope(1, message));
    assert_eq!(wrote, ["envelope.received", "message.received", "step.woken"]);

    let (mut world, claim) = World::claimed();
    world.ask(worker("w1"), wait(claim, vec![wait_for(WaitOn::Key, Some("k"), None)])).unwrap();
    let wake = Command::Wake { step: step_id(1), on: WaitOn::Key, subject: Some(key("k")) };
    assert_eq!(world.refused(system(), wake.clone()), "not_answered");
    world.journal.settled_keys.insert(key("k"));
    assert_eq!(world.wrote(system(), wake), ["step.woken"]);

    for on in [WaitOn::Budget, WaitOn::Restored, WaitOn::Interrupted] {
        let (mut world, claim) = World::claimed();
        world.ask(worker("w1"), wait(claim, vec![wait_for(on, None, None)])).unwrap();
        let wake = Command::Wake { step: step_id(1), on, subject: None };
        assert_eq!(world.refused(system(), wake), "not_answered");
        let resume = || Command::Resume { package: package("1"), reason: None };
        assert_eq!(world.refused(worker("w1"), resume()), "not_a_person");
        assert_eq!(world.wrote(dana(), resume()), ["run.resumed", "step.woken"]);
        assert_eq!(world.refused(dana(), resume()), "not_waiting");
    }
}

#[test]
fn an_approval_wakes_the_step_when_it_is_decided() {
    let (mut world, claim) = World::claimed();
    world.open_call(claim, 1, &write_call("0", "refund", &json!({})), json!({}));
    let approval = holdfast_core::ids::ApprovalId::new(1, [3; 10]);
    let arguments = world.run().calls[&call_id(1)].arguments.clone();
    let asked = ApprovalRequested {
        allowed: vec![],
        approval,
        arguments,
        digest: digest("shown"),
        effect: EffectClass::Write,
        expires_at: world.now.wall_ms + 10_000,
        policy: digest("policy"),
        quorum: 1,
        risk: Risk::High,
        roles: vec![],
        sandbox: SandboxTier::None,
        schema: None,
        tool: name("refund"),
        version: None,
    };
    world.say(claim, 1, asked).unwrap();
    let subject = approval.to_string();
    world.ask(worker("w1"), wait(claim, vec![wait_for(WaitOn::Approval, Some(&subject), None)])).unwrap();
    let wake = Command::Wake { step: step_id(1), on: WaitOn::Approval, subject: Some(key(&subject)) };
    assert_eq!(world.refused(system(), wake.clone()), "not_answered");
    let decided = |digest| ApprovalDecided {
        approval,
        decision: holdfast_core::contracts::approval::ApprovalDecisionKind::Denied,
        digest,
        key_id: None,
        reason: None,
        reason_code: Token::new("approval.denied").unwrap(),
        signature: None,
        voters: vec![dana()],
    };
    let about_other = world.journal.write(vec![Draft::new(decided(digest("other")), dana())], &world.now);
    assert!(about_other.is_err(), "a decision about something else than was shown");
    world.journal.write(vec![Draft::new(decided(digest("shown")), dana())], &world.now).unwrap();
    assert!(world.journal.write(vec![Draft::new(decided(digest("shown")), dana())], &world.now).is_err());
    assert_eq!(world.wrote(system(), wake), ["step.woken"]);
    assert_eq!(world.run().calls[&call_id(1)].outcome, Some(Outcome::DeniedByPerson));
}

#[test]
fn a_doubt_holds_the_step_until_somebody_resolves_it() {
    let (mut world, claim) = World::claimed();
    world.open_call(claim, 1, &write_call("0", "refund", &json!({})), json!({}));
    world.start_call(claim, 1);
    assert_eq!(world.refused(worker("w1"), complete(claim)), "open_write");
    assert_eq!(world.refused(worker("w1"), fail(claim, true)), "open_write");
    let release = Command::Release { claim, reason: ReleaseReason::Shutdown };
    assert_eq!(world.refused(worker("w1"), release), "open_write");
    world.say(claim, 1, EffectDoubted { cause: DoubtCause::Raised, failure: None, over: None }).unwrap();
    assert_eq!(world.refused(worker("w1"), complete(claim)), "open_write");
    let mut doubt = wait_for(WaitOn::Doubt, None, None);
    doubt.call = Some(call_id(1));
    world.ask(worker("w1"), wait(claim, vec![doubt])).unwrap();
    let wake = Command::Wake { step: step_id(1), on: WaitOn::Doubt, subject: None };
    assert_eq!(world.refused(system(), wake.clone()), "not_answered");
    let resolved = EffectResolved {
        external_id: None,
        forced: false,
        reason: None,
        resolution: Resolution::Happened,
        result: None,
        source: ResolvedBy::Operator,
    };
    let mut draft = Draft::new(resolved, dana());
    (draft.step, draft.call, draft.dispatch) = (Some(step_id(1)), Some(call_id(1)), Some(1));
    world.journal.write(vec![draft], &world.now).unwrap();
    assert_eq!(world.wrote(system(), wake), ["step.woken"]);
    let claim = world.claim(1, "w1").unwrap();
    world.ask(worker("w1"), complete(claim)).unwrap();
}

#[test]
fn a_cancel_that_comes_in_an_envelope_counts_once() {
    let (mut world, _) = World::claimed();
    let envelope = |n: u8, to: u8| {
        let id = EnvelopeId::new(1, [n; 10]);
        let envelope = Envelope { body: EnvelopeBody::Cancel {}, from: run_id(8).into(), id, to: run_id(to) };
        Command::Deliver { envelope: Box::new(envelope) }
    };
    assert_eq!(world.refused(system(), envelope(1, 2)), "misaddressed");
    assert_eq!(world.wrote(system(), envelope(1, 1)), ["envelope.received", "run.cancel_requested"]);
    assert_eq!(world.wrote(system(), envelope(2, 1)), ["envelope.received"]);
    let signal = EnvelopeBody::Signal { name: name("go"), payload: value(json!(1)) };
    let id = EnvelopeId::new(1, [3; 10]);
    let envelope = Envelope { body: signal, from: run_id(8).into(), id, to: run_id(1) };
    let wrote = world.wrote(system(), Command::Deliver { envelope: Box::new(envelope) });
    assert_eq!(wrote, ["envelope.received", "signal.received"]);
}

#[test]
fn a_paused_run_is_not_claimed_and_goes_on_when_unpaused() {
    let (mut world, claim) = World::claimed();
    let pause = || Command::Pause { reason: None };
    let unpause = || Command::Unpause { reason: None };
    assert_eq!(world.refused(dana(), unpause()), "not_paused");
    assert_eq!(world.wrote(dana(), pause()), ["run.paused"]);
    assert_eq!(world.refused(dana(), pause()), "run_paused");
    assert_eq!(world.run().status(), RunStatus::Paused);
    world.ask(worker("w1"), wait(claim, vec![wait_for(WaitOn::Paused, None, None)])).unwrap();
    assert_eq!(world.wrote(dana(), unpause()), ["run.unpaused", "step.woken"]);
    world.ask(dana(), pause()).unwrap();
    assert_eq!(world.refused(worker("w1"), claim_as(1, "w1", "1", false)), "run_paused");
    world.ask(dana(), unpause()).unwrap();
    world.claim(1, "w1").unwrap();
}

#[test]
fn another_package_is_recorded_or_waits_for_a_person() {
    let mut world = World::one_step();
    assert_eq!(world.wrote(worker("w1"), claim_as(1, "w1", "2", false)), ["run.resumed", "step.claimed"]);
    assert_eq!(world.run().package, package("2"));

    let mut world = World::one_step();
    assert_eq!(world.wrote(worker("w1"), claim_as(1, "w1", "2", true)), ["step.waiting"]);
    let decide =
        |decision| Command::DecidePackage { step: step_id(1), decision, package: package("2"), reason: None };
    assert_eq!(world.refused(worker("w1"), decide(PackageDecision::Continue)), "not_a_person");
    let mut refusing = world.clone();
    let wrote = refusing.wrote(dana(), decide(PackageDecision::Refuse));
    assert_eq!(wrote, ["package.decided", "step.cancelled", "run.finished"]);
    let mut waiting = world.clone();
    assert_eq!(waiting.wrote(dana(), decide(PackageDecision::Wait)), ["package.decided"]);
    assert_eq!(waiting.run().package, package("1"));
    assert_eq!(world.wrote(dana(), decide(PackageDecision::Continue)), ["package.decided", "step.woken"]);
    assert_eq!(world.refused(dana(), decide(PackageDecision::Continue)), "not_waiting");
    assert_eq!(world.wrote(worker("w1"), claim_as(1, "w1", "2", true)), ["step.claimed"]);
}

#[test]
fn a_divergence_waits_for_a_person_who_retries_accepts_or_forks() {
    let (mut world, claim) = World::claimed();
    world.open_call(claim, 1, &write_call("0", "refund", &json!({})), json!({}));
    world.start_call(claim, 1);
    world.settle_call(claim, 1, EffectStatus::Succeeded);
    world.ask(worker("w1"), wait(claim, vec![wait_for(WaitOn::Divergence, None, None)])).unwrap();
    let decide = |decision, unclaimed: &[u8]| Command::DecideDivergence {
        step: step_id(1),
        decision,
        unclaimed: unclaimed.iter().map(|n| call_id(*n)).collect(),
        reason: None,
    };
    assert_eq!(world.refused(worker("w1"), decide(DivergenceDecision::Retry, &[])), "not_a_person");
    let mut retried = world.clone();
    assert_eq!(
        retried.wrote(dana(), decide(DivergenceDecision::Retry, &[])),
        ["replay.decided", "step.woken"]
    );
    let mut forked = world.clone();
    assert_eq!(forked.wrote(dana(), decide(DivergenceDecision::Fork, &[])), ["replay.decided"]);
    assert_eq!(world.refused(dana(), decide(DivergenceDecision::Accept, &[7])), "no_such_call");
    let wrote = world.wrote(dana(), decide(DivergenceDecision::Accept, &[1]));
    assert_eq!(wrote, ["replay.decided", "call.abandoned", "step.woken"]);
    assert_eq!(world.refused(dana(), decide(DivergenceDecision::Retry, &[])), "not_waiting");
}

#[test]
fn a_wait_names_what_can_end_it_and_gives_up_when_it_says_so() {
    let (mut world, claim) = World::claimed();
    for bad in [WaitOn::Timer, WaitOn::Signal, WaitOn::Child, WaitOn::Approval, WaitOn::Key, WaitOn::Doubt] {
        let waits = wait(claim, vec![wait_for(bad, None, None)]);
        assert_eq!(world.refused(worker("w1"), waits), "bad_wait", "{bad}");
    }
    assert_eq!(
        world.refused(worker("w1"), wait(claim, vec![wait_for(WaitOn::Paused, None, None)])),
        "wait_over",
        "the run is not paused, so nothing would end the wait"
    );
    let (soon, later) = (world.now.wall_ms + 10, world.now.wall_ms + 1000);
    let mut waits = vec![wait_for(WaitOn::Signal, Some("go"), Some(soon))];
    waits.push(wait_for(WaitOn::Timer, None, Some(later)));
    waits.push(wait_for(WaitOn::Timer, None, Some(soon)));
    world.ask(worker("w1"), wait(claim, waits)).unwrap();
    let wake = |on, subject: Option<&str>| Command::Wake { step: step_id(1), on, subject: subject.map(key) };
    assert_eq!(world.refused(system(), wake(WaitOn::Timer, None)), "not_answered");
    world.tick(10);
    let mut gave_up = world.clone();
    assert_eq!(gave_up.wrote(system(), wake(WaitOn::Signal, Some("go"))), ["step.woken"]);
    assert_eq!(world.wrote(system(), wake(WaitOn::Timer, None)), ["step.woken"], "the second timer is due");
}

#[test]
fn every_step_that_waits_for_a_child_wakes_and_the_child_may_end_once_more_after_a_failure() {
    let mut world = World::with_steps(&[(1, &[]), (2, &[])]);
    let (one, two) = (world.claim(1, "w1").unwrap(), world.claim(2, "w2").unwrap());
    let spawn = Command::Spawn {
        call: None,
        claim: one,
        child: run_id(9),
        agent: name("c"),
        input: value(json!(1)),
        escrow: Amounts::default(),
        on_parent_end: OnParentEnd::End,
    };
    world.ask(worker("w1"), spawn).unwrap();
    let child = run_id(9).to_string();
    for (claim, by) in [(one, "w1"), (two, "w2")] {
        world.ask(worker(by), wait(claim, vec![wait_for(WaitOn::Child, Some(&child), None)])).unwrap();
    }
    let ended = |n: u8, status| {
        let returned = Amounts::default();
        let body = EnvelopeBody::ChildEnded {
            failure: None,
            reason: EndReason::Fault,
            result: None,
            returned,
            status,
        };
        let id = EnvelopeId::new(1, [n; 10]);
        Command::Deliver { envelope: Box::new(Envelope { body, from: run_id(9).into(), id, to: run_id(1) }) }
    };
    let wrote = world.wrote(system(), ended(1, EndStatus::Failed));
    assert_eq!(wrote, ["envelope.received", "child.ended", "step.woken", "step.woken"]);
    world.ask(system(), ended(2, EndStatus::Completed)).unwrap();
    assert_eq!(world.refused(system(), ended(3, EndStatus::Completed)), "no_such_child");
}

#[test]
fn a_write_in_doubt_is_not_abandoned_by_accepting_a_divergence() {
    let (mut world, claim) = World::claimed();
    world.open_call(claim, 1, &write_call("0", "refund", &json!({})), json!({}));
    world.start_call(claim, 1);
    world.say(claim, 1, EffectDoubted { cause: DoubtCause::Raised, failure: None, over: None }).unwrap();
    world.ask(worker("w1"), wait(claim, vec![wait_for(WaitOn::Divergence, None, None)])).unwrap();
    let accept = Command::DecideDivergence {
        step: step_id(1),
        decision: DivergenceDecision::Accept,
        unclaimed: vec![call_id(1)],
        reason: None,
    };
    assert_eq!(world.refused(dana(), accept), "open_write");
}
