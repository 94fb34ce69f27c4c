"""The conformance suite for stores: run it on yours.

    from holdfast.conformance.store import CLAUSES, run

    results = run(MyHarness())            # a result per clause
    assert results.ok, results

    @pytest.mark.parametrize("clause", CLAUSES, ids=str)
    def test_my_store(clause):            # or a test per clause
        clause.check(MyHarness())

A harness says how to open a store of yours at a new place, see :class:`Harness`; :class:`MemoryHarness`,
:class:`FolderHarness` and :class:`PostgresHarness` are those of Holdfast's own engines. Ids of clauses are
stable. docs/CONFORMANCE.md tells more.
"""

from __future__ import annotations

import secrets
import shutil
import tempfile
from typing import TYPE_CHECKING

from holdfast.conformance import suite
from holdfast.conformance.store_clauses_care import CARE
from holdfast.conformance.store_clauses_claims import CLAIMS
from holdfast.conformance.store_clauses_journal import JOURNAL
from holdfast.conformance.store_clauses_work import WORK
from holdfast.conformance.store_surface import AnyRecord, AnyReport, AnyStore, Harness
from holdfast.conformance.suite import Broken, NotApplicable, Result, Results
from holdfast.store import open_store

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

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
    "PostgresHarness",
    "Result",
    "Results",
    "run",
]

Clause = suite.Clause[Harness]
CLAUSES: tuple[Clause, ...] = (*JOURNAL.clauses, *CLAIMS.clauses, *WORK.clauses, *CARE.clauses)


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
    return suite.tried(clauses, harness, watch)


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


class PostgresHarness:
    """Holdfast's own engine on PostgreSQL, in a new schema of a database each time.

    Args:
        url: the database, without a schema. The schemas that are made in it stay there.
    """

    def __init__(self, url: str) -> None:
        self._database = url
        self._url = ""

    def open(self, clock: FakeClock | None) -> AnyStore:
        """A new store."""
        mark = "&" if "?" in self._database else "?"
        self._url = f"{self._database}{mark}schema=conformance_{secrets.token_hex(8)}"
        return open_store(self._url, clock=clock)

    def reopen(self, clock: FakeClock | None) -> AnyStore:
        """Another handle on it."""
        return open_store(self._url, clock=clock)

    def destroy(self) -> None:
        """Its schema goes with the database."""
