"""Clauses about what a body gets: a clean beginning, and no more than its sandbox says."""

from __future__ import annotations

import os
import socket
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.conformance.sandboxes_clauses import MIB, Chapter, enforced, kept_out, returned
from holdfast.conformance.suite import expect, same, short
from holdfast.sandbox import Limits

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.conformance.sandboxes_clauses import Place

GUARDING = Chapter()
clause = GUARDING.clause
PLANTED = "HOLDFAST_CONFORMANCE_PLANTED"


# A clean beginning.


@clause("clean.environment")
def clean_environment(place: Place) -> None:
    """A body has no environment variable of the process that asked for it."""
    sandbox = place.open()
    os.environ[PLANTED] = "planted"
    try:
        told = _surroundings(place.ran(sandbox, "surroundings").value)
    finally:
        del os.environ[PLANTED]
    expect(PLANTED not in told["environment"], "a body has a variable of the process that asked for it")


@clause("clean.descriptors")
def clean_descriptors(place: Place) -> None:
    """A body has no descriptor of that process, even if it could be inherited."""
    sandbox = place.open()
    with tempfile.TemporaryFile() as kept, socket.create_server(("127.0.0.1", 0)) as server:
        ours = []
        for line in (kept, server):
            os.set_inheritable(line.fileno(), True)
            found = os.fstat(line.fileno())
            ours.append([found.st_dev, found.st_ino])
        told = _surroundings(place.ran(sandbox, "surroundings").value)
    expect(not any(line in told["lines"] for line in ours), "a body has a file or socket of that process")


@clause("clean.folder")
def clean_folder(place: Place) -> None:
    """A body begins in an empty folder, whatever the one before has left in its own."""
    sandbox = place.open()
    for _ in range(2):
        returned(place.ran(sandbox, "litter"), [], "the files that a body found where it began")


def _surroundings(told: Any) -> dict[str, Any]:  # noqa: ANN401 (what a body says)
    expect(isinstance(told, dict), f"a body cannot say what it has: {short(told)}")
    return dict(told)


# What it says that it enforces.


@clause("enforces.time")
def enforces_time(place: Place) -> None:
    """If it enforces time, a body that ignores every signal is ended at its timeout."""
    sandbox = place.open()
    enforced(sandbox, "time")
    same(
        place.ran(sandbox, "stay", timeout=1.0, ignore=True).end, "timed_out", "the end of a body that stays"
    )


@clause("enforces.cpu")
def enforces_cpu(place: Place) -> None:
    """If it enforces cpu, a body gets its seconds of processor time and cannot have more."""
    sandbox = place.open(Limits(cpu_seconds=1))
    enforced(sandbox, "cpu")
    kept_out(place.ran(sandbox, "burn", seconds=4.0, timeout=30.0), 4.0, "a body had more processor time")
    more = place.ran(sandbox, "burn", seconds=2.4, limits=Limits(cpu_seconds=9))
    returned(more, 2.4, "a body whose job gives it more processor time")


@clause("enforces.memory")
def enforces_memory(place: Place) -> None:
    """If it enforces memory, a body gets its bytes and cannot have more."""
    sandbox = place.open(Limits(memory_bytes=400 * MIB))
    enforced(sandbox, "memory")
    kept_out(place.ran(sandbox, "allocate", mebibytes=512), 512 * MIB, "a body had more memory")
    more = place.ran(sandbox, "allocate", mebibytes=512, limits=Limits(memory_bytes=1024 * MIB))
    returned(more, 512 * MIB, "a body whose job gives it more memory")


@clause("enforces.processes")
def enforces_processes(place: Place) -> None:
    """If it enforces processes, a body can start as many as it is given and no more."""
    sandbox = place.open()
    enforced(sandbox, "processes")
    for given in (0, 9):
        made = place.ran(sandbox, "fork_many", count=40, limits=Limits(processes=given)).value
        expect(isinstance(made, int) and made <= given, f"of {given} processes a body started {made}")


@clause("enforces.filesystem")
def enforces_filesystem(place: Place) -> None:
    """If it enforces filesystem, a body reads and writes what it is given and nothing beside it."""
    seen, hidden = place.folder(), place.folder()
    for folder in (seen, hidden):
        Path(folder, "file").write_text("kept")
        Path(folder, "file").chmod(0o666)
    sandbox = place.open(readable=[seen])
    enforced(sandbox, "filesystem")
    kept_out(place.ran(sandbox, "read", path=f"{hidden}/file"), "kept", "a body read a hidden file")
    for path in (f"{hidden}/file", f"{hidden}/new", f"{seen}/file", f"{seen}/new"):
        place.ran(sandbox, "write", path=path)
    for folder in (seen, hidden):
        files = {path.name: path.read_text() for path in Path(folder).iterdir()}
        same(files, {"file": "kept"}, "what is in a folder that a body was not to write to")
    returned(place.ran(sandbox, "read", path=f"{seen}/file"), "kept", "a file that a body was given")


@clause("enforces.network")
def enforces_network(place: Place) -> None:
    """If it enforces network, a body reaches no socket of this machine."""
    sandbox = place.open()
    enforced(sandbox, "network")
    with _listening() as addresses:
        for family, address in addresses:
            found = place.ran(sandbox, "connect", family=family, address=address)
            kept_out(found, "connected", "a body reached a socket")


@contextmanager
def _listening() -> Iterator[list[tuple[int, object]]]:
    """Sockets that anybody on this machine reaches: of TCP, and of a name that is no file."""
    name = f"\0holdfast-conformance-{os.getpid()}"
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket(socket.AF_UNIX) as abstract:
        abstract.bind(name)
        abstract.listen()
        yield [(int(socket.AF_INET), list(server.getsockname())), (int(socket.AF_UNIX), name)]
