"""Clauses about ends: of bodies that give no answer, of those that do not end, and of what they started."""

from __future__ import annotations

import signal
import threading
import time
from typing import TYPE_CHECKING

from holdfast.conformance.sandboxes_clauses import Chapter, returned, unknown
from holdfast.conformance.suite import expect, same, together

if TYPE_CHECKING:
    from holdfast.conformance.sandboxes_clauses import Fifo, Place
    from holdfast.sandbox import Done

ENDS = Chapter()
clause = ENDS.clause
LATE = 10.0
"""Seconds after its timeout by which a body is dead on the slowest machine."""


@clause("unknown.left")
def unknown_left(place: Place) -> None:
    """A body whose process ends without an answer may have come to anything, whatever its exit code is."""
    sandbox = place.open()
    for code in (0, 3):
        found = place.ran(sandbox, "leave", code=code)
        unknown(found, f"a body that left with {code}")
        same((found.end, found.exit_code), ("exited", code), f"the end of a body that left with {code}")


@clause("unknown.killed")
def unknown_killed(place: Place) -> None:
    """A body that a signal ended may have come to anything, and the signal is told."""
    sandbox = place.open()
    for number in (signal.SIGKILL, signal.SIGSEGV):
        found = place.ran(sandbox, "kill", number=int(number))
        unknown(found, f"a body that got {number.name}")
        same((found.end, found.exit_code), ("killed", -number), f"the end of a body that got {number.name}")


@clause("unknown.forged")
def unknown_forged(place: Place) -> None:
    """What a body writes to any descriptor that it finds is no answer."""
    sandbox = place.open()
    returned(place.ran(sandbox, "forge", then="honest"), "honest", "the answer of a body that forged one")
    unknown(place.ran(sandbox, "forge", then="leave"), "a body that forged an answer and left")


@clause("unknown.forked")
def unknown_forked(place: Place) -> None:
    """Of two processes that come back from one body, the first one's answer counts."""
    returned(place.ran(place.open(), "both_return"), "parent", "the answer of a body that forked")


@clause("end.timeout")
def end_timeout(place: Place) -> None:
    """A body that does not end is ended at its timeout, and may have come to anything."""
    began = time.monotonic()
    found = place.ran(place.open(), "stay", timeout=1.5)
    took = time.monotonic() - began
    unknown(found, "a body that was ended at its timeout")
    same(found.end, "timed_out", "the end of a body at its timeout")
    expect(took < 1.5 + LATE, f"a body with 1.5 seconds of time was ended after {took:.1f}")


@clause("end.descendants")
def end_descendants(place: Place) -> None:
    """When run returns nothing is alive that the body started: not after its answer, not at its timeout."""
    folder = place.folder()
    sandbox, fifo = place.open(writable=[folder]), place.fifo(folder)
    for then in ("return", "stay"):
        found = place.ran(sandbox, "daemon", timeout=3.0, fifo=fifo.path, then=then)
        expect(found.started, "the body was not even tried")
        _dead(fifo, f"a body's daemon (then: {then})")


@clause("end.cancelled")
def end_cancelled(place: Place) -> None:
    """When it is cancelled everything is killed, and the body may have come to anything."""
    folder, off = place.folder(), threading.Event()
    sandbox, fifo = place.open(writable=[folder]), place.fifo(folder)
    job = place.job("daemon", timeout=LATE, fifo=fifo.path)
    over = threading.Event()

    def runs() -> Done | None:
        try:
            return sandbox.run(job, off)
        finally:
            over.set()

    def cancels() -> Done | None:
        came = False
        while not came and not over.wait(0.01):
            came = fifo.came()
        off.set()
        return None

    found = together([runs, cancels], "a body that was cancelled")[0]
    assert found is not None
    unknown(found, "a body that was cancelled")
    same(found.end, "killed", "the end of a body that was cancelled")
    expect(not fifo.is_held(), "a daemon of a body that was cancelled is alive")


@clause("end.again")
def end_again(place: Place) -> None:
    """After whatever a body did the next one is run as if nothing had been."""
    sandbox = place.open()
    place.ran(sandbox, "leave", code=9)
    place.ran(sandbox, "stay", timeout=1.0)
    returned(place.ran(sandbox, "echo", value="well"), "well", "a body after one that was ended")


def _dead(fifo: Fifo, what: str) -> None:
    expect(fifo.came(), f"{what} never came to life")
    expect(not fifo.is_held(), f"{what} is alive after run has returned")
