"""What else agents and programs do through the runtime: tasks, questions, guards, workers, several steps."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from tests.runtime_desk import Provider, approve_all, provider, rt

import holdfast as hf

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["provider", "rt"]  # fixtures


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
    with pytest.raises(hf.CommandError, match="bad_fork_point"):
        rt.fork(run, at=places["effect.started"], by="dana")
    assert rt.resume_sync(rt.fork(run, at=places["effect.settled"], by="dana")).status == "completed"


def test_a_fork_repeats_nothing_that_its_parent_has_done(rt: hf.Runtime, provider: Provider) -> None:
    @rt.agent(attempts=1)
    async def pays(ctx: hf.Context) -> str:
        await ctx.call("send", what="first")
        return str(await ctx.call("send", what="second"))

    run = rt.run_sync(pays)
    (second,) = [r.seq for r in rt.store.read(run.id) if r.kind == "effect.settled"][1:]
    early, late = rt.fork(run, at=3, by="dana"), rt.fork(run, at=second, by="dana")
    assert str(rt.resume_sync(early).error) == "CommandError: the run that this is a fork of has done it"
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
