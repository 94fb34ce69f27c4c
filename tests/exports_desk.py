"""A run with a bit of everything for the exports: verdicts, approvals, retries, a doubt, a child, costs, and
tools that answer with what an attacker would like to see on a page.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest
from tests.hostile_page import HOSTILE, MEGABYTES

import holdfast as hf
from holdfast.store import FakeClock

if TYPE_CHECKING:
    from collections.abc import Iterator


class Office:
    """A runtime on a clock that stands, and the run that everything happens in."""

    def __init__(self, url: str = "memory:") -> None:
        self.clock = FakeClock()
        self.rt = hf.Runtime(url, clock=self.clock, suspend_grace=0.05, replay_grace=0.2)
        self.looked = 0
        self._tools()
        self._agents()

    def _tools(self) -> None:
        rt, clock = self.rt, self.clock

        @rt.tool(effect="read", attempts=3)
        def look(order: str) -> dict[str, str]:
            self.looked += 1
            clock.advance(seconds=0.5)
            if self.looked == 1:
                raise hf.NoEffect("try again")
            return {"order": order, **HOSTILE}

        @rt.tool(effect="write", risk="high", approval="always")
        def refund(order: str, cents: int, call: hf.Call) -> dict[str, Any]:
            until = time.monotonic() + 0.02
            while time.monotonic() < until:  # work that takes real time, for what is measured
                pass
            clock.advance(seconds=2)
            return {"receipt": call.key, "of": [order, cents], "note": MEGABYTES}

        @rt.tool(effect="write")
        def post(text: str) -> str:
            clock.advance(seconds=1)
            raise RuntimeError(f"<b>the line is dead</b>: {text}")

        @rt.tool(effect="write", approval="always")
        def wire(cents: int) -> str:
            return f"never {cents}"

    def _agents(self) -> None:
        rt, clock = self.rt, self.clock

        @rt.agent
        async def helper(_: hf.Context, n: int) -> int:
            clock.advance(seconds=3)
            return n + 1

        @rt.agent
        async def support(ctx: hf.Context, ticket: str) -> str:
            await ctx.log("begins <script>document.title='owned'</script>")
            await ctx.record_model_call(
                "gpt-x", provider="openai", input_tokens=100, output_tokens=20, usd=0.0125
            )
            await ctx.call("look", order="42")
            ctx.state["seen"] = "<script>document.title='owned'</script>"
            await ctx.call("refund", order="42", cents=1999)
            try:
                await ctx.call("wire", cents=5)
            except hf.Denied:
                await ctx.log("denied", level="warning")
            child = await ctx.spawn(helper, 3)
            await child
            await ctx.artifact("picture.png", b"\x89PNG\x00\xff", media="image/png")
            await ctx.call("post", text="hello")
            return f"done with {len(ticket)} characters"

    def run(self) -> hf.Run:
        """Plays it to its end: one approval, one denial, one doubt that a person resolves."""
        run = self.rt.run_sync("support", "<script>document.title='owned'</script>")
        self.clock.advance(seconds=60)
        (asked,) = self.rt.approvals.list()
        self.rt.approvals.approve(asked.id, by="dana", reason="<i>looks</i> right")
        run = self.rt.resume_sync(run)
        (asked,) = self.rt.approvals.list()
        self.rt.approvals.deny(asked.id, by="eve", reason="no")
        run = self.rt.resume_sync(run)
        (doubt,) = self.rt.effects.list()
        self.clock.advance(seconds=30)
        self.rt.effects.resolve(doubt.id, happened="p1", by="dana")
        return self.rt.resume_sync(run).refresh()


@pytest.fixture
def office() -> Iterator[Office]:
    office = Office()
    yield office
    office.rt.close()


@pytest.fixture
def told(office: Office) -> tuple[hf.Store, str]:
    """The store and the run of an office whose day is over."""
    run = office.run()
    assert run.status == "completed"
    return office.rt.store, run.id
