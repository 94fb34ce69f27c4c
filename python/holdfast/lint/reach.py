"""What agents reach: from each agent along calls inside the module to what rules know.

A suppression of a call on the way cuts the way for its rule; what can be reached only by ways that were cut
is suppressed.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from holdfast.lint.rules import BY_ID

if TYPE_CHECKING:
    from collections.abc import Iterable

    from holdfast.lint.suppress import Suppressions
    from holdfast.lint.values import Declared, Event, Span, Unit

ACTS = frozenset(f"HF{number}" for number in range(101, 111))
READS = frozenset(("HF206",))
LONG = 6  # functions of a way that are named


@dataclass(frozen=True)
class Seen:
    """Something to report, before anybody decides about its severity."""

    rule: str
    at: Span
    message: str
    callable: str
    function: str
    agent: str | None = None
    via: tuple[str, ...] = ()
    reason: str | None = None


@dataclass(frozen=True)
class Way:
    """How a function is reached: from which agent, and from which function last."""

    root: Unit
    before: Unit | None


Ways = dict["Unit", Way]


def ways(roots: Iterable[Unit], rule: str | None, cut: Suppressions, *, tools: bool = False) -> Ways:
    """The shortest way to each function that roots reach, without calls that are suppressed for a rule."""
    found: Ways = {root: Way(root, None) for root in roots}
    left = deque(found)
    while left:
        unit = left.popleft()
        for edge in unit.edges.values():
            if edge.to in found or (edge.tool and not tools):
                continue
            if rule is not None and cut.reason(rule, edge.at) is not None:
                continue
            found[edge.to] = Way(found[unit].root, unit)
            left.append(edge.to)
    return found


def _names(unit: Unit, found: Ways) -> tuple[str, ...]:
    """The functions of a way; of a long one, its beginning and its end."""
    names = [unit.name]
    before = found[unit].before
    while before is not None and len(names) < LONG:
        names.append(before.name)
        before = found[before].before
    if before is not None:
        names += ["...", found[unit].root.name] if before is not found[unit].root else [before.name]
    return tuple(reversed(names))


def of_agents(units: Iterable[Unit], cut: Suppressions) -> list[Seen]:
    """What agents do, themselves or through functions of the module."""
    roots = [unit for unit in units if unit.role == "agent"]
    whole = ways(roots, None, cut)
    by_rule: dict[str, Ways] = {}
    found = []
    for unit in whole:
        for event in unit.events.values():
            if event.rule not in by_rule:
                by_rule[event.rule] = ways(roots, event.rule, cut) if cut.names(event.rule) else whole
            uncut = by_rule[event.rule]
            reason = cut.take(event.rule, event.at)
            if reason is None and unit not in uncut:
                reason = _cut_on(unit, whole, event.rule, cut)
            found.append(_seen(event, _names(unit, uncut if unit in uncut else whole), reason))
    return found


def _cut_on(unit: Unit, found: Ways, rule: str, cut: Suppressions) -> str | None:
    """The reason of a suppressed call on the way to a function."""
    reason = None
    before = found[unit].before
    while before is not None:
        for edge in before.edges.values():
            if edge.to is unit:
                reason = cut.take(rule, edge.at) or reason
        unit, before = before, found[before].before
    return reason


def _seen(event: Event, names: tuple[str, ...], reason: str | None) -> Seen:
    through = f", which {' calls '.join(names[:-1])} calls" if len(names) > 1 else ""
    where = f"in {names[-1]}{through}" if through else f"in the agent {names[0]}"
    message = f"{event.callable} {BY_ID[event.rule].what}, {where}. {BY_ID[event.rule].fix}"
    return Seen(event.rule, event.at, message, event.callable, names[-1], names[0], names[1:], reason)


def of_tools(declared: Iterable[Declared], cut: Suppressions, outward: set[Unit]) -> list[Seen]:
    """What is declared about bodies, against what they do."""
    found = []
    for one in declared:
        words = dict(one.words)
        reached = ways(one.bodies, None, cut, tools=True)
        events = [*one.events, *(event for unit in reached for event in unit.events.values())]
        effect = words.get("effect")
        if effect == "pure":
            guilty = [event for event in events if event.rule in ACTS | READS]
            found += _contradiction("HF301", one, guilty, cut)
        elif effect == "read":
            guilty = [event for event in events if event.rule in ACTS and event.writes]
            found += _contradiction("HF302", one, guilty, cut)
        elif effect == "write" and one.kind == "tool" and one.complete:
            guarded = words.keys() & {"idempotent", "reconcile"}
            acts = any(event.rule in ACTS for event in events) or bool(outward & reached.keys())
            if acts and not guarded:
                found.append(_declaration("HF303", one, "", cut))
        if words.get("risk") in ("high", "critical") and words.get("approval") == "never":
            found.append(_declaration("HF304", one, "", cut))
    return found


def _contradiction(rule: str, one: Declared, events: list[Event], cut: Suppressions) -> list[Seen]:
    if not events:
        return []
    event = min(events, key=lambda event: (event.at.line, event.callable))
    return [_declaration(rule, one, f": {event.callable} in line {event.at.line}", cut)]


def _declaration(rule: str, one: Declared, more: str, cut: Suppressions) -> Seen:
    message = f"{one.name} {BY_ID[rule].what}{more}. {BY_ID[rule].fix}"
    return Seen(rule, one.at, message, one.name, one.name, reason=cut.take(rule, one.at))
