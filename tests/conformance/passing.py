"""A store around a store, by the public surface only, as the engine of a third party would be.

It passes everything on, so it must keep every clause; the wrong engines break one thing each.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from holdfast.conformance.store import AnyRecord, AnyReport, AnyStore, FolderHarness, MemoryHarness

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from holdfast.store import Claim, FakeClock

    Entry = tuple[str, Mapping[str, Any]]


class Passing:
    """Passes everything on. ``clock`` is the one that ``inner`` reads, if it is given one."""

    def __init__(self, inner: AnyStore, clock: FakeClock | None) -> None:
        self.inner = inner
        self.clock = clock

    @property
    def id(self) -> str:
        return self.inner.id

    def create_run(
        self,
        *,
        agent: str,
        input: object = None,
        state: Mapping[str, Any] | None = None,
        by: str = "holdfast",
        barrier: bool = True,
        **options: Any,
    ) -> str:
        return self.inner.create_run(agent=agent, input=input, state=state, by=by, barrier=barrier, **options)

    def append(
        self,
        run: str,
        kind: str,
        body: Mapping[str, Any],
        *,
        claim: Claim | None = None,
        by: str = "holdfast",
        privacy: str = "internal",
        blobs: Mapping[str, Mapping[str, Any]] | None = None,
        barrier: bool = False,
    ) -> int:
        more: dict[str, Any] = {"claim": claim, "by": by, "privacy": privacy, "blobs": blobs}
        return self.inner.append(run, kind, body, barrier=barrier, **more)

    def append_many(
        self,
        run: str,
        entries: Iterable[Entry],
        *,
        claim: Claim | None = None,
        by: str = "holdfast",
        privacy: str = "internal",
        barrier: bool = False,
    ) -> range:
        return self.inner.append_many(run, entries, claim=claim, by=by, privacy=privacy, barrier=barrier)

    def claim(
        self, *, worker: str, lease: float = 60.0, queues: Sequence[str] = (), agents: Sequence[str] = ()
    ) -> Claim | None:
        return self.inner.claim(worker=worker, lease=lease, queues=queues, agents=agents)

    def heartbeat(self, claim: Claim, *, lease: float | None = None) -> None:
        self.inner.heartbeat(claim, lease=lease)

    def patch(
        self, claim: Claim, patch: Mapping[str, Any], *, expected_version: int, privacy: str = "internal"
    ) -> int:
        return self.inner.patch(claim, patch, expected_version=expected_version, privacy=privacy)

    def wait(self, claim: Claim, waits: Sequence[Mapping[str, Any]]) -> None:
        self.inner.wait(claim, waits)

    def release(self, claim: Claim, *, reason: str = "shutdown") -> None:
        self.inner.release(claim, reason=reason)

    def finish(self, claim: Claim, *, result: object = None, privacy: str = "internal") -> None:
        self.inner.finish(claim, result=result, privacy=privacy)

    def fail(
        self, claim: Claim, error: BaseException | str, *, retryable: bool = True, privacy: str = "internal"
    ) -> None:
        self.inner.fail(claim, error, retryable=retryable, privacy=privacy)

    def retry(self, run: str, *, by: str) -> None:
        self.inner.retry(run, by=by)

    def signal(self, run: str, name: str, value: object = None, *, by: str = "holdfast") -> None:
        self.inner.signal(run, name, value, by=by)

    def cancel(self, run: str, *, by: str) -> None:
        self.inner.cancel(run, by=by)

    def forget(self, run: str, *, by: str, reason: str | None = None) -> int:
        return self.inner.forget(run, by=by, reason=reason)

    def read(self, stream: str, *, after: int = 0) -> Iterator[AnyRecord]:
        return self.inner.read(stream, after=after)

    def tail(self, run: str, *, after: int = 0, stop: threading.Event | None = None) -> Iterator[AnyRecord]:
        return self.inner.tail(run, after=after, stop=stop)

    def atail(self, run: str, *, after: int = 0) -> AsyncIterator[AnyRecord]:
        return self.inner.atail(run, after=after)

    def state(self, stream: str, *, at: int | None = None) -> Mapping[str, Any]:
        return self.inner.state(stream, at=at)

    def sql(self, query: str, parameters: Sequence[object] = ()) -> list[dict[str, Any]]:
        return self.inner.sql(query, parameters)

    def put_blob(
        self, data: bytes, *, media: str = "application/octet-stream", privacy: str = "internal"
    ) -> Mapping[str, Any]:
        return self.inner.put_blob(data, media=media, privacy=privacy)

    def get_blob(self, blob: Mapping[str, Any] | str) -> bytes:
        return self.inner.get_blob(blob)

    def verify(self, run: str | None = None, *, heads: Mapping[str, str] | None = None) -> AnyReport:
        return self.inner.verify(run, heads=heads)

    def stats(self) -> Mapping[str, Any]:
        return self.inner.stats()

    def barrier(self) -> None:
        self.inner.barrier()

    def close(self) -> None:
        self.inner.close()


class Around:
    """A harness of an engine around ours: in memory, or in a folder where two handles matter."""

    def __init__(self, engine: type[Passing], folder: Path | None = None) -> None:
        self.engine = engine
        self.inner = MemoryHarness() if folder is None else FolderHarness(folder)
        self.opened: list[Passing] = []

    def open(self, clock: FakeClock | None) -> AnyStore:
        return self._kept(self.engine(self.inner.open(clock), clock))

    def reopen(self, clock: FakeClock | None) -> AnyStore:
        return self._kept(self.engine(self.inner.reopen(clock), clock))

    def _kept(self, store: Passing) -> AnyStore:
        self.opened.append(store)
        return store

    def destroy(self) -> None:
        # An engine that does not close itself must not keep files of a folder that goes.
        for store in self.opened:
            store.inner.close()
        self.opened.clear()
        self.inner.destroy()


# What wrong engines are made with.

BROKEN: dict[type[Passing], set[str]] = {}
"""Exactly the clauses that an engine breaks in memory."""
BROKEN_SHARED: dict[type[Passing], set[str]] = {}
"""The same for engines whose fault is between two handles: in a folder."""


def breaks(*clauses: str) -> Callable[[type[Passing]], type[Passing]]:
    def kept(engine: type[Passing]) -> type[Passing]:
        BROKEN[engine] = set(clauses)
        return engine

    return kept


def breaks_shared(*clauses: str) -> Callable[[type[Passing]], type[Passing]]:
    def kept(engine: type[Passing]) -> type[Passing]:
        BROKEN_SHARED[engine] = set(clauses)
        return engine

    return kept


class KnowsClaims(Passing):
    """Remembers the newest claim of every step."""

    def __init__(self, inner: AnyStore, clock: FakeClock | None) -> None:
        super().__init__(inner, clock)
        self.newest: dict[str, Claim] = {}
        self.turn = threading.Lock()  # so that what is wrong is wrong every time

    def claim(self, **options: Any) -> Claim | None:
        with self.turn:
            claim = self.inner.claim(**options)
            if claim is not None:
                self.newest[claim.step] = claim
            return claim


class Altered:
    """A record that says something else than the journal."""

    def __init__(self, record: AnyRecord, **changes: Any) -> None:
        names = ("seq", "kind", "at", "body", "hash", "text")
        fields = {name: getattr(record, name) for name in names} | changes
        self.seq: int = fields["seq"]
        self.kind: str = fields["kind"]
        self.at: int = fields["at"]
        self.body: Mapping[str, Any] = fields["body"]
        self.hash: str = fields["hash"]
        self.text: bytes = fields["text"]
        self._record = record
        self._changes = changes

    @property
    def value(self) -> Mapping[str, Any]:
        if "value" in self._changes:
            changed: Mapping[str, Any] = self._changes["value"]
            return changed
        return self._record.value
