"""Engines whose handles do not know of each other: they are tried on a folder."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, ClassVar

from tests.conformance.passing import Passing, breaks_shared

from holdfast.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from holdfast.conformance.store import AnyRecord, AnyStore
    from holdfast.store import Claim, FakeClock

WRITING = frozenset(
    (
        "append",
        "append_many",
        "cancel",
        "claim",
        "create_run",
        "fail",
        "finish",
        "forget",
        "patch",
        "release",
        "retry",
        "signal",
        "wait",
    )
)


@breaks_shared("read.second_handle", "fence.stale_on_every_handle", "forget.other_handles")
class ReadsWhatItKnew(Passing):
    """A handle keeps what it read until it writes itself: what others write it does not notice."""

    def __init__(self, inner: AnyStore, clock: FakeClock | None) -> None:
        super().__init__(inner, clock)
        self.known: dict[str, list[AnyRecord]] = {}

    def __getattribute__(self, name: str) -> Any:
        if name in WRITING:
            self.known.clear()
        return super().__getattribute__(name)

    def read(self, stream: str, *, after: int = 0) -> Iterator[AnyRecord]:
        if stream not in self.known:
            self.known[stream] = list(self.inner.read(stream))
        return (record for record in self.known[stream] if record.seq > after)


@breaks_shared("create.key_two_handles")
class KeysOfTheHandle(Passing):
    """Every handle has keys of its own."""

    def create_run(self, *, agent: str, **options: Any) -> str:
        if "key" in options:
            options["key"] = f"{id(self)}:{options['key']}"
        return self.inner.create_run(agent=agent, **options)


@breaks_shared("append.two_handles", "read.second_handle")
class WritesOverOthers(Passing):
    """An append of a handle that missed what another wrote is answered and lost."""

    def __init__(self, inner: AnyStore, clock: FakeClock | None) -> None:
        super().__init__(inner, clock)
        self.known: dict[str, int] = {}
        self.turn = threading.Lock()

    def __getattribute__(self, name: str) -> Any:
        if name in WRITING - {"append"}:
            self.known.clear()
        return super().__getattribute__(name)

    def append(self, run: str, kind: str, body: Mapping[str, Any], **options: Any) -> int:
        with self.turn:
            if self.known.get(run, 0) < len(list(self.inner.read(run))) and run in self.known:
                return self.known.pop(run) + 1
            self.known[run] = self.inner.append(run, kind, body, **options)
            return self.known[run]


@breaks_shared("claim.two_handles", "claim.concurrency_key_among_many")
class ClaimsOfTheHandle(Passing):
    """What another handle holds is given once more."""

    given: ClassVar[list[tuple[AnyStore, Claim]]] = []
    turn: ClassVar[threading.Lock] = threading.Lock()  # so that it is wrong every time

    def claim(self, **options: Any) -> Claim | None:
        with self.turn:
            return self._claim(options)

    def _claim(self, options: dict[str, Any]) -> Claim | None:
        claim = self.inner.claim(**options)
        if claim is not None:
            self.given.append((self.inner, claim))
            return claim
        for at, (holder, held) in enumerate(self.given):
            if holder is not self.inner and holder.id == self.inner.id:
                del self.given[at]
                return held
        return None


@breaks_shared("read.reopened")
class BlobsOfTheHandle(Passing):
    def __init__(self, inner: AnyStore, clock: FakeClock | None) -> None:
        super().__init__(inner, clock)
        self.mine: set[str] = set()

    def put_blob(self, data: bytes, **options: Any) -> Mapping[str, Any]:
        blob = self.inner.put_blob(data, **options)
        self.mine.add(blob["commit"])
        return blob

    def get_blob(self, blob: Mapping[str, Any] | str) -> bytes:
        data = self.inner.get_blob(blob)
        if (blob if isinstance(blob, str) else blob["commit"]) not in self.mine:
            raise StoreError("there is no such blob", code="no_such_blob")
        return data


@breaks_shared("close.one_of_two")
class ClosesForAll(Passing):
    handles: ClassVar[list[AnyStore]] = []

    def __init__(self, inner: AnyStore, clock: FakeClock | None) -> None:
        super().__init__(inner, clock)
        self.handles.append(inner)

    def close(self) -> None:
        for handle in [other for other in self.handles if other.id == self.inner.id]:
            self.handles.remove(handle)
            handle.close()
