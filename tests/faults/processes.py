"""Real processes for the fault tests: forked, talked to, stopped and killed.

A zygote is a Python process that has imported ``holdfast`` and opened nothing; it forks the programs of
workers.py, which open handles of their own. That makes a new writer in milliseconds. Every child has a
line to the test (a socket), and a pidfd, so that no signal can reach a stranger and no death is missed.
Nobody sleeps: the tests wait on lines and on deaths.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import holdfast

if TYPE_CHECKING:
    import random
    from types import TracebackType

WORKERS = Path(__file__).with_name("workers.py")
BUILD = str(Path(holdfast.__file__).resolve().parent.parent)
PATIENCE = 60.0  # seconds; the machine is shared, and a hang is told by pytest's timeout at the latest


def environment(build: str | None, mutant: str | None) -> dict[str, str]:
    """The environment of a child: which build, and which rule is broken in it."""
    variables = {name: value for name, value in os.environ.items() if name != "HOLDFAST_MUTANT"}
    variables["PYTHONPATH"] = build or BUILD
    return variables | ({"HOLDFAST_MUTANT": mutant} if mutant else {})


def seconds() -> float | None:
    """How long a long tier may take; None in the short one."""
    told = os.environ.get("HOLDFAST_FAULT_SECONDS")
    return float(told) if told else None


def new_seed() -> int:
    """The seed of this run: given, to repeat one, or new. Every test prints its own."""
    told = os.environ.get("HOLDFAST_FAULT_SEED")
    return int(told) if told else int.from_bytes(os.urandom(4), "big")


def percentile(values: list[float], part: float) -> float:
    """The value that this part of them does not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * part))] if ordered else 0.0


class Child:
    """A forked process: what it said, whether it lives."""

    def __init__(self, pid: int, line: socket.socket) -> None:
        self.pid = pid
        self.line = line
        self.said: list[list[Any]] = []
        self.over = False
        self._rest = b""
        self._pidfd: int | None
        try:
            self._pidfd = os.pidfd_open(pid)
        except ProcessLookupError:
            self._pidfd = None  # it is dead already, and the zygote has buried it

    def fileno(self) -> int:
        """For select: something was said, or the child is gone."""
        return self.line.fileno()

    def hear(self) -> list[list[Any]]:
        """What was said since the last time, without waiting."""
        before = len(self.said)
        while not self.over and select.select([self.line], [], [], 0)[0]:
            try:
                data = self.line.recv(1 << 16)
            except ConnectionResetError:
                data = b""
            self.over = not data
            *whole, self._rest = (self._rest + data).split(b"\n")
            self.said.extend(json.loads(text) for text in whole)
        return self.said[before:]

    def told(self, word: str, *, patience: float = PATIENCE) -> list[Any]:
        """Waits for the next line that begins with a word."""
        deadline = time.monotonic() + patience
        seen = 0
        while True:
            self.hear()
            found = next((line for line in self.said[seen:] if line[0] == word), None)
            if found is not None:
                self.said.remove(found)
                return found
            seen = len(self.said)
            wrong = self.errors()
            assert not wrong, wrong
            assert not self.over, f"the child ended and never said {word!r}: {self.said[-3:]}"
            left = deadline - time.monotonic()
            assert left > 0, f"the child did not say {word!r} in {patience} s: {self.said[-3:]}"
            select.select([self.line], [], [], left)

    def say(self, *words: object) -> None:
        """Tells the child something."""
        self.line.sendall(json.dumps(words).encode() + b"\n")

    def errors(self) -> list[list[Any]]:
        """What went wrong in it."""
        return [line for line in self.said if line[0] == "error"]

    def signal(self, number: signal.Signals) -> None:
        """Sends a signal, if it still lives."""
        if self._pidfd is not None:
            try:
                signal.pidfd_send_signal(self._pidfd, number)
            except ProcessLookupError:
                return

    def ended(self, patience: float = PATIENCE) -> bool:
        """Waits until it is dead (its locks are free then) and hears its last words."""
        deadline = time.monotonic() + patience
        while self._pidfd is not None:
            watched: list[Any] = [self._pidfd] if self.over else [self._pidfd, self.line]
            ready = select.select(watched, [], [], max(0.0, deadline - time.monotonic()))[0]
            self.hear()
            if self._pidfd in ready:
                os.close(self._pidfd)
                self._pidfd = None
            elif time.monotonic() >= deadline:
                return False
        self.hear()
        return True

    def kill(self) -> None:
        """SIGKILL, and waits for the death."""
        self.signal(signal.SIGKILL)
        assert self.ended()
        self.line.close()


def holders(path: Path) -> set[int]:
    """The processes that have a flock on a file."""
    inode = path.stat().st_ino
    fields = [text.split() for text in Path("/proc/locks").read_text().splitlines() if "->" not in text]
    return {int(words[4]) for words in fields if words[1] == "FLOCK" and words[5].endswith(f":{inode}")}


def stop(child: Child) -> None:
    """SIGSTOP, and waits until every thread stands."""
    child.signal(signal.SIGSTOP)
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        tasks = Path(f"/proc/{child.pid}/task").glob("*/stat")
        if all(task.read_text().rpartition(")")[2].split()[0] == "T" for task in tasks):
            return
        select.select([child], [], [], 0)  # gives way
    raise AssertionError(f"the process {child.pid} does not stop")


def caught(child: Child, path: Path, chance: random.Random, tries: int = 3000) -> bool:
    """Stops a process again and again until it stands while it holds a flock."""
    for _ in range(tries):
        stop(child)
        if child.pid in holders(path):
            return True
        child.signal(signal.SIGCONT)
        select.select([child], [], [], chance.uniform(0, 0.002))
        child.hear()
        assert not child.over, child.errors()
    return False


@dataclass
class Zygote:
    """Forks programs of workers.py under a build, with a rule of it broken or not."""

    build: str | None = None
    mutant: str | None = None
    children: list[Child] = field(default_factory=list)

    def __enter__(self) -> Zygote:
        here, there = socket.socketpair()
        command = [sys.executable, str(WORKERS), "zygote", str(there.fileno())]
        self._process = subprocess.Popen(
            command, env=environment(self.build, self.mutant), pass_fds=[there.fileno()]
        )
        there.close()
        self._line = here
        ready = self._line.makefile("r").readline()
        build = Path(self.build or BUILD).resolve()
        assert ready.strip() == str(build / "holdfast"), f"the child has {ready!r}, not the build {build}"
        return self

    def start(self, program: str, *arguments: object) -> Child:
        """A new process that runs a program."""
        ours, its = socket.socketpair()
        order = json.dumps([program, *arguments], default=str).encode() + b"\n"
        socket.send_fds(self._line, [order], [its.fileno()])
        its.close()
        pid = int.from_bytes(self._line.recv(4), "big")
        child = Child(pid, ours)
        self.children.append(child)
        return child

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for child in self.children:
            if child._pidfd is not None:
                child.signal(signal.SIGKILL)
                assert child.ended()
            child.line.close()
        self._line.close()
        self._process.wait(PATIENCE)
