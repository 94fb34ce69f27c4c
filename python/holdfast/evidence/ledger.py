"""A run's ledger as a stand-in for the world: each recorded call is there once, by name and arguments."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from holdfast import _core
from holdfast.evidence.journal import Gone
from holdfast.gateway.outcomes import EffectFailed, NoEffect, Result

if TYPE_CHECKING:
    from holdfast.evidence.fold import Entry
    from holdfast.evidence.journal import Journal

Json = dict[str, Any]
SERVED = frozenset(("succeeded", "write_failed", "read_failed", "no_effect"))
"""Outcomes that a stand-in can come to. What was denied then has done nothing that could be given back."""


@dataclass(frozen=True)
class Refused:
    """Something that the code asked for and that the recorded run had never done."""

    kind: str
    name: str
    arguments: Any

    def __str__(self) -> str:
        return f"{self.name}({self.arguments})"


class Ledger:
    """What a run has done, to be served once each.

    Attributes:
        served: how many of its calls were given back.
        refused: what was asked for and is not in it.
    """

    def __init__(self, journal: Journal) -> None:
        self.served = 0
        self.refused: list[Refused] = []
        self._known: dict[bytes, list[Entry]] = {}
        self._usage = {
            fact.call: fact.body.get("usage") for fact in journal.everything if fact.kind == "effect.settled"
        }
        for entry in journal.fold().ledger:
            gone = isinstance(entry.arguments, Gone) or isinstance(entry.result, Gone)
            if entry.outcome in SERVED and entry.kind in ("tool", "task") and not gone:
                self._known.setdefault(self._key(entry.kind, entry.name, entry.arguments), []).append(entry)
        self.decisions = [dict(request) for request in journal.fold().approvals.values()]
        self.signals = [fact.value for fact in journal.kinds("signal.received")]
        self.times = [
            entry.result
            for entry in journal.fold().ledger
            if entry.kind == "now" and entry.outcome is not None
        ]
        ended = {fact.body["child"]: fact.value for fact in journal.kinds("child.ended")}
        self.children = [
            {**fact.value, "end": ended.get(fact.body["child"])} for fact in journal.kinds("child.spawned")
        ]

    @staticmethod
    def _key(kind: str, name: str, arguments: object) -> bytes:
        return _core.canonical_dumps([kind, name, arguments])

    def serve(self, kind: str, name: str, arguments: Json) -> Result[Any]:
        """What a call came to then, or its error; refused if there was none.

        Raises:
            NoEffect: it did nothing then, or it is not in the ledger.
            EffectFailed: it failed then.
        """
        entries = self._known.get(self._key(kind, name, arguments))
        if not entries:
            self.refused.append(Refused(kind, name, arguments))
            raise NoEffect("a shadow run does only what was recorded, and this was not")
        entry = entries.pop(0)
        self.served += 1
        failure = entry.failure or {}
        message = str(failure.get("message") or "")
        if entry.outcome == "succeeded":
            return Result(entry.result, entry.external_id, self._usage.get(entry.id))
        if entry.outcome == "no_effect":
            raise NoEffect(message)
        error = str(failure.get("error") or "EffectFailed")
        if entry.effect == "write":
            raise EffectFailed(message, error=error, code=str(failure.get("code") or "effect_failed"))
        raise type(error, (Exception,), {})(message)  # a read that fails is known by the name of its error

    def decision(self, tool: str, arguments: object, redacted: tuple[str, ...] = ()) -> Json | None:
        """What people said about a request of the same tool with the same arguments, once.

        Args:
            tool: its name.
            arguments: as they are shown now.
            redacted: what of them is not.
        """
        for request in self.decisions:
            known = request["arguments"]
            if redacted and not isinstance(known, Gone):
                known = _core.redacted(known, list(redacted))
            if request["tool"] == tool and known == arguments and request.get("by"):
                self.decisions.remove(request)
                return request
        return None

    def signal(self, name: str) -> Json | None:
        """The next signal of a name."""
        found = next((signal for signal in self.signals if signal["name"] == name), None)
        if found is not None:
            self.signals.remove(found)
        return found

    def child(self, agent: str, given: object) -> Json | None:
        """How a child of an agent, with the same input, ended."""
        for child in self.children:
            if child["agent"] == agent and child["input"] == given:
                self.children.remove(child)
                return child["end"]  # type: ignore[no-any-return]
        return None
