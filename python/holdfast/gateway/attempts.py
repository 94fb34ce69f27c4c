"""One attempt at a step's work, with the hooks of its run around it, and what it comes to."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from holdfast import _core
from holdfast.errors import CommandError, HoldfastError, StoreError
from holdfast.gateway import bodies, children, hooks, points
from holdfast.gateway.outcomes import NoEffect, Stopped, Suspended
from holdfast.secrets import scrubbed

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from holdfast.gateway.driver import Gateway
    from holdfast.gateway.keys import Key
    from holdfast.gateway.tools import Tool
    from holdfast.store import Claim

R = TypeVar("R")

Again = Literal["scheduled", "on_demand", "never"]
"""When work that failed, and may be tried again, is: by a worker after its backoff, by whoever asks next, or
by nobody."""
ENDED = frozenset(("completed", "failed", "cancelled"))


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
        return hooks.Subject(point, "", self.claim.run, self.claim.agent, value)

    def asks(self, point: str, subject: Mapping[str, Any], *, ended: bool = False) -> dict[str, Any]:
        """What the hooks of a point of the run come to."""
        from holdfast.gateway.driver import drive

        ruled = drive(self.gateway.store, points.asked(self, point, subject, ended=ended))
        assert isinstance(ruled, dict)
        return ruled


def attempt(gateway: Gateway, claim: Claim, body: Callable[[Step], Any], again: Again = "scheduled") -> str:
    """Runs a step's work between the hooks of its run, and ends the claim by what came of it."""
    step = Step(gateway, claim)
    try:
        came_to = _worked(step, body, again)
    except CommandError as error:
        if error.code != "cancel_requested":
            raise  # the step is another's by now: there is nobody to tell
        came_to = _cancelled(step)
    heard = any(hook.spec["point"] == "after_run_terminal" for hook in gateway.hooks.values())
    if heard and gateway.store.state(claim.run)["phase"] in ENDED:
        step.asks("after_run_terminal", {"status": came_to}, ended=True)
    return came_to


def _worked(step: Step, body: Callable[[Step], Any], again: Again) -> str:
    store, claim = step.gateway.store, step.claim
    ruled = step.asks("run_starting", {"agent": claim.agent, "attempt": claim.attempt})
    step.context.extend(ruled["context"])
    if ruled["act"] != "go":
        return _stopped(step, ruled)
    inside = bodies.INSIDE.set(True)
    try:
        result = body(step)
    except Suspended as suspended:
        return _parked(step, suspended.wait)
    except Stopped as stopped:
        store.fail(claim, str(stopped), retryable=False)
        return "failed"
    except (CommandError, StoreError):
        raise  # the step is another's by now, or the store takes nothing
    except Exception as error:
        # A refusal or a failed effect would come again; what did not happen may be tried.
        final = isinstance(error, HoldfastError) and not isinstance(error, NoEffect)
        if again == "on_demand" and not final:
            store.release(claim, reason="yielded")
        else:
            store.fail(claim, error, retryable=not final and again != "never")
        return "failed"
    finally:
        bodies.INSIDE.reset(inside)
    ruled = step.asks("before_run_complete", {"result": result})
    if ruled["act"] != "go":
        return _stopped(step, ruled)
    store.finish(claim, result=scrubbed(result))
    return "completed"


def _stopped(step: Step, ruled: Mapping[str, Any]) -> str:
    """A hook has the last word about a run."""
    store, claim, hook = step.gateway.store, step.claim, ruled.get("hook")
    match ruled["act"]:
        case "interrupt":
            return _parked(step, {"on": "interrupted"})
        case "stop":
            store.cancel(claim.run, by="holdfast")
            return _cancelled(step)
        case "again":
            store.fail(claim, f"the hook {hook} wants it once more", retryable=True)
        case _:
            store.fail(claim, f"the hook {hook} stops the run", retryable=False)
    return "failed"


def _parked(step: Step, wait: Mapping[str, Any]) -> str:
    store, claim = step.gateway.store, step.claim
    try:
        store.wait(claim, [wait])
    except HoldfastError as error:
        if error.code != "wait_over":
            raise
        store.release(claim, reason="yielded")  # it came meanwhile: the next claim goes on
    return "waiting"


def _cancelled(step: Step) -> str:
    """Somebody wants the run to end: hooks hear of it, and cannot keep it from doing so."""
    step.asks("on_run_cancel_requested", {"agent": step.claim.agent})
    claim = step.claim
    command = {"claim": claim.core(), "command": "confirm_cancel"}
    step.gateway.store._core.run(_core.Call.command(claim.run, claim.by(), command, "barrier"))
    return "cancelled"
