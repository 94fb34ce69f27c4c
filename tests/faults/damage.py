"""Damaged files: small stores, ways to damage them, and the judgement of what a store does about it.

A damage is harmless if everything that can be read is what it was; otherwise opening, ``verify`` or reading
must name it. The judge runs in children, in chunks, so that a crash of the interpreter is seen as one.
"""

from __future__ import annotations

import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.faults import disks

import holdfast as hf

if TYPE_CHECKING:
    from collections.abc import Iterable

    Case = dict[str, Any]

MEMORY = 4 << 30  # of address space: an allocation that a damaged length asks for fails
CHUNK = 250


def small_store(folder: Path, *, die: bool = False) -> None:
    """A store with a bit of everything: contents, blobs, an ended run, one that waits, one that is due."""
    clock = hf.store.FakeClock()
    with hf.open(folder, clock=clock) as store:
        ended = store.create_run(agent="import", input={"file": "a.csv"}, state={"n": 1}, key="first")
        claim = store.claim(worker="w1")
        assert claim is not None
        store.append(ended, "note.logged", {"text": "one"}, claim=claim)
        store.append(
            ended, "x.test.n", {"data": {"n": 2}}, claim=claim, blobs={"content": store.put_blob(b"b" * 90)}
        )
        store.patch(claim, {"n": 2}, expected_version=claim.state_version)
        store.finish(claim, result={"rows": 3})
        waiting = store.create_run(agent="wait", input=None, labels={"team": "a"}, step="first")
        claim = store.claim(worker="w2")
        assert claim is not None
        store.wait(
            claim, [{"on": "signal", "subject": "go"}, {"on": "timer", "until": clock.wall_ms + 60_000}]
        )
        store.append(waiting, "note.logged", {"text": "z" * 70_000})  # too long to stay inline
        store.create_run(agent="due", input=[1, 2], priority=3, concurrency_key="c")
        store.barrier()
        if die:
            os.kill(os.getpid(), signal.SIGKILL)


def apply(case: Case, folder: Path) -> None:
    """Damages one store as a case says."""
    path = folder / case["file"]
    data = bytearray(path.read_bytes()) if path.is_file() else bytearray()
    match case["how"]:
        case "flip":
            data[case["at"]] ^= case["xor"]
        case "cut":
            del data[case["at"] :]
        case "zero":
            data[case["at"] : case["at"] + case["bytes"]] = bytes(case["bytes"])
        case "garbage":
            data[case["at"] : case["at"] + case["bytes"]] = random.Random(case["at"]).randbytes(case["bytes"])
        case "copy":  # one place over another
            data[case["at"] : case["at"] + case["bytes"]] = data[case["from"] : case["from"] + case["bytes"]]
        case "gone":
            path.unlink()
            return
        case other:
            raise ValueError(other)
    path.write_bytes(data)


def judge(folder: Path, original: Any, *, read_only: bool) -> str:
    """What a store does about its damage: ``found by ...``, ``harmless``, or ``WRONG``."""
    stage = "open"
    try:
        with hf.open(folder, read_only=read_only) as store:
            stage = "verify"
            report = store.verify()
            if report.problems:
                return f"found by verify: {report.problems[0].code}"
            stage = "reading"
            after = disks.dump(store)
    except hf.HoldfastError as error:
        if error.code in ("internal", "bad_sql"):
            return f"WRONG: {stage} raised {error}"
        return f"found by {stage}: {error.code}"
    except Exception as error:  # whatever else comes out is a fault of ours
        return f"WRONG: {stage} raised {type(error).__name__}: {error}"
    changed = list(disks.differences(original, after))
    return f"WRONG: unnoticed, {changed[:5]}" if changed else "harmless"


def judge_cases(template: str, cases: str, work: str) -> None:
    """In a child: damages a copy by each case, and prints what became of it, one line each."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    original = json.loads(Path(template, "dump.json").read_text())
    folder, errors = Path(work), Path(f"{work}.err")
    os.dup2(os.open(errors, os.O_CREAT | os.O_TRUNC | os.O_WRONLY | os.O_APPEND), 2)
    for case in json.loads(Path(cases).read_text()):
        for read_only in (True, False):
            shutil.rmtree(folder, ignore_errors=True)
            disks.copy_store(Path(template, "store"), folder)
            apply(case, folder)
            signal.alarm(30)  # a hang is a death
            told = judge(folder, original, read_only=read_only)
            signal.alarm(0)
            if "panicked" in errors.read_text(errors="replace"):  # even if it was caught
                told = f"WRONG: a panic, then {told}"
            os.truncate(errors, 0)
            print(json.dumps([case, read_only, told]), flush=True)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(json.dumps(["peak", peak]), flush=True)


def judged(
    template: Path, cases: list[Case], work: Path, library: Path
) -> tuple[list[tuple[Case, bool, str]], int]:
    """Runs cases in children and returns what became of each, and the most memory that a child took (KiB)."""
    results: list[tuple[Case, bool, str]] = []
    peak = 0
    for first in range(0, len(cases), CHUNK):
        chunk = cases[first : first + CHUNK]
        listed = work / "cases.json"
        listed.write_text(json.dumps(chunk))
        arguments = [str(template), str(listed), str(work / "damaged")]
        command = [sys.executable, "-m", "tests.faults.damage", *arguments]
        # Nothing here depends on syncs, and they are slow: the library makes none.
        environment = disks.environment(LD_PRELOAD=str(library))
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        lines = [json.loads(line) for line in done.stdout.splitlines()]
        finished = [(case, read_only, told) for case, read_only, told in (x for x in lines if x[0] != "peak")]
        results += finished
        peak = max([peak, *(line[1] for line in lines if line[0] == "peak")])
        if done.returncode != 0:
            case = chunk[len(finished) // 2] if len(finished) // 2 < len(chunk) else None
            said = (
                (work / "damaged.err").read_text(errors="replace") if (work / "damaged.err").exists() else ""
            )
            raise AssertionError(f"the child died ({done.returncode}) at {case}\n{done.stderr}{said[-3000:]}")
    return results, peak


def keep(folder: Path) -> Path:
    """Makes a template: a closed store beside what can be read from it."""
    (folder / "scratch").mkdir()
    disks.copy_store(folder / "store", folder / "scratch" / "store")
    with hf.open(folder / "scratch" / "store", read_only=True) as store:
        assert store.verify().ok
        (folder / "dump.json").write_text(json.dumps(disks.dump(store)))
    return folder


def told(results: Iterable[tuple[Case, bool, str]]) -> str:
    """A line of counts."""
    counts = Counter(result if not result.startswith("WRONG") else "WRONG" for _, _, result in results)
    return ", ".join(f"{number} {what}" for what, number in sorted(counts.items()))


if __name__ == "__main__":
    judge_cases(*sys.argv[1:])
    os._exit(0)
