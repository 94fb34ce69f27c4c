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
