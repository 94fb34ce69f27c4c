"""Tools: what a function does to the world, how it is protected, and where its body runs."""

from __future__ import annotations

import inspect
import sys
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Literal, ParamSpec, TypeVar

from holdfast import _core
from holdfast.gateway import bodies
from holdfast.gateway.shapes import Shape, Signature, ToolError, Unfit, refuse

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from holdfast.gateway.outcomes import Call, Keyed
    from holdfast.values import Json

P = ParamSpec("P")
R = TypeVar("R")

Effect = Literal["pure", "read", "write"]
Risk = Literal["low", "medium", "high", "critical"]
Approval = Literal["never", "policy", "always"]
Boxed = Literal["none", "preferred", "required"]

WORDS: dict[str, frozenset[str]] = {
    "effect": frozenset(("pure", "read", "write")),
    "risk": frozenset(("low", "medium", "high", "critical")),
    "approval": frozenset(("never", "policy", "always")),
    "sandbox": frozenset(("none", "preferred", "required")),
}

__all__ = ["Approval", "Boxed", "Effect", "Options", "Risk", "Tool", "ToolError", "Unfit", "refuse"]


@dataclass(frozen=True)
class Options:
    """What a tool declares about itself."""

    effect: Effect
    risk: Risk = "low"
    approval: Approval = "policy"
    name: str | None = None
    version: str = "1"
    timeout: float = 60.0
    attempts: int | None = None
    idempotent: Keyed | None = None
    reconcile: Callable[..., Any] | None = None
    compensate: Callable[..., Any] | None = None
    description: str | None = None
    sandbox: Boxed = "none"


def _check(name: str, options: Options) -> None:
    for what, known in WORDS.items():
        word = getattr(options, what)
        if word not in known:
            code = "effect_required" if what == "effect" else "bad_tool"
            raise refuse(
                code, f"the tool {name} has {what}={word!r}; it is one of {', '.join(sorted(known))}"
            )
    if options.timeout <= 0 or (options.attempts is not None and options.attempts < 1):
        raise refuse("bad_tool", f"the tool {name} needs a timeout above zero and at least one attempt")
    protected = options.idempotent or options.reconcile or options.compensate
    if options.sandbox == "required" and options.compensate is not None:
        raise refuse("bad_tool", f"the tool {name} needs a sandbox, and what undoes it would run without")
    if options.effect != "write" and protected:
        raise refuse("bad_tool", f"the tool {name} is no write: there is nothing to protect")


class Tool(Generic[P, R]):
    """A function that agents may call through the gateway.

    Called directly it is the function itself: nothing is governed and nothing recorded.
    """

    def __init__(self, function: Callable[P, R], options: Options, shape: Shape | None = None) -> None:
        name = options.name or bodies.called(function)
        if not callable(function):
            raise refuse("bad_tool", f"a tool is something to call: {name} is not")
        if options.name is None and isinstance(function, partial) and "<" in name:
            raise refuse("bad_tool", "a partial of a lambda has no name of its own: say name=")
        _check(name, options)
        self.function = function
        self.options = options
        self.name = name
        self.is_async = bodies.is_coroutine(function)
        self.shape: Shape = shape or Signature(name, function)
        if options.sandbox != "none":
            self.target()  # refused here rather than at the first call
        self.core = _core.Tool(self.spec())
        self.__name__ = name
        self.__doc__ = bodies.inner(function).__doc__
        self.__wrapped__ = function

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """The function itself."""
        return self.function(*args, **kwargs)

    def spec(self) -> dict[str, Any]:
        """The contract ``ToolSpec``."""
        options = self.options
        described = options.description or inspect.getdoc(bodies.inner(self.function))
        attempts = options.attempts or (3 if options.idempotent else 1)
        spec: dict[str, Any] = {
            "approval": options.approval,
            "compensates": options.compensate is not None,
            "effect": options.effect,
            "input": self.shape.input,
            "max_attempts": attempts,
            "name": self.name,
            "output": self.shape.output,
            "reconciles": options.reconcile is not None,
            "risk": options.risk,
            "sandbox": options.sandbox,
            "secrets": list(self.shape.secrets),
            "timeout_ms": max(1, round(options.timeout * 1000)),
            "version": options.version,
        }
        if described:
            spec["description"] = described[:2048]
        if options.idempotent is not None:
            spec["key_ttl_ms"] = round(options.idempotent.ttl * 1000)
        return {name: value for name, value in spec.items() if value is not None}

    def target(self) -> str:
        """Where another interpreter finds the body: ``module:qualname``.

        Raises:
            ToolError: it cannot be found from there.
        """
        if not inspect.isroutine(self.function):
            raise refuse("bad_tool", f"the tool {self.name} is no function: a sandbox imports it by its name")
        module, place = self.function.__module__, self.function.__qualname__
        if "<" in place:
            raise refuse("bad_tool", f"the tool {self.name} is local: a sandbox can only run what it imports")
        if module == "__main__":
            spec = getattr(sys.modules["__main__"], "__spec__", None)
            if spec is None:
                raise refuse(
                    "bad_tool", f"the tool {self.name} is in a script: a sandbox can only run what it imports"
                )
            module = spec.name
        return f"{module}:{place}"

    def check(self, arguments: Mapping[str, object]) -> dict[str, Any]:
        """Arguments, checked, as JSON but for secrets.

        Raises:
            ToolError: ``bad_arguments``, with the path of the first that is wrong, and never its value.
        """
        return self.shape.check(arguments)

    def bound(
        self, arguments: Mapping[str, object], call: Call, secrets: Mapping[str, object]
    ) -> dict[str, Any]:
        """Arguments of the body, from their JSON."""
        return self.shape.bound(arguments, call, secrets)

    def result(self, value: Json) -> Any:  # noqa: ANN401 (the tool says what it is)
        """The declared result, from its JSON: the same live and in replay."""
        return self.shape.result(value)

    def told(self, value: object) -> Json:
        """A body's result as JSON, if it is what the tool declares."""
        return self.shape.told(value)

    def __repr__(self) -> str:
        return f"<Tool {self.name}, {self.options.effect}>"
