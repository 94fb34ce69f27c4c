"""Bodies that a sandbox is tried with, most of them hostile. Each says how far it came.

They stand alone and import little at the top, because every run pays for it: a sandbox may find this file as
``holdfast.conformance.sandbox_bodies``, or on a path of its own without Holdfast. ``sandbox_tools.py`` has
those that need it.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any, NoReturn

FAKE = b'{"end": "exited", "exit_code": 0}\n{"returned": true, "value": "forged"}'
LINES = 256


def __getattr__(name: str) -> NoReturn:
    if name == "raises_when_found":
        raise ValueError("the module does not like to be looked at")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


# What comes back.


def echo(value: Any) -> Any:  # noqa: ANN401 (any JSON)
    """The value itself."""
    return value


async def later(value: Any) -> Any:  # noqa: ANN401
    """The same, awaited."""
    import asyncio

    await asyncio.sleep(0)
    return value


def give(kind: str) -> Any:  # noqa: ANN401
    """What JSON does not have, or not in this size."""
    if kind == "deep":
        deep: list[Any] = []
        for _ in range(100_000):
            deep = [deep]
        return deep
    gifts = {"nan": float("nan"), "object": object(), "digits": 10**5000, "bytes": b"\xff"}
    return gifts.get(kind, "x" * 100_000)


class MuteError(Exception):
    """Cannot say what it is."""

    def __str__(self) -> str:
        raise RuntimeError("no")


def shout(size: int) -> None:
    """Raises with many words, or with an error that has none."""
    raise ValueError("x" * size) if size else MuteError(MuteError())


# Ends that are no answer.


def forge(then: str) -> str:
    """An answer of its own on every descriptor that it can find."""
    print(FAKE.decode(), flush=True)
    for line in range(LINES):
        try:
            os.write(line, FAKE)
        except OSError:
            continue
    if then == "leave":
        os._exit(0)
    return then


def both_return() -> str:
    """Two processes come back from the body."""
    return "child" if os.fork() == 0 else "parent"


def leave(code: int) -> None:
    """Ends its process without a word."""
    os._exit(code)


def kill(number: int) -> None:
    """Ends its process by a signal."""
    os.kill(os.getpid(), number)


def stay(ignore: bool = True) -> None:
    """Does not end by itself, nor when it is asked to."""
    if ignore:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGALRM, signal.SIGXCPU):
            signal.signal(number, signal.SIG_IGN)
    while True:
        signal.pause()


def daemon(fifo: str, then: str = "stay") -> str:
    """Leaves a grandchild in a session of its own, which has the FIFO open as long as it lives."""
    ready, tells = os.pipe()
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            line = os.open(fifo, os.O_WRONLY)
            os.write(line, b"here\n")
            os.write(tells, b"!")
            stay()
        os._exit(0)
    os.read(ready, 1)
    while then == "stay":
        signal.pause()
    return then


# What it has.


def surroundings() -> dict[str, Any]:
    """What it has at its beginning."""
    lines = []
    for number in range(LINES):
        try:
            found = os.fstat(number)
        except OSError:
            continue
        lines.append([found.st_dev, found.st_ino])
    files = [path.name for path in Path.cwd().iterdir()]
    return {"environment": dict(os.environ), "files": files, "lines": lines}


def litter() -> list[str]:
    """Leaves files where it is; which ones were there already."""
    found = [path.name for path in Path.cwd().iterdir()]
    Path("left").write_text("behind")
    return found


# What it takes.


def read(path: str) -> str:
    """What a file says."""
    return Path(path).read_text()


def write(path: str) -> str:
    """Writes over a file."""
    Path(path).write_text("over")
    return "written"


def connect(family: int, address: Any) -> str:  # noqa: ANN401
    """Reaches a socket."""
    import socket

    with socket.socket(family) as line:
        line.connect(tuple(address) if isinstance(address, list) else address)
        return "connected"


def allocate(mebibytes: int) -> int:
    """Memory."""
    _lift("RLIMIT_AS", "RLIMIT_DATA")
    return len(bytearray(mebibytes << 20))


def burn(seconds: float) -> float:
    """Processor time, in this process alone."""
    _lift("RLIMIT_CPU")
    signal.signal(signal.SIGXCPU, signal.SIG_IGN)
    while time.process_time() < seconds:
        pass
    return seconds


def fork_many(count: int) -> int:
    """As many processes as one can have, all in sessions of their own."""
    _lift("RLIMIT_NPROC")
    for made in range(count):
        try:
            pid = os.fork()
        except OSError:
            return made
        if pid == 0:
            os.setsid()
            stay()
    return count


def _lift(*limits: str) -> None:
    """Takes a limit away, if it can."""
    import resource

    for limit in limits:
        try:
            resource.setrlimit(getattr(resource, limit), (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        except (ValueError, OSError):
            continue  # the limit holds


def searched(text: str) -> list[str]:
    """Where a text stands that ought to stand nowhere: environments, command lines, files around here."""
    found = [f"sys.argv of {os.getpid()}"] if text in "\0".join(sys.argv) else []
    found += [f"the variable {name}" for name, value in os.environ.items() if text in value]
    for process in Path("/proc").glob("[0-9]*"):
        for kind in ("environ", "cmdline"):
            try:
                if text.encode() in (process / kind).read_bytes():
                    found.append(f"{kind} of a process")
            except OSError:
                continue
    for path in Path.cwd().rglob("*"):
        if path.is_file() and text.encode() in path.read_bytes():
            found.append(f"the file {path.name}")
    return found
