"""What the children of the fault tests of disks do, one function per role: ``python -m ... <role>
<arguments>``.

A role that is asked for a result prints it as JSON in its last line. Writers publish what was acknowledged
in shared memory (see ``disks.Counters``), because only what was counted before a cut counts.
"""

from __future__ import annotations

import fcntl
import json
import os
import random
import shutil
import struct
import subprocess
import sys
import threading
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.faults import damage, disks

import holdfast as hf

if TYPE_CHECKING:
    from collections.abc import Callable

FS_IOC_SHUTDOWN = (2 << 30) | (4 << 16) | (ord("X") << 8) | 125
NO_LOG_FLUSH = 2


def run_of(store: hf.Store, slot: int) -> str:
    """The slot's run: made once, found again."""
    return store.create_run(agent="slots", input=slot, key=f"slot-{slot}")


def write(folder: str, counters: str, first: str, slots: str, seed: str) -> None:
    """Appends numbered records under barriers from several threads, until it is stopped or fails.

    One byte goes to standard output per acknowledged append, so that the parent can wait without a clock.
    """
    published = disks.Counters(Path(counters))
    store = hf.open(folder)

    def fill(slot: int) -> None:
        chance = random.Random(f"{seed}-{slot}")
        run = run_of(store, slot)
        done, _ = disks.kept(store, slot)
        for number in count(done + 1):
            body: dict[str, Any] = {"content": "x" * chance.choice([10, 300, 20_000]), "data": {"n": number}}
            blobs = None
            if chance.random() < 0.05:
                blobs = {"content": store.put_blob(chance.randbytes(2000))}
                del body["content"]
            for _ in range(
                chance.choice([0, 1, 6])
            ):  # committed, and made durable by the barrier that follows
                store.append(run, "note.logged", {"text": "between"})
            store.append(run, "x.test.n", body, blobs=blobs, barrier=True)
            published.put(slot, number)
            os.write(1, b".")

    def filling(slot: int) -> None:
        try:
            fill(slot)
        except (hf.HoldfastError, BrokenPipeError) as error:
            print(f"slot {slot} ended: {error}", file=sys.stderr, flush=True)

    threads = [threading.Thread(target=filling, args=(int(first) + n,)) for n in range(int(slots))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    os._exit(3)  # the disk is gone: closing would only say so again


def script(folder: str, counters: str) -> None:
    """A short fixed run with every kind of sync: creation, blobs, barriers, work, erasure, closing."""
    published = disks.Counters(Path(counters))
    with hf.open(folder) as store:
        run = run_of(store, 0)
        for number in range(1, 6):
            blobs = {"content": store.put_blob(b"blob " * 300)} if number == 3 else None
            body = {"data": {"n": number}} if blobs else {"content": "x" * 300, "data": {"n": number}}
            store.append(run, "x.test.n", body, blobs=blobs, barrier=True)
            published.put(0, number)
        claim = store.claim(worker="w1")
        assert claim is not None
        store.patch(claim, {"done": True}, expected_version=claim.state_version)
        store.finish(claim, result={"ok": True})
        published.put(1, 1)
    published.put(2, 1)
    with hf.open(folder) as store:
        run = run_of(store, 0)
        store.append(run, "note.logged", {"text": "after the end"}, barrier=True)
        published.put(3, 1)


class Loop:
    """A filesystem in a file, mounted through a loop device that goes with the mount."""

    def __init__(self, folder: Path, kind: str) -> None:
        self.image, self.folder = folder / f"{kind}.img", folder / "mounted"
        self.folder.mkdir()
        with self.image.open("wb") as file:
            file.truncate({"xfs": 320}.get(kind, 96) << 20)
        subprocess.run([f"mkfs.{kind}", "-q", str(self.image)], check=True, capture_output=True)
        self.mount()

    def mount(self) -> None:
        subprocess.run(["mount", "-o", "loop", str(self.image), str(self.folder)], check=True)

    def unmount(self) -> None:
        subprocess.run(["umount", str(self.folder)], check=True)

    def cut(self) -> None:
        """Nothing that is not on the disk will ever get there."""
        descriptor = os.open(self.folder, os.O_RDONLY)
        fcntl.ioctl(descriptor, FS_IOC_SHUTDOWN, struct.pack("I", NO_LOG_FLUSH))
        os.close(descriptor)


def cycle(loop: Loop, counters: disks.Counters, paths: dict[str, str], chance: random.Random) -> list[int]:
    """Two writing processes, a power cut after some acknowledgements, and the disk as it is after it."""
    store, environment = loop.folder / "store", dict(os.environ)
    environment |= {"PYTHONPATH": paths["writer"], "HOLDFAST_MUTANT": paths["mutant"]}
    for slot in range(disks.SLOTS):
        counters.put(slot, 0)
    writers = [
        subprocess.Popen(
            disks.role("write", store, paths["counters"], first, 2, chance.random()),
            env=environment,
            stdout=subprocess.PIPE,
        )
        for first in (0, 2)
    ]
    waiting = chance.randint(1, 400)
    assert writers[0].stdout is not None
    while waiting > 0:
        told = os.read(writers[0].stdout.fileno(), waiting)
        assert told, "the writer ended before the cut"
        waiting -= len(told)
    acknowledged = counters.all()
    loop.cut()
    for writer in writers:
        writer.kill()
        writer.communicate()
    loop.unmount()
    loop.mount()
    return acknowledged


def power(folder: str, kind: str, cycles: str, seconds: str, seed: str, writer: str, mutant: str) -> None:
    """Cuts the power again and again; tells how much was acknowledged and how much of it is gone."""
    chance, work, clock = random.Random(seed), Path(folder), os.times
    paths = {"writer": writer, "mutant": mutant, "counters": str(work / "counters")}
    counters, loop = disks.Counters(work / "counters"), Loop(work, kind)
    told: dict[str, Any] = {"acknowledged": 0, "cycles": 0, "lost": 0, "losing": 0, "wrong": []}
    before, began = [0] * disks.SLOTS, clock().elapsed
    while told["cycles"] < int(cycles) or clock().elapsed - began < float(seconds):
        acknowledged = cycle(loop, counters, paths, chance)
        try:
            found, wrong = disks.survivors(loop.folder / "store")
        except hf.HoldfastError as error:
            found, wrong = after_damage(loop.folder / "store"), [f"cannot be opened: {error}"]
        lost = sum(max(0, due - is_there) for due, is_there in zip(acknowledged, found, strict=True))
        told["acknowledged"] += sum(max(0, due - was) for due, was in zip(acknowledged, before, strict=True))
        told["lost"] += lost
        told["losing"] += lost > 0
        told["cycles"] += 1
        told["wrong"] += [f"cycle {told['cycles']}: {what}" for what in wrong]
        before = found
        used = shutil.disk_usage(loop.folder)
        # From nothing again: a store that lost records need not go on, and a full disk would end the writers.
        if wrong or lost or used.free < used.total // 2:
            shutil.rmtree(loop.folder / "store", ignore_errors=True)
            before = [0] * disks.SLOTS
    loop.unmount()
    print(json.dumps(told))


def survivors(store: str) -> None:
    """What is left in each slot of a store, and what is wrong with it."""
    try:
        found, wrong = disks.survivors(Path(store))
    except hf.HoldfastError as error:
        found, wrong = after_damage(Path(store)), [f"cannot be opened: {error}"]
    print(json.dumps([found, wrong]))


def after_damage(store: Path) -> list[int]:
    """What a reader still finds in a store that does not open."""
    try:
        return disks.survivors(store, read_only=True)[0]
    except hf.HoldfastError:
        return [0] * disks.SLOTS


def failing(folder: str, counters: str) -> None:
    """Works until something fails, then tries whether the handle takes anything more; tells all codes."""
    published = disks.Counters(Path(counters))
    told: dict[str, Any] = {"code": None, "later": {}, "reads": None}
    store = run = None
    try:
        store = hf.open(folder)
        run = run_of(store, 0)
        for number in range(1, 13):
            body = {"content": "c" * 3000, "data": {"n": number}}
            store.append(run, "x.test.n", body, barrier=True)
            published.put(0, number)
    except hf.HoldfastError as error:
        told["code"] = error.code
    if told["code"] is not None and store is not None and run is not None:
        told["later"] = {
            "append": disks.refusal(store.append, run, "note.logged", {"text": "on"}),
            "barrier": disks.refusal(store.barrier),
            "claim": disks.refusal(store.claim, worker="w"),
            "create": disks.refusal(store.create_run, agent="b"),
            "open": disks.refusal(hf.open, folder),
        }
        told["reads"] = disks.refusal(lambda: len(list(store.read(run))))
    print(json.dumps(told), flush=True)
    if store is not None:
        store.close()


def insist(folder: str) -> None:
    """Appends until six in a row went through; tells what became of each."""
    codes: list[str] = []
    number = 1
    with hf.open(folder) as store:
        run = run_of(store, 0)
        while codes[-6:] != ["accepted"] * 6 and len(codes) < 50:
            code = disks.refusal(
                store.append, run, "x.test.n", {"content": "c", "data": {"n": number}}, barrier=True
            )
            codes.append(code.partition(":")[0])
            number += codes[-1] == "accepted"
    print(json.dumps(codes))


def small_and_die(folder: str) -> None:
    """Makes the store of the damage tests and dies before it is closed, so that its log is left."""
    damage.small_store(Path(folder), die=True)


ROLES: dict[str, Callable[..., None]] = {
    "failing": failing,
    "insist": insist,
    "power": power,
    "script": script,
    "small_and_die": small_and_die,
    "survivors": survivors,
    "write": write,
}

if __name__ == "__main__":
    ROLES[sys.argv[1]](*sys.argv[2:])
