"""Shadow runs: other code or another policy on an input that was, with the ledger in the place of the world.
Nothing leaves, nothing is written, people are not asked once more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tests.evidence_desk import STORIES, Desk, play
from tests.test_evidence_replay import written

import holdfast as hf
from holdfast.evidence import Dimension

if TYPE_CHECKING:
    from collections.abc import Iterator

SAME = {
    "plain",
    "approved",
    "denied",
    "asked",
    "no_effect",
    "failed",
    "timed",
    "signalled",
    "together",
    "parent",
    "made",
    "over_budget",
    "in_a_thread",
    "keyed",
}
CHANCE_OF_THEN = {"resolved", "tried_again", "in_steps", "forked", "retried", "diverged"}
"""Doubts, failed tries and divergences that the run had are not had again: only events and costs differ."""


@pytest.fixture
def desk() -> Iterator[Desk]:
    desk = Desk()
    yield desk
    desk.close()


@pytest.mark.parametrize("name", sorted(STORIES.keys() - {"erased"}))
def test_the_same_code_and_policy_come_to_the_same_and_nothing_leaves(name: str) -> None:
    desk, run = play(name)
    seen, before = list(desk.seen), written(desk.rt)
    shadow = desk.rt.evidence.shadow(run)
    assert (desk.seen, written(desk.rt)) == (seen, before)
    told = [str(difference) for difference in shadow.diff.differences]
    if name in SAME:
        assert shadow.same, (shadow.refused, told)
        ended = desk.rt.evidence.journal(run).fold().end or {}
        assert (shadow.status, shadow.result) == (run.status, ended.get("result"))
    if name in CHANCE_OF_THEN:
        assert shadow.refused == ()
        assert shadow.diff.dimensions <= {
            Dimension.EVENTS,
            Dimension.COSTS,
            Dimension.ARGUMENTS,
            Dimension.RESULTS,
        }, told
        assert shadow.status == run.status
    assert shadow.journal.fold().run != run.id
    desk.close()


def test_other_code_gets_what_was_recorded_and_is_refused_the_rest(desk: Desk) -> None:
    async def clerk(ctx: hf.Context, what: str) -> str:
        seen = await ctx.call("look", what=what)
        return str(await ctx.call("send", what=seen))

    run = desk.run(clerk, "a letter")

    @desk.rt.agent
    async def newer(ctx: hf.Context, what: str) -> str:
        seen = await ctx.call("look", what=what)
        try:
            await ctx.call("send", what="one more")
        except hf.NoEffect:
            ctx.state["refused"] = True
        return f"{await ctx.call('send', what=seen)}!"

    seen = list(desk.seen)
    shadow = desk.rt.evidence.shadow(run, agent=newer)
    assert (desk.seen, shadow.status, shadow.result) == (seen, "completed", "sent saw a letter!")
    assert ([str(one) for one in shadow.refused], shadow.served) == (["send({'what': 'one more'})"], 2)
    assert not shadow.same
    assert {"arguments", "events", "outcome", "results", "state"} <= shadow.diff.dimensions
    assert shadow.diff.of("state")[0].other is True
    assert next(shadow.journal.kinds("run.created")).body["mode"] == "shadow"


def test_each_recorded_call_is_given_back_once(desk: Desk) -> None:
    async def once(ctx: hf.Context) -> Any:
        return await ctx.call("send", what="x")

    async def twice(ctx: hf.Context) -> Any:
        await ctx.call("send", what="x")
        return await ctx.call("send", what="x")

    run = desk.run(once)
    shadow = desk.rt.evidence.shadow(run, agent=desk.rt.agent(twice))
    assert (shadow.status, shadow.served, len(shadow.refused)) == ("failed", 1, 1)
    assert desk.seen == ["send x"]


def test_a_tool_that_is_given_as_itself_is_a_stand_in_too(desk: Desk) -> None:
    wire = desk.rt.gateway.tools["send"]

    async def clerk(ctx: hf.Context) -> Any:
        await ctx.call(wire, what="by itself")
        return await ctx.do("note", desk.seen.append, "done", effect="write")

    run = desk.run(clerk)
    seen = list(desk.seen)
    assert desk.rt.evidence.shadow(run).same
    assert desk.seen == seen == ["send by itself", "done"]


DENY = '[[rule]]\nname = "no wires"\ntool = "wire"\ndecide = "deny"\n'
ALLOW = '[[rule]]\nname = "wires are fine"\ntool = "wire"\ndecide = "allow"\n'


def test_another_policy_shows_what_it_would_have_done(desk: Desk) -> None:
    run = STORIES["approved"](desk)
    seen = list(desk.seen)
    strict = desk.rt.evidence.shadow(run, policy=DENY)
    assert (strict.status, strict.served) == ("failed", 0)
    assert {"approvals", "outcome", "results"} <= strict.diff.dimensions
    loose = desk.rt.evidence.shadow(run, policy=ALLOW)
    assert (loose.status, loose.served) == ("completed", 1)
    assert loose.diff.dimensions == {Dimension.APPROVALS, Dimension.EVENTS}
    assert desk.seen == seen


def test_what_was_denied_is_not_done_by_a_policy_that_allows_it(desk: Desk) -> None:
    run = STORIES["denied"](desk)
    loose = desk.rt.evidence.shadow(run, policy=ALLOW)
    assert [str(one) for one in loose.refused] == ["wire({'cents': 6})"]
    assert desk.seen == []


def test_nobody_is_asked_for_what_nobody_was_asked_for_then(desk: Desk) -> None:
    """A policy that asks where none asked: there is no answer on record, so the shadow waits there."""
    run = STORIES["plain"](desk)
    asking = desk.rt.evidence.shadow(run, policy='[[rule]]\ntool = "send"\ndecide = "ask"\n')
    assert (asking.status, [one.kind for one in asking.refused]) == ("waiting", ["approval"])
    assert desk.rt.approvals.list() == []


def test_pure_bodies_run_only_if_that_is_allowed(desk: Desk) -> None:
    async def counter(ctx: hf.Context) -> int:
        return int(await ctx.call("double", n=4))

    run = desk.run(counter)
    assert [one.name for one in desk.rt.evidence.shadow(run).refused] == ["double"]
    assert desk.seen == ["double 4"]
    assert desk.rt.evidence.shadow(run, pure=True).result == 8


def test_an_erased_run_has_no_shadow(desk: Desk) -> None:
    run = STORIES["erased"](desk)
    with pytest.raises(hf.RecordError, match="content_erased"):
        desk.rt.evidence.shadow(run)
