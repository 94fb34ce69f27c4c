"""What an expression may be. Nothing is run: each kind of expression says what it may come to."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from holdfast.lint.known import DATA, same
from holdfast.lint.names import ROLES, Names, constant
from holdfast.lint.values import (
    NOTHING,
    Class,
    Inst,
    Many,
    Ref,
    Tool,
    Unit,
    inside,
    many,
    ref,
    strings,
    union,
)

if TYPE_CHECKING:
    from holdfast.lint.values import Value, Values

ATTEMPT = Ref("holdfast.Context().attempt")
PATH = "pathlib.Path()"
PROPERTIES = frozenset(("property", "functools.cached_property"))
THEMSELVES = frozenset(("__call__", "__wrapped__", "__func__", "function", "func"))
OF_CONTAINERS = frozenset(name for kind in (dict, list, set, tuple, str) for name in dir(kind))
HEIRS_MOST = 30  # classes under a class that are asked
BASES_MOST = 30  # classes above each other
SCOPED = (ast.ListComp, ast.SetComp, ast.GeneratorExp)


class Expressions(Names):
    """Reads expressions."""

    def call(self, node: ast.Call) -> Values:
        """A call: :mod:`holdfast.lint.calls`."""
        raise NotImplementedError

    def eval(self, node: ast.expr | None) -> Values:
        """What an expression may be."""
        match node:
            case ast.Name():
                return self._seen(self.look(node.id), node)
            case ast.Attribute():
                return self._attribute(node)
            case ast.Call():
                return self.call(node)
            case ast.Constant():
                return constant(node)
            case ast.Await():
                values = self.eval(node.value)
                return union((values, self.special(values, ("__await__",), node)))
            case ast.Starred():
                return self.eval(node.value)
            case ast.BinOp():
                return self._arithmetic(node)
            case ast.NamedExpr():
                values = self.eval(node.value)
                self.scope.bind(node.target.id, values)
                return values
            case ast.Subscript():
                return self._subscript(node)
            case ast.Lambda():
                return self._lambda(node)
            case None:
                return NOTHING
            case _:
                return self._compound(node)

    def _compound(self, node: ast.expr) -> Values:
        match node:
            case ast.IfExp():
                self.test(node.test)
                return union((self.eval(node.body), self.eval(node.orelse)))
            case ast.BoolOp():
                tested = [self.test(value) for value in node.values[:-1]]
                return union([*tested, self.eval(node.values[-1])])
            case ast.List() | ast.Tuple() | ast.Set():
                return many(union([self.eval(item) for item in node.elts]))
            case ast.Dict():
                keys = [self.eval(key) for key in node.keys if key is not None]
                values = [self.eval(value) for value in node.values]
                spread = [inside(value) for key, value in zip(node.keys, values, strict=True) if key is None]
                return many(union([*values, *spread])) if values or keys else NOTHING
            case ast.ListComp() | ast.SetComp() | ast.GeneratorExp() | ast.DictComp():
                return self._comprehension(node)
            case ast.Compare():
                found = [self.eval(node.left), *[self.eval(right) for right in node.comparators]]
                self.special(union(found), ("__contains__", "__eq__", "__lt__", "__gt__"), node)
                return union(found) & {ATTEMPT}
            case ast.UnaryOp():
                return self.eval(node.operand) & {ATTEMPT}
            case ast.Yield() | ast.YieldFrom():
                given = self.eval(node.value)
                self.unit.returns = union((self.unit.returns, given, many(given), inside(given)))
                return NOTHING
            case _:
                for child in ast.iter_child_nodes(node):
                    if isinstance(child, ast.expr):
                        self.eval(child)
                return NOTHING

    def test(self, node: ast.expr) -> Values:
        """Reads what a branch depends on."""
        self.testing += 1
        found = self.eval(node)
        self.testing -= 1
        return found

    def silently(self, node: ast.expr) -> Values:
        """What an expression may be, when it is noted elsewhere what it does."""
        self.quiet += 1
        found = self.eval(node)
        self.quiet -= 1
        return found

    def _seen(self, values: Values, node: ast.expr) -> Values:
        """Notes what is read without a call."""
        for value in values:
            if isinstance(value, Ref) and value.name in DATA and (self.testing or value != ATTEMPT):
                self.emit(DATA[value.name], "ctx.attempt" if value == ATTEMPT else value.name, node)
        return values

    # Attributes.

    def _attribute(self, node: ast.Attribute) -> Values:
        return self.of(self.eval(node.value), node)

    def of(self, base: Values, node: ast.Attribute) -> Values:
        """What an attribute of a value may be."""
        found = union([self.attribute(value, node.attr, node) for value in base])
        if not found and node.attr in ROLES and not any(isinstance(value, Ref) for value in base):
            return ref(f"?.{node.attr}")  # a runtime that comes from somewhere else
        return self._seen(found, node)

    def attribute(self, value: Value, name: str, node: ast.expr) -> Values:
        """What an attribute of a thing may be."""
        match value:
            case Ref() if value.name == PATH and name == "parent":
                return ref(PATH)
            case Ref() if value.name == PATH and name == "parents":
                return many(ref(PATH))
            case Ref() if name in ("__call__", "__wrapped__", "__func__"):
                return frozenset((value,))
            case Ref():
                return ref(same(f"{value.name}.{name}"))
            case Unit() | Tool() if name in THEMSELVES:
                return frozenset((value,))
            case Class():
                return self.member(value, name)
            case Inst():
                found = self.member(value.of, name)
                if value.under:
                    below = [self.member(owner, name) for owner in self._below(value.of)]
                    found = union((found, *below))
                if not found:
                    return self.special(frozenset((value,)), ("__getattr__",), node)
                return union([self._bound(inner, node) for inner in found])
            case Many() if name not in OF_CONTAINERS:
                return value.of  # a namespace
            case _:
                return NOTHING

    def member(self, owner: Class, name: str, seen: tuple[Class, ...] = ()) -> Values:
        """What a class has by a name, its bases included."""
        if name in owner.attributes:
            return owner.attributes[name]
        found = []
        for base in owner.bases:
            if isinstance(base, Class) and base not in (*seen, owner) and len(seen) < BASES_MOST:
                found.append(self.member(base, name, (*seen, owner)))
            elif isinstance(base, Ref) and base.name not in ("object", "typing.Protocol", "abc.ABC"):
                found.append(ref(same(f"{base.name}().{name}")))
        return union(found)

    def _below(self, owner: Class) -> list[Class]:
        """Classes under a class: a method may be theirs."""
        found: list[Class] = []
        left = [*self.heirs.get(owner, ())]
        while left and len(found) < HEIRS_MOST:
            one = left.pop()
            if one is not owner and one not in found:
                found.append(one)
                left += self.heirs.get(one, ())
        return found

    def _bound(self, value: Value, node: ast.expr) -> Values:
        """A member as an object has it: a property is what its function returns."""
        if isinstance(value, Unit) and value.kind in PROPERTIES:
            self.reach(value, node)
            return value.returns
        return frozenset((value,))

    # Others.

    def _arithmetic(self, node: ast.BinOp) -> Values:
        """A chain of operators, along its left side, which may be long."""
        parts: list[ast.expr] = []
        left: ast.expr = node
        while isinstance(left, ast.BinOp):
            parts.append(left.right)
            left = left.left
        found = union([self.eval(left), *[self.eval(part) for part in reversed(parts)]])
        paths = ref(PATH) & found if isinstance(node.op, ast.Div) else NOTHING
        return union((paths, found & {ATTEMPT}, frozenset(v for v in found if isinstance(v, Many))))

    def _subscript(self, node: ast.Subscript) -> Values:
        base = self.eval(node.value)
        keys = strings(self.test(node.slice))
        found = [inside(base), self.special(base, ("__getitem__", "__class_getitem__"), node)]
        for value in base:
            if isinstance(value, Ref):
                found.append(self._item(value, keys))
        return union(found)

    def _item(self, value: Ref, keys: list[str]) -> Values:
        if value.name == "sys.modules":
            return union([ref(same(key)) for key in keys])
        if value.name in ("globals()", "locals()"):
            return union([self.look(key) for key in keys])
        if value.name.endswith(".__dict__"):
            return union([ref(same(f"{value.name.removesuffix('.__dict__')}.{key}")) for key in keys])
        # A part of a client is a client: mongo["shop"]["orders"].
        return frozenset((value,)) if self.known.rule(f"{value.name}.item") else NOTHING

    def _lambda(self, node: ast.Lambda) -> Values:
        unit = self.units.setdefault(node, Unit(node, "<lambda>", self.scope))
        unit.scope = self.scope
        self.defaults(unit, node.args)
        self.queue.append(unit)
        return frozenset((unit,))

    def defaults(self, unit: Unit, arguments: ast.arguments) -> None:
        """What parameters are if they are not given."""
        positional = [*arguments.posonlyargs, *arguments.args]
        pairs = list(zip(reversed(positional), reversed(arguments.defaults), strict=False))
        pairs += [
            (argument, default)
            for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
            if default is not None
        ]
        for argument, default in pairs:
            self.give(unit, argument.arg, self.eval(default))

    def give(self, unit: Unit, name: str, values: Values) -> None:
        """A parameter may be this, too."""
        unit.given[name] = union((unit.given.get(name, NOTHING), values))

    def _comprehension(self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp) -> Values:
        outer, self.scope.now = self.scope.now, type(self.scope.now)(self.scope.now)
        for generator in node.generators:
            self.target(generator.target, self.elements(self.eval(generator.iter), generator.iter))
            for condition in generator.ifs:
                self.test(condition)
        parts = [node.elt] if isinstance(node, SCOPED) else [node.key, node.value]
        found = many(union([self.eval(part) for part in parts]))
        self.scope.now = outer
        return found

    def elements(self, values: Values, node: ast.expr) -> Values:
        """What iterating over a value gives."""
        asked = self.special(values, ("__iter__", "__aiter__", "__next__", "__anext__"), node)
        return union((inside(values), inside(asked)))

    def special(self, values: Values, names: tuple[str, ...], node: ast.expr) -> Values:
        """What objects of the module return that are asked by an operator, not by a name."""
        found = []
        for value in values:
            for name in names if isinstance(value, Inst) else ():
                for unit in self.member(value.of, name) if isinstance(value, Inst) else ():
                    if isinstance(unit, Unit):
                        self.reach(unit, node)
                        found.append(unit.returns)
        return union(found)

    def target(self, node: ast.expr, values: Values) -> None:
        """Binds a target: :mod:`holdfast.lint.statements`."""
        raise NotImplementedError
