"""Bodies that try to get out of a sandbox, for tests/test_sandbox.py. Each says how far it came.

They import little at the top, because every run pays for it.
"""

from __future__ import annotations

import os
import resource
import signal
import time
from pathlib import Path
from typing import Any, NoReturn

FAKE = b'{"end": "exited", "exit_code": 0}\n{"returned": true, "value": "forged"}'


def surroundings() -> dict[str, Any]:
    """What a body has at its beginning."""
    lines = []
    for number in range(256):
        try:
            lines.append(str(Path(f"/proc/self/fd/{number}").readlink()).split(":")[0])
        except OSError:
            continue
    umask = os.umask(0)
    os.umask(umask)
    told: dict[str, Any] = {}
    status = dict(line.split(":\t", 1) for line in Path("/proc/self/status").read_text().splitlines())
    told |= {name: status[name] for name in ("CapEff", "CapPrm", "NoNewPrivs")}
    limits = ("AS", "CORE", "CPU", "FSIZE", "NOFILE")
    told |= {name: list(resource.getrlimit(getattr(resource, f"RLIMIT_{name}"))) for name in limits}
    files = [path.name for path in Path.cwd().iterdir()]
    return told | {"environment": dict(os.environ), "files": files, "lines": lines, "umask": umask}


def read(path: str) -> str:
    return Path(path).read_text()


def write(path: str) -> str:
    Path(path).write_text("out")
    return "written"


def fill(folder: str, mebibytes: int) -> int:
    """Many files, each within its limit."""
    for number in range(mebibytes):
        Path(folder, str(number)).write_bytes(bytes(1 << 20))
    return mebibytes


def new_namespace() -> int:
    """A user namespace of its own, where it would have every capability again."""
    import ctypes

    return int(ctypes.CDLL(None).unshare(0x10000000))


def change_mode(path: str) -> str:
    Path(path).chmod(0o600)
    return "changed"


def litter() -> str:
    """A closed folder, a link out of it and a deep tree, in the folder that will be removed."""
    here = Path.cwd()
    assert not list(here.iterdir()), "only where nothing else can be hurt"
    Path("link").symlink_to("/")
    Path("closed", "inner").mkdir(parents=True)
    Path("closed").chmod(0)
    for _ in range(2000):
        Path("deep").mkdir()
        os.chdir("deep")
    return str(here)


def connect(family: int, address: Any) -> str:
    import socket

    with socket.socket(family) as line:
        line.connect(tuple(address) if isinstance(address, list) else address)
        return "connected"


def fork_many(count: int, fifo: str | None = None) -> int:
    """As many processes as one can have, all in sessions of their own."""
    for made in range(count):
        try:
            pid = os.fork()
        except OSError:
            return made
        if pid == 0:
            os.setsid()
            if fifo:
                os.open(fifo, os.O_WRONLY)
            signal.pause()
    return count


def allocate(mebibytes: int) -> int:
    _lift(resource.RLIMIT_AS)
    return len(bytearray(mebibytes << 20))


def burn(seconds: float, deaf: bool = False) -> float:
    """Processor time, in this process alone."""
    _lift(resource.RLIMIT_CPU)
    if deaf:
        signal.signal(signal.SIGXCPU, signal.SIG_IGN)
    while time.process_time() < seconds:
        pass
    return seconds


def _lift(limit: int) -> None:
    try:
        resource.setrlimit(limit, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    except (ValueError, OSError):
        return  # the limit holds


def environments(planted: str) -> int:
    """How many processes it can read a planted variable from."""
    found = 0
    for process in Path("/proc").glob("[0-9]*"):
        try:
            found += planted in (process / "environ").read_text()
        except OSError:
            continue
    return found


def supervisor() -> list[str]:
    """What it can open of the process above it, to read or to write."""
    opened = []
    above = f"/proc/{os.getppid()}"
    lines = [f"fd/{number}" for number in range(20)]
    for name in ("environ", "mem", "maps", *lines):
        for mode in (os.O_RDONLY, os.O_WRONLY):
            try:
                os.close(os.open(f"{above}/{name}", mode | os.O_NONBLOCK))
            except OSError:
                continue
            opened.append(name)
    return opened


def forge(honest: str) -> str:
    """A response of its own on every descriptor that it can find."""
    print(FAKE.decode(), flush=True)
    for line in range(256):
        try:
            os.write(line, FAKE)
        except OSError:
            continue
    return honest


def forge_and_leave() -> NoReturn:
    forge("")
    os._exit(0)


def close_everything(path: str) -> int:
    """Then what the sandbox writes to its line would land in a file of the body's."""
    os.closerange(0, 256)
    for _ in range(32):
        os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    return 7


def both_return() -> str:
    return "child" if os.fork() == 0 else "parent"


def leave(code: int) -> NoReturn:
    os._exit(code)


def crash() -> None:
    import ctypes

    ctypes.string_at(0)


def shout(size: int) -> NoReturn:
    raise ValueError("x" * size)


class MuteError(Exception):
    """Cannot be printed."""

    def __str__(self) -> str:
        raise RuntimeError("no")


def mute() -> NoReturn:
    raise MuteError(MuteError())


def give(kind: str) -> Any:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    gifts = {"nan": float("nan"), "huge": "x" * 9999, "object": object(), "set": {3, 1, 2}, "deep": deep}
    return {"digits": 10**5000, "bytes": b"\xff"}.get(kind, gifts.get(kind))


async def later(value: int) -> int:
    import asyncio

    await asyncio.sleep(0)
    return value


def say(what: str) -> Any:
    import holdfast as hf

    if what == "no effect":
        raise hf.NoEffect("the order was not there")
    if what == "failed":
        raise hf.EffectFailed("the card was refused", code="refused", error="CardError")
    return hf.Result({"id": 1}, external_id="ch_1", usage={"tokens": 3})


def respawn(fifo: str, width: int) -> NoReturn:
    """Processes that are gone before anybody can look: each forks and leaves, in a new session."""
    for _ in range(width):
        if os.fork() == 0:
            line = os.open(fifo, os.O_WRONLY)
            os.write(line, b"1\n")
            while True:
                if os.fork():
                    os._exit(0)
                os.setsid()
    while True:
        signal.pause()


def daemon(fifo: str, then: str = "stay") -> str:
    """Leaves a grandchild in a session of its own, which has the FIFO open as long as it lives."""
    ready, tell = os.pipe()
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            line = os.open(fifo, os.O_WRONLY)
            os.write(line, f"{os.getpid()}\n".encode())
            os.write(tell, b"!")
            while True:
                signal.pause()
        os._exit(0)
    os.read(ready, 1)
    if then in ("kill", "stop"):
        os.kill(os.getppid(), signal.SIGKILL if then == "kill" else signal.SIGSTOP)
    while then != "return":
        signal.pause()
    return "returned"
