"""DBOS on SQLite: a workflow with one step; no policy, no ledger, no chain; its own durability settings."""

from __future__ import annotations

import asyncio
import logging

from dbos import DBOS, DBOSConfig
from job import arguments, at_once, receipt

folder, jobs, most = arguments()
config: DBOSConfig = {
    "name": "bench",
    "system_database_url": f"sqlite:///{folder / 'dbos.db'}",
    "log_level": "ERROR",
}
DBOS(config=config)
logging.disable(logging.WARNING)


@DBOS.step()
async def refund(order: str) -> dict[str, str]:
    """The write."""
    return receipt(order, 1999)


@DBOS.workflow()
async def support(order: str) -> str:
    """The job."""
    told = await refund(order)
    await DBOS.set_event_async("receipt", told)
    return told["id"]


async def job(n: int) -> None:
    """One workflow."""
    assert await support(str(n))


DBOS.launch()
asyncio.run(at_once(job, jobs, most))
DBOS.destroy()
