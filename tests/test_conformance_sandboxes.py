"""The conformance suite for sandboxes passes on ours, and fails by clause on every wrong one."""

from __future__ import annotations

import inspect
import json
import re
import sys
from typing import TYPE_CHECKING

import pytest
from tests.conformance import wrong_sandboxes
from tests.conformance.sandboxes import Around, InAProcess, InNamespaces, Passing
from tests.conformance.wrong_sandboxes import BROKEN, Says
from tests.sandbox_desk import IS_ROOT, needs_bubblewrap, nobody
from tests.support import ROOT

from holdfast.conformance import suite
from holdfast.conformance.sandboxes import CLAUSES, Clause, run
from holdfast.sandbox import Limits, SandboxError

if TYPE_CHECKING:
    from pathlib import Path

BY_ID = {clause.id: clause for clause in CLAUSES}
# What the tier subprocess does not say that it enforces; root is exempt from limits on processes.
UNCLAIMED = [*(["enforces.processes"] if IS_ROOT else []), "enforces.filesystem", "enforces.network"]
# Every run is a new interpreter: beside what they break, wrong sandboxes are tried on some that are fast.
FAST = {
    "says.what_it_is",
    "start.cancelled",
    "return.value",
    "raise.told",
    "unknown.left",
    "clean.environment",
    "clean.folder",
}
SLOW = {"end.descendants", "end.cancelled"}


@pytest.mark.parametrize("clause", CLAUSES, ids=str)
def test_bubblewrap_keeps(request: pytest.FixtureRequest, clause: Clause) -> None:
    # The pytest way: a test per clause.
    needs_bubblewrap(request)
    if clause.id == "enforces.processes" and IS_ROOT:
        with pytest.raises(suite.NotApplicable, match="does not say that it enforces processes"):
            clause.check(InNamespaces())
    else:
        clause.check(InNamespaces())


def test_bodies_are_found_as_a_part_of_the_package() -> None:
    names = ("start.not_importable", "return.value", "raise.told", "end.timeout", "enforces.memory")
    results = run(InAProcess(), clauses=[BY_ID[name] for name in names])
    assert results.ids("passed") == list(names), str(results)


def test_a_process_keeps_every_clause_that_it_claims() -> None:
    results = run(Around(Passing))
    assert results.ok, str(results)
    assert results.ids("not_applicable") == UNCLAIMED
    assert results["enforces.network"].reason == "it does not say that it enforces network here"


NOBODY = """
from holdfast.conformance.sandboxes import CLAUSES, run
from tests.conformance.sandboxes import InAProcess, InNamespaces
import json
clauses = [clause for clause in CLAUSES if clause.id.startswith("enforces.")]
for harness in (InAProcess(), InNamespaces()):
    print(json.dumps({result.clause.id: str(result) for result in run(harness, clauses=clauses)}))
"""


def test_what_is_enforced_for_a_user_without_rights_is_more(
    request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    needs_bubblewrap(request)
    lines = nobody(request, tmp_path, [sys.executable, "-c", NOBODY]).splitlines()
    process, namespaces = (json.loads(line) for line in lines)
    guards = ["time", "cpu", "memory", "processes", "filesystem", "network"]
    assert [told.partition(":")[0] for told in namespaces.values()] == ["passed"] * len(guards)
    assert list(namespaces) == [f"enforces.{guard}" for guard in guards]
    assert process["enforces.processes"].startswith("passed"), process


@pytest.mark.parametrize("sandbox", BROKEN, ids=lambda sandbox: sandbox.__name__)
def test_a_wrong_sandbox_fails_by_clause(sandbox: type[Passing]) -> None:
    tried = (BY_ID.keys() - SLOW if issubclass(sandbox, Says) else FAST) | BROKEN[sandbox]
    clauses = [clause for clause in CLAUSES if clause.id in tried]
    results = run(Around(sandbox), clauses=clauses)
    assert set(results.ids("failed")) == BROKEN[sandbox], str(results)


def test_every_clause_was_seen_to_fail_and_every_wrong_sandbox_is_tried() -> None:
    assert set().union(*BROKEN.values()) == BY_ID.keys()
    there = {
        kind
        for _, kind in inspect.getmembers(wrong_sandboxes, inspect.isclass)
        if issubclass(kind, Passing) and kind.__module__ == wrong_sandboxes.__name__
    }
    assert there - {base for kind in there for base in kind.__bases__} == BROKEN.keys()


class Missing(Passing):
    """Does not work on this machine."""

    def __init__(self, limits: Limits) -> None:
        super().__init__(limits)
        self.code = "sandbox_unavailable"

    def check(self) -> None:
        raise SandboxError("there is no such thing here", code=self.code)


class Vague(Missing):
    """Does not work either, and says so in another word."""

    def __init__(self, limits: Limits) -> None:
        super().__init__(limits)
        self.code = "store_full"


def test_a_sandbox_that_does_not_work_here_is_not_tried_and_that_is_not_a_pass() -> None:
    results = run(Around(Missing), clauses=CLAUSES[:3])
    assert len(results.ids("not_applicable")) == 3
    assert "there is no such thing here" in results.results[0].reason
    assert not results.ok
    assert run(Around(Vague), clauses=CLAUSES[:3]).ids("failed") == [clause.id for clause in CLAUSES[:3]]


def test_the_document_lists_the_clauses() -> None:
    text = (ROOT / "docs" / "CONFORMANCE.md").read_text(encoding="utf-8")
    section = text.split("# Is it a sandbox?")[1].split("\n# ")[0]
    listed = re.findall(r"(?m)^\| `([a-z]+\.[a-z_]+)` \| (.+) \|$", section)
    assert listed == [(clause.id, clause.text) for clause in CLAUSES]
