"""Where names come from: imports, annotations, builtins, and what a function is by its decorators."""

from __future__ import annotations

import ast
import builtins
from typing import TYPE_CHECKING

from holdfast.lint.known import Known, names_in, same
from holdfast.lint.values import (
    NOTHING,
    Class,
    Const,
    Edge,
    Event,
    Inst,
    Ref,
    Scope,
    Span,
    Unit,
    many,
    ref,
    strings,
    union,
)
from holdfast.lint.verbs import writes

if TYPE_CHECKING:
    from holdfast.lint.values import Declared, Values

BUILTINS = frozenset(dir(builtins))
CONTEXT = "holdfast.Context()"
CONTEXTS = ("Context", "SyncContext")
ROLES = {
    "agent": "agent",
    "step": "agent",
    "tool": "tool",
    "foreign_tool": "tool",
    "hook": "outside",
    "approver": "outside",
    "evaluator": "outside",
}
GUARD = "holdfast.guard"
# Other frameworks whose decorators have the same names.
FOREIGN = names_in(
    """
    behave crewai dagster fastmcp google_adk kfp langchain langgraph livekit mcp metaflow prefect pydantic_ai
    pytest pytest_bdd smolagents strands zenml
    """
)
WRAPPERS = frozenset(
    f"{module}.{name}"
    for module in ("typing", "typing_extensions")
    for name in (
        "Optional",
        "Union",
        "Annotated",
        "Final",
        "ClassVar",
        "Required",
        "NotRequired",
        "Awaitable",
    )
)


def role_of(values: Values) -> str:
    """What a function becomes under a decorator, if it is one of Holdfast's."""
    for value in values:
        if isinstance(value, Ref) and "." in value.name:
            name = value.name.removesuffix("()")
            if name == GUARD:
                return "tool"
            role = ROLES.get(name.rpartition(".")[2])
            if role and name.split(".")[0].removesuffix("()") not in FOREIGN:
                return role
    return ""


class Names:
    """The state of reading one module, and what names mean in it."""

    def __init__(self, tree: ast.Module, known: Known) -> None:
        self.tree = tree
        self.known = known
        self.module = Unit(tree, "<module>", None)
        self.units: dict[ast.AST, Unit] = {tree: self.module}
        self.classes: dict[ast.AST, Class] = {}
        self.heirs: dict[Class, list[Class]] = {}  # classes right under a class, as of the last time
        self.declared: list[Declared] = []
        self.queue: list[Unit] = []
        self.words: dict[ast.keyword, Values] = {}  # what keywords of calls are
        self.outward: set[Unit] = set()  # call what other modules of the user have, where nobody looks
        self.uses_holdfast = False
        self.stars: list[str] = []
        self.unit = self.module
        self.scope = Scope()
        self.statement: tuple[int, int] = (1, 1)
        self.calling: ast.expr | None = None  # what is called as soon as it is known
        self.making: set[Class] = set()  # classes whose objects are being made
        self.quiet = 0  # what is looked at here runs elsewhere, where it may act
        self.testing = 0  # something depends on what is looked at

    # What was seen.

    def span(self, node: ast.AST) -> Span:
        """Where a node stands, and its statement."""
        line = getattr(node, "lineno", self.statement[0])
        column = getattr(node, "col_offset", 0)
        end = getattr(node, "end_lineno", None) or line
        end_column = getattr(node, "end_col_offset", None) or column
        first, last = self.statement
        return Span(line, column + 1, end, end_column + 1, min(first, line), max(last, line))

    def emit(self, rule: str, name: str, node: ast.AST, first: Values = NOTHING) -> None:
        """Notes something that a rule knows."""
        if not self.quiet:
            event = Event(rule, name, self.span(node), writes(rule, name, strings(first)))
            self.unit.events.setdefault((rule, event.at.line, name), event)

    def reach(self, unit: Unit, node: ast.AST, *, tool: bool = False) -> None:
        """Notes that a function of the module is called here, or handed on."""
        if not self.quiet:
            at = self.span(node)
            self.unit.edges.setdefault((id(unit), at.line), Edge(unit, at, tool))

    # Names.

    def look(self, name: str) -> Values:
        """What a name is, here."""
        found = self.scope.look(name)
        if found is not None:
            return found
        for module in self.stars:
            if self.known.exact(same(f"{module}.{name}")):
                return ref(same(f"{module}.{name}"))
        return ref(name) if name in BUILTINS else NOTHING

    def imports(self, node: ast.Import | ast.ImportFrom) -> None:
        """Binds what an import brings."""
        if isinstance(node, ast.Import):
            for alias in node.names:
                self.uses_holdfast |= alias.name.split(".")[0] == "holdfast"
                root = alias.name if alias.asname else alias.name.split(".")[0]
                self.scope.bind(alias.asname or root, ref(same(root)))
            return
        module = "." * node.level + (node.module or "")
        self.uses_holdfast |= module.split(".")[0] == "holdfast"
        for alias in node.names:
            if alias.name == "*":
                if module not in self.stars:
                    self.stars.append(module)
            else:
                dotted = f"{module}.{alias.name}" if node.module else f"{module}{alias.name}"
                self.scope.bind(alias.asname or alias.name, ref(same(dotted)))

    # Annotations.

    def annotated(self, node: ast.expr | None, depth: int = 8) -> Values:
        """What something is that has this annotation."""
        if node is None or depth == 0:
            return NOTHING
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            try:
                return self.annotated(ast.parse(node.value, mode="eval").body, depth - 1)
            except (SyntaxError, ValueError, RecursionError, MemoryError):
                return NOTHING
        if isinstance(node, ast.BinOp):
            return union((self.annotated(node.left, depth - 1), self.annotated(node.right, depth - 1)))
        if isinstance(node, ast.Subscript):
            return self._generic(node, depth)
        return union([self._object(value) for value in self._named(node)])

    def _generic(self, node: ast.Subscript, depth: int) -> Values:
        inner = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        found = union([self.annotated(part, depth - 1) for part in inner])
        outer = self._named(node.value)
        if any(isinstance(value, Ref) and value.name in WRAPPERS for value in outer):
            return found
        return union((many(found), union([self._object(value) for value in outer])))

    def _named(self, node: ast.expr) -> Values:
        if isinstance(node, ast.Name):
            found = self.scope.look(node.id)
            if node.id in CONTEXTS and self._is_context(found):
                return ref(CONTEXT.removesuffix("()"))
            return self.look(node.id)
        if isinstance(node, ast.Attribute):
            found = self._named(node.value)
            if not found and node.attr in CONTEXTS and isinstance(node.value, ast.Name):
                return ref(CONTEXT.removesuffix("()"))
            names = [value.name for value in found if isinstance(value, Ref)]
            return union([ref(same(f"{name}.{node.attr}")) for name in names])
        return NOTHING

    def _is_context(self, found: Values | None) -> bool:
        """An own Context is Holdfast's if nobody says where it is from, or if the module's neighbours do."""
        if found is None:
            return True
        origins = [value.name for value in found if isinstance(value, Ref)]
        return self.uses_holdfast and bool(origins) and all(name.startswith(".") for name in origins)

    def _object(self, value: object) -> Values:
        if isinstance(value, Class):
            return frozenset((Inst(value),))
        if isinstance(value, Ref) and value.name not in BUILTINS:
            return ref(same(f"{value.name}()"))
        return NOTHING

    def is_context(self, values: Values) -> bool:
        """Whether a value is an agent's context."""
        return Ref(CONTEXT) in values


def constant(node: ast.Constant) -> Values:
    """A constant, if it is one that matters."""
    return frozenset((Const(node.value),)) if isinstance(node.value, str | int) else NOTHING
