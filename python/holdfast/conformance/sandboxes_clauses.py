"""Where the clauses of a sandbox are tried, and what they are written with."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.conformance import suite
from holdfast.conformance.suite import NotApplicable, expect, same, short, within
from holdfast.sandbox import Done, Job, Limits, SandboxError

if TYPE_CHECKING:
    import threading
    from collections.abc import Sequence

    from holdfast.conformance.sandboxes_surface import Harness
    from holdfast.sandbox import Sandbox

MIB = 1 << 20
DEFAULTS = Limits()
GUARDS = frozenset(("network", "filesystem", "cpu", "memory", "processes", "time"))
BODIES, TOOLS = "holdfast.conformance.sandbox_bodies", "holdfast.conformance.sandbox_tools"


class Fifo:
    """Open as long as any process that opened it lives: a death can be heard."""

    def __init__(self, folder: str) -> None:
        self.path = f"{folder}/fifo"
        os.mkfifo(self.path)
        Path(self.path).chmod(0o666)
        self._line = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK)

    def came(self) -> bool:
        """Whether somebody has opened it and said so."""
        try:
            return os.read(self._line, 99) != b""
        except BlockingIOError:
            return False

    def is_held(self) -> bool:
        """Whether anybody has it open still."""
        try:
            return os.read(self._line, 99) != b""
        except BlockingIOError:
            return True

    def close(self) -> None:
        """Lets go of it."""
        os.close(self._line)


class Place:
    """Where one clause is tried: sandboxes, and a folder that some of them may share."""

    def __init__(self, harness: Harness) -> None:
        self._harness = harness
        self._bodies: str = getattr(harness, "bodies", BODIES)
        self._opened = False
        self._folders: list[str] = []
        self._fifos: list[Fifo] = []

    def open(
        self, limits: Limits = DEFAULTS, *, readable: Sequence[str] = (), writable: Sequence[str] = ()
    ) -> Sandbox:
        """A new sandbox that works here; one that does not cannot be tried."""
        if self._opened:
            self._harness.destroy()
        self._opened = True
        made = self._harness.open(limits, readable=readable, writable=writable)
        try:
            made.check()
        except SandboxError as error:
            same(error.code, "sandbox_unavailable", "the code of a sandbox that does not work")
            raise NotApplicable(f"it does not work here: {error}") from None
        return made

    def job(self, body: str, timeout: float = 60.0, limits: Limits | None = None, **arguments: Any) -> Job:  # noqa: ANN401
        """A job for one of the bodies."""
        return Job(f"{self._bodies}:{body}", arguments, timeout=timeout, limits=limits)

    def ran(self, sandbox: Sandbox, body: str, **arguments: Any) -> Done:  # noqa: ANN401
        """What became of one of the bodies."""
        return done(sandbox, self.job(body, **arguments))

    def folder(self) -> str:
        """A new folder."""
        made = tempfile.mkdtemp(prefix="holdfast-conformance-")
        Path(made).chmod(0o777)  # a body may be somebody else
        self._folders.append(made)
        return made

    def fifo(self, folder: str) -> Fifo:
        """A line on which a death can be heard."""
        made = Fifo(folder)
        self._fifos.append(made)
        return made

    def leave(self) -> None:
        """Ends and removes everything."""
        try:
            if self._opened:
                self._harness.destroy()
        finally:
            for fifo in self._fifos:
                fifo.close()
            for folder in self._folders:
                shutil.rmtree(folder)


class Chapter(suite.Chapter["Harness", Place]):
    """Collects the clauses of one module, in order."""

    def __init__(self) -> None:
        super().__init__(Place)


# What clauses say.


def done(sandbox: Sandbox, job: Job, cancelled: threading.Event | None = None) -> Done:
    """What became of a job; a sandbox that hangs is broken."""
    return within(lambda: sandbox.run(job, cancelled), f"the body {job.target.partition(':')[2]}")


def not_begun(found: Done, what: str) -> None:
    """A provable no effect, and why."""
    same((found.end, found.started, found.returned), ("not_started", False, False), what)
    expect(found.error is not None, f"{what}: nobody is told why")
    expect(bool(found.error and found.error["no_effect"]), f"{what}: its error does not say: no effect")


def returned(found: Done, value: object, what: str) -> None:
    """It happened, and this came of it."""
    told = (found.end, found.started, found.returned, found.error)
    same(told, ("exited", True, True, None), f"{what} (it said {short(found.error)})")
    same((type(found.value), found.value), (type(value), value), what)


def unknown(found: Done, what: str) -> None:
    """It began, and nobody knows how far it came."""
    told = (found.started, found.returned, found.error, found.value)
    same(told, (True, False, None, None), what)


def kept_out(found: Done, value: object, what: str) -> None:
    """A hostile body did not come to what it wanted."""
    expect(found.started, f"{what}: the body was not even tried: {short(found.error)}")
    expect(not (found.returned and found.value == value), f"{what}, although it is said to be enforced")


def enforced(sandbox: Sandbox, guard: str) -> None:
    """Only what a sandbox says that it enforces is tried."""
    if guard not in sandbox.enforces():
        raise NotApplicable(f"it does not say that it enforces {guard} here")
