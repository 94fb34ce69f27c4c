"""Retention: runs that ended long ago go into bundles, and their values leave the store.

What stays is every record, every head and every proof: commitments without values, so that the store still
verifies, seals still hold, and a bundle can be held against the store for ever. A run is archived only when
all of it is under a seal, and its values go only after its bundle was verified; a run that was forked waits
for its forks, which stand on it. After a crash anywhere it goes on: a bundle that is there and verifies is
not written again.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.errors import VerifyError
from holdfast.evidence import bundle, verifying
from holdfast.gateway.outcomes import fix
from holdfast.store import open_store, restore
from holdfast.visible import Listing, Shown

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.keys import Key
    from holdfast.store import Report, Store

KEPT: tuple[bundle.Privacy, ...] = ("public", "internal", "content_refs_only", "sensitive")
"""What an archive holds: all but what a run keeps to itself, its seed."""
DUE = """
SELECT runs.id, runs.agent, runs.status, streams.at, streams.last_seq,
       EXISTS (SELECT 1 FROM runs AS forks WHERE forks.fork_of = runs.id
               AND (forks.status NOT IN ('completed', 'failed', 'cancelled')
                    OR EXISTS (SELECT 1 FROM frames WHERE frames.stream = forks.stream
                               AND contents IS NOT NULL))) AS forked,
       coalesce((SELECT max(frames.last_seq) FROM leaves JOIN frames ON frames.pos = leaves.pos
                 WHERE frames.stream = runs.stream
                 AND leaves.n < (SELECT coalesce(max(size), 0) FROM seals)), 0) AS sealed
FROM runs JOIN streams ON streams.key = runs.stream
WHERE runs.status IN ('completed', 'failed', 'cancelled') AND streams.at < ?
  AND (EXISTS (SELECT 1 FROM frames WHERE frames.stream = runs.stream AND contents IS NOT NULL)
       OR EXISTS (SELECT 1 FROM blob_refs WHERE blob_refs.stream = runs.stream))
ORDER BY runs.stream
"""


@dataclass(frozen=True)
class Due(Shown):
    """A run whose time has come."""

    run: str
    agent: str
    status: str
    at: int
    """When it last changed, in milliseconds since the epoch."""
    records: int
    hindered: str | None
    """Why it cannot go yet: ``unsealed``, ``forked``; none if it can."""


@dataclass(frozen=True)
class Archived(Shown):
    """A run that has gone into a bundle."""

    run: str
    path: Path
    sha256: str
    erased: int
    """Values that left the store."""


def plan(store: Store, *, older_than: float) -> list[Due]:
    """The ended runs that last changed so many seconds ago and still have values; nothing is changed."""
    before = store._core.wall_ms - round(older_than * 1000)
    return Listing(_due(row) for row in store.sql(DUE, [before]))


def _due(row: dict[str, Any]) -> Due:
    hindered = "forked" if row["forked"] else "unsealed" if row["sealed"] < row["last_seq"] else None
    return Due(row["id"], row["agent"], row["status"], row["at"], row["last_seq"], hindered)


def apply(
    store: Store, archive: str | Path, *, older_than: float, by: str, key: Key | None = None
) -> Iterator[Archived]:
    """Archives what is due and is not hindered, run by run: bundle, verification, then the values go.

    Args:
        store: whose runs.
        archive: the folder that bundles go to, ``<run>.zip`` each.
        older_than: seconds since a run last changed.
        by: who lets the values go; it stays in the journal, with the bundle's hash.
        key: signs a statement about each bundle.
    """
    folder = Path(archive)
    folder.mkdir(parents=True, exist_ok=True)
    while ready := [due for due in plan(store, older_than=older_than) if due.hindered is None]:
        for due in ready:
            yield _archived(store, due, folder / f"{due.run}.zip", by, key)


def _archived(store: Store, due: Due, path: Path, by: str, key: Key | None) -> Archived:
    if not path.exists():
        bundle.export(store, due.run, path, include=KEPT, key=key)
    found = verifying.verify(path)
    whole = found.ok and found.run == due.run and found.sealed == found.records == due.records
    if not whole:
        told = f"{path.name} is not the whole of {due.run}: {found.what or 'another run, or not all of it'}"
        raise VerifyError(told, code="bundle_altered", fix=fix("bundle_altered"), stream=due.run)
    sha256 = bundle.digest_of(path)
    erased = store.forget(due.run, by=by, reason=f"archived as sha256:{sha256}")
    return Archived(due.run, path, sha256, erased)


def readiness(backup: str | Path) -> Report:
    """Whether a backup can be relied on: it is restored beside itself, and everything in it is opened.

    Every record is read and chained, every content and every blob is opened and compared, every row follows
    from the records, and every seal holds.
    """
    path = Path(backup)
    with tempfile.TemporaryDirectory(prefix="holdfast-", dir=path.resolve().parent) as kept:
        restore(path, Path(kept) / "restored")
        with open_store(Path(kept) / "restored", read_only=True) as store:
            return store.verify()
