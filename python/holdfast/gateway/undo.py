"""Compensation: a write is undone by another write, which goes through the same door."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from holdfast import _core
from holdfast.errors import CommandError
from holdfast.gateway import bodies
from holdfast.gateway.outcomes import Call, fix
from holdfast.gateway.tools import Options, Tool
from holdfast.store.commands import payload

if TYPE_CHECKING:
    from holdfast.gateway.driver import Gateway
    from holdfast.store import Claim, Store


class Undoing(Tool[..., Any]):
    """The tool that undoes what another did: ``refund`` is undone by ``refund.undo``."""

    def __init__(self, undoes: Tool[..., Any]) -> None:
        made, options = undoes.options.compensate, undoes.options
        assert made is not None

        def undo(arguments: dict[str, Any], result: Any, call: Call) -> Any:  # noqa: ANN401
            return made(arguments, result, call)

        async def aundo(arguments: dict[str, Any], result: Any, call: Call) -> Any:  # noqa: ANN401
            return await made(arguments, result, call)

        function = aundo if bodies.is_coroutine(made) else undo
        function.__doc__ = f"Undoes what {undoes.name} did."
        name = f"{undoes.name}.undo"
        kept = Options(
            "write",
            options.risk,
            options.approval,
            name=name,
            version=options.version,
            timeout=options.timeout,
            attempts=1,
        )
        super().__init__(function, kept)

    @staticmethod
    def undo(gateway: Gateway, claim: Claim, call: str, reason: str | None) -> Any:  # noqa: ANN401
        """Undoes a call, and has it recorded that it was."""
        store = gateway.store
        plan = planned(gateway, claim, call)
        value = gateway._call(claim, plan.tool, plan.given, key=plan.key, redact=plan.redact)
        mark = marks(store, claim, call, reason)
        if mark is not None:
            store._core.run(mark)
        return value


@dataclass(frozen=True)
class Plan:
    """How a call is undone."""

    call: str
    tool: Tool[..., Any]
    given: dict[str, Any]
    key: str
    redact: tuple[str, ...]


def _key(call: str) -> str:
    return f"undo {call}"


def planned(gateway: Gateway, claim: Claim, call: str | None, tool: str | None = None) -> Plan:
    """How a write of this step is undone that is known to have happened, or was undone before."""
    state = gateway.store.state(claim.run)
    found = state["calls"].get(call)
    undoing = gateway.tools.get(f"{found['name']}.undo") if found else None
    # What another run did is that one's to undo.
    mine = found is not None and not found.get("served") and tool in (None, found["name"])
    # What an accepted divergence has abandoned is served as it was, and can no longer be marked as undone.
    happened = mine and found.get("outcome") in ("succeeded", "compensated") and found["phase"] != "abandoned"
    known = happened and (found["opened"] > state["base"] or _key(str(call)) in state["keys"])
    if not known or call is None or undoing is None or found["step"] != claim.step:
        code = "no_such_call"
        raise CommandError("the step has no call that happened and could be undone", code=code, fix=fix(code))
    given = _given(gateway, claim, state, found)
    hidden = tuple(f"arguments.{name}" for name in found.get("redacted", ()))
    return Plan(call, undoing, given, _key(call), hidden)


def marks(store: Store, claim: Claim, call: str, reason: str | None) -> _core.Call | None:
    """What records that a call was undone; None if that is recorded."""
    state = store.state(claim.run)
    if state["calls"][call]["outcome"] == "compensated":
        return None
    by = state["keys"][_key(call)]
    command: dict[str, Any] = {"by": by, "call": call, "claim": claim.core(), "command": "compensated"}
    if reason is not None:
        command["reason"] = payload(reason, "internal")
    return _core.Call.command(claim.run, claim.by(), command, "barrier")


def result_before(store: Store, run: str, call: str) -> tuple[Any] | None:
    """What a call had come to that was undone since; None if nothing was undone that had a result."""
    state = store.state(run)
    undoing = state["calls"].get(state["keys"].get(_key(call)))
    return None if undoing is None else (_value(store, run, undoing["opened"], "arguments")["result"],)


def _value(store: Store, run: str, position: int, name: str) -> Any:  # noqa: ANN401
    """A content of a record of a run; what a fork begins with stands in its parent."""
    state = store.state(run)
    while position <= state["base"]:
        run = state["fork"]["parent"]
        state = store.state(run)
    return next(store.read(run, after=position - state["base"] - 1)).value.get(name)


def _given(gateway: Gateway, claim: Claim, state: dict[str, Any], found: dict[str, Any]) -> dict[str, Any]:
    """What the call was sent off with, and what came of it; made again, what the undoing was opened with."""
    store, run = gateway.store, claim.run
    begun = state["calls"].get(state["keys"].get(_key(found["id"])))
    if begun is not None:
        opened: dict[str, Any] = _value(store, run, begun["opened"], "arguments")
        return opened
    served, _ = _core.call_outcome(store._core, run, found["id"])
    arguments = _value(store, run, found["effective"]["position"], "arguments")
    return {"arguments": arguments, "result": served.get("result")}
