"""Steps that a run has from its beginning: pipelines and fan-out that any worker claims, planned before the
run is made.
"""

from __future__ import annotations

from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from typing import TYPE_CHECKING, Any

from holdfast import _core
from holdfast.primitives import new_id
from holdfast.runtime.agents import refuse
from holdfast.store.asks import Asked
from holdfast.store.commands import SYSTEM, new_run, new_step

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.runtime.agents import Agent
    from holdfast.runtime.runtime import Runtime

Json = dict[str, Any]
MAIN = "main"
"""The step that runs the agent itself."""


@dataclass(frozen=True)
class Planned:
    """A step of a run that is not made yet, by :meth:`Agent.planned`."""

    function: Agent[..., Any]
    input: Json
    after: tuple[str, ...] = ()
    """The names of the steps that it comes after."""


def creates(
    runtime: Runtime,
    agent: Agent[..., Any],
    given: Json,
    options: Mapping[str, Any],
    steps: Mapping[str, Planned],
    *,
    barrier: bool,
) -> Asked[str]:
    """What makes a run of an agent with further steps."""
    at_ms = runtime.store._core.wall_ms
    run, main = new_run(agent.name, given, {}, options, at_ms), new_step(MAIN, options, at_ms)
    whole = [main, *laid_out(runtime, main["id"], steps)]
    call = _core.Call.create(SYSTEM, run, whole, "barrier" if barrier else "commit")
    return Asked(call, str, run["id"])


def laid_out(runtime: Runtime, main: str, steps: Mapping[str, Planned]) -> list[Json]:
    """Planned steps as the core reads them, each after those that it comes after.

    Args:
        runtime: that has their functions.
        main: the id of the step that runs the agent.
        steps: by name.

    Raises:
        AgentError: ``bad_step``, or ``no_such_agent``.
    """
    at_ms = runtime.store._core.wall_ms
    ids = {MAIN: main} | {name: new_id("step", at_ms=at_ms) for name in steps}
    made = {}
    for name, step in steps.items():
        if name == MAIN or not isinstance(step, Planned):
            raise refuse("bad_step", f"{name} is no step that can be added: plan one with fn.planned(...)")
        for other in step.after:
            if other not in ids:
                raise refuse("bad_step", f"{name} comes after {other}, and no step is called so")
        found = runtime.step_of(step.function.name)
        given = {"arguments": step.input, "function": found.name}
        after = [ids[other] for other in step.after]
        made[name] = runtime.new_step(found, ids[name], given, after) | {"name": name}
    order = TopologicalSorter({name: step.after for name, step in steps.items()})
    try:
        return [made[name] for name in order.static_order() if name != MAIN]
    except CycleError as error:
        told = " after ".join(map(str, reversed(error.args[1])))
        raise refuse("bad_step", f"the steps wait for each other: {told}") from None
