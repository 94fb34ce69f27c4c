"""Workers that pay are killed at every point of a payment, and another takes over: the provider's own ledger
has one payment, whichever way the doubt was ended. A ledger that is not asked shows two.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from tests.faults.gateway_worker import Provider
from tests.faults.processes import environment
from tests.faults.replays import travelled

import holdfast as hf

if TYPE_CHECKING:
    from pathlib import Path

POINTS = ("claimed", "before", "after", "settled")


class Worker:
    """A process that works on the step, and stops at a point."""

    def __init__(self, folder: Path, which: str, *stops: str) -> None:
        command = [sys.executable, "-m", "tests.faults.gateway_worker"]
        command += [str(folder / "runs"), str(folder / "ledger"), which, *stops]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def until(self, point: str) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.strip() == point:
                return
        assert self.process.stderr is not None
        raise AssertionError(f"it never came to {point}: {self.process.stderr.read()}")

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.communicate(timeout=60)

    def says(self) -> list[str]:
        told, errors = self.process.communicate(timeout=60)
        assert self.process.returncode == 0, errors
        return told.split()


def killed_at(folder: Path, which: str, point: str) -> tuple[str, Provider]:
    """A run whose worker was killed at a point of its payment."""
    with hf.open(folder / "runs") as store:
        run = store.create_run(agent="support")
    worker = Worker(folder, which, point)
    worker.until(point)
    worker.kill()
    return run, Provider(folder / "ledger")


@pytest.mark.parametrize("which", ["keyed", "reconciled"])
@pytest.mark.parametrize("point", POINTS)
def test_the_next_worker_goes_on_and_there_is_one_payment(tmp_path: Path, which: str, point: str) -> None:
    run, provider = killed_at(tmp_path, which, point)
    assert Worker(tmp_path, which).says()[-1] == "completed"
    assert len(provider.paid()) == 1
    with hf.open(tmp_path / "runs") as store:
        assert store.state(run)["status"] == "completed"
        assert store.verify().ok
        assert travelled(store) == 1


@pytest.mark.parametrize("point", ["before", "after"])
def test_where_nobody_can_know_the_run_waits_and_a_person_looks(tmp_path: Path, point: str) -> None:
    run, provider = killed_at(tmp_path, "plain", point)
    paid = len(provider.paid())
    assert paid == (1 if point == "after" else 0)
    assert Worker(tmp_path, "plain").says()[-1] == "waiting"
    assert len(provider.paid()) == paid, "never a silent repeat"
    with hf.open(tmp_path / "runs") as store:
        (doubt,) = hf.Effects(store).list()
        assert doubt.cause == "crashed"
        if paid:
            assert doubt.key in provider.paid()
            hf.Effects(store).resolve(doubt.id, by="dana", happened="receipt by hand")
        else:
            hf.Effects(store).resolve(doubt.id, by="dana", did_not_happen=True)
    assert Worker(tmp_path, "plain").says()[-1] == "completed"
    assert len(provider.paid()) == 1
    with hf.open(tmp_path / "runs") as store:
        assert store.state(run)["status"] == "completed"
        assert store.verify().ok
        assert travelled(store) == 1


def test_a_worker_that_was_stopped_before_its_body_is_harmless_when_it_wakes_up_late(tmp_path: Path) -> None:
    """SIGSTOP just before the body's last check is SIGKILL as far as the store knows, until it wakes up."""
    with hf.open(tmp_path / "runs") as store:
        store.create_run(agent="support")
    zombie = Worker(tmp_path, "plain", "claimed")
    zombie.until("claimed")
    zombie.process.send_signal(signal.SIGSTOP)
    with hf.open(tmp_path / "runs") as store:
        assert store.claim(worker="w2", lease=30) is None, "the lease holds while the process lives"
    zombie.process.send_signal(signal.SIGCONT)
    assert zombie.process.stdin is not None
    zombie.process.stdin.write("\n")
    zombie.process.stdin.flush()
    assert zombie.says()[-1] == "completed"
    assert len(Provider(tmp_path / "ledger").paid()) == 1


def test_without_the_journal_the_same_kill_pays_twice(tmp_path: Path) -> None:
    """The control: a worker that starts anew, under another key, as code without a ledger does."""
    _, provider = killed_at(tmp_path, "plain", "after")
    with hf.open(tmp_path / "runs") as store:
        store.create_run(agent="support", priority=9)
    assert Worker(tmp_path, "plain").says()[-1] == "completed"
    assert len(provider.paid()) == 2


def synced(folder: Path, build: str | None, mutant: str | None) -> int:
    command = [sys.executable, "-m", "tests.faults.gateway_worker", "syncs", str(folder)]
    told = subprocess.run(
        command, env=environment(build, mutant), capture_output=True, text=True, timeout=60, check=True
    )
    return int(told.stdout)


def test_no_body_begins_before_a_sync_and_a_build_without_that_is_seen(tmp_path: Path, mutants: str) -> None:
    assert synced(tmp_path / "ours", None, None) == 1
    assert synced(tmp_path / "broken", mutants, "EarlyPermit") == 0
