"""The fold of a run in plain Python: state, ledger, approvals, waits and spending after each of its facts.

The core folds too, and refuses what is illegal. This one reads journals that are not in a store, forged ones
among them, so it takes what comes and leaves judgement to review. tests/test_evidence_travel.py holds the two
against each other after every record of every journal.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from holdfast import _core

if TYPE_CHECKING:
    from holdfast.evidence.journal import Fact

Json = dict[str, Any]
ENDED = frozenset(("completed", "failed", "cancelled"))
LIMITS = ("concurrency", "wall_ms")
"""What nobody is asked for more of."""
STEP_AFTER = {
    "step.claimed": "running",
    "step.retry_scheduled": "retry_scheduled",
    "step.waiting": "waiting",
    "step.woken": "pending",
    "step.completed": "completed",
    "step.failed": "failed",
    "step.cancelled": "cancelled",
    "lease.expired": "pending",
    "lease.released": "pending",
}
APPROVAL_AFTER = {
    "approval.timed_out": "timed_out",
    "approval.superseded": "superseded",
    "approval.cancelled": "cancelled",
}
NOTED = frozenset(("note.logged", "cost.recorded", "artifact.created", "checkpoint.created"))
OWN = NOTED | {"step.created", "child.spawned", "message.sent"}
"""Facts that end the call that they belong to, if they belong to one."""
AFTER_END = frozenset(("effect.late", "effect.resolved"))
KNOWN = {token: kind_class for token, _, kind_class, _, _ in _core.record_kinds()}


@dataclass
class Entry:
    """A line of the ledger: one call, and where it stands."""

    id: str
    step: str
    lane: str
    kind: str
    name: str
    effect: str
    risk: str
    opened: int
    """The position of the record that opened it."""
    arguments: Any
    """As agent code gave them."""
    key: str | None = None
    """The caller's own, if it gave one."""
    phase: str = "open"
    """``open``, ``started``, ``doubted``, ``settled`` or ``abandoned``."""
    outcome: str | None = None
    settled: int | None = None
    """The position of the record that says how it ended."""
    dispatch: int = 0
    """How often it was sent off."""
    permit_key: str | None = None
    """The idempotency key of its permits."""
    doubt: str | None = None
    unresolved: str | None = None
    decided: str | None = None
    """What policy said last."""
    grant: str | None = None
    """The grant that its newest permit names."""
    result: Any = None
    failure: Json | None = None
    external_id: str | None = None
    reasons: list[Json] = field(default_factory=list)
    """Why it was denied."""
    late: Json | None = None

    @property
    def acts(self) -> bool:
        """Whether it changes something: a write, a commit, a child, a message, a step."""
        return self.effect == "write" or self.kind in ("commit", "child", "message", "step")

    @property
    def in_doubt(self) -> bool:
        """Whether it may or may not have happened."""
        return self.phase == "doubted" or (self.phase == "started" and self.effect == "write")

    def settle(self, position: int, outcome: str, result: object = None) -> None:
        """It has ended."""
        self.phase, self.outcome, self.settled = "settled", outcome, position
        self.doubt = self.unresolved = self.failure = None
        self.result, self.reasons = result, []


class Fold:
    """Where a run stands after the facts that were applied."""

    def __init__(self) -> None:
        self.run = self.agent = ""
        self.base = self.seq = self.state_version = self.evidence = 0
        self.phase = "open"
        self.newer = self.cancel_requested = self.claimed = False
        self.state: Json | None = None
        self.budget: Json = {}
        self.package: Json = {}
        self.steps: dict[str, Json] = {}
        self.calls: dict[str, Entry] = {}
        self.approvals: dict[str, Json] = {}
        self.children: dict[str, str | None] = {}
        self.costs: dict[str, int] = {}
        """What was recorded as spent: money, tokens, dispatches. Also where there is no budget."""
        self.used: dict[str, int] = {}
        """What was taken from the budget, by account."""
        self.reserved: dict[str, Json] = {}
        self.escrowed: dict[str, Json] = {}
        self.end: Json | None = None

    def copy(self) -> Fold:
        """As it is now."""
        return deepcopy(self)

    # What it says.

    @property
    def status(self) -> str:
        """The status that people see."""
        if self.phase != "open":
            return self.phase
        waiting = any(step["status"] == "waiting" for step in self.steps.values())
        if not self.claimed and not waiting:
            return "pending"
        return "waiting" if waiting and not self._can_go_on() else "running"

    def _can_go_on(self) -> bool:
        def ready(step: Json) -> bool:
            return all(self.steps[after]["status"] == "completed" for after in step["after"])

        moving = ("running", "retry_scheduled")
        return any(
            step["status"] in moving or (step["status"] == "pending" and ready(step))
            for step in self.steps.values()
        )

    @property
    def ledger(self) -> list[Entry]:
        """The calls, in the order in which they were opened."""
        return sorted(self.calls.values(), key=lambda entry: entry.opened)

    @property
    def waits(self) -> list[Json]:
        """What steps wait for."""
        return [wait for step in self.steps.values() if step["status"] == "waiting" for wait in step["waits"]]

    @property
    def open_approvals(self) -> list[Json]:
        """Requests that nobody has decided."""
        return [request for request in self.approvals.values() if request["state"] == "pending"]

    # How facts change it.

    def apply(self, fact: Fact) -> None:
        """One more fact."""
        known = fact.kind in KNOWN or fact.kind.startswith(("note.", "x."))
        self.newer |= int(fact.fields["v"]) > 1 or not known
        if fact.kind == "run.forked":
            self._forked(fact)
        self.run, self.seq = str(fact.fields["stream"]), fact.seq
        if self.newer:
            return  # what follows something unknown cannot be told
        if self.phase in ENDED and fact.kind != "run.retried":
            self.evidence += 1
            if fact.kind in AFTER_END:
                self._call(fact)
            return
        for account, amount in spent(fact, self._entry(fact)).items():
            self.costs[account] = self.costs.get(account, 0) + amount
        family = fact.kind.partition(".")[0]
        change = getattr(self, f"_{family}", None)
        if change is not None:
            change(fact)
        if fact.kind in OWN:
            self._own(fact, "succeeded")

    def _position(self, fact: Fact) -> int:
        return self.base + fact.seq

    def _entry(self, fact: Fact) -> Entry | None:
        return self.calls.get(fact.call or "")

    def _own(self, fact: Fact, outcome: str) -> None:
        """Ends the call that a fact belongs to."""
        entry = self._entry(fact)
        if entry is not None:
            entry.settle(self._position(fact), outcome)

    def _run(self, fact: Fact) -> None:
        body = fact.body
        match fact.kind:
            case "run.created":
                self.agent, self.package = body["agent"], body["package"]
                self.budget = body.get("budget") or {}
                state = fact.value["state"]
                self.state = state if isinstance(state, dict) else None
            case "run.resumed":
                self.package = body["package"]
            case "run.paused":
                self.phase = "paused"
            case "run.unpaused":
                self.phase = "open"
            case "run.cancel_requested":
                self.cancel_requested = True
            case "run.finished":
                self.phase, self.end = body["status"], {**fact.value, "seq": fact.seq}
            case "run.retried":
                self.phase, self.end, self.evidence, self.cancel_requested = "open", None, 0, False
                for step in body["steps"]:
                    self.steps[step] |= {"attempt": self.steps[step]["attempt"] + 1, "status": "pending"}

    def _forked(self, fact: Fact) -> None:
        """Approvals, leases, timers, children and the account stay with the parent."""
        self.base += fact.body["at"]
        self.package, self.phase, self.end = fact.body["package"], "open", None
        self.cancel_requested = False
        for kept in (self.approvals, self.children, self.costs, self.used, self.reserved, self.escrowed):
            kept.clear()
        for step in self.steps.values():
            if step["status"] != "completed":
                step |= {"status": "pending", "waits": []}

    def _package(self, fact: Fact) -> None:
        self.package = fact.body["package"]

    def _step(self, fact: Fact) -> None:
        body = fact.body
        if fact.kind == "step.created":
            made = {"after": body["after"], "attempt": 1, "kind": body["kind"], "name": body["name"]}
            self.steps[str(fact.step)] = made | {"status": "pending", "waits": []}
            return
        step = self.steps.get(str(fact.step))
        if step is None:
            return  # a forged journal: review says so
        step["status"] = STEP_AFTER[fact.kind]
        step["waits"] = body["waits"] if fact.kind == "step.waiting" else []
        self.claimed |= fact.kind == "step.claimed"
        if fact.kind == "step.retry_scheduled" or (fact.kind == "lease.expired" and not body["progressed"]):
            step["attempt"] += 1

    _lease = _step

    def _state(self, fact: Fact) -> None:
        if fact.kind == "state.conflict":
            return self._own(fact, "conflict")
        patch = fact.value["patch"]
        if not isinstance(patch, dict):
            self.state = None  # erased: what it was is not known from here on
        elif self.state is not None:
            merged = _core.merge_patch(self.state, patch)
            assert isinstance(merged, dict)
            self.state = merged
        self.state_version = fact.body["next"]
        return self._own(fact, "succeeded")

    def _call(self, fact: Fact) -> None:
        if fact.kind == "call.opened":
            body = fact.value
            self.calls[str(fact.call)] = Entry(
                str(fact.call),
                str(fact.step),
                fact.fields.get("lane", "0"),
                body["kind"],
                body["name"],
                body["effect"],
                body["risk"],
                self._position(fact),
                body["arguments"],
                body.get("key"),
            )
            return
        entry = self._entry(fact)
        if entry is None:
            return
        match fact.kind:
            case "call.abandoned":
                entry.phase = "abandoned"
            case "effect.started":
                entry.phase, entry.outcome = "started", None
                entry.unresolved, entry.doubt = entry.doubt or entry.unresolved, None
                entry.dispatch, entry.permit_key = entry.dispatch + 1, fact.body["key"]
                entry.grant, entry.late = fact.body.get("grant"), None
            case "effect.doubted":
                entry.phase, entry.doubt = "doubted", fact.body["cause"]
            case "effect.settled" | "call.served":
                self._settled(entry, fact)
            case "effect.late":
                entry.late = {**fact.value, "position": self._position(fact)}
            case "effect.resolved":
                self._resolved(entry, fact)
            case "effect.compensated":
                entry.settle(self._position(fact), "compensated")
            case "timer.fired":
                entry.settle(self._position(fact), "succeeded")

    _effect = _timer = _call

    def _settled(self, entry: Entry, fact: Fact) -> None:
        body = fact.value
        if body["status"] in ("no_effect", "cancelled") and entry.unresolved is not None:
            entry.phase, entry.doubt = "doubted", entry.unresolved
            return
        outcome = _outcome(entry.effect, body["status"], "output_error" in body)
        entry.settle(self._position(fact), outcome, body.get("result"))
        entry.failure = body.get("failure") or body.get("output_error")
        entry.external_id = body.get("external_id")

    def _resolved(self, entry: Entry, fact: Fact) -> None:
        body, late, entry.late = fact.value, entry.late, None
        position = self._position(fact)
        match body["resolution"]:
            case "late" if late is not None:
                entry.settle(position, _outcome(entry.effect, late["status"], False), late.get("result"))
                entry.settled = late["position"]
            case "happened" | "late":
                entry.settle(position, "succeeded", body.get("result"))
            case "did_not_happen":
                entry.settle(position, "no_effect")
            case _:
                entry.settle(position, "compensated")

    def _deny(self, fact: Fact, reasons: list[Json]) -> None:
        self._own(fact, "denied_by_rule")
        entry = self._entry(fact)
        if entry is not None:
            entry.reasons = reasons

    def _policy(self, fact: Fact) -> None:
        entry, body = self._entry(fact), fact.body
        if entry is not None:
            entry.decided = body["decision"]
        if body["decision"] == "deny":
            self._deny(fact, [*body["errors"], *body["reasons"]])

    def _hook(self, fact: Fact) -> None:
        if fact.kind != "hook.ruled":
            return
        body, entry = fact.value, self._entry(fact)
        response = body.get("response") or {}
        applied = body["outcome"] == "applied_journaled_mutation"
        if body["point"] == "after_tool_call":
            if entry is not None and body.get("denies"):
                entry.outcome, entry.result = "unrecordable", None
                entry.failure = {"code": "hook.failed", "error": body["hook"], "source": "hook"}
            if entry is not None and applied and response.get("type") == "rewrite_tool_result":
                entry.result, entry.settled = response["payload"]["value"], self._position(fact)
        elif body["point"] in ("before_tool_call", "before_approval_request", "after_approval_decision"):
            if applied and response.get("type") == "deny":
                self._deny(fact, [{"code": response["payload"]["code"], "rule": body["hook"]}])
            elif body.get("denies"):
                self._deny(fact, [{"code": "hook.failed", "rule": body["hook"]}])

    def _approval(self, fact: Fact) -> None:
        body = fact.value
        request = self.approvals.get(body["approval"])
        match fact.kind:
            case "approval.requested":
                shown = ("approval", "arguments", "effect", "expires_at", "quorum", "risk", "roles", "tool")
                made = {name: body[name] for name in shown}
                self.approvals[body["approval"]] = made | {
                    "call": fact.call,
                    "state": "pending",
                    "seq": fact.seq,
                }
            case "approval.edited" if request is not None:
                request["arguments"] = body["arguments"]
            case "approval.decided" if request is not None:
                request |= {"state": body["decision"], "by": [voter["id"] for voter in body["voters"]]}
                entry = self.calls.get(request["call"] or "")
                if body["decision"] == "denied" and entry is not None and entry.phase != "abandoned":
                    entry.settle(self._position(fact), "denied_by_person")
                    entry.reasons = [{"code": body["reason_code"]}]
            case "approval.timed_out" | "approval.superseded" | "approval.cancelled" if request is not None:
                request["state"] = APPROVAL_AFTER[fact.kind]
                if fact.kind == "approval.timed_out":
                    self._deny(fact, [{"code": "approval.timeout"}])

    def _budget(self, fact: Fact) -> None:
        body, call = fact.body, str(fact.call)
        match fact.kind:
            case "budget.reserved":
                self.reserved[call] = body["amounts"]
            case "budget.settled":
                self.reserved.pop(call, None)
                self._use(body["amounts"])
            case "budget.refused" if self.budget.get("on_exceeded") != "ask" or body["account"] in LIMITS:
                self._deny(fact, [{"code": "budget.exceeded"}])
            case "budget.escrowed":
                self.escrowed[body["child"]] = body["amounts"]
            case "budget.raised":
                more = body["amounts"].items()
                self.budget = self.budget | {name: self.budget.get(name, 0) + by for name, by in more}
            case "budget.returned":
                held, back = self.escrowed.pop(body["child"], {}), body["amounts"]
                self._use({name: max(0, most - back.get(name, 0)) for name, most in held.items()})

    def _use(self, amounts: dict[str, int]) -> None:
        for account, amount in amounts.items():
            self.used[account] = self.used.get(account, 0) + amount

    def _child(self, fact: Fact) -> None:
        self.children[fact.body["child"]] = fact.body.get("status") if fact.kind == "child.ended" else None


def spent(fact: Fact, entry: Entry | None) -> dict[str, int]:
    """What a fact says was spent, whether or not the run has a budget.

    A dispatch counts as one call, and so does a read that has an outcome without one; an effect that nobody
    heard of again is charged what was reserved for it.
    """
    made = 0
    match fact.kind:
        case "cost.recorded":
            amounts = fact.body["amounts"]
        case "effect.settled":
            amounts = fact.body.get("usage") or {}
            is_call = entry is not None and entry.kind in ("tool", "task") and entry.effect != "write"
            made = int(is_call and "dispatch" not in fact.fields)
        case "budget.settled" if fact.body["assumed"]:
            amounts = fact.body["amounts"]
        case "effect.started":
            amounts, made = {}, 1
        case _:
            return {}
    told = {account: amount for account, amount in amounts.items() if account in ("tokens", "usd_micros")}
    return told | ({"tool_calls": made} if made else {})


def _outcome(effect: str, status: str, output_error: bool) -> str:
    """The outcome that a settled status is for a call."""
    match status:
        case "succeeded":
            return "unrecordable" if output_error else "succeeded"
        case "failed" if effect in ("write", "internal"):
            return "write_failed"
        case "failed" | "timed_out":
            return "read_failed"
        case _:
            return status
