"""Stories of what is done to a store beside those who work on it: rows made anew, contents erased."""

from __future__ import annotations

import fcntl
import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest
from tests.support import refusal

import holdfast as hf

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def test_rows_that_are_made_anew_strand_no_step_that_somebody_had(tmp_path: Path) -> None:
    with hf.open(tmp_path / "runs") as store:
        run = store.create_run(agent="a")
        held = store.claim(worker="w1", lease=3600)
        assert held is not None
        assert hf.doctor(tmp_path / "runs", rebuild=True).report.ok
        again = store.claim(worker="w2", lease=3600)
        assert again is not None
        assert (again.run, again.fence > held.fence) == (run, True)
        with pytest.raises(hf.CommandError, match="stale_fence"):
            store.finish(held)
        assert store.verify().ok


def test_what_another_process_erased_is_gone_from_what_this_one_had_in_mind(tmp_path: Path) -> None:
    with hf.open(tmp_path / "runs") as one, hf.open(tmp_path / "runs") as two:
        run = one.create_run(agent="a", state={"name": "dana"})
        claim = one.claim(worker="w1")
        assert claim is not None
        one.fail(claim, "no", retryable=False)
        two.append(run, "note.logged", {"text": "two knows the run"})
        one.forget(run, by="dana")
        two.retry(run, by="dana")
        told = [store.state(run).get("state") for store in (one, two)]
        again = two.claim(worker="w2")
        assert again is not None
        assert (told, again.state) == ([None, None], None)


def test_of_many_backups_to_one_place_one_is_made_and_it_is_whole(tmp_path: Path) -> None:
    place = tmp_path / "copy"
    with hf.open(tmp_path / "runs") as store:
        run = store.create_run(agent="a", input="long " * 20_000)
        with ThreadPoolExecutor(8) as people:
            told = [*people.map(lambda _: refusal(lambda: store.backup(place)), range(24))]
    made = [code for code, _ in told if code.startswith("accepted")]
    refused = {code for code, _ in told if not code.startswith("accepted")}
    assert (len(made), refused <= {"target_exists", "store_busy"}) == (1, True), told
    hf.restore(place, tmp_path / "again")
    with hf.open(tmp_path / "again") as again:
        assert (again.verify().ok, next(again.read(run)).value["input"]) == (True, "long " * 20_000)
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """As who makes a copy there."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def test_a_copy_on_its_way_is_not_removed_by_who_comes_second(tmp_path: Path) -> None:
    hidden = tmp_path / ".copy.new"
    hidden.mkdir()
    (hidden / "holdfast.db").write_text("the first one's")
    with hf.open(tmp_path / "runs") as store, locked(hidden):
        assert refusal(lambda: store.backup(tmp_path / "copy"))[0] == "store_busy"
        assert (hidden / "holdfast.db").read_text() == "the first one's"


def test_the_log_is_written_back_beside_the_commits_and_begins_anew(tmp_path: Path) -> None:
    """Two writers that never rest: without the little that a turn does of it, the log would only grow."""
    folder, batch = tmp_path / "runs", [("x.acme.moved", {"data": {"n": 17, "what": "m" * 900}})] * 200

    def writes(store: hf.Store) -> int:
        run = store.create_run(agent="a")
        return max(_writes(store, run) for _ in range(160))

    def _writes(store: hf.Store, run: str) -> int:
        store.append_many(run, batch)
        return (folder / "holdfast.db-wal").stat().st_size

    with hf.open(folder) as one, hf.open(folder) as two, ThreadPoolExecutor(2) as threads:
        largest = max(threads.map(writes, (one, two)))
        written = 2 * 160 * 200 * 900
        assert 8 << 20 < largest < written / 2, f"{largest} bytes of log for {written}"
        assert one.verify().ok
    assert not (folder / "holdfast.db-wal").exists()
    with hf.open(folder) as store:
        assert store.verify().records == 2 * (160 * 200 + 2) + 1


def test_erasing_waits_for_whoever_writes_the_log_back(tmp_path: Path) -> None:
    """What is forgotten is gone from the log too, also while the log is being written back."""
    secret, folder = "a secret of some length" * 20, tmp_path / "runs"
    with hf.open(folder) as store:
        for _ in range(12):
            run = store.create_run(agent="a", input={"told": secret})
            claim = store.claim(worker="w", run=run)
            assert claim is not None
            store.finish(claim)
            other = store.create_run(agent="b")
            store.append_many(other, [("x.acme.moved", {"data": {"what": "m" * 9000}})] * 1000)
            assert store.forget(run, by="dana") > 0
        files = (path for path in folder.iterdir() if path.is_file())
        found = [path.name for path in files if secret.encode() in path.read_bytes()]
        assert (found, store.verify().ok) == ([], True)
