"""Fork in the middle: a child cannot use its parent's handle, and its end does not disturb the parent.

The child inherits descriptors, locks of threads that do not exist in it, and half a turn. Whatever it
tries ends at once with ``store_forked``; it may close the handle, leave by ``os._exit`` or go down in
order. The parent writes on, and nothing that it was told is lost. A build that lets the child through
must be found by the same harness.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest
from tests.faults.processes import Child, Zygote

import holdfast

if TYPE_CHECKING:
    from pathlib import Path

USES = 8
WRITES = ("append", "barrier", "create_run", "claim", "heartbeat")


def forked(zygote: Zygote, folder: Path, threads: int, rounds: int) -> tuple[str, Child]:
    """Runs the harness: the run, and the parent, which has ended."""
    with holdfast.open(folder) as store:
        run = store.create_run(agent="a")
    parent = zygote.start("forker", folder, run, threads, rounds)
    assert parent.ended(110)
    return run, parent


def lost(folder: Path, run: str, parent: Child) -> list[int]:
    """Records that the parent was told of and that are not there."""
    with holdfast.open(folder) as store:
        assert store.verify().ok
        records = {record.seq: record.value.get("text") for record in store.read(run)}
    return [
        seq for word, *rest in parent.said if word == "a" for seq in [rest[1]] if records.get(seq) != rest[2]
    ]


@pytest.mark.parametrize("threads", [0, 3])
def test_a_forked_child_is_refused_and_leaves_its_parent_alone(
    zygote: Zygote, tmp_path: Path, threads: int, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "store"
    run, parent = forked(zygote, folder, threads, 6)
    ends = Counter(
        (use, told, end) for word, *rest in parent.said if word == "fork" for use, _, told, end in [rest]
    )
    with capsys.disabled():
        print(f"\nfork with {threads} threads writing: forks={ends.total()} acked={len(parent.said)}")
    assert parent.errors() == []
    # A blob is a file of its own: a child may write one, or be refused, but it may not hang.
    refusals = {("put_blob", "ok", "ended"), ("put_blob", "store_forked", "ended")}
    others = {end: count for end, count in ends.items() if end[1:] != ("store_forked", "ended")}
    assert others.keys() <= refusals, f"{others} of {ends.total()} forks"
    assert ends.total() == 6 * USES
    assert ["ok", True] in parent.said
    assert parent.said[-1] == ["over"]
    assert lost(folder, run, parent) == []
    with holdfast.open(folder) as store:
        texts = [record.value.get("text") for record in store.read(run)]
    assert "child" not in texts


def test_children_of_multiprocessing_are_refused_and_leave_their_parent_alone(
    zygote: Zygote, tmp_path: Path
) -> None:
    folder = tmp_path / "store"
    with holdfast.open(folder) as store:
        run = store.create_run(agent="a")
    parent = zygote.start("pooler", folder, run)
    assert parent.ended()
    assert parent.errors() == []
    assert [line[1:] for line in parent.said if line[0] == "fork"] == [["store_forked", 0]] * 5
    assert ["ok", True] in parent.said
    assert lost(folder, run, parent) == []


def test_the_harness_finds_a_child_that_writes_through_its_parents_handle(
    mutants: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Zygote(mutants, "UseForkedHandle") as zygote:
        _, parent = forked(zygote, tmp_path / "store", 0, 1)
    got = {rest[0]: rest[2] for word, *rest in parent.said if word == "fork"}
    with capsys.disabled():
        print(f"\nfork, UseForkedHandle: {got} errors={len(parent.errors())}")
    assert any(got.get(use) != "store_forked" for use in WRITES)
