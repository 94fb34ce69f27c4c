"""What observers hear of one call on its way: that it comes, that a person is asked, what that person said,
how it ended; each once.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from holdfast import _core

if TYPE_CHECKING:
    from collections.abc import Generator

    from holdfast.gateway.hooks import Outcome
    from holdfast.gateway.passage import Passenger
    from holdfast.store import Claim, Record, Store

Json = dict[str, Any]

WATCHED = ("before_tool_call", "before_approval_request", "after_approval_decision", "after_tool_call")
LOOKS_ON = "holdfast.observers"
"""An evaluator that allows everything: that leaves no trace, and has the door say which calls are new."""
ENDS = frozenset(("approval.timed_out", "call.served", "effect.resolved"))
"""What ends a call without a body of ours."""
STEPS_MAX = 256
"""Steps whose news are kept; those of others are read again."""
OUTCOMES: dict[str, Outcome] = {
    "cancelled": "cancelled",
    "compensated": "compensated",
    "denied_by_person": "denied",
    "denied_by_rule": "denied",
    "no_effect": "no_effect",
    "succeeded": "succeeded",
    "unrecordable": "unrecordable",
}


class News:
    """What others have decided about the calls of a step since it was last put to rest."""

    def __init__(self) -> None:
        self._steps: OrderedDict[tuple[str, str], _Step] = OrderedDict()
        self._lock = threading.Lock()

    def take(self, store: Store, claim: Claim, call: str) -> tuple[Json | None, bool]:
        """A decision about a call that nobody has heard of yet, and whether others have ended the call."""
        key = (claim.run, claim.step)
        with self._lock:
            step = self._steps.setdefault(key, _Step(claim.step))
            self._steps.move_to_end(key)
            if len(self._steps) > STEPS_MAX:
                self._steps.popitem(last=False)
            for record in store.read(claim.run, after=step.after):
                step.reads(record)
            ended = call in step.ended
            step.ended.discard(call)
            return step.decided.pop(call, None), ended


class _Step:
    def __init__(self, step: str) -> None:
        self.step = step
        self.after = 0
        self.decided: dict[str, Json] = {}
        self.ended: set[str] = set()

    def reads(self, record: Record) -> None:
        self.after = record.seq
        kind, body, call = record.kind, record.body, record.fields.get("call")
        if kind in ("step.waiting", "step.retry_scheduled") and record.fields.get("step") == self.step:
            self.decided.clear()  # an attempt has come by since
            self.ended.clear()
        if call is None:
            return
        if kind == "approval.decided":
            decision = "denied" if body["decision"] == "denied" else "approved"
            self.decided[call] = {"approval": body["approval"], "call": call, "decision": decision}
            if decision == "denied":
                self.ended.add(call)
        elif kind in ENDS and body.get("resolution") != "did_not_happen":
            self.ended.add(call)


class Watch:
    """The observers of one passage."""

    def __init__(self, passenger: Passenger, new: str) -> None:
        self._passenger = passenger
        self._id = new
        self._gateway = passenger.gateway
        self.arguments: Json = passenger.asked.arguments
        """As hooks have left them."""
        self._redact: list[str] = []
        self._at_hooks = self._edited = False
        self._new = False
        self._requested = False
        self.result: Any = None
        """Of a pure call, as JSON: what agent code gets is its own, and may be read only once."""
        self.ended = False
        """It has ended on this way: a body did, or a hook or a rule has refused it."""

    def gate(self, told: Json) -> None:
        """Hears what the door said."""
        what, call = told["gate"], told.get("call") or told.get("permit", {}).get("call")
        if what == "rooms":
            self.arguments, self._redact = self._passenger.asked.arguments, told["redact"]
            self._at_hooks, self._new, self._requested = True, True, False
            self._edited = "edited" in told
            return
        if what == "again":
            return
        # One that waited for the budget or for a key comes by hooks once more, and is no other call for that.
        if self._at_hooks and what != "before_approval":
            self._at_hooks = False
            if self._edited or call in (None, self._id):
                self._tell("before_tool_call", self._shown())
        asks = what == "before_approval" or told.get("wait", {}).get("on") == "approval"
        if asks and self._new and not self._requested:
            self._requested = True
            self._tell("before_approval_request", self._shown())
        self.ended |= what == "served" and self._new
        if call is not None and (what == "served" or not self._new):
            self._news(call)

    def _news(self, call: str) -> None:
        """A call that comes again: somebody may have decided about it meanwhile."""
        decided, ended = self._gateway.news.take(self._gateway.store, self._passenger.claimed, call)
        self.ended |= ended
        if decided is not None:
            self._tell("after_approval_decision", decided)

    def over(self, served: Json) -> None:
        """The call has ended, if it has not done so before."""
        if self.ended:
            outcome: Outcome = OUTCOMES.get(str(served.get("outcome")), "failed")
            self._tell("after_tool_call", served.get("result") if outcome == "succeeded" else None, outcome)

    def body(self, way: Generator[Any, Any, Any]) -> Generator[Any, Any, Any]:
        """A body of which nothing is written."""
        try:
            value = yield from way
        except GeneratorExit:
            raise
        except BaseException:
            self._tell("after_tool_call", None, "failed")
            raise
        self._tell("after_tool_call", self.result, "succeeded")
        return value

    def _shown(self) -> Any:  # noqa: ANN401 (any JSON)
        return _core.redacted(self.arguments, self._redact)

    def _tell(self, point: str, value: object, outcome: Outcome | None = None) -> None:
        for observer in self._gateway.observers(point):
            observer.tell(replace(self._passenger.seen(point, value), outcome=outcome))
