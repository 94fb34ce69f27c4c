"""Attribution: each cost counts once whatever it is added up by; the same bug in two runs is one signature,
and two bugs are two.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tests.evidence_desk import STORIES, Desk

import holdfast as hf
from holdfast.evidence import By, Owner, Recovery
from holdfast.evidence.attribution import steady

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def desk() -> Iterator[Desk]:
    desk = Desk()
    yield desk
    desk.close()


def test_costs_are_added_up_by_everything_and_come_to_the_same(desk: Desk) -> None:
    STORIES["made"](desk)
    desk.clock.advance(seconds=24 * 3600)

    @desk.rt.tool(effect="read")
    def priced(what: str) -> Any:
        return hf.Result(what, usage={"usd_micros": 30_000, "tokens": 7})

    async def buyer(ctx: hf.Context) -> Any:
        await ctx.call("priced", what="a map")
        return await ctx.call("send", what="it")

    desk.run(buyer)
    evidence = desk.rt.evidence
    told = {by: [(one.name, one.usd, one.tokens, one.calls) for one in evidence.costs(by)] for by in By}
    assert told[By.AGENT] == [("artist", 0.75, 11, 1), ("buyer", 0.03, 7, 2)]
    assert told[By.STEP] == [("artist/main", 0.75, 11, 1), ("buyer/main", 0.03, 7, 2)]
    assert told[By.TOOL] == [
        ("(none)", 0.75, 11, 0),
        ("priced", 0.03, 7, 1),
        ("ask", 0.0, 0, 1),
        ("send", 0.0, 0, 1),
    ]
    assert told[By.MODEL] == [("large", 0.5, 0, 0), ("small", 0.25, 11, 0), ("(none)", 0.03, 7, 3)]
    assert [row[1:] for row in told[By.DAY]] == [(0.75, 11, 1), (0.03, 7, 2)]
    for rows in told.values():
        assert sum(row[1] for row in rows) == pytest.approx(0.78)
        assert sum(row[2] for row in rows) == 18
    assert len(evidence.costs("day")) == 2
    with pytest.raises(ValueError, match="colour"):
        evidence.costs("colour")


def failing(desk: Desk, name: str, error: Exception) -> hf.Run:
    async def agent(_: hf.Context) -> None:
        raise error

    return desk.run(agent, name=name, attempts=1)


def test_the_same_bug_in_two_runs_is_one_signature_and_two_bugs_are_two(desk: Desk) -> None:
    @desk.rt.agent(attempts=1)
    async def clerk(_: hf.Context, order: int, bug: str) -> None:
        if bug == "one":
            raise ValueError(f"order {order} in /tmp/x{order}/db at 0x7f{order:08x} of {hex(order)}")
        raise ValueError("the order is closed")

    for order in (17, 4711):
        desk.rt.run_sync(clerk, order, "one")
    desk.rt.run_sync(clerk, 17, "two")
    one, two = desk.rt.evidence.failures()
    assert (one.count, len(one.runs), two.count) == (2, 2, 1)
    assert one.signature != two.signature
    assert one.message == "order <n> in <path> at <at> of <at>"
    assert (one.owner, one.name, one.error, one.recovery) == (
        Owner.AGENT,
        "clerk",
        "ValueError",
        Recovery.CHANGE,
    )
    assert "holdfast runs retry" in one.to_do
    again = desk.rt.evidence.failures(runs=[one.runs[1]])
    assert [failure.signature for failure in again] == [one.signature]


def test_one_failure_is_one_line(desk: Desk) -> None:
    """Not one for the call, one for the step, one for the run and one more."""
    desk.broken = True

    async def clerk(ctx: hf.Context) -> Any:
        return await ctx.call("look", what="it")

    desk.run(clerk, attempts=1)
    (failure,) = desk.rt.evidence.failures()
    assert (failure.owner, failure.name, failure.error, failure.count) == (
        Owner.TOOL,
        "look",
        "ConnectionError",
        1,
    )


def test_a_tool_has_the_same_failure_in_every_agent(desk: Desk) -> None:
    desk.broken = True
    for name in ("one", "other"):

        async def clerk(ctx: hf.Context) -> Any:
            return await ctx.call("look", what="it")

        desk.run(clerk, name=name, attempts=1)
    (failure,) = desk.rt.evidence.failures()
    assert (failure.count, len(failure.runs), failure.recovery) == (2, 2, Recovery.RETRY)


def test_what_a_later_attempt_went_on_from_is_told(desk: Desk) -> None:
    STORIES["tried_again"](desk)
    (failure,) = desk.rt.evidence.failures()
    assert (failure.owner, failure.count, failure.recovered) == (Owner.TOOL, 1, 1)


def unhandled(desk: Desk, story: str) -> Owner:
    (failure,) = desk.rt.evidence.failures(runs=[_unhandled(desk, story)])
    return failure.owner


def _unhandled(desk: Desk, story: str) -> hf.Run:
    """An agent that lets what happens in a story end it."""

    async def payer(ctx: hf.Context) -> Any:
        return await ctx.call("wire", cents=6)

    async def spender(ctx: hf.Context) -> Any:
        await ctx.call("send", what="one")
        return await ctx.call("send", what="two")

    match story:
        case "person":
            run = desk.run(payer)
            (request,) = desk.rt.approvals.list()
            desk.rt.approvals.deny(request.id, by="dana")
            return desk.rt.resume_sync(run)
        case "budget":
            return desk.run(spender, budget={"tool_calls": 1})
        case "rule":
            return desk.run(spender)
        case _:
            return failing(desk, "broken", hf.StoreError("no room", code="disk_full", fix=""))


def test_a_failure_has_the_owner_that_the_records_name(desk: Desk) -> None:
    assert unhandled(desk, "person") is Owner.APPROVAL
    assert unhandled(desk, "store") is Owner.STORE
    assert unhandled(Desk(), "budget") is Owner.BUDGET
    strict = Desk(policy='[[rule]]\nname = "no letters"\ntool = "send"\ndecide = "deny"\n')
    run = _unhandled(strict, "rule")
    (failure,) = strict.rt.evidence.failures(runs=[run])
    assert (failure.owner, failure.name, failure.recovery) == (Owner.POLICY, "no letters", Recovery.CHANGE)


def test_the_words_of_a_message_say_nothing_about_the_owner(desk: Desk) -> None:
    run = failing(desk, "broken", RuntimeError("the policy store's budget tool was denied: disk is full"))
    (failure,) = desk.rt.evidence.failures(runs=[run])
    assert failure.owner is Owner.AGENT


def test_an_effect_in_doubt_is_a_failure_of_its_own(desk: Desk) -> None:
    STORIES["doubted"](desk)
    (failure,) = desk.rt.evidence.failures()
    assert (failure.owner, failure.name, failure.recovery) == (Owner.TOOL, "fax", Recovery.PERSON)
    assert failure.error == "in doubt: raised (TimeoutError)"
    assert "effects resolve" in failure.to_do
    assert failure.recovered == 0


@pytest.mark.parametrize(
    ("message", "left"),
    [
        ("order 17 is late by 3.5 days", "order <n> is late by <n> days"),
        ("run_01ka4zc83ve008000000000000 lost", "<n> lost"),
        ("a1b2c3d4-0000-4000-8000-0123456789ab is gone", "<n> is gone"),
        ("no such file: /var/lib/x/y.db", "no such file: <path>"),
        (r"cannot open C:\temp\file", "cannot open <path>"),
        ("GET https://example.org/a?b=1 failed", "GET <url> failed"),
        ("<X object at 0x7f60abc>", "<X object at <at>>"),
        ("at 2026-11-17T14:45:26.123+01:00 it was", "at <n> it was"),
        ("mail to dana@example.org", "mail to <address>"),
        ("and/or   nothing", "and/or nothing"),
        ("the line is dead", "the line is dead"),
    ],
)
def test_a_message_is_left_with_what_does_not_vary(message: str, left: str) -> None:
    assert steady(message) == left
