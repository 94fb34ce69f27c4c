"""The context of an agent that is a plain function: the same names, and each call waits for its outcome.

The function runs in a thread of its own. A call that has to wait for somebody raises ``hf.Suspended`` there,
which is no ``Exception``: whatever code does with it, every further call raises it again and does nothing.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import inspect
import threading
from typing import TYPE_CHECKING, Any

from holdfast.gateway.bodies import INSIDE
from holdfast.gateway.outcomes import Suspended
from holdfast.runtime import lanes

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from holdfast.runtime.context import Child, Context

PLAIN = frozenset(
    (
        "attempt",
        "budget",
        "cancelled",
        "injected",
        "input",
        "on_cleanup",
        "random",
        "role",
        "run",
        "session",
        "uuid",
    )
)


class SyncContext:
    """A :class:`Context` for plain functions. It is used by the agent's own thread only."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._thread = threading.get_ident()

    @property
    def state(self) -> dict[str, Any]:
        """The run's state."""
        return self._context.state

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        found = getattr(self._context, name)
        if name in PLAIN:
            return found

        def method(*args: object, **kwargs: object) -> Any:  # noqa: ANN401
            return self._wait(found(*args, **kwargs))

        return method

    def _wait(self, work: Coroutine[Any, Any, Any]) -> Any:  # noqa: ANN401
        if not inspect.iscoroutine(work):
            raise TypeError("a plain agent waits for one thing at a time: write an async agent for this")
        if threading.get_ident() != self._thread:
            work.close()
            if lanes.in_body():
                raise lanes.refused()
            raise RuntimeError("a plain agent's context is for its own thread: write an async agent for more")
        conductor = self._context._conductor
        if conductor.closed is not None:
            work.close()
            raise Suspended("", {"on": "paused"})
        done: concurrent.futures.Future[Any] = concurrent.futures.Future()

        def begin() -> None:
            task = asyncio.Task(work, loop=conductor.loop)
            task.add_done_callback(lambda task: _copy(task, done))

        conductor.loop.call_soon_threadsafe(begin)
        try:
            return done.result()
        except concurrent.futures.CancelledError:
            raise Suspended("", {"on": "paused"}) from None

    def result(self, child: Child) -> Any:  # noqa: ANN401 (the child says what it is)
        """What a child came to."""
        return self._wait(child.result())


def _copy(task: asyncio.Task[Any], done: concurrent.futures.Future[Any]) -> None:
    if task.cancelled():
        done.cancel()
        done.set_running_or_notify_cancel()
    elif task.exception() is not None:
        done.set_exception(task.exception())
    else:
        done.set_result(task.result())


def in_thread(
    context: Context, function: Callable[..., Any], arguments: dict[str, Any], context_as: str
) -> asyncio.Future[Any]:
    """Runs a plain agent in a thread; the future hears how it ended."""
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[Any] = loop.create_future()

    def tell(value: object, error: BaseException | None) -> None:
        if ended.done():
            return
        if error is not None:
            ended.set_exception(error if not isinstance(error, StopIteration) else RuntimeError(str(error)))
        else:
            ended.set_result(value)

    def whole() -> None:
        value, error = None, None
        try:
            value = function(**{context_as: SyncContext(context)}, **arguments)
        except BaseException as raised:
            error = raised
        loop.call_soon_threadsafe(tell, value, error)

    inside = contextvars.copy_context()
    inside.run(INSIDE.set, True)
    inside.run(lanes.CURRENT.set, context._conductor.lane)
    threading.Thread(target=lambda: inside.run(whole), name="holdfast-agent", daemon=True).start()
    return ended
