"""The gateway: tools, hooks and a policy over a store, and calls that go through them."""

from __future__ import annotations

import asyncio
import inspect
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypeVar, overload

from holdfast import _core
from holdfast.errors import HoldfastError
from holdfast.gateway import bodies
from holdfast.gateway.hooks import Hook, Observer, Subject, spec_of
from holdfast.gateway.outcomes import NoEffect, Stopped, Suspended
from holdfast.gateway.passage import Asked, Commit, Passenger, Pause, Run, unknown_tool
from holdfast.gateway.policy import Policy
from holdfast.gateway.tools import Approval, Effect, Options, Risk, Tool, refuse
from holdfast.store.commands import human

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping
    from pathlib import Path

    from holdfast.gateway.hooks import Failure, Overflow, Point, Privacy
    from holdfast.gateway.outcomes import Keyed
    from holdfast.gateway.passage import Way
    from holdfast.store import Claim, Store

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


@dataclass(frozen=True)
class Evaluator:
    """A function that may make a decision stricter."""

    body: Callable[[Subject], Any]
    timeout: float

    @property
    def is_async(self) -> bool:
        """Whether its body is a coroutine."""
        return inspect.iscoroutinefunction(self.body)


class Gateway:
    """The door that calls go through: hooks, policy, people, the budget and the ledger, in that order.

    Nothing that a call does to the world begins before the store has written down, durably, what allows it.

    Args:
        store: where it is written.
        policy: a policy, the path of a TOML file or its parsed content; it becomes the store's active
            policy. Without one the active policy stays what it is.
        by: who activates the policy.
    """

    def __init__(
        self,
        store: Store,
        *,
        policy: Policy | Mapping[str, Any] | str | Path | None = None,
        by: str = "holdfast",
    ) -> None:
        self.store = store
        self.tools: dict[str, Tool[Any, Any]] = {}
        self.hooks: dict[str, Hook] = {}
        self.evaluators: dict[str, Evaluator] = {}
        self.core_hooks = _core.Hooks([])
        self._observers: dict[str, Observer] = {}
        if policy is not None:
            self.activate(policy, by=by)

    def activate(self, policy: Policy | Mapping[str, Any] | str | Path, *, by: str) -> str:
        """Makes a policy the store's active one and returns its digest; the same again changes nothing."""
        found = policy if isinstance(policy, Policy) else Policy.load(policy)
        return _core.activate_policy(self.store._core, human(by), found.core())

    # Registration.

    @overload
    def tool(self, function: Callable[P, R], /) -> Tool[P, R]: ...
    @overload
    def tool(
        self,
        /,
        *,
        effect: Effect = ...,
        risk: Risk = ...,
        approval: Approval = ...,
        name: str | None = ...,
        version: str = ...,
        timeout: float = ...,
        attempts: int | None = ...,
        idempotent: Keyed | None = ...,
        reconcile: Callable[..., Any] | None = ...,
        compensate: Callable[..., Any] | None = ...,
        description: str | None = ...,
    ) -> Callable[[Callable[P, R]], Tool[P, R]]: ...
    def tool(self, function: Callable[..., Any] | None = None, /, **options: Any) -> Any:
        """Registers a function as a tool. ``effect=`` says what it does to the world, and is required.

        Args:
            function: the function.
            options: ``effect`` (``pure``, ``read`` or ``write``), ``risk``, ``approval`` (``never``,
                ``policy`` or ``always``), ``name``, ``version``, ``timeout`` in seconds, ``attempts``, and
                how a write is protected: ``idempotent=Keyed(ttl=..)``, ``reconcile=fn``, ``compensate=fn``.
        """

        def register(function: Callable[..., Any]) -> Tool[Any, Any]:
            if "effect" not in options:
                raise refuse("effect_required", f"the tool {function.__name__} does not say what it does")
            tool = Tool(function, Options(**options))
            if tool.name in self.tools:
                raise refuse("tool_exists", f"another tool is called {tool.name}")
            self.tools[tool.name] = tool
            return tool

        return register if function is None else register(function)

    def hook(
        self,
        point: Point,
        *,
        rights: tuple[str, ...] | list[str] = (),
        blocking: bool = True,
        failure: Failure = "deny",
        timeout: float = 0.25,
        name: str | None = None,
        phase: Literal["early", "normal", "late"] = "normal",
        order: int = 100,
        privacy: Privacy = "content_capture_allowed",
        queue: tuple[int, int] = (64, 4),
        overflow: Overflow = "drop_observe_only",
    ) -> Callable[[Callable[[Subject], Any]], Hook]:
        """Registers a function as a hook at a point, with the rights that it needs.

        A hook that blocks is waited for, at most ``timeout`` seconds; if it fails, ``failure`` says what
        happens. One that does not block only observes, from a queue of ``queue[0]`` places.
        """

        def register(body: Callable[[Subject], Any]) -> Hook:
            spec = spec_of(
                name or body.__name__,
                point,
                rights=tuple(rights),
                blocking=blocking,
                failure=failure,
                timeout=timeout,
                phase=phase,
                order=order,
                privacy=privacy,
                queue=queue,
                overflow=overflow,
            )
            hook = Hook(spec, body)
            self.core_hooks = _core.Hooks([spec, *(known.spec for known in self.hooks.values())])
            self.hooks[hook.id] = hook
            if not blocking:
                self._observers[hook.id] = Observer(hook)
            return hook

        return register

    def evaluator(
        self, *, name: str | None = None, timeout: float = 1.0
    ) -> Callable[[Callable[[Subject], Any]], Evaluator]:
        """Registers a function that returns ``"allow"``, ``"ask"`` or ``"deny"``; it can only tighten."""

        def register(body: Callable[[Subject], Any]) -> Evaluator:
            evaluator, called = Evaluator(body, timeout), name or body.__name__
            if called in self.evaluators:
                raise refuse("hook_exists", f"another evaluator is called {called}")
            self.evaluators[called] = evaluator
            return evaluator

        return register

    def observers(self, point: str) -> list[Observer]:
        """The observers of a point."""
        if not self._observers:
            return []
        return [self._observers[hook] for hook in self.core_hooks.observers(point)]

    # Calls.

    def _asked(
        self,
        claim: Claim,
        tool: Tool[..., Any] | str,
        key: str | None,
        reserve: Mapping[str, int] | None,
        arguments: Mapping[str, object],
    ) -> Asked:
        found = self.tools.get(tool) if isinstance(tool, str) else tool
        if found is None:
            raise unknown_tool(str(tool))
        return Asked(claim, found, found.check(arguments), key, reserve)

    def call(
        self,
        claim: Claim,
        tool: Tool[..., R] | str,
        /,
        *,
        key: str | None = None,
        reserve: Mapping[str, int] | None = None,
        **arguments: object,
    ) -> R:
        """Makes a call under a claim, and returns what the tool returned, now or before.

        Args:
            claim: the step that it belongs to.
            tool: a tool of this gateway, or its name.
            key: what the call is known by in its run. Made again under the same key it is the same call:
                what was recorded is returned, and nothing happens twice.
            reserve: what it may use of the run's budget, by account.
            arguments: the tool's.

        Raises:
            Denied: a hook, a rule or a person said no.
            EffectFailed: it happened and failed.
            NoEffect: it did not happen.
            Suspended: it waits for somebody; park the step with :meth:`holdfast.Store.wait`.
        """
        asked = self._asked(claim, tool, key, reserve, arguments)
        return drive(self.store, Passenger(self, asked).go())  # type: ignore[no-any-return]

    async def acall(
        self,
        claim: Claim,
        tool: Tool[..., Any] | str,
        /,
        *,
        key: str | None = None,
        reserve: Mapping[str, int] | None = None,
        **arguments: object,
    ) -> Any:  # noqa: ANN401 (the tool says what it is)
        """The same for asyncio. Cancelling it never cancels the body of a write, which settles first."""
        asked = self._asked(claim, tool, key, reserve, arguments)
        return await adrive(self.store, Passenger(self, asked).go())

    def attempt(self, claim: Claim, body: Callable[[Step], Any]) -> str:
        """Runs a step's work and ends the claim by what came of it: ``completed``, ``waiting`` or ``failed``.

        Work that must wait is parked without a process; a worker that claims the step again runs it from the
        top, and calls that were made are served from the journal.
        """
        step = Step(self, claim)
        try:
            result = body(step)
        except Suspended as suspended:
            return self._park(claim, suspended)
        except Stopped as stopped:
            self.store.fail(claim, str(stopped), retryable=False)
            return "failed"
        except Exception as error:
            self.store.fail(claim, error, retryable=not isinstance(error, HoldfastError))
            return "failed"
        self.store.finish(claim, result=result)
        return "completed"

    def _park(self, claim: Claim, suspended: Suspended) -> str:
        try:
            self.store.wait(claim, [suspended.wait])
        except HoldfastError as error:
            if error.code != "wait_over":
                raise
            self.store.release(claim, reason="yielded")  # it came meanwhile: the next claim goes on
        return "waiting"


@dataclass(frozen=True)
class Step:
    """A step's work in :meth:`Gateway.attempt`: its claim, and the calls that it makes."""

    gateway: Gateway
    claim: Claim

    def call(self, tool: Tool[..., R] | str, /, *, key: str, **arguments: Any) -> R:  # noqa: ANN401
        """See :meth:`Gateway.call`."""
        return self.gateway.call(self.claim, tool, key=key, **arguments)


def drive(store: Store, way: Way) -> Any:  # noqa: ANN401 (the tool says what it is)
    """Does what a passage asks for, in this thread and those of bodies."""
    core = store._core

    def do(asked: Commit | Run | Pause) -> object:
        if isinstance(asked, Commit):
            return core.run(asked.call)
        if isinstance(asked, Run):
            return bodies.run(asked.body, asked.timeout, is_async=asked.is_async)
        return threading.Event().wait(asked.seconds)

    try:
        asked = next(way)
        while True:
            try:
                done = do(asked)
            except Exception as error:
                asked = way.throw(error)
            else:
                asked = way.send(done)
    except StopIteration as end:
        return end.value


async def _to_the_end(work: Coroutine[Any, Any, T]) -> tuple[T, asyncio.CancelledError | None]:
    """Waits for work whatever happens, and says whether it was to be cancelled meanwhile."""
    cancelled: asyncio.CancelledError | None = None
    task = asyncio.ensure_future(work)
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cancelled = error
    return task.result(), cancelled


async def adrive(store: Store, way: Way) -> Any:  # noqa: ANN401 (the tool says what it is)
    """The same on an event loop, which never waits for the disk or for a body.

    A cancellation is heard at once by hooks and reads. What was sent to the store or into the world is
    waited for first, so that the journal knows; a write that has not begun by then does not begin.
    """
    cancelled: asyncio.CancelledError | None = None

    async def do(asked: Commit | Run | Pause) -> object:
        nonlocal cancelled
        heard: asyncio.CancelledError | None = None
        if isinstance(asked, Pause):
            await asyncio.sleep(asked.seconds)
            return None
        if isinstance(asked, Commit):
            try:
                done, heard = await _to_the_end(store.aio.run(asked.call))
            finally:
                cancelled = cancelled or heard
            return done
        if cancelled is not None:
            return bodies.Ran(error=NoEffect("cancelled before it began"))
        body = bodies.arun(asked.body, asked.timeout, is_async=asked.is_async)
        if not asked.settles:
            return await body
        ran, heard = await _to_the_end(body)
        cancelled = cancelled or heard
        return ran

    try:
        asked = next(way)
        while True:
            try:
                done = await do(asked)
            except Exception as error:
                asked = way.throw(error)
            else:
                asked = way.send(done)
    except StopIteration as end:
        if cancelled is not None:
            raise cancelled from None
        return end.value
    except BaseException as error:
        if cancelled is not None:
            raise cancelled from error
        raise
