"""Stories of two processes on one folder: a budget of one, a grant of one use, one decision."""

from __future__ import annotations

import multiprocessing
from typing import TYPE_CHECKING, Any

import holdfast as hf
from holdfast import _core
from holdfast.store import commands

if TYPE_CHECKING:
    from multiprocessing.synchronize import Barrier
    from pathlib import Path

WORKERS = 4
spawning = multiprocessing.get_context("spawn")


def _act(folder: str, at: int, barrier: Barrier, told: Any) -> None:
    """Claims a step, waits for the others, and makes a call."""
    with hf.open(folder) as store:
        gate = hf.Gateway(store)

        @gate.tool(effect="write")
        def act(n: int) -> int:
            with open(f"{folder}-ledger", "a") as ledger:  # noqa: PTH123
                ledger.write(f"{n}\n")
            return n

        claim = store.claim(worker=f"w{at}", lease=60)
        assert claim is not None
        barrier.wait(60)
        try:
            gate.call(claim, act, key=f"k{at}", n=at)
        except hf.BudgetRefused:
            told.put("refused")
        else:
            told.put("acted")


def test_a_budget_of_one_holds_across_processes(tmp_path: Path) -> None:
    folder = tmp_path / "runs"
    with hf.open(folder) as store:
        run = store.create_run(agent="a", budget={"on_exceeded": "refuse", "tool_calls": 1})
        for _ in range(WORKERS - 1):
            step = commands.new_step("more", {}, store._core.wall_ms)
            command = {"command": "add_step", "step": step}
            store._core.run(_core.Call.command(run, commands.human("dana"), command, "barrier"))
    barrier, told = spawning.Barrier(WORKERS), spawning.Queue()
    workers = [spawning.Process(target=_act, args=(str(folder), at, barrier, told)) for at in range(WORKERS)]
    for worker in workers:
        worker.start()
    heard = sorted(told.get(timeout=120) for _ in workers)
    for worker in workers:
        worker.join(60)
    assert heard == ["acted", *["refused"] * (WORKERS - 1)]
    assert len((tmp_path / "runs-ledger").read_text().splitlines()) == 1
    with hf.open(folder) as store:
        assert store.verify().ok
