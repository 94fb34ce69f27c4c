"""Compensation: a write is undone by another write, which goes through the same door."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from holdfast import _core
from holdfast.errors import CommandError
from holdfast.gateway.outcomes import Call, fix
from holdfast.gateway.tools import Options, Tool
from holdfast.store.commands import payload

if TYPE_CHECKING:
    from holdfast.gateway.driver import Gateway
    from holdfast.store import Claim


class Undoing(Tool[..., Any]):
    """The tool that undoes what another did: ``refund`` is undone by ``refund.undo``."""

    def __init__(self, undoes: Tool[..., Any]) -> None:
        made, options = undoes.options.compensate, undoes.options
        assert made is not None

        def undo(arguments: dict[str, Any], result: Any, call: Call) -> Any:  # noqa: ANN401
            return made(arguments, result, call)

        async def aundo(arguments: dict[str, Any], result: Any, call: Call) -> Any:  # noqa: ANN401
            return await made(arguments, result, call)

        function = aundo if inspect.iscoroutinefunction(made) else undo
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
        state = store.state(claim.run)
        found = state["calls"].get(call)
        undoing = gateway.tools.get(f"{found['name']}.undo") if found else None
        # What another run did is that one's to undo.
        mine = found is not None and not found.get("served")
        happened = mine and found.get("outcome") in ("succeeded", "compensated")
        if not happened or undoing is None or found["step"] != claim.step or found["opened"] <= state["base"]:
            code = "no_such_call"
            raise CommandError(
                "the step has no call that happened and could be undone", code=code, fix=fix(code)
            )
        key = f"undo {call}"
        given = _given(gateway, claim, state, found, key)
        hidden = tuple(f"arguments.{name}" for name in found.get("redacted", ()))
        value = gateway._call(claim, undoing, given, key=key, redact=hidden)
        if found.get("outcome") == "compensated":
            return value
        by = store.state(claim.run)["keys"][key]
        command: dict[str, Any] = {"by": by, "call": call, "claim": claim.core(), "command": "compensated"}
        if reason is not None:
            command["reason"] = payload(reason, "internal")
        store._core.run(_core.Call.command(claim.run, claim.by(), command, "barrier"))
        return value


def _given(
    gateway: Gateway, claim: Claim, state: dict[str, Any], found: dict[str, Any], key: str
) -> dict[str, Any]:
    """What the call was sent off with, and what came of it; made again, what the undoing was opened with."""

    def value(position: int, name: str) -> Any:  # noqa: ANN401
        record = next(gateway.store.read(claim.run, after=position - state["base"] - 1))
        return record.value.get(name)

    begun = state["calls"].get(state["keys"].get(key))
    if begun is not None:
        opened: dict[str, Any] = value(begun["opened"], "arguments")
        return opened
    arguments = value(found["effective"]["position"], "arguments")
    succeeded = found.get("outcome") == "succeeded" and found.get("result") is not None
    return {"arguments": arguments, "result": value(found["result_at"], "result") if succeeded else None}
