"""One attempt at a claimed step: its agent is run under a conductor, between the hooks of its run, and the
claim is ended by what came of it.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import logging
from typing import TYPE_CHECKING, Any

from holdfast import _core
from holdfast.errors import CanonicalError, CommandError, HoldfastError, RecordError
from holdfast.gateway import bodies, hooks, points
from holdfast.gateway.attempts import ENDED
from holdfast.gateway.courier import Courier
from holdfast.gateway.outcomes import Denied, OutcomeError, Stopped
from holdfast.gateway.shapes import ToolError
from holdfast.runtime import lanes, sync
from holdfast.runtime.agents import AgentError, Fatal
from holdfast.runtime.conductor import LOST, Conductor
from holdfast.runtime.context import Context
from holdfast.runtime.ends import Cancelled, Diverged, Ended, Lost, Returned, Shutdown, TimedOut, Waits
from holdfast.secrets import scrubbed
from holdfast.store.commands import failure, payload

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from holdfast.gateway import Gateway
    from holdfast.gateway.way import Way
    from holdfast.runtime.agents import Agent
    from holdfast.runtime.runtime import Runtime
    from holdfast.store import Claim

Json = dict[str, Any]
WAITS_MAX = 1024
"""As in the core's limits."""
UNWIND = 5.0
"""Seconds that agent code has to unwind once its attempt has ended; what is left of it can do nothing."""
log = logging.getLogger("holdfast.runtime")


class Attempt:
    """A claimed step at work."""

    makes: type[Context] = Context
    """What agent code acts through."""

    def __init__(self, runtime: Runtime, claim: Claim, agent: Agent[..., Any]) -> None:
        self.runtime = runtime
        self.claim = claim
        self.agent = agent
        self.store = runtime.store
        self.conductor: Conductor | None = None
        self.left: str | None = None
        """The run's status after the newest of what the journal was told."""

    # Who asks hooks.

    @property
    def gateway(self) -> Gateway:
        """Whose hooks are asked."""
        return self.runtime.gateway

    @property
    def claimed(self) -> Claim:
        """The claim that they are asked under."""
        return self.claim

    def seen(self, point: str, value: object) -> hooks.Subject:
        """What hooks are shown."""
        return hooks.Subject(point, "", self.claim.run, self.claim.agent, value, self.claim.step)

    async def _asks(self, point: str, subject: Mapping[str, Any], *, ended: bool = False) -> Json:
        if not self.runtime.hears(point):
            return points.GO
        return await self._drive(points.asked(self, point, subject, ended=ended))  # type: ignore[no-any-return]

    async def _drive(self, way: Way) -> Any:  # noqa: ANN401
        done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        def heard(value: object, error: BaseException | None) -> None:
            if done.done():
                return
            if error is None:
                done.set_result(value)
            else:
                done.set_exception(error)

        Courier(self.store, way, heard).go()
        return await asyncio.shield(done)

    async def _tell(self, command: Json, durability: str) -> None:
        claim = self.claim
        whole = {**command, "claim": claim.core()}
        told = await self.store.aio.run(_core.Call.command(claim.run, claim.by(), whole, durability))
        self.left = told[4]

    # From the claim to its end.

    async def run(self) -> str:
        """Runs it: ``completed``, ``failed``, ``waiting``, ``cancelled``, ``released`` or ``lost``."""
        try:
            came_to = await self._run()
        except CommandError as error:
            if error.code == "cancel_requested":
                came_to = await self._confirm_cancel()
            elif error.code in LOST:
                return "lost"
            else:
                raise
        if self.runtime.hears("after_run_terminal") and self._ended_run():
            await self._asks("after_run_terminal", {"status": came_to}, ended=True)
        return came_to

    def _ended_run(self) -> bool:
        return self.left in ENDED or self.runtime.status_of(self.claim.run) in ENDED

    async def _run(self) -> str:
        claim = self.claim
        ruled = await self._asks("run_starting", {"agent": claim.agent, "attempt": claim.attempt})
        if ruled["act"] != "go":
            return await self._ruled(ruled)
        conductor = Conductor(
            self,
            suspend_grace=self.runtime.suspend_grace,
            replay_grace=self.runtime.replay_grace,
        )
        self.conductor = conductor
        context = self.makes(self.runtime, claim, conductor)
        context.injected.extend(ruled["context"])
        try:
            main = self._begin(context)
        except Exception as error:  # the run's input is not what the agent takes
            return await self._fail(error, retryable=False)
        main.add_done_callback(lambda _: conductor.returned())
        limit = self._limited(conductor)
        try:
            end = await conductor.quiet_end()
        except asyncio.CancelledError:
            end = Shutdown()
            conductor.close(end)
        finally:
            if limit is not None:
                limit.cancel()
        if end is None:
            divergence = conductor.player.end()
            end = Diverged(divergence) if divergence is not None else None
        conductor.close(Returned() if end is None else end)
        await self._unwind(conductor, context, main)
        if end is None and conductor.doubts:
            end = Waits(list(conductor.doubts.values()))  # a step never ends with an open write
        return await self._finish(context, main) if end is None else await self._ended(end)

    def _limited(self, conductor: Conductor) -> asyncio.TimerHandle | None:
        """Ends an attempt that hangs, though its heart beats, when its step's time is over."""
        limit = self.claim.timeout_ms
        if limit is None:
            return None
        return conductor.loop.call_later(limit / 1000, lambda: conductor.close(TimedOut(limit)))

    def _begin(self, context: Context) -> asyncio.Future[Any]:
        value = self.claim.step_input["arguments"] if self.claim.step_input else self.claim.input
        arguments = self.agent.bound(value)
        if not self.agent.is_async:
            return sync.in_thread(context, self.agent.function, arguments, self.agent.context_as)
        conductor = context._conductor
        lanes.watch(conductor.loop)
        inside = contextvars.copy_context()
        inside.run(bodies.INSIDE.set, True)
        inside.run(lanes.CURRENT.set, conductor.lane)
        coroutine = _tamed(self.agent.function, {self.agent.context_as: context, **arguments})
        task: asyncio.Task[Any] = asyncio.Task(coroutine, loop=conductor.loop, context=inside)
        conductor.tasks.add(task)
        return task

    async def _unwind(self, conductor: Conductor, context: Context, main: asyncio.Future[Any]) -> None:
        """What agent code left behind is cancelled, bodies and commits of the attempt end, cleanups run."""
        tasks = {task for task in conductor.tasks if not task.done()}
        for task in tasks:
            task.cancel()
        conductor.forget()
        left = {*tasks, main} if not main.done() else tasks
        if left:
            _, left = await asyncio.wait(left, timeout=UNWIND)
        if left:
            told = "%s: agent code goes on after its attempt has ended"
            log.warning(told, self.claim.run, extra=self.claim.about())
        if main.done() and not main.cancelled():
            main.exception()
        await conductor.settled()
        for cleanup in reversed(context._cleanups):
            try:
                done = cleanup()
                if inspect.isawaitable(done):
                    await done
            except BaseException:
                log.exception("%s: a cleanup failed", self.claim.run, extra=self.claim.about())

    # What the journal is told.

    async def _finish(self, context: Context, main: asyncio.Future[Any]) -> str:
        try:
            result = main.result()
            told = scrubbed(self.agent.told(result))
            patch, version = context.left()
        except asyncio.CancelledError:
            error: BaseException = RuntimeError("agent code cancelled itself")
            return await self._fail(error, retryable=True)
        except Stopped as stopped:
            return await self._fail(stopped, retryable=False)
        except BaseException as error:
            if not isinstance(error, Exception):
                told = "%s: agent code raised %s"
                log.error(told, self.claim.run, type(error).__name__, extra=self.claim.about())
            return await self._fail(error, retryable=_retryable(error))
        ruled = await self._asks("before_run_complete", {"result": told})
        if ruled["act"] != "go":
            return await self._ruled(ruled)
        command: Json = {"command": "complete", "result": payload(told, "internal")}
        if patch:
            command |= {"expected_version": version, "patch": payload(patch, "internal")}
        try:
            await self._tell(command, "barrier")
        except HoldfastError as error:
            if isinstance(error, CommandError) and error.code in LOST | {"cancel_requested"}:
                raise
            return await self._fail(error, retryable=error.code == "state_conflict")
        return "completed"

    async def _fail(self, error: BaseException, *, retryable: bool) -> str:
        told, message = failure(error, retryable=retryable)
        command = {"command": "fail", "ended_by": ended_by(error)[:WAITS_MAX], "failure": told}
        try:
            await self._tell({**command, "message": payload(message, "internal")}, "barrier")
        except (CanonicalError, RecordError):  # something in it cannot be written down; that it failed can
            bare = {"error": "Error", "retryable": retryable, "source": "agent"}
            await self._tell({**command, "ended_by": [], "failure": bare}, "barrier")
        return "failed"

    async def _ended(self, end: Ended) -> str:
        match end:
            case Waits():
                return await self._park(list(end.waits))
            case Diverged():
                await self._tell({"command": "diverge", "divergence": end.divergence}, "barrier")
                return "waiting"
            case Cancelled():
                return await self._confirm_cancel()
            case Shutdown():
                await self._tell({"command": "release", "reason": "shutdown"}, "soon")
                return "released"
            case Lost():
                return "lost"
            case _:
                error = end.error or RuntimeError("the attempt was ended")
                return await self._fail(error, retryable=not isinstance(error, Stopped))

    async def _park(self, waits: list[Json]) -> str:
        try:
            await self._tell({"command": "wait", "waits": waits[:WAITS_MAX]}, "soon")  # any of them wakes it
        except CommandError as error:
            if error.code != "wait_over":
                raise
            await self._tell({"command": "release", "reason": "yielded"}, "soon")  # it came meanwhile
            return "released"
        return "waiting"

    async def _ruled(self, ruled: Mapping[str, Any]) -> str:
        """A hook has the last word about a run."""
        hook = ruled.get("hook")
        match ruled["act"]:
            case "interrupt":
                return await self._park([{"on": "interrupted"}])
            case "stop":
                await asyncio.to_thread(self.store.cancel, self.claim.run, by="holdfast")
                return await self._confirm_cancel()
            case "again":
                return await self._fail(RuntimeError(f"the hook {hook} wants it once more"), retryable=True)
            case _:
                return await self._fail(RuntimeError(f"the hook {hook} stops the run"), retryable=False)

    async def _confirm_cancel(self) -> str:
        await self._asks("on_run_cancel_requested", {"agent": self.claim.agent})
        await self._tell({"command": "confirm_cancel"}, "barrier")
        return "cancelled"


async def _tamed(function: Callable[..., Any], given: Json) -> Any:  # noqa: ANN401 (the agent says what it is)
    """What would end the whole program, had a loop to raise it, is an error of the agent."""
    try:
        return await function(**given)
    except (SystemExit, KeyboardInterrupt) as error:
        raise RuntimeError(f"agent code raised {type(error).__name__}") from error


def _retryable(error: BaseException) -> bool:
    """A refusal would come again, and code that says so too."""
    if isinstance(error, Fatal | Denied | ToolError | AgentError):
        return False
    if isinstance(error, HoldfastError) and not isinstance(error, OutcomeError):
        return error.code == "state_conflict"
    return True


def ended_by(error: BaseException) -> list[str]:
    """The calls whose outcomes an error came from: its own, its causes', contexts' and group members'."""
    found: dict[str, None] = {}
    left, seen = [error], set()
    while left:
        one = left.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        call = getattr(one, "call", None)
        if isinstance(one, HoldfastError) and isinstance(call, str) and call:
            found[call] = None
        left.extend(inner for inner in (one.__cause__, one.__context__) if inner is not None)
        if isinstance(one, BaseExceptionGroup):
            left.extend(one.exceptions)
    return list(found)
