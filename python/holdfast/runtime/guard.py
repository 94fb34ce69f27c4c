"""Holdfast under code that is no agent: a guarded function is a recorded call, and a run of its own."""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from holdfast.gateway.outcomes import Suspended, fix
from holdfast.gateway.shapes import refuse
from holdfast.runtime.runs import ENDED, RunError
from holdfast.runtime.worker import worker_name

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.runtime.runtime import Runtime

P = ParamSpec("P")
R = TypeVar("R")


def guard(runtime: Runtime, **options: Any) -> Callable[[Callable[P, R]], Callable[..., R]]:  # noqa: ANN401
    """Puts the ledger under a function: hooks, policy, people, budget, and no effect twice.

    The guarded function takes ``key=``: the caller's own name for the call, in the whole store. Under the
    same key with the same arguments it returns what was recorded, in any process; without one each call is
    another. A call that provably did not happen (``hf.NoEffect``) is made by the next one under its key.

    Args:
        runtime: whose store and gateway.
        options: what a tool declares; ``effect=`` is required.

    Raises:
        RunError: ``run_not_ended``: it waits for somebody. Call it again under its key afterwards.
    """

    def wrap(function: Callable[P, R]) -> Callable[..., R]:
        if inspect.iscoroutinefunction(function):
            raise refuse(
                "bad_tool", f"{function.__name__} is async: guard a plain function, or make it a tool"
            )
        tool = runtime.gateway.tool(**options)(function)
        agent = f"guard:{tool.name}"

        @functools.wraps(function)
        def guarded(*args: Any, key: str | None = None, **kwargs: Any) -> R:  # noqa: ANN401
            bound = inspect.signature(function).bind_partial(*args, **kwargs)
            return _made(runtime, agent, tool, dict(bound.arguments), key)  # type: ignore[no-any-return]

        return guarded

    return wrap


def _made(runtime: Runtime, agent: str, tool: Any, arguments: dict[str, Any], key: str | None) -> Any:  # noqa: ANN401
    store = runtime.store
    whole = None if key is None else f"{agent}:{key}"
    given = tool.check(arguments)
    run = store.create_run(agent=agent, input=given, key=whole, barrier=False)
    claim = store.claim(worker=worker_name(), lease=max(60.0, tool.options.timeout + 30.0), run=run)
    if claim is None:
        return _known(runtime, run, tool)

    def work(step: Any) -> Any:  # noqa: ANN401
        try:
            value = step.call(tool, key="call", **arguments)
        except Suspended:
            raise
        except Exception as error:
            caught.append(error)
            raise
        returned.append(value)
        return tool.told(value)

    returned: list[Any] = []
    caught: list[Exception] = []
    # Nobody but the caller makes the call, and only under its key: no worker has a guarded function.
    runtime.gateway.attempt(claim, work, again="never" if key is None else "on_demand")
    if returned:
        return returned[0]
    if caught:
        raise caught[0]
    return _known(runtime, run, tool)


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
