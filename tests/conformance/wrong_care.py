"""Engines that are wrong about blobs, forgetting, tails and audits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.conformance.passing import Altered, Passing, breaks

from holdfast.errors import HoldfastError, StoreError

if TYPE_CHECKING:
    import threading
    from collections.abc import Iterator, Mapping, Sequence

    from holdfast.conformance.store import AnyRecord, AnyReport, AnyStore
    from holdfast.store import FakeClock


NOWHERE = "sha256:" + "0" * 64


@breaks("blob.round_trip")
class ReturnsOtherBytes(Passing):
    def get_blob(self, blob: Mapping[str, Any] | str) -> bytes:
        return self.inner.get_blob(blob)[:1000]


@breaks("forget.erases")
class KeepsForgottenValues(Passing):
    """What was forgotten is noted as such, and can be read all the same."""

    def __init__(self, inner: AnyStore, clock: FakeClock | None) -> None:
        super().__init__(inner, clock)
        self.copies: dict[str, Mapping[str, Any]] = {}

    def forget(self, run: str, *, by: str, reason: str | None = None) -> int:
        try:
            copies = {record.hash: record.value for record in self.inner.read(run)}
        except HoldfastError:
            copies = {}
        erased = self.inner.forget(run, by=by, reason=reason)
        self.copies |= copies
        return erased

    def read(self, stream: str, *, after: int = 0) -> Iterator[AnyRecord]:
        for record in self.inner.read(stream, after=after):
            copy = self.copies.get(record.hash)
            yield record if copy is None else Altered(record, value=copy)


@breaks("forget.erases")
class ForgetsNothing(Passing):
    def forget(self, run: str, *, by: str, **_: Any) -> int:
        return 0 if self.inner.state(run)["status"] == "completed" else self.inner.forget(run, by=by)


@breaks("tail.an_ended_run", "tail.as_it_comes")
class TailSkipsRecords(Passing):
    def tail(self, run: str, *, after: int = 0, stop: threading.Event | None = None) -> Iterator[AnyRecord]:
        return (record for record in self.inner.tail(run, after=after, stop=stop) if record.seq % 5)


@breaks("tail.as_it_comes")
class TailEndsEarly(Passing):
    """It gives what is there and does not wait for more."""

    def tail(self, run: str, *, after: int = 0, **_: Any) -> Iterator[AnyRecord]:
        return self.inner.read(run, after=after)


@breaks("verify.foreign_heads")
class BelievesAnyHead(Passing):
    def verify(self, run: str | None = None, **_: Any) -> AnyReport:
        return self.inner.verify(run)


@breaks("verify.older_heads")
class WantsTheNewestHead(Passing):
    """A head that was kept is compared with the end of its stream only."""

    def verify(self, run: str | None = None, *, heads: Mapping[str, str] | None = None) -> AnyReport:
        told = dict(heads or {})
        for stream, head in told.items():
            if head != NOWHERE and head in [record.hash for record in self.inner.read(stream)][:-1]:
                told[stream] = NOWHERE
        return self.inner.verify(run, heads=told)


@breaks("verify.kept_heads", "verify.older_heads")
class DistrustsEveryHead(Passing):
    def verify(self, run: str | None = None, *, heads: Mapping[str, str] | None = None) -> AnyReport:
        return self.inner.verify(run, heads=dict.fromkeys(heads or {}, NOWHERE))


@breaks("close.ends_the_handle", "close.ends_blobs")
class NeverCloses(Passing):
    def close(self) -> None:
        pass


@breaks("blob.salted")
class NamesBlobsByTheirBytes(Passing):
    def __init__(self, inner: AnyStore, clock: FakeClock | None) -> None:
        super().__init__(inner, clock)
        self.blobs: dict[bytes, Mapping[str, Any]] = {}

    def put_blob(self, data: bytes, **options: Any) -> Mapping[str, Any]:
        if data not in self.blobs:
            self.blobs[data] = self.inner.put_blob(data, **options)
        return self.blobs[data]


@breaks("blob.missing", "forget.erases")
class ReadsMissingBlobsAsEmpty(Passing):
    def get_blob(self, blob: Mapping[str, Any] | str) -> bytes:
        try:
            return self.inner.get_blob(blob)
        except HoldfastError as error:
            if error.code != "no_such_blob":
                raise
            return b""


@breaks("blob.strict_names")
class LooksForAnyName(Passing):
    """What is no commitment is looked for like one."""

    def get_blob(self, blob: Mapping[str, Any] | str) -> bytes:
        try:
            return self.inner.get_blob(blob)
        except HoldfastError as error:
            if error.code != "bad_value":
                raise
            raise StoreError("there is no such file", code="no_such_blob") from error


@breaks("blob.true_size")
class CorrectsSizes(Passing):
    """A size that is wrong is put right without a word."""

    def __init__(self, inner: AnyStore, clock: FakeClock | None) -> None:
        super().__init__(inner, clock)
        self.sizes: dict[str, int] = {}

    def put_blob(self, data: bytes, **options: Any) -> Mapping[str, Any]:
        blob = self.inner.put_blob(data, **options)
        self.sizes[blob["commit"]] = len(data)
        return blob

    def append(self, run: str, kind: str, body: Mapping[str, Any], **options: Any) -> int:
        blobs = options.pop("blobs", None) or {}
        right = {at: {**b, "bytes": self.sizes.get(b["commit"], b["bytes"])} for at, b in blobs.items()}
        return self.inner.append(run, kind, body, **options, blobs=right or None)


@breaks("sql.reads_only")
class HidesBadSql(Passing):
    def sql(self, query: str, parameters: Sequence[object] = ()) -> list[dict[str, Any]]:
        try:
            return self.inner.sql(query, parameters)
        except HoldfastError as error:
            if error.code != "bad_sql":
                raise
            return []


class TailIgnoresStop(Passing):
    """It hangs, so it has a test of its own."""

    def tail(self, run: str, *, after: int = 0, **_: Any) -> Iterator[AnyRecord]:
        return self.inner.tail(run, after=after)
