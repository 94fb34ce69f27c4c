"""What statements bind and do, in the order in which they run: branches are joined, loops run twice."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from holdfast.lint.calls import Calls
from holdfast.lint.names import CONTEXT, role_of
from holdfast.lint.values import NOTHING, Class, Env, Inst, Ref, Scope, Unit, inside, many, ref, union

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.lint.values import Values

LOOPS_TWICE = 2  # how deep a loop may lie and still be read twice: what it binds is seen by its beginning
PASSES = 4  # how often a module is read: each time knows what functions returned and were given
KINDS = {
    "property": "property",
    "functools.cached_property": "property",
    "staticmethod": "staticmethod",
    "classmethod": "classmethod",
}
Function = ast.FunctionDef | ast.AsyncFunctionDef


class Statements(Calls):
    """Reads statements, and with them the module."""

    def __init__(self, *given: object) -> None:
        super().__init__(*given)  # type: ignore[arg-type]
        self.loops = 0
        self.owner: Class | None = None  # the class whose body is read

    def read(self) -> None:
        """Reads the module until nothing new is known of its functions."""
        known = -1
        module = Scope()
        for _ in range(PASSES):
            told, module = module.told, Scope()
            module.told = told
            self._pass_over(module)
            size = self._size()
            if size == known:
                return
            known = size

    def _pass_over(self, module: Scope) -> None:
        self.declared, self.queue, self.outward = [], [], set()
        self.heirs = {}
        for owner in self.classes.values():
            for base in owner.bases:
                if isinstance(base, Class):
                    self.heirs.setdefault(base, []).append(owner)
        for unit in self.units.values():
            unit.events, unit.edges = {}, {}
        self.unit, self.scope, self.owner = self.module, module, None
        self.block(self.tree.body)
        module.settle()
        done: set[Unit] = set()
        while self.queue:
            unit = self.queue.pop(0)
            if unit not in done:
                done.add(unit)
                self._run(unit)

    def _size(self) -> int:
        units = sum(len(unit.returns) + sum(map(len, unit.given.values())) for unit in self.units.values())
        return units + sum(
            len(values) for owner in self.classes.values() for values in owner.attributes.values()
        )

    # Functions.

    def _run(self, unit: Unit) -> None:
        """Reads the body of a function."""
        node = unit.node
        assert isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        self.unit, self.scope, self.owner, self.loops = unit, Scope(unit.scope), None, 0
        self.statement = (node.lineno, node.lineno)
        self._parameters(unit, node.args)
        if isinstance(node, ast.Lambda):
            self.statement = (node.lineno, node.end_lineno or node.lineno)
            unit.returns = union((unit.returns, self.eval(node.body)))
        else:
            self.block(node.body)

    def _parameters(self, unit: Unit, arguments: ast.arguments) -> None:
        named = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
        positional = [*arguments.posonlyargs, *arguments.args]
        for argument in named:
            annotated = self.annotated(argument.annotation)
            self.scope.bind(argument.arg, union((annotated, unit.given.get(argument.arg, NOTHING))))
        for rest in (arguments.vararg, arguments.kwarg):
            if rest is not None:
                given = unit.given.get(rest.arg, NOTHING)
                self.scope.bind(rest.arg, many(union((self.annotated(rest.annotation), given))))
        if unit.owner is not None and positional and unit.kind != "staticmethod":
            itself: Values = frozenset(
                (unit.owner if unit.kind == "classmethod" else Inst(unit.owner, under=True),)
            )
            self.scope.bind(positional[0].arg, itself)
            positional = positional[1:]
        if unit.role == "agent" and positional:
            self.scope.bind(positional[0].arg, ref(CONTEXT))

    def _function(self, node: Function) -> None:
        unit = self.units.setdefault(node, Unit(node, self._qualified(node.name), self.scope, self.owner))
        # What is in a class's body is not seen by its methods.
        unit.scope = self.scope.up if self.owner is not None else self.scope
        self.defaults(unit, node.args)
        self.queue.append(unit)
        unit.returns = union((unit.returns, self.annotated(node.returns)))
        value: Values = frozenset((unit,))
        if not unit.role and self._takes_context(node):
            unit.role = "agent"
        for decorator in reversed(node.decorator_list):
            value = self._decorated(unit, decorator, value)
        self.name(node.name, value)

    def _decorated(self, unit: Unit, node: ast.expr, value: Values) -> Values:
        found = self.eval(node)
        role = role_of(found)
        self._dispatched(unit, node)
        if role:
            if unit.role == "agent" and role != "agent":
                unit.role = ""
            return self.becomes(unit, role, node if isinstance(node, ast.Call) else None, node)
        for inner in found:
            if isinstance(inner, Ref) and inner.name in KINDS:
                unit.kind = KINDS[inner.name]
            elif isinstance(inner, Unit):
                self._wrapped(unit, inner, value)
                value = union((value, inner.returns))
        return value

    def _dispatched(self, unit: Unit, node: ast.expr) -> None:
        """``@function.register``: whoever calls that function may come here."""
        named = node.func if isinstance(node, ast.Call) else node
        if isinstance(named, ast.Attribute) and named.attr == "register":
            before = self.unit
            for value in self.silently(named.value):
                if isinstance(value, Unit):
                    self.unit = value
                    self.reach(unit, node)
            self.unit = before

    def _wrapped(self, unit: Unit, decorator: Unit, value: Values) -> None:
        """A decorator of the module: what it puts around a function runs when that is called."""
        arguments = decorator.node.args if isinstance(decorator.node, ast.FunctionDef) else None
        names = [*arguments.posonlyargs, *arguments.args] if arguments else []
        if names:
            self.give(decorator, names[0].arg, value)
        before, self.unit = self.unit, unit
        for inner in decorator.returns:
            if isinstance(inner, Unit) and inner is not unit:
                self.reach(inner, unit.node)
        self.unit = before

    def _qualified(self, name: str) -> str:
        if self.owner is not None:
            return f"{self.owner.name}.{name}"
        return name if self.unit is self.module else f"{self.unit.name}.{name}"

    def _takes_context(self, node: Function) -> bool:
        named = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
        return any(self.is_context(self.annotated(argument.annotation)) for argument in named)

    def _class(self, node: ast.ClassDef) -> None:
        for decorator in node.decorator_list:
            self.eval(decorator)
        made = self.classes.setdefault(node, Class(node, self._qualified(node.name)))
        made.bases = union([self.eval(base) for base in node.bases])
        outer, owner = self.scope, self.owner
        self.scope, self.owner = Scope(outer), made
        self.block(node.body)
        self.scope, self.owner = outer, owner
        self.name(node.name, frozenset((made,)))

    # Binding.

    def name(self, name: str, values: Values) -> None:
        """Binds a name, which in a class's body is a member, too."""
        self.scope.bind(name, values)
        if self.owner is not None:
            kept = self.owner.attributes
            kept[name] = union((kept.get(name, NOTHING), values))

    def target(self, node: ast.expr, values: Values) -> None:
        """Binds what stands at the left of an assignment."""
        match node:
            case ast.Name():
                self.name(node.id, values)
            case ast.Attribute():
                for value in self.eval(node.value):
                    owner = value.of if isinstance(value, Inst) else value
                    if isinstance(owner, Class):
                        known = owner.attributes.get(node.attr, NOTHING)
                        owner.attributes[node.attr] = union((known, values))
            case ast.Subscript():
                self.eval(node.slice)
                self.more(node.value, many(values))
                self.eval(node.value)
            case ast.Starred():
                self.target(node.value, many(values))
            case ast.Tuple() | ast.List():
                for item in node.elts:
                    self.target(item, inside(values))
            case _:
                self.eval(node)

    def more(self, node: ast.expr, values: Values) -> None:
        """A container may hold this, too."""
        if isinstance(node, ast.Name):
            self.scope.add(node.id, values)
        elif isinstance(node, ast.Attribute):
            self.target(node, values)

    def _assign(self, targets: list[ast.expr], value: ast.expr) -> None:
        """Binds targets, one by one where names stand opposite to values."""
        parts: list[Values] | None = None
        if isinstance(value, ast.Tuple | ast.List) and not _starred(value):
            parts = [self.eval(item) for item in value.elts]
        whole = self.eval(value) if parts is None else many(union(parts))
        for target in targets:
            opposite = isinstance(target, ast.Tuple | ast.List) and not _starred(target)
            items = target.elts if opposite and isinstance(target, ast.Tuple | ast.List) else []
            if parts is not None and items and len(items) == len(parts):
                for item, values in zip(items, parts, strict=True):
                    self.target(item, values)
            else:
                self.target(target, whole)

    # Statements.

    def block(self, body: list[ast.stmt]) -> None:
        """Reads statements, one after the other."""
        for node in body:
            outer = self.statement
            self.statement = _lines(node)
            self._statement(node)
            self.statement = outer

    def _statement(self, node: ast.stmt) -> None:
        match node:
            case ast.Expr():
                self.eval(node.value)
            case ast.Assign():
                self._assign(node.targets, node.value)
            case ast.AnnAssign():
                self.target(node.target, union((self.annotated(node.annotation), self.eval(node.value))))
            case ast.AugAssign():
                known = self.silently(node.target)
                self.target(node.target, union((known, self.eval(node.value))))
            case ast.Return():
                self.unit.returns = union((self.unit.returns, self.eval(node.value)))
            case ast.Import() | ast.ImportFrom():
                self.imports(node)
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                self._function(node)
            case ast.ClassDef():
                self._class(node)
            case ast.Global() | ast.Nonlocal():
                self._elsewhere(node)
            case ast.If():
                self._if(node)
            case ast.For() | ast.AsyncFor() | ast.While():
                self._loop(node)
            case _:
                self._rare(node)

    def _rare(self, node: ast.stmt) -> None:
        match node:
            case ast.With() | ast.AsyncWith():
                for item in node.items:
                    self._with(item)
                self.block(node.body)
            case ast.Try() | ast.TryStar():
                self._try(node)
            case ast.Match():
                self.test(node.subject)
                self._branches([self._case(case) for case in node.cases], complete=False)
            case ast.Assert():
                self.test(node.test)
                self.eval(node.msg)
            case ast.Delete():
                for target in node.targets:
                    self.eval(target)
            case _:
                for child in ast.iter_child_nodes(node):
                    if isinstance(child, ast.expr):
                        self.eval(child)

    def _branches(self, bodies: list[Callable[[], None]], *, complete: bool) -> None:
        """Reads branches, each from the same beginning, and goes on after any of them."""
        before = self.scope.now
        layers = []
        for body in bodies:
            self.scope.now = Env(before)
            body()
            layers.append(self.scope.now)
        self.scope.now = before
        before.merge(layers, complete=complete)

    def _if(self, node: ast.If) -> None:
        """An if with all its elifs, which may be many."""
        bodies: list[Callable[[], None]] = []
        rest: list[ast.stmt] = [node]
        while len(rest) == 1 and isinstance(rest[0], ast.If):
            one = rest[0]
            self.test(one.test)
            bodies.append(lambda body=one.body: self.block(body))  # type: ignore[misc]
            rest = one.orelse
        if rest:
            bodies.append(lambda: self.block(rest))
        self._branches(bodies, complete=bool(rest))

    def _loop(self, node: ast.For | ast.AsyncFor | ast.While) -> None:
        def once() -> None:
            if isinstance(node, ast.While):
                self.test(node.test)
            else:
                self.target(node.target, self.elements(iterated, node.iter))
            self.block(node.body)

        iterated = NOTHING if isinstance(node, ast.While) else self.eval(node.iter)
        self.loops += 1
        for _ in range(2 if self.loops <= LOOPS_TWICE else 1):
            self._branches([once], complete=False)
        self.loops -= 1
        self.block(node.orelse)

    def _with(self, item: ast.withitem) -> None:
        values = self.eval(item.context_expr)
        entered = [values]
        for value in values:
            if isinstance(value, Inst):
                for name in ("__enter__", "__aenter__", "__exit__", "__aexit__"):
                    for unit in self._functions(value.of, name):
                        self.reach(unit, item.context_expr)
                        if name in ("__enter__", "__aenter__"):
                            entered.append(unit.returns)
        if item.optional_vars is not None:
            self.target(item.optional_vars, union(entered))

    def _try(self, node: ast.Try | ast.TryStar) -> None:
        self.block(node.body)
        handlers: list[Callable[[], None]] = []
        for handler in node.handlers:
            handlers.append(lambda one=handler: self._handler(one))  # type: ignore[misc]
        self._branches(handlers, complete=False)
        self.block(node.orelse)
        self.block(node.finalbody)

    def _handler(self, node: ast.ExceptHandler) -> None:
        if node.name:
            self.scope.bind(node.name, NOTHING)
        self.block(node.body)

    def _case(self, case: ast.match_case) -> Callable[[], None]:
        def read() -> None:
            for part in ast.walk(case.pattern):
                if isinstance(part, ast.MatchAs | ast.MatchStar) and part.name:
                    self.scope.bind(part.name, NOTHING)
            if case.guard is not None:
                self.test(case.guard)
            self.block(case.body)

        return read

    def _elsewhere(self, node: ast.Global | ast.Nonlocal) -> None:
        scope = self.scope.up
        while scope is not None and isinstance(node, ast.Global) and scope.up is not None:
            scope = scope.up
        for name in node.names:
            owner = scope
            while isinstance(node, ast.Nonlocal) and owner is not None and owner.up is not None:
                if name in owner.ever:
                    break
                owner = owner.up
            if owner is not None:
                self.scope.elsewhere[name] = owner


def _starred(node: ast.Tuple | ast.List) -> bool:
    return any(isinstance(item, ast.Starred) for item in node.elts)


BODIES = ("body", "orelse", "finalbody", "handlers", "cases")


def _lines(node: ast.stmt) -> tuple[int, int]:
    """The lines of a statement; of one with a body, those of its head."""
    decorators = [one.lineno for one in getattr(node, "decorator_list", [])]
    first = min([node.lineno, *decorators])
    if not hasattr(node, "body") and not hasattr(node, "cases"):
        return first, node.end_lineno or node.lineno
    head = [
        getattr(part, "end_lineno", None) or node.lineno
        for name, value in ast.iter_fields(node)
        if name not in BODIES
        for part in _nodes(value)
    ]
    return first, max([node.lineno, *head])


def _nodes(value: object) -> list[ast.AST]:
    """The places of what a field holds; arguments and items of a with have none of their own."""
    found = value if isinstance(value, list) else [value]
    nodes = [node for node in found if isinstance(node, ast.AST)]
    return [inner for node in nodes for inner in (node, *ast.iter_child_nodes(node))]
