"""The gateway: tools, hooks and a policy over a store, and calls that go through them."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, overload

from holdfast import _core
from holdfast.gateway import bodies, cancelling, hooks
from holdfast.gateway.attempts import Again, Step, aattempt, attempt
from holdfast.gateway.hooks import Hook, Observer, Subject
from holdfast.gateway.keys import parts
from holdfast.gateway.outcomes import Call, NoEffect
from holdfast.gateway.passage import Asked, Passenger, hidden, unknown_tool
from holdfast.gateway.people import outside
from holdfast.gateway.policy import Policy
from holdfast.gateway.shapes import Schemas
from holdfast.gateway.tools import Approval, Boxed, Effect, Options, Risk, Tool, refuse
from holdfast.gateway.undo import Undoing
from holdfast.gateway.watch import LOOKS_ON, WATCHED, News
from holdfast.gateway.way import Commit, Pause, Run
from holdfast.store.commands import human, package

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Mapping
    from pathlib import Path

    from holdfast.gateway.hooks import Failure, Overflow, Phase, Point, Privacy
    from holdfast.gateway.keys import Key
    from holdfast.gateway.outcomes import Keyed
    from holdfast.gateway.people import Request
    from holdfast.gateway.way import Way
    from holdfast.sandbox import Sandbox
    from holdfast.store import Claim, Store

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


@dataclass(frozen=True)
class Body:
    """A function that is asked something on the way, and how long it may take."""

    body: Callable[[Any], Any]
    timeout: float

    @cached_property
    def is_async(self) -> bool:
        """Whether its body is a coroutine."""
        return bodies.is_coroutine(self.body)


class Evaluator(Body):
    """A function that may make a decision stricter."""


class Approver(Body):
    """A function that tells people of a request, and may hand in what one of them said."""


class Gateway:
    """The door that calls go through: hooks, policy, people, the budget and the ledger, in that order.

    Nothing that a call does to the world begins before the store has written down, durably, what allows it.

    Args:
        store: where it is written.
        policy: a policy, the path of a TOML file or its parsed content; it becomes the store's active
            policy. Without one the active policy stays what it is.
        by: who activates the policy.
        sandbox: where the bodies of tools run that say ``sandbox="preferred"`` or ``"required"``.
    """

    def __init__(
        self,
        store: Store,
        *,
        policy: Policy | Mapping[str, Any] | str | Path | None = None,
        by: str = "holdfast",
        sandbox: Sandbox | None = None,
    ) -> None:
        if sandbox is not None:
            sandbox.check()
        self.store = store
        self.sandbox = sandbox
        self.tools: dict[str, Tool[Any, Any]] = {}
        self.hooks: dict[str, Hook] = {}
        self.evaluators: dict[str, Evaluator] = {}
        self.approvers: dict[str, Approver] = {}
        self.core_hooks = _core.Hooks([])
        self.changes = 0
        """How often something was registered or activated here: what the package depends on."""
        self._observers: dict[str, Observer] = {}
        self.is_watched = False
        """Whether somebody observes calls."""
        self.news = News()
        if policy is not None:
            self.activate(policy, by=by)

    def activate(self, policy: Policy | Mapping[str, Any] | str | Path, *, by: str) -> str:
        """Makes a policy the store's active one and returns its digest; the same again changes nothing."""
        outside()
        found = policy if isinstance(policy, Policy) else Policy.load(policy)
        self.changes += 1
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
        sandbox: Boxed = ...,
    ) -> Callable[[Callable[P, R]], Tool[P, R]]: ...
    def tool(self, function: Callable[..., Any] | None = None, /, **options: Any) -> Any:
        """Registers a function as a tool. ``effect=`` says what it does to the world, and is required.

        Args:
            function: the function.
            options: ``effect`` (``pure``, ``read`` or ``write``), ``risk``, ``approval`` (``never``,
                ``policy`` or ``always``), ``name``, ``version``, ``timeout`` in seconds, ``attempts``,
                ``sandbox`` (``none``, ``preferred`` or ``required``), and how a write is protected:
                ``idempotent=Keyed(ttl=..)``, ``reconcile=fn(call)``,
                ``compensate=fn(arguments, result, call)``.
        """

        def register(function: Callable[..., Any]) -> Tool[Any, Any]:
            if "effect" not in options:
                called = options.get("name") or bodies.called(function)
                raise refuse("effect_required", f"the tool {called} does not say what it does")
            return self._add(Tool(function, Options(**options)))

        return register if function is None else register(function)

    def foreign_tool(
        self,
        name: str,
        *,
        input_schema: Mapping[str, Any],
        output_schema: Mapping[str, Any] | None = None,
        **options: Any,  # noqa: ANN401
    ) -> Callable[[Callable[..., Any]], Tool[..., Any]]:
        """Registers a tool that comes from elsewhere, by its JSON Schemas.

        Its body takes ``arguments``, a dict, and ``call``. What its schemas say is checked on the way in and
        out; what its source says about effect and risk is yours to believe: ``effect=`` is required.
        """

        def register(function: Callable[..., Any]) -> Tool[..., Any]:
            if "effect" not in options:
                raise refuse("effect_required", f"the tool {name} does not say what it does")

            def body(arguments: dict[str, Any], call: Call) -> Any:  # noqa: ANN401
                return function(arguments, call)

            async def awaited(arguments: dict[str, Any], call: Call) -> Any:  # noqa: ANN401
                return await function(arguments, call)

            made = awaited if bodies.is_coroutine(function) else body
            made.__doc__ = function.__doc__
            return self._add(
                Tool(made, Options(name=name, **options), Schemas(name, input_schema, output_schema))
            )

        return register

    def _add(self, tool: Tool[Any, Any]) -> Tool[Any, Any]:
        undoing = None if tool.options.compensate is None else Undoing(tool)
        for new in (tool, *((undoing,) if undoing else ())):
            if new.name in self.tools:
                raise refuse("tool_exists", f"another tool is called {new.name}")
        self.changes += 1
        self.tools[tool.name] = tool
        if undoing is not None:
            self.tools[undoing.name] = undoing
        return tool

    def hook(
        self,
        point: Point,
        *,
        rights: tuple[str, ...] | list[str] = (),
        blocking: bool = True,
        failure: Failure = "deny",
        timeout: float = 0.25,
        name: str | None = None,
        phase: Phase = "normal",
        order: int = 100,
        privacy: Privacy = "content_capture_allowed",
        queue: tuple[int, int] = (64, 4),
        overflow: Overflow = "drop_observe_only",
    ) -> Callable[[Callable[[Subject], Any]], Hook]:
        """Registers a function as a hook at a point, with the rights that it needs.

        A hook that blocks is waited for, at most ``timeout`` seconds; if it fails, ``failure`` says what
        happens. One that does not block only observes, from a queue of ``queue[0]`` places, of which
        ``queue[1]`` are kept for the ends of calls and runs.
        """

        declare = hooks.hook(
            point,
            rights=rights,
            blocking=blocking,
            failure=failure,
            timeout=timeout,
            name=name,
            phase=phase,
            order=order,
            privacy=privacy,
            queue=queue,
            overflow=overflow,
        )
        return lambda body: self.add_hook(declare(body))

    def add_hook(self, hook: Hook) -> Hook:
        """Registers a hook that was declared before, by :func:`holdfast.hook`."""
        if not isinstance(hook, Hook):
            raise TypeError(f"{bodies.called(hook)} is no hook: declare one with hf.hook(point)(function)")
        self.core_hooks = _core.Hooks([hook.spec, *(known.spec for known in self.hooks.values())])
        self.hooks[hook.id] = hook
        self.changes += 1
        if hook.spec["execution"]["mode"] == "non_blocking":
            self._observers[hook.id] = Observer(hook)
            self.is_watched |= hook.spec["point"] in WATCHED
        return hook

    def evaluator(
        self, *, name: str | None = None, timeout: float = 1.0
    ) -> Callable[[Callable[[Subject], Any]], Evaluator]:
        """Registers a function that returns ``"allow"``, ``"ask"`` or ``"deny"``; it can only tighten."""

        def register(body: Callable[[Subject], Any]) -> Evaluator:
            evaluator, called = Evaluator(body, timeout), name or bodies.called(body)
            if called in (*self.evaluators, LOOKS_ON):
                raise refuse("hook_exists", f"another evaluator is called {called}")
            self.evaluators[called] = evaluator
            self.changes += 1
            return evaluator

        return register

    def approver(
        self, *, name: str | None = None, timeout: float = 30.0
    ) -> Callable[[Callable[[Request], Any]], Approver]:
        """Registers a function that tells people of a request for approval.

        It gets the request and returns nothing, or :class:`Approve` or :class:`Deny` with what a person said.
        One that fails, is late or is away releases nothing: the request stands, and the next attempt tells
        again.
        """

        def register(body: Callable[[Request], Any]) -> Approver:
            approver, called = Approver(body, timeout), name or bodies.called(body)
            if called in self.approvers:
                raise refuse("hook_exists", f"another approver is called {called}")
            self.approvers[called] = approver
            return approver

        return register

    def package(
        self, agent: str = "0", *, instructions: object = None, models: object = None
    ) -> dict[str, str]:
        """The fingerprint of what changes behaviour, part by part, for runs and claims.

        Args:
            agent: the agent's name and declared version.
            instructions: whatever it is told.
            models: aliases and parameters of the models that it uses.
        """

        def digest(part: object) -> str:
            return _core.canonical_digest(part, domain="holdfast/package/v1")

        active = _core.active_policy(self.store._core)
        tools: list[list[str]] = sorted(
            [tool.name, tool.options.version, tool.core.schema] for tool in self.tools.values()
        )
        hooks: list[Any] = sorted((hook.spec for hook in self.hooks.values()), key=lambda s: s["hook_id"])
        if self.sandbox is not None:
            tools.append(["sandbox", self.sandbox.tier])
        if self.evaluators:
            hooks.append({"evaluators": sorted(self.evaluators)})
        return package(
            {
                "agent": agent,
                "hooks": digest(hooks),
                "instructions": digest(instructions),
                "models": digest(models),
                "policy": digest(active and active[0]),
                "tools": digest(tools),
            }
        )

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
        arguments: Mapping[str, object],
        *,
        key: str | Key | None,
        reserve: Mapping[str, int] | None,
        capability: str | None,
    ) -> Asked:
        found = self.tools.get(tool) if isinstance(tool, str) else tool
        if found is None:
            raise unknown_tool(str(tool))
        declared, checked = found.shape.secrets, found.check(arguments)
        given, secrets = hidden(self.store._core, claim.run, declared, checked)
        name, shared_ms = parts(key)
        return Asked(claim, found, given, name, reserve, capability, secrets=secrets, key_shared_ms=shared_ms)

    def call(
        self,
        claim: Claim,
        tool: Tool[..., R] | str,
        /,
        *,
        key: str | Key | None = None,
        reserve: Mapping[str, int] | None = None,
        capability: str | None = None,
        **arguments: object,
    ) -> R:
        """Makes a call under a claim, and returns what the tool returned, now or before.

        Args:
            claim: the step that it belongs to.
            tool: a tool of this gateway, or its name.
            key: what the call is known by in its run. Made again under the same key it is the same call:
                what was recorded is returned, and nothing happens twice. :class:`holdfast.Key` makes it one
                of the whole store.
            reserve: what it may use of the run's budget, by account.
            capability: the one that it uses; without it, any that the run holds and that allows it.
            arguments: the tool's.

        Raises:
            Denied: a hook, a rule or a person said no.
            EffectFailed: it happened and failed.
            NoEffect: it did not happen.
            Suspended: it waits for somebody; park the step with :meth:`holdfast.Store.wait`.
        """
        asked = self._asked(claim, tool, arguments, key=key, reserve=reserve, capability=capability)
        return drive(self.store, Passenger(self, asked).go())  # type: ignore[no-any-return]

    def _call(
        self,
        claim: Claim,
        tool: Tool[..., Any],
        arguments: Mapping[str, object],
        *,
        key: str,
        redact: tuple[str, ...],
    ) -> Any:  # noqa: ANN401 (the tool says what it is)
        """A call of our own, of whose arguments nobody on the way is shown all."""
        asked = self._asked(claim, tool, arguments, key=key, reserve=None, capability=None)
        return drive(self.store, Passenger(self, replace(asked, redact=redact)).go())

    async def acall(
        self,
        claim: Claim,
        tool: Tool[..., Any] | str,
        /,
        *,
        key: str | Key | None = None,
        reserve: Mapping[str, int] | None = None,
        capability: str | None = None,
        **arguments: object,
    ) -> Any:  # noqa: ANN401 (the tool says what it is)
        """The same for asyncio. Cancelling it never cancels the body of a write, which settles first."""
        asked = self._asked(claim, tool, arguments, key=key, reserve=reserve, capability=capability)
        return await adrive(self.store, Passenger(self, asked).go())

    def compensate(self, claim: Claim, call: str, *, reason: str | None = None) -> Any:  # noqa: ANN401
        """Undoes a write of this step by its tool's ``compensate``, once, and returns what that returned.

        The undoing is a write of its own: it goes through hooks, policy and the ledger, and made again it is
        served. Only when it has succeeded is the call recorded as compensated.
        """
        return Undoing.undo(self, claim, call, reason)

    def cancel(self, run: str, *, by: str) -> None:
        """Asks a run to stop. May be asked again.

        Whoever works on it ends it, and asks the hooks of its end. Where nobody does it ends at once, and the
        hooks of this gateway are asked here.
        """
        cancelling.cancel(self, run, by)

    def attempt(self, claim: Claim, body: Callable[[Step], Any], *, again: Again = "scheduled") -> str:
        """Runs a step's work and ends the claim by what came of it: ``completed``, ``waiting``, ``failed`` or
        ``cancelled``.

        Work that must wait is parked without a process; a worker that claims the step again runs it from the
        top, and calls that were made are served from the journal.

        Args:
            claim: the step.
            body: its work.
            again: when work is tried again that failed and may be: ``scheduled`` after its backoff,
                ``on_demand`` when somebody claims it next, which may be at once, or ``never``.
        """
        return attempt(self, claim, body, again)

    async def aattempt(
        self, claim: Claim, body: Callable[[Step], Awaitable[Any]], *, again: Again = "scheduled"
    ) -> str:
        """The same for asyncio. Cancelled, it gives the step back once what has begun is settled."""
        return await aattempt(self, claim, body, again)


def drive(store: Store, way: Way) -> Any:  # noqa: ANN401 (the tool says what it is)
    """Does what a passage asks for, in this thread and those of bodies."""
    core = store._core

    def do(asked: Commit | Run | Pause) -> object:
        if isinstance(asked, Commit):
            return core.run(asked.call)
        if isinstance(asked, Run):
            try:
                return bodies.run(asked.body, asked.timeout, is_async=asked.is_async)
            except (KeyboardInterrupt, SystemExit) as error:
                # Whoever waits is interrupted, not the body: the journal hears that nobody knows.
                return bodies.Ran(error=error, over=False)
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


class _Abandoned(Exception):  # noqa: N818 (never leaves this module)
    """What was waited for was cancelled from elsewhere."""


def _tell(over: asyncio.Future[None], _: object) -> None:
    if not over.done():
        over.set_result(None)


async def _to_the_end(work: Coroutine[Any, Any, T]) -> tuple[T, asyncio.CancelledError | None]:
    """Waits for work whatever happens, and says whether it was to be cancelled meanwhile."""
    cancelled: asyncio.CancelledError | None = None
    task = asyncio.ensure_future(work)
    while not task.done():
        over: asyncio.Future[None] = task.get_loop().create_future()
        task.add_done_callback(partial(_tell, over))
        try:
            await over
        except asyncio.CancelledError as error:
            cancelled = error
    try:
        return task.result(), cancelled
    except asyncio.CancelledError:  # not by us: the loop is going down
        raise _Abandoned from None


async def adrive(store: Store, way: Way) -> Any:  # noqa: ANN401 (the tool says what it is)
    """The same on an event loop, which never waits for the disk or for a body.

    A cancellation is heard at once by hooks and reads. What was sent to the store or into the world is
    waited for first, so that the journal knows; a write that has not begun by then does not begin.
    """
    cancelled: asyncio.CancelledError | None = None
    at_once = store._core.is_memory  # nothing waits for a disk or a server, and a hop would cost more
    run = store._core.run

    async def do(asked: Commit | Run | Pause) -> object:
        nonlocal cancelled
        heard: asyncio.CancelledError | None = None
        if isinstance(asked, Pause):
            _, heard = await _to_the_end(asyncio.sleep(asked.seconds))
            cancelled = cancelled or heard
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
        try:
            ran, heard = await _to_the_end(body)
        except _Abandoned:  # its thread, if it has one, goes on
            ran, heard = bodies.Ran(error=asyncio.CancelledError(), over=False), None
        cancelled = cancelled or heard
        return ran

    try:
        asked = next(way)
        while True:
            try:
                done = run(asked.call) if at_once and isinstance(asked, Commit) else await do(asked)
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
