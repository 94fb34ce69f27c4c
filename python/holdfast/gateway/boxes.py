"""A body in a process of its own: hooks before it starts and after it exits, limits that hooks may only
tighten, and what its end says about the effect.
"""

from __future__ import annotations

import logging
from dataclasses import asdict, fields, replace
from typing import TYPE_CHECKING, Any

from holdfast.errors import HoldfastError
from holdfast.gateway import bodies, points, reports
from holdfast.gateway.outcomes import Stopped, Suspended
from holdfast.gateway.way import Run
from holdfast.sandbox import Done, Job, Limits
from holdfast.sandbox.base import failed

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping

    from holdfast.gateway.outcomes import Call
    from holdfast.gateway.passage import Passenger
    from holdfast.sandbox import Sandbox

Json = dict[str, Any]

GRACE = 10.0
"""Seconds beyond a body's own time for its processes to be killed."""

log = logging.getLogger("holdfast.sandbox")


def ran(passenger: Passenger, box: Sandbox, permit: Json, call: Call) -> Generator[Any, Any, Json]:
    """Runs a body in a sandbox and says how it ended."""
    tool, writes = passenger.tool, passenger.tool.options.effect == "write"
    try:
        job = yield from _prepared(passenger, box, permit["arguments"], call)
    except GeneratorExit:
        raise
    except BaseException as error:  # whatever it is: no body has begun, and the journal is to know
        passenger.fatal = None if isinstance(error, Exception) else error
        code = error.code if isinstance(error, HoldfastError) else "sandbox_failed"
        return reports.not_begun(type(error).__name__, code, "the body could not begin")
    if job is None:
        return reports.not_begun("Denied", "denied", "a hook did not let its process start")

    def body() -> Done:
        if passenger.expired(permit):  # hooks, or the way into this thread, took too long
            return Done("not_started", error=failed("PermitExpired", "too late", code="permit_expired"))
        with bodies.living(call.id):
            return box.run(job)

    try:
        heard = yield Run(body, tool.options.timeout + GRACE, is_async=False, settles=writes)
    except HoldfastError as error:  # it could not be started
        return reports.not_begun(type(error).__name__, error.code)
    if heard.timed_out or heard.error is not None:
        # Whoever waits was interrupted, or the sandbox itself failed: nobody knows.
        report, passenger.fatal = reports.of_body(tool, heard)
        return report
    done: Done = heard.value
    try:
        subject = {"end": done.end, "exit_code": done.exit_code, "tool": tool.name}
        about = (call.id, call.dispatch)
        yield from points.asked(passenger, "after_isolation_process_exit", subject, call=about)
    except GeneratorExit:
        raise
    except BaseException as error:  # what the body did is to be told all the same
        passenger.fatal = None if isinstance(error, Exception) else error
        told = "hooks after a process could not be asked: %s"
        log.warning(told, type(error).__name__, extra=passenger.claimed.about())
    return reports.of_sandbox(tool, done)


def _prepared(
    passenger: Passenger, box: Sandbox, arguments: Json, call: Call
) -> Generator[Any, Any, Job | None]:
    """The job, if hooks let it start."""
    tool = passenger.tool
    limits = getattr(box, "limits", None) or Limits()
    subject = {"limits": asdict(limits), "target": tool.target(), "tier": box.tier, "tool": tool.name}
    about = (call.id, call.dispatch)
    ruled = yield from points.asked(passenger, "before_isolation_process_start", subject, call=about)
    match ruled["act"]:
        case "go":
            pass
        case "interrupt":
            passenger.fatal = Suspended(call.id, {"call": call.id, "on": "interrupted"})
            return None
        case "fail" | "stop":
            passenger.fatal = Stopped(call.id, str(ruled.get("hook")))
            return None
        case _:
            return None
    value = ruled.get("value", {})
    wanted = value.get("limits", {}) if isinstance(value, dict) else None
    if not isinstance(wanted, dict):
        return None  # it put something in the place of the limits that is none
    limits = tightened(limits, wanted)
    timeout, secrets = tool.options.timeout, passenger.asked.secrets
    return Job(tool.target(), arguments, asdict(call), timeout, limits, secrets)


def tightened(limits: Limits, wanted: Mapping[str, object]) -> Limits:
    """Limits that allow no more than they did: the lower one of each counts."""
    changes: Json = {}
    for one in fields(limits):
        new, old = wanted.get(one.name), getattr(limits, one.name)
        if isinstance(new, int) and not isinstance(new, bool) and new > 0:
            changes[one.name] = new if old is None else min(new, old)
    return replace(limits, **changes)
