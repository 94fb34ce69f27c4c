"""``rt.evidence.aio``: what of the evidence takes its time, for code that runs on an event loop.

Agent code that is run again runs on the caller's loop; files and the store are a thread's work, so that the
loop goes on meanwhile.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

    from holdfast.evidence.bundle import Exported
    from holdfast.evidence.face import Evidence
    from holdfast.evidence.journal import Journal
    from holdfast.evidence.replay import Replay
    from holdfast.evidence.review import Review
    from holdfast.evidence.shadow import Shadow
    from holdfast.evidence.verifying import Verified
    from holdfast.keys import Key
    from holdfast.runtime.runs import Run
    from holdfast.store import Seal


class AsyncEvidence:
    """The twins of :class:`~holdfast.evidence.face.Evidence`, with the same arguments."""

    def __init__(self, evidence: Evidence) -> None:
        self._evidence = evidence

    async def replay(self, run: str | Run, *, pure: bool = False) -> Replay:
        """Runs a run's code again against what was recorded."""
        return await self._evidence._replay(run, pure=pure)

    async def shadow(self, run: str | Run | Journal | Path, **options: Any) -> Shadow:  # noqa: ANN401
        """Runs a run's input through other code or another policy."""
        given = {"agent": None, "policy": None, "pure": False, **options}
        return await self._evidence._shadow(run, **given)

    async def seal(self, key: Key, *, by: str = "holdfast") -> Seal:
        """Signs a head over everything that was committed so far."""
        return await asyncio.to_thread(self._evidence.seal, key, by=by)

    async def export(self, run: str | Run, target: str | Path, **options: Any) -> Exported:  # noqa: ANN401
        """Writes a run's evidence."""
        return await asyncio.to_thread(self._evidence.export, run, target, **options)

    async def verify(self, path: str | Path, **options: Any) -> Verified:  # noqa: ANN401
        """Verifies a bundle."""
        return await asyncio.to_thread(self._evidence.verify, path, **options)

    async def review(self, run: str | Run | Journal | Path, **options: Any) -> Review:  # noqa: ANN401
        """Checks a run."""
        return await asyncio.to_thread(self._evidence.review, run, **options)
