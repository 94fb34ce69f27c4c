"""The twins agree: the tables of kinds, and the schemas of both languages as one normalised table.

When one of these fails, the core is right until somebody decides otherwise: edit the Python twin (or add
the field to the core first), then make the fixtures again.
"""

from __future__ import annotations

import re
from typing import Any

import pytest
from fixtures import envelope
from fixtures.tables import Row, Table
from pydantic import TypeAdapter
from tests.support import ROOT, fixture

from holdfast import _core
from holdfast.contracts import CONTRACTS
from holdfast.records import BODIES, KINDS
from holdfast.records.record import _SHAPE

CORE: Any = _core.schemas()
ADAPTERS: dict[str, TypeAdapter[Any]] = {kind: TypeAdapter(body) for kind, body in BODIES.items()} | CONTRACTS
NAMES = [*CORE["kinds"], *CORE["contracts"]]


def rust(name: str) -> list[Row]:
    schema = CORE["kinds"].get(name) or CORE["contracts"][name]
    return Table(CORE["$defs"]).rows(schema)


def python(name: str) -> list[Row]:
    schema = ADAPTERS[name].json_schema(mode="validation")
    return Table(schema.get("$defs", {})).rows(schema)


def spelled(row: Row) -> str:
    must = "required" if row.required else "optional"
    return f"{row.path}: {row.type}, {must}{', one of ' if row.tokens else ''}{' '.join(row.tokens)}"


def test_every_kind_has_a_body_in_the_same_order() -> None:
    missing = [
        f"add {kind!r} to BODIES in python/holdfast/records/record.py" for kind in KINDS if kind not in BODIES
    ]
    assert not missing
    assert list(BODIES) == [*KINDS, "x.*"], "order BODIES as rust/core/src/records/kinds.rs does"
    assert len(set(BODIES.values())) == len(BODIES)


@pytest.mark.parametrize("name", NAMES)
def test_the_schemas_are_one_table(name: str) -> None:
    there, here = rust(name), python(name)
    model = getattr(ADAPTERS[name], "_type", name)
    fix = f"the twin of {name} differs; in Python's {getattr(model, '__name__', model)}:\n"
    fix += "".join(f"  add or change to  {spelled(row)}\n" for row in there if row not in here)
    fix += "".join(f"  remove or change  {spelled(row)}\n" for row in here if row not in there)
    assert here == there, fix
    assert there or name in {"run.paused"}, "a schema without fields"


@pytest.mark.parametrize("info", KINDS.values(), ids=list(KINDS))
def test_the_positions_of_contents_are_those_of_the_schema(info: Any) -> None:
    found = {re.sub("<[^>]*>", "", row.path) for row in rust(info.token) if row.type == "content"}
    fix = f"list these positions for {info.token} in rust/core/src/records/kinds.rs: {sorted(found)}"
    assert sorted(found) == sorted(info.contents), fix


def test_the_envelope_is_the_table_that_is_written_down_by_hand() -> None:
    schema = _SHAPE.json_schema(mode="validation")
    here = Table(schema["$defs"]).rows(schema)
    assert here == sorted(envelope.ROWS), "\n".join(map(spelled, {*here} ^ {*envelope.ROWS}))
    page = (ROOT / "docs" / "FORMAT.md").read_text().partition("## Records")[2].partition("\n\nTypes:")[0]
    shown = re.findall(r"^\| `(\w+)`( \?)? \|", page, re.MULTILINE)
    fields = [(row.path, row.required) for row in envelope.ROWS if row.path.isidentifier()]
    assert [(name, not optional) for name, optional in shown] == fields, "docs/FORMAT.md, Records"


def test_every_field_of_the_envelope_has_its_faults_in_the_fixtures() -> None:
    """So that the core, which exports no schema of it, is held to the same table."""
    found = fixture("records/note.logged.json")
    names = [bad["name"] for bad in found["refused"]]
    for row in envelope.ROWS:
        begin = "_".join(map(str, envelope.steps(row)))
        absent = [] if row.path.endswith("]") else [f"{begin}_{'missing' if row.required else 'null'}"]
        expected = {*absent, *(f"{begin}_{about}" for about, *_ in envelope.wrong(row))}
        assert expected <= set(names), row
    assert "greatest" in [good["name"] for good in found["good"]]


def test_a_difference_is_seen_and_told() -> None:
    """The comparison itself: a token, a bound, a field and an option that differ are four rows."""
    one = {
        "properties": {"a": {"enum": ["x", "y"]}, "b": {"type": "integer", "format": "uint32"}},
        "required": ["a"],
    }
    other = {
        "properties": {
            "a": {"enum": ["x", "z"]},
            "b": {"type": "integer", "minimum": 0, "maximum": 2**53 - 1},
            "c": {"type": "boolean"},
        },
        "required": ["a"],
    }
    table = Table({})
    assert [spelled(row) for row in table.rows(one)] == ["a: token, required, one of x y", "b: u32, optional"]
    assert [spelled(row) for row in table.rows(other)] == [
        "a: token, required, one of x z",
        "b: u64, optional",
        "c: flag, optional",
    ]
