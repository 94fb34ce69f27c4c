"""Full disks: a small tmpfs of its own, in a mount namespace of its own, never the machine's disk.

What does not fit is refused with ``disk_full`` and leaves nothing behind; reading goes on; the outcomes of
work that was begun still fit; and with room again the same handle goes on. Runs as root or in a user
namespace.
"""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING, Any, NoReturn

import pytest
from tests.faults import disks

import holdfast as hf

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture
def told(tmp_path: Path, not_run: Callable[[str], NoReturn]) -> Callable[[str], dict[str, Any]]:
    """Runs a scenario of full.py on a small disk and returns what it saw."""

    def run(scenario: str) -> dict[str, Any]:
        command = disks.in_namespace([sys.executable, "-m", "tests.faults.full", scenario, str(tmp_path)])
        if command is None:
            not_run("a small disk needs unshare and a mount namespace")
        done = subprocess.run(command, env=disks.environment(), capture_output=True, text=True, check=False)
        answer: dict[str, Any] = disks.answer(done)
        return answer

    return run


def test_a_full_disk_refuses_new_work_and_has_room_for_outcomes(
    told: Callable[[str], dict[str, Any]],
) -> None:
    assert told("outcomes") == {
        "append": "disk_full",
        "create_run": "disk_full",
        "put_blob": "disk_full",
        "left_over": [],
        "read": True,
        "verify": [],
        "patch": "accepted: 1",
        "finish": "accepted: None",
        "fail": "accepted: None",
        "verify_after_outcomes": [],
        "statuses": ["completed", "failed", "pending", "running"],
        "append_again": "accepted: 3",
        "blob_again": "accepted",
        "finish_again": "accepted: None",
        "poisoned": False,
        "verify_reopened": [],
        "reserve_again": 1 << 20,
    }


def test_work_that_goes_on_asking_does_not_eat_the_room_for_outcomes(
    told: Callable[[str], dict[str, Any]],
) -> None:
    seen = told("reserve")
    assert [code for code, _, _ in seen["rounds"]] == ["disk_full"] * 5
    assert [finished for _, _, finished in seen["rounds"]] == ["accepted: None"] * 5
    assert seen["verify"] == []


def test_a_store_on_a_full_disk_is_not_made_or_opened_until_there_is_room(
    told: Callable[[str], dict[str, Any]],
) -> None:
    seen = told("opening")
    assert seen.pop("read") in ("accepted: 3", "disk_full")
    assert seen == {
        "make": "disk_full",
        "open": "disk_full",
        "make_again": "accepted",
        "open_again": "accepted",
        "read_again": "accepted: 3",
    }


def test_a_full_disk_while_the_log_is_written_back_is_only_a_full_disk(
    told: Callable[[str], dict[str, Any]],
) -> None:
    assert told("write_back") == {
        "refused": ["disk_full"],
        "went": True,
        "poisoned": False,
        "append_again": "accepted",
        "verify": [],
    }


def test_a_backup_and_a_restore_that_do_not_fit_leave_nothing_behind(
    told: Callable[[str], dict[str, Any]],
) -> None:
    assert told("backups") == {
        "backup": "disk_full",
        "restore": "disk_full",
        "left_over": ["filler", "kept", "store"],
        "append": "accepted: 6",
        "verify": [],
        "backup_again": "accepted",
        "restore_again": "accepted",
    }


def test_a_limit_on_file_sizes_refuses_what_does_not_fit_and_loses_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    with hf.open(folder) as store:
        run = store.create_run(agent="a", input=1)
        kept = (folder / "holdfast.db-wal").stat().st_size
        before, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (kept + 10_000, hard))  # Python ignores SIGXFSZ
        try:
            blob = disks.refusal(store.put_blob, os.urandom(kept + 20_000))
            codes = [disks.refusal(store.append, run, "note.logged", {"text": "x" * 5000}) for _ in range(8)]
            read = len(list(store.read(run)))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (before, hard))
    accepted = [code for code in codes if code.startswith("accepted")]
    assert blob == "disk_full"
    assert [path for path in (folder / "blobs").rglob("*") if path.is_file()] == []
    # To SQLite it is a failed write like any other: the store may stop, but it must say so and lose nothing.
    assert set(codes) - set(accepted) in ({"disk_full"}, {"store_failed", "store_poisoned"})
    assert read == 2 + len(accepted)
    assert hf.doctor(folder).healthy
    with hf.open(folder) as store:
        assert len(list(store.read(run))) == read
        store.append(run, "note.logged", {"text": "room again"}, barrier=True)
        assert store.verify().ok


@pytest.mark.parametrize("call", ["pwrite64", "fallocate"])
def test_no_space_at_any_write_refuses_that_command_only(
    call: str, tmp_path: Path, not_run: Callable[[str], NoReturn]
) -> None:
    if shutil.which("strace") is None:
        not_run("errors of single calls need strace")
    folder = tmp_path / "store"
    with hf.open(folder) as store:
        store.create_run(agent="slots", input=0, key="slot-0")
    (folder / "holdfast.reserve").unlink()
    inject = f"inject={call}:error=ENOSPC:when=1..6"
    command = ["strace", "-f", "-qq", "-o", str(tmp_path / "trace"), "-P", str(folder / "holdfast.db-wal")]
    command += ["-P", str(folder / "holdfast.reserve"), "-e", f"trace={call}", "-e", inject]
    role = disks.role("insist", folder)
    done = subprocess.run(
        [*command, *role], env=disks.environment(), capture_output=True, text=True, check=False
    )
    codes = disks.answer(done)
    refused = [code for code in codes if code != "accepted"]
    assert set(refused) <= {"disk_full"}
    assert codes[-1] == "accepted"
    assert "(INJECTED)" in (tmp_path / "trace").read_text()
    assert bool(refused) == (call == "pwrite64")  # without a reserve, outcomes are not safer than the rest
    assert not (folder / "POISONED").exists()
    found, wrong = disks.survivors(folder)
    assert wrong == []
    assert found[0] == codes.count("accepted")
