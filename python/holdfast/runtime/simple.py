"""A durable function without any set-up."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.runtime.agents import Agent, Options
from holdfast.runtime.runtime import Runtime

if TYPE_CHECKING:
    from collections.abc import Callable


def run(function: Callable[..., Any], /, *args: object, **kwargs: object) -> Any:  # noqa: ANN401
    """Runs a function as an agent, in memory, and returns its result.

    Its first parameter is its context; nothing outlives the call.

    Raises:
        RunError: it failed, or waits for somebody.
    """
    with Runtime("memory:") as runtime:
        agent: Agent[..., Any] = function if isinstance(function, Agent) else Agent(function, Options())
        runtime.agents[agent.name] = agent
        return runtime.run_sync(agent, arguments=agent.named(args, kwargs)).value()
