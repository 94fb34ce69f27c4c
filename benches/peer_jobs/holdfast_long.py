"""One run of Holdfast with many steps: what it leaves on the disk."""

from __future__ import annotations

import asyncio

from job import arguments, done, receipt

import holdfast as hf

folder, steps, _ = arguments()


async def main() -> None:
    """Some kilobyte of result for each of so many calls."""
    async with hf.Runtime(folder / "runs") as rt:
        # holdfast: allow HF303 because the receipt is made up, and nothing leaves the process
        @rt.tool(effect="write")
        async def refund(order: str) -> dict[str, str]:
            return receipt(order, 1999) | {"text": order.rjust(1000, ".")}

        @rt.agent
        async def long(ctx: hf.Context) -> int:
            for n in range(steps):
                ctx.state["newest"] = await ctx.call(refund, order=str(n))
            return steps

        assert (await rt.run(long)).result == steps
    done(1.0, steps)


asyncio.run(main())
