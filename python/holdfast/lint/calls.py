"""What a call does: a known callable, a function of the module, a declaration, or nothing that is known.

What a function does is noted where it is called or handed on, never where it is only named: a name that
nobody uses does nothing, and what is handed to ``ctx.do`` or registered as a tool may act.
"""

from __future__ import annotations

import ast
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from holdfast.lint.expressions import BASES_MOST, PATH, Expressions
from holdfast.lint.known import APPLIERS, DATA, HARMLESS, MAKERS, NEEDS, OPENERS, SAME, SEEDED, names_in, same
from holdfast.lint.names import CONTEXT, GUARD, ROLES, role_of
from holdfast.lint.values import (
    NOTHING,
    Class,
    Const,
    Declared,
    Event,
    Inst,
    Ref,
    Tool,
    Unit,
    flat,
    inside,
    many,
    ref,
    strings,
    union,
)
from holdfast.lint.verbs import writes

if TYPE_CHECKING:
    from holdfast.lint.values import Value, Values

DO = f"{CONTEXT}.do"
MAPS = frozenset(("map", "filter", "itertools.starmap", "functools.reduce"))
MEMORY = frozenset(("io.BytesIO()", "io.StringIO()"))
PARTIAL = frozenset(("functools.partial", "functools.partialmethod"))
IMPORTS = frozenset(("__import__", "importlib.import_module"))
PATHS = names_in(
    "joinpath with_suffix with_name with_stem resolve absolute expanduser relative_to rename replace readlink"
)
LISTS = frozenset(("iterdir", "glob", "rglob"))
TAKES = frozenset(
    ("get", "pop", "values", "items", "copy", "popitem", "setdefault", "__getitem__", "popleft")
)
PUTS = frozenset(("append", "add", "extend", "insert", "update", "setdefault", "appendleft", "__setitem__"))
PASSES = names_in(
    """
    list tuple set frozenset sorted reversed iter next dict enumerate zip int bool max min copy.copy
    copy.deepcopy contextlib.closing contextlib.aclosing contextlib.nullcontext typing.cast
    functools.wraps staticmethod classmethod functools.cache asyncio.create_task asyncio.ensure_future
    asyncio.shield asyncio.gather contextlib.ExitStack().enter_context
    contextlib.AsyncExitStack().enter_async_context contextlib.AsyncExitStack().enter_context
    types.MethodType itertools.chain itertools.cycle
    """
)
"""What gives back what it was given, more or less."""


@dataclass(frozen=True)
class Arguments:
    """What a call is given, and the value whose method it calls. Nothing is read twice: that would double
    the work for each call inside a call.
    """

    base: Values
    positional: list[Values]
    named: dict[str, Values]


NONE_GIVEN = Arguments(NOTHING, [], {})


class Calls(Expressions):
    """Reads calls."""

    def call(self, node: ast.Call) -> Values:
        """What a call may return; and what it does is noted."""
        base = self.eval(node.func.value) if isinstance(node.func, ast.Attribute) else NOTHING
        self.calling = node.func
        callee = self.of(base, node.func) if isinstance(node.func, ast.Attribute) else self.eval(node.func)
        if self._is_do(node, callee):
            return self._do(node)
        if role_of(callee):
            return self._registers(node, callee)
        given = self._given(node, base)
        found = [self._called(value, node, given) for value in callee]
        names = {value.name for value in callee if isinstance(value, Ref)}
        if not names & (HARMLESS | PARTIAL):
            # A function of the module is read with what it is given: there it shows what is done with it.
            known = bool(callee) and all(self._takes(value) for value in callee)
            left = [values for word, values in given.named.items() if not known or word.startswith("**")]
            for values in left if known else (*given.positional, *left):
                self._handed(values, node, applied=bool(names & APPLIERS))
        if isinstance(node.func, ast.Attribute):
            found.append(self._container(node.func, given))
        return union(found)

    def _takes(self, value: Value) -> bool:
        """Whether it is known what a callable does with its arguments."""
        if isinstance(value, Class):
            fields = any(isinstance(item, ast.AnnAssign) for item in value.node.body)
            return fields or bool(self._functions(value, "__init__"))
        return isinstance(value, Unit)

    def _given(self, node: ast.Call, base: Values = NOTHING) -> Arguments:
        positional = [
            inside(self.eval(item.value)) if isinstance(item, ast.Starred) else self.eval(item)
            for item in node.args
        ]
        named: dict[str, Values] = {}
        for keyword in node.keywords:
            values = self.eval(keyword.value)
            self.words[keyword] = values
            if keyword.arg is not None:
                named[keyword.arg] = values
            elif inside(values):
                named[f"**{len(named)}"] = inside(values)
        return Arguments(base, positional, named)

    def _container(self, func: ast.Attribute, given: Arguments) -> Values:
        """Methods of containers."""
        held = inside(given.base)
        if func.attr in PUTS and not any(isinstance(value, Ref | Inst | Class) for value in given.base):
            put = union([*given.positional, *given.named.values()])
            if put:
                self.more(func.value, many(union((put, inside(put)))))
        return union((held, *given.positional[1:])) if func.attr in TAKES and held else NOTHING

    def more(self, node: ast.expr, values: Values) -> None:
        """A container may hold this, too: :mod:`holdfast.lint.statements`."""
        raise NotImplementedError

    # What is handed on.

    def _handed(self, values: Values, node: ast.Call, *, applied: bool) -> None:
        """A function that is handed to somebody is called, as far as anybody knows."""
        for value in flat(values):
            if isinstance(value, Unit):
                self.reach(value, node)
            elif isinstance(value, Tool) and applied:
                self._direct(value, node)
            elif isinstance(value, Ref) and value.name not in DATA:
                rule = self.known.rule(value.name)
                last = value.name.rpartition(".")[2]
                bare = self.known.exact(value.name) and "()" not in value.name and last[:1].islower()
                bare = bare or value.name in OPENERS
                if rule and not value.name.endswith("()") and (bare or applied):
                    self.emit(rule, value.name, node)
                elif applied and value.name in OPENERS:
                    self.emit("HF206", value.name, node)

    def _direct(self, value: Tool, node: ast.Call) -> None:
        self.emit("HF111", value.unit.name, node)
        self.reach(value.unit, node, tool=True)

    # What is called.

    def _called(self, value: Value, node: ast.Call, given: Arguments) -> Values:
        match value:
            case Ref():
                return self._ref(value.name, node, given)
            case Unit():
                self.reach(value, node)
                self._pass(value, given)
                return value.returns
            case Tool():
                self._direct(value, node)
                self._pass(value.unit, given)
                return value.unit.returns
            case Class():
                return self._made(value, node, given)
            case Inst():
                called = [self._called(inner, node, given) for inner in self._functions(value.of, "__call__")]
                return union(called)
            case _:
                return NOTHING

    def _functions(self, owner: Class, name: str) -> list[Unit]:
        return [value for value in self.member(owner, name) if isinstance(value, Unit)]

    def _made(self, owner: Class, node: ast.Call, given: Arguments) -> Values:
        for name in ("__init__", "__new__", "__post_init__"):
            for unit in self._functions(owner, name):
                self.reach(unit, node)
                if name != "__post_init__":
                    self._pass(unit, given)
        fields = [
            item.target.id
            for item in owner.node.body
            if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)
        ]
        self._factories(owner, given, node)
        for field, values in (*zip(fields, given.positional, strict=False), *given.named.items()):
            if field in owner.attributes:
                owner.attributes[field] = union((owner.attributes[field], values))
        return frozenset((Inst(owner),))

    def _factories(self, owner: Class, given: Arguments, node: ast.Call) -> None:
        """``field(default_factory=...)`` is called where an object is made."""
        if owner in self.making:
            return
        self.making.add(owner)
        classes = [owner]
        for one in classes:
            more = [base for base in one.bases if isinstance(base, Class) and base not in classes]
            classes += more if len(classes) < BASES_MOST else []
        for item in (item for one in classes for item in one.node.body):
            value = getattr(item, "value", None)
            name = getattr(getattr(item, "target", None), "id", "")
            for keyword in value.keywords if isinstance(value, ast.Call) else ():
                if keyword.arg in ("default_factory", "factory") and name not in given.named:
                    for factory in self.words.get(keyword, NOTHING):
                        self._called(factory, node, NONE_GIVEN)
        self.making.discard(owner)

    def _pass(self, unit: Unit, given: Arguments) -> None:
        """Parameters may be what is given here."""
        arguments = getattr(unit.node, "args", None)
        if not isinstance(arguments, ast.arguments):
            return
        names = [argument.arg for argument in (*arguments.posonlyargs, *arguments.args)]
        plain = any(isinstance(value, Class) for value in given.base)
        bound = unit.owner is not None and unit.kind != "staticmethod" and not (plain and not unit.kind)
        taken = names[1:] if bound else names
        for name, values in (*zip(taken, given.positional, strict=False), *given.named.items()):
            self.give(unit, name, values)
        known = {*names, *(argument.arg for argument in arguments.kwonlyargs)}
        more = [values for name, values in given.named.items() if name not in known]
        for rest, left in ((arguments.vararg, given.positional[len(taken) :]), (arguments.kwarg, more)):
            if rest is not None and left:
                self.give(unit, rest.arg, union(left))

    # Known callables.

    def _ref(self, name: str, node: ast.Call, given: Arguments) -> Values:
        positional = given.positional
        first = positional[0] if positional else NOTHING
        if name in PARTIAL:
            return first
        if name in PASSES:
            inner = [inside(values) for values in positional] if name == "next" else []
            return union((*positional, *inner))
        if name == "getattr":
            return self._getattr(node, positional)
        if name == "types.SimpleNamespace":
            return many(union(list(given.named.values())))
        if name == "setattr" and len(positional) > 2:
            self._setattr(positional)
        if name == "holdfast.run":
            units = [value for value in first if isinstance(value, Unit)]
            for unit in units:
                self.becomes(unit, "agent", None, node)
        if name in MAPS:
            return self._map(node, positional)
        if name == "super" and self.unit.owner is not None:
            return self._super(self.unit.owner)
        if name in ("vars", "globals", "locals"):
            named_first = [ref(f"{value.name}.__dict__") for value in first if isinstance(value, Ref)]
            return union(named_first) if positional else ref(f"{name}()")
        if name in IMPORTS:
            self.emit("HF109", name, node, first)
            roots = [text.split(".")[0] if name == "__import__" else text for text in strings(first)]
            return union([ref(same(root)) for root in roots])
        if name in ("operator.methodcaller", "operator.attrgetter"):
            return union([ref(f"{name}().{text}") for text in strings(first)])
        if name.startswith(("operator.methodcaller().", "operator.attrgetter().")):
            return self._operator(name, first, node)
        return self._plain(name, node, given)

    def _plain(self, name: str, node: ast.Call, given: Arguments) -> Values:
        rule = self._rule(name, node, given)
        if rule in ("HF102", "HF206") and self._in_memory(given):
            return NOTHING
        if rule:
            self.emit(rule, name, node, given.positional[0] if given.positional else NOTHING)
        if "." in name and name.split(".")[0] not in _NOT_OURS:
            self.outward.add(self.unit)
        last = name.rpartition(".")[2]
        if name.startswith(f"{PATH}.") and last in PATHS:
            return ref(PATH)
        if name.startswith(f"{PATH}.") and last in LISTS:
            return many(ref(PATH))
        if name in SEEDED and not rule:
            return NOTHING
        made = f"{name}()"
        is_class = last[:1].isupper() or name in ("socket.socket", "mmap.mmap")
        if is_class or made in SAME or last in ROLES or (self.known.rule(name) and last in MAKERS):
            return ref(same(made))
        return NOTHING

    def _rule(self, name: str, node: ast.Call, given: Arguments) -> str | None:
        """The rule of a call, which may depend on its arguments."""
        if name in OPENERS:
            return self._mode(name, node, given)
        rule = self.known.rule(name)
        count = len(node.args) + len(node.keywords)
        first = node.args[0] if node.args else None
        innocent = (
            (name in SEEDED and count > 0)
            or (name in NEEDS and count >= NEEDS[name])
            or (name == "asyncio.sleep" and isinstance(first, ast.Constant) and first.value == 0)
            or (name in ("asyncio.wait", "asyncio.as_completed") and not self._has_timeout(node))
            or (name == f"{PATH}.replace" and count > 1)
        )
        return None if innocent else rule

    def _in_memory(self, given: Arguments) -> bool:
        """Whether a file that is opened is no file."""
        first = given.positional[0] if given.positional else NOTHING
        return any(isinstance(value, Ref) and value.name in MEMORY for value in (*first, *given.base))

    def _has_timeout(self, node: ast.Call) -> bool:
        return any(
            keyword.arg == "timeout"
            and not (isinstance(keyword.value, ast.Constant) and keyword.value.value is None)
            for keyword in node.keywords
        )

    def _mode(self, name: str, node: ast.Call, given: Arguments) -> str:
        """Opening reads, unless the mode writes, or is not known."""
        at = OPENERS[name]
        said = [given.named[word] for word in ("mode", "flags") if word in given.named]
        said += given.positional[at : at + 1]
        if not said:
            return "HF206"
        if name == "os.open":
            flags = {part.attr for part in ast.walk(node) if isinstance(part, ast.Attribute)}
            return "HF206" if "O_RDONLY" in flags and not flags & _WRITING_FLAGS else "HF102"
        texts = strings(said[0])
        known = texts and all(isinstance(mode, Const) for mode in said[0])
        return "HF206" if known and not any(set("wax+") & set(text) for text in texts) else "HF102"

    def _getattr(self, node: ast.Call, positional: list[Values]) -> Values:
        if len(positional) < 2:
            return NOTHING
        names = strings(positional[1])
        found = [self.attribute(value, name, node) for value in positional[0] for name in names]
        for value in positional[0] if not names else ():
            if isinstance(value, Ref) and (rule := self.known.any_under(value.name)):
                self.emit(rule if "()" in value.name else "HF109", f"getattr({value.name}, ...)", node)
            elif isinstance(value, Inst | Class):
                found.append(self._methods(value.of if isinstance(value, Inst) else value, node))
        return union([*found, *positional[2:]])

    def _methods(self, owner: Class, node: ast.Call) -> Values:
        """Methods by a name that is put together: those with its beginning; all, if one is called at once."""
        name = node.args[1]
        parts = name.values if isinstance(name, ast.JoinedStr) else [getattr(name, "left", name)]
        begins = getattr(parts[0], "value", None) if parts else None
        prefix = begins if isinstance(begins, str) else ""
        if not prefix and self.calling is not node:
            return NOTHING
        return frozenset(
            value
            for key, values in owner.attributes.items()
            for value in values
            if key.startswith(prefix) and not key.startswith("__") and isinstance(value, Unit | Tool)
        )

    def _setattr(self, positional: list[Values]) -> None:
        for value in positional[0]:
            for name in strings(positional[1]) if isinstance(value, Inst) else ():
                if isinstance(value, Inst):
                    known = value.of.attributes.get(name, NOTHING)
                    value.of.attributes[name] = union((known, positional[2]))

    def _map(self, node: ast.Call, positional: list[Values]) -> Values:
        """``map(function, values)`` calls the function with each."""
        elements = [self.elements(values, node) for values in positional[1:]]
        function = positional[0] if positional else NOTHING
        called = [self._called(value, node, Arguments(NOTHING, elements, {})) for value in function]
        return many(union(called))

    def _super(self, owner: Class) -> Values:
        found: list[Values] = []
        for base in owner.bases:
            if isinstance(base, Class):
                found.append(frozenset((Inst(base),)))
            elif isinstance(base, Ref):
                found.append(ref(same(f"{base.name}()")))
        return union(found)

    def _operator(self, name: str, first: Values, node: ast.Call) -> Values:
        maker, attribute = name.split("().", 1)
        found = union([self.attribute(value, attribute, node) for value in first])
        if maker == "operator.attrgetter":
            return found
        return union([self._called(value, node, NONE_GIVEN) for value in found])

    # Declarations.

    def _is_do(self, node: ast.Call, callee: Values) -> bool:
        named = isinstance(node.func, ast.Attribute) and node.func.attr == "do"
        declared = any(keyword.arg == "effect" for keyword in node.keywords)
        return Ref(DO) in callee or (named and declared and len(node.args) > 1 and not callee)

    def _do(self, node: ast.Call) -> Values:
        """``ctx.do(name, function, ...)``: the function may act, its arguments are the agent's."""
        names = strings(self.eval(node.args[0])) if node.args else []
        # A function that is only named does nothing here; a call that makes one does.
        body = self.eval(node.args[1]) if len(node.args) > 1 else NOTHING
        rest = [self.eval(item) for item in node.args[2:]]
        for keyword in node.keywords:
            self.words[keyword] = self.eval(keyword.value)
            rest.append(self.words[keyword])
        for values in rest:
            self._handed(values, node, applied=False)
        self.declare("do", names[0] if names else "?", body, node, node)
        return NOTHING

    def _registers(self, node: ast.Call, callee: Values) -> Values:
        """``rt.tool(function)``, ``rt.tool(...)(function)``: a function becomes something."""
        given = self._given(node)
        functions = [
            value for values in given.positional for value in values if isinstance(value, Unit | Tool)
        ]
        guards = any(isinstance(value, Ref) and value.name == GUARD for value in callee)
        if not functions or guards:
            made = [ref(f"{value.name}()") for value in callee if isinstance(value, Ref)]
            return union([values for values in made if role_of(values)])
        units = [value.unit if isinstance(value, Tool) else value for value in functions]
        words = node.func if isinstance(node.func, ast.Call) else None
        role = role_of(callee)
        for unit in units if role == "agent" and Ref("?.step") in callee else ():
            if not self._named_context(unit):  # optimizer.step(closure)
                self.reach(unit, node)
                return NOTHING
        return union([self.becomes(unit, role, words, node) for unit in units])

    def _named_context(self, unit: Unit) -> bool:
        arguments = unit.node.args if isinstance(unit.node, _FUNCTIONS) else None
        named = [*arguments.posonlyargs, *arguments.args] if arguments else []
        first = named[1:] if unit.owner is not None and unit.kind != "staticmethod" else named
        return bool(first) and (unit.role == "agent" or first[0].arg in ("ctx", "context"))

    def becomes(self, unit: Unit, role: str, words: ast.Call | None, node: ast.AST) -> Values:
        """A function has a role from now on; what stands for it afterwards."""
        arguments = unit.node.args if isinstance(unit.node, _FUNCTIONS) else None
        if role == "agent":
            if arguments is not None and (arguments.args or arguments.posonlyargs):
                unit.role = unit.role or "agent"
            return frozenset((unit,))
        unit.role = role
        if role == "tool":
            self.declare("tool", unit.name, frozenset((unit,)), words, node)
            return frozenset((Tool(unit),))
        return frozenset((unit,))

    def declare(self, kind: str, name: str, body: Values, words: ast.Call | None, node: ast.AST) -> None:
        """Notes what somebody says about a body."""
        said: list[tuple[str, str | None]] = []
        for keyword in words.keywords if words else []:
            if keyword.arg is not None:
                texts = strings(self.words.get(keyword, NOTHING))
                empty = isinstance(keyword.value, ast.Constant) and keyword.value.value is None
                if not empty:
                    said.append((keyword.arg, texts[0] if len(texts) == 1 else None))
        complete = words is not None and all(keyword.arg is not None for keyword in words.keywords)
        at = self.span(words or node)
        things = sorted((v for v in flat(body) if isinstance(v, Ref)), key=lambda value: value.name)
        events = [
            Event(rule, value.name, at, writes(rule, value.name, []))
            for value in things
            if (rule := self.known.rule(value.name))
        ]
        units = tuple(
            value.unit if isinstance(value, Tool) else value
            for value in flat(body)
            if isinstance(value, Unit | Tool)
        )
        self.declared.append(Declared(kind, name, units, tuple(events), tuple(said), complete, at))


_NOT_OURS = sys.stdlib_module_names | {"holdfast", "?"}
_WRITING_FLAGS = frozenset(("O_WRONLY", "O_RDWR", "O_CREAT", "O_TRUNC", "O_APPEND", "O_EXCL", "O_TMPFILE"))
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
