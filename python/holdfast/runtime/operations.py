"""What agent code asks of its context, as operations: what each is known by, and how it is done.

An operation goes through the gateway (tools and tasks), or its own frame does it (the time, timers, commits,
children, notes). Either way it is a generator that says what is to be done, driven by callbacks.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from holdfast import _core
from holdfast.errors import CommandError
from holdfast.gateway import children, points, undo
from holdfast.gateway.outcomes import EffectFailed, OutcomeError, Suspended
from holdfast.gateway.passage import Asked, Passenger
from holdfast.gateway.way import Commit, Run
from holdfast.store.commands import payload

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Mapping

    from holdfast.gateway import Gateway, Tool
    from holdfast.gateway.way import Way
    from holdfast.secrets import Secret
    from holdfast.store import Claim

Json = dict[str, Any]
UNKNOWN: Any = object()
KEEPING = 600.0
"""Seconds that the store may take to keep the bytes of an artifact."""


@dataclass(eq=False)
class Operation:
    """One thing that agent code awaits."""

    kind: str
    name: str
    effect: str
    lane: str
    key: str | None
    arguments: Any
    """What it is known by, as JSON."""
    call: str
    """Its id: a new one, or that of the recorded call that it is."""
    future: asyncio.Future[Any] = field(repr=False)
    began: float = 0.0
    recorded: bool = False
    """It stands in the journal already."""
    value: Any = UNKNOWN
    error: BaseException | None = None
    wait: Json | None = None
    running: bool = False
    resolves: bool = False
    """It was sent off before, and nobody knows what came of it."""
    abandoned: bool = False
    """Nobody awaits it any more."""
    sharers: list[Operation] = field(default_factory=list, repr=False)
    """Others that asked for the same call under its key: they get its outcome too."""

    def way(self, conductor: Any) -> Way:  # noqa: ANN401 (see Conductor)
        """Does it, or goes on with it, and returns what agent code gets."""
        raise NotImplementedError

    def served(self, conductor: Any) -> Way:  # noqa: ANN401
        """What agent code gets of a recorded outcome."""
        return self.way(conductor)

    @property
    def ended(self) -> bool:
        """Whether what agent code gets is known."""
        return self.value is not UNKNOWN or self.error is not None


@dataclass(eq=False)
class Governed(Operation):
    """A tool, a task or a question to a person: it goes through the gateway."""

    gateway: Gateway = field(kw_only=True)
    claim: Claim = field(kw_only=True)
    tool: Tool[Any, Any] = field(kw_only=True)
    reserve: Mapping[str, int] | None = None
    capability: str | None = None
    key_shared_ms: int | None = None
    secrets: dict[str, Secret[Any]] = field(default_factory=dict)
    redact: tuple[str, ...] = ()

    def way(self, conductor: Any) -> Way:  # noqa: ANN401, ARG002
        """Through the gateway."""
        asked = Asked(
            self.claim,
            self.tool,
            self.arguments,
            self.key,
            self.reserve,
            self.capability,
            recorded=self.call if self.recorded and self.key is None else None,
            lane=self.lane,
            secrets=self.secrets,
            kind=self.kind,
            call=None if self.recorded else self.call,
            key_shared_ms=self.key_shared_ms,
            redact=self.redact,
        )
        return Passenger(self.gateway, asked).go()

    def served(self, conductor: Any) -> Way:  # noqa: ANN401
        """What was recorded; what was undone later had come to something before."""
        try:
            return (yield from self.way(conductor))
        except EffectFailed as error:
            if error.code != "compensated":
                raise
            return self.undone(conductor, error)

    def undone(self, conductor: Any, error: EffectFailed) -> Any:  # noqa: ANN401
        """What agent code gets that has not come to where it undoes this."""
        mine = conductor.store.state(conductor.claim.run)["calls"][self.call]["step"] == conductor.claim.step
        if self.call in conductor.undone or not mine:
            raise error
        before = undo.result_before(conductor.store, conductor.claim.run, self.call)
        if before is None:
            raise error
        return self.tool.result(before[0])


@dataclass(eq=False)
class Undo(Governed):
    """The undoing of a call: when it has succeeded, the call is recorded as compensated."""

    undoes: str = ""
    reason: str | None = None

    def way(self, conductor: Any) -> Way:  # noqa: ANN401
        """Through the gateway, and then the mark."""
        value = yield from super().way(conductor)
        mark = undo.marks(conductor.store, self.claim, self.undoes, self.reason)
        if mark is not None:
            yield Commit(mark)
        return value


@dataclass(eq=False)
class Own(Operation):
    """What its own frame does.

    Attributes:
        act: what the frame does, as the core reads it.
        result: what agent code gets of it, from what the journal says.
        durability: how durable the frame is before agent code hears of it.
    """

    act: Json = field(kw_only=True)
    result: Callable[[Operation, Any, Any], Any] = field(kw_only=True)
    durability: str = "commit"
    waits_on: str | None = None
    subject: str | None = None
    known: Callable[[Operation], Any] | None = None
    """What agent code gets of a new one, where the journal need not be read for it."""
    first: Callable[[], None] | None = None
    """What is done before a new one is opened, in a thread."""

    def way(self, conductor: Any) -> Way:  # noqa: ANN401
        """Opens it, and takes what it waits for."""
        new = not self.recorded
        yield from self._came(conductor)
        if new and self.known is not None:
            return self.known(self)
        return (yield from self.served(conductor))

    def _came(self, conductor: Any) -> Way:  # noqa: ANN401
        if not self.recorded:
            if self.first is not None:
                ran = yield Run(self.first, KEEPING, is_async=False)
                if ran.error is not None or ran.timed_out:
                    raise ran.error or TimeoutError("the store took too long")
            yield Commit(self._opening(conductor))
            self.recorded = True
        elif self.kind == "commit":
            yield Commit(self._again(conductor))  # a conflict that is tried again with the fresh state
        if self.kind == "commit":
            _, committed = _core.call_outcome(conductor.core, conductor.claim.run, self.call)
            if committed is not None and committed["patch"] is not None:
                conductor.version = committed["version"]
        if self.waits_on is not None:
            yield from self._taken(conductor)

    def _opening(self, conductor: Any) -> _core.Call:  # noqa: ANN401
        claim = conductor.claim
        if self.kind == "commit":
            self.act["expected_version"] = conductor.version
        return conductor.player.act(  # type: ignore[no-any-return]
            conductor.core,
            claim.by(),
            claim.core(),
            self.call,
            self.kind,
            self.name,
            self.lane,
            self.key,
            {"privacy": "internal", "value": self.arguments},
            self.act,
            self.durability,
        )

    def _again(self, conductor: Any) -> _core.Call:  # noqa: ANN401
        claim = conductor.claim
        command = {
            "call": self.call,
            "claim": claim.core(),
            "command": "patch",
            "expected_version": conductor.version,
            "patch": self.act["patch"],
        }
        return _core.Call.command(claim.run, claim.by(), command, "commit")

    def _taken(self, conductor: Any) -> Way:  # noqa: ANN401
        claim = conductor.claim
        command = {"call": self.call, "claim": claim.core(), "command": "take"}
        try:
            yield Commit(_core.Call.command(claim.run, claim.by(), command, "commit"))
        except CommandError as error:
            if error.code != "not_answered":
                raise
            wait: Json = {"call": self.call, "on": self.waits_on}
            if self.subject is not None:
                wait["subject"] = self.subject
            if self.kind == "timer":
                wait["until"] = conductor.player.fires_at(self.call) or self.act["fires_at"]
            raise Suspended(self.call, wait) from None

    def served(self, conductor: Any) -> Way:  # noqa: ANN401
        """What the journal says of it."""
        served, committed = _core.call_outcome(conductor.core, conductor.claim.run, self.call)
        return self.result(self, served, committed)
        yield  # a way, like the others


@dataclass(eq=False)
class Spawn(Own):
    """A child: hooks are asked before it is made."""

    def way(self, conductor: Any) -> Way:  # noqa: ANN401
        """Asks, then opens."""
        if not self.recorded:
            subject = {
                "agent": self.name,
                "escrow": self.act["escrow"],
                "input": self.arguments,
                "key": self.key,
            }
            ruled = yield from points.asked(conductor.attempt, "before_subagent_start", subject)
            changed = children.allowed(ruled, subject)
            self.act |= {"escrow": changed["escrow"], "input": payload(changed["input"], "internal")}
        return (yield from super().way(conductor))

    def served(self, conductor: Any) -> Way:  # noqa: ANN401
        """Makes the child's run, unless it is there: whoever opened the call may have died before that."""
        run = conductor.child_of(self.call)
        made = conductor.makes_child(run)
        if made is not None:
            try:
                yield Commit(made)
            except CommandError as error:
                if error.code != "run_exists":
                    raise
        return run


@dataclass(eq=False)
class Join(Own):
    """The end of a child: hooks hear of it when it is first seen."""

    def way(self, conductor: Any) -> Way:  # noqa: ANN401
        """Takes it, and tells."""
        yield from self._came(conductor)
        served, _ = _core.call_outcome(conductor.core, conductor.claim.run, self.call)
        status = "completed" if served["outcome"] == "succeeded" else "failed"
        told = {"child": self.subject, "status": status}
        yield from points.asked(conductor.attempt, "after_subagent_terminal", told)
        return (yield from self.served(conductor))


def failed(operation: Operation, served: Json) -> OutcomeError:
    """A call that its own frame ended badly: a child that failed."""
    failure = served.get("failure") or {}
    message = str(served.get("message") or failure.get("error") or served.get("outcome"))
    return EffectFailed(
        message, call=operation.call, tool=operation.name, error=failure.get("error", "ChildFailed")
    )
