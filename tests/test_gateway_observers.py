"""Stories of observers: hooks that nobody waits for hear of every call, once, and no more than they may."""

from __future__ import annotations

import asyncio
import threading
from functools import partial
from typing import Any

import pytest
from tests.gateway_desk import Desk, refunds

import holdfast as hf
from holdfast import gateway as gw
from holdfast.gateway.hooks import TERMINAL
from holdfast.gateway.watch import WATCHED
from holdfast.store.clock import FakeClock

CARD = "4242424242424242"


class Ears:
    """An observer at each point that calls come by, and what they heard."""

    def __init__(self, gate: hf.Gateway, **options: Any) -> None:
        self.gate = gate
        self.heard: list[gw.Subject] = []
        self.results: list[Any] = []
        for point in WATCHED:
            gate.hook(point, blocking=False, name=f"at {point}", **options)(self.heard.append)  # type: ignore[arg-type]

    def hears(self) -> list[tuple[str, str, Any]]:
        """What was heard since: of one point in its order, of several by their names."""
        for point in WATCHED:
            assert all(observer.drain(10) for observer in self.gate.observers(point))
        told = [(one.point, one.tool, one.outcome or one.value) for one in self.heard]
        self.results = [one.value for one in self.heard if one.point == "after_tool_call"]
        self.heard.clear()
        return sorted(told, key=lambda one: WATCHED.index(one[0]))


def bank(desk: Desk) -> Any:
    """Tools that end in each way."""

    @desk.gate.tool(effect="pure")
    def parse(text: str) -> int:
        return int(text)

    @desk.gate.tool(effect="read")
    def look(fails: bool) -> str:
        if fails:
            raise LookupError("gone")
        return "there"

    @desk.gate.tool(effect="write")
    def wipe(card: str) -> None:
        desk.happened.append(card)

    return parse, look, wipe


def test_observers_hear_of_every_call_and_of_its_end_however_it_ends_and_of_what_is_served_nothing() -> None:
    denies = '[[rule]]\ntool = "wipe"\ndecide = "deny"\n'
    desk, quiet = Desk(policy=denies), Desk(policy=denies)
    ears = Ears(desk.gate)
    for one in (desk, quiet):
        parse, look, wipe = bank(one)
        for _ in range(2):
            assert one.call(parse, "p1", text="7") == 7
            with pytest.raises(ValueError, match="seven"):
                one.call(parse, "p2", text="seven")
            assert one.call(look, "l1", fails=False) == "there"
            with pytest.raises(hf.EffectFailed):
                one.call(look, "l2", fails=True)
            with pytest.raises(hf.Denied):
                one.call(wipe, "w1", card=CARD)
    before = [
        ("before_tool_call", "parse", {"text": "7"}),
        ("before_tool_call", "parse", {"text": "seven"}),
        ("before_tool_call", "look", {"fails": False}),
        ("before_tool_call", "look", {"fails": True}),
        ("before_tool_call", "wipe", {"card": CARD}),
        # What computes is not written down, and so is a call each time.
        ("before_tool_call", "parse", {"text": "7"}),
        ("before_tool_call", "parse", {"text": "seven"}),
    ]
    outcomes = ["succeeded", "failed", "succeeded", "failed", "denied", "succeeded", "failed"]
    after = [("after_tool_call", tool, end) for (_, tool, _), end in zip(before, outcomes, strict=True)]
    assert ears.hears() == before + after
    assert desk.kinds() == quiet.kinds()  # that somebody looks on leaves no trace
    assert desk.happened == quiet.happened == []


@pytest.mark.parametrize("blocking", [False, True])
def test_they_hear_that_a_person_is_asked_and_what_that_person_said_and_each_once(blocking: bool) -> None:
    desk = Desk()
    refund = refunds(desk, risk="high")
    ears = Ears(desk.gate)
    if blocking:  # hooks that are waited for stand at the same points
        for point in WATCHED:
            desk.gate.hook(point, name=f"waits at {point}")(lambda _: None)  # type: ignore[arg-type]
    approvals = hf.Approvals(desk.store)
    for n, decision in enumerate(("approved", "denied"), 1):
        given = {"cents": n, "order": str(n)}
        for _ in range(2):
            with pytest.raises(hf.Suspended):
                desk.call(refund, f"k{n}", **given)
        asked = [(point, "refund", given) for point in ("before_tool_call", "before_approval_request")]
        assert ears.hears() == asked
        (request,) = approvals.list()
        vote = approvals.approve if decision == "approved" else approvals.deny
        vote(request.id, by="dana")
        for _ in range(2):
            if decision == "approved":
                assert desk.call(refund, f"k{n}", **given) == {"id": "r1"}
                continue
            with pytest.raises(hf.Denied):
                desk.call(refund, f"k{n}", **given)
        (call,) = [id for id, one in desk.store.state(desk.run)["calls"].items() if one["key"] == f"k{n}"]
        said = {"approval": request.id, "call": call, "decision": decision}
        end = "succeeded" if decision == "approved" else "denied"
        assert ears.hears() == [
            ("after_approval_decision", "refund", said),
            ("after_tool_call", "refund", end),
        ]


def test_an_approver_who_answers_at_once_is_heard_once_too_and_so_is_a_request_that_expires() -> None:
    clock, desk = FakeClock(), Desk()
    desk.store = hf.open("memory:", clock=clock)
    asks = '[[rule]]\ndecide = "ask"\napprovers = { expires = "1m" }\n'
    desk.gate = hf.Gateway(desk.store, policy=asks)
    refund = refunds(desk)
    ears = Ears(desk.gate)

    @desk.gate.approver()
    def at_once(request: gw.Request) -> hf.Approve | None:
        return hf.Approve(by="dana") if request.arguments["cents"] < 5 else None

    desk.run = desk.store.create_run(agent="support")
    claim = desk.store.claim(worker="w1", lease=600)
    assert claim is not None
    desk.claim = claim
    assert desk.call(refund, "k1", order="1", cents=1) == {"id": "r1"}
    assert [point for point, _, _ in ears.hears()] == list(WATCHED)
    with pytest.raises(hf.Suspended):
        desk.call(refund, "k2", order="1", cents=9)
    clock.advance(seconds=61)
    ears.hears()
    for _ in range(2):
        with pytest.raises(hf.Denied):
            desk.call(refund, "k2", order="1", cents=9)
    assert ears.hears() == [("after_tool_call", "refund", "denied")]


def teller(store: hf.Store) -> tuple[hf.Runtime, Ears]:
    """A program that sends three times."""
    rt = hf.Runtime(store, suspend_grace=0.02, replay_grace=0.2)

    @rt.tool(effect="write", approval="always")
    def wire(cents: int) -> int:
        return cents

    @rt.agent
    async def sends(ctx: hf.Context) -> list[Any]:
        said: list[Any] = []
        for cents in (1, 2, 3):
            try:
                said.append(await ctx.call(wire, cents=cents))
            except hf.Denied:
                said.append("no")
        return said

    return rt, Ears(rt.gateway)


@pytest.mark.parametrize("anew", [False, True])
def test_a_run_that_is_taken_up_again_and_again_tells_of_a_decision_once(anew: bool) -> None:
    store = hf.open("memory:")
    rt, ears = teller(store)
    run = rt.run_sync("sends")
    heard = ears.hears()
    for decision in ("approve", "deny", "approve"):
        if anew:  # another process takes it up
            rt, ears = teller(store)
        getattr(rt.approvals, decision)(rt.approvals.list()[0].id, by="dana")
        run = rt.resume_sync(run.id)
        heard += ears.hears()
    assert run.result == [1, "no", 3]
    decisions = [value["decision"] for point, _, value in heard if point == "after_approval_decision"]
    assert decisions == ["approved", "denied", "approved"]
    ends = [value for point, _, value in heard if point == "after_tool_call"]
    assert ends == ["succeeded", "denied", "succeeded"]
    asked = [point for point, _, _ in heard if point.startswith("before")]
    assert asked == ["before_tool_call", "before_approval_request"] * 3


@pytest.mark.parametrize("waits", [False, True])
def test_a_call_that_another_run_has_made_under_its_key_ends_here_too_once(waits: bool) -> None:
    desk = Desk()

    @desk.gate.tool(effect="write")
    def pay(cents: int) -> int:
        raise ConnectionError(f"the answer about {cents} was lost")

    key = hf.Key("pay 1", scope="store")
    desk.store.create_run(agent="support")
    claim = desk.store.claim(worker="w2", lease=30)
    assert claim is not None
    with pytest.raises(hf.Suspended):
        desk.gate.call(desk.claim, pay, key=key, cents=1)
    ears = Ears(desk.gate)
    if waits:
        with pytest.raises(hf.Suspended) as asked:
            desk.gate.call(claim, pay, key=key, cents=1)
        assert asked.value.wait["on"] == "key"
    (doubt,) = hf.Effects(desk.store).list()
    hf.Effects(desk.store).resolve(doubt.id, by="dana", happened=7)
    for _ in range(2):
        assert desk.gate.call(claim, pay, key=key, cents=1) == 7
    assert ears.hears() == [
        ("before_tool_call", "pay", {"cents": 1}),
        ("after_tool_call", "pay", "succeeded"),
    ]


def test_a_call_that_had_to_wait_is_no_other_call_and_one_that_was_edited_is_heard_of_again() -> None:
    rt = hf.Runtime("memory:", suspend_grace=0.02, budget={"on_exceeded": "ask", "tool_calls": 0})

    @rt.tool(effect="write")
    def wire(cents: int) -> int:
        return cents

    @rt.agent
    async def sends(ctx: hf.Context, key: str | None) -> int:
        return await ctx.call(wire, key=key, cents=5)

    ears = Ears(rt.gateway)
    for key in ("k1", None):
        run = rt.run_sync(sends, key)
        rt.release(run, by="dana")
        run = rt.resume_sync(run)  # there is still nothing left for it
        assert [wait["on"] for wait in run.waiting_on] == ["budget"]
        assert ears.hears() == [("before_tool_call", "wire", {"cents": 5})]
    rt.close()

    desk = Desk()
    refund = refunds(desk, risk="high")
    ears = Ears(desk.gate)
    desk.gate.hook("before_approval_request")(lambda _: None)
    with pytest.raises(hf.Suspended):
        desk.call(refund, "k1", order="1", cents=9)
    assert [point for point, _, _ in ears.hears()] == ["before_tool_call", "before_approval_request"]
    desk.gate.activate('[[rule]]\ndecide = "ask"\n', by="dana")
    with pytest.raises(hf.Suspended):
        desk.call(refund, "k1", order="1", cents=9)
    assert [point for point, _, _ in ears.hears()] == ["before_approval_request"]  # under another policy
    approvals = hf.Approvals(desk.store)
    approvals.edit(approvals.list()[0].id, {"cents": 1, "order": "1"}, by="dana")
    with pytest.raises(hf.Suspended):
        desk.call(refund, "k1", order="1", cents=9)
    assert ears.hears() == [
        ("before_tool_call", "refund", {"cents": 1, "order": "1"}),
        ("before_approval_request", "refund", {"cents": 1, "order": "1"}),
    ]


def test_a_doubt_is_no_end_and_what_a_person_or_the_tool_makes_of_it_is_heard_once() -> None:
    desk = Desk()
    answers = iter([gw.CannotTell(), gw.Happened(7)])

    @desk.gate.tool(effect="write", reconcile=lambda _: next(answers))
    def pay(cents: int) -> int:
        raise ConnectionError(f"the answer about {cents} was lost")

    ears = Ears(desk.gate)
    with pytest.raises(hf.Suspended):
        desk.call(pay, "k1", cents=5)
    assert [point for point, _, _ in ears.hears()] == ["before_tool_call"]
    (doubt,) = hf.Effects(desk.store).list()
    hf.Effects(desk.store).resolve(doubt.id, by="dana", happened=5)
    for _ in range(2):
        assert desk.call(pay, "k1", cents=5) == 5
    assert ears.hears() == [("after_tool_call", "pay", "succeeded")]

    for _ in range(2):
        assert desk.call(pay, "k2", cents=5) == 7  # the tool says that it happened
    assert ears.hears() == [
        ("before_tool_call", "pay", {"cents": 5}),
        ("after_tool_call", "pay", "succeeded"),
    ]


def test_they_are_shown_what_hooks_left_of_it_and_hear_of_what_a_hook_denies() -> None:
    desk = Desk()
    _, look, wipe = bank(desk)
    ears = Ears(desk.gate)

    @desk.gate.hook("before_tool_call", rights=["modify_tool_request", "deny"])
    def cap(subject: gw.Subject) -> object:
        return gw.deny("no.wiping") if subject.tool == "wipe" else gw.rewrite({"fails": False})

    @desk.gate.hook("after_tool_call", rights=["rewrite_tool_result"])
    def hide(subject: gw.Subject) -> object:
        assert subject.outcome == "succeeded"
        return gw.rewrite(f"not {subject.value}")

    with pytest.raises(hf.Denied):
        desk.call(wipe, "w1", card=CARD)
    assert desk.call(look, "l1", fails=True) == "not there"
    assert ears.hears() == [
        ("before_tool_call", "wipe", {"card": CARD}),
        ("before_tool_call", "look", {"fails": False}),
        ("after_tool_call", "wipe", "denied"),
        ("after_tool_call", "look", "succeeded"),
    ]
    assert ears.results == [None, "not there"]


def test_redactions_and_privacy_hold_for_them_whatever_becomes_of_the_call() -> None:
    cases: Any = (("allow", "pure"), ("allow", "write"), ("deny", "write"), ("ask", "write"))
    for decide, effect in cases:
        desk = Desk(policy=f'[[rule]]\ndecide = "{decide}"\nredact = ["args.card"]\n')
        seen = Ears(desk.gate)
        blind: list[gw.Subject] = []
        ends: Any = ("before_tool_call", "after_tool_call")
        for point in ends:
            options: Any = {"blocking": False, "name": f"blind {point}", "privacy": "content_refs_only"}
            desk.gate.hook(point, **options)(blind.append)

        @desk.gate.tool(effect=effect, name="charge")
        def charge(card: str) -> str:
            assert card == CARD
            return "charged"

        try:
            desk.call(charge, "c1", card=CARD)
        except (hf.Denied, hf.Suspended):
            assert decide != "allow"
        told = seen.hears()
        for point in ends:
            assert all(observer.drain(10) for observer in desk.gate.observers(point))
        shown = [value for point, _, value in told if point.startswith("before")]
        assert shown == [{"card": "[redacted card]"}] * (2 if decide == "ask" else 1)
        end = {"allow": ["succeeded"], "deny": ["denied"], "ask": []}[decide]
        assert [value for point, _, value in told if point == "after_tool_call"] == end
        assert [one.value for one in blind] == [None] * len(blind)
        outcomes = sorted(one.outcome or "" for one in blind)  # each hears in a thread of its own
        assert outcomes == ["", *end]


def test_what_an_observer_does_to_a_value_is_its_own_affair() -> None:
    desk = Desk()
    refund = refunds(desk)
    desk.gate.hook("before_tool_call", blocking=False)(lambda subject: subject.value.clear())
    desk.gate.hook("after_tool_call", blocking=False, name="b")(lambda subject: subject.value.clear())
    ears = Ears(desk.gate)
    assert desk.call(refund, "k1", order="1", cents=1) == {"id": "r1"}
    for point in WATCHED:
        assert all(observer.drain(10) for observer in desk.gate.observers(point))
    assert [one.value for one in ears.heard] == [{"cents": 1, "order": "1"}, {"id": "r1"}]


def test_an_async_observer_is_awaited_and_cancelled_when_it_is_late_and_hears_of_the_next() -> None:
    desk = Desk()
    refund = refunds(desk)
    heard: list[str] = []

    @desk.gate.hook("before_tool_call", blocking=False, timeout=0.05)
    async def watch(subject: gw.Subject) -> None:
        if subject.value["order"] == "slow":
            try:
                await asyncio.Event().wait()
            finally:
                heard.append("cancelled")
        await asyncio.sleep(0)
        heard.append(subject.value["order"])
        with pytest.raises(hf.CommandError) as refused:  # it is code of ours, and decides nothing
            hf.Approvals(desk.store).approve("apr_00000000000000000000000000", by="dana")
        assert refused.value.code == "self_approval"

    for n, order in enumerate(("1", "slow", "2")):
        desk.call(refund, f"k{n}", order=order, cents=1)
    (observer,) = desk.gate.observers("before_tool_call")
    assert observer.drain(10)
    assert (heard, observer.failed, observer.dropped) == (["1", "cancelled", "2"], 1, 0)


@pytest.mark.parametrize("point", ["before_tool_call", "after_tool_call"])
def test_the_reserve_of_a_queue_is_kept_for_ends_and_an_overflow_counts_as_the_policy_says(
    point: Any, caplog: pytest.LogCaptureFixture
) -> None:
    desk = Desk()
    refund = refunds(desk)
    free, busy, heard = threading.Event(), threading.Event(), []

    def watch(subject: gw.Subject) -> None:
        busy.set()
        free.wait(30)
        heard.append(subject.point)

    for overflow in ("drop_observe_only", "summarize_and_continue", "fail_hook_invocation"):
        options: Any = {"blocking": False, "name": overflow, "overflow": overflow, "queue": (3, 1)}
        desk.gate.hook(point, **options)(watch)
    desk.call(refund, "k0", order="1", cents=1)
    observers = desk.gate.observers(point)
    assert busy.wait(10)
    for observer in observers:  # each has taken the first out of its queue
        with observer._changed:
            assert observer._changed.wait_for(partial(getattr, observer, "_busy"), 10)
    for n in range(1, 6):
        assert desk.call(refund, f"k{n}", order="1", cents=1) == {"id": f"r{n + 1}"}  # nobody waits for them
    free.set()
    assert all(observer.drain(10) for observer in observers)
    places = 3 if point in TERMINAL else 2
    assert {observer.dropped for observer in observers} == {5 - places}
    assert len(heard) == 3 * (1 + places)
    failed = {observer.hook.id: observer.failed for observer in observers}
    assert failed == {
        "drop_observe_only": 0,
        "fail_hook_invocation": 5 - places,
        "summarize_and_continue": 0,
    }
    errors = [one.name for one in caplog.records if one.levelname == "ERROR"]
    assert errors == ["holdfast.hooks"] * (5 - places)
    warned = [one.getMessage() for one in caplog.records if one.levelname == "WARNING"]
    assert warned == [f"the observer summarize_and_continue did not hear of {n}" for n in (1, 2)]
