"""What a store looks like from outside, as Protocols, so that engines and wrappers type-check.

It is the public face of :class:`holdfast.Store` without what belongs to files (backup, gc). A claim is
:class:`holdfast.Claim` itself: a store makes it and gets it back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import threading
    from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence

    from holdfast.store import Claim, FakeClock


class AnyRecord(Protocol):
    """One fact of a stream, as read back."""

    @property
    def seq(self) -> int:
        """Its place, from 1."""

    @property
    def kind(self) -> str:
        """Its kind."""

    @property
    def at(self) -> int:
        """Milliseconds since the epoch."""

    @property
    def body(self) -> Mapping[str, Any]:
        """As hashed, with contents as commitments."""

    @property
    def value(self) -> Mapping[str, Any]:
        """With contents resolved; raises ``content_erased``."""

    @property
    def hash(self) -> str:
        """Of its bytes."""

    @property
    def text(self) -> bytes:
        """Its bytes."""


class AnyReport(Protocol):
    """What an audit found."""

    @property
    def ok(self) -> bool:
        """Nothing is wrong."""

    @property
    def records(self) -> int:
        """How many were audited."""

    @property
    def first_bad(self) -> object | None:
        """The first thing that is wrong; ``stream`` names its stream."""

    @property
    def guarantee(self) -> str:
        """What the audit shows."""


class AnyStore(Protocol):
    """The public surface of :class:`holdfast.Store`."""

    @property
    def id(self) -> str:
        """The store's own id."""

    def create_run(
        self,
        *,
        agent: str,
        input: object = None,
        state: Mapping[str, Any] | None = None,
        by: str = "holdfast",
        barrier: bool = True,
        **options: Any,  # noqa: ANN401
    ) -> str:
        """Makes a run with one step."""

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
        """Appends one record and returns its seq."""

    def append_many(
        self,
        run: str,
        entries: Iterable[tuple[str, Mapping[str, Any]]],
        *,
        claim: Claim | None = None,
        by: str = "holdfast",
        privacy: str = "internal",
        barrier: bool = False,
    ) -> range:
        """Appends records, all or none, and returns their seqs."""

    def claim(
        self, *, worker: str, lease: float = 60.0, queues: Sequence[str] = (), agents: Sequence[str] = ()
    ) -> Claim | None:
        """The best step that this worker may have."""

    def heartbeat(self, claim: Claim, *, lease: float | None = None) -> None:
        """Prolongs the lease."""

    def patch(
        self, claim: Claim, patch: Mapping[str, Any], *, expected_version: int, privacy: str = "internal"
    ) -> int:
        """Merges a patch into the state and returns its new version."""

    def wait(self, claim: Claim, waits: Sequence[Mapping[str, Any]]) -> None:
        """Parks the step."""

    def release(self, claim: Claim, *, reason: str = "shutdown") -> None:
        """Gives the step back."""

    def finish(self, claim: Claim, *, result: object = None, privacy: str = "internal") -> None:
        """The step is done."""

    def fail(
        self, claim: Claim, error: BaseException | str, *, retryable: bool = True, privacy: str = "internal"
    ) -> None:
        """The attempt failed."""

    def retry(self, run: str, *, by: str) -> None:
        """Opens a failed run again."""

    def signal(self, run: str, name: str, value: object = None, *, by: str = "holdfast") -> None:
        """Sends a signal."""

    def cancel(self, run: str, *, by: str) -> None:
        """Asks the run to stop."""

    def forget(self, run: str, *, by: str, reason: str | None = None) -> int:
        """Erases the contents of an ended run."""

    def read(self, stream: str, *, after: int = 0) -> Iterator[AnyRecord]:
        """The records of a stream, in order."""

    def tail(self, run: str, *, after: int = 0, stop: threading.Event | None = None) -> Iterator[AnyRecord]:
        """The records of a run as they come."""

    def atail(self, run: str, *, after: int = 0) -> AsyncIterator[AnyRecord]:
        """The same for asyncio."""

    def state(self, stream: str, *, at: int | None = None) -> Mapping[str, Any]:
        """The fold of a stream, now or at a record."""

    def sql(self, query: str, parameters: Sequence[object] = ()) -> list[dict[str, Any]]:
        """Runs one reading statement."""

    def put_blob(
        self, data: bytes, *, media: str = "application/octet-stream", privacy: str = "internal"
    ) -> Mapping[str, Any]:
        """Keeps bytes and returns the content that a record may hold."""

    def get_blob(self, blob: Mapping[str, Any] | str) -> bytes:
        """The bytes of a blob."""

    def verify(self, run: str | None = None, *, heads: Mapping[str, str] | None = None) -> AnyReport:
        """Audits everything, or one stream."""

    def stats(self) -> Mapping[str, Any]:
        """What the store is and how it does."""

    def barrier(self) -> None:
        """Makes everything durable that was committed so far."""

    def close(self) -> None:
        """Closes the handle."""


class Harness(Protocol):
    """How the suite gets at somebody's store. One location at a time; the suite closes its handles.

    Either way of opening may raise :class:`NotApplicable` with the reason why it cannot be done.
    """

    def open(self, clock: FakeClock | None) -> AnyStore:
        """A store at a new, empty location. With a clock, the store reads no other."""

    def reopen(self, clock: FakeClock | None) -> AnyStore:
        """Another handle on that location, as another process would have it."""

    def destroy(self) -> None:
        """Removes the location; every handle is closed."""
