"""Whether a run can be replayed is computed: for every cause there is a run that is named unsafe for it, with
the record.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from tests.evidence_desk import STORIES, Desk, play

import holdfast as hf
from holdfast.evidence import Cause, Journal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

MADE: dict[Cause, Callable[[Desk], tuple[Journal, str]]] = {}
"""A run for each cause, and the kind of the record that it is named with."""


def cause(of: Cause) -> Callable[[Any], Any]:
    def keep(function: Any) -> Any:
        MADE[of] = function
        return function

    return keep


@pytest.fixture
def desk() -> Iterator[Desk]:
    desk = Desk()
    yield desk
    desk.close()


def of(desk: Desk, run: hf.Run) -> Journal:
    return desk.rt.evidence.journal(run)


def plain(journal: Journal, change: Callable[[dict[str, Any]], None] = lambda _: None) -> Journal:
    """The same journal with something changed, and without its contents."""
    texts = []
    for fact in journal:
        fields = json.loads(fact.text)
        change(fields)
        texts.append(json.dumps(fields).encode())
    return Journal.from_plain(journal.run, texts, {})


@cause(Cause.IN_DOUBT)
def in_doubt(desk: Desk) -> tuple[Journal, str]:
    return of(desk, STORIES["doubted"](desk)), "effect.doubted"


@cause(Cause.UNRESOLVED)
def unresolved(desk: Desk) -> tuple[Journal, str]:
    """As its worker left it when it died: the fax is on its way."""
    whole = of(desk, STORIES["doubted"](desk))
    started = [fact.seq for fact in whole if fact.kind == "effect.started"][-1]
    return Journal(whole.run, whole.prefix(started)), "effect.started"


@cause(Cause.CONTENT_ERASED)
def content_erased(desk: Desk) -> tuple[Journal, str]:
    return of(desk, STORIES["erased"](desk)), "run.created"


@cause(Cause.CONTENT_LOST)
def content_lost(desk: Desk) -> tuple[Journal, str]:
    return plain(of(desk, STORIES["plain"](desk))), "run.created"


@cause(Cause.UNRECORDABLE)
def unrecordable(desk: Desk) -> tuple[Journal, str]:
    return of(desk, STORIES["unrecordable"](desk)), "effect.settled"


@cause(Cause.ATTACHED)
def attached(desk: Desk) -> tuple[Journal, str]:
    hf.guard(desk.rt, effect="write", name="charge")(lambda cents: cents)(5)
    (run,) = desk.rt.runs.list()
    return desk.rt.evidence.journal(run.id), "step.created"


@cause(Cause.DIVERGED)
def diverged(desk: Desk) -> tuple[Journal, str]:
    """Nobody has decided about it yet."""
    whole = of(desk, STORIES["diverged"](desk))
    parted = next(fact.seq for fact in whole if fact.kind == "replay.diverged")
    return Journal(whole.run, whole.prefix(parted)), "replay.diverged"


@cause(Cause.DIVERGENCE_ACCEPTED)
def divergence_accepted(desk: Desk) -> tuple[Journal, str]:
    return of(desk, STORIES["diverged"](desk)), "replay.decided"


@cause(Cause.CALL_ABANDONED)
def call_abandoned(desk: Desk) -> tuple[Journal, str]:
    return of(desk, STORIES["diverged"](desk)), "call.abandoned"


@cause(Cause.PACKAGE_CHANGED)
def package_changed(desk: Desk) -> tuple[Journal, str]:
    run = STORIES["waiting"](desk)

    @desk.rt.tool(effect="read")
    def another(what: str) -> str:
        return what

    desk.approve()
    run = desk.rt.resume_sync(run)
    assert run.status == "completed"
    return of(desk, run), "run.resumed"


@cause(Cause.PARENT_GONE)
def parent_gone(desk: Desk) -> tuple[Journal, str]:
    """As a bundle that leaves the parent out would have it."""
    fork = of(desk, STORIES["forked"](desk))
    return Journal(fork.run, fork.facts), "run.forked"


@cause(Cause.NEWER_FORMAT)
def newer_format(desk: Desk) -> tuple[Journal, str]:
    whole = of(desk, STORIES["plain"](desk))

    def newer(fields: dict[str, Any]) -> None:
        if fields["kind"] == "run.finished":
            fields["v"] = 2

    return plain(whole, newer), "run.finished"


def test_there_is_a_run_for_every_cause() -> None:
    assert MADE.keys() == set(Cause)


@pytest.mark.parametrize("of", list(Cause))
def test_an_unsafe_run_is_named_with_its_record(desk: Desk, of: Cause) -> None:
    journal, kind = MADE[of](desk)
    safety = desk.rt.evidence.replay_safety(journal)
    assert not safety.safe
    found = [one for one in safety.causes if one.cause is of]
    assert found, [str(one) for one in safety.causes]
    record = next(fact for fact in journal.facts if fact.seq == found[0].seq)
    assert (record.kind, found[0].run) == (kind, journal.run)


UNSAFE = {"doubted", "unrecordable", "erased", "diverged"}


@pytest.mark.parametrize("name", STORIES)
def test_a_run_is_safe_unless_there_is_a_cause(name: str) -> None:
    desk, run = play(name)
    safety = desk.rt.evidence.replay_safety(run)
    assert safety.safe is (name not in UNSAFE), [str(one) for one in safety.causes]
    desk.close()


def test_a_doubt_that_was_resolved_is_none(desk: Desk) -> None:
    run = STORIES["doubted"](desk)
    assert not desk.rt.evidence.replay_safety(run).safe
    (doubt,) = desk.rt.effects.list()
    desk.rt.effects.resolve(doubt.id, by="dana", happened="sent")
    assert desk.rt.evidence.replay_safety(desk.rt.resume_sync(run)).safe
