"""Review: checks over a run that can fail, each with a stable name and a severity. A blocker that fails means
that nobody should rely on the run; a warning, that somebody should look.

It judges facts as they are told, also forged ones. That they were not altered is what verification shows.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from holdfast.evidence.fold import ENDED
from holdfast.visible import Shown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from holdfast.evidence.fold import Fold
    from holdfast.evidence.journal import Fact, Journal

Json = dict[str, Any]


class Check(StrEnum):
    """What is looked at."""

    OPEN_APPROVALS = "open_approvals"
    """A person was asked and has not answered."""
    IN_DOUBT = "in_doubt_effects"
    """A write may or may not have happened."""
    UNLEDGERED = "unledgered_effects"
    """A write has an outcome, and no permit for it was ever written down."""
    UNGRANTED = "ungranted_high_risk_writes"
    """A risky write was sent off without a grant, and no rule allowed it."""
    DENIED_RAN = "denied_calls_that_ran"
    """A call was denied, and sent off all the same."""
    SEQ_GAPS = "seq_gaps"
    """Records are missing, doubled or out of order."""
    BUDGET_OVERRUN = "budget_overruns"
    """More was used than the run's budget allows."""
    COST_CAP = "cost_over_cap"
    """The run cost more than the reviewer allows."""
    LOST_CONTENT = "lost_content"
    """A content is gone, and nobody erased it."""
    FAILED_STEPS = "failed_steps"
    """A step has failed for good."""
    NEWER_FORMAT = "newer_format"
    """Part of it cannot be judged: a newer Holdfast wrote it."""
    ABANDONED_CALLS = "abandoned_calls"
    """A recorded call is no longer made by the code."""
    ACCEPTED_DIVERGENCES = "accepted_divergences"
    """The run went on with code that does something else than was recorded."""
    ERASED_CONTENT = "erased_content"
    """A content was erased."""
    UNFINISHED = "unfinished"
    """The run has not ended."""
    UNSEALED = "unsealed"
    """No seal covers it: its end could be cut off, or all of it rewritten, and nobody would see."""


class Severity(StrEnum):
    """What it means that a check fails."""

    BLOCKER = "blocker"
    WARNING = "warning"


WARNINGS = frozenset(
    (
        Check.ABANDONED_CALLS,
        Check.ACCEPTED_DIVERGENCES,
        Check.ERASED_CONTENT,
        Check.UNFINISHED,
        Check.UNSEALED,
    )
)


@dataclass(frozen=True)
class Finding(Shown):
    """One check, and what it found."""

    check: Check
    severity: Severity
    passed: bool
    seqs: tuple[int, ...] = ()
    """The records that it failed for."""
    details: tuple[str, ...] = ()
    """What is wrong; or, of risky writes that are fine, which rule allowed them."""


@dataclass(frozen=True)
class Review(Shown):
    """All checks of one run."""

    _verdict = ("ok",)

    run: str
    findings: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        """No blocker has failed."""
        return not any(finding.severity is Severity.BLOCKER for finding in self.failed)

    @property
    def failed(self) -> tuple[Finding, ...]:
        """The checks that failed."""
        return tuple(finding for finding in self.findings if not finding.passed)

    def of(self, check: Check | str) -> Finding:
        """What one check found."""
        return next(finding for finding in self.findings if finding.check == check)


def review(journal: Journal, *, max_usd: float | None = None, sealed: bool = False) -> Review:
    """Makes every check.

    Args:
        journal: the run.
        max_usd: what it may have cost; without it that check passes.
        sealed: whether a seal covers all of it.
    """
    looked = _Looked(journal, journal.fold(), max_usd, sealed)
    findings = []
    for check in Check:
        wrong = list(CHECKS[check](looked))
        severity = Severity.WARNING if check in WARNINGS else Severity.BLOCKER
        details = tuple(what for _, what in wrong)
        if check is Check.UNGRANTED and not wrong:
            details = tuple(looked.by_rule)
        seqs = tuple(dict.fromkeys(seq for seq, _ in wrong))
        findings.append(Finding(check, severity, not wrong, seqs, details))
    return Review(journal.run, tuple(findings))


class _Looked:
    """What the checks look at."""

    def __init__(self, journal: Journal, fold: Fold, max_usd: float | None, sealed: bool) -> None:
        self.journal, self.fold, self.max_usd, self.sealed = journal, fold, max_usd, sealed
        self.last = journal.facts[-1].seq if journal.facts else 0
        self.by_rule: list[str] = []

    def of_call(self, call: str) -> list[Fact]:
        return [fact for fact in self.journal.everything if fact.call == call]


def _open_approvals(looked: _Looked) -> Iterator[tuple[int, str]]:
    for request in looked.fold.open_approvals:
        yield request["seq"], f"{request['tool']} waits for {request['quorum']} to approve it"


def _in_doubt(looked: _Looked) -> Iterator[tuple[int, str]]:
    for entry in looked.fold.ledger:
        if entry.in_doubt:
            started = [
                f.seq for f in looked.of_call(entry.id) if f.kind in ("effect.started", "effect.doubted")
            ]
            yield started[-1], f"{entry.name} {entry.doubt or 'was sent off'}, under {entry.permit_key}"


def _unledgered(looked: _Looked) -> Iterator[tuple[int, str]]:
    for fact in looked.journal.facts:
        if fact.kind not in ("effect.settled", "effect.resolved", "effect.doubted", "effect.started"):
            continue
        entry = looked.fold.calls.get(fact.call or "")
        if entry is None:
            yield fact.seq, f"{fact.kind} of a call that was never opened"
        elif entry.effect == "write" and _happened(fact) and not entry.dispatch:
            yield fact.seq, f"{entry.name} has an outcome, and was never sent off"


def _happened(fact: Fact) -> bool:
    return fact.body.get("status") in ("succeeded", "failed") or fact.body.get("resolution") == "happened"


def _ungranted(looked: _Looked) -> Iterator[tuple[int, str]]:
    for entry in looked.fold.ledger:
        if entry.effect != "write" or entry.risk not in ("high", "critical") or not entry.dispatch:
            continue
        facts = looked.of_call(entry.id)
        for started in (fact for fact in facts if fact.kind == "effect.started"):
            decided = [f for f in facts if f.kind == "policy.decided" and f.seq < started.seq]
            rules = _rules(decided[-1]) if decided else []
            if "grant" in started.body:
                continue
            if rules:
                looked.by_rule.append(
                    f"{entry.name} at record {started.seq} was allowed by: {', '.join(rules)}"
                )
            else:
                yield started.seq, f"{entry.name} was sent off without a grant, and no rule allowed it"


def _rules(decided: Fact) -> list[str]:
    if decided.body["decision"] != "allow":
        return []
    return [reason["rule"] for reason in decided.body["reasons"] if reason.get("rule")]


def _denied_ran(looked: _Looked) -> Iterator[tuple[int, str]]:
    for entry in looked.fold.ledger:
        denied: Fact | None = None
        for fact in looked.of_call(entry.id):
            if _denies(fact):
                denied = fact
            elif fact.kind == "policy.decided" or (fact.kind == "grant.spent"):
                denied = None  # it was asked about again, and allowed
            elif fact.kind == "effect.started" and denied is not None:
                yield (
                    fact.seq,
                    f"{entry.name} was sent off after {denied.kind} at record {denied.seq} denied it",
                )


def _denies(fact: Fact) -> bool:
    match fact.kind:
        case "policy.decided":
            return bool(fact.body["decision"] == "deny")
        case "approval.decided":
            return bool(fact.body["decision"] == "denied")
        case "hook.ruled":
            response = (fact.body.get("response") or {}).get("type")
            applied = fact.body["outcome"] == "applied_journaled_mutation" and response == "deny"
            return bool(fact.body["point"].startswith("before_") and (applied or fact.body.get("denies")))
        case _:
            return fact.kind in ("approval.timed_out", "budget.refused")


def _gaps(looked: _Looked) -> Iterator[tuple[int, str]]:
    due = 1
    for fact in looked.journal.facts:
        if fact.seq != due:
            yield fact.seq, f"record {fact.seq} stands where {due} is due"
        due = fact.seq + 1
    if looked.journal.facts and looked.journal.facts[0].kind not in ("run.created", "run.forked"):
        yield looked.journal.facts[0].seq, "the beginning is missing"


def _overruns(looked: _Looked) -> Iterator[tuple[int, str]]:
    for account, used in looked.fold.used.items():
        limit = looked.fold.budget.get(account)
        if limit is not None and used > limit:
            yield looked.last, f"{used} of {limit} {account}"


def _over_cap(looked: _Looked) -> Iterator[tuple[int, str]]:
    usd = looked.fold.costs.get("usd_micros", 0) / 1_000_000
    if looked.max_usd is not None and usd > looked.max_usd:
        yield looked.last, f"{usd} USD, and the most is {looked.max_usd}"


def _gone(how: str) -> Callable[[_Looked], Iterator[tuple[int, str]]]:
    def check(looked: _Looked) -> Iterator[tuple[int, str]]:
        for fact in looked.journal.facts:
            for gone in fact.gone:
                if gone.endswith(how):
                    yield fact.seq, f"{gone.rpartition(' ')[0]} of {fact.kind}"

    return check


def _failed_steps(looked: _Looked) -> Iterator[tuple[int, str]]:
    failed = {fact.step: fact for fact in looked.journal.kinds("step.failed")}
    for step, known in looked.fold.steps.items():
        if known["status"] == "failed":
            failure = failed[step].body["failure"]
            yield failed[step].seq, f"{known['name']}: {failure.get('code') or failure['error']}"


def _newer(looked: _Looked) -> Iterator[tuple[int, str]]:
    if looked.fold.newer:
        yield looked.last, "what follows the first such record was not judged"


def _abandoned(looked: _Looked) -> Iterator[tuple[int, str]]:
    for fact in looked.journal.kinds("call.abandoned"):
        entry = looked.fold.calls.get(fact.call or "")
        if fact.body["reason"] == "accepted":
            yield fact.seq, f"{entry.name if entry else fact.call} is no longer made"


def _accepted(looked: _Looked) -> Iterator[tuple[int, str]]:
    for fact in looked.journal.kinds("replay.decided"):
        if fact.body["decision"] == "accept":
            yield fact.seq, f"by {fact.fields['by']['id']}"


def _unfinished(looked: _Looked) -> Iterator[tuple[int, str]]:
    if looked.fold.phase not in ENDED:
        yield looked.last, f"the run is {looked.fold.status}"


def _unsealed(looked: _Looked) -> Iterator[tuple[int, str]]:
    if not looked.sealed:
        yield looked.last, "no seal covers the run"


CHECKS: dict[Check, Callable[[_Looked], Iterator[tuple[int, str]]]] = {
    Check.OPEN_APPROVALS: _open_approvals,
    Check.IN_DOUBT: _in_doubt,
    Check.UNLEDGERED: _unledgered,
    Check.UNGRANTED: _ungranted,
    Check.DENIED_RAN: _denied_ran,
    Check.SEQ_GAPS: _gaps,
    Check.BUDGET_OVERRUN: _overruns,
    Check.COST_CAP: _over_cap,
    Check.LOST_CONTENT: _gone("(lost)"),
    Check.FAILED_STEPS: _failed_steps,
    Check.NEWER_FORMAT: _newer,
    Check.ABANDONED_CALLS: _abandoned,
    Check.ACCEPTED_DIVERGENCES: _accepted,
    Check.ERASED_CONTENT: _gone("(erased)"),
    Check.UNFINISHED: _unfinished,
    Check.UNSEALED: _unsealed,
}
