"""What else agents and programs do through the runtime: tasks, questions, guards, workers, several steps."""

from __future__ import annotations

import asyncio
import functools
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest
from tests.runtime_desk import Provider, address, approve_all, provider, rt

import holdfast as hf
from holdfast.primitives import new_id

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

__all__ = ["address", "provider", "rt"]  # fixtures


def test_any_code_can_be_recorded_under_a_name(rt: hf.Runtime) -> None:
    made: list[int] = []

    @rt.agent
    async def does(ctx: hf.Context) -> list[Any]:
        def load(path: str, *, n: int) -> dict[str, Any]:
            made.append(n)
            return {"path": path, "n": n}

        found = await ctx.do("load", load, "a.csv", effect="read", n=1)
        approved = await ctx.approval("publish", page="home")
        return [found, approved]

    run = rt.run_sync(does)
    assert [(request.tool, request.arguments) for request in rt.approvals.list()] == [
        ("publish", {"page": "home"})
    ]
    approve_all(rt)
    run = rt.resume_sync(run)
    assert (run.result, made) == ([{"path": "a.csv", "n": 1}, True], [1])


def test_a_question_that_a_person_denies_is_answered_no(rt: hf.Runtime) -> None:
    @rt.agent
    async def asks(ctx: hf.Context) -> bool:
        return await ctx.approval("publish")

    run = rt.run_sync(asks)
    (request,) = rt.approvals.list()
    rt.approvals.deny(request.id, by="dana")
    assert rt.resume_sync(run).result is False


def test_guarded_functions_have_the_ledger_under_them(rt: hf.Runtime, provider: Provider) -> None:
    @hf.guard(rt, effect="write")
    def pay(order: str) -> str:
        return provider.send(order)

    assert pay("1", key="order-1") == "receipt for 1"
    assert pay("1", key="order-1") == "receipt for 1"
    assert provider.sent == {"1": 1}
    pay("1")
    assert provider.sent == {"1": 2}
    with pytest.raises(hf.HoldfastError, match="key"):
        pay("2", key="order-1")


def test_a_function_runs_without_any_set_up() -> None:
    async def double(ctx: hf.Context, n: int) -> int:
        return 2 * int(await ctx.do("n", lambda: n, effect="read"))

    assert hf.run(double, 21) == 42

    def fails(_: hf.SyncContext) -> None:
        raise hf.Fatal("no")

    with pytest.raises(hf.RunError, match="Fatal: no"):
        hf.run(fails)


def test_workers_take_what_they_have_agents_for(rt: hf.Runtime, provider: Provider) -> None:
    @rt.agent
    async def pay(ctx: hf.Context, n: int) -> str:
        return str(await ctx.call("send", what=str(n)))

    runs = [rt.start_sync(pay, n, key=f"pay {n}") for n in range(20)]
    assert rt.start_sync(pay, 3, key="pay 3").id == runs[3].id
    rt.store.create_run(agent="somebody else's", kind="replayed")
    summary = rt.worker(concurrency=8).run_until_idle_sync()
    assert (summary.claimed, summary.completed) == (20, 20)
    assert provider.sent == {str(n): 1 for n in range(20)}
    assert [run.refresh().result for run in runs] == [f"receipt for {n}" for n in range(20)]
    assert rt.metrics().runs == {"completed": 20, "pending": 1}
    assert 'holdfast_runs{status="completed"} 20' in rt.metrics().prometheus()


def test_steps_under_one_concurrency_key_come_one_after_another(rt: hf.Runtime) -> None:
    inside, most = [0], [0]

    @rt.agent(concurrency_key="mailbox")
    async def alone(ctx: hf.Context) -> None:
        inside[0] += 1
        most[0] = max(most[0], inside[0])
        await ctx.sleep(0.01)
        inside[0] -= 1

    for _ in range(5):
        rt.start_sync(alone)
    assert rt.worker(concurrency=5, poll=0.01).run_until_idle_sync().completed == 5
    assert most == [1]


def test_a_conflicting_commit_is_tried_again_with_the_fresh_state(rt: hf.Runtime) -> None:
    async def story() -> hf.Run:
        both = asyncio.Barrier(2)
        tried: list[str] = []

        @rt.step(backoff=0.001)
        async def adds(ctx: hf.Context, name: str) -> None:
            tried.append(name)
            seen = ctx.state.get("sum", 0)
            if len(tried) <= 2:
                await both.wait()
            ctx.state["sum"] = seen + 1
            await ctx.commit()

        @rt.agent
        async def fan(ctx: hf.Context) -> None:
            await ctx.add_step(adds, "a")
            await ctx.add_step(adds, "b")

        return await rt.run(fan)

    run = rt._sync(story())
    assert run.status == "completed", run.error
    assert run.state == {"sum": 2}


def test_a_fork_begins_before_a_write_or_after_its_outcome_and_not_between(
    rt: hf.Runtime,
) -> None:
    @rt.agent
    async def pays(ctx: hf.Context) -> str:
        return str(await ctx.call("send", what="it"))

    run = rt.run_sync(pays)
    places = {record.kind: record.seq for record in rt.store.read(run.id)}
    for nothing_left_or_under_way in ("run.created", "effect.started", "step.completed", "run.finished"):
        with pytest.raises(hf.CommandError, match="bad_fork_point"):
            rt.fork(run, at=places[nothing_left_or_under_way], by="dana")
    assert rt.resume_sync(rt.fork(run, at=places["effect.settled"], by="dana")).status == "completed"


def test_a_fork_begins_when_no_child_is_open_and_has_those_that_have_ended(
    rt: hf.Runtime, provider: Provider
) -> None:
    @rt.agent
    async def child(ctx: hf.Context) -> str:
        return str(await ctx.call("send", what="the child's"))

    @rt.agent
    async def parent(ctx: hf.Context) -> str:
        made = await ctx.spawn(child)
        return f"heard: {await made}"

    run = rt.run_sync(parent)
    places = {record.kind: record.seq for record in rt.store.read(run.id)}
    for open_at in range(places["child.spawned"], places["child.ended"]):
        with pytest.raises(hf.CommandError, match="bad_fork_point"):
            rt.fork(run, at=open_at, by="dana")
    later = rt.resume_sync(rt.fork(run, at=places["child.ended"], by="dana"))
    assert (later.status, later.result) == ("completed", "heard: receipt for the child's")
    assert (provider.sent, len(rt.runs.list(agent="child"))) == ({"the child's": 1}, 1)


def test_a_fork_repeats_nothing_that_its_parent_has_done(rt: hf.Runtime, provider: Provider) -> None:
    @rt.agent(attempts=1)
    async def pays(ctx: hf.Context) -> str:
        await ctx.call("send", what="first")
        return str(await ctx.call("send", what="second"))

    run = rt.run_sync(pays)
    (second,) = [r.seq for r in rt.store.read(run.id) if r.kind == "effect.settled"][1:]
    early, late = rt.fork(run, at=3, by="dana"), rt.fork(run, at=second, by="dana")
    assert rt.resume_sync(early).result == "receipt for second"
    assert rt.resume_sync(late).result == "receipt for second"
    assert provider.sent == {"first": 1, "second": 1}
    again = rt.fork(run, at=3, by="dana", effects="perform")
    assert rt.resume_sync(again).result == "receipt for second"
    assert provider.sent == {"first": 2, "second": 2}


def test_bad_registrations_and_inputs_get_a_clear_error(rt: hf.Runtime) -> None:
    @rt.agent
    async def known(ctx: hf.Context, n: int) -> None: ...

    cases: list[tuple[str, Callable[[], object]]] = [
        ("agent_exists", lambda: rt.agent(name="known")(known.function)),
        ("bad_agent", lambda: rt.agent(name="none")(lambda: None)),
        ("bad_agent", lambda: rt.agent(name="none", attempts=0)(lambda _: None)),
        ("bad_agent", lambda: rt.agent(17)),  # type: ignore[call-overload]
        ("bad_agent", lambda: rt.agent(functools.partial(lambda _, n: n, n=1))),
        ("no_such_agent", lambda: rt.start_sync("nobody")),
        ("bad_input", lambda: rt.start_sync(known)),
        ("bad_arguments", lambda: rt.start_sync(known, "x")),
        ("no_such_run", lambda: rt.runs.get("run_01m7mk77wceaxbrp2tzgn5qqfr")),
        ("no_such_run", lambda: rt.resume_sync("run_01m7mk77wceaxbrp2tzgn5qqfr")),
    ]
    for code, wrong in cases:
        with pytest.raises(hf.HoldfastError) as refused:
            wrong()
        assert refused.value.code == code
        assert refused.value.fix, code


def test_objects_that_can_be_called_and_partials_are_agents_too(rt: hf.Runtime, provider: Provider) -> None:
    class Clerk:
        """Sends one thing."""

        async def __call__(self, ctx: hf.Context, what: str) -> str:
            return str(await ctx.call("send", what=what))

    def sends(prefix: str, ctx: hf.SyncContext, what: str) -> str:
        return str(ctx.call("send", what=f"{prefix} {what}"))

    clerk, urgent = rt.agent(Clerk()), rt.agent(name="urgent")(functools.partial(sends, "urgent"))
    assert (clerk.name, clerk.__doc__) == ("Clerk", "Sends one thing.")
    assert rt.run_sync(clerk, "a letter").result == "receipt for a letter"
    assert rt.run_sync("urgent", "mail").result == rt.run_sync(urgent, what="mail").result
    assert provider.sent == {"a letter": 1, "urgent mail": 2}


def test_a_guarded_call_that_did_not_happen_is_made_by_the_next_one_under_its_key(
    rt: hf.Runtime, provider: Provider
) -> None:
    keys: list[str] = []

    @hf.guard(rt, effect="write")
    def pay(order: str, call: hf.Call) -> str:
        keys.append(call.key)
        if len(keys) < 6:
            raise hf.NoEffect("the bank does not answer")
        return provider.send(order)

    for _ in range(5):  # more often than a step has attempts, and faster than its backoff
        with pytest.raises(hf.NoEffect, match="does not answer"):
            pay("1", key="order-1")
    assert [listed.status for listed in rt.runs.list()] == ["running"]
    assert [pay("1", key="order-1"), pay("1", key="order-1")] == ["receipt for 1"] * 2
    assert (provider.sent, len(keys), len(set(keys))) == ({"1": 1}, 6, 1)
    assert [listed.status for listed in rt.runs.list()] == ["completed"]


def test_a_guarded_call_without_a_key_fails_for_good(rt: hf.Runtime) -> None:
    @hf.guard(rt, effect="write")
    def pay() -> str:
        raise hf.NoEffect("the bank does not answer")

    with pytest.raises(hf.NoEffect):
        pay()
    assert [listed.status for listed in rt.runs.list()] == ["failed"]


def test_a_guarded_call_that_waits_says_for_what(rt: hf.Runtime, provider: Provider) -> None:
    @hf.guard(rt, effect="write", approval="always")
    def pay(order: str) -> str:
        return provider.send(order)

    for _ in range(2):
        with pytest.raises(hf.RunError, match="waiting for approval") as refused:
            pay("1", key="order-1")
        assert refused.value.code == "run_not_ended"
    approve_all(rt)
    assert pay("1", key="order-1") == "receipt for 1"


def test_a_guarded_async_function_is_awaited_on_its_callers_loop(rt: hf.Runtime, provider: Provider) -> None:
    loops: list[object] = []

    @hf.guard(rt, effect="write", approval="always")
    async def pay(order: str) -> str:
        """Pays."""
        loops.append(asyncio.get_running_loop())
        if len(loops) == 1:
            raise hf.NoEffect("the bank does not answer")
        return provider.send(order)

    async def story() -> list[str]:
        with pytest.raises(hf.RunError, match="waiting for approval") as refused:
            await pay("1", key="order-1")
        assert (refused.value.code, loops) == ("run_not_ended", [])
        await asyncio.to_thread(approve_all, rt)
        with pytest.raises(hf.NoEffect):
            await pay("1", key="order-1")
        receipts = [await pay("1", key="order-1"), await pay("1", key="order-1")]
        assert loops == [asyncio.get_running_loop()] * 2
        with pytest.raises(hf.HoldfastError, match="key"):
            await pay("2", key="order-1")
        return receipts

    assert asyncio.run(story()) == ["receipt for 1"] * 2
    assert (provider.sent, pay.__name__, pay.__doc__) == ({"1": 1}, "pay", "Pays.")
    assert [(listed.agent, listed.status) for listed in rt.runs.list()] == [("guard:pay", "completed")]


def test_a_guarded_call_that_is_cancelled_settles_and_is_served_under_its_key(
    rt: hf.Runtime, provider: Provider
) -> None:
    async def story(key: str | None) -> str:
        begun, goes_on = asyncio.Event(), asyncio.Event()

        async def pay(order: str) -> str:
            begun.set()
            await goes_on.wait()
            return provider.send(order)

        guarded = hf.guard(rt, effect="write", name=f"pay {key}")(pay)
        call = asyncio.ensure_future(guarded("1", key=key))
        await begun.wait()
        call.cancel()
        await asyncio.sleep(0)
        assert not call.done()
        goes_on.set()
        with pytest.raises(asyncio.CancelledError):
            await call
        return rt.runs.list()[0].status if key is None else await guarded("1", key=key)

    assert asyncio.run(story("order-1")) == "receipt for 1"
    assert provider.sent == {"1": 1}
    assert asyncio.run(story(None)) == "failed"  # nobody could make it again
    assert provider.sent == {"1": 2}


def test_hooks_of_the_run_are_asked_around_a_guarded_async_call(rt: hf.Runtime, provider: Provider) -> None:
    heard: list[str] = []

    @rt.hook("run_starting", rights=["stop_run"])
    async def starts(subject: hf.gateway.Subject) -> object:
        heard.append(subject.agent)
        return hf.gateway.stop_run("not.today") if len(heard) > 1 else None

    @rt.hook("after_run_terminal")
    def ends(subject: hf.gateway.Subject) -> None:
        heard.append(subject.value["status"])

    @hf.guard(rt, effect="write")
    async def pay(order: str) -> str:
        return provider.send(order)

    assert asyncio.run(pay("1")) == "receipt for 1"
    with pytest.raises(hf.RunError, match="the guarded call is cancelled"):
        asyncio.run(pay("2"))
    assert heard == ["guard:pay", "completed", "guard:pay", "cancelled"]
    assert provider.sent == {"1": 1}


def test_objects_and_partials_are_guarded_and_tools(rt: hf.Runtime, provider: Provider) -> None:
    class Teller:
        """Sends what it is told."""

        def __init__(self) -> None:
            self.bank = provider

        async def __call__(self, order: str, times: int = 1) -> list[str]:
            return [self.bank.send(order) for _ in range(times)]

    def post(bank: Provider, order: str, *, times: int) -> list[str]:
        return [bank.send(order) for _ in range(times)]

    guarded = hf.guard(rt, effect="write")(Teller())
    assert asyncio.run(guarded("1", key="k")) == asyncio.run(guarded("1", key="k")) == ["receipt for 1"]
    assert (guarded.__name__, guarded.__doc__) == ("Teller", "Sends what it is told.")
    tool = rt.tool(effect="write")(functools.partial(post, provider, times=2))
    assert (tool.name, tool.spec()["input"]["properties"].keys()) == ("post", {"order"})

    @rt.agent
    async def posts(ctx: hf.Context) -> list[str]:
        return await ctx.call(tool, order="2")

    assert rt.run_sync(posts).result == ["receipt for 2"] * 2
    bound = hf.guard(rt, effect="write", name="bound")(functools.partial(post, provider, times=3))
    assert bound("3") == ["receipt for 3"] * 3
    assert provider.sent == {"1": 1, "2": 2, "3": 3}


def test_what_cannot_be_a_tool_is_refused_in_words(rt: hf.Runtime) -> None:
    cases: list[tuple[Any, str]] = [
        (functools.partial(lambda order: order), "has no name of its own: say name="),
        (42, "a tool is something to call: int is not"),
        (dict, "dict does not say what it takes"),
    ]
    for function, told in cases:
        for makes in (rt.tool(effect="read"), hf.guard(rt, effect="read")):
            with pytest.raises(hf.ToolError, match=told) as refused:
                makes(function)
            assert refused.value.code == "bad_tool"
    with pytest.raises(hf.ToolError, match="is no function: a sandbox imports it by its name") as refused:
        rt.tool(effect="read", sandbox="required")(functools.partial(print_nothing))
    assert refused.value.code == "bad_tool"
    with pytest.raises(hf.ToolError, match="the tool print_nothing does not say what it does") as refused:
        rt.tool()(functools.partial(print_nothing))
    assert refused.value.code == "effect_required"


def print_nothing() -> None:
    pass


def test_an_option_that_is_called_like_a_parameter_is_no_guess(rt: hf.Runtime) -> None:
    @rt.agent
    async def named(ctx: hf.Context, key: str = "none", role: str = "none") -> list[str]:
        return [key, role, ctx.role]

    for given in ({"key": "k"}, {"role": "lead"}):
        with pytest.raises(hf.HoldfastError, match="an option of its run: pass arguments=") as refused:
            rt.run_sync(named, **given)
        assert refused.value.code == "bad_input"
        with pytest.raises(hf.HoldfastError, match="pass arguments="):
            rt.start_sync(named, **given)
    for wrong in ({"arguments": {"key": "k"}, "more": 1}, {"arguments": "k"}):
        with pytest.raises(hf.HoldfastError, match="arguments= is all of them"):
            rt.run_sync(named, **wrong)
    assert rt.runs.list() == []
    assert rt.run_sync(named).result == ["none", "none", "named"]
    assert rt.run_sync(named, "a", "b", key="run", role="lead").result == ["a", "b", "lead"]
    assert rt.run_sync(named, arguments={"role": "b"}, role="lead").result == ["none", "b", "lead"]
    assert hf.run(named.function, key="a", role="b") == ["a", "b", "named"]


@pytest.mark.parametrize("where", ["memory:", "folder"])
def test_a_run_that_is_given_up_is_anybodys_at_once(where: str, provider: Provider, tmp_path: Path) -> None:
    """Cancelled at every turn of the loop, from before the claim to after the end."""
    turns = 60

    async def story(rt: hf.Runtime) -> None:
        for turn in range(turns):
            driven = asyncio.create_task(rt.run("pay", turn))
            for _ in range(turn):
                await asyncio.sleep(0)
            driven.cancel()
            with suppress(asyncio.CancelledError):
                await driven
        assert rt.metrics().running == 0
        await rt.worker(concurrency=4).run_until_idle()

    with hf.Runtime(where if where == "memory:" else tmp_path / "runs") as rt:

        @rt.tool(effect="write")
        async def send(what: str) -> str:
            return provider.send(what)

        @rt.agent
        async def pay(ctx: hf.Context, n: int) -> str:
            await ctx.sleep(0.001)
            return str(await ctx.call("send", what=str(n)))

        asyncio.run(story(rt))
        made = {str(run.result).removeprefix("receipt for ") for run in map(rt.runs.get, _ids(rt))}
        assert provider.sent == dict.fromkeys(made, 1)
        assert {listed.status for listed in rt.runs.list()} == {"completed"}
        assert str(turns - 1) in made


def _ids(rt: hf.Runtime) -> list[str]:
    return [listed.id for listed in rt.runs.list(limit=1000)]


def test_giving_up_a_run_ends_its_driver_and_not_only_an_attempt(rt: hf.Runtime) -> None:
    async def story() -> None:
        begun = asyncio.Event()

        @rt.agent
        async def hangs(_: hf.Context) -> None:
            begun.set()
            await asyncio.Event().wait()

        driven = asyncio.create_task(rt.run(hangs))
        await begun.wait()
        driven.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(driven, 5)
        assert (rt.metrics().running, rt.metrics().queued) == (0, 1)

    rt._sync(story())


class Slow(hf.Worker):
    """A worker whose store takes a while to say that there is nothing."""

    async def claim(self) -> hf.Claim | None:
        found = await super().claim()
        for _ in range(200):
            await asyncio.sleep(0)
        return found


def test_a_worker_does_not_leave_when_its_last_step_has_just_made_another_ready(rt: hf.Runtime) -> None:
    @rt.step
    async def second(ctx: hf.Context) -> None:
        await ctx.log("second")

    @rt.agent
    async def first(ctx: hf.Context) -> None:
        await ctx.add_step(second, after=[ctx._claim.step])

    run = rt.start_sync(first)
    summary = rt._sync(Slow(rt, concurrency=2).run_until_idle())
    assert (run.status, summary.completed) == ("completed", 2)


def test_runs_of_one_session_have_their_turns_one_after_another(rt: hf.Runtime) -> None:
    @rt.agent(concurrency_key="everybody")
    async def answers(ctx: hf.Context, n: int) -> list[Any]:
        return [n, ctx.session]

    def started(n: int, session: str | None, steps: dict[str, Any] | None = None) -> str:
        return rt.start_sync(answers, n, session=session, concurrency_key=session, steps=steps).id

    def claimed() -> hf.Claim | None:
        return rt.store.claim(worker="w", agents=["answers"])

    sessions = [new_id("ses") for _ in range(2)]
    first, again = started(1, sessions[0]), started(2, sessions[0])
    other, planned = started(3, sessions[1]), started(4, sessions[1], {})
    plain = started(5, None)
    held = [claimed() for _ in range(4)]
    assert [claim and claim.run for claim in held] == [first, other, plain, None]
    assert held[0] is not None
    rt.store.finish(held[0], result=[1, None])
    after = claimed()
    assert (after and after.run, claimed()) == (again, None)
    keys = [
        step["concurrency_key"] for run in (planned, plain) for step in rt.store.state(run)["steps"].values()
    ]
    assert keys == [sessions[1], "everybody"]
    driven = rt.run_sync(answers, 6, concurrency_key="mine")
    assert (driven.result, driven.agent) == ([6, None], "answers")
    assert rt.run_sync(answers, 7).status == "pending"  # the key is another run's, which is not ours to end
