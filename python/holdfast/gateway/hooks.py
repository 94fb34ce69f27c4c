"""Hooks: functions that look at calls on their way, and may stop or change them."""

from __future__ import annotations

import asyncio
import copy
import logging
import threading
from collections import deque
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

from holdfast import _core
from holdfast.errors import CanonicalError
from holdfast.gateway import bodies
from holdfast.gateway.bodies import INSIDE
from holdfast.secrets import scrubbed
from holdfast.values import to_json

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.gateway.bodies import Ran

Point = Literal[
    "run_starting",
    "before_tool_call",
    "after_tool_call",
    "before_approval_request",
    "after_approval_decision",
    "before_subagent_start",
    "after_subagent_terminal",
    "before_isolation_process_start",
    "after_isolation_process_exit",
    "on_run_cancel_requested",
    "before_run_complete",
    "after_run_terminal",
]
Failure = Literal["fail_open_observe_only", "deny", "interrupt_run", "fail_run"]
Phase = Literal["early", "normal", "late"]
Overflow = Literal["drop_observe_only", "summarize_and_continue", "fail_hook_invocation"]
Outcome = Literal["succeeded", "failed", "no_effect", "cancelled", "denied", "unrecordable", "compensated"]
Privacy = Literal["envelope_and_redacted_summary", "content_refs_only", "content_capture_allowed"]

log = logging.getLogger("holdfast.hooks")

TERMINAL = frozenset(("after_tool_call", "after_subagent_terminal", "after_run_terminal"))
"""The ends of calls and runs: the last places of a queue are kept for them."""
REWRITES = {
    "before_tool_call": "modify_tool_request",
    "after_tool_call": "rewrite_tool_result",
    "before_approval_request": "modify_approval_request",
    "before_isolation_process_start": "modify_process_request",
    "before_subagent_start": "modify_subagent_request",
}


@dataclass(frozen=True)
class Subject:
    """What a hook is shown.

    ``value`` is the arguments before a call, the result after it; nothing, unless the hook's privacy is
    ``content_capture_allowed``. ``outcome`` says after a call how it ended.
    """

    point: str
    tool: str
    run: str
    agent: str
    value: Any = None
    step: str = ""
    outcome: Outcome | None = None

    def about(self) -> dict[str, str]:
        """Which run and step a line of a log is about, as its ``extra``."""
        return {"run": self.run, "step": self.step}


@dataclass(frozen=True)
class Response:
    """What a hook answers; made by :func:`deny`, :func:`rewrite` and their like."""

    kind: str
    payload: dict[str, Any]

    def at(self, point: str) -> dict[str, Any]:
        """As the core reads it."""
        kind = REWRITES.get(point, "modify_projection") if self.kind == "rewrite" else self.kind
        return {"payload": self.payload, "type": kind}


def deny(code: str, summary: str | None = None) -> Response:
    """The call does not happen. ``code`` is for programs: ``spending.too_much``."""
    return Response("deny", {"code": code} | ({"summary": summary} if summary else {}))


def rewrite(value: object) -> Response:
    """This in the place of the arguments, of the result, or of who must approve (``{"quorum": 2}``)."""
    return Response("rewrite", {"value": value})


def request_approval(summary: str | None = None) -> Response:
    """A person is to look at the call first."""
    return Response("request_approval", {"summary": summary} if summary else {})


def request_retry(summary: str | None = None) -> Response:
    """A read is to be made once more (a write never is), or a step's work before its run completes."""
    return Response("request_retry", {"summary": summary} if summary else {})


def stop_run(code: str, summary: str | None = None) -> Response:
    """The run does not start: it is cancelled."""
    return Response("stop_run", {"code": code} | ({"summary": summary} if summary else {}))


def inject_context(*items: object) -> Response:
    """Further context for the agent that is about to run."""
    return Response("inject_context", {"items": list(items)})


def repair_needed(code: str, summary: str | None = None) -> Response:
    """The run does not complete: it waits for a person."""
    payload = {"code": code} | ({"summary": summary} if summary else {})
    return Response("stop_completion_with_repair_needed", payload)


def request_cleanup(summary: str | None = None) -> Response:
    """Something is left to be cleaned up: that it was said is on record."""
    return Response("request_cleanup_repair", {"summary": summary} if summary else {})


def request_usage_repair(summary: str | None = None) -> Response:
    """What a child used does not add up: that it was said is on record."""
    return Response("request_usage_rollup_repair", {"summary": summary} if summary else {})


def told(ran: Ran, point: str) -> dict[str, Any]:
    """What a hook's body came to, as the core reads it."""
    if ran.timed_out:
        return {"answer": "timed_out"}
    answer = ran.value
    if ran.error is None and answer is None:
        return {"answer": "response", "response": {"payload": {}, "type": "observe_only"}}
    if ran.error is not None or not isinstance(answer, Response):
        return {"answer": "failed"}
    try:
        return {"answer": "response", "response": scrubbed(to_json(answer.at(point)))}
    except CanonicalError:
        return {"answer": "failed"}


@dataclass(frozen=True)
class Hook:
    """A hook as it was registered."""

    spec: dict[str, Any]
    body: Callable[[Subject], Any]

    @property
    def id(self) -> str:
        """Its name."""
        return str(self.spec["hook_id"])

    @cached_property
    def is_async(self) -> bool:
        """Whether its body is a coroutine."""
        return bodies.is_coroutine(self.body)

    def shows(self, subject: Subject) -> Subject:
        """The subject, as far as the hook's privacy allows."""
        if self.spec["privacy"] == "content_capture_allowed":
            return subject
        return replace(subject, value=None)


def hook(
    point: Point,
    *,
    rights: tuple[str, ...] | list[str] = (),
    blocking: bool = True,
    failure: Failure = "deny",
    timeout: float = 0.25,
    name: str | None = None,
    phase: Phase = "normal",
    order: int = 100,
    privacy: Privacy = "content_capture_allowed",
    queue: tuple[int, int] = (64, 4),
    overflow: Overflow = "drop_observe_only",
) -> Callable[[Callable[[Subject], Any]], Hook]:
    """Declares a hook, for as many runtimes as are given it: ``Runtime(hooks=[...])``.

    Takes what :meth:`Gateway.hook` takes, and refuses what that refuses.
    """
    execution: dict[str, Any] = {"mode": "blocking"}
    if not blocking:
        execution = {
            "mode": "non_blocking",
            "overflow": overflow,
            "queue": {"capacity": queue[0], "terminal_reserve": queue[1]},
        }

    def declare(body: Callable[[Subject], Any]) -> Hook:
        hook_id = name or bodies.called(body)
        spec = {
            "execution": execution,
            "executor_ref": f"python:{hook_id}",
            "failure": failure,
            "hook_id": hook_id,
            "mutation_rights": {"rights": sorted({"observe", *rights})},
            "ordering": {"order": order, "phase": phase},
            "point": point,
            "policy_ref": {"id": f"hook.{hook_id}", "kind": "host"},
            "privacy": privacy,
            "source": "in_process",
            "timeout": {"timeout_ms": max(0, round(timeout * 1000))},
        }
        _core.Hooks([spec])  # refused here rather than by every runtime
        return Hook(spec, body)

    return declare


class Observer:
    """A hook that nobody waits for: a bounded queue, and a thread that empties it."""

    def __init__(self, hook: Hook) -> None:
        self.hook = hook
        execution = hook.spec["execution"]
        reserve = 0 if hook.spec["point"] in TERMINAL else execution["queue"]["terminal_reserve"]
        self._room = execution["queue"]["capacity"] - reserve
        self._overflow = execution["overflow"]
        self._waiting: deque[Subject] = deque()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._busy = False
        self.dropped = 0
        """How many it did not hear of, because its queue was full."""
        self.failed = 0
        """How often it raised or was late, and with ``fail_hook_invocation`` how often its queue was full."""

    def tell(self, subject: Subject) -> None:
        """Puts a subject into the queue, or does what the overflow policy says."""
        shown = self.hook.shows(subject)
        with self._changed:
            if len(self._waiting) >= self._room:
                return self._overflows(subject)
            # What it does to a value is its own affair.
            self._waiting.append(replace(shown, value=copy.deepcopy(shown.value)))
            if self._thread is None or not self._thread.is_alive():  # a forked child has none
                self._thread = threading.Thread(target=self._serve, name="holdfast-observer", daemon=True)
                self._thread.start()
            self._changed.notify_all()
        return None

    def _overflows(self, subject: Subject) -> None:
        self.dropped += 1
        if self._overflow == "fail_hook_invocation":
            self.failed += 1
            told = "the observer %s failed: its queue is full"
            log.error(told, self.hook.id, extra=subject.about())
        elif self._overflow == "summarize_and_continue" and self.dropped & (self.dropped - 1) == 0:
            told = "the observer %s did not hear of %d"
            log.warning(told, self.hook.id, self.dropped, extra=subject.about())

    def _serve(self) -> None:
        INSIDE.set(True)
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting)
                subject, self._busy = self._waiting.popleft(), True
            try:
                self._hears(subject)
            except BaseException as error:  # whatever it is, the next subject is heard of
                told = "the observer %s failed: %s"
                log.warning(told, self.hook.id, type(error).__name__, extra=subject.about())
                self.failed += 1
            with self._changed:
                self._busy = False
                self._changed.notify_all()

    def _hears(self, subject: Subject) -> None:
        """The body, to its end; an async one on a loop of its own, which cancels it when it is late."""
        if not self.hook.is_async:
            self.hook.body(subject)
            return
        seconds = self.hook.spec["timeout"]["timeout_ms"] / 1000
        asyncio.run(bodies.awaited(lambda: self.hook.body(subject), seconds))

    def drain(self, timeout: float) -> bool:
        """Waits until it has heard of everything; whether it has."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._waiting and not self._busy, timeout)
