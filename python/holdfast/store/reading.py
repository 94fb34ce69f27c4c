"""Records as they are read back: as hashed, and with their contents resolved."""

from __future__ import annotations

import json
from functools import cached_property
from typing import TYPE_CHECKING, Any

from holdfast import _core
from holdfast.errors import RecordError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

FIXES = dict(_core.error_codes())
POSITIONS = {token: contents for token, _, _, contents, _ in _core.record_kinds()}


class Erased:
    """What the records of a stream say was erased: read when a content is missing, and again if need be."""

    def __init__(self, store: _core.Store, stream: str) -> None:
        self._store, self._stream, self._read = store, stream, 0
        self._commits: set[str] = set()

    def __contains__(self, commit: str) -> bool:
        if commit not in self._commits:
            self._go_on()
        return commit in self._commits

    def _go_on(self) -> None:
        more = True
        while more:
            rows, more = self._store.read(self._stream, self._read)
            texts = [row[2] for row in rows if b'"kind":"content.erased"' in row[2]]
            records = (json.loads(text) for text in texts)
            erasing = [record["body"] for record in records if record["kind"] == "content.erased"]
            self._commits.update(commit for body in erasing for commit in body["commits"])
            self._read = rows[-1][0] if rows else self._read


class Kept:
    """What is kept beside a frame: read once, and only if somebody asks, for all records of the frame."""

    def __init__(self, text: str | None, erased: Erased) -> None:
        self.text = text
        self.erased = erased

    @cached_property
    def openings(self) -> dict[str, Any]:
        """Salt and value by commitment."""
        openings: dict[str, Any] = json.loads(self.text) if self.text else {}
        return openings


class Record:
    """One fact of a stream.

    Attributes:
        seq: its place in the stream, from 1.
        position: of its frame in the store.
        hash: of its bytes; the next record's ``prev``.
        text: its bytes, as hashed.
    """

    __slots__ = ("__dict__", "_kept", "_store", "hash", "position", "seq", "text")

    def __init__(self, row: tuple[int, int, bytes, str], kept: Kept, store: _core.Store) -> None:
        self.seq, self.position, self.text, self.hash = row
        self._kept = kept
        self._store = store

    @cached_property
    def _fields(self) -> dict[str, Any]:
        fields: dict[str, Any] = json.loads(self.text)
        return fields

    @property
    def kind(self) -> str:
        """Its kind."""
        return str(self._fields["kind"])

    @property
    def stream(self) -> str:
        """The run, the session or the store that it belongs to."""
        return str(self._fields["stream"])

    @property
    def at(self) -> int:
        """Milliseconds since the epoch."""
        return int(self._fields["at"])

    @property
    def by(self) -> dict[str, str]:
        """Who did it: ``type`` and ``id``."""
        actor: dict[str, str] = self._fields["by"]
        return actor

    @property
    def body(self) -> dict[str, Any]:
        """Its body as hashed: contents stand in it as commitments."""
        body: dict[str, Any] = self._fields["body"]
        return body

    @property
    def fields(self) -> dict[str, Any]:
        """Everything that it says, as hashed."""
        return self._fields

    @cached_property
    def value(self) -> dict[str, Any]:
        """Its body with contents resolved to their values.

        Raises:
            RecordError: ``content_erased`` if one of them was erased, ``content_lost`` if it is gone and
                nobody erased it.
        """
        return resolved(self.kind, self.body, self.open)

    def contents(self) -> dict[str, dict[str, Any]]:
        """Its contents by where they stand in the body: ``arguments``, ``failure.message``, ``items[0]``.

        Each is as it was hashed: ``bytes``, ``commit``, ``media``, ``privacy``. :meth:`open` has its value.
        """
        return {path: holder[key] for holder, key, path in _contents(self.kind, self.body)}

    def open(self, content: dict[str, Any]) -> Any:  # noqa: ANN401 (any JSON, or bytes)
        """The value of one of its contents, checked against what was committed to.

        Raises:
            RecordError: ``content_erased``, ``content_lost`` or ``content_forged``.
        """
        commit, opened = content["commit"], self._kept.openings
        if commit in opened:
            _core.content_check(commit, opened[commit])
            return opened[commit]["value"]
        try:
            data = self._store.get_blob(commit)
        except Exception as error:
            if getattr(error, "code", None) != "no_such_blob":
                raise
            if commit in self._kept.erased:
                code, what = "content_erased", "was erased"
            else:
                code, what = "content_lost", "is gone, and no record says that it was erased"
            raise RecordError(f"a content of record {self.seq} {what}", code=code, fix=FIXES[code]) from None
        return json.loads(data) if content["media"] == "application/json" else data

    def __repr__(self) -> str:
        return f"<Record {self.seq} {self.kind}>"


def _contents(kind: str, body: dict[str, Any]) -> Iterator[tuple[Any, Any, str]]:
    positions = POSITIONS.get(kind, ["content"] if kind.startswith("x.") else [])
    return (place for position in positions for place in _places(body, position))


def resolved(kind: str, body: dict[str, Any], opening: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    """A body whose contents are what ``opening`` says of them."""
    value: dict[str, Any] = json.loads(json.dumps(body))
    for holder, key, _ in _contents(kind, value):
        holder[key] = opening(holder[key])
    return value


def _places(body: Any, position: str, at: str = "") -> Iterator[tuple[Any, Any, str]]:  # noqa: ANN401
    """Where the contents of a position such as ``failure.message`` or ``items[]`` stand in a body."""
    step, _, rest = position.partition(".")
    name = step.removesuffix("[]")
    if not isinstance(body, dict) or name not in body:
        return
    if not step.endswith("[]"):
        if rest:
            yield from _places(body[name], rest, f"{at}{name}.")
        else:
            yield body, name, f"{at}{name}"
        return
    for index, inner in enumerate(body[name]):
        if rest:
            yield from _places(inner, rest, f"{at}{name}[{index}].")
        else:
            yield body[name], index, f"{at}{name}[{index}]"
