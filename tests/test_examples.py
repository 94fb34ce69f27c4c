"""Every example that people read is executed: doctests of all modules, and README's Python."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
import re
from pathlib import Path

import pytest

import holdfast

README = Path(__file__).parent.parent / "README.md"
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


def test_the_python_of_the_readme_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"^```python\n(.*?)^```", README.read_text(), re.MULTILINE | re.DOTALL)
    namespace: dict[str, object] = {"__name__": "__main__"}
    for at, block in enumerate(blocks):
        exec(compile(block, f"README.md[{at}]", "exec"), namespace)
