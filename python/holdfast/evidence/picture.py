"""A run without what is never the same twice: ids, times, workers, hashes, salts. What is left can be
compared and kept as a golden document.

Ids of steps, calls, artifacts, approvals and runs, keys and UUIDs become words that say what they are and the
how-manieth of their sort, wherever they stand in a value. Times are left out, and so is what only says when
somebody came by: leases, claims, waits and wakes. Lines of execution that ran at once are put one after the
other, since which was faster is chance. Secrets were never there.
"""

from __future__ import annotations

import re
from collections import Counter
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from holdfast import _core
from holdfast.errors import RecordError
from holdfast.gateway.outcomes import fix

if TYPE_CHECKING:
    from collections.abc import Iterable

    from holdfast.evidence.fold import Entry, Fold
    from holdfast.evidence.journal import Fact, Journal

Json = dict[str, Any]
FORMAT = "holdfast/golden/v1"
ID = re.compile(
    r"\b(?:(?P<id>run|ses|step|call|apr|grant|art|env|cap|sto)_[0-9a-hjkmnp-tv-z]{26}"
    r"|(?P<key>hf_)[0-9a-f]{40}"
    r"|(?P<uuid>[0-9a-f]{8}-)[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12})\b"
)
CHANCE = frozenset(
    (
        "lease.expired",
        "lease.released",
        "step.claimed",
        "step.waiting",
        "step.woken",
        "run.resumed",
        "refusal.noted",
        "seal.signed",
    )
)
"""What depends on when somebody came by, and not on what the run did."""
TIMES = frozenset(("at", "elapsed_ms", "expires_at", "fires_at", "not_before", "start_by", "until"))


class Dimension(StrEnum):
    """What two runs are compared by."""

    EVENTS = "events"
    MODEL_OUTPUTS = "model_outputs"
    ARGUMENTS = "arguments"
    RESULTS = "results"
    STATE = "state"
    ARTIFACTS = "artifacts"
    APPROVALS = "approvals"
    COSTS = "costs"
    OUTCOME = "outcome"


class Words:
    """A word for each id, in the order in which they are met."""

    def __init__(self) -> None:
        self._words: dict[str, str] = {}
        self._counts: Counter[str] = Counter()

    def _word(self, found: re.Match[str]) -> str:
        name = found.group(0)
        if name not in self._words:
            sort = found["id"] or ("key" if found["key"] else "uuid")
            self._counts[sort] += 1
            self._words[name] = f"<{sort} {self._counts[sort]}>"
        return self._words[name]

    def plain(self, value: Any) -> Any:  # noqa: ANN401 (JSON of any shape)
        """A value with words in the place of ids."""
        if isinstance(value, str):
            return ID.sub(self._word, value)
        if isinstance(value, dict):
            return {self.plain(name): self.plain(inner) for name, inner in value.items()}
        if isinstance(value, list | tuple):
            return [self.plain(inner) for inner in value]
        if isinstance(value, bytes):
            return _core.bytes_digest(value)
        return value


def picture(journal: Journal) -> Json:
    """A run as a small document: one member for each dimension."""
    fold, words = journal.fold(), Words()
    facts = _in_lanes([fact for fact in journal.everything if not _by_chance(fact)], fold)
    for fact in facts:  # the order of the journal gives ids their words
        words.plain([fact.fields["stream"], fact.step, fact.call])
    made = next(journal.kinds("run.created"), None)
    steps = list(fold.steps)
    entries = sorted(fold.ledger, key=lambda entry: (steps.index(entry.step), entry.lane, entry.opened))
    governed = [
        entry for entry in entries if entry.kind in ("tool", "task", "approval", "child", "message", "step")
    ]
    end = fold.end or {}
    return words.plain(  # type: ignore[no-any-return]
        {
            "format": FORMAT,
            "agent": fold.agent,
            "input": None if made is None else made.value["input"],
            Dimension.EVENTS: [_event(fact, fold.calls) for fact in facts],
            Dimension.MODEL_OUTPUTS: [_said(entry) for entry in entries if _is_model(entry)],
            Dimension.ARGUMENTS: [[entry.kind, entry.name, entry.arguments] for entry in governed],
            Dimension.RESULTS: [[entry.kind, entry.name, *_result(entry)] for entry in governed],
            Dimension.STATE: fold.state,
            Dimension.ARTIFACTS: [_artifact(fact) for fact in facts if fact.kind == "artifact.created"],
            Dimension.APPROVALS: [
                [request["tool"], request["arguments"], request["state"], request.get("by", [])]
                for request in fold.approvals.values()
            ],
            Dimension.COSTS: dict(sorted(fold.costs.items())),
            Dimension.OUTCOME: {
                "status": fold.status,
                **{name: _bare(end[name]) for name in ("reason", "result", "failure") if name in end},
            },
        }
    )


def _by_chance(fact: Fact) -> bool:
    """Whether a fact only says who came by when; which of two steps was the first to commit is that too."""
    conflict = fact.kind == "step.retry_scheduled" and fact.body["failure"].get("code") == "state_conflict"
    return conflict or fact.kind in CHANCE


def _in_lanes(facts: list[Fact], fold: Fold) -> list[Fact]:
    """What is about the run first, then step by step, and in each lane by lane."""
    steps = list(fold.steps)

    def place(fact: Fact) -> tuple[int, str]:
        entry = fold.calls.get(fact.call or "")
        if entry is not None:
            return steps.index(entry.step) + 1, entry.lane
        return (steps.index(fact.step) + 1 if fact.step in fold.steps else 0), ""

    return sorted(facts, key=place)


def _event(fact: Fact, calls: dict[str, Entry]) -> str:
    """A fact in a line: its kind, the call that it is about, and the word that matters of it."""
    entry = calls.get(fact.call or "")
    words = ("status", "decision", "cause", "resolution", "outcome")
    told = [str(fact.body[word]) for word in words if word in fact.body]
    return " ".join([fact.kind, *([] if entry is None else [entry.name]), *told])


def _is_model(entry: Entry) -> bool:
    """Models are asked through a read: ``ctx.do``, a tool, or what adapters record as a model's call."""
    return entry.kind in ("model", "model_call") or (entry.kind == "task" and entry.effect == "read")


def _said(entry: Entry) -> list[Any]:
    return [entry.name, entry.arguments if entry.kind == "model_call" else entry.result]


def _result(entry: Entry) -> list[Any]:
    failure = None if entry.failure is None else _bare(entry.failure)
    reasons = [reason["code"] for reason in entry.reasons]
    return [entry.outcome or entry.phase, entry.result, *([failure] if failure else []), *reasons]


def _bare(value: Any) -> Any:  # noqa: ANN401 (JSON of any shape)
    """Without times."""
    if isinstance(value, dict):
        return {name: _bare(inner) for name, inner in value.items() if name not in TIMES}
    return value


def _artifact(fact: Fact) -> list[Any]:
    value = fact.value
    return [value["kind"], value["name"], value["media"], value.get("uri"), value.get("content")]


def golden(journal: Journal) -> bytes:
    """The picture as canonical JSON: the same run, recorded anew, gives the same bytes."""
    return _core.canonical_dumps(picture(journal)) + b"\n"


def read_golden(text: str | bytes) -> Json:
    """A picture from its JSON.

    Raises:
        RecordError: ``bad_value``: it is none.
    """
    found = _core.canonical_loads(text)
    if not isinstance(found, dict) or found.get("format") != FORMAT or not set(_names()) <= found.keys():
        raise RecordError(f"this is no golden run: {FORMAT}", code="bad_value", fix=fix("bad_value"))
    return found


def _names() -> Iterable[str]:
    return (str(dimension) for dimension in Dimension)
