"""Children of a process that has stores open: each opens the store itself, and nobody harms anybody."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

import holdfast as hf

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

NOTE = "note.logged"


def in_a_child(work: Callable[[], object]) -> None:
    """Runs it in a forked child and waits for that."""
    child = os.fork()
    if child == 0:
        try:
            work()
        except BaseException as error:
            os.write(2, f"{type(error).__name__}: {error}\n".encode())
            os._exit(1)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def texts(store: hf.Store, run: str) -> list[str]:
    return [record.value["text"] for record in store.read(run) if record.kind == NOTE]


def one_handle(folder: Path) -> hf.Store:
    return hf.open(folder)


def a_second_handle_that_was_closed(folder: Path) -> hf.Store:
    """SQLite keeps the descriptor of the first for later; a child must not be given it for its database."""
    first = hf.open(folder)
    second = hf.open(folder)
    first.close()
    return second


def with_readers(folder: Path) -> hf.Store:
    store = hf.open(folder)
    store.sql("SELECT 1 AS one")
    return store


@pytest.mark.parametrize("parent", [one_handle, a_second_handle_that_was_closed, with_readers])
def test_a_child_opens_the_store_itself(tmp_path: Path, parent: Callable[[Path], hf.Store]) -> None:
    folder = tmp_path / "s"
    with parent(folder) as store:
        run = store.create_run(agent="a")
        store.append(run, NOTE, {"text": "parent"}, barrier=True)

        def child() -> None:
            with hf.open(folder) as own:
                assert texts(own, run) == ["parent"]
                own.append(run, NOTE, {"text": "child"}, barrier=True)

                def grandchild() -> None:
                    with hf.open(folder) as its:
                        its.append(run, NOTE, {"text": "grandchild"}, barrier=True)

                in_a_child(grandchild)
                own.append(run, NOTE, {"text": "child again"}, barrier=True)
            with hf.open(folder) as again:
                assert again.verify().ok

        in_a_child(child)
        store.append(run, NOTE, {"text": "parent again"}, barrier=True)
        assert texts(store, run) == ["parent", "child", "grandchild", "child again", "parent again"]
        assert store.verify().ok
    with hf.open(folder) as store:
        assert len(texts(store, run)) == 5
        assert store.verify().ok


def test_a_child_and_its_parent_write_at_once(tmp_path: Path) -> None:
    folder = tmp_path / "s"
    with hf.open(folder) as store:
        runs = [store.create_run(agent="a") for _ in range(3)]
        children = []
        for run in runs[1:]:
            child = os.fork()
            if child == 0:
                with hf.open(folder) as own:
                    for number in range(200):
                        own.append(run, NOTE, {"text": f"{number}"})
                os._exit(0)
            children.append(child)
        for number in range(200):
            store.append(runs[0], NOTE, {"text": f"{number}"})
        assert [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children] == [0, 0]
        for run in runs:
            assert texts(store, run) == [f"{number}" for number in range(200)]
        assert store.verify().ok


def test_a_child_may_open_the_store_while_its_log_is_being_written_back(tmp_path: Path) -> None:
    """The log is written back by a thread of its own, which must not be in the middle of that at a fork."""
    with hf.open(tmp_path / "runs") as store:
        run = store.create_run(agent="a")

        def opens() -> None:
            with hf.open(tmp_path / "runs") as own:
                own.append(run, NOTE, {"text": "the child's"})

        for _ in range(40):
            store.append_many(run, [("x.acme.moved", {"data": {"what": "m" * 9000}})] * 100)
            in_a_child(opens)
        assert texts(store, run) == ["the child's"] * 40
        assert store.verify().ok
