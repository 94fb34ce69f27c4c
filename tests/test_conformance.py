"""The conformance suite for stores passes on our engines, and fails by clause on every wrong one.

Each wrong engine has the exact set of clauses that it breaks written beside it, and every clause is broken
by at least one of them: a clause that has lost its teeth, or that bites the wrong engine, is seen here.
"""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from rich.console import Console
from tests.conformance.passing import Around, Passing
from tests.conformance.wrong_care import TailIgnoresStop
from tests.conformance.wrong_engines import BROKEN, BROKEN_SHARED, MODULES

import holdfast
from holdfast.conformance import suite
from holdfast.conformance.store import (
    CLAUSES,
    AnyStore,
    Clause,
    FolderHarness,
    MemoryHarness,
    NotApplicable,
    run,
)

if TYPE_CHECKING:
    from holdfast.store import FakeClock

ROOT = Path(__file__).parent.parent
BY_ID = {clause.id: clause for clause in CLAUSES}
# What needs two handles on one store: not applicable in memory.
SHARED = [
    "create.key_two_handles",
    "append.two_handles",
    "read.second_handle",
    "read.reopened",
    "claim.two_handles",
    "fence.stale_on_every_handle",
    "forget.other_handles",
    "close.one_of_two",
]
# These take longest: they are tried on the wrong engines that break them, and on no other.
HEAVY = {"read.long_runs", "refused.limit_exceeded", "contents.large"}


def test_the_engine_in_memory_keeps_every_clause() -> None:
    results = run(MemoryHarness())
    assert results.ok, results
    assert results.ids("not_applicable") == SHARED
    assert {result.reason for result in results if result.verdict == "not_applicable"} == {
        "a store in memory has one handle"
    }
    assert len(results) == len(CLAUSES)


@pytest.mark.parametrize("clause", CLAUSES, ids=str)
def test_the_engine_on_a_folder_keeps(clause: Clause, tmp_path: Path) -> None:
    # The pytest way: a test per clause.
    clause.check(FolderHarness(tmp_path))
    assert list(tmp_path.iterdir()) == [], "a location was left behind"


def test_a_wrapper_of_the_public_surface_keeps_every_clause() -> None:
    results = run(Around(Passing))
    assert results.ids("failed") == [], results


@pytest.mark.parametrize("engine", BROKEN, ids=lambda engine: engine.__name__)
def test_a_wrong_engine_fails_by_clause(engine: type[Passing]) -> None:
    clauses = [clause for clause in CLAUSES if clause.id not in HEAVY - BROKEN[engine]]
    results = run(Around(engine), clauses=clauses)
    assert set(results.ids("failed")) == BROKEN[engine], results


@pytest.mark.parametrize("engine", BROKEN_SHARED, ids=lambda engine: engine.__name__)
def test_a_wrong_engine_with_two_handles_fails_by_clause(engine: type[Passing], tmp_path: Path) -> None:
    clauses = [BY_ID[name] for name in (*SHARED, "claim.concurrency_key_among_many", "append.dense")]
    results = run(Around(engine, tmp_path), clauses=clauses)
    assert set(results.ids("failed")) == BROKEN_SHARED[engine], results


def test_a_store_that_hangs_fails_and_does_not_hang_the_suite(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suite, "PATIENCE_SECONDS", 1.0)
    results = run(Around(TailIgnoresStop), clauses=[BY_ID["tail.stops"]])
    assert results["tail.stops"].verdict == "failed"
    assert results["tail.stops"].reason == "a tail that was told to stop did not come to an end"


def test_every_clause_was_seen_to_fail() -> None:
    seen = set().union(*BROKEN.values(), *BROKEN_SHARED.values()) | {"tail.stops"}
    assert seen == BY_ID.keys()


def test_every_wrong_engine_is_tried() -> None:
    engines = {
        engine
        for module in MODULES
        for _, engine in inspect.getmembers(module, inspect.isclass)
        if issubclass(engine, Passing) and engine.__module__ == module.__name__
    }
    bases = {base for engine in engines for base in engine.__bases__}
    assert engines - bases - {TailIgnoresStop} == BROKEN.keys() | BROKEN_SHARED.keys()
    assert len(BROKEN) + len(BROKEN_SHARED) >= 50


def test_clauses_have_stable_unique_ids_and_say_one_sentence() -> None:
    assert len(BY_ID) == len(CLAUSES) >= 30
    for clause in CLAUSES:
        assert re.fullmatch(r"[a-z]+\.[a-z_]+", clause.id)
        assert re.fullmatch(r"[A-Z][^.]*(x\.\*[^.]*|run\.created[^.]*)?\.", clause.text), clause.text
        assert str(clause) == clause.id


def test_the_document_lists_the_clauses() -> None:
    text = (ROOT / "docs" / "CONFORMANCE.md").read_text(encoding="utf-8").split("\n# ")[0]
    listed = re.findall(r"(?m)^\| `([a-z]+\.[a-z_]+)` \| (.+) \|$", text)
    assert listed == [(clause.id, clause.text) for clause in CLAUSES]


class NoClock(MemoryHarness):
    """An engine whose time comes from a server: the suite cannot move it."""

    def open(self, clock: FakeClock | None) -> AnyStore:
        if clock is not None:
            raise NotApplicable("the server's clock cannot be moved")
        return super().open(None)


def test_a_harness_says_what_it_cannot_do_and_the_rest_is_tried() -> None:
    results = run(NoClock(), clauses=[BY_ID["lease.expires"], BY_ID["append.dense"]])
    assert [result.verdict for result in results] == ["not_applicable", "passed"]
    assert results["lease.expires"].reason == "the server's clock cannot be moved"
    assert results.ok
    assert not run(NoClock(), clauses=[BY_ID["lease.expires"]]).ok, (
        "a suite that tried nothing proves nothing"
    )


class CannotOpen(MemoryHarness):
    def open(self, clock: FakeClock | None) -> AnyStore:  # noqa: ARG002
        raise ConnectionRefusedError("nobody listens")


def test_a_store_that_cannot_be_opened_fails_every_clause_with_the_reason() -> None:
    results = run(CannotOpen(), clauses=CLAUSES[:3])
    assert [result.reason for result in results] == ["ConnectionRefusedError: nobody listens"] * 3
    assert not results.ok


def test_results_read_well() -> None:
    heard: list[str] = []
    wrong = next(engine for engine in BROKEN if BROKEN[engine] == {"verify.foreign_heads"})
    clauses = [BY_ID[name] for name in ("append.dense", "verify.foreign_heads", "read.second_handle")]
    results = run(Around(wrong), clauses=clauses, watch=lambda result: heard.append(result.clause.id))
    assert heard == [clause.id for clause in clauses]
    assert str(results).splitlines() == [
        "1 passed, 1 failed, 1 not applicable",
        f"failed: verify.foreign_heads: {BY_ID['verify.foreign_heads'].text}",
        "    an audit against a foreign head is clean",
        f"not applicable: read.second_handle: {BY_ID['read.second_handle'].text}",
        "    a store in memory has one handle",
    ]
    console = Console(record=True, width=200, file=None, quiet=False)
    with console.capture() as shown:
        console.print(results)
    assert "an audit against a foreign head is clean" in shown.get()


def test_the_store_has_the_surface_that_engines_are_asked_for(tmp_path: Path) -> None:
    # mypy checks the types; this checks that nothing of the surface is missing at run time.
    with holdfast.open(tmp_path / "store") as ours:
        store: AnyStore = ours
        names = [name for name in vars(AnyStore) if not name.startswith("_")]
        assert [name for name in names if not hasattr(store, name)] == []
        assert len(names) >= 25
