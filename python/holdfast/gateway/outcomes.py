"""What bodies say about their effects, and what agent code hears of a call."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from holdfast import _core
from holdfast.errors import HoldfastError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

T = TypeVar("T")
FIXES = dict(_core.error_codes())


def fix(code: str) -> str:
    """What to do about a code."""
    return FIXES.get(code, "")


@dataclass(frozen=True)
class Call:
    """The call that a tool's body works for; a parameter of this type gets it and is not in the schema."""

    id: str
    key: str
    """The same in every dispatch of the call: give it to the provider as its idempotency key."""
    run: str
    dispatch: int
    """How often the call was sent off, this time included."""


@dataclass(frozen=True)
class Keyed:
    """The provider honours ``call.key`` for so long: a repeat within it does nothing new.

    Attributes:
        ttl: in seconds, counted from the first start. A tenth of it is kept as a margin.
    """

    ttl: float


@dataclass(frozen=True)
class Result(Generic[T]):
    """A result with what the provider calls it, and what it cost."""

    value: T
    external_id: str | None = None
    usage: Mapping[str, int] | None = None
    """Amounts by account: ``tokens``, ``usd_micros``, ``tool_calls``, ``children``."""


@dataclass(frozen=True)
class Happened(Generic[T]):
    """A tool's word that its effect happened, and what came of it."""

    value: T
    external_id: str | None = None


@dataclass(frozen=True)
class DidNotHappen:
    """A tool's word that its effect provably did not happen, and no longer can."""


@dataclass(frozen=True)
class CannotTell:
    """A tool cannot tell whether its effect happened: a person has to find out."""


class OutcomeError(HoldfastError):
    """How a call ended, when it did not end well. The same error is raised again when it is replayed.

    Attributes:
        call: the call's id.
        tool: its name.
    """

    def __init__(self, message: str, *, code: str, call: str | None = None, tool: str | None = None) -> None:
        super().__init__(message, code=code, fix=fix(code))
        self.call = call
        self.tool = tool


class Denied(OutcomeError):
    """A hook, a rule or a person said no. Nothing happened.

    Attributes:
        reasons: why, as ``{"code": .., "rule": ..}``; the codes are for programs.
    """

    def __init__(
        self,
        message: str,
        *,
        code: str = "denied",
        call: str | None = None,
        tool: str | None = None,
        reasons: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        super().__init__(message, code=code, call=call, tool=tool)
        self.reasons = tuple(reasons)


class BudgetRefused(Denied):
    """The run's budget has no room for the call. Nothing happened."""


class EffectFailed(OutcomeError):
    """It happened, and failed in a way that is known.

    A tool's body raises it to say so; agent code gets it, live and in replay, with the original as
    ``__cause__`` only live.
    """

    def __init__(
        self,
        message: str = "the effect failed",
        *,
        code: str = "effect_failed",
        call: str | None = None,
        tool: str | None = None,
        error: str = "EffectFailed",
    ) -> None:
        super().__init__(message, code=code, call=call, tool=tool)
        self.error = error


class NoEffect(OutcomeError):
    """It provably did not happen. A tool's body raises it to say so; it may then be tried again."""

    def __init__(
        self,
        message: str = "it did not happen",
        *,
        code: str = "no_effect",
        call: str | None = None,
        tool: str | None = None,
    ) -> None:
        super().__init__(message, code=code, call=call, tool=tool)


class Suspended(BaseException):
    """The call cannot go on now: the step is to wait, and no process with it.

    Control flow, not an error: agent code must not catch it.

    Attributes:
        wait: what the step waits for, as :meth:`holdfast.Store.wait` takes it.
    """

    def __init__(self, call: str, wait: Mapping[str, Any]) -> None:
        super().__init__(f"waits for {wait['on']}")
        self.call = call
        self.wait = dict(wait)


class Stopped(BaseException):
    """A hook wants the run to fail. Control flow, as above.

    Attributes:
        hook: which one.
    """

    def __init__(self, call: str, hook: str) -> None:
        super().__init__(f"the hook {hook} stops the run")
        self.call = call
        self.hook = hook
