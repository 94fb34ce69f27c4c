"""Holdfast on PostgreSQL: policy, ledger, hash chain, state; barriers before the write and at the end."""

from __future__ import annotations

import asyncio

from fleet import arguments, together
from job import receipt

import holdfast as hf

rt = hf.Runtime(
    arguments()[0],
    policy=hf.Policy.of(hf.gateway.rule("allow", tool="refund", when={"args.cents": {"max": 5000}})),
)


# holdfast: allow HF303 because the receipt is made up, and nothing leaves the process
@rt.tool(effect="write")
async def refund(order: str, cents: int) -> dict[str, str]:
    """Gives money back."""
    return receipt(order, cents)


@rt.agent
async def support(ctx: hf.Context, order: str) -> str:
    """The job."""
    told = await ctx.call(refund, order=order, cents=1999)
    ctx.state["receipt"] = told
    return told["id"]


async def job(name: str) -> None:
    """One run."""
    run = await rt.run(support, name)
    assert run.status == "completed"


asyncio.run(together(job))
rt.close()
