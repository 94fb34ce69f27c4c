"""The conformance suite for sandboxes: run it on yours.

    from holdfast.conformance.sandboxes import CLAUSES, run

    results = run(MyHarness())            # a result per clause
    assert results.ok, results

    @pytest.mark.parametrize("clause", CLAUSES, ids=str)
    def test_my_sandbox(clause):          # or a test per clause
        clause.check(MyHarness())

The contract is that of :mod:`holdfast.sandbox.base`. Whatever a sandbox says that it enforces is attacked by
a body that tries to get it all the same; what it does not claim is not tried, and the result says so. A
harness makes a sandbox of yours, see :class:`Harness`. docs/CONFORMANCE.md tells more.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.conformance import sandbox_bodies, suite
from holdfast.conformance.sandboxes_clauses_ends import ENDS
from holdfast.conformance.sandboxes_clauses_guards import GUARDING
from holdfast.conformance.sandboxes_clauses_words import WORDS
from holdfast.conformance.sandboxes_surface import Harness
from holdfast.conformance.suite import Broken, NotApplicable, Result, Results

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

__all__ = [
    "BODIES",
    "CLAUSES",
    "Broken",
    "Clause",
    "Harness",
    "NotApplicable",
    "Result",
    "Results",
    "run",
]

BODIES = Path(sandbox_bodies.__file__)
"""The file of the bodies: it stands alone, and may lie on a path of the sandbox's own."""

Clause = suite.Clause[Harness]
CLAUSES: tuple[Clause, ...] = (*WORDS.clauses, *ENDS.clauses, *GUARDING.clauses)


def run(
    harness: Harness,
    *,
    clauses: Iterable[Clause] = CLAUSES,
    watch: Callable[[Result], None] | None = None,
) -> Results:
    """Tries every clause, each on a new sandbox, and goes on after one that fails.

    Args:
        harness: how to make the sandbox.
        clauses: which ones, in this order.
        watch: hears each result as it comes.
    """
    return suite.tried(clauses, harness, watch)
