"""Agents: functions whose first parameter is their context, and what is declared about them."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar

from holdfast.errors import HoldfastError
from holdfast.gateway.outcomes import fix
from holdfast.gateway.shapes import Signature, Unfit

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

P = ParamSpec("P")
R = TypeVar("R")


class AgentError(HoldfastError, ValueError):
    """An agent that cannot be registered or found, or input that is not its own."""


def refuse(code: str, message: str) -> AgentError:
    """An error with its fix."""
    return AgentError(message, code=code, fix=fix(code))


class Fatal(Exception):  # noqa: N818 (a verdict, not a kind of error)
    """Raised by agent code: another attempt would come to the same; the run fails."""


class Retry(Exception):  # noqa: N818
    """Raised by agent code: this attempt has failed and another may not."""


@dataclass(frozen=True)
class Options:
    """What an agent declares about itself."""

    name: str | None = None
    version: str = "1"
    attempts: int = 3
    backoff: float = 1.0
    backoff_max: float = 60.0
    queue: str | None = None
    role: str | None = None
    concurrency_key: str | None = None
    budget: Mapping[str, Any] | None = None


class Agent(Generic[P, R]):
    """A function that runs durably. Called directly it is the function itself."""

    def __init__(self, function: Callable[..., Any], options: Options) -> None:
        self.function = function
        self.options = options
        self.name = options.name or function.__name__
        self.is_async = inspect.iscoroutinefunction(function)
        if options.attempts < 1:
            raise refuse("bad_agent", f"the agent {self.name} needs at least one attempt")
        self._signature = inspect.signature(function)
        parameters = list(self._signature.parameters.values())
        if not parameters or parameters[0].kind is parameters[0].KEYWORD_ONLY:
            raise refuse("bad_agent", f"the agent {self.name} takes no context: its first parameter is ctx")
        self.context_as = parameters[0].name
        self.shape = Signature(self.name, function, leave_out=(self.context_as,))
        self.__name__ = self.name
        self.__doc__ = function.__doc__
        self.__wrapped__ = function

    def __call__(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        """The function itself: nothing is recorded."""
        return self.function(*args, **kwargs)

    def input(self, args: tuple[object, ...], kwargs: Mapping[str, object]) -> dict[str, Any]:
        """The run's input: arguments by name, checked, as JSON."""
        try:
            bound = self._signature.bind(None, *args, **kwargs)
        except TypeError as error:
            raise refuse("bad_input", f"{self.name}: {error}") from None
        given = {name: value for name, value in bound.arguments.items() if name != self.context_as}
        if self.shape.secrets:
            raise refuse("bad_input", f"{self.name}: an agent's input is stored, so it cannot be a secret")
        return self.shape.check(given)

    def bound(self, value: object) -> dict[str, Any]:
        """Arguments of the function, from the run's input."""
        if not isinstance(value, dict):
            raise refuse("bad_input", f"{self.name}: the run's input is not this agent's")
        return self.shape.bound(value, None, {})

    def told(self, value: object) -> Any:  # noqa: ANN401 (JSON)
        """The result as JSON."""
        return self.shape.told(value)

    def result(self, value: Any) -> Any:  # noqa: ANN401 (JSON in, the declared type out)
        """The declared result, from its JSON."""
        try:
            return self.shape.result(value)
        except Unfit:
            return value

    def __repr__(self) -> str:
        return f"<Agent {self.name}>"
