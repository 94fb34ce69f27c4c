"""Backups that are taken while several processes write.

Each of them restores and verifies, holds every record that was acknowledged before it began, and is a
prefix of what the store became: no run has a gap, and none has a record that the store does not have.
"""

from __future__ import annotations

import select
import shutil
import time
from typing import TYPE_CHECKING

import pytest
from tests.faults.processes import Child, Zygote, seconds
from tests.faults.replays import travelled

import holdfast

if TYPE_CHECKING:
    from pathlib import Path

    from holdfast import Store

WRITERS = 3
BACKUPS = 8


def hear_all(writers: list[Child]) -> dict[tuple[str, int], str]:
    """Everything that was acknowledged so far."""
    for writer in writers:
        writer.hear()
        assert not writer.errors(), writer.errors()
    said = [line for writer in writers for line in writer.said if line[0] == "a"]
    return {(run, seq): token for _, run, seq, token in said}


def busy_until(writers: list[Child], until: float) -> None:
    """Lets the writers write: their lines are read, so that none of them waits for us."""
    while (left := until - time.monotonic()) > 0:
        for writer in select.select(writers, [], [], left)[0]:
            writer.hear()


Place = tuple[str, int]
Found = dict[Place, tuple[str, str, str | None]]


def records(store: Store, runs: list[str]) -> Found:
    """The hash, kind and text of every record."""
    return {
        (run, record.seq): (record.hash, record.kind, record.value.get("text"))
        for run in runs
        for record in store.read(run)
    }


def restored(backup: Path, target: Path, runs: list[str]) -> Found:
    """Restores a backup, and returns the records that are in the new store."""
    waiting = holdfast.restore(backup, target)
    assert waiting["waiting"] == len(runs), "every open run waits for a person"
    with holdfast.open(target) as store:
        report = store.verify()
        assert report.ok, report.problems
        kept = records(store, runs)
    for run in runs:
        seqs = [seq for place, seq in kept if place == run]
        assert seqs == list(range(1, len(seqs) + 1))
    return kept


def missing(kept: Found, acked: dict[Place, str]) -> list[Place]:
    """What was acknowledged and is not there."""
    return [place for place, token in acked.items() if place not in kept or kept[place][2] != token]


def added(kept: Found, whole: Found) -> dict[str, list[str]]:
    """The kinds of records that the store never had, by run; they must come last."""
    own: dict[str, list[str]] = {}
    for (run, seq), found in kept.items():
        if whole.get((run, seq)) != found:
            own.setdefault(run, []).append(found[1])
        else:
            assert run not in own, f"record {seq} of {run} comes after one that the store never had"
    return own


def start(zygote: Zygote, folder: Path, runs: list[str]) -> list[Child]:
    writers = [zygote.start("appender", folder, run, run[-4:], 3, i == 0) for i, run in enumerate(runs)]
    for writer in writers:
        writer.told("open")
    return writers


@pytest.mark.timeout(7200)
def test_backups_under_load_hold_all_that_was_acknowledged_before_they_began(
    zygote: Zygote, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "store"
    store = holdfast.open(folder)
    runs = [store.create_run(agent="load") for _ in range(WRITERS)]
    writers = start(zygote, folder, runs)
    end = time.monotonic() + (seconds() or 0)
    took: list[float] = []
    copies: list[Found] = []
    checked, lost = 0, 0
    while len(took) < BACKUPS or time.monotonic() < end:
        busy_until(writers, time.monotonic() + 0.15)
        acked = hear_all(writers)
        begun = time.perf_counter()
        store.backup(tmp_path / "backup")
        took.append((time.perf_counter() - begun) * 1000)
        kept = restored(tmp_path / "backup", tmp_path / "restored", runs)
        copies = [*copies[-2:], kept]
        checked, lost = checked + len(acked), lost + len(missing(kept, acked))
        for made in ("backup", "restored"):
            shutil.rmtree(tmp_path / made)
    for writer in writers:
        writer.say("stop")
        writer.told("stopped")
    acked = hear_all(writers)
    whole = records(store, runs)
    with capsys.disabled():
        print(
            f"\nbackup under load: backups={len(took)} acked={len(acked)} checked={checked} lost={lost}"
            f" longest={max(took):.0f} ms"
        )
    assert lost == 0
    assert missing(whole, acked) == []
    assert store.verify().ok
    assert travelled(store) > 0
    store.close()
    assert checked > 100 * BACKUPS, "there was no load"
    for copy in copies:
        assert added(copy, whole) == {run: ["step.waiting"] for run in runs}


def test_the_harness_finds_a_backup_without_what_was_acknowledged(zygote: Zygote, tmp_path: Path) -> None:
    """One that began earlier: it cannot hold what came after it."""
    folder = tmp_path / "store"
    with holdfast.open(folder) as store:
        runs = [store.create_run(agent="load") for _ in range(WRITERS)]
        writers = start(zygote, folder, runs)
        store.backup(tmp_path / "backup")
        before = len(hear_all(writers))
        while len(hear_all(writers)) < before + 50:
            select.select(writers, [], [], 1)
        kept = restored(tmp_path / "backup", tmp_path / "restored", runs)
    assert missing(kept, hear_all(writers)) != []
