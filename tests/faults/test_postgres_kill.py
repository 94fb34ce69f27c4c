"""Workers on one PostgreSQL under a killer: SIGKILL and SIGSTOP of workers, backends that are terminated,
also while they commit, a server that crashes and comes back, and a line to it that is cut and delayed at
random, also right after a COMMIT. The outside ledger counts attempts: no effect happens twice, nothing that
was acknowledged is lost, every run ends.
"""

from __future__ import annotations

import importlib
import random
import signal
import sys
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING

import psycopg
import pytest
from tests.faults.pg_proxy import Fate, Proxy
from tests.faults.processes import new_seed, seconds
from tests.faults.test_runtime_kill import LEASE, Fleet, helped, judge, left, wait

import holdfast as hf

if TYPE_CHECKING:
    from pathlib import Path

    from tests.postgres import Server

pytest_plugins = ["tests.postgres"]
FAULTS = 40
"""How many the short tier has; the long one goes on as long as it may."""
SHORT = 45.0
OPEN = 10
"""Runs that are under way at any time."""
PATIENCE = 90.0
"""Seconds in which everything ends when nobody is killed any more."""
TERMINATE = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity"


def away(error: hf.errors.StoreError) -> None:
    """The one thing that anybody may be told here: what was asked for may have happened or not."""
    if error.code != "store_unreachable":
        raise error


class Weather:
    """What becomes of the messages on the line, until it clears up."""

    def __init__(self, server: Server, rng: random.Random) -> None:
        self.address, self.rng = server.schema(), rng
        self.clear = False
        self.cut = {Fate.CUT: 0, Fate.BLIND: 0, Fate.LOST: 0}
        self.terminated = 0

    def __call__(self, is_commit: bool) -> Fate:
        drawn = 1.0 if self.clear else self.rng.random()
        fate = Fate.GO
        if is_commit and drawn < 0.03:
            fate = self.rng.choice((Fate.CUT, Fate.BLIND, Fate.LOST))
        elif is_commit and drawn < 0.04:
            threading.Thread(target=self.terminate, args=("state <> 'idle'",)).start()
        elif drawn < 0.0005:
            fate = Fate.CUT
        elif drawn < 0.002:
            wait(self.rng.uniform(0, 0.2))
        if fate is not Fate.GO:
            self.cut[fate] += 1
        return fate

    def terminate(self, which: str) -> None:
        """Ends backends, if the server is there."""
        sql = f"{TERMINATE} WHERE application_name LIKE 'holdfast %' AND {which}"
        with suppress(psycopg.OperationalError), psycopg.connect(self.address) as other:
            self.terminated += other.execute(sql.encode()).fetchall()[0][0]


class Notes:
    """A log that is written through the same weather: what was acknowledged stays."""

    def __init__(self, url: str) -> None:
        self.store = hf.open(url)
        self.run = self.store.create_run(agent="log")
        self.asked: list[str] = []
        self.acknowledged: list[str] = []

    def write(self) -> None:
        text = str(len(self.asked))
        self.asked.append(text)
        try:
            self.store.append(self.run, "note.logged", {"text": text}, barrier=True)
        except hf.errors.StoreError as error:
            away(error)
        else:
            self.acknowledged.append(text)

    def judge(self, store: hf.Store) -> None:
        found = [record.value["text"] for record in store.read(self.run) if record.kind == "note.logged"]
        assert found == [text for text in self.asked if text in set(found)], "a note is there twice"
        assert set(self.acknowledged) <= set(found), "what was acknowledged is lost"


class Killer:
    """Does the worst, one thing at a time."""

    def __init__(self, fleet: Fleet, server: Server, weather: Weather) -> None:
        self.fleet, self.server, self.weather = fleet, server, weather
        self.done = {"kill": 0, "stop": 0, "terminate": 0, "crash": 0}

    def strike(self) -> None:
        """The next fault."""
        (what,) = self.fleet.rng.choices([*self.done], weights=(5, 2, 5, 1))
        self.done[what] += 1
        if what == "kill":
            self.fleet.kill_one()
        elif what == "stop":
            self.fleet.kill_one(signal.SIGSTOP)
            wait(LEASE * 1.5)
            self.fleet.go_on()
        elif what == "terminate":
            self.weather.terminate("random() < 0.5")
        else:
            self.server.restart()


def begin(rt: hf.Runtime, runs: dict[str, str], agent: hf.Agent[..., object], name: str) -> None:
    """Begins a run; one that was not acknowledged may be there or not, and ends all the same."""
    try:
        runs[rt.start_sync(agent, name).id] = name
    except hf.errors.StoreError as error:
        away(error)


def people(rt: hf.Runtime, sent: list[tuple[str, str]]) -> int:
    """What people do; whoever is told that the server is away comes back later."""
    try:
        return helped(rt, lambda: sent)
    except hf.errors.StoreError as error:
        away(error)
        return 0


def stuck(rt: hf.Runtime, log: str) -> str:
    """The runs that do not end, and what they did last."""
    sql = "SELECT id, status, reason FROM runs WHERE status NOT IN ('completed', 'failed', 'cancelled')"
    told = ["these runs do not end:"]
    for row in rt.store.sql(sql):
        if row["id"] != log:
            told.append(f"{row} {rt.runs.get(row['id']).steps}")
            told += [f"  {record.seq} {record.at} {record.body}" for record in rt.store.read(row["id"])]
    return "\n".join(told)


@pytest.mark.timeout(900)
def test_a_fleet_repeats_and_loses_nothing_whatever_becomes_of_the_server_and_the_line(
    tmp_path: Path,
    postgres_running: Server,
    postgres_url: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("HOLDFAST_TEST_ROOT", str(tmp_path))
    monkeypatch.setenv("HOLDFAST_TEST_STORE", postgres_url)
    sys.modules.pop("tests.faults.runtime_app", None)
    app = importlib.import_module("tests.faults.runtime_app")  # anew: the package keeps the old one

    seed, budget = new_seed(), seconds()
    rng = random.Random(seed)
    end = time.monotonic() + (budget or SHORT)
    runs: dict[str, str] = {}
    began = resolved = ended = 0
    with Proxy(postgres_running.folder) as proxy, app.rt as rt:
        notes, weather = Notes(proxy.url(postgres_url)), Weather(postgres_running, rng)
        proxy.judge = weather
        fleet = Fleet(tmp_path, rng, proxy.url(postgres_url))
        killer = Killer(fleet, postgres_running, weather)
        try:
            while time.monotonic() < end and (budget or sum(killer.done.values()) < FAULTS):
                while left(rt) < OPEN + 1:  # the log is open too
                    agent = rng.choice((app.busy, app.busy, app.asking, app.twin))
                    for _ in range(3 if agent is app.twin else 1):
                        begin(rt, runs, agent, f"run {began}")
                    began += 1
                notes.write()
                resolved += people(rt, app.attempts())
                wait(rng.uniform(0.05, 0.5))
                killer.strike()
                ended += fleet.replace_ended()
            weather.clear = True
            patience = time.monotonic() + PATIENCE
            while left(rt) > 1 and time.monotonic() < patience:
                ended += fleet.replace_ended()
                resolved += people(rt, app.attempts())
                wait(0.1)
        finally:
            fleet.end()
        assert left(rt) == 1, stuck(rt, notes.run)
        notes.judge(rt.store)
        notes.store.close()
        rt.cancel(notes.run, by="dana")
        judge(rt, app.attempts(), runs, set())
        with capsys.disabled():
            cut = sum(weather.cut.values())
            print(
                f"\na fleet on PostgreSQL: {len(runs)} of {began} runs acknowledged,"
                f" {len(app.attempts())} effects, {killer.done}, {weather.terminated} backends ended,"
                f" {cut} lines cut, {ended} workers gave up, {resolved} doubts,"
                f" {len(notes.acknowledged)} of {len(notes.asked)} notes, seed {seed}"
            )
