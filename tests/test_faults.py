"""Values with up to three faults at random places: both languages refuse them with the same code at the
same place, or both read them. What has one fault each stands in the fixtures.
"""

from __future__ import annotations

import copy
import random
from typing import TYPE_CHECKING, Any

import pytest
from tests.support import fixture, names, refusal

from holdfast import _core, canonical
from holdfast.contracts import read_contract
from holdfast.records import read_record

if TYPE_CHECKING:
    from collections.abc import Iterator

CASES = 1500
ODD: list[Any] = [
    7,
    -1,
    2**40,
    1.5,
    True,
    None,
    "",
    "\n",
    "x",
    "deny",
    "run_42",
    [],
    ["a"],
    {},
    {"type": "deny"},
]
NEW = ["A", "aa", "mode", "payload", "type", "zz"]


def places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of every value inside."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for step, part in inside:
        yield (*at, step)
        yield from places(part, (*at, step))


def spoiled(value: Any, chance: random.Random) -> Any:
    value = copy.deepcopy(value)
    for _ in range(chance.randint(1, 3)):
        found = list(places(value))
        if not found:
            break
        *path, last = chance.choice(found)
        node = value
        for step in path:
            node = node[step]
        what = chance.choice(["other", "other", "gone", "new"])
        if what == "gone":
            del node[last]
        elif what == "other":
            node[last] = copy.deepcopy(chance.choice(ODD))
        elif isinstance(node, dict):
            node[chance.choice(NEW)] = chance.choice(ODD[:4])
    return value


def ends(work: Any, *arguments: object) -> tuple[str, str | None]:
    code, path = refusal(work, *arguments)
    return code.partition(":")[0], path


@pytest.mark.parametrize("seed", range(4))
def test_contracts_with_several_faults_end_the_same_in_both_languages(seed: int) -> None:
    chance = random.Random(seed)
    goods = [(name, good["value"]) for name in names("contracts") for good in both(f"contracts/{name}")]
    for _ in range(CASES):
        name, good = chance.choice(goods)
        bad = spoiled(good, chance)
        assert ends(read_contract, name, bad) == ends(_core.contract_check, name, bad), (name, bad)


@pytest.mark.parametrize("seed", range(4))
def test_records_with_several_faults_end_the_same_in_both_languages(seed: int) -> None:
    chance = random.Random(seed)
    goods = [good["record"] for kind in names("records") for good in both(f"records/{kind}")]
    for _ in range(CASES):
        bad = canonical.dumps(spoiled(chance.choice(goods), chance))
        assert ends(read_record, bad) == ends(_core.record_check, bad), bad


def both(name: str) -> list[Any]:
    found: list[Any] = fixture(f"{name}.json")["good"]
    return found
