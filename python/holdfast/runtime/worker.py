"""Workers: they claim steps, run them, keep their leases and let go in order."""

from __future__ import annotations

import asyncio
import itertools
import logging
import math
import os
import socket
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from holdfast import _core
from holdfast.errors import CommandError, HoldfastError, StoreError
from holdfast.runtime.attempt import Attempt
from holdfast.runtime.conductor import LOST
from holdfast.runtime.ears import Ear
from holdfast.runtime.ends import Cancelled as CancelledEnd
from holdfast.runtime.ends import Lost
from holdfast.runtime.runs import ENDED
from holdfast.store import asks

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from holdfast.runtime.runtime import Runtime
    from holdfast.store import Claim
    from holdfast.store.asks import Asked

log = logging.getLogger("holdfast.worker")
HOST, PROGRAM, _WORKERS = socket.gethostname(), os.urandom(4).hex(), itertools.count(1)
TICK = 1.0
"""Seconds between looks at the runs that are worked on: whether they are to be cancelled."""
AWAY = frozenset(("store_busy", "store_unreachable"))
"""What a store says that may be back soon."""
AWAY_PAUSE = 1.0
"""Seconds before it is asked again; it has waited for its server by itself before it said so."""


@dataclass(frozen=True)
class Summary:
    """What a worker has done."""

    claimed: int = 0
    completed: int = 0
    failed: int = 0
    """Attempts that failed; the step may have been tried again."""
    waiting: int = 0
    cancelled: int = 0
    released: int = 0
    lost: int = 0
    """Attempts whose step another worker has taken."""

    def plus(self, came_to: str) -> Summary:
        """One more attempt."""
        return replace(self, claimed=self.claimed + 1, **{came_to: getattr(self, came_to) + 1})


def worker_name() -> str:
    """A name that no other worker has."""
    return f"{HOST}-{os.getpid()}-{PROGRAM}.{next(_WORKERS)}"


@dataclass(eq=False)
class Worker:
    """Claims steps of the agents that this runtime has, and runs them.

    Attributes:
        concurrency: how many at once.
        lease: seconds that a step is this worker's without a heartbeat; it gets one every third of that.
        name: as it stands in the journal.
        poll: seconds between looks for work when there is none and nobody tells of any.
        own_package: leave runs that another version of this program works on to its workers.
        alive: a file that is touched when the store has answered, at most once a second; for probes.
    """

    runtime: Runtime
    concurrency: int = 1
    lease: float = 60.0
    name: str = field(default_factory=worker_name)
    queues: Sequence[str] = ()
    poll: float = 0.2
    run: str | None = None
    stays: bool = True
    """Whether it waits for timers and retries when nothing else is left."""
    own_package: bool = False
    alive: Path | None = None
    summary: Summary = field(default_factory=Summary)
    left: str | None = field(default=None, init=False, repr=False)
    """The status in which the newest attempt left its run, if it told the journal anything."""
    _attempts: dict[Attempt, float] = field(default_factory=dict, repr=False)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set, repr=False)
    _stopping: asyncio.Event = field(default_factory=asyncio.Event, repr=False)
    _heard: asyncio.Event = field(default_factory=asyncio.Event, repr=False)
    _away: bool = field(default=False, repr=False)
    _answered_at: float = field(default=-math.inf, repr=False)
    _timer: asyncio.TimerHandle | None = field(default=None, repr=False)
    _beats: asyncio.Task[None] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if self.concurrency < 1:
            raise ValueError("a worker does at least one thing at a time")

    # What it is asked to do.

    async def run_once(self) -> bool:
        """Runs one step that is ready, if there is one; whether there was."""
        claim = await self.claim()
        if claim is None:
            return False
        await self._attempt(claim)
        await self._rest()
        return True

    async def drive(self, claim: Claim | None) -> Summary:
        """Runs what is ready of its one run, beginning with what is claimed already; what it did then."""
        assert self.run is not None
        before, self.summary = self.summary, Summary()
        if claim is not None:
            await self._attempt(claim)
        if claim is None or self.left not in ENDED:
            await self._work(idle=True)
        else:
            await self._rest()
        done, self.summary = self.summary, before
        return done

    async def run_until_idle(self) -> Summary:
        """Runs everything that is ready, stays for timers and retries, and returns when only a person or
        another run can help."""
        await self._work(idle=True)
        return self.summary

    async def serve(self) -> Summary:
        """Runs what comes until :meth:`stop`; then steps that run go on to their next wait or end.

        A store that is away is waited for, as long as it takes.
        """
        ear = Ear(self.runtime.store._core, self._heard)
        try:
            await self._work(idle=False)
        finally:
            ear.close()
        return self.summary

    def run_once_sync(self) -> bool:
        """See :meth:`run_once`."""
        return self.runtime._sync(self.run_once())

    def run_until_idle_sync(self) -> Summary:
        """See :meth:`run_until_idle`."""
        return self.runtime._sync(self.run_until_idle())

    def serve_sync(self) -> Summary:
        """See :meth:`serve`."""
        return self.runtime._sync(self.serve())

    @property
    def stopping(self) -> bool:
        """Whether it was asked to stop."""
        return self._stopping.is_set()

    def stop(self, *, release: bool = False) -> None:
        """Claims nothing more. With ``release``, steps that run are given back at once."""
        self._stopping.set()
        if release:
            for task in self._tasks:
                task.cancel()

    # How it does that.

    def _asks(self) -> Asked[Claim | None]:
        runtime = self.runtime
        return asks.claim(
            runtime.store._core,
            worker=self.name,
            lease=self.lease,
            queues=list(self.queues),
            agents=runtime.agent_names(),
            package=runtime.package(),
            packages=[runtime.fingerprint()] if self.own_package else [],
            strict=runtime.strict_packages,
            run=self.run,
        )

    async def claim(self) -> Claim | None:
        """The best step that it may have."""
        if not self.runtime.agents:
            return None  # an empty list would mean everybody's
        asked = self._asks()
        assert asked.call is not None
        return await self._claimed(asked, asked.call)

    async def begin(self, create: _core.Call) -> Claim | None:
        """Makes its run and claims it, in one turn of the store; None if it may not have it now."""
        asked = self._asks()
        assert asked.call is not None
        return await self._claimed(asked, _core.Call.begin(create, asked.call))

    async def _claimed(self, asked: Asked[Claim | None], call: _core.Call) -> Claim | None:
        """Whoever is cancelled meanwhile gives back what came of it."""
        made = self.runtime.store.aio._led(call)
        try:
            return asked.answer(await asyncio.shield(made))
        except asyncio.CancelledError:
            claimed = asked.answer(await made)
            if claimed is not None:
                await self.give_back(claimed)
            raise

    async def _next(self, *, idle: bool) -> Claim | None:
        """The next step. Who serves outlasts a store that is away; who works until idle says so."""
        try:
            claim = await self.claim()
        except StoreError as error:
            if idle or error.code not in AWAY:
                raise
            if not self._away:
                log.warning("the store is away, and is asked again until it is back: %s", error)
            self._away = True
            await self._pause(AWAY_PAUSE)
            return None
        if self._away:
            log.warning("the store is back")
            self._away = False
        self._answered()
        return claim

    def _answered(self) -> None:
        """Lets whoever looks after this process know that it has a store and a loop that turns."""
        now = asyncio.get_running_loop().time()
        if self.alive is None or now - self._answered_at < 1.0:
            return
        self._answered_at = now
        try:
            self.alive.touch()
        except OSError as error:
            log.warning("%s could not be touched: %s", self.alive, error)

    async def _work(self, *, idle: bool) -> None:
        try:
            while not self._stopping.is_set():
                self._heard.clear()
                busy = bool(self._tasks)
                while len(self._tasks) < self.concurrency and not self._stopping.is_set():
                    claim = await self._next(idle=idle)
                    if claim is None:
                        break
                    task = asyncio.get_running_loop().create_task(self._attempt(claim))
                    self._tasks.add(task)
                    task.add_done_callback(self._tasks.discard)
                    busy = True
                if self._tasks:
                    await self._one_done()
                elif busy:
                    continue  # what ended while it asked for more may have made something ready
                elif idle and not await self._worth_staying():
                    break
                elif not idle:
                    await self._first_of(set(), self.poll)
            while self._tasks:
                await asyncio.wait(self._tasks)
        finally:
            for task in self._tasks:
                task.cancel()
            if self._tasks:
                await asyncio.wait(self._tasks)
            await self._rest()

    async def _one_done(self) -> None:
        has_room = len(self._tasks) < self.concurrency
        await self._first_of(self._tasks, self.poll if has_room else None, hears=has_room)

    async def _first_of(
        self, tasks: set[asyncio.Task[None]], timeout: float | None, *, hears: bool = True
    ) -> None:
        """Until a task is done, somebody asks it to stop, or there may be something new to claim."""
        events = [self._stopping, self._heard] if hears else [self._stopping]
        waits = {asyncio.ensure_future(event.wait()) for event in events}
        try:
            await asyncio.wait({*tasks, *waits}, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()

    async def _pause(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stopping.wait()

    async def _worth_staying(self) -> bool:
        """Waits for a timer or a retry, if there is one to wait for."""
        due = self.runtime.next_due(self.run) if self.stays else None
        if due is None:
            return False
        wait = (due - self.runtime.store._core.wall_ms) / 1000
        if wait > 0 and self.runtime.store.clock is not None:
            return False  # a clock that stands: whoever moves it asks again
        await self._pause(max(0.001, min(wait, 5.0)))
        return True

    async def _attempt(self, claim: Claim) -> None:
        task = asyncio.current_task()
        before = 0 if task is None else task.cancelling()
        self._beat_later()
        agent = self.runtime.agent_for(claim)
        try:
            if agent is None:
                came_to = await self._unknown(claim)
            else:
                attempt = Attempt(self.runtime, claim, agent)
                self._attempts[attempt] = asyncio.get_running_loop().time()
                try:
                    came_to = await attempt.run()
                finally:
                    del self._attempts[attempt]
                    self.left = attempt.left
        except asyncio.CancelledError:  # before its work or after; in between the attempt sees to it
            writing = agent is not None and attempt.conductor is not None and attempt.conductor.running
            came_to = "lost" if writing else await self.give_back(claim)
        except Exception as error:
            log.warning("%s: %s", claim.run, error, extra=claim.about())
            came_to = await self._let_go(claim)
        self.summary = self.summary.plus(came_to)
        if task is not None and task.cancelling() > before:
            raise asyncio.CancelledError

    async def _unknown(self, claim: Claim) -> str:
        """A step whose function this worker does not have: another one may."""
        name = (claim.step_input or {}).get("function", claim.agent)
        told = "%s: no function is registered for the step %s"
        log.warning(told, claim.run, name, extra=claim.about())
        await self.runtime.store.aio.release(claim, reason="yielded")
        await self._pause(self.poll)
        return "released"

    async def _let_go(self, claim: Claim) -> str:
        """Gives a step back whose attempt ended in an error of ours; else it is claimed when its lease is
        over."""
        came_to = await self.give_back(claim)
        if came_to == "released":
            await self._pause(self.poll)
        return came_to

    async def give_back(self, claim: Claim) -> str:
        """Lets another worker have a step at once; what has ended, or is another's by now, stays as it is."""
        try:
            await self.runtime.store.aio.release(claim, reason="yielded")
        except HoldfastError:
            return "lost"
        return "released"

    # Leases.

    def _beat_later(self) -> None:
        """Most attempts are over before a heartbeat is due: until then it is only a timer."""
        if self._timer is None:
            loop, tick = asyncio.get_running_loop(), min(TICK, self.lease / 3)
            self._timer = loop.call_later(tick, self._beat)

    def _beat(self) -> None:
        self._beats = asyncio.get_running_loop().create_task(self._heartbeats())

    async def _heartbeats(self) -> None:
        now = asyncio.get_running_loop().time()
        for attempt, beaten in list(self._attempts.items()):
            due = now - beaten >= self.lease / 3
            await self._look_after(attempt, due=due)
            if due and attempt in self._attempts:
                self._attempts[attempt] = now
        self._timer = None
        if self._attempts:
            self._beat_later()

    async def _look_after(self, attempt: Attempt, *, due: bool) -> None:
        store, claim = self.runtime.store, attempt.claim
        try:
            if due:
                await store.aio.heartbeat(claim)
            cancel, status = await asyncio.to_thread(_core.run_status, store._core, claim.run)
        except CommandError as error:
            if error.code in LOST and attempt.conductor is not None:
                attempt.conductor.close(Lost(error))
            return
        except HoldfastError as error:
            log.warning("%s: no heartbeat: %s", claim.run, error, extra=claim.about())
            return
        self._answered()
        if attempt.conductor is None:
            return
        if cancel:
            attempt.conductor.close(CancelledEnd())
        elif status == "paused":
            attempt.conductor.pause()

    async def _rest(self) -> None:
        if self._attempts:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._beats is not None:
            self._beats.cancel()
            with suppress(asyncio.CancelledError):
                await self._beats
            self._beats = None
