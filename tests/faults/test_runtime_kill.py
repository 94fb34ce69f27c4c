"""Workers on one folder under a killer: real processes, SIGKILL and SIGSTOP, tools with every protection,
people who approve, resolve and cancel meanwhile. The outside ledger counts attempts: no effect happens
twice, no run is lost, every run ends, and what the journal says of each run is what its code does again.
"""

from __future__ import annotations

import importlib
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.faults.processes import BUILD, new_seed, seconds
from tests.faults.replays import bundled, replayed

import holdfast as hf

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

WORKERS = 2
LEASE = 1.0
ROOT = Path(__file__).parent.parent.parent


class Fleet:
    """Worker processes on one store, which are killed and replaced."""

    def __init__(self, folder: Path, rng: random.Random, store: str = "") -> None:
        self.folder, self.rng = folder, rng
        self.environment = {
            **os.environ,
            "HOLDFAST_TEST_ROOT": str(folder),
            "HOLDFAST_TEST_STORE": store,
            "PYTHONPATH": f"{BUILD}{os.pathsep}{ROOT}",
        }
        self.workers = [self._start() for _ in range(WORKERS)]
        self.kills = 0

    def _start(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "holdfast", "worker", "tests.faults.runtime_app:rt"]
        command += ["--lease", str(LEASE), "--concurrency", "4"]
        with (self.folder / "workers.err").open("ab") as told:
            return subprocess.Popen(
                command, env=self.environment, stdout=subprocess.DEVNULL, stderr=told, cwd=ROOT
            )

    def kill_one(self, how: signal.Signals = signal.SIGKILL) -> None:
        """Kills a worker, and has another take its place."""
        at = self.rng.randrange(len(self.workers))
        victim = self.workers[at]
        victim.send_signal(how)
        if how == signal.SIGSTOP:
            return
        victim.wait()
        self.kills += 1
        self.workers[at] = self._start()

    def replace_ended(self) -> int:
        """Has others take the places of those that ended by themselves; how many."""
        ended = [at for at, worker in enumerate(self.workers) if worker.poll() is not None]
        for at in ended:
            self.workers[at] = self._start()
        return len(ended)

    def go_on(self) -> None:
        """Wakes those that were stopped."""
        for worker in self.workers:
            worker.send_signal(signal.SIGCONT)

    def end(self) -> None:
        """Ends all of them, in order."""
        self.go_on()
        for worker in self.workers:
            worker.terminate()
        for worker in self.workers:
            worker.wait(timeout=60)


@contextmanager
def perhaps_late(*codes: str) -> Iterator[None]:
    """People see a moment that is over: the worker goes on while they decide, and they are told so."""
    try:
        yield
    except hf.HoldfastError as error:
        if error.code not in ("run_ended", "store_busy", "store_unreachable", *codes):
            raise


def helped(rt: hf.Runtime, sent: Callable[[], list[tuple[str, str]]]) -> int:
    """What people do: approve what is asked, and look at the provider for what is in doubt."""
    resolved = 0
    for request in rt.approvals.list():
        with perhaps_late("approval_over"):
            rt.approvals.approve(request.id, by="dana")
    for doubt in rt.effects.list(in_doubt=True):
        happened = any(key == doubt.key for _, key in sent())
        with perhaps_late("permit_may_act", "not_in_doubt", "no_such_call"):
            if happened:
                rt.effects.resolve(doubt.id, by="dana", happened=doubt.arguments["what"])
            else:
                rt.effects.resolve(doubt.id, by="dana", did_not_happen=True)
            resolved += 1
    return resolved


def left(rt: hf.Runtime) -> int:
    """How many runs have not ended."""
    sql = "SELECT count(*) AS n FROM runs WHERE status NOT IN ('completed', 'failed', 'cancelled')"
    return int(rt.store.sql(sql)[0]["n"])


@pytest.mark.timeout(900)
def test_no_effect_is_repeated_and_no_run_lost_under_a_killer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOLDFAST_TEST_ROOT", str(tmp_path))
    sys.modules.pop("tests.faults.runtime_app", None)
    app = importlib.import_module("tests.faults.runtime_app")  # anew: the package keeps the old one

    seed, budget = new_seed(), seconds()
    rng = random.Random(seed)
    kills_wanted = 200 if budget is None else 10**9
    end = time.monotonic() + (budget or 420.0)
    runs: dict[str, str] = {}
    cancelled: set[str] = set()
    resolved = 0
    with app.rt as rt:
        fleet = Fleet(tmp_path, rng)
        for where in ("before it is sent", "after it was sent"):
            (tmp_path / f"die {where}").touch()
        try:
            while fleet.kills < kills_wanted and time.monotonic() < end:
                while left(rt) < 20:
                    agent = rng.choice((app.busy, app.busy, app.asking, app.twin))
                    name = f"run {len(runs)}"
                    for _ in range(3 if agent is app.twin else 1):
                        runs[rt.start_sync(agent, name).id] = name
                resolved += helped(rt, app.attempts)
                if rng.random() < 0.15:
                    victim = rng.choice(list(runs)[-20:])
                    with perhaps_late():
                        rt.cancel(victim, by="dana")
                        cancelled.add(victim)
                fleet.replace_ended()
                wait(rng.uniform(0.05, 0.5))
                if rng.random() < 0.1:
                    fleet.kill_one(signal.SIGSTOP)
                    wait(LEASE * 1.5)
                    fleet.go_on()
                else:
                    fleet.kill_one()
            patience = time.monotonic() + 240.0
            while left(rt) and time.monotonic() < patience:
                fleet.replace_ended()
                resolved += helped(rt, app.attempts)
                wait(0.1)
        finally:
            fleet.end()
        judge(rt, app.attempts(), runs, cancelled)
        again = replayed(rt, app.attempts)
        assert again == len(runs), "every run has ended, and is run again"
        assert bundled(rt, tmp_path) > 0
        with capsys.disabled():
            print(
                f"\nworkers under a killer: {len(runs)} runs, {len(app.attempts())} effects,"
                f" {fleet.kills} kills, {resolved} doubts resolved by people, {len(cancelled)} cancelled,"
                f" {again} replayed and the same, seed {seed}"
            )
        assert resolved > 0, "a kill in the middle of an unprotected write leaves a doubt: none was seen"


def judge(rt: hf.Runtime, sent: list[tuple[str, str]], runs: dict[str, str], cancelled: set[str]) -> None:
    """No effect twice, no run lost, everything done: ``runs`` are those that were begun, by their names."""
    counts = Counter(what for what, _ in sent)
    twice = {what: count for what, count in counts.items() if count > 1}
    assert twice == {}, "an effect happened twice"
    assert left(rt) == 0, "a run was lost"
    for run, name in runs.items():
        found = rt.runs.get(run)
        if found.status == "cancelled":
            assert run in cancelled
            continue
        assert found.status == "completed", (run, found.error)
        if found.agent == "busy":
            assert {f"{name} {how}" for how in ("keyed", "reconciled", "unprotected")} <= counts.keys()
            assert found.state == {"half": name}
        elif found.agent == "twin":
            did, told = [f"{name} reconciled", f"{name} unprotected"], found.result
            assert told in (did, ["found", did[1]]), "what one of them did is the outcome of all"
            assert {*did} <= counts.keys()
        else:
            assert {f"{name} before", f"{name} approved"} <= counts.keys()
    assert rt.store.verify().ok


def wait(seconds: float) -> None:
    """A killer's patience: it is the moment of the kill that is random, and nothing is asserted by it."""
    threading.Event().wait(seconds)
