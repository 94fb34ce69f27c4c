"""Torn, truncated, flipped, zeroed and swapped files: found and named, or provably without influence.

Copies of small closed stores, and of one whose writer was killed so that its log is left, are damaged in
hundreds of ways. Opening, ``verify`` and reading either name the damage, or every record, value, fold and
row is what it was. Never a panic, a crash, a hang or an allocation that a damaged length asks for.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
from typing import TYPE_CHECKING, Any

import pytest
from tests.faults import damage, disks

import holdfast as hf

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

PAGE = 4096
LIMIT = pytest.mark.timeout(300 + 3 * disks.SECONDS)
PEAK_KIB = 400 * 1024


@pytest.fixture(scope="module")
def closed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store that was closed: everything is in the database and the blobs."""
    folder = tmp_path_factory.mktemp("closed")
    damage.small_store(folder / "store")
    assert not (folder / "store/holdfast.db-wal").exists()
    return damage.keep(folder)


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store whose writer was killed: everything is in the log."""
    folder = tmp_path_factory.mktemp("killed")
    done = subprocess.run(
        disks.role("small_and_die", folder / "store"),
        env=disks.environment(),
        capture_output=True,
        check=False,
    )
    assert done.returncode == -9, done.stderr
    assert (folder / "store/holdfast.db-wal").stat().st_size > PAGE
    return damage.keep(folder)


def judge(
    request: pytest.FixtureRequest,
    name: str,
    template: Path,
    cases: list[dict[str, Any]],
    work: Path,
    seed: int,
) -> None:
    results, peak = damage.judged(template, cases, work, disks.compile_shim(work))
    disks.tell(
        request, f"damage, {name}: {len(cases)} cases, {damage.told(results)}, peak {peak} KiB, seed {seed}"
    )
    wrong = [f"{case}, read_only={how}: {what}" for case, how, what in results if what.startswith("WRONG")]
    assert not wrong, f"{len(wrong)} of {len(results)}:\n" + "\n".join(wrong[:40])
    assert len(results) == 2 * len(cases)
    assert peak < PEAK_KIB


def blobs(store: Path) -> list[str]:
    return sorted(str(path.relative_to(store)) for path in (store / "blobs").rglob("*") if path.is_file())


def flips(path: Path, name: str, number: int, chance: random.Random) -> list[dict[str, Any]]:
    """Single bits; mostly in bytes that hold something, because most of a small database is empty."""
    data = path.read_bytes()
    held = [at for at, byte in enumerate(data) if byte]
    places = [
        chance.choice(held) if chance.random() < 0.9 else chance.randrange(len(data)) for _ in range(number)
    ]
    return [{"file": name, "how": "flip", "at": at, "xor": 1 << chance.randrange(8)} for at in places]


def long_enough(work: Callable[[int], None]) -> None:
    """Once, and in the long tier again and again with other seeds."""
    began = os.times().elapsed
    work(random.SystemRandom().getrandbits(32))
    while os.times().elapsed - began < disks.SECONDS:
        work(random.SystemRandom().getrandbits(32))


@LIMIT
def test_flipped_bits_in_the_database_are_found_or_harmless(
    closed: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    def once(seed: int) -> None:
        cases = flips(closed / "store/holdfast.db", "holdfast.db", 500, random.Random(seed))
        judge(request, "bits of the database", closed, cases, tmp_path, seed)

    long_enough(once)


@LIMIT
def test_flipped_bits_in_a_log_that_was_left_are_found_or_harmless(
    killed: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    def once(seed: int) -> None:
        chance = random.Random(seed)
        cases = flips(killed / "store/holdfast.db-wal", "holdfast.db-wal", 200, chance)
        header = [
            {"file": "holdfast.db-wal", "how": "flip", "at": at, "xor": 1 << at % 8} for at in range(56)
        ]
        cases += header + flips(killed / "store/holdfast.db", "holdfast.db", 50, chance)
        judge(request, "bits of the log", killed, cases, tmp_path, seed)

    long_enough(once)


@LIMIT
def test_flipped_bits_in_blobs_and_side_files_are_found_or_harmless(
    closed: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    store, cases = closed / "store", []
    for name in [*blobs(store), "holdfast.mark"]:
        size = (store / name).stat().st_size
        cases += [{"file": name, "how": "flip", "at": at, "xor": 1 << at % 8} for at in range(0, size, 2)]
    judge(request, "bits of blobs and the mark", closed, cases, tmp_path, 0)


@LIMIT
@pytest.mark.parametrize("name", ["holdfast.db", "holdfast.db-wal", "blobs"])
def test_files_that_were_cut_zeroed_or_overwritten_are_found_or_harmless(
    name: str, closed: Path, killed: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    template = killed if name == "holdfast.db-wal" else closed
    names = blobs(template / "store") if name == "blobs" else [name]
    seed = random.SystemRandom().getrandbits(32)
    chance, cases = random.Random(seed), []
    for file in names:
        size = (template / "store" / file).stat().st_size
        cuts = {
            0,
            1,
            size // 2,
            size - 1,
            *range(0, size, PAGE),
            *(chance.randrange(size) for _ in range(15)),
        }
        cases += [{"file": file, "how": "cut", "at": at} for at in sorted(cuts)]
        pages = range(0, size, PAGE)
        for how in ("zero", "garbage"):
            cases += [{"file": file, "how": how, "at": at, "bytes": PAGE} for at in pages]
            spots = [chance.randrange(size) for _ in range(15)]
            cases += [
                {"file": file, "how": how, "at": at, "bytes": chance.choice([1, 16, 512])} for at in spots
            ]
        mixed = [(chance.choice(pages), chance.choice(pages)) for _ in range(25)]
        cases += [
            {"file": file, "how": "copy", "from": a, "at": b, "bytes": PAGE} for a, b in mixed if a != b
        ]
        cases.append({"file": file, "how": "gone"})
    judge(request, f"cuts, zeros and garbage in {name}", template, cases, tmp_path, seed)


def found(folder: Path, original: Any) -> list[str]:
    """What is made of a store when it is opened for reading, and then for writing."""
    told = []
    for read_only in (True, False):
        copy = folder.with_name(f"{folder.name}-{read_only}")
        shutil.copytree(folder, copy)
        told.append(damage.judge(copy, original, read_only=read_only))
    return told


def test_an_older_copy_of_the_database_over_the_new_one_is_found(tmp_path: Path) -> None:
    store = tmp_path / "store"
    damage.small_store(store)
    older = (store / "holdfast.db").read_bytes()
    with hf.open(store) as opened:
        run = opened.create_run(agent="later", input=1)
        opened.append(run, "note.logged", {"text": "acknowledged"}, barrier=True)
        original = disks.dump(opened)
    (store / "holdfast.db").write_bytes(older)
    reading, writing = found(store, original)
    assert writing == "found by open: store_truncated"
    assert reading.startswith("found by"), reading


def test_the_database_of_another_store_is_found(tmp_path: Path) -> None:
    for name in ("one", "other"):
        damage.small_store(tmp_path / name)
    with hf.open(tmp_path / "one", read_only=True) as opened:
        original = disks.dump(opened)
    shutil.copyfile(tmp_path / "other/holdfast.db", tmp_path / "one/holdfast.db")
    reading, writing = found(tmp_path / "one", original)
    assert reading.startswith("found by")
    assert writing.startswith("found by")


@pytest.mark.parametrize("swapped", ["blobs", "log"])
def test_files_of_another_store_beside_the_database_are_found(
    swapped: str, killed: Path, tmp_path: Path
) -> None:
    one = tmp_path / "one"
    disks.copy_store(killed / "store", one)
    original = json.loads((killed / "dump.json").read_text())
    damage.small_store(tmp_path / "other")
    if swapped == "blobs":
        shutil.rmtree(one / "blobs")
        shutil.copytree(tmp_path / "other/blobs", one / "blobs")
    else:
        other = tmp_path / "third"
        subprocess.run(disks.role("small_and_die", other), env=disks.environment(), check=False)
        shutil.copyfile(other / "holdfast.db-wal", one / "holdfast.db-wal")
    reading, writing = found(one, original)
    assert reading.startswith("found by")
    assert writing.startswith("found by")


def test_two_blobs_that_changed_places_are_found(closed: Path, tmp_path: Path) -> None:
    store = tmp_path / "store"
    disks.copy_store(closed / "store", store)
    one, other = (store / name for name in blobs(store))
    first, second = one.read_bytes(), other.read_bytes()
    one.write_bytes(second)
    other.write_bytes(first)
    with hf.open(store) as opened:
        report = opened.verify()
        assert {problem.code for problem in report.problems} == {"blob_forged"}
        for path in (one, other):
            assert disks.refusal(opened.get_blob, f"sha256:{path.name}") == "blob_forged"


def test_garbage_files_in_the_folder_disturb_nobody(closed: Path, tmp_path: Path) -> None:
    store = tmp_path / "store"
    disks.copy_store(closed / "store", store)
    original = json.loads((closed / "dump.json").read_text())
    for name in (
        "core",
        "processes/0123456789abcdef",
        "processes/notes.txt",
        "blobs/readme",
        "blobs/zz/x",
        "a\nb",
    ):
        (store / name).parent.mkdir(exist_ok=True)
        (store / name).write_bytes(random.Random(name).randbytes(300))
    for read_only in (True, False):
        assert damage.judge(store, original, read_only=read_only) == "harmless"
    with hf.open(store) as opened:
        assert opened.stats()["processes"][0]["pid"] == os.getpid()
        assert opened.gc(older_than=0, dry_run=True) == (0, 0)
