"""Engines that are wrong in one way each, and the clauses that each of them breaks.

They show that the suite notices: an engine that breaks another set of clauses than the one written beside
it fails the test, so a clause that no longer bites is seen.
"""

from tests.conformance import wrong_care, wrong_claims, wrong_journal, wrong_shared, wrong_work
from tests.conformance.passing import BROKEN, BROKEN_SHARED

MODULES = (wrong_journal, wrong_claims, wrong_work, wrong_care, wrong_shared)

__all__ = ["BROKEN", "BROKEN_SHARED", "MODULES"]
