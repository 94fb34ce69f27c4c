"""The runtime on a PostgreSQL server: its stories told there, and those of several handles at once.

Two handles in one process are to the server what two processes are: each has connections of its own, and
nothing in memory is shared.
"""

from __future__ import annotations

import inspect
import subprocess
import sys
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from tests import test_runtime, test_runtime_edges, test_runtime_forks, test_runtime_keys, test_runtime_work
from tests.bundle_desk import case
from tests.runtime_desk import Provider, approve_all, provider, rt
from tests.test_gateway_leave import spend_one_use
from tests.test_runtime_keys import pays

import holdfast as hf
from holdfast import evidence

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.postgres import Server

__all__ = ["pays", "provider", "rt"]  # fixtures
pytest_plugins = ["tests.postgres"]

for told_in in (test_runtime, test_runtime_edges, test_runtime_forks, test_runtime_keys, test_runtime_work):
    for name, story in vars(told_in).copy().items():
        if name.startswith("test_") and {"address", "rt"} & inspect.signature(story).parameters.keys():
            globals()[name] = story


@pytest.fixture
def address(postgres_url: str) -> str:
    """The stories are told here."""
    return postgres_url


@pytest.fixture
def handles(address: str) -> Iterator[list[hf.Runtime]]:
    """Two runtimes on one schema."""
    with ExitStack() as opened:
        yield [
            opened.enter_context(hf.Runtime(address, suspend_grace=0.05, replay_grace=0.2)) for _ in range(2)
        ]


def at_once(*works: Callable[[], Any]) -> list[Any]:
    """What each of them came to, begun together."""
    line = threading.Barrier(len(works))

    def begin(work: Callable[[], Any]) -> Any:
        line.wait()
        return work()

    with ThreadPoolExecutor(len(works)) as threads:
        return list(threads.map(begin, works))


def test_another_handle_decides_signals_and_finishes_what_one_began(
    handles: list[hf.Runtime], provider: Provider
) -> None:
    async def pay(ctx: hf.Context, cents: int) -> str:
        sent = await ctx.call("wire", cents=cents)
        return f"{sent}, {await ctx.signal('receipt')}"

    for one in handles:
        one.tool(effect="write", approval="always", name="wire")(lambda cents: provider.send(f"wire {cents}"))
        one.agent(name="pay")(pay)
    here, there = handles
    run = here.run_sync("pay", 5)
    assert ([wait["on"] for wait in run.waiting_on], provider.sent) == (["approval"], {})
    assert approve_all(there) == 1
    assert [wait["on"] for wait in there.resume_sync(run.id).waiting_on] == ["signal"]
    assert provider.sent == {"wire 5": 1}
    here.signal(run, "receipt", "no. 7")
    ended = there.resume_sync(run.id)
    assert (ended.status, ended.result) == ("completed", "receipt for wire 5, no. 7")
    assert (run.refresh().status, provider.sent) == ("completed", {"wire 5": 1})
    assert here.store.verify().ok


def test_a_budget_of_one_is_spent_once_whoever_asks_at_the_same_time(
    handles: list[hf.Runtime], provider: Provider
) -> None:
    async def part(ctx: hf.Context, name: str) -> str:
        return str(await ctx.call("send", what=name))

    async def fan(ctx: hf.Context) -> None:
        for name in "abcdef":
            await ctx.add_step("part", name)

    for one in handles:
        one.tool(effect="write", name="send")(provider.send)
        one.step(name="part", attempts=1)(part)
        one.agent(name="fan")(fan)
    run = handles[0].start_sync("fan", budget={"tool_calls": 1})
    at_once(*(lambda one=one: one.worker(concurrency=3, poll=0.01).run_until_idle_sync() for one in handles))
    assert sum(provider.sent.values()) == 1, provider.sent
    assert handles[1].budget(run)["tool_calls"] == {
        "limit": 1,
        "raised": 0,
        "used": 1,
        "reserved": 0,
        "escrowed": 0,
        "left": 0,
    }
    assert handles[0].store.verify().ok


def test_a_childs_escrow_leaves_its_parent_and_comes_back(rt: hf.Runtime) -> None:
    seen: list[Any] = []

    @rt.agent
    async def child(ctx: hf.Context) -> str:
        seen.append(rt.budget(ctx.run)["tool_calls"]["limit"])
        return str(await ctx.call("send", what="child"))

    @rt.agent
    async def parent(ctx: hf.Context) -> str:
        one = await ctx.spawn(child, escrow={"tool_calls": 3})
        return str(await one)

    run = rt.run_sync(parent, budget={"tool_calls": 5})
    assert (run.status, run.result, seen) == ("completed", "receipt for child", [3])
    account = rt.budget(run)["tool_calls"]
    assert (account["limit"], account["used"], account["escrowed"], account["left"]) == (5, 1, 0, 4)
    assert rt.store.verify().ok


def test_one_use_of_a_session_is_spent_by_one_run_of_many(handles: list[hf.Runtime]) -> None:
    assert spend_one_use([one.store for one in handles]) == (1, 6)


def test_one_key_makes_one_run_whoever_asks_at_the_same_time(handles: list[hf.Runtime]) -> None:
    def ask(at: int) -> str:
        return handles[at % 2].store.create_run(agent="clerk", input={"order": 7}, key="order 7")

    made = at_once(*(lambda at=at: ask(at) for at in range(8)))
    assert len(set(made)) == 1
    assert handles[0].store.sql("SELECT count(*) AS n FROM runs") == [{"n": 1}]
    with pytest.raises(hf.HoldfastError, match="key"):
        handles[1].store.create_run(agent="clerk", input={"order": 8}, key="order 7")
    assert handles[0].store.verify().ok


def test_one_concurrency_key_has_one_step_running_in_all_workers(handles: list[hf.Runtime]) -> None:
    lock, inside, most = threading.Lock(), [0], [0]

    async def alone(ctx: hf.Context) -> None:
        with lock:
            inside[0] += 1
            most[0] = max(most[0], inside[0])
        await ctx.log("in the middle")
        with lock:
            inside[0] -= 1

    for one in handles:
        one.agent(name="alone", concurrency_key="mailbox")(alone)
    runs = [handles[n % 2].start_sync("alone") for n in range(8)]

    def work(one: hf.Runtime) -> int:
        worker, done = one.worker(concurrency=4, poll=0.01), 0
        while any(one.status_of(run.id) != "completed" for run in runs):
            done += worker.run_once_sync()
        return done

    shares = at_once(*(lambda one=one: work(one) for one in handles))
    assert (most, sum(shares)) == ([1], 8)
    assert handles[0].store.verify().ok


def test_what_is_sealed_is_exported_and_verifies(tmp_path: Path, address: str) -> None:
    desk = case(tmp_path, address)
    with desk.runtime:
        desk.store.seal(desk.key)
        for name, run in desk.runs.items():
            path = tmp_path / f"{name}.zip"
            written = evidence.export(desk.store, run, path, key=desk.key)
            found = evidence.verify(path, keys=[desk.public])
            assert (found.ok, found.run, found.sealed) == (True, run, written.records), (name, found.what)
        assert desk.store.verify(keys=[desk.public]).ok


def test_rows_that_somebody_changed_are_named_and_made_anew(
    postgres_running: Server, address: str, rt: hf.Runtime
) -> None:
    @rt.agent
    async def pay(ctx: hf.Context) -> str:
        return str(await ctx.call("wire", cents=1))

    run = rt.run_sync(pay)
    schema = address.rpartition("schema=")[2]
    with psycopg.connect(postgres_running.schema(), autocommit=True) as other:
        for damage in ("UPDATE runs SET status = 'failed'", "DELETE FROM approvals", "DELETE FROM waits"):
            table = damage.split()[1] if damage.startswith("UPDATE") else damage.split()[2]
            other.execute(damage.replace(table, f"{schema}.{table}").encode())

    def told(*words: str) -> subprocess.CompletedProcess[str]:
        program = [sys.executable, "-m", "holdfast", *words, "--store", address]
        return subprocess.run(program, capture_output=True, text=True, check=False)

    found = told("verify")
    assert (found.returncode, "rows_differ" in found.stderr) == (3, True)
    assert "make them anew with --rebuild" in told("doctor").stdout
    assert told("doctor", "--rebuild").returncode == 0
    assert told("verify").returncode == 0
    assert approve_all(rt) == 1
    assert rt.resume_sync(run).result == "receipt for wire 1"
    assert Counter(record.kind for record in rt.store.read(run.id))["effect.settled"] == 1


def test_runs_that_come_with_one_key_at_the_same_time_act_once(
    handles: list[hf.Runtime], provider: Provider
) -> None:
    async def pay(ctx: hf.Context, order: str) -> str:
        key = hf.Key(f"order {order}", scope="store")
        return str(await ctx.call("send", what=order, key=key))

    for one in handles:
        one.tool(effect="write", name="send")(provider.send)
        one.agent(name="pay")(pay)
    orders = [str(n) for n in range(12)]
    runs = [handles[0].start_sync("pay", order) for order in orders for _ in range(4)]
    while any(
        run.refresh().status != "completed" for run in runs
    ):  # who waits for a key is woken by who looks
        at_once(*(one.worker(concurrency=8, poll=0.01).run_until_idle_sync for one in handles))
    assert provider.sent == dict.fromkeys(orders, 1)
    assert [run.result for run in runs] == [f"receipt for {order}" for order in orders for _ in range(4)]
    assert handles[1].store.verify().ok
