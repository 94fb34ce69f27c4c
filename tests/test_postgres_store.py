"""Stories of a store on a real PostgreSQL server: the same contract as on a folder, and what is its own."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import psycopg
import pytest

import holdfast as hf
from holdfast.conformance.store import CLAUSES, Clause, PostgresHarness

if TYPE_CHECKING:
    from pathlib import Path

    from tests.postgres import Server

pytest_plugins = ["tests.postgres"]
KILL = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'holdfast %'"


@pytest.mark.parametrize("clause", CLAUSES, ids=str)
def test_the_engine_on_postgresql_keeps_every_clause(clause: Clause, postgres_running: Server) -> None:
    clause.check(PostgresHarness(postgres_running.url()))


def refused(url: str, *, read_only: bool = False) -> tuple[str, str]:
    with pytest.raises(hf.errors.StoreError) as caught:
        hf.open(url, read_only=read_only)
    return caught.value.code, str(caught.value)


def test_what_stands_in_the_way_is_told_by_a_code_and_never_with_the_password(
    postgres_running: Server, postgres_url: str, tmp_path: Path
) -> None:
    server = postgres_running.url()
    with psycopg.connect(postgres_running.schema(), autocommit=True) as connection:
        connection.execute("CREATE ROLE reader LOGIN")
        connection.execute("CREATE SCHEMA theirs")
        connection.execute("CREATE TABLE theirs.meta (a TEXT)")
    cases = {
        "no server": ("postgresql://dana:hunter2@127.0.0.1:1/x", "store_unreachable"),
        "no such host": ("postgresql://dana:hunter2@db.invalid/x", "store_unreachable"),
        "no such user": (server.replace("holdfast@", "dana:hunter2@"), "store_login"),
        "no such database": (server.replace("/postgres?", "/nothing?"), "no_such_store"),
        "another program's schema": (f"{server}&schema=theirs", "not_a_store"),
        "no rights": (server.replace("holdfast@", "reader@"), "no_permission"),
        "a schema's name": (f"{server}&schema=Bad-Name", "bad_url"),
        "an unknown parameter": (f"{server}&colour=red&password=hunter2", "bad_url"),
        "a bad certificate file": ("postgresql://dana@127.0.0.1/x?sslrootcert=/etc/hostname", "store_tls"),
    }
    for what, (url, code) in cases.items():
        found, told = refused(url)
        assert found == code, (what, told)
        assert "hunter2" not in told, what
    assert refused(postgres_url, read_only=True)[0] == "no_such_store"
    with hf.open(postgres_url.replace("holdfast@", "holdfast:hunter2@")) as store:
        assert "hunter2" not in repr(store)
    (tmp_path / "program.py").write_text("import holdfast as hf\nrt = hf.Runtime()\n")
    program = [sys.executable, "-m", "holdfast", "worker", "program:rt", "--until-idle"]
    environment = {**os.environ, "HOLDFAST_STORE": postgres_url.replace("holdfast@", "holdfast:hunter2@")}
    worker = subprocess.run(
        program, capture_output=True, text=True, check=False, cwd=tmp_path, env=environment
    )
    assert (worker.returncode, "works on postgresql://" in worker.stderr) == (0, True), worker.stderr
    assert "hunter2" not in worker.stdout + worker.stderr


def test_a_database_that_is_not_in_utf8_and_a_newer_schema_are_refused(
    postgres_running: Server, postgres_url: str
) -> None:
    with psycopg.connect(postgres_running.schema(), autocommit=True) as connection:
        connection.execute("CREATE DATABASE latin ENCODING 'LATIN1' TEMPLATE template0")
    code, told = refused(postgres_running.url().replace("/postgres?", "/latin?"))
    assert (code, "LATIN1" in told) == ("not_a_store", True)

    schema = postgres_url.rpartition("schema=")[2]
    with hf.open(postgres_url) as old:
        run = old.create_run(agent="a")
        with psycopg.connect(postgres_running.schema(), autocommit=True) as connection:
            connection.execute(f"INSERT INTO {schema}.migrations VALUES (99, 'future', 'x', 0)".encode())
            connection.execute(f"INSERT INTO {schema}.meta VALUES ('min_writer', '99')".encode())
        with pytest.raises(hf.errors.StoreError, match=r"^newer_store: .* it needs schema 99"):
            old.append(run, "note.logged", {"text": "too late"})
        assert [record.kind for record in old.read(run)] == ["run.created", "step.created"]
    assert refused(postgres_url)[0] == "newer_store"


def test_people_read_the_same_tables_and_cannot_write(postgres_url: str) -> None:
    with hf.open(postgres_url) as store:
        run = store.create_run(agent="clerk", input={"order": 42})
        store.append(run, "note.logged", {"text": "what is it? a ? in quotes"})
        rows = store.sql("SELECT seq, kind FROM events WHERE stream = ? AND kind <> '?' ORDER BY seq", [run])
        assert rows == [
            {"seq": 1, "kind": "run.created"},
            {"seq": 2, "kind": "step.created"},
            {"seq": 3, "kind": "note.logged"},
        ]
        sums = store.sql(
            "SELECT sum(last_seq) AS n, avg(last_seq) AS mean, NULL AS nothing, 1 = 1 AS yes FROM streams"
        )
        assert sums == [{"n": 4, "mean": 2.0, "nothing": None, "yes": 1}]
        either = "SELECT id FROM runs WHERE (agent = ?2 OR ?2 IS NULL) AND (id = ?1 OR ?1 IS NULL)"
        assert store.sql(either, [run, None]) == [{"id": run}]
        assert store.sql(either, [None, "nobody"]) == []
        for query in (
            "DELETE FROM runs",
            "WITH gone AS (DELETE FROM runs RETURNING id) SELECT * FROM gone",
            "COMMIT",
            "SELECT nextval('frames_pos_seq')",
            "SELECT now()",
            "SELECT 1; SELECT 2",
        ):
            with pytest.raises(hf.errors.StoreError, match=r"^bad_sql: "):
                store.sql(query)
        assert store.verify().ok


def test_a_killed_connection_is_replaced_and_nothing_is_lost_or_repeated(
    postgres_running: Server, postgres_url: str
) -> None:
    with hf.open(postgres_url) as store, psycopg.connect(postgres_running.schema(), autocommit=True) as other:
        run = store.create_run(agent="a")
        for number in range(20):
            store.append(run, "note.logged", {"text": str(number)}, barrier=number % 2 == 0)
            other.execute(KILL)
        texts = [record.value["text"] for record in store.read(run) if record.kind == "note.logged"]
        assert texts == [str(number) for number in range(20)]
        assert store.verify().ok


def test_a_forked_child_is_told_that_the_handle_is_not_its_own(postgres_url: str) -> None:
    with hf.open(postgres_url) as store:
        run = store.create_run(agent="a")
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                store.append(run, "note.logged", {"text": "child"})
            except hf.errors.StoreError as error:
                os.write(writing, error.code.encode())
            os._exit(0)
        os.waitpid(child, 0)
        assert os.read(reading, 100) == b"store_forked"
        store.append(run, "note.logged", {"text": "parent"}, barrier=True)
        assert store.verify().ok


def test_the_command_line_works_on_a_server(postgres_url: str) -> None:
    def told(*words: str) -> subprocess.CompletedProcess[str]:
        program = [sys.executable, "-m", "holdfast", *words, "--store", postgres_url]
        return subprocess.run(program, capture_output=True, text=True, check=False)

    missing = told("stats")
    assert (missing.returncode, missing.stderr.split(":")[0]) == (1, "no_such_store")
    with hf.open(postgres_url) as store:
        run = store.create_run(agent="clerk")
    for words in (["verify"], ["doctor"], ["doctor", "--rebuild"], ["migrate", "--plan"], ["stats"], ["gc"]):
        done = told(*words)
        assert done.returncode == 0, (words, done.stdout, done.stderr)
    assert "run.created" in told("journal", "tail", run).stdout
