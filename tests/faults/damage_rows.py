"""Changes made through SQL in a closed store, byte by byte and row by row, and whether ``verify`` names them.

Runs as a child, so that a build with planted faults can be judged by the same code: it prints what went
unnoticed or was named at a wrong place.
"""

from __future__ import annotations

import json
import re
import shutil
import sqlite3
import sys
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.faults import disks

import holdfast as hf

if TYPE_CHECKING:
    from collections.abc import Iterator

    Change = tuple[str, tuple[Any, ...]]

# Who holds a step, and until when: no record tells it, and a rebuild forgets it.
LEASE = {"owner", "process", "lease_boot", "lease_until"}
DERIVED = ("streams", "snapshots", "runs", "steps", "waits", "blob_refs", "keys", "meta")


def few_frames(folder: Path) -> None:
    """Three frames: the store's own, a new run's, and one with two notes."""
    with hf.open(folder) as store:
        run = store.create_run(agent="a", input={"n": 1}, state={"n": 1})
        store.append_many(
            run, [("note.logged", {"text": "one"}), ("note.logged", {"text": "two"})], barrier=True
        )


def tiny_store(folder: Path) -> None:
    """Two runs in a few frames: one that ended, one with a wait, a key and a blob."""
    clock = hf.store.FakeClock()
    with hf.open(folder, clock=clock) as store:
        first = store.create_run(agent="a", input={"n": 1}, state={"n": 1}, labels={"team": "x"})
        store.append_many(first, [("note.logged", {"text": "one"}), ("note.logged", {"text": "two"})])
        claim = store.claim(worker="w1")
        assert claim is not None
        store.finish(claim, result={"n": 2})
        second = store.create_run(agent="b", input=2, key="k", priority=1, concurrency_key="c")
        store.append(second, "x.test.n", {"data": {"n": 1}}, blobs={"content": store.put_blob(b"blob")})
        claim = store.claim(worker="w2")
        assert claim is not None
        store.wait(claim, [{"on": "timer", "until": clock.wall_ms + 60_000}])


def long_run(folder: Path) -> None:
    """A run that is long enough to have its fold kept."""
    with hf.open(folder) as store:
        run = store.create_run(agent="a", input=1)
        store.append_many(run, [("note.logged", {"text": "n"})] * 1000, barrier=True)


class Bench:
    """One store that is changed, looked at and put back."""

    def __init__(self, template: Path, work: Path) -> None:
        self.folder = work
        shutil.rmtree(work, ignore_errors=True)
        disks.copy_store(template, work)
        self.path = work / "holdfast.db"
        self.pristine = self.path.read_bytes()

    def rows(self, query: str) -> list[dict[str, Any]]:
        with closing(sqlite3.connect(f"file:{self.path}?immutable=1", uri=True)) as connection:
            connection.row_factory = sqlite3.Row
            connection.text_factory = bytes
            return [dict(row) for row in connection.execute(query)]

    def problems(self, *changes: Change) -> list[hf.store.Problem] | str:
        """What verify says after changes; the code if the store could not even be opened for reading."""
        for name in ("holdfast.db-wal", "holdfast.db-shm"):
            (self.folder / name).unlink(missing_ok=True)
        self.path.write_bytes(self.pristine)
        with closing(sqlite3.connect(self.path, isolation_level=None)) as connection:
            connection.execute("PRAGMA synchronous = OFF")
            connection.execute("BEGIN")
            for sql, values in changes:
                done = connection.execute(sql, values)
                assert done.rowcount != 0, f"{sql} changed nothing"
            connection.execute("COMMIT")
        try:
            with hf.open(self.folder, read_only=True) as store:
                return store.verify().problems
        except hf.HoldfastError as error:
            return error.code


def flips(data: bytes, bits: int) -> Iterator[tuple[int, bytes]]:
    """Every byte with one of its bits changed (which one goes round), or with every bit (8).

    With 0, every seventh byte: for what takes long to look at.
    """
    for at, byte in list(enumerate(data))[:: 1 if bits else 7]:
        chosen = range(8) if bits == 8 else [at % 8]
        for bit in chosen:
            yield at, data[:at] + bytes([byte ^ (1 << bit)]) + data[at + 1 :]


def places(body: bytes, first: int) -> list[int]:
    """The seq of the record that each byte of a frame's body belongs to."""
    seqs: list[int] = []
    for seq, record in enumerate(json.loads(body), start=first):
        text = json.dumps(record, separators=(",", ":"), ensure_ascii=False, sort_keys=True).encode()
        seqs += [seq] * (len(text) + 1)  # with the bracket or comma before it
    return [*seqs, seqs[-1]]


def is_json(text: bytes) -> bool:
    try:
        return isinstance(json.loads(text), list)
    except ValueError:
        return False


def judged(found: list[hf.store.Problem] | str, stream: str, seqs: range) -> str | None:
    """What is wrong with how a change was named, if anything."""
    if isinstance(found, str):
        return f"not named, only {found}"
    if not found:
        return "unnoticed"
    named = [(problem.stream, problem.seq) for problem in found]
    if not any(name == stream and seq is not None and seq in seqs for name, seq in named):
        return f"named at {named[:3]}, not at {stream} {seqs}"
    return None


def frame_bytes(bench: Bench, bits: int) -> Iterator[tuple[str, str | None]]:
    """Every byte of every frame: its records, its contents, its head."""
    frames = bench.rows(
        "SELECT frames.*, streams.id FROM frames JOIN streams ON streams.key = stream ORDER BY pos"
    )
    for frame in frames:
        stream, first, last = frame["id"].decode(), frame["first_seq"], frame["last_seq"]
        owners = places(frame["body"], first)
        assert len(owners) == len(frame["body"])
        for column in ("body", "contents", "head"):
            if frame[column] is None:
                continue
            for at, changed in flips(frame[column], bits):
                sql = f"UPDATE frames SET {column} = CAST(? AS TEXT) WHERE pos = ?"
                # A record is named itself, or the next one. Where records cannot be told apart any more, and
                # for what lies beside them, the frame is named.
                exact = column == "body" and is_json(changed)
                seqs = range(owners[at], owners[at] + 2) if exact else range(first, last + 2)
                found = bench.problems((sql, (changed, frame["pos"])))
                yield f"frame {frame['pos']} {column} byte {at}", judged(found, stream, seqs)


def frame_numbers(bench: Bench) -> Iterator[tuple[str, str | None]]:
    """Numbers of frames: where they stand and whose they are."""
    frames = bench.rows(
        "SELECT frames.*, streams.id FROM frames JOIN streams ON streams.key = stream ORDER BY pos"
    )
    for frame in frames:
        for column in ("pos", "stream", "first_seq", "last_seq"):
            for value in {frame[column] ^ 1, frame[column] ^ 2, frame[column] + 64, -1, 2**62}:
                sql = f"UPDATE frames SET {column} = ? WHERE pos = ?"
                # It is missing where it was, or in the way where it is now.
                first = (
                    min(frame["first_seq"], max(value, 1)) if column == "first_seq" else frame["first_seq"]
                )
                seqs = range(first, frame["last_seq"] + 2)
                with suppress(sqlite3.IntegrityError):  # the place is taken: SQL itself says no
                    found = bench.problems((sql, (value, frame["pos"])))
                    wrong = judged(found, frame["id"].decode(), seqs)
                    if column == "pos" and found:
                        wrong = None  # a hole among the positions belongs to no stream
                    yield f"frame {frame['pos']} {column} = {value}", wrong


def row_bytes(bench: Bench, table: str, bits: int) -> Iterator[tuple[str, str | None]]:
    """Every byte of every row of a table."""
    for number, row in enumerate(bench.rows(f"SELECT * FROM {table} ORDER BY 1, 2")):
        for column, value in row.items():
            if column not in LEASE:
                yield from cell(bench, table, number, column, value, bits)


def cell(
    bench: Bench, table: str, number: int, column: str, value: Any, bits: int
) -> Iterator[tuple[str, str | None]]:
    """Every byte of one cell, or a few other numbers instead of its number."""
    one, two = list(bench.rows(f"SELECT * FROM {table} LIMIT 1")[0])[:2]
    before = f"SELECT count(*) FROM {table} AS o WHERE (o.{one}, o.{two}) < ({table}.{one}, {table}.{two})"
    where = f"UPDATE {table} SET {column} = {{}} WHERE ({before}) = {number}"
    if isinstance(value, bytes):
        for at, changed in flips(value, bits):
            with suppress(sqlite3.IntegrityError):
                found = bench.problems((where.format("CAST(? AS TEXT)"), (changed,)))
                yield f"{table} {number} {column} byte {at}", None if found else "unnoticed"
        return
    others = {5, -1} if value is None else {value ^ 1, value + 256, -1}
    for other in others:
        with suppress(sqlite3.IntegrityError):
            found = bench.problems((where.format("?"), (other,)))
            yield f"{table} {number} {column}: {value} = {other}", None if found else "unnoticed"


# What verify leaves alone, because nothing is decided by it: positions that keep their order.
HARMLESS = re.compile(r"frame \d+ pos = ")

MAKERS = {maker.__name__: maker for maker in (few_frames, long_run, tiny_store)}


def main(make: str, work: str, what: str, bits: str) -> None:
    """Prints how many changes were tried, and those that were not named as they should be."""
    folder = Path(work)
    MAKERS[make](folder / "store")
    bench = Bench(folder / "store", folder / "bench")
    assert bench.problems(("UPDATE meta SET value = value", ())) == [], (
        "the store is not well before it is changed"
    )
    changes = {"frames": frame_bytes(bench, int(bits)), "numbers": frame_numbers(bench)}
    tried, wrong = 0, []
    for change, verdict in changes.get(what) or row_bytes(bench, what, int(bits)):
        tried += 1
        if verdict is not None and not (verdict == "unnoticed" and HARMLESS.match(change)):
            wrong.append(f"{change}: {verdict}")
    print(json.dumps({"tried": tried, "wrong": wrong}))


if __name__ == "__main__":
    main(*sys.argv[1:])
