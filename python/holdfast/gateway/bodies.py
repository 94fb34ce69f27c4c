"""Running bodies within their deadlines: sync ones in threads, async ones on the loop.

At the deadline nobody waits any longer. An async body is cancelled; a thread cannot be stopped, so a sync
body is abandoned and goes on by itself. When too many are abandoned, no further body is started: doors stay
shut rather than pile up threads.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import inspect
import os
import threading
import time
import types
from collections import Counter
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from holdfast.errors import HoldfastError
from holdfast.gateway.outcomes import fix

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Generator, Iterator

ABANDONED_MAX = 64
"""As in the core's limits."""


class ExecutorError(HoldfastError):
    """A body that could not be started."""


@dataclass
class Ran:
    """What a body came to."""

    value: Any = None
    error: BaseException | None = None
    timed_out: bool = False
    over: bool = True
    """The body has ended: it can no longer act."""
    elapsed_ms: int = 0


@dataclass
class _Task:
    body: Callable[[], Any]
    done: threading.Event = field(default_factory=threading.Event)
    ran: Ran = field(default_factory=Ran)
    context: contextvars.Context = field(default_factory=contextvars.copy_context)
    heard: Callable[[], None] | None = None


class Threads:
    """Daemon threads that bodies run in; one that was abandoned serves again when its body has ended."""

    def __init__(self) -> None:
        self._tasks: SimpleQueue[_Task] = SimpleQueue()
        self._lock = threading.Lock()
        self._idle = 0
        self._abandoned = 0

    @property
    def abandoned(self) -> int:
        """Bodies that still run though nobody waits for them."""
        return self._abandoned

    def submit(self, task: _Task) -> None:
        """Starts a body."""
        with self._lock:
            if self._abandoned >= ABANDONED_MAX:
                message = f"{self._abandoned} bodies still run past their deadlines"
                raise ExecutorError(message, code="executor_exhausted", fix=fix("executor_exhausted"))
            grow = self._idle == 0
            if not grow:
                self._idle -= 1
        if grow:
            threading.Thread(target=self._serve, name="holdfast-body", daemon=True).start()
        self._tasks.put(task)

    def _serve(self) -> None:
        while True:
            task = self._tasks.get()
            try:
                task.context.run(INSIDE.set, True)
                task.ran.value = task.context.run(task.body)
            except BaseException as error:
                task.ran.error = error
            with self._lock:
                self._idle += 1
            task.done.set()
            if task.heard is not None:
                task.heard()
            del task

    def gave_up(self, task: _Task) -> None:
        """Counts a body as abandoned until it ends."""
        with self._lock:
            self._abandoned += 1

        def ended() -> None:
            task.done.wait()
            with self._lock:
                self._abandoned -= 1

        threading.Thread(target=ended, name="holdfast-abandoned", daemon=True).start()


THREADS = Threads()


def _in_child() -> None:
    """A forked child has none of its parent's threads."""
    global THREADS
    THREADS = Threads()


os.register_at_fork(after_in_child=_in_child)

INSIDE: contextvars.ContextVar[bool] = contextvars.ContextVar("holdfast_inside", default=False)
"""Whether this is the code of an agent, a tool or a hook: such code approves nothing."""

LIVING: Counter[str] = Counter()
"""How many bodies of which calls run in this process: nobody is asked whether those happened."""
_COUNTING = threading.Lock()


@contextmanager
def living(call: str) -> Iterator[None]:
    """A body of a call lives for so long."""
    with _COUNTING:
        LIVING[call] += 1
    try:
        yield
    finally:
        with _COUNTING:
            LIVING[call] -= 1
            if not LIVING[call]:
                del LIVING[call]


def inner(body: object) -> Any:  # noqa: ANN401 (whatever can be called)
    """What a partial is of; anything else is that itself."""
    while isinstance(body, functools.partial):
        body = body.func
    return body


def code_of(body: object) -> Any:  # noqa: ANN401 (a function, a method or a class)
    """Where a body's annotations stand: those of an object with its ``__call__``."""
    found = inner(body)
    return found if inspect.isroutine(found) or inspect.isclass(found) else type(found).__call__


def is_coroutine(body: object) -> bool:
    """Whether a body is one for the loop: an ``async def``, or an object whose ``__call__`` is one."""
    return callable(body) and any(map(inspect.iscoroutinefunction, (body, code_of(body))))


def called(body: object) -> str:
    """What a body is called that was given no name: a function by its own, an object by its class's."""
    found = inner(body)
    return str(getattr(found, "__name__", type(found).__name__))


def _elapsed(begun: float) -> int:
    return round((time.monotonic() - begun) * 1000)


def run(body: Callable[[], Any], timeout: float, *, is_async: bool) -> Ran:
    """Runs a body from a thread and waits for it, at most until its deadline."""
    begun = time.monotonic()

    def whole() -> Any:  # noqa: ANN401
        return asyncio.run(awaited(body, timeout)) if is_async else body()

    task = _Task(whole)
    THREADS.submit(task)
    # An async body is cancelled by its own loop; what ignores that is abandoned like any other.
    if not task.done.wait(timeout + (1.0 if is_async else 0.0)):
        THREADS.gave_up(task)
        return Ran(timed_out=True, over=False, elapsed_ms=_elapsed(begun))
    ran = task.ran
    if is_async and isinstance(ran.error, TimeoutError) and ran.error.args == (_LATE,):
        return Ran(timed_out=True, over=False, elapsed_ms=_elapsed(begun))
    # An async body that raised may have left work behind in threads and tasks; one in its thread has ended.
    over = ran.error is None or not is_async
    return Ran(ran.value, ran.error, over=over, elapsed_ms=_elapsed(begun))


_LATE = "holdfast: the body's deadline"


async def awaited(body: Callable[[], Any], timeout: float) -> Any:  # noqa: ANN401
    """An async body within its deadline, on the loop that runs."""
    inside = INSIDE.set(True)
    try:
        work, loop = body(), asyncio.get_running_loop()
        begun = loop.time()
        # What never waits cannot be interrupted either: a deadline is set when it waits for the first time.
        try:
            asked = work.send(None)
        except StopIteration as end:
            return end.value
        try:
            async with asyncio.timeout_at(begun + timeout) as deadline:
                return await _rest(work, asked)
        except TimeoutError:
            if deadline.expired():
                raise TimeoutError(_LATE) from None
            raise
    finally:
        INSIDE.reset(inside)


@types.coroutine
def _rest(work: Coroutine[Any, Any, Any], asked: object) -> Generator[Any, Any, Any]:
    """Goes on with a coroutine of this task that has begun and asked the loop for something."""
    try:
        while True:
            try:
                told = yield asked
            except GeneratorExit:
                work.close()
                raise
            except BaseException as error:
                asked = work.throw(error)
            else:
                asked = work.send(told)
    except StopIteration as end:
        return end.value


async def arun(body: Callable[[], Any], timeout: float, *, is_async: bool) -> Ran:
    """The same from an event loop, which goes on meanwhile."""
    begun = time.monotonic()
    if is_async:
        ran = Ran()
        try:
            ran.value = await awaited(body, timeout)
        except TimeoutError as error:
            # Cancelled; what it had handed to threads may still run.
            late = error.args == (_LATE,)
            ran = Ran(timed_out=True, over=False) if late else Ran(error=error, over=False)
        except BaseException as error:
            ran = Ran(error=error, over=False)
        ran.elapsed_ms = _elapsed(begun)
        return ran
    loop, heard = asyncio.get_running_loop(), asyncio.Event()
    task = _Task(body)

    def hear() -> None:
        with suppress(RuntimeError):  # the loop is closed: nobody is left to hear it
            loop.call_soon_threadsafe(heard.set)

    task.heard = hear
    THREADS.submit(task)
    try:
        async with asyncio.timeout(timeout):
            await heard.wait()
    except TimeoutError:
        THREADS.gave_up(task)
        return Ran(timed_out=True, over=False, elapsed_ms=_elapsed(begun))
    return Ran(task.ran.value, task.ran.error, elapsed_ms=_elapsed(begun))
