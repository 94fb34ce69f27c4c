"""What the package logs about a run says which run and which step, for whoever collects logs."""

from __future__ import annotations

import ast
import threading
from typing import TYPE_CHECKING

from tests.runtime_desk import Provider, address, provider, rt
from tests.support import ROOT

import holdfast as hf

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pytest

__all__ = ["address", "provider", "rt"]  # fixtures

# About the store or a file: no run is known.
OF_NO_RUN = {
    "the store is away, and is asked again until it is back: %s",
    "the store is back",
    "%s could not be touched: %s",
}
LEVELS = {"debug", "info", "warning", "error", "exception", "critical"}


def logged(tree: ast.Module) -> Iterator[ast.Call]:
    """The calls of a module's ``log``."""
    for node in ast.walk(tree):
        called = node.func if isinstance(node, ast.Call) else None
        own = isinstance(called, ast.Attribute) and isinstance(called.value, ast.Name)
        if own and isinstance(node, ast.Call) and called.value.id == "log" and called.attr in LEVELS:  # type: ignore[union-attr]
            yield node


def test_every_line_about_a_run_carries_its_ids() -> None:
    seen = 0
    for path in sorted((ROOT / "python" / "holdfast").rglob("*.py")):
        for call in logged(ast.parse(path.read_text("utf-8"))):
            seen += 1
            told = call.args[0].value if isinstance(call.args[0], ast.Constant) else None
            extra = any(keyword.arg == "extra" for keyword in call.keywords)
            assert extra or told in OF_NO_RUN, (path, call.lineno)
    assert seen >= 12


def about(caplog: pytest.LogCaptureFixture, run: hf.Run) -> list[str]:
    """What was logged, all of it about this run and its one step."""
    (step,) = run.steps
    assert {(record.run, record.step) for record in caplog.records} == {(run.id, step["id"])}  # type: ignore[attr-defined]
    return [f"{record.name} {record.getMessage().replace(run.id, 'RUN')}" for record in caplog.records]


def test_what_agent_code_did_wrong(rt: hf.Runtime, caplog: pytest.LogCaptureFixture) -> None:
    @rt.agent(attempts=1)
    async def leaves(ctx: hf.Context) -> None:
        def cleans_up() -> None:
            raise ValueError("no")

        ctx.on_cleanup(cleans_up)

    assert about(caplog, rt.run_sync(leaves)) == ["holdfast.runtime RUN: a cleanup failed"]


def test_what_observers_did_not_hear(
    rt: hf.Runtime, provider: Provider, caplog: pytest.LogCaptureFixture
) -> None:
    goes_on = threading.Event()

    @rt.hook("before_tool_call", blocking=False, queue=(2, 1), overflow="summarize_and_continue")
    def hears(_: hf.gateway.Subject) -> None:
        goes_on.wait()
        raise ValueError("no")

    @rt.agent
    async def sends(ctx: hf.Context) -> None:
        for n in range(3):
            await ctx.call("send", what=str(n))
        goes_on.set()

    run = rt.run_sync(sends)
    assert rt.gateway.observers("before_tool_call")[0].drain(10)
    told = about(caplog, run)
    assert set(told) == {
        "holdfast.hooks the observer hears did not hear of 1",
        "holdfast.hooks the observer hears failed: ValueError",
    }
    assert (run.status, provider.sent) == ("completed", {"0": 1, "1": 1, "2": 1})


def test_what_an_approver_handed_in_for_nothing(rt: hf.Runtime, caplog: pytest.LogCaptureFixture) -> None:
    @rt.approver()
    def hands_in(_: object) -> object:
        return hf.Approve("", reason="nobody")

    @rt.agent
    async def wires(ctx: hf.Context) -> str:
        return str(await ctx.call("wire", cents=1))

    run = rt.run_sync(wires)
    assert run.status == "waiting"
    (line,) = about(caplog, run)
    assert line.startswith("holdfast.gateway a vote was refused: ")
