"""Replay: agent code once more, against what was recorded. Nothing acts, nothing is written, and what came
out otherwise is named with both sides.
"""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any

import pytest
from tests.evidence_desk import STORIES, Desk, play
from tests.test_runtime_fuzz import build_of, crashed, grown

import holdfast as hf
from holdfast import testing
from holdfast.errors import HoldfastError
from holdfast.evidence import Verdict
from holdfast.evidence.rehearsal import Reading
from holdfast.store.door import Store

if TYPE_CHECKING:
    from collections.abc import Iterator

SEEDS = range(40)


@pytest.fixture
def desk() -> Iterator[Desk]:
    desk = Desk()
    yield desk
    desk.close()


def written(rt: hf.Runtime) -> list[dict[str, Any]]:
    """Everything that a store holds, row by row."""
    return rt.store.sql("SELECT pos, head FROM frames ORDER BY pos")


@pytest.mark.parametrize("name", STORIES)
def test_every_run_comes_out_the_same_and_nothing_acts(name: str) -> None:
    desk, run = play(name)
    seen, before = list(desk.seen), written(desk.rt)
    for one in desk.rt.runs.list():
        replay = desk.rt.evidence.replay(one.id)
        expected = Verdict.STOPPED if (name, one.id) == ("erased", run.id) else Verdict.SAME
        assert replay.verdict is expected, (name, replay)
        assert replay.divergence is None
        for step in replay.steps:
            if step.recorded["status"] in ("completed", "failed") and expected is Verdict.SAME:
                assert step.replayed == step.recorded
    assert desk.seen == seen, "a body, a hook or an approver was called"
    assert written(desk.rt) == before, "something was written"
    desk.close()


def changed(desk: Desk, first: Any, then: Any) -> hf.Run:
    """A run of some code, whose agent is other code afterwards."""
    code = [first]

    async def clerk(ctx: hf.Context) -> Any:
        return await code[0](ctx)

    run = desk.run(clerk)
    assert run.status == "completed", run.error
    code[0] = then
    return run


async def one_letter(ctx: hf.Context) -> Any:
    await ctx.call("look", what="it")
    ctx.state["sent"] = await ctx.call("send", what="one")
    return "done"


async def another_letter(ctx: hf.Context) -> Any:
    await ctx.call("look", what="it")
    ctx.state["sent"] = await ctx.call("send", what="another")
    return "done"


async def two_letters(ctx: hf.Context) -> Any:
    done = await one_letter(ctx)
    await ctx.call("send", what="two")
    return done


async def no_letter(ctx: hf.Context) -> Any:
    await ctx.call("look", what="it")
    return "done"


async def no_look(ctx: hf.Context) -> Any:
    ctx.state["sent"] = await ctx.call("send", what="one")
    return "done"


async def a_note(ctx: hf.Context) -> Any:
    await ctx.log("on the way")
    return await one_letter(ctx)


async def other_result(ctx: hf.Context) -> Any:
    await one_letter(ctx)
    return "otherwise"


async def other_state(ctx: hf.Context) -> Any:
    done = await one_letter(ctx)
    ctx.state["sent"] = "otherwise"
    return done


async def other_end(ctx: hf.Context) -> Any:
    await one_letter(ctx)
    raise hf.Fatal("otherwise")


@pytest.mark.parametrize(
    ("code", "recorded", "attempted"),
    [
        (another_letter, ["send(one)"], "send(another)"),
        (two_letters, [], "send(two)"),
        (no_letter, ["send(one)"], None),
        (no_look, ["look(it)"], None),
        (a_note, [], "info"),
    ],
)
def test_other_calls_are_a_divergence_with_both_sides(
    desk: Desk, code: Any, recorded: list[str], attempted: str | None
) -> None:
    run = changed(desk, one_letter, code)
    seen, before = list(desk.seen), written(desk.rt)
    replay = desk.rt.evidence.replay(run)
    assert (replay.verdict, replay.same) == (Verdict.DIVERGED, False)
    divergence = replay.divergence
    assert divergence is not None
    shown = [f"{one.name}({one.arguments['what']})" for one in divergence.recorded]
    assert shown == recorded
    if attempted is None:
        assert divergence.attempted is None
    else:
        assert divergence.attempted is not None
        what = divergence.attempted.arguments.get("what")
        assert (f"{divergence.attempted.name}({what})" if what else divergence.attempted.name) == attempted
    opened = {
        f"{record.body['name']}({record.value['arguments'].get('what')})": record.seq
        for record in desk.rt.store.read(run.id)
        if record.kind == "call.opened"
    }
    assert replay.seq == (opened[recorded[0]] if recorded else None)
    assert (desk.seen, written(desk.rt)) == (seen, before)


@pytest.mark.parametrize(
    ("code", "why"), [(other_result, "the result"), (other_state, "the state"), (other_end, "the error")]
)
def test_the_same_calls_that_come_to_something_else_differ(desk: Desk, code: Any, why: str) -> None:
    run = changed(desk, one_letter, code)
    replay = desk.rt.evidence.replay(run)
    (step,) = replay.steps
    assert (replay.verdict, step.why, step.divergence) == (Verdict.DIFFERS, why, None)
    assert step.recorded == {"status": "completed", "result": "done"}
    assert replay.as_dict()["steps"][0]["replayed"] == step.replayed


def test_pure_bodies_leave_no_record_and_run_only_if_that_is_allowed(desk: Desk) -> None:
    async def counter(ctx: hf.Context) -> int:
        return int(await ctx.call("double", n=4))

    run = desk.run(counter)
    assert desk.seen == ["double 4"]
    stopped = desk.rt.evidence.replay(run)
    assert (stopped.verdict, desk.seen) == (Verdict.STOPPED, ["double 4"])
    assert "double" in stopped.steps[0].why
    assert desk.rt.evidence.replay(run, pure=True).verdict is Verdict.SAME
    assert desk.seen == ["double 4"] * 2


def test_cleanups_observers_and_approvers_are_left_alone(desk: Desk) -> None:
    @desk.rt.approver(timeout=5.0)
    def tell(_: object) -> None:
        desk.seen.append("approver")

    @desk.rt.hook("before_run_complete", rights=["observe"])
    def look_on(_: object) -> None:
        desk.seen.append("observer")

    async def payer(ctx: hf.Context) -> object:
        ctx.on_cleanup(lambda: desk.seen.append("cleanup"))
        return await ctx.call("wire", cents=3)

    run = desk.run(payer)
    desk.approve()
    run = desk.rt.resume_sync(run)
    assert {"approver", "cleanup", "observer", "wire 3"} <= set(desk.seen)
    seen = list(desk.seen)
    assert desk.rt.evidence.replay(run).same
    assert desk.seen == seen


def test_a_run_in_the_middle_is_the_same_as_far_as_it_goes(desk: Desk) -> None:
    """Its worker has died between two letters."""

    def build(store: hf.Store, world: list[str]) -> testing.Scene:
        rt = hf.Runtime(store, suspend_grace=0.01, replay_grace=0.05)

        @rt.tool(effect="write")
        async def send(what: str) -> str:
            world.append(what)
            return what

        @rt.agent
        async def clerk(ctx: hf.Context) -> str:
            first = await ctx.call("send", what="a")
            return f"{first} {await ctx.call('send', what='b')}"

        return testing.Scene(rt, clerk)

    scene = build(desk.rt.store, [])
    run = scene.runtime.start_sync(scene.agent)
    claim = desk.rt.store.claim(worker="w1", lease=30)
    assert claim is not None
    replay = scene.runtime.evidence.replay(run)
    assert (replay.verdict, replay.steps[0].replayed) == (Verdict.SAME, {"status": "stopped"})
    assert "goes on with send" in replay.steps[0].why
    scene.runtime.close()


def test_a_run_that_a_person_stopped_is_the_same_as_far_as_it_goes(desk: Desk) -> None:
    async def clerk(ctx: hf.Context) -> str:
        return f"{await ctx.call('send', what='a')} {await ctx.signal('go')}"

    run = desk.run(clerk)
    desk.rt.cancel(run, by="dana")
    run = desk.rt.resume_sync(run)
    early = desk.rt.start_sync("clerk")
    desk.rt.cancel(early, by="dana")
    early = desk.rt.resume_sync(early)
    assert (run.status, early.status, desk.seen) == ("cancelled", "cancelled", ["send a"])
    for one in (run, early):
        replay = desk.rt.evidence.replay(one)
        assert (replay.verdict, replay.divergence) == (Verdict.SAME, None), replay
    assert desk.seen == ["send a"]


def test_a_run_that_was_stopped_after_a_doubt_ended_in_nothing_is_the_same(desk: Desk) -> None:
    """Its code never heard that: it would have tried again, and nobody let it."""

    async def clerk(ctx: hf.Context) -> object:
        return await ctx.call("fax", text="a")

    run = desk.run(clerk)
    (doubt,) = desk.rt.effects.list(in_doubt=True)
    desk.rt.effects.resolve(doubt.id, by="dana", did_not_happen=True)
    desk.rt.cancel(run, by="dana")
    assert desk.rt.resume_sync(run).status == "cancelled"
    replay = desk.rt.evidence.replay(run)
    assert (replay.verdict, replay.steps[0].recorded) == (Verdict.SAME, {"status": "cancelled"}), replay
    assert desk.seen == ["fax a"]


def test_an_outcome_that_is_not_there_stops_it(desk: Desk) -> None:
    """Code that never waits for a letter it begins comes to its end, and code that does cannot."""
    run = STORIES["plain"](desk)
    desk.rt.store.forget(run.id, by="dana")
    replay = desk.rt.evidence.replay(run)
    assert (replay.verdict, replay.steps[0].why) == (Verdict.STOPPED, "the input is gone")


def test_an_attached_step_is_not_ours_to_run(desk: Desk) -> None:
    charge = hf.guard(desk.rt, effect="write", name="charge")(
        lambda cents: desk.seen.append(f"charge {cents}")
    )
    charge(5, key="k")
    (run,) = desk.rt.runs.list()
    assert desk.rt.evidence.replay(run.id).verdict is Verdict.STOPPED


def test_an_agent_that_is_not_here_is_said(desk: Desk) -> None:
    run = STORIES["plain"](desk)
    with hf.Runtime(desk.rt.store) as other, pytest.raises(HoldfastError, match="no_such_agent"):
        other.evidence.replay(run.id)


def test_the_store_of_a_replay_takes_nothing(desk: Desk) -> None:
    run = STORIES["waiting"](desk)
    store, before = Reading(desk.rt.store), written(desk.rt)

    async def submits() -> None:
        await store.aio.cancel(run.id, by="dana")

    for command in (
        lambda: store.cancel(run.id, by="dana"),
        lambda: store.append(run.id, "note.logged", {"text": "x"}),
        lambda: store.put_blob(b"x"),
        lambda: asyncio.run(submits()),
    ):
        with pytest.raises(HoldfastError, match="a replay writes nothing"):
            command()
    assert written(desk.rt) == before


@pytest.mark.parametrize("seed", SEEDS)
def test_a_random_agent_is_replayed_without_a_divergence(seed: int) -> None:
    """With a crash somewhere: what its journal then says is replayed all the same."""
    rng = random.Random(seed)
    build = build_of(grown(rng, 3))
    frame = rng.randrange(0, 12)
    run, world = crashed(build, frame, rng.choice(("before", "after")))
    assert run.status == "completed", (seed, run.waiting_on)
    acted = list(world)
    mortal = run._runtime.store
    scene = build(Store(mortal._core, "memory:", mortal.clock), world)  # one that does not die
    before = written(scene.runtime)
    replay = scene.runtime.evidence.replay(run.id)
    assert replay.verdict is Verdict.SAME, (seed, replay)
    assert replay.steps[0].replayed == {"status": "completed", "result": run.result}
    assert world == acted, "an effect left"
    assert written(scene.runtime) == before
    final = scene.runtime.store.state(run.id)
    assert scene.runtime.evidence.at(run.id).state == final["state"]
    _forks(scene, run, world, rng)
    scene.runtime.close()


def _forks(scene: testing.Scene, run: hf.Run, world: list[str], rng: random.Random) -> None:
    """A fork of it, from where nothing is under way and something is left to do, repeats no effect."""
    evidence, acted = scene.runtime.evidence, list(world)
    done = next(fact.seq for fact in evidence.journal(run.id).facts if fact.kind == "step.completed")
    points = [
        seq
        for seq in range(2, done)
        if all(entry.phase == "settled" for entry in evidence.at(run.id, seq).ledger)
    ]
    for at in rng.sample(points, min(2, len(points))):
        scene.runtime.resume_sync(scene.runtime.fork(run.id, at=at, by="dana"))
        assert world == acted, "a fork has repeated an effect"
