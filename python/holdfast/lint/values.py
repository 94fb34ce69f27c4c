"""What is known about a value without running anything, and where names are bound.

A value is a set of things that it may be; the empty set is a value that nothing is known about, and such a
value is innocent. A :class:`Ref` is a dotted name from an import, where ``()`` stands for a call:
``httpx.Client().post`` is the method of a client that was made.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    import ast
    from collections.abc import Iterable

MOST = 64  # things that one value may be; more are forgotten, in a fixed order
NAME_MOST = 300  # characters of a dotted name
DEEP = 4  # containers in containers


@dataclass(frozen=True)
class Ref:
    """Something from an import, by its dotted name."""

    name: str


@dataclass(frozen=True)
class Const:
    """A string or a number that is written down."""

    value: str | int


@dataclass(frozen=True)
class Many:
    """A container of what it may hold."""

    of: Values


@dataclass(eq=False)
class Unit:
    """A function, method or lambda of the module that is read, or the module itself.

    Attributes:
        role: ``agent``, ``tool`` (a declared body that may act), ``outside`` (a hook, an approver, ...) or
            empty.
        kind: ``property``, ``staticmethod``, ``classmethod`` or empty.
        events: what it does that some rule knows.
        edges: other functions that it calls or hands on, and where.
    """

    node: ast.AST
    name: str
    scope: Scope | None
    owner: Class | None = None
    role: str = ""
    kind: str = ""
    events: dict[tuple[str, int, str], Event] = field(default_factory=dict)
    edges: dict[tuple[int, int], Edge] = field(default_factory=dict)
    given: dict[str, Values] = field(default_factory=dict)
    returns: Values = frozenset()


@dataclass(eq=False)
class Class:
    """A class of the module that is read."""

    node: ast.ClassDef
    name: str
    bases: Values = frozenset()
    attributes: dict[str, Values] = field(default_factory=dict)


@dataclass(frozen=True)
class Inst:
    """An object of a class of the module; of one under it, too, where it is ``self``."""

    of: Class
    under: bool = False


@dataclass(frozen=True)
class Tool:
    """A function of the module that was registered as a tool."""

    unit: Unit


Value: TypeAlias = Ref | Const | Many | Unit | Class | Inst | Tool
Values: TypeAlias = frozenset[Value]
NOTHING: Values = frozenset()


@dataclass(frozen=True)
class Span:
    """Where something stands; ``first`` and ``last`` are the lines of its statement."""

    line: int
    column: int
    end_line: int
    end_column: int
    first: int
    last: int


@dataclass(frozen=True)
class Event:
    """Something that a rule knows, in a function."""

    rule: str
    callable: str
    at: Span
    writes: bool


@dataclass(frozen=True)
class Edge:
    """A call of another function, or a reference to it. A tool's is followed only from tools."""

    to: Unit
    at: Span
    tool: bool = False


@dataclass(frozen=True)
class Declared:
    """What somebody says about a body: ``rt.tool(...)``, ``hf.guard(...)`` or ``ctx.do(...)``."""

    kind: str
    name: str
    bodies: tuple[Unit, ...]
    events: tuple[Event, ...]
    words: tuple[tuple[str, str | None], ...]
    """Keywords and what they are, if that is written down."""
    complete: bool
    at: Span


class Scope:
    """Names of a module or a function: what they are now, and everything that they ever were."""

    def __init__(self, up: Scope | None = None) -> None:
        self.up = up
        self.now = Env()
        self.ever: dict[str, Values] = {}
        self.elsewhere: dict[str, Scope] = {}
        """Names that ``global`` and ``nonlocal`` say are another scope's."""
        self.told: dict[str, Values] = {}
        """What other scopes bound here."""

    def settle(self) -> None:
        """A module has run: from now on its names are what they are at its end."""
        layers: list[dict[str, Values]] = []
        env: Env | None = self.now
        while env is not None:
            layers.append(env.own)
            env = env.up
        self.ever = {name: values for own in reversed(layers) for name, values in own.items()}
        for name, values in self.told.items():
            self.ever[name] = union((self.ever.get(name, NOTHING), values))

    def bind(self, name: str, values: Values) -> None:
        """Binds a name."""
        other = self.elsewhere.get(name)
        if other is not None:
            for kept in (other.ever, other.told):
                kept[name] = union((kept.get(name, NOTHING), values))
            return
        self.now.own[name] = values
        self.ever[name] = union((self.ever.get(name, NOTHING), values))

    def add(self, name: str, values: Values) -> None:
        """A container may hold more, wherever it is bound."""
        scope: Scope | None = self
        if self.now.get(name) is None:
            scope = self.up
            while scope is not None and name not in scope.ever:
                scope = scope.up
        if scope is None or scope is self:
            self.bind(name, union((self.look(name) or NOTHING, values)))
            return
        for kept in (scope.ever, scope.told):
            kept[name] = union((kept.get(name, NOTHING), values))

    def look(self, name: str) -> Values | None:
        """What a name is here; ``None`` if nobody has bound it."""
        found = None if name in self.elsewhere else self.now.get(name)
        scope = self.elsewhere.get(name, self.up)
        while found is None and scope is not None:
            found = scope.ever.get(name)
            scope = scope.up
        return found


class Env:
    """What names are at one point; a branch is a layer above, so that making one costs nothing."""

    def __init__(self, up: Env | None = None) -> None:
        self.own: dict[str, Values] = {}
        self.up = up

    def get(self, name: str) -> Values | None:
        """What a name is, if it is bound."""
        env: Env | None = self
        while env is not None:
            if name in env.own:
                return env.own[name]
            env = env.up
        return None

    def merge(self, branches: Iterable[Env], *, complete: bool) -> None:
        """Goes on after branches, of which one was taken; or none, if they are not complete."""
        layers = list(branches)
        for name in dict.fromkeys(name for layer in layers for name in layer.own):
            found = [layer.get(name) or NOTHING for layer in layers]
            if not complete:
                found.append(self.get(name) or NOTHING)
            self.own[name] = union(found)


def union(sets: Iterable[Values]) -> Values:
    """What is in any of them, but no more than can be dealt with."""
    found = frozenset().union(*sets)
    if len(found) <= MOST:
        return found
    return frozenset(sorted(found, key=_order)[:MOST])


def _order(value: Value) -> tuple[str, str, int]:
    kind = type(value).__name__
    match value:
        case Ref():
            return kind, value.name, 0
        case Const():
            return kind, str(value.value), 0
        case Many():
            return kind, "", len(value.of)
        case Inst():
            return kind, value.of.name, value.of.node.lineno
        case Tool():
            return kind, value.unit.name, getattr(value.unit.node, "lineno", 0)
        case _:
            return kind, value.name, getattr(value.node, "lineno", 0)


def ref(name: str) -> Values:
    """A dotted name, unless it is absurdly long."""
    return frozenset((Ref(name),)) if len(name) <= NAME_MOST else NOTHING


def many(inside: Values, depth: int = DEEP) -> Values:
    """A container."""
    return frozenset((Many(_shallow(inside, depth)),)) if inside else NOTHING


def _shallow(values: Values, depth: int) -> Values:
    if depth == 0:
        return frozenset(value for value in values if not isinstance(value, Many))
    return frozenset(
        Many(_shallow(value.of, depth - 1)) if isinstance(value, Many) else value for value in values
    )


def inside(values: Values) -> Values:
    """What containers hold."""
    return union(value.of for value in values if isinstance(value, Many))


def flat(values: Values) -> Values:
    """What it is, and what it holds, however deep."""
    deeper = inside(values)
    return union((values, flat(deeper))) if deeper else values


def strings(values: Values) -> list[str]:
    """The strings among values."""
    return sorted(
        value.value for value in values if isinstance(value, Const) and isinstance(value.value, str)
    )
