"""The door itself: one class, and the function that opens it."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any, Literal, NoReturn

from holdfast import _core
from holdfast.errors import RecordError, StoreError
from holdfast.store import commands, forks
from holdfast.store.commands import Claim, claim_of, human, payload
from holdfast.store.reading import FIXES, Erased, Kept, Record
from holdfast.store.reports import Report, report_of, watched

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path
    from types import TracebackType

    from holdfast.store.clock import FakeClock
    from holdfast.store.reports import Watch

    Entry = tuple[str, Mapping[str, Any]]
    Durability = Literal["commit", "soon", "barrier"]

POLL_SECONDS = 0.1


class _Closed:
    """Stands where the core was: letting go of the core closes its files."""

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)  # what looks at objects asks for these
        raise StoreError("the store is closed", code="store_closed", fix=FIXES["store_closed"])


CLOSED: Any = _Closed()
ENDED = frozenset(("completed", "failed", "cancelled"))


def _level(kind: str, body: Mapping[str, Any]) -> dict[str, Any]:
    """A note without a level is information."""
    return {"level": "info", **body} if kind == "note.logged" else dict(body)


class Store:
    """A durable journal on a folder or in memory. Open it with :func:`holdfast.open`.

    Every method may be called from any thread. A command that is refused raises and has changed nothing;
    one that returned survives the death of the process, and a power cut if it asked for a barrier.
    """

    def __init__(self, core: _core.Store, url: str) -> None:
        self._core = core
        self._id, self._epoch = core.id, core.epoch
        self.url = url
        forks.opened(self, core.folder)

    @property
    def id(self) -> str:
        """The store's own id: what its records are tied to."""
        return self._id

    @property
    def epoch(self) -> int:
        """Grows with every restore; the first part of every fence."""
        return self._epoch

    # Runs and what is written to them.

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
        """Makes a run with one step, and returns its id.

        Args:
            agent: whose work it is; workers ask for agents by this name.
            input: any JSON value; kept as a content.
            state: the initial state.
            by: who asks for it.
            barrier: return only when the run would survive a power cut.
            options: ``key`` (a run that has it is returned instead, if agent and input are the same),
                ``role``, ``labels``, ``priority``, ``deadline`` (ms since the epoch), ``session``,
                ``budget``, ``package``, ``privacy``, ``step``, ``queue``, ``attempts``, ``concurrency_key``.
        """
        _check_options(options)
        at_ms = self._core.wall_ms
        run = commands.new_run(agent, input, dict(state or {}), options, at_ms)
        step = commands.new_step(options.get("step", "main"), options, at_ms)
        actor: Mapping[str, object] = commands.SYSTEM if by == "holdfast" else human(by)
        return self._core.create_run(actor, run, [step], "barrier" if barrier else "commit")

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
        """Appends one record and returns its seq. See :meth:`append_many`.

        Args:
            run: the run.
            kind: ``note.logged``, ``cost.recorded``, ``artifact.created``, ``checkpoint.created`` or
                ``x.<vendor>.<name>``; others are Holdfast's own (``kind_reserved``).
            body: plain values; those at the kind's contents are salted, kept beside the record, erasable.
            claim: needed by a worker while a lease is live.
            by: who says it, when there is no claim.
            privacy: who may see it.
            blobs: contents that :meth:`put_blob` keeps already, by their position in the body.
            barrier: return only when it would survive a power cut.
        """
        entry = {"body": _level(kind, body), "kind": kind, "privacy": privacy}
        if blobs:
            entry["blobs"] = {position: dict(blob) for position, blob in blobs.items()}
        return self._append(run, [entry], claim, by, barrier=barrier)[0]

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
        """Appends records in one frame, all or none, and returns their seqs."""
        bodies = [{"body": _level(kind, body), "kind": kind, "privacy": privacy} for kind, body in entries]
        return self._append(run, bodies, claim, by, barrier=barrier)

    def _append(
        self, run: str, entries: list[dict[str, Any]], claim: Claim | None, by: str, *, barrier: bool
    ) -> range:
        if not entries:
            return range(0)
        held = None if claim is None else claim.core()
        actor = commands.SYSTEM if by == "holdfast" else human(by)
        who: Mapping[str, object] = actor if claim is None else claim.by()
        durability = "barrier" if barrier else "commit"
        first, last, _, _ = self._core.append(run, who, held, entries, durability)
        return range(first, last + 1)

    # Work.

    def claim(
        self,
        *,
        worker: str,
        lease: float = 60.0,
        queues: Sequence[str] = (),
        agents: Sequence[str] = (),
    ) -> Claim | None:
        """The best step that this worker may have, under a new fence, or None.

        On the way it takes back steps whose workers are gone, fires what is due and delivers what was sent.
        """
        lease_ms = max(0, round(lease * 1000))
        told = self._core.claim(worker, lease_ms, list(queues), list(agents), [])
        return None if told is None else claim_of(told)

    def heartbeat(self, claim: Claim, *, lease: float | None = None) -> None:
        """Prolongs the lease from now on; raises ``stale_fence`` if the claim no longer holds."""
        lease_ms = max(0, round((claim.lease if lease is None else lease) * 1000))
        self._by(claim, {"command": "heartbeat", "lease_ms": lease_ms}, "commit")

    def patch(
        self, claim: Claim, patch: Mapping[str, Any], *, expected_version: int, privacy: str = "internal"
    ) -> int:
        """Merges a patch (RFC 7396) into the state, and returns the state's new version.

        Raises:
            CommandError: ``state_conflict`` if the state has another version; ``stale_fence`` if the claim
                no longer holds.
        """
        command = {"command": "patch", "expected_version": expected_version}
        self._by(claim, {**command, "patch": payload(dict(patch), privacy)}, "soon")
        return expected_version + 1

    def wait(self, claim: Claim, waits: Sequence[Mapping[str, Any]]) -> None:
        """Parks the step until something comes: the claim ends, and no process is held.

        A wait is ``{"on": "signal", "subject": name}``, ``{"on": "timer", "until": ms}``, and so on.
        """
        self._by(claim, {"command": "wait", "waits": [dict(wait) for wait in waits]}, "soon")

    def release(self, claim: Claim, *, reason: str = "shutdown") -> None:
        """Gives the step back without an outcome; it costs no attempt."""
        self._by(claim, {"command": "release", "reason": reason}, "soon")

    def finish(self, claim: Claim, *, result: object = None, privacy: str = "internal") -> None:
        """The step is done, and with the last one the run. Returns when that would survive a power cut."""
        self._by(claim, {"command": "complete", "result": payload(result, privacy)}, "barrier")

    def fail(
        self, claim: Claim, error: BaseException | str, *, retryable: bool = True, privacy: str = "internal"
    ) -> None:
        """The attempt failed: another is scheduled, or the step and its run fail for good."""
        failure, message = commands.failure(error, retryable=retryable)
        command = {"command": "fail", "ended_by": [], "failure": failure}
        self._by(claim, {**command, "message": payload(message, privacy)}, "barrier")

    def _by(self, claim: Claim, command: Mapping[str, Any], durability: Durability) -> None:
        whole = {**command, "claim": claim.core()}
        self._core.command(claim.run, claim.by(), whole, durability)

    # What people do.

    def retry(self, run: str, *, by: str) -> None:
        """Opens a failed run again: the steps that failed, and those that were cancelled for it."""
        self._core.command(run, human(by), {"command": "retry_run"}, "barrier")

    def signal(self, run: str, name: str, value: object = None, *, by: str = "holdfast") -> None:
        """Sends a signal; a step that waits for it wakes."""
        command = {"command": "signal", "name": name, "payload": payload(value, "internal")}
        self._core.command(run, commands.SYSTEM if by == "holdfast" else human(by), command, "barrier")

    def cancel(self, run: str, *, by: str) -> None:
        """Asks the run to stop; without a worker it ends at once."""
        self._core.command(run, human(by), {"command": "cancel"}, "barrier")

    def resume(self, run: str, *, by: str) -> None:
        """Lets steps go on that waited for a person, after a restore or an interruption."""
        kept = self.state(run)["package"]
        self._core.command(run, human(by), {"command": "resume", "package": kept}, "barrier")

    def forget(self, run: str, *, by: str, reason: str | None = None) -> int:
        """Erases every content of an ended run, for good, and returns how many there were.

        The records stay and verify; reading an erased value raises ``content_erased``.
        """
        return self._core.forget(run, human(by), reason)

    # Reading.

    def read(self, stream: str, *, after: int = 0) -> Iterator[Record]:
        """The records of a run, a session or the store (``"store"``), in order, a page at a time."""
        erased = Erased(self._core, stream)
        while True:
            rows, more = self._core.read(stream, after)
            frame, kept = 0, Kept(None, erased)
            for seq, position, text, hashed, contents in rows:
                if position != frame:
                    frame, kept = position, Kept(contents, erased)
                yield Record((seq, position, text, hashed), kept, self._core)
            if not more:
                return
            after = rows[-1][0]

    def tail(self, run: str, *, after: int = 0, stop: threading.Event | None = None) -> Iterator[Record]:
        """The records of a run as they come, until the run has ended or ``stop`` is set."""
        stop = stop or threading.Event()
        while True:
            ended = self._ended(run)  # asked first: what is read next holds the end
            for record in self.read(run, after=after):
                after = record.seq
                yield record
            if ended or stop.wait(POLL_SECONDS):
                return

    async def atail(self, run: str, *, after: int = 0) -> AsyncIterator[Record]:
        """The same for asyncio: reads run in a thread, so the loop is never blocked."""
        while True:
            ended = await asyncio.to_thread(self._ended, run)
            for record in await asyncio.to_thread(self._page, run, after):
                after = record.seq
                yield record
            if ended:
                return
            await asyncio.sleep(POLL_SECONDS)

    def _page(self, run: str, after: int) -> list[Record]:
        return list(self.read(run, after=after))

    def _ended(self, run: str) -> bool:
        _, rows = self._core.sql(
            "SELECT status FROM runs JOIN streams ON key = stream WHERE streams.id = ?", [run]
        )
        return bool(rows) and rows[0][0] in ENDED

    def state(self, stream: str, *, at: int | None = None) -> dict[str, Any]:
        """The fold of a stream, now or at a record: status, state, steps and so on."""
        told = self._core.state(stream, at)
        if not isinstance(told, dict):
            self._core.read(stream, 0)  # says that there is no such stream
            raise RecordError(f"the stream has no record {at}", code="bad_value", fix=FIXES["bad_value"])
        return told

    def sql(self, query: str, parameters: Sequence[object] = ()) -> list[dict[str, Any]]:
        """Runs one reading statement and returns its rows. The tables are described in docs/STORE.md."""
        columns, rows = self._core.sql(query, list(parameters))
        return [dict(zip(columns, row, strict=True)) for row in rows]

    # Blobs.

    def put_blob(
        self, data: bytes, *, media: str = "application/octet-stream", privacy: str = "internal"
    ) -> dict[str, Any]:
        """Keeps bytes, durably, and returns the content that a record may hold (see ``blobs=``).

        What no record refers to is collected by :meth:`gc` after a day.
        """
        commit = self._core.put_blob(data)
        return {"bytes": len(data), "commit": commit, "media": media, "privacy": privacy}

    def get_blob(self, blob: Mapping[str, Any] | str) -> bytes:
        """The bytes of a blob, checked against its commitment."""
        return self._core.get_blob(blob if isinstance(blob, str) else blob["commit"])

    def gc(self, *, older_than: float | None = None, dry_run: bool = False) -> tuple[int, int]:
        """Removes blobs that nothing refers to and that are older than so many seconds (a day, unless given).

        Returns how many, and their bytes.
        """
        return self._core.collect(None if older_than is None else round(older_than * 1000), dry_run)

    # Care.

    def verify(
        self,
        run: str | None = None,
        *,
        heads: Mapping[str, str] | None = None,
        watch: Watch | None = None,
    ) -> Report:
        """Audits everything, or one run: chain, contents, blobs, rows, files.

        Args:
            run: a run, a session or ``"store"``; without one, everything.
            heads: heads that were kept elsewhere, by stream: they show a missing end or a rewriting.
            watch: hears how many frames were audited, and of how many.
        """
        kept, core = dict(heads or {}), self._core
        if core is CLOSED:
            core.barrier()  # says that it is closed
        told = watched(lambda p: _core.store_verify(core, run, kept, p), watch)
        return report_of(told)

    def stats(self) -> dict[str, Any]:
        """What the store is and how it does: sizes, counts, processes, syncs."""
        return self._core.stats()

    def backup(self, target: str | Path) -> dict[str, Any]:
        """Copies the store into a new folder while others write. Restore it with :func:`holdfast.restore`."""
        return self._core.backup(str(target))

    def barrier(self) -> None:
        """Returns when everything that was committed so far would survive a power cut."""
        self._core.barrier()

    def close(self) -> None:
        """Closes the store; later calls raise ``store_closed``."""
        forks.closed(self)
        core, self._core = self._core, CLOSED
        if core is not CLOSED:
            core.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Store {self.url}>"


OPTIONS = frozenset(
    {
        "attempts",
        "budget",
        "concurrency_key",
        "deadline",
        "key",
        "labels",
        "package",
        "priority",
        "privacy",
        "queue",
        "role",
        "session",
        "step",
    }
)


def _check_options(options: Mapping[str, object]) -> None:
    unknown = sorted(options.keys() - OPTIONS)
    if unknown:
        raise TypeError(f"create_run has no option {unknown[0]!r}; it has {', '.join(sorted(OPTIONS))}")


def open_store(
    url: str | Path,
    *,
    read_only: bool = False,
    clock: FakeClock | None = None,
    turn_wait: float | None = None,
    migrate: bool = False,
) -> Store:
    """Opens the store at a folder's path, ``sqlite:///path`` or ``memory:``, and makes it if there is none.

    Args:
        url: where it is.
        read_only: never write, and never make a store.
        clock: the only clock that it reads; the machine's, unless given.
        turn_wait: how many seconds a command waits for its turn before it raises ``store_busy``.
        migrate: apply migrations that older processes cannot live with.
    """
    wait_ms = None if turn_wait is None else round(turn_wait * 1000)
    fake = None if clock is None else clock.core
    core = _core.Store(str(url), read_only=read_only, turn_wait_ms=wait_ms, clock=fake, migrate=migrate)
    return Store(core, str(url))
