"""The store beside what the disk allows and what else there is: from Rust, from Python, among processes, and
as it grows. Every ratio is of one run; syncs are counted with strace, not assumed.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentledger.store import SQLiteStore

import holdfast as hf
from measure import Spread

if TYPE_CHECKING:
    from collections.abc import Callable

PACKAGES = ["agentledger-runtime"]
ROOT = Path(__file__).parent.parent
ROUNDS = 9
APPENDS = 200
NOTE = {"text": "a note of some forty characters, as usual"}

Lines = dict[str, dict[str, Any]]


def rust(folder: Path, *words: str) -> Lines:
    """What the Rust bench measured."""
    command = ["cargo", "bench", "--locked", "--quiet", "-p", "holdfast-store", "--bench", "store", "--"]
    done = subprocess.run(
        [*command, str(folder), *words], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True
    )
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return {line["name"]: line for line in lines}


def spread(line: dict[str, Any]) -> str:
    """Median and quartiles of a line's rounds."""
    rounds = line["rounds"]
    if len(rounds) < 2:
        return f"{rounds[0]:,.0f}"
    found = Spread.of(rounds)
    digits = 2 if line["unit"] == "ms" else 0
    return f"{found.median:,.{digits}f} ({found.low:,.{digits}f} to {found.high:,.{digits}f})"


def ratio(lines: Lines, ours: str, theirs: str) -> str:
    """Ours to theirs, taken within each round."""
    pairs = zip(lines[ours]["rounds"], lines[theirs]["rounds"], strict=False)
    return str(Spread.of([a / b for a, b in pairs]))


def engine_table(lines: Lines) -> str:
    """The goals of the engine, each beside its measure."""
    single = "one durable commit of 5 records"
    rows = [
        (single, "bare append + fdatasync, 2 KB", ">= 0.8"),
        ("64 threads, durable commits of 5 records", single, ">= 8"),
        ("64 threads, durable commits of 5 records", "bare group commit, 64 threads", ""),
        ("4 processes on one folder, durable commits", "1 process, durable commits", ">= 1.3"),
    ]
    table = [
        "| work | per second | beside | per second | ratio | goal |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for ours, theirs, goal in rows:
        both = spread(lines[ours]), spread(lines[theirs])
        table.append(f"| {ours} | {both[0]} | {theirs} | {both[1]} | {ratio(lines, ours, theirs)} | {goal} |")
    for name, goal in [
        ("batch of 1000 records, one frame", ">= 400,000 records/s"),
        ("batch of 1000 records, one frame, durable", ""),
        ("read back and verify", ">= 500,000 records/s"),
    ]:
        table.append(f"| {name} | {spread(lines[name])} records | | | | {goal} |")
    return "\n".join(table)


def growth_table(lines: Lines) -> str:
    """How the figures change with the history."""
    rows = [f"| {name} | {spread(line)} | {line['unit']} |" for name, line in lines.items()]
    return "\n".join(["| work | median (quartiles) | unit |", "| --- | --- | --- |", *rows])


def contestants(folder: Path) -> dict[str, Callable[[], object]]:
    """One event each, written by what a Python engineer would use."""
    store = hf.open(folder / "holdfast")
    run = store.create_run(agent="bench")
    made: dict[str, Callable[[], object]] = {
        "holdfast, barrier": lambda: store.append(run, "note.logged", NOTE, barrier=True),
        "holdfast, no barrier": lambda: store.append(run, "note.logged", NOTE),
    }
    for level in ("FULL", "NORMAL"):
        plain = sqlite3.connect(folder / f"{level}.db", isolation_level=None)
        plain.execute("PRAGMA journal_mode = WAL").fetchone()
        plain.execute(f"PRAGMA synchronous = {level}")
        plain.execute("CREATE TABLE events (seq INTEGER PRIMARY KEY, kind TEXT, body TEXT)")
        made[f"sqlite3, WAL {level}"] = partial(insert, plain)
    ledger = SQLiteStore(folder / "agentledger.db")
    ledger.init()
    ledger_run, *_ = ledger.create_run()
    made["agentledger-runtime"] = lambda: ledger.append_event(
        run_id=ledger_run, event_type="note", payload=NOTE
    )
    return made


def insert(plain: sqlite3.Connection) -> None:
    """One event, as a row."""
    plain.execute("INSERT INTO events (kind, body) VALUES (?, ?)", ("note", json.dumps(NOTE)))


ABOUT = {
    "holdfast, barrier": "salted content, canonical bytes, hash chain, decide and fold; on the disk",
    "holdfast, no barrier": "the same; survives the process, not yet a power cut",
    "sqlite3, WAL FULL": "one row, no hash, no checks; on the disk",
    "sqlite3, WAL NORMAL": "one row, no hash, no checks; survives the process",
    "agentledger-runtime": "one event, no hash chain; WAL, synchronous FULL",
}


def python_rounds(folder: Path) -> dict[str, list[float]]:
    """Events per second of each, in interleaved rounds."""
    work = contestants(folder)
    rates: dict[str, list[float]] = {name: [] for name in work}
    names = list(work)
    for turn in range(ROUNDS):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            begun = time.perf_counter()
            for _ in range(APPENDS):
                work[name]()
            rates[name].append(APPENDS / (time.perf_counter() - begun))
    return rates


COUNTED = """
import sys, pathlib
sys.path.insert(0, sys.argv[1])
import store
work = store.contestants(pathlib.Path(sys.argv[2]))[sys.argv[3]]
for _ in range(int(sys.argv[4])):
    work()
"""


def syncs(name: str, folder: Path) -> float:
    """Syncs per event, by strace: of many events less those of few."""

    def count(events: int) -> int:
        with tempfile.TemporaryDirectory(dir=folder) as inner:
            command = ["strace", "-f", "-qq", "-e", "trace=fsync,fdatasync,sync_file_range,msync"]
            program = [sys.executable, "-c", COUNTED, str(Path(__file__).parent), inner, name, str(events)]
            done = subprocess.run([*command, *program], capture_output=True, text=True, check=True)
        return len(re.findall(r"\b(?:fsync|fdatasync|sync_file_range|msync)\(", done.stderr))

    return (count(120) - count(20)) / 100


def python_table(rates: dict[str, list[float]], counted: dict[str, float]) -> str:
    """Python's peers, with the syncs that each makes."""
    ours = rates["holdfast, barrier"]
    lines = [
        "| contestant | events/s | holdfast, barrier, is times as fast | syncs per event | what it does |"
    ]
    lines.append("| --- | --- | --- | --- | --- |")
    for name, found in rates.items():
        line = {"rounds": found, "unit": "events/s"}
        times = Spread.of([a / b for a, b in zip(ours, found, strict=True)])
        lines.append(f"| {name} | {spread(line)} | {times} | {counted[name]:.2f} | {ABOUT[name]} |")
    return "\n".join(lines)


WRITER = """
import sys, holdfast as hf
store = hf.open(sys.argv[1])
run = store.create_run(agent="bench")
print("ready", flush=True)
sys.stdin.readline()
for _ in range(int(sys.argv[2])):
    store.append(run, "note.logged", {"text": "a note of some forty characters, as usual"}, barrier=True)
print("done", flush=True)
"""


def python_processes(folder: Path, many: int, each: int) -> float:
    """Durable appends per second of several Python processes on one folder."""
    command = [sys.executable, "-c", WRITER, str(folder), str(each)]
    pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    writers: list[Any] = [subprocess.Popen(command, **pipes) for _ in range(many)]
    for writer in writers:
        writer.stdout.readline()
    begun = time.perf_counter()
    for writer in writers:
        writer.stdin.write("go\n")
        writer.stdin.flush()
    for writer in writers:
        writer.stdout.readline()
    took = time.perf_counter() - begun
    for writer in writers:
        writer.communicate()
    return many * each / took


def processes_table(folder: Path) -> str:
    """One process, two and four."""
    rates: dict[int, list[float]] = {1: [], 2: [], 4: []}
    for _ in range(5):
        for many, found in rates.items():
            found.append(python_processes(folder, many, 800 // many))
    rows = [
        f"| {many} | {spread({'rounds': found, 'unit': ''})} | "
        f"{statistics.median(a / b for a, b in zip(found, rates[1], strict=True)):.2f} |"
        for many, found in rates.items()
    ]
    return "\n".join(["| processes | durable appends/s | times one process |", "| --- | --- | --- |", *rows])


TASKS = 64


async def tasks(store: hf.Store, runs: list[str], each: int) -> tuple[float, float]:
    """Durable appends per second of tasks on one loop, and by how much the loop was late (p99, ms)."""
    late: list[float] = []
    loop = asyncio.get_running_loop()
    over = asyncio.Event()

    async def ticks() -> None:
        while not over.is_set():
            begun = loop.time()
            await asyncio.sleep(0.001)
            late.append(loop.time() - begun - 0.001)

    async def work(run: str) -> None:
        for _ in range(each):
            await store.aio.append(run, "note.logged", NOTE, barrier=True)

    ticker = asyncio.create_task(ticks())
    begun = time.perf_counter()
    await asyncio.gather(*(work(run) for run in runs))
    took = time.perf_counter() - begun
    over.set()
    await ticker
    return len(runs) * each / took, statistics.quantiles(late, n=100)[98] * 1000


def asyncio_table(folder: Path) -> str:
    """One task and many, on one loop."""
    rates: dict[int, list[float]] = {1: [], TASKS: []}
    late: dict[int, list[float]] = {1: [], TASKS: []}
    with hf.open(folder) as store:
        runs = [store.create_run(agent="bench") for _ in range(TASKS)]
        for _ in range(ROUNDS):
            for many, found in rates.items():
                rate, delay = asyncio.run(tasks(store, runs[:many], 20 if many > 1 else 200))
                found.append(rate)
                late[many].append(delay)
    rows = [
        f"| {many} | {spread({'rounds': found, 'unit': ''})} | "
        f"{Spread.of([a / b for a, b in zip(found, rates[1], strict=True)])} | "
        f"{spread({'rounds': late[many], 'unit': 'ms'})} ms |"
        for many, found in rates.items()
    ]
    heading = "| tasks | durable appends/s | times one task | the loop is late by, p99 |"
    return "\n".join([heading, "| --- | --- | --- | --- |", *rows])


def section() -> str:
    """Measures and tells."""
    # On the disk of the tree, not in a /tmp that may be memory: there a sync costs nothing and shows nothing.
    with tempfile.TemporaryDirectory(dir=ROOT / "target") as place:
        folder = Path(place)
        lines = rust(folder)
        rates = python_rounds(folder)
        counted = {name: syncs(name, folder) for name in rates}
        among = processes_table(folder / "processes")
        awaited = asyncio_table(folder / "asyncio")
        growing = (
            "" if os.environ.get("HOLDFAST_BENCH_GROWTH") == "0" else growth_table(rust(folder, "growth"))
        )
    return f"""## The store

SQLite in WAL mode; a barrier is a commit and an fdatasync of the log. A commit is a frame of 5 records with
contents (some 2.4 KB), chained and folded, unless it says otherwise. Rounds are interleaved in one process;
medians, quartiles in brackets; ratios are taken within a round.

### The engine, from Rust

{engine_table(lines)}

### One event, from Python

{ROUNDS} rounds of {APPENDS} events each. Syncs are counted with strace over 100 events.

{python_table(rates, counted)}

### asyncio, from Python

{awaited}

### Processes on one folder, from Python

{among}

### Growth

{growing}
"""
