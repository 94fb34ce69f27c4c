"""A body in a process of its own: how one is started, listened to and ended, and the tier ``subprocess``.

``Spawned`` is what both tiers share; ``bubblewrap.py`` has the other one. The body gets a fresh interpreter,
JSON, a clean environment, an empty folder, no descriptor and no capability of ours. Whatever happens, nothing
that descends from it is alive when ``run`` returns.

The parent believes the supervisor (``child.py``) about how the process ended, the body about its result, and
neither about the beginning: the one byte that says so is in the kernel's hands before the body is called.
"""

from __future__ import annotations

import io
import json
import math
import os
import secrets
import select
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.sandbox import child
from holdfast.sandbox.base import Done, Job, Limits, SandboxError, failed, read

if TYPE_CHECKING:
    import threading
    from collections.abc import Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from holdfast.sandbox.base import End

GRACE = 2.0
"""Seconds that a supervisor has to kill and to report before the parent does it."""
GLANCE = 0.02
"""Seconds between two looks at an event, which cannot wake anybody who waits for a pipe."""
DEFAULTS = Limits()
ENVIRONMENT = {"LANG": "C.UTF-8", "PATH": "/usr/local/bin:/usr/bin:/bin"}
CHILD = str(Path(child.__file__).resolve())
READ = select.POLLIN


class Child(ExitStack):
    """The supervisor, seen from the parent. On the way out everything is dead."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], room: str) -> None:
        super().__init__()
        self.heard = bytearray()
        try:
            self._start(command, environment, room)
        except BaseException:
            self.close()
            raise

    def _start(self, command: Sequence[str], environment: Mapping[str, str], room: str) -> None:
        asked, self.control = self._pipe()
        self.begin, begun = self._pipe()
        self.report, reported = self._pipe()
        self.errors = self.enter_context(io.FileIO(os.memfd_create("errors"), "r+"))
        lines = (asked, begun, reported)
        numbers = [line.fileno() for line in lines]
        self.process = subprocess.Popen(  # noqa: S603 (our interpreter, or bubblewrap around it)
            [*command, sys.executable, "-I", "-B", CHILD, *map(str, numbers)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=self.errors,
            cwd=room,
            env=dict(environment),
            pass_fds=numbers,
            start_new_session=True,
            umask=0o077,
        )
        self.callback(self.end)
        self.exited = self.enter_context(io.FileIO(os.pidfd_open(self.process.pid)))
        for line in lines:
            line.close()

    def _pipe(self) -> tuple[io.FileIO, io.FileIO]:
        reads, writes = os.pipe()
        ends = io.FileIO(reads), io.FileIO(writes, "w")
        for end in ends:
            self.enter_context(end)
        return ends

    def listen(self, asked: bytes, deadline: float, cancelled: threading.Event | None) -> End:
        """Asks, and hears the report; what the end was if there is none."""
        for line in (self.control, self.begin, self.report):
            os.set_blocking(line.fileno(), False)
        poll = select.poll()
        poll.register(self.exited, READ)
        poll.register(self.report, READ)
        poll.register(self.control, select.POLLOUT)
        until, glance = deadline + GRACE, math.inf if cancelled is None else GLANCE
        while (left := until - time.monotonic()) > 0:
            if cancelled is not None and cancelled.is_set() and not self.control.closed:
                with suppress(KeyError):
                    poll.unregister(self.control)
                with suppress(OSError):
                    self.control.write(b"\n")  # a forked copy of this process would keep it from ending
                self.control.close()
                until = min(until, time.monotonic() + GRACE)
            ready = {line for line, _ in poll.poll(min(left, glance, 3600.0) * 1000)}
            if not self.control.closed and self.control.fileno() in ready:
                asked = self._ask(asked)
                if not asked:
                    poll.unregister(self.control)
            if self.report.fileno() in ready and not self._hear():
                poll.unregister(self.report)
            if self.exited.fileno() in ready:
                self._hear()
                return "killed"
        return "killed" if self.control.closed else "timed_out"

    def _ask(self, asked: bytes) -> bytes:
        try:
            return asked[self.control.write(asked) or 0 :]
        except BrokenPipeError:
            return b""  # it has ended before it could be told

    def _hear(self) -> bool:
        while data := self.report.read(1 << 16):
            self.heard += data
        return data is None

    def said(self) -> str:
        """What the supervisor, or bubblewrap, complained about."""
        self.errors.seek(0)
        return self.errors.read(child.MESSAGE_MAX).decode("utf-8", "replace").strip()

    def end(self) -> None:
        """Has everything die, the supervisor last: it keeps its orphans together."""
        if self.process.returncode is not None:
            return
        pid = self.process.pid
        with suppress(ProcessLookupError, ChildProcessError):  # its group is empty; or somebody buried it
            while os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is None:
                for each in _living(pid) or [pid]:
                    with suppress(ProcessLookupError):
                        os.kill(each, signal.SIGKILL)
            os.killpg(pid, signal.SIGKILL)  # it is not buried yet, so its number is nobody else's
        self.process.wait()


def _living(root: int) -> list[int]:
    """The processes that descend from one, but for zombies."""
    found, living = [root], []
    for pid in found:  # grows on the way
        with suppress(OSError):  # it may be gone at any moment
            for listed in Path(f"/proc/{pid}/task").glob("*/children"):
                found += map(int, listed.read_bytes().split())
            if Path(f"/proc/{pid}/stat").read_bytes().rpartition(b") ")[2][:1] not in b"ZX":
                living.append(pid)
    return [pid for pid in living if pid != root]


class Spawned:
    """What the tiers share. Every ``run`` stands alone; any thread may call it."""

    tier = ""
    guards = frozenset(("cpu", "memory", "time"))
    clears = False
    """Whether the body's folder has to be removed afterwards."""

    def __init__(
        self,
        limits: Limits = DEFAULTS,
        path: Sequence[str | os.PathLike[str]] = (),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.limits = limits
        self.path = tuple(str(Path(entry).absolute()) for entry in path)
        self.environment = ENVIRONMENT | dict(environment or {})
        self._probes: dict[int, Done] = {}

    def enforces(self) -> frozenset[str]:
        """What it really enforces here and now; nothing where it does not work.

        Limits hold for each process. ``processes`` is tried out, because root is exempt from that limit.
        """
        probe = self._probe()
        if not probe.started:
            return frozenset()
        limited = probe.error is not None and probe.error["type"] == "BlockingIOError"
        return self.guards | (frozenset(("processes",)) if limited else frozenset())

    def check(self) -> None:
        """Whether it works here, tried out once.

        Raises:
            SandboxError: ``sandbox_unavailable``.
        """
        probe = self._probe()
        if not probe.started:
            why = probe.error["message"] if probe.error else ""
            raise self._unavailable(f"the sandbox {self.tier} does not work here: {why}")

    def _probe(self) -> Done:
        """A body that forks, where no process is allowed."""
        user = os.geteuid()
        if user not in self._probes:
            limits = replace(self.limits, processes=0)
            self._probes[user] = self.run(Job("os:fork", {}, limits=limits))
        return self._probes[user]

    def run(self, job: Job, cancelled: threading.Event | None = None) -> Done:
        """Runs a body and waits until it and all that it started are dead."""
        came, token = time.monotonic(), secrets.token_hex(16)
        deadline = came + job.timeout
        with ExitStack() as stack:
            try:
                room = stack.enter_context(self._room())
                asked = self._asked(job, token, deadline, room)
                started = stack.enter_context(Child(self._command(job, room), self.environment, room))
            except (OSError, ValueError, TypeError, RecursionError, SandboxError) as error:
                done = Done("not_started", error=failed(type(error).__name__, str(error), no_effect=True))
            else:
                end = started.listen(asked, deadline, cancelled)
                started.end()
                begun = started.begin.read(1) == b"!"
                done = read(bytes(started.heard), token, begun, started.said(), end)
        return replace(done, elapsed_ms=round((time.monotonic() - came) * 1000))

    def _asked(self, job: Job, token: str, deadline: float, room: str) -> bytes:
        limits = job.limits or self.limits
        if sys.platform != "linux":
            raise OSError("sandboxes are made of what Linux has")
        if not 0 < job.timeout < math.inf:
            raise ValueError("a timeout is a number of seconds above zero")
        if job.target.startswith("__main__:"):
            raise ValueError("the body is in the program itself: put it into a module that can be imported")
        asked = {
            "deadline": deadline,
            "limits": asdict(limits) | {"cpu_seconds": limits.cpu_seconds or math.ceil(job.timeout) + 1},
            "parent": os.getpid(),
            "path": [*self.path, *(str(Path(entry).absolute()) for entry in sys.path)],
            "room": room if self.clears else "",
            "token": token,
        }
        return json.dumps(job.asked() | asked, allow_nan=False).encode() + b"\n"

    def _room(self) -> AbstractContextManager[str]:
        raise NotImplementedError

    def _command(self, job: Job, room: str) -> list[str]:
        raise NotImplementedError

    def _unavailable(self, message: str) -> SandboxError:
        raise NotImplementedError


class Subprocess(Spawned):
    """A process of the same user: limits, and an end that comes.

    It sees the user's files and network, and can signal the user's processes; one that kills its own
    supervisor can leave daemons behind. Against code that means harm, use :class:`Bubblewrap`.
    """

    tier = "subprocess"
    clears = True

    @contextmanager
    def _room(self) -> Iterator[str]:
        room = tempfile.mkdtemp(prefix=f"holdfast-{os.getpid()}-")
        try:
            yield room
        finally:
            with suppress(OSError):  # the supervisor has removed it, if it lived to do so
                child.remove(room)

    def _command(self, job: Job, room: str) -> list[str]:  # noqa: ARG002 (always the same)
        return []

    def _unavailable(self, message: str) -> SandboxError:
        fix = "Holdfast's sandboxes need Linux 5.3 or newer and a Python that can be started again."
        return SandboxError(message, code="sandbox_unavailable", fix=fix)
