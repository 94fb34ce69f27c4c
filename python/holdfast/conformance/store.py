"""The conformance suite for stores: run it on yours.

    from holdfast.conformance.store import CLAUSES, run

    results = run(MyHarness())            # a result per clause
    assert results.ok, results

    @pytest.mark.parametrize("clause", CLAUSES, ids=str)
    def test_my_store(clause):            # or a test per clause
        clause.check(MyHarness())

A harness says how to open a store of yours at a new place, see :class:`Harness`; :class:`MemoryHarness` and
:class:`FolderHarness` are those of Holdfast's own engines. Ids of clauses are stable. docs/CONFORMANCE.md
tells more.
"""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from holdfast.conformance.store_clauses import Broken, Clause, NotApplicable
from holdfast.conformance.store_clauses_care import CARE
from holdfast.conformance.store_clauses_claims import CLAIMS
from holdfast.conformance.store_clauses_journal import JOURNAL
from holdfast.conformance.store_clauses_work import WORK
from holdfast.conformance.store_surface import AnyRecord, AnyReport, AnyStore, Harness
from holdfast.store import open_store

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from rich.table import Table

    from holdfast.store import FakeClock

__all__ = [
    "CLAUSES",
    "AnyRecord",
    "AnyReport",
    "AnyStore",
    "Broken",
    "Clause",
    "FolderHarness",
    "Harness",
    "MemoryHarness",
    "NotApplicable",
    "Result",
    "Results",
    "run",
]

CLAUSES: tuple[Clause, ...] = (*JOURNAL.clauses, *CLAIMS.clauses, *WORK.clauses, *CARE.clauses)

Verdict = Literal["passed", "failed", "not_applicable"]


@dataclass(frozen=True)
class Result:
    """How a store did on one clause."""

    clause: Clause
    verdict: Verdict
    reason: str = ""
    """What is wrong, or why the clause could not be tried."""

    def __str__(self) -> str:
        told = f"{self.verdict.replace('_', ' ')}: {self.clause.id}: {self.clause.text}"
        return f"{told}\n    {self.reason}" if self.reason else told


@dataclass(frozen=True)
class Results:
    """How a store did on all of them."""

    results: tuple[Result, ...]

    def __iter__(self) -> Iterator[Result]:
        return iter(self.results)

    def __len__(self) -> int:
        return len(self.results)

    def __getitem__(self, clause: str) -> Result:
        return next(result for result in self if result.clause.id == clause)

    def ids(self, verdict: Verdict) -> list[str]:
        """The ids of the clauses with that verdict, in order."""
        return [result.clause.id for result in self if result.verdict == verdict]

    @property
    def ok(self) -> bool:
        """No clause failed, and at least one was kept."""
        return not self.ids("failed") and bool(self.ids("passed"))

    def __str__(self) -> str:
        counts = ", ".join(f"{len(self.ids(verdict))} {verdict.replace('_', ' ')}" for verdict in _VERDICTS)
        return "\n".join([counts, *(str(result) for result in self if result.verdict != "passed")])

    def __rich__(self) -> Table:
        from rich.table import Table

        table = Table("clause", "verdict", "what it says, or what is wrong")
        styles = {"passed": "green", "failed": "bold red", "not_applicable": "dim"}
        for result in self:
            told = result.reason or result.clause.text
            table.add_row(
                result.clause.id, result.verdict.replace("_", " "), told, style=styles[result.verdict]
            )
        return table


_VERDICTS: tuple[Verdict, ...] = ("passed", "failed", "not_applicable")


def run(
    harness: Harness,
    *,
    clauses: Iterable[Clause] = CLAUSES,
    watch: Callable[[Result], None] | None = None,
) -> Results:
    """Tries every clause, each at a new location, and goes on after one that fails.

    Args:
        harness: how to open the store.
        clauses: which ones, in this order.
        watch: hears each result as it comes.
    """
    results = []
    for clause in clauses:
        result = _tried(clause, harness)
        results.append(result)
        if watch is not None:
            watch(result)
    return Results(tuple(results))


def _tried(clause: Clause, harness: Harness) -> Result:
    try:
        clause.check(harness)
    except NotApplicable as reason:
        return Result(clause, "not_applicable", str(reason))
    except Broken as broken:
        return Result(clause, "failed", str(broken))
    return Result(clause, "passed")


class MemoryHarness:
    """Holdfast's own engine in memory."""

    def open(self, clock: FakeClock | None) -> AnyStore:
        """A new store."""
        return open_store("memory:", clock=clock)

    def reopen(self, clock: FakeClock | None) -> AnyStore:  # noqa: ARG002
        """There is only one handle on a store in memory."""
        raise NotApplicable("a store in memory has one handle")

    def destroy(self) -> None:
        """It is gone with its handle."""


class FolderHarness:
    """Holdfast's own engine on a folder, in a new subfolder of ``parent`` each time."""

    def __init__(self, parent: Path) -> None:
        self._parent = parent
        self._folder = ""

    def open(self, clock: FakeClock | None) -> AnyStore:
        """A new store."""
        self._folder = tempfile.mkdtemp(dir=self._parent)
        return open_store(self._folder, clock=clock)

    def reopen(self, clock: FakeClock | None) -> AnyStore:
        """Another handle on it."""
        return open_store(self._folder, clock=clock)

    def destroy(self) -> None:
        """Removes the folder."""
        shutil.rmtree(self._folder)
