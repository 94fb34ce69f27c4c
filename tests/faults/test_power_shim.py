"""A disk that keeps only what was synced, everywhere and without root: a preload library notes what each
sync makes durable (shim.c), and the tests build from it what a power cut leaves, at every sync of a
scripted run and at random moments of busy processes.

First nothing survives that was not synced, not even a name whose folder was not; then, by chance, any
subset of unsynced names and sectors does, whole or torn. Either way every acknowledged barrier is there,
the store opens and verifies, and what is missing is the end.
"""

from __future__ import annotations

import os
import random
import subprocess
from itertools import count
from typing import TYPE_CHECKING

import pytest
from tests.faults import disks

import holdfast as hf

if TYPE_CHECKING:
    from pathlib import Path

CYCLES = 6
TORN = 5  # images by chance after each cut
LIMIT = pytest.mark.timeout(300 + 3 * disks.SECONDS)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return disks.compile_shim(tmp_path_factory.mktemp("shim"))


def judged(image: Path, due: list[int]) -> tuple[int, list[str]]:
    """How much of what is due an image lacks, and what is wrong with it."""
    if not (image / "store").exists():
        return sum(due), []
    try:
        found, wrong = disks.survivors(image / "store")
    except hf.HoldfastError as error:
        return sum(due), [f"cannot be opened: {error}"]
    return sum(max(0, owed - there) for owed, there in zip(due[:1], found[:1], strict=True)), wrong


def play(disk: disks.Disk, counters: Path, **variables: str) -> int:
    """The scripted run in a child on that disk; how the child ended."""
    environment = disks.environment(**disk.variables(**variables))
    done = subprocess.run(
        disks.role("script", disk.store, counters),
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode in (0, -9), done.stderr
    return done.returncode


@LIMIT
def test_a_cut_at_every_sync_of_a_scripted_run_loses_nothing_acknowledged(
    library: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    whole = disks.Disk(tmp_path / "whole", library)
    assert play(whole, tmp_path / "whole/counters") == 0
    points = whole.syncs()
    assert points > 15, "the script no longer syncs as it should"
    moments = [{"SHIM_CUT_AT": str(n)} for n in range(1, points + 1)]
    if disks.SECONDS:
        moments += [{**moment, "SHIM_CUT_AFTER": "1"} for moment in moments]
    images, acknowledged, bad = 0, 0, []
    for number, moment in enumerate(moments):
        folder = tmp_path / str(number)
        disk = disks.Disk(folder, library)
        assert play(disk, folder / "counters", **moment) == -9
        due = disks.Counters(folder / "counters").all()
        acknowledged += due[0]
        for seed in [None, *range(number * TORN, number * TORN + TORN)]:
            image = folder / f"image-{seed}"
            disk.after_cut(image, None if seed is None else random.Random(seed))
            lost, wrong = judged(image, due)
            if lost or wrong:
                bad.append(f"cut {moment}, seed {seed}, acknowledged {due[:4]}: {lost} lost, {wrong}")
            elif (due[1] or due[3]) and ended(image / "store") != ["completed"]:
                bad.append(f"cut {moment}, seed {seed}: the run had ended and has not")
            images += 1
    disks.tell(
        request,
        f"unsynced writes, scripted: {len(moments)} cuts of {points} syncs, {images} images, "
        f"{acknowledged} acknowledged barriers, {len(bad)} images bad",
    )
    assert not bad, "\n".join(bad[:40])


def ended(folder: Path) -> list[str]:
    with hf.open(folder, read_only=True) as store:
        return [row["status"] for row in store.sql("SELECT status FROM runs")]


class Busy:
    """Two processes with two threads each, on one disk, until the power is cut."""

    def __init__(
        self, folder: Path, library: Path, package: str | None = None, mutant: str | None = None
    ) -> None:
        self.folder, self.library = folder, library
        self.package, self.mutant = package, mutant
        folder.mkdir()

    def cut(self, number: int, chance: random.Random, before: Path | None) -> tuple[disks.Disk, list[int]]:
        """Runs until some barriers were acknowledged; the disk as it is then, and what was acknowledged."""
        folder = self.folder / str(number)
        disk, counters = disks.Disk(folder, self.library), disks.Counters(folder / "counters")
        if before is not None:
            disk.begin_with(before)
        environment = disks.environment(package=self.package, mutant=self.mutant, **disk.variables())
        writers = [
            subprocess.Popen(
                disks.role("write", disk.store, folder / "counters", first, 2, chance.random()),
                env=environment,
                stdout=subprocess.PIPE,
            )
            for first in (0, 2)
        ]
        waiting = chance.randint(20, 250)
        assert writers[0].stdout is not None
        while waiting > 0:
            told = os.read(writers[0].stdout.fileno(), waiting)
            assert told, "the writer ended before the cut"
            waiting -= len(told)
        due = counters.all()
        for writer in writers:
            writer.kill()
        for writer in writers:
            writer.communicate()
        return disk, due


def judged_all(image: Path, due: list[int], package: str | None = None) -> tuple[int, list[str], list[int]]:
    """How much of what is due an image lacks, what is wrong with it, and what it holds, by the same build."""
    command = disks.role("survivors", image / "store")
    environment = disks.environment(package=package)
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    found, wrong = disks.answer(done)
    return sum(max(0, owed - there) for owed, there in zip(due, found, strict=True)), wrong, found


@LIMIT
def test_busy_processes_lose_nothing_acknowledged_whatever_reached_the_disk(
    library: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    seed, began = random.SystemRandom().getrandbits(32), os.times().elapsed
    chance, busy = random.Random(seed), Busy(tmp_path / "busy", library)
    acknowledged, images, missing, cycles = 0, 0, 0, 0
    before: Path | None = None
    had = [0] * disks.SLOTS
    for number in count():
        enough = missing or number >= 5 * CYCLES  # a kill right after a sync shows nothing: some must not be
        if number >= CYCLES and enough and os.times().elapsed - began >= disks.SECONDS:
            break
        disk, due = busy.cut(number, chance, before)
        with_all = [max(0, owed - was) for owed, was in zip(due, had, strict=True)]
        acknowledged += sum(with_all)
        for torn in [None, *(chance.getrandbits(32) for _ in range(TORN))]:
            image = disk.live.parent / f"image-{torn}"
            disk.after_cut(image, None if torn is None else random.Random(torn))
            lost, wrong, found = judged_all(image, due)
            assert (lost, wrong) == (0, []), (
                f"cycle {number}, image {torn}, seed {seed}, acknowledged {due[:4]}"
            )
            images += 1
            missing += image_lacks(image, disk)
            before, had = image, found  # the next cycle goes on from the last image
        cycles += 1
    assert missing > 0, "no image lacked anything: the cuts show nothing"
    disks.tell(
        request,
        f"unsynced writes, busy: {cycles} cuts, {images} images, {acknowledged} acknowledged barriers, "
        f"0 lost, {missing} images whose log lacked bytes, seed {seed}",
    )


def image_lacks(image: Path, disk: disks.Disk) -> bool:
    """Whether the log as it was written is not the one that was left."""
    live = disk.store / "holdfast.db-wal"
    if not live.exists():
        return False
    # The judge has opened the image and written its log back: what it kept aside is compared.
    return live.read_bytes() != disk.left.get(image.name, b"")


@LIMIT
@pytest.mark.parametrize("mutant", ["NoSync", "HastyBlobs"])
def test_a_build_that_does_not_sync_is_found_out(
    mutant: str, library: Path, tmp_path: Path, request: pytest.FixtureRequest, mutants: str
) -> None:
    busy, chance = Busy(tmp_path / "busy", library, mutants, mutant), random.Random(7)
    losing, amiss, lost_all = 0, 0, 0
    for number in range(3):
        disk, due = busy.cut(number, chance, None)
        image = disk.live.parent / "image"
        disk.after_cut(image)
        lost, wrong, _ = judged_all(image, due, mutants)
        losing, amiss, lost_all = losing + (lost > 0), amiss + bool(wrong), lost_all + lost
    disks.tell(
        request,
        f"unsynced writes, control {mutant}: 3 cuts, {lost_all} acknowledged lost, {amiss} stores amiss",
    )
    if mutant == "NoSync":
        assert losing
    else:  # the records are synced, only their blobs are not
        assert (amiss, lost_all) == (3, 0)
