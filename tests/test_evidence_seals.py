"""Seals: a signed head over everything, against which truncation and rewriting show."""

from __future__ import annotations

import json
import shutil
import sqlite3
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

import holdfast as hf
from holdfast import _core, keys
from holdfast.cli import app_for

if TYPE_CHECKING:
    from pathlib import Path

APP = app_for("")
CLI = CliRunner()


def _run(store: hf.Store, notes: int = 1) -> str:
    run = store.create_run(agent="import", barrier=False)
    for n in range(notes):
        store.append(run, "note.logged", {"text": f"note {n}"})
    return run


@pytest.fixture
def key(tmp_path: Path) -> tuple[Path, str]:
    path = tmp_path / "log.key"
    return path, keys.generate("example.com/log", path)


def test_a_seal_covers_what_was_committed_and_comes_again_only_when_something_was(
    tmp_path: Path, key: tuple[Path, str]
) -> None:
    with hf.open(tmp_path / "runs") as store:
        _run(store)
        first = store.seal(key[0])
        assert store.seal(key[0]) == first, "only the record of the seal has come since"
        _run(store)
        second = store.seal(key[0], by="dana")
        assert second.size == first.size + 3, "the record of the first seal, and two of the run"
        assert [seal.size for seal in store.seals()] == [second.size, first.size]
        told = _core.checkpoint_read(second.checkpoint)
        assert (told["origin"], told["size"], told["root"]) == (
            f"holdfast/{store.id}/1",
            second.size,
            second.root,
        )
        path = store.consistency(first.checkpoint, second.checkpoint)
        assert _core.consistency_check(first.checkpoint, second.checkpoint, path)
        assert not _core.consistency_check(second.checkpoint, first.checkpoint, path)
        report = store.verify(seals=[first.checkpoint, second.checkpoint], keys=[key[1]])
        assert (report.ok, report.sealed) == (True, second.size)
        assert "kept elsewhere" in report.guarantee
        assert [r.kind for r in store.read("store")][-2:] == ["seal.signed", "seal.signed"]


def test_a_store_that_was_cut_back_is_good_in_itself_and_found_against_the_seal(
    tmp_path: Path, key: tuple[Path, str]
) -> None:
    with hf.open(tmp_path / "runs") as store:
        _run(store)
    shutil.copytree(tmp_path / "runs", tmp_path / "older")
    with hf.open(tmp_path / "runs") as store:
        _run(store)
        seal = store.seal(key[0])
    with hf.open(tmp_path / "older", read_only=True) as store:
        assert store.verify().ok
        found = store.verify(seals=[seal.checkpoint])
        assert not found.ok
        assert found.first_bad is not None
        assert found.first_bad.code == "seal_mismatch"
        assert "0 are here" in found.first_bad.what


def test_a_store_that_was_written_anew_is_found_against_the_seal(
    tmp_path: Path, key: tuple[Path, str]
) -> None:
    """The same store, gone another way after its copy: each chain is good, and only one was sealed."""
    with hf.open(tmp_path / "runs") as store:
        _run(store)
    shutil.copytree(tmp_path / "runs", tmp_path / "other")
    with hf.open(tmp_path / "runs") as store:
        _run(store, 3)
        seal = store.seal(key[0])
    with hf.open(tmp_path / "other") as store:
        _run(store, 3)
        store.seal(key[0])
        assert store.verify(keys=[key[1]]).ok
        found = store.verify(seals=[seal.checkpoint], keys=[key[1]])
        assert found.first_bad is not None
        assert found.first_bad.code == "seal_mismatch"
        assert "not those that were sealed" in found.first_bad.what


def test_the_tree_grows_over_many_levels_and_every_stream_has_its_proof(key: tuple[Path, str]) -> None:
    with hf.open("memory:") as store:
        runs = [_run(store, 10) for _ in range(70)]
        first = store.seal(key[0])
        assert first.size == 1 + 70 * 11
        more = [_run(store, 10) for _ in range(30)]
        second = store.seal(key[0])
        assert store.sql("SELECT level, count(*) AS n FROM nodes GROUP BY level") == [{"level": 8, "n": 4}]
        assert store.verify(seals=[first.checkpoint, second.checkpoint], keys=[key[1]]).ok
        for run in (*runs, *more):
            audit = _core.BundleAudit(store.id)
            audit.seal(second.checkpoint)
            audit.begin(run, _core.store_inclusion(store._core, run, second.size, 10**6), None)
        assert _core.store_inclusion(store._core, more[0], first.size, 10**6) is None


def test_more_than_one_turn_of_commits_is_sealed_at_once(key: tuple[Path, str]) -> None:
    with hf.open("memory:") as store:
        run = _run(store, 0)
        for n in range(10_001):
            store.append(run, "note.logged", {"text": str(n)})
        seal = store.seal(key[0])
        assert seal.size == 1 + 1 + 10_001
        assert store.verify(seals=[seal.checkpoint]).sealed == seal.size


DAMAGE = {
    "a leaf's hash": "UPDATE leaves SET hash = zeroblob(32) WHERE n = 3",
    "a leaf's frame": "UPDATE leaves SET pos = pos + 1000 WHERE n = 3",
    "a leaf": "DELETE FROM leaves WHERE n = 3",
    "the last leaf": "DELETE FROM leaves WHERE n = (SELECT max(n) FROM leaves)",
    "a node": "UPDATE nodes SET hash = zeroblob(32)",
    "no node": "DELETE FROM nodes",
    "a root": "UPDATE seals SET root = '00'",
    "a seal's size": "UPDATE seals SET size = size - 1",
    "a seal": "UPDATE seals SET checkpoint = replace(checkpoint, 'holdfast/', 'elsewhere/')",
    "an odd seal": "UPDATE seals SET checkpoint = 'x'",
    "a signature": "UPDATE seals SET checkpoint = substr(checkpoint, 1, length(checkpoint) - 9)"
    " || 'AAAAAAA=' || char(10)",
}


@pytest.mark.parametrize("what", DAMAGE)
def test_damage_to_the_tree_and_its_seals_is_named(what: str, tmp_path: Path, key: tuple[Path, str]) -> None:
    with hf.open(tmp_path / "runs") as store:
        _run(store, 300)
        store.seal(key[0])
    with sqlite3.connect(tmp_path / "runs" / "holdfast.db") as database:
        database.execute("PRAGMA foreign_keys = OFF")
        assert database.execute(DAMAGE[what]).rowcount > 0
    database.close()
    with hf.open(tmp_path / "runs", read_only=True) as store:
        found = store.verify(keys=[key[1]])
        assert not found.ok
        assert {problem.code for problem in found.problems} == {"seal_mismatch"}


def test_a_restored_store_is_another_log_that_names_the_one_before(
    tmp_path: Path, key: tuple[Path, str]
) -> None:
    with hf.open(tmp_path / "runs") as store:
        _run(store)
        before = store.seal(key[0])
        store.backup(tmp_path / "backup")
        _run(store)
        lost = store.seal(key[0])
    hf.restore(tmp_path / "backup", tmp_path / "back")
    with hf.open(tmp_path / "back") as store:
        after = store.seal(key[0])
        told = _core.checkpoint_read(after.checkpoint)
        was = _core.checkpoint_read(before.checkpoint)
        assert told["origin"] == f"holdfast/{store.id}/2"
        (line,) = told["extensions"]
        assert line.startswith(f"follows {was['origin']} {was['size']} ")
        _run(store)
        assert _core.checkpoint_read(store.seal(key[0]).checkpoint)["extensions"] == [line]
        assert store.verify(seals=[before.checkpoint], keys=[key[1]]).ok
        assert not store.verify(seals=[lost.checkpoint]).ok, "what came after the backup is not here"


def test_keys_rotate_and_who_trusts_the_old_one_can_follow(tmp_path: Path, key: tuple[Path, str]) -> None:
    fresh, statement = keys.rotate(key[0], tmp_path / "new.key")
    assert keys.follow(key[1], statement) == fresh == keys.public(tmp_path / "new.key")
    assert (tmp_path / "new.key").stat().st_mode & 0o777 == 0o600
    for forged in (statement.replace(fresh, key[1], 1), statement.rpartition("\u2014")[0]):
        with pytest.raises(hf.VerifyError):
            keys.follow(key[1], forged)
    with hf.open("memory:") as store:
        first = store.seal(key[0])
        second = store.seal(tmp_path / "new.key")
        assert second.size == first.size + 1, "another key signs anew"
        assert store.verify(keys=[key[1], fresh]).ok
    with pytest.raises(hf.HoldfastError, match="target_exists"):
        keys.generate("x", key[0])


def test_the_command_line_seals_witnesses_exports_and_verifies(tmp_path: Path) -> None:
    def ran(*words: object, code: int = 0) -> str:
        done = CLI.invoke(APP, [str(word) for word in words])
        assert done.exit_code == code, done.output
        return done.output

    folder, key, seal = tmp_path / "runs", tmp_path / "log.key", tmp_path / "seal.txt"
    with hf.open(folder) as store:
        run = _run(store)
    public = ran("keys", "generate", "example.com/log", "-o", key).strip()
    assert ran("keys", "publish", key).strip() == public
    ran("journal", "seal", "--store", folder, "--key", key, "-o", seal)
    assert "example.com/log" in ran("journal", "seals", "--store", folder)
    watcher = ran("keys", "generate", "w.example/1", "-o", tmp_path / "w.key", "--witness").strip()
    shutil.copy(seal, tmp_path / "first.txt")
    with hf.open(folder) as store:
        _run(store)
    ran("journal", "seal", "--store", folder, "--key", key, "-o", seal)
    ran(
        "keys",
        "witness",
        seal,
        "--key",
        tmp_path / "w.key",
        "--after",
        tmp_path / "first.txt",
        "--store",
        folder,
    )
    ran("verify", "--store", folder, "--seal", seal, "--key", public)
    told = json.loads(ran("evidence", "export", run, "--store", folder, "-o", tmp_path / "b.zip", "--json"))
    assert (told["records"], told["sealed"]) == (3, 3)
    found = json.loads(
        ran("evidence", "verify", tmp_path / "b.zip", "--key", public, "--seal", seal, "--json")
    )
    assert (found["ok"], found["run"]) == (True, run)
    assert "good" in ran("evidence", "verify", tmp_path / "b.zip", "--key", public)
    assert "seal_unsigned" in ran("evidence", "verify", tmp_path / "b.zip", "--key", watcher, code=3)
    data = bytearray((tmp_path / "b.zip").read_bytes())
    data[len(data) // 2] ^= 1
    (tmp_path / "b.zip").write_bytes(data)
    assert "BAD" in ran("evidence", "verify", tmp_path / "b.zip", code=3)
    fresh = ran("keys", "rotate", key, "-o", tmp_path / "new.key", "--statement", tmp_path / "s.txt").strip()
    assert ran("keys", "follow", public, tmp_path / "s.txt").strip() == fresh
    assert "bad_key" in ran("journal", "seal", "--store", folder, "--key", tmp_path / "none", code=3)
