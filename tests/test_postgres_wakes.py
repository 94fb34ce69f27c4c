"""Stories of workers on PostgreSQL: they hear of work when it comes, and outlive a server that is away."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import psycopg

import holdfast as hf
from holdfast.runtime.worker import Worker

if TYPE_CHECKING:
    from tests.postgres import Server

pytest_plugins = ["tests.postgres"]
PATIENCE = 60.0
KILL = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'holdfast %'"


class Watched(Worker):
    """A worker that says when it has nothing to do."""

    def __init__(self, runtime: hf.Runtime, *, poll: float) -> None:
        super().__init__(runtime, poll=poll)
        self.idle: asyncio.Queue[None] = asyncio.Queue()

    async def claim(self) -> hf.Claim | None:
        claim = await super().claim()
        if claim is None:
            self.idle.put_nowait(None)
        return claim


def test_a_worker_hears_of_a_run_that_another_process_starts(postgres_url: str) -> None:
    """It looks only once an hour: without being told it would not begin."""

    async def story() -> list[object]:
        begun: asyncio.Queue[str] = asyncio.Queue()
        with hf.Runtime(postgres_url) as rt, hf.Runtime(postgres_url) as other:

            async def greet(_ctx: hf.Context, name: str) -> str:
                begun.put_nowait(name)
                return f"hello {name}"

            rt.agent(greet)
            other.agent(greet)
            worker = Watched(rt, poll=3600.0)
            serving = asyncio.ensure_future(worker.serve())
            runs = []
            async with asyncio.timeout(PATIENCE):
                for name in ("ada", "bob"):
                    await worker.idle.get()  # it has looked, and found nothing
                    runs.append(await other.start("greet", name=name))
                    assert await begun.get() == name
            worker.stop()
            await serving
            return [run.refresh().value() for run in runs]

    assert asyncio.run(story()) == ["hello ada", "hello bob"]


def test_a_worker_outlives_connections_that_are_cut(postgres_running: Server, postgres_url: str) -> None:
    async def story() -> list[object]:
        begun: asyncio.Queue[str] = asyncio.Queue()
        with (
            hf.Runtime(postgres_url) as rt,
            psycopg.connect(postgres_running.schema(), autocommit=True) as other,
        ):

            @rt.agent
            async def greet(_ctx: hf.Context, name: str) -> str:
                begun.put_nowait(name)
                return f"hello {name}"

            worker = rt.worker(poll=0.05)
            serving = asyncio.ensure_future(worker.serve())
            runs = []
            async with asyncio.timeout(PATIENCE):
                for name in ("ada", "bob", "eve"):
                    other.execute(KILL)
                    runs.append(await rt.start("greet", name=name))
                    assert await begun.get() == name
            worker.stop()
            await serving
            return [run.refresh().value() for run in runs]

    assert asyncio.run(story()) == ["hello ada", "hello bob", "hello eve"]
