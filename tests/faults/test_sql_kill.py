"""Workers that move money in a database are killed, at each point and at random moments, until all is done.
Each call has moved its money once, by a ledger that takes an entry as often as it is made.
"""

from __future__ import annotations

import random
import select
import socket
import subprocess
import sys
import time
from collections import Counter
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest
from tests.faults.processes import Child, Zygote, environment, new_seed, seconds
from tests.faults.replays import travelled
from tests.faults.sql_worker import CALLS, LEDGER, connect

import holdfast as hf

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytest_plugins = ["tests.postgres"]

KILLS = 50
MOST_KILLS = 200
WORKERS = 2


class Movers(Zygote):
    """Forks the workers of sql_worker.py."""

    def __enter__(self) -> Movers:
        here, there = socket.socketpair()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.sql_worker", "zygote", str(there.fileno())],
            env=environment(None, None),
            pass_fds=[there.fileno()],
        )
        there.close()
        self._line = here
        assert self._line.makefile("r").readline().strip().endswith("holdfast")
        return self


@dataclass
class Bank:
    """A store of runs, a database, and workers between them."""

    zygote: Movers
    folder: Path
    address: str
    how: str = "once"
    runs: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        with closing(connect(self.address)) as connection:
            connection.execute(LEDGER)
            connection.commit()

    def create(self, store: hf.Store) -> None:
        self.runs.append(store.create_run(agent="bank", attempts=1000))

    def worker(self, *stops: str) -> Child:
        return self.zygote.start("mover", self.folder / "runs", self.address, self.how, *stops)

    def killed_at(self, point: str) -> None:
        child = self.worker(point)
        child.told(point)
        child.kill()

    def finish(self) -> list[str]:
        """Lets a worker do what is left, and says how its steps ended."""
        child = self.worker()
        assert child.ended()
        assert child.errors() == []
        return [words[1] for words in child.said if words[0] == "ended"]

    def entries(self) -> Counter[str]:
        with closing(connect(self.address)) as connection:
            return Counter(name for (name,) in connection.execute("SELECT name FROM ledger").fetchall())

    def expected(self) -> Counter[str]:
        return Counter(f"{run} {number}" for run in self.runs for number in range(CALLS))

    def resolved(self, store: hf.Store) -> Counter[str]:
        """How the doubts of all runs ended, each by asking the database."""
        records = [record for run in self.runs for record in store.read(run)]
        found = [record.value for record in records if record.kind == "effect.resolved"]
        assert {value["source"] for value in found} <= {"reconcile"}
        return Counter(value["resolution"] for value in found)


@pytest.fixture(scope="module")
def movers() -> Iterator[Movers]:
    with Movers() as forks:
        yield forks


@pytest.fixture(params=["sqlite", "postgres"])
def bank(request: pytest.FixtureRequest, movers: Movers, tmp_path: Path) -> Bank:
    address = str(tmp_path / "bank.db")
    if request.param == "postgres":
        address = request.getfixturevalue("postgres")
    return Bank(movers, tmp_path, address)


@pytest.mark.parametrize(
    ("points", "resolved"),
    [
        (["before"], {"did_not_happen": 1}),
        (["inside"], {"did_not_happen": 1}),
        (["after"], {"happened": 1}),
        (["inside", "asked"], {"did_not_happen": 1}),
        (["after", "asked"], {"happened": 1}),
        (["inside", "before", "inside"], {"did_not_happen": 3}),
    ],
)
def test_a_worker_that_is_killed_at_a_point_is_followed_by_one_that_knows(
    bank: Bank, points: list[str], resolved: dict[str, int]
) -> None:
    with hf.open(bank.folder / "runs") as store:
        bank.create(store)
        for point in points:
            bank.killed_at(point)
        assert bank.finish() == ["completed"]
        assert bank.entries() == bank.expected()
        assert bank.resolved(store) == resolved
        assert store.verify().ok
        assert travelled(store) == len(bank.runs)


@dataclass
class Hunt:
    """Workers, and a killer that lets none of them live for long."""

    bank: Bank
    store: hf.Store
    seed: int
    kills: int = 0

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)
        self.children: list[Child] = []

    def left(self) -> int:
        """Runs that have not ended."""
        rows = self.store.sql("SELECT count(*) AS n FROM runs WHERE status <> 'completed'")
        return int(rows[0]["n"])

    def kill_one(self) -> None:
        """One dies, after a while or right after a certain word, and another takes its place."""
        while self.left() < 2 * WORKERS:
            self.bank.create(self.store)
        while len(self.children) < WORKERS:
            self.children.append(self.bank.worker())
        victim = self.children.pop(self.chance.randrange(WORKERS))
        word = self.chance.choice(("before", "inside", "after", "asked", "", ""))
        until = time.monotonic() + (0.2 if word else self.chance.uniform(0, 0.05))
        victim.hear()
        while (wait := until - time.monotonic()) > 0 and not victim.over:
            select.select([victim], [], [], wait)
            if [word] in victim.hear():
                break
        self.kills += not victim.over
        victim.kill()
        assert victim.errors() == []

    def until(self, resolutions: set[str]) -> None:
        """Kills until each of these was seen; a long tier goes on until its time is up."""
        end = time.monotonic() + (seconds() or 0)
        while self.kills < KILLS or time.monotonic() < end:
            self.kill_one()
        while not resolutions <= self.bank.resolved(self.store).keys() and self.kills < MOST_KILLS:
            self.kill_one()
        for child in self.children:
            child.kill()
            assert child.errors() == []


@pytest.mark.timeout(7200)
def test_whenever_workers_are_killed_each_call_moves_its_money_once(
    bank: Bank, capsys: pytest.CaptureFixture[str]
) -> None:
    with hf.open(bank.folder / "runs") as store:
        hunt = Hunt(bank, store, new_seed())
        hunt.until({"happened", "did_not_happen"})
        left = hunt.left()
        ended = bank.finish()
        resolved, entries = bank.resolved(store), bank.entries()
        with capsys.disabled():
            print(
                f"\nsql.once on {'PostgreSQL' if 'host=' in bank.address else 'SQLite'}: kills={hunt.kills}"
                f" calls={len(bank.expected())} doubts={dict(resolved)} seed={hunt.seed}"
            )
        assert ended == ["completed"] * left
        assert entries == bank.expected(), "none is missing, and none is there twice"
        assert {"happened", "did_not_happen"} <= resolved.keys()
        assert store.verify().ok
        assert travelled(store) == len(bank.runs)


def test_without_the_key_in_the_database_the_same_kills_move_money_twice(bank: Bank) -> None:
    """The control: a harness that finds nothing here would show nothing above."""
    bank.how = "keyed"
    with hf.open(bank.folder / "runs") as store:
        bank.create(store)
        bank.killed_at("after")
        assert bank.finish() == ["completed"]
        assert bank.entries() == bank.expected() + Counter([f"{bank.runs[0]} 0"])
        assert store.verify().ok
        assert travelled(store) == len(bank.runs)
