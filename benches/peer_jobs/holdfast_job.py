"""Holdfast: policy, ledger, hash chain, state; a barrier before the write and one at the run's end."""

from __future__ import annotations

import asyncio

from job import arguments, at_once, receipt

import holdfast as hf

folder, jobs, most = arguments()
rt = hf.Runtime(
    folder / "runs",
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


async def job(n: int) -> None:
    """One run."""
    run = await rt.run(support, str(n))
    assert run.status == "completed"


asyncio.run(at_once(job, jobs, most))
rt.close()
