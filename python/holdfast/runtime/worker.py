"""Workers: they claim steps, run them, keep their leases and let go in order."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import uuid
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from holdfast import _core
from holdfast.errors import CommandError, HoldfastError
from holdfast.runtime.attempt import Attempt
from holdfast.runtime.conductor import LOST
from holdfast.runtime.ends import Cancelled as CancelledEnd
from holdfast.runtime.ends import Lost
from holdfast.runtime.runs import ENDED

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.runtime.runtime import Runtime
    from holdfast.store import Claim

log = logging.getLogger("holdfast.worker")
TICK = 1.0
"""Seconds between looks at the runs that are worked on: whether they are to be cancelled."""


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
    return f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"


@dataclass(eq=False)
class Worker:
    """Claims steps of the agents that this runtime has, and runs them.

    Attributes:
        concurrency: how many at once.
        lease: seconds that a step is this worker's without a heartbeat; it gets one every third of that.
        name: as it stands in the journal.
        poll: seconds between looks for work when there is none.
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
    summary: Summary = field(default_factory=Summary)
    _attempts: dict[Attempt, float] = field(default_factory=dict, repr=False)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set, repr=False)
    _stopping: asyncio.Event = field(default_factory=asyncio.Event, repr=False)
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
        if claim is None or self.runtime.status_of(self.run) not in ENDED:
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
        """Runs what comes until :meth:`stop`; then steps that run go on to their next wait or end."""
        await self._work(idle=False)
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

    def stop(self, *, release: bool = False) -> None:
        """Claims nothing more. With ``release``, steps that run are given back at once."""
        self._stopping.set()
        if release:
            for task in self._tasks:
                task.cancel()

    # How it does that.

    async def claim(self) -> Claim | None:
        """The best step that it may have."""
        runtime = self.runtime
        if not runtime.agents:
            return None  # an empty list would mean everybody's
        return await runtime.store.aio.claim(
            worker=self.name,
            lease=self.lease,
            queues=list(self.queues),
            agents=runtime.agent_names(),
            package=runtime.package(),
            strict=runtime.strict_packages,
            run=self.run,
        )

    async def _work(self, *, idle: bool) -> None:
        try:
            while not self._stopping.is_set():
                while len(self._tasks) < self.concurrency and not self._stopping.is_set():
                    claim = await self.claim()
                    if claim is None:
                        break
                    task = asyncio.get_running_loop().create_task(self._attempt(claim))
                    self._tasks.add(task)
                    task.add_done_callback(self._tasks.discard)
                if self._tasks:
                    await self._one_done()
                elif idle and not await self._worth_staying():
                    break
                elif not idle:
                    await self._pause(self.poll)
            while self._tasks:
                await asyncio.wait(self._tasks)
        finally:
            for task in self._tasks:
                task.cancel()
            if self._tasks:
                await asyncio.wait(self._tasks)
            await self._rest()

    async def _one_done(self) -> None:
        timeout = self.poll if len(self._tasks) < self.concurrency else None
        stopping = asyncio.ensure_future(self._stopping.wait())
        try:
            await asyncio.wait({*self._tasks, stopping}, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopping.cancel()

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
        except Exception as error:
            log.warning("%s: %s", claim.run, error, extra={"run": claim.run, "step": claim.step})
            came_to = await self._let_go(claim)
        self.summary = self.summary.plus(came_to)

    async def _unknown(self, claim: Claim) -> str:
        """A step whose function this worker does not have: another one may."""
        name = (claim.step_input or {}).get("function", claim.agent)
        log.warning("%s: no function is registered for the step %s", claim.run, name)
        await self.runtime.store.aio.release(claim, reason="yielded")
        await self._pause(self.poll)
        return "released"

    async def _let_go(self, claim: Claim) -> str:
        """Gives a step back whose attempt ended in an error of ours; else it is claimed when its lease is
        over."""
        try:
            await self.runtime.store.aio.release(claim, reason="yielded")
        except HoldfastError:
            return "lost"
        await self._pause(self.poll)
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
            log.warning("%s: no heartbeat: %s", claim.run, error)
            return
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
