"""The conformance suite for approvers passes on ours, and fails by clause on every wrong one."""

from __future__ import annotations

import inspect
import re
import threading
from typing import TYPE_CHECKING

import pytest
from tests.conformance import wrong_approvers
from tests.conformance.approvers import Around, AtTheConsole, Honest, OverTheWeb, People, awaited
from tests.conformance.wrong_approvers import BROKEN
from tests.support import ROOT

from holdfast.conformance import suite
from holdfast.conformance.approvers import CLAUSES, Clause, run

if TYPE_CHECKING:
    from holdfast.gateway import Request

BY_ID = {clause.id: clause for clause in CLAUSES}
# What needs a person who answers through the approver: a webhook only tells.
ANSWERS = [
    "answer.yes",
    "answer.no",
    "answer.to_one_request",
    "answer.after_seeing_all",
    "tell.one_yes_for_one",
    "gateway.yes",
    "gateway.no",
]


@pytest.mark.parametrize("clause", CLAUSES, ids=str)
def test_an_approver_of_a_third_party_keeps(clause: Clause) -> None:
    # The pytest way: a test per clause.
    clause.check(Around(Honest))


def test_one_that_is_awaited_keeps_every_clause() -> None:
    results = run(Around(awaited))
    assert results.ids("passed") == list(BY_ID), results


def test_the_console_keeps_every_clause() -> None:
    results = run(AtTheConsole())
    assert results.ok, results
    assert results.ids("not_applicable") == ["secret.not_told", "secret.not_in_errors"]


def test_the_webhook_keeps_every_clause_that_is_about_telling() -> None:
    results = run(OverTheWeb())
    assert results.ok, results
    assert set(results.ids("not_applicable")) == {*ANSWERS, "hostile.terminal"}
    assert results["answer.yes"].reason == "a webhook only tells: people decide elsewhere"


@pytest.mark.parametrize("approver", BROKEN, ids=lambda approver: approver.__name__)
def test_a_wrong_approver_fails_by_clause(approver: type[Honest]) -> None:
    results = run(Around(approver))
    assert set(results.ids("failed")) == BROKEN[approver], results
    assert not results.ids("not_applicable")


def test_every_clause_was_seen_to_fail_and_every_wrong_approver_is_tried() -> None:
    assert set().union(*BROKEN.values()) == BY_ID.keys()
    there = {
        kind
        for _, kind in inspect.getmembers(wrong_approvers, inspect.isclass)
        if issubclass(kind, Honest) and kind.__module__ == wrong_approvers.__name__
    }
    assert there - {base for kind in there for base in kind.__bases__} == BROKEN.keys()


class Hangs(Honest):
    """Waits for a person in the call itself, for ever."""

    def answer(self, _: Request, said: object) -> None:
        threading.Event().wait(30.0 if said == "nothing" else 0)


def test_an_approver_that_hangs_fails_and_does_not_hang_the_suite(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suite, "PATIENCE_SECONDS", 0.2)
    results = run(Around(Hangs), clauses=[BY_ID["answer.nothing"]])
    assert results["answer.nothing"].reason == "telling people of a request did not come to an end"


def test_a_coroutine_that_nobody_awaits_is_no_answer() -> None:
    class Awaits:
        """A gateway takes it for a plain function, and what it returns for nonsense."""

        def __init__(self, people: People) -> None:
            self.inner = Honest(people)

        def __call__(self, request: Request) -> object:
            return self.later(request)

        async def later(self, request: Request) -> object:
            return self.inner(request)

    results = run(Around(Awaits), clauses=[BY_ID["answer.nothing"], BY_ID["answer.yes"]])
    assert results.ids("failed") == ["answer.nothing", "answer.yes"]


def test_an_object_that_is_awaited_is_an_approver() -> None:
    class Awaited:
        def __init__(self, people: People) -> None:
            self.inner = Honest(people)

        async def __call__(self, request: Request) -> object:
            return self.inner(request)

    results = run(Around(Awaited), clauses=[BY_ID["answer.nothing"], BY_ID["answer.yes"]])
    assert results.ids("failed") == []


def test_the_document_lists_the_clauses() -> None:
    text = (ROOT / "docs" / "CONFORMANCE.md").read_text(encoding="utf-8")
    section = text.split("# Is it an approver?")[1].split("\n# ")[0]
    listed = re.findall(r"(?m)^\| `([a-z]+\.[a-z_]+)` \| (.+) \|$", section)
    assert listed == [(clause.id, clause.text) for clause in CLAUSES]
