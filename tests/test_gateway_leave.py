"""Stories of leave: edited requests, sessions, capabilities, approvers, compensation, packages."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from tests.gateway_desk import Desk, refunds

import holdfast as hf
from holdfast import gateway as gw

ASK = """
[[rule]]
tool = "refund"
decide = "ask"
approvers = { roles = ["lead"], quorum = 1, expires = "2h" }

[[rule]]
tool = "refund"
when = { "args.cents" = { min = 5001 } }
decide = "deny"

[approvers]
dana = ["lead"]
erik = ["clerk"]
"""


def waits(desk: Desk, tool: Any, key: str, **arguments: Any) -> gw.Request:
    """A call that asks a person; the request."""
    with pytest.raises(hf.Suspended):
        desk.call(tool, key, **arguments)
    (request,) = hf.Approvals(desk.store).list()
    return request


def test_an_approver_edits_and_what_runs_is_what_the_second_request_showed() -> None:
    desk = Desk(policy=ASK)
    refund = refunds(desk)
    seen = []

    @desk.gate.hook("before_tool_call", rights=["deny"])
    def look(subject: gw.Subject) -> None:
        seen.append(subject.value["cents"])

    people = hf.Approvals(desk.store)
    first = waits(desk, refund, "k1", order="1", cents=5000)
    with pytest.raises(hf.CommandError) as denied:
        people.edit(first.id, {"order": "1", "cents": 6000}, by="dana")
    assert denied.value.code == "edit_denied"
    assert people.edit(first.id, {"order": "1", "cents": 10}, by="dana").status == "superseded"
    second = waits(desk, refund, "k1", order="1", cents=5000)
    assert (second.arguments, second.votes, second.id != first.id) == ({"order": "1", "cents": 10}, {}, True)
    people.approve(second.id, by="dana")
    assert desk.call(refund, "k1", order="1", cents=5000) == {"id": "r1"}
    assert [(order, cents) for order, cents, _ in desk.happened] == [("1", 10)]
    assert seen == [5000, 10]
    assert desk.store.verify().ok


def test_an_edit_that_the_tool_does_not_take_is_noted_and_the_agents_own_is_asked_about() -> None:
    desk = Desk(policy=ASK)
    refund = refunds(desk)
    first = waits(desk, refund, "k1", order="1", cents=50)
    hf.Approvals(desk.store).edit(first.id, {"order": "1", "cents": 5, "extra": 1}, by="dana")
    second = waits(desk, refund, "k1", order="1", cents=50)
    assert second.arguments == {"order": "1", "cents": 50}
    assert "refusal.noted" in desk.kinds()


def session_desk() -> Desk:
    desk = Desk.__new__(Desk)
    desk.store = hf.open("memory:")
    desk.gate = hf.Gateway(desk.store, policy=ASK, by="dana")
    desk.happened = []
    desk.session = desk.store.create_session(labels={"ticket": "7"})  # type: ignore[attr-defined]
    return begin(desk)


def begin(desk: Desk) -> Desk:
    """Another run of the session, claimed."""
    desk.run = desk.store.create_run(agent="support", session=desk.session)  # type: ignore[attr-defined]
    claim = desk.store.claim(worker="w1", lease=30)
    assert claim is not None
    desk.claim = claim
    return desk


def test_a_session_goes_on_without_asking_for_so_many_calls_within_what_was_allowed() -> None:
    desk = session_desk()
    refund = refunds(desk)
    request = waits(desk, refund, "k1", order="1", cents=50)
    allowed = hf.ForSession({"args.cents": {"max": 100}}, uses=2, expires_in=60)
    assert (
        hf.Approvals(desk.store).approve(request.id, by="dana", session=allowed).status
        == "approved_for_session"
    )
    desk.call(refund, "k1", order="1", cents=50)
    desk.call(refund, "k2", order="2", cents=100)
    begin(desk)  # another run of the same session
    with pytest.raises(hf.Suspended):
        desk.call(refund, "k3", order="3", cents=101)
    desk.call(refund, "k4", order="4", cents=1)
    with pytest.raises(hf.Suspended):
        desk.call(refund, "k5", order="5", cents=1)
    assert [order for order, _, _ in desk.happened] == ["1", "2", "4"]
    grant = next(grant for grant in hf.Grants(desk.store).list() if grant.stream.startswith("ses_"))
    assert (grant.spent, grant.uses, grant.tool) == (2, 2, "refund")
    assert desk.store.verify().ok


def test_a_grant_of_a_session_is_taken_back_and_one_for_a_call_too() -> None:
    desk = session_desk()
    refund = refunds(desk)
    request = waits(desk, refund, "k1", order="1", cents=50)
    allowed = hf.ForSession({}, uses=9, expires_in=60)
    hf.Approvals(desk.store).approve(request.id, by="dana", session=allowed)
    grants = hf.Grants(desk.store)
    for grant in grants.list():
        grants.revoke(grant.id, by="dana", reason="changed my mind")
        grants.revoke(grant.id, by="dana")
    assert all(grant.revoked for grant in grants.list())
    for key in ("k1", "k2"):
        with pytest.raises(hf.Suspended):
            desk.call(refund, key, order="1", cents=50)
    with pytest.raises(hf.CommandError) as unknown:
        grants.revoke("grant_01ka4zc800ff1v3jcsnqbwke83", by="dana")
    assert (unknown.value.code, desk.happened) == ("no_such_grant", [])


def spend_one_use(stores: list[hf.Store]) -> tuple[int, int]:
    """One use, many threads on two handles of one store: how many calls went through, how many asked."""
    session = stores[0].create_session()
    hf.Gateway(stores[0], policy=ASK, by="dana")
    happened: list[str] = []
    asked: list[str] = []

    def work(at: int, barrier: threading.Barrier | None) -> None:
        gate = hf.Gateway(stores[at % 2])

        @gate.tool(effect="write")
        def refund(order: str, cents: int) -> str:
            assert cents == 5
            happened.append(order)
            return order

        claim = stores[at % 2].claim(worker=f"w{at}", lease=30)
        assert claim is not None
        if barrier is not None:
            barrier.wait()
        try:
            gate.call(claim, refund, key="k", order=str(at), cents=5)
        except hf.Suspended:
            asked.append(str(at))

    stores[0].create_run(agent="a", session=session)
    work(0, None)
    (request,) = hf.Approvals(stores[0]).list()
    hf.Approvals(stores[1]).approve(request.id, by="dana", session=hf.ForSession({}, uses=1, expires_in=60))
    for _ in range(6):
        stores[0].create_run(agent="a", session=session)
    barrier = threading.Barrier(6)
    threads = [threading.Thread(target=work, args=(at, barrier)) for at in range(1, 7)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert stores[0].verify().ok
    return len(happened), len(asked)


def test_two_processes_do_not_spend_one_use_twice(tmp_path: Any) -> None:
    assert spend_one_use([hf.open(tmp_path / "s"), hf.open(tmp_path / "s")]) == (1, 6)


def test_a_restricted_run_reaches_only_what_it_holds() -> None:
    small = hf.capability("ref*", when={"args.cents": {"max": 100}}, rights=["call", "grant"])
    desk = Desk(capabilities=[small])
    refund = refunds(desk)
    mail = desk.gate.tool(effect="pure", name="mail")(lambda: "sent")
    assert desk.call(refund, "k1", order="1", cents=100) == {"id": "r1"}
    for tool, arguments in ((refund, {"order": "1", "cents": 101}), (mail, {})):
        with pytest.raises(hf.Denied) as denied:
            desk.call(tool, f"k {tool.name}", **arguments)
        assert denied.value.reasons[0]["code"] == "capability.missing"
    held = hf.Capabilities(desk.store)
    (root,) = held.list(desk.run)
    less = held.attenuate(desk.claim, root.id, when={"args.cents": {"max": 10}})
    with pytest.raises(hf.Denied) as denied:
        desk.gate.call(desk.claim, refund, key="k3", capability=less, order="1", cents=11)
    assert denied.value.reasons[0]["code"] == "capability.constrained"
    with pytest.raises(hf.CommandError) as more:
        held.attenuate(desk.claim, less, rights=["call", "kill"])
    assert more.value.code == "capability_exceeded"
    held.revoke(desk.run, root.id, by="dana", reason="enough")
    with pytest.raises(hf.Denied):
        desk.gate.call(desk.claim, refund, key="k4", capability=less, order="1", cents=1)
    assert [(one.revoked, one.parent) for one in held.list(desk.run)] == [(True, None), (False, root.id)]
    assert len(desk.happened) == 1


def test_a_capability_goes_to_another_run_and_is_taken_back_from_there() -> None:
    desk = Desk(capabilities=[hf.capability("refund", rights=["call", "grant"])])
    refund = refunds(desk)
    other = desk.store.create_run(agent="helper", capabilities=[])
    claim = desk.store.claim(worker="w2", lease=30)
    assert claim is not None
    held = hf.Capabilities(desk.store)
    (root,) = held.list(desk.run)
    held.transfer(desk.claim, root.id, to=other)
    with pytest.raises(hf.Denied):
        desk.call(refund, "k1", order="1", cents=1)
    assert desk.gate.call(claim, refund, key="k1", order="2", cents=1) == {"id": "r1"}
    held.revoke(desk.run, root.id, by="dana")
    with pytest.raises(hf.Denied):
        desk.gate.call(claim, refund, key="k2", order="2", cents=1)
    assert desk.store.verify().ok


def test_rules_may_ask_which_capability_a_call_uses() -> None:
    rules = '[[rule]]\ncapability = "ref*"\nrisk = "high"\ndecide = "allow"\n'
    for capabilities, passes in (([hf.capability("refund")], True), (None, False)):
        desk = Desk(policy=rules, **({} if capabilities is None else {"capabilities": capabilities}))
        refund = refunds(desk, risk="high")
        if passes:
            assert desk.call(refund, "k1", order="1", cents=1) == {"id": "r1"}
        else:
            with pytest.raises(hf.Suspended):
                desk.call(refund, "k1", order="1", cents=1)


def test_an_approver_tells_people_and_hands_in_what_one_of_them_said() -> None:
    desk = Desk(policy=ASK)
    refund = refunds(desk)
    shown = []

    @desk.gate.approver()
    def desk_lead(request: gw.Request) -> hf.Approve:
        shown.append((request.tool, request.arguments))
        return hf.Approve("dana", "she said so")

    assert desk.call(refund, "k1", order="1", cents=5) == {"id": "r1"}
    assert shown == [("refund", {"order": "1", "cents": 5})]
    voted = next(record for record in desk.store.read(desk.run) if record.kind == "approval.voted")
    assert (voted.by["id"], voted.value["reason"]) == ("dana", "she said so")


@pytest.mark.parametrize(
    ("answer", "status"),
    [
        (lambda _: 1 / 0, "dispatcher_unavailable"),
        (lambda _: threading.Event().wait(), "dispatcher_unavailable"),
        (lambda _: True, "recovery_required"),
        (lambda _: hf.Approve("erik"), "dispatched"),
        (lambda _: hf.Approve("nobody"), "dispatched"),
        (lambda _: None, "dispatched"),
    ],
)
def test_whatever_goes_wrong_with_an_approver_releases_nothing(answer: Any, status: str) -> None:
    desk = Desk(policy=ASK)
    refund = refunds(desk)
    desk.gate.approver(name="chat", timeout=0.05)(answer)
    request = waits(desk, refund, "k1", order="1", cents=5)
    told = [
        record.body["status"] for record in desk.store.read(desk.run) if record.kind == "approval.dispatched"
    ]
    assert told == ["dispatch_intent_recorded", status]
    assert (request.status, request.votes, desk.happened) == ("pending", {}, [])
    hf.Approvals(desk.store).approve(request.id, by="dana")
    assert desk.call(refund, "k1", order="1", cents=5) == {"id": "r1"}


def test_a_persons_no_through_an_approver_denies_for_good() -> None:
    desk = Desk(policy=ASK)
    refund = refunds(desk)
    desk.gate.approver(name="chat")(lambda _: hf.Deny("dana", "too much"))
    for _ in range(2):
        with pytest.raises(hf.Denied):
            desk.call(refund, "k1", order="1", cents=5)
    assert desk.happened == []


def test_a_write_is_undone_by_another_write_once() -> None:
    desk = Desk()
    undone = []

    def undo(arguments: dict[str, Any], result: dict[str, str], call: hf.Call) -> str:
        undone.append((arguments["order"], result["id"], call.key))
        return "taken back"

    refund = refunds(desk, compensate=undo)
    desk.call(refund, "k1", order="1", cents=5)
    call = desk.store.state(desk.run)["keys"]["k1"]
    for _ in range(2):
        assert desk.gate.compensate(desk.claim, call, reason="wrong customer") == "taken back"
    assert [(order, result) for order, result, _ in undone] == [("1", "r1")]
    with pytest.raises(hf.EffectFailed) as gone:
        desk.call(refund, "k1", order="1", cents=5)
    assert (gone.value.code, len(desk.happened)) == ("compensated", 1)
    with pytest.raises(hf.CommandError) as unknown:
        desk.gate.compensate(desk.claim, "call_01ka4zc800ff1v3jcsnqbwke83")
    assert unknown.value.code == "no_such_call"


def test_an_undoing_that_is_in_doubt_leaves_the_call_as_it_was() -> None:
    desk = Desk()

    def undo(*_: Any) -> None:
        raise ConnectionError

    refund = refunds(desk, compensate=undo)
    desk.call(refund, "k1", order="1", cents=5)
    call = desk.store.state(desk.run)["keys"]["k1"]
    with pytest.raises(hf.Suspended):
        desk.gate.compensate(desk.claim, call)
    assert desk.call(refund, "k1", order="1", cents=5) == {"id": "r1"}


def test_a_package_names_the_part_that_changed_and_strict_workers_wait_for_a_decision() -> None:
    desk = Desk()
    before = desk.gate.package("support@1", instructions="be kind")
    run = desk.store.create_run(agent="a", package=before)
    refunds(desk, name="other")
    after = desk.gate.package("support@1", instructions="be kind")
    assert {part for part in before if before[part] != after[part]} == {"tools"}
    assert desk.gate.package("support@1", instructions="be brief")["instructions"] != before["instructions"]
    assert desk.store.claim(worker="w1", agents=["a"], package=after, strict=True) is None
    assert desk.store.state(run)["steps"].popitem()[1]["waits"][0]["on"] == "package"
    easy = desk.store.create_run(agent="b", package=before)
    assert desk.store.claim(worker="w1", agents=["b"], package=after) is not None
    resumed = next(record for record in desk.store.read(easy) if record.kind == "run.resumed")
    assert resumed.body["changed"] == ["tools"]


def chain() -> tuple[Desk, Any, list[hf.Claim]]:
    """A tool, and three runs: only the first holds something."""
    desk = Desk(capabilities=[hf.capability("refund", rights=["call", "grant"])])
    claims = [desk.claim]
    for name in ("b", "c"):
        desk.store.create_run(agent=name, capabilities=[])
        claim = desk.store.claim(worker="w", lease=30, agents=[name])
        assert claim is not None
        claims.append(claim)
    return desk, refunds(desk), claims


def refused(desk: Desk, claim: hf.Claim, tool: Any, **options: Any) -> bool:
    key = f"k{len(desk.kinds())}"
    try:
        desk.gate.call(claim, tool, key=key, order="1", cents=1, **options)
    except hf.Denied:
        return True
    return False


def test_what_is_revoked_is_gone_at_once_wherever_it_went_whoever_has_ended_meanwhile() -> None:
    desk, refund, (a, b, c) = chain()
    held = hf.Capabilities(desk.store)
    (root,) = held.list(a.run)
    held.transfer(a, root.id, to=b.run)
    held.transfer(b, root.id, to=c.run)
    assert not refused(desk, c, refund)
    desk.store.finish(b, result=None)
    held.revoke(a.run, root.id, by="dana")
    assert refused(desk, c, refund)
    with pytest.raises(hf.CommandError) as gone:
        held.transfer(c, root.id, to=a.run)
    assert gone.value.code == "no_such_capability"


def test_what_comes_back_is_made_of_what_it_was_and_goes_with_it() -> None:
    desk, refund, (a, b, _) = chain()
    held = hf.Capabilities(desk.store)
    (root,) = held.list(a.run)
    less = held.attenuate(a, root.id, rights=["call", "grant"])
    held.transfer(a, less, to=b.run)
    held.transfer(b, less, to=a.run)
    assert not refused(desk, a, refund, capability=less)
    held.revoke(a.run, root.id, by="dana")
    assert refused(desk, a, refund, capability=less)


def test_what_was_made_of_one_goes_when_the_run_that_has_it_now_loses_it() -> None:
    desk, refund, (a, b, _) = chain()
    held = hf.Capabilities(desk.store)
    (root,) = held.list(a.run)
    less = held.attenuate(a, root.id)
    held.transfer(a, root.id, to=b.run)
    assert not refused(desk, a, refund, capability=less)
    held.revoke(b.run, root.id, by="dana")
    assert refused(desk, a, refund, capability=less)


def test_a_capability_goes_to_no_run_that_is_not_there_or_has_ended() -> None:
    desk, _, (a, b, _) = chain()
    held = hf.Capabilities(desk.store)
    (root,) = held.list(a.run)
    desk.store.finish(b, result=None)
    for to in (b.run, "run_01ka4zc800ff1v3jcsnqbwke83"):
        with pytest.raises(hf.CommandError) as unknown:
            held.transfer(a, root.id, to=to)
        assert unknown.value.code == "no_such_run"


def test_only_what_happened_is_undone_and_the_undoing_asks_as_the_tool_does() -> None:
    desk = Desk()
    undone: list[Any] = []
    ends: list[Any] = [hf.NoEffect(), hf.EffectFailed("refused"), ConnectionError(), None]

    @desk.gate.tool(effect="write", approval="never", compensate=lambda *_: undone.append(1))
    def pay() -> object:
        end = ends.pop(0)
        if end is not None:
            raise end
        return object()

    for key in ("k1", "k2", "k3", "k4"):
        with pytest.raises((hf.OutcomeError, hf.Suspended)):
            desk.call(pay, key)
        with pytest.raises(hf.CommandError) as refused:
            desk.gate.compensate(desk.claim, desk.store.state(desk.run)["keys"][key])
        assert refused.value.code == "no_such_call"
    assert undone == []

    asking = refunds(desk, approval="always", compensate=lambda *_: undone.append(1))
    with pytest.raises(hf.Suspended):
        desk.call(asking, "k5", order="1", cents=1)
    (request,) = hf.Approvals(desk.store).list()
    hf.Approvals(desk.store).approve(request.id, by="dana")
    desk.call(asking, "k5", order="1", cents=1)
    with pytest.raises(hf.Suspended):
        desk.gate.compensate(desk.claim, desk.store.state(desk.run)["keys"]["k5"])
    assert undone == []


def test_an_approvers_nonsense_leaves_the_request_to_others() -> None:
    desk = Desk(policy=ASK)
    refund = refunds(desk)
    wrong = hf.ForSession(None, 1, float("nan"))  # type: ignore[arg-type]
    desk.gate.approver(name="chat")(lambda _: hf.Approve("dana", session=wrong))
    assert waits(desk, refund, "k1", order="1", cents=5).status == "pending"


def test_observers_and_agents_decide_nothing_and_activate_no_policy() -> None:
    desk = Desk()
    codes: list[str] = []

    def meddle(_: object) -> None:
        for act in (
            lambda: desk.gate.activate("[[rule]]\ndecide = 'allow'\n", by="agent"),
            lambda: hf.Grants(desk.store).revoke("grant_01ka4zc800ff1v3jcsnqbwke83", by="agent"),
        ):
            try:
                act()
            except hf.CommandError as error:
                codes.append(error.code)

    desk.gate.hook("before_tool_call", blocking=False, name="watch")(meddle)
    desk.call(refunds(desk), "k1", order="1", cents=1)
    assert desk.gate.observers("before_tool_call")[0].drain(10)
    desk.gate.attempt(desk.claim, meddle)
    assert codes == ["self_approval"] * 4
