"""Every example that people read is executed: doctests of all modules, the Python of README and of guides."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
import re
from pathlib import Path

import pytest

import holdfast

ROOT = Path(__file__).parent.parent
GUIDES = {  # how many blocks each has at least
    "README.md": 1,
    "docs/EVIDENCE.md": 3,
    "docs/EXPORTS.md": 6,
    "docs/FLEET.md": 2,
    "docs/GATEWAY.md": 5,
    "docs/GETTING_STARTED.md": 6,
    "docs/HOWTO.md": 12,
    "docs/LINT.md": 1,
    "docs/PAST.md": 8,
    "docs/STORE.md": 12,
}
MODULES = ["holdfast"] + [
    found.name
    for found in pkgutil.walk_packages(holdfast.__path__, "holdfast.")
    if not found.name.endswith(("._core", ".__main__"))
]


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_of_a_module_say_what_happens(name: str) -> None:
    options = doctest.ELLIPSIS
    result = doctest.testmod(importlib.import_module(name), optionflags=options, report=True)
    assert result.failed == 0, f"{result.failed} of {result.attempted} examples of {name} failed: see above"


def test_the_primitives_and_the_readers_have_examples() -> None:
    finder = doctest.DocTestFinder(exclude_empty=True)
    for name in ("holdfast.primitives", "holdfast.records.record", "holdfast.contracts.table"):
        assert any(test.examples for test in finder.find(importlib.import_module(name))), name


@pytest.mark.parametrize("name", GUIDES)
def test_the_python_of_a_guide_runs_from_top_to_bottom(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"^```python\n(.*?)^```", (ROOT / name).read_text(), re.MULTILINE | re.DOTALL)
    assert len(blocks) >= GUIDES[name]
    namespace: dict[str, object] = {"__name__": "__main__"}
    for at, block in enumerate(blocks):
        exec(compile(block, f"{name}[{at}]", "exec"), namespace)


def test_the_guide_lists_every_table_and_view_with_columns_that_exist() -> None:
    page = (ROOT / "docs" / "STORE.md").read_text()
    section = page.split("## SQL for people")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (`.+?) \| .+ \| (`.+) \|$", section, re.MULTILINE)
    store = holdfast.open("memory:")
    listed = set()
    for names, columns in rows:
        for name, told in zip(re.findall(r"`(\w+)`", names), columns.split("; "), strict=True):
            shown = re.findall(r"`(\w+)`", told)
            found = store.sql("select name from pragma_table_info(?) order by cid", [name])
            assert shown == [column["name"] for column in found], name
            listed.add(name)
    there = store.sql("select name from sqlite_master where type in ('table', 'view')")
    assert listed == {row["name"] for row in there}
