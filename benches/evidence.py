"""Exporting a run as evidence and verifying it, beside the export and the replay of agentledger-runtime."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentledger.blobstore import LocalBlobStore
from agentledger.evidence import EvidenceExporter
from agentledger.replay import ReplayEngine
from agentledger.store import SQLiteStore

import holdfast as hf
from holdfast import evidence, keys
from measure import Spread

if TYPE_CHECKING:
    from collections.abc import Callable

PACKAGES = ["agentledger-runtime"]
ROUNDS, RECORDS, THEIRS, FRAME, GOAL = 5, 100_000, 5_000, 10, 10
NOTE = "a note of some forty characters, as usual"
PEAK = """
import re, sys
from pathlib import Path
from holdfast import evidence

def kilobytes(what):
    return int(re.search(what + r":\\s+(\\d+)", Path("/proc/self/status").read_text())[1])

Path("/proc/self/clear_refs").write_text("5")  # the peak is counted from here
before = kilobytes("VmRSS")
assert evidence.verify(sys.argv[1]).ok
print((kilobytes("VmHWM") - before) // 1024)
"""


def _filled(folder: Path, records: int) -> tuple[hf.Store, str]:
    store = hf.open(folder)
    run = store.create_run(agent="bench", barrier=False)
    for n in range(records // FRAME):
        store.append_many(run, [("note.logged", {"text": f"{NOTE} {n}"}) for _ in range(FRAME)])
    keys.generate("bench.example", folder / "log.key")
    store.seal(folder / "log.key")
    return store, run


def _theirs(folder: Path) -> tuple[Any, Any, str]:
    ledger = SQLiteStore(folder / "agentledger.db")
    ledger.init()
    run, *_ = ledger.create_run()
    for n in range(THEIRS):
        ledger.append_event(run_id=run, event_type="note", payload={"text": f"{NOTE} {n}"})
    return ledger, LocalBlobStore(folder / "blobs"), run


def _timed(work: Callable[[], object], records: int) -> float:
    begun = time.perf_counter()
    work()
    return (time.perf_counter() - begun) / records * 1e6


def _peak(path: Path) -> int:
    """Megabytes that verifying a bundle takes."""
    done = subprocess.run([sys.executable, "-c", PEAK, str(path)], capture_output=True, text=True, check=True)
    return int(done.stdout)


def _rounds(folder: Path) -> tuple[dict[str, list[float]], int, int]:
    store, run = _filled(folder / "ours", RECORDS)
    small, short = _filled(folder / "small", RECORDS // 10)
    evidence.export(small, short, folder / "small.zip")
    ledger, blobs, theirs = _theirs(folder)
    exporter, engine = EvidenceExporter(store=ledger, blobs=blobs), ReplayEngine(store=ledger, blobs=blobs)
    samples: dict[str, list[float]] = {
        name: [] for name in ("export", "verify", "their export", "their replay")
    }
    for n in range(ROUNDS):
        path = folder / f"{n}.zip"
        samples["export"].append(_timed(lambda path=path: evidence.export(store, run, path), RECORDS))  # type: ignore[misc]
        samples["verify"].append(_timed(lambda path=path: evidence.verify(path), RECORDS))  # type: ignore[misc]
        samples["their export"].append(_timed(lambda: exporter.export(theirs), THEIRS))
        samples["their replay"].append(_timed(lambda: engine.replay(theirs), THEIRS))
    peaks = _peak(folder / "small.zip"), _peak(folder / "0.zip")
    store.close()
    small.close()
    return samples, *peaks


def section() -> str:
    """Measures and returns Markdown."""
    with tempfile.TemporaryDirectory() as folder:
        samples, small, large = _rounds(Path(folder))

    def ratio(ours: str, theirs: str) -> Spread:
        return Spread.of([b / a for a, b in zip(samples[ours], samples[theirs], strict=True)])

    rows = [
        f"| {name} | {Spread.of(samples[ours])} | {other} | {Spread.of(samples[theirs])}"
        f" | {ratio(ours, theirs)} |"
        for name, ours, other, theirs in (
            ("export to one file", "export", "export in memory, no contents of blobs", "their export"),
            ("verify", "verify", "replay, which checks nothing", "their replay"),
        )
    ]
    table = "\n".join(rows)
    return f"""## Evidence

One run of {RECORDS:,} records in frames of {FRAME}, sealed, beside {THEIRS:,} events of agentledger-runtime;
{ROUNDS} interleaved rounds, microseconds per record. Ours writes a file and audits every record while it
writes: chain, contents, fold and proof. The goal is {GOAL} times theirs.

| ours | microseconds | theirs | microseconds | theirs to ours |
| --- | --- | --- | --- | --- |
{table}

Verifying takes {small} MB of memory for a tenth of the records, and {large} MB for all of them.
"""


if __name__ == "__main__":
    print(section())
