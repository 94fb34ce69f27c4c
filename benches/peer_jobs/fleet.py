"""What a contestant on a server is: one of several programs that begin together, do the job so many times, so
many at once, and say how long each took.

A program is called with an address, how many jobs, how many at once and a name that no other has. It says
``ready`` when it is warm, begins when it reads a line, and prints JSON.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

WARM = 3


def arguments() -> tuple[str, int, int, str]:
    """Address, jobs, how many at once, name."""
    return sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]


async def together(job: Callable[[str], Awaitable[object]]) -> None:
    """Warms up, waits for the others, and times the jobs."""
    _, jobs, most, name = arguments()
    for n in range(WARM):
        await job(f"{name}-warm-{n}")
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    took: list[float] = []
    numbers = iter(range(jobs))

    async def lane() -> None:
        for n in numbers:
            begun = time.perf_counter()
            await job(f"{name}-{n}")
            took.append(time.perf_counter() - begun)

    await asyncio.gather(*(lane() for _ in range(most)))
    print(json.dumps(took), flush=True)
