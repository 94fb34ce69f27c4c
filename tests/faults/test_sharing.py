"""One folder, several processes, and a second SQLite that does not see our locks.

Processes that write to one run notice each other's records; a busy one does not starve another. Python's
own sqlite3, opened on the live file in a process that has the store open, drops that process's locks and
may take the log away under it: the store goes on, or the next write is refused, and no acknowledged record
is lost. Builds that trust their cache or any log at its path must be found by the same harness.
"""

from __future__ import annotations

import random
import select
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from tests.faults.processes import Child, Zygote, new_seed, percentile, seconds

import holdfast

if TYPE_CHECKING:
    from pathlib import Path

NOTE = "note.logged"


def new_store(folder: Path) -> str:
    with holdfast.open(folder) as store:
        return store.create_run(agent="a")


def lost(folder: Path, run: str, children: list[Child]) -> list[int]:
    """Seqs that were acknowledged and are not there, or hold something else."""
    with holdfast.open(folder) as store:
        records = {record.seq: record.value.get("text") for record in store.read(run)}
    said = [line for child in children for line in child.said if line[0] == "a"]
    return [seq for _, _, seq, token in said if records.get(seq) != token]


# A new store


def test_many_who_make_the_same_store_at_once_make_one(tmp_path: Path) -> None:
    """Whoever looked before another had made it must not make it anew: that would empty it."""
    together = threading.Barrier(6)

    def make(folder: Path) -> str:
        together.wait()
        with holdfast.open(folder) as store:
            return store.create_run(agent="a")

    with ThreadPoolExecutor(6) as pool:
        for count in range(150):
            folder = tmp_path / f"store-{count}"
            made = sorted(pool.map(make, [folder] * 6))
            with holdfast.open(folder) as store:
                found = store.sql("SELECT id FROM runs ORDER BY id")
                assert ([row["id"] for row in found], store.verify().ok) == (made, True), count


# One run


def take_turns(zygote: Zygote, folder: Path, chance: random.Random, times: int) -> tuple[str, list[Child]]:
    """Three processes append to one run, one after the other in a random order."""
    run = new_store(folder)
    children = [zygote.start("stepper", folder, run) for _ in range(3)]
    for child in children:
        child.told("open")
    for count in range(times):
        child = chance.choice(children)
        before = len(child.said)
        child.say(f"turn {count}")
        while len(child.said) == before and not child.over:
            select.select([child], [], [], 1)
            child.hear()
    return run, children


def test_processes_that_write_to_one_run_see_what_the_others_wrote(zygote: Zygote, tmp_path: Path) -> None:
    folder, seed = tmp_path / "store", new_seed()
    run, children = take_turns(zygote, folder, random.Random(seed), 300)
    said = sorted((line[2], line[3]) for child in children for line in child.said if line[0] == "a")
    assert len(said) == 300, [child.said[-1] for child in children]
    first = said[0][0]
    assert said == [(first + count, f"turn {count}") for count in range(300)], seed
    with holdfast.open(folder) as store:
        assert store.verify().ok
    assert lost(folder, run, children) == []


def test_the_harness_finds_a_cache_that_does_not_notice_others(mutants: str, tmp_path: Path) -> None:
    folder = tmp_path / "store"
    with Zygote(mutants, "StaleCache") as zygote:
        _, children = take_turns(zygote, folder, random.Random(1), 30)
        for child in children:
            child.kill()
    said = [line for child in children for line in child.said]
    # Whoever has not noticed gives out a seq for the second time; the database refuses that, and it is final.
    assert len([line for line in said if line[0] == "a"]) < 30
    assert {line[1] for line in said if line[0] == "refused"} == {"store_failed", "store_poisoned"}


def test_four_processes_write_to_one_run_at_once(zygote: Zygote, tmp_path: Path) -> None:
    folder = tmp_path / "store"
    run = new_store(folder)
    children = [zygote.start("appender", folder, run, f"w{number}", 1, number == 0) for number in range(4)]
    end = time.monotonic() + 2
    while (left := end - time.monotonic()) > 0:
        for child in select.select(children, [], [], left)[0]:
            child.hear()
    for child in children:
        child.say("stop")
        child.told("stopped")
    said = sorted(line[2] for child in children for line in child.said if line[0] == "a")
    assert said == list(range(said[0], said[0] + len(said))), "each seq was given out once, without gaps"
    assert all(any(line[0] == "a" for line in child.said) for child in children)
    assert lost(folder, run, children) == []
    with holdfast.open(folder) as store:
        assert store.verify().ok


def test_a_busy_process_does_not_starve_another(
    zygote: Zygote, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "store"
    run = new_store(folder)
    busy = zygote.start("appender", folder, run, "busy", 20)
    busy.told("open")
    waiter = zygote.start("waiter", folder, run, 50)
    while not waiter.over:
        for child in select.select([busy, waiter], [], [], 60)[0]:
            child.hear()
    took = [line[1] for line in waiter.said if line[0] == "took"]
    busy.say("stop")
    count = busy.told("stopped")[1]
    with capsys.disabled():
        print(
            f"\nfairness: 50 single appends beside {count} busy frames, wait p50={percentile(took, 0.5):.1f}"
            f" p99={percentile(took, 0.99):.1f} max={max(took):.1f} ms"
        )
    assert waiter.errors() == []
    assert len(took) == 50
    assert max(took) < 5000
    assert count > 50, "the other one was not busy"


# Python's own sqlite3


def order(child: Child, word: str, times: int = 0) -> None:
    child.say(word, times)
    child.told("did" if word == "append" else "looked")


def alone(zygote: Zygote, folder: Path, run: str) -> list[Child]:
    """Nobody else has the store: Python's SQLite believes that it closes last, and deletes the log."""
    intruder = zygote.start("intruder", folder, run)
    for word in ("append", "look", "append", "append"):
        order(intruder, word, 20)
    return [intruder]


def beside_another(zygote: Zygote, folder: Path, run: str) -> list[Child]:
    """Our locks are gone, the log is not; then another process closes last, as it believes."""
    other = zygote.start("holder", folder)
    other.told("open")
    intruder = zygote.start("intruder", folder, run)
    for word in ("append", "look", "append"):
        order(intruder, word, 20)
    other.say("close")
    other.told("closed")
    order(intruder, "append", 20)
    return [intruder]


def before_another(zygote: Zygote, folder: Path, run: str) -> list[Child]:
    """After the look others come, write and go; each may believe that it is the only one."""
    keeper = zygote.start("holder", folder)
    keeper.told("open")
    intruder = zygote.start("intruder", folder, run)
    for word in ("append", "look", "append"):
        order(intruder, word, 20)
    keeper.kill()
    other = zygote.start("stepper", folder, run)
    for count in range(5):
        other.say(f"other {count}")
        order(intruder, "append", 5)
    late = zygote.start("holder", folder)
    late.say("close")
    assert late.ended()
    order(intruder, "append", 20)
    other.hear()
    return [intruder, other]


def deleted(zygote: Zygote, folder: Path, run: str) -> list[Child]:
    """Somebody removes the log by hand, at a moment when nothing is in it yet."""
    intruder = zygote.start("intruder", folder, run)
    intruder.told("open")
    (folder / "holdfast.db-wal").unlink()
    order(intruder, "append", 20)
    return [intruder]


SCENES = [alone, beside_another, before_another, deleted]


def end_all(children: list[Child]) -> list[Any]:
    """The power stays on, but nobody closes in order. What was refused."""
    for child in children:
        child.kill()
        assert not child.errors(), child.errors()
    return [line[1] for child in children for line in child.said if line[0] == "refused"]


@pytest.mark.parametrize("scene", SCENES)
def test_pythons_sqlite_on_the_live_file_costs_no_acknowledged_record(
    zygote: Zygote, tmp_path: Path, scene: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "store"
    run = new_store(folder)
    children = scene(zygote, folder, run)
    refused = end_all(children)
    assert set(refused) <= {"store_replaced", "store_poisoned"}
    findings = holdfast.doctor(folder)
    assert findings.healthy, findings.advice
    assert lost(folder, run, children) == []
    with holdfast.open(folder) as store:
        store.append(run, NOTE, {"text": "goes on"}, barrier=True)
        assert store.verify().ok
    with capsys.disabled():
        acked = sum(line[0] == "a" for child in children for line in child.said)
        print(
            f"\nsqlite3 in the process, {scene.__name__}: acked={acked} lost=0 refused={sorted(set(refused))}"
        )


@pytest.mark.parametrize("scene", [alone, beside_another, deleted])
def test_the_harness_finds_a_store_that_writes_to_a_log_that_is_gone(
    mutants: str, tmp_path: Path, scene: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "store"
    run = new_store(folder)
    with Zygote(mutants, "AnyWal") as zygote:
        children = scene(zygote, folder, run)
        end_all(children)
    holdfast.doctor(folder, accept_loss=True)
    gone = lost(folder, run, children)
    with capsys.disabled():
        print(f"\nsqlite3 in the process, {scene.__name__}, AnyWal: lost={len(gone)}")
    assert gone != []


def test_a_loss_behind_our_back_is_noticed_by_the_next_open(mutants: str, tmp_path: Path) -> None:
    """The side file says how far the journal was once durable; a lost tail does not pass for the end."""
    folder = tmp_path / "store"
    run = new_store(folder)
    with Zygote(mutants, "AnyWal") as zygote:
        children = deleted(zygote, folder, run)
        end_all(children)
    with pytest.raises(holdfast.StoreError) as noticed:
        holdfast.open(folder).close()
    assert noticed.value.code == "store_truncated"
    findings = holdfast.doctor(folder)
    assert not findings.healthy
    assert findings.truncated is not None
    assert holdfast.doctor(folder, accept_loss=True).healthy
    with holdfast.open(folder) as store:
        assert store.verify().ok
    assert len(lost(folder, run, children)) == 20


def looks_while_busy(zygote: Zygote, folder: Path) -> tuple[str, int, set[str]]:
    """What became of the store, how much was acknowledged, and what was refused."""
    run = new_store(folder)
    child = zygote.start("busy_intruder", folder, run)
    child.told("open")
    child.say("look")
    while not child.over and ["did"] not in child.hear():
        select.select([child], [], [], 60)
    refused = set(end_all([child]))
    acked = sum(line[0] == "a" for line in child.said)
    if ["did"] not in child.said:
        return "crashed", acked, refused
    try:
        sound = holdfast.doctor(folder).healthy
        gone = len(lost(folder, run, [child]))
    except holdfast.StoreError as error:
        return error.code, acked, refused
    return "sound" if sound and not gone else f"{gone} lost", acked, refused


@pytest.mark.timeout(7200)
def test_pythons_sqlite_opens_and_closes_while_threads_commit(
    zygote: Zygote, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    acked, refusals, ends = 0, set(), Counter[str]()
    end = time.monotonic() + (seconds() or 0)
    while ends.total() < 40 or time.monotonic() < end:
        became, count, refused = looks_while_busy(zygote, tmp_path / str(ends.total()))
        acked += count
        refusals |= refused
        ends[became] += 1
    with capsys.disabled():
        print(f"\nsqlite3 while threads commit: rounds={ends.total()} acked={acked} became={dict(ends)}")
    assert refusals <= {"store_replaced", "store_poisoned"}
    assert ends.keys() == {"sound"}
