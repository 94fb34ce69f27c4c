"""Shadow runs: the input of a run that was, with other code or another policy, and nothing of it real.

The shadow runs in a store in memory, under a clock that begins where the run began, through the real gateway:
policy, budget and people are asked. Bodies are stand-ins that give back what the run's ledger has of the same
call, or refuse; people and signals say what they said then; children come to what they came to. Hooks,
evaluators and approvers of the program are not asked: they are code that could act.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from holdfast import _core
from holdfast.errors import HoldfastError, RecordError
from holdfast.evidence.diff import Diff, diff
from holdfast.evidence.journal import Gone, Journal
from holdfast.evidence.ledger import Ledger, Refused
from holdfast.evidence.picture import picture
from holdfast.gateway.outcomes import fix
from holdfast.gateway.tools import Tool
from holdfast.runtime.attempt import Attempt
from holdfast.runtime.context import Context
from holdfast.runtime.runtime import Runtime, _settings
from holdfast.store import open_store
from holdfast.store.clock import FakeClock
from holdfast.store.commands import SYSTEM, new_run, new_step
from holdfast.visible import Shown

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from holdfast.gateway.policy import Policy
    from holdfast.runtime.agents import Agent
    from holdfast.store import Claim

Json = dict[str, Any]
ENDED = frozenset(("completed", "failed", "cancelled"))
ROUNDS = 1000
"""How often a shadow is taken up again before it counts as stuck."""


@dataclass(frozen=True)
class Shadow(Shown):
    """A shadow run, beside the run that it is of."""

    _verdict = ("same",)
    _left_out = ("journal",)

    run: str
    status: str
    """Of the shadow."""
    result: Any
    served: int
    """Calls that were given back from the ledger."""
    refused: tuple[Refused, ...]
    """What the shadow asked for and the run had never done; nothing happened."""
    diff: Diff
    journal: Journal
    """The shadow's own; its store is gone."""

    @property
    def same(self) -> bool:
        """Whether the other code or policy came to the same in everything."""
        return self.diff.same and not self.refused


class _Acting(Context):
    """A context whose calls are stand-ins, and whose time and chance are the recorded run's."""

    _runtime: _Stage

    async def call(self, tool: Any, /, **given: Any) -> Any:  # noqa: ANN401
        """The stand-in of a tool."""
        found = self._runtime.gateway.tools.get(tool) if isinstance(tool, str) else tool
        return await super().call(tool if found is None else self._runtime.stand_in(found), **given)

    async def do(self, name: str, function: Callable[..., Any], /, *args: Any, **given: Any) -> Any:  # noqa: ANN401, ARG002
        """The stand-in of any other code."""

        async def body(*args: object, **kwargs: object) -> object:
            asked: Json = {"args": list(args)} | ({"kwargs": kwargs} if kwargs else {})
            return self._runtime.ledger.serve("task", name, asked)

        return await super().do(name, body, *args, **given)

    async def now(self) -> Any:  # noqa: ANN401 (as the context has it)
        """The time as it was then."""
        times, clock = self._runtime.ledger.times, self._runtime.moved
        if times:
            clock.advance(seconds=max(0, times.pop(0) - clock.wall_ms) / 1000)
        return await super().now()

    def _drawn(self, what: str) -> bytes:
        self._conductor.check_open()
        lane, stage = self._lane(), self._runtime
        if stage.journal.store != stage.then.id:
            return super()._drawn(what)  # a bundle has not the seed: chance is the shadow's own
        place = f"{lane.path} {what} {stage.step_then(self._claim.step)}"
        return _core.run_random(stage.then._core, stage.journal.run, place, lane.count(what))


class _Playing(Attempt):
    makes = _Acting


class _Stage(Runtime):
    """A runtime in memory, with a program's agents and stand-ins for its tools."""

    def __init__(
        self,
        program: Runtime,
        journal: Journal,
        policy: Policy | Mapping[str, Any] | str | Path | None,
        *,
        pure: bool,
    ) -> None:
        self.moved = FakeClock(wall_ms=next(journal.kinds("run.created")).at)
        super().__init__(
            open_store("memory:", clock=self.moved),
            policy=policy,
            suspend_grace=min(program.suspend_grace, 0.05),
            replay_grace=min(program.replay_grace, 1.0),
        )
        self.then, self.journal, self.ledger, self._pure = program.store, journal, Ledger(journal), pure
        self.agents.update(program.agents)
        self.step_functions.update(program.step_functions)
        self._made: dict[str, Tool[..., Any]] = {}
        for tool in program.gateway.tools.values():
            self.gateway.tools[tool.name] = self.stand_in(tool)

    def stand_in(self, tool: Tool[..., Any]) -> Tool[..., Any]:
        """A tool that says the same of itself, and whose body is the ledger."""
        if tool.name in self._made:
            return self._made[tool.name]
        if tool.options.effect == "pure" and self._pure:
            return tool

        async def body(asked: Json) -> object:
            told = self.ledger.serve("tool", tool.name, asked)
            return replace(told, value=tool.result(told.value))

        bare = {"attempts": 1, "compensate": None, "idempotent": None, "reconcile": None, "sandbox": "none"}
        options = replace(tool.options, name=tool.name, description=tool.__doc__ or tool.name, **bare)  # type: ignore[arg-type]
        made: Tool[..., Any] = Tool(body, options, tool.shape)
        made.bound = lambda arguments, *_: {"asked": dict(arguments)}  # type: ignore[method-assign]
        self._made[tool.name] = made
        return made

    def step_then(self, step: str) -> str:
        """The step of the recorded run that has the same place as one of the shadow."""
        mine = [
            record.fields["step"] for record in self.store.read(self._run) if record.kind == "step.created"
        ]
        theirs = [fact.step for fact in self.journal.kinds("step.created")]
        at = mine.index(step)
        return str(theirs[at]) if at < len(theirs) else step

    # From its beginning to its end.

    async def play(self, agent: Agent[..., Any]) -> str:
        """Runs the shadow as far as the record can help it; its run."""
        created = next(self.journal.kinds("run.created"))
        given = created.value["input"]
        if isinstance(given, Gone):
            raise RecordError("the run's input is gone", code="content_erased", fix=fix("content_erased"))
        body, at_ms = created.body, self.store._core.wall_ms
        options = {
            "budget": body.get("budget"),
            "labels": body["labels"],
            "package": self.package(),
            "role": body["role"],
        }
        run = new_run(agent.name, given, created.value["state"], options, at_ms) | {"mode": "shadow"}
        self._run = str(run["id"])
        # One attempt: what was refused would only be refused again.
        step = new_step("main", _settings(agent.options) | {"attempts": 1}, at_ms)
        self.store._core.run(_core.Call.create(SYSTEM, run, [step], "commit"))
        for _ in range(ROUNDS):
            claim = await self._claims()
            if claim is not None:
                found = self.agent_for(claim) if claim.step_input else agent
                if found is None:
                    break
                await _Playing(self, claim, found).run()
            elif self.status_of(self._run) in ENDED or not self._help():
                break
        return self._run

    async def _claims(self) -> Claim | None:
        names = sorted(
            {*self.agent_names(), *(row["agent"] for row in self.store.sql("SELECT agent FROM runs"))}
        )
        return await self.store.aio.claim(
            worker="shadow", lease=3600.0, agents=names, package=self.package(), run=self._run
        )

    def _help(self) -> bool:
        """What others did then; whether that may let the shadow go on."""
        fold = self.store.state(self._run)
        waits = [wait for step in fold["steps"].values() for wait in step["waits"]]
        if any(self._answers(wait) for wait in waits if wait["on"] != "timer"):
            return True
        due = [wait["until"] for wait in waits if wait["on"] == "timer"]
        due += [step["not_before"] for step in fold["steps"].values() if "not_before" in step]
        if not due:
            return False
        self.moved.advance(seconds=max(0, min(due) - self.moved.wall_ms) / 1000)
        return True

    def _answers(self, wait: Json) -> bool:
        match wait["on"]:
            case "approval":
                return self._decides(wait["subject"])
            case "signal":
                signal = self.ledger.signal(wait["subject"])
                if signal is not None:
                    self.store.signal(self._run, signal["name"], signal["payload"])
                return signal is not None
            case "child":
                return self._ends(wait["subject"])
            case _:
                return False  # a doubt, a divergence, a budget: nobody is here to decide about a shadow

    def _decides(self, approval: str) -> bool:
        request = self.approvals.get(approval)
        said = self.ledger.decision(request.tool, request.arguments, request.redacted)
        if said is None:
            self.ledger.refused.append(Refused("approval", request.tool, request.arguments))
            return False
        decide = self.approvals.deny if said["state"] == "denied" else self.approvals.approve
        try:
            for voter in said["by"]:
                decide(approval, by=voter)
        except HoldfastError:
            return False  # under the other policy they may not decide this
        return True

    def _ends(self, child: str) -> bool:
        """Has a child come to what it came to then."""
        claim = self.store.claim(worker="shadow", lease=3600.0, run=child)
        if claim is None:
            return False
        end = self.ledger.child(claim.agent, claim.input)
        if end is None:
            self.ledger.refused.append(Refused("child", claim.agent, claim.input))
        if end is not None and end["status"] == "completed":
            self.store.finish(claim, result=end.get("result"))
        else:
            failure = (end or {}).get("failure") or {"error": "NeverRecorded"}
            error = type(str(failure["error"]), (Exception,), {})(failure.get("message") or "")
            self.store.fail(claim, error, retryable=False)
        return True


async def shadow(
    program: Runtime,
    journal: Journal,
    *,
    agent: Agent[..., Any] | str | None = None,
    policy: Policy | Mapping[str, Any] | str | Path | None = None,
    pure: bool = False,
) -> Shadow:
    """Runs a shadow of a run, and compares."""
    name = next(journal.kinds("run.created")).body["agent"]
    found = program.agent_of(agent if agent is not None else name)
    if policy is None:
        active = _core.active_policy(program.store._core)
        policy = None if active is None else active[1]
    stage = _Stage(program, journal, policy, pure=pure)
    try:
        run = await stage.play(found)
        told = Journal.of(stage.store, run)
        for fact in told.everything:
            _ = fact.value  # read while there is a store to read from
        fold = told.fold()
        result = None if fold.end is None else fold.end.get("result")
        compared = diff(picture(journal), picture(told))
        refused = tuple(stage.ledger.refused)
        return Shadow(journal.run, fold.status, result, stage.ledger.served, refused, compared, told)
    finally:
        stage.store.close()
