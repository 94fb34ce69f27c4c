"""Power cuts on a real filesystem: a loop device is shut off while two processes write, and mounted again.

What was acknowledged under a barrier before the cut is there, in order, and the store verifies. A build
whose barriers sync nothing loses acknowledged records in the same harness, or a zero would mean nothing.
Needs root; without it the tests say that they were not run (the shim of test_power_shim.py runs
everywhere).
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import pytest
from tests.faults import disks

if TYPE_CHECKING:
    from collections.abc import Callable

    NotRun = Callable[[str], NoReturn]

CYCLES = 12
CONTROL_CYCLES = 3
LIMIT = pytest.mark.timeout(300 + 3 * disks.SECONDS)


@pytest.fixture
def loops(not_run: NotRun) -> None:
    """Needs what a disk of one's own needs."""
    if os.geteuid() != 0:
        not_run("power cuts on a loop device need root")
    if shutil.which("unshare") is None or not Path("/dev/loop-control").exists():
        not_run("power cuts need unshare (util-linux) and loop devices")


def cuts(
    request: pytest.FixtureRequest, folder: Path, kind: str, *, control: str | None = None
) -> dict[str, Any]:
    """Runs the harness in a mount namespace of its own and returns what it counted."""
    cycles = CONTROL_CYCLES if control else CYCLES
    package = control or str(disks.PACKAGE)
    seed, seconds = random.SystemRandom().getrandbits(32), 0.0 if control else disks.SECONDS
    writer = os.pathsep.join([package, str(disks.ROOT)])
    command = disks.role("power", folder, kind, cycles, seconds, seed, writer, "NoSync" if control else "")
    command = ["unshare", "-m", "--propagation", "private", *command]
    # The judge is of the same build as the writers, with no fault chosen.
    environment = disks.environment(package=package)
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    told: dict[str, Any] = disks.answer(done)
    line = "{cycles} cycles, {acknowledged} acknowledged barriers, {lost} lost in {losing} cycles".format(
        **told
    )
    disks.tell(
        request, f"power cut, {kind}{', control without syncs' if control else ''}: {line}, seed {seed}"
    )
    return told


@LIMIT
@pytest.mark.usefixtures("loops")
@pytest.mark.parametrize("kind", ["ext4", "xfs"])
def test_every_acknowledged_barrier_survives_a_power_cut(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest, not_run: NotRun
) -> None:
    if shutil.which(f"mkfs.{kind}") is None:
        not_run(f"{CYCLES} power cuts on {kind} need mkfs.{kind}")
    told = cuts(request, tmp_path, kind)
    assert told["cycles"] >= CYCLES
    assert told["acknowledged"] > 10 * told["cycles"], "hardly anything was written: the cuts show nothing"
    assert (told["lost"], told["wrong"]) == (0, [])


@LIMIT
@pytest.mark.usefixtures("loops")
def test_a_build_without_syncs_loses_acknowledged_barriers(
    tmp_path: Path, request: pytest.FixtureRequest, mutants: str
) -> None:
    told = cuts(request, tmp_path, "ext4", control=mutants)
    assert told["lost"] > 0
    assert told["losing"] > 0
