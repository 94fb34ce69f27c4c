//! Stories of leave: edited requests, grants of a session, capabilities, sandboxes, who tells people, and the
//! hook points that are about no call.
#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used)]

mod world;

use holdfast_core::contracts::approval::{ApprovalDecisionKind, ApprovalLifecycleStatus};
use holdfast_core::contracts::capability::{Comparison, Constraint, Right};
use holdfast_core::contracts::hook::HookPoint;
use holdfast_core::contracts::tool::{SandboxNeed, ToolSpec};
use holdfast_core::gateway::{Entering, Gate, PointAct, Rooms};
use holdfast_core::ids::{ApprovalId, CapabilityId, SessionId};
use holdfast_core::records::*;
use holdfast_core::run::*;
use holdfast_core::state::{ApprovalState, Outcome, fold};
use serde_json::{Value, json};
use world::gate::*;
use world::*;

fn erik() -> Actor {
    Actor { id: name("erik"), r#type: ActorType::Human }
}

/// A policy in which a lead must approve refunds, and refunds of more than 5000 are denied.
fn lead() -> std::sync::Arc<holdfast_core::policy::ActivePolicy> {
    let over = json!([{"argument": "cents", "comparison": "min", "value": 5001}]);
    policy(
        &json!([
            {"decide": "ask", "tools": ["refund"],
             "approvers": {"expires_ms": 3_600_000, "quorum": 1, "roles": ["lead"]}},
            {"decide": "deny", "tools": ["refund"], "when": over},
        ]),
        &json!({"dana": ["lead"], "erik": ["clerk"]}),
    )
}

fn session() -> SessionId {
    SessionId::new(1_763_251_200_000, [3; 10])
}

fn in_session() -> (World, Claim) {
    let mut world = World::empty();
    world.journal.policy = Some(lead());
    let step = NewStep { kind: StepKind::Attached, ..new_step(1, &[]) };
    let run = NewRun { session: Some(session()), ..new_run(1) };
    world.ask(dana(), Command::Create { run: Box::new(run), steps: vec![step] }).unwrap();
    let claim = world.claim(1, "w1").unwrap();
    (world, claim)
}

fn refund(key: &str, args: Value) -> Entering {
    entering(tool("refund", EffectClass::Write), key, args)
}

fn asked(key: &str, args: Value) -> Entering {
    through(&refund(key, args), vec![])
}

/// The same with rooms that are based on an approver's edit.
fn based_on(call: &Entering, approval: ApprovalId, args: Value) -> Entering {
    let rooms = Rooms { based_on: Some(approval), effective: value(args), ..call.rooms.clone().unwrap() };
    Entering { rooms: Some(rooms), ..call.clone() }
}

fn edit(approval: ApprovalId, args: Value) -> Command {
    Command::Edit { approval, arguments: value(args), reason: None }
}

fn constraint(argument: &str, comparison: Comparison, limit: Value) -> Constraint {
    Constraint { argument: key(argument), comparison, value: limit }
}

fn for_session(world: &World, approval: ApprovalId, uses: u32, most: u64) -> Command {
    let scope = GrantScope {
        constraints: vec![constraint("cents", Comparison::Max, json!(most))],
        expires_at: world.now.wall_ms + 60_000,
        uses,
    };
    let vote = ApprovalDecisionKind::ApprovedForSession;
    Command::Vote { approval, reason: None, scope: Some(scope), vote }
}

#[test]
fn an_approver_edits_and_the_call_goes_through_the_rooms_with_that_and_is_asked_about_anew() {
    let (mut world, claim) = in_session();
    let call = asked("k1", json!({"cents": 5000}));
    assert!(matches!(world.enter(claim, &call), Gate::Wait { .. }));
    let first = world.approval();
    assert_eq!(world.refused(erik(), edit(first, json!({"cents": 1}))), "not_an_approver");
    assert_eq!(world.refused(worker("w1"), edit(first, json!({"cents": 1}))), "self_approval");
    assert_eq!(world.refused(dana(), edit(first, json!({"cents": 6000}))), "edit_denied");
    assert_eq!(world.refused(dana(), edit(first, json!(7))), "patch_not_object");

    let before = world.kinds().len();
    world.ask(dana(), edit(first, json!({"cents": 10}))).unwrap();
    assert_eq!(world.since(before), ["approval.edited", "approval.superseded"]);
    assert_eq!(world.run().approvals[&first].state, ApprovalState::Superseded);
    assert_eq!(world.refused(dana(), vote(first, true)), "approval_over");

    // Rooms that know nothing of the edit are not enough.
    let Gate::Rooms { edited: Some(edited), .. } = world.enter(claim, &call) else {
        panic!("the edit counts")
    };
    assert_eq!((edited.approval, edited.arguments), (first, json!({"cents": 10})));
    assert!(matches!(world.enter(claim, &based_on(&call, first, json!({"cents": 10}))), Gate::Wait { .. }));
    let second = world.approval();
    assert_ne!(first, second);
    world.ask(dana(), vote(second, true)).unwrap();
    assert_eq!(world.permitted(claim, &call).arguments, json!({"cents": 10}));
}

/// Why a journal is refused that lacks some of its records, chained anew as a forger would.
fn why(world: &World, kept: impl Fn(&mut Record) -> bool) -> Option<&'static str> {
    let mut records: Vec<Record> = Vec::new();
    for record in world.journal.records() {
        let mut record = record.clone();
        if kept(&mut record) {
            record.prev = records.last().map_or(record.prev, |last| last.hash().unwrap());
            record.seq = u64::try_from(records.len()).unwrap() + 1;
            records.push(record);
        }
    }
    fold(store_id(), &records, &world.journal.openings, None).err().map(|illegal| illegal.why)
}

#[test]
fn nothing_begins_without_the_leave_that_it_names_or_had_to_ask_for() {
    let (mut world, claim) = in_session();
    let call = asked("k1", json!({"cents": 50}));
    world.enter(claim, &call);
    world.ask(dana(), for_session(&world, world.approval(), 2, 80)).unwrap();
    world.permitted(claim, &call);
    assert_eq!(why(&world, |_| true), None, "the control");
    assert_eq!(why(&world, |one| one.kind() != "grant.created"), Some("no such grant"));
    assert_eq!(why(&world, |one| one.kind() != "grant.spent"), Some("its grant was not spent by it"));
    let silent = |one: &mut Record| match &mut one.body {
        Body::EffectStarted(started) => {
            started.grant = None;
            true
        }
        Body::GrantCreated(_) | Body::GrantSpent(_) => false,
        _ => true,
    };
    assert_eq!(why(&world, silent), Some("nobody has allowed it"));
    let unbound = |one: &mut Record| {
        if let Body::GrantSpent(spent) = &mut one.body {
            spent.digest = None;
        }
        true
    };
    assert_eq!(why(&world, unbound), Some("the grant is bound to something else"));
    // What looks like a session's needs a session.
    let claimed_of_session = |one: &mut Record| match &mut one.body {
        Body::RunCreated(created) => {
            created.session = None;
            true
        }
        Body::GrantCreated(_) => false,
        Body::GrantSpent(spent) => {
            spent.digest = None;
            true
        }
        _ => true,
    };
    assert_eq!(why(&world, claimed_of_session), Some("no such grant"));
}

#[test]
fn an_edit_that_the_tool_does_not_take_is_noted_and_the_agents_own_arguments_are_asked_about() {
    let (mut world, claim) = in_session();
    let call = asked("k1", json!({"cents": 50}));
    world.enter(claim, &call);
    let first = world.approval();
    world.ask(dana(), edit(first, json!({"cents": 10, "nonsense": true}))).unwrap();
    let mut again = based_on(&call, first, json!({"cents": 50}));
    again.rooms.as_mut().unwrap().edit_unfit = true;
    let before = world.kinds().len();
    assert!(matches!(world.enter(claim, &again), Gate::Wait { .. }));
    assert_eq!(world.since(before), ["refusal.noted", "policy.decided", "approval.requested"]);
    world.ask(dana(), vote(world.approval(), true)).unwrap();
    assert_eq!(world.permitted(claim, &call).arguments, json!({"cents": 50}));
}

#[test]
fn a_grant_for_the_session_is_good_for_so_many_calls_within_its_scope_and_for_no_other() {
    let (mut world, claim) = in_session();
    let first = asked("k1", json!({"cents": 50}));
    world.enter(claim, &first);
    let yes = for_session(&world, world.approval(), 2, 100);
    world.ask(dana(), yes).unwrap();
    let permit = world.permitted(claim, &first); // by its own grant, not by the session's
    world.ask(worker("w1"), settled(claim, &permit, EffectStatus::Succeeded)).unwrap();
    assert_eq!(world.journal.session_grants[0].spent, 0);

    for (n, key) in ["k2", "k3"].into_iter().enumerate() {
        let before = world.kinds().len();
        let permit = world.permitted(claim, &asked(key, json!({"cents": 70})));
        let kinds = world.since(before);
        assert_eq!(kinds, ["call.opened", "policy.decided", "grant.spent", "effect.started"]);
        world.ask(worker("w1"), settled(claim, &permit, EffectStatus::Succeeded)).unwrap();
        assert_eq!(usize::try_from(world.journal.session_grants[0].spent).unwrap(), n + 1);
    }
    assert!(matches!(world.enter(claim, &asked("k4", json!({"cents": 70}))), Gate::Wait { .. }), "used up");
}

#[test]
fn a_grant_for_the_session_dies_with_scope_time_policy_tool_and_revocation() {
    let given = || {
        let (mut world, claim) = in_session();
        world.enter(claim, &asked("k1", json!({"cents": 50})));
        let yes = for_session(&world, world.approval(), 9, 100);
        world.ask(dana(), yes).unwrap();
        (world, claim)
    };
    let waits = |world: &mut World, claim: Claim, call: &Entering| {
        assert!(matches!(world.enter(claim, call), Gate::Wait { .. }));
    };
    let small = asked("k2", json!({"cents": 70}));
    let (mut world, claim) = given();
    world.permitted(claim, &small);

    let (mut world, claim) = given();
    waits(&mut world, claim, &asked("k2", json!({"cents": 101})));
    let (mut world, claim) = given();
    world.tick(60_001);
    waits(&mut world, claim, &small);
    let (mut world, claim) = given();
    let spec = ToolSpec { version: name("2"), ..tool("refund", EffectClass::Write) };
    waits(&mut world, claim, &through(&entering(spec, "k2", json!({"cents": 70})), vec![]));
    let (mut world, claim) = given();
    let mut rules = lead().policy.clone();
    rules.approvers.insert("fay".to_owned(), vec![name("lead")]);
    world.journal.policy =
        Some(std::sync::Arc::new(holdfast_core::policy::ActivePolicy::new(rules).unwrap()));
    waits(&mut world, claim, &small);
    let (mut world, claim) = given();
    world.journal.session_grants[0].grant.revoked = true;
    waits(&mut world, claim, &small);
}

#[test]
fn a_grant_for_the_session_does_not_stand_in_for_a_hook_or_for_other_approvers() {
    let (mut world, claim) = in_session();
    world.enter(claim, &asked("k1", json!({"cents": 50})));
    let yes = for_session(&world, world.approval(), 9, 100);
    world.ask(dana(), yes).unwrap();
    let spec = hook("careful", "before_tool_call", &["request_approval"], "deny");
    let wants = said(&spec, json!({"type": "request_approval", "payload": {}}));
    let call = through(&refund("k2", json!({"cents": 70})), vec![wants]);
    assert!(matches!(world.enter(claim, &call), Gate::Wait { .. }));
    let bound = world.journal.session_grants[0].grant.bound.as_mut().unwrap();
    bound.roles = vec![name("clerk")];
    assert!(matches!(world.enter(claim, &asked("k3", json!({"cents": 70}))), Gate::Wait { .. }));
}

#[test]
fn a_vote_for_the_session_says_what_for_and_no_other_does() {
    let (mut world, claim) = in_session();
    world.enter(claim, &asked("k1", json!({"cents": 50})));
    let id = world.approval();
    let Command::Vote { scope: Some(good), .. } = for_session(&world, id, 1, 5) else { panic!() };
    let voted = |scope: Option<GrantScope>, vote| Command::Vote { approval: id, reason: None, scope, vote };
    let kind = ApprovalDecisionKind::ApprovedForSession;
    assert_eq!(world.refused(dana(), voted(None, kind)), "bad_scope");
    assert_eq!(world.refused(dana(), voted(Some(good.clone()), ApprovalDecisionKind::Approved)), "bad_scope");
    let never = GrantScope { uses: 0, ..good.clone() };
    assert_eq!(world.refused(dana(), voted(Some(never), kind)), "bad_scope");
    let over = GrantScope { expires_at: world.now.wall_ms, ..good };
    assert_eq!(world.refused(dana(), voted(Some(over), kind)), "bad_scope");

    // A run of no session cannot be approved for one.
    let (mut world, claim) = World::attached();
    world.journal.policy = Some(lead());
    world.enter(claim, &asked("k1", json!({"cents": 50})));
    let yes = for_session(&world, world.approval(), 1, 5);
    assert_eq!(world.refused(dana(), yes), "decision_not_allowed");
}

/// Two people must agree, and what they allow is what both allow.
#[test]
fn a_quorum_gives_the_session_the_least_that_all_allow_and_nothing_if_one_says_only_once() {
    let both = json!([{"decide": "ask", "approvers": {"expires_ms": 60_000, "quorum": 2, "roles": []}}]);
    for (second_once, uses) in [(false, Some(2)), (true, None)] {
        let (mut world, claim) = in_session();
        world.journal.policy = Some(policy(&both, &json!({})));
        world.enter(claim, &asked("k1", json!({"cents": 50})));
        let id = world.approval();
        let first = for_session(&world, id, 5, 100);
        world.ask(dana(), first).unwrap();
        let second = if second_once { vote(id, true) } else { for_session(&world, id, 2, 80) };
        world.ask(erik(), second).unwrap();
        let given = world.journal.session_grants.first().map(|one| &one.grant);
        assert_eq!(given.map(|grant| grant.uses), uses);
        assert_eq!(given.map_or(0, |grant| grant.constraints.len()), if second_once { 0 } else { 2 });
    }
}

fn capability(n: u8) -> CapabilityId {
    CapabilityId::new(1_763_251_200_000, [n; 10])
}

fn restricted(given: &[NewCapability]) -> (World, Claim) {
    let mut world = World::empty();
    let step = NewStep { kind: StepKind::Attached, ..new_step(1, &[]) };
    let run = NewRun { capabilities: Some(given.to_vec()), ..new_run(1) };
    world.ask(dana(), Command::Create { run: Box::new(run), steps: vec![step] }).unwrap();
    let claim = world.claim(1, "w1").unwrap();
    (world, claim)
}

fn given(target: &str, rights: &[Right], most: Option<u64>) -> NewCapability {
    let most = most.map(|most| constraint("cents", Comparison::Max, json!(most)));
    NewCapability {
        constraints: most.into_iter().collect(),
        expires_at: None,
        rights: rights.to_vec(),
        target: key(target),
    }
}

fn denied(world: &mut World, claim: Claim, call: &Entering) -> String {
    let Gate::Served { call: id } = world.enter(claim, call) else { panic!("it was to be denied") };
    assert_eq!(world.outcome(id), Some(Outcome::DeniedByRule));
    world.run().calls[&id].reasons[0].code.as_str().to_owned()
}

#[test]
fn a_restricted_run_reaches_only_what_it_holds() {
    let (mut world, claim) = restricted(&[given("ref*", &[Right::Call], Some(100))]);
    let permit = world.permitted(claim, &asked("k1", json!({"cents": 100})));
    let used = world.journal.records().iter().find_map(|record| match &record.body {
        Body::CallOpened(opened) => opened.capability,
        _ => None,
    });
    assert_eq!(used, world.run().capabilities.held.keys().next().copied());
    world.ask(worker("w1"), settled(claim, &permit, EffectStatus::Succeeded)).unwrap();
    assert_eq!(denied(&mut world, claim, &asked("k2", json!({"cents": 101}))), "capability.missing");
    assert_eq!(denied(&mut world, claim, &asked("k3", json!({}))), "capability.missing", "unknown denies");
    let mail = through(&entering(tool("email", EffectClass::Pure), "k4", json!({"cents": 1})), vec![]);
    assert_eq!(denied(&mut world, claim, &mail), "capability.missing");
    let named = Entering { capability: Some(capability(9)), ..asked("k5", json!({"cents": 1})) };
    assert_eq!(denied(&mut world, claim, &named), "capability.missing");
    let (mut world, claim) = restricted(&[given("refund", &[Right::Read], None)]);
    assert_eq!(denied(&mut world, claim, &asked("k1", json!({}))), "capability.missing", "no right to call");
    let (mut world, claim) = restricted(&[]);
    assert_eq!(denied(&mut world, claim, &asked("k1", json!({}))), "capability.missing");
}

#[test]
fn a_restricted_run_has_children_only_by_the_right_to() {
    let child = |claim| {
        let (agent, input, escrow) = (name("typist"), value(json!({"cents": 7})), Amounts::default());
        let (child, on_parent_end) = (run_id(5), OnParentEnd::End);
        Command::Spawn { call: None, claim, child, agent, input, escrow, on_parent_end }
    };
    for held in [
        vec![],
        vec![given("typist", &[Right::Call, Right::Grant], None)],
        vec![given("clerk", &[Right::Spawn], None)],
        vec![given("typist", &[Right::Spawn], Some(6))],
    ] {
        let (mut world, claim) = restricted(&held);
        assert_eq!(world.refused(worker("w1"), child(claim)), "no_such_capability");
    }
    let (mut world, claim) = restricted(&[given("typ*", &[Right::Spawn], Some(7))]);
    assert_eq!(world.wrote(worker("w1"), child(claim)), ["child.spawned"]);
}

#[test]
fn what_is_made_of_a_capability_allows_less_and_goes_with_it() {
    let rights = [Right::Call, Right::Grant];
    let (mut world, claim) = restricted(&[given("refund", &rights, Some(100))]);
    let root = *world.run().capabilities.held.keys().next().unwrap();
    let less = |parent, n, rights: &[Right], most: u64, expires_at| Command::Attenuate {
        capability: capability(n),
        claim,
        constraints: vec![constraint("cents", Comparison::Max, json!(most))],
        expires_at,
        parent,
        rights: rights.to_vec(),
    };
    assert_eq!(world.refused(worker("w1"), less(root, 1, &[Right::Kill], 5, None)), "capability_exceeded");
    let until = world.now.wall_ms + 1000;
    world.ask(worker("w1"), less(root, 1, &[Right::Call, Right::Grant], 500, Some(until))).unwrap();
    world.ask(worker("w1"), less(capability(1), 2, &[Right::Call], 10, None)).unwrap();
    let by = |n, key: &str, cents: u64| Entering {
        capability: Some(capability(n)),
        ..asked(key, json!({"cents": cents}))
    };
    // What it is made of restricts it too, whatever it says itself.
    assert_eq!(denied(&mut world, claim, &by(1, "k1", 101)), "capability.constrained");
    assert_eq!(denied(&mut world, claim, &by(2, "k2", 11)), "capability.constrained");
    world.permitted(claim, &by(2, "k3", 10));
    world.tick(1000);
    assert_eq!(denied(&mut world, claim, &by(2, "k4", 10)), "capability.expired");

    let gone = Command::RevokeCapability { capability: root, claim: None, reason: None };
    assert_eq!(world.refused(worker("w1"), gone.clone()), "not_a_person");
    world.ask(dana(), gone).unwrap();
    assert_eq!(denied(&mut world, claim, &by(1, "k5", 1)), "capability.revoked");
    assert_eq!(denied(&mut world, claim, &asked("k6", json!({"cents": 1}))), "capability.missing");
    assert_eq!(
        world.refused(worker("w1"), less(capability(1), 3, &[Right::Call], 1, None)),
        "no_such_capability"
    );
}

#[test]
fn a_capability_is_handed_on_with_its_restrictions_and_taken_back_from_who_has_it() {
    let rights = [Right::Call, Right::Grant];
    let (mut world, claim) = restricted(&[given("refund", &rights, Some(100))]);
    let root = *world.run().capabilities.held.keys().next().unwrap();
    let to = run_id(7);
    let handed = world.ask(worker("w1"), Command::Transfer { capability: root, claim, to }).unwrap();
    assert_eq!(denied(&mut world, claim, &asked("k1", json!({"cents": 1}))), "capability.missing");
    assert_eq!(
        world.refused(worker("w1"), Command::Transfer { capability: root, claim, to }),
        "no_such_capability"
    );

    // The other run.
    let mut other = World::empty();
    let step = NewStep { kind: StepKind::Attached, ..new_step(1, &[]) };
    let run = NewRun { capabilities: Some(vec![]), ..new_run(7) };
    other.ask(dana(), Command::Create { run: Box::new(run), steps: vec![step] }).unwrap();
    let theirs = other.claim(1, "w1").unwrap();
    let envelope = Box::new(handed.envelopes[0].clone());
    other.ask(system(), Command::Deliver { envelope }).unwrap();
    assert_eq!(denied(&mut other, theirs, &asked("k1", json!({"cents": 101}))), "capability.missing");
    other.permitted(theirs, &asked("k2", json!({"cents": 100})));

    let gone = Command::RevokeCapability { capability: root, claim: None, reason: None };
    let taken = world.ask(dana(), gone).unwrap();
    let envelope = Box::new(taken.envelopes[0].clone());
    other.ask(system(), Command::Deliver { envelope }).unwrap();
    assert_eq!(denied(&mut other, theirs, &asked("k3", json!({"cents": 1}))), "capability.missing");
}

#[test]
fn a_capability_that_is_revoked_lets_nothing_go_again() {
    let (mut world, claim) = restricted(&[given("refund", &[Right::Call], None)]);
    let root = *world.run().capabilities.held.keys().next().unwrap();
    let spec = ToolSpec { key_ttl_ms: Some(120_000), max_attempts: 5, ..tool("refund", EffectClass::Write) };
    let call = entering(spec, "k1", json!({}));
    let permit = world.permitted(claim, &through(&call, vec![]));
    world.ask(worker("w1"), doubt(claim, &permit, true)).unwrap();
    world.ask(dana(), Command::RevokeCapability { capability: root, claim: None, reason: None }).unwrap();
    assert!(matches!(world.enter(claim, &call), Gate::Wait { .. }), "a person decides");
}

#[test]
fn a_tool_that_needs_a_sandbox_does_not_run_without_and_what_it_enforces_is_on_record() {
    let (mut world, claim) = World::attached();
    let spec = ToolSpec { sandbox: SandboxNeed::Required, ..tool("refund", EffectClass::Write) };
    let call = through(&entering(spec, "k1", json!({})), vec![]);
    let Gate::Served { call: id } = world.enter(claim, &call) else { panic!("there is no sandbox") };
    assert_eq!(world.outcome(id), Some(Outcome::NoEffect));
    assert_eq!(world.run().calls[&id].dispatch, 0);
    let (sandbox, guards) = (SandboxTier::Subprocess, vec![SandboxGuard::Memory]);
    let boxed = Entering { sandbox, guards, ..call };
    let before = world.kinds().len();
    world.permitted(claim, &boxed);
    assert_eq!(world.since(before), ["policy.decided", "effect.started", "sandbox.started"]);
}

#[test]
fn an_obligation_of_a_sandbox_is_met_by_what_it_enforces_or_the_call_is_refused() {
    let obliged = json!([{"decide": "allow", "obligations": [
        {"fields": ["network"], "kind": "sandbox", "roles": [], "tier": "subprocess"}]}]);
    for (guards, met) in [(vec![SandboxGuard::Memory], false), (vec![SandboxGuard::Network], true)] {
        let (mut world, claim) = World::attached();
        world.journal.policy = Some(policy(&obliged, &json!({})));
        let call = Entering { sandbox: SandboxTier::Bubblewrap, guards, ..asked("k1", json!({})) };
        let gate = world.enter(claim, &call);
        assert_eq!(matches!(gate, Gate::Permit { .. }), met, "{gate:?}");
    }
}

#[test]
fn who_tells_people_is_written_before_and_after_and_releases_nothing() {
    use ApprovalLifecycleStatus as Status;
    let (mut world, claim) = in_session();
    let call = Entering { dispatchers: vec![name("chat")], ..asked("k1", json!({"cents": 5})) };
    let before = world.kinds().len();
    let Gate::Dispatch { approval, dispatchers, .. } = world.enter(claim, &call) else { panic!() };
    assert_eq!(dispatchers, [name("chat")]);
    assert_eq!(world.since(before)[2..], ["approval.requested", "approval.dispatched"]);
    let told = |status, dispatcher: &str| Command::Dispatched {
        approval,
        claim,
        dispatcher: name(dispatcher),
        reason_code: None,
        status,
    };
    assert_eq!(world.refused(worker("w1"), told(Status::Approved, "chat")), "not_running");
    assert_eq!(world.refused(worker("w1"), told(Status::Dispatched, "mail")), "not_running");
    world.ask(worker("w1"), told(Status::DispatcherUnavailable, "chat")).unwrap();
    // It was down: whoever comes again tries once more, and the request stands.
    assert!(matches!(world.enter(claim, &call), Gate::Dispatch { .. }));
    world.ask(worker("w1"), told(Status::Dispatched, "chat")).unwrap();
    assert!(matches!(world.enter(claim, &call), Gate::Wait { .. }));
    assert_eq!(world.run().approvals[&approval].state, ApprovalState::Pending);
}

#[test]
fn hooks_after_a_decision_hear_of_it_and_a_failing_one_stops_what_was_approved() {
    for (answers, spends) in [(true, true), (false, false)] {
        let (mut world, claim) = in_session();
        let call = Entering { decision_hooks: true, ..asked("k1", json!({"cents": 5})) };
        world.enter(claim, &call);
        world.ask(dana(), vote(world.approval(), true)).unwrap();
        assert!(matches!(world.enter(claim, &call), Gate::Decided { .. }));
        let spec = hook("audit", "after_approval_decision", &["observe"], "deny");
        let mut heard = said(&spec, json!({"type": "observe_only", "payload": {}}));
        if !answers {
            heard.answer = holdfast_core::hooks::HookAnswer::Failed {};
        }
        let ruled = Entering { decision_ruled: Some(vec![heard]), ..call };
        assert_eq!(matches!(world.enter(claim, &ruled), Gate::Permit { .. }), spends);
    }
}

fn ruled(world: &mut World, claim: Option<Claim>, point: HookPoint, response: Value) -> PointAct {
    let kind = response["type"].as_str().unwrap();
    let right = if kind == "observe_only" { "observe" } else { kind };
    let spec = hook("a hook", point.as_str(), &[right], "deny");
    let invocations = vec![said(&spec, response)];
    let command = Command::RulePoint { call: None, claim, invocations, point };
    let Some(Gate::Ruled { ruled }) = world.ask(worker("w1"), command).unwrap().gate else { panic!() };
    ruled.act
}

#[test]
fn what_hooks_say_at_the_points_of_a_run_is_written_and_leads_to_what_the_table_says() {
    let stop = json!({"code": "enough"});
    let rows = [
        (HookPoint::RunStarting, "stop_run", stop.clone(), PointAct::Stop),
        (HookPoint::RunStarting, "inject_context", json!({"items": ["be kind"]}), PointAct::Go),
        (HookPoint::BeforeRunComplete, "request_retry", json!({}), PointAct::Again),
        (HookPoint::BeforeRunComplete, "validate_detach", json!({}), PointAct::Go),
        (
            HookPoint::BeforeRunComplete,
            "stop_completion_with_repair_needed",
            stop.clone(),
            PointAct::Interrupt,
        ),
        (HookPoint::BeforeSubagentStart, "deny", stop.clone(), PointAct::Deny),
        (HookPoint::BeforeSubagentStart, "modify_subagent_request", json!({"value": {}}), PointAct::Go),
        (HookPoint::AfterSubagentTerminal, "request_usage_rollup_repair", json!({}), PointAct::Go),
        (HookPoint::OnRunCancelRequested, "request_cleanup_repair", json!({}), PointAct::Go),
        (HookPoint::BeforeIsolationProcessStart, "deny", stop, PointAct::Deny),
        (
            HookPoint::BeforeIsolationProcessStart,
            "modify_process_request",
            json!({"value": {}}),
            PointAct::Go,
        ),
        (HookPoint::AfterIsolationProcessExit, "request_cleanup_repair", json!({}), PointAct::Go),
    ];
    for (point, class, payload, act) in rows {
        let (mut world, claim) = World::attached();
        let response = json!({"type": class, "payload": payload});
        assert_eq!(ruled(&mut world, Some(claim), point, response), act, "{class} at {point}");
        assert_eq!(world.kinds().last(), Some(&"hook.ruled"));
    }
    let (mut world, claim) = World::attached();
    let observed = json!({"type": "observe_only", "payload": {}});
    let early = Command::RulePoint {
        call: None,
        claim: None,
        invocations: vec![said(&hook("h", "after_run_terminal", &["observe"], "deny"), observed.clone())],
        point: HookPoint::AfterRunTerminal,
    };
    assert_eq!(world.refused(worker("w1"), early), "not_running");
    world
        .ask(worker("w1"), Command::Complete { claim, expected_version: None, result: None, patch: None })
        .unwrap();
    assert_eq!(ruled(&mut world, None, HookPoint::AfterRunTerminal, observed), PointAct::Go);
}

/// Found by a reader: the first dispatch was boxed, and the next would have run without.
#[test]
fn what_was_allowed_once_is_judged_again_when_the_tool_or_its_sandbox_has_changed() {
    let obliged = json!([{"decide": "allow", "tools": ["refund"], "obligations": [
        {"fields": [], "kind": "sandbox", "roles": [], "tier": "subprocess"}]}]);
    let (mut world, claim) = World::attached();
    world.journal.policy = Some(policy(&obliged, &json!({})));
    let boxed = |key: &str| Entering { sandbox: SandboxTier::Subprocess, ..asked(key, json!({})) };
    let permit = world.permitted(claim, &boxed("k1"));
    world.ask(worker("w1"), settled(claim, &permit, EffectStatus::NoEffect)).unwrap();
    assert_eq!(denied(&mut world, claim, &asked("k1", json!({}))), "obligation.sandbox");

    // A tool that has become risky asks.
    let (mut world, claim) = World::attached();
    let permit = world.permitted(claim, &asked("k1", json!({})));
    world.ask(worker("w1"), settled(claim, &permit, EffectStatus::NoEffect)).unwrap();
    let risky = ToolSpec { risk: Risk::Critical, ..tool("refund", EffectClass::Write) };
    let gate = world.enter(claim, &through(&entering(risky, "k1", json!({})), vec![]));
    assert!(matches!(gate, Gate::Wait { .. }), "{gate:?}");

    // What a person has approved is not sent off where a rule denies it.
    let asks = json!([{"decide": "ask", "tools": ["refund"], "obligations": [
        {"fields": ["memory"], "kind": "sandbox", "roles": [], "tier": "subprocess"}]}]);
    let (mut world, claim) = World::attached();
    world.journal.policy = Some(policy(&asks, &json!({})));
    let guarded = Entering { guards: vec![SandboxGuard::Memory], ..boxed("k1") };
    assert!(matches!(world.enter(claim, &guarded), Gate::Wait { .. }));
    world.ask(dana(), vote(world.approval(), true)).unwrap();
    assert_eq!(denied(&mut world, claim, &boxed("k1")), "obligation.sandbox");
}

#[test]
fn a_pure_tool_that_needs_a_sandbox_does_not_run_here() {
    let (mut world, claim) = World::attached();
    let spec = ToolSpec { sandbox: SandboxNeed::Required, ..tool("parse", EffectClass::Pure) };
    let call = through(&entering(spec, "k1", json!({})), vec![]);
    let Gate::Served { call: id } = world.enter(claim, &call) else { panic!("there is no sandbox") };
    assert_eq!(world.outcome(id), Some(Outcome::NoEffect));
}

#[test]
fn a_body_in_a_process_of_its_own_is_not_thought_dead_with_its_worker() {
    for (sandbox, over) in [(SandboxTier::None, Some(true)), (SandboxTier::Subprocess, None)] {
        let (mut world, claim) = World::attached();
        world.permitted(claim, &Entering { sandbox, ..asked("k1", json!({})) });
        world.journal.gone.insert(name("w1"));
        world.ask(system(), Command::Recover { step: claim.step }).unwrap();
        let told = world.journal.records().iter().find_map(|record| match &record.body {
            Body::EffectDoubted(body) => Some(body.over),
            _ => None,
        });
        assert_eq!(told, Some(over));
    }
}

#[test]
fn a_capability_that_comes_back_is_made_of_what_it_was_and_one_revoked_elsewhere_is_gone_here() {
    let rights = [Right::Call, Right::Grant];
    let (mut world, claim) = restricted(&[given("refund", &rights, None)]);
    let root = *world.run().capabilities.held.keys().next().unwrap();
    let (less, to) = (capability(1), run_id(7));
    let made = Command::Attenuate {
        capability: less,
        claim,
        constraints: vec![],
        expires_at: None,
        parent: root,
        rights: rights.to_vec(),
    };
    world.ask(worker("w1"), made).unwrap();
    let sent = world.ask(worker("w1"), Command::Transfer { capability: less, claim, to }).unwrap();
    let back =
        Envelope { from: holdfast_core::ids::StreamId::Run(to), to: run_id(1), ..sent.envelopes[0].clone() };
    let back = Envelope { id: holdfast_core::ids::EnvelopeId::new(1, [9; 10]), ..back };
    world.ask(system(), Command::Deliver { envelope: Box::new(back) }).unwrap();
    let by = |key: &str| Entering { capability: Some(less), ..asked(key, json!({})) };
    world.permitted(claim, &by("k1"));
    world.journal.revoked_elsewhere.insert(less);
    assert_eq!(denied(&mut world, claim, &by("k2")), "capability.revoked");
    world.journal.revoked_elsewhere.clear();
    world.ask(dana(), Command::RevokeCapability { capability: root, claim: None, reason: None }).unwrap();
    assert_eq!(denied(&mut world, claim, &by("k3")), "capability.revoked");
}
