"""Agents that survive: stories of runs that wait, fail, are killed in the middle and go on."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from tests.runtime_desk import Provider, address, approve_all, kinds, provider, rt

import holdfast as hf
from holdfast.store.clock import FakeClock

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["address", "provider", "rt"]  # fixtures


def test_a_run_waits_for_a_person_without_a_process_and_goes_on_from_there(
    rt: hf.Runtime, provider: Provider
) -> None:
    @rt.agent
    async def pay(ctx: hf.Context, cents: int) -> str:
        await ctx.call("send", what="notice")
        return str(await ctx.call("wire", cents=cents))

    run = rt.run_sync(pay, 5)
    assert (run.status, [wait["on"] for wait in run.waiting_on]) == ("waiting", ["approval"])
    assert provider.sent == {"notice": 1}
    assert approve_all(rt) == 1
    run = rt.resume_sync(run)
    assert (run.status, run.result) == ("completed", "receipt for wire 5")
    assert provider.sent == {"notice": 1, "wire 5": 1}
    assert rt.store.verify().ok


SWALLOWERS: dict[str, Callable[..., Any]] = {}


def swallows(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def keep(function: Callable[..., Any]) -> Callable[..., Any]:
        SWALLOWERS[name] = function
        return function

    return keep


@swallows("plain except")
async def _plain(ctx: hf.Context) -> None:
    try:
        await ctx.call("wire", cents=1)
    except BaseException:
        await asyncio.sleep(0)
    await ctx.call("send", what="after")


@swallows("finally")
async def _finally(ctx: hf.Context) -> None:
    try:
        await ctx.call("wire", cents=1)
    finally:
        await ctx.call("send", what="after")


@swallows("gather that returns exceptions")
async def _gather(ctx: hf.Context) -> None:
    await asyncio.gather(ctx.call("wire", cents=1), ctx.sleep(0), return_exceptions=True)
    await ctx.call("send", what="after")


@swallows("a task group")
async def _group(ctx: hf.Context) -> None:
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(ctx.call("wire", cents=1))
    except BaseException:
        pass
    await ctx.call("send", what="after")


@swallows("a loop that never gives up")
async def _loop(ctx: hf.Context) -> None:
    for _ in range(5):
        try:
            await ctx.call("wire", cents=1)
            break
        except BaseException:
            continue
    await ctx.call("send", what="after")


@swallows("a plain function")
def _sync(ctx: hf.SyncContext) -> None:
    for _ in range(3):
        try:
            ctx.call("wire", cents=1)
            break
        except BaseException:
            continue
    ctx.call("send", what="after")


@pytest.mark.parametrize("how", SWALLOWERS)
def test_code_that_catches_everything_does_not_go_on_past_an_open_approval(
    how: str, rt: hf.Runtime, provider: Provider
) -> None:
    agent = rt.agent(name="swallower")(SWALLOWERS[how])
    run = rt.run_sync(agent)
    assert run.status == "waiting", run.error
    assert provider.sent == {}
    approve_all(rt)
    assert rt.resume_sync(run).status == "completed"
    assert provider.sent == {"wire 1": 1, "after": 1}


def test_lanes_that_run_at_once_are_each_served_their_own(rt: hf.Runtime, provider: Provider) -> None:
    @rt.agent
    async def fan_out(ctx: hf.Context) -> list[str]:
        async def one(n: int) -> str:
            await ctx.call("send", what=f"a{n}")
            return str(await ctx.call("wire", cents=n))

        return list(await asyncio.gather(*(one(n) for n in range(5))))

    run = rt.run_sync(fan_out)
    assert (run.status, len(run.waiting_on)) == ("waiting", 5)
    while approve_all(rt):
        run = rt.resume_sync(run)
    assert run.result == [f"receipt for wire {n}" for n in range(5)]
    assert provider.sent == {**{f"a{n}": 1 for n in range(5)}, **{f"wire {n}": 1 for n in range(5)}}


def test_two_equal_calls_are_two_effects_and_a_key_makes_them_one(rt: hf.Runtime, provider: Provider) -> None:
    @rt.agent
    async def twice(ctx: hf.Context) -> list[str]:
        equal = [await ctx.call("send", what="x"), await ctx.call("send", what="x")]
        keyed = await asyncio.gather(*(ctx.call("send", what="y", key="y") for _ in range(3)))
        return [*equal, *keyed]

    run = rt.run_sync(twice)
    assert run.result == ["receipt for x"] * 2 + ["receipt for y"] * 3
    assert provider.sent == {"x": 2, "y": 1}


def test_a_retry_repeats_reads_that_failed_and_no_write(rt: hf.Runtime, provider: Provider) -> None:
    tries: list[int] = []

    @rt.tool(effect="read")
    def look() -> str:
        tries.append(1)
        if len(tries) < 3:
            raise ConnectionError("not now")
        return "seen"

    @rt.agent(attempts=5, backoff=0.001)
    async def looks(ctx: hf.Context) -> str:
        await ctx.call("send", what="once")
        return str(await ctx.call("look"))

    run = rt.run_sync(looks)
    assert (run.status, run.result, len(tries)) == ("completed", "seen", 3)
    assert provider.sent == {"once": 1}


def test_a_write_that_failed_ends_the_run_and_is_not_tried_again(rt: hf.Runtime) -> None:
    tries: list[int] = []

    @rt.tool(effect="write")
    def break_it() -> None:
        tries.append(1)
        raise hf.EffectFailed("broken")

    @rt.agent(backoff=0.001)
    async def breaks(ctx: hf.Context) -> None:
        await ctx.call("break_it")

    run = rt.run_sync(breaks)
    assert (run.status, str(run.error), len(tries)) == ("failed", "EffectFailed: broken", 1)


def test_agent_code_that_raises_is_tried_again_and_fatal_is_not(rt: hf.Runtime) -> None:
    tries: list[str] = []

    @rt.agent(attempts=3, backoff=0.001)
    async def flaky(ctx: hf.Context) -> str:
        tries.append("flaky")
        if len(tries) < 3:
            raise ValueError("not yet")
        return f"attempt {ctx.attempt}"

    @rt.agent(attempts=3)
    async def hopeless(_: hf.Context) -> None:
        tries.append("hopeless")
        raise hf.Fatal("never")

    assert rt.run_sync(flaky).result == "attempt 3"
    run = rt.run_sync(hopeless)
    assert (run.status, tries.count("hopeless")) == ("failed", 1)
    with pytest.raises(hf.RunError, match="Fatal: never"):
        run.value()


def test_timers_signals_and_chance_are_the_same_when_the_code_runs_again(address: str) -> None:
    clock, seen = FakeClock(), []
    with hf.Runtime(address, clock=clock, suspend_grace=0.01) as rt:

        @rt.agent
        async def waits(ctx: hf.Context) -> list[Any]:
            begun = await ctx.now()
            drawn = (ctx.random(), str(ctx.uuid()), ctx.random())
            await ctx.sleep(3600)
            word = await ctx.signal("go")
            seen.append(drawn)
            return [word, (await ctx.now() - begun).total_seconds(), *drawn]

        run = rt.run_sync(waits)
        assert [wait["on"] for wait in run.waiting_on] == ["timer"]
        assert rt.resume_sync(run).status == "waiting"
        clock.advance(seconds=3601)
        run = rt.resume_sync(run)
        assert [wait["on"] for wait in run.waiting_on] == ["signal"]
        clock.advance(seconds=99)
        rt.signal(run, "other", "not this")
        rt.signal(run, "go", {"word": 1})
        run = rt.resume_sync(run)
        assert run.result == [{"word": 1}, 3700.0, *seen[0]]
        assert len(set(seen[0])) == 3


def test_a_signal_that_came_early_is_there(rt: hf.Runtime) -> None:
    @rt.agent
    async def listens(ctx: hf.Context) -> list[int]:
        return [await ctx.signal("n"), await ctx.signal("n")]

    run = rt.start_sync(listens)
    rt.signal(run, "n", 1)
    rt.signal(run, "n", 2)
    assert rt.resume_sync(run).result == [1, 2]


def test_state_is_committed_once_and_seen_by_the_next_attempt(rt: hf.Runtime) -> None:
    @rt.agent(backoff=0.001)
    async def counts(ctx: hf.Context) -> int:
        ctx.state["n"] = ctx.state.get("n", 0) + 1
        ctx.state["deep"] = {"a": {"b": 1}}
        await ctx.commit()
        ctx.state["deep"]["a"]["b"] = 2
        if ctx.attempt == 1:
            raise ValueError("after the commit")
        ctx.state["left"] = "for the end"
        return int(ctx.state["n"])

    run = rt.run_sync(counts)
    assert (run.status, run.result) == ("completed", 1)
    assert run.state == {"n": 1, "deep": {"a": {"b": 2}}, "left": "for the end"}


def test_a_null_in_the_state_is_refused_with_its_path(rt: hf.Runtime) -> None:
    @rt.agent(attempts=1)
    async def nulls(ctx: hf.Context) -> None:
        ctx.state["a"] = {"b": None}
        await ctx.commit()

    error = rt.run_sync(nulls).error
    assert error is not None
    assert (error.code, "$.a.b" in str(error)) == ("state_null", True)


def test_children_have_their_own_runs_and_tell_their_parent(rt: hf.Runtime, provider: Provider) -> None:
    @rt.agent
    async def child(ctx: hf.Context, n: int) -> int:
        if n == 13:
            raise hf.Fatal("unlucky")
        await ctx.call("send", what=f"child {n}")
        return n * n

    @rt.agent
    async def parent(ctx: hf.Context, numbers: list[int]) -> list[int]:
        children = [await ctx.spawn(child, n, escrow={"tool_calls": 1}) for n in numbers]
        return [await one for one in children]

    run = rt.run_sync(parent, [2, 3], budget={"tool_calls": 5})
    assert (run.status, run.result) == ("completed", [4, 9])
    assert provider.sent == {"child 2": 1, "child 3": 1}
    assert len(rt.runs.list(agent="child")) == 2
    failed = rt.run_sync(parent, [13])
    assert (failed.status, failed.error and failed.error.error) == ("failed", "EffectFailed")


def test_a_run_may_have_several_steps(rt: hf.Runtime, provider: Provider) -> None:
    @rt.step
    async def part(ctx: hf.Context, name: str) -> None:
        await ctx.call("send", what=name)
        ctx.state[name] = True

    @rt.agent
    async def pipeline(ctx: hf.Context) -> str:
        first = await ctx.add_step(part, "first")
        second = await ctx.add_step(part, "second", after=[first])
        await ctx.add_step(part, "third", after=[first, second])
        return "planned"

    run = rt.run_sync(pipeline)
    assert run.status == "completed", run.error
    assert run.state == {"first": True, "second": True, "third": True}
    assert provider.sent == {"first": 1, "second": 1, "third": 1}
    assert [step["name"] for step in run.steps] == ["main", "part", "part", "part"]


def test_what_is_written_down_is_written_once(rt: hf.Runtime) -> None:
    @rt.agent
    async def notes(ctx: hf.Context) -> str:
        await ctx.log("begun")
        made = await ctx.artifact("report.txt", "all is well")
        await ctx.media("frame", "f1", uri="s3://b/f1", media="image/png", derived_from=[made])
        await ctx.cost(usd=0.25, tokens=10)
        await ctx.record_model_call("m1", input_tokens=7, output_tokens=3, usd=0.5)
        await ctx.stream_checkpoint("orders", "billing", 10, watermark=5, partial={"sum": 1})
        await ctx.call("wire", cents=1)
        return made.id

    run = rt.run_sync(notes, budget={"tokens": 100, "usd_micros": 10_000_000})
    assert run.status == "waiting"
    approve_all(rt)
    run = rt.resume_sync(run)
    assert run.status == "completed", run.error
    made, frame = rt.artifacts.list(run.id)
    assert (made.id, made.name, rt.artifacts.open(made)) == (run.result, "report.txt", b"all is well")
    assert (frame.kind, frame.uri, frame.derived_from) == ("frame", "s3://b/f1", (made.id,))
    assert rt.costs.total(run.id) == {"tokens": 20, "usd": 0.75}
    assert rt.budget(run)["tokens"] == {
        "limit": 100,
        "raised": 0,
        "used": 20,
        "reserved": 0,
        "escrowed": 0,
        "left": 80,
    }
    counts = Counter(kinds(rt, run))
    assert (counts["note.logged"], counts["artifact.created"], counts["cost.recorded"]) == (1, 2, 2)
    assert rt.store.verify().ok


def test_cancelling_reaches_code_that_runs(rt: hf.Runtime) -> None:
    async def story() -> tuple[str, list[str]]:
        heard: list[str] = []
        begun = asyncio.Event()

        @rt.agent
        async def sleeper(ctx: hf.Context) -> None:
            ctx.on_cleanup(lambda: heard.append(f"cleanup {ctx.cancelled}"))
            await ctx.log("begun")
            begun.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                heard.append("cancelled")
                raise

        run = await rt.start(sleeper)
        work = asyncio.create_task(rt.resume(run, lease=0.3))
        await begun.wait()
        await asyncio.to_thread(rt.cancel, run, by="dana")
        return (await work).status, heard

    assert rt._sync(story()) == ("cancelled", ["cancelled", "cleanup True"])


def test_a_paused_run_is_nobodys_until_it_goes_on(rt: hf.Runtime, provider: Provider) -> None:
    @rt.agent
    async def pay(ctx: hf.Context) -> str:
        return str(await ctx.call("send", what="x"))

    run = rt.start_sync(pay)
    rt.pause(run, by="dana", reason="a look first")
    assert rt.resume_sync(run).status == "paused"
    assert provider.sent == {}
    rt.unpause(run, by="dana")
    assert rt.resume_sync(run).status == "completed"


def test_changed_code_stops_at_the_first_write_that_it_no_longer_makes(
    rt: hf.Runtime, provider: Provider
) -> None:
    which = ["first"]

    @rt.agent
    async def changes(ctx: hf.Context) -> str:
        await ctx.call("send", what=which[0])
        await ctx.call("wire", cents=1)
        return which[0]

    run = rt.run_sync(changes)
    which[0] = "second"
    approve_all(rt)
    run = rt.resume_sync(run)
    assert [wait["on"] for wait in run.waiting_on] == ["divergence"]
    assert provider.sent == {"first": 1}
    with pytest.raises(hf.CommandError, match="waits for a decision"):
        rt.decide(rt.start_sync(changes), "retry", by="dana")
    which[0] = "first"
    rt.decide(run, "retry", by="dana", reason="the old code is back")
    assert rt.resume_sync(run).result == "first"
    assert provider.sent == {"first": 1, "wire 1": 1}


def test_a_divergence_that_a_person_accepts_goes_on_with_the_new_code(
    rt: hf.Runtime, provider: Provider
) -> None:
    which = ["first"]

    @rt.agent
    async def changes(ctx: hf.Context) -> str:
        await ctx.call("send", what=which[0])
        return str(await ctx.call("wire", cents=1))

    run = rt.run_sync(changes)
    which[0] = "second"
    approve_all(rt)
    run = rt.resume_sync(run)
    assert [wait["on"] for wait in run.waiting_on] == ["divergence"]
    rt.decide(run, "accept", by="dana")
    run = rt.resume_sync(run)
    while approve_all(rt):
        run = rt.resume_sync(run)
    assert run.status == "completed", run.error
    assert provider.sent["second"] == 1


def test_a_divergence_is_forked_and_nothing_is_done_twice(rt: hf.Runtime, provider: Provider) -> None:
    which = ["first"]

    @rt.agent
    async def changes(ctx: hf.Context) -> str:
        await ctx.call("send", what="always")
        await ctx.call("send", what=which[0])
        return str(await ctx.call("wire", cents=1))

    run = rt.run_sync(changes)
    assert run.divergence is None
    which[0] = "second"
    approve_all(rt)
    run = rt.resume_sync(run)
    parted = run.divergence
    assert parted is not None
    told = [(one["name"], one["arguments"], one["effect"]) for one in parted["recorded"]]
    assert told == [("send", {"what": "first"}, "write"), ("wire", {"cents": 1}, "write")]
    assert (parted["attempted"]["name"], parted["why"]) == ("send", "another write was recorded in this lane")
    fork = rt.decide(run, "fork", by="dana", reason="both are wanted")
    decided = [record for record in rt.store.read(run.id) if record.kind == "replay.decided"]
    assert [(one.body["decision"], one.by["id"]) for one in decided] == [("fork", "dana")]
    assert (fork.id != run.id, run.refresh().status, run.divergence) == (True, "waiting", parted)
    assert rt.resume_sync(fork).status == "waiting"
    approve_all(rt)
    assert rt.resume_sync(fork).result == "receipt for wire 1"
    assert provider.sent == {"always": 1, "first": 1, "second": 1, "wire 1": 1}
    with pytest.raises(hf.CommandError) as refused:
        rt.decide(fork, "fork", by="dana")
    assert refused.value.code == "nothing_to_decide"


def test_a_fork_that_diverges_is_forked_again(rt: hf.Runtime, provider: Provider) -> None:
    which = ["first"]

    @rt.agent
    async def changes(ctx: hf.Context) -> str:
        await ctx.call("send", what="always")
        await ctx.call("send", what=which[0])
        return str(await ctx.signal("go"))

    run = rt.run_sync(changes)
    for which[0], was in (("second", "first"), ("third", "second")):
        rt.signal(run, "go")
        parted = rt.resume_sync(run).divergence
        assert [one["arguments"] for one in (parted or {})["recorded"]] == [{"what": was}]
        run = rt.resume_sync(rt.decide(run, "fork", by="dana"))
    rt.signal(run, "go", "gone")
    assert rt.resume_sync(run).result == "gone"
    assert provider.sent == {"always": 1, "first": 1, "second": 1, "third": 1}
    assert run.divergence is None


def test_a_changed_package_is_no_reason_to_fork(address: str) -> None:
    def program(version: str) -> hf.Runtime:
        rt = hf.Runtime(store, strict_packages=True, suspend_grace=0.02)

        @rt.agent(version=version)
        async def waits(ctx: hf.Context) -> str:
            return str(await ctx.signal("go"))

        return rt

    with hf.open(address) as store:
        run = program("1").run_sync("waits")
        new = program("2")
        new.signal(run, "go", "gone")
        assert [wait["on"] for wait in new.resume_sync(run.id).waiting_on] == ["package"]
        with pytest.raises(hf.CommandError, match="a package is not forked from") as refused:
            new.decide(run, "fork", by="dana")
        assert (refused.value.code, len(new.runs.list())) == ("bad_fork_point", 1)
        assert new.decide(run, "continue", by="dana").id == run.id
        assert new.resume_sync(run.id).result == "gone"


def test_a_divergence_beside_a_write_that_was_under_way_is_not_forked(
    rt: hf.Runtime, provider: Provider
) -> None:
    which, sent = ["first"], asyncio.Event()

    @rt.tool(effect="write")
    async def slow(what: str) -> str:
        await sent.wait()
        return provider.send(what)

    @rt.tool(effect="write")
    async def quick(what: str) -> str:
        sent.set()
        return provider.send(what)

    @rt.agent
    async def changes(ctx: hf.Context) -> list[str]:
        async def second() -> str:
            return str(await ctx.call("quick", what=which[0]))

        return [*await asyncio.gather(ctx.call("slow", what="slow"), second()), await ctx.signal("go")]

    run = rt.run_sync(changes)
    which[0] = "second"
    rt.signal(run, "go", "gone")
    run = rt.resume_sync(run)
    assert run.divergence is not None
    with pytest.raises(hf.CommandError) as refused:
        rt.decide(run, "fork", by="dana")
    assert (refused.value.code, len(rt.runs.list())) == ("bad_fork_point", 1)
    assert "replay.decided" not in kinds(rt, run)
    assert provider.sent == {"slow": 1, "first": 1}


def test_a_durable_timeout_ends_what_is_inside_in_every_attempt(address: str) -> None:
    clock = FakeClock()
    with hf.Runtime(address, clock=clock, suspend_grace=0.01) as rt:

        @rt.agent
        async def impatient(ctx: hf.Context) -> str:
            try:
                async with ctx.timeout(60):
                    await ctx.signal("never")
            except TimeoutError:
                await ctx.log("too late")
            return str(await ctx.signal("then"))

        run = rt.run_sync(impatient)
        assert sorted(wait["on"] for wait in run.waiting_on) == ["signal", "timer"]
        clock.advance(seconds=61)
        run = rt.resume_sync(run)
        assert [wait.get("subject") for wait in run.waiting_on] == ["then"]
        rt.signal(run, "never", "late")
        rt.signal(run, "then", "now")
        assert rt.resume_sync(run).result == "now"
