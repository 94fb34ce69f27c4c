"""A sandbox around ours, as one of a third party would be, and harnesses of ours."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.conformance.sandboxes import BODIES
from holdfast.sandbox import Bubblewrap, Subprocess

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Sequence

    from holdfast.sandbox import Done, Job, Limits, Sandbox

PATH = [BODIES.parent]


class Passing:
    """Passes everything on, so it must keep every clause; the wrong ones break one thing each."""

    tier = "passing"

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.inner: Sandbox = Subprocess(limits, PATH)

    def enforces(self) -> frozenset[str]:
        return self.inner.enforces()

    def check(self) -> None:
        self.inner.check()

    def run(self, job: Job, cancelled: threading.Event | None = None) -> Done:
        return self.inner.run(job, cancelled)

    def end(self) -> None:
        """Ends what it has left alive."""


class Around:
    """A harness of a sandbox that needs to know its limits only: it keeps no file away."""

    bodies = BODIES.stem

    def __init__(self, make: Callable[[Limits], Passing]) -> None:
        self.make = make
        self.made: list[Passing] = []

    def open(self, limits: Limits, *, readable: Sequence[str] = (), writable: Sequence[str] = ()) -> Sandbox:
        del readable, writable
        self.made.append(self.make(limits))
        return self.made[-1]

    def destroy(self) -> None:
        for sandbox in self.made:
            sandbox.end()
        self.made.clear()


class InAProcess:
    """:class:`holdfast.sandbox.Subprocess`, with the bodies as it finds them by itself."""

    def open(self, limits: Limits, *, readable: Sequence[str] = (), writable: Sequence[str] = ()) -> Sandbox:
        del readable, writable  # it keeps no file away
        return Subprocess(limits)

    def destroy(self) -> None:
        pass


class InNamespaces:
    """:class:`holdfast.sandbox.Bubblewrap`."""

    bodies = BODIES.stem

    def open(self, limits: Limits, *, readable: Sequence[str] = (), writable: Sequence[str] = ()) -> Sandbox:
        return Bubblewrap(limits, PATH, readable=readable, writable=writable)

    def destroy(self) -> None:
        pass
