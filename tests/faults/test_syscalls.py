"""A crash at every system call of a scripted run that matters for what is on the disk.

strace attaches to a process that does everything once, from an empty folder to a store that was closed
and opened again, and kills it at its n-th write, sync, open, rename, lock and so on. Whatever was
acknowledged by then must be there, the store must open, verify, and go on. The short tier takes crash
points of all kinds, chosen by a seed; with HOLDFAST_FAULT_SECONDS it takes all of them.
"""

from __future__ import annotations

import os
import random
import re
import select
import shutil
import subprocess
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from tests.faults.processes import PATIENCE, Child, Zygote, new_seed, seconds
from tests.faults.replays import travelled

import holdfast

if TYPE_CHECKING:
    from pathlib import Path

CALLS = ["pwrite64", "write", "fdatasync", "fsync", "openat", "rename", "ftruncate", "fallocate", "unlink"]
CALLS += ["mkdir", "flock", "fcntl", "close", "mmap", "munmap"]
SHORT = 200


class Trace:
    """strace, attached to a process from now until one of them ends."""

    def __init__(self, child: Child, *options: str) -> None:
        command = ["strace", "-f", "-p", str(child.pid), *options]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE)
        assert self.process.stderr is not None
        told, deadline = b"", time.monotonic() + PATIENCE
        while b"attached" not in told:
            ready = select.select([self.process.stderr], [], [], deadline - time.monotonic())[0]
            part = os.read(self.process.stderr.fileno(), 1000) if ready else b""
            assert part, f"strace cannot attach to a process of ours: {told.decode()}"
            told += part

    def end(self) -> None:
        assert self.process.stderr is not None
        self.process.communicate(timeout=PATIENCE)


@pytest.fixture
def traced() -> None:
    if shutil.which("strace") is None:
        pytest.fail("strace is not installed, and without it no crash point can be tried: apt install strace")


def play(zygote: Zygote, folder: Path, *options: str) -> Child:
    """The script, under strace, to its end or to its death."""
    child = zygote.start("script", folder)
    child.told("ready")
    trace = Trace(child, *options)
    child.say("go")
    assert child.ended()
    trace.end()
    assert not child.errors(), child.errors()
    child.line.close()
    zygote.children.remove(child)
    return child


def count_calls(zygote: Zygote, tmp_path: Path) -> Counter[str]:
    """How often the script makes each call, when nobody disturbs it."""
    log = tmp_path / "calls"
    child = play(zygote, tmp_path / "whole", "-o", str(log), "-e", f"trace={','.join(CALLS)}")
    assert child.said[-1] == ["over"]
    found = re.findall(r"^\d+ +(\w+)\(", log.read_text(), re.MULTILINE)
    return Counter(call for call in found if call in CALLS)


def check(folder: Path, said: list[list[Any]]) -> list[str]:
    """What is wrong with a store after a crash: nothing, if all that was said is there and it goes on."""
    wrong: list[str] = []
    with holdfast.open(folder) as store:
        report = store.verify()
        wrong += [str(problem) for problem in report.problems]
        for word, *rest in said:
            match word:
                case "run":
                    wrong += [] if store.state(rest[0])["agent"] == "job" else [f"no {rest[0]}"]
                case "a":
                    record = next(store.read(rest[0], after=rest[1] - 1), None)
                    text = None if record is None else record.value["text"]
                    wrong += [] if text == rest[2] else [f"{rest} is {text!r}"]
                case "b":
                    record = next(store.read(rest[0], after=rest[1] - 1), None)
                    whole = record is not None and record.value["content"] == b"blob" * 50_000
                    wrong += [] if whole else [f"the blob of {rest} is gone"]
                case "blob":
                    wrong += [] if store.get_blob(rest[0]) == b"blob" * 50_000 else ["another blob"]
                case "claim":
                    fence = store.state(rest[0])["last_fence"]
                    wrong += [] if fence >= rest[1] else [f"the fence {rest[1]} is forgotten: {fence}"]
                case "patch":
                    wrong += [] if store.state(rest[0])["state"] == {"step": 1} else ["the patch is gone"]
                case "end":
                    wrong += [] if store.state(rest[0])["status"] == "completed" else ["the end is gone"]
        # Whatever was left open can be had at once, and finished.
        while (claim := store.claim(worker="heir")) is not None:
            store.finish(claim)
        left = store.sql("SELECT count(*) AS n FROM steps WHERE status NOT IN ('completed')")[0]["n"]
        wrong += [f"{left} steps cannot be had"] if left else []
        run = store.create_run(agent="next")
        store.append(run, "note.logged", {"text": "goes on"}, barrier=True)
        wrong += [] if store.verify().ok else ["it does not verify after going on"]
        travelled(store)
    return wrong


def points(counts: Counter[str], chance: random.Random) -> list[tuple[str, int]]:
    """The crash points of this tier: all, or some of every kind of call."""
    every = {call: list(range(1, counts[call] + 1)) for call in CALLS if counts[call]}
    if seconds() is not None:
        return [(call, number) for call, numbers in every.items() for number in numbers]
    share = max(1, SHORT // len(every))
    chosen: list[tuple[str, int]] = []
    for call, numbers in sorted(every.items(), key=lambda item: len(item[1])):
        some = chance.sample(numbers, min(len(numbers), share))
        chosen += [(call, number) for number in sorted(some)]
    rest = [(call, n) for call, numbers in every.items() for n in numbers if (call, n) not in set(chosen)]
    return chosen + chance.sample(rest, min(len(rest), max(0, SHORT - len(chosen))))


@pytest.mark.usefixtures("traced")
@pytest.mark.timeout(7200)
def test_a_crash_at_any_system_call_loses_nothing_that_was_acknowledged(
    zygote: Zygote, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seed = new_seed()
    counts = count_calls(zygote, tmp_path)
    tried = points(counts, random.Random(seed))
    wrong: dict[tuple[str, int], list[str]] = {}
    crashed = acked = 0
    for call, number in tried:
        folder = tmp_path / f"{call}-{number}"
        inject = (
            "-o",
            "/dev/null",
            "-e",
            f"trace={call}",
            "-e",
            f"inject={call}:signal=SIGKILL:when={number}",
        )
        child = play(zygote, folder, *inject)
        crashed += ["over"] not in child.said
        acked += len(child.said)
        try:
            problems = check(folder, child.said)
        except holdfast.HoldfastError as error:
            problems = [str(error)]
        if problems:
            wrong[call, number] = problems
        shutil.rmtree(folder, ignore_errors=True)
    with capsys.disabled():
        print(
            f"\ncrash at system calls: points={len(tried)} of {counts.total()} crashed={crashed}"
            f" acked={acked} wrong={len(wrong)} seed={seed} {dict(counts)}"
        )
    assert wrong == {}
    # Threads come and go, so that a last call is not always made; but it is not a matter of luck.
    assert crashed >= 0.9 * len(tried)
    assert len(tried) >= min(SHORT, counts.total())


@pytest.mark.usefixtures("traced")
def test_the_harness_finds_what_a_crash_has_lost(zygote: Zygote, tmp_path: Path) -> None:
    """The log is taken away after the crash: as if nothing of it had been written before the answers left."""
    folder = tmp_path / "store"
    child = play(
        zygote, folder, "-o", "/dev/null", "-e", "trace=write", "-e", "inject=write:signal=SIGKILL:when=7"
    )
    assert [line[0] for line in child.said].count("a") > 0
    for name in ("holdfast.db-wal", "holdfast.db-shm", "holdfast.mark"):
        (folder / name).unlink()
    try:
        problems = check(folder, child.said)
    except holdfast.HoldfastError as error:
        problems = [str(error)]
    assert problems != []
