"""Canonical bytes as Python sees them: the vectors that Rust reads too, and PyPI's encoder as a judge."""

from __future__ import annotations

import doctest
import enum
import gc
import hashlib
import json
import math
import struct
from collections import OrderedDict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import rfc8785
from hypothesis import given
from hypothesis import strategies as st

from holdfast import canonical
from holdfast.errors import CanonicalError, HoldfastError

if TYPE_CHECKING:
    import random

FIXTURES = Path(__file__).parent.parent / "fixtures" / "canonical"
INTEGER_MAX = 2**53 - 1


def vectors(name: str) -> list[dict[str, str]]:
    rows: list[dict[str, str]] = json.loads((FIXTURES / name).read_text(encoding="utf-8"))
    return rows


def refusal(function: Any, *args: Any, **options: Any) -> CanonicalError:
    with pytest.raises(CanonicalError) as caught:
        function(*args, **options)
    return caught.value


class TestVectors:
    @pytest.mark.parametrize(
        "vector", vectors("examples.json") + vectors("numbers.json"), ids=lambda v: v["name"]
    )
    def test_accepted_text_has_its_bytes(self, vector: dict[str, str]) -> None:
        expected = vector["bytes"].encode()
        for text in (vector["input"], vector["input"].encode()):
            assert canonical.dumps_text(text) == expected
            assert canonical.dumps(canonical.loads(text)) == expected
        assert canonical.dumps_text(expected) == expected

    @pytest.mark.parametrize("vector", vectors("refusals.json"), ids=lambda v: v["name"])
    def test_refused_text_gives_its_code_and_path(self, vector: dict[str, str]) -> None:
        text = vector["input"].encode() if "input" in vector else bytes.fromhex(vector["input_hex"])
        for read in (canonical.dumps_text, canonical.loads):
            error = refusal(read, text)
            assert error.code == vector["error"]
            assert error.path == vector.get("path", error.path)

    def test_every_double_has_the_text_that_ecmascript_gives_it(self) -> None:
        rows = vectors("doubles.json")
        assert len(rows) > 400
        for row in rows:
            (number,) = struct.unpack(">d", bytes.fromhex(row["hex"]))
            if "error" in row:
                assert refusal(canonical.dumps, number).code == row["error"], row
            else:
                assert canonical.dumps(number) == row["text"].encode(), row
                assert canonical.loads(row["text"]) == number, row


def values() -> st.SearchStrategy[Any]:
    """Anything of the exact types, sound or not: huge integers, NaN, surrogates, odd keys, tuples."""
    text = st.text(st.characters(exclude_categories=[]), max_size=12)
    key = st.text(st.sampled_from('ab\x00\n"\\/ \x7f\x80\ud7ff\ue000\uffff\U00010000\U0010ffff'), max_size=10)
    whole = st.integers(-INTEGER_MAX - 2, INTEGER_MAX + 2) | st.integers() | st.integers(-9, 9)
    scalar = st.none() | st.booleans() | whole | st.floats() | text | key
    return st.recursive(
        scalar,
        lambda inner: st.one_of(
            st.lists(inner, max_size=5),
            st.lists(inner, max_size=5).map(tuple),
            st.dictionaries(key | text, inner, max_size=6),
        ),
        max_leaves=30,
    )


def judged(value: Any) -> bytes | None:
    """What PyPI's ``rfc8785`` writes, or None where it refuses.

    The two may differ in three places only, none of which ``values`` reaches: it takes subclasses, it
    has no limits on depth or size, and it has no reader. One is a difference in how it refuses: a lone
    surrogate in a key escapes from it as a bare UnicodeEncodeError.
    """
    try:
        return rfc8785.dumps(value)
    except (rfc8785.CanonicalizationError, UnicodeEncodeError):
        return None


def as_lists(value: Any) -> Any:
    """The value as JSON text would give it back: tuples are lists there."""
    if isinstance(value, list | tuple):
        return [as_lists(item) for item in value]
    if isinstance(value, dict):
        return {key: as_lists(member) for key, member in value.items()}
    return value


class TestAgainstSomebodyElse:
    @given(values())
    def test_both_write_the_same_bytes_or_both_refuse(self, value: Any) -> None:
        expected = judged(value)
        if expected is None:
            refused = refusal(canonical.dumps, value)
            assert refused.code in {"integer_too_large", "not_finite", "lone_surrogate"}
            assert refused.path
            assert refused.path.startswith("$")
        else:
            assert canonical.dumps(value) == expected
            assert canonical.loads(expected) == as_lists(value)
            assert canonical.dumps(canonical.loads(expected)) == expected

    @given(values(), st.randoms(use_true_random=False), st.sampled_from([None, 1, "\t"]), st.booleans())
    def test_the_way_it_was_written_does_not_matter(
        self, value: Any, dice: random.Random, indent: int | str | None, ascii_only: bool
    ) -> None:
        expected = judged(value)
        if expected is None:
            return
        text = json.dumps(shuffled(as_lists(value), dice), indent=indent, ensure_ascii=ascii_only)
        assert canonical.dumps_text(text) == expected

    @given(st.binary(max_size=60) | st.text(max_size=60).map(str.encode))
    def test_any_bytes_give_a_value_or_an_error_with_a_code(self, text: bytes) -> None:
        try:
            value = canonical.loads(text)
        except CanonicalError as error:
            codes = {
                "bad_json",
                "lone_surrogate",
                "integer_too_large",
                "number_out_of_range",
                "duplicate_key",
            }
            refused = error.code in codes
            assert refused
        else:
            assert canonical.dumps(value) == canonical.dumps_text(text) == rfc8785.dumps(value)


def shuffled(value: Any, dice: random.Random) -> Any:
    """The same value with the members of its objects in another order."""
    if isinstance(value, list):
        return [shuffled(item, dice) for item in value]
    if isinstance(value, dict):
        members = [(key, shuffled(member, dice)) for key, member in value.items()]
        dice.shuffle(members)
        return dict(members)
    return value


class Text(str):
    __slots__ = ()


class Colour(enum.StrEnum):
    RED = "red"


class Level(enum.IntEnum):
    LOW = 1


class Whole(int):
    pass


class Real(float):
    pass


class Items(list[int]):
    pass


class TestExactTypes:
    @pytest.mark.parametrize(
        "odd",
        [
            Text("a"), Colour.RED, Level.LOW, Whole(1), Real(1.0), Items(), OrderedDict(), b"a", bytearray(),
            {1}, frozenset(), 1j, object(), int, range(3), math, ..., iter([]),
        ],
        ids=lambda odd: type(odd).__qualname__,
    )  # fmt: skip
    def test_anything_but_the_exact_types_is_refused_where_it_stands(self, odd: object) -> None:
        error = refusal(canonical.dumps, {"rows": [1, (None, {"odd": odd})]})
        assert (error.code, error.path) == ("not_json", "$.rows[1][1].odd")
        assert type(odd).__qualname__ in str(error)

    @pytest.mark.parametrize("key", [1, 1.5, None, True, b"a", (), Text("a"), Colour.RED], ids=repr)
    def test_keys_are_exactly_strings(self, key: object) -> None:
        error = refusal(canonical.dumps, [{"b": 1, key: 2}])
        assert (error.code, error.path) == ("key_not_string", "$[0]")

    @pytest.mark.parametrize("text", [None, 1, [], bytearray(b"{}"), memoryview(b"{}")], ids=type)
    def test_text_is_str_or_bytes(self, text: Any) -> None:
        for read in (canonical.loads, canonical.dumps_text):
            assert refusal(read, text).code == "not_json"


class TestErrors:
    @pytest.mark.parametrize(
        ("value", "code", "path"),
        [
            (math.nan, "not_finite", "$"),
            ([0, -math.inf], "not_finite", "$[1]"),
            ({"a_1": {"b": 2**53}}, "integer_too_large", "$.a_1.b"),
            ({"a": [10**400]}, "integer_too_large", "$.a[0]"),
            ({"": "\ud800"}, "lone_surrogate", '$[""]'),
            ({"odd key": "\udfff"}, "lone_surrogate", '$["odd key"]'),
            ({"\u00e9\n": {1}}, "not_json", '$["\\u{e9}\\n"]'),
            ({"k" * 70: {1}}, "not_json", '$["' + "k" * 32 + '..."]'),
            ([{"\ud800": 1}], "lone_surrogate", "$[0]"),
            ({"z": 1, "a": [{"m": [math.nan]}]}, "not_finite", "$.a[0].m[0]"),
        ],
    )
    def test_an_error_says_what_and_where_and_what_to_do(self, value: object, code: str, path: str) -> None:
        error = refusal(canonical.dumps, value)
        assert (error.code, error.path) == (code, path)
        assert error.fix
        assert str(error).startswith(f"{code}: ")
        assert str(error).endswith(error.fix)
        assert isinstance(error, HoldfastError)
        assert isinstance(error, ValueError)

    def test_an_error_does_not_show_the_value(self) -> None:
        for value in ({"token": {"hunter2"}}, "hunter2\ud800", ["hunter2", 2**60]):
            assert "hunter2" not in str(refusal(canonical.dumps, value))

    def test_after_an_error_the_next_call_is_as_good_as_new(self) -> None:
        expected = canonical.digest({"a": [1, {"b": None}]})
        for bad in ([[{"x": {1}}]], {"k": {"k": math.nan}}, "\ud800"):
            refusal(canonical.digest, bad)
            assert canonical.digest({"a": [1, {"b": None}]}) == expected
            assert canonical.dumps([]) == b"[]"

    def test_depth_is_counted_alike_for_objects_and_text(self) -> None:
        deep: object = 1
        for _ in range(64):
            deep = [deep]
        assert canonical.dumps(deep) == b"[" * 64 + b"1" + b"]" * 64
        assert refusal(canonical.dumps, {"a": deep}).code == "too_deep"
        assert refusal(canonical.loads, b"[" * 65 + b"]" * 65).code == "too_deep"


class TestDigests:
    def test_a_digest_is_over_the_domains_line_and_the_bytes(self) -> None:
        value: Any = {"order": "42", "cents": 1999.0}
        for domain in ("holdfast/value/v1", "acme/invoice/v1", "a"):
            plain = hashlib.sha256(f"{domain}\n".encode() + rfc8785.dumps(value)).hexdigest()
            assert canonical.digest(value, domain=domain) == f"sha256:{plain}"
        assert canonical.digest(value) == canonical.digest(value, domain="holdfast/value/v1")

    def test_one_value_has_another_digest_in_every_domain(self) -> None:
        domains = ["a", "b", "holdfast/value/v1", "holdfast/record/v1", "holdfast/content/v1"]
        assert len({canonical.digest({}, domain=domain) for domain in domains}) == len(domains)

    def test_a_domain_cannot_reach_into_the_value(self) -> None:
        for domain in ("", "a\n", "a\n{}", "A", "a b", "\u00e9", "a" * 65, "a\x00"):
            assert refusal(canonical.digest, {}, domain=domain).code == "bad_domain"

    def test_the_largest_domain_and_every_character_are_taken(self) -> None:
        assert canonical.digest({}, domain="a" * 64).startswith("sha256:")
        assert canonical.digest({}, domain="az09._-/").startswith("sha256:")

    @given(values(), values())
    def test_digests_are_equal_exactly_when_the_bytes_are(self, one: Any, other: Any) -> None:
        if judged(one) is not None and judged(other) is not None:
            assert (canonical.digest(one) == canonical.digest(other)) == (judged(one) == judged(other))


class TestRoundTrips:
    def test_numbers_come_back_as_the_simplest_python_number(self) -> None:
        found = canonical.loads("[1.0, 1, 1e2, -0.0, 1.5, 9007199254740992, 1e21]")
        assert isinstance(found, list)
        assert [(type(number), number) for number in found] == [
            (int, 1), (int, 1), (int, 100), (int, 0), (float, 1.5), (float, 2.0**53), (float, 1e21),
        ]  # fmt: skip

    def test_one_and_one_point_zero_are_one_value(self) -> None:
        assert canonical.digest({"n": 1}) == canonical.digest({"n": 1.0})
        assert canonical.digest([0.0]) == canonical.digest([-0.0]) == canonical.digest((0,))

    def test_the_examples_in_the_documentation_hold(self) -> None:
        assert doctest.testmod(canonical) == (0, 4)


JUNK: list[str] = []


class Clearing:
    """Garbage in a cycle; its finalizer empties the value that is being encoded, and encodes itself."""

    def __init__(self, target: dict[str, object]) -> None:
        self.target = target
        self.itself = self

    def __del__(self) -> None:
        self.target.clear()
        JUNK.extend(f"{n:047d}" for n in range(5000))  # where the key was, if it was freed
        canonical.dumps({"from": "a finalizer"})


def path_of_surrogate(key: list[str]) -> str | None:
    """Where a lone surrogate is said to stand, with garbage waiting for the next collection."""
    value: dict[str, object] = {"".join(key): ["\ud800"]}
    gc.disable()
    Clearing(value)
    gc.enable()
    try:
        canonical.dumps(value)
    except CanonicalError as refused:
        return refused.path
    return None


def test_finalizers_do_not_run_in_the_middle_of_a_walk() -> None:
    was = gc.get_threshold()
    gc.collect()
    gc.set_threshold(1, 1, 1)
    try:
        keys = [["key_", f"{n:03d}", "q" * 40] for n in range(20)]
        assert [path_of_surrogate(key) for key in keys] == [f"$.{''.join(key)}[0]" for key in keys]
    finally:
        gc.set_threshold(*was)
        gc.collect()
    assert gc.isenabled(), "the collector is on again"
