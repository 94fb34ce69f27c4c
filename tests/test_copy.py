"""Stories of stores that are copied, from a folder to PostgreSQL and back: nothing is lost on the way."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import psycopg
import pytest

import holdfast as hf
from holdfast import keys

if TYPE_CHECKING:
    from pathlib import Path

    from tests.postgres import Server

pytest_plugins = ["tests.postgres"]


def furnished(url: str, folder: Path) -> tuple[str, str]:
    """A store with an ended run, one under way, a blob, a key and two seals; the ended run, the last seal."""
    signer = folder / "log.key"
    keys.generate("example.com/log", signer)
    with hf.open(url) as store:
        ended = store.create_run(agent="clerk", input={"order": 42}, key="order-42")
        claim = store.claim(worker="w1")
        assert claim is not None
        store.append(ended, "note.logged", {"text": "large"}, claim=claim)
        store.append_many(ended, [("note.logged", {"text": f"note {n}"}) for n in range(30)], claim=claim)
        store.patch(claim, {"paid": True}, expected_version=claim.state_version)
        store.finish(claim, result={"text": "x" * 200_000})  # kept as a blob
        store.seal(signer)
        under_way = store.create_run(agent="clerk", input={"order": 43})
        store.claim(worker="w1")
        store.signal(under_way, "hurry", {"by": "dana"})
        seal = store.seal(signer)
        store.append(under_way, "note.logged", {"text": "after the seal"})
        return ended, seal.checkpoint


def journal(url: str) -> dict[str, list[bytes]]:
    """The bytes of every record, stream by stream."""
    with hf.open(url, read_only=True) as store:
        streams = [row["id"] for row in store.sql("SELECT id FROM streams ORDER BY id")]
        return {stream: [record.text for record in store.read(stream)] for stream in streams}


def test_a_store_goes_to_postgresql_and_back_and_every_record_is_the_same(
    tmp_path: Path, postgres_url: str
) -> None:
    first, last = str(tmp_path / "runs"), str(tmp_path / "again")
    ended, checkpoint = furnished(first, tmp_path)
    before = journal(first)

    copied = hf.copy_store(first, postgres_url)
    assert (copied["epoch"], copied["waiting"], copied["blobs"]) == (2, 1, 1)
    back = hf.copy_store(postgres_url, last)
    assert (back["epoch"], back["waiting"], back["store"]) == (3, 1, copied["store"])

    for url in (postgres_url, last):
        after = journal(url)
        assert set(after) == set(before)
        for stream, records in before.items():
            assert after[stream][: len(records)] == records, stream  # what follows is the new epoch's
        with hf.open(url) as store:
            assert store.id == copied["store"]
            assert store.verify(seals=[checkpoint]).ok
            assert store.state(ended)["status"] == "completed"
            assert store.create_run(agent="clerk", input={"order": 42}, key="order-42") == ended
            assert store.claim(worker="w2") is None  # the open one waits for a person
            assert len(store.seals()) == 2


def test_a_copy_goes_only_where_nothing_is_and_a_half_one_cannot_be_opened(
    tmp_path: Path, postgres_running: Server, postgres_url: str
) -> None:
    source = str(tmp_path / "runs")
    furnished(source, tmp_path)
    cases = {
        "nothing to copy": (str(tmp_path / "none"), str(tmp_path / "b"), "no_such_store"),
        "onto itself": (source, source, "target_exists"),
        "into memory": (source, "memory:", "bad_url"),
        "from memory": ("memory:", str(tmp_path / "b"), "bad_url"),
    }
    hf.copy_store(source, postgres_url)
    cases["onto another store"] = (source, postgres_url, "target_exists")
    for what, (one, other, code) in cases.items():
        with pytest.raises(hf.StoreError) as caught:
            hf.copy_store(one, other)
        assert caught.value.code == code, what
    assert sorted(path.name for path in tmp_path.iterdir()) == ["log.key", "runs"]

    schema = postgres_url.rpartition("schema=")[2]
    with psycopg.connect(postgres_running.schema(), autocommit=True) as connection:
        connection.execute(f"INSERT INTO {schema}.meta VALUES ('unfinished', 'a copy')".encode())
    with pytest.raises(hf.StoreError, match=r"^not_a_store: .* interrupted"):
        hf.open(postgres_url)


def test_a_damaged_store_is_not_copied(tmp_path: Path, postgres_running: Server, postgres_url: str) -> None:
    furnished(postgres_url, tmp_path)
    schema = postgres_url.rpartition("schema=")[2]
    with psycopg.connect(postgres_running.schema(), autocommit=True) as connection:
        connection.execute(f"UPDATE {schema}.frames SET body = replace(body, 'clerk', 'clark')".encode())
    with pytest.raises(hf.VerifyError, match=r"^chain_broken: record 2 of run_"):
        hf.copy_store(postgres_url, tmp_path / "copy")
    assert [path.name for path in tmp_path.iterdir()] == ["log.key"]


def test_the_command_line_copies(tmp_path: Path, postgres_url: str) -> None:
    furnished(str(tmp_path / "runs"), tmp_path)
    program = [sys.executable, "-m", "holdfast", "copy", "runs", postgres_url]
    done = subprocess.run(program, cwd=tmp_path, capture_output=True, text=True, check=False, env=os.environ)
    assert (done.returncode, done.stderr) == (0, ""), done
    assert "waiting" in done.stdout
    assert "wait in the copy" in done.stdout
    assert hf.open(postgres_url, read_only=True).verify().ok
