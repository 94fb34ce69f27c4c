"""Python values as JSON: what each becomes, what is refused and where, the same in every process."""

from __future__ import annotations

import datetime
import decimal
import enum
import math
import os
import subprocess
import sys
import uuid
from collections import OrderedDict, deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import pydantic
import pydantic.dataclasses
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    RootModel,
    computed_field,
    field_serializer,
    model_serializer,
)

from holdfast import canonical, values
from holdfast.errors import CanonicalError
from holdfast.values import to_json


class Text(str):
    __slots__ = ()

    def __str__(self) -> str:
        return "not this"


class Whole(int):
    pass


class Real(float):
    pass


class Colour(enum.Enum):
    RED = "red"
    PRIMARY = frozenset({"red", "green", "blue"})


class Point(NamedTuple):
    x: int
    y: float


@dataclass(frozen=True)
class Tag:
    name: str
    also: frozenset[str] = frozenset()


@dataclass
class Order:
    tags: set[str]
    lines: list[Tag] = field(default_factory=list)


class Customer(BaseModel):
    model_config = ConfigDict(frozen=True, extra="allow")
    name: str = Field(serialization_alias="fullName")
    groups: frozenset[str] = frozenset()
    extra: Any = None


class Groups(RootModel[set[str]]):
    pass


@pydantic.dataclasses.dataclass
class Aliased:
    groups: set[int] = Field(serialization_alias="theGroups")


class Computed(BaseModel):
    words: list[str]

    @computed_field  # type: ignore[prop-decorator]
    @property
    def distinct(self) -> set[str]:
        return set(self.words)


def refusal(value: object) -> CanonicalError:
    with pytest.raises(CanonicalError) as caught:
        to_json(value)
    return caught.value


def exact() -> st.SearchStrategy[Any]:
    scalar = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    text = st.text(st.characters(exclude_categories=[]), max_size=8)
    return st.recursive(
        scalar | text,
        lambda inner: st.lists(inner, max_size=5) | st.dictionaries(text, inner, max_size=5),
        max_leaves=20,
    )


class TestWhatValuesBecome:
    @given(exact())
    def test_exact_json_comes_back_unchanged(self, value: Any) -> None:
        found = to_json(value)
        assert found == value
        assert repr(found) == repr(value)  # so that 1 is not 1.0, and the order of keys is kept

    @pytest.mark.parametrize(
        ("value", "expected"),
        [
            (Text("x"), "x"),
            (Whole(7), 7),
            (Real(1.5), 1.5),
            (Colour.RED, "red"),
            (Colour.PRIMARY, ["blue", "green", "red"]),
            (Point(1, 2.0), [1, 2.0]),
            ((1, (2,)), [1, [2]]),
            (deque([1, 2]), [1, 2]),
            ((n for n in (1, 2)), [1, 2]),
            (map(str, (1, 2)), ["1", "2"]),
            (OrderedDict(b=1, a=2), {"b": 1, "a": 2}),
            (datetime.datetime(2025, 11, 16, 12, 30, tzinfo=datetime.UTC), "2025-11-16T12:30:00Z"),
            (datetime.date(2025, 11, 16), "2025-11-16"),
            (datetime.timedelta(days=1, seconds=1), "P1DT1S"),
            (decimal.Decimal("1.10"), "1.10"),
            (decimal.Decimal("NaN"), "NaN"),
            (uuid.UUID(int=1), "00000000-0000-0000-0000-000000000001"),
            (Path("a/b"), "a/b"),
            (b"caf\xc3\xa9", "caf\u00e9"),
            ({3, 1, 2, 10}, [1, 10, 2, 3]),
            ({"b", 1, None, (2, "x")}, ["b", 1, [2, "x"], None]),
            ({frozenset({2, 1}), frozenset({1})}, [[1, 2], [1]]),
            ({1: "a", None: "b", 1.5: "c", Colour.RED: "d"}, {"1": "a", "None": "b", "1.5": "c", "red": "d"}),
            (Order({"b", "a"}, [Tag("t", frozenset({"y", "x"}))]),
             {"tags": ["a", "b"], "lines": [{"name": "t", "also": ["x", "y"]}]}),
            (Customer(name="Ada", groups=frozenset({"z", "y"}), more={"q", "p"}),
             {"fullName": "Ada", "groups": ["y", "z"], "extra": None, "more": ["p", "q"]}),
            (Customer(name="Ada", extra=Colour.PRIMARY),
             {"fullName": "Ada", "groups": [], "extra": ["blue", "green", "red"]}),
            (Groups({"b", "a"}), ["a", "b"]),
            (Aliased(groups={2, 1}), {"theGroups": [1, 2]}),
            (Computed(words=["b", "a", "b"]), {"words": ["b", "a", "b"], "distinct": ["a", "b"]}),
            ({Tag("a"), Tag("b", frozenset({"2", "1"}))},
             [{"also": ["1", "2"], "name": "b"}, {"also": [], "name": "a"}]),
        ],
        ids=lambda value: type(value).__name__,
    )  # fmt: skip
    def test_each_kind_becomes(self, value: object, expected: object) -> None:
        found = to_json(value)
        assert found == expected
        assert canonical.dumps(found)  # exact types only, all the way down

    def test_sets_of_models_with_sets_are_sorted_inside_out(self) -> None:
        class Team(BaseModel):
            members: set[Customer]

        crew = Team(members={Customer(name=n, groups=frozenset({"z" + n, "a" + n})) for n in "cab"})
        assert to_json({"team": [crew]}) == {
            "team": [{"members": [
                {"fullName": n, "groups": ["a" + n, "z" + n], "extra": None} for n in "abc"
            ]}]
        }  # fmt: skip

    def test_a_serializer_that_makes_text_of_a_set_is_respected(self) -> None:
        class Joined(BaseModel):
            tags: set[str]

            @field_serializer("tags")
            def join(self, tags: set[str]) -> str:
                return ",".join(sorted(tags))

        assert to_json(Joined(tags={"b", "a"})) == {"tags": "a,b"}

    def test_the_limits_are_those_of_the_core(self) -> None:
        deep: object = [Text("x")]
        for _ in range(values.DEPTH_MAX - 1):
            deep = [deep]
        assert canonical.dumps(to_json(deep)).count(b"[") == values.DEPTH_MAX
        with pytest.raises(CanonicalError, match="too_deep"):
            canonical.dumps([to_json(deep)])
        assert refusal([Text("x"), deep]).code == "too_deep"


class TestRefusals:
    @pytest.mark.parametrize(
        ("value", "code", "path"),
        [
            (math.nan, "not_finite", "$"),
            ({"a": [1, Real("inf")]}, "not_finite", "$.a[1]"),
            ({math.nan: 1}, "not_finite", "$"),
            ({"s": {math.inf}}, "not_finite", "$.s"),
            (Customer(name="a", extra={"b c": [-math.inf]}), "not_finite", '$.extra["b c"][0]'),
            (b"\xff", "not_json", "$"),
            ({"raw": [b"\xff\xfe"]}, "not_json", "$.raw[0]"),
            (Customer(name="a", extra=b"\xff"), "not_json", "$"),
            ([object()], "not_json", "$[0]"),
            ([int], "not_json", "$[0]"),
            ({1: "a", "1": "b"}, "duplicate_key", "$.1"),
            (Customer(name="a", extra={1: "a", "1": "b"}), "duplicate_key", "$.extra.1"),
            ({(1, 2): 3}, "key_not_string", "$"),
            ([{frozenset(): 3}], "key_not_string", "$[0]"),
            (Customer(name="a", extra=iter([1])), "not_json", "$.extra"),
            ({"k" * 70: {"\u00e9'\t": object()}}, "not_json", '$["' + "k" * 32 + '..."]["\\u{e9}\\\'\\t"]'),
        ],
    )
    def test_what_has_no_json_form_is_refused_where_it_stands(
        self, value: object, code: str, path: str
    ) -> None:
        error = refusal(value)
        assert (error.code, error.path) == (code, path)
        assert error.fix

    @pytest.mark.parametrize(
        "key", ["", "a_1", "a b", "\u00e9'\"\\\n\x00", "k" * 64, "k" * 65, "\U0001f600" * 33]
    )
    def test_paths_are_spelled_as_the_core_spells_them(self, key: str) -> None:
        with pytest.raises(CanonicalError) as caught:
            canonical.dumps({key: [object()]})
        assert refusal({key: [object()]}).path == caught.value.path

    def test_an_error_does_not_show_the_value(self) -> None:
        for value in ({"hunter2"}, {"key": b"hunter2\xff"}, Customer(name="hunter2", extra=object())):
            if isinstance(value, set):
                value.add(math.nan)  # type: ignore[arg-type]
            assert "hunter2" not in str(refusal(value))

    def test_endless_and_self_containing_values_end(self) -> None:
        loop: list[object] = []
        loop.append(loop)
        assert refusal(loop).code == "too_deep"
        assert refusal(Customer(name="a", extra=loop)).code == "too_deep"
        assert refusal(iter(int, 1)).code == "too_many_values"
        bomb: list[object] = [Text("x")]
        for _ in range(60):
            bomb = [bomb, bomb]
        assert refusal(bomb).code == "too_many_values"
        assert refusal(Customer(name="a", extra=bomb)).code == "too_many_values"

    def test_a_set_that_a_serializer_changed_beyond_recognition_is_refused(self) -> None:
        class Some(BaseModel):
            tags: set[str]

            @field_serializer("tags")
            def some(self, tags: set[str]) -> list[str]:
                return [tag for tag in tags if tag != "secret"]

        class Renamed(BaseModel):
            tags: set[str]

            @model_serializer
            def renamed(self) -> dict[str, Any]:
                return {"labels": list(self.tags)}

        class Reordered(BaseModel):
            parts: dict[str, Any]

            @field_serializer("parts")
            def backwards(self, parts: dict[str, Any]) -> dict[str, Any]:
                return {key: parts[key] for key in reversed(parts)}

        class Twice(BaseModel):
            @computed_field  # type: ignore[prop-decorator]
            @property
            def nested(self) -> set[frozenset[str]]:
                return {frozenset("ab"), frozenset("cd")}

        assert (refusal(Some(tags={"a", "secret"})).code, refusal(Some(tags={"secret"})).path) == (
            "not_json",
            "$.tags",
        )
        assert refusal([Renamed(tags={"a"})]).path == "$[0]"
        assert refusal(Reordered(parts={"a": {1, 2}, "b": [3, 4]})).path == "$.parts"
        assert (refusal(Twice()).code, refusal(Twice()).path) == ("not_json", "$.nested")

    def test_what_a_users_own_code_raises_is_kept_as_the_cause(self) -> None:
        class Broken(BaseModel):
            @computed_field  # type: ignore[prop-decorator]
            @property
            def field(self) -> int:
                raise LookupError("theirs")

        error = refusal({"m": Broken()})
        assert (error.code, error.path) == ("not_json", "$.m")
        assert isinstance(error.__cause__, LookupError)


STORY = """
import sys
sys.path.insert(0, sys.argv[1])
from test_values import Colour, Computed, Customer, Groups, Order, Tag
from holdfast import canonical
from holdfast.values import to_json

words = [f"word-{n}" for n in range(50)]
story = {
    "plain": set(words),
    "nested": {frozenset(words[n : n + 7]) for n in range(40)},
    "colour": Colour.PRIMARY,
    "order": Order(set(words), [Tag(w, frozenset(words[:9])) for w in words[:5]]),
    "customers": {Customer(name=w, groups=frozenset(words[5:15])) for w in words},
    "computed": Computed(words=words),
    "groups": [Groups(set(words)), (Groups(set(words[3:])),)],
}
print(canonical.digest(to_json(story)), list(story["plain"])[:3], sep="|")
"""


def test_every_process_makes_the_same_bytes() -> None:
    digests, orders = set(), set()
    for seed in ("0", "1", "2", "3"):
        command = [sys.executable, "-c", STORY, str(Path(__file__).parent)]
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=60, check=True
        )
        digest, order = done.stdout.strip().split("|")
        digests.add(digest)
        orders.add(order)
    assert len(orders) > 1, "the sets came in one order every time, so this test shows nothing"
    assert len(digests) == 1
