"""Stories of what stands between a call and its effect: policy, people, hooks, deadlines, budgets."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

import pytest
from tests.gateway_desk import Desk, refunds

import holdfast as hf
from holdfast import gateway as gw
from holdfast.gateway import bodies
from holdfast.store.clock import FakeClock

if TYPE_CHECKING:
    from pathlib import Path

POLICY = """
[[rule]]
name = "small refunds"
tool = "refund*"
when = { "args.cents" = { max = 5000 } }
decide = "allow"

[[rule]]
effect = "write"
when = { "args.cents" = { min = 5001 } }
decide = "ask"
approvers = { roles = ["lead"], quorum = 2, expires = "2h" }

[[rule]]
tool = "wipe"
decide = "deny"

[approvers]
dana = ["lead"]
eve = ["lead"]
"""


def test_a_policy_allows_asks_and_denies_and_two_leads_release_what_it_asked_about() -> None:
    desk = Desk(policy=POLICY)
    refund = refunds(desk, risk="high")

    @desk.gate.tool(effect="write")
    def wipe() -> None:
        desk.happened.append("wiped")

    assert desk.call(refund, "k1", order="1", cents=5000) == {"id": "r1"}
    with pytest.raises(hf.Denied) as denied:
        desk.call(wipe, "k2")
    # The rule about large amounts cannot be judged without an amount, and so counts too.
    assert [reason["rule"] for reason in denied.value.reasons] == ["rule 2", "rule 3"]

    ends = desk.gate.attempt(desk.claim, lambda step: step.call(refund, key="k3", order="2", cents=9900))
    assert ends == "waiting"
    approvals = hf.Approvals(desk.store)
    (request,) = approvals.list()
    assert (request.tool, request.arguments, request.quorum) == ("refund", {"cents": 9900, "order": "2"}, 2)
    for who, code in (("mallory", "not_an_approver"), ("dana", None), ("dana", "already_voted")):
        if code is None:
            assert approvals.approve(request.id, by=who).status == "pending"
            continue
        with pytest.raises(hf.CommandError) as refused:
            approvals.approve(request.id, by=who)
        assert refused.value.code == code
    assert desk.store.claim(worker="w2", lease=30) is None
    assert approvals.approve(request.id, by="eve", reason="seen").status == "approved"
    with pytest.raises(hf.CommandError) as over:
        approvals.deny(request.id, by="dana")
    assert over.value.code == "approval_over"

    claim = desk.store.claim(worker="w2", lease=30)
    assert claim is not None
    done = desk.gate.attempt(claim, lambda step: step.call(refund, key="k3", order="2", cents=9900))
    assert done == "completed"
    assert [cents for _, cents, _ in desk.happened] == [5000, 9900]
    assert desk.store.verify().ok


def test_a_policy_with_a_typo_is_not_loaded_and_the_active_one_stays() -> None:
    desk = Desk(policy=POLICY)
    for bad in (
        '[[rule]]\ndescide = "allow"\n',
        '[[rule]]\ndecide = "alow"\n',
        '[[rule]]\ntool = "x"\n',
        '[[rule]]\ndecide = "ask"\napprovers = { expires = "soon" }\n',
        '[[rule]]\ndecide = "deny"\napprovers = { quorum = 2 }\n',
        '[[rule]]\ndecide = "allow"\nwhen = { "args.cents" = { maximum = 5 } }\n',
        '[[rule]]\ndecide = "allow"\nwhen = { cents = 5 }\n',
        "[rules]\nx = 1\n",
        "no toml at\nall",
    ):
        with pytest.raises(hf.PolicyError) as refused:
            desk.gate.activate(bad, by="dana")
        assert refused.value.code == "bad_policy"
    activated = [record for record in desk.store.read("store") if record.kind == "policy.activated"]
    assert len(activated) == 1
    desk.gate.activate(POLICY, by="eve")  # the same again: nothing is written
    assert len(list(desk.store.read("store"))) == 2


def test_hooks_deny_rewrite_and_ask_and_each_sees_what_the_one_before_made_of_it() -> None:
    desk = Desk()
    refund = refunds(desk)
    seen = []

    @desk.gate.hook("before_tool_call", rights=["modify_tool_request"], phase="early")
    def cap(subject: gw.Subject) -> object:
        return gw.rewrite({**subject.value, "cents": min(subject.value["cents"], 100)})

    @desk.gate.hook("before_tool_call", rights=["deny", "request_approval"])
    def guard(subject: gw.Subject) -> object:
        seen.append(subject.value["cents"])
        if subject.value["order"] == "evil":
            return gw.deny("order.evil", "we do not do that")
        return gw.request_approval() if subject.value["order"] == "odd" else None

    assert desk.call(refund, "k1", order="1", cents=5000) == {"id": "r1"}
    assert desk.happened[0][:2] == ("1", 100)
    assert seen == [100]
    # The call is known by what agent code gave, not by what hooks made of it.
    assert desk.call(refund, "k1", order="1", cents=5000) == {"id": "r1"}
    with pytest.raises(hf.Denied) as denied:
        desk.call(refund, "k2", order="evil", cents=1)
    assert denied.value.reasons[0]["code"] == "order.evil"
    with pytest.raises(hf.Suspended):
        desk.call(refund, "k3", order="odd", cents=7000)
    (request,) = hf.Approvals(desk.store).list()
    assert request.arguments == {"cents": 100, "order": "odd"}
    hf.Approvals(desk.store).approve(request.id, by="dana")
    desk.call(refund, "k3", order="odd", cents=7000)
    assert desk.happened[1][:2] == ("odd", 100)


def failing(subject: gw.Subject) -> object:
    raise RuntimeError(subject.tool)


def nonsense(_: gw.Subject) -> object:
    return "yes"


def overstepping(_: gw.Subject) -> object:
    return gw.deny("no.right")


def invalid(_: gw.Subject) -> object:
    return gw.rewrite({"cents": "many"})


@pytest.mark.parametrize("body", [failing, nonsense, overstepping, invalid])
@pytest.mark.parametrize("failure", ["deny", "interrupt_run", "fail_run"])
def test_a_hook_that_fails_never_opens_the_door(body: Any, failure: Any) -> None:
    desk = Desk()
    refund = refunds(desk)
    desk.gate.hook("before_tool_call", rights=["modify_tool_request"], failure=failure)(body)
    expected = {"deny": hf.Denied, "interrupt_run": hf.Suspended, "fail_run": hf.Stopped}[failure]
    with pytest.raises(expected):
        desk.call(refund, "k1", order="1", cents=1)
    assert desk.happened == []
    assert "effect.started" not in desk.kinds()


def test_a_hook_that_is_too_slow_never_opens_the_door_sync_or_async() -> None:
    desk = Desk()
    refund = refunds(desk)
    release = threading.Event()

    @desk.gate.hook("before_tool_call", timeout=0.02)
    def stuck(_: gw.Subject) -> None:
        release.wait(30)

    with pytest.raises(hf.Denied):
        desk.call(refund, "k1", order="1", cents=1)
    with pytest.raises(hf.Denied):
        asyncio.run(desk.gate.acall(desk.claim, refund, key="k2", order="1", cents=1))
    release.set()

    other = Desk()
    refund = refunds(other)

    @other.gate.hook("before_tool_call", timeout=0.02)
    async def forever(_: gw.Subject) -> None:
        await asyncio.Event().wait()

    with pytest.raises(hf.Denied):
        other.call(refund, "k1", order="1", cents=1)
    with pytest.raises(hf.Denied):
        asyncio.run(other.gate.acall(other.claim, refund, key="k2", order="1", cents=1))
    assert desk.happened == other.happened == []


def test_a_write_that_times_out_is_in_doubt_and_a_read_has_failed() -> None:
    desk = Desk()
    release = threading.Event()

    @desk.gate.tool(effect="write", timeout=0.02)
    def slow_write() -> None:
        release.wait(30)

    @desk.gate.tool(effect="read", timeout=0.02)
    async def slow_read() -> None:
        await asyncio.Event().wait()

    with pytest.raises(hf.Suspended) as waits:
        desk.call(slow_write, "k1")
    assert waits.value.wait["on"] == "doubt"
    with pytest.raises(hf.EffectFailed):
        desk.call(slow_read, "k2")
    # The body is still alive: nobody may say that it did not happen.
    (doubt,) = hf.Effects(desk.store).list()
    with pytest.raises(hf.CommandError) as early:
        hf.Effects(desk.store).resolve(doubt.id, by="dana", did_not_happen=True)
    assert early.value.code == "permit_may_act"
    assert bodies.THREADS.abandoned >= 1
    release.set()


def test_too_many_abandoned_bodies_shut_the_door(monkeypatch: pytest.MonkeyPatch) -> None:
    desk = Desk()
    refund = refunds(desk)
    monkeypatch.setattr(bodies, "ABANDONED_MAX", 0)
    with pytest.raises(hf.NoEffect):
        desk.call(refund, "k1", order="1", cents=1)
    assert desk.happened == []


def test_observers_hear_of_calls_and_a_full_queue_drops_and_counts() -> None:
    desk = Desk()
    refund = refunds(desk)
    heard: list[str] = []
    free, busy = threading.Event(), threading.Event()

    def watch(subject: gw.Subject) -> None:
        busy.set()
        free.wait(30)
        heard.append(subject.point)
        raise RuntimeError("an observer's failure changes nothing")

    desk.gate.hook("after_tool_call", blocking=False, failure="fail_open_observe_only", queue=(3, 1))(watch)
    (observer,) = desk.gate.observers("after_tool_call")
    desk.call(refund, "k0", order="1", cents=1)
    assert busy.wait(10)
    for n in range(1, 5):
        desk.call(refund, f"k{n}", order="1", cents=1)
    free.set()
    assert observer.drain(10)
    assert (len(heard), observer.dropped, observer.failed) == (4, 1, 4)  # ends have the reserve, too


def test_a_hook_after_a_call_rewrites_what_the_agent_gets_and_withholds_it_when_it_fails() -> None:
    desk = Desk()
    refund = refunds(desk)

    @desk.gate.hook("after_tool_call", rights=["rewrite_tool_result"])
    def redact(subject: gw.Subject) -> object:
        if len(desk.happened) == 2:
            raise RuntimeError
        return gw.rewrite({"id": f"not {subject.value['id']}"})

    assert desk.call(refund, "k1", order="1", cents=1) == {"id": "not r1"}
    assert desk.call(refund, "k1", order="1", cents=1) == {"id": "not r1"}
    for _ in range(2):
        with pytest.raises(hf.OutcomeError) as withheld:
            desk.call(refund, "k2", order="1", cents=1)
        assert withheld.value.code == "hook.failed"
    assert len(desk.happened) == 2


def test_evaluators_only_tighten_and_one_that_fails_denies() -> None:
    for said, expected in (("allow", None), ("ask", hf.Suspended), ("deny", hf.Denied), ("??", hf.Denied)):
        desk = Desk()
        refund = refunds(desk)

        def evaluate(_: gw.Subject, said: str = said) -> str:
            return said

        desk.gate.evaluator(name="e")(evaluate)
        if expected is None:
            desk.call(refund, "k1", order="1", cents=1)
            continue
        with pytest.raises(expected):
            desk.call(refund, "k1", order="1", cents=1)
        assert desk.happened == []


def test_a_budget_of_one_is_one_call() -> None:
    desk = Desk(budget={"on_exceeded": "refuse", "tool_calls": 1})
    refund = refunds(desk)
    desk.call(refund, "k1", order="1", cents=1)
    for _ in range(2):
        with pytest.raises(hf.BudgetRefused) as refused:
            desk.call(refund, "k2", order="1", cents=1)
        assert refused.value.code == "budget_refused"
    assert len(desk.happened) == 1


def test_pure_calls_leave_no_trace_and_raise_what_they_raise() -> None:
    desk = Desk()

    @desk.gate.tool(effect="pure")
    def half(n: int) -> float:
        if n == 0:
            raise ZeroDivisionError("not that")
        return n / 2

    before = desk.kinds()
    assert desk.call(half, "k1", n=3) == 1.5
    with pytest.raises(ZeroDivisionError):
        desk.call(half, "k2", n=0)
    assert desk.since(before) == []


def test_cancelling_a_call_lets_the_body_of_a_write_end_and_its_outcome_be_known() -> None:
    desk = Desk()

    async def story() -> None:
        begun, go = asyncio.Event(), asyncio.Event()

        @desk.gate.tool(effect="write")
        async def pay() -> str:
            begun.set()
            await go.wait()
            desk.happened.append("paid")
            return "paid"

        task = asyncio.create_task(desk.gate.acall(desk.claim, pay, key="k1"))
        await begun.wait()
        task.cancel()
        await asyncio.sleep(0)
        go.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await desk.gate.acall(desk.claim, pay, key="k1") == "paid"

    asyncio.run(story())
    assert desk.happened == ["paid"]


def test_a_worker_that_lost_its_step_reports_late_and_the_doubt_is_settled() -> None:
    clock = FakeClock()
    store = hf.open("memory:", clock=clock)
    gate = hf.Gateway(store)
    store.create_run(agent="support")
    first = store.claim(worker="w1", lease=30)
    assert first is not None

    @gate.tool(effect="write")
    def pay() -> str:
        clock.advance(seconds=31)
        assert store.claim(worker="w2", lease=30) is not None  # takes the step back and has it now
        return "paid"

    with pytest.raises(hf.CommandError) as lost:
        gate.call(first, pay, key="k1")
    assert lost.value.code == "stale_fence"
    kinds = [record.kind for record in store.read(first.run)]
    assert kinds[-2:] == ["effect.late", "effect.resolved"]
    clock.advance(seconds=31)
    newer = store.claim(worker="w3", lease=30)
    assert newer is not None
    assert gate.call(newer, pay, key="k1") == "paid"


def test_a_cancelled_hook_has_said_nothing_and_the_call_is_asked_about_anew() -> None:
    desk = Desk()
    refund = refunds(desk)

    async def story() -> None:
        asked, go = asyncio.Event(), asyncio.Event()

        @desk.gate.hook("before_tool_call", timeout=30)
        async def slow(_: gw.Subject) -> None:
            asked.set()
            await go.wait()

        task = asyncio.create_task(desk.gate.acall(desk.claim, refund, key="k1", order="1", cents=1))
        await asked.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert "call.opened" not in desk.kinds()
        go.set()
        await desk.gate.acall(desk.claim, refund, key="k1", order="1", cents=1)

    asyncio.run(story())
    assert len(desk.happened) == 1


def test_a_write_that_is_cancelled_while_its_permit_is_written_does_not_begin(tmp_path: Path) -> None:
    desk = Desk(url=tmp_path / "s")  # in memory there is nothing to wait for
    refund = refunds(desk)

    async def story() -> None:
        task = asyncio.create_task(desk.gate.acall(desk.claim, refund, key="k1", order="1", cents=1))
        await asyncio.sleep(0)  # it has asked the store
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert desk.happened == []
        assert desk.kinds()[-2:] == ["effect.started", "effect.settled"]
        await desk.gate.acall(desk.claim, refund, key="k1", order="1", cents=1)

    asyncio.run(story())
    assert len(desk.happened) == 1


def test_an_outcome_is_known_whatever_a_body_makes_up_around_it() -> None:
    desk = Desk()

    @desk.gate.tool(effect="write")
    def odd(what: str) -> object:
        desk.happened.append(what)
        if what == "raises":
            raise hf.EffectFailed("\ud800", code="Not A Token!")
        if what == "doubt":
            raise ValueError("\ud800")
        return hf.Result("x", external_id="", usage={"apples": -1})

    with pytest.raises(hf.OutcomeError) as unrecordable:
        desk.call(odd, "k1", what="returns")
    assert unrecordable.value.code == "result_unrecordable"
    with pytest.raises(hf.EffectFailed):
        desk.call(odd, "k2", what="raises")
    with pytest.raises(hf.Suspended):
        desk.call(odd, "k3", what="doubt")
    calls = desk.store.state(desk.run)["calls"].values()
    assert sorted(call["phase"] for call in calls) == ["doubted", "settled", "settled"]
    assert desk.happened == ["returns", "raises", "doubt"]


def test_two_evaluators_of_one_name_are_refused() -> None:
    desk = Desk()
    desk.gate.evaluator(name="e")(lambda _: "allow")
    with pytest.raises(hf.ToolError) as refused:
        desk.gate.evaluator(name="e")(lambda _: "allow")
    assert refused.value.code == "hook_exists"


@pytest.mark.parametrize("failure", ["deny", "interrupt_run", "fail_run"])
def test_a_result_is_withheld_whatever_the_failure_policy_of_the_hook_after_it(failure: Any) -> None:
    desk = Desk()
    refund = refunds(desk)
    desk.gate.hook("after_tool_call", rights=["rewrite_tool_result"], failure=failure)(failing)
    with pytest.raises((hf.OutcomeError, hf.Stopped)):
        desk.call(refund, "k1", order="1", cents=1)
    with pytest.raises(hf.OutcomeError):
        desk.call(refund, "k1", order="1", cents=1)
    assert len(desk.happened) == 1


def test_a_result_that_was_found_out_later_is_looked_at_by_hooks_too() -> None:
    desk = Desk()

    @desk.gate.hook("after_tool_call", rights=["rewrite_tool_result"])
    def redact(subject: gw.Subject) -> object:
        return gw.rewrite(subject.value.upper())

    @desk.gate.tool(effect="write", reconcile=lambda _: hf.Happened("by reconcile"))
    def lost() -> str:
        raise ConnectionError

    @desk.gate.tool(effect="write")
    def unknown() -> str:
        raise ConnectionError

    assert desk.call(lost, "k1") == "BY RECONCILE"
    with pytest.raises(hf.Suspended):
        desk.call(unknown, "k2")
    (doubt,) = hf.Effects(desk.store).list()
    hf.Effects(desk.store).resolve(doubt.id, by="dana", happened="by hand")
    assert desk.call(unknown, "k2") == desk.call(unknown, "k2") == "BY HAND"


def test_agents_and_tools_decide_nothing() -> None:
    desk = Desk()
    codes = []

    @desk.gate.tool(effect="write", risk="high")
    def wire() -> None:
        desk.happened.append("sent")

    @desk.gate.tool(effect="read")
    def sneak() -> None:
        (request,) = hf.Approvals(desk.store).list()
        hf.Approvals(desk.store).approve(request.id, by="agent-said-dana")

    def work(step: hf.gateway.Step) -> None:
        (request,) = hf.Approvals(desk.store).list()
        try:
            hf.Approvals(desk.store).approve(request.id, by="dana")
        except hf.CommandError as error:
            codes.append(error.code)
        step.call(wire, key="k1")

    with pytest.raises(hf.Suspended):
        desk.call(wire, "k1")
    with pytest.raises(hf.EffectFailed):
        desk.call(sneak, "k2")
    assert desk.gate.attempt(desk.claim, work) == "waiting"
    assert (codes, desk.happened) == (["self_approval"], [])


def test_an_async_body_that_raised_may_have_left_work_behind_and_is_waited_for() -> None:
    desk = Desk()
    asked = []

    def ask(call: hf.Call) -> hf.DidNotHappen:
        asked.append(call)
        return hf.DidNotHappen()

    @desk.gate.tool(effect="write", reconcile=ask)
    async def pay() -> None:
        raise ConnectionError

    with pytest.raises(hf.Suspended) as waits:
        desk.call(pay, "k1")
    assert waits.value.wait["until"] > 0
    assert asked == []


def test_a_write_without_a_result_can_be_resolved_as_happened() -> None:
    desk = Desk()

    @desk.gate.tool(effect="write")
    def send() -> None:
        raise ConnectionError

    with pytest.raises(hf.Suspended):
        desk.call(send, "k1")
    (doubt,) = hf.Effects(desk.store).list()
    hf.Effects(desk.store).resolve(doubt.id, by="dana", happened=None)
    assert desk.call(send, "k1") is None


def test_rules_made_in_python_are_the_rules_of_toml_and_read_as_strictly() -> None:
    when = {"args.cents": {"max": 5000}}
    made = hf.Policy.of(
        gw.rule("allow", name="small", tool="refund*", when=when), approvers={"dana": ["lead"]}
    )
    text = """
[[rule]]
name = "small"
tool = "refund*"
when = { "args.cents" = { max = 5000 } }
decide = "allow"

[approvers]
dana = ["lead"]
"""
    assert made.digest == hf.Policy.load(text).digest
    for wrong in ({"tol": "refund"}, {"risk": "huge"}, {"when": {"cents": 5}}):
        with pytest.raises(hf.PolicyError) as refused:
            hf.Policy.of(gw.rule("deny", **wrong))
        assert refused.value.code == "bad_policy"


def test_a_rule_holds_between_its_times() -> None:
    clock = FakeClock(wall_ms=1_798_066_800_000 - 1)  # a millisecond before 2026-12-24 in Berlin
    text = """
[[rule]]
decide = "deny"
not_before = 2026-12-24T00:00:00+01:00
not_after = 2026-12-24T00:00:01.5+01:00
"""
    ms = gw.rule("deny", name="rule 1", not_before=1_798_066_800_000, not_after=1_798_066_801_500)
    assert hf.Policy.load(text).digest == hf.Policy.of(ms).digest

    def decided() -> str:
        with hf.Runtime(store, policy=text) as rt:

            @rt.tool(effect="write")
            def send() -> str:
                return "sent"

            @rt.agent(attempts=1)
            async def sends(ctx: hf.Context) -> str:
                return await ctx.call(send)

            return rt.run_sync(sends).status

    with hf.open("memory:", clock=clock) as store:
        came_to = [decided()]
        for seconds in (0.001, 1.499, 0.001):
            clock.advance(seconds=seconds)
            came_to.append(decided())
    assert came_to == ["completed", "failed", "failed", "completed"]
    for wrong in ("2026-12-24", "2026-12-24T00:00:00", "00:00:00", "true", '"2026-12-24T00:00:00Z"', "1.5"):
        with pytest.raises(hf.PolicyError, match="a time has a date, a time of day and an offset") as refused:
            hf.Policy.load(f'[[rule]]\ndecide = "deny"\nnot_after = {wrong}\n')
        assert (refused.value.code, refused.value.path) == ("bad_policy", "rule[0].not_after")
