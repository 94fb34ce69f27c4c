"""Calls, folded from records as they stream by: when each was opened, sent off and ended, and how.

This is the core's fold of calls (``store.state(run)["calls"]``) with times, and without keeping the whole
run: tests hold the outcomes of both against each other. Only contents that an export looks at are read.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.exports.contents import Look
    from holdfast.store import Record

DONE = frozenset(
    (
        "artifact.created",
        "checkpoint.created",
        "child.spawned",
        "cost.recorded",
        "message.sent",
        "note.logged",
        "state.patched",
        "step.created",
        "timer.fired",
    )
)
"""What does a call by its own frame."""
NOTHING = ("no_effect", "cancelled")
LIMITS = ("concurrency", "wall_ms")
"""What nobody is asked for more of."""
DENYING = ("before_tool_call", "before_approval_request", "after_approval_decision")


@dataclass(slots=True)
class Dispatch:
    """One sending off of a call's effect."""

    n: int
    started_at: int
    ended_at: int | None = None
    elapsed_ms: int | None = None
    """How long the body took, as its worker measured it."""
    status: str = "running"
    """As it was settled, ``in_doubt``, or ``running``."""


@dataclass(slots=True)
class Doubt:
    """That nobody knew whether a dispatch happened, and who ended that."""

    at: int
    cause: str
    error: str | None = None
    message: Any = None
    resolution: str | None = None
    resolved_at: int | None = None
    by: str | None = None
    source: str | None = None


@dataclass(slots=True)
class Verdict:
    """What policy or a hook said about a call."""

    at: int
    by: str
    said: str
    why: str


@dataclass(slots=True)
class Call:
    """One call.

    Attributes:
        outcome: how it ended, in the core's words; ``open``, ``running``, ``in_doubt`` or ``abandoned`` where
            it has not.
        arguments: what was made of them: of those that were sent off, if it was, else as they were given.
        failure: ``error``, ``code`` and ``source``, as hashed; ``message`` is what was made of the content.
    """

    id: str
    kind: str
    name: str
    effect: str
    risk: str
    step: str
    attempt: int
    version: str | None
    opened_at: int
    opened_seq: int
    """0 if it was opened before the fork."""
    ended_at: int | None = None
    outcome: str = "open"
    key: str | None = None
    external_id: str | None = None
    child: str | None = None
    arguments: Any = None
    result: Any = None
    failure: dict[str, Any] | None = None
    message: Any = None
    cost: dict[str, Any] | None = None
    dispatches: list[Dispatch] = field(default_factory=list)
    doubts: list[Doubt] = field(default_factory=list)
    verdicts: list[Verdict] = field(default_factory=list)
    late: str | None = None
    unresolved: bool = False
    """An older dispatch was in doubt when the newest one left."""

    def settle(self, at: int, outcome: str) -> None:
        """It has ended; what was wrong before is over."""
        self.ended_at, self.outcome, self.unresolved = at, outcome, False
        self.failure = self.message = None

    @property
    def ended(self) -> bool:
        """Whether it has an outcome."""
        return self.ended_at is not None


def actor(record: Record) -> str:
    """Who made a record: ``human dana``."""
    return f"{record.by['type']} {record.by['id']}"


class Calls:
    """The calls of a run that are still of interest."""

    def __init__(self, look: Look) -> None:
        self._look = look
        self._calls: dict[str, Call] = {}
        self.inherited: dict[str, Any] = {}
        """The calls that a fork begins with, as the core folded them."""
        self.asks_for_budget = False

    def apply(self, record: Record) -> Call | None:
        """Follows a record; returns the call that it is about."""
        known = record.fields.get("call")
        if known is None:
            return None
        if record.kind == "call.opened":
            self._calls[known] = call = self._opened(record)
            return call
        if known not in self._calls and not self._inherit(known, record):
            return None
        call = self._calls[known]
        follow = FOLLOW.get(record.kind)
        if follow is not None:
            follow(self, call, record)
        elif record.kind in DONE:
            call.settle(record.at, "succeeded")
        if record.kind in NOTED:
            NOTED[record.kind](call, record)
        return call

    def take(self, call: str) -> Call:
        """A call about which nothing more is to come."""
        return self._calls.pop(call)

    def _opened(self, record: Record) -> Call:
        fields, body = record.fields, record.body
        return Call(
            id=fields["call"],
            kind=body["kind"],
            name=body["name"],
            effect=body["effect"],
            risk=body["risk"],
            step=fields["step"],
            attempt=fields.get("attempt", 1),
            version=body.get("version"),
            opened_at=record.at,
            opened_seq=record.seq,
            key=body.get("key"),
            arguments=self._look(record, "arguments"),
        )

    def _inherit(self, known: str, record: Record) -> bool:
        """A call that was opened before the fork; its time there is the fork's."""
        found = self.inherited.get(known)
        if found is None:
            return False
        same = {name: found[name] for name in ("id", "kind", "name", "effect", "risk", "step")}
        attempt, version = record.fields.get("attempt", 1), found.get("version")
        self._calls[known] = Call(**same, attempt=attempt, version=version, opened_at=record.at, opened_seq=0)
        return True

    # What each kind does to the call that it is about.

    def _started(self, call: Call, record: Record) -> None:
        call.unresolved = call.outcome == "in_doubt" or call.unresolved
        call.outcome, call.ended_at, call.late = "running", None, None
        call.key = record.body["key"]
        call.arguments = self._look(record, "arguments")
        call.dispatches.append(Dispatch(record.fields.get("dispatch", 1), record.at))

    def _settled(self, call: Call, record: Record) -> None:
        status = record.body["status"]
        self._dispatched(call, record, status)
        if call.outcome == "running" and call.unresolved and status in NOTHING:
            call.outcome = "in_doubt"  # what a repeat did not do, what it repeats may still have done
            return
        call.external_id = record.body.get("external_id")
        call.result = self._look(record, "result")
        unrecordable = status == "succeeded" and "output_error" in record.body
        call.settle(record.at, "unrecordable" if unrecordable else _outcome(status, call.effect))
        self._failed(call, record, "output_error" if unrecordable else "failure")

    def _dispatched(self, call: Call, record: Record, status: str) -> None:
        if call.dispatches and call.dispatches[-1].ended_at is None:
            dispatch = call.dispatches[-1]
            dispatch.ended_at, dispatch.status = record.at, status
            dispatch.elapsed_ms = record.body.get("elapsed_ms")

    def _failed(self, call: Call, record: Record, place: str) -> None:
        failure = record.body.get(place)
        if failure is None:
            return
        call.failure = {name: failure[name] for name in ("error", "code", "source") if name in failure}
        call.message = self._look(record, f"{place}.message")

    def _doubted(self, call: Call, record: Record) -> None:
        call.outcome = "in_doubt"
        self._dispatched(call, record, "in_doubt")
        self._failed(call, record, "failure")
        error = (record.body.get("failure") or {}).get("error")
        message = self._look(record, "failure.message")
        call.doubts.append(Doubt(record.at, record.body["cause"], error, message))

    def _late(self, call: Call, record: Record) -> None:
        if call.outcome == "in_doubt":
            call.late = record.body["status"]
            call.result = self._look(record, "result")

    def _resolved(self, call: Call, record: Record) -> None:
        resolution = record.body["resolution"]
        for doubt in call.doubts:
            if doubt.resolution is None:
                doubt.resolution, doubt.resolved_at = resolution, record.at
                doubt.by, doubt.source = actor(record), record.body["source"]
        ways = {"happened": "succeeded", "did_not_happen": "no_effect", "compensated": "compensated"}
        outcome = ways.get(resolution, _outcome(call.late or "succeeded", call.effect))
        if resolution != "late" or call.late is None:
            call.result = self._look(record, "result")
        call.settle(record.at, outcome)

    def _spawned(self, call: Call, record: Record) -> None:
        call.child = record.body["child"]
        call.settle(record.at, "succeeded")

    def _ruled(self, call: Call, record: Record) -> None:
        body = record.body
        response = body.get("response") or {}
        applied = body["outcome"] == "applied_journaled_mutation"
        if body["point"] == "after_tool_call":
            if body.get("denies"):
                call.outcome, call.result = "unrecordable", None
                call.failure = {"code": "hook.failed", "error": body["hook"], "source": "hook"}
            elif applied and response.get("type") == "rewrite_tool_result":
                call.result = self._look(record, "response.payload.value")
        elif body["point"] in DENYING and (
            body.get("denies") or (applied and response.get("type") == "deny")
        ):
            call.settle(record.at, "denied_by_rule")

    def _refused(self, call: Call, record: Record) -> None:
        if not self.asks_for_budget or record.body["account"] in LIMITS:
            call.settle(record.at, "denied_by_rule")

    def _policy(self, call: Call, record: Record) -> None:
        if record.body["decision"] == "deny":
            call.settle(record.at, "denied_by_rule")

    def _decided(self, call: Call, record: Record) -> None:
        if record.body["decision"] == "denied" and call.outcome != "abandoned":
            call.settle(record.at, "denied_by_person")

    def _abandoned(self, call: Call, record: Record) -> None:
        call.outcome, call.ended_at = "abandoned", record.at

    def _compensated(self, call: Call, record: Record) -> None:
        call.settle(record.at, "compensated")

    def _conflict(self, call: Call, record: Record) -> None:
        call.settle(record.at, "conflict")


FOLLOW: dict[str, Callable[[Calls, Call, Record], None]] = {
    "approval.decided": Calls._decided,
    "budget.refused": Calls._refused,
    "call.abandoned": Calls._abandoned,
    "call.served": Calls._settled,
    "child.spawned": Calls._spawned,
    "effect.compensated": Calls._compensated,
    "effect.doubted": Calls._doubted,
    "effect.late": Calls._late,
    "effect.resolved": Calls._resolved,
    "effect.settled": Calls._settled,
    "effect.started": Calls._started,
    "hook.ruled": Calls._ruled,
    "policy.decided": Calls._policy,
    "state.conflict": Calls._conflict,
}


def _outcome(status: str, effect: str) -> str:
    if status == "failed":
        return "write_failed" if effect in ("write", "internal") else "read_failed"
    return "read_failed" if status == "timed_out" else status


def _reasons(body: dict[str, Any]) -> str:
    return ", ".join(reason["code"] for reason in [*body["errors"], *body["reasons"]])


def _note_policy(call: Call, record: Record) -> None:
    body = record.body
    call.verdicts.append(Verdict(record.at, "policy", body["decision"], _reasons(body)))


def _note_hook(call: Call, record: Record) -> None:
    body = record.body
    said = (body.get("response") or {}).get("type") or body["outcome"]
    call.verdicts.append(
        Verdict(record.at, f"hook {body['hook']}", said, body.get("reason") or body["point"])
    )


def _note_budget(call: Call, record: Record) -> None:
    body = record.body
    why = f"{body['account']}: {body['asked']} asked, {body['used']} of {body['limit']} used"
    call.verdicts.append(Verdict(record.at, "budget", "refused", why))


def _note_cost(call: Call, record: Record) -> None:
    call.cost = record.body


NOTED: dict[str, Callable[[Call, Record], None]] = {
    "budget.refused": _note_budget,
    "cost.recorded": _note_cost,
    "hook.ruled": _note_hook,
    "policy.decided": _note_policy,
}
