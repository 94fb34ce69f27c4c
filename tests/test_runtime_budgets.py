"""Budgets of runs: what children take along, what a child costs, and a person who gives more."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from tests.runtime_desk import Provider, kinds, provider, rt
from typer.testing import CliRunner

import holdfast as hf
from holdfast.cli import app_for
from holdfast.evidence.review import Check

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["provider", "rt"]  # fixtures


@pytest.fixture
def address(tmp_path: Path) -> str:
    return str(tmp_path / "runs")


def family(rt: hf.Runtime, **options: Any) -> tuple[Any, Any]:
    """A child that sends as often as it may, at most five times, and a parent that has one."""

    @rt.agent(**options)
    async def child(ctx: hf.Context) -> int:
        for n in range(5):
            try:
                await ctx.call("send", what=f"{n}")
            except hf.BudgetRefused:
                return n
        return 5

    @rt.agent
    async def parent(ctx: hf.Context, escrow: dict[str, int] | None) -> int:
        return int(await (await ctx.spawn(child, escrow=escrow)))

    return parent, child


def account(rt: hf.Runtime, run: hf.Run, name: str) -> tuple[int | None, int, int | None]:
    told = rt.budget(run)[name]
    return told["limit"], told["used"], told["left"]


def test_a_child_has_what_it_was_given_and_nothing_else(rt: hf.Runtime, provider: Provider) -> None:
    parent, _ = family(rt)
    run = rt.run_sync(parent, None, budget={"tool_calls": 4})
    assert (run.result, provider.sent) == (0, {})
    run = rt.run_sync(parent, {"tool_calls": 3}, budget={"tool_calls": 4})
    assert (run.result, provider.sent.total()) == (3, 3)
    assert account(rt, run, "tool_calls") == (4, 3, 1)
    unbounded = rt.run_sync(parent, None)
    assert (unbounded.result, provider.sent.total()) == (5, 8)
    assert rt.store.verify().ok


def test_what_an_agent_declares_holds_for_it_as_a_child_too(rt: hf.Runtime, provider: Provider) -> None:
    parent, child = family(rt, budget={"tool_calls": 2, "concurrency": 1})
    assert rt.run_sync(parent, None).result == 2
    assert rt.run_sync(parent, {"tool_calls": 9}).result == 2, "no slice is larger than that"
    run = rt.run_sync(parent, None, budget={"tool_calls": 3})
    assert (run.result, account(rt, run, "tool_calls")) == (2, (3, 2, 1))
    assert provider.sent.total() == 6
    children = [one for one in rt.runs.list() if one.agent == child.name]
    limits = [rt.store.state(one.id)["budget"] for one in children]
    assert limits == [{"concurrency": 1, "on_exceeded": "refuse", "tool_calls": 2}] * 3


def test_a_child_itself_is_one_of_the_children_that_a_run_may_have(rt: hf.Runtime) -> None:
    @rt.agent
    async def leaf(_: hf.Context) -> int:
        return 1

    @rt.agent
    async def parent(ctx: hf.Context, most: int) -> list[Any]:
        came: list[Any] = []
        for _ in range(most):
            try:
                came.append(await (await ctx.spawn(leaf)))
            except hf.HoldfastError as error:
                came.append(error.code)
        return came

    run = rt.run_sync(parent, 3, budget={"children": 2})
    assert run.result == [1, 1, "budget_exceeded"]
    assert account(rt, run, "children") == (2, 2, 0)
    assert len(rt.runs.list(agent="leaf")) == 2
    assert rt.store.verify().ok


def asking(rt: hf.Runtime) -> hf.Run:
    @rt.agent
    async def sends(ctx: hf.Context) -> str:
        return "".join([await ctx.call("send", what=what) and what for what in "abc"])

    run = rt.run_sync(sends, budget={"tool_calls": 1, "on_exceeded": "ask"})
    assert run.waiting_on is not None
    assert [wait["on"] for wait in run.waiting_on] == ["budget"]
    return run


def test_who_waits_for_the_budget_goes_on_once_a_person_gives_more(
    rt: hf.Runtime, provider: Provider
) -> None:
    run = asking(rt)
    rt.release(run, by="dana")
    assert rt.resume_sync(run).status == "waiting", "looking at it gives nothing"
    rt.raise_budget(run, by="dana", reason="worth it", tool_calls=1)
    run = rt.resume_sync(run)
    assert (run.status, dict(provider.sent)) == ("waiting", {"a": 1, "b": 1})
    rt.raise_budget(run, by="dana", tool_calls=5)
    run = rt.resume_sync(run)
    assert (run.status, run.result, provider.sent.total()) == ("completed", "abc", 3)
    told = rt.budget(run)["tool_calls"]
    assert (told["limit"], told["raised"], told["used"], told["left"]) == (7, 6, 3, 4)
    raised = [record for record in rt.store.read(run.id) if record.kind == "budget.raised"]
    assert [(record.value["amounts"], record.value.get("reason")) for record in raised] == [
        ({"tool_calls": 1}, "worth it"),
        ({"tool_calls": 5}, None),
    ]
    review = {found.check: found.passed for found in rt.evidence.review(run.id).findings}
    assert review[Check.BUDGET_OVERRUN] is True
    assert rt.evidence.replay(run.id).verdict == "same"
    assert rt.store.verify().ok


def test_only_what_is_bounded_is_raised(rt: hf.Runtime) -> None:
    run = asking(rt)
    before = kinds(rt, run)
    with pytest.raises(TypeError, match="no account is called 'calls'"):
        rt.raise_budget(run, by="dana", calls=1)
    nothing: list[dict[str, Any]] = [{}, {"tokens": 5}, {"tool_calls": 0}]
    for amounts in nothing:
        with pytest.raises(hf.CommandError) as refused:
            rt.raise_budget(run, by="dana", **amounts)
        assert refused.value.code == "budget_unlimited"
    assert kinds(rt, run) == before


def test_the_command_line_shows_and_raises(rt: hf.Runtime, address: str) -> None:
    run = asking(rt)
    app, store = app_for(""), ["--store", address]
    told = CliRunner().invoke(app, ["runs", "show", run.id, *store])
    assert "holdfast budget raise" in told.output
    done = CliRunner().invoke(app, ["budget", "raise", run.id, "--by", "dana", "--tool-calls", "2", *store])
    assert done.exit_code == 0, done.output
    told = CliRunner().invoke(app, ["budget", "show", run.id, "--json", *store])
    assert json.loads(told.output)["tool_calls"]["left"] == 2
    assert rt.resume_sync(run).result == "abc"
    late = CliRunner().invoke(app, ["budget", "raise", run.id, "--by", "dana", "--tool-calls", "2", *store])
    assert (late.exit_code, "run_ended" in late.output) == (1, True)
