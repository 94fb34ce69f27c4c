"""The testing kit: crashes at every boundary come to the same, and two planted agents are caught."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

import holdfast as hf
from holdfast import testing


def runtime(store: hf.Store, world: list[str]) -> hf.Runtime:
    rt = hf.Runtime(store, suspend_grace=0.005, replay_grace=0.02)

    @rt.tool(effect="write")
    def unprotected(what: str) -> str:
        world.append(what)
        return f"did {what}"

    @rt.tool(effect="write", idempotent=hf.Keyed(ttl=10**7))
    async def keyed(what: str, call: hf.Call) -> str:
        if f"{what} {call.key[:3]}" not in world:  # the provider honours the key
            world.append(f"{what} {call.key[:3]}")
        return f"did {what}"

    @rt.tool(effect="write", approval="always")
    def asked(what: str) -> str:
        world.append(what)
        return f"did {what}"

    @rt.tool(effect="read")
    async def look(n: int) -> int:
        return n + 1

    return rt


def test_an_agent_that_does_everything_comes_to_the_same_after_a_crash_anywhere() -> None:
    def build(store: hf.Store, world: list[str]) -> testing.Scene:
        rt = runtime(store, world)

        @rt.agent
        async def helper(ctx: hf.Context, n: int) -> int:
            return int(await ctx.call("look", n=n))

        @rt.agent
        async def everything(ctx: hf.Context, name: str) -> list[Any]:
            await ctx.call("unprotected", what=f"{name} 1")
            ctx.state["seen"] = await ctx.call("look", n=1)
            await ctx.commit()
            child = await ctx.spawn(helper, 41)
            both = await asyncio.gather(
                ctx.call("keyed", what=f"{name} 2"), ctx.call("unprotected", what=f"{name} 3")
            )
            await ctx.sleep(60)
            await ctx.log("slept")
            word = await ctx.signal("go")
            await ctx.call("asked", what=f"{name} 4")
            return [*both, word, await child, ctx.random(), ctx.state["seen"]]

        return testing.Scene(rt, everything, ("order",))

    def answer(rt: hf.Runtime, run: hf.Run) -> bool:
        if not any(wait["on"] == "signal" for wait in run.waiting_on):
            return False
        rt.signal(run, "go", "went")
        return True

    # The random number is the run's own, and each crash is tried on a run of its own.
    report = testing.crash_everywhere(build, answer=answer, check=False)
    problems = [problem for problem in report.problems if "the world has seen" in problem]
    assert problems == []
    assert len(report.boundaries) > 40, report
    assert all("the run is completed" in problem for problem in report.problems), report


def test_lanes_in_any_order_come_to_the_same_after_a_crash_anywhere() -> None:
    def build(store: hf.Store, world: list[str]) -> testing.Scene:
        rt = runtime(store, world)

        @rt.agent
        async def lanes(ctx: hf.Context) -> list[str]:
            async def lane(n: int) -> str:
                for turn in range(n):
                    await ctx.call("look", n=turn)
                return str(await ctx.call("unprotected", what=f"lane {n}"))

            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(lane(n)) for n in range(3)]
            return [task.result() for task in tasks]

        return testing.Scene(rt, lanes)

    report = testing.crash_everywhere(build)
    assert report.ok
    assert report.result == ["did lane 0", "did lane 1", "did lane 2"]


def test_a_plain_agent_comes_to_the_same_after_a_crash_anywhere() -> None:
    def build(store: hf.Store, world: list[str]) -> testing.Scene:
        rt = runtime(store, world)

        @rt.agent
        def plain(ctx: hf.SyncContext) -> list[str]:
            first = ctx.call("unprotected", what="1")
            ctx.state["first"] = first
            ctx.commit()
            return [first, ctx.call("asked", what="2")]

        return testing.Scene(rt, plain)

    report = testing.crash_everywhere(build)
    assert (report.ok, report.result) == (True, ["did 1", "did 2"])


def test_an_agent_that_acts_behind_the_context_is_caught() -> None:
    def build(store: hf.Store, world: list[str]) -> testing.Scene:
        rt = runtime(store, world)

        @rt.agent
        async def sneaks(ctx: hf.Context) -> str:
            world.append("behind the back")
            return str(await ctx.call("unprotected", what="in the open"))

        return testing.Scene(rt, sneaks)

    with pytest.raises(AssertionError, match="the world has seen") as caught:
        testing.crash_everywhere(build)
    assert "after frame" in str(caught.value)


def test_an_agent_that_is_not_deterministic_is_caught() -> None:
    def build(store: hf.Store, world: list[str]) -> testing.Scene:
        rt = runtime(store, world)
        drawn = random.SystemRandom()

        @rt.agent
        async def gambles(ctx: hf.Context) -> str:
            await ctx.call("unprotected", what=str(drawn.random()))
            return str(await ctx.call("unprotected", what="then"))

        return testing.Scene(rt, gambles)

    with pytest.raises(AssertionError, match="divergence"):
        testing.crash_everywhere(build, same=lambda *_: True)


def test_people_and_models_have_stand_ins() -> None:
    with hf.Runtime(testing.MemoryStore(), suspend_grace=0.01) as rt:
        model = testing.ScriptedModel(["yes"])

        @rt.tool(effect="write", approval="always")
        def send(text: str) -> str:
            return text

        @rt.agent
        async def agent(ctx: hf.Context) -> str:
            return await ctx.call(send, text=await ctx.do("model", model, "shall we?", effect="read"))

        run = rt.run_sync(agent)
        assert testing.approve_all(rt) == 1
        assert rt.resume_sync(run).result == "yes"
        assert model.prompts == ["shall we?"]
        again = rt.run_sync(agent)
        assert again.status == "failed"  # the script is over
        with pytest.raises(AssertionError, match="1 answers"):
            model("more?")
        assert testing.deny_all(rt) == 0


def labelled(store: hf.Store, world: list[str]) -> testing.Scene:
    rt = runtime(store, world)

    @rt.agent
    async def twice(ctx: hf.Context) -> str:
        await ctx.call("asked", what="a")  # a person writes frames in between
        return str(await ctx.call("unprotected", what="b"))

    return testing.Scene(rt, twice)


@pytest.mark.parametrize("kill", [False, True])
def test_a_boundary_says_what_is_written_there(kill: bool) -> None:
    report = testing.crash_everywhere(labelled, kill=kill)
    frames = [boundary.records for boundary in report.boundaries if boundary.when == "before"]
    assert [kinds[-1] for kinds in frames] == [
        *("step.created", "step.claimed", "approval.requested", "step.waiting"),
        *("step.claimed", "effect.started", "effect.settled", "effect.started", "effect.settled"),
        "run.finished",
    ]
    at = next(b for b in report.boundaries if "effect.started" in b.records)
    run, world = testing.crash_at(labelled, at.frame, kill=kill, world=list)
    assert run.status == "completed"
    kinds = [record.kind for record in run._runtime.store.read(run.id)] if not kill else ["effect.doubted"]
    assert "effect.doubted" in kinds, "it died when the first call had left"
    assert sorted(world) == ["a", "b"]


def test_a_crash_that_never_comes_is_said() -> None:
    for frame in (99, -1):
        with pytest.raises(ValueError, match=f"the run has 10 frames, and no frame {frame}"):
            testing.crash_at(labelled, frame)
    assert testing.crash_at(labelled, 0)[0].status == "completed"
