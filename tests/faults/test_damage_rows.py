"""Whoever changes a closed store through SQL is found out: every byte of every frame, every number and
every derived row, and frames that are removed, added, moved, swapped or copied.

``verify`` names the stream and the record, or the one right after it. Builds that trust heads or contents
must leave changes unnoticed in the same harness.
"""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from tests.faults import damage_rows, disks

import holdfast as hf

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

BITS = 8 if disks.SECONDS else 1
LIMIT = pytest.mark.timeout(300 + 3 * disks.SECONDS)


def changed(
    folder: Path,
    what: str,
    make: Callable[[Path], None],
    *,
    package: str | None = None,
    mutant: str | None = None,
) -> dict[str, Any]:
    """Tries every change of a kind in a child and returns what it tells."""
    bits = 0 if what == "snapshots" and not disks.SECONDS else BITS
    script = [sys.executable, "-m", "tests.faults.damage_rows"]
    command = [*script, make.__name__, str(folder), what, str(bits)]
    environment = disks.environment(package=package, mutant=mutant)
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    told: dict[str, Any] = disks.answer(done)
    return told


@LIMIT
@pytest.mark.parametrize("what", ["frames", "numbers"])
def test_every_change_of_a_frame_is_named_with_its_record(
    what: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    make = damage_rows.few_frames if what == "frames" else damage_rows.tiny_store
    told = changed(tmp_path, what, make)
    disks.tell(request, f"changes of frames ({what}): {told['tried']} tried, {len(told['wrong'])} not named")
    assert told["tried"] > 100
    assert not told["wrong"], f"{len(told['wrong'])} of {told['tried']}:\n" + "\n".join(told["wrong"][:40])


@LIMIT
@pytest.mark.parametrize("table", damage_rows.DERIVED)
def test_every_change_of_a_row_is_found(table: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    make = damage_rows.long_run if table == "snapshots" else damage_rows.tiny_store
    told = changed(tmp_path, table, make)
    disks.tell(request, f"changes of rows ({table}): {told['tried']} tried, {len(told['wrong'])} unnoticed")
    assert told["tried"] > 5
    assert not told["wrong"], f"{len(told['wrong'])} of {told['tried']}:\n" + "\n".join(told["wrong"][:40])


@LIMIT
@pytest.mark.parametrize("mutant", ["TrustHeads", "TrustContents"])
def test_a_verify_that_trusts_leaves_changes_unnoticed(
    mutant: str, tmp_path: Path, request: pytest.FixtureRequest, mutants: str
) -> None:
    told = changed(tmp_path, "frames", damage_rows.few_frames, package=mutants, mutant=mutant)
    unnoticed = [wrong for wrong in told["wrong"] if wrong.endswith("unnoticed")]
    disks.tell(
        request, f"changes of frames, control {mutant}: {told['tried']} tried, {len(unnoticed)} unnoticed"
    )
    column = "head" if mutant == "TrustHeads" else "contents"
    assert unnoticed
    assert all(f" {column} " in wrong for wrong in unnoticed)


HELD = ("body", "contents", "head")
COLUMNS = ("pos", "stream", "first_seq", "last_seq", *HELD)
Frame = dict[str, Any]


def put(frame: Frame, **other: Any) -> damage_rows.Change:
    """Inserts a frame like another."""
    row = {**frame, **other}
    marks = ", ".join("CAST(? AS TEXT)" if column in HELD else "?" for column in COLUMNS)
    return f"INSERT INTO frames ({', '.join(COLUMNS)}) VALUES ({marks})", tuple(row[c] for c in COLUMNS)


def drop(frame: Frame) -> damage_rows.Change:
    return "DELETE FROM frames WHERE pos = ?", (frame["pos"],)


def alter(frame: Frame, what: str, *values: Any) -> damage_rows.Change:
    return f"UPDATE frames SET {what} WHERE pos = ?", (*values, frame["pos"])


def swap_bodies(one: Frame, other: Frame) -> list[damage_rows.Change]:
    what = ", ".join(f"{column} = CAST(? AS TEXT)" for column in HELD)
    return [alter(to, what, *(held[column] for column in HELD)) for to, held in ((one, other), (other, one))]


FAR = 1000


def forgeries(run: list[Frame], other: list[Frame]) -> dict[str, tuple[list[damage_rows.Change], int]]:
    """What can be done to the frames of a run, and at which of its records that must be named."""
    first, second, third, last = run[0], run[1], run[2], run[-1]
    begins, end = second["first_seq"], last["last_seq"]
    moved = "stream = ?, first_seq = 77, last_seq = 77"
    doubled = "body = json_insert(body, '$[#]', json_extract(body, '$[0]'))"
    beside = "contents = (SELECT contents FROM frames WHERE pos = ?)"
    return {
        "the first frame is removed": ([drop(first)], 1),
        "a frame in the middle is removed": ([drop(second)], begins),
        "the last frame is removed": ([drop(last)], last["first_seq"]),
        "a frame is put in twice": ([put(second, pos=FAR, first_seq=end + 1, last_seq=end + 2)], end + 1),
        "a frame of another run is put in": (
            [put(other[1], pos=FAR, stream=first["stream"], first_seq=FAR, last_seq=FAR)],
            end + 1,
        ),
        "two frames change places": (
            [
                alter(second, "pos = ?", FAR),
                alter(third, "pos = ?", second["pos"]),
                alter({"pos": FAR}, "pos = ?", third["pos"]),
            ],
            third["first_seq"],
        ),
        "two frames swap what they hold": (swap_bodies(second, third), begins),
        "frames of two runs swap what they hold": (swap_bodies(second, other[1]), begins),
        "a frame is moved to another run": ([alter(third, moved, other[0]["stream"])], third["first_seq"]),
        "two frames are made one": ([drop(third), alter(second, "last_seq = ?", third["last_seq"])], begins),
        "a record is left out of a frame": ([alter(second, "body = json_remove(body, '$[0]')")], begins),
        "a record is put into a frame twice": ([alter(second, doubled)], begins),
        "contents are taken away": ([alter(second, "contents = NULL")], begins),
        "contents of another frame are laid beside one": (
            [alter(second, beside, first["pos"])],
            second["last_seq"],
        ),
    }


NAMES = list(forgeries([dict.fromkeys(COLUMNS, 0)] * 4, [dict.fromkeys(COLUMNS, 0)] * 2))


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("forgeries") / "store"
    damage_rows.tiny_store(folder)
    return folder


@pytest.mark.parametrize("name", NAMES)
def test_frames_that_were_removed_added_moved_or_swapped_are_named(
    name: str, template: Path, tmp_path: Path
) -> None:
    bench = damage_rows.Bench(template, tmp_path / "store")
    frames = bench.rows(
        "SELECT frames.*, streams.id FROM frames JOIN streams ON streams.key = stream ORDER BY pos"
    )
    runs = list(dict.fromkeys(frame["id"] for frame in frames if frame["id"].startswith(b"run_")))
    first, second = ([frame for frame in frames if frame["id"] == run] for run in runs)
    changes, seq = forgeries(first, second)[name]
    found = bench.problems(*changes)
    named = [(problem.stream, problem.seq) for problem in found if isinstance(problem, hf.store.Problem)]
    stream = runs[0].decode()
    assert [at for at in named if at[0] == stream and at[1] in (seq, seq + 1)], (name, found)


def test_a_cut_end_with_its_rows_is_shown_by_the_mark_and_by_a_kept_head(tmp_path: Path) -> None:
    with hf.open(tmp_path / "store") as store:
        run = store.create_run(agent="a", input=1)
        store.append(run, "note.logged", {"text": "one"}, barrier=True)
        before = store.verify(run).head
        store.append(run, "note.logged", {"text": "two"}, barrier=True)
        after = store.verify(run).head
    assert before is not None
    assert after is not None
    bench = damage_rows.Bench(tmp_path / "store", tmp_path / "cut")
    cut = bench.problems(
        ("DELETE FROM frames WHERE pos = (SELECT max(pos) FROM frames)", ()),
        ("UPDATE streams SET last_seq = last_seq - 1, head = ? WHERE id = ?", (before, run)),
    )
    with hf.open(tmp_path / "cut", read_only=True) as store:
        kept = store.verify(heads={run: after})
    assert [problem.code for problem in kept.problems][-1:] == ["head_mismatch"]
    assert kept.problems[-1].stream == run
    assert "kept elsewhere" in kept.guarantee
    assert disks.refusal(hf.open, tmp_path / "cut") == "store_truncated"
    assert cut != [], "verify saw neither the missing end nor the mark that knows of it"


def test_another_history_of_the_same_length_is_shown_by_a_kept_head(tmp_path: Path) -> None:
    with hf.open(tmp_path / "store") as store:
        run = store.create_run(agent="a", input=1)
    disks.copy_store(tmp_path / "store", tmp_path / "other")
    heads = []
    for folder, text in (("store", "what happened"), ("other", "what did not")):
        with hf.open(tmp_path / folder) as store:
            store.append(run, "note.logged", {"text": text}, barrier=True)
            assert store.verify().ok
            heads.append(store.verify(run).head)
    assert heads[0] is not None
    with hf.open(tmp_path / "other", read_only=True) as store:
        report = store.verify(heads={run: heads[0]})
    (problem,) = report.problems
    assert (problem.code, problem.stream) == ("head_mismatch", run)
