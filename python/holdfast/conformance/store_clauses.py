"""Where the clauses of a store are tried, and what they are written with.

``suite.py`` has what a clause is. Nothing here looks below the public surface of a store.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.conformance import suite
from holdfast.conformance.suite import Broken, expect, same
from holdfast.errors import HoldfastError
from holdfast.primitives import dumps, new_id
from holdfast.store import FakeClock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from holdfast.conformance.store_surface import AnyRecord, AnyStore, Harness
    from holdfast.store import Claim

NOTE = "note.logged"


class Place:
    """Where one clause is tried: a new location, and every handle on it."""

    def __init__(self, harness: Harness) -> None:
        self._harness = harness
        self._clock: FakeClock | None = None
        self._handles: list[AnyStore] = []

    def open(self) -> AnyStore:
        """A new store on the machine's clock."""
        return self._kept(self._harness.open(None))

    def open_at(self) -> tuple[AnyStore, FakeClock]:
        """A new store on a clock that the clause moves."""
        self._clock = FakeClock()
        return self._kept(self._harness.open(self._clock)), self._clock

    def second(self) -> AnyStore:
        """Another handle on the store."""
        return self._kept(self._harness.reopen(self._clock))

    def _kept(self, store: AnyStore) -> AnyStore:
        self._handles.append(store)
        return store

    def leave(self) -> None:
        """Closes and removes everything."""
        try:
            for handle in self._handles:
                handle.close()
        finally:
            self._harness.destroy()


class Chapter(suite.Chapter["Harness", Place]):
    """Collects the clauses of one module, in order."""

    def __init__(self) -> None:
        super().__init__(Place)


# What clauses say.


def same_json(found: object, expected: object, what: str) -> None:
    """Two JSON values have to be the same, down to their bytes (in Python, True equals 1)."""
    same(dumps(found), dumps(expected), what)


def refusal(work: Callable[[], object]) -> str | None:
    """The code that work is refused with, or None if it is done."""
    try:
        work()
    except HoldfastError as error:
        return error.code
    return None


def raises(code: str, work: Callable[[], object], what: str) -> None:
    """The work has to be refused with a code."""
    found = refusal(work)
    expect(found is not None, f"{what} was accepted, where {code} was due")
    same(found, code, f"the code of a refused {what}")


def taken(work: Callable[[], object], code: str) -> bool:
    """Whether the work was done; otherwise it has to be refused with the code."""
    found = refusal(work)
    same(found, None if found is None else code, "the code of what was refused")
    return found is None


def picture(store: AnyStore, runs: Iterable[str]) -> dict[str, Any]:
    """Everything that can be seen of some runs and of the store's own stream."""
    seen: dict[str, Any] = {run: (texts(store, run), store.state(run)) for run in runs}
    return seen | {"store": texts(store, "store"), "runs": dict(store.stats()["runs"])}


def refused(store: AnyStore, code: str, runs: Iterable[str], works: dict[str, Callable[[], object]]) -> None:
    """Each work has to be refused with the code, and to change nothing that can be seen."""
    kept = list(runs)
    for what, work in works.items():
        before = picture(store, kept)
        raises(code, work, what)
        same(picture(store, kept), before, f"what is seen after a refused {what}")


# What clauses do.


def a_run(store: AnyStore, **options: Any) -> str:  # noqa: ANN401
    """A new run; the clauses care little whose."""
    return store.create_run(**{"agent": "agent", "barrier": False, **options})


def no_run() -> str:
    """The id of a run that is nowhere."""
    return new_id("run")


def claimed(store: AnyStore, *, worker: str = "worker", **options: Any) -> Claim:  # noqa: ANN401
    """A claim that has to be given."""
    claim = store.claim(worker=worker, **options)
    if claim is None:
        raise Broken("a step that could run was not given to a worker that asked")
    return claim


def unclaimed(store: AnyStore, why: str, **options: Any) -> None:  # noqa: ANN401
    """Nothing may be given."""
    claim = store.claim(**{"worker": "nobody", **options})
    if claim is not None:
        raise Broken(f"a step was given to a worker although {why}")


def ended(store: AnyStore, **options: Any) -> str:  # noqa: ANN401
    """A run that has completed."""
    run = a_run(store, **options)
    claim = claimed(store)
    same(claim.run, run, "the run of the only claim")
    store.finish(claim, result={"done": True})
    return run


def status(store: AnyStore, run: str) -> str:
    """What the fold says of a run."""
    return str(store.state(run)["status"])


def texts(store: AnyStore, stream: str) -> list[bytes]:
    """The bytes of a stream's records."""
    return [record.text for record in store.read(stream)]


def seqs(records: Iterable[AnyRecord]) -> list[int]:
    """Where records stand."""
    return [record.seq for record in records]


def last(store: AnyStore, stream: str) -> AnyRecord:
    """The newest record."""
    records = list(store.read(stream))
    expect(bool(records), "a stream that was written to reads as empty")
    return records[-1]


def notes(store: AnyStore, run: str) -> list[Any]:
    """The texts of a run's notes."""
    return [record.value["text"] for record in store.read(run) if record.kind == NOTE]
