"""Time travel: where a run stood after any of its records, and what each frame changed."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from holdfast import _core
from holdfast.evidence.fold import Fold
from holdfast.visible import Shown

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.evidence.fold import Entry
    from holdfast.evidence.journal import Journal

Json = dict[str, Any]


@dataclass(frozen=True)
class Moment(Shown):
    """A run after one of its records."""

    run: str
    seq: int
    at: int
    """Milliseconds since the epoch."""
    agent: str
    status: str
    state: Json | None
    """None if a patch that made it was erased."""
    state_version: int
    ledger: tuple[Entry, ...]
    costs: dict[str, int]
    """What was recorded as spent: ``tokens``, ``tool_calls``, ``usd_micros``."""
    used: dict[str, int]
    """What was taken from the run's budget, by account."""
    approvals: tuple[Json, ...]
    """Requests that nobody had decided."""
    waits: tuple[Json, ...]

    @property
    def in_doubt(self) -> tuple[Entry, ...]:
        """Effects that may or may not have happened."""
        return tuple(entry for entry in self.ledger if entry.in_doubt)

    def as_dict(self) -> Json:
        """The same as JSON."""
        return asdict(self)


@dataclass(frozen=True)
class Change(Shown):
    """What happened to one call."""

    call: str
    name: str
    before: str | None
    """Its phase and outcome; None if it was not there."""
    after: str


@dataclass(frozen=True)
class Frame(Shown):
    """What was committed together, and what it changed."""

    first: int
    last: int
    at: int
    records: tuple[str, ...]
    """Their kinds."""
    status: str
    """Of the run, afterwards."""
    patch: Json | None
    """The RFC 7396 patch from the state before to the one after; None if one of them is not known."""
    ledger: tuple[Change, ...]
    costs: dict[str, int]
    """What was spent in this frame."""

    def as_dict(self) -> Json:
        """The same as JSON."""
        return asdict(self)


def moment(journal: Journal, seq: int | None = None) -> Moment:
    """Where a run stood after a record, or at the end."""
    fold = journal.fold(seq)
    at = next(fact.at for fact in journal.facts if fact.seq == fold.seq)
    return Moment(
        journal.run,
        fold.seq,
        at,
        fold.agent,
        fold.status,
        fold.state,
        fold.state_version,
        tuple(fold.ledger),
        dict(sorted(fold.costs.items())),
        dict(sorted(fold.used.items())),
        tuple(fold.open_approvals),
        tuple(fold.waits),
    )


def frames(journal: Journal) -> Iterator[Frame]:
    """What each frame of a run changed, from the first to the last."""
    fold = Fold()
    for fact in journal.inherited:
        fold.apply(fact)
    for facts in journal.frames():
        before = _picture(fold)
        for fact in facts:
            fold.apply(fact)
        yield _frame(facts, before, fold)


def _picture(fold: Fold) -> tuple[Json | None, dict[str, str], dict[str, int]]:
    return fold.state, {call: _stands(entry) for call, entry in fold.calls.items()}, dict(fold.costs)


def _stands(entry: Entry) -> str:
    return entry.phase if entry.outcome is None else f"{entry.phase} {entry.outcome}"


def _frame(
    facts: tuple[Any, ...], before: tuple[Json | None, dict[str, str], dict[str, int]], fold: Fold
) -> Frame:
    state, calls, costs = before
    known = fold.state is not None and (state is not None or facts[0].kind == "run.created")
    patch: Any = _core.merge_diff(state or {}, fold.state) if known else None
    changes = [
        Change(call, entry.name, calls.get(call), _stands(entry))
        for call, entry in fold.calls.items()
        if calls.get(call) != _stands(entry)
    ]
    spent = {account: amount - costs.get(account, 0) for account, amount in fold.costs.items()}
    return Frame(
        facts[0].seq,
        facts[-1].seq,
        facts[-1].at,
        tuple(fact.kind for fact in facts),
        fold.status,
        patch,
        tuple(changes),
        {account: amount for account, amount in spent.items() if amount},
    )
