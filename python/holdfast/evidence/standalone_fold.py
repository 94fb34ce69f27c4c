"""What follows from the records of a run, as the verifier in a bundle folds them: the statuses of the run, of
its steps, calls and approvals, and that each record could come where it stands. Standard library only; see
``__main__.py`` beside it.

It knows less than Holdfast does: keys, budgets, children and capabilities are not judged, nor is
which of its calls a step that is tried again may make again. So what it calls illegal is illegal, and not the
other way round.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

Json = dict[str, Any]
VERSION = 1
KNOWN = {
    "run": "created forked resumed retried paused unpaused cancel_requested finished",
    "step": "created claimed retry_scheduled waiting woken completed failed cancelled",
    "lease": "expired released",
    "state": "patched conflict",
    "call": "opened cancelled abandoned served",
    "effect": "started settled doubted late resolved compensated",
    "replay": "diverged decided",
    "package": "decided",
    "hook": "ruled applied",
    "policy": "decided activated",
    "approval": "requested dispatched voted decided edited timed_out superseded cancelled",
    "grant": "created spent revoked",
    "budget": "reserved settled refused escrowed raised returned",
    "sandbox": "started finished",
    "capability": "granted attenuated transferred revoked",
    "envelope": "received",
    "message": "sent received",
    "child": "spawned ended",
    "signal": "received",
    "timer": "set fired",
    "session": "created",
    "store": "created restored",
    "seal": "signed",
    "name": "taken released",
    "cost": "recorded",
    "artifact": "created",
    "checkpoint": "created",
    "content": "erased",
    "refusal": "noted",
    "note": "logged",
}
"""The kinds of records of this version, by their first word."""
KINDS = frozenset(f"{first}.{rest}" for first, words in KNOWN.items() for rest in words.split())
ENDED = ("completed", "failed", "cancelled")
RUN: dict[str, tuple[str, ...]] = {
    "run.paused": ("open",),
    "run.unpaused": ("paused",),
    "run.cancel_requested": ("open", "paused"),
    "run.finished": ("open", "paused"),
    "run.retried": ("failed",),
}
"""Where a run has to stand for a record about it."""
STEP = {
    "step.claimed": (("pending", "retry_scheduled"), "running"),
    "lease.expired": (("running",), "pending"),
    "lease.released": (("running",), "pending"),
    "step.retry_scheduled": (("running",), "retry_scheduled"),
    "step.waiting": (("running", "pending", "retry_scheduled"), "waiting"),
    "step.woken": (("waiting",), "pending"),
    "step.completed": (("running",), "completed"),
    "step.failed": (("running", "pending"), "failed"),
    "step.cancelled": (("pending", "running", "waiting", "retry_scheduled"), "cancelled"),
}
"""Where a step has to stand for a record about it, and where it leads."""
APPROVAL = {
    "approval.voted": "pending",
    "approval.edited": "pending",
    "approval.timed_out": "timed_out",
    "approval.superseded": "superseded",
    "approval.cancelled": "cancelled",
}
"""What comes of a request that is pending."""
DOES = frozenset(
    (
        *("note.logged", "cost.recorded", "artifact.created", "checkpoint.created", "message.sent"),
        *("state.patched", "state.conflict", "step.created", "child.spawned"),
    )
)
"""Where it belongs to a call, that is all the call does."""
FENCED = frozenset(
    (
        *("step.claimed", "step.retry_scheduled", "step.completed", "lease.released", "state.patched"),
        *("state.conflict", "call.opened", "call.cancelled", "effect.started", "effect.settled"),
        "call.served",
        *("child.spawned", "message.sent"),
    )
)
"""What only a worker writes."""
SETTLED: Json = {"again": False, "doubt": False, "late": False, "phase": "settled", "unresolved": False}
"""A call that has ended."""
HOOKS = ("before_tool_call", "before_approval_request", "after_approval_decision")
"""Where a hook can say no to a call."""


class Illegal(Exception):  # noqa: N818 (it is what is said of a record)
    """A record that cannot come where it stands."""


def need(fine: bool, why: str) -> None:
    """What must be so."""
    if not fine:
        raise Illegal(why)


class Run:
    """A run, its steps, calls and approvals."""

    def __init__(self, created: Json) -> None:
        self.phase = "open"
        self.newer = False
        self.forked = False
        self.fence: list[int] | None = None
        self.asks = (created.get("budget") or {}).get("on_exceeded") == "ask"
        self.steps: dict[str, Json] = {}
        self.calls: dict[str, Json] = {}
        self.approvals: dict[str, Json] = {}

    def fork(self) -> Run:
        """What a fork begins with: the requests stay behind, and what is not done is to be done."""
        found = copy.deepcopy(self)
        found.phase, found.approvals, found.forked = "open", {}, True
        for step in found.steps.values():
            step["status"] = step["status"] if step["status"] == "completed" else "pending"
        return found

    def apply(self, kind: str, record: Json, body: Json) -> bool:
        """One more record; whether it was judged. After one of a newer version none is."""
        extension = kind.startswith("x.") and kind.count(".") >= 2
        if kind not in KINDS and not extension:
            self.newer |= record["v"] > VERSION or not kind.startswith("note.")
        if self.newer:
            return False
        if self.phase in ENDED and kind != "run.retried":
            if kind in ("effect.late", "effect.resolved"):
                self.effect(kind, record, body)
            return True
        self.fenced(kind, record)
        if kind in RUN:
            self.about_run(kind, body)
        elif kind in STEP or kind == "step.created":
            self.about_step(kind, record, body)
        elif kind.startswith(("call.", "effect.", "timer.")):
            self.effect(kind, record, body)
        elif kind.startswith("approval."):
            self.about_approval(kind, record, body)
        elif self.denies(kind, body):
            self.settle(record)
        elif kind == "hook.ruled" and (body.get("response") or {}).get("type") == "request_retry":
            self.again(lambda call: call is self.calls.get(record.get("call", "")))
        if kind in DOES:
            self.settle(record)
        return True

    def fenced(self, kind: str, record: Json) -> None:
        """What carries a fence carries the live one; a claim carries one that was never given out."""
        fence = record.get("fence")
        if fence is None:
            return need(kind not in FENCED, "a worker's record has a fence")
        need(record.get("step") is not None, "it belongs to no step")
        if kind == "step.claimed":
            return need(self.fence is None or fence > self.fence, "its fence does not hold")
        step = self.steps.get(record["step"], {"status": None})
        live = step["status"] == "running" and step["fence"] == fence
        return need(live or kind in ("effect.late", "refusal.noted"), "its fence does not hold")

    def again(self, which: Callable[[Json], bool]) -> None:
        """Calls that replay may make once more."""
        for call in self.calls.values():
            call["again"] |= which(call)

    def status(self) -> str:
        """The status that people see."""
        if self.phase != "open":
            return self.phase
        waits = any(step["status"] == "waiting" for step in self.steps.values())
        if self.fence is None and not waits:
            return "pending"
        return "waiting" if waits and not any(map(self.can_go_on, self.steps.values())) else "running"

    def can_go_on(self, step: Json) -> bool:
        """Whether a step runs, or could be claimed without anybody's help."""
        if step["status"] != "pending":
            return step["status"] in ("running", "retry_scheduled")
        return all(self.steps[one]["status"] == "completed" for one in step["after"] if one in self.steps)

    def about_run(self, kind: str, body: Json) -> None:
        """The run as a whole."""
        need(self.phase in RUN[kind], "the run's status does not allow it")
        if kind == "run.finished":
            self.phase = body["status"]
        elif kind != "run.cancel_requested":
            self.phase = "paused" if kind == "run.paused" else "open"
        for name in body["steps"] if kind == "run.retried" else ():
            need(name in self.steps, "no such step")
            need(self.steps[name]["status"] in ("failed", "cancelled"), "the step's status does not allow it")
            self.steps[name]["status"] = "pending"
        if kind == "run.retried":
            self.again(lambda call: call["step"] in body["steps"])

    def about_step(self, kind: str, record: Json, body: Json) -> None:
        """A step."""
        name = record.get("step")
        need(name is not None, "it belongs to no step")
        if kind == "step.created":
            known = all(one in self.steps for one in body["after"])
            need(known and name not in self.steps, "the step exists, or comes after one that does not")
            self.steps[str(name)] = {"after": body["after"], "status": "pending"}
            return
        need(name in self.steps, "no such step")
        step, (before, after) = self.steps[str(name)], STEP[kind]
        need(step["status"] in before, "the step's status does not allow it")
        step["status"] = after
        if kind == "step.claimed":
            self.fence = step["fence"] = record["fence"]
        elif kind == "step.retry_scheduled":
            self.again(lambda call: call["step"] == name)

    def about_approval(self, kind: str, record: Json, body: Json) -> None:
        """A request for approval."""
        name = body["approval"]
        if kind == "approval.dispatched":
            return
        if kind == "approval.requested":
            need(name not in self.approvals, "the request exists")
            self.approvals[name] = {"call": record.get("call"), "state": "pending"}
            return
        pending = name in self.approvals and self.approvals[name]["state"] == "pending"
        need(pending, "no such pending request")
        asked = self.approvals[name]
        asked["state"] = body["decision"] if kind == "approval.decided" else APPROVAL[kind]
        if kind == "approval.timed_out":
            self.settle(record)
        call = self.calls.get(asked["call"]) if asked["state"] == "denied" else None
        if call is not None and call["phase"] != "abandoned":
            self.settle({"call": asked["call"]})

    def denies(self, kind: str, body: Json) -> bool:
        """Whether a record says no to its call."""
        if kind == "policy.decided":
            return bool(body["decision"] == "deny")
        if kind == "budget.refused":
            return not self.asks
        if kind != "hook.ruled" or body["point"] not in HOOKS:
            return False
        said = (body.get("response") or {}).get("type") == "deny"
        return body.get("denies") is True or (said and body["outcome"] == "applied_journaled_mutation")

    def settle(self, record: Json) -> None:
        """The call of a record has ended by it, if it has one: it was not sent off, or is no write."""
        if record.get("call") is None:
            return
        call = self.call(record)
        legal = {"open": True, "settled": call["again"], "started": not call["write"]}
        need(legal.get(call["phase"], False), "the call was sent off already")
        call.update(SETTLED)

    def call(self, record: Json) -> Json:
        """The call that a record belongs to."""
        need(record.get("call") in self.calls, "no such call")
        return self.calls[record["call"]]

    def effect(self, kind: str, record: Json, body: Json) -> None:
        """What becomes of a call."""
        if kind == "call.opened":
            need(record.get("call") not in self.calls, "the call exists")
            made: Json = {**SETTLED, "dispatch": 0, "keyed": False, "phase": "open", "step": record["step"]}
            self.calls[record["call"]] = {
                **made,
                "shared": "key" in body and body.get("key_scope") == "store",
                "write": body["effect"] == "write",
            }
            return
        call = self.call(record)
        if kind in ("effect.settled", "effect.doubted", "effect.late", "effect.resolved"):
            need(record.get("dispatch", 0) == call["dispatch"], "it is about another dispatch")
        if kind == "call.abandoned":
            call["phase"] = "abandoned"
        elif kind == "effect.started":
            self.started(call, record, body)
        elif kind == "effect.settled":
            self.settled(call, body["status"])
        elif kind in ("timer.fired", "call.served"):
            need(kind == "timer.fired" or call["shared"] or self.forked, "its key is no other run's")
            legal = call["phase"] == "open" or (call["phase"] == "settled" and call["again"])
            need(legal, "the call's phase does not allow it")
            call.update(SETTLED)
        elif kind.startswith("effect."):
            self.doubted(call, kind)
            call["again"] |= body.get("resolution") == "did_not_happen"

    @staticmethod
    def started(call: Json, record: Json, body: Json) -> None:
        """A call is sent off."""
        legal = {
            "open": True,
            "settled": call["again"],
            "started": not call["write"],
            "doubted": call["write"] and call["keyed"],
        }
        need(legal.get(call["phase"], False), "the call may not be dispatched")
        need(record.get("dispatch") == call["dispatch"] + 1, "a call was sent off out of turn")
        call["keyed"] |= body.get("key_ttl_ms") is not None
        call["unresolved"] |= call["doubt"]
        call.update(dispatch=call["dispatch"] + 1, phase="started", doubt=False, again=False)

    @staticmethod
    def settled(call: Json, status: str) -> None:
        """The outcome of the newest dispatch is known; that it did nothing says nothing of an older one."""
        nothing = status in ("no_effect", "cancelled")
        sent = call["phase"] == "started"
        fine = sent or (call["phase"] == "open" and (nothing or not call["write"]))
        need(fine and not (status == "timed_out" and call["write"]), "the call's phase does not allow it")
        if sent and nothing and call["unresolved"]:
            call.update(phase="doubted", doubt=True)
        else:
            call.update({**SETTLED, "again": nothing})

    @staticmethod
    def doubted(call: Json, kind: str) -> None:
        """A doubt comes, or goes."""
        before = {
            "effect.doubted": ("started",),
            "effect.late": ("doubted", "settled", "abandoned"),
            "effect.resolved": ("doubted",),
            "effect.compensated": ("settled",),
        }[kind]
        late = kind == "effect.late" and call["phase"] != "doubted"
        need(call["phase"] in before and (call["write"] or late), "the call's phase does not allow it")
        if kind == "effect.doubted":
            call.update(phase="doubted", doubt=True)
        elif kind != "effect.late":
            call.update({**SETTLED, "again": kind == "effect.resolved" and call["late"]})
        else:
            call["late"] = True
