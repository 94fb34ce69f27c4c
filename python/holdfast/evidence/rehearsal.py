"""Agent code run again against what was recorded, and against nothing else.

The same conductor that resumes runs drives it, with the same matching and the same order of outcomes. What is
left out is everything that acts: a call gets its recorded outcome or none, no body, hook, approver or cleanup
is called, and the store that it has takes no command.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from holdfast import _core
from holdfast.errors import CommandError, HoldfastError, RecordError
from holdfast.gateway.courier import Courier
from holdfast.gateway.outcomes import EffectFailed, fix
from holdfast.gateway.passage import Asked, Passenger, given
from holdfast.runtime.attempt import Attempt
from holdfast.runtime.conductor import Conductor
from holdfast.runtime.context import Context
from holdfast.runtime.ends import Diverged, Ended, Returned, Waits
from holdfast.runtime.operations import Governed, Own, Spawn
from holdfast.secrets import scrubbed
from holdfast.store.aio import AsyncStore
from holdfast.store.commands import failure
from holdfast.store.door import Store

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.evidence.fold import Entry
    from holdfast.gateway.way import Way
    from holdfast.runtime.agents import Agent
    from holdfast.runtime.operations import Operation
    from holdfast.runtime.runtime import Runtime
    from holdfast.store import Claim

Json = dict[str, Any]
NEVER = (1 << 53) - 1
"""When a timer fires that never fired."""


@dataclass(frozen=True)
class Unrecorded(Ended):
    """The code asks for something that the journal does not have."""

    operation: Any = None


@dataclass(frozen=True)
class Unreadable(Ended):
    """The journal has it, and its content is gone."""

    call: str = ""


class _GoneError(RecordError):
    """A recorded outcome whose content is gone."""


def _refuse() -> HoldfastError:
    return RecordError("a replay writes nothing", code="read_only_store", fix=fix("read_only_store"))


class _Deaf(AsyncStore):
    def _led(self, call: _core.Call) -> asyncio.Future[Any]:  # noqa: ARG002
        raise _refuse()


class Reading(Store):
    """A store as a replay sees it: it can be read, and takes no command."""

    def __init__(self, store: Store) -> None:
        super().__init__(store._core, store.url, store.clock)
        self.aio = _Deaf(store._core)

    def _run(self, call: _core.Call) -> Any:  # noqa: ANN401, ARG002
        raise _refuse()

    def put_blob(self, *_: object, **__: object) -> dict[str, Any]:
        """Refused."""
        raise _refuse()


class Prompter(Conductor):
    """A conductor that gives recorded outcomes, and has nothing done.

    Attributes:
        heard: the recorded calls that agent code has asked for.
        asked: the newest arguments of what it asked for, by kind, name and lane.
        outcomes: of the recorded calls, those that have one.
        performed: what the runs that this one was forked from have done: a fork is refused that.
        pure: whether bodies of tools that declare no effect at all are run: they leave no record.
    """

    def __init__(
        self, attempt: Rehearsal, grace: float, outcomes: set[str], performed: set[bytes], *, pure: bool
    ) -> None:
        super().__init__(attempt, suspend_grace=min(grace, attempt.runtime.suspend_grace), replay_grace=grace)
        self.heard: set[str] = set()
        self.asked: dict[tuple[str, str, str], Any] = {}
        self.outcomes = outcomes
        self.performed = performed
        self.pure = pure

    def ask(self, operation: Operation) -> asyncio.Future[Any]:
        """Remembers what was asked for: a divergence shows it."""
        self.asked[(operation.kind, operation.name, operation.lane)] = operation.arguments
        return super().ask(operation)

    def _recorded(self, operation: Operation, what: str) -> None:
        self.heard.add(operation.call)
        super()._recorded(operation, what)

    def _launch(self, operation: Operation) -> None:
        """Where it would be made, it gets what was recorded; without that it waits, or everything ends."""
        self._operations[operation.call] = operation
        if operation.recorded and operation.call in self.outcomes:
            return self._under_way(operation, self._serves(operation))
        if operation.recorded:
            operation.wait = {"call": operation.call, "on": operation.name, "until": NEVER}
            self._waiting[operation.call] = operation
            return None
        if self.pure and operation.effect == "pure" and isinstance(operation, Governed):
            asked = Asked(operation.claim, operation.tool, operation.arguments, secrets=operation.secrets)
            return self._under_way(operation, Passenger(operation.gateway, asked)._pure(operation.arguments))
        if operation.effect == "write" and identity(operation) in self.performed:
            return self._under_way(operation, _repeats())  # it was refused then, too, and that left no record
        return self.close(Unrecorded(operation=operation))

    def _under_way(self, operation: Operation, way: Way) -> None:
        self._running += 1
        operation.running = True
        Courier(self.store, way, lambda value, error: self._ended(operation, value, error)).go()

    def _serves(self, operation: Operation) -> Way:
        served, committed = _core.call_outcome(self.core, self.claim.run, operation.call)
        erased = committed is not None and committed["patch"] is None and served["outcome"] == "succeeded"
        if served.get("erased") or erased:
            raise _GoneError(operation.call, code="content_erased", fix=fix("content_erased"))
        if isinstance(operation, Governed):
            try:
                return given(operation.tool, operation.call, served)
            except EffectFailed as error:
                if error.code != "compensated":
                    raise
                return operation.undone(self, error)
        if isinstance(operation, Spawn):
            return self.child_of(operation.call)
        assert isinstance(operation, Own)
        return operation.result(operation, served, committed)
        yield  # a way, like the others

    def _failed(self, error: BaseException) -> bool:
        if isinstance(error, _GoneError):
            self.close(Unreadable(call=str(error.args[0])))
            return True
        return super()._failed(error)

    def _note(self, command: Json) -> None:  # noqa: ARG002
        """That an await was cancelled is not written down once more."""
        self._wake()


@dataclass(frozen=True)
class Came:
    """What the code of a step came to when it was run again.

    Attributes:
        end: what ended it; None if the code came to its own end.
        result: as JSON, if it returned.
        error: its error, as a record would hold it, if it raised.
        patch: what its end would commit.
        heard: the recorded calls that it asked for.
        asked: the newest arguments of what it asked for, by kind, name and lane.
    """

    end: Ended | None
    result: Any = None
    error: Json | None = None
    patch: Json | None = None
    heard: frozenset[str] = frozenset()
    asked: Mapping[tuple[str, str, str], Any] = field(default_factory=dict)


class Rehearsal(Attempt):
    """An attempt at a step that has been made before."""

    def __init__(
        self, runtime: Runtime, claim: Claim, agent: Agent[..., Any], *, grace: float, injected: list[Any]
    ) -> None:
        super().__init__(runtime, claim, agent)
        self.store = Reading(runtime.store)
        self._grace = grace
        self._injected = injected

    async def rehearse(self, outcomes: set[str], performed: set[bytes], *, pure: bool) -> Came:
        """Runs the code, and says what it came to."""
        conductor = Prompter(self, self._grace, outcomes, performed, pure=pure)
        self.conductor = conductor
        context = Context(self.runtime, self.claim, conductor)
        context.injected.extend(self._injected)
        try:
            main = self._begin(context)
        except Exception as error:  # the run's input is not what this agent takes
            return Came(None, error=_told(error))
        main.add_done_callback(lambda _: conductor.returned())
        end = await conductor.quiet_end()
        if end is None:
            divergence = conductor.player.end()
            end = Diverged(divergence) if divergence is not None else None
        conductor.close(Returned() if end is None else end)
        context._cleanups.clear()  # they would act
        await self._unwind(conductor, context, main)
        heard = frozenset(conductor.heard)
        if end is not None:
            return Came(end, heard=heard, asked=conductor.asked)
        return self._came(context, main, heard)

    def _came(self, context: Context, main: asyncio.Future[Any], heard: frozenset[str]) -> Came:
        try:
            result = scrubbed(self.agent.told(main.result()))
            patch, _ = context.left()
        except asyncio.CancelledError:
            return Came(None, error=_told(RuntimeError("agent code cancelled itself")), heard=heard)
        except BaseException as error:
            return Came(None, error=_told(error), heard=heard)
        return Came(None, result=result, patch=patch, heard=heard)


def identity(call: Operation | Entry) -> bytes:
    """What a call is known by: its kind, its name and its arguments."""
    return _core.canonical_dumps([call.kind, call.name, call.arguments])


def _repeats() -> Way:
    told, code = "the run that this is a fork of has done it", "fork_would_repeat"
    raise CommandError(told, code=code, fix=fix(code))
    yield  # a way, like the others


def _told(error: BaseException) -> Json:
    told, message = failure(error, retryable=False)
    return {"code": told.get("code"), "error": told["error"], "message": message}


def waited(end: Ended) -> list[str]:
    """The recorded calls that the code was left waiting for."""
    return [str(wait["call"]) for wait in end.waits] if isinstance(end, Waits) else []
