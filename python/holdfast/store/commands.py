"""What is asked of a run, as the core reads it."""

from __future__ import annotations

import platform
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

from holdfast import _core
from holdfast.errors import HoldfastError
from holdfast.primitives import new_id
from holdfast.secrets import holds_secret, scrub
from holdfast.values import to_json

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.values import Json

QUEUE = "default"
SYSTEM = {"id": "holdfast", "type": "system"}


@dataclass(frozen=True)
class Claim:
    """A worker's right to act on a step, until it is lost, given back or used up."""

    run: str
    step: str
    fence: tuple[int, int]
    attempt: int
    """Counts the tries of the step."""
    state_version: int
    agent: str
    name: str
    """The step's name."""
    worker: str
    lease: float
    """Seconds, from the claim or the newest heartbeat."""
    state: Any = field(repr=False)
    input: Any = field(repr=False)
    step_input: Any = field(default=None, repr=False)
    """The step's own input, if it has one."""
    kind: str = "attached"
    role: str = ""
    session: str | None = None
    timeout_ms: int | None = None
    """How long an attempt at the step may take."""
    player: _core.Player | None = field(default=None, repr=False, compare=False)
    """What the runtime plays a replayed step again with."""

    def core(self) -> dict[str, Json]:
        """The claim as commands carry it."""
        return {"fence": list(self.fence), "step": self.step}

    def by(self) -> dict[str, Json]:
        """Who holds it."""
        return {"id": self.worker, "type": "worker"}

    def about(self) -> dict[str, str]:
        """Which run and step a line of a log is about, as its ``extra``."""
        return {"run": self.run, "step": self.step}


def claim_of(told: dict[str, Any]) -> Claim:
    """The claim that the core gave."""
    fields = {name: value for name, value in told.items() if name not in ("fence", "lease_ms")}
    return Claim(**fields, fence=tuple(told["fence"]), lease=told["lease_ms"] / 1000)


def human(name: str) -> dict[str, Json]:
    """A person, as an actor."""
    return {"id": name, "type": "human"}


def payload(value: object, privacy: str) -> dict[str, Any]:
    """A user's value on its way into the journal.

    Raises:
        CanonicalError: ``secret_value`` where a secret would be stored.
    """
    return {"privacy": privacy, "value": to_json(value) if holds_secret(value) else value}


def package(parts: Mapping[str, str] | None) -> dict[str, str]:
    """A package fingerprint; what is not given is empty."""
    return {**_nobodys_package(), **(parts or {})}


@cache
def _nobodys_package() -> dict[str, str]:
    digests = ("hooks", "instructions", "models", "policy", "tools")
    empty = _core.canonical_digest(None, domain="holdfast/package/v1")
    return {"agent": "0", "python": platform.python_version(), **dict.fromkeys(digests, empty)}


def new_run(
    agent: str, value: object, state: object, options: Mapping[str, Any], at_ms: int
) -> dict[str, Any]:
    """What a new run is."""
    privacy = options.get("privacy", "internal")
    run: dict[str, Any] = {
        "agent": agent,
        "id": new_id("run", at_ms=at_ms),
        "input": payload(value, privacy),
        "labels": dict(options.get("labels") or {}),
        "mode": "live",
        "package": package(options.get("package")),
        "priority": options.get("priority", 0),
        "role": options.get("role") or agent,
        "state": payload(state, privacy),
    }
    optional = {"budget", "capabilities", "deadline", "key", "session"}
    return run | {name: value for name, value in options.items() if name in optional and value is not None}


def new_step(name: str, options: Mapping[str, Any], at_ms: int) -> dict[str, Any]:
    """What a new step is."""
    retry = {
        "backoff_max_ms": options.get("backoff_max_ms", 60_000),
        "backoff_ms": options.get("backoff_ms", 1000),
        "max_attempts": options.get("attempts", 3),
    }
    step: dict[str, Any] = {
        "after": [],
        "id": new_id("step", at_ms=at_ms),
        "kind": options.get("kind", "attached"),
        "name": name,
        "queue": options.get("queue") or QUEUE,
        "retry": retry,
    }
    if options.get("concurrency_key") is not None:
        step["concurrency_key"] = options["concurrency_key"]
    if options.get("timeout_ms") is not None:
        step["timeout_ms"] = options["timeout_ms"]
    return step


def failure(error: BaseException | str, *, retryable: bool) -> tuple[dict[str, Any], str]:
    """How an attempt failed: what the record holds, and its message, which is a content."""
    name = "Error" if isinstance(error, str) else type(error).__qualname__
    told: dict[str, Any] = {"error": name, "retryable": retryable, "source": "agent"}
    if isinstance(error, HoldfastError):
        told["code"] = error.code
    return told, _said(error)


def _said(error: BaseException | str) -> str:
    try:
        # What to do about it is for whoever gets the error, not for the journal.
        return scrub(str(error.args[0] if isinstance(error, HoldfastError) else error))
    except Exception:
        return ""  # it cannot say what it is
