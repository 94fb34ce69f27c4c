"""How an attempt can end without agent code having come to its own end."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from holdfast.errors import HoldfastError
from holdfast.gateway.outcomes import Stopped, Suspended, fix


@dataclass(frozen=True)
class Ended:
    """A hook or an error of the runtime ends it."""

    error: BaseException | None = None


@dataclass(frozen=True)
class Waits(Ended):
    """Nothing can go on without somebody else: the step waits for these."""

    waits: tuple[dict[str, Any], ...] = ()

    def __init__(self, waits: list[dict[str, Any]]) -> None:
        object.__setattr__(self, "error", None)
        object.__setattr__(self, "waits", tuple(waits))


@dataclass(frozen=True)
class Diverged(Ended):
    """The code does something else than was recorded: a person decides."""

    divergence: Any = None

    def __init__(self, divergence: Any) -> None:  # noqa: ANN401 (as the record has it)
        object.__setattr__(self, "error", None)
        object.__setattr__(self, "divergence", divergence)


@dataclass(frozen=True)
class TimedOut(Ended):
    """The attempt took longer than its step may."""

    def __init__(self, timeout_ms: int) -> None:
        told = f"the attempt took longer than the {timeout_ms / 1000:g} s that the step may take"
        object.__setattr__(self, "error", StepTimeout(told, code="step_timeout", fix=fix("step_timeout")))


class StepTimeout(HoldfastError, TimeoutError):  # noqa: N818 (as TimeoutError is called here)
    """An attempt that took longer than its step's ``step_timeout``; another one may not."""


@dataclass(frozen=True)
class Returned(Ended):
    """Agent code has come to its own end: what it left behind asks for nothing any more."""


@dataclass(frozen=True)
class Cancelled(Ended):
    """Somebody wants the run to end."""


@dataclass(frozen=True)
class Lost(Ended):
    """The step is another's by now, or has ended: there is nobody to tell."""


@dataclass(frozen=True)
class Shutdown(Ended):
    """The worker is going down: the step goes back into the queue."""


def tamed(error: BaseException | None) -> BaseException | None:
    """What would end the whole program, had a loop to raise it, is an error of the call."""
    if error is None or isinstance(error, Exception | Suspended | Stopped | asyncio.CancelledError):
        return error
    made = RuntimeError(f"the body raised {type(error).__name__}")
    made.__cause__ = error
    return made
