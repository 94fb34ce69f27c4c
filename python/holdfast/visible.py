"""Text whose every character can be seen, and values that people look at.

What comes from a store may be hostile: controls that a terminal acts on, marks that turn the direction of
what is read, characters that show nothing. Whoever prints or draws such text does it through here.
"""

from __future__ import annotations

import json
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime
from html import escape
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.table import Table

T = TypeVar("T")
NONE = "(none)"
LONGEST = 2000
"""Characters of one value that are shown."""
# Characters that count as printable and show nothing: fillers, selectors, joiners.
HIDDEN = frozenset((0x34F, 0x115F, 0x1160, 0x17B4, 0x17B5, 0x2800, 0x3164, 0xFFA0)).union(
    range(0x180B, 0x1810), range(0xFE00, 0xFE10), range(0xE0100, 0xE01F0)
)


def visible(text: str) -> str:
    r"""The text, with JSON's escape in the place of every character that cannot be seen.

    >>> visible("a\u202eb")
    'a\\u202eb'
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(char if char.isprintable() and ord(char) not in HIDDEN else _escape(char) for char in text)


def _escape(char: str) -> str:
    units = char.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))


class Shown:
    """A value that a rich terminal and a notebook show as a table: its fields, and those of what it holds.

    Nothing in it is taken for markup. Who wants the bare value has its ``repr``.
    """

    _verdict: ClassVar[tuple[str, ...]] = ()
    """Properties that say in a word what it came to; they are shown first."""
    _left_out: ClassVar[tuple[str, ...]] = ()

    def _facts(self) -> list[tuple[str, object]]:
        """Names and values; what says nothing is left out."""
        named = [(name, getattr(self, name)) for name in self._verdict] + _of(self)
        return [
            (name, value)
            for name, value in named
            if name not in self._left_out and value is not None and value not in ((), [], {})
        ]

    def __rich__(self) -> Table:
        return _table([], [[name, _cell(name, value)] for name, value in self._facts()])

    def _repr_html_(self) -> str:
        rows = [(_th(name), _td(_drawn(name, value))) for name, value in self._facts()]
        return _html(rows)


class Listing(list[T]):
    """A list that a rich terminal and a notebook show as a table, a line for each value."""

    def __rich__(self) -> Table:
        names, rows = _grid(self)
        if not rows:
            return _table([], [[NONE, ""]])
        return _table(names, [[_cell(name, row.get(name)) for name in names] for row in rows])

    def _repr_html_(self) -> str:
        names, rows = _grid(self)
        if not rows:
            return _html([[_td(NONE)]])
        drawn = [[_td(_drawn(name, row.get(name))) for name in names] for row in rows]
        return _html([[_th(name) for name in names], *drawn])


def _grid(values: Sequence[object]) -> tuple[list[str], list[dict[str, object]]]:
    """The columns that some value has something in, and the values by column."""
    rows = [dict(value._facts() if isinstance(value, Shown) else _of(value)) for value in values]
    return list(dict.fromkeys(name for row in rows for name in row)), rows


def _of(value: object) -> list[tuple[str, object]]:
    if is_dataclass(value):
        return [(one.name, getattr(value, one.name)) for one in fields(value)]
    return [("value", value)]


def _several(value: object) -> Shown | Listing[Any] | None:
    """What is shown as a table within the table."""
    if isinstance(value, Shown | Listing):
        return value
    if isinstance(value, list | tuple) and value and all(is_dataclass(one) for one in value):
        return Listing(value)
    return None


def _text(name: str, value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, str):
        text = value
    elif isinstance(value, int) and (name == "at" or name.endswith("_at")):
        text = _when(value)
    else:
        text = json.dumps(value, ensure_ascii=False, default=str, skipkeys=True)
    shown = visible(text)
    return shown if len(shown) <= LONGEST else f"{shown[:LONGEST]}... ({len(shown)} characters)"


def _when(ms: int) -> str:
    try:
        return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
    except (OverflowError, ValueError, OSError):
        return str(ms)  # a forged time


def _cell(name: str, value: object) -> Any:  # noqa: ANN401 (whatever rich draws)
    several = _several(value)
    return _text(name, value) if several is None else several.__rich__()


def _table(head: list[str], rows: list[list[Any]]) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, show_header=bool(head))
    for name in head or ["", ""]:
        table.add_column(Text(name), overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) if isinstance(cell, str) else cell for cell in row))
    return table


def _drawn(name: str, value: object) -> str:
    several = _several(value)
    return escape(_text(name, value)) if several is None else several._repr_html_()


def _th(name: str) -> str:
    return f"<th>{escape(visible(name))}</th>"


def _td(drawn: str) -> str:
    return f"<td>{drawn}</td>"


def _html(rows: Sequence[Sequence[str]]) -> str:
    return "<table>" + "".join(f"<tr>{''.join(row)}</tr>" for row in rows) + "</table>"
