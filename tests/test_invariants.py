"""docs/INVARIANTS.md is current: it names every mutant, and only tests that exist."""

from __future__ import annotations

import re

from tests import mutants
from tests.support import ROOT

PAGE = (ROOT / "docs" / "INVARIANTS.md").read_text()


def test_every_mutant_stands_beside_the_invariant_that_it_breaks() -> None:
    named = {
        word
        for row in PAGE.splitlines()
        if row.startswith("| ")
        for word in re.findall(r"\w+", row.split("|")[-2])
    }
    assert set(mutants.names()) - named == set(), "add the mutant to its row in docs/INVARIANTS.md"
    listed = {word for word in named if re.fullmatch(r"(?:[A-Z][a-z]+){2,}", word)}
    assert listed - set(mutants.names()) == set(), "docs/INVARIANTS.md names a mutant that does not exist"


def test_the_tests_that_hold_an_invariant_exist() -> None:
    for name in set(re.findall(r"`([\w/.]+\.(?:rs|py))`", PAGE)):
        places = [ROOT / name, ROOT / "tests" / "rust" / name]
        assert any(place.exists() for place in places), name
