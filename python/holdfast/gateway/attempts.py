"""One attempt at a step's work, with the hooks of its run around it, and what it comes to."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from holdfast import _core
from holdfast.errors import CommandError, HoldfastError, StoreError
from holdfast.gateway import bodies, children, hooks, points
from holdfast.gateway.outcomes import NoEffect, Stopped, Suspended
from holdfast.gateway.way import Commit
from holdfast.secrets import scrubbed
from holdfast.store import asks

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from holdfast.gateway.driver import Gateway
    from holdfast.gateway.keys import Key
    from holdfast.gateway.tools import Tool
    from holdfast.gateway.way import Way
    from holdfast.store import Claim

R = TypeVar("R")

Again = Literal["scheduled", "on_demand", "never"]
"""When work that failed, and may be tried again, is: by a worker after its backoff, by whoever asks next, or
by nobody."""
ENDED = frozenset(("completed", "failed", "cancelled"))


@dataclass(frozen=True)
class Done:
    """What a step's work returned."""

    result: Any


@dataclass(frozen=True)
class Step:
    """A step's work in :meth:`Gateway.attempt`: its claim, and the calls that it makes."""

    gateway: Gateway
    claim: Claim
    context: list[Any] = field(default_factory=list)
    """What hooks put in when the run was starting."""

    @property
    def claimed(self) -> Claim:
        """The claim that it is made under."""
        return self.claim

    def call(self, tool: Tool[..., R] | str, /, *, key: str | Key, **arguments: Any) -> R:  # noqa: ANN401
        """See :meth:`Gateway.call`."""
        return self.gateway.call(self.claim, tool, key=key, **arguments)

    async def acall(self, tool: Tool[..., Any] | str, /, *, key: str | Key, **arguments: Any) -> Any:  # noqa: ANN401
        """See :meth:`Gateway.acall`."""
        return await self.gateway.acall(self.claim, tool, key=key, **arguments)

    def compensate(self, call: str, *, reason: str | None = None) -> Any:  # noqa: ANN401
        """See :meth:`Gateway.compensate`."""
        return self.gateway.compensate(self.claim, call, reason=reason)

    def spawn(
        self,
        agent: str,
        input: object = None,
        *,
        key: str,
        escrow: Mapping[str, int] | None = None,
        on_parent_end: children.OnParentEnd = "end",
        capabilities: Sequence[Mapping[str, Any]] | None = None,
    ) -> str:
        """Spawns a child, once under its key, and returns its id.

        Args:
            agent: whose work it is.
            input: any JSON value.
            key: what the child is known by in this run.
            escrow: what leaves this run's budget for it; what it does not use comes back.
            on_parent_end: whether it ends with this run or is handed on.
            capabilities: all that it may reach. Children of a restricted run reach nothing until it hands
                them something that it holds (:meth:`Capabilities.transfer`).
        """
        return children.spawn(
            self,
            agent,
            input,
            key=key,
            escrow=escrow,
            on_parent_end=on_parent_end,
            capabilities=capabilities,
        )

    def join(self, child: str) -> Any:  # noqa: ANN401 (the child says what it is)
        """What a child came to; the step waits while it runs. A child that failed raises ``EffectFailed``."""
        return children.join(self, child)

    def seen(self, point: str, value: object) -> hooks.Subject:
        """What hooks are shown."""
        return hooks.Subject(point, "", self.claim.run, self.claim.agent, value, self.claim.step)

    def asks(self, point: str, subject: Mapping[str, Any]) -> dict[str, Any]:
        """What the hooks of a point of the run come to."""
        from holdfast.gateway.driver import drive

        ruled = drive(self.gateway.store, points.asked(self, point, subject))
        assert isinstance(ruled, dict)
        return ruled


def attempt(gateway: Gateway, claim: Claim, body: Callable[[Step], Any], again: Again = "scheduled") -> str:
    """Runs a step's work between the hooks of its run, and ends the claim by what came of it."""
    from holdfast.gateway.driver import drive

    step, store = Step(gateway, claim), gateway.store
    try:
        came_to = drive(store, _starting(step))
        if came_to is None:
            came_to = drive(store, _ended(step, _worked(step, body), again))
    except CommandError as error:
        came_to = drive(store, _unheld(step, error))
    drive(store, _over(step, came_to))
    return str(came_to)


async def aattempt(
    gateway: Gateway, claim: Claim, body: Callable[[Step], Awaitable[Any]], again: Again = "scheduled"
) -> str:
    """The same on an event loop. Cancelled, it gives the step back once what has begun is settled."""
    from holdfast.gateway.driver import adrive

    step, store = Step(gateway, claim), gateway.store
    try:
        try:
            came_to = await adrive(store, _starting(step))
            if came_to is None:
                came_to = await adrive(store, _ended(step, await _aworked(step, body), again))
        except CommandError as error:
            came_to = await adrive(store, _unheld(step, error))
        await adrive(store, _over(step, came_to))
    except asyncio.CancelledError as error:
        with suppress(HoldfastError, asyncio.CancelledError):  # it has ended, or is another's by now
            await adrive(store, _left(step, error, again))
        raise
    return str(came_to)


def _worked(step: Step, body: Callable[[Step], Any]) -> Done | BaseException:
    """What the work came to: its result, or what a step can be ended by."""
    inside = bodies.INSIDE.set(True)
    try:
        return Done(body(step))
    except (CommandError, StoreError):
        raise  # the step is another's by now, or the store takes nothing
    except (Exception, Suspended, Stopped) as error:
        return error
    finally:
        bodies.INSIDE.reset(inside)


async def _aworked(step: Step, body: Callable[[Step], Awaitable[Any]]) -> Done | BaseException:
    inside = bodies.INSIDE.set(True)
    try:
        return Done(await body(step))
    except (CommandError, StoreError):
        raise
    except (Exception, Suspended, Stopped) as error:
        return error
    finally:
        bodies.INSIDE.reset(inside)


def _starting(step: Step) -> Way:
    """Asks the hooks; None when the work may begin, else what the step came to."""
    claim = step.claim
    ruled = yield from points.asked(step, "run_starting", {"agent": claim.agent, "attempt": claim.attempt})
    step.context.extend(ruled["context"])
    return None if ruled["act"] == "go" else (yield from _stopped(step, ruled))


def _ended(step: Step, done: Done | BaseException, again: Again) -> Way:
    """Ends the claim by what its work came to."""
    core, claim = step.gateway.store._core, step.claim
    if isinstance(done, Done):
        ruled = yield from points.asked(step, "before_run_complete", {"result": done.result})
        if ruled["act"] != "go":
            return (yield from _stopped(step, ruled))
        yield from _says(asks.finish(core, claim, result=scrubbed(done.result)))
        return "completed"
    if isinstance(done, Suspended):
        return (yield from _parked(step, done.wait))
    if isinstance(done, Stopped):
        yield from _says(asks.fail(core, claim, str(done), retryable=False))
        return "failed"
    # A refusal or a failed effect would come again; what did not happen may be tried.
    final = isinstance(done, HoldfastError) and not isinstance(done, NoEffect)
    if again == "on_demand" and not final:
        yield from _says(asks.release(core, claim, reason="yielded"))
    else:
        yield from _says(asks.fail(core, claim, done, retryable=not final and again != "never"))
    return "failed"


def _left(step: Step, error: BaseException, again: Again) -> Way:
    """Whoever drove it was cancelled: another may have the step, unless nobody else ever will."""
    core, claim = step.gateway.store._core, step.claim
    if again == "never":
        yield from _says(asks.fail(core, claim, error, retryable=False))
    else:
        yield from _says(asks.release(core, claim, reason="yielded"))


def _over(step: Step, came_to: str) -> Way:
    """Hooks hear of a run that has ended."""
    gateway, run = step.gateway, step.claim.run
    heard = any(hook.spec["point"] == "after_run_terminal" for hook in gateway.hooks.values())
    if heard and gateway.store.state(run)["phase"] in ENDED:
        yield from points.asked(step, "after_run_terminal", {"status": came_to}, ended=True)


def _unheld(step: Step, error: CommandError) -> Way:
    """A command that was refused: somebody wants the run to end, or the step is another's by now."""
    if error.code != "cancel_requested":
        raise error  # there is nobody to tell
    return (yield from _cancelled(step))


def _stopped(step: Step, ruled: Mapping[str, Any]) -> Way:
    """A hook has the last word about a run."""
    core, claim, hook = step.gateway.store._core, step.claim, ruled.get("hook")
    match ruled["act"]:
        case "interrupt":
            return (yield from _parked(step, {"on": "interrupted"}))
        case "stop":
            yield from _says(asks.cancel(core, claim.run, by="holdfast"))
            return (yield from _cancelled(step))
        case "again":
            yield from _says(asks.fail(core, claim, f"the hook {hook} wants it once more", retryable=True))
        case _:
            yield from _says(asks.fail(core, claim, f"the hook {hook} stops the run", retryable=False))
    return "failed"


def _parked(step: Step, wait: Mapping[str, Any]) -> Way:
    core, claim = step.gateway.store._core, step.claim
    try:
        yield from _says(asks.wait(core, claim, [wait]))
    except HoldfastError as error:
        if error.code != "wait_over":
            raise
        # It came meanwhile: the next claim goes on.
        yield from _says(asks.release(core, claim, reason="yielded"))
    return "waiting"


def _cancelled(step: Step) -> Way:
    """Somebody wants the run to end: hooks hear of it, and cannot keep it from doing so."""
    claim = step.claim
    yield from points.asked(step, "on_run_cancel_requested", {"agent": claim.agent})
    command = {"claim": claim.core(), "command": "confirm_cancel"}
    yield Commit(_core.Call.command(claim.run, claim.by(), command, "barrier"))
    return "cancelled"


def _says(asked: asks.Asked[None]) -> Way:
    """A command of the store."""
    assert asked.call is not None
    yield Commit(asked.call)
