"""Writes and syncs that fail: the n-th sync by the preload library (which lies about that file from then
on, as Linux does), the n-th call of any kind by strace.

The command that meets it raises; nothing is acknowledged through that handle afterwards; a ``POISONED``
mark stops every other process until ``doctor`` has looked at what is on the disk; and then everything that
was acknowledged before is there. A build that ignores the poison goes on in the same harness.
"""

from __future__ import annotations

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

FAILED = {"store_failed", "store_poisoned"}
LIMIT = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return disks.compile_shim(tmp_path_factory.mktemp("shim"))


def fail(
    folder: Path, library: Path, at: int, *, package: str | None = None, mutant: str | None = None
) -> tuple[disks.Disk, dict[str, Any], int]:
    """A child whose ``at``-th sync of a file fails: its disk, what it told, what was acknowledged."""
    disk = disks.Disk(folder, library)
    variables = disk.variables(SHIM_FAIL_AT=str(at))
    command = disks.role("failing", disk.store, folder / "counters")
    environment = disks.environment(package=package, mutant=mutant, **variables)
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    told: dict[str, Any] = disks.answer(done)
    return disk, told, disks.Counters(folder / "counters").all()[0]


def stopped(told: dict[str, Any]) -> list[str]:
    """What went on although it should not have."""
    return [f"{name}: {code}" for name, code in told["later"].items() if code != "store_poisoned"]


def cured(folder: Path, acknowledged: int) -> None:
    """Doctor finds the store well; then it opens, verifies and holds what was acknowledged."""
    findings = hf.doctor(folder)
    assert findings.healthy, findings
    assert findings.poisoned is not None
    assert not (folder / "POISONED").exists()
    found, wrong = disks.survivors(folder)
    assert wrong == []
    assert found[0] >= acknowledged


@LIMIT
def test_a_failed_sync_stops_every_process_until_doctor_has_looked(
    library: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    points, poisoned, acknowledged = 0, 0, 0
    for at in range(1, 40):
        disk, told, due = fail(tmp_path / str(at), library, at)
        if told["code"] is None:
            break
        points, acknowledged = points + 1, acknowledged + due
        assert told["code"] in FAILED, told
        if told["later"]:
            poisoned += 1
            assert stopped(told) == [], f"sync {at}"
            assert told["reads"].startswith("accepted"), "what is there can still be read"
            assert disks.refusal(hf.open, disk.store) == "store_poisoned"
            # What the page cache holds may never reach the disk: the mark did, and doctor looks at the rest.
            disk.after_cut(tmp_path / f"{at}-cut")
            assert disks.refusal(hf.open, tmp_path / f"{at}-cut/store") == "store_poisoned"
            cured(tmp_path / f"{at}-cut/store", due)
            cured(disk.store, due)
        else:  # it failed while the store was opened: nothing was promised, and the next one may try again
            assert due == 0
            if (disk.store / "POISONED").exists():
                assert hf.doctor(disk.store).healthy
            found, wrong = disks.survivors(disk.store)
            assert (found[0], wrong) == (0, [])
    assert points > 10
    assert poisoned > 10
    disks.tell(
        request,
        f"failed syncs: {points} points, {poisoned} poisoned, {acknowledged} acknowledged before, 0 lost",
    )


@LIMIT
def test_a_build_that_ignores_the_poison_goes_on(
    library: Path, tmp_path: Path, request: pytest.FixtureRequest, mutants: str
) -> None:
    _, told, _ = fail(tmp_path / "a", library, 9, package=mutants, mutant="IgnorePoison")
    assert told["code"] is not None
    went_on = stopped(told)
    disks.tell(request, f"failed syncs, control IgnorePoison: went on with {', '.join(went_on)[:60]}...")
    assert went_on


def traced(folder: Path, at: int, call: str, error: str) -> tuple[dict[str, Any], int, bool]:
    """A child whose ``at``-th call on the log or the database fails."""
    folder.mkdir()
    store = folder / "store"
    with hf.open(store) as opened:
        opened.create_run(agent="slots", input=0, key="slot-0")
    paths = [word for name in ("holdfast.db", "holdfast.db-wal") for word in ("-P", str(store / name))]
    inject = f"inject={call}:error={error}:when={at}"
    trace = ["strace", "-f", "-qq", "-o", str(folder / "trace"), *paths, "-e", f"trace={call}", "-e", inject]
    command = [*trace, *disks.role("failing", store, folder / "counters")]
    done = subprocess.run(command, env=disks.environment(), capture_output=True, text=True, check=False)
    told: dict[str, Any] = disks.answer(done)
    met = "(INJECTED)" in (folder / "trace").read_text()
    return told, disks.Counters(folder / "counters").all()[0], met


@LIMIT
@pytest.mark.parametrize("call", ["pwrite64", "fdatasync", "ftruncate"])
def test_a_failed_write_is_never_acknowledged_and_stops_the_store(
    call: str, tmp_path: Path, request: pytest.FixtureRequest, not_run: Callable[[str], NoReturn]
) -> None:
    if shutil.which("strace") is None:
        not_run("errors of single calls need strace")
    points, raised, acknowledged = 0, 0, 0
    for at in (1, 2, 3, 5, 8, 13, 21, 34):
        told, due, met = traced(tmp_path / str(at), at, call, "EIO")
        if not met:
            break
        points, acknowledged, store = points + 1, acknowledged + due, tmp_path / str(at) / "store"
        if told["code"] is None:  # met while closing, when nothing was promised any more
            assert due == 12
        else:
            raised += 1
            assert told["code"] in FAILED, told
            assert stopped(told) == []
        if (store / "POISONED").exists():
            assert disks.refusal(hf.open, store) == "store_poisoned"
            cured(store, due)
        found, wrong = disks.survivors(store)
        assert wrong == []
        assert found[0] >= due
    disks.tell(
        request, f"failed {call}: {points} points, {raised} raised, {acknowledged} acknowledged, 0 lost"
    )
    assert raised or call == "ftruncate"


@LIMIT
def test_a_failed_read_is_told_and_skips_nothing(tmp_path: Path, not_run: Callable[[str], NoReturn]) -> None:
    if shutil.which("strace") is None:
        not_run("errors of single calls need strace")
    met = 0
    for at in (1, 2, 3, 5, 8, 13):
        told, due, injected = traced(tmp_path / str(at), at, "pread64", "EIO")
        met += injected
        if injected and told["code"] is not None:
            assert told["code"] in {*FAILED, "store_corrupt", "not_a_store"}, told
        store = tmp_path / str(at) / "store"
        if (store / "POISONED").exists():
            cured(store, due)
        found, wrong = disks.survivors(store)
        assert wrong == []
        assert found[0] >= due
    assert met > 3


WRITES = """
import sys
import holdfast as hf
store = hf.open(sys.argv[1])
run = store.create_run(agent="a")
written = 0
try:
    for _ in range(400):
        store.append_many(run, [("x.acme.moved", {"data": {"what": "m" * 900}})] * 100)
        written += 1
    code = None
except hf.HoldfastError as error:
    code = error.code
print(code, run, written)
"""


@LIMIT
def test_a_sync_that_fails_where_the_log_is_written_back_stops_the_store(
    tmp_path: Path, not_run: Callable[[str], NoReturn]
) -> None:
    """Nobody waits for that sync: whoever comes next is told, and so is every other process."""
    if shutil.which("strace") is None:
        not_run("errors of single calls need strace")
    store, trace = tmp_path / "store", tmp_path / "trace"
    hf.open(store).close()
    inject = ["-e", "trace=fsync", "-e", "inject=fsync:error=EIO:when=1"]
    strace = ["strace", "-f", "-qq", "-o", str(trace), "-P", str(store / "holdfast.db"), *inject]
    command = [*strace, sys.executable, "-c", WRITES, str(store)]
    done = subprocess.run(command, env=disks.environment(), capture_output=True, text=True, check=True)
    assert "(INJECTED)" in trace.read_text()
    code, run, written = done.stdout.split()
    assert (code, 0 < int(written) < 400) == ("store_poisoned", True), done.stdout
    assert disks.refusal(hf.open, store) == "store_poisoned"
    assert hf.doctor(store).healthy
    with hf.open(store) as opened:
        assert opened.verify().ok
        assert sum(1 for record in opened.read(run) if record.kind == "x.acme.moved") >= 100 * int(written)
