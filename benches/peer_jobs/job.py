"""What every contestant is: a program that does the job so many times, so many at once, and says how long
it took.

The job: start a run, one write tool that returns a receipt, put the receipt into the run's state, finish. A
program is called with a folder, how many jobs and how many at once, and prints JSON.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

WARM = 5
"""Jobs that are done before anything is timed or counted."""


def receipt(order: str, cents: int) -> dict[str, str]:
    """The tool's body: it does nothing, so that what is measured is what is around it."""
    return {"id": f"re_{order}", "cents": str(cents)}


def arguments() -> tuple[Path, int, int]:
    """Folder, jobs, how many at once."""
    return Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])


def done(took: float, jobs: int, late: list[float] | None = None) -> None:
    """Says how it went."""
    ordered = sorted(late or [0.0])
    p99 = ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))] * 1000
    print(json.dumps({"jobs": jobs, "late_ms": p99, "seconds": took}))


def mark() -> None:
    """Where counting begins: a system call that nothing else makes, which a tracer sees."""
    Path("/holdfast-bench-mark").exists()


def one_after_another(job: Callable[[int], object], jobs: int) -> None:
    """Times plain calls."""
    for n in range(WARM):
        job(-1 - n)
    mark()
    begun = time.perf_counter()
    for n in range(jobs):
        job(n)
    took = time.perf_counter() - begun
    mark()
    done(took, jobs)


async def at_once(job: Callable[[int], Awaitable[object]], jobs: int, most: int) -> None:
    """Times coroutines, so many at once, and how late the loop hears of its own timers meanwhile."""
    for n in range(WARM):
        await job(-1 - n)
    late: list[float] = []
    ended = asyncio.Event()

    async def beats() -> None:
        while not ended.is_set():
            due = time.perf_counter() + 0.005
            await asyncio.sleep(0.005)
            late.append(max(0.0, time.perf_counter() - due))

    numbers = iter(range(jobs))

    async def lane() -> None:
        for n in numbers:
            await job(n)

    watch = asyncio.create_task(beats())
    mark()
    begun = time.perf_counter()
    await asyncio.gather(*(lane() for _ in range(most)))
    took = time.perf_counter() - begun
    mark()
    ended.set()
    await watch
    done(took, jobs, late)
