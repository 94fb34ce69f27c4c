"""Replay: a run's code once more, against what was recorded, and whether it came to the same.

Nothing acts and nothing is written. Every step that was ever claimed is run again; what is compared is what
each returned or raised, and the state.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from holdfast.errors import HoldfastError
from holdfast.evidence.journal import Gone, Journal
from holdfast.evidence.rehearsal import Came, Rehearsal, Unreadable, Unrecorded, identity, waited
from holdfast.runtime.agents import refuse
from holdfast.runtime.ends import Diverged, Waits
from holdfast.store.commands import Claim
from holdfast.visible import Shown

if TYPE_CHECKING:
    from holdfast.evidence.fold import Entry, Fold
    from holdfast.runtime.runtime import Runtime

Json = dict[str, Any]
GRACE = 5.0
"""Seconds without anything asked after which code that is run again counts as stuck, at most."""
OPEN = frozenset(("pending", "running", "retry_scheduled", "cancelled"))
"""Steps whose code may do more than was recorded: somebody was in the middle, or a person stopped it."""


class Verdict(StrEnum):
    """What a replay came to, from the best to the worst."""

    SAME = "same"
    """The code did what was recorded, as far as that goes."""
    STOPPED = "stopped"
    """Something that the code needs is not in the journal."""
    DIFFERS = "differs"
    """It made the same calls and came to something else."""
    DIVERGED = "diverged"
    """It made other calls."""


@dataclass(frozen=True)
class Sketch(Shown):
    """A call, as far as two can be compared."""

    kind: str
    name: str
    effect: str
    lane: str
    arguments: Any
    seq: int | None = None
    """Where it was opened, if it was."""

    def __str__(self) -> str:
        return f"{self.name}({self.arguments})" + (f" at record {self.seq}" if self.seq is not None else "")


@dataclass(frozen=True)
class Divergence(Shown):
    """Where code and journal part, side by side."""

    why: str
    recorded: tuple[Sketch, ...]
    """What the journal has and the code did not ask for."""
    attempted: Sketch | None
    """What the code asked for instead, if it did."""

    @property
    def seq(self) -> int | None:
        """The first record that the code does not come to."""
        return min((sketch.seq for sketch in self.recorded if sketch.seq is not None), default=None)


@dataclass(frozen=True)
class Replayed(Shown):
    """A step that was run again."""

    step: str
    name: str
    verdict: Verdict
    why: str
    recorded: Json
    """What the step came to then: ``status``, and ``result`` or ``error``."""
    replayed: Json
    """What it came to now."""
    divergence: Divergence | None = None
    state_same: bool | None = None
    """Whether its end commits the same; None if it did not come to its end."""


@dataclass(frozen=True)
class Replay(Shown):
    """A run that was run again."""

    _verdict = ("verdict",)

    run: str
    steps: tuple[Replayed, ...]

    @property
    def verdict(self) -> Verdict:
        """The worst of its steps."""
        order = list(Verdict)
        return max((step.verdict for step in self.steps), key=order.index, default=Verdict.SAME)

    @property
    def same(self) -> bool:
        """Whether result and state came out the same, by the same calls."""
        return self.verdict is Verdict.SAME

    @property
    def divergence(self) -> Divergence | None:
        """The first one."""
        return next((step.divergence for step in self.steps if step.divergence is not None), None)

    @property
    def seq(self) -> int | None:
        """The record that the first divergence is about."""
        return None if self.divergence is None else self.divergence.seq

    def as_dict(self) -> Json:
        """The same as JSON."""
        return {
            "run": self.run,
            "verdict": self.verdict,
            "seq": self.seq,
            "steps": [asdict(s) for s in self.steps],
        }


async def replay(runtime: Runtime, journal: Journal, *, pure: bool = False) -> Replay:
    """Runs every step of a run again that was ever claimed, in the order in which they were made."""
    if journal.store != runtime.store.id:
        told = "a bundle has not the seed that calls are known by: replay the run where its store is"
        raise refuse("no_such_run", told)
    fold, found = journal.fold(), []
    claimed = {fact.step for fact in journal.kinds("step.claimed")}
    for name, step in fold.steps.items():
        if name in claimed:
            found.append(await _Step(runtime, journal, fold, name, step).replayed(pure=pure))
    return Replay(journal.run, tuple(found))


class _Step:
    """One step, then and now."""

    def __init__(self, runtime: Runtime, journal: Journal, fold: Fold, step: str, known: Json) -> None:
        self.runtime, self.journal, self.fold = runtime, journal, fold
        self.step, self.known = step, known
        self.facts = [fact for fact in journal.everything if fact.step == step]
        self.calls = [entry for entry in fold.ledger if entry.step == step]

    # What was.

    def then(self) -> Json:
        """What the step came to when it was recorded."""
        status = self.known["status"]
        told: Json = {"status": status}
        ends = [f for f in self.facts if f.kind in ("step.completed", "step.failed", "step.retry_scheduled")]
        if status == "completed":
            told["result"] = ends[-1].value.get("result")
        elif status in ("failed", "retry_scheduled"):
            failure = ends[-1].value["failure"] if ends else {"error": "lost"}
            told["error"] = {name: failure.get(name) for name in ("code", "error", "message")}
        return told

    def patch(self) -> Json:
        """What the step's end committed."""
        end = next(fact for fact in reversed(self.facts) if fact.kind == "step.completed")
        mine = [
            f for f in self.facts if f.kind == "state.patched" and f.frame == end.frame and f.call is None
        ]
        patch: Json = mine[-1].value["patch"] if mine else {}
        return patch

    def claim(self) -> Claim:
        """The claim that its last attempt had, as far as code can see it."""
        made = next(self.journal.kinds("run.created"))
        created = next(fact for fact in self.facts if fact.kind == "step.created")
        return Claim(
            run=self.journal.run,
            step=self.step,
            fence=(0, 0),
            attempt=self.known["attempt"],
            state_version=self.fold.state_version,
            agent=made.body["agent"],
            name=self.known["name"],
            worker="replay",
            lease=60.0,
            state=self.fold.state,
            input=made.value["input"],
            step_input=created.value.get("input"),
            kind=self.known["kind"],
            role=made.body["role"],
            session=made.body.get("session"),
        )

    def performed(self) -> set[bytes]:
        """What the runs that a fork came from have done, before the fork and after it."""
        found, run = set(), self.journal
        while run.facts[0].kind == "run.forked" and run.facts[0].body["effects"] == "serve":
            run = Journal.of(self.runtime.store, run.facts[0].body["parent"])
            sent = [entry for entry in run.fold().ledger if entry.effect == "write" and entry.dispatch]
            found |= {identity(entry) for entry in sent if not isinstance(entry.arguments, Gone)}
        return found

    def injected(self) -> list[Any]:
        """What hooks put in when the step's last attempt was starting."""
        last = max((f.seq for f in self.facts if f.kind == "step.claimed"), default=0)
        found: list[Any] = []
        for fact in self.facts:
            response = fact.value.get("response") if fact.kind == "hook.ruled" else None
            if fact.seq > last and response and response["type"] == "inject_context":
                items = response["payload"]["items"]
                found.extend(items if isinstance(items, list) else [])
        return found

    # What is.

    async def replayed(self, *, pure: bool) -> Replayed:
        """Runs its code, and compares."""
        if self.known["kind"] == "attached":
            return self._told(Verdict.STOPPED, "a framework resumes this step from its own checkpoint", {})
        claim = self.claim()
        if isinstance(claim.input, Gone) or isinstance(claim.step_input, Gone):
            return self._told(Verdict.STOPPED, "the input is gone", {})
        agent = self.runtime.agent_for(claim)
        if agent is None:
            name = (claim.step_input or {}).get("function", claim.agent)
            raise refuse("no_such_agent", f"this program has no agent or step function called {name}")
        grace = min(GRACE, self.runtime.replay_grace)
        outcomes = {entry.id for entry in self.fold.ledger if entry.outcome is not None}
        rehearsal = Rehearsal(self.runtime, claim, agent, grace=grace, injected=self.injected())
        try:
            came = await rehearsal.rehearse(outcomes, self.performed(), pure=pure)
        except HoldfastError as error:
            if error.code not in ("content_erased", "content_lost"):
                raise
            return self._told(Verdict.STOPPED, f"what the code needs is gone: {error.code}", {})
        return self._judged(came)

    def _judged(self, came: Came) -> Replayed:
        match came.end:
            case None:
                return self._ended(came)
            case Diverged():
                return self._diverged(self._divergence(came.end.divergence, came))
            case Unrecorded():
                return self._beyond(came.end)
            case Unreadable():
                return self._told(Verdict.STOPPED, f"the outcome of {came.end.call} was erased", {})
            case Waits():
                return self._waits(waited(came.end))
            case _:
                return self._told(Verdict.STOPPED, str(came.end.error or came.end), {})

    def _told(self, verdict: Verdict, why: str, now: Json, **more: Any) -> Replayed:  # noqa: ANN401
        return Replayed(self.step, self.known["name"], verdict, why, self.then(), now, **more)

    def _diverged(self, divergence: Divergence) -> Replayed:
        now: Json = {"status": "diverged"}
        return self._told(Verdict.DIVERGED, divergence.why, now, divergence=divergence)

    def _ended(self, came: Came) -> Replayed:
        """The code came to its own end: did it ask for all, and come to the same?"""
        unasked = [entry for entry in self.calls if entry.id not in came.heard and self._expected(entry)]
        if unasked and self.known["status"] in ("completed", "failed"):
            why = "the code ended without asking for recorded calls"
            return self._diverged(Divergence(why, tuple(map(self._sketch, unasked)), None))
        then = self.then()
        if came.error is not None:
            now: Json = {"status": "failed", "error": came.error}
            if then["status"] in OPEN and "error" not in then:
                return self._told(Verdict.SAME, "the code goes on where the journal ends", now)
            same = then.get("error") == came.error
            return self._told(Verdict.SAME if same else Verdict.DIFFERS, "" if same else "the error", now)
        now = {"status": "completed", "result": came.result}
        if then["status"] != "completed":
            beyond = then["status"] in OPEN
            why = "the code goes on where the journal ends" if beyond else f"the step was {then['status']}"
            return self._told(Verdict.SAME if beyond else Verdict.DIFFERS, why, now)
        state_same = came.patch == self.patch()
        wrong = [
            what
            for what, fine in (("the result", came.result == then["result"]), ("the state", state_same))
            if not fine
        ]
        verdict = Verdict.DIFFERS if wrong else Verdict.SAME
        return self._told(verdict, " and ".join(wrong), now, state_same=state_same)

    def _expected(self, entry: Entry) -> bool:
        """Whether code that is run again asks for a call. What an attempt that failed did by chance, and that
        changes nothing, the next one need not do."""
        if entry.phase == "abandoned":
            return False
        opened = next(f for f in self.facts if f.kind == "call.opened" and f.call == entry.id)
        return entry.acts or opened.fields.get("attempt", 0) == self.known["attempt"]

    def _beyond(self, end: Unrecorded) -> Replayed:
        """The code asks for what was never recorded."""
        asked = end.operation
        attempted = Sketch(asked.kind, asked.name, asked.effect, asked.lane, asked.arguments)
        if asked.effect == "pure":
            told = f"{attempted} leaves no record: allow pure bodies to run"
            return self._told(Verdict.STOPPED, told, {"status": "stopped"})
        if self.known["status"] in OPEN:
            told = f"the code goes on with {attempted} where the journal ends"
            return self._told(Verdict.SAME, told, {"status": "stopped"})
        why = "the code asks for a call that was never recorded"
        return self._diverged(Divergence(why, (), attempted))

    def _waits(self, calls: list[str]) -> Replayed:
        """The code waits for calls that have no outcome."""
        now: Json = {"status": "waiting"}
        waits = [self._sketch(self.fold.calls[call]) for call in calls if call in self.fold.calls]
        told = f"the journal has no outcome of {', '.join(map(str, waits)) or 'what the code awaits'}"
        ended = self.known["status"] in ("completed", "failed")
        return self._told(Verdict.STOPPED if ended else Verdict.SAME, told, now)

    # Side by side.

    def _divergence(self, told: Json, came: Came) -> Divergence:
        recorded = [self.fold.calls[one["call"]] for one in told["recorded"]]
        attempted, sketch = told.get("attempted"), None
        if attempted is not None:
            kind, name, lane = attempted["kind"], attempted["name"], attempted["lane"]
            sketch = Sketch(kind, name, attempted["effect"], lane, came.asked.get((kind, name, lane)))
        return Divergence(told["why"], tuple(map(self._sketch, recorded)), sketch)

    def _sketch(self, entry: Entry) -> Sketch:
        _, seq = self.journal.place(entry.opened)
        return Sketch(entry.kind, entry.name, entry.effect, entry.lane, entry.arguments, seq)
