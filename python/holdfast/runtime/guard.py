"""Holdfast under code that is no agent: a guarded function is a recorded call, and a run of its own."""

from __future__ import annotations

import asyncio
import functools
import inspect
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from holdfast.errors import HoldfastError
from holdfast.gateway.outcomes import fix
from holdfast.runtime.runs import ENDED, RunError
from holdfast.runtime.worker import worker_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from holdfast.gateway.attempts import Again, Step
    from holdfast.gateway.tools import Tool
    from holdfast.runtime.runtime import Runtime
    from holdfast.store import Claim

P = ParamSpec("P")
R = TypeVar("R")


def guard(runtime: Runtime, **options: Any) -> Callable[[Callable[P, R]], Callable[..., R]]:  # noqa: ANN401
    """Puts the ledger under a function: hooks, policy, people, budget, and no effect twice.

    The guarded function takes ``key=``: the caller's own name for the call, in the whole store. Under the
    same key with the same arguments it returns what was recorded, in any process; without one each call is
    another. A call that provably did not happen (``hf.NoEffect``) is made by the next one under its key.

    Any callable may be guarded: a function, an object, or a partial, whose bound keywords are no arguments.
    What is made of an ``async def`` is awaited; cancelling it never cancels a write that has begun.

    Args:
        runtime: whose store and gateway.
        options: what a tool declares; ``effect=`` is required.

    Raises:
        RunError: ``run_not_ended``: it waits for somebody. Call it again under its key afterwards.
    """

    def wrap(function: Callable[P, R]) -> Callable[..., R]:
        tool = runtime.gateway.tool(**options)(function)
        signature = inspect.signature(function)

        def call(args: tuple[Any, ...], key: str | None, kwargs: dict[str, Any]) -> Guarded:
            bound = signature.bind_partial(*args, **kwargs)
            return Guarded(runtime, tool, dict(bound.arguments), key)

        def guarded(*args: Any, key: str | None = None, **kwargs: Any) -> Any:  # noqa: ANN401
            return call(args, key, kwargs).made()

        async def aguarded(*args: Any, key: str | None = None, **kwargs: Any) -> Any:  # noqa: ANN401
            return await call(args, key, kwargs).amade()

        made: Callable[..., Any] = aguarded if tool.is_async else guarded
        if inspect.isroutine(function):
            return functools.wraps(function)(made)
        made.__name__, made.__doc__ = tool.name, tool.__doc__  # what an object holds is its own
        return made

    return wrap


@dataclass
class Guarded:
    """One guarded call: a run of its own, which is made here or nowhere."""

    runtime: Runtime
    tool: Tool[..., Any]
    arguments: dict[str, Any]
    key: str | None
    returned: list[Any] = field(default_factory=list)
    caught: list[Exception] = field(default_factory=list)

    @property
    def again(self) -> Again:
        """Nobody but the caller makes the call, and only under its key: no worker has a guarded function."""
        return "never" if self.key is None else "on_demand"

    def made(self) -> Any:  # noqa: ANN401
        """Makes the call, or says what it came to before."""
        store = self.runtime.store
        run = store.create_run(**self._run())
        claim = store.claim(**self._claim(run))
        if claim is not None:
            self.runtime.gateway.attempt(claim, self._work, again=self.again)
        return self._outcome(run)

    async def amade(self) -> Any:  # noqa: ANN401
        """The same on an event loop. Cancelled, a write that has begun settles first."""
        aio = self.runtime.store.aio
        begun = asyncio.ensure_future(self._begun())
        try:
            run, claim = await asyncio.shield(begun)
        except asyncio.CancelledError as error:
            with suppress(HoldfastError):  # it was never made, or is another's by now
                _, claim = await begun
                if claim is not None and self.key is not None:
                    await aio.release(claim, reason="yielded")
                elif claim is not None:
                    await aio.fail(claim, error, retryable=False)
            raise
        if claim is not None:
            await self.runtime.gateway.aattempt(claim, self._awork, again=self.again)
        return self._outcome(run)

    async def _begun(self) -> tuple[str, Claim | None]:
        aio = self.runtime.store.aio
        run = await aio.create_run(**self._run())
        return run, await aio.claim(**self._claim(run))

    def _run(self) -> dict[str, Any]:
        agent = f"guard:{self.tool.name}"
        whole = None if self.key is None else f"{agent}:{self.key}"
        return {"agent": agent, "input": self.tool.check(self.arguments), "key": whole, "barrier": False}

    def _claim(self, run: str) -> dict[str, Any]:
        lease = max(60.0, self.tool.options.timeout + 30.0)
        return {"worker": worker_name(), "lease": lease, "run": run}

    def _work(self, step: Step) -> Any:  # noqa: ANN401
        with self._catches():
            self.returned.append(step.call(self.tool, key="call", **self.arguments))
        return self.tool.told(self.returned[0])

    async def _awork(self, step: Step) -> Any:  # noqa: ANN401
        with self._catches():
            self.returned.append(await step.acall(self.tool, key="call", **self.arguments))
        return self.tool.told(self.returned[0])

    @contextmanager
    def _catches(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self.caught.append(error)
            raise

    def _outcome(self, run: str) -> Any:  # noqa: ANN401
        if self.returned:
            return self.returned[0]
        if self.caught:
            raise self.caught[0]
        return _known(self.runtime, run, self.tool)


def _known(runtime: Runtime, run: str, tool: Any) -> Any:  # noqa: ANN401
    """What a call that was made before came to."""
    found = runtime.runs.get(run)
    if found.status == "completed":
        return tool.result(found.result)
    code = "run_failed" if found.status in ENDED else "run_not_ended"
    waits = ", ".join(str(wait["on"]) for wait in found.waiting_on)
    told = f"the guarded call is {found.status}" + (f": {found.error}" if found.error else "")
    told += f" for {waits}" if waits else ""
    raise RunError(told, code=code, fix=fix(code))
