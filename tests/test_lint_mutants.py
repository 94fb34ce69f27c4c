"""Each part of the lint is broken once, and some story notices: a rule that nobody misses is no rule."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tests.test_lint import GUILTY, INNOCENT, expected

from holdfast import lint
from holdfast.lint import calls, expressions, known, names, reach, statements, suppress, values

if TYPE_CHECKING:
    from collections.abc import Callable

NOTHING: Any = frozenset()


def right(title: str, block: str) -> bool:
    """Whether a story comes out as it says."""
    source, answers = expected(block)
    found = {(found.line, found.rule) for found in lint.check_source(source).findings}
    return found == (answers if title in GUILTY else set())


def wrong() -> str | None:
    """A story that no longer comes out as it says."""
    stories = (*GUILTY.items(), *INNOCENT.items())
    return next((title for title, block in stories if not right(title, block)), None)


def nothing(*_: Any, **__: Any) -> Any:
    return NOTHING


def leave_out(where: object, name: str, instead: Any = nothing) -> Callable[[pytest.MonkeyPatch], None]:
    return lambda patch: patch.setattr(where, name, instead)


def without_rule(rule: str) -> Callable[[pytest.MonkeyPatch], None]:
    def apply(patch: pytest.MonkeyPatch) -> None:
        patch.setitem(known.GUILTY, rule, "")
        known.builtin_table.cache_clear()

    return apply


def guilty_anyway(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(known, "INNOCENT", "")
    known.builtin_table.cache_clear()


def first_name_only(self: names.Names, node: Any) -> None:
    for alias in node.names:
        self.scope.bind(alias.name, values.ref(alias.name))


def bound_once(self: values.Scope, name: str, found: values.Values) -> None:
    self.now.own.setdefault(name, found)
    self.ever.setdefault(name, found)


def one_branch(self: values.Env, branches: Any, **_: object) -> None:
    self.own.update(next(iter([layer.own for layer in branches]), {}))


def never_writes(patch: pytest.MonkeyPatch) -> None:
    for module in (names, calls):
        patch.setattr(module, "writes", lambda *_: False)


def roots_only(roots: Any, *_: object, **__: object) -> reach.Ways:
    return {root: reach.Way(root, None) for root in roots}


MUTANTS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    **{f"no callables of {rule}": without_rule(rule) for rule in known.GUILTY},
    "nothing is innocent": guilty_anyway,
    "no other names of the same thing": leave_out(known, "SAME", {}),
    "imports under other names": leave_out(names.Names, "imports", first_name_only),
    "annotations": leave_out(names.Names, "annotated"),
    "names that are bound again": leave_out(values.Scope, "bind", bound_once),
    "branches are joined": leave_out(values.Env, "merge", one_branch),
    "containers": leave_out(expressions.Expressions, "elements"),
    "namespaces and tables": leave_out(expressions.Expressions, "_subscript"),
    "members of classes": leave_out(expressions.Expressions, "member"),
    "classes under a class": leave_out(expressions.Expressions, "_below", lambda *_: []),
    "operators of objects": leave_out(expressions.Expressions, "special"),
    "what parameters are given": leave_out(expressions.Expressions, "give"),
    "what is read without a call": leave_out(expressions, "DATA", {}),
    "branches on the attempt": leave_out(expressions.Expressions, "test", expressions.Expressions.eval),
    "partials": leave_out(calls, "PARTIAL", frozenset()),
    "what passes things on": leave_out(calls, "PASSES", frozenset()),
    "what is handed on": leave_out(calls.Calls, "_handed"),
    "getattr": leave_out(calls.Calls, "_getattr"),
    "factories of fields": leave_out(calls.Calls, "_factories"),
    "modes of files": leave_out(calls.Calls, "_mode", lambda *_: "HF206"),
    "buffers in memory": leave_out(calls.Calls, "_in_memory", lambda *_: False),
    "chance with a seed": leave_out(calls, "SEEDED", frozenset()),
    "times that are given": leave_out(calls, "NEEDS", {}),
    "what only looks": leave_out(calls, "HARMLESS", frozenset()),
    "what makes clients": leave_out(calls, "MAKERS", frozenset()),
    "methods that do nothing": leave_out(known, "QUIET", frozenset()),
    "ctx.do may act": leave_out(calls.Calls, "_is_do", lambda *_: False),
    "tools may act": leave_out(statements, "role_of", lambda _: ""),
    "tools by a call": leave_out(calls, "role_of", lambda _: ""),
    "agents by their context": leave_out(statements.Statements, "_takes_context", lambda *_: False),
    "decorators of the module": leave_out(statements.Statements, "_wrapped"),
    "dispatch": leave_out(statements.Statements, "_dispatched"),
    "what with binds": leave_out(statements.Statements, "_with"),
    "global names": leave_out(statements.Statements, "_elsewhere"),
    "a module is read more than once": leave_out(statements, "PASSES", 1),
    "functions that agents call": leave_out(reach, "ways", roots_only),
    "what is declared": leave_out(calls.Calls, "declare"),
    "what writes": never_writes,
    "suppressions": leave_out(suppress.Suppressions, "take", lambda *_: None),
    "suppressions on the way": leave_out(suppress.Suppressions, "reason", lambda *_: None),
    "suppressions that nothing needs": leave_out(suppress.Suppressions, "idle", lambda *_: []),
}


def test_every_story_is_right_as_it_is() -> None:
    assert wrong() is None


@pytest.mark.parametrize("part", MUTANTS)
def test_some_story_notices_when_a_part_is_broken(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    MUTANTS[part](monkeypatch)
    noticed = wrong()
    monkeypatch.undo()
    known.builtin_table.cache_clear()
    assert noticed, f"no story needs: {part}"
