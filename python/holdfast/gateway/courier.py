"""Drives a way through the gateway on an event loop by callbacks, whoever awaits its end.

A call belongs to the journal, not to the task that asked for it: cancelling that task changes nothing about a
body that runs or a commit that was sent. So no task waits here; the loop calls back, and nobody has to shield
anything from cancellation.
"""

from __future__ import annotations

import asyncio
import contextvars
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from holdfast.gateway import bodies
from holdfast.gateway.bodies import INSIDE, Ran
from holdfast.gateway.way import Commit, Pause, Run

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.gateway.way import Way
    from holdfast.store import Store

    Done = Callable[[Any, BaseException | None], None]

OUTSIDE: contextvars.ContextVar[Any] = contextvars.ContextVar("holdfast_lane", default=None)
"""The lane that code runs in; bodies of tools and hooks run in :data:`NOWHERE`."""
NOWHERE = object()
"""Where bodies run: what they would ask of a context is not asked again when their outcome is served."""


class Frozen(BaseException):
    """Raised by a store that stands for a dead process: nobody hears of anything any more."""


class Courier:
    """One way, from its first step to its end."""

    __slots__ = ("_core", "_done", "_loop", "_store", "_way")

    def __init__(self, store: Store, way: Way, done: Done) -> None:
        self._store = store
        self._core = store._core
        self._way = way
        self._done = done
        self._loop = asyncio.get_running_loop()

    def go(self, value: object = None, error: BaseException | None = None) -> None:
        """Goes on until something has to be waited for."""
        at_once = self._core.is_memory  # nothing waits for a disk or a server
        while True:
            try:
                asked = self._way.send(value) if error is None else self._way.throw(error)
            except StopIteration as end:
                return self._done(end.value, None)
            except BaseException as raised:
                return self._done(None, raised)
            value, error = None, None
            if isinstance(asked, Commit):
                if not at_once:
                    return self._store.aio.submit(asked.call, self._committed)
                try:
                    value = self._store._run(asked.call)
                except Frozen:
                    return None
                except Exception as raised:
                    error = raised
            elif isinstance(asked, Run):
                try:
                    return self._run(asked)
                except Exception as raised:  # it could not be started
                    error = raised
            else:
                assert isinstance(asked, Pause)
                self._loop.call_later(asked.seconds, self.go)
                return None

    def _committed(self, future: asyncio.Future[Any]) -> None:
        if future.cancelled():
            return self.go(None, asyncio.CancelledError())
        error = future.exception()
        return self.go(None, error) if error is not None else self.go(future.result())

    def _run(self, asked: Run) -> None:
        (_Awaited if asked.is_async else _Threaded)(self, asked)


class _Body:
    """A body on its way, and its deadline."""

    __slots__ = ("_asked", "_begun", "_courier", "_over", "_timer")

    def __init__(self, courier: Courier, asked: Run) -> None:
        self._courier = courier
        self._asked = asked
        self._begun = time.monotonic()
        self._over = False
        self._timer = courier._loop.call_later(asked.timeout, self._late)

    def _late(self) -> None:
        raise NotImplementedError

    def _ended(self, ran: Ran) -> None:
        if self._over:
            return
        self._over = True
        self._timer.cancel()
        ran.elapsed_ms = round((time.monotonic() - self._begun) * 1000)
        self._courier.go(ran)


class _Awaited(_Body):
    """A coroutine; at its deadline it is cancelled, and what it had handed to threads may still run."""

    __slots__ = ("_task",)

    def __init__(self, courier: Courier, asked: Run) -> None:
        super().__init__(courier, asked)
        context = contextvars.copy_context()
        context.run(INSIDE.set, True)
        context.run(OUTSIDE.set, NOWHERE)
        self._task: asyncio.Task[Any] = courier._loop.create_task(self._body(), context=context)
        self._task.add_done_callback(self._heard)

    async def _body(self) -> Ran:
        """What would end the whole program, had a loop to raise it, is what the body came to."""
        try:
            return Ran(await self._asked.body())
        except (SystemExit, KeyboardInterrupt) as error:
            return Ran(error=error, over=False)

    def _late(self) -> None:
        self._task.cancel()
        self._ended(Ran(timed_out=True, over=False))

    def _heard(self, task: asyncio.Task[Any]) -> None:
        if task.cancelled():
            return self._ended(Ran(error=asyncio.CancelledError(), over=False))
        error = task.exception()
        self._ended(task.result() if error is None else Ran(error=error, over=False))
        return None


class _Threaded(_Body):
    """A function in a thread; at its deadline it is abandoned, and goes on by itself."""

    __slots__ = ("_task",)

    def __init__(self, courier: Courier, asked: Run) -> None:
        self._task = bodies._Task(asked.body)
        self._task.context.run(OUTSIDE.set, NOWHERE)
        self._task.heard = self._hear
        super().__init__(courier, asked)
        try:
            bodies.THREADS.submit(self._task)
        except BaseException:
            self._timer.cancel()
            raise

    def _hear(self) -> None:
        with suppress(RuntimeError):  # the loop is closed: nobody is left to hear it
            self._courier._loop.call_soon_threadsafe(self._heard)

    def _heard(self) -> None:
        self._ended(Ran(self._task.ran.value, self._task.ran.error))

    def _late(self) -> None:
        bodies.THREADS.gave_up(self._task)
        self._ended(Ran(timed_out=True, over=False))
