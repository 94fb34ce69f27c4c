"""The journal of one run as plain facts: what a store holds of it, or what a bundle brought along.

A fact is a record with its contents. What of them is gone stands there as :data:`ERASED`, :data:`LOST` or
:data:`WITHHELD`,
so that whoever looks at a run sees the rest of it. Nothing here asks a store for anything but records.
"""

from __future__ import annotations

import json
from functools import cached_property
from typing import TYPE_CHECKING, Any

from holdfast import _core
from holdfast.errors import HoldfastError, RecordError
from holdfast.evidence.fold import Fold
from holdfast.gateway.outcomes import fix
from holdfast.store.reading import resolved

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from holdfast.store import Record, Store

Json = dict[str, Any]


class Gone(str):
    """Stands where a content was. It is a word, so that what holds it can be printed."""

    __slots__ = ()


ERASED = Gone("(erased)")
"""Somebody erased it, and a record says so."""
LOST = Gone("(lost)")
"""It is not there, and nobody erased it."""
WITHHELD = Gone("(withheld)")
"""It is kept, and did not come along."""


class Fact:
    """One record, with its contents.

    Attributes:
        seq: its place in the run, from 1.
        frame: what it was committed with; facts of one frame have the same number.
        text: its bytes, as hashed.
        fields: what the bytes say.
    """

    def __init__(self, text: bytes, frame: int, opening: Callable[[Json], object]) -> None:
        self.text = text
        self.frame = frame
        self._opening = opening
        self.fields: Json = json.loads(text)
        self.seq = int(self.fields["seq"])

    @property
    def kind(self) -> str:
        """Its kind."""
        return str(self.fields["kind"])

    @property
    def at(self) -> int:
        """Milliseconds since the epoch."""
        return int(self.fields["at"])

    @property
    def step(self) -> str | None:
        """The step that it belongs to."""
        return self.fields.get("step")

    @property
    def call(self) -> str | None:
        """The call that it belongs to."""
        return self.fields.get("call")

    @property
    def body(self) -> Json:
        """Its body as hashed."""
        return self.fields["body"]  # type: ignore[no-any-return]

    @cached_property
    def value(self) -> Json:
        """Its body with contents, or with what stands for those that are gone."""
        return resolved(self.kind, self.body, self._opening)

    @cached_property
    def gone(self) -> tuple[str, ...]:
        """Which of its contents are gone, and how: ``patch (erased)``."""
        return tuple(_gone(self.value))

    def __repr__(self) -> str:
        return f"<Fact {self.seq} {self.kind}>"


def _gone(value: object, path: str = "") -> Iterator[str]:
    if isinstance(value, Gone):
        yield f"{path} {value}"
    elif isinstance(value, dict):
        for name, inner in value.items():
            yield from _gone(inner, f"{path}.{name}" if path else name)
    elif isinstance(value, list):
        for inner in value:
            yield from _gone(inner, f"{path}[]")


class Journal:
    """The facts of one run, in order.

    Attributes:
        run: its id.
        store: the id of the store that it is of, if that is known.
        facts: its own.
        inherited: what a fork begins with, its ancestors' facts; none for other runs.
    """

    def __init__(
        self,
        run: str,
        facts: Sequence[Fact],
        *,
        store: str | None = None,
        inherited: Sequence[Fact] = (),
    ) -> None:
        self.run = run
        self.store = store
        self.facts = tuple(facts)
        self.inherited = tuple(inherited)

    @classmethod
    def of(cls, store: Store, run: str) -> Journal:
        """The journal that a store holds, as it is now."""
        if not run.startswith("run_"):
            raise RecordError("only runs have a journal of calls", code="bad_id", fix=fix("bad_id"))
        facts = [_fact(record) for record in store.read(run)]
        inherited: Sequence[Fact] = ()
        if facts and facts[0].kind == "run.forked":
            inherited = _inherited(store, facts[0].body)
        return cls(run, facts, store=store.id, inherited=inherited)

    @classmethod
    def from_plain(
        cls,
        run: str,
        texts: Sequence[bytes],
        contents: Mapping[str, Any],
        *,
        blobs: Mapping[str, bytes] | None = None,
        frames: Sequence[int] | None = None,
        withheld: Collection[str] = (),
        store: str | None = None,
        parent: Journal | None = None,
    ) -> Journal:
        """A journal from plain data, as a bundle has it.

        Args:
            run: its id.
            texts: the records' bytes, as hashed, in order.
            contents: salt and value by commitment: ``{"sha256:..": {"salt": .., "value": ..}}``.
            blobs: bytes by commitment, of contents that were too large for that.
            frames: the frame of each record; without it, each is its own.
            withheld: commitments of contents that were left out.
            store: the store's id.
            parent: the journal that a fork begins with.

        An opening that is not the one that was committed to counts as lost.
        """
        opening = _Opening(texts, contents, blobs or {}, withheld)
        numbers = frames or range(1, len(texts) + 1)
        facts = [Fact(text, frame, opening) for text, frame in zip(texts, numbers, strict=True)]
        inherited: Sequence[Fact] = ()
        if facts and facts[0].kind == "run.forked" and parent is not None:
            inherited = parent.prefix(facts[0].body["at"])
        return cls(run, facts, store=store, inherited=inherited)

    # Looking.

    def __iter__(self) -> Iterator[Fact]:
        return iter(self.facts)

    def __len__(self) -> int:
        return len(self.facts)

    @property
    def everything(self) -> tuple[Fact, ...]:
        """What it inherited, and its own."""
        return self.inherited + self.facts

    def prefix(self, seq: int) -> tuple[Fact, ...]:
        """Everything up to one of its records."""
        return self.inherited + tuple(fact for fact in self.facts if fact.seq <= seq)

    def kinds(self, *kinds: str) -> Iterator[Fact]:
        """Its facts of some kinds."""
        return (fact for fact in self.everything if fact.kind in kinds)

    def frames(self) -> Iterator[tuple[Fact, ...]]:
        """Its own facts, by what was committed together."""
        found: list[Fact] = []
        for fact in self.facts:
            if found and found[-1].frame != fact.frame:
                yield tuple(found)
                found = []
            found.append(fact)
        if found:
            yield tuple(found)

    def fold(self, seq: int | None = None) -> Fold:
        """Where the run stood after a record, or at the end.

        Raises:
            RecordError: ``bad_value``: there is no such record.
        """
        last = self.facts[-1].seq if self.facts else 0
        if seq is not None and not 1 <= seq <= last:
            told = f"the run has no record {seq}: it has {last}"
            raise RecordError(told, code="bad_value", fix=fix("bad_value"))
        fold = Fold()
        for fact in self.prefix(last if seq is None else seq):
            fold.apply(fact)
        return fold

    def place(self, position: int) -> tuple[str, int]:
        """The stream and the seq of a position: the records that a fork inherits count first."""
        if position > len(self.inherited):
            return self.run, position - len(self.inherited)
        fact = self.inherited[position - 1]
        return str(fact.fields["stream"]), fact.seq

    def __repr__(self) -> str:
        return f"<Journal {self.run} {len(self.facts)} records>"


def _fact(record: Record) -> Fact:
    def opening(content: Json) -> object:
        try:
            return record.open(content)
        except HoldfastError as error:
            if error.code == "content_erased":
                return ERASED
            if error.code in ("content_lost", "content_forged", "blob_forged"):
                return LOST
            raise

    return Fact(record.text, record.position, opening)


def _inherited(store: Store, forked: Json) -> tuple[Fact, ...]:
    """The parent's prefix; nothing if the parent is gone, which review and replay say."""
    try:
        return Journal.of(store, forked["parent"]).prefix(forked["at"])
    except HoldfastError as error:
        if error.code in ("no_such_run", "no_such_stream"):
            return ()
        raise


class _Opening:
    """Opens contents from plain data."""

    def __init__(
        self,
        texts: Sequence[bytes],
        contents: Mapping[str, Any],
        blobs: Mapping[str, bytes],
        withheld: Collection[str] = (),
    ) -> None:
        self._contents = contents
        self._blobs = blobs
        self._withheld = frozenset(withheld)
        erasing = [json.loads(text) for text in texts if b'"kind":"content.erased"' in text]
        self._erased = {
            commit
            for record in erasing
            if record["kind"] == "content.erased"
            for commit in record["body"]["commits"]
        }

    def __call__(self, content: Json) -> object:
        commit = content["commit"]
        if commit in self._contents:
            try:
                _core.content_check(commit, self._contents[commit])
            except HoldfastError:
                return LOST
            return self._contents[commit]["value"]
        if commit in self._blobs:
            data = self._blobs[commit]
            return json.loads(data) if content["media"] == "application/json" else data
        if commit in self._withheld:
            return WITHHELD
        return ERASED if commit in self._erased else LOST
