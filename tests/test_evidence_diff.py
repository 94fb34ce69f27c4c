"""Comparing runs: the same execution twice shows no difference, each dimension differs by itself, and one
more event is one difference. The corpus of golden runs is what today's code does.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from fixtures import make_golden
from tests.evidence_desk import STORIES, Desk, play

import holdfast as hf
from holdfast.evidence import Dimension

if TYPE_CHECKING:
    from collections.abc import Iterator

GOLDEN = Path(__file__).parent.parent / "fixtures" / "golden"


@pytest.fixture
def desk() -> Iterator[Desk]:
    desk = Desk()
    yield desk
    desk.close()


@pytest.mark.parametrize("name", STORIES)
def test_the_same_execution_twice_shows_no_difference(name: str) -> None:
    one, run = play(name)
    other, again = play(name)
    found = one.rt.evidence.diff(run, other.rt.evidence.golden(again))
    if name == "timed":
        assert found.dimensions == {Dimension.OUTCOME}  # it returns a random number
    else:
        assert found.same, [str(difference) for difference in found.differences]
        assert one.rt.evidence.golden(run) == other.rt.evidence.golden(again)
    one.close()
    other.close()


async def plain(ctx: hf.Context) -> Any:
    ctx.state["a"] = {"b": 1}
    await ctx.call("send", what="x")
    await ctx.do("ask", lambda: "yes", effect="read")
    await ctx.artifact("f.txt", "one")
    await ctx.cost(usd=0.5)
    return "done"


async def one_more_note(ctx: hf.Context) -> Any:
    await ctx.log("first")
    return await plain(ctx)


async def model_says_no(ctx: hf.Context) -> Any:
    ctx.state["a"] = {"b": 1}
    await ctx.call("send", what="x")
    await ctx.do("ask", lambda: "no", effect="read")
    await ctx.artifact("f.txt", "one")
    await ctx.cost(usd=0.5)
    return "done"


async def other_arguments(ctx: hf.Context) -> Any:
    ctx.state["a"] = {"b": 1}
    await ctx.call("send", what="y")
    await ctx.do("ask", lambda: "yes", effect="read")
    await ctx.artifact("f.txt", "one")
    await ctx.cost(usd=0.5)
    return "done"


async def other_state(ctx: hf.Context) -> Any:
    done = await plain(ctx)
    ctx.state["a"] = {"b": 2}
    return done


async def other_artifact(ctx: hf.Context) -> Any:
    ctx.state["a"] = {"b": 1}
    await ctx.call("send", what="x")
    await ctx.do("ask", lambda: "yes", effect="read")
    await ctx.artifact("f.txt", "two")
    await ctx.cost(usd=0.5)
    return "done"


async def other_cost(ctx: hf.Context) -> Any:
    ctx.state["a"] = {"b": 1}
    await ctx.call("send", what="x")
    await ctx.do("ask", lambda: "yes", effect="read")
    await ctx.artifact("f.txt", "one")
    await ctx.cost(usd=0.75)
    return "done"


async def other_end(ctx: hf.Context) -> Any:
    await plain(ctx)
    return "otherwise"


@pytest.mark.parametrize(
    ("code", "differs", "where", "both"),
    [
        (one_more_note, {"events"}, None, None),
        (model_says_no, {"model_outputs", "results"}, "[0]", (["ask", "yes"], ["ask", "no"])),
        (other_arguments, {"arguments", "results"}, None, None),
        (other_state, {"state"}, ".a.b", (1, 2)),
        (other_artifact, {"artifacts"}, None, None),
        (other_cost, {"costs"}, ".usd_micros", (500_000, 750_000)),
        (other_end, {"outcome"}, ".result", ("done", "otherwise")),
    ],
)
def test_a_dimension_differs_by_itself(
    desk: Desk, code: Any, differs: set[str], where: str | None, both: tuple[Any, Any] | None
) -> None:
    one = desk.run(plain, name="one")
    other = desk.run(code, name="other")
    found = desk.rt.evidence.diff(one, other)
    assert found.dimensions == differs, [str(one) for one in found.differences]
    if where is not None:
        first = found.differences[0]
        assert (first.where, (first.one, first.other)) == (where, both)


def test_one_more_event_is_one_difference_and_not_all_that_follow(desk: Desk) -> None:
    one = desk.run(plain, name="one")
    other = desk.run(one_more_note, name="other")
    found = [(d.one, d.other) for d in desk.rt.evidence.diff(one, other).of("events")]
    assert found == [(None, "call.opened info"), (None, "note.logged info")]


def test_an_approval_that_went_otherwise_is_told(desk: Desk) -> None:
    one = STORIES["approved"](desk)
    desk.rt.agents.clear()
    other = STORIES["denied"](desk)
    told = desk.rt.evidence.diff(one, other).of(Dimension.APPROVALS)
    assert [(d.one[2], d.other[2]) for d in told] == [("approved", "denied")]


def letters(slow: str) -> bytes:
    """Two letters at once, of which one is held up until the other is gone."""
    gone: list[asyncio.Event] = []

    async def post(what: str) -> str:
        await gone[0].wait() if what == slow else gone[0].set()
        return what

    async def one(ctx: hf.Context, what: str) -> Any:
        return await ctx.do(f"post {what}", post, what, effect="write")

    with hf.Runtime("memory:", suspend_grace=0.01) as rt:

        @rt.agent
        async def clerk(ctx: hf.Context) -> list[Any]:
            gone.append(asyncio.Event())
            return sorted(await asyncio.gather(one(ctx, "a"), one(ctx, "b")))

        return rt.evidence.golden(rt.run_sync(clerk))


def test_what_runs_at_once_has_no_order_in_a_golden_run() -> None:
    assert letters("a") == letters("b")


@pytest.mark.parametrize("name", make_golden.PROGRAMS)
def test_the_corpus_is_what_the_code_does(desk: Desk, name: str) -> None:
    kept = (GOLDEN / f"{name}.json").read_bytes()
    found = desk.rt.evidence.diff(kept, make_golden.played(name))
    assert found.same, [str(difference) for difference in found.differences]
    assert kept == make_golden.played(name), "the same picture is the same bytes"


def test_every_golden_file_has_its_program() -> None:
    assert {path.stem for path in GOLDEN.glob("*.json")} == make_golden.PROGRAMS.keys()


@pytest.mark.parametrize("text", [b"{}", b"[]", b'{"format":"holdfast/golden/v2"}', b"no json"])
def test_what_is_no_golden_run_is_said(desk: Desk, text: bytes) -> None:
    with pytest.raises(hf.HoldfastError, match=r"bad_value|bad_json"):
        desk.rt.evidence.diff(text, text)
