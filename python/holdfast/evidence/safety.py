"""Whether a run can be replayed, computed from its facts: safe, or unsafe with every cause and its record.

A run is safe when its code, run again, would get everything from the journal that it got then. What keeps it
from that is one of the causes below; there are no others.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from holdfast.evidence.fold import KNOWN
from holdfast.visible import Shown

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.evidence.journal import Fact, Journal


class Cause(StrEnum):
    """What makes a run unsafe to replay."""

    IN_DOUBT = "in_doubt"
    """An effect may or may not have happened: nobody knows what the code would get."""
    UNRESOLVED = "unresolved"
    """An effect was sent off, and no outcome of it was written down."""
    CONTENT_ERASED = "content_erased"
    """Something that the code got was erased."""
    CONTENT_LOST = "content_lost"
    """Something that the code got is gone, and nobody erased it."""
    UNRECORDABLE = "unrecordable"
    """A call came to something that could not be written down."""
    ATTACHED = "attached"
    """A framework resumes this step from its own checkpoint; we cannot."""
    DIVERGED = "diverged"
    """The code and the journal have parted, and nobody has decided about it."""
    DIVERGENCE_ACCEPTED = "divergence_accepted"
    """A person let the run go on with code that does something else than was recorded."""
    CALL_ABANDONED = "call_abandoned"
    """A recorded call is no longer made by the code."""
    PACKAGE_CHANGED = "package_changed"
    """The run went on under another version of the program: no one version made all of it."""
    PARENT_GONE = "parent_gone"
    """The run that this one was forked from is not here."""
    NEWER_FORMAT = "newer_format"
    """Part of it was written by a newer Holdfast."""


NEEDED = {
    "run.created": ("input", "seed", "state"),
    "step.created": ("input",),
    "state.patched": ("patch",),
    "effect.settled": ("result", "failure.message", "output_error.message"),
    "call.served": ("result", "failure.message", "output_error.message"),
    "effect.late": ("result",),
    "effect.resolved": ("result",),
    "hook.ruled": ("response.payload",),
    "signal.received": ("payload",),
    "message.received": ("content",),
    "child.ended": ("result", "failure.message"),
}
"""Contents that agent code gets, by the kind of the record that holds them."""


@dataclass(frozen=True)
class Unsafe(Shown):
    """One cause."""

    cause: Cause
    run: str
    """The run whose record it is: the run itself, or one that a fork begins with."""
    seq: int
    what: str

    def __str__(self) -> str:
        return f"{self.cause} at record {self.seq}: {self.what}"


@dataclass(frozen=True)
class Safety(Shown):
    """Whether a run can be replayed."""

    _verdict = ("safe",)

    run: str
    causes: tuple[Unsafe, ...]

    @property
    def safe(self) -> bool:
        """No cause was found."""
        return not self.causes


def safety(journal: Journal) -> Safety:
    """Every cause, in the order of the journal."""
    found = [
        Unsafe(cause, str(fact.fields["stream"]), fact.seq, what)
        for fact in journal.everything
        for cause, what in _of_fact(fact, journal)
    ]
    found.extend(_of_ledger(journal))
    ancestors = {cause.run: -1 for cause in found if cause.run != journal.run}
    return Safety(journal.run, tuple(sorted(found, key=lambda one: (ancestors.get(one.run, 0), one.seq))))


def _of_fact(fact: Fact, journal: Journal) -> Iterator[tuple[Cause, str]]:
    known = fact.kind in KNOWN or fact.kind.startswith(("note.", "x."))
    if not known or int(fact.fields["v"]) > 1:
        yield Cause.NEWER_FORMAT, f"{fact.kind} of version {fact.fields['v']}"
        return  # nothing more can be told about it
    for gone in fact.gone:
        path, _, how = gone.rpartition(" ")
        if path.startswith(NEEDED.get(fact.kind, ())):
            cause = Cause.CONTENT_ERASED if how == "(erased)" else Cause.CONTENT_LOST
            yield cause, f"{path} of {fact.kind}"
    body = fact.body
    match fact.kind:
        case "step.created" if body["kind"] == "attached":
            yield Cause.ATTACHED, f"the step {body['name']}"
        case "effect.settled" | "call.served" if "output_error" in body:
            yield Cause.UNRECORDABLE, str(body["output_error"].get("code") or body["output_error"]["error"])
        case "hook.ruled" if body["point"] == "after_tool_call" and body.get("denies"):
            yield Cause.UNRECORDABLE, f"the hook {body['hook']} failed"
        case "replay.diverged" if not _decided(journal, fact):
            yield Cause.DIVERGED, str(body["why"])
        case "replay.decided" if body["decision"] == "accept":
            yield Cause.DIVERGENCE_ACCEPTED, f"by {fact.fields['by']['id']}"
        case "call.abandoned" if body["reason"] == "accepted":
            yield Cause.CALL_ABANDONED, str(fact.call)
        case "run.resumed" | "package.decided" if body["changed"]:
            yield Cause.PACKAGE_CHANGED, ", ".join(body["changed"])
        case "run.forked" if not journal.inherited:
            yield Cause.PARENT_GONE, str(body["parent"])


def _decided(journal: Journal, diverged: Fact) -> bool:
    return any(
        fact.kind == "replay.decided" and fact.step == diverged.step and fact.seq > diverged.seq
        for fact in journal.facts
    )


def _of_ledger(journal: Journal) -> Iterator[Unsafe]:
    newest = {
        (fact.call, fact.kind): fact
        for fact in journal.everything
        if fact.kind in ("effect.started", "effect.doubted", "effect.settled")
    }
    for entry in journal.fold().ledger:
        if entry.phase == "doubted":
            fact = newest.get((entry.id, "effect.doubted")) or newest[(entry.id, "effect.settled")]
            yield Unsafe(Cause.IN_DOUBT, str(fact.fields["stream"]), fact.seq, f"{entry.name}: {entry.doubt}")
        elif entry.phase == "started":
            fact = newest[(entry.id, "effect.started")]
            yield Unsafe(
                Cause.UNRESOLVED, str(fact.fields["stream"]), fact.seq, f"{entry.effect} {entry.name}"
            )
