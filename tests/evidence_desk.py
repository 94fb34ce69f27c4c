"""A runtime with a bit of everything, and stories: runs that ended, wait, failed, forked, doubted and so on.

Every body, hook and approver leaves a mark in ``seen``, so that whoever looks at the past can show that he
called none of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import holdfast as hf
from holdfast import gateway, testing

Story = Callable[["Desk"], hf.Run]
STORIES: dict[str, Story] = {}


def story(function: Story) -> Story:
    STORIES[function.__name__] = function
    return function


class Desk:
    """A runtime over a store in memory, under a clock that is moved by hand."""

    def __init__(self, **options: Any) -> None:
        self.seen: list[str] = []
        self.clock = testing.FakeClock()
        self.broken = False
        self.rt = hf.Runtime(
            testing.MemoryStore(self.clock), suspend_grace=0.01, replay_grace=0.05, **options
        )
        self._tools()

    def _tools(self) -> None:
        rt, seen = self.rt, self.seen

        @rt.tool(effect="write")
        async def send(what: str) -> str:
            seen.append(f"send {what}")
            return f"sent {what}"

        @rt.tool(effect="write", risk="high")
        def wire(cents: int) -> dict[str, int]:
            seen.append(f"wire {cents}")
            return {"cents": cents}

        @rt.tool(effect="read")
        def look(what: str) -> str:
            seen.append(f"look {what}")
            if self.broken:
                raise ConnectionError("the line is dead")
            return f"saw {what}"

        @rt.tool(effect="write")
        def fax(text: str) -> str:
            seen.append(f"fax {text}")
            raise TimeoutError("the line went dead")

        @rt.tool(effect="write")
        def print_out(text: str) -> str:
            seen.append(f"print {text}")
            raise hf.NoEffect("out of paper")

        @rt.tool(effect="pure")
        def double(n: int) -> int:
            seen.append(f"double {n}")
            return 2 * n

        @rt.tool(effect="read")
        def odd_result(n: int) -> int:
            seen.append(f"odd {n}")
            return "no number"  # type: ignore[return-value]

    def run(self, function: Any, *args: Any, **options: Any) -> hf.Run:
        agent = self.rt.agent(**options)(function)
        return self.rt.run_sync(agent, *args)

    def approve(self) -> None:
        testing.approve_all(self.rt)

    def close(self) -> None:
        self.rt.close()
        self.rt.store.close()


@story
def plain(desk: Desk) -> hf.Run:
    async def clerk(ctx: hf.Context, what: str) -> str:
        ctx.state["asked"] = {"what": what}
        await ctx.commit()
        seen = await ctx.call("look", what=what)
        await ctx.log(f"saw it: {seen}")
        ctx.state["asked"]["seen"] = True
        return f"{await ctx.call('send', what=what)} {await ctx.now() is not None}"

    return desk.run(clerk, "a letter")


@story
def approved(desk: Desk) -> hf.Run:
    async def payer(ctx: hf.Context) -> int:
        paid = await ctx.call("wire", cents=5)
        ctx.state["paid"] = paid["cents"]
        return int(paid["cents"])

    run = desk.run(payer)
    desk.approve()
    return desk.rt.resume_sync(run)


@story
def denied(desk: Desk) -> hf.Run:
    async def payer(ctx: hf.Context) -> str:
        try:
            await ctx.call("wire", cents=6)
        except hf.Denied as error:
            return f"no: {error.reasons[0]['code']}"
        return "never"

    run = desk.run(payer)
    testing.deny_all(desk.rt)
    return desk.rt.resume_sync(run)


@story
def asked(desk: Desk) -> hf.Run:
    async def publisher(ctx: hf.Context) -> str:
        return "out" if await ctx.approval("publish", page="home") else "kept"

    run = desk.run(publisher)
    desk.approve()
    return desk.rt.resume_sync(run)


@story
def waiting(desk: Desk) -> hf.Run:
    async def payer(ctx: hf.Context) -> object:
        ctx.state["begun"] = True
        await ctx.commit()
        return await ctx.call("wire", cents=7)

    return desk.run(payer)


@story
def doubted(desk: Desk) -> hf.Run:
    async def clerk(ctx: hf.Context) -> str:
        await ctx.call("send", what="first")
        return str(await ctx.call("fax", text="hello"))

    return desk.run(clerk)


@story
def resolved(desk: Desk) -> hf.Run:
    run = doubted(desk)
    (doubt,) = desk.rt.effects.list()
    desk.rt.effects.resolve(doubt.id, by="dana", happened="it arrived", reason="they called")
    return desk.rt.resume_sync(run)


@story
def no_effect(desk: Desk) -> hf.Run:
    async def clerk(ctx: hf.Context) -> str:
        try:
            await ctx.call("print_out", text="a page")
        except hf.NoEffect:
            return str(await ctx.call("send", what="instead"))
        return "never"

    return desk.run(clerk)


@story
def failed(desk: Desk) -> hf.Run:
    async def clerk(ctx: hf.Context) -> None:
        await ctx.call("send", what="before")
        raise hf.Fatal("order 4711 is unknown")

    return desk.run(clerk)


@story
def tried_again(desk: Desk) -> hf.Run:
    async def clerk(ctx: hf.Context) -> str:
        await ctx.call("send", what="once")
        return str(await ctx.call("look", what="twice"))

    desk.broken = True
    run = desk.run(clerk, backoff=60.0)
    assert run.status == "running"
    desk.broken = False
    desk.clock.advance(seconds=120)
    return desk.rt.resume_sync(run)


@story
def timed(desk: Desk) -> hf.Run:
    async def sleeper(ctx: hf.Context) -> str:
        async with ctx.timeout(60):
            await ctx.call("look", what="quickly")
        await ctx.sleep(3600)
        try:
            async with ctx.timeout(10):
                await ctx.signal("never")
        except TimeoutError:
            return f"late {ctx.random():.3f} {ctx.uuid()}"
        return "never"

    run = desk.run(sleeper)
    for _ in range(2):
        desk.clock.advance(seconds=3600)
        run = desk.rt.resume_sync(run)
    return run


@story
def signalled(desk: Desk) -> hf.Run:
    async def waiter(ctx: hf.Context) -> object:
        return await ctx.signal("go")

    run = desk.run(waiter)
    desk.rt.signal(run, "go", {"n": 1}, by="dana")
    return desk.rt.resume_sync(run)


@story
def together(desk: Desk) -> hf.Run:
    async def one(ctx: hf.Context, what: str) -> str:
        seen = await ctx.call("look", what=what)
        return f"{seen} {await ctx.call('send', what=what)}"

    async def clerk(ctx: hf.Context) -> list[str]:
        tasks = [asyncio.ensure_future(one(ctx, f"n{n}")) for n in range(4)]
        first = [task async for task in ctx.as_completed(*tasks)]
        return [task.result() for task in first]

    return desk.run(clerk)


@story
def in_steps(desk: Desk) -> hf.Run:
    @desk.rt.step
    async def part(ctx: hf.Context, n: int) -> str:
        ctx.state[f"part{n}"] = n
        return str(await ctx.call("send", what=f"part {n}"))

    async def whole(ctx: hf.Context) -> str:
        steps = [await ctx.add_step(part, n) for n in range(2)]
        await ctx.add_step(part, 9, after=steps)
        return "handed out"

    run = desk.run(whole)
    while run.status == "running":  # two of them have changed the state at once
        desk.clock.advance(seconds=60)
        run = desk.rt.resume_sync(run)
    return run


@story
def parent(desk: Desk) -> hf.Run:
    @desk.rt.agent
    async def helper(ctx: hf.Context, n: int) -> int:
        await ctx.call("send", what=f"child {n}")
        if n > 1:
            raise hf.Fatal("too much")
        return n + 1

    async def boss(ctx: hf.Context) -> str:
        child = await ctx.spawn(helper, 1, escrow={"tool_calls": 3})
        told = await child
        try:
            await (await ctx.spawn(helper, 2))
        except hf.EffectFailed as error:
            return f"{told} {error.error}"
        return "never"

    return desk.run(boss, budget={"tool_calls": 10})


@story
def made(desk: Desk) -> hf.Run:
    async def artist(ctx: hf.Context) -> str:
        sketch = await ctx.artifact("sketch.txt", "a line")
        await ctx.media("image", "copy", b"\x00\x01", derived_from=[sketch])
        await ctx.record_model_call("small", input_tokens=5, output_tokens=6, usd=0.25)
        await ctx.cost(usd=0.5, model="large")
        await ctx.stream_checkpoint("strokes", "artist", 1)
        return str(await ctx.do("ask", desk.seen.append, "model said yes", effect="read"))

    return desk.run(artist, budget={"usd_micros": 1_000_000})


@story
def over_budget(desk: Desk) -> hf.Run:
    async def spender(ctx: hf.Context) -> str:
        for n in range(3):
            try:
                await ctx.call("send", what=str(n))
            except hf.BudgetRefused:
                return f"refused at {n}"
        return "never"

    return desk.run(spender, budget={"tool_calls": 2})


@story
def cancelled(desk: Desk) -> hf.Run:
    run = waiting(desk)
    desk.rt.cancel(run, by="dana")
    return desk.rt.resume_sync(run)


@story
def paused(desk: Desk) -> hf.Run:
    run = waiting(desk)
    desk.rt.pause(run, by="dana", reason="a look")
    return run.refresh()


@story
def in_a_thread(desk: Desk) -> hf.Run:
    def clerk(ctx: Any) -> str:
        ctx.state["n"] = 1
        ctx.commit()
        return str(ctx.call("send", what=ctx.call("look", what="it")))

    return desk.run(clerk)


@story
def hooked(desk: Desk) -> hf.Run:
    @desk.rt.hook("before_tool_call", rights=["deny"])
    def no_parcels(subject: gateway.Subject) -> object:
        desk.seen.append("hook before")
        return gateway.deny("too_big") if subject.value.get("what") == "a parcel" else None

    @desk.rt.hook("after_tool_call", rights=["rewrite_tool_result"])
    def censor(subject: gateway.Subject) -> object:
        desk.seen.append("hook after")
        return gateway.rewrite("(censored)") if subject.tool == "look" else None

    @desk.rt.hook("run_starting", rights=["inject_context"])
    def remind(_: gateway.Subject) -> object:
        desk.seen.append("hook starting")
        return gateway.inject_context("be polite")

    async def clerk(ctx: hf.Context) -> list[Any]:
        seen = await ctx.call("look", what="a secret")
        try:
            await ctx.call("send", what="a parcel")
        except hf.Denied as error:
            return [seen, error.reasons[0]["code"], ctx.injected]
        return ["never"]

    return desk.run(clerk)


@story
def keyed(desk: Desk) -> hf.Run:
    async def clerk(ctx: hf.Context) -> list[str]:
        first = await ctx.call("send", what="x", key="k")
        again = await ctx.call("send", what="x", key="k")
        return [first, again]

    return desk.run(clerk)


@story
def unrecordable(desk: Desk) -> hf.Run:
    async def clerk(ctx: hf.Context) -> str:
        try:
            await ctx.call("odd_result", n=1)
        except hf.OutcomeError as error:
            return error.code
        return "never"

    return desk.run(clerk)


@story
def forked(desk: Desk) -> hf.Run:
    run = plain(desk)
    sent = [record for record in desk.rt.store.read(run.id) if record.kind == "effect.settled"][1]
    fork = desk.rt.fork(run, at=sent.seq, by="dana", reason="once more")
    return desk.rt.resume_sync(fork)


@story
def fork_served(desk: Desk) -> hf.Run:
    """What the parent did after the fork is not done again either: the fork gets what it came to."""
    run = plain(desk)
    return desk.rt.resume_sync(desk.rt.fork(run, at=6, by="dana"))


@story
def fork_refused(desk: Desk) -> hf.Run:
    """What the parent did, and what failed there, a fork is neither given nor let do."""

    @desk.rt.tool(effect="write")
    def courier(what: str) -> str:
        raise hf.EffectFailed(f"lost on the way: {what}")

    async def clerk(ctx: hf.Context) -> str:
        return str(await ctx.call("courier", what="a letter"))

    run = desk.run(clerk, attempts=1)
    return desk.rt.resume_sync(desk.rt.fork(run, at=3, by="dana"))


@story
def erased(desk: Desk) -> hf.Run:
    run = plain(desk)
    desk.rt.store.forget(run.id, by="dana", reason="asked for")
    return run


@story
def retried(desk: Desk) -> hf.Run:
    async def clerk(ctx: hf.Context) -> str:
        return str(await ctx.call("look", what="again"))

    desk.broken = True
    run = desk.run(clerk, attempts=1)
    desk.broken = False
    desk.rt.retry(run, by="dana")
    return desk.rt.resume_sync(run)


@story
def diverged(desk: Desk) -> hf.Run:
    """Its code has changed while it waited, and a person accepts that."""
    plan = ["old"]

    async def clerk(ctx: hf.Context) -> str:
        await ctx.call("send", what=plan[0])
        return str(await ctx.signal("go"))

    run = desk.run(clerk)
    plan[0] = "new"
    desk.rt.signal(run, "go", "on", by="dana")
    run = desk.rt.resume_sync(run)
    assert run.waiting_on[0]["on"] == "divergence"
    desk.rt.decide(run, "accept", by="dana", reason="it is fine")
    return desk.rt.resume_sync(run)


def play(name: str, **options: Any) -> tuple[Desk, hf.Run]:
    """Plays a story at a desk of its own."""
    desk = Desk(**options)
    return desk, STORIES[name](desk)
