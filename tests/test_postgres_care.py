"""What is done to a store on PostgreSQL beside those who write: blobs that nobody needs any more."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import psycopg
from tests.support import refusal

import holdfast as hf

if TYPE_CHECKING:
    from tests.postgres import Server

pytest_plugins = ["tests.postgres"]

WAITS = "SELECT count(*) FROM pg_locks WHERE NOT granted AND locktype = ANY(%s)"


def held_up(other: psycopg.Connection, thread: threading.Thread, *locks: str) -> None:
    """Waits until a thread's command waits for a lock at the server, or is done."""
    while thread.is_alive() and other.execute(WAITS, [list(locks)]).fetchall() == [(0,)]:
        thread.join(0.01)


def test_a_blob_that_is_being_collected_is_not_referred_to(
    postgres_running: Server, postgres_url: str
) -> None:
    """The collector is held up between looking and removing; meanwhile a frame wants to name the blob."""
    schema = postgres_url.rpartition("schema=")[2]
    told: list[tuple[str, str | None]] = []
    with (
        psycopg.connect(postgres_running.schema(), autocommit=True) as other,
        psycopg.connect(postgres_running.schema()) as holder,
        hf.open(postgres_url) as collects,
        hf.open(postgres_url) as writes,
    ):
        run, blob = writes.create_run(agent="a"), writes.put_blob(b"found late")

        def refer() -> None:
            told.append(
                refusal(lambda: writes.append(run, "x.acme.scan", {"data": {}}, blobs={"content": blob}))
            )

        holder.execute(f"SELECT 1 FROM {schema}.blobs FOR KEY SHARE".encode())
        collector = threading.Thread(target=collects.gc, kwargs={"older_than": 0})
        collector.start()
        held_up(other, collector, "transactionid", "tuple")
        assert collector.is_alive(), "it was to be held up"
        writer = threading.Thread(target=refer)
        writer.start()
        held_up(other, writer, "advisory")
        holder.rollback()
        collector.join(30)
        writer.join(30)
        assert told == [("no_such_blob", None)]
        assert (writes.verify().ok, writes.verify().blobs) == (True, 0)


def test_a_blob_that_somebody_is_referring_to_is_not_collected(
    postgres_running: Server, postgres_url: str
) -> None:
    """The writer is held up between its look at the blob and its commit."""
    schema = postgres_url.rpartition("schema=")[2]
    with (
        psycopg.connect(postgres_running.schema(), autocommit=True) as other,
        psycopg.connect(postgres_running.schema()) as holder,
        hf.open(postgres_url) as collects,
        hf.open(postgres_url) as writes,
    ):
        run, blob = writes.create_run(agent="a"), writes.put_blob(b"needed")
        writes.append(run, "note.logged", {"text": "everything is prepared"})

        def refer() -> None:
            writes.append(run, "x.acme.scan", {"data": {}}, blobs={"content": blob})

        holder.execute(f"LOCK TABLE {schema}.blob_refs IN SHARE ROW EXCLUSIVE MODE".encode())
        writer = threading.Thread(target=refer)
        writer.start()
        held_up(other, writer, "relation")
        assert writer.is_alive(), "it was to be held up"
        collector = threading.Thread(target=collects.gc, kwargs={"older_than": 0})
        collector.start()
        held_up(other, collector, "advisory")
        holder.rollback()
        writer.join(30)
        collector.join(30)
        assert writes.get_blob(blob) == b"needed"
        assert (writes.verify().ok, writes.verify().blobs) == (True, 1)
