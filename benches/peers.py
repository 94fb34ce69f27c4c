"""The same durable job on Holdfast and on its peers: ``make bench-peers``. Each contestant is a program
that is run in an environment of its own, once per round, the order rotated; syncs are counted by strace in
a run of their own.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from measure import Spread

PACKAGES: list[str] = []
HERE = Path(__file__).parent / "peer_jobs"
ENVIRONMENTS = HERE.parent.parent / "target" / "bench-envs"
ROUNDS, JOBS, MANY, LONG = 5, 100, 64, 300
HEAD = f"jobs/s, {MANY} at once | ours against it | loop late, p99 ms"
SYNCS = re.compile(r"\b(fsync|fdatasync|sync_file_range|msync)\(")


@dataclass(frozen=True)
class Contestant:
    """A program, what it needs, and what it does less than we do."""

    name: str
    program: str
    packages: tuple[str, ...]
    says: str
    many: bool = True

    def python(self) -> Path:
        """The interpreter of its own environment, which is made if it is not there."""
        if not self.packages:
            return Path(sys.executable)
        home = ENVIRONMENTS / self.program
        if not (home / "bin" / "python").exists():
            subprocess.run([sys.executable, "-m", "venv", str(home)], check=True)
            pip = [str(home / "bin" / "python"), "-m", "pip", "install", "-q", "--disable-pip-version-check"]
            subprocess.run([*pip, *self.packages], check=True)
        return home / "bin" / "python"

    def versions(self) -> str:
        """What was measured."""
        names = [re.split(r"[=<>\[]", package)[0] for package in self.packages] or ["holdfast"]
        ask = "import sys, importlib.metadata as m; print([f'{n} {m.version(n)}' for n in sys.argv[1:]])"
        command = [str(self.python()), "-c", ask, *names]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        return done.stdout.strip("[]\n").replace("'", "")

    def run(
        self, jobs: int, most: int, tracer: list[str] | None = None, what: str = "job"
    ) -> dict[str, float]:
        """Does the job so many times in a new folder."""
        with tempfile.TemporaryDirectory(prefix="holdfast-peers-") as folder:
            command = [*(tracer or []), str(self.python()), str(HERE / f"{self.program}_{what}.py")]
            done = subprocess.run(
                [*command, folder, str(jobs), str(most)],
                capture_output=True,
                text=True,
                check=False,
                cwd=HERE,
            )
            if done.returncode != 0:
                raise RuntimeError(f"{self.name}: {done.stderr[-2000:]}")
            told: dict[str, float] = json.loads(done.stdout.strip().splitlines()[-1])
            told["bytes"] = sum(path.stat().st_size for path in Path(folder).rglob("*") if path.is_file())
            return told

    def syncs(self) -> float:
        """Counted syncs per job, one job at a time."""
        with tempfile.NamedTemporaryFile("r", suffix=".trace") as trace:
            calls = "trace=fsync,fdatasync,sync_file_range,msync,stat,newfstatat,access,faccessat2,statx"
            self.run(JOBS, 1, ["strace", "-f", "-qq", "-e", calls, "-o", trace.name])
            parts = trace.read().split("holdfast-bench-mark")
        return len(SYNCS.findall(parts[1])) / JOBS


CONTESTANTS = [
    Contestant(
        "Holdfast",
        "holdfast",
        (),
        "policy, ledger, hash chain, state; barrier before the write and at the end",
    ),
    Contestant(
        "LangGraph + SqliteSaver",
        "langgraph",
        ("langgraph", "langgraph-checkpoint-sqlite", "aiosqlite"),
        'no policy, ledger or chain; durability="sync", WAL, synchronous FULL',
    ),
    Contestant("DBOS on SQLite", "dbos", ("dbos",), "no policy, ledger or chain; its own settings"),
    Contestant(
        "agentledger-runtime",
        "agentledger",
        ("agentledger-runtime==1.6.1",),
        "policy and ledger, no chain; its own settings",
    ),
    Contestant(
        "sqlite3 by hand",
        "sqlite",
        ("pip",),
        "intent and outcome rows only; WAL, synchronous FULL",
        many=False,
    ),
]


def section() -> str:
    """Measures and returns Markdown."""
    if shutil.which("strace") is None:
        raise RuntimeError("counting syncs needs strace: sh tests/faults/tools.sh installs it")
    alone: dict[str, list[float]] = {one.name: [] for one in CONTESTANTS}
    many: dict[str, list[float]] = {one.name: [] for one in CONTESTANTS if one.many}
    late: dict[str, list[float]] = {name: [] for name in many}
    for turn in range(ROUNDS):
        first = turn % len(CONTESTANTS)
        for one in CONTESTANTS[first:] + CONTESTANTS[:first]:
            told = one.run(JOBS, 1)
            alone[one.name].append(told["jobs"] / told["seconds"])
            if one.many:
                told = one.run(JOBS * 5, MANY)
                many[one.name].append(told["jobs"] / told["seconds"])
                late[one.name].append(told["late_ms"])
    return _page(alone, many, late)


def _kilobytes(contestant: int, steps: int = LONG) -> int:
    """What one long run leaves on the disk."""
    return round(CONTESTANTS[contestant].run(steps, 1, what="long")["bytes"] / 1024)


def _page(alone: dict[str, list[float]], many: dict[str, list[float]], late: dict[str, list[float]]) -> str:
    ours = CONTESTANTS[0].name
    rows = []
    for one in CONTESTANTS:
        ratio = Spread.of([a / b for a, b in zip(alone[ours], alone[one.name], strict=True)])
        cells = [one.name, f"{Spread.of(alone[one.name]).median:.0f}", str(ratio), f"{one.syncs():.2f}"]
        if one.many:
            ratio = Spread.of([a / b for a, b in zip(many[ours], many[one.name], strict=True)])
            cells += [f"{Spread.of(many[one.name]).median:.0f}", str(ratio)]
            cells += [f"{Spread.of(late[one.name]).median:.1f}"]
        else:
            cells += ["", "", ""]
        rows.append(f"| {' | '.join(cells)} | {one.says} |")
    table = "\n".join(rows)
    versions = "; ".join(one.versions() for one in CONTESTANTS if one.program != "sqlite")
    return f"""## The same durable job on Holdfast and its peers

Start a run, one write tool, its receipt into the state, finish; on a folder, in {ROUNDS} interleaved rounds
of {JOBS} jobs one at a time and {JOBS * 5} jobs {MANY} at once, each round in a process of its own. "Ours
against it" above 1 means that Holdfast is faster. Syncs per job are counted by strace. {versions}.

| | jobs/s, one at a time | ours against it | syncs/job | {HEAD} | what it does |
| --- | --- | --- | --- | --- | --- | --- | --- |
{table}

One run with {LONG} steps of about a kilobyte each leaves {_kilobytes(0)} KiB with Holdfast, a third as many
steps {_kilobytes(0, LONG // 3)} KiB; LangGraph, whose agents keep their messages in the state,
{_kilobytes(1)} KiB and {_kilobytes(1, LONG // 3)} KiB.

Goals: at most 2.2 syncs, at least 8 times LangGraph and DBOS one at a time, at least 5,000 jobs/s {MANY} at
once with the loop late by less than 5 ms.
"""
