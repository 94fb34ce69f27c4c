"""The evidence for code on an event loop, and the past of a run that came in a bundle."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.evidence_desk import STORIES, Desk

import holdfast as hf
from holdfast import keys
from holdfast.evidence import Verdict

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def desk() -> Iterator[Desk]:
    desk = Desk()
    yield desk
    desk.close()


def test_everything_that_takes_its_time_can_be_awaited(desk: Desk, tmp_path: Path) -> None:
    run = STORIES["approved"](desk)
    public = keys.generate("example.com/log", tmp_path / "log.key")
    seen = list(desk.seen)

    async def work() -> None:
        evidence, beats = desk.rt.evidence.aio, 0

        async def beat() -> None:
            nonlocal beats
            while True:
                beats += 1
                await asyncio.sleep(0)

        beating = asyncio.create_task(beat())
        assert (await evidence.replay(run)).same
        assert (await evidence.shadow(run)).same
        seal = await evidence.seal(tmp_path / "log.key", by="dana")
        done = await evidence.export(run, tmp_path / "b.zip", since=[seal.checkpoint])
        found = await evidence.verify(done.path, keys=[public])
        assert (found.ok, found.sealed, found.shows) == (True, done.records, "whole")
        assert (await evidence.review(done.path)).ok
        beating.cancel()
        assert beats > 20, "the loop went on"

    asyncio.run(work())
    assert desk.seen == seen, "nothing has acted"


def test_on_the_runtimes_own_loop_the_async_form_works_and_the_other_says_so(desk: Desk) -> None:
    run = STORIES["plain"](desk)
    told: list[object] = []

    async def auditor(ctx: hf.Context) -> str:
        assert ctx is not None
        with pytest.raises(RuntimeError, match="await the async form"):
            desk.rt.evidence.replay(run)
        told.append((await desk.rt.evidence.aio.replay(run)).verdict)
        return "looked"

    assert desk.run(auditor).result == "looked"
    assert told == [Verdict.SAME]


def test_a_bundle_is_read_where_a_run_is_and_shadowed_without_its_store(tmp_path: Path) -> None:
    """Somebody else's program, whose store never saw the run."""
    first, other = Desk(), Desk()
    run = STORIES["approved"](first)
    first.rt.evidence.export(run, tmp_path / "b.zip")
    path, evidence = tmp_path / "b.zip", other.rt.evidence

    async def payer(ctx: hf.Context) -> int:
        paid = await ctx.call("wire", cents=5)
        ctx.state["paid"] = paid["cents"]
        return int(paid["cents"])

    async def greedy(ctx: hf.Context) -> int:
        assert 0 <= ctx.random() < 1
        paid = await ctx.call("wire", cents=500)
        return int(paid["cents"])

    other.rt.agent(payer)
    assert evidence.at(path).state == {"paid": 5}
    assert evidence.diff(path, first.rt.evidence.journal(run)).same
    assert [cause.what for cause in evidence.replay_safety(path).causes] == ["seed of run.created"]
    same = evidence.shadow(path)
    assert (same.status, same.same, same.result) == ("completed", True, 5), same.diff
    more = evidence.shadow(path, agent=other.rt.agent(greedy))
    assert [(one.name, one.arguments["cents"]) for one in more.refused] == [("wire", 500)]
    assert other.seen == [], "nothing has acted"
    with pytest.raises(hf.HoldfastError, match="replay the run where its store is") as caught:
        other.rt.evidence.replay(evidence.journal(path))  # type: ignore[arg-type]
    assert caught.value.code == "no_such_run"
    path.write_bytes(b"PK")
    with pytest.raises(hf.VerifyError, match="bundle_altered"):
        evidence.at(Path(path))
    first.close()
    other.close()
