"""What a way through the gateway asks of who drives it: a commit, a body, a pause."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from holdfast import _core


@dataclass(frozen=True)
class Commit:
    """A call of the store."""

    call: _core.Call


@dataclass(frozen=True)
class Run:
    """A body, and how long it may take."""

    body: Callable[[], Any]
    timeout: float
    is_async: bool
    settles: bool = False
    """Whoever waits for it does so to the end, also when it is cancelled: it is a write's."""


@dataclass(frozen=True)
class Pause:
    """A moment, before something is tried again."""

    seconds: float


Way: TypeAlias = "Generator[Commit | Run | Pause, Any, Any]"
