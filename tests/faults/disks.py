"""What the fault tests of disks share: children under a damaged disk, what a power cut leaves behind, what a
store holds, and lines that are printed after the tests.

Every disk that is filled, cut off or damaged is a file or a mount of its own inside the test's folder. Mounts
are made in a mount namespace of a child, so that they vanish with it whatever happens.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import shutil
import struct
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests import closing

import holdfast as hf

if TYPE_CHECKING:
    import random
    from collections.abc import Iterator

    import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
PACKAGE = Path(hf.__file__).resolve().parent.parent
SECONDS = float(os.environ.get("HOLDFAST_FAULT_SECONDS", "0"))
"""The long tier: how long each of the tests may take that go on as long as they are let."""
SLOTS = 16
LIBC = ctypes.CDLL(None, use_errno=True)
SECTOR = 512
# What is written anew by whoever opens the store, and says nothing about its records.
FLEETING = ("holdfast.db-shm", "holdfast.reserve", "processes")
ROLES = "tests.faults.disk_roles"


def tell(request: pytest.FixtureRequest, line: str) -> None:
    """Has a line printed when the tests are over."""
    closing.tell(request, "faults of disks", line)


def environment(*, mutant: str | None = None, package: str | None = None, **more: str) -> dict[str, str]:
    """The environment of a child: the same package as here, or the build with planted faults."""
    path = os.pathsep.join([package or str(PACKAGE), str(ROOT)])
    kept = {name: value for name, value in os.environ.items() if name != "HOLDFAST_MUTANT"}
    chosen = {} if mutant is None else {"HOLDFAST_MUTANT": mutant}
    return {**kept, "PYTHONPATH": path, "PYTHONFAULTHANDLER": "1", **chosen, **more}


def role(name: str, *arguments: object) -> list[str]:
    """The command of a child."""
    return [sys.executable, "-m", ROLES, name, *map(str, arguments)]


def in_namespace(command: list[str]) -> list[str] | None:
    """The command in a mount namespace of its own, as root or as a root of its own user namespace."""
    options = ["-m", "--propagation", "private"]
    for tried in ([*options], ["-Ur", *options]):
        probe = ["unshare", *tried, "mount", "-t", "tmpfs", "none", "/mnt"]
        if (
            shutil.which("unshare")
            and subprocess.run(probe, capture_output=True, check=False).returncode == 0
        ):
            return ["unshare", *tried, *command]
    return None


def answer(done: subprocess.CompletedProcess[str]) -> Any:
    """What a child that must end well said, as JSON in its last line."""
    assert done.returncode == 0, f"rc {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    return json.loads(done.stdout.splitlines()[-1])


class Counters:
    """Numbers that survive the process that writes them: acknowledged appends by slot, in shared memory."""

    def __init__(self, path: Path) -> None:
        if not path.exists():
            path.write_bytes(bytes(8 * SLOTS))
        with path.open("r+b") as file:
            self.memory = mmap.mmap(file.fileno(), 8 * SLOTS)

    def put(self, slot: int, number: int) -> None:
        struct.pack_into("<Q", self.memory, 8 * slot, number)

    def all(self) -> list[int]:
        return list(struct.unpack(f"<{SLOTS}Q", self.memory[:]))


def kept(store: hf.Store, slot: int) -> tuple[int, str | None]:
    """How many numbered notes of a slot there are, and what is wrong with their numbers."""
    found = store.sql("SELECT run FROM keys WHERE scope = 'run' AND key = ?", [f"slot-{slot}"])
    if not found:
        return 0, None
    (row,) = store.sql("SELECT id FROM runs WHERE stream = ?", [found[0]["run"]])
    # As hashed: whether the contents are there too is for verify to say.
    numbers = [int(record.body["data"]["n"]) for record in store.read(row["id"]) if record.kind == "x.test.n"]
    wrong = None if numbers == list(range(1, len(numbers) + 1)) else f"slot {slot} holds {numbers[:20]}..."
    return len(numbers), wrong


def survivors(folder: Path, *, read_only: bool = False) -> tuple[list[int], list[str]]:
    """What is left in each slot, and everything that is wrong with the store."""
    with hf.open(folder, read_only=read_only) as store:
        report = store.verify()
        wrong = [str(problem) for problem in report.problems]
        (frames,) = store.sql("SELECT count(*) AS n, coalesce(max(pos), 0) AS last FROM frames")
        if frames["n"] != frames["last"]:
            wrong.append(f"{frames['n']} frames, the last at {frames['last']}: a hole")
        counts = []
        for slot in range(SLOTS):
            count, strange = kept(store, slot)
            counts.append(count)
            wrong += [strange] if strange else []
        return counts, wrong


def compile_shim(folder: Path) -> Path:
    """Builds the preload library."""
    library = folder / "shim.so"
    source = Path(__file__).with_name("shim.c")
    command = [
        "cc",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-O2",
        "-shared",
        "-fPIC",
        "-o",
        str(library),
        str(source),
    ]
    subprocess.run([*command, "-lpthread"], check=True)
    return library


class Disk:
    """A folder on a disk that keeps only what was synced, for children under the preload library."""

    def __init__(self, folder: Path, library: Path) -> None:
        self.live = folder / "live"
        self.shadow = folder / "shadow"
        self.count = folder / "count"
        self.library = library
        self.left: dict[str, bytes] = {}
        """The log in each image, as it was before anybody opened it."""
        for inner in (self.live, self.shadow / "inodes", self.shadow / "dirs"):
            inner.mkdir(parents=True)

    @property
    def store(self) -> Path:
        return self.live / "store"

    def variables(self, **more: str) -> dict[str, str]:
        paths = {"SHIM_ROOT": str(self.live.resolve()), "SHIM_SHADOW": str(self.shadow)}
        return {"LD_PRELOAD": str(self.library), "SHIM_COUNT": str(self.count), **paths, **more}

    def syncs(self) -> int:
        return int(self.count.read_text()) if self.count.exists() else 0

    def after_cut(self, target: Path, chance: random.Random | None = None) -> None:
        """Builds what a power cut leaves: nothing that was not synced, or, by chance, some of it.

        Without chance, a name that its folder was not synced for is gone although the file was. With it,
        every name and every sector that was not synced is there or not, as it was or torn.
        """
        target.mkdir(parents=True)
        self._folder(self.live, target, chance)
        log = target / "store" / "holdfast.db-wal"
        self.left[target.name] = log.read_bytes() if log.exists() else b""

    def begin_with(self, image: Path) -> None:
        """Begins with what an earlier cut left: all of it is on the disk."""
        shutil.copytree(image, self.live, dirs_exist_ok=True)
        for folder, folders, files in os.walk(self.store):
            at = Path(folder)
            lines = [f"d {_key(at / name)} {name}" for name in folders]
            lines += [f"f {_key(at / name)} {name}" for name in files]
            (self.shadow / "dirs" / _key(at)).write_text("".join(f"{line}\n" for line in lines))
            for name in files:
                shutil.copyfile(at / name, self.shadow / "inodes" / _key(at / name))

    def _folder(self, live: Path, target: Path, chance: random.Random | None) -> None:
        durable = self._listed(live)
        now = {path.name: (path.is_dir(), _key(path)) for path in live.iterdir()}
        for name in sorted(durable.keys() | now.keys()):
            entry = durable.get(name)
            if entry != now.get(name) and chance is not None:
                entry = chance.choice([entry, now.get(name)])
            if entry is None:
                continue
            is_folder, key = entry
            found = live / name
            same = found.exists() and _key(found) == key
            if is_folder:
                (target / name).mkdir(mode=0o700)
                if same:
                    self._folder(found, target / name, chance)
            else:
                content = self._durable(key)
                if chance is not None and same:
                    content = torn(found.read_bytes(), content, chance)
                (target / name).write_bytes(content)

    def _durable(self, key: str) -> bytes:
        path = self.shadow / "inodes" / key
        return path.read_bytes() if path.exists() else b""

    def _listed(self, live: Path) -> dict[str, tuple[bool, str]]:
        if live == self.live:  # the machine had it before
            return {path.name: (path.is_dir(), _key(path)) for path in live.iterdir()}
        path = self.shadow / "dirs" / _key(live)
        lines = path.read_text().splitlines() if path.exists() else []
        entries = (line.split(" ", 2) for line in lines)
        return {name: (kind == "d", key) for kind, key, name in entries}


def _key(path: Path) -> str:
    """A file's inode and birth, as the preload library names it; Python's stat does not tell the birth."""
    told = ctypes.create_string_buffer(256)
    basic_and_birth, no_follow, here = 0xFFF, 0x100, -100
    if LIBC.statx(here, os.fsencode(path), no_follow, basic_and_birth, told) != 0:
        raise FileNotFoundError(path)
    (inode,) = struct.unpack_from("<Q", told, 32)
    seconds, nanoseconds = struct.unpack_from("<qI", told, 80)
    return f"{inode}-{seconds}.{nanoseconds}"


def torn(live: bytes, durable: bytes, chance: random.Random) -> bytes:
    """A file of which each sector that was not synced reached the disk, did not, or did in part."""
    size = chance.choice([len(live), len(durable)])
    keep = chance.choice([0.05, 0.5, 0.95])  # the share of unsynced sectors that arrive
    out = bytearray(durable[:size].ljust(size, b"\0"))
    for at in range(0, size, SECTOR):
        new, old = live[at : at + SECTOR], out[at : at + SECTOR]
        if new == old or not new:
            continue
        arrived = len(new) if chance.random() < keep else 0
        if chance.random() < 0.1:
            arrived = chance.randrange(len(new))
        arrived = min(arrived, size - at)
        out[at : at + arrived] = new[:arrived]
    return bytes(out)


def copy_store(source: Path, target: Path) -> None:
    """Copies the files of a closed store, without what is made anew by whoever opens it."""
    shutil.copytree(source, target, ignore=shutil.ignore_patterns(*FLEETING))
    (target / "processes").mkdir(exist_ok=True)


TABLES = (
    *("streams", "frames", "snapshots", "runs", "steps", "waits", "envelopes", "approvals"),
    *("grants", "keys", "names", "seals", "blob_refs", "meta"),
)


def dump(store: hf.Store) -> dict[str, Any]:
    """Everything that can be read from a store: records, values, folds, rows."""
    streams = [row["id"] for row in store.sql("SELECT id FROM streams ORDER BY key")]
    records = {
        stream: [(r.seq, r.position, r.text.hex(), r.hash, repr(r.value)) for r in store.read(stream)]
        for stream in streams
    }
    rows = {table: [list(row.values()) for row in store.sql(_in_order(table))] for table in TABLES}
    # What a migration was called and when it was applied says nothing about the records.
    rows["migrations"] = [list(row.values()) for row in store.sql("SELECT number, checksum FROM migrations")]
    events = [list(row.values()) for row in store.sql("SELECT * FROM events ORDER BY pos, seq")]
    states = {stream: store.state(stream) for stream in streams}
    whole = {"events": events, "records": records, "rows": rows, "states": states}
    told: dict[str, Any] = json.loads(json.dumps(whole))
    return told


def _in_order(table: str) -> str:
    return f"SELECT * FROM {table} ORDER BY 1, 2"


def differences(before: Any, after: Any, at: str = "") -> Iterator[str]:
    """The places where two dumps differ."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key in sorted(before.keys() | after.keys()):
            yield from differences(before.get(key), after.get(key), f"{at}/{key}")
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for number, pair in enumerate(zip(before, after, strict=True)):
            yield from differences(*pair, f"{at}/{number}")
    elif before != after:
        yield at


def refusal(work: Any, *arguments: object, **options: object) -> str:
    """The code of what a call raises."""
    try:
        result = work(*arguments, **options)
    except hf.HoldfastError as error:
        return error.code
    if isinstance(result, hf.Store):
        result.close()
    return f"accepted: {result!r}"
