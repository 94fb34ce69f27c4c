"""Clauses about the journal: appending, reading, the chain, contents, refusals, keys."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from holdfast.conformance.store_clauses import (
    NOTE,
    Chapter,
    a_run,
    claimed,
    ended,
    last,
    no_run,
    notes,
    raises,
    refused,
    same_json,
    seqs,
    status,
    texts,
)
from holdfast.conformance.suite import expect, same, together
from holdfast.primitives import check_record, dumps, loads, new_id, verify_chain

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.conformance.store_clauses import Place
    from holdfast.conformance.store_surface import AnyStore

JOURNAL = Chapter()
clause = JOURNAL.clause
WRITERS, EACH = 8, 25
VALUES: list[Any] = [
    None,
    True,
    0,
    -1.5,
    1e300,
    2**53 - 1,
    "",
    "caf\u00e9 \u65e5\u672c \U0001f600 \u0000 \"'\\",
    [],
    {},
    {"b": [1, {"a": None}], "a": "\n"},
]


def artifact(name: str) -> dict[str, Any]:
    """The body of an artifact, a kind that may not follow the end of a run."""
    made = new_id("art")
    return {"artifact": made, "derived_from": [], "kind": "file", "media": "text/plain", "name": name}


# Runs begin.


@clause("create.first_records")
def first_records(place: Place) -> None:
    """A new run is pending and holds run.created, with input and state, and the creation of its step."""
    store = place.open()
    run = a_run(store, input={"file": "a.csv"}, state={"n": 1})
    records = list(store.read(run))
    same([record.kind for record in records], ["run.created", "step.created"], "the kinds of a new run")
    same_json(records[0].value["input"], {"file": "a.csv"}, "the input of a new run")
    same_json(store.state(run)["state"], {"n": 1}, "the state of a new run")
    same(status(store, run), "pending", "the status of a new run")


@clause("create.key_returns_the_run")
def key_returns(place: Place) -> None:
    """A second run with the same key, agent and input is the first one, and nothing is written."""
    store = place.open()
    first = a_run(store, key="order-42", input={"n": 1})
    before = texts(store, first)
    same(a_run(store, key="order-42", input={"n": 1}), first, "the run under a key that is taken")
    same(texts(store, first), before, "the records of the run after it was asked for again")
    expect(a_run(store, key="order-43", input={"n": 1}) != first, "two keys gave one run")


@clause("create.key_conflict")
def key_conflict(place: Place) -> None:
    """A key that is taken by another agent or another input is refused (key_conflict)."""
    store = place.open()
    run = a_run(store, key="order-42", input={"n": 1})
    works: dict[str, Callable[[], object]] = {
        "create_run with another input": lambda: a_run(store, key="order-42", input={"n": 2}),
        "create_run with another agent": lambda: a_run(store, key="order-42", input={"n": 1}, agent="other"),
    }
    refused(store, "key_conflict", [run], works)


@clause("create.key_once_among_many")
def key_once(place: Place) -> None:
    """Of many callers with one key, at the same time, exactly one makes the run."""
    store = place.open()
    made = together([lambda: a_run(store, key="one")] * WRITERS, "create_run under one key")
    same(len(set(made)), 1, "runs under one key")
    same(sum(store.stats()["runs"].values()), 1, "runs that the store counts")


@clause("create.key_two_handles")
def key_two_handles(place: Place) -> None:
    """The same holds for callers on several handles."""
    one = place.open()
    two = place.second()
    works = [lambda: a_run(one, key="one"), lambda: a_run(two, key="one")] * 3
    same(len(set(together(works, "create_run under one key"))), 1, "runs under one key")


# Appending.


@clause("append.dense")
def dense(place: Place) -> None:
    """The seqs of a run are 1, 2, 3 and so on, and appending answers with the seqs that are read back."""
    store = place.open()
    run = a_run(store)
    expected = len(list(store.read(run)))
    for number in range(5):
        answer = store.append(run, NOTE, {"text": number})
        same(answer, expected + 1, "the seq that append answers with")
        many = store.append_many(
            run, [(NOTE, {"text": "a"}), ("x.conformance.fact", {"data": {"n": number}})]
        )
        same(list(many), [expected + 2, expected + 3], "the seqs that append_many answers with")
        expected += 3
    same(seqs(store.read(run)), list(range(1, expected + 1)), "the seqs of a run")


@clause("append.in_order")
def in_order(place: Place) -> None:
    """Records of one caller stand in the order in which they were appended."""
    store = place.open()
    run = a_run(store)
    for first in range(0, 30, 3):
        store.append(run, NOTE, {"text": first})
        store.append_many(run, [(NOTE, {"text": first + 1}), (NOTE, {"text": first + 2})])
    same(notes(store, run), list(range(30)), "the notes of a run")


@clause("append.all_or_none")
def all_or_none(place: Place) -> None:
    """Of a batch with one bad entry, wherever it stands, nothing is written."""
    store = place.open()
    run = a_run(store)
    for at in range(3):
        entries: list[tuple[str, dict[str, Any]]] = [(NOTE, {"text": number}) for number in range(3)]
        entries[at] = ("run.finished", {})
        bad = f"append_many with a bad entry at {at}"
        refused(store, "kind_reserved", [run], {bad: partial(store.append_many, run, entries)})


@clause("append.nothing")
def nothing(place: Place) -> None:
    """An empty batch writes nothing and answers with no seqs."""
    store = place.open()
    run = a_run(store)
    before = texts(store, run)
    same(list(store.append_many(run, [])), [], "the seqs of an empty batch")
    same(texts(store, run), before, "the records after an empty batch")


@clause("append.unmixed")
def unmixed(place: Place) -> None:
    """The records of a batch stand together, whoever else writes to the run at the same time."""
    store = place.open()
    run = a_run(store)

    def write(name: int) -> list[range]:
        batch = [(NOTE, {"text": [name, number]}) for number in range(3)]
        return [store.append_many(run, batch) for _ in range(EACH)]

    answers = together([partial(write, name) for name in range(WRITERS)], "append_many")
    found = {record.seq: record.value["text"] for record in store.read(run) if record.kind == NOTE}
    for name, ranges in enumerate(answers):
        for answer in ranges:
            batch = [found.get(seq) for seq in answer]
            same(batch, [[name, number] for number in range(3)], "a batch at the seqs it was given")


@clause("append.many_threads")
def many_threads(place: Place) -> None:
    """Threads that append to one run keep one dense, valid chain with each record once."""
    store = place.open()
    run = a_run(store)

    def write(name: int) -> list[int]:
        return [store.append(run, NOTE, {"text": [name, number]}) for number in range(EACH)]

    answers = together([partial(write, name) for name in range(WRITERS)], "append")
    records = list(store.read(run))
    same(seqs(records), list(range(1, len(records) + 1)), "the seqs of a run that many wrote to")
    verify_chain(store.id, run, [record.text for record in records])
    found = {record.seq: record.value["text"] for record in records if record.kind == NOTE}
    said = {seq: [name, at] for name, each in enumerate(answers) for at, seq in enumerate(each)}
    same(found, said, "the notes of all writers, by seq")


@clause("append.two_handles")
def two_handles(place: Place) -> None:
    """Handles that append to one run at the same time keep one dense, valid chain."""
    stores = [place.open(), place.second()]
    run = a_run(stores[0])

    def write(name: int, number: int) -> int:
        return stores[name % 2].append(run, NOTE, {"text": [name, number]})

    said: dict[int, list[int]] = {}
    for number in range(EACH):  # round by round: no handle gets far ahead of the other
        answers = together([partial(write, name, number) for name in range(4)], "append")
        said |= {seq: [name, number] for name, seq in enumerate(answers)}
    found = {record.seq: record.value["text"] for record in stores[1].read(run) if record.kind == NOTE}
    same(found, said, "the notes of all writers, by seq")
    verify_chain(stores[0].id, run, texts(stores[0], run))


@clause("append.many_runs")
def many_runs(place: Place) -> None:
    """Runs that are written to at the same time do not touch each other."""
    store = place.open()
    runs = [a_run(store) for _ in range(WRITERS)]

    def write(run: str) -> None:
        for number in range(EACH):
            store.append(run, NOTE, {"text": [run, number]})

    together([partial(write, run) for run in runs], "append")
    for run in runs:
        same(notes(store, run), [[run, number] for number in range(EACH)], "the notes of one of many runs")
        verify_chain(store.id, run, texts(store, run))


@clause("append.after_the_end")
def after_the_end(place: Place) -> None:
    """After its end a run takes notes and costs, and nothing that would change it (run_ended)."""
    store = place.open()
    run = ended(store)
    store.append(run, NOTE, {"text": "late"})
    store.append(run, "cost.recorded", {"amounts": {"tokens": 5}})
    works: dict[str, Callable[[], object]] = {
        "artifact": lambda: store.append(run, "artifact.created", artifact("late.txt")),
        "signal": lambda: store.signal(run, "go"),
        "cancel": lambda: store.cancel(run, by="dana"),
    }
    refused(store, "run_ended", [run], works)
    same(status(store, run), "completed", "the status of a run that was noted to")


@clause("append.barrier")
def barrier(place: Place) -> None:
    """With a barrier an append answers and reads back like any other, and a barrier alone writes nothing."""
    store = place.open()
    run = a_run(store, barrier=True)
    seq = store.append(run, NOTE, {"text": "kept"}, barrier=True)
    store.append_many(run, [(NOTE, {"text": "kept too"})], barrier=True)
    before = texts(store, run)
    store.barrier()
    same(texts(store, run), before, "the records after a barrier")
    same((before[seq - 1 : seq] != [], notes(store, run)), (True, ["kept", "kept too"]), "the barred notes")


# The chain.


@clause("chain.verifies")
def chain_verifies(place: Place) -> None:
    """Each prev is the hash of the record before, from the store's id and the stream's on."""
    store = place.open()
    run = a_run(store, input={"n": 1})
    store.append_many(run, [(NOTE, {"text": number}) for number in range(5)])
    store.finish(claimed(store), result="done")
    for stream in (run, "store"):
        head = verify_chain(store.id, stream, texts(store, stream))
        same(head.hash, last(store, stream).hash, "the hash that a stream ends in")
        same(head.seq, last(store, stream).seq, "the seq that a stream ends in")


@clause("chain.hash_of_text")
def hash_of_text(place: Place) -> None:
    """A record's hash is over its text, and its text is the canonical bytes of what it says."""
    store = place.open()
    run = a_run(store, input=VALUES)
    store.append(run, "x.conformance.fact", {"data": {"b": 1.0, "a": ["\u00e9"]}, "content": VALUES})
    for record in store.read(run):
        same(record.hash, check_record(record.text), "the hash of a record")
        same(dumps(loads(record.text)), record.text, "the canonical bytes of a record")


@clause("chain.bound_to_its_place")
def bound_to_its_place(place: Place) -> None:
    """Two runs with the same contents have other hashes, and neither verifies as the other."""
    store = place.open()
    one, two = a_run(store), a_run(store)
    expect(last(store, one).hash != last(store, two).hash, "two runs end in the same hash")
    moved = texts(store, one)
    raises("record_moved", lambda: verify_chain(store.id, two, moved), "a run under another's id")


@clause("chain.time_never_goes_back")
def time_never_goes_back(place: Place) -> None:
    """The times of a run's records never fall, even when the wall clock is set back."""
    store, clock = place.open_at()
    run = a_run(store)
    store.append(run, NOTE, {"text": "before"})
    clock.set_wall(clock.wall_ms - 3_600_000)
    store.append(run, NOTE, {"text": "after"})
    times = [record.at for record in store.read(run)]
    same(times, sorted(times), "the times of a run")
    verify_chain(store.id, run, texts(store, run))


# Reading.


@clause("read.after_write")
def after_write(place: Place) -> None:
    """What an append answered with is there for the next read."""
    store = place.open()
    run = a_run(store)
    for number in range(10):
        seq = store.append(run, NOTE, {"text": number})
        record = last(store, run)
        same((record.seq, record.value["text"]), (seq, number), "the newest record")


@clause("read.after_a_seq")
def after_a_seq(place: Place) -> None:
    """Reading after a seq gives exactly the records that follow it."""
    store = place.open()
    run = a_run(store)
    store.append_many(run, [(NOTE, {"text": number}) for number in range(6)])
    whole = texts(store, run)
    for after in range(len(whole) + 2):
        rest = [record.text for record in store.read(run, after=after)]
        same(rest, whole[after:], f"the records after {after}")


@clause("read.long_runs")
def long_runs(place: Place) -> None:
    """A run of many pages is read whole, once and in order."""
    store = place.open()
    run = a_run(store)
    facts = [("x.conformance.fact", {"data": {"n": number, "long": "x" * 2000}}) for number in range(900)]
    for _ in range(3):
        store.append_many(run, facts)
    records = list(store.read(run))
    same(seqs(records), list(range(1, 2703)), "the seqs of a long run")
    verify_chain(store.id, run, [record.text for record in records])


@clause("read.second_handle")
def second_handle(place: Place) -> None:
    """What one handle wrote is there for the next read and the next command of any other."""
    one = place.open()
    two = place.second()
    run = a_run(one)
    for number in range(6):
        writer, reader = (one, two) if number % 2 else (two, one)
        last(reader, run)  # what it read before is no excuse
        seq = writer.append(run, NOTE, {"text": number})
        same(last(reader, run).seq, seq, "the newest record through the other handle")
    same(notes(one, run), list(range(6)), "the notes of two writers")
    verify_chain(one.id, run, texts(two, run))


@clause("read.reopened")
def reopened(place: Place) -> None:
    """A handle that is opened after all others were closed reads everything, byte for byte."""
    store = place.open()
    run = ended(store, input={"n": 1})
    kept, state = texts(store, run), store.state(run)
    blob = store.put_blob(b"kept")
    store.close()
    again = place.second()
    same(texts(again, run), kept, "the records after reopening")
    same(again.state(run), state, "the fold after reopening")
    same(again.get_blob(blob), b"kept", "a blob after reopening")
    expect(again.verify().ok, "a store that was closed and opened does not verify")


# Contents.


@clause("contents.resolved")
def resolved(place: Place) -> None:
    """Any JSON value comes back the same from inputs, states, notes, artifacts, signals and results."""
    store = place.open()
    for value in VALUES:
        run = a_run(store, input=value, state={"v": value})
        claim = claimed(store)
        same_json(claim.input, value, "the input that a claim brings")
        store.append(run, NOTE, {"text": value})
        store.append(run, "x.conformance.fact", {"data": {}, "content": value})
        store.append(run, "artifact.created", {**artifact("a.txt"), "content": value}, claim=claim)
        store.signal(run, "go", value)
        store.finish(claim, result=value)
        read = {record.kind: record.value for record in store.read(run)}
        places = {NOTE: "text", "x.conformance.fact": "content", "artifact.created": "content"}
        places |= {"signal.received": "payload", "run.finished": "result", "run.created": "input"}
        for kind, position in places.items():
            same_json(read[kind][position], value, f"the {position} of {kind}")


@clause("contents.not_in_the_record")
def not_in_the_record(place: Place) -> None:
    """A record's bytes hold a commitment to a value and its size, never the value."""
    store = place.open()
    private = "4111-1111-1111-1111"
    run = a_run(store, input={"card": private}, state={"card": private})
    claim = claimed(store)
    store.append(run, NOTE, {"text": private}, claim=claim)
    store.patch(claim, {"card": [private]}, expected_version=claim.state_version)
    store.finish(claim, result=private)
    for record in store.read(run):
        expect(private.encode() not in record.text, f"{record.kind} holds a user's value")
    body = last(store, run).body["result"]
    same(body["bytes"], len(dumps(private)), "the size beside a commitment")


@clause("contents.salted")
def salted(place: Place) -> None:
    """The same value twice gives two commitments, so that none can be guessed."""
    store = place.open()
    run = a_run(store)
    store.append_many(run, [(NOTE, {"text": "yes"}), (NOTE, {"text": "yes"})])
    store.append(run, NOTE, {"text": "yes"})
    commits = [record.body["text"]["commit"] for record in store.read(run) if record.kind == NOTE]
    same(len(set(commits)), 3, "commitments to one value that was given three times")


@clause("contents.large")
def large(place: Place) -> None:
    """A value of some hundred kilobytes comes back the same."""
    store = place.open()
    value = {"rows": [{"n": number, "text": "row " * 20} for number in range(3000)]}
    run = ended(store, input=value)
    store.append(run, NOTE, {"text": value})
    same_json(next(iter(store.read(run))).value["input"], value, "a large input")
    same_json(last(store, run).value["text"], value, "a large note")
    expect(store.verify(run).ok, "a run with large contents does not verify")


@clause("contents.lookalikes")
def lookalikes(place: Place) -> None:
    """A value that looks like a commitment is just data."""
    store = place.open()
    run = a_run(store)
    store.append(run, NOTE, {"text": "a secret of somebody else"})
    reference = dict(last(store, run).body["text"])
    store.append(run, NOTE, {"text": reference})
    same_json(last(store, run).value["text"], reference, "a value that looks like a commitment")


# Refusals: each changes nothing.


def door(store: AnyStore, run: str, kind: str, body: dict[str, Any]) -> Callable[[], object]:
    """An append, to be refused."""
    return lambda: store.append(run, kind, body)


@clause("refused.no_such_run")
def no_such_run(place: Place) -> None:
    """Whatever is asked of a run that does not exist is refused (no_such_run) and makes none."""
    store = place.open()
    run, other = no_run(), a_run(store)
    works: dict[str, Callable[[], object]] = {
        "append": lambda: store.append(run, NOTE, {"text": "?"}),
        "append_many": lambda: store.append_many(run, [(NOTE, {"text": "?"})]),
        "signal": lambda: store.signal(run, "go"),
        "cancel": lambda: store.cancel(run, by="dana"),
        "retry": lambda: store.retry(run, by="dana"),
        "forget": lambda: store.forget(run, by="dana"),
        "read": lambda: list(store.read(run)),
        "state": lambda: store.state(run),
        "verify": lambda: store.verify(run),
    }
    refused(store, "no_such_run", [other], works)


@clause("refused.bad_id")
def bad_id(place: Place) -> None:
    """What is no id is refused (bad_id), whatever it looks like."""
    store = place.open()
    run = a_run(store)
    for name in ("", "run_", "../../etc/passwd", run.upper(), run[:-1], "' OR 1=1 --"):
        works: dict[str, Callable[[], object]] = {
            "append": partial(store.append, name, NOTE, {"text": "?"}),
            "read": partial(texts, store, name),
        }
        refused(store, "bad_id", [run], works)


@clause("refused.kind_reserved")
def kind_reserved(place: Place) -> None:
    """The door takes notes, costs, artifacts, checkpoints and x.* only (kind_reserved)."""
    store = place.open()
    run = a_run(store)
    for kind in ("run.finished", "step.claimed", "state.patched", "content.erased", "no.such"):
        refused(store, "kind_reserved", [run], {kind: door(store, run, kind, {})})


@clause("refused.bad_body")
def bad_body(place: Place) -> None:
    """A body that is not what its kind says is refused with a code that says why."""
    store = place.open()
    run = a_run(store)
    bad: list[tuple[str, str, dict[str, Any]]] = [
        ("missing_field", NOTE, {}),
        ("unknown_field", NOTE, {"text": "a", "more": 1}),
        ("unknown_token", NOTE, {"text": "a", "level": "loud"}),
        ("unknown_kind", "x.short", {}),
        ("wrong_type", "cost.recorded", {"amounts": 7}),
        ("not_finite", NOTE, {"text": float("nan")}),
        ("integer_too_large", NOTE, {"text": 2**53}),
        ("key_not_string", NOTE, {"text": {1: 2}}),
        ("not_json", NOTE, {"text": {1, 2}}),
        ("record_too_large", "x.conformance.fact", {"data": {"d": "x" * 300_000}}),
    ]
    for code, kind, body in bad:
        refused(store, code, [run], {f"{kind} ({code})": door(store, run, kind, body)})


@clause("refused.limit_exceeded")
def limit_exceeded(place: Place) -> None:
    """What is beyond a bound is refused (limit_exceeded): leases, waits, records of a batch."""
    store = place.open()
    run = a_run(store)
    claim = claimed(store)
    waits = [{"on": "signal", "subject": f"s{number}"} for number in range(1025)]
    works: dict[str, Callable[[], object]] = {
        "a lease that is too short": lambda: store.heartbeat(claim, lease=0.001),
        "a lease that is too long": lambda: store.heartbeat(claim, lease=10.0**6),
        "too many waits": lambda: store.wait(claim, waits),
        "too many records": lambda: store.append_many(run, [(NOTE, {"text": 1})] * 10_001),
    }
    refused(store, "limit_exceeded", [run], works)
