"""The same durable job on one PostgreSQL, by Holdfast and by DBOS: ``make bench-postgres``.

The bench starts a server of its own that syncs; each contestant has its own environment and as many processes
as a round has workers, which begin together. ``python benches/postgres.py --quick`` goes through all of it
with small numbers and writes nothing.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

import psycopg

from measure import Spread
from peers import HERE, Contestant

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from tests import postgres  # noqa: E402 (a server of one's own is what the tests have)

if TYPE_CHECKING:
    from collections.abc import Iterator

PACKAGES: list[str] = []
SETTINGS = {
    "fsync": "on",
    "full_page_writes": "on",
    "listen_addresses": "",
    "max_connections": "600",
    "synchronous_commit": "on",
}
OURS = Contestant("Holdfast", "holdfast_pg", (), "policy, ledger, hash chain, state; two barriers")
DBOS = Contestant(
    "DBOS", "dbos_pg", ("dbos", "psycopg[binary]"), "no policy, ledger or chain; its own settings"
)
CONTESTANTS = [OURS, DBOS]


@dataclass(frozen=True)
class Size:
    """How much is measured."""

    rounds: int = 3
    workers: tuple[int, ...] = (1, 4, 16)
    jobs: int = 320
    lanes: int = 16
    latencies: int = 150
    records: int = 100_000
    windows: int = 10
    idle: tuple[int, ...] = (0, 100, 400)


FULL = Size(records=int(os.environ.get("HOLDFAST_BENCH_RECORDS", "100000")))
QUICK = Size(rounds=2, workers=(1, 2), jobs=8, lanes=2, latencies=5, records=400, windows=2, idle=(0, 10))


class Bench:
    """A server, and what is done on it."""

    def __init__(self, server: postgres.Server, size: Size) -> None:
        self.server, self.size, self._places = server, size, 0

    def connect(self) -> psycopg.Connection[tuple[object, ...]]:
        """A connection of the bench's own."""
        return psycopg.connect(f"host={self.server.folder} user=holdfast dbname=postgres", autocommit=True)

    def place(self, one: Contestant) -> str:
        """A new place of a contestant's: a schema, or a database."""
        self._places += 1
        if one is OURS:
            return f"{self.server.url()}&schema=bench_{self._places}"
        with self.connect() as connection:
            connection.execute(f"CREATE DATABASE bench_{self._places}".encode())
        host = quote(str(self.server.folder), safe="")
        place = f"postgresql://holdfast@/bench_{self._places}?host={host}"
        self.run(one, place, 1, 1, 1)  # it makes its tables, which several at once had better not
        return place

    def run(
        self, one: Contestant, place: str, workers: int, jobs: int, lanes: int
    ) -> tuple[float, list[float]]:
        """So many jobs by so many processes: jobs per second, and what each job took."""
        share = max(1, jobs // workers)
        program = [str(one.python()), str(HERE / f"{one.program}_job.py"), place, str(share), str(lanes)]
        with ExitStack() as stack:
            began = [
                stack.enter_context(_process([*program, f"{os.urandom(4).hex()}-{n}"]))
                for n in range(workers)
            ]
            for process in began:
                _line(process, one)
            begun = time.perf_counter()
            for process in began:
                assert process.stdin is not None
                process.stdin.write("go\n")
                process.stdin.flush()
            took = [seconds for process in began for seconds in json.loads(_line(process, one))]
            return len(took) / (time.perf_counter() - begun), took

    # What is measured.

    def throughput(self) -> dict[str, dict[int, list[float]]]:
        """Jobs per second by contestant and workers, in interleaved rounds."""
        found: dict[str, dict[int, list[float]]] = {
            one.name: {workers: [] for workers in self.size.workers} for one in CONTESTANTS
        }
        for turn in range(self.size.rounds):
            first = turn % len(CONTESTANTS)
            for one in CONTESTANTS[first:] + CONTESTANTS[:first]:
                place = self.place(one)
                for workers in self.size.workers:
                    rate, _ = self.run(one, place, workers, self.size.jobs, self.size.lanes)
                    found[one.name][workers].append(rate)
        return found

    def latency(self, one: Contestant) -> list[float]:
        """Milliseconds of the jobs of one process, one at a time: p50, p90, p99, the longest."""
        _, took = self.run(one, self.place(one), 1, self.size.latencies, 1)
        cuts = statistics.quantiles(took, n=100, method="inclusive")
        return [1000 * value for value in (cuts[49], cuts[89], cuts[98], max(took))]

    def growth(self) -> list[tuple[int, float]]:
        """Jobs per second of four workers while the store grows: (records by then, rate)."""
        place, found, records, goal = self.place(OURS), [], 0, 0
        schema = place.rpartition("=")[2]
        while records < self.size.records:
            rate, _ = self.run(OURS, place, max(self.size.workers[:2]), self.size.jobs, self.size.lanes)
            with self.connect() as connection:
                row = connection.execute(f"SELECT sum(last_seq)::bigint FROM {schema}.streams".encode())
                records = int(str((row.fetchone() or (0,))[0]))
            if records >= goal:
                found.append((records, rate))
                goal = records + self.size.records // self.size.windows
        return found

    def crowd(self) -> list[tuple[int, float]]:
        """Jobs per second of four workers beside connections that do nothing: (how many, median rate)."""
        found = []
        for idle in self.size.idle:
            with ExitStack() as stack:
                for _ in range(idle):
                    stack.enter_context(self.connect())
                place, workers = self.place(OURS), max(self.size.workers[:2])
                rates = [
                    self.run(OURS, place, workers, self.size.jobs, self.size.lanes)[0]
                    for _ in range(self.size.rounds)
                ]
            found.append((idle, statistics.median(rates)))
        return found


@contextmanager
def _process(command: list[str]) -> Iterator[subprocess.Popen[str]]:
    with tempfile.TemporaryFile("w+") as complaints:
        process = subprocess.Popen(
            command, cwd=HERE, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=complaints, text=True
        )
        try:
            with process:
                yield process
        except BaseException:
            process.kill()
            complaints.seek(0)
            sys.stderr.write(complaints.read()[-2000:])
            raise


def _line(process: subprocess.Popen[str], one: Contestant) -> str:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise RuntimeError(f"{one.name} ended without an answer")
    return line


def sync_ms(folder: Path) -> float:
    """What this disk takes to sync 8 KiB, in the middle."""
    took = []
    with tempfile.NamedTemporaryFile(dir=folder) as file:
        for _ in range(200):
            begun = time.perf_counter()
            file.write(b"x" * 8192)
            file.flush()
            os.fsync(file.fileno())
            took.append(time.perf_counter() - begun)
    return 1000 * statistics.median(took)


def measured(size: Size) -> str:
    """Starts a server, measures and returns Markdown."""
    programs = postgres.programs()
    if programs is None:
        raise RuntimeError(postgres.WHAT)
    server = postgres.Server(programs, SETTINGS)
    try:
        bench = Bench(server, size)
        return _page(bench)
    finally:
        server.stop()


def section() -> str:
    """Measures and returns Markdown."""
    return measured(FULL)


def _throughput(bench: Bench) -> str:
    found = bench.throughput()
    lines = ["| workers | Holdfast, jobs/s | DBOS, jobs/s | ours against it |", "| --- | --- | --- | --- |"]
    for workers in bench.size.workers:
        ours, theirs = found[OURS.name][workers], found[DBOS.name][workers]
        ratio = Spread.of([a / b for a, b in zip(ours, theirs, strict=True)])
        lines.append(
            f"| {workers} | {Spread.of(ours).median:.0f} | {Spread.of(theirs).median:.0f} | {ratio} |"
        )
    return "\n".join(lines)


def _table(head: tuple[str, ...], rows: list[tuple[object, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join(f"| {' | '.join(str(cell) for cell in line)} |" for line in lines)


def _page(bench: Bench) -> str:
    size, throughput = bench.size, _throughput(bench)
    waits = [(one.name, *(f"{ms:.1f}" for ms in bench.latency(one))) for one in CONTESTANTS]
    latency = _table(("", "p50", "p90", "p99", "longest"), list(waits))
    growth = _table(
        ("records by then", "jobs/s"), [(f"{many:,}", f"{rate:.0f}") for many, rate in bench.growth()]
    )
    crowd = _table(("idle connections", "jobs/s"), [(many, f"{rate:.0f}") for many, rate in bench.crowd()])
    with bench.connect() as connection:
        version = (connection.execute("SHOW server_version").fetchone() or ("",))[0]
    said = ", ".join(f"{name} {value}" for name, value in SETTINGS.items() if value == "on")
    machine = f"{os.cpu_count()} cores, which server and workers share"
    disk = sync_ms(bench.server.folder.parent)
    return f"""## The same durable job on PostgreSQL

`make bench-postgres`. Start a run, one governed write tool, its receipt into the state, finish; DBOS: a
workflow with one step that writes, and an event. One server, started by the bench on this machine
({machine}): PostgreSQL {version}, {said}, else its defaults; the disk takes {disk:.2f} ms to sync 8 KiB.
{OURS.versions()}; {DBOS.versions()}. {size.rounds} interleaved rounds of {size.jobs} jobs, {size.lanes}
at once in each worker process; medians. "Ours against it" above 1 means that Holdfast is faster.
Holdfast: {OURS.says}. DBOS: {DBOS.says}.

{throughput}

Milliseconds of a job, one at a time, {size.latencies} jobs:

{latency}

While the store grows ({max(size.workers[:2])} workers, Holdfast only):

{growth}

Beside connections that do nothing ({max(size.workers[:2])} workers, Holdfast only):

{crowd}

Goal: at least 10 times DBOS.
"""


def main() -> None:
    """Prints what is found, and writes nothing."""
    size = QUICK if "--quick" in sys.argv else FULL
    if "--records" in sys.argv:
        size = replace(size, records=int(sys.argv[sys.argv.index("--records") + 1]))
    print(measured(size))


if __name__ == "__main__":
    main()
