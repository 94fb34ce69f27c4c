"""DBOS on PostgreSQL: a workflow with one step; no policy, no ledger, no chain; its own settings."""

from __future__ import annotations

import asyncio
import logging

from dbos import DBOS, DBOSConfig
from fleet import arguments, together
from job import receipt

address, _, _, name = arguments()
config: DBOSConfig = {
    "name": "bench",
    "system_database_url": address,
    "executor_id": name,  # else each would take up what the others have begun
    "run_admin_server": False,
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


async def job(order: str) -> None:
    """One workflow."""
    assert await support(order)


DBOS.launch()
asyncio.run(together(job))
DBOS.destroy()
