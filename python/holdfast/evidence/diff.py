"""What differs between two runs, by dimension. Lists are aligned, so that one more event is one difference
and not all that follow; ids and times never count.
"""

from __future__ import annotations

from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import TYPE_CHECKING, Any

from holdfast import _core
from holdfast.evidence.picture import Dimension
from holdfast.visible import Shown

if TYPE_CHECKING:
    from collections.abc import Iterator

Json = dict[str, Any]


@dataclass(frozen=True)
class Difference(Shown):
    """One thing that the one run has and the other has not, or has otherwise."""

    dimension: Dimension
    where: str
    """A path in the dimension: ``[3]`` of a list, ``.a.b`` of a tree."""
    one: Any
    """None if only the other has it."""
    other: Any

    def __str__(self) -> str:
        return f"{self.dimension}{self.where}: {self.one!r} and {self.other!r}"


@dataclass(frozen=True)
class Diff(Shown):
    """The differences of two runs."""

    _verdict = ("same",)

    differences: tuple[Difference, ...]

    @property
    def same(self) -> bool:
        """There are none."""
        return not self.differences

    @property
    def dimensions(self) -> frozenset[Dimension]:
        """Those that differ."""
        return frozenset(one.dimension for one in self.differences)

    def of(self, dimension: Dimension | str) -> tuple[Difference, ...]:
        """The differences of one dimension."""
        return tuple(one for one in self.differences if one.dimension == dimension)


def diff(one: Json, other: Json) -> Diff:
    """What differs between two pictures."""
    found: list[Difference] = []
    for dimension in Dimension:
        for where, here, there in _compared(one[dimension], other[dimension], ""):
            found.append(Difference(dimension, where, here, there))
    return Diff(tuple(found))


def _compared(one: Any, other: Any, where: str) -> Iterator[tuple[str, Any, Any]]:  # noqa: ANN401 (JSON)
    if isinstance(one, dict) and isinstance(other, dict):
        for name in sorted({*one, *other}):
            yield from _compared(one.get(name), other.get(name), f"{where}.{name}")
    elif isinstance(one, list) and isinstance(other, list):
        yield from _aligned(one, other, where)
    elif _text(one) != _text(other):  # True is no 1 here
        yield where, one, other


def _aligned(one: list[Any], other: list[Any], where: str) -> Iterator[tuple[str, Any, Any]]:
    """What stands in the one list and not in the other, after both were laid side by side."""
    matcher = SequenceMatcher(
        None, [_text(item) for item in one], [_text(item) for item in other], autojunk=False
    )
    for tag, first, last, begin, end in matcher.get_opcodes():
        if tag == "equal":
            continue
        pairs = min(last - first, end - begin)
        for at in range(pairs):
            yield f"{where}[{first + at}]", one[first + at], other[begin + at]
        for at in range(first + pairs, last):
            yield f"{where}[{at}]", one[at], None
        for at in range(begin + pairs, end):
            yield f"{where}[{at}]", None, other[at]


def _text(value: object) -> bytes:
    return _core.canonical_dumps(value)
