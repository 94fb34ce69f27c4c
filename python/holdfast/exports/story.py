"""A run as its records tell it: who, when, what it came to; its steps, its calls, its approvals, its costs.

:func:`walk` streams the records once more after a first look at where each call is last heard of, so that a
call is handed on as soon as it is complete and no longer kept: memory grows with the calls that are open at
once (and by a number for each call), not with the length of the run.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from holdfast.exports.calls import Calls, actor
from holdfast.exports.contents import nothing

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.exports.calls import Call
    from holdfast.exports.contents import Look
    from holdfast.exports.cut import Cut
    from holdfast.store import Record

ENDS = {"step.completed": "completed", "step.failed": "failed", "step.cancelled": "cancelled"}


@dataclass(slots=True)
class Attempt:
    """One try of a step."""

    step: str
    name: str
    n: int
    started_at: int
    seen_at: int
    """When it was last heard of: its end, if it has ended."""
    outcome: str = "running"
    workers: list[str] = field(default_factory=list)
    failure: dict[str, Any] | None = None


@dataclass(slots=True)
class Approval:
    """A request for approval."""

    id: str
    call: str | None
    tool: str
    requested_at: int
    digest: str
    status: str = "pending"
    decided_at: int | None = None
    by: list[str] = field(default_factory=list)
    """Who decided: ``human dana``."""
    reason_code: str | None = None
    reason: Any = None
    edited_by: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Cost:
    """What was spent on a model, or on something without one."""

    usd_micros: int = 0
    tokens: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    entries: int = 0

    def add(self, body: dict[str, Any]) -> None:
        """Adds what a record says."""
        self.usd_micros += body["amounts"].get("usd_micros", 0)
        self.tokens += body["amounts"].get("tokens", 0)
        self.input_tokens += body.get("input_tokens", 0)
        self.output_tokens += body.get("output_tokens", 0)
        self.entries += 1


class Story:
    """What the records of a run told so far."""

    def __init__(self, cut: Cut, look: Look = nothing) -> None:
        self._cut, self._look = cut, look
        self.calls = Calls(look)
        self.agent, self.role, self.mode = "", "", "live"
        self.session: str | None = None
        self.parent: str | None = None
        self.fork: dict[str, Any] | None = None
        """Of which run, and at which record."""
        self.by = ""
        self.labels: dict[str, str] = {}
        self.package: dict[str, Any] = {}
        self.packages = 1
        """How many packages it ran under, one after the other."""
        self.policies: set[str] = set()
        self.created_at = self.seen_at = 0
        self.end: Record | None = None
        self.failure: dict[str, Any] | None = None
        self.steps: dict[str, str] = {}
        self.attempts: dict[tuple[str, int], Attempt] = {}
        self.approvals: dict[str, Approval] = {}
        self.costs: dict[str, Cost] = {}
        self.erased = 0

    @property
    def status(self) -> str:
        """``open`` unless it has ended."""
        return "open" if self.end is None else str(self.end.body["status"])

    @property
    def cost(self) -> Cost:
        """Of everything."""
        names = ("usd_micros", "tokens", "input_tokens", "output_tokens", "entries")
        return Cost(*(sum(getattr(cost, name) for cost in self.costs.values()) for name in names))

    def apply(self, record: Record) -> Call | None:
        """Follows a record; returns the call that it is about."""
        self.seen_at = record.at
        family = record.kind.partition(".")[0]
        if family == "run":
            self._run(record)
        elif family in ("step", "lease"):
            self._step(record)
        elif family == "approval":
            self._approval(record)
        elif record.kind == "policy.decided":
            self.policies.add(record.body["policy"])
        elif record.kind == "cost.recorded":
            self.costs.setdefault(record.body.get("model") or "", Cost()).add(record.body)
        elif record.kind == "content.erased":
            self.erased += len(record.body["commits"])
        if "package" in record.body and record.body["package"] != self.package:
            self.packages += bool(self.package)
            self.package = record.body["package"]
        return self.calls.apply(record)

    def _run(self, record: Record) -> None:
        body = record.body
        if record.kind in ("run.created", "run.forked"):
            self.created_at, self.by, self.labels = record.at, actor(record), body["labels"]
        if record.kind == "run.created":
            self.agent, self.role, self.mode = body["agent"], body["role"], body["mode"]
            self.session, self.parent = body.get("session"), body.get("parent")
            self.calls.asks_for_budget = (body.get("budget") or {}).get("on_exceeded") == "ask"
        elif record.kind == "run.forked":
            self._inherit(body)
        elif record.kind == "run.finished":
            self.end, self.failure = record, body.get("failure")
        elif record.kind == "run.retried":
            self.end = self.failure = None

    def _inherit(self, body: dict[str, Any]) -> None:
        """What a fork begins with is in its ancestors' journals: the core folds them."""
        fold = self._cut.store.state(self._cut.stream, at=1)
        self.fork = {"parent": body["parent"], "at": body["at"]}
        self.agent, self.role, self.mode = fold["agent"], fold["role"], fold["mode"]
        self.session = fold.get("session")
        self.calls.inherited = fold["calls"]
        self.calls.asks_for_budget = (fold.get("budget") or {}).get("on_exceeded") == "ask"
        self.steps = {step["id"]: step["name"] for step in fold["steps"].values()}

    def _step(self, record: Record) -> None:
        step, n = record.fields.get("step"), record.fields.get("attempt")
        if record.kind == "step.created":
            self.steps[str(step)] = record.body["name"]
            return
        if step is None or n is None:
            return
        attempt = self.attempts.get((step, n))
        if attempt is None:
            name = self.steps.get(step, step)
            attempt = self.attempts[step, n] = Attempt(step, name, n, record.at, record.at)
        attempt.seen_at = record.at
        if record.kind == "step.claimed":
            attempt.outcome = "running"
            attempt.workers.append(record.body["worker"])
        elif record.kind == "step.waiting":
            attempt.outcome = "waiting"
        elif record.kind == "step.retry_scheduled":
            attempt.outcome, attempt.failure = "failed", record.body["failure"]
        elif record.kind in ENDS:
            attempt.outcome, attempt.failure = ENDS[record.kind], record.body.get("failure")

    def _approval(self, record: Record) -> None:
        body = record.body
        if record.kind == "approval.requested":
            asked = Approval(
                body["approval"], record.fields.get("call"), body["tool"], record.at, body["digest"]
            )
            self.approvals[asked.id] = asked
            return
        asked_for = self.approvals.get(body["approval"])
        if asked_for is None:
            return
        if record.kind == "approval.decided":
            asked_for.status, asked_for.decided_at = body["decision"], record.at
            asked_for.by = [f"{voter['type']} {voter['id']}" for voter in body["voters"]]
            asked_for.reason_code, asked_for.digest = body["reason_code"], body["digest"]
            asked_for.reason = self._look(record, "reason")
        elif record.kind == "approval.edited":
            asked_for.edited_by.append(actor(record))
            asked_for.digest = body["digest"]
        elif record.kind in ("approval.timed_out", "approval.superseded", "approval.cancelled"):
            asked_for.status, asked_for.decided_at = record.kind.partition(".")[2], record.at


def walk(cut: Cut, story: Story) -> Iterator[tuple[Record, Call | None]]:
    """The records, each with the call that it completes, if it does."""
    last: dict[str, int] = {}
    for record in cut.records():
        call = record.fields.get("call")
        if call is not None:
            last[call] = record.seq
    for record in cut.records():
        about = story.apply(record)
        complete = about is not None and last[about.id] == record.seq
        yield record, story.calls.take(about.id) if about is not None and complete else None
