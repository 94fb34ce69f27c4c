"""What of users' values leaves: by their privacy, by what was asked for, and if they are still there.

Every content has a class, and so has its record; the stricter of the two counts.

| ``content=`` | what leaves |
| --- | --- |
| ``False`` | no value |
| ``True`` | ``public`` and ``internal`` |
| ``"sensitive"`` | these, ``content_refs_only`` and ``sensitive`` |

``secret`` never leaves, nor does a class that this Holdfast does not know. What does not leave, was erased,
is lost or is not what was recorded is a :class:`Missing` that says so.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from holdfast.errors import HoldfastError

if TYPE_CHECKING:
    from holdfast.store import Record

Content = bool | Literal["sensitive"]
CLASSES = ("public", "internal", "content_refs_only", "sensitive", "secret")
LEAVES = {False: 0, True: CLASSES.index("content_refs_only"), "sensitive": CLASSES.index("secret")}
"""How many of the classes leave, the least strict first."""

GONE = {
    "content_erased": "erased",
    "content_lost": "lost",
    "content_forged": "forged",
    "blob_forged": "forged",
}


@dataclass(frozen=True, slots=True)
class Missing:
    """In the place of a value that is not here.

    Attributes:
        why: ``erased``, ``lost``, ``forged``, ``withheld`` or ``too_large``.
        bytes: how long the value is, or was.
        privacy: its class.
    """

    why: str
    bytes: int
    privacy: str


Look = Callable[["Record", str], Any]
"""What an export makes of a record's content at a place; of one that is not there, None."""


def privacy(record: Record, content: dict[str, Any]) -> str:
    """The class of a content: its own or its record's, whichever is stricter."""
    known = [_rank(content["privacy"]), _rank(record.fields["privacy"])]
    return CLASSES[max(known)]


def _rank(token: str) -> int:
    return CLASSES.index(token) if token in CLASSES else len(CLASSES) - 1


def value(record: Record, content: dict[str, Any], wanted: Content, *, most: int | None = None) -> Any:  # noqa: ANN401
    """A content's value (JSON, or bytes), or what is in its place.

    Args:
        record: the record that it stands in.
        content: as it was hashed.
        wanted: what may leave.
        most: values of more bytes are not read.
    """
    token, size = privacy(record, content), int(content["bytes"])
    if _rank(token) >= LEAVES[wanted]:
        return Missing("withheld", size, token)
    if most is not None and size > most:
        return Missing("too_large", size, token)
    try:
        return record.open(content)
    except HoldfastError as error:
        if error.code not in GONE:
            raise
        return Missing(GONE[error.code], size, token)


def at(record: Record, place: str, wanted: Content, *, most: int | None = None) -> Any:  # noqa: ANN401
    """The value at a place of a record's body, or what is in its place; None if no content stands there."""
    content = record.contents().get(place)
    return None if content is None else value(record, content, wanted, most=most)


def nothing(_: Record, __: str) -> None:
    """Looks at no content."""
