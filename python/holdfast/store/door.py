"""The door itself: one class, and the function that opens it."""

from __future__ import annotations

import asyncio
import threading
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, NoReturn, ParamSpec, TypeVar

from holdfast import _core
from holdfast.errors import RecordError, StoreError
from holdfast.store import asks, forks
from holdfast.store.aio import AsyncStore
from holdfast.store.commands import SYSTEM, human
from holdfast.store.reading import FIXES, Erased, Kept, Record
from holdfast.store.reports import Report, Seal, report_of, watched

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
    from pathlib import Path
    from types import TracebackType

    from holdfast.keys import Key
    from holdfast.store.asks import Asked
    from holdfast.store.clock import FakeClock
    from holdfast.store.reports import Watch

P = ParamSpec("P")
T = TypeVar("T")
POLL_SECONDS = 0.1


class _Closed:
    """Stands where the core was: letting go of the core closes its files."""

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)  # what looks at objects asks for these
        raise StoreError("the store is closed", code="store_closed", fix=FIXES["store_closed"])


CLOSED: Any = _Closed()
ENDED = frozenset(("completed", "failed", "cancelled"))


def now(
    ask: Callable[Concatenate[_core.Store, P], Asked[T]],
) -> Callable[Concatenate[Store, P], T]:
    """A method that waits for the answer."""

    @wraps(ask)
    def method(self: Store, /, *args: P.args, **kwargs: P.kwargs) -> T:
        asked = ask(self._core, *args, **kwargs)
        return asked.answer(None if asked.call is None else self._run(asked.call))

    return method


class Store:
    """A durable journal on a folder or in memory. Open it with :func:`holdfast.open`.

    Every method may be called from any thread. A command that is refused raises and has changed nothing;
    one that returned survives the death of the process, and a power cut if it asked for a barrier.

    Attributes:
        url: as it was opened.
        clock: the fake clock that it reads, if it does.
        aio: the same commands for asyncio, see :class:`AsyncStore`.
    """

    def __init__(self, core: _core.Store, url: str, clock: FakeClock | None = None) -> None:
        self._core = core
        self.clock = clock
        self._id, self._epoch = core.id, core.epoch
        self.url = url
        self.aio = AsyncStore(core)
        forks.opened(self, core.folder)

    @property
    def id(self) -> str:
        """The store's own id: what its records are tied to."""
        return self._id

    @property
    def epoch(self) -> int:
        """Grows with every restore; the first part of every fence."""
        return self._epoch

    def _run(self, call: _core.Call) -> Any:  # noqa: ANN401 (each call has its own answer)
        """Makes a call of the core, and waits for it. Every command goes through here or through ``aio``."""
        return self._core.run(call)

    # Runs and what is written to them.

    create_run = now(asks.create_run)
    append = now(asks.append)
    append_many = now(asks.append_many)

    # Work.

    claim = now(asks.claim)
    heartbeat = now(asks.heartbeat)
    patch = now(asks.patch)
    wait = now(asks.wait)
    release = now(asks.release)
    finish = now(asks.finish)
    fail = now(asks.fail)

    # What people do.

    retry = now(asks.retry)
    signal = now(asks.signal)
    cancel = now(asks.cancel)

    def create_session(self, *, labels: Mapping[str, str] | None = None, by: str = "holdfast") -> str:
        """Makes a session, for runs that belong together: ``create_run(session=...)``. Returns its id."""
        actor = SYSTEM if by == "holdfast" else human(by)
        return self._core.create_session(actor, dict(labels or {}))

    def resume(self, run: str, *, by: str) -> None:
        """Lets steps go on that waited for a person, after a restore or an interruption."""
        kept = self.state(run)["package"]
        call = _core.Call.command(run, human(by), {"command": "resume", "package": kept}, "barrier")
        self._core.run(call)

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
        seals: Sequence[str] = (),
        keys: Sequence[str] = (),
        watch: Watch | None = None,
    ) -> Report:
        """Audits everything, or one run: chain, contents, blobs, rows, files.

        Args:
            run: a run, a session or ``"store"``; without one, everything.
            heads: heads that were kept elsewhere, by stream: they show a missing end or a rewriting.
            seals: seals that were kept elsewhere: they show the same for everything.
            keys: public lines of the keys that seals are signed with.
            watch: hears how many frames were audited, and of how many.
        """
        kept, core = dict(heads or {}), self._core
        if core is CLOSED:
            core.barrier()  # says that it is closed
        told = watched(lambda p: _core.store_verify(core, run, kept, list(seals), list(keys), p), watch)
        return report_of(told)

    def seal(self, key: Key, *, by: str = "holdfast") -> Seal:
        """Seals all that was committed so far: a signed head of the whole journal, to be kept elsewhere.

        Where nothing came since the newest seal, that is returned.
        """
        from holdfast import keys

        actor = SYSTEM if by == "holdfast" else human(by)
        return Seal(**_core.store_seal(self._core, actor, keys.sealing(key)))

    def witnessed(self, checkpoint: str, *, keys: Sequence[str]) -> Seal:
        """Keeps what witnesses have signed on a copy of one of the seals; bundles take it along.

        Args:
            checkpoint: the copy, as the witnesses gave it back.
            keys: public lines of the witnesses: each must have signed it, and only these are taken.
        """
        return Seal(**_core.store_witnessed(self._core, checkpoint, list(keys)))

    def seals(self, limit: int = 100) -> list[Seal]:
        """The seals, newest first."""
        return [Seal(**seal) for seal in _core.store_seals(self._core, limit)]

    def consistency(self, old: str, new: str) -> list[str]:
        """What proves that all that the old seal covers is what the new one begins with."""
        first, second = _core.checkpoint_read(old), _core.checkpoint_read(new)
        return _core.store_consistency(self._core, first["size"], second["size"])

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
        self.aio.close(CLOSED)
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
        return f"<Store {shown(self.url)}>"


def shown(url: str) -> str:
    """The address of a store without the password that may stand in it."""
    scheme, mark, rest = url.partition("://")
    if not mark or scheme == "sqlite":
        return url
    place, _, query = rest.partition("?")
    words = [word for word in query.split("&") if word.partition("=")[0] in ("schema", "host")]
    return f"{scheme}://{place.rpartition('@')[2]}" + (f"?{'&'.join(words)}" if words else "")


def open_store(
    url: str | Path,
    *,
    read_only: bool = False,
    clock: FakeClock | None = None,
    turn_wait: float | None = None,
    migrate: bool = False,
) -> Store:
    """Opens the store at an address, and makes it if there is none.

    An address is a folder's path, ``sqlite:///path``, ``memory:``, or ``postgresql://user@host/database``,
    where ``?schema=`` names the schema (``holdfast``, unless given).

    Args:
        url: where it is.
        read_only: never write, and never make a store.
        clock: the only clock that it reads; the machine's or the server's, unless given.
        turn_wait: how many seconds a command waits for its turn before it raises ``store_busy``, and for a
            server that is away before it raises ``store_unreachable``.
        migrate: apply migrations that older processes cannot live with.
    """
    wait_ms = None if turn_wait is None else round(turn_wait * 1000)
    fake = None if clock is None else clock.core
    core = _core.Store(str(url), read_only=read_only, turn_wait_ms=wait_ms, clock=fake, migrate=migrate)
    return Store(core, str(url), clock)
