"""Stories of workers in a fleet: how they are told apart, watched, drained and replaced."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import psycopg
import pytest

import holdfast as hf

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.postgres import Server

pytest_plugins = ["tests.postgres"]
PROGRAM = """
import asyncio, os, pathlib

import holdfast as hf

rt = hf.Runtime(suspend_grace=0.05)


@rt.agent(version=os.environ.get("VERSION", "1"))
async def clerk(ctx: hf.Context) -> str:
    await ctx.signal("go")
    return os.environ.get("VERSION", "1")


@rt.agent
async def stuck(ctx: hf.Context) -> None:
    await ctx.now()
    pathlib.Path("standing").touch()
    await asyncio.Event().wait()
"""


class Shop:
    """A folder with the program, and the environment of its processes."""

    def __init__(self, folder: Path, store: str) -> None:
        self.folder, self.store = folder, store
        (folder / "program.py").write_text(PROGRAM)

    def environment(self, version: str, **more: str) -> dict[str, str]:
        return {**os.environ, "HOLDFAST_STORE": self.store, "VERSION": version, **more}

    def said(self, *words: str, version: str = "1", **more: str) -> Any:
        done = subprocess.run(
            [sys.executable, "-m", "holdfast", *words, "--json"],
            cwd=self.folder,
            env=self.environment(version, **more),
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    @contextmanager
    def worker(self, *words: str) -> Iterator[subprocess.Popen[str]]:
        with subprocess.Popen(
            [sys.executable, "-m", "holdfast", "worker", "program:rt", "--json", *words],
            cwd=self.folder,
            env=self.environment("1"),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            try:
                yield process
            finally:
                process.kill()


@pytest.fixture
def shop(tmp_path: Path, postgres_url: str) -> Shop:
    return Shop(tmp_path, postgres_url)


def test_migrate_makes_the_schema_in_a_database_that_is_there_and_nothing_else(
    shop: Shop, postgres_running: Server
) -> None:
    with pytest.raises(hf.errors.StoreError, match=r"^no_such_store: "):
        hf.open(shop.store, read_only=True)
    assert all(row["applied"] for row in shop.said("migrate"))
    assert hf.open(shop.store, read_only=True).verify().ok
    assert shop.said("sql", "SELECT count(*) AS runs FROM runs") == [{"runs": 0}]
    for nowhere in (postgres_running.url().replace("/postgres?", "/nothing?"), str(shop.folder / "none")):
        with pytest.raises(AssertionError, match="no_such_store: "):
            shop.said("migrate", "--store", nowhere)
    assert not (shop.folder / "none").exists()


def test_a_worker_says_who_it_is_touches_its_file_and_keeps_the_password_to_itself(shop: Shop) -> None:
    shop.said("migrate")
    shop.store = shop.store.replace("holdfast@", "holdfast:hunter2@")
    alive = shop.folder / "alive"
    with shop.worker("--name", "host-7", "--alive", str(alive)) as worker:
        assert worker.stderr is not None
        line = worker.stderr.readline()
        assert line.startswith("worker host-7 works on postgresql:///postgres?host=")
        assert "hunter2" not in line
        while not alive.exists():
            assert worker.poll() is None
        run = shop.said("runs", "start", "program:rt", "clerk")["id"]
        while shop.said("metrics")["waiting"] != {"signal": 1}:
            assert worker.poll() is None
        worker.send_signal(signal.SIGTERM)
        out, _ = worker.communicate(timeout=60)
    assert (worker.returncode, json.loads(out)["waiting"]) == (0, 1)
    with hf.open(shop.store, read_only=True) as store:
        claimed = [record.by["id"] for record in store.read(run) if record.kind == "step.claimed"]
    assert claimed == ["host-7"]
    with pytest.raises(AssertionError, match="there is no folder"):
        shop.said("worker", "program:rt", "--alive", str(shop.folder / "none" / "alive"))


def test_what_still_runs_when_the_drain_is_over_is_given_back_in_order(shop: Shop) -> None:
    shop.said("migrate")
    run = shop.said("runs", "start", "program:rt", "stuck")["id"]
    with shop.worker("--drain", "0.5") as worker:
        while not (shop.folder / "standing").exists():
            assert worker.poll() is None
        worker.send_signal(signal.SIGTERM)
        out, told = worker.communicate(timeout=60)
    assert worker.returncode == 0, told
    assert json.loads(out) == {
        "claimed": 1,
        "completed": 0,
        "failed": 0,
        "waiting": 0,
        "cancelled": 0,
        "released": 1,
        "lost": 0,
    }
    with hf.open(shop.store, read_only=True) as store:
        last = list(store.read(run))[-1]
        assert (last.kind, last.body["reason"]) == ("lease.released", "shutdown")
        assert store.verify().ok


def packages(store: str, run: str) -> list[str]:
    """What the journal says of the versions of the program that had the run."""
    with hf.open(store, read_only=True) as opened:
        return [
            record.kind if record.kind != "run.resumed" else ",".join(record.body["changed"])
            for record in opened.read(run)
            if record.kind in ("run.resumed", "package.decided", "run.finished")
        ]


def test_two_versions_run_beside_each_other_and_each_has_its_own_runs(shop: Shop) -> None:
    shop.said("migrate")
    old, new = (shop.said("runs", "start", "program:rt", "clerk", version=v)["id"] for v in "12")
    for run in (old, new):
        shop.said("runs", "signal", run, "go")
    first = shop.said("worker", "program:rt", "--own-package", "--until-idle", version="2")
    assert (first["completed"], shop.said("runs", "show", new)["result"]) == (1, "2")
    assert shop.said("runs", "show", old)["status"] == "pending"  # nobody of its version came yet
    assert shop.said("worker", "program:rt", "--own-package", "--until-idle")["completed"] == 1
    assert shop.said("runs", "show", old)["result"] == "1"
    assert packages(shop.store, old) == packages(shop.store, new) == ["run.finished"]


def test_a_run_of_an_older_version_goes_on_under_the_new_one_as_was_decided(shop: Shop) -> None:
    shop.said("migrate")
    free, asked, refused = (shop.said("runs", "start", "program:rt", "clerk")["id"] for _ in range(3))
    for run in (free, asked, refused):
        shop.said("runs", "signal", run, "go")
    shop.said("runs", "pause", asked, "--by", "dana")
    shop.said("runs", "pause", refused, "--by", "dana")
    assert shop.said("worker", "program:rt", "--until-idle", version="2")["completed"] == 1
    assert packages(shop.store, free) == ["agent", "run.finished"]

    for run in (asked, refused):
        shop.said("runs", "unpause", run, "--by", "dana")
    strict = {"HOLDFAST_STRICT_PACKAGES": "true"}
    assert shop.said("worker", "program:rt", "--until-idle", version="2", **strict)["claimed"] == 0
    assert shop.said("metrics")["waiting"] == {"package": 2}
    shop.said("runs", "decide", asked, "continue", "--by", "dana", "--module", "program:rt", version="2")
    shop.said("runs", "decide", refused, "refuse", "--by", "dana")
    shop.said("worker", "program:rt", "--until-idle", version="2", **strict)
    assert packages(shop.store, asked) == ["package.decided", "run.finished"]
    assert packages(shop.store, refused) == ["package.decided", "run.finished"]
    assert [shop.said("runs", "show", run)["status"] for run in (asked, refused)] == [
        "completed",
        "cancelled",
    ]


class Heard(logging.Handler):
    """What a worker said, as it says it."""

    def __init__(self) -> None:
        super().__init__()
        self.away, self.back = asyncio.Event(), asyncio.Event()

    def emit(self, record: logging.LogRecord) -> None:
        if "the store is away" in record.getMessage():
            self.away.set()
        if "the store is back" in record.getMessage():
            self.back.set()


async def _outlasts(rt: hf.Runtime, door: Path, server: Server) -> hf.runtime.Summary:
    heard = Heard()
    logging.getLogger("holdfast.worker").addHandler(heard)
    worker = rt.worker(poll=0.01)
    serving = asyncio.create_task(worker.serve())
    try:
        door.unlink()  # nobody finds the server any more
        with psycopg.connect(server.schema(), autocommit=True) as other:
            other.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE %s",
                ["holdfast %"],
            )
        await heard.away.wait()
        door.symlink_to(server.folder)
        await heard.back.wait()
        run = await rt.start("hello")
        await asyncio.to_thread(lambda: list(rt.store.tail(run.id)))  # until it has ended
    finally:
        logging.getLogger("holdfast.worker").removeHandler(heard)
        worker.stop()
    return await serving


def test_a_worker_that_serves_outlasts_a_database_that_is_away(postgres_running: Server) -> None:
    folder = Path(tempfile.mkdtemp(prefix="hf-"))
    door = folder / "db"
    door.symlink_to(postgres_running.folder)
    url = f"postgresql://holdfast@/postgres?host={quote(str(door), safe='')}&schema=away"
    try:
        with hf.open(url, turn_wait=0.3) as store, hf.Runtime(store) as rt:

            @rt.agent
            async def hello(ctx: hf.Context) -> str:
                return (await ctx.now()).isoformat()

            summary = asyncio.run(_outlasts(rt, door, postgres_running))
            assert (summary.claimed, summary.completed) == (1, 1)
            door.unlink()
            with psycopg.connect(postgres_running.schema(), autocommit=True) as other:
                other.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()"
                )
            with pytest.raises(hf.errors.StoreError, match=r"^store_unreachable: "):
                rt.worker().run_until_idle_sync()
            door.symlink_to(postgres_running.folder)
    finally:
        shutil.rmtree(folder)
