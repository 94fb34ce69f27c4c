"""What can be asked of a store, written once: :class:`holdfast.Store` waits for the answer, and
``store.aio`` awaits it. A function here makes a call of the core and says what its answer means.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

from holdfast import _core
from holdfast.store import commands
from holdfast.store.commands import Claim, claim_of, human, payload

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    Entry = tuple[str, Mapping[str, Any]]
    Durability = Literal["commit", "soon", "barrier"]

T = TypeVar("T")

OPTIONS = frozenset(
    {
        "attempts",
        "backoff_max_ms",
        "backoff_ms",
        "budget",
        "capabilities",
        "concurrency_key",
        "deadline",
        "key",
        "kind",
        "labels",
        "package",
        "priority",
        "privacy",
        "queue",
        "role",
        "session",
        "step",
        "timeout_ms",
    }
)


@dataclass(frozen=True)
class Asked(Generic[T]):
    """A call, and what its answer means; without a call there is nothing to do."""

    call: _core.Call | None
    answer: Callable[[Any], T]
    run: str | None = None
    """The id that a new run gets."""


def _nothing(_: object) -> None:
    return None


def _actor(by: str) -> Mapping[str, object]:
    return commands.SYSTEM if by == "holdfast" else human(by)


def _level(kind: str, body: Mapping[str, Any]) -> dict[str, Any]:
    """A note without a level is information."""
    return {"level": "info", **body} if kind == "note.logged" else dict(body)


def _check_options(options: Mapping[str, object]) -> None:
    unknown = sorted(options.keys() - OPTIONS)
    if unknown:
        raise TypeError(f"create_run has no option {unknown[0]!r}; it has {', '.join(sorted(OPTIONS))}")


# Runs and what is written to them.


def create_run(
    core: _core.Store,
    /,
    *,
    agent: str,
    input: object = None,
    state: Mapping[str, Any] | None = None,
    by: str = "holdfast",
    barrier: bool = True,
    **options: Any,  # noqa: ANN401
) -> Asked[str]:
    """Makes a run with one step, and returns its id.

    Args:
        agent: whose work it is; workers ask for agents by this name.
        input: any JSON value; kept as a content.
        state: the initial state.
        by: who asks for it.
        barrier: return only when the run would survive a power cut.
        options: ``key`` (a run that has it is returned instead, if agent and input are the same),
            ``role``, ``labels``, ``priority``, ``deadline`` (ms since the epoch), ``session``,
            ``budget``, ``capabilities`` (all that it may reach, see :func:`holdfast.capability`),
            ``package``, ``privacy``, ``step``, ``queue``, ``attempts``, ``backoff_ms``, ``backoff_max_ms``,
            ``concurrency_key``, ``timeout_ms`` (how long the runtime lets an attempt take), ``kind``
            (``attached``, or ``replayed`` for the runtime's own agents).
    """
    _check_options(options)
    at_ms = core.wall_ms
    run = commands.new_run(agent, input, dict(state or {}), options, at_ms)
    step = commands.new_step(options.get("step", "main"), options, at_ms)
    durability: Durability = "barrier" if barrier else "commit"
    return Asked(_core.Call.create(_actor(by), run, [step], durability), str, run["id"])


def append(
    _: _core.Store,
    /,
    run: str,
    kind: str,
    body: Mapping[str, Any],
    *,
    claim: Claim | None = None,
    by: str = "holdfast",
    privacy: str = "internal",
    blobs: Mapping[str, Mapping[str, Any]] | None = None,
    barrier: bool = False,
) -> Asked[int]:
    """Appends one record and returns its seq. See :meth:`append_many`.

    Args:
        run: the run.
        kind: ``note.logged``, ``cost.recorded``, ``artifact.created``, ``checkpoint.created`` or
            ``x.<vendor>.<name>``; others are Holdfast's own (``kind_reserved``).
        body: plain values; those at the kind's contents are salted, kept beside the record, erasable.
        claim: needed by a worker while a lease is live.
        by: who says it, when there is no claim.
        privacy: who may see it.
        blobs: contents that :meth:`put_blob` keeps already, by their position in the body.
        barrier: return only when it would survive a power cut.
    """
    entry = {"body": _level(kind, body), "kind": kind, "privacy": privacy}
    if blobs:
        entry["blobs"] = {position: dict(blob) for position, blob in blobs.items()}
    call = _append(run, [entry], claim, by, barrier=barrier)
    return Asked(call, lambda wrote: int(wrote[0]))


def append_many(
    _: _core.Store,
    /,
    run: str,
    entries: Iterable[Entry],
    *,
    claim: Claim | None = None,
    by: str = "holdfast",
    privacy: str = "internal",
    barrier: bool = False,
) -> Asked[range]:
    """Appends records in one frame, all or none, and returns their seqs."""
    bodies = [{"body": _level(kind, body), "kind": kind, "privacy": privacy} for kind, body in entries]
    if not bodies:
        return Asked(None, lambda _: range(0))
    call = _append(run, bodies, claim, by, barrier=barrier)
    return Asked(call, lambda wrote: range(wrote[0], wrote[1] + 1))


def _append(
    run: str, entries: list[dict[str, Any]], claim: Claim | None, by: str, *, barrier: bool
) -> _core.Call:
    held = None if claim is None else claim.core()
    who = _actor(by) if claim is None else claim.by()
    return _core.Call.append(run, who, held, entries, "barrier" if barrier else "commit")


# Work.


def claim(
    _: _core.Store,
    /,
    *,
    worker: str,
    lease: float = 60.0,
    queues: Sequence[str] = (),
    agents: Sequence[str] = (),
    package: Mapping[str, str] | None = None,
    strict: bool = False,
    packages: Sequence[str] = (),
    run: str | None = None,
) -> Asked[Claim | None]:
    """The best step that this worker may have, under a new fence, or None.

    A worker that says its ``package`` has the parts recorded in which it differs from the one that the run
    had last; under ``strict`` such a step waits for a person instead. With ``packages``, only steps whose
    runs have one of these fingerprints, as the table ``steps`` has them. With ``run``, only a step of that
    run, whatever its package.

    On the way it takes back steps whose workers are gone, fires what is due and delivers what was sent.
    """
    lease_ms = max(0, round(lease * 1000))
    parts = None if package is None else commands.package(package)
    call = _core.Call.claim(worker, lease_ms, list(queues), list(agents), list(packages), parts, strict, run)
    return Asked(call, lambda told: None if told is None else claim_of(told))


def heartbeat(_: _core.Store, /, claim: Claim, *, lease: float | None = None) -> Asked[None]:
    """Prolongs the lease from now on; raises ``stale_fence`` if the claim no longer holds."""
    lease_ms = max(0, round((claim.lease if lease is None else lease) * 1000))
    return Asked(_by(claim, {"command": "heartbeat", "lease_ms": lease_ms}, "commit"), _nothing)


def patch(
    _: _core.Store,
    /,
    claim: Claim,
    patch: Mapping[str, Any],
    *,
    expected_version: int,
    privacy: str = "internal",
) -> Asked[int]:
    """Merges a patch (RFC 7396) into the state, and returns the state's new version.

    Raises:
        CommandError: ``state_conflict`` if the state has another version; ``stale_fence`` if the claim
            no longer holds.
    """
    command = {"command": "patch", "expected_version": expected_version}
    call = _by(claim, {**command, "patch": payload(dict(patch), privacy)}, "soon")
    return Asked(call, lambda _: expected_version + 1)


def wait(_: _core.Store, /, claim: Claim, waits: Sequence[Mapping[str, Any]]) -> Asked[None]:
    """Parks the step until something comes: the claim ends, and no process is held.

    A wait is ``{"on": "signal", "subject": name}``, ``{"on": "timer", "until": ms}``, and so on.
    """
    return Asked(_by(claim, {"command": "wait", "waits": [dict(wait) for wait in waits]}, "soon"), _nothing)


def release(_: _core.Store, /, claim: Claim, *, reason: str = "shutdown") -> Asked[None]:
    """Gives the step back without an outcome; it costs no attempt."""
    return Asked(_by(claim, {"command": "release", "reason": reason}, "soon"), _nothing)


def finish(
    _: _core.Store, /, claim: Claim, *, result: object = None, privacy: str = "internal"
) -> Asked[None]:
    """The step is done, and with the last one the run. Returns when that would survive a power cut."""
    call = _by(claim, {"command": "complete", "result": payload(result, privacy)}, "barrier")
    return Asked(call, _nothing)


def fail(
    _: _core.Store,
    /,
    claim: Claim,
    error: BaseException | str,
    *,
    retryable: bool = True,
    privacy: str = "internal",
) -> Asked[None]:
    """The attempt failed: another is scheduled, or the step and its run fail for good."""
    failure, message = commands.failure(error, retryable=retryable)
    command = {"command": "fail", "ended_by": [], "failure": failure}
    return Asked(_by(claim, {**command, "message": payload(message, privacy)}, "barrier"), _nothing)


def _by(claim: Claim, command: Mapping[str, Any], durability: Durability) -> _core.Call:
    whole = {**command, "claim": claim.core()}
    return _core.Call.command(claim.run, claim.by(), whole, durability)


# What people do.


def retry(_: _core.Store, /, run: str, *, by: str) -> Asked[None]:
    """Opens a failed run again: the steps that failed, and those that were cancelled for it."""
    return Asked(_core.Call.command(run, human(by), {"command": "retry_run"}, "barrier"), _nothing)


def signal(
    _: _core.Store, /, run: str, name: str, value: object = None, *, by: str = "holdfast"
) -> Asked[None]:
    """Sends a signal; a step that waits for it wakes."""
    command = {"command": "signal", "name": name, "payload": payload(value, "internal")}
    return Asked(_core.Call.command(run, _actor(by), command, "barrier"), _nothing)


def cancel(_: _core.Store, /, run: str, *, by: str) -> Asked[None]:
    """Asks the run to stop; without a worker it ends at once. Asked again, nothing more is written."""
    return Asked(_core.Call.command(run, human(by), {"command": "cancel"}, "barrier"), _nothing)
