"""The exports' fold of calls beside the core's, over every way that a call can end."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest
from tests.gateway_desk import Desk, refunds

import holdfast as hf
from holdfast.exports.cut import cut
from holdfast.exports.story import Story, walk

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.exports.calls import Call

DENY = """
[[rule]]
name = "no"
tool = "refund"
decide = "deny"
"""
ERRORS = (hf.OutcomeError, hf.Denied, hf.NoEffect, hf.EffectFailed, hf.Suspended, hf.BudgetRefused)
PHASES = {"open": "open", "started": "running", "doubted": "in_doubt", "abandoned": "abandoned"}


def agreed(desk: Desk) -> list[Call]:
    """The calls, after both folds were seen to agree about each of them."""
    where = cut(desk.store, desk.run)
    mine = {call.id: call for _, call in walk(where, Story(where)) if call is not None}
    theirs = desk.store.state(desk.run)["calls"]
    assert mine.keys() == theirs.keys()
    for name, known in theirs.items():
        call, phase = mine[name], known["phase"]
        assert call.outcome == (known["outcome"] if phase == "settled" else PHASES[phase])
        assert len(call.dispatches) == known["dispatch"]
        assert call.external_id == known.get("external_id")
        failure = known.get("output_error") or known.get("failure")
        if call.ended:  # of a doubt, the core keeps only the cause
            assert (call.failure or {}).get("error") == (failure or {}).get("error")
    return sorted(mine.values(), key=lambda call: call.opened_seq)


def tried(desk: Desk, tool: Any, key: str, **arguments: Any) -> None:
    with suppress(*ERRORS):
        desk.call(tool, key, **arguments)


def unrecordable(desk: Desk) -> None:
    @desk.gate.tool(effect="write")
    def pay() -> int:
        return "many"  # type: ignore[return-value]

    tried(desk, pay, "k")


def write_failed(desk: Desk) -> None:
    @desk.gate.tool(effect="write")
    def pay() -> None:
        raise hf.EffectFailed("the account is closed")

    tried(desk, pay, "k")


def read_failed(desk: Desk) -> None:
    @desk.gate.tool(effect="read")
    def look() -> None:
        raise ValueError("no such order")

    tried(desk, look, "k")


def no_effect(desk: Desk) -> None:
    @desk.gate.tool(effect="write", attempts=2)
    def pay() -> None:
        raise hf.NoEffect("refused")

    tried(desk, pay, "k")


def repeated(desk: Desk) -> None:
    provider: dict[str, str] = {}

    @desk.gate.tool(effect="write", idempotent=hf.Keyed(ttl=3600))
    def pay(call: hf.Call) -> str:
        if call.key not in provider:
            provider[call.key] = "r1"
            raise ConnectionError("the answer was lost")
        return provider[call.key]

    tried(desk, pay, "k")


def reconciled(desk: Desk) -> None:
    @desk.gate.tool(effect="write", reconcile=lambda _: hf.Happened("r2"))
    def pay() -> str:
        raise ConnectionError("lost on the way back")

    tried(desk, pay, "k")


def in_doubt(desk: Desk) -> None:
    @desk.gate.tool(effect="write")
    def pay() -> str:
        raise ConnectionError("lost")

    tried(desk, pay, "k")


def did_not_happen(desk: Desk) -> None:
    in_doubt(desk)
    effects = hf.Effects(desk.store)
    (doubt,) = effects.list()
    effects.resolve(doubt.id, did_not_happen=True, by="dana", force=True)


def denied_by_rule(desk: Desk) -> None:
    desk.gate.hook("before_tool_call", rights=["deny"], name="no")(lambda _: hf.Deny("no"))
    tried(desk, refunds(desk), "k", order="1", cents=1)


def hook_failed(desk: Desk) -> None:
    def broken(_: object) -> None:
        raise RuntimeError("broken")

    desk.gate.hook("before_tool_call", rights=["deny"], name="no", failure="deny")(broken)
    tried(desk, refunds(desk), "k", order="1", cents=1)


def after_hook_failed(desk: Desk) -> None:
    def broken(_: object) -> None:
        raise RuntimeError("broken")

    desk.gate.hook("after_tool_call", name="look", failure="deny")(broken)
    tried(desk, refunds(desk), "k", order="1", cents=1)


def budget(desk: Desk) -> None:
    refund = refunds(desk)
    tried(desk, refund, "k1", order="1", cents=1)
    tried(desk, refund, "k2", order="1", cents=1)


def compensated(desk: Desk) -> None:
    @desk.gate.tool(effect="write", compensate=lambda *_: "undone")
    def pay() -> str:
        return "r1"

    tried(desk, pay, "k")
    (call,) = desk.store.state(desk.run)["calls"]
    desk.gate.compensate(desk.claim, call)


STORIES: list[tuple[Callable[[Desk], None], list[tuple[str, list[str]]], dict[str, Any]]] = [
    (unrecordable, [("unrecordable", ["succeeded"])], {}),
    (write_failed, [("write_failed", ["failed"])], {}),
    (read_failed, [("read_failed", ["failed"])], {}),
    (no_effect, [("no_effect", ["no_effect", "no_effect"])], {}),
    (repeated, [("succeeded", ["in_doubt", "succeeded"])], {}),
    (reconciled, [("succeeded", ["in_doubt"])], {}),
    (in_doubt, [("in_doubt", ["in_doubt"])], {}),
    (did_not_happen, [("no_effect", ["in_doubt"])], {}),
    (denied_by_rule, [("denied_by_rule", [])], {}),
    (hook_failed, [("denied_by_rule", [])], {}),
    (after_hook_failed, [("unrecordable", ["succeeded"])], {}),
    (
        budget,
        [("succeeded", ["succeeded"]), ("denied_by_rule", [])],
        {"budget": {"on_exceeded": "refuse", "tool_calls": 1}},
    ),
    (
        budget,
        [("succeeded", ["succeeded"]), ("open", [])],
        {"budget": {"on_exceeded": "ask", "tool_calls": 1}},
    ),
    (compensated, [("compensated", ["succeeded"]), ("succeeded", ["succeeded"])], {}),
]


@pytest.mark.parametrize(("story", "ends", "options"), STORIES)
def test_both_folds_agree_about_how_a_call_ended(
    story: Callable[[Desk], None], ends: list[tuple[str, list[str]]], options: dict[str, Any]
) -> None:
    desk = Desk(**options)
    story(desk)
    calls = agreed(desk)
    assert [(call.outcome, [sent.status for sent in call.dispatches]) for call in calls] == ends


def test_a_policy_s_no_is_a_verdict_with_its_reasons() -> None:
    desk = Desk(policy=DENY)
    tried(desk, refunds(desk), "k", order="1", cents=1)
    (call,) = agreed(desk)
    (verdict,) = call.verdicts
    assert (call.outcome, verdict.by, verdict.said) == ("denied_by_rule", "policy", "deny")
    assert verdict.why


def test_who_ended_a_doubt_is_kept() -> None:
    desk = Desk()
    did_not_happen(desk)
    (call,) = agreed(desk)
    (doubt,) = call.doubts
    assert (doubt.cause, doubt.error, doubt.resolution) == ("raised", "ConnectionError", "did_not_happen")
    assert (doubt.by, doubt.source) == ("human dana", "operator")
