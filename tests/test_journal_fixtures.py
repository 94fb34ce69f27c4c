"""Stores that were written once open and verify, or are refused, for ever: fixtures/journal/v1."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from fixtures import make_journal
from tests.faults.replays import travelled
from tests.support import fixture

import holdfast as hf

if TYPE_CHECKING:
    from pathlib import Path

NAMES = ["clean", "flipped", "reordered", "shortened", "torn"]


@pytest.mark.parametrize("name", NAMES)
def test_a_store_of_the_first_version_is_what_it_was(name: str, tmp_path: Path) -> None:
    folder = make_journal.unpack(name, tmp_path / name)
    told = fixture(f"journal/v1/{name}.json")
    assert make_journal.told(folder) == told
    if told["verify"] == "ok":
        with hf.open(folder) as store:  # its journal, folded to the end, is the state that the store has
            assert travelled(store) == 3


def test_every_fixture_is_asked_for_and_says_something_else() -> None:
    assert sorted(make_journal.MADE) == NAMES
    told = {name: fixture(f"journal/v1/{name}.json") for name in NAMES}
    assert {name: (said["open"], said["verify"] == "ok") for name, said in told.items()} == {
        "clean": ("ok", True),
        "flipped": ("store_corrupt", False),
        "reordered": ("store_corrupt", False),
        "shortened": ("store_truncated", False),
        "torn": ("ok", True),
    }
    assert told["torn"]["records"] == told["clean"]["records"], "only what nobody was told of is missing"
