"""Stories of a budget's limits: how many bodies at once, for how long, and what cannot be held."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from tests.gateway_desk import Desk, refunds

import holdfast as hf
from holdfast.store.clock import FakeClock


def refusals(desk: Desk) -> list[dict[str, Any]]:
    return [record.body for record in desk.store.read(desk.run) if record.kind == "budget.refused"]


@pytest.mark.parametrize("on_exceeded", ["refuse", "ask"])
def test_no_more_bodies_are_on_their_way_at_once_than_the_limit_says(on_exceeded: str) -> None:
    desk = Desk(budget={"on_exceeded": on_exceeded, "concurrency": 2})
    inside, go = threading.Semaphore(0), threading.Event()

    @desk.gate.tool(effect="write")
    def slow(n: int) -> int:
        inside.release()
        assert go.wait(60)
        return n

    with ThreadPoolExecutor(2) as threads:
        running = [threads.submit(desk.call, slow, f"s{n}", n=n) for n in range(2)]
        for _ in running:
            assert inside.acquire(timeout=60)
        with pytest.raises(hf.BudgetRefused) as refused:  # nobody is asked: there is nothing to give
            desk.call(slow, "s2", n=2)
        go.set()
        assert [one.result(60) for one in running] == [0, 1]
    assert refused.value.code == "budget_refused"
    assert refusals(desk) == [{"account": "concurrency", "asked": 1, "limit": 2, "used": 2}]
    assert desk.call(slow, "s3", n=3) == 3
    assert desk.store.verify().ok


def test_a_body_in_doubt_counts_while_it_can_still_act() -> None:
    clock = FakeClock()
    desk = Desk.__new__(Desk)
    desk.store = hf.open("memory:", clock=clock)
    desk.gate, desk.happened = hf.Gateway(desk.store), []
    desk.run = desk.store.create_run(agent="support", budget={"on_exceeded": "refuse", "concurrency": 1})
    claim = desk.store.claim(worker="w1", lease=3600)
    assert claim is not None
    desk.claim = claim
    refund = refunds(desk)

    @desk.gate.tool(effect="write", timeout=1.0)
    async def lost() -> None:
        raise ConnectionError

    async def call() -> None:
        await desk.gate.acall(claim, lost, key="l1")

    with pytest.raises(hf.Suspended):
        asyncio.run(call())
    with pytest.raises(hf.BudgetRefused):
        desk.call(refund, "r1", order="1", cents=1)
    clock.advance(seconds=60)
    assert desk.call(refund, "r2", order="1", cents=1) == {"id": "r1"}


def test_what_a_worker_had_started_that_lost_its_step_does_not_fill_the_limit() -> None:
    clock = FakeClock()
    store = hf.open("memory:", clock=clock)
    gate = hf.Gateway(store)
    store.create_run(agent="support", budget={"on_exceeded": "refuse", "concurrency": 1})
    seen: list[int] = []

    @gate.tool(effect="read")
    def look(n: int) -> int:
        if n == 0:
            clock.advance(seconds=120)  # its lease runs out meanwhile, and another worker takes the step
            taken = store.claim(worker="w2", lease=30)
            assert taken is not None
            seen.append(gate.call(taken, look, key="b", n=1))
        return n

    claim = store.claim(worker="w1", lease=30)
    assert claim is not None
    with pytest.raises(hf.CommandError) as stale:
        gate.call(claim, look, key="a", n=0)
    assert stale.value.code == "stale_fence"
    assert seen == [1]


def test_a_run_sends_nothing_off_when_its_time_is_over_and_nobody_is_asked() -> None:
    clock = FakeClock()
    store = hf.open("memory:", clock=clock)
    gate = hf.Gateway(store)
    run = store.create_run(agent="support", budget={"on_exceeded": "ask", "wall_ms": 60_000})
    claim = store.claim(worker="w1", lease=3600)
    assert claim is not None

    @gate.tool(effect="read")
    def look(n: int) -> int:
        return n

    clock.advance(seconds=59)
    assert gate.call(claim, look, key="a", n=1) == 1
    clock.advance(seconds=1)
    for _ in range(2):  # made again it is the same refusal
        with pytest.raises(hf.BudgetRefused):
            gate.call(claim, look, key="b", n=2)
    assert gate.call(claim, look, key="a", n=1) == 1  # what happened is served
    refused = [record.body for record in store.read(run) if record.kind == "budget.refused"]
    assert refused == [{"account": "wall_ms", "asked": 1, "limit": 60_000, "used": 60_000}]


def test_a_limit_that_nobody_could_hold_is_refused_when_the_run_is_made() -> None:
    store = hf.open("memory:")
    with pytest.raises(hf.CommandError) as refused:
        store.create_run(agent="support", budget={"on_exceeded": "refuse", "memory_bytes": 1 << 30})
    assert refused.value.code == "unenforceable"
    assert "memory_bytes" in str(refused.value)
    assert store.sql("SELECT id FROM runs") == []
