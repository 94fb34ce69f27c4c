"""Reading a store: pages, tails, folds, SQL, audits; and what a handle refuses that must not write.

Each story runs on a store in memory and on one in a folder. SQL is for people: it reads, and neither
the data nor the settings of a connection can be changed through it.
"""

from __future__ import annotations

import asyncio
import json
import threading
from typing import TYPE_CHECKING

import pytest
from tests.support import refusal

import holdfast as hf
from holdfast import primitives

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@pytest.fixture(params=["memory", "folder"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[hf.Store]:
    with hf.open("memory:" if request.param == "memory" else tmp_path / "s") as opened:
        yield opened


def worked(store: hf.Store, notes: int = 3) -> str:
    """A completed run."""
    run = store.create_run(agent="import", input={"file": "a.csv"}, state={"n": 0})
    store.append_many(run, [("note.logged", {"text": f"note {n}"}) for n in range(notes)])
    claim = store.claim(worker="w1")
    assert claim is not None
    store.patch(claim, {"n": 1}, expected_version=0)
    store.finish(claim, result={"n": 1})
    return run


def test_records_are_read_in_order_with_the_bytes_that_were_hashed(store: hf.Store) -> None:
    run = worked(store)
    records = list(store.read(run))
    assert [record.seq for record in records] == list(range(1, 10))
    texts = [record.text for record in records]
    head = primitives.verify_chain(store.id, run, texts, head=records[-1].hash)
    assert (head.seq, head.hash) == (9, records[-1].hash)
    assert [record.fields["prev"] for record in records[1:]] == [record.hash for record in records[:-1]]
    assert all(json.loads(record.text) == record.fields for record in records)
    assert {record.stream for record in records} == {run}
    assert [record.seq for record in store.read(run, after=7)] == [8, 9]
    assert (list(store.read(run, after=9)), list(store.read(run, after=10**15))) == ([], [])
    assert [record.kind for record in store.read("store")] == ["store.created"]
    assert repr(records[2]) == "<Record 3 note.logged>"
    assert "a.csv" not in str(records[0].body), "values stand beside the record, not in it"


def test_a_long_run_is_read_page_by_page(store: hf.Store) -> None:
    run = store.create_run(agent="import")
    for part in range(3):
        store.append_many(run, [("note.logged", {"text": f"{part}.{n}"}) for n in range(9000)])
    seqs = [record.seq for record in store.read(run)]
    assert seqs == list(range(1, 27_003))
    assert [record.seq for record in store.read(run, after=20_000)] == list(range(20_001, 27_003))
    last = list(store.read(run))[-1]
    assert last.value["text"] == "2.8999"


def test_what_is_not_there_is_said(store: hf.Store) -> None:
    nobody = primitives.new_id("run")
    for work in (
        lambda: list(store.read(nobody)),
        lambda: list(store.tail(nobody)),
        lambda: store.append(nobody, "note.logged", {"text": "x"}),
        lambda: store.state(nobody),
        lambda: store.verify(nobody),
        lambda: store.forget(nobody, by="dana"),
        lambda: store.cancel(nobody, by="dana"),
    ):
        assert refusal(work) == ("no_such_run", None)
    for work in (lambda: list(store.read("run_x")), lambda: store.state("")):
        assert refusal(work)[0] == "bad_id"


def test_the_fold_of_any_record_can_be_had(store: hf.Store) -> None:
    run = worked(store)
    states = [store.state(run, at=seq) for seq in range(1, 10)]
    assert [state["status"] for state in states] == ["pending"] * 5 + ["running"] * 3 + ["completed"]
    assert [state["state"] for state in states] == [{"n": 0}] * 6 + [{"n": 1}] * 3
    assert [state["head"]["seq"] for state in states] == list(range(1, 10))
    assert states[-1] == store.state(run)
    for seq in (0, 10):
        with pytest.raises(hf.RecordError, match="bad_value"):
            store.state(run, at=seq)


def test_a_tail_follows_until_the_run_ends_or_it_is_stopped(store: hf.Store) -> None:
    run = store.create_run(agent="import")
    followed: list[int] = []
    begun = threading.Event()

    def follow() -> None:
        for record in store.tail(run):
            followed.append(record.seq)
            if record.seq == 2:
                begun.set()

    thread = threading.Thread(target=follow)
    thread.start()
    assert begun.wait(30)
    store.append(run, "note.logged", {"text": "more"})
    claim = store.claim(worker="w1")
    assert claim is not None
    store.finish(claim, result=None)
    thread.join(30)
    assert (thread.is_alive(), followed) == (False, [1, 2, 3, 4, 5, 6])
    assert [record.seq for record in store.tail(run, after=4)] == [5, 6]

    other, stop = store.create_run(agent="import"), threading.Event()
    seen = []
    for record in store.tail(other, stop=stop):
        seen.append(record.seq)
        if record.seq == 2:
            stop.set()
    assert seen == [1, 2]


def test_a_tail_in_asyncio_leaves_the_loop_free(store: hf.Store) -> None:
    run = store.create_run(agent="import")

    async def follow() -> tuple[list[int], int]:
        seen: list[int] = []
        turns = 0
        over = asyncio.Event()

        async def busy() -> None:
            nonlocal turns
            while not over.is_set():
                turns += 1
                await asyncio.sleep(0)

        task = asyncio.create_task(busy())
        async for record in store.atail(run):
            seen.append(record.seq)
            if record.seq == 2:
                claim = await asyncio.to_thread(lambda: store.claim(worker="w1"))
                assert claim is not None
                store.finish(claim, result=None)
        over.set()
        await task
        return seen, turns

    seen, turns = asyncio.run(follow())
    assert seen == [1, 2, 3, 4, 5]
    assert turns > 10


def test_sql_answers_with_rows(store: hf.Store) -> None:
    run = worked(store)
    counted = store.sql("SELECT kind, count(*) AS n FROM events WHERE stream = ? GROUP BY kind", [run])
    assert {row["kind"]: row["n"] for row in counted} == {
        "run.created": 1,
        "step.created": 1,
        "note.logged": 3,
        "step.claimed": 1,
        "state.patched": 1,
        "step.completed": 1,
        "run.finished": 1,
    }
    values: list[object] = [None, 7, 0.5, "caf\u00e9", b"\x00\xff"]
    assert list(store.sql("SELECT ? AS a, ? AS b, ? AS c, ? AS d, ? AS e", values)[0].values()) == values
    assert store.sql("SELECT 1 WHERE 0") == []
    endless = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT x FROM n"
    assert refusal(store.sql, endless) == ("limit_exceeded", None)
    assert refusal(store.sql, "SELECT ?", [object()]) == ("bad_sql", None)


WRITING = [
    "INSERT INTO names VALUES ('a', 'b')",
    "INSERT INTO names VALUES ('a', 'b') RETURNING *",
    "UPDATE runs SET status = 'failed'",
    "UPDATE runs SET status = 'failed' RETURNING id",
    "DELETE FROM frames",
    "DELETE FROM frames RETURNING pos",
    "WITH x AS (SELECT 1) DELETE FROM frames RETURNING pos",
    "REPLACE INTO names VALUES ('a', 'b')",
    "DROP TABLE frames",
    "DROP VIEW events",
    "CREATE TABLE t (x)",
    "CREATE TEMP TABLE t (x)",
    "CREATE TRIGGER t AFTER INSERT ON frames BEGIN SELECT 1; END",
    "CREATE VIRTUAL TABLE t USING fts5(x)",
    "ALTER TABLE frames ADD COLUMN x",
    "ATTACH ':memory:' AS other",
    "DETACH main",
    "BEGIN IMMEDIATE",
    "COMMIT",
    "SAVEPOINT a",
    "VACUUM",
    "VACUUM INTO 'copy.db'",
    "REINDEX",
    "ANALYZE",
    "SELECT load_extension('x')",
    "SELECT 1; DELETE FROM frames",
    "",
    "-- nothing",
]
PRAGMAS = {
    "application_id": 1,
    "user_version": 7,
    "schema_version": 99,
    "journal_mode": "DELETE",
    "synchronous": 0,
    "secure_delete": 0,
    "query_only": 0,
    "writable_schema": 1,
    "trusted_schema": 1,
    "cell_size_check": 0,
    "ignore_check_constraints": 1,
    "locking_mode": "EXCLUSIVE",
    "wal_autocheckpoint": 1,
    "busy_timeout": 1,
    "cache_size": 1,
    "auto_vacuum": 1,
    "temp_store": 1,
    "recursive_triggers": 1,
}


@pytest.mark.parametrize("statement", WRITING)
def test_sql_refuses_everything_that_writes(store: hf.Store, statement: str) -> None:
    run = worked(store)
    before = (store.state(run), store.sql("SELECT type, name, sql FROM sqlite_master"))
    assert refusal(store.sql, statement) == ("bad_sql", None)
    assert (store.state(run), store.sql("SELECT type, name, sql FROM sqlite_master")) == before
    assert store.verify().ok
    assert store.append(run, "note.logged", {"text": "goes on"}) == 10


@pytest.mark.parametrize("name", sorted(PRAGMAS))
def test_sql_changes_no_setting(store: hf.Store, name: str) -> None:
    def told() -> object:
        try:
            return store.sql(f"PRAGMA {name}")
        except hf.StoreError as error:
            return error.code

    before = told()
    assert refusal(store.sql, f"PRAGMA {name} = {PRAGMAS[name]}") == ("bad_sql", None)
    assert refusal(store.sql, f"PRAGMA main.{name}({PRAGMAS[name]})") == ("bad_sql", None)
    assert told() == before, "some pragmas act when they are prepared, before anybody runs them"


def test_sql_cannot_take_the_memory_of_the_process(store: hf.Store) -> None:
    # A heap limit is one for the whole process. The one asked for here bounds nothing.
    for name in ("hard_heap_limit", "soft_heap_limit"):
        assert refusal(store.sql, f"PRAGMA {name} = {2**50}") == ("bad_sql", None), name


def test_an_audit_says_what_it_saw_and_what_that_shows(store: hf.Store) -> None:
    run = worked(store)
    report = store.verify()
    assert (report.ok, report.first_bad, report.problems, report.problem_count) == (True, None, [], 0)
    assert (report.streams, report.frames, report.records, report.contents) == (2, 6, 10, 9)
    assert "kept elsewhere" in report.guarantee
    watched: list[tuple[int, int]] = []
    one = store.verify(run, watch=lambda done, total: watched.append((done, total)))
    assert (one.streams, one.records, one.head) == (1, 9, list(store.read(run))[-1].hash)
    assert watched[-1][0] == 5
    assert one.head is not None
    kept = {run: one.head}
    assert store.verify(heads=kept).ok
    store.append(run, "note.logged", {"text": "more"})
    assert store.verify(heads=kept).ok, "it had that head, and has grown since"
    rewritten = store.verify(heads={run: "sha256:" + "0" * 64})
    assert rewritten.first_bad is not None
    assert (rewritten.ok, rewritten.first_bad.code) == (False, "head_mismatch")
    assert rewritten.first_bad.stream == run
    gone = store.verify(heads={primitives.new_id("run"): one.head})
    assert [problem.code for problem in gone.problems] == ["head_mismatch"]


def test_an_audit_can_be_interrupted(store: hf.Store) -> None:
    worked(store)

    def interrupt(_done: int, _total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store.verify(watch=interrupt)
    assert store.verify().ok


def test_stats_tell_what_the_store_is(store: hf.Store) -> None:
    worked(store)
    store.create_run(agent="import")
    stats = store.stats()
    assert (stats["store"], stats["epoch"], stats["runs"]) == (store.id, 1, {"completed": 1, "pending": 1})
    assert (stats["frames"], stats["streams"], stats["engine"].split()[0]) == (7, 3, "sqlite")
    assert stats["barriers"] >= 3
    before = stats["barriers"]
    store.barrier()
    assert store.stats()["barriers"] > before


def writes(store: hf.Store, run: str, folder: Path) -> list[Callable[[], object]]:
    return [
        lambda: store.create_run(agent="import"),
        lambda: store.append(run, "note.logged", {"text": "x"}),
        lambda: store.append_many(run, [("note.logged", {"text": "x"})]),
        lambda: store.claim(worker="w1"),
        lambda: store.signal(run, "go"),
        lambda: store.cancel(run, by="dana"),
        lambda: store.retry(run, by="dana"),
        lambda: store.put_blob(b"x"),
        lambda: store.gc(older_than=0),
        lambda: store.barrier(),
        lambda: store.backup(folder / "backup"),
    ]


def reads(store: hf.Store, run: str, blob: str) -> list[Callable[[], object]]:
    return [
        lambda: list(store.read(run)),
        lambda: store.state(run),
        lambda: store.sql("SELECT 1"),
        lambda: store.stats(),
        lambda: store.verify(),
        lambda: store.get_blob(blob),
    ]


def test_a_store_that_is_open_for_reading_refuses_every_write(tmp_path: Path) -> None:
    assert refusal(lambda: hf.open(tmp_path / "s", read_only=True)) == ("no_such_store", None)
    assert not (tmp_path / "s").exists()
    with hf.open(tmp_path / "s") as live:
        run = worked(live)
        blob = live.put_blob(b"left over")
        with hf.open(tmp_path / "s", read_only=True) as reader:
            assert (reader.id, reader.epoch) == (live.id, live.epoch)
            codes = [refusal(work) for work in writes(reader, run, tmp_path)]
            assert codes == [("read_only_store", None)] * len(codes)
            assert live.stats()["blobs"] == 1
            assert live.append(run, "note.logged", {"text": "from the writer"}) == 10
            assert [record.seq for record in reader.read(run, after=8)] == [9, 10], (
                "it sees what others write"
            )
            assert (reader.get_blob(blob), reader.verify().ok) == (b"left over", True)
            assert len(live.stats()["processes"]) == 1, "a reader is no process of the store"


def test_a_closed_store_refuses_everything(tmp_path: Path) -> None:
    for url in ("memory:", tmp_path / "s"):
        with hf.open(url) as store:
            run = worked(store)
            blob = store.put_blob(b"x")
        store.close()  # once more is no harm
        works = [*writes(store, run, tmp_path), *reads(store, run, blob["commit"])]
        codes = [refusal(work) for work in works]
        assert codes == [("store_closed", None)] * len(codes), url
        assert repr(store) == f"<Store {url}>"


def test_a_store_is_closed_when_its_block_raises_and_opens_again(tmp_path: Path) -> None:
    store = hf.open(f"sqlite:///{tmp_path / 's'}")
    run = worked(store)
    with pytest.raises(RuntimeError, match="of the user"), store:
        raise RuntimeError("of the user")
    assert refusal(store.stats) == ("store_closed", None)
    with hf.open(tmp_path / "s") as again:
        assert again.id == store.id
        assert [record.seq for record in again.read(run)] == list(range(1, 10))
        assert again.append(run, "note.logged", {"text": "goes on"}) == 10


def test_a_value_that_is_gone_and_that_nobody_erased_is_called_lost(tmp_path: Path) -> None:
    with hf.open(tmp_path / "s") as store:
        run = store.create_run(agent="a")
        store.append(run, "note.logged", {"text": "long " * 20_000})
        [blob] = [path for path in (tmp_path / "s" / "blobs").rglob("*") if path.is_file()]
        blob.unlink()
        note = list(store.read(run))[-1]
        assert refusal(lambda: note.value)[0] == "content_lost"
        [problem] = store.verify().problems
        assert (problem.stream, problem.seq) == (run, note.seq)


def test_a_backup_removes_an_interrupted_one_and_nothing_else(tmp_path: Path) -> None:
    hidden = tmp_path / ".copy.new"
    hidden.mkdir()
    (hidden / "letters.txt").write_text("mine")
    with hf.open(tmp_path / "s") as store:
        worked(store)
        assert refusal(lambda: store.backup(tmp_path / "copy"))[0] == "target_exists"
        assert (hidden / "letters.txt").read_text() == "mine"
        (hidden / "letters.txt").rename(hidden / "holdfast.db")
        store.backup(tmp_path / "copy")
    assert (hidden.exists(), (tmp_path / "copy" / "holdfast.db").exists()) == (False, True)


def test_verify_finds_nothing_wrong_in_a_store_that_is_being_written_to(store: hf.Store) -> None:
    runs = [store.create_run(agent="a") for _ in range(20)]
    over = threading.Event()

    def write() -> None:
        while not over.is_set():
            for run in runs:
                store.append(run, "note.logged", {"text": "more"})
            gone = store.create_run(agent="gone", input="secret " * 20_000)
            store.cancel(gone, by="dana")
            store.forget(gone, by="dana")

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(20):
            report = store.verify()
            assert report.ok, report.problems
    finally:
        over.set()
        writer.join()


def test_contents_are_named_by_their_places_and_opened_one_by_one(store: hf.Store) -> None:
    run = store.create_run(agent="import", input={"file": "a.csv"}, state={"n": 0})
    created = next(store.read(run))
    contents = created.contents()
    assert {path: content["privacy"] for path, content in contents.items()} == {
        "input": "internal",
        "seed": "secret",
        "state": "internal",
    }
    assert created.open(contents["input"]) == created.value["input"] == {"file": "a.csv"}
    claim = store.claim(worker="w1")
    assert claim is not None
    store.fail(claim, ValueError("line 7"), retryable=False)
    failed = [record for record in store.read(run) if record.kind == "run.finished"][-1]
    assert [failed.open(content) for content in failed.contents().values()] == ["line 7"]
    assert list(failed.contents()) == ["failure.message"]
    store.forget(run, by="dana")
    (forgotten,) = list(next(store.read(run)).contents().values())[:1]
    assert refusal(next(store.read(run)).open, forgotten) == ("content_erased", None)
