"""Agents: functions whose first parameter is their context, and what is declared about them."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar

from holdfast.errors import HoldfastError
from holdfast.gateway import bodies
from holdfast.gateway.outcomes import fix
from holdfast.gateway.shapes import Signature, Unfit

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from holdfast.runtime.plans import Planned

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
    step_timeout: float | None = None
    """Seconds that one attempt may take; waiting without a process does not count."""
    budget: Mapping[str, Any] | None = None


class Agent(Generic[P, R]):
    """A function that runs durably. Called directly it is the function itself."""

    def __init__(self, function: Callable[..., Any], options: Options) -> None:
        self.function = function
        self.options = options
        self.name = options.name or bodies.called(function)
        if not callable(function):
            raise refuse("bad_agent", f"an agent is something to call: {self.name} is not")
        if options.name is None and isinstance(function, partial) and "<" in self.name:
            raise refuse("bad_agent", "a partial of a lambda has no name of its own: say name=")
        self.is_async = bodies.is_coroutine(function)
        if options.attempts < 1:
            raise refuse("bad_agent", f"the agent {self.name} needs at least one attempt")
        if options.step_timeout is not None and not 0.001 <= options.step_timeout < float("inf"):
            raise refuse("bad_agent", f"the agent {self.name} needs a step_timeout of a millisecond or more")
        self._signature = inspect.signature(function)
        parameters = list(self._signature.parameters.values())
        if not parameters or parameters[0].kind is parameters[0].KEYWORD_ONLY:
            raise refuse("bad_agent", f"the agent {self.name} takes no context: its first parameter is ctx")
        self.context_as = parameters[0].name
        self.shape = Signature(self.name, function, (self.context_as,), reserved=frozenset())
        self.__name__ = self.name
        self.__doc__ = bodies.inner(function).__doc__
        self.__wrapped__ = function

    def __call__(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        """The function itself: nothing is recorded."""
        return self.function(*args, **kwargs)

    def named(self, args: tuple[object, ...], kwargs: Mapping[str, object]) -> dict[str, Any]:
        """Arguments by name."""
        try:
            bound = self._signature.bind(None, *args, **kwargs)
        except TypeError as error:
            raise refuse("bad_input", f"{self.name}: {error}") from None
        return {name: value for name, value in bound.arguments.items() if name != self.context_as}

    def whole(
        self, args: tuple[object, ...], kwargs: Mapping[str, object], options: Mapping[str, object]
    ) -> dict[str, Any]:
        """The input of a run that is started with options; one that is called like a parameter is refused."""
        arguments = options.get("arguments")
        if arguments is not None:
            if args or kwargs or not isinstance(arguments, Mapping):
                told = "arguments= is all of them, by name: give a mapping and nothing beside it"
                raise refuse("bad_input", f"{self.name}: {told}")
            return self.input((), arguments)
        own = list(self._signature.parameters)[1 + len(args) :]
        for name in (name for name in own if options.get(name) is not None):
            told = f"{name} is a parameter of the agent and an option of its run: pass arguments={{...}}"
            raise refuse("bad_input", f"{self.name}: {told}")
        return self.input(args, kwargs)

    def input(self, args: tuple[object, ...], kwargs: Mapping[str, object]) -> dict[str, Any]:
        """The run's input: arguments by name, checked, as JSON."""
        given = self.named(args, kwargs)
        if self.shape.secrets:
            raise refuse("bad_input", f"{self.name}: an agent's input is stored, so it cannot be a secret")
        return self.shape.check(given)

    def planned(self, *args: object, after: Sequence[str] = (), **kwargs: object) -> Planned:
        """This function as a step of a run that is not made yet: ``steps={"eu": fetch.planned("eu")}``.

        Args:
            args, kwargs: the function's.
            after: the names of the steps that it comes after; ``main`` is the agent's own.
        """
        from holdfast.runtime.plans import Planned  # it stands on this module

        given = self.whole(args, kwargs, {"after": [*after] or None})
        return Planned(self, given, tuple(after))

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
