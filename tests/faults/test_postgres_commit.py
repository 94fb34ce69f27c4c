"""Commits that nobody answered: the line is cut before COMMIT reaches the server, or after it. The store
looks what became of them; it repeats none that happened and tells none that did not.
"""

from __future__ import annotations

import os
import signal
import threading
from typing import TYPE_CHECKING

import psycopg
import pytest
from tests.faults.pg_proxy import Fate, Proxy, merciful

import holdfast as hf

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.postgres import Server

pytest_plugins = ["tests.postgres"]
APPENDS = 200


@pytest.fixture
def proxy(postgres_running: Server) -> Iterator[Proxy]:
    with Proxy(postgres_running.folder) as running:
        yield running


@pytest.mark.timeout(300)
@pytest.mark.parametrize("fate", [Fate.CUT, Fate.BLIND, Fate.LOST], ids=lambda fate: fate.name.lower())
def test_each_note_is_there_once_however_its_commit_was_cut(
    fate: Fate, proxy: Proxy, postgres_url: str
) -> None:
    cuts = [0]

    def judge(is_commit: bool) -> Fate:
        if not is_commit:
            return Fate.GO
        cuts[0] += 1
        # What never arrives is sent again: every other one of those may pass.
        return Fate.GO if fate is Fate.CUT and cuts[0] % 2 == 0 else fate

    with hf.open(proxy.url(postgres_url)) as store:
        run = store.create_run(agent="a")
        proxy.judge = judge
        told = [
            store.append(run, "note.logged", {"text": str(n)}, barrier=n % 2 == 0) for n in range(APPENDS)
        ]
        proxy.judge = merciful
        notes = [record for record in store.read(run) if record.kind == "note.logged"]
        assert [note.value["text"] for note in notes] == [str(n) for n in range(APPENDS)]
        assert [note.seq for note in notes] == told
        assert cuts[0] >= APPENDS
        assert store.verify().ok


def test_a_new_run_whose_commit_the_server_is_still_at_is_waited_for(
    proxy: Proxy, postgres_running: Server, postgres_url: str
) -> None:
    """The stream's row is as new as the frame: nobody else sees it before the commit, and no lock of it is
    to be had. The server's process stands while the store looks."""
    cut, made = threading.Event(), threading.Event()
    stopped: list[int] = []
    with (
        psycopg.connect(postgres_running.schema(), autocommit=True) as other,
        hf.open(proxy.url(postgres_url)) as store,
    ):
        schema = postgres_url.rpartition("schema=")[2]

        def judge(is_commit: bool) -> Fate:
            if not is_commit or stopped:
                return Fate.GO
            sql = (
                "SELECT pid FROM pg_locks JOIN pg_class ON pg_class.oid = relation WHERE relname = 'streams'"
            )
            sql += " AND relnamespace = %s::regnamespace AND mode = 'RowExclusiveLock'"
            ((pid,),) = other.execute(sql, [schema]).fetchall()
            os.kill(pid, signal.SIGSTOP)
            stopped.append(pid)
            cut.set()
            return Fate.BLIND

        def waits() -> bool:
            sql = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
            return bool(other.execute(sql).fetchall())

        store.create_run(agent="a")  # everything is prepared
        proxy.judge = judge
        runs: list[str] = []

        def ask() -> None:
            runs.append(store.create_run(agent="b"))
            made.set()

        asked = threading.Thread(target=ask)
        asked.start()
        assert cut.wait(30)
        while not made.wait(0.01) and not waits():
            assert asked.is_alive()
        early = made.is_set()
        os.kill(stopped[0], signal.SIGCONT)
        asked.join(30)
        assert not early, "it was told before the server was done"
        assert store.sql("SELECT id FROM runs WHERE agent = 'b'") == [{"id": runs[0]}]
        assert [record.kind for record in store.read(runs[0])] == ["run.created", "step.created"]
        assert store.verify().ok


def test_a_fence_is_handed_out_once_though_the_server_crashes_right_after(
    postgres_running: Server, postgres_url: str
) -> None:
    """What no barrier had reached is forgotten by a crash, but the worker that has it in hand lives on."""
    with psycopg.connect(postgres_running.schema(), autocommit=True) as other:
        other.execute("ALTER SYSTEM SET wal_writer_delay = '10s'")
        other.execute("SELECT pg_reload_conf()")
    with hf.open(postgres_url) as one, hf.open(postgres_url) as another:
        run = one.create_run(agent="a")
        first = one.claim(worker="one", lease=60)
        assert first is not None
        postgres_running.restart()
        with psycopg.connect(postgres_running.schema(), autocommit=True) as other:
            other.execute("ALTER SYSTEM RESET wal_writer_delay")
            other.execute("SELECT pg_reload_conf()")
        second = another.claim(worker="another", lease=60)
        assert second is None or second.fence != first.fence
        one.append(run, "note.logged", {"text": "still mine"}, claim=first)
        assert one.verify().ok


@pytest.mark.timeout(120)
def test_a_command_that_is_committed_is_told_so_when_its_letter_cannot_be_delivered(
    proxy: Proxy, postgres_url: str
) -> None:
    commits = [0]

    def judge(is_commit: bool) -> Fate:
        commits[0] += is_commit
        return Fate.CUT if is_commit and commits[0] > 1 else Fate.GO

    with hf.Runtime(postgres_url, suspend_grace=0.05) as rt:

        @rt.agent
        async def child(ctx: hf.Context) -> None:
            await ctx.signal("never")

        @rt.agent
        async def parent(ctx: hf.Context) -> None:
            await (await ctx.spawn(child))

        run = rt.start_sync(parent)
        rt.worker().run_until_idle_sync()
        with hf.open(proxy.url(postgres_url), turn_wait=0.5) as store:
            proxy.judge = judge
            store.cancel(run.id, by="dana")
            proxy.judge = merciful
        (born,) = rt.runs.list(agent="child")
        assert (commits[0] > 1, rt.runs.get(run.id).status, born.status) == (True, "cancelled", "waiting")
        rt.worker().run_until_idle_sync()  # whoever looks for work delivers it
        assert rt.runs.get(born.id).status == "cancelled"
        assert rt.store.verify().ok
