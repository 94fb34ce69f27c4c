"""Crashes at every boundary of the journal: an agent is run once as it is, and then once more for each frame
that it writes, with the process dying right before the frame and right after it; a fresh runtime takes over.
What the world has seen and what the run came to must be the same as without a crash.

A crash here is as good as one: from its moment on nothing reaches the store, whatever the code that is left
does. With ``kill=True`` it is one, see ``kills.py``.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import threading
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NoReturn

from holdfast.errors import HoldfastError
from holdfast.gateway.bodies import INSIDE
from holdfast.gateway.courier import Frozen
from holdfast.runtime import Agent, Run, Runtime
from holdfast.store import open_store
from holdfast.store.aio import AsyncStore
from holdfast.store.clock import FakeClock
from holdfast.store.door import Store
from holdfast.testing.people import approve_all

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator, Sequence

    from holdfast import _core

When = Literal["before", "after"]
LEASE = 30.0
PERMIT = 120.0
"""Seconds after which a permit can no longer act; a tool with a longer timeout is looked at more often."""
ROUNDS = 50
"""How often a run is taken up again before it counts as stuck."""
ENDED = ("completed", "failed", "cancelled")


class Crash(Frozen):
    """The process is dead: whatever is left of it waits for ever."""


class _Dying(AsyncStore):
    """Commands of tasks of a process that will die."""

    def __init__(self, store: Mortal) -> None:
        super().__init__(store._core)
        self._store = store

    def _led(self, call: _core.Call) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        try:
            future.set_result(self._store._run(call))
        except Crash:
            pass  # nobody hears of it
        except Exception as error:
            future.set_exception(error)
        return future


class Mortal(Store):
    """A store as one process sees it, which dies at its n-th frame."""

    def __init__(self, core: _core.Store, clock: FakeClock, die_at: int | None, when: When) -> None:
        super().__init__(core, str(core.folder or "memory:"), clock)
        self.aio = _Dying(self)
        self.frames = 0
        self.spans: list[tuple[int, int]] = []
        """The journal's end before and after each of them."""
        self.died: concurrent.futures.Future[None] = concurrent.futures.Future()
        self.asked: list[concurrent.futures.Future[Any]] = []
        self._die_at, self._when = die_at, when
        self._bodies = 0
        self._changed = threading.Condition()

    @contextmanager
    def body(self) -> Iterator[None]:
        """A body at work: none begins in a dead process, and one that has begun comes to its end."""
        with self._changed:
            if self.dead:
                raise Crash
            self._bodies += 1
        try:
            yield
        finally:
            with self._changed:
                self._bodies -= 1
                self._changed.notify_all()

    def bodies_end(self) -> None:
        """Returns when no body is at work: what it has done is then known."""
        with self._changed:
            self._changed.wait_for(lambda: self._bodies == 0, timeout=60.0)

    @property
    def dead(self) -> bool:
        """Whether its process has died."""
        return self.died.done()

    def _die(self) -> NoReturn:
        with self._changed:
            if not self.dead:
                self.died.set_result(None)
        raise Crash

    def _run(self, call: _core.Call) -> Any:  # noqa: ANN401
        if self.dead or (self._die_at == self.frames + 1 and self._when == "before"):
            self._die()
        before = self._written()
        told = self._core.run(call)
        if (after := self._written()) != before:
            self.frames += 1
            self.spans.append((before, after))
            if self._die_at == self.frames:
                self._die()
        return told

    def _written(self) -> int:
        _, rows = self._core.sql("SELECT coalesce(max(pos), 0) FROM frames", [])
        return int(rows[0][0])


@dataclass(frozen=True)
class Boundary:
    """A frame of the journal, and on which side of it the process died."""

    frame: int
    when: When
    records: tuple[str, ...]
    """What the process writes there in the run without a crash."""

    def __str__(self) -> str:
        return f"{self.when} frame {self.frame} ({', '.join(self.records) or 'the end'})"


@dataclass(frozen=True)
class Scene:
    """What a crash is tried on: made anew for every process, over the world that outlives it."""

    runtime: Runtime
    agent: Agent[..., Any]
    args: tuple[object, ...] = ()


@dataclass
class CrashReport:
    """What came of the crashes."""

    result: Any
    boundaries: list[Boundary] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether every crash came to the same."""
        return not self.problems

    def __str__(self) -> str:
        lines = [f"{len(self.boundaries)} crashes, {len(self.problems)} with another outcome"]
        return "\n".join([*lines, *(f"  {boundary}" for boundary in self.boundaries), *self.problems])


@dataclass
class Play:
    """One run, by one process after another, over one world."""

    build: Callable[[Store, Any], Scene]
    world: Any
    core: _core.Store
    clock: FakeClock
    answer: Callable[[Runtime, Run], object]
    ran: dict[str, Any] = field(default_factory=dict)
    """By call: what a body returned, also if nobody lived to hear it."""
    scenes: list[Scene] = field(default_factory=list)
    dead: list[tuple[asyncio.AbstractEventLoop | None, set[asyncio.Task[Any]]]] = field(default_factory=list)
    """What is left of dead processes: kept, so that no ``finally`` of them runs in the next one."""
    spans: list[tuple[int, int]] = field(default_factory=list)
    """Where in the journal the frames of the processes are; what people wrote in between is not theirs."""
    crashed: bool = False

    def end(self) -> None:
        """Ends what lives, and lets go of what is dead."""
        for scene in self.scenes:
            scene.runtime.close()
        for loop, tasks in self.dead:
            for task in tasks:
                task._log_destroy_pending = False  # type: ignore[attr-defined]
                with suppress(BaseException):  # what its code does now can do nothing, and nobody compares it
                    task.get_coro().close()
            if loop is not None:
                loop.close()
        self.dead.clear()

    def process(self, die_at: int | None, when: When) -> tuple[Mortal, Scene]:
        """A process: its store, and what it runs."""
        store = Mortal(self.core, self.clock, die_at, when)
        scene = self.build(store, self.world)
        for tool in scene.runtime.gateway.tools.values():
            self._watch(tool, store)
        self.scenes.append(scene)
        return store, scene

    def _watch(self, tool: Any, store: Mortal) -> None:  # noqa: ANN401
        """Remembers what bodies returned: a person who looks at the provider would see it too."""
        inner, bound, ran = tool.function, tool.bound, self.ran

        def binds(arguments: Any, call: Any, secrets: Any) -> dict[str, Any]:  # noqa: ANN401
            bound_as.set(call.id)
            return bound(arguments, call, secrets)  # type: ignore[no-any-return]

        bound_as: contextvars.ContextVar[str] = contextvars.ContextVar("holdfast_testing_call")

        def called(**given: Any) -> Any:  # noqa: ANN401
            call = bound_as.get()
            with store.body():
                ran[call] = value = inner(**given)
            return value

        async def awaited(**given: Any) -> Any:  # noqa: ANN401
            call = bound_as.get()
            if store.dead:
                await asyncio.get_running_loop().create_future()  # for ever: no body begins any more
            with store.body():
                ran[call] = value = await inner(**given)
            return value

        tool.bound = binds
        tool.function = awaited if tool.is_async else called

    def run(self, die_at: int | None, when: When) -> tuple[Run, int]:
        """Plays until the run has ended, or nothing helps any more."""
        store, scene = self.process(die_at, when)
        run = self.started(store, scene)
        if run is None or not self._on(store, scene, run):
            if not store.dead:
                self.spans = store.spans
                return Run(scene.runtime, run or ""), store.frames
            self.crashed = True
            self.scenes.remove(scene)
            loop = scene.runtime._freeze()
            self.dead.append((loop, set() if loop is None else asyncio.all_tasks(loop)))
            store.asked.clear()
            store, scene = self.process(None, "after")
            run = self.started(store, scene)
            assert run is not None
            self.clock.advance(seconds=LEASE + PERMIT)  # the dead one's lease and permits are over
            self._on(store, scene, run)
        self.spans = store.spans
        return Run(scene.runtime, run), store.frames

    def started(self, store: Mortal, scene: Scene) -> str | None:
        """The run, made by the first process; None if that died on the way."""
        runtime = scene.runtime
        given = runtime.agent_of(scene.agent).named(scene.args, {})
        run = unless_dead(store, runtime, runtime.start(scene.agent, arguments=given, key="holdfast.testing"))
        return None if run is None else run.id

    def _on(self, store: Mortal, scene: Scene, run: str) -> bool:
        """Goes on until the run has ended; False if the process died, or if nothing helps."""
        for _ in range(ROUNDS):
            done = unless_dead(store, scene.runtime, scene.runtime.resume(run, lease=LEASE))
            if done is None:
                return False
            if done.status in ENDED:
                return True
            # People are no part of the process that dies.
            people = Runtime(Mortal(self.core, self.clock, None, "after"))
            if not self.help(people, Run(people, run)):
                return False
        return False

    def help(self, runtime: Runtime, run: Run) -> bool:
        """What other people do: approve, say what they see at the provider, whatever the test says."""
        helped = approve_all(runtime) > 0
        for doubt in runtime.effects.list(in_doubt=True):
            call = doubt.id.rpartition(".")[0]
            try:
                if call in self.ran:
                    runtime.effects.resolve(doubt.id, by="dana", happened=self.ran[call])
                else:
                    runtime.effects.resolve(doubt.id, by="dana", did_not_happen=True)
                helped = True
            except HoldfastError:
                self.clock.advance(seconds=PERMIT)  # its permit may still act
                helped = True
        if self.answer(runtime, run.refresh()) or helped:
            return True
        # Nobody had anything to do: time passes, until the first timer or the end of a lease.
        timers = [wait["until"] for wait in run.refresh().waiting_on if wait["on"] == "timer"]
        if timers or run.status == "running":
            due = min(timers, default=0) - self.clock.wall_ms
            self.clock.advance(seconds=max(due / 1000, 0.001) if timers else 3600)
        return bool(timers) or run.status == "running"


def unless_dead(store: Mortal, runtime: Runtime, work: Coroutine[Any, Any, Run]) -> Run | None:
    """What work on a runtime's loop comes to; None if its process died before."""
    future = asyncio.run_coroutine_threadsafe(work, runtime._loop())
    store.asked.append(future)  # the loop itself keeps nothing alive that waits for ever
    waited: set[concurrent.futures.Future[Any]] = {future, store.died}
    concurrent.futures.wait(waited, return_when=concurrent.futures.FIRST_COMPLETED)
    if not store.dead:
        return future.result()
    store.bodies_end()
    return None


def _frames(play: Play) -> list[tuple[str, ...]]:
    """The records of each frame that the processes of a play wrote, in order."""
    _, rows = play.core.sql("SELECT pos, kind FROM events ORDER BY pos, seq", [])
    return [
        tuple(str(kind) for pos, kind in rows if before < int(str(pos)) <= after)
        for before, after in play.spans
    ]


def crash_at(
    build: Callable[[Store, Any], Scene],
    frame: int,
    when: When = "after",
    *,
    world: Callable[[], Any] = list,
    answer: Callable[[Runtime, Run], object] = lambda *_: None,
    kill: bool = False,
) -> tuple[Run, Any]:
    """Plays a scene with one crash, and returns the run and the world after it.

    Args:
        build, world, answer, kill: see :func:`crash_everywhere`, whose report lists the boundaries.
        frame: at which of the frames that the process writes, counted from 1; 0 is a play without a crash.
        when: on which side of it.

    Raises:
        ValueError: the process writes no such frame, so that nothing has crashed.
    """
    with _play(build, world, answer, kill) as play:
        run, frames = play.run(frame, when)
        if frame != 0 and not play.crashed:
            raise ValueError(f"nothing has crashed: the run has {frames} frames, and no frame {frame}")
        _ = (run.status, run.result, run.error, run.waiting_on)  # read while there is a loop to read with
        return run, play.world


@contextmanager
def _play(
    build: Callable[[Store, Any], Scene],
    world: Callable[[], Any],
    answer: Callable[[Runtime, Run], object],
    kill: bool,
) -> Iterator[Play]:
    from holdfast.testing.kills import KilledPlay  # it stands on this module

    clock = FakeClock()
    core = open_store("memory:", clock=clock)._core
    play = (KilledPlay if kill else Play)(build, world(), core, clock, answer)
    try:
        yield play
    finally:
        play.end()


def crash_everywhere(
    build: Callable[[Store, Any], Scene],
    *,
    world: Callable[[], Any] = list,
    answer: Callable[[Runtime, Run], object] = lambda *_: None,
    same: Callable[[Any, Any], bool] | None = None,
    check: bool = True,
    kill: bool = False,
) -> CrashReport:
    """Crashes an agent before and after every frame of its journal, and has another process take over.

    Args:
        build: makes the runtime, its tools and the agent, as a new process would; it gets a store, and the
            world that outlives processes.
        world: makes that world, a list unless given; what tools put into it is compared.
        answer: what people do beside approving and resolving doubts: sends signals, for one.
        same: whether two worlds are the same; in any order, for lists.
        check: raise an AssertionError if a crash came to something else.
        kill: run every process as one, on a store in a folder, and end it by SIGKILL; some hundred
            milliseconds for each crash. The world stays with the test: processes reach it by its methods,
            and what they pass is pickled.

    Requests are approved, and doubts are resolved by what the bodies of tools have really done.
    """
    assert not INSIDE.get(), "not from inside an agent"
    with _play(build, world, answer, kill) as play:
        run, total = play.run(None, "after")
        expected = (run.status, run.result)
        report = CrashReport(run.result)
        if run.status != "completed":
            report.problems.append(f"without a crash the run is {run.status}: {run.error or run.waiting_on}")
            total = 0
        records = _frames(play)
        for frame in range(1, total + 1):
            for when in ("before", "after"):
                boundary = Boundary(frame, when, records[frame - 1] if frame <= len(records) else ())
                with _play(build, world, answer, kill) as again:
                    came, _ = again.run(frame, when)
                    report.boundaries.append(boundary)
                    found = _differences(boundary, expected, came, play.world, again.world, same)
                    report.problems.extend(found)
    if check and not report.ok:
        raise AssertionError(str(report))
    return report


def _differences(
    boundary: Boundary,
    expected: tuple[str, Any],
    run: Run,
    world: Any,  # noqa: ANN401
    seen: Any,  # noqa: ANN401
    same: Callable[[Any, Any], bool] | None,
) -> Sequence[str]:
    found = []
    if (run.status, run.result) != expected:
        waits = [wait["on"] for wait in run.waiting_on] if run.status == "waiting" else []
        found.append(f"{boundary}: the run is {run.status} {waits or ''} with {run.result!r}: {run.error}")
    equal = same(world, seen) if same else _alike(world, seen)
    if not equal:
        found.append(f"{boundary}: the world has seen {seen!r}, and without a crash {world!r}")
    if not run._runtime.store.verify().ok:
        found.append(f"{boundary}: the journal does not verify")
    return found


def _alike(one: Any, other: Any) -> bool:  # noqa: ANN401
    if isinstance(one, list) and isinstance(other, list):
        return sorted(map(repr, one)) == sorted(map(repr, other))
    return bool(one == other)
