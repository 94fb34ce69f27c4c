"""What runs cost and why they failed, attributed: to agents, steps, tools, models and days; to a signature
that the same bug has in every run.

One failure is one line: an attempt that failed, a run that ended without one, or an effect in doubt; never
the same once more for its call, its step and its run.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from holdfast import _core
from holdfast.evidence.fold import Fold, spent
from holdfast.visible import Listing, Shown

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from holdfast.evidence.fold import Entry
    from holdfast.evidence.journal import Fact, Journal

Json = dict[str, Any]


class By(StrEnum):
    """What costs are added up by."""

    AGENT = "agent"
    STEP = "step"
    TOOL = "tool"
    MODEL = "model"
    DAY = "day"


@dataclass(frozen=True)
class Spent(Shown):
    """What something has cost altogether."""

    name: str
    """Of the agent, step, tool, model or day; ``(none)`` where there is none."""
    usd: float
    tokens: int
    calls: int
    runs: int


def costs(journals: Iterable[Journal], by: By) -> list[Spent]:
    """What runs cost, the dearest first. Each cost counts once, whatever it is added up by."""
    sums: dict[str, Json] = {}
    for journal in journals:
        fold = journal.fold()
        for fact in journal.facts:  # what a fork inherited was its parent's
            amounts = spent(fact, fold.calls.get(fact.call or ""))
            if not amounts:
                continue
            found = sums.setdefault(_name(fact, fold, by), {"runs": set()})
            found["runs"].add(journal.run)
            for account, amount in amounts.items():
                found[account] = found.get(account, 0) + amount
    told = [
        Spent(
            name,
            found.get("usd_micros", 0) / 1_000_000,
            found.get("tokens", 0),
            found.get("tool_calls", 0),
            len(found["runs"]),
        )
        for name, found in sums.items()
    ]
    return Listing(sorted(told, key=lambda one: (-one.usd, -one.tokens, -one.calls, one.name)))


def _name(fact: Fact, fold: Fold, by: By) -> str:
    entry = fold.calls.get(fact.call or "")
    match by:
        case By.AGENT:
            return fold.agent
        case By.STEP:
            step = fold.steps.get(fact.step or "")
            return f"{fold.agent}/{step['name']}" if step else f"{fold.agent}/(none)"
        case By.TOOL:
            return entry.name if entry is not None and entry.kind in ("tool", "task") else "(none)"
        case By.MODEL:
            return str(fact.body.get("model") or "(none)")
        case By.DAY:
            return datetime.fromtimestamp(fact.at / 1000, UTC).strftime("%Y-%m-%d")


# Failures.


class Owner(StrEnum):
    """Whose failure it is."""

    AGENT = "agent"
    TOOL = "tool"
    POLICY = "policy"
    """A rule or a hook."""
    APPROVAL = "approval"
    BUDGET = "budget"
    MODEL = "model"
    STORE = "store"


class Recovery(StrEnum):
    """What can become of it."""

    RETRY = "retry"
    """Another attempt may succeed by itself."""
    PERSON = "person"
    """Somebody has to decide."""
    CHANGE = "change"
    """It comes again until something is changed."""


TO_DO = {
    Owner.AGENT: "fix the agent's code; then: holdfast runs retry RUN --by NAME",
    Owner.TOOL: "look at the tool and at what it calls; then: holdfast runs retry RUN --by NAME",
    Owner.POLICY: "a rule or a hook said no: change it, or the agent",
    Owner.APPROVAL: "a person said no, or nobody answered in time: ask them, then start the run anew",
    Owner.BUDGET: "raise the budget, or find out what used it: holdfast budget show RUN",
    Owner.MODEL: "look at the model's provider; then: holdfast runs retry RUN --by NAME",
    Owner.STORE: "look at the store: holdfast doctor",
}
IN_DOUBT = "find out whether it happened: holdfast effects, then holdfast effects resolve"


@dataclass(frozen=True)
class Failure(Shown):
    """A way to fail, and how often it came."""

    signature: str
    """Stable: the same bug has it in every run, and another bug has another."""
    owner: Owner
    name: str
    """Of the agent, tool or rule."""
    error: str
    message: str
    """Without what varies."""
    recovery: Recovery
    to_do: str
    count: int
    runs: tuple[str, ...]
    recovered: int
    """How often a later attempt went on from it."""
    first_at: int
    last_at: int


@dataclass
class _Case:
    owner: Owner
    name: str
    error: str
    message: str
    recovery: Recovery
    to_do: str
    fact: Fact
    run: str
    recovered: bool

    @property
    def signature(self) -> str:
        known = [str(self.owner), self.name, self.error, self.message]
        return f"{self.owner}-{_core.canonical_digest(known).removeprefix('sha256:')[:12]}"


def failures(journals: Iterable[Journal]) -> list[Failure]:
    """How runs failed, the most frequent first."""
    found: dict[str, list[_Case]] = {}
    for journal in journals:
        for case in _cases(journal):
            found.setdefault(case.signature, []).append(case)
    told = []
    for signature, cases in found.items():
        first = cases[0]
        told.append(
            Failure(
                signature,
                first.owner,
                first.name,
                first.error,
                first.message,
                first.recovery,
                first.to_do,
                len(cases),
                tuple(dict.fromkeys(case.run for case in cases)),
                sum(case.recovered for case in cases),
                min(case.fact.at for case in cases),
                max(case.fact.at for case in cases),
            )
        )
    return Listing(sorted(told, key=lambda one: (-one.count, one.signature)))


def _cases(journal: Journal) -> Iterator[_Case]:
    final, fold, stepped = journal.fold(), Fold(), False
    for fact in journal.inherited:
        fold.apply(fact)
    for fact in journal.facts:
        fold.apply(fact)  # whose it is follows from how calls stood then; a later attempt may have helped
        match fact.kind:
            case "step.failed" | "step.retry_scheduled":
                stepped = True
                went_on = fact.kind == "step.retry_scheduled" or final.status != "failed"
                yield _attempt(journal, fold, fact, went_on)
            case "run.finished" if fact.body["status"] == "failed" and not stepped:
                yield _attempt(journal, fold, fact, final.status != "failed")
            case "effect.doubted":
                yield _doubt(journal, final, fact)


def _attempt(journal: Journal, fold: Fold, fact: Fact, recovered: bool) -> _Case:
    failure = fact.value.get("failure") or {"error": fact.body.get("reason", "failed")}
    ended = [fold.calls[call] for call in fact.body.get("ended_by", ()) if call in fold.calls]
    owner, name = _owner(fold, failure, ended)
    error = str(failure.get("code") or failure["error"])
    if error == "effect_failed" and ended and ended[0].failure:
        error = str(ended[0].failure["error"])
    recovery = {Owner.APPROVAL: Recovery.PERSON, Owner.STORE: Recovery.RETRY, Owner.TOOL: Recovery.RETRY}.get(
        owner, Recovery.CHANGE
    )
    if owner is Owner.AGENT and fact.kind == "step.retry_scheduled":
        recovery = Recovery.RETRY
    message = steady(str(failure.get("message") or ""))
    return _Case(owner, name, error, message, recovery, TO_DO[owner], fact, journal.run, recovered)


def _doubt(journal: Journal, fold: Fold, fact: Fact) -> _Case:
    entry, failure = fold.calls.get(fact.call or ""), fact.value.get("failure") or {}
    error = f"in doubt: {fact.body['cause']}" + (f" ({failure['error']})" if failure else "")
    message = steady(str(failure.get("message") or ""))
    name = entry.name if entry is not None else "(none)"
    resolved = entry is not None and not entry.in_doubt
    return _Case(Owner.TOOL, name, error, message, Recovery.PERSON, IN_DOUBT, fact, journal.run, resolved)


STORE_CODES = frozenset(
    (
        "disk_full",
        "no_permission",
        "read_only_store",
        "store_busy",
        "store_closed",
        "store_corrupt",
        "store_failed",
        "store_poisoned",
        "store_replaced",
        "store_truncated",
    )
)


def _owner(fold: Fold, failure: Json, ended: list[Entry]) -> tuple[Owner, str]:
    """Whose it is, from what is recorded about it and never from the words of a message."""
    if failure.get("code") in STORE_CODES or failure.get("source") == "store":
        return Owner.STORE, "store"
    for entry in ended:
        if entry.outcome == "denied_by_person":
            return Owner.APPROVAL, entry.name
        if entry.outcome == "denied_by_rule":
            return _denier(entry)
        if entry.kind in ("model", "model_call"):
            return Owner.MODEL, entry.name
        if entry.kind in ("tool", "task") and entry.outcome != "succeeded":
            return Owner.TOOL, entry.name
    sources = {"approval": Owner.APPROVAL, "budget": Owner.BUDGET, "hook": Owner.POLICY, "model": Owner.MODEL}
    sources |= {"policy": Owner.POLICY, "sandbox": Owner.TOOL, "tool": Owner.TOOL}
    return sources.get(str(failure.get("source")), Owner.AGENT), fold.agent


def _denier(entry: Entry) -> tuple[Owner, str]:
    reason = entry.reasons[0] if entry.reasons else {"code": "denied"}
    code = str(reason["code"])
    if code.startswith("budget."):
        return Owner.BUDGET, entry.name
    if code.startswith("approval."):
        return Owner.APPROVAL, entry.name
    return Owner.POLICY, str(reason.get("rule") or entry.name)


VARYING = (
    (re.compile(r"\w+://\S+"), "<url>"),
    (re.compile(r"\S+@\S+\.\w+"), "<address>"),
    (re.compile(r"(?:[A-Za-z]:)?(?:[\\/][\w.\-+]+){2,}[\\/]?|~[\\/]\S+"), "<path>"),
    (re.compile(r"\b0x[0-9a-fA-F]+\b"), "<at>"),
    (re.compile(r"\b[\w\-]*\d(?:[\w\-.:+]*\w)?"), "<n>"),
    (re.compile(r"\s+"), " "),
)
"""What varies from run to run in a message: addresses of every sort, paths, and words with digits, which are
ids, times, amounts and counts."""


def steady(message: str) -> str:
    """A message without what varies.

    >>> steady("order 4711 of /srv/shop/a.db failed at 2026-11-17T14:45:26Z: <Conn object at 0x7f60>")
    'order <n> of <path> failed at <n>: <Conn object at <at>>'
    """
    for pattern, word in VARYING:
        message = pattern.sub(word, message)
    return message.strip()[:400]
