"""What the children of test_full.py do on a small disk of their own, in a mount namespace of their own.

Each prints what it saw as JSON; the test says what that must be.
"""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.faults import disks

import holdfast as hf

if TYPE_CHECKING:
    from collections.abc import Callable

MIB = 1 << 20


def mount(folder: Path, megabytes: int) -> None:
    options = f"size={megabytes}m"
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "none", str(folder)], check=True)


class Filler:
    """A file that takes all the room that there is."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "filler"

    def fill(self) -> None:
        with self.path.open("ab", buffering=0) as file:
            for size in (MIB, 4096):
                try:
                    while True:
                        file.write(bytes(size))
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise

    def free(self) -> None:
        self.path.unlink()


def until_full(store: hf.Store, run: str) -> tuple[str, int]:
    """Appends until it is refused; the code, and how many went through."""
    for number in range(100_000):
        code = disks.refusal(
            store.append, run, "note.logged", {"text": f"{number}" + "x" * 500}, barrier=True
        )
        if not code.startswith("accepted"):
            return code, number
    return "never full", 100_000


def outcomes(folder: str) -> None:
    """A full disk refuses ordinary work, and has room for the outcomes of work that was begun."""
    root = Path(folder)
    mount(root, 8)
    filler, place = Filler(root), root / "store"
    with hf.open(place) as store:
        runs = [store.create_run(agent="a", input=n, state={"n": n}) for n in range(4)]
        claims = {claim.run: claim for claim in (store.claim(worker=f"w{n}") for n in range(3)) if claim}
        taken = list(claims.values())
        other = next(run for run in runs if run not in claims)
        filler.fill()
        told: dict[str, Any] = {}
        told["append"], went = until_full(store, other)
        told["create_run"] = disks.refusal(store.create_run, agent="b", input="x" * 500)
        told["put_blob"] = disks.refusal(
            store.put_blob, b"".join(bytes([n % 251]) * 7 for n in range(90_000))
        )
        told["left_over"] = sorted(str(path.name) for path in (place / "blobs").rglob("*") if path.is_file())
        told["read"] = len(list(store.read(other))) == 2 + went
        told["verify"] = [str(problem) for problem in store.verify().problems]
        told["patch"] = disks.refusal(
            store.patch, taken[0], {"n": 9}, expected_version=taken[0].state_version
        )
        told["finish"] = disks.refusal(store.finish, taken[1], result={"done": 1})
        told["fail"] = disks.refusal(store.fail, taken[2], "no room", retryable=False)
        told["verify_after_outcomes"] = [str(problem) for problem in store.verify().problems]
        told["statuses"] = sorted(row["status"] for row in store.sql("SELECT status FROM runs"))
        filler.free()
        told["append_again"] = disks.refusal(
            store.append, other, "note.logged", {"text": "room"}, barrier=True
        )
        told["blob_again"] = disks.refusal(store.put_blob, b"b" * 600_000)[:8]
        told["finish_again"] = disks.refusal(store.finish, taken[0], result={"done": 2})
        told["poisoned"] = (place / "POISONED").exists()
    with hf.open(place) as store:
        told["verify_reopened"] = [str(problem) for problem in store.verify().problems]
        told["reserve_again"] = (place / "holdfast.reserve").stat().st_size
    print(json.dumps(told))


def reserve(folder: str) -> None:
    """Ordinary work that goes on asking does not get what is kept for outcomes."""
    root = Path(folder)
    mount(root, 8)
    filler, place = Filler(root), root / "store"
    with hf.open(place) as store:
        for n in range(6):
            store.create_run(agent="a", input=n, state={"n": n})
        claims = [claim for claim in (store.claim(worker=f"w{n}") for n in range(5)) if claim]
        (row,) = store.sql("SELECT id FROM runs WHERE status = 'pending'")
        filler.fill()
        told: dict[str, Any] = {"rounds": []}
        for claim in claims:
            code, went = until_full(store, row["id"])
            finished = disks.refusal(store.finish, claim, result={"done": True})
            told["rounds"].append([code, went, finished])
        told["verify"] = [str(problem) for problem in store.verify().problems]
    print(json.dumps(told))


def opening(folder: str) -> None:
    """Stores on a disk that is full before they are made, or before they are opened."""
    root = Path(folder)
    told: dict[str, Any] = {}
    mount(root, 6)
    filler = Filler(root)
    with hf.open(root / "old") as store:
        run = store.create_run(agent="a", input=1)
        store.append(run, "note.logged", {"text": "before"}, barrier=True)
    filler.fill()
    told["make"] = disks.refusal(hf.open, root / "new")
    told["open"] = disks.refusal(hf.open, root / "old")
    told["read"] = disks.refusal(read_all, root / "old", run)
    filler.free()
    told["make_again"] = disks.refusal(hf.open, root / "new")[:8]
    told["open_again"] = disks.refusal(hf.open, root / "old")[:8]
    told["read_again"] = disks.refusal(read_all, root / "old", run)
    print(json.dumps(told))


def read_all(folder: Path, run: str) -> int:
    with hf.open(folder, read_only=True) as store:
        assert store.verify().ok
        return len(list(store.read(run)))


def write_back(folder: str) -> None:
    """The disk is full when the log is written back: what was committed is in the log all the same."""
    root, text = Path(folder), "x" * 20_000
    mount(root, 32)
    filler, place = Filler(root), root / "store"
    told: dict[str, Any] = {}
    with hf.open(place) as store:
        run = store.create_run(agent="a", input=1)
        for _ in range(195):  # almost what is written back at once
            store.append(run, "note.logged", {"text": text})
        filler.fill()
        os.truncate(
            filler.path, filler.path.stat().st_size - 700_000
        )  # room in the log, none in the database
        codes = [disks.refusal(store.append, run, "note.logged", {"text": text}) for _ in range(40)]
        told["refused"] = sorted({code for code in codes if not code.startswith("accepted")})
        told["went"] = sum(code.startswith("accepted") for code in codes) > 5
        told["poisoned"] = (place / "POISONED").exists()
        filler.free()
        told["append_again"] = disks.refusal(
            store.append, run, "note.logged", {"text": "room"}, barrier=True
        )[:8]
        told["verify"] = [str(problem) for problem in store.verify().problems]
    print(json.dumps(told))


def backups(folder: str) -> None:
    """A backup and a restore that do not fit leave nothing behind."""
    root = Path(folder)
    told: dict[str, Any] = {}
    mount(root, 8)
    with hf.open(root / "store") as store:
        run = store.create_run(agent="a", input=1)
        for _ in range(3):
            blob = store.put_blob(os.urandom(480_000))  # it does not compress
            store.append(run, "x.test.n", {"data": {}}, blobs={"content": blob})
        filler = Filler(root)
        store.backup(root / "kept")
        filler.fill()
        told["backup"] = disks.refusal(store.backup, root / "backup")
        told["restore"] = disks.refusal(hf.restore, root / "kept", root / "restored")
        told["left_over"] = sorted(path.name for path in root.iterdir())
        filler.free()
        told["append"] = disks.refusal(store.append, run, "note.logged", {"text": "on"}, barrier=True)
        told["verify"] = [str(problem) for problem in store.verify().problems]
        told["backup_again"] = disks.refusal(store.backup, root / "backup")[:8]
    told["restore_again"] = disks.refusal(hf.restore, root / "backup", root / "restored")[:8]
    print(json.dumps(told))


ROLES: dict[str, Callable[[str], None]] = {
    "backups": backups,
    "opening": opening,
    "outcomes": outcomes,
    "reserve": reserve,
    "write_back": write_back,
}

if __name__ == "__main__":
    ROLES[sys.argv[1]](sys.argv[2])
