"""Engines that are wrong about the journal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.conformance.passing import Altered, Passing, breaks

from holdfast.errors import HoldfastError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from holdfast.conformance.store import AnyRecord, AnyStore
    from holdfast.store import FakeClock

    Entry = tuple[str, Mapping[str, Any]]


@breaks(
    "append.dense",
    "append.in_order",
    "append.all_or_none",
    "append.unmixed",
    "read.long_runs",
    "contents.salted",
    "refused.limit_exceeded",
)
class LosesTheLastOfABatch(Passing):
    def append_many(self, run: str, entries: Iterable[Entry], **options: Any) -> range:
        kept = list(entries)
        seqs = self.inner.append_many(run, kept[:-1] if len(kept) > 1 else kept, **options)
        return range(seqs.start, seqs.start + len(kept))


@breaks(
    "append.dense",
    "append.in_order",
    "append.many_threads",
    "append.many_runs",
    "read.after_write",
    "contents.resolved",
    "refused.kind_reserved",
    "refused.bad_body",
    "fence.stale_after_use",
    "blob.in_a_record",
)
class AnswersWithoutWriting(Passing):
    """Every fourth append is lost."""

    def __init__(self, inner: AnyStore, clock: FakeClock | None) -> None:
        super().__init__(inner, clock)
        self.appends = 0

    def append(self, run: str, kind: str, body: Mapping[str, Any], **options: Any) -> int:
        self.appends += 1
        if self.appends % 4 == 0:
            return 1 + len(list(self.inner.read(run)))
        return self.inner.append(run, kind, body, **options)


@breaks("append.all_or_none", "append.unmixed", "refused.limit_exceeded")
class SplitsBatches(Passing):
    def append_many(self, run: str, entries: Iterable[Entry], **options: Any) -> range:
        seqs = [self.inner.append(run, kind, body, **options) for kind, body in entries]
        return range(seqs[0], seqs[-1] + 1) if seqs else range(0)


@breaks(
    "append.dense",
    "append.in_order",
    "append.many_threads",
    "append.many_runs",
    "chain.verifies",
    "read.after_write",
    "read.after_a_seq",
    "read.long_runs",
    "finish.ends_the_run",
    "state.time_travel",
    "blob.in_a_record",
    "forget.verifies",
    "tail.an_ended_run",
    "tail.as_it_comes",
    "tail.asyncio",
)
class ReordersRecords(Passing):
    def read(self, stream: str, *, after: int = 0) -> Iterator[AnyRecord]:
        records = list(self.inner.read(stream, after=after))
        if len(records) >= 5:
            records[3], records[4] = records[4], records[3]
        return iter(records)


@breaks(
    "append.dense",
    "append.in_order",
    "append.many_threads",
    "append.many_runs",
    "append.barrier",
    "chain.verifies",
    "chain.time_never_goes_back",
    "read.after_a_seq",
    "read.long_runs",
    "forget.verifies",
    "tail.an_ended_run",
    "tail.as_it_comes",
    "tail.asyncio",
    "verify.everything",
    "verify.one_run",
)
class RepeatsARecord(Passing):
    def read(self, stream: str, *, after: int = 0) -> Iterator[AnyRecord]:
        for record in self.inner.read(stream, after=after):
            yield record
            if record.seq == 4:
                yield record


@breaks("read.after_a_seq")
class ReadsFromTheSeqOn(Passing):
    """``after`` is taken for ``from``."""

    def read(self, stream: str, *, after: int = 0) -> Iterator[AnyRecord]:
        return self.inner.read(stream, after=max(after - 1, 0))


@breaks("read.long_runs")
class ReadsOnePage(Passing):
    def read(self, stream: str, *, after: int = 0) -> Iterator[AnyRecord]:
        for count, record in enumerate(self.inner.read(stream, after=after)):
            if count == 2000:
                return
            yield record


@breaks(
    "append.many_threads",
    "append.many_runs",
    "chain.verifies",
    "chain.hash_of_text",
    "chain.bound_to_its_place",
    "chain.time_never_goes_back",
    "read.long_runs",
    "forget.verifies",
    "tail.an_ended_run",
    "tail.asyncio",
)
class HashesSomethingElse(Passing):
    def read(self, stream: str, *, after: int = 0) -> Iterator[AnyRecord]:
        for record in self.inner.read(stream, after=after):
            yield Altered(record, text=record.text.replace(b'":', b'": ', 1))


@breaks(
    "append.many_threads",
    "append.many_runs",
    "chain.verifies",
    "chain.hash_of_text",
    "chain.bound_to_its_place",
    "chain.time_never_goes_back",
    "read.long_runs",
    "contents.not_in_the_record",
    "forget.erases",
    "forget.verifies",
    "tail.an_ended_run",
    "tail.asyncio",
)
class KeepsValuesInRecords(Passing):
    """The bytes of a record hold the value beside the commitment."""

    def read(self, stream: str, *, after: int = 0) -> Iterator[AnyRecord]:
        for record in self.inner.read(stream, after=after):
            try:
                value = repr(record.value).encode()
            except HoldfastError:
                value = b""
            yield Altered(record, text=record.text + value)


@breaks(
    "create.first_records",
    "append.in_order",
    "append.unmixed",
    "append.many_threads",
    "append.many_runs",
    "append.barrier",
    "read.after_write",
    "contents.resolved",
    "contents.large",
    "contents.lookalikes",
    "fence.stale_after_recovery",
    "fence.one_outcome",
    "finish.ends_the_run",
    "fail.ends_the_run",
    "blob.in_a_record",
    "forget.erases",
    "forget.verifies",
    "forget.open_runs_stay",
)
class ForgetsContents(Passing):
    def read(self, stream: str, *, after: int = 0) -> Iterator[AnyRecord]:
        for record in self.inner.read(stream, after=after):
            yield Altered(record, value=record.body)


@breaks("contents.resolved")
class TakesTrueForOne(Passing):
    def append(self, run: str, kind: str, body: Mapping[str, Any], **options: Any) -> int:
        told = {name: 1 if value is True else value for name, value in body.items()}
        return self.inner.append(run, kind, told, **options)


@breaks("refused.kind_reserved")
class NotesRefusals(Passing):
    """A refused command leaves a trace in the run."""

    def append(self, run: str, kind: str, body: Mapping[str, Any], **options: Any) -> int:
        try:
            return self.inner.append(run, kind, body, **options)
        except HoldfastError as error:
            if error.code == "kind_reserved":
                self.inner.append(run, "note.logged", {"text": "refused"})
            raise


@breaks("create.key_returns_the_run", "create.key_conflict", "create.key_once_among_many")
class TakesAnyKey(Passing):
    """A key makes a second run."""

    def create_run(self, *, agent: str, **options: Any) -> str:
        options.pop("key", None)
        return self.inner.create_run(agent=agent, **options)


@breaks("create.key_conflict")
class ReturnsAnyRunOfAKey(Passing):
    """A key returns its run whatever else was asked for."""

    def __init__(self, inner: AnyStore, clock: FakeClock | None) -> None:
        super().__init__(inner, clock)
        self.keys: dict[str, str] = {}

    def create_run(self, *, agent: str, **options: Any) -> str:
        key = options.get("key")
        if key in self.keys:
            return self.keys[key]
        run = self.inner.create_run(agent=agent, **options)
        if key is not None:
            self.keys[key] = run
        return run


@breaks("append.nothing")
class NotesEmptyBatches(Passing):
    def append_many(self, run: str, entries: Iterable[Entry], **options: Any) -> range:
        return self.inner.append_many(run, list(entries) or [("note.logged", {"text": "nothing"})], **options)


@breaks("refused.no_such_run")
class ReadsUnknownRunsAsEmpty(Passing):
    def read(self, stream: str, *, after: int = 0) -> Iterator[AnyRecord]:
        try:
            yield from self.inner.read(stream, after=after)
        except HoldfastError as error:
            if error.code != "no_such_run":
                raise


@breaks("refused.bad_id")
class TakesSloppyIds(Passing):
    def append(self, run: str, kind: str, body: Mapping[str, Any], **options: Any) -> int:
        return self.inner.append(run.lower(), kind, body, **options)
