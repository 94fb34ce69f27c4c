"""Crashes by SIGKILL: an honest agent comes to the same, the planted ones are caught, processes are real."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import pytest

import holdfast as hf
from holdfast import testing


def runtime(store: hf.Store, world: Any) -> hf.Runtime:
    rt = hf.Runtime(store, suspend_grace=0.005, replay_grace=0.02)

    @rt.tool(effect="write")
    def pay(what: str) -> str:
        world.append(what)
        return f"paid {what}"

    return rt


def test_an_agent_that_is_killed_anywhere_comes_to_the_same() -> None:
    here, processes = os.getpid(), set()

    def build(store: hf.Store, world: Any) -> testing.Scene:
        rt = runtime(store, world)
        processes.add(os.getpid())

        @rt.tool(effect="write", approval="always")
        async def post(what: str) -> int:
            world.append(what)
            return len(world)

        @rt.agent
        async def buyer(ctx: hf.Context, what: str) -> list[Any]:
            try:
                paid = await ctx.call("pay", what=what)
                return [paid, await ctx.call(post, what=f"sent {what}")]
            finally:
                assert os.getpid() != here, "agents run in processes of their own"

        return testing.Scene(rt, buyer, ("book",))

    report = testing.crash_everywhere(build, kill=True)
    assert report.result == ["paid book", 2]
    assert len(report.boundaries) >= 14, report
    assert processes == {here}, "what a process remembers dies with it"


def test_an_agent_that_acts_behind_the_context_is_caught_by_a_kill() -> None:
    def build(store: hf.Store, world: Any) -> testing.Scene:
        rt = runtime(store, world)

        @rt.agent
        async def sneaks(ctx: hf.Context) -> str:
            world.append("behind the back")
            return str(await ctx.call("pay", what="in the open"))

        return testing.Scene(rt, sneaks)

    with pytest.raises(AssertionError, match="the world has seen") as caught:
        testing.crash_everywhere(build, kill=True)
    assert "after frame" in str(caught.value)


def test_an_agent_that_is_not_deterministic_is_caught_by_a_kill() -> None:
    def build(store: hf.Store, world: Any) -> testing.Scene:
        rt = runtime(store, world)
        drawn = random.SystemRandom()

        @rt.agent
        async def gambles(ctx: hf.Context) -> str:
            await ctx.call("pay", what=str(drawn.random()))
            return str(await ctx.call("pay", what="then"))

        return testing.Scene(rt, gambles)

    with pytest.raises(AssertionError, match="divergence"):
        testing.crash_everywhere(build, same=lambda *_: True, kill=True)


class Shop:
    """A world of its own kind."""

    def __init__(self) -> None:
        self.name = "the shop"
        self.stock = {"book": 2}
        self.visitors: list[int] = []

    def sell(self, what: str, *, pid: int) -> int:
        if what not in self.stock:
            raise LookupError(f"no {what} here")
        self.stock[what] -= 1
        self.visitors.append(pid)
        return self.stock[what]


def shopping(store: hf.Store, shop: Any) -> testing.Scene:
    rt = hf.Runtime(store, suspend_grace=0.005, replay_grace=0.02)

    @rt.tool(effect="write")
    def buy(what: str) -> str:
        try:
            return f"{shop.name} has {shop.sell(what, pid=os.getpid())} left"
        except LookupError as error:
            return str(error)

    @rt.agent
    async def shopper(ctx: hf.Context) -> list[str]:
        return [await ctx.call(buy, what="book"), await ctx.call(buy, what="pen")]

    return testing.Scene(rt, shopper)


def test_the_world_stays_with_the_test_and_processes_are_gone(tmp_path: Path) -> None:
    # After effect.started: the book is sold by a process that dies before it can say so.
    run, shop = testing.crash_at(shopping, 3, "after", world=Shop, kill=True)
    assert run.result == ["the shop has 1 left", "no pen here"]
    (seller,) = shop.visitors
    assert seller != os.getpid()
    assert not Path(f"/proc/{seller}").exists()
    assert not list(tmp_path.iterdir())


def test_what_a_process_cannot_do_is_told_as_it_was() -> None:
    def build(store: hf.Store, _: object) -> testing.Scene:
        raise KeyError("no such scene") if store.url != "memory:" else AssertionError

    with pytest.raises(RuntimeError, match="no such scene"):
        testing.crash_at(build, 1, kill=True)
