"""The store for asyncio. Commands of all tasks go to one thread, which makes as many at once as there are:
they share turns and syncs, and each batch of answers comes back with one ``call_soon_threadsafe``,
in the order in which they were made.
The event loop never waits for the disk or for another process.
"""

from __future__ import annotations

import asyncio
import os
import threading
import weakref
from collections import deque
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from holdfast.errors import StoreError
from holdfast.store import asks
from holdfast.store.reading import FIXES

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from holdfast import _core
    from holdfast.store.asks import Asked

P = ParamSpec("P")
T = TypeVar("T")
GIVEN_AT_ONCE = 8
"""Answers in one turn of a loop: what agent code does with one takes some tenths of a millisecond."""


class Leader:
    """The thread that makes the calls of asyncio tasks; it starts with the first of them."""

    def __init__(self, core: _core.Store) -> None:
        self.pid = os.getpid()
        self._core = core
        self._changed = threading.Condition()
        self._asked: list[tuple[_core.Call, asyncio.Future[Any]]] = []
        self._posts: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Post] = weakref.WeakKeyDictionary()
        self._thread: threading.Thread | None = None
        self._closed = False

    def submit(self, call: _core.Call, future: asyncio.Future[Any]) -> None:
        """Makes a call soon; the future hears the answer on its own loop."""
        with self._changed:
            if self._closed:
                raise StoreError("the store is closed", code="store_closed", fix=FIXES["store_closed"])
            self._asked.append((call, future))
            if self._thread is None:
                self._thread = threading.Thread(target=self._lead, name="holdfast-asyncio", daemon=True)
                self._thread.start()
            self._changed.notify()

    def close(self) -> None:
        """Returns when every call that was asked for was made."""
        if self.pid != os.getpid():
            return  # a forked child: the lock may be held by a thread that is not there
        with self._changed:
            self._closed = True
            self._changed.notify()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def _next(self) -> list[tuple[_core.Call, asyncio.Future[Any]]]:
        with self._changed:
            self._changed.wait_for(lambda: self._asked or self._closed)
            asked, self._asked = self._asked, []
            return asked

    def _lead(self) -> None:
        while asked := self._next():
            try:
                answers: list[object] = self._core.run_all([call for call, _ in asked])
            except BaseException as error:
                answers = [error] * len(asked)
            posts: dict[_Post, None] = {}
            for (_, future), answer in zip(asked, answers, strict=True):
                posts[self._post(future.get_loop(), future, answer)] = None
            for post in posts:
                post.ring()

    def _post(self, loop: asyncio.AbstractEventLoop, future: asyncio.Future[Any], answer: object) -> _Post:
        post = self._posts.get(loop)
        if post is None:
            post = self._posts[loop] = _Post(loop)
        post.due.append((future, answer))
        return post


class _Post:
    """Answers on their way to one loop, in the order in which they were made. Some are given out in each turn
    of the loop, so that its timers do not wait until all were heard."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.due: deque[tuple[asyncio.Future[Any], object]] = deque()
        self._loop = weakref.ref(loop)
        self._under_way = False

    def ring(self) -> None:
        """Says to the loop, from another thread, that there is something."""
        loop = self._loop()
        try:
            if loop is not None:
                loop.call_soon_threadsafe(self._rung)
        except RuntimeError:  # the loop is closed: nobody is left to hear that it was done
            self.due.clear()  # each knows its loop, which would never go

    def _rung(self) -> None:
        if not self._under_way:
            self._deliver()

    def _deliver(self) -> None:
        for _ in range(min(GIVEN_AT_ONCE, len(self.due))):
            future, answer = self.due.popleft()
            if future.done():
                continue  # whoever asked was cancelled; what it asked for was done
            if isinstance(answer, BaseException):
                future.set_exception(answer)
            else:
                future.set_result(answer)
        self._under_way = bool(self.due)
        if self._under_way:
            asyncio.get_running_loop().call_soon(self._deliver)


def later(
    ask: Callable[Concatenate[_core.Store, P], Asked[T]],
) -> Callable[Concatenate[AsyncStore, P], Awaitable[T]]:
    """A method that awaits the answer."""

    @wraps(ask)
    async def method(self: AsyncStore, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._ask(ask(self._core, *args, **kwargs))

    return method


class AsyncStore:
    """The commands of a :class:`Store`, to be awaited: ``await store.aio.append(...)``.

    They mean what they mean there. A task that is cancelled while it awaits one no longer hears the answer;
    the command is not taken back.
    """

    def __init__(self, core: _core.Store) -> None:
        self._core = core
        self._leader: Leader | None = None

    create_run = later(asks.create_run)
    append = later(asks.append)
    append_many = later(asks.append_many)
    claim = later(asks.claim)
    heartbeat = later(asks.heartbeat)
    patch = later(asks.patch)
    wait = later(asks.wait)
    release = later(asks.release)
    finish = later(asks.finish)
    fail = later(asks.fail)
    retry = later(asks.retry)
    signal = later(asks.signal)
    cancel = later(asks.cancel)

    async def _ask(self, asked: Asked[T]) -> T:
        return asked.answer(None if asked.call is None else await self.run(asked.call))

    def _led(self, call: _core.Call) -> asyncio.Future[Any]:
        if self._core.is_memory:
            return self._at_once(call)
        if self._leader is None or self._leader.pid != os.getpid():
            _ = self._core.id  # says that the store is closed, if it is
            # A forked child has its own, and is told that the handle is not its own.
            self._leader = Leader(self._core)
            # The thread keeps the core open: without a call to close, it ends with this, or with the program.
            weakref.finalize(self, self._leader.close)
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._leader.submit(call, future)
        return future

    def _at_once(self, call: _core.Call) -> asyncio.Future[Any]:
        """In memory nothing waits for a disk, and a hop to a thread would cost more than the command."""
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        try:
            future.set_result(self._core.run(call))
        except Exception as error:
            future.set_exception(error)
        return future

    async def run(self, call: _core.Call) -> Any:  # noqa: ANN401 (each call has its own answer)
        """Makes a call of the core."""
        return await self._led(call)

    def submit(self, call: _core.Call, heard: Callable[[asyncio.Future[Any]], None]) -> None:
        """Makes a call of the core; whoever asks is called back on this loop."""
        self._led(call).add_done_callback(heard)

    def close(self, closed: Any) -> None:  # noqa: ANN401 (stands for the core)
        """Waits for what was asked for, and takes nothing more; called by the store."""
        if self._leader is not None:
            self._leader.close()
        self._core, self._leader = closed, None
