"""A process that is stopped, or dies, while it holds the turn.

Whoever waits for it hears within its own patience who holds it, reads go on meanwhile, and everything
goes on when the holder does. A holder that is killed frees the turn and its leases at once, even when a
child that it forked lives on with copies of its descriptors.
"""

from __future__ import annotations

import random
import signal
import time
from typing import TYPE_CHECKING

import pytest
from tests.faults.processes import Child, Zygote, caught, new_seed

import holdfast

if TYPE_CHECKING:
    from pathlib import Path

    from holdfast import Store

NOTE = "note.logged"
PATIENT = 0.5


def refused(store: Store, run: str) -> tuple[holdfast.StoreError, float]:
    """The error of an append, and how long it took."""
    begun = time.monotonic()
    with pytest.raises(holdfast.StoreError) as caught_error:
        store.append(run, NOTE, {"text": "refused"})
    return caught_error.value, time.monotonic() - begun


def acked(store: Store, run: str, children: list[Child]) -> tuple[int, list[int]]:
    """How many records were acknowledged, and which of them are not what was said."""
    records = {record.seq: record.value.get("text") for record in store.read(run)}
    said = [line for child in children for line in child.said if line[0] == "a"]
    return len(said), [seq for _, _, seq, token in said if records.get(seq) != token]


@pytest.mark.parametrize("lock", ["holdfast.lock", "holdfast.turn"])
def test_a_stopped_holder_is_named_within_the_wait_and_all_goes_on_after_it(
    zygote: Zygote, tmp_path: Path, lock: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, seed = tmp_path / "store", new_seed()
    store = holdfast.open(folder, turn_wait=PATIENT)
    run = store.create_run(agent="a")
    writers = [zygote.start("appender", folder, run, f"w{number}", 20) for number in range(2)]
    for writer in writers:
        writer.told("open")
    victim = writers[0]
    assert caught(victim, folder / lock, random.Random(seed)), f"never seen with {lock}, seed {seed}"
    error, took = refused(store, run)
    assert error.code == "store_busy"
    assert str(victim.pid) in str(error), f"{error} should name {victim.pid}, which has {lock}"
    assert PATIENT <= took < PATIENT + 2
    # Opening needs a turn too, and reading none.
    with pytest.raises(holdfast.StoreError, match=f"store_busy.*{victim.pid}"):
        holdfast.open(folder, turn_wait=PATIENT)
    seen = len(list(store.read(run)))
    victim.signal(signal.SIGCONT)
    store.close()
    with holdfast.open(folder) as patient:
        assert patient.append(run, NOTE, {"text": "after"}, barrier=True) > seen
        for writer in writers:
            writer.say("stop")
            writer.told("stopped")
        count, wrong = acked(patient, run, writers)
        assert wrong == []
        assert patient.verify().ok
    with capsys.disabled():
        print(f"\nSIGSTOP with {lock}: told after {took * 1000:.0f} ms, acked={count} lost=0 seed={seed}")


def test_the_harness_finds_writers_that_take_no_turn(mutants: str, tmp_path: Path) -> None:
    folder = tmp_path / "store"
    with holdfast.open(folder) as store:
        run = store.create_run(agent="a")
    with Zygote(mutants, "NoTurn") as zygote:
        writer = zygote.start("appender", folder, run, "w", 20)
        writer.told("open")
        assert not caught(writer, folder / "holdfast.lock", random.Random(0), tries=300)


def test_a_killed_holder_frees_the_turn(zygote: Zygote, tmp_path: Path) -> None:
    folder, seed = tmp_path / "store", new_seed()
    with holdfast.open(folder, turn_wait=PATIENT) as store:
        run = store.create_run(agent="a")
        victim = zygote.start("appender", folder, run, "w", 20)
        victim.told("open")
        assert caught(victim, folder / "holdfast.lock", random.Random(seed)), seed
        victim.kill()
        store.append(run, NOTE, {"text": "after"}, barrier=True)
        assert acked(store, run, [victim])[1] == []
        assert store.verify().ok


@pytest.mark.parametrize("moment", ["anytime", "in its turn"])
def test_a_forked_child_that_outlives_a_killed_worker_keeps_nothing_of_it(
    zygote: Zygote, tmp_path: Path, moment: str
) -> None:
    folder, seed = tmp_path / "store", new_seed()
    with holdfast.open(folder, turn_wait=PATIENT) as store:
        run = store.create_run(agent="a")
        victim = zygote.start("orphaner", folder, run)
        _, job, child = victim.told("claim")
        if moment == "in its turn":
            assert caught(victim, folder / "holdfast.lock", random.Random(seed)), seed
        victim.signal(signal.SIGKILL)
        # The line stays open in the child: only the death of the worker itself is waited for.
        assert victim.ended()
        try:
            store.append(run, NOTE, {"text": "after"}, barrier=True)
            claim = store.claim(worker="heir", agents=["job"])
        finally:
            victim.say("end")
        assert claim is not None, f"the worker is dead, but its child {child} keeps its process lock"
        assert claim.run == job
        assert store.verify().ok
