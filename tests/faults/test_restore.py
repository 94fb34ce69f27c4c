"""A restored store gives out no fence that was ever given out, and nothing runs before a person looked."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

import holdfast as hf

if TYPE_CHECKING:
    from pathlib import Path

RESTORED = "import sys, holdfast as hf; print(hf.restore(sys.argv[1], sys.argv[2])['epoch'])"


@pytest.fixture
def backup(tmp_path: Path) -> Path:
    """Taken while a worker held a step."""
    with hf.open(tmp_path / "runs") as store:
        store.create_run(agent="import")
        claim = store.claim(worker="w1")
        assert claim is not None
        assert claim.fence == (1, 1)
        store.backup(tmp_path / "backup")
    return tmp_path / "backup"


def test_fences_grow_across_a_restore_and_open_runs_wait_for_a_person(backup: Path, tmp_path: Path) -> None:
    assert hf.restore(backup, tmp_path / "again")["waiting"] == 1
    with hf.open(tmp_path / "again") as store:
        [row] = store.sql("SELECT id, status FROM runs")
        assert (store.epoch, row["status"], store.claim(worker="w2")) == (2, "waiting", None)
        store.resume(row["id"], by="dana")
        claim = store.claim(worker="w2")
        assert claim is not None
        assert claim.fence > (1, 1)
        assert claim.fence[0] == 2
        assert store.verify().ok


@pytest.mark.parametrize(("mutant", "told"), [("", "2"), ("KeepEpoch", "record_illegal")])
def test_a_restore_that_keeps_its_epoch_is_refused_by_the_fold(
    backup: Path, tmp_path: Path, mutants: str, mutant: str, told: str
) -> None:
    environment = os.environ | {"PYTHONPATH": mutants, "HOLDFAST_MUTANT": mutant}
    command = [sys.executable, "-c", RESTORED, str(backup), str(tmp_path / "again")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode == 0, told in (done.stderr if mutant else done.stdout)) == (not mutant, True), (
        done
    )
