"""Lanes: the lines of execution inside a step. A lane is an asyncio task, and its path says who made it, what
it runs and the how-manieth of that it is, so that the same code makes the same lanes whatever the timing.
"""

from __future__ import annotations

import asyncio
import contextvars
import weakref
from collections import Counter
from typing import TYPE_CHECKING, Any

from holdfast import _core
from holdfast.errors import CommandError
from holdfast.gateway.courier import NOWHERE, OUTSIDE
from holdfast.gateway.outcomes import fix

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Generator

    Factory = Callable[..., asyncio.Future[Any]]

LONGEST = 160
"""Characters of a path; a longer one is its parent's digest and its own last part."""

CURRENT: contextvars.ContextVar[Lane | None] = OUTSIDE
"""The lane that code runs in. Bodies have none (:func:`in_body`), nor has what nobody of ours has begun."""
_WRAPPED: weakref.WeakSet[asyncio.AbstractEventLoop] = weakref.WeakSet()


class Lane:
    """One line of execution: its path, the tasks that it made, what it has counted."""

    __slots__ = ("_children", "_counts", "path", "tasks")

    def __init__(self, path: str, tasks: weakref.WeakSet[asyncio.Task[Any]]) -> None:
        self.path = path
        self.tasks = tasks
        """The living tasks of the attempt."""
        self._children: Counter[str] = Counter()
        self._counts: Counter[str] = Counter()

    def child(self, name: str) -> Lane:
        """The next lane of this name."""
        self._children[name] += 1
        path = f"{self.path}/{name}#{self._children[name]}"
        if len(path) > LONGEST:
            digest = _core.canonical_digest(path, domain="holdfast/lane/v1").removeprefix("sha256:")
            path = f"{digest[:32]}/{name[-80:]}#{self._children[name]}"
        return Lane(path, self.tasks)

    def count(self, what: str) -> int:
        """How often something was asked for here before."""
        self._counts[what] += 1
        return self._counts[what] - 1


def in_body() -> bool:
    """Whether this is the body of a call: a tool, a task of ``ctx.do``, a hook."""
    return CURRENT.get() is NOWHERE


def refused() -> CommandError:
    """What a body is told that uses a context: when its outcome is served, nobody would ask again."""
    code = "call_in_body"
    return CommandError("the body of a call uses the context of its agent", code=code, fix=fix(code))


def name_of(coroutine: object) -> str:
    """What a task runs, by the qualified name of its coroutine."""
    name = getattr(coroutine, "__qualname__", None) or type(coroutine).__qualname__
    return "".join(character for character in str(name) if character.isprintable()) or "task"


def watch(loop: asyncio.AbstractEventLoop) -> None:
    """Has every task that a lane makes be a lane; a task factory that is there already makes them."""
    if loop in _WRAPPED:
        return
    _WRAPPED.add(loop)
    inner = loop.get_task_factory()

    def factory(
        loop: asyncio.AbstractEventLoop,
        coroutine: Coroutine[Any, Any, Any] | Generator[Any, None, Any],
        *,
        context: contextvars.Context | None = None,
        **options: Any,  # noqa: ANN401
    ) -> asyncio.Future[Any]:
        given = context if context is not None else contextvars.copy_context()
        parent = given.get(CURRENT)
        if not isinstance(parent, Lane):
            parent = None
        if parent is not None:
            given.run(CURRENT.set, parent.child(name_of(coroutine)))
        if inner is not None:
            task: Any = inner(loop, coroutine, context=given, **options)  # type: ignore[call-arg]
        else:
            task = asyncio.Task(coroutine, loop=loop, context=given, **options)
        if parent is not None:
            parent.tasks.add(task)
        return task  # type: ignore[no-any-return]

    loop.set_task_factory(factory)


def blocked(tasks: weakref.WeakSet[asyncio.Task[Any]], ours: Callable[[object], bool]) -> bool:
    """Whether every living task of an attempt waits for something of ours, or for another one that does.

    What cannot be seen through, such as a wait for a socket, says no.
    """
    for task in tasks:
        if task.done():
            continue
        waits_for = getattr(task, "_fut_waiter", None)
        if waits_for is None or waits_for.done():
            return False  # it is about to go on
        if not (ours(waits_for) or _waits_for_tasks(waits_for, tasks)):
            return False
    return True


def _waits_for_tasks(future: object, tasks: weakref.WeakSet[asyncio.Task[Any]]) -> bool:
    if isinstance(future, asyncio.Task):
        return future in tasks
    children = getattr(future, "_children", None) or ()  # of a gather
    return bool(children) and all(child in tasks for child in children)
