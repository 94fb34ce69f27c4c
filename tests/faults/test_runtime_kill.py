"""Workers on one folder under a killer: real processes, SIGKILL and SIGSTOP, tools with every protection,
people who approve, resolve and cancel meanwhile. The outside ledger counts attempts: no effect happens
twice, no run is lost, every run ends.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.faults.processes import BUILD, new_seed, seconds

import holdfast as hf

if TYPE_CHECKING:
    from collections.abc import Callable

WORKERS = 2
LEASE = 1.0
ROOT = Path(__file__).parent.parent.parent


class Fleet:
    """Worker processes on one folder, which are killed and replaced."""

    def __init__(self, folder: Path, rng: random.Random) -> None:
        self.folder, self.rng = folder, rng
        self.environment = {
            **os.environ,
            "HOLDFAST_TEST_ROOT": str(folder),
            "PYTHONPATH": f"{BUILD}{os.pathsep}{ROOT}",
        }
        self.workers = [self._start() for _ in range(WORKERS)]
        self.kills = 0

    def _start(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "holdfast", "worker", "tests.faults.runtime_app:rt"]
        command += ["--lease", str(LEASE), "--concurrency", "4"]
        return subprocess.Popen(
            command, env=self.environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=ROOT
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


def helped(rt: hf.Runtime, sent: Callable[[], list[tuple[str, str]]]) -> int:
    """What people do: approve what is asked, and look at the provider for what is in doubt."""
    resolved = 0
    for request in rt.approvals.list():
        rt.approvals.approve(request.id, by="dana")
    for doubt in rt.effects.list(in_doubt=True):
        happened = any(key == doubt.key for _, key in sent())
        try:
            if happened:
                rt.effects.resolve(doubt.id, by="dana", happened=doubt.arguments["what"])
            else:
                rt.effects.resolve(doubt.id, by="dana", did_not_happen=True)
            resolved += 1
        except hf.HoldfastError as error:
            if error.code not in (
                "permit_may_act",
                "not_in_doubt",
                "run_ended",
                "store_busy",
                "no_such_call",
            ):
                raise
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
    from tests.faults import runtime_app as app

    seed, budget = new_seed(), seconds()
    rng = random.Random(seed)
    kills_wanted = 120 if budget is None else 10**9
    end = time.monotonic() + (budget or 420.0)
    runs: list[str] = []
    cancelled: set[str] = set()
    resolved = 0
    with app.rt as rt:
        fleet = Fleet(tmp_path, rng)
        try:
            while fleet.kills < kills_wanted and time.monotonic() < end:
                while left(rt) < 20:
                    agent = rng.choice((app.busy, app.busy, app.asking))
                    runs.append(rt.start_sync(agent, f"run {len(runs)}").id)
                resolved += helped(rt, app.attempts)
                if rng.random() < 0.03:
                    victim = rng.choice(runs[-20:])
                    if rt.runs.get(victim).status not in ("completed", "failed", "cancelled"):
                        rt.cancel(victim, by="dana")
                        cancelled.add(victim)
                fleet.workers[0].poll()
                _wait(rng.uniform(0.05, 0.5))
                if rng.random() < 0.1:
                    fleet.kill_one(signal.SIGSTOP)
                    _wait(LEASE * 1.5)
                    fleet.go_on()
                else:
                    fleet.kill_one()
            patience = time.monotonic() + 240.0
            while left(rt) and time.monotonic() < patience:
                resolved += helped(rt, app.attempts)
                _wait(0.1)
        finally:
            fleet.end()
        _judge(rt, app.attempts(), runs, cancelled)
        with capsys.disabled():
            print(
                f"\nworkers under a killer: {len(runs)} runs, {len(app.attempts())} effects,"
                f" {fleet.kills} kills, {resolved} doubts resolved by people, {len(cancelled)} cancelled,"
                f" seed {seed}"
            )
        assert resolved > 0, "a kill in the middle of an unprotected write leaves a doubt: none was seen"


def _judge(rt: hf.Runtime, sent: list[tuple[str, str]], runs: list[str], cancelled: set[str]) -> None:
    counts = Counter(what for what, _ in sent)
    twice = {what: count for what, count in counts.items() if count > 1}
    assert twice == {}, "an effect happened twice"
    assert left(rt) == 0, "a run was lost"
    for number, run in enumerate(runs):
        found = rt.runs.get(run)
        if found.status == "cancelled":
            assert run in cancelled
            continue
        assert found.status == "completed", (run, found.error)
        if found.agent == "busy":
            assert {f"run {number} {how}" for how in ("keyed", "reconciled", "unprotected")} <= counts.keys()
            assert found.state == {"half": f"run {number}"}
        else:
            assert {f"run {number} before", f"run {number} approved"} <= counts.keys()
    assert rt.store.verify().ok


def _wait(seconds: float) -> None:
    """A killer's patience: it is the moment of the kill that is random, and nothing is asserted by it."""
    threading.Event().wait(seconds)
