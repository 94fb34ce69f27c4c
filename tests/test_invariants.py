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
    known = set(mutants.names()) | set(mutants.names(of_store=True))
    assert known - named == set(), "add the mutant to its row in docs/INVARIANTS.md"
    listed = {word for word in named if re.fullmatch(r"(?:[A-Z][a-z]+){2,}", word)}
    assert listed - known == set(), "docs/INVARIANTS.md names a mutant that does not exist"


def test_the_tests_that_hold_an_invariant_exist() -> None:
    for name in set(re.findall(r"`([\w/.]+\.(?:rs|py))`", PAGE)):
        places = [ROOT / name, ROOT / "tests" / "rust" / name]
        assert any(place.exists() for place in places), name


def test_every_mutant_of_the_store_is_planted_by_a_test_with_real_processes() -> None:
    planting = [*(ROOT / "tests" / "faults").glob("*.py"), ROOT / "tests" / "test_cli_store.py"]
    text = "".join(path.read_text() for path in planting)
    assert [name for name in mutants.names(of_store=True) if f'"{name}"' not in text] == []
