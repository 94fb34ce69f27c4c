"""The command line as people use it: what it prints, and its exit codes."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

from rich.console import Console

from holdfast import __version__, demo

if TYPE_CHECKING:
    import pytest


def holdfast(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "holdfast", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def test_the_demo_plays_verifies_and_catches_every_forgery() -> None:
    done = holdfast("demo")
    assert (done.returncode, done.stderr) == (0, "")
    for told in (
        "stale_fence, nothing written",
        "verified: 13 records",
        "one byte of record 3 changed: chain_broken at record 4",
        "record 5 removed: record_missing at record 5",
        "records 6 and 7 swapped: record_missing at record 6",
        "the end cut off: head_mismatch at record 10",
        "another amount put beside record 4: content_forged at record 4",
    ):
        assert told in done.stdout


def test_a_forgery_that_is_not_found_fails_the_demo(monkeypatch: pytest.MonkeyPatch) -> None:
    def untouched(
        records: list[bytes], openings: dict[str, Any]
    ) -> list[tuple[str, list[bytes], dict[str, Any]]]:
        return [("nothing changed", records, openings)]

    monkeypatch.setattr(demo, "forgeries", untouched)
    out = io.StringIO()
    assert demo.main(Console(file=out)) == 3
    assert "nothing changed: NOT FOUND" in out.getvalue()


def test_schemas_are_listed_and_printed() -> None:
    listed = holdfast("schema").stdout.split()
    assert len(listed) == 79 + 13
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
