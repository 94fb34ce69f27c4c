"""Random agents: trees of calls in sequence and at once, with timings of their own, crashed somewhere and
taken up by another process. Whatever the tree, each write happens once and the run comes to the same, or it
stops for a person; it never acts twice. A failure is a seed.
"""

from __future__ import annotations

import asyncio
import random
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from tests.faults.disks import SECONDS

import holdfast as hf
from holdfast import testing

if TYPE_CHECKING:
    from holdfast.testing.crashes import When

SEEDS = range(60)
WHEN: tuple[When, When] = ("before", "after")


@dataclass(frozen=True)
class Node:
    """A part of an agent: what it does, and its own parts."""

    what: str
    name: str
    parts: tuple[Node, ...] = ()
    turns: int = 0


def grown(rng: random.Random, depth: int, path: str = "n") -> Node:
    if depth == 0 or rng.random() < 0.35:
        leaves = ("write", "write", "write", "keyed", "read", "log", "commit", "now", "sleep", "turns")
        return Node(rng.choice(leaves), path, turns=rng.randrange(0, 12))
    parts = tuple(grown(rng, depth - 1, f"{path}.{n}") for n in range(rng.randrange(1, 4)))
    return Node(rng.choice(("sequence", "gather", "group", "first")), path, parts, rng.randrange(0, 6))


async def played(ctx: hf.Context, node: Node, rng: random.Random) -> Any:
    """Plays a tree. Turns of the loop come from a source that no attempt shares with another."""
    for _ in range(rng.randrange(0, node.turns + 1)):
        await asyncio.sleep(0)
    match node.what:
        case "write":
            return await ctx.call("write", what=node.name)
        case "keyed":
            return await ctx.call("write", what=node.name, key=node.name)
        case "read":
            return await ctx.call("read", what=node.name)
        case "log":
            return await ctx.log(node.name)
        case "now":
            return (await ctx.now()).timestamp() > 0
        case "sleep":
            return await ctx.sleep(node.turns)
        case "commit":
            ctx.state[node.name.replace(".", "_")] = node.turns
            return await ctx.commit()
        case "sequence":
            return [await played(ctx, part, rng) for part in node.parts]
        case "gather":
            return list(await asyncio.gather(*(played(ctx, part, rng) for part in node.parts)))
        case "group":
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(played(ctx, part, rng)) for part in node.parts]
            return [task.result() for task in tasks]
        case "first":
            tasks = [asyncio.ensure_future(played(ctx, part, rng)) for part in node.parts]
            done = [task async for task in ctx.as_completed(*tasks)]
            return [str(task.result()) for task in done[:1]] and sorted(str(task.result()) for task in done)
        case _:
            return None


def build_of(tree: Node) -> Any:
    def build(store: hf.Store, world: list[str]) -> testing.Scene:
        rt = hf.Runtime(store, suspend_grace=0.005, replay_grace=0.05)
        timing = random.Random()  # each process has its own timing

        @rt.tool(effect="write")
        async def write(what: str) -> str:
            for _ in range(timing.randrange(0, 8)):
                await asyncio.sleep(0)
            world.append(what)
            return f"did {what}"

        @rt.tool(effect="read")
        def read(what: str) -> str:
            return f"saw {what}"

        @rt.agent
        async def agent(ctx: hf.Context) -> Any:
            return await played(ctx, tree, timing)

        return testing.Scene(rt, agent)

    return build


def crashed(build: Any, frame: int, when: Any) -> tuple[hf.Run, Any]:
    """With a crash at a frame; without one where the process writes fewer."""
    try:
        return testing.crash_at(build, frame, when)
    except ValueError:
        return testing.crash_at(build, 0)


def check(seed: int, crashes: int) -> int:
    """Plays one tree without a crash and with some; how many of the latter stopped for a person."""
    rng = random.Random(seed)
    build = build_of(grown(rng, 3))
    whole, world = testing.crash_at(build, 0)
    assert whole.status == "completed", (seed, whole.error, whole.waiting_on)
    frames = len({record.position for record in whole._runtime.store.read(whole.id)})
    stopped = 0
    for _ in range(crashes):
        frame, when = rng.randrange(1, frames + 1), rng.choice(WHEN)
        run, seen = crashed(build, frame, when)
        place = f"seed {seed}, {when} frame {frame}"
        assert sorted(seen) == sorted(set(seen)), f"{place}: an effect was repeated: {seen}"
        if run.status == "waiting" and run.waiting_on[0]["on"] == "divergence":
            stopped += 1
            continue
        assert (run.status, run.result) == ("completed", whole.result), (
            f"{place}: {run.error} {run.waiting_on}"
        )
        assert sorted(seen) == sorted(world), f"{place}: an effect is missing"
    return stopped


@pytest.mark.parametrize("seed", SEEDS)
def test_a_random_agent_comes_to_the_same_after_a_crash(seed: int) -> None:
    assert check(seed, 3) == 0


def test_random_agents_for_as_long_as_is_asked() -> None:
    end, seed = time.monotonic() + SECONDS, 10_000
    while time.monotonic() < end:
        check(seed, 4)
        seed += 1
