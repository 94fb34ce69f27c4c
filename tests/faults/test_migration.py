"""A further migration, synthetic, killed before, between and after each of its statements.

The build with planted faults knows it (``HOLDFAST_NEXT_MIGRATION``) and dies where it is told to
(``HOLDFAST_DIE_AT_STATEMENT``). What must hold: the schema is the old one or the new one and never half of
it, nothing is lost, a process of the old schema goes on where it may and is refused where it may not.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

import holdfast as hf

if TYPE_CHECKING:
    from pathlib import Path

OPENED = """
import json, sys, holdfast as hf
try:
    with hf.open(sys.argv[1], migrate=sys.argv[2] == "migrate") as store:
        store.append(sys.argv[3], "note.logged", {"text": "after"}, barrier=True)
        applied = [row["number"] for row in store.sql("SELECT number FROM migrations ORDER BY number")]
        print(json.dumps({"ok": store.verify().ok, "applied": applied}))
except hf.HoldfastError as error:
    print(json.dumps({"code": error.code}))
"""
STATEMENTS = 5


def opened(
    build: str, folder: Path, run: str, *, second: str = "", migrate: bool = False, die: int = -1
) -> Any:
    """What a process of the build says that opens the store; None if it died."""
    environment = os.environ | {"PYTHONPATH": build, "HOLDFAST_NEXT_MIGRATION": second}
    environment |= {"HOLDFAST_DIE_AT_STATEMENT": str(die)}
    command = [sys.executable, "-c", OPENED, str(folder), "migrate" if migrate else "", run]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=60)
    return json.loads(done.stdout) if done.returncode == 0 else None


@pytest.fixture
def folder(tmp_path: Path) -> tuple[Path, str]:
    """A store of the schema before it, with something in it."""
    with hf.open(tmp_path / "runs") as store:
        run = store.create_run(agent="import", input={"file": "a.csv"})
        store.append(run, "note.logged", {"text": "before"})
    return tmp_path / "runs", run


@pytest.mark.parametrize("second", ["additive", "breaking"])
def test_a_migration_that_dies_anywhere_leaves_the_old_schema_or_the_new_one(
    second: str, folder: tuple[Path, str], mutants: str
) -> None:
    path, run = folder
    for die in range(STATEMENTS + 2):
        assert opened(mutants, path, run, second=second, migrate=True, die=die) is None
        assert opened(mutants, path, run) == {"ok": True, "applied": [1, 2]}, f"died at {die}"
    # Killed after COMMIT, the migration is done.
    assert opened(mutants, path, run, second=second, migrate=True, die=STATEMENTS + 2) is None
    assert opened(mutants, path, run, second=second) == {"ok": True, "applied": [1, 2, 3]}


def test_an_additive_migration_is_applied_on_opening_and_older_processes_go_on(
    folder: tuple[Path, str], mutants: str
) -> None:
    path, run = folder
    with hf.open(path) as old:
        assert opened(mutants, path, run, second="additive") == {"ok": True, "applied": [1, 2, 3]}
        old.append(run, "note.logged", {"text": "still here"}, barrier=True)
        assert old.verify().ok


def test_a_breaking_one_waits_until_it_is_asked_for_and_no_older_process_is_there(
    folder: tuple[Path, str], mutants: str
) -> None:
    path, run = folder
    assert opened(mutants, path, run, second="breaking") == {"code": "migration_needed"}
    with hf.open(path) as old:
        assert opened(mutants, path, run, second="breaking", migrate=True) == {"code": "migration_needed"}
        old.append(run, "note.logged", {"text": "undisturbed"})
    assert opened(mutants, path, run, second="breaking", migrate=True) == {"ok": True, "applied": [1, 2, 3]}
    with pytest.raises(hf.StoreError) as refused:
        hf.open(path)
    assert refused.value.code == "newer_store"
    with pytest.raises(hf.StoreError) as refused:
        hf.open(path, read_only=True)
    assert refused.value.code == "newer_store"
