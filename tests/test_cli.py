"""The command line as people use it: what it prints, and its exit codes."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

from holdfast import __version__

if TYPE_CHECKING:
    from pathlib import Path


def holdfast(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "holdfast", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


def test_the_demo_kills_a_worker_and_shows_one_refund_an_approval_and_a_caught_forgery(
    tmp_path: Path,
) -> None:
    done = holdfast("demo", "--folder", str(tmp_path / "demo"))
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    for told in (
        "the worker is dead (SIGKILL)",
        "the provider's own books have 1 refund(s) for order 42",
        "dana approves it from another process (exit 0)",
        "completed, refunded 999.00",
        "holdfast evidence verify: good, under the seal",
        "python evidence.zip, with nothing of Holdfast: GOOD",
        "one bit of a copy is flipped: BAD in run_",
        "All as it should be.",
    ):
        assert told in done.stdout, done.stdout
    listed = json.loads(holdfast("runs", "--store", str(tmp_path / "demo" / "runs"), "--json").stdout)
    assert [run["status"] for run in listed] == ["completed", "completed"]
    again = holdfast("demo", "--folder", str(tmp_path / "demo"))
    assert (again.returncode, "name another folder" in again.stdout) == (1, True)


def test_without_the_ledger_the_demo_shows_two_refunds_and_says_so_by_its_exit_code(tmp_path: Path) -> None:
    done = holdfast("demo", "--without-ledger", "--folder", str(tmp_path / "demo"))
    assert (done.returncode, done.stderr) == (3, ""), done.stdout
    assert "the provider's own books have 2 refund(s) for order 42" in done.stdout


def test_schemas_are_listed_and_printed() -> None:
    listed = holdfast("schema").stdout.split()
    assert len(listed) == 81 + 13
    assert {"run.created", "x.*", "hook_spec"} <= set(listed)
    assert json.loads(holdfast("schema", "--json").stdout) == listed
    schema = json.loads(holdfast("schema", "step.claimed").stdout)
    assert schema["$ref"] == "#/$defs/StepClaimed"
    assert set(schema["$defs"]["StepClaimed"]["required"]) == {"lease_ms", "state_version", "worker"}


def test_wrong_use_is_said_with_exit_code_2() -> None:
    unknown = holdfast("schema", "run.teleported")
    assert (unknown.returncode, unknown.stdout) == (2, "")
    assert unknown.stderr.startswith("unknown_kind: ")
    hidden = holdfast("schema", "\x1b[2J")
    assert (hidden.returncode, "\x1b" in hidden.stderr) == (2, False)
    assert holdfast("teleport").returncode == 2
    assert holdfast("--version").stdout.split() == ["holdfast", __version__]
