"""Every agent that the documents show survives a crash anywhere, or it is said here why it is not tried.

Agents are cut out of the code blocks and executed: imports, plain values, tools, hooks and agents of a page,
on a runtime of the test's. What a page runs and asserts is tried by tests/test_examples.py.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from tests.support import ROOT

import holdfast as hf
from holdfast import testing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PAGES = ["README.md", *(f"docs/{path.name}" for path in sorted((ROOT / "docs").glob("*.md")))]


@dataclass(frozen=True)
class Trial:
    """How an agent is tried.

    Attributes:
        args: what it is given.
        result: what it comes to, where that is the same in every run: keys and ids are a run's own.
        outside: the value of the page that stands for the world, if it has one.
        least: how many crashes there are at least.
    """

    args: tuple[object, ...] = ()
    result: object = None
    outside: str = ""
    least: int = 8


TRIED: dict[tuple[str, str], Trial] = {
    ("README.md", "support"): Trial(("my parcel never came",), least=16),
    ("docs/FLEET.md", "clerk"): Trial(("42",), "42 is done", least=6),
    ("docs/GETTING_STARTED.md", "support"): Trial(("a parcel",), "answered with mail-1", "sent"),
    ("docs/GETTING_STARTED.md", "returns"): Trial(("42",), "refunded 1999", least=16),
    ("docs/HOWTO.md", "publisher"): Trial(("home",), "published", least=10),
    ("docs/HOWTO.md", "refunder"): Trial(("o-8",), "refunded 1999", "bank"),
    ("docs/HOWTO.md", "wirer"): Trial((500,), outside="bank"),
    ("docs/HOWTO.md", "traveller"): Trial((), "ticket for the train is void", "trips", least=14),
    ("docs/HOWTO.md", "patient"): Trial((), "nobody answered"),
    ("docs/HOWTO.md", "sleeper"): Trial((), "rested"),
    ("docs/HOWTO.md", "artist"): Trial(),
    ("docs/PAST.md", "support"): Trial(("42",), "receipt for 42", "sent", least=10),
    ("docs/PAST.md", "generous"): Trial(("42",), "receipt for 42", "sent"),
}
NOT_TRIED = {
    ("docs/GETTING_STARTED.md", "buy"): "the page crashes it everywhere itself, and is executed",
    (
        "docs/HOWTO.md",
        "spender",
    ): "its budget counts what is sent again, so it may be refused earlier: see below",
    ("docs/HOWTO.md", "clerk"): "its fax never answers: only a person's word ends it, and the page gives one",
    ("docs/PAST.md", "careless"): "it fails, which is what the page is about",
    ("docs/EXPORTS.md", "support"): "what its page defines cannot be cut from what its page does",
}


def statements(page: str) -> Iterator[ast.stmt]:
    """All that the code blocks of a page say, in order; what is in a with-block counts as beside it."""
    for block in re.findall(r"^```python\n(.*?)^```", (ROOT / page).read_text(), re.MULTILINE | re.DOTALL):
        for statement in ast.parse(block).body:
            if isinstance(statement, ast.With):
                yield from statement.body
            yield statement


def roles(statement: ast.stmt) -> set[str]:
    """What a function is registered as: ``agent``, ``tool``, ``hook``, on whatever runtime."""
    if not isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
        return set()
    plain = [one.func if isinstance(one, ast.Call) else one for one in statement.decorator_list]
    return {one.attr for one in plain if isinstance(one, ast.Attribute)}


def agents(page: str) -> list[str]:
    """The agents that a page shows, also inside functions."""
    found = [node for top in statements(page) for node in ast.walk(top) if isinstance(node, ast.stmt)]
    return sorted({node.name for node in found if "agent" in roles(node)})  # type: ignore[attr-defined]


def definitions(page: str) -> list[ast.stmt]:
    """Imports, values without calls, and functions; of a name that comes twice, the first."""
    kept: list[ast.stmt] = []
    for statement in statements(page):
        value = statement.value if isinstance(statement, ast.Assign | ast.AnnAssign) else None
        is_plain = value is not None and not any(isinstance(node, ast.Call) for node in ast.walk(value))
        is_function = isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef)
        if is_plain or is_function or isinstance(statement, ast.Import | ast.ImportFrom):
            kept.append(statement)
    return kept


def cut(page: str, agent: str, trial: Trial) -> Callable[[hf.Store, Any], testing.Scene]:
    """A scene of an agent as its page has it."""
    code = compile(ast.Module(definitions(page), type_ignores=[]), page, "exec")

    def build(store: hf.Store, world: Any) -> testing.Scene:
        rt = hf.Runtime(store, suspend_grace=0.005, replay_grace=0.02)
        gate = hf.Gateway(store)
        names: dict[str, Any] = {"__name__": page, "rt": rt, "quick": rt, "gate": gate}
        exec(code, names)
        if trial.outside:
            names[trial.outside] = world
        else:
            for tool in rt.gateway.tools.values():
                tool.function = noted(tool.name, tool.function, world)
        return testing.Scene(rt, names[agent], trial.args)

    return build


def noted(name: str, body: Callable[..., Any], world: list[Any]) -> Callable[..., Any]:
    """A body that leaves a mark outside."""

    def called(**given: Any) -> Any:
        world.append(f"{name} {sorted(given)}")
        return body(**given)

    return called


def same(one: Any, other: Any) -> bool:
    """Keys are each run's own; what happened under them is not."""
    values = [world.values() if isinstance(world, dict) else world for world in (one, other)]
    told = [sorted(str(item[0] if isinstance(item, tuple) else item) for item in each) for each in values]
    return told[0] == told[1]


@pytest.mark.parametrize(("page", "agent"), TRIED, ids=lambda part: part)
def test_an_agent_of_the_documents_comes_to_the_same_after_a_crash_anywhere(page: str, agent: str) -> None:
    trial = TRIED[page, agent]
    made: Callable[[], Any] = dict if trial.outside == "bank" else list
    build = cut(page, agent, trial)
    report = testing.crash_everywhere(build, world=made, same=same, check=False)
    assert len(report.boundaries) >= trial.least, report
    if trial.result is None:  # it names its own key or id: it completed, and with another one
        report.problems = [problem for problem in report.problems if "the run is completed" not in problem]
        assert isinstance(report.result, str)
        assert report.result
    else:
        assert report.result == trial.result
    assert report.ok, report


def test_an_agent_of_the_documents_comes_to_the_same_after_a_kill_anywhere() -> None:
    key = ("docs/GETTING_STARTED.md", "support")
    report = testing.crash_everywhere(cut(*key, TRIED[key]), same=same, kill=True)
    assert report.result == TRIED[key].result


def test_a_budget_is_never_overrun_by_a_crash_though_it_may_end_earlier() -> None:
    build = cut("docs/HOWTO.md", "spender", Trial(outside="bank"))
    banks: list[dict[str, int]] = []

    def small(_: object, bank: dict[str, int]) -> bool:
        banks.append(bank)
        return sorted(bank.values()) in ([0], [0, 1])

    report = testing.crash_everywhere(build, world=dict, same=small, check=False)
    assert report.result == "refused at 2"
    assert len(banks) == len(report.boundaries) >= 14
    other = [problem for problem in report.problems if "'refused at 1'" not in problem]
    assert (other, len(report.problems)) == ([], 2), report  # both while the first transfer was on its way


def test_every_agent_of_the_documents_is_tried_or_it_is_said_why_not() -> None:
    shown = {(page, agent) for page in PAGES for agent in agents(page)}
    assert shown == TRIED.keys() | NOT_TRIED.keys()
    assert not TRIED.keys() & NOT_TRIED.keys()
    # The gateway's page drives steps by hand: it has no agents.
    assert agents("docs/GATEWAY.md") == []


def test_what_is_cut_out_is_what_the_page_says() -> None:
    kept = definitions("docs/HOWTO.md")
    assert not any(isinstance(statement, ast.Assert | ast.Expr | ast.With) for statement in kept)
    assert {role for statement in kept for role in roles(statement)} >= {"agent", "tool", "hook"}
