"""The store for asyncio. Commands of all tasks go to one thread of the core, which makes as many at once as
there are: they share turns and syncs. A loop hears of answers by a descriptor that it watches, and takes some
of them in each of its turns, in the order in which the commands were made. The event loop never waits for the
disk or for another process, and the thread never waits for the interpreter.
"""

from __future__ import annotations

import asyncio
import os
import threading
import weakref
from contextlib import suppress
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from holdfast import _core
from holdfast.store import asks

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from holdfast.store.asks import Asked

P = ParamSpec("P")
T = TypeVar("T")
GIVEN_AT_ONCE = 8
"""Answers in one turn of a loop: what agent code does with one takes some tenths of a millisecond."""


class Leader:
    """The thread that makes the calls of asyncio tasks; it starts with the first of them."""

    def __init__(self, core: _core.Store) -> None:
        self.pid = os.getpid()
        self._core = _core.Leader(core)
        self._lock = threading.Lock()  # loops run in several threads
        self._posts: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Post] = weakref.WeakKeyDictionary()

    def submit(self, call: _core.Call, future: asyncio.Future[Any]) -> None:
        """Makes a call soon; the future hears the answer on its own loop, which is the one that runs here."""
        with self._lock:
            post = self._post(future.get_loop())
        post.submit(call, future)

    def _post(self, loop: asyncio.AbstractEventLoop) -> _Post:
        post = self._posts.get(loop)
        if post is None:
            # What closed loops still waited for knows them, and would keep them for ever.
            for closed in [known for known in self._posts if known.is_closed()]:
                del self._posts[closed]
            post = self._posts[loop] = _Post(loop, self._core.post())
        return post

    def close(self) -> None:
        """Returns when every call that was asked for was made."""
        if self.pid != os.getpid():
            return  # a forked child: the thread is not there, and its lock may be held for ever
        self._core.close()
        with self._lock:
            posts = list(self._posts.items())
        for loop, post in posts:
            with suppress(RuntimeError):  # it is closed: nobody is left to hear
                loop.call_soon_threadsafe(post.retire)


class _Post:
    """The calls of one loop on their way, and their answers."""

    def __init__(self, loop: asyncio.AbstractEventLoop, core: _core.Post) -> None:
        self._core = core
        self._loop = weakref.ref(loop)
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        loop.add_reader(core.fileno(), self._deliver, GIVEN_AT_ONCE)

    def submit(self, call: _core.Call, future: asyncio.Future[Any]) -> None:
        """Asks; the answer is taken by this very loop, so not before this has returned."""
        self._waiting[self._core.submit(call)] = future

    def _deliver(self, most: int) -> None:
        """Gives out some answers. While there are more, the loop calls again in its next turn: its timers do
        not wait until all were heard."""
        for number, answer in self._core.take(most):
            future = self._waiting.pop(number, None)
            if future is None or future.done():
                continue  # whoever asked was interrupted or cancelled; what it asked for was done
            if isinstance(answer, BaseException):
                future.set_exception(answer)
            else:
                future.set_result(answer)

    def retire(self) -> None:
        """Nobody asks any more: gives out what is left, and the loop watches no longer."""
        self._deliver(len(self._waiting))
        loop = self._loop()
        if loop is not None:
            loop.remove_reader(self._core.fileno())


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
        self._making = (os.getpid(), threading.Lock())

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
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._led_by().submit(call, future)
        return future

    def _led_by(self) -> Leader:
        """The leader; a forked child has its own, and is told that the handle is not its own."""
        leader = self._leader
        if leader is not None and leader.pid == os.getpid():
            return leader
        if self._making[0] != os.getpid():
            self._making = (os.getpid(), threading.Lock())  # its parent's may be held for ever
        with self._making[1]:
            if self._leader is None or self._leader.pid != os.getpid():
                _ = self._core.id  # says that the store is closed, if it is
                self._leader = Leader(self._core)
                # Its thread keeps the core open: without a call to close, it ends with this, or the program.
                weakref.finalize(self, self._leader.close)
            return self._leader

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
