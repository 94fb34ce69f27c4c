"""A server that crashes takes back what no barrier had reached: whoever was told that something is durable
still finds it, and whoever waits for what is gone is told so.

The server here writes its log only when somebody waits for it, so that a crash loses all that nobody waited
for.
"""

from __future__ import annotations

import contextlib
import secrets
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import psycopg
import pytest
from tests import closing

import holdfast as hf
from holdfast import _core
from holdfast.store.commands import SYSTEM

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.postgres import Server

pytest_plugins = ["tests.postgres"]
LAZY = {"wal_writer_delay": "10s", "wal_writer_flush_after": "1GB"}

BARRIER_WAITS = """
    SELECT count(*) = 1 FROM pg_stat_activity
    WHERE query LIKE 'UPDATE processes%' AND wait_event_type = 'Lock'
"""


@pytest.fixture
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    from tests import postgres  # a plugin, which pytest must be the first to import

    programs = postgres.programs()
    if programs is None:
        closing.not_run(request, postgres.WHAT)
    running = postgres.Server(programs, postgres.SETTINGS | LAZY)
    yield running
    running.stop()


@pytest.fixture
def schema() -> str:
    return f"store_{secrets.token_hex(8)}"


def kinds(url: str, run: str) -> list[str]:
    with hf.open(url) as store:
        assert store.verify().ok
        return [record.kind for record in store.read(run)]


def test_a_process_that_others_took_for_gone_still_waits_for_the_disk(server: Server, schema: str) -> None:
    url = f"{server.url()}&schema={schema}"
    with hf.open(url) as store:
        run = store.create_run(agent="a")
        with psycopg.connect(f"host={server.folder} user=holdfast dbname=postgres", autocommit=True) as other:
            other.execute(
                f"DELETE FROM {schema}.processes".encode()
            )  # as who sees no connection of ours does
        store.append(run, "note.logged", {"text": "acknowledged"}, barrier=True)
        server.restart()
    assert kinds(url, run) == ["run.created", "step.created", "note.logged"]


def test_what_was_committed_while_a_barrier_was_under_way_is_not_taken_for_durable(
    server: Server, schema: str
) -> None:
    url = f"{server.url()}&schema={schema}"
    address = f"host={server.folder} user=holdfast dbname=postgres"
    with hf.open(url, turn_wait=20) as store, ThreadPoolExecutor(2) as pool:
        run = store.create_run(agent="a")
        with (
            contextlib.closing(psycopg.connect(address)) as holds,
            contextlib.closing(psycopg.connect(address, autocommit=True)) as looks,
        ):
            holds.execute(f"SELECT * FROM {schema}.processes FOR UPDATE".encode())
            note = pool.submit(store.append, run, "note.logged", {"text": "x"}, barrier=True)
            until(looks, BARRIER_WAITS)
            claim = pool.submit(store.claim, worker="w")
            until(looks, f"SELECT count(*) = 1 FROM {schema}.events WHERE kind = 'step.claimed'")
            server.restart()
        told = {"note.logged": note.exception(60), "step.claimed": claim.exception(60)}
    kept = kinds(url, run)
    assert kept == ["run.created", "step.created"], "the crash took both back, or it has shown nothing"
    assert [getattr(error, "code", "acknowledged") for error in told.values()] == ["store_unreachable"] * 2


def test_of_a_batch_nothing_is_acknowledged_when_the_crash_took_back_a_part(
    server: Server, schema: str
) -> None:
    url = f"{server.url()}&schema={schema}"
    address = f"host={server.folder} user=holdfast dbname=postgres"
    with hf.open(url, turn_wait=20) as store, ThreadPoolExecutor(1) as pool:
        lost, kept = store.create_run(agent="a"), store.create_run(agent="a")
        entry = {"body": {"level": "info", "text": "x"}, "kind": "note.logged", "privacy": "internal"}
        calls = [_core.Call.append(run, SYSTEM, None, [entry], "barrier") for run in (lost, kept)]
        with (
            contextlib.closing(psycopg.connect(address)) as holds,
            contextlib.closing(psycopg.connect(address, autocommit=True)) as looks,
        ):
            holds.execute(f"SELECT * FROM {schema}.streams WHERE id = '{kept}' FOR UPDATE".encode())
            told = pool.submit(store._core.run_all, calls)
            until(looks, f"SELECT count(*) = 1 FROM {schema}.events WHERE kind = 'note.logged'")
            server.restart()  # one is committed, the other waits for its stream
        codes = [getattr(answer, "code", "acknowledged") for answer in told.result(60)]
    assert "note.logged" not in kinds(url, lost), "the crash took it back, or it has shown nothing"
    assert codes[0] == "store_unreachable"


def until(connection: psycopg.Connection[tuple[object, ...]], sql: str) -> None:
    """Looks until it is so."""
    while connection.execute(sql.encode()).fetchone() != (True,):
        pass
