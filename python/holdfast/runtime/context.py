"""The context: what agent code acts through. Everything that is not the same each time (tools, time, chance,
other runs) goes through it, is written down, and comes back from the journal when the code runs again.
"""

from __future__ import annotations

import asyncio
import copy
import uuid
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeVar, overload

from holdfast import _core
from holdfast.errors import HoldfastError
from holdfast.gateway.keys import of_run, parts
from holdfast.gateway.outcomes import Denied, fix
from holdfast.gateway.passage import hidden, unknown_tool
from holdfast.gateway.undo import planned
from holdfast.primitives import new_id
from holdfast.runtime import budgets, lanes, notes, tasks
from holdfast.runtime.conductor import Conductor, Heard
from holdfast.runtime.ends import Cancelled, Diverged
from holdfast.runtime.operations import Governed, Join, Operation, Own, Spawn, Undo, failed
from holdfast.values import to_json

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping

    from holdfast.gateway import Tool
    from holdfast.gateway.keys import Key
    from holdfast.gateway.tools import Effect, Risk
    from holdfast.runtime.agents import Agent
    from holdfast.runtime.runtime import Runtime
    from holdfast.store import Claim

R = TypeVar("R")
T = TypeVar("T")
Json = dict[str, Any]


class StateConflict(HoldfastError):  # noqa: N818 (agent code handles it by this name)
    """Another step has changed the state meanwhile.

    Attributes:
        call: the commit.
    """

    call: str | None = None


def derived(call: str, prefix: str) -> str:
    """An id that follows from a call's: the same in every attempt."""
    return f"{prefix}_{call.partition('_')[2]}"


class Child:
    """A run that this one has spawned."""

    def __init__(self, context: Context, run: str) -> None:
        self._context = context
        self.id = run

    async def result(self) -> Any:  # noqa: ANN401 (the child says what it is)
        """What it came to; the step waits meanwhile. A child that failed raises ``hf.EffectFailed``."""
        return await self._context._join(self.id)

    def __await__(self) -> Any:  # noqa: ANN401
        return self.result().__await__()

    def __repr__(self) -> str:
        return f"<Child {self.id}>"


class Context(notes.Notes):
    """What an agent acts through.

    Attributes:
        run: the run's id.
        state: the run's state, a plain dict; :meth:`commit` and the step's end write what has changed.
        attempt: which try of the step this is; do not branch on it.
        input: the run's input, by parameter.
        session, role: as the run has them.
    """

    def __init__(self, runtime: Runtime, claim: Claim, conductor: Conductor) -> None:
        self._runtime = runtime
        self._claim = claim
        self._conductor = conductor
        self.run = claim.run
        self.attempt = claim.attempt
        self.session = claim.session
        self.role = claim.role
        self.input = claim.input
        # The view is what delivered commits made; the version is that of the newest one, delivered or not.
        self._view, _, conductor.version = conductor.player.state()
        self._commits = 0
        self._refresh()
        self.state: dict[str, Any] = copy.deepcopy(self._view)
        self._cleanups: list[Callable[[], Any]] = []
        self.injected: list[Any] = []
        """What hooks put in when the run was starting."""

    # Operations.

    def _lane(self) -> lanes.Lane:
        if lanes.in_body():
            self._conductor.check_open()
            raise lanes.refused()
        return lanes.CURRENT.get() or self._conductor.lane

    def _future(self) -> Heard:
        future = Heard(loop=self._conductor.loop)
        future.holdfast = self._conductor
        return future

    def _new_call(self) -> str:
        return new_id("call", at_ms=self._conductor.core.wall_ms)

    async def _await(self, operation: Operation) -> Any:  # noqa: ANN401
        try:
            return await self._conductor.ask(operation)
        except asyncio.CancelledError:
            if operation.future.cancelled():
                self._conductor.cancelled(operation)
            raise

    def _own(
        self,
        kind: str,
        name: str,
        arguments: object,
        act: Json,
        result: Callable[..., Any],
        **more: Any,  # noqa: ANN401
    ) -> Own:
        of: type[Own] = more.pop("of", Own)
        return of(
            kind,
            name,
            "internal",
            self._lane().path,
            of_run(more.pop("key", None)),
            arguments,
            more.pop("call", None) or self._new_call(),
            self._future(),
            act=act,
            result=result,
            **more,
        )

    # Acting.

    @overload
    async def call(
        self,
        tool: Tool[..., Coroutine[Any, Any, R]],
        /,
        *,
        key: str | Key | None = ...,
        reserve: Mapping[str, int] | None = ...,
        capability: str | None = ...,
        **arguments: object,
    ) -> R: ...
    @overload
    async def call(
        self,
        tool: Tool[..., R],
        /,
        *,
        key: str | Key | None = ...,
        reserve: Mapping[str, int] | None = ...,
        capability: str | None = ...,
        **arguments: object,
    ) -> R: ...
    @overload
    async def call(
        self,
        tool: str,
        /,
        *,
        key: str | Key | None = ...,
        reserve: Mapping[str, int] | None = ...,
        capability: str | None = ...,
        **arguments: object,
    ) -> Any: ...  # noqa: ANN401
    async def call(
        self,
        tool: Tool[..., Any] | str,
        /,
        *,
        key: str | Key | None = None,
        reserve: Mapping[str, int] | None = None,
        capability: str | None = None,
        **arguments: object,
    ) -> Any:
        """Calls a tool through the gateway, once, and returns what it returned.

        Args:
            tool: a tool of this runtime, or its name.
            key: the caller's own name for the call in this run; without one it is known by tool and
                arguments, and two intended equal calls are two effects. :class:`holdfast.Key` makes it one
                of the whole store: what another run did under it is not done again.
            reserve: what it may use of the run's budget, by account.
            capability: the one that it uses; without it, any that the run holds and that allows it.
            arguments: the tool's.

        Raises:
            Denied: a hook, a rule or a person said no.
            EffectFailed: it happened, and failed.
            NoEffect: it provably did not happen.
        """
        gateway = self._runtime.gateway
        found = gateway.tools.get(tool) if isinstance(tool, str) else tool
        if found is None:
            raise unknown_tool(str(tool))
        checked = found.check(arguments)
        given, secrets = hidden(self._conductor.core, self.run, found.shape.secrets, checked)
        operation = self._governed("tool", found, given, key, reserve, capability)
        operation.secrets = secrets
        return await self._await(operation)

    def _governed(
        self,
        kind: str,
        tool: Tool[..., Any],
        given: Json,
        key: str | Key | None,
        reserve: Mapping[str, int] | None = None,
        capability: str | None = None,
        of: type[Governed] = Governed,
    ) -> Governed:
        name, shared_ms = parts(key)
        return of(
            kind,
            tool.name,
            tool.options.effect,
            self._lane().path,
            name,
            given,
            self._new_call(),
            self._future(),
            gateway=self._runtime.gateway,
            claim=self._claim,
            tool=tool,
            reserve=reserve,
            capability=capability,
            key_shared_ms=shared_ms,
        )

    async def compensate(
        self, tool: Tool[..., Any] | str, /, *, key: str | Key, reason: str | None = None
    ) -> Any:  # noqa: ANN401 (what undoes it says what it is)
        """Undoes a write of this step, once, by its tool's ``compensate``, and returns what that returned.

        The undoing is a write of its own: it goes through hooks, policy, people and the ledger. When it has
        succeeded the call is recorded as compensated; made again, it raises ``hf.EffectFailed`` from then on.

        Args:
            tool: the tool whose call it was, or its name.
            key: what the call is known by: ``ctx.call(tool, key=...)``.
            reason: why, for the record.

        Raises:
            CommandError: ``no_such_call`` if the step made no such call, or it is not known to have happened.
        """
        conductor, gateway = self._conductor, self._runtime.gateway
        conductor.check_open()
        call = self._runtime.store.state(self.run)["keys"].get(parts(key)[0])
        if call not in conductor.given:
            call = None  # what this code has not heard of it does not undo, now or when it runs again
        plan = planned(gateway, self._claim, call, tool if isinstance(tool, str) else tool.name)
        given = plan.tool.check(plan.given)
        operation = self._governed("tool", plan.tool, given, plan.key, of=Undo)
        assert isinstance(operation, Undo)
        operation.undoes, operation.reason, operation.redact = plan.call, reason, plan.redact
        value = await self._await(operation)
        conductor.undone.add(plan.call)
        return value

    async def do(
        self,
        name: str,
        function: Callable[..., Any],
        /,
        *args: object,
        effect: Effect,
        key: str | Key | None = None,
        risk: Risk = "low",
        timeout: float = 60.0,
        **kwargs: object,
    ) -> Any:  # noqa: ANN401 (JSON)
        """Runs any other code as a recorded call by a name: what takes time, may fail or depends on chance.

        Arguments and result are JSON. A write that fails in the middle is in doubt, as a tool's would be.
        """
        tool, given = tasks.task(name, function, args, kwargs, effect=effect, risk=risk, timeout=timeout)
        return await self._await(self._governed("task", tool, given, key))

    async def approval(
        self, name: str, /, *, risk: Risk = "high", key: str | None = None, **details: object
    ) -> bool:
        """Asks a person about what is no tool; whether they approved. Name and details are shown."""
        tool = tasks.question(name, risk)
        try:
            return bool(await self._await(self._governed("approval", tool, tool.check(details), of_run(key))))
        except Denied as denied:
            if any(str(reason["code"]).startswith("approval.") for reason in denied.reasons):
                return False
            raise

    # Time and chance.

    async def now(self) -> datetime:
        """The time, in UTC: when it was first asked here."""
        result = {"privacy": "public", "value": self._conductor.core.wall_ms}
        act = {"act": "answer", "result": result}
        fresh = result["value"]
        asked = self._own(
            "now", "now", None, act, lambda _, served, __: served["result"], known=lambda _: fresh
        )
        return datetime.fromtimestamp(await self._await(asked) / 1000, UTC)

    async def sleep(self, seconds: float) -> None:
        """Waits; a long wait holds no process and survives restarts."""
        await self._await(self._timer(seconds))

    def _timer(self, seconds: float) -> Own:
        fires_at = self._conductor.core.wall_ms + max(0, round(seconds * 1000))
        act = {"act": "timer", "fires_at": fires_at}
        options = {"known": lambda _: None, "waits_on": "timer"}
        return self._own("timer", "sleep", {"seconds": seconds}, act, lambda *_: None, **options)

    @asynccontextmanager
    async def timeout(self, seconds: float) -> AsyncIterator[None]:
        """Cancels what is inside after so long and raises ``TimeoutError``; the clock survives restarts."""
        operation, task = self._timer(seconds), asyncio.current_task()
        assert task is not None
        late = inside = False
        before = task.cancelling()

        def heard(future: asyncio.Future[Any]) -> None:
            nonlocal late
            if inside and not future.cancelled() and future.exception() is None:
                late = True
                task.cancel()

        inside = True
        self._conductor.ask(operation).add_done_callback(heard)
        try:
            yield
        except asyncio.CancelledError as error:
            inside = False
            if late and task.uncancel() <= before:
                late = False
                raise TimeoutError from error
            raise
        finally:
            inside = False
            if late:
                task.uncancel()  # the cancellation was ours, and something else came of it
            if not operation.future.done():
                operation.future.cancel()
                self._conductor.drop(operation)

    def random(self) -> float:
        """A number in [0, 1), the same in every attempt; nothing is written."""
        return int.from_bytes(self._drawn("random")[:7], "big") / (1 << 56)

    def uuid(self) -> uuid.UUID:
        """A random UUID, the same in every attempt; nothing is written."""
        return uuid.UUID(bytes=self._drawn("uuid")[:16], version=4)

    def _drawn(self, what: str) -> bytes:
        self._conductor.check_open()
        lane = self._lane()
        place = f"{lane.path} {what} {self._claim.step}"
        return _core.run_random(self._conductor.core, self.run, place, lane.count(what))

    # Others.

    async def signal(self, name: str) -> Any:  # noqa: ANN401 (the sender says what it is)
        """Waits for a signal (``rt.signal``, ``holdfast runs signal``) and returns its value."""
        act: Json = {"act": "await"}
        options = {"waits_on": "signal", "subject": name}
        asked = self._own("signal", name, None, act, lambda _, served, __: served["result"], **options)
        return await self._await(asked)

    async def spawn(
        self,
        agent: Agent[..., Any] | str,
        /,
        *args: object,
        key: str | None = None,
        escrow: Mapping[str, int] | None = None,
        on_parent_end: str = "end",
        **kwargs: object,
    ) -> Child:
        """Starts another run as this one's child, with a slice of the budget; await it for its result.

        Of what this run's budget bounds, the child has what ``escrow`` gives it, at most what its agent
        declares, and nothing else; without ``escrow``, what its agent declares. The rest comes back.
        """
        found = self._runtime.agent_of(agent)
        given = found.whole(args, kwargs, {"escrow": escrow, "key": key})
        call = self._new_call()
        operation = self._own(
            "child",
            found.name,
            given,
            {
                "act": "spawn",
                "agent": found.name,
                "child": derived(call, "run"),
                "escrow": budgets.escrowed(found.options.budget, escrow),
                "input": {"privacy": "internal", "value": given},
                "on_parent_end": on_parent_end,
            },
            lambda done, *_: derived(done.call, "run"),
            key=key,
            call=call,
            durability="barrier",
            of=Spawn,
        )
        return Child(self, await self._await(operation))

    async def _join(self, run: str) -> Any:  # noqa: ANN401
        def came(operation: Operation, served: Json, _: object) -> Any:  # noqa: ANN401
            if served["outcome"] != "succeeded":
                raise failed(operation, served)
            return served["result"]

        options = {"of": Join, "waits_on": "child", "subject": run}
        value = await self._await(self._own("receive", run, None, {"act": "await"}, came, **options))
        return self._runtime.result_of(run, value)

    async def add_step(
        self,
        function: Callable[..., Any] | str,
        /,
        *args: object,
        after: Iterable[str] = (),
        key: str | None = None,
        **kwargs: object,
    ) -> str:
        """Adds a step to this run, for any worker, and returns its id. ``function`` is one of ``rt.step``."""
        found = self._runtime.step_of(function)
        options = {"after": [*after] or None, "key": key}
        given = {"arguments": found.whole(args, kwargs, options), "function": found.name}
        call = self._new_call()
        step = self._runtime.new_step(found, derived(call, "step"), given, [*after])
        operation = self._own(
            "step",
            found.name,
            {**given, "after": [*after]},
            {"act": "add_step", "step": step},
            lambda done, *_: derived(done.call, "step"),
            known=lambda done: derived(done.call, "step"),
            key=key,
            call=call,
        )
        return await self._await(operation)  # type: ignore[no-any-return]

    # State.

    def _patch(self) -> Json:
        patch = _core.merge_diff(self._view, to_json(self.state))
        assert isinstance(patch, dict)
        return patch

    async def commit(self) -> None:
        """Writes what has changed in ``state``. A step that changed it meanwhile is a ``state_conflict``."""
        patch = self._patch()
        payload = {"privacy": "internal", "value": patch}
        act = {"act": "commit", "patch": payload}  # for which version is known when it is made
        await self._await(self._own("commit", "commit", None, act, self._committed()))

    def _committed(self) -> Callable[[Operation, Json, Json | None], None]:
        def done(operation: Operation, served: Json, committed: Json | None) -> None:
            if served["outcome"] == "conflict":
                self._conductor.version = (committed or {}).get("version", self._conductor.version)
                message = f"another step has made the state's version {self._conductor.version}"
                conflict = StateConflict(message, code="state_conflict", fix=fix("state_conflict"))
                conflict.call = operation.call
                raise conflict
            recorded = (committed or {}).get("patch")
            if recorded is None or not self._holds(recorded):
                divergence = self._conductor.player.stuck(
                    self._conductor.core, "commit", "commit", "internal", operation.lane, None, None
                )
                self._conductor.close(Diverged(divergence))
                raise asyncio.CancelledError
            self._view = _core.merge_patch(self._view, recorded)
            self._commits += 1
            self._refresh()

        return done

    def _holds(self, recorded: Json) -> bool:
        """Whether the state has all that a recorded commit wrote: merging it in once more changes nothing."""
        now = to_json(self.state)
        return not _core.merge_diff(now, _core.merge_patch(now, recorded))

    def _refresh(self) -> None:
        """After a retry for a conflict, what follows the last commit is the state as that try saw it."""
        fresh = self._conductor.player.fresh(self._commits)
        if fresh is None:
            return
        pending = self._patch() if hasattr(self, "state") else {}
        self._view, version = fresh
        self._conductor.version = max(version, self._conductor.version)
        if hasattr(self, "state"):
            now = _core.merge_patch(copy.deepcopy(self._view), pending)
            assert isinstance(now, dict)
            self.state.clear()
            self.state.update(now)

    def left(self) -> tuple[Json, int]:
        """What the end of the step commits, and the version that it is for."""
        return self._patch(), self._conductor.version

    # The attempt.

    @property
    def cancelled(self) -> bool:
        """Whether somebody wants the run to end."""
        return isinstance(self._conductor.closed, Cancelled)

    @property
    def budget(self) -> Json:
        """What is left of the run's budget, by account; do not branch on it."""
        return self._runtime.budget(self.run)

    def on_cleanup(self, function: Callable[[], Any]) -> None:
        """Calls a function when this attempt ends, however it ends short of being killed."""
        self._cleanups.append(function)

    def lane(self, name: str) -> _Named:
        """``with ctx.lane("eu"):`` names the lane that the code inside runs in."""
        return _Named(self._lane().child(name))

    async def as_completed(self, *tasks: asyncio.Task[T]) -> AsyncIterator[asyncio.Task[T]]:
        """Tasks as they end, in an order that is the same in every attempt."""
        left = list(tasks)
        while left:
            await asyncio.wait(left, return_when=asyncio.FIRST_COMPLETED)
            for task in [task for task in left if task.done()]:
                left.remove(task)
                yield task

    def __repr__(self) -> str:
        return f"<Context of {self.run}>"


class _Named:
    """A lane by its name, for a block of code."""

    def __init__(self, lane: lanes.Lane) -> None:
        self._lane = lane

    def __enter__(self) -> None:
        self._token = lanes.CURRENT.set(self._lane)

    def __exit__(self, *_: object) -> None:
        lanes.CURRENT.reset(self._token)
