"""Tools: what a function does to the world, how it is protected, and what goes in and comes out."""

from __future__ import annotations

import inspect
import typing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Literal, ParamSpec, TypeVar

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError, create_model

from holdfast import _core
from holdfast.errors import HoldfastError
from holdfast.gateway.outcomes import Call, Keyed, fix
from holdfast.values import to_json

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from holdfast.values import Json

P = ParamSpec("P")
R = TypeVar("R")

Effect = Literal["pure", "read", "write"]
Risk = Literal["low", "medium", "high", "critical"]
Approval = Literal["never", "policy", "always"]

RISKS = frozenset(("low", "medium", "high", "critical"))
APPROVALS = frozenset(("never", "policy", "always"))
EFFECTS = frozenset(("pure", "read", "write"))
RESERVED = frozenset(("key", "reserve"))


class ToolError(HoldfastError, ValueError):
    """A tool that cannot be registered, or arguments that are not its own."""


def refuse(code: str, message: str, path: str | None = None) -> ToolError:
    """An error with its fix."""
    return ToolError(message, code=code, fix=fix(code), path=path)


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
    sandbox: Literal["none"] = "none"


def _check(name: str, options: Options) -> None:
    words = [("effect", options.effect, EFFECTS), ("risk", options.risk, RISKS)]
    for what, word, known in [*words, ("approval", options.approval, APPROVALS)]:
        if word not in known:
            code = "effect_required" if what == "effect" else "bad_tool"
            raise refuse(
                code, f"the tool {name} has {what}={word!r}; it is one of {', '.join(sorted(known))}"
            )
    if options.sandbox != "none":
        raise refuse("bad_tool", f"the tool {name} wants a sandbox, and none is configured")
    if options.timeout <= 0 or (options.attempts is not None and options.attempts < 1):
        raise refuse("bad_tool", f"the tool {name} needs a timeout above zero and at least one attempt")
    protected = options.idempotent or options.reconcile or options.compensate
    if options.effect != "write" and protected:
        raise refuse("bad_tool", f"the tool {name} is no write: there is nothing to protect")


class Tool(Generic[P, R]):
    """A function that agents may call through the gateway.

    Called directly it is the function itself: nothing is governed and nothing recorded.
    """

    def __init__(self, function: Callable[P, R], options: Options) -> None:
        name = options.name or function.__name__
        _check(name, options)
        self.function = function
        self.options = options
        self.name = name
        self.is_async = inspect.iscoroutinefunction(function)
        signature = inspect.signature(function)
        hints = _hints(function)
        self._call_as: str | None = None
        fields: dict[str, Any] = {}
        for parameter in signature.parameters.values():
            kind = parameter.kind
            if kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
                raise refuse("bad_tool", f"the tool {name} has the parameter {parameter}: name each one")
            if parameter.name in RESERVED:
                raise refuse("bad_tool", f"the tool {name} has a parameter called {parameter.name}")
            annotation = hints.get(parameter.name, Any)
            if annotation is Call:
                self._call_as = parameter.name
                continue
            default = ... if parameter.default is parameter.empty else parameter.default
            fields[parameter.name] = (annotation, default)
        config = ConfigDict(extra="forbid", arbitrary_types_allowed=False)
        self.arguments: type[BaseModel] = create_model(f"{name}_arguments", __config__=config, **fields)
        returns = hints.get("return", Any)
        self._result: TypeAdapter[Any] = TypeAdapter(Any if returns is Call else returns)
        self.core = _core.Tool(self.spec())
        self.__name__ = name
        self.__doc__ = function.__doc__
        self.__wrapped__ = function

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """The function itself."""
        return self.function(*args, **kwargs)

    def spec(self) -> dict[str, Any]:
        """The contract ``ToolSpec``."""
        options = self.options
        described = options.description or inspect.getdoc(self.function)
        attempts = options.attempts or (3 if options.idempotent else 1)
        spec: dict[str, Any] = {
            "approval": options.approval,
            "compensates": options.compensate is not None,
            "effect": options.effect,
            "input": self.arguments.model_json_schema(),
            "max_attempts": attempts,
            "name": self.name,
            "output": _schema(self._result),
            "reconciles": options.reconcile is not None,
            "risk": options.risk,
            "sandbox": options.sandbox,
            "secrets": [],
            "timeout_ms": max(1, round(options.timeout * 1000)),
            "version": options.version,
        }
        if described:
            spec["description"] = described[:2048]
        if options.idempotent is not None:
            spec["key_ttl_ms"] = round(options.idempotent.ttl * 1000)
        return {name: value for name, value in spec.items() if value is not None}

    def check(self, arguments: Mapping[str, object]) -> dict[str, Json]:
        """Arguments as JSON, checked against the signature.

        Raises:
            ToolError: ``bad_arguments``, with the path of the first that is wrong, and never its value.
        """
        try:
            model = self.arguments.model_validate(dict(arguments))
        except ValidationError as error:
            first = error.errors(include_input=False, include_url=False, include_context=False)[0]
            path = "$" + "".join(f".{part}" for part in first["loc"])
            raise refuse("bad_arguments", f"{self.name}: {first['msg']} (at {path})", path) from None
        checked = to_json({name: getattr(model, name) for name in type(model).model_fields})
        assert isinstance(checked, dict)
        return checked

    def bound(self, arguments: Mapping[str, object], call: Call) -> dict[str, Any]:
        """Arguments of the body, from their JSON."""
        model = self.arguments.model_validate(dict(arguments))
        given = {name: getattr(model, name) for name in type(model).model_fields}
        return given | ({self._call_as: call} if self._call_as else {})

    def result(self, value: Json) -> Any:  # noqa: ANN401 (the tool says what it is)
        """The declared result, from its JSON: the same live and in replay."""
        return self._result.validate_json(_core.canonical_dumps(value))

    def told(self, value: object) -> Json:
        """A body's result as JSON, if it is what the tool declares."""
        checked = self._result.validate_python(value)
        return to_json(self._result.dump_python(checked, mode="python"))

    def __repr__(self) -> str:
        return f"<Tool {self.name}, {self.options.effect}>"


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    try:
        return typing.get_type_hints(function, include_extras=True)
    except NameError as error:
        raise refuse("bad_tool", f"an annotation of {function.__name__} cannot be read: {error}") from None


def _schema(adapter: TypeAdapter[Any]) -> dict[str, Any] | None:
    try:
        return adapter.json_schema(mode="serialization")
    except Exception:
        return None
