"""The caller's own names for calls."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from holdfast.gateway.shapes import refuse

DAY = 24 * 60 * 60.0


@dataclass(frozen=True)
class Key:
    """The caller's own name for a call, and how far it reaches.

    In a run, a call that is made again under its key is the same call. In the whole store, what one run does
    under a key no other run does: whoever comes second gets the outcome of the first, and waits for it as
    long as it is not known. Other arguments, or another tool, are refused (``idempotency_conflict``). What
    provably did nothing, or was compensated, leaves the key to the next.

    Attributes:
        name: what it is called.
        scope: ``run``, which is what a plain string means, or ``store``.
        ttl: how many seconds a key of the store is kept once its outcome is known; 30 days, unless given.

    >>> Key("refund of order 42", scope="store", ttl=7 * DAY).shared_ms
    604800000
    """

    name: str
    scope: Literal["run", "store"] = "run"
    ttl: float | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.name, str):
            raise refuse("bad_arguments", "a key has a name, which is a text")
        if self.scope not in ("run", "store"):
            raise refuse("bad_arguments", f"a key reaches over a run or the store, not {self.scope!r}")
        if self.ttl is None:
            return
        if self.scope == "run":
            raise refuse("bad_arguments", "a key of a run is kept as long as the run")
        if not isinstance(self.ttl, int | float) or not 0 < self.ttl < float("inf"):
            raise refuse("bad_arguments", "a key of the store is kept for some seconds")

    @property
    def shared_ms(self) -> int | None:
        """How long it is kept, if it is one of the store."""
        return (
            None
            if self.scope == "run"
            else max(1, round(1000 * (30 * DAY if self.ttl is None else self.ttl)))
        )


def parts(key: str | Key | None) -> tuple[str | None, int | None]:
    """What a key is called, and how long it is kept if it is one of the store."""
    return (key.name, key.shared_ms) if isinstance(key, Key) else (key, None)


def of_run(key: str | Key | None) -> str | None:
    """What a key is called, where none of the store makes sense."""
    name, shared = parts(key)
    if shared is not None:
        raise refuse("bad_arguments", "only calls of tools and of ctx.do have keys of the store")
    return name
