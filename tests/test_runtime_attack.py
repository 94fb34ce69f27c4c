"""What an adversary tried: ways to act twice, to undo what nobody heard of, and to get around a budget."""

from __future__ import annotations

import asyncio
import collections.abc  # noqa: TC003 (a tool reads its annotations)
import os
from typing import TYPE_CHECKING, Any

import pytest
from tests.runtime_desk import Provider, address, provider, rt

import holdfast as hf

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

__all__ = ["address", "provider", "rt"]  # fixtures


class Shop:
    """Two versions of one program on one store: the second does something else first."""

    def __init__(self, store: hf.Store) -> None:
        self.store = store
        self.sent: list[int] = []

    def version(self, number: int, body: Callable[[int, int], int] | None = None) -> hf.Runtime:
        rt = hf.Runtime(self.store, suspend_grace=0.05, replay_grace=0.1)

        @rt.tool(effect="write", compensate=lambda *_: self.sent.append(-1))
        def send(n: int) -> int:
            if body is not None:
                return body(number, n)
            self.sent.append(n)
            return n

        @rt.agent(attempts=1)
        async def sends(ctx: hf.Context, undoes: bool) -> list[Any]:
            made: list[Any] = [await ctx.call(send, n=9)] if number == 2 else []
            try:
                made.append(await ctx.call(send, n=1, key="k"))
            except hf.NoEffect:
                made.append(None)
            if undoes and number == 2:
                await ctx.compensate(send, key="k")
            return [*made, await ctx.signal("go")]

        return rt

    def diverged(self, body: Callable[[int, int], int] | None = None, *, undoes: bool = False) -> hf.Run:
        """A run whose code went another way, and whose recorded call a person has given up."""
        old, new = self.version(1, body), self.version(2, body)
        run = old.run_sync("sends", undoes)
        old.signal(run, "go", "gone")
        assert new.resume_sync(run).status == "waiting"
        new.decide(run, "accept", by="dana")
        return new.resume_sync(run)


def test_what_did_not_happen_is_made_under_its_key_after_all() -> None:
    shop = Shop(hf.open("memory:"))

    def body(version: int, n: int) -> int:
        if version == 1:
            raise hf.NoEffect("not now")
        shop.sent.append(n)
        return n

    run = shop.diverged(body)
    assert (run.status, run.result, shop.sent) == ("completed", [9, 1, "gone"], [9, 1])


def test_what_was_given_up_is_not_undone() -> None:
    shop = Shop(hf.open("memory:"))
    run = shop.diverged(undoes=True)
    assert (run.status, run.error and run.error.code, shop.sent) == ("failed", "no_such_call", [1, 9])


def test_what_was_given_up_is_ruled_about_before_agent_code_has_it(tmp_path: Path) -> None:
    """Its process died in the hook that takes something out of the result."""

    def program(number: int, *, dies: bool) -> hf.Runtime:
        rt = hf.Runtime(tmp_path / "runs", suspend_grace=0.05, replay_grace=0.1)

        @rt.tool(effect="write")
        def send(n: int) -> str:
            return f"secret {n}"

        @rt.hook("after_tool_call", rights=["rewrite_tool_result"], timeout=10)
        def cleans(_: hf.gateway.Subject) -> object:
            if dies:
                os._exit(9)
            return hf.gateway.rewrite("clean")

        @rt.agent
        async def sends(ctx: hf.Context) -> list[str]:
            first = [await ctx.call(send, n=9)] if number == 2 else []
            return [*first, await ctx.call(send, n=1, key="k")]

        return rt

    child = os.fork()
    if child == 0:
        program(1, dies=True).run_sync("sends")
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    with program(2, dies=False) as rt:
        (run,) = rt.runs.list()
        assert rt.resume_sync(run.id).status == "waiting"
        rt.decide(run.id, "accept", by="dana")
        assert rt.resume_sync(run.id).result == ["clean", "clean"]


def test_a_fork_that_is_decided_for_twice_is_one() -> None:
    shop = Shop(hf.open("memory:"))
    old, new = shop.version(1), shop.version(2)
    run = old.run_sync("sends", False)
    old.signal(run, "go", "gone")
    assert new.resume_sync(run).status == "waiting"
    forks = {new.decide(run, "fork", by="dana").id for _ in range(2)}
    assert len(forks) == 1
    assert len(new.runs.list()) == 2


def travels(rt: hf.Runtime, world: list[str], *, slow: asyncio.Event | None = None) -> Any:
    class Cancel:
        async def __call__(self, arguments: Any, result: Any, call: hf.Call) -> str:
            world.append(f"cancelled {arguments['what']} {result} {bool(call.key)}")
            return "void"

    @rt.tool(effect="write", compensate=Cancel())
    async def book(what: str) -> str:
        if slow is not None:
            await slow.wait()
        world.append("booked")
        return f"{what} ticket"

    return book


def test_nobody_undoes_what_they_have_not_heard_of_neither_now_nor_when_run_again(rt: hf.Runtime) -> None:
    world: list[str] = []
    slow = asyncio.Event()
    book = travels(rt, world, slow=slow)

    @rt.agent
    async def hasty(ctx: hf.Context) -> str:
        async def undoes() -> str:
            try:
                await ctx.compensate(book, key="k")
            except hf.CommandError as error:
                return error.code
            finally:
                slow.set()
            return "undone"

        async with asyncio.TaskGroup() as both:
            both.create_task(ctx.call(book, key="k", what="train"))
            said = both.create_task(undoes())
        await ctx.signal("go")
        return said.result()

    run = rt.run_sync(hasty)
    assert (run.status, world) == ("waiting", ["booked"])
    rt.signal(run, "go", 1)
    run = rt.resume_sync(run)
    assert (run.status, run.result, world) == ("completed", "no_such_call", ["booked"])


def test_what_was_undone_is_void_for_the_steps_that_come_later(rt: hf.Runtime) -> None:
    world: list[str] = []
    book = travels(rt, world)

    @rt.step
    async def later(ctx: hf.Context) -> None:
        with pytest.raises(hf.EffectFailed) as void:
            await ctx.call(book, key="k", what="train")
        world.append(void.value.code)

    @rt.agent
    async def changes_its_mind(ctx: hf.Context) -> None:
        await ctx.call(book, key="k", what="train")
        assert await ctx.compensate(book, key="k") == "void"
        await ctx.add_step(later)

    run = rt.run_sync(changes_its_mind)
    assert (run.status, world) == (
        "completed",
        ["booked", "cancelled train train ticket True", "compensated"],
    )


def test_a_child_that_is_tried_again_has_nothing_of_what_it_gave_back(
    rt: hf.Runtime, provider: Provider
) -> None:
    fails = [True]

    async def spends(ctx: hf.Context, name: str) -> None:
        try:
            for n in range(9):
                await ctx.call("send", what=f"{name} {n}")
        except hf.BudgetRefused:
            return

    @rt.agent(attempts=1)
    async def child(ctx: hf.Context) -> None:
        await ctx.call("send", what="first")
        if fails[0]:
            raise ValueError("not today")
        await spends(ctx, "child")

    @rt.agent
    async def parent(ctx: hf.Context) -> None:
        one = await ctx.spawn(child, escrow={"tool_calls": 3})
        with pytest.raises(hf.EffectFailed):
            await one
        await spends(ctx, "parent")

    run = rt.run_sync(parent, budget={"tool_calls": 6})
    (again,) = rt.runs.list(agent="child")
    assert (run.status, provider.sent.total()) == ("completed", 6)
    fails[0] = False
    rt.retry(again.id, by="dana")
    assert (rt.resume_sync(again.id).status, provider.sent.total()) == ("completed", 6)
    assert rt.store.verify().ok


def test_a_call_is_a_call_whatever_it_says_that_it_needs(rt: hf.Runtime, provider: Provider) -> None:
    @rt.agent(attempts=1)
    async def sends(ctx: hf.Context) -> None:
        for n in range(3):
            await ctx.call("send", what=f"{n}", reserve={"tool_calls": 0})

    assert rt.run_sync(sends, budget={"tool_calls": 1}).status == "failed"
    assert provider.sent.total() == 1


def test_an_observer_leaves_a_result_that_is_read_once_to_agent_code(rt: hf.Runtime) -> None:
    seen: list[Any] = []

    @rt.hook("after_tool_call", blocking=False)
    def looks(subject: hf.gateway.Subject) -> None:
        seen.append(subject.value)

    @rt.tool(effect="pure")
    def numbers() -> collections.abc.Iterable[int]:
        return [1, 2]

    @rt.agent
    async def counts(ctx: hf.Context) -> list[int]:
        return list(await ctx.call(numbers))

    assert rt.run_sync(counts).result == [1, 2]
    assert rt.gateway.observers("after_tool_call")[0].drain(timeout=10)
    assert seen == [[1, 2]]
    with pytest.raises(hf.ToolError, match="another evaluator"):
        rt.gateway.evaluator(name="holdfast.observers")(lambda _: "deny")
