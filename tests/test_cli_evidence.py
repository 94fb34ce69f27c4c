"""The past from the command line, on a program of one's own."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from tests.test_cli_runs import PROGRAM, holdfast, told

from holdfast import testing

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import holdfast as hf


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "program.py").write_text(PROGRAM)
    return tmp_path


@contextmanager
def program(folder: Path) -> Iterator[hf.Runtime]:
    """The program in this process, which is faster than one more."""
    names: dict[str, Any] = {}
    exec(compile(PROGRAM.replace('"runs"', repr(str(folder / "runs"))), "program", "exec"), names)
    with names["rt"] as rt:
        yield rt


def paid(folder: Path, cents: int, monkeypatch: pytest.MonkeyPatch) -> str:
    """A run that paid, after somebody approved."""
    monkeypatch.chdir(folder)
    with program(folder) as rt:
        run = rt.run_sync("payer", cents)
        testing.approve_all(rt)
        assert rt.resume_sync(run).status == "completed"
        return run.id


def test_a_run_is_travelled_through(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = paid(folder, 7, monkeypatch)
    frames: list[Any] = told(folder, "travel", run)
    asked = next(frame for frame in frames if "approval.requested" in frame["records"])
    then = told(folder, "travel", run, "--at", str(asked["last"] + 1))
    assert (then["status"], then["ledger"][0]["phase"], len(then["approvals"])) == ("waiting", "open", 1)
    now = told(folder, "travel", run, "--at", str(frames[-1]["last"]))
    assert (now["status"], now["ledger"][0]["result"], now["approvals"]) == ("completed", "paid 7", [])
    shown = holdfast(folder, "travel", run).stdout
    assert "pay settled succeeded" in shown
    assert "hf_" in holdfast(folder, "travel", run, "--at", str(frames[-1]["last"])).stdout
    assert holdfast(folder, "travel", run, "--at", "999").stderr.startswith(
        "bad_value: the run has no record"
    )


def test_a_run_is_replayed_and_other_code_diverges(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = paid(folder, 7, monkeypatch)
    assert told(folder, "replay", "program:rt", run)["verdict"] == "same"
    program = (folder / "program.py").read_text()
    (folder / "program.py").write_text(program.replace("pay, cents=cents", "pay, cents=cents + 1"))
    diverged = told(folder, "replay", "program:rt", run, code=3)
    divergence = diverged["steps"][0]["divergence"]
    assert (diverged["verdict"], divergence["recorded"][0]["arguments"]) == ("diverged", {"cents": 7})
    assert divergence["attempted"]["arguments"] == {"cents": 8}
    shown = holdfast(folder, "replay", "program:rt", run)
    assert shown.returncode == 3
    assert "attempted  pay({'cents': 8})" in shown.stdout
    assert (folder / "ledger").read_text() == "7\n"


def test_a_run_is_kept_as_a_golden_one_and_compared(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second, other = (
        paid(folder, 7, monkeypatch),
        paid(folder, 7, monkeypatch),
        paid(folder, 8, monkeypatch),
    )
    assert told(folder, "evidence", "diff", first, second) == []
    assert holdfast(folder, "evidence", "golden", first, "--out", "kept.json").returncode == 0
    assert holdfast(folder, "evidence", "diff", "kept.json", second).stdout == "no difference\n"
    found = told(folder, "evidence", "diff", "kept.json", other, code=3)
    assert {one["dimension"] for one in found} == {"approvals", "arguments", "outcome", "results"}
    for dimensions, code in (("state,events", 0), ("state,results", 3), ("all", 3)):
        done = holdfast(folder, "evidence", "diff", "kept.json", other, "--fail-on", dimensions)
        assert done.returncode == code, dimensions
    assert holdfast(folder, "evidence", "diff", first, other, "--fail-on", "colour").returncode == 2
    assert holdfast(folder, "evidence", "diff", "program.py", other).returncode == 1
    assert holdfast(folder, "evidence", "diff", "kept.json", "kept.json").returncode == 0


def test_a_run_is_reviewed_and_its_costs_and_failures_are_attributed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = paid(folder, 7, monkeypatch)
    with program(folder) as rt:
        waits = rt.run_sync("payer", 9).id
        for _ in range(2):
            assert rt.run_sync("failer").status == "failed"
    fine = told(folder, "evidence", "review", done, "--max-usd", "1")
    assert fine["ok"]
    blocked = told(folder, "evidence", "review", waits, code=3)
    failed = {one["check"] for one in blocked["findings"] if not one["passed"]}
    assert failed == {"open_approvals", "unfinished", "unsealed"}
    shown = holdfast(folder, "evidence", "review", waits)
    assert (shown.returncode, "pay waits for 1 to approve it" in shown.stdout) == (3, True)
    (costs,) = told(folder, "evidence", "costs", "--by", "tool")
    assert (costs["name"], costs["calls"], costs["runs"]) == ("pay", 1, 1)
    (failure,) = told(folder, "evidence", "failures")
    assert (failure["owner"], failure["error"], failure["count"]) == ("agent", "ValueError", 2)
    assert failure["signature"] in holdfast(folder, "evidence", "failures").stdout
    assert "pay" in holdfast(folder, "evidence", "costs", "--by", "tool").stdout
    assert holdfast(folder, "evidence", "costs", "--by", "colour").returncode == 2
