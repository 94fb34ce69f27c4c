"""What goes into a tool and what comes out of it: from a function's signature through pydantic, or from JSON
Schemas for tools that come from elsewhere. Secrets are taken out on the way into the journal, and put back
on the way into the body.
"""

from __future__ import annotations

import functools
import inspect
import typing
from typing import TYPE_CHECKING, Any, Protocol

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError, create_model

from holdfast import _core
from holdfast.errors import HoldfastError
from holdfast.gateway import bodies
from holdfast.gateway.outcomes import Call, Result, fix
from holdfast.secrets import Secret
from holdfast.values import to_json

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from holdfast.values import Json

RESERVED = frozenset(("capability", "key", "reserve"))


class ToolError(HoldfastError, ValueError):
    """A tool that cannot be registered, or arguments that are not its own."""


def refuse(code: str, message: str, path: str | None = None) -> ToolError:
    """An error with its fix."""
    return ToolError(message, code=code, fix=fix(code), path=path)


class Unfit(Exception):  # noqa: N818 (never leaves the gateway)
    """A result that is not what the tool declares."""


class Shape(Protocol):
    """Checks what goes in and comes out."""

    input: dict[str, Any]
    output: dict[str, Any] | None
    secrets: tuple[str, ...]

    def check(self, arguments: Mapping[str, object]) -> dict[str, Any]:
        """Arguments, checked, as JSON but for secrets."""

    def bound(
        self, arguments: Mapping[str, object], call: Call, secrets: Mapping[str, object]
    ) -> dict[str, Any]:
        """Arguments of the body, from their JSON."""

    def result(self, value: Json) -> Any:  # noqa: ANN401 (the tool says what it is)
        """The declared result, from its JSON."""

    def told(self, value: object) -> Json:
        """A body's result as JSON, if it is what the tool declares."""


class Signature:
    """The shape of a function, by its signature."""

    def __init__(
        self,
        name: str,
        function: Callable[..., Any],
        leave_out: tuple[str, ...] = (),
        reserved: frozenset[str] = RESERVED,
    ) -> None:
        self._name = name
        self._call_as: str | None = None
        hints = _hints(name, function)
        fields: dict[str, Any] = {}
        hidden = []
        # What a partial has bound already, a client or a connection, is no argument of anybody's call.
        bound = function.keywords if isinstance(function, functools.partial) else ()
        for parameter in _parameters(name, function):
            if parameter.name in leave_out or parameter.name in bound:
                continue
            if parameter.kind in (
                parameter.VAR_POSITIONAL,
                parameter.VAR_KEYWORD,
                parameter.POSITIONAL_ONLY,
            ):
                raise refuse("bad_tool", f"the tool {name} has the parameter {parameter}: name each one")
            if parameter.name in reserved:
                raise refuse("bad_tool", f"the tool {name} has a parameter called {parameter.name}")
            annotation = hints.get(parameter.name, Any)
            if annotation is Call:
                self._call_as = parameter.name
                continue
            if Secret in (annotation, typing.get_origin(annotation)):
                hidden.append(parameter.name)
            default = ... if parameter.default is parameter.empty else parameter.default
            fields[parameter.name] = (annotation, default)
        config = ConfigDict(extra="forbid", arbitrary_types_allowed=False)
        self.model: type[BaseModel] = create_model(f"{name}_arguments", __config__=config, **fields)
        self._result: TypeAdapter[Any] = TypeAdapter(_declared(hints.get("return", Any)))
        self.secrets = tuple(hidden)
        self.input = self.model.model_json_schema()
        self.output = _schema(self._result)

    def check(self, arguments: Mapping[str, object]) -> dict[str, Any]:
        """Arguments, checked against the signature."""
        try:
            model = self.model.model_validate(dict(arguments))
        except ValidationError as error:
            first = error.errors(include_input=False, include_url=False, include_context=False)[0]
            path = "$" + "".join(f".{part}" for part in first["loc"])
            raise refuse("bad_arguments", f"{self._name}: {first['msg']} (at {path})", path) from None
        given = {name: getattr(model, name) for name in type(model).model_fields}
        hidden = {name: given.pop(name) for name in self.secrets if name in given}
        checked = to_json(given)
        assert isinstance(checked, dict)
        return {**checked, **hidden}

    def bound(
        self, arguments: Mapping[str, object], call: Call | None, secrets: Mapping[str, object]
    ) -> dict[str, Any]:
        """Arguments of the body."""
        model = self.model.model_validate(dict(arguments))
        given = {name: getattr(model, name) for name in type(model).model_fields} | dict(secrets)
        return given | ({self._call_as: call} if self._call_as else {})

    def result(self, value: Json) -> Any:  # noqa: ANN401 (the tool says what it is)
        """The declared result: the same live and in replay."""
        try:
            return self._result.validate_json(_core.canonical_dumps(value))
        except ValidationError as error:
            raise Unfit from error

    def told(self, value: object) -> Json:
        """A body's result."""
        try:
            checked = self._result.validate_python(value)
        except ValidationError as error:
            raise Unfit from error
        return to_json(self._result.dump_python(checked, mode="python"))


class Schemas:
    """The shape of a tool that comes from elsewhere, by its JSON Schemas."""

    def __init__(self, name: str, inputs: Mapping[str, Any], outputs: Mapping[str, Any] | None) -> None:
        taken = sorted(RESERVED & set(inputs.get("properties", {})))
        if taken:
            raise refuse("bad_tool", f"the tool {name} has a property called {taken[0]}, which calls use")
        self._name = name
        self.input, self.output = dict(inputs), None if outputs is None else dict(outputs)
        self.secrets: tuple[str, ...] = ()
        self._inputs = _core.Schema(self.input)
        self._outputs = None if self.output is None else _core.Schema(self.output)

    def check(self, arguments: Mapping[str, object]) -> dict[str, Any]:
        """Arguments, checked against the schema."""
        checked = to_json(dict(arguments))
        assert isinstance(checked, dict)
        unfit = self._inputs.check(checked)
        if unfit is not None:
            path, keyword = unfit
            raise refuse("bad_arguments", f"{self._name}: does not satisfy {keyword} (at {path})", path)
        return checked

    def bound(
        self,
        arguments: Mapping[str, object],
        call: Call,
        secrets: Mapping[str, object],  # noqa: ARG002 (no schema knows of any)
    ) -> dict[str, Any]:
        """The body takes them as one dict, and the call."""
        return {"arguments": dict(arguments), "call": call}

    def result(self, value: Json) -> Any:  # noqa: ANN401 (the schema says what it is)
        """The result, if it fits."""
        if self._outputs is not None and self._outputs.check(value) is not None:
            raise Unfit
        return value

    def told(self, value: object) -> Json:
        """A body's result."""
        told = to_json(value)
        self.result(told)
        return told


def _declared(returns: Any) -> Any:  # noqa: ANN401 (whatever was written there)
    """What agent code gets of a function that is annotated so: of a result what is in it, of one that never
    returns nothing in particular."""
    if typing.get_origin(returns) is Result:
        return typing.get_args(returns)[0]
    return Any if returns in (Call, Result, typing.NoReturn, typing.Never) else returns


def _parameters(name: str, function: Callable[..., Any]) -> list[inspect.Parameter]:
    try:
        return list(inspect.signature(function).parameters.values())
    except ValueError:
        raise refuse("bad_tool", f"{name} does not say what it takes: put a function around it") from None


def _hints(name: str, function: Callable[..., Any]) -> dict[str, Any]:
    try:
        return typing.get_type_hints(bodies.code_of(function), include_extras=True)
    except NameError as error:
        raise refuse("bad_tool", f"an annotation of {name} cannot be read: {error}") from None


def _schema(adapter: TypeAdapter[Any]) -> dict[str, Any] | None:
    try:
        return adapter.json_schema(mode="serialization")
    except Exception:
        return None
