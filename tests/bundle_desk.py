"""A store with runs of every kind that a bundle can be about, for tests of evidence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import holdfast as hf
from holdfast import keys

if TYPE_CHECKING:
    from pathlib import Path

    from holdfast.runtime import Run


@dataclass
class Case:
    """A store on a folder, its runs by what they show, and the key that seals it."""

    runtime: hf.Runtime
    folder: Path
    runs: dict[str, str]
    key: Path
    public: str

    @property
    def store(self) -> hf.Store:
        return self.runtime.store


def case(folder: Path, address: str | None = None) -> Case:
    """Runs: plain, approved, failed, costly (with an artifact of bytes), forked, erased, sensitive."""
    rt = hf.Runtime(address or folder / "runs")

    @rt.tool(effect="write")
    def pay(order: str, cents: int) -> dict[str, str]:
        return {"id": f"re_{order}", "cents": str(cents)}

    @rt.tool(effect="write", risk="high", approval="always")
    def refund(order: str) -> str:
        return f"refunded {order}"

    @rt.agent
    async def support(ctx: hf.Context, order: str) -> str:
        told = await ctx.call(pay, order=order, cents=1999)
        ctx.state["receipt"] = told
        await ctx.commit()
        ctx.state["done"] = True
        return told["id"]

    @rt.agent
    async def careful(ctx: hf.Context, order: str) -> str:
        return await ctx.call(refund, order=order)

    @rt.agent(attempts=1)
    async def clumsy(ctx: hf.Context, order: str) -> str:
        await ctx.call(pay, order=order, cents=1)
        raise ValueError("no such order")

    @rt.agent
    async def costly(ctx: hf.Context, order: str) -> str:
        await ctx.cost(usd=0.0015, tokens=20)
        await ctx.cost(usd=0.0005)
        await ctx.artifact("picture", b"\x89PNG" * 40_000, media="image/png")
        ctx.state["text"] = "long " * 40_000  # a patch that is kept as a blob
        return order

    def ran(agent: object, *args: object) -> Run:
        return rt.run_sync(agent, *args)  # type: ignore[arg-type]

    runs = {"plain": ran(support, "1").id, "failed": ran(clumsy, "2").id, "costly": ran(costly, "3").id}
    waiting = ran(careful, "4")
    (request,) = rt.approvals.list()
    rt.approvals.approve(request.id, by="dana", reason="the parcel is lost")
    rt.resume_sync(waiting)
    runs["approved"] = waiting.id
    parent = ran(support, "5")
    cut = next(record.seq for record in rt.store.read(parent.id) if record.kind == "state.patched")
    runs["forked"] = rt.resume_sync(rt.fork(parent, at=cut, by="dana")).id
    gone = ran(support, "6")
    rt.store.forget(gone.id, by="dana")
    runs["erased"] = gone.id
    ended = {name: rt.runs.get(run).status for name, run in runs.items()}
    assert ended == {name: "failed" if name == "failed" else "completed" for name in runs}
    key = folder / "log.key"
    public = keys.generate("example.com/refunds", key)
    return Case(rt, folder, runs, key, public)
