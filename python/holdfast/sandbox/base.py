"""The contract of a sandbox: a job goes in, what became of it comes out.

The gateway calls ``check`` once when it is configured, ``enforces`` for the record, and ``run`` for every
dispatch, from any thread. ``run`` blocks until the body and everything that it started are dead, and never
raises for what a body does. What it says is ordered by what is certain:

- ``started`` False: the body was never called, a provable no effect; ``error`` says why. Importing the
  body's module comes before, so effects of an import are nobody's.
- ``returned`` True: it happened. ``value`` is what came of it, or ``error`` why that cannot be told
  (``not_json``, ``output_too_large``).
- ``error`` otherwise: the body raised it.
- none of these: the body began and nobody knows how far it came.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NoReturn, Protocol, TypedDict, TypeGuard, cast

from holdfast.errors import HoldfastError

if TYPE_CHECKING:
    import threading
    from collections.abc import Mapping

    from holdfast.secrets import Secret
    from holdfast.values import Json

End = Literal["exited", "killed", "timed_out", "not_started"]

MIB = 1 << 20
MESSAGE_MAX, NAME_MAX = 2048, 128


class SandboxError(HoldfastError):
    """A sandbox that cannot be used here, ``sandbox_unavailable``: what is missing and what to do."""


@dataclass(frozen=True)
class Limits:
    """What a body may use. All but ``output_bytes`` are limits of the kernel on each process of it.

    Attributes:
        memory_bytes: address space of one process; several processes may each use as much.
        cpu_seconds: processor time of one process; without it, the timeout and a second.
        processes: processes and threads beside those that the user has at the start; 0 is none at all.
        file_bytes: the size of one file; under bubblewrap also of all that is written to ``/tmp``.
        open_files: descriptors.
        output_bytes: of the answer as JSON.
    """

    memory_bytes: int = 512 * MIB
    cpu_seconds: int | None = None
    processes: int = 64
    file_bytes: int = 64 * MIB
    open_files: int = 64
    output_bytes: int = MIB


@dataclass(frozen=True)
class Job:
    """A body to run.

    Attributes:
        target: ``module:qualname`` of a function or a :class:`holdfast.Tool`.
        arguments: JSON, by parameter.
        call: the fields of :class:`holdfast.Call`, for a parameter of that type.
        timeout: seconds, from ``run`` to the death of everything; imports count.
        limits: instead of the sandbox's own.
        secrets: by parameter; they go through a pipe, and stand in no file, environment or command line.
    """

    target: str
    arguments: Mapping[str, Json]
    call: Mapping[str, Json] | None = None
    timeout: float = 60.0
    limits: Limits | None = None
    secrets: Mapping[str, Secret[Any]] = field(default_factory=dict)

    def asked(self) -> dict[str, Any]:
        """What the supervisor is told of it."""
        secrets = {
            to: (secret.name, secret.text(), isinstance(secret.reveal(), bytes))
            for to, secret in self.secrets.items()
        }
        call = dict(self.call or {"dispatch": 0, "id": "", "key": "", "run": ""})
        return {"arguments": dict(self.arguments), "call": call, "secrets": secrets, "target": self.target}


class Failure(TypedDict):
    """What a body raised, or why it did not begin. A body's own words: bounded, and to be trusted no more
    than its result.
    """

    type: str
    message: str
    no_effect: bool
    effect_failed: bool
    code: str | None


@dataclass(frozen=True)
class Done:
    """What became of a job. The body has no part in ``end``, ``exit_code`` and ``started``.

    Attributes:
        end: as in the record ``sandbox.finished``.
        exit_code: of the body's process; the negative number of a signal that ended it.
        started: whether the body may have begun.
        returned: whether it came to its end and returned.
        value: what it returned.
        external_id: of a :class:`holdfast.Result`.
        usage: of a :class:`holdfast.Result`.
    """

    end: End
    exit_code: int | None = None
    started: bool = False
    returned: bool = False
    value: Json = None
    error: Failure | None = None
    external_id: str | None = None
    usage: Mapping[str, int] | None = None
    elapsed_ms: int = 0


class Sandbox(Protocol):
    """Where bodies run."""

    tier: str

    def enforces(self) -> frozenset[str]:
        """What it really enforces here and now, of: network, filesystem, cpu, memory, processes, time."""

    def check(self) -> None:
        """Whether it works here.

        Raises:
            SandboxError: ``sandbox_unavailable``. Nothing weaker is used instead.
        """

    def run(self, job: Job, cancelled: threading.Event | None = None) -> Done:
        """Runs a body and waits for its end; when ``cancelled`` is set, everything is killed."""


# What the tiers make of a supervisor's report. Nothing in an answer is taken as it stands: a body wrote it.


def failed(type: object = "", message: object = "", **said: object) -> Failure:
    """A failure within its bounds."""
    return Failure(
        type=_text(type, NAME_MAX) or "Error",
        message=_text(message, MESSAGE_MAX),
        no_effect=said.get("no_effect") is True,
        effect_failed=said.get("effect_failed") is True,
        code=_text(said.get("code"), NAME_MAX) or None,
    )


def read(report: bytes, token: str, started: bool, complaint: str, otherwise: End) -> Done:
    """What became of a job.

    Args:
        report: a line of the supervisor's, then the answer; empty where the supervisor was killed.
        token: what an answer begins with: what a body writes on any descriptor it finds is no answer.
        started: whether the byte came that announces the body.
        complaint: what the supervisor said on its own.
        otherwise: the end, where the report does not say.
    """
    line, _, said = report.partition(b"\n")
    told = _object(line)
    end, code = cast("End", told.get("end", otherwise)), cast("int | None", told.get("exit_code"))
    answer = _object(said.partition(token.encode())[2]) if (end, code) == ("exited", 0) else {}
    error, returned = answer.get("error"), answer.get("returned") is True
    failure = failed(**error) if _is_object(error) else None
    if not started:
        late = "the body did not begin in time"
        why = late if end == "timed_out" else f"its process ended with {code} before the body began"
        why = complaint or why
        failure = failure or failed("SandboxError", why)
        return Done("not_started", code, error=failure | {"no_effect": True, "effect_failed": False})
    if failure is not None and returned:
        failure |= {"no_effect": False, "effect_failed": False}
    if failure is not None or not returned:
        return Done(end, code, started, returned, error=failure)
    external_id, usage = answer.get("external_id"), answer.get("usage")
    return Done(
        end,
        code,
        started,
        returned,
        answer.get("value"),
        external_id=external_id if isinstance(external_id, str) else None,
        usage=usage if _is_object(usage) and all(type(part) is int for part in usage.values()) else None,
    )


def _text(value: object, most: int) -> str:
    return value[:most].encode("utf-8", "replace").decode() if isinstance(value, str) else ""


def _is_object(value: object) -> TypeGuard[dict[str, Any]]:
    return isinstance(value, dict)


def _object(text: bytes) -> dict[str, Any]:
    try:
        value = json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")
