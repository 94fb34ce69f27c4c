"""Clauses about what is kept beside the journal, and its care: blobs, forgetting, tails, audits, close."""

from __future__ import annotations

import asyncio
import threading
from functools import partial
from typing import TYPE_CHECKING, Any

from holdfast.conformance.store_clauses import (
    NOTE,
    Chapter,
    a_run,
    claimed,
    ended,
    last,
    picture,
    raises,
    refusal,
    refused,
    same_json,
    seqs,
    status,
    texts,
)
from holdfast.conformance.suite import expect, same, together, within
from holdfast.primitives import verify_chain

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.conformance.store_clauses import Place
    from holdfast.conformance.store_surface import AnyStore

CARE = Chapter()
clause = CARE.clause
NOWHERE = "sha256:" + "0" * 64
BYTES = [b"", b"\x00", b"text", bytes(range(256)) * 40, b"long and dull " * 50_000]


def a_bit_of_everything(store: AnyStore) -> list[str]:
    """Runs in every status, with all that a run may hold."""
    done = ended(store, input={"n": 1})
    store.append(done, NOTE, {"text": "late"})
    failed = a_run(store)
    store.fail(claimed(store), "broken", retryable=False)
    waiting = a_run(store, state={"n": 0})
    claim = claimed(store)
    store.patch(claim, {"n": 1}, expected_version=claim.state_version)
    store.wait(claim, [{"on": "signal", "subject": "go"}])
    cancelled = a_run(store)
    store.cancel(cancelled, by="dana")
    running = a_run(store)
    claim = claimed(store)
    store.append(running, NOTE, {}, claim=claim, blobs={"text": store.put_blob(b"a blob")})
    pending = a_run(store, labels={"a": "b"}, input="large " * 30_000)
    return [done, failed, waiting, cancelled, running, pending]


# Blobs.


@clause("blob.round_trip")
def round_trip(place: Place) -> None:
    """A blob comes back byte for byte, by its content and by its commitment."""
    store = place.open()
    kept = [(store.put_blob(data), data) for data in BYTES]
    for blob, data in kept:
        same(store.get_blob(blob), data, "the bytes of a blob")
        same(store.get_blob(blob["commit"]), data, "the bytes of a blob, by its commitment")
        same(blob["bytes"], len(data), "the size of a blob")


@clause("blob.salted")
def blob_salted(place: Place) -> None:
    """The same bytes twice are two blobs, so that no commitment can be guessed."""
    store = place.open()
    one, two = store.put_blob(b"yes"), store.put_blob(b"yes")
    expect(one["commit"] != two["commit"], "the same bytes gave the same commitment")


@clause("blob.in_a_record")
def in_a_record(place: Place) -> None:
    """A record may hold a blob as its content: its value is the bytes, and it verifies."""
    store = place.open()
    run = a_run(store)
    for data in BYTES:
        store.append(run, NOTE, {}, blobs={"text": store.put_blob(data, media="image/png")})
        record = last(store, run)
        same(record.value["text"], data, "the value of a record that holds a blob")
        same(record.body["text"]["media"], "image/png", "the media type in the record")
    expect(store.verify(run).ok, "a run with blobs does not verify")


@clause("blob.missing")
def missing(place: Place) -> None:
    """A blob that was never put is neither read nor referred to (no_such_blob)."""
    store = place.open()
    run = a_run(store)
    made_up = {**store.put_blob(b"here"), "commit": NOWHERE}
    works: dict[str, Callable[[], object]] = {
        "get_blob": lambda: store.get_blob(NOWHERE),
        "get_blob of a content": lambda: store.get_blob(made_up),
        "append": lambda: store.append(run, NOTE, {}, blobs={"text": made_up}),
    }
    refused(store, "no_such_blob", [run], works)


@clause("blob.strict_names")
def strict_names(place: Place) -> None:
    """What is no commitment is refused before anything is looked for (bad_value)."""
    store = place.open()
    run = a_run(store)
    for name in ("", "..", "../../etc/passwd", "sha256:", "sha256:" + "G" * 64, NOWHERE + "/x"):
        refused(store, "bad_value", [run], {"get_blob": partial(store.get_blob, name)})


@clause("blob.true_size")
def true_size(place: Place) -> None:
    """A record that lies about the size of a blob is refused; its audit could never pass."""
    store = place.open()
    run = a_run(store)
    blob = {**store.put_blob(b"three"), "bytes": 7}
    before = picture(store, [run])
    lie = partial(store.append, run, NOTE, {}, blobs={"text": blob})
    expect(refusal(lie) is not None, "a record with a wrong size of its blob was accepted")
    same(picture(store, [run]), before, "what is seen after a refused append")


# Forgetting.


@clause("forget.erases")
def erases(place: Place) -> None:
    """Forgetting a run erases every value of it: reading one is refused (content_erased)."""
    store = place.open()
    run = a_run(store, input={"name": "dana"}, state={"n": 1})
    claim = claimed(store)
    blob = store.put_blob(b"a photo")
    store.append(run, NOTE, {"text": "dana was here"}, claim=claim)
    store.append(run, NOTE, {"text": "large " * 30_000}, claim=claim)
    store.append(run, NOTE, {}, claim=claim, blobs={"text": blob})
    store.finish(claim, result={"name": "dana"})
    before = texts(store, run)
    expect(store.forget(run, by="dana", reason="asked to") > 0, "nothing was erased")
    after = list(store.read(run))
    same([record.text for record in after[: len(before)]], before, "the records of a forgotten run")
    same([record.kind for record in after[len(before) :]], ["content.erased"], "what follows the end")
    holding = [after[0], *(record for record in after if record.kind in (NOTE, "run.finished"))]
    for record in holding:
        raises("content_erased", partial(getattr, record, "value"), f"value of {record.kind}")
    raises("no_such_blob", lambda: store.get_blob(blob), "blob of a forgotten run")
    expect("state" not in store.state(run), "the fold of a forgotten run still holds its state")


@clause("forget.verifies")
def forget_verifies(place: Place) -> None:
    """A forgotten run verifies as before, record by record and as a whole."""
    store = place.open()
    run, other = ended(store, input={"name": "dana"}), ended(store)
    store.forget(run, by="dana")
    verify_chain(store.id, run, texts(store, run))
    expect(store.verify(run).ok and store.verify().ok, "a store with a forgotten run does not verify")
    same(store.forget(run, by="dana"), 0, "contents that are left to forget")
    same_json(last(store, other).value["result"], {"done": True}, "the result of another run")


@clause("forget.open_runs_stay")
def open_runs_stay(place: Place) -> None:
    """A run that has not ended cannot be forgotten (run_open)."""
    store = place.open()
    run = a_run(store, input={"n": 1})
    refused(store, "run_open", [run], {"forget, pending": lambda: store.forget(run, by="dana")})
    claim = claimed(store)
    refused(store, "run_open", [run], {"forget, running": lambda: store.forget(run, by="dana")})
    store.wait(claim, [{"on": "signal", "subject": "go"}])
    refused(store, "run_open", [run], {"forget, waiting": lambda: store.forget(run, by="dana")})
    same_json(next(iter(store.read(run))).value["input"], {"n": 1}, "the input of a run that is open")


@clause("forget.other_handles")
def other_handles(place: Place) -> None:
    """What one handle forgot is gone for every other."""
    one = place.open()
    two = place.second()
    run = ended(one, input={"name": "dana"})
    same_json(
        next(iter(two.read(run))).value["input"], {"name": "dana"}, "the input through the other handle"
    )
    one.forget(run, by="dana")
    first = next(iter(two.read(run)))
    raises("content_erased", lambda: first.value, "value through another handle")


# Tails.


@clause("tail.an_ended_run")
def tail_of_ended(place: Place) -> None:
    """The tail of an ended run gives every record once, in order, and ends."""
    store = place.open()
    run = a_run(store)
    store.append_many(run, [(NOTE, {"text": number}) for number in range(20)])
    store.finish(claimed(store))
    whole = texts(store, run)
    same(_tailed(store, run), whole, "the tail of an ended run")
    same(_tailed(store, run, after=7), whole[7:], "the tail after a record")


def _tailed(store: AnyStore, run: str, **options: Any) -> list[bytes]:  # noqa: ANN401
    return within(lambda: [record.text for record in store.tail(run, **options)], "the tail of an ended run")


@clause("tail.as_it_comes")
def as_it_comes(place: Place) -> None:
    """A tail that began early gives every record once, in order, while others are written, to the end."""
    store = place.open()
    run = a_run(store)
    began = threading.Event()

    def follow() -> list[int]:
        seen = []
        for record in store.tail(run):
            began.set()
            seen.append(record.seq)
        return seen

    def write() -> list[int]:
        expect(began.wait(30), "a tail gave nothing of a run that has records")
        for number in range(30):
            store.append_many(run, [(NOTE, {"text": number})] * (1 + number % 3))
        store.finish(claimed(store))
        return seqs(store.read(run))

    seen, written = together([follow, write], "the tail of a run that ends")
    same(seen, written, "the seqs that a tail gave")


@clause("tail.stops")
def tail_stops(place: Place) -> None:
    """The tail of an open run ends when it is told to, and has given everything until then."""
    store = place.open()
    run = a_run(store)
    store.append(run, NOTE, {"text": "a"})
    stop = threading.Event()

    def follow() -> list[int]:
        seen = []
        for record in store.tail(run, stop=stop):
            seen.append(record.seq)
            if record.kind == NOTE:
                stop.set()
        return seen

    same(within(follow, "a tail that was told to stop"), [1, 2, 3], "the seqs that a tail gave")


@clause("tail.asyncio")
def tail_asyncio(place: Place) -> None:
    """The tail for asyncio gives the same records."""
    store = place.open()
    run = a_run(store)
    store.append_many(run, [(NOTE, {"text": number}) for number in range(20)])
    store.finish(claimed(store))

    async def follow() -> list[bytes]:
        return [record.text async for record in store.atail(run, after=2)]

    same(within(lambda: asyncio.run(follow()), "a tail for asyncio"), texts(store, run)[2:], "the tail")


# Audits.


@clause("verify.everything")
def everything(place: Place) -> None:
    """An audit of everything that the commands can make is clean, and counts every record."""
    store = place.open()
    runs = a_bit_of_everything(store)
    report = store.verify()
    expect(report.ok and report.first_bad is None, f"the audit found {report.first_bad}")
    records = sum(len(texts(store, stream)) for stream in [*runs, "store"])
    same(report.records, records, "the records of the audit")
    expect(bool(report.guarantee), "the audit does not say what it shows")


@clause("verify.one_run")
def one_run(place: Place) -> None:
    """An audit of one run, or of the store's own stream, counts the records of that one."""
    store = place.open()
    for stream in [*a_bit_of_everything(store), "store"]:
        report = store.verify(stream)
        expect(report.ok, f"the audit found {report.first_bad}")
        same(report.records, len(texts(store, stream)), "the records of the audit")


@clause("verify.kept_heads")
def kept_heads(place: Place) -> None:
    """Against the heads that its streams end in, an audit is clean."""
    store = place.open()
    heads = {run: last(store, run).hash for run in a_bit_of_everything(store)}
    report = store.verify(heads=heads)
    expect(report.ok, f"the audit found {report.first_bad}")


@clause("verify.older_heads")
def older_heads(place: Place) -> None:
    """Against heads that its streams once had, an audit is clean: what was written later is no flaw."""
    store = place.open()
    run = a_run(store)
    for _ in range(3):
        store.append(run, NOTE, {"text": "more"})
    for record in store.read(run):
        report = store.verify(heads={run: record.hash})
        expect(report.ok, f"the audit found {report.first_bad}")


@clause("verify.foreign_heads")
def foreign_heads(place: Place) -> None:
    """A head that a stream never had, or a stream that is not there, is named by the audit."""
    store = place.open()
    one, two = a_run(store), a_run(store)
    gone = one[:-4] + ("0000" if one[-4:] != "0000" else "1111")
    for stream, head in ((one, last(store, two).hash), (two, NOWHERE), (gone, NOWHERE)):
        report = store.verify(heads={stream: head})
        expect(not report.ok, "an audit against a foreign head is clean")
        same(getattr(report.first_bad, "stream", None), stream, "the stream that the audit names")
    expect(store.verify().ok, "an audit without heads is not clean")


# The rest.


@clause("sql.reads_only")
def sql_reads_only(place: Place) -> None:
    """SQL for people reads, with parameters, and whatever would write is refused (bad_sql)."""
    store = place.open()
    run = a_run(store)
    same(store.sql("SELECT 1 AS one"), [{"one": 1}], "the rows of a query")
    works: dict[str, Callable[[], object]] = {
        "DELETE": lambda: store.sql("DELETE FROM runs"),
        "UPDATE": lambda: store.sql("UPDATE streams SET last_seq = 0"),
        "CREATE": lambda: store.sql("CREATE TABLE mine (a INTEGER)"),
        "nonsense": lambda: store.sql("nonsense"),
    }
    refused(store, "bad_sql", [run], works)
    expect(store.verify().ok, "the audit after refused SQL is not clean")


@clause("stats.count_runs")
def stats_count(place: Place) -> None:
    """The figures count runs by their status."""
    store = place.open()
    expected: dict[str, int] = {}
    for run in a_bit_of_everything(store):
        expected[status(store, run)] = expected.get(status(store, run), 0) + 1
    found = {name: count for name, count in store.stats()["runs"].items() if count}
    same(found, expected, "runs by status")


@clause("close.ends_the_handle")
def close_ends(place: Place) -> None:
    """After close every call is refused (store_closed), and closing again is not an error."""
    store = place.open()
    run = a_run(store)
    claim = claimed(store)
    store.close()
    works: dict[str, Callable[[], object]] = {
        "create_run": lambda: a_run(store),
        "append": lambda: store.append(run, NOTE, {"text": "?"}),
        "read": lambda: list(store.read(run)),
        "tail": lambda: list(store.tail(run)),
        "state": lambda: store.state(run),
        "claim": lambda: store.claim(worker="w"),
        "finish": lambda: store.finish(claim),
        "signal": lambda: store.signal(run, "go"),
        "sql": lambda: store.sql("SELECT 1"),
        "verify": store.verify,
        "stats": store.stats,
        "barrier": store.barrier,
    }
    for what, work in works.items():
        raises("store_closed", partial(within, work, "a call after close"), what)
    store.close()


@clause("close.ends_blobs")
def close_ends_blobs(place: Place) -> None:
    """After close no blob is taken and none is given (store_closed)."""
    store = place.open()
    blob = store.put_blob(b"here")
    store.close()
    raises("store_closed", lambda: store.put_blob(b"more"), "put_blob")
    raises("store_closed", lambda: store.get_blob(blob), "get_blob")


@clause("close.one_of_two")
def close_one(place: Place) -> None:
    """Closing one handle leaves the others as they are."""
    one = place.open()
    two = place.second()
    run = a_run(one)
    one.close()
    seq = two.append(run, NOTE, {"text": "still here"})
    same(last(two, run).seq, seq, "the newest record")
    expect(two.verify().ok, "the audit after a handle was closed is not clean")
