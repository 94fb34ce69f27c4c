"""agentledger-runtime 1.6.1: a run, one tool through its gateway, state, end; no hash chain; its own
settings."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from agentledger.blobstore import LocalBlobStore
from agentledger.runtime import Runtime
from agentledger.store import SQLiteStore
from job import arguments, at_once, receipt

if TYPE_CHECKING:
    from agentledger.context import AgentContext

folder, jobs, most = arguments()
store = SQLiteStore(folder / "agentledger.db")
store.init()
runtime = Runtime(store=store, blobs=LocalBlobStore(folder / "blobs"))


@runtime.tool(name="refund", side_effect="external", idempotency=True)
def refund(args: dict[str, Any]) -> dict[str, str]:
    """The write."""
    return receipt(args["order"], args["cents"])


async def job(n: int) -> None:
    """One run."""
    run, _ = runtime.create_run({"order": str(n)})

    async def support(ctx: AgentContext, state: dict[str, Any]) -> None:
        called = ctx.call_tool("refund", {"order": state["order"], "cents": 1999})
        told = await called if asyncio.iscoroutine(called) else called
        ctx.write_state_patch("receipt", told)

    done = runtime.run_once(support, run_id=run)
    assert await done if asyncio.iscoroutine(done) else done


asyncio.run(at_once(job, jobs, most))
