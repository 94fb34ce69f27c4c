"""Hearing of new work: where the engine is told by others, a worker need not wait for its next look."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast import _core

WAIT_MS = 1000


class Ear:
    """Sets an event of the loop whenever there may be something new to claim.

    A thread of its own waits in the core. It ends within a second of :meth:`close`, or at once where the
    engine is told nothing; then nothing is lost but time, because a worker looks now and then anyway.
    """

    def __init__(self, core: _core.Store, heard: asyncio.Event) -> None:
        self._core, self._heard = core, heard
        self._loop = asyncio.get_running_loop()
        self._closed = False
        threading.Thread(target=self._listen, name="holdfast-ear", daemon=True).start()

    def close(self) -> None:
        """Nobody wants to hear any more."""
        self._closed = True

    def _listen(self) -> None:
        seen: int | None = 0
        while not self._closed and seen is not None:
            newest = self._core.heard(seen, WAIT_MS)
            if newest != seen and newest is not None and not self._closed:
                with suppress(RuntimeError):  # the loop is over
                    self._loop.call_soon_threadsafe(self._heard.set)
            seen = newest
