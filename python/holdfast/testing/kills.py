"""Crashes that are real: every process of a play is one, forked from the test, on a store in a folder. At the
frame where it is to die it writes nothing more, bodies that have begun come to their end, and it is killed by
SIGKILL. The next process finds what is on the disk.

What outlives processes stays with the test: the world, the clock, what bodies have returned, and the people.
A process reaches the world over a line, so what it has done there has happened, whenever it dies.
"""

from __future__ import annotations

import gc
import os
import shutil
import signal
import tempfile
import traceback
import warnings
from dataclasses import dataclass, field
from multiprocessing import Pipe
from threading import Lock
from typing import TYPE_CHECKING, Any, NoReturn

from holdfast.runtime import Run, Runtime
from holdfast.store import open_store
from holdfast.testing.crashes import ENDED, LEASE, PERMIT, ROUNDS, Mortal, Play, unless_dead

if TYPE_CHECKING:
    from collections.abc import Iterator
    from multiprocessing.connection import Connection

    from holdfast.testing.crashes import When

    Told = tuple[int, str, str, list[tuple[int, int]]]


class Line:
    """What a process has of the test's: one question at a time."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._turn = Lock()

    def ask(self, *question: object) -> Any:  # noqa: ANN401 (whatever the world has)
        """What the test says to a question; raises what it raised."""
        with self._turn:
            self._connection.send(question)
            said, value = self._connection.recv()
        if said == "raised":
            raise value
        return value

    def tell(self, *told: object) -> None:
        """The last word of a process."""
        with self._turn:
            self._connection.send(told)


class Far:
    """An object of the test's, as a process sees it. Arguments and answers are pickled on the way."""

    def __init__(self, line: Line, name: str) -> None:
        self._line = line
        self._name = name

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        if name.startswith("__"):
            raise AttributeError(name)
        is_method, value = self._line.ask("look", self._name, name)
        return (lambda *args, **given: self._ask(name, *args, **given)) if is_method else value

    def _ask(self, method: str, *args: object, **given: object) -> Any:  # noqa: ANN401
        return self._line.ask("call", self._name, method, args, given)

    def __contains__(self, item: object) -> bool:
        return bool(self._ask("__contains__", item))

    def __len__(self) -> int:
        return int(self._ask("__len__"))

    def __iter__(self) -> Iterator[Any]:
        return iter(self._line.ask("list", self._name))

    def __getitem__(self, at: object) -> Any:  # noqa: ANN401
        return self._ask("__getitem__", at)

    def __setitem__(self, at: object, value: object) -> None:
        self._ask("__setitem__", at, value)

    def __delitem__(self, at: object) -> None:
        self._ask("__delitem__", at)

    def __repr__(self) -> str:
        return str(self._ask("__repr__"))


@dataclass
class KilledPlay(Play):
    """One run, by one process after another, each of them real."""

    folder: str = field(default_factory=lambda: tempfile.mkdtemp(prefix="holdfast-crash-"))

    def end(self) -> None:
        """Lets go of everything, and of the folder."""
        super().end()
        self.core.close()
        shutil.rmtree(self.folder)

    def run(self, die_at: int | None, when: When) -> tuple[Run, int]:
        """Plays until the run has ended, or nothing helps any more."""
        run, frames = "", 0
        for _ in range(ROUNDS):
            told = self._process(frames, die_at, when)
            if told is None:
                assert die_at is not None, "a process was killed by somebody else"
                die_at, self.crashed = None, True
                self.clock.advance(seconds=LEASE + PERMIT)  # the dead one's lease and permits are over
                continue
            frames, run, status, spans = told
            self.spans.extend(spans)
            if status in ENDED or not self._people(run):
                break
        self.core = open_store(self.folder, clock=self.clock)._core
        _, scene = self.process(None, "after")  # to look with: nothing runs here
        return Run(scene.runtime, run), frames

    def _people(self, run: str) -> bool:
        """What people do while no process is there."""
        with open_store(self.folder, clock=self.clock) as store:
            people = Runtime(Mortal(store._core, self.clock, None, "after"))
            return self.help(people, Run(people, run))

    def _process(self, frames: int, die_at: int | None, when: When) -> Told | None:
        """A process that goes on until the run waits or has ended; None if it was killed."""
        ours, theirs = Pipe()
        pid = _fork()
        if pid == 0:
            ours.close()
            try:
                self._live(Line(theirs), frames, die_at, when)
            finally:
                os._exit(70)
        theirs.close()
        try:
            told = self._serve(ours)
        finally:
            _, status = os.waitpid(pid, 0)
            ours.close()
        if told is None:
            code = os.waitstatus_to_exitcode(status)
            assert code == -signal.SIGKILL, f"a process ended with {code}"
        return told

    def _serve(self, line: Connection) -> Told | None:
        """Answers what a process asks of the world, until its last word or its death."""
        kept = {"ran": self.ran, "world": self.world}
        while True:
            try:
                what, *said = line.recv()
            except (EOFError, ConnectionError):
                return None
            if what == "failed":
                raise RuntimeError(f"a process could not go on:\n{said[0]}")
            if what == "done":
                return said[0], said[1], said[2], said[3]
            try:
                answer = _answer(kept[said[0]], what, *said[1:])
            except Exception as error:
                line.send(("raised", error))
            else:
                line.send(("answered", answer))

    def _live(self, line: Line, frames: int, die_at: int | None, when: When) -> NoReturn:
        """A process: it never returns."""
        gc.freeze()  # nothing that the test has is this process's to end
        try:
            self.world, self.ran = Far(line, "world"), Far(line, "ran")  # type: ignore[assignment]
            self.core = open_store(self.folder, clock=self.clock)._core
            store, scene = self.process(die_at, when)
            store.frames = frames
            run = self.started(store, scene)
            done = None
            if run is not None:
                done = unless_dead(store, scene.runtime, scene.runtime.resume(run, lease=LEASE))
            if run is None or done is None:
                os.kill(os.getpid(), signal.SIGKILL)
            assert done is not None
            told = ("done", store.frames, run, done.status, store.spans)
            scene.runtime.close()
            self.core.close()
        except BaseException:
            told = ("failed", traceback.format_exc())  # type: ignore[assignment]
        line.tell(*told)
        os._exit(0)


def _answer(
    thing: Any,  # noqa: ANN401 (the world)
    what: str,
    name: str = "",
    args: tuple[Any, ...] = (),
    given: dict[str, Any] | None = None,
) -> Any:  # noqa: ANN401
    if what == "list":
        return list(thing)
    found = getattr(thing, name)
    if what == "call":
        return found(*args, **(given or {}))
    return (True, None) if callable(found) else (False, found)


def _fork() -> int:
    with warnings.catch_warnings():
        # The test has threads; the child runs nothing of them, and opens its own store.
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()
