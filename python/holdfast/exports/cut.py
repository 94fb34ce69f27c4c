"""Where an export reads: one stream up to one record, which are durable before anything leaves.

Exports only read. The last record is noted first and the barrier made then, so that all that is read is
behind it, and what others append meanwhile is not. A store that is open for reading only cannot make one:
what is read there is committed, and on the disk a moment later.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from holdfast.errors import CommandError, StoreError
from holdfast.gateway.outcomes import fix
from holdfast.runtime import Run, Runtime
from holdfast.store import Store

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.store import Record

Source = Store | Runtime
STREAMS = "SELECT id, key, last_seq, head FROM streams WHERE key > ? ORDER BY key LIMIT 1000"


@dataclass(frozen=True)
class Cut:
    """One stream, up to one record."""

    store: Store
    stream: str
    last: int
    head: str
    """The hash of the last record."""

    def records(self) -> Iterator[Record]:
        """The records, in order, a page at a time."""
        for record in self.store.read(self.stream):
            yield record
            if record.seq == self.last:
                return


@dataclass(frozen=True)
class Exported:
    """What has left.

    Attributes:
        stream: the run, the session or ``store``; None if it was everything.
        records: how many records were read.
        head: the hash of the last one; keep it elsewhere, it shows a missing end.
        items: lines, spans or rows that were written.
    """

    stream: str | None
    records: int
    head: str | None
    items: int


def store_of(source: Source) -> Store:
    """The store of a runtime, or itself."""
    return source.store if isinstance(source, Runtime) else source


def cut(source: Source, run: Run | str, *, only_runs: bool = False) -> Cut:
    """Where a stream ends now, made durable.

    Raises:
        CommandError: ``no_such_run``.
    """
    store, stream = store_of(source), run.id if isinstance(run, Run) else run
    rows = store.sql("SELECT last_seq, head, kind FROM streams WHERE id = ?", [stream])
    if not rows or (only_runs and rows[0]["kind"] != "run"):
        raise CommandError("there is no such run", code="no_such_run", fix=fix("no_such_run"))
    durable(store)
    return Cut(store, stream, rows[0]["last_seq"], rows[0]["head"])


def cuts(source: Source) -> Iterator[Cut]:
    """The cuts of all streams, the oldest first."""
    store, after = store_of(source), 0
    while rows := store.sql(STREAMS, [after]):
        durable(store)
        yield from (Cut(store, row["id"], row["last_seq"], row["head"]) for row in rows)
        after = rows[-1]["key"]


def durable(store: Store) -> None:
    """Makes all that was committed so far durable, where this handle can."""
    try:
        store.barrier()
    except StoreError as error:
        if error.code != "read_only_store":
            raise
