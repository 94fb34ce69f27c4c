"""Pieces of the page. Every text that goes into it comes through :func:`text`, which makes it harmless."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from html import escape
from typing import TYPE_CHECKING, Any

from holdfast.exports.contents import Missing, value
from holdfast.visible import visible

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from holdfast.exports.contents import Content
    from holdfast.store import Record

READ_MAX = 16 * 1024 * 1024
"""Values of more bytes are not even read for a page."""
GOOD = frozenset(
    ("succeeded", "completed", "approved", "approved_for_session", "allow", "happened", "verified")
)
BAD = frozenset(
    (
        "deny",
        "denied",
        "denied_by_person",
        "denied_by_rule",
        "failed",
        "in_doubt",
        "not verified",
        "read_failed",
        "timed_out",
        "unrecordable",
        "write_failed",
    )
)


def text(told: object) -> str:
    """Text for the page: nothing in it is markup, and every character of it can be seen."""
    return escape(visible(str(told)), quote=True)


def code(told: object) -> str:
    """An id, a name, a digest."""
    return f"<code>{text(told)}</code>"


def cut(told: str, most: int) -> str:
    """Text with its end cut off, which is said."""
    if len(told) <= most:
        return text(told)
    return f'{text(told[:most])}<span class="gone"> ... cut: {len(told):,} characters in all</span>'


def shown(told: Any, most: int = 2000) -> str:  # noqa: ANN401 (any JSON, bytes, or what is missing)
    """A user's value on the page, or what is in its place."""
    if isinstance(told, Missing):
        return f'<span class="gone">{MISSING[told.why].format(told)}</span>'
    if isinstance(told, bytes):
        return f'<span class="gone">{len(told):,} bytes that are no JSON</span>'
    return f"<code>{cut(json.dumps(told, ensure_ascii=False), most)}</code>"


MISSING = {
    "erased": "erased ({0.bytes:,} bytes)",
    "lost": "lost ({0.bytes:,} bytes), and nobody erased it",
    "forged": "forged: what is stored is not what was recorded",
    "withheld": "withheld ({0.privacy}, {0.bytes:,} bytes)",
    "too_large": "{0.bytes:,} bytes, too many for a page",
}


def looks(wanted: Content, most: int) -> Any:  # noqa: ANN401 (a Look)
    """Makes contents into markup, for :class:`holdfast.exports.story.Story`."""

    def look(record: Record, place: str) -> str | None:
        content = record.contents().get(place)
        return None if content is None else shown(value(record, content, wanted, most=READ_MAX), most)

    return look


def when(ms: int | None) -> str:
    """A record's time."""
    if ms is None:
        return ""
    try:
        told = datetime.fromtimestamp(ms / 1000, UTC).isoformat(" ", "milliseconds")
    except (OverflowError, ValueError, OSError):
        return str(ms)  # a forged time
    return told.removesuffix("+00:00") + "Z"


def lasted(ms: int) -> str:
    """How long something took, as people say it."""
    if ms < 1000:
        return f"{ms} ms"
    if ms < 60_000:
        return f"{ms / 1000:.1f} s"
    for unit, larger, smaller, name in ((60_000, 60, 1000, "s"), (3_600_000, 24, 60_000, "min")):
        if ms < unit * larger:
            return f"{ms // unit} {'min' if name == 's' else 'h'} {ms % unit // smaller} {name}"
    return f"{ms // 86_400_000} d {ms % 86_400_000 // 3_600_000} h"


def tone(word: str) -> str:
    """The class of a word that says how something ended."""
    return "good" if word in GOOD else "bad" if word in BAD else "warn"


def tag(word: str) -> str:
    """A word that says how something ended."""
    return f'<span class="tag {tone(word)}">{text(word.replace("_", " "))}</span>'


def bar(start: int, end: int, whole: tuple[int, int], word: str) -> str:
    """When something was, within the whole."""
    first, last = whole
    span = max(1, last - first)
    left = min(994, round((start - first) * 1000 / span))
    width = max(6, min(1000 - left, round((end - start) * 1000 / span)))
    rect = f'<rect class="{tone(word)}" x="{left}" y="0" width="{width}" height="12"/>'
    return f'<svg viewBox="0 0 1000 12" preserveAspectRatio="none" aria-hidden="true">{rect}</svg>'


def facts(rows: Iterable[tuple[str, str | None]]) -> str:
    """Names and values; the values are markup."""
    told = "".join(f"<dt>{text(name)}</dt><dd>{value}</dd>" for name, value in rows if value)
    return f"<dl>{told}</dl>"


def row(cells: Sequence[str], kind: str = "") -> str:
    """A row of a table; the cells are markup."""
    opening = f'<tr class="{kind}">' if kind else "<tr>"
    return f"{opening}{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>\n"


def head(names: Sequence[str]) -> str:
    """The top of a table."""
    cells = "".join(f"<th>{text(name)}</th>" for name in names)
    return f'<div class="wide"><table><thead><tr>{cells}</tr></thead><tbody>\n'


TAIL = "</tbody></table></div>\n"
