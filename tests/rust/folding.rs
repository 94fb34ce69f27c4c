//! The fold and its tables: what is legal, what is served again, what a forger cannot write.
#![allow(clippy::as_conversions, clippy::expect_used, clippy::panic, clippy::unwrap_used)]

mod world;

use holdfast_core::content::{Openings, erase};
use holdfast_core::ids::{StoreId, StreamId};
use holdfast_core::journal::Journal;
use holdfast_core::records::*;
use holdfast_core::run::*;
use holdfast_core::state::{Illegal, Outcome, Replay, Situation, State, replay};
use holdfast_core::transitions::{RunEvent, RunPhase, StepEvent, run_after, step_after};
use serde_json::json;
use world::commands::*;
use world::*;

#[test]
fn a_stream_of_a_newer_holdfast_is_read_and_never_changed() {
    let (world, claim) = World::claimed();
    let mut records = world.journal.records().to_vec();
    let newer = Record {
        body: Body::Unknown("run.teleported".into(), Box::new(json!({"where": "mars"}))),
        seq: records.len() as u64 + 1,
        prev: records.last().unwrap().hash().unwrap(),
        ..records.last().unwrap().clone()
    };
    records.push(Record { step: None, fence: None, ..newer });
    let state =
        holdfast_core::state::fold(store_id(), &records, &world.journal.openings, None).unwrap().unwrap();
    let view = View { state: state.as_run(), epoch: 1, ..View::default() };
    let entropy = holdfast_core::entropy::Entropy([1; 32]);
    let request = Request { by: worker("w1"), command: complete(claim), entropy };
    assert_eq!(decide(&view, &request, &world.now), Err(Refused::NewerFormat));

    let mut tree = holdfast_core::canonical::to_value(records.last().unwrap()).unwrap();
    (tree["v"], tree["colour"], tree["by"]) = (json!(2), json!("red"), json!("somebody"));
    let text = holdfast_core::canonical::to_bytes(&tree).unwrap();
    let mut texts = world.texts();
    texts.push(text.clone());
    let state = Journal::audit(store_id(), run_id(1), &texts, &world.journal.openings, None, None).unwrap();
    assert!(
        state.as_ref().and_then(State::as_run).unwrap().newer,
        "a version that adds fields is verified, not changed"
    );
    assert_eq!(Record::parse(&text).unwrap().bytes().unwrap(), text);
}

/// The next record of a journal, as a forger who knows the format would write it.
fn forged(world: &World, change: impl FnOnce(&mut Draft)) -> Result<(), Illegal> {
    let last = world.journal.records().last().unwrap();
    let patch = world.journal.records().iter().find_map(|record| match &record.body {
        Body::StatePatched(patched) => Some(patched.patch.clone()),
        _ => None,
    });
    let body = StatePatched { base: 1, next: 2, patch: patch.expect("a patch in the journal") };
    let mut draft = Draft::new(body, worker("w1"));
    (draft.step, draft.fence) = (Some(step_id(1)), world.step(1).fence);
    change(&mut draft);
    let record = Record::place(draft, last.stream, last.seq + 1, last.at, last.hash().unwrap());
    world.journal.state().unwrap().clone().apply(&record, &world.journal.openings)
}

#[test]
fn the_fold_refuses_what_no_decision_would_have_written() {
    let (mut world, claim) = World::claimed();
    world.ask(worker("w1"), patch(claim, 0)).unwrap();
    assert_eq!(forged(&world, |_| {}), Ok(()), "a record in its place is taken");
    let refused = |change: &dyn Fn(&mut Draft)| forged(&world, change).expect_err("illegal").why;
    let version = |base, next| {
        move |draft: &mut Draft| {
            if let Body::StatePatched(patched) = &mut draft.body {
                (patched.base, patched.next) = (base, next);
            }
        }
    };
    assert_eq!(refused(&version(0, 1)), "it patches another version");
    assert_eq!(refused(&version(1, 3)), "it patches another version");
    assert_eq!(refused(&|draft| draft.fence = Some(Fence(1, 7))), "its fence does not hold");
    assert_eq!(refused(&|draft| draft.fence = Some(Fence(0, 1))), "its fence does not hold");
    assert_eq!(refused(&|draft| draft.step = None), "it belongs to no step");
    assert_eq!(refused(&|draft| draft.fence = None), "a worker's record has a fence");
    assert_eq!(refused(&|draft| draft.body = StepWoken { on: WaitOn::Timer, subject: None }.into()), STATUS);
    assert_eq!(
        refused(&|draft| draft.body = RunUnpaused { reason: None }.into()),
        "the run's status does not allow it"
    );
    let claimed = StepClaimed { lease_ms: 1000, state_version: 1, worker: name("w2") };
    assert_eq!(refused(&|draft| draft.body = claimed.clone().into()), "its fence does not hold");
    let mut ended = world.clone();
    ended.ask(worker("w1"), complete(claim)).unwrap();
    assert_eq!(forged(&ended, |_| {}).expect_err("illegal").why, "only evidence may follow the end");
}

#[test]
fn a_write_is_dispatched_again_only_under_its_key_and_only_if_the_key_protects() {
    let send = |ttl, again_key: &str, dispatch: u32| {
        let (mut world, claim) = World::claimed();
        world.open_call(claim, 1, &write_call("0", "refund", &json!({})), json!({}));
        let permit = |world: &mut World, key_text: &str, ttl, dispatch| {
            let mut draft = Draft::new(world.permit(1, key_text, ttl), worker("w1"));
            (draft.step, draft.fence, draft.call) = (Some(claim.step), Some(claim.fence), Some(call_id(1)));
            draft.dispatch = Some(dispatch);
            world.journal.write(vec![draft], &world.now).map(|_| ())
        };
        permit(&mut world, "hf_1", ttl, 1).unwrap();
        assert!(permit(&mut world, "hf_1", ttl, 2).is_err(), "it is still on its way");
        world.say(claim, 1, EffectDoubted { cause: DoubtCause::Raised, failure: None, over: None }).unwrap();
        permit(&mut world, again_key, Some(1000), dispatch).is_ok()
    };
    assert!(send(Some(1000), "hf_1", 2));
    assert!(!send(Some(1000), "hf_2", 2), "under another key it would be another refund");
    assert!(!send(Some(1000), "hf_1", 1), "a dispatch has its own number");
    assert!(!send(None, "hf_1", 2), "nobody promised that the key protects");
}

#[test]
fn what_is_said_about_an_effect_is_said_about_its_newest_dispatch() {
    let settled = |status| EffectSettled {
        elapsed_ms: 1,
        external_id: None,
        failure: None,
        output_error: None,
        result: None,
        status,
        unruled: None,
        usage: None,
    };
    let twice = || {
        let (mut world, claim) = World::claimed();
        world.open_call(claim, 1, &write_call("0", "refund", &json!({})), json!({}));
        world.start_call(claim, 1);
        world.settle_call(claim, 1, EffectStatus::NoEffect);
        world.start_call(claim, 1);
        (world, claim)
    };
    let say_in = |world: &mut World, claim: Claim, dispatch, body: Body| {
        let mut draft = Draft::new(body, worker("w1"));
        (draft.step, draft.fence, draft.call) = (Some(claim.step), Some(claim.fence), Some(call_id(1)));
        draft.dispatch = Some(dispatch);
        world.journal.write(vec![draft], &world.now).is_ok()
    };
    let say = |dispatch, body: Body| {
        let (mut world, claim) = twice();
        say_in(&mut world, claim, dispatch, body)
    };
    let doubted = || Body::from(EffectDoubted { cause: DoubtCause::Raised, failure: None, over: None });
    let late = || {
        let status = EffectStatus::NoEffect;
        Body::from(EffectLate { external_id: None, failure: None, result: None, status })
    };
    assert!(say(2, doubted()) && !say(1, doubted()));
    assert!(!say(2, late()), "nothing that is still on its way is late");
    let (mut world, claim) = twice();
    assert!(say_in(&mut world, claim, 2, doubted()));
    assert!(!say_in(&mut world, claim, 1, late()) && say_in(&mut world, claim, 2, late()));
    assert!(
        say(2, settled(EffectStatus::Succeeded).into()) && !say(1, settled(EffectStatus::Succeeded).into())
    );
    assert!(!say(2, settled(EffectStatus::TimedOut).into()), "a write that timed out is in doubt");
    let resolved = |resolution| EffectResolved {
        external_id: None,
        forced: false,
        reason: None,
        resolution,
        result: None,
        source: ResolvedBy::LateReport,
    };
    let (mut world, claim) = twice();
    world.say(claim, 1, doubted()).unwrap();
    assert!(world.say(claim, 1, resolved(Resolution::Late)).is_err(), "there is no late report");
    world.say(claim, 1, late()).unwrap();
    world.say(claim, 1, resolved(Resolution::Late)).unwrap();
    assert_eq!(world.run().calls[&call_id(1)].outcome, Some(Outcome::NoEffect));
}

#[test]
fn a_resolution_after_the_end_counts_when_the_run_is_retried() {
    let mut world = World::with_steps(&[(1, &[]), (2, &[])]);
    let (one, two) = (world.claim(1, "w1").unwrap(), world.claim(2, "w2").unwrap());
    world.open_call(two, 1, &write_call("0", "refund", &json!({})), json!({}));
    world.start_call(two, 1);
    world.ask(worker("w1"), fail(one, false)).unwrap();
    let resolved = EffectResolved {
        external_id: None,
        forced: false,
        reason: None,
        resolution: Resolution::Happened,
        result: None,
        source: ResolvedBy::Operator,
    };
    let mut draft = Draft::new(resolved, dana());
    (draft.step, draft.call, draft.dispatch) = (Some(step_id(2)), Some(call_id(1)), Some(1));
    world.journal.write(vec![draft], &world.now).unwrap();
    assert_eq!(world.run().status(), RunStatus::Failed);
    world.ask(dana(), Command::RetryRun { reason: None }).unwrap();
    assert_eq!(world.run().calls[&call_id(1)].outcome, Some(Outcome::Succeeded));
}

const STATUS: &str = "the step's status does not allow it";

#[test]
fn erased_content_leaves_a_run_that_verifies_and_a_state_that_is_gone() {
    let (mut world, claim) = World::claimed();
    world.ask(worker("w1"), patch(claim, 0)).unwrap();
    world.ask(worker("w1"), complete(claim)).unwrap();
    let commits: Vec<_> = world.journal.openings.keys().copied().collect();
    assert_eq!(world.journal.erase(&commits, dana(), &world.now.clone()).unwrap(), commits.len());
    assert_eq!(erase(&mut world.journal.openings.clone(), &commits), 0);
    let state =
        Journal::audit(store_id(), run_id(1), &world.texts(), &world.journal.openings, None, None).unwrap();
    let run = state.as_ref().and_then(State::as_run).unwrap();
    assert_eq!((run.state.clone(), run.state_version, run.status()), (None, 1, RunStatus::Completed));
}

#[test]
fn the_transition_tables_allow_exactly_this() {
    let legal: Vec<String> = StepStatus::ALL
        .iter()
        .flat_map(|from| StepEvent::ALL.iter().map(move |event| (from, event, step_after(*from, *event))))
        .filter_map(|(from, event, to)| to.map(|to| format!("{from} {event:?} {to}")))
        .collect();
    assert_eq!(
        legal,
        [
            "pending Claimed running",
            "pending Waiting waiting",
            "pending Failed failed",
            "pending Cancelled cancelled",
            "running Expired pending",
            "running Released pending",
            "running RetryScheduled retry_scheduled",
            "running Waiting waiting",
            "running Completed completed",
            "running Failed failed",
            "running Cancelled cancelled",
            "waiting Woken pending",
            "waiting Cancelled cancelled",
            "retry_scheduled Claimed running",
            "retry_scheduled Waiting waiting",
            "retry_scheduled Cancelled cancelled",
            "failed Reopened pending",
            "cancelled Reopened pending",
        ]
    );
    let legal: Vec<String> = RunPhase::ALL
        .iter()
        .flat_map(|from| RunEvent::ALL.iter().map(move |event| (from, event, run_after(*from, *event))))
        .filter_map(|(from, event, to)| to.map(|to| format!("{from:?} {event:?} {to:?}")))
        .collect();
    assert_eq!(
        legal,
        [
            "Open Paused Paused",
            "Open CancelRequested Open",
            "Open Finished(Completed) Completed",
            "Open Finished(Failed) Failed",
            "Open Finished(Cancelled) Cancelled",
            "Paused Unpaused Open",
            "Paused CancelRequested Paused",
            "Paused Finished(Completed) Completed",
            "Paused Finished(Failed) Failed",
            "Paused Finished(Cancelled) Cancelled",
            "Failed Retried Open",
        ]
    );
}

#[test]
fn the_replay_table_is_the_one_of_the_design() {
    let situations = [
        Situation::Resumed,
        Situation::Retried { ended_attempt: false, write_after: false },
        Situation::Retried { ended_attempt: true, write_after: true },
        Situation::Retried { ended_attempt: true, write_after: false },
        Situation::RunRetried,
    ];
    for outcome in Outcome::ALL {
        let row = situations.map(|situation| replay(*outcome, situation));
        let expected = match outcome {
            Outcome::NoEffect => [Replay::RunAgain; 5],
            Outcome::ReadFailed => {
                [Replay::Served, Replay::Served, Replay::Served, Replay::RunAgain, Replay::Served]
            }
            Outcome::Conflict => {
                [Replay::Served, Replay::Served, Replay::RunAgain, Replay::RunAgain, Replay::Served]
            }
            Outcome::DeniedByRule => {
                [Replay::Served, Replay::Served, Replay::Served, Replay::Served, Replay::AskedAgain]
            }
            _ => [Replay::Served; 5],
        };
        assert_eq!(row, expected, "{outcome:?}");
    }
}

#[test]
fn a_session_and_a_store_begin_with_their_own_creation() {
    let session = holdfast_core::ids::SessionId::new(1, [1; 10]);
    let other = holdfast_core::ids::SessionId::new(1, [2; 10]);
    let first = |body: Body, stream: StreamId| {
        let record = Record::place(Draft::new(body, system()), stream, 1, 1, genesis(store_id(), stream));
        State::first(&record, &Openings::new(), None).is_ok()
    };
    let created = |session| Body::from(SessionCreated { labels: Labels::new(), session });
    assert!(first(created(session), StreamId::Session(session)));
    assert!(!first(created(other), StreamId::Session(session)));
    let store = |store| Body::from(StoreCreated { format: 1, store });
    assert!(first(store(store_id()), StreamId::Store));
    assert!(!first(store(StoreId::new(1, [9; 10])), StreamId::Store), "another store's stream");
}
