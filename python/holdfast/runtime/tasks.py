"""Code that is no tool: any function by a name (``ctx.do``), and a question to a person (``ctx.approval``).
They go through the gateway like tools, known by their name and their arguments.
"""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING, Any

from holdfast.gateway.shapes import refuse
from holdfast.gateway.tools import Effect, Options, Risk, Tool
from holdfast.values import to_json

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from holdfast.gateway.outcomes import Call


class Anything:
    """A shape that takes any JSON: positional arguments as a list, named ones as a dict."""

    input: dict[str, Any]
    output: dict[str, Any] | None = None
    secrets: tuple[str, ...] = ()

    def __init__(self) -> None:
        self.input = {"type": "object"}

    def check(self, arguments: Mapping[str, object]) -> dict[str, Any]:
        """Arguments as JSON."""
        checked = to_json(dict(arguments))
        assert isinstance(checked, dict)
        return checked

    def bound(
        self,
        arguments: Mapping[str, object],
        call: Call,  # noqa: ARG002
        secrets: Mapping[str, object],  # noqa: ARG002
    ) -> dict[str, Any]:
        """The body takes them as they are."""
        return dict(arguments)

    def result(self, value: Any) -> Any:  # noqa: ANN401
        """Whatever it is."""
        return value

    def told(self, value: object) -> Any:  # noqa: ANN401
        """Whatever it is, as JSON."""
        return to_json(value)


@functools.lru_cache(maxsize=1024)
def _kept(options: Options) -> Tool[..., Any]:
    def nothing(**_: object) -> None:
        return None

    return Tool(nothing, options, Anything())


def task(
    name: str,
    function: Callable[..., Any],
    args: tuple[object, ...],
    kwargs: Mapping[str, object],
    **options: Any,  # noqa: ANN401
) -> tuple[Tool[..., Any], dict[str, Any]]:
    """A function as a tool of its own, and its arguments."""
    if "effect" not in options:
        raise refuse("effect_required", f"the task {name} does not say what it does")
    known = _kept(Options(name=name, **options))
    tool = _with(known, function)
    given: dict[str, Any] = {"args": list(args)} | ({"kwargs": dict(kwargs)} if kwargs else {})
    return tool, tool.check(given)


def _with(known: Tool[..., Any], function: Callable[..., Any]) -> Tool[..., Any]:
    """The same tool with another body: what was checked and digested is not done again."""
    if inspect.iscoroutinefunction(function):

        async def awaited(args: list[Any], kwargs: dict[str, Any] | None = None) -> object:
            return await function(*args, **(kwargs or {}))

        body: Callable[..., Any] = awaited
    else:

        def called(args: list[Any], kwargs: dict[str, Any] | None = None) -> object:
            return function(*args, **(kwargs or {}))

        body = called
    made = object.__new__(Tool)
    made.__dict__.update(known.__dict__)
    made.function, made.is_async = body, inspect.iscoroutinefunction(function)
    return made


@functools.lru_cache(maxsize=1024)
def question(name: str, risk: Risk) -> Tool[..., Any]:
    """A question to a person: a read that is always asked about, and whose body has nothing to do."""

    async def approved(**_: object) -> bool:
        return True

    effect: Effect = "read"
    return Tool(approved, Options(effect=effect, name=name, risk=risk, approval="always"), Anything())
