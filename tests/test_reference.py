"""The reference names everything that is public, and what it names is there and says what it is.

The pages hold directives of mkdocstrings; ``make docs`` makes a site of them, this needs none of it.
"""

from __future__ import annotations

import importlib
import pkgutil
import re
from types import ModuleType
from typing import Any

import pytest
from tests.support import ROOT

import holdfast
from holdfast import approvers, conformance, gateway, runtime, sandbox, sql, store, testing

PAGES = sorted((ROOT / "docs" / "reference").glob("*.md"))
NAMED = [name for page in PAGES for name in re.findall(r"(?m)^::: (\S+)$", page.read_text("utf-8"))]
# Programs, and what the extension is made of: no API.
NO_API = {"__main__", "_core", "cli", "demo"}
# Their names are on pages by what they are for.
BY_NAME = {"errors", "gateway", "runtime", "secrets", "store", "testing", "conformance"}


def found(name: str) -> Any:
    """What a directive names: a module, or something of one."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        module, _, last = name.rpartition(".")
        return getattr(importlib.import_module(module), last)


def is_named(thing: Any, name: str) -> bool:
    """Whether a page shows it, by itself or as a part of its module."""
    if isinstance(thing, ModuleType):
        return thing.__name__ in NAMED
    shown = [found(directive) for directive in NAMED]
    whole = [module for module in shown if isinstance(module, ModuleType)]
    inside = any(
        name in getattr(module, "__all__", ()) and getattr(module, name) is thing for module in whole
    )
    return inside or any(one is thing for one in shown)


@pytest.mark.parametrize("module", [holdfast, gateway, runtime, store, testing, sandbox, conformance])
def test_every_public_name_is_in_the_reference(module: ModuleType) -> None:
    names = [name for name in module.__all__ if name != "__version__"]
    assert [name for name in names if not is_named(getattr(module, name), name)] == []
    assert len(names) >= 3


def test_the_version_is_named_on_the_first_page() -> None:
    assert "`holdfast.__version__`" in (ROOT / "docs" / "reference" / "index.md").read_text("utf-8")


def test_every_public_module_is_in_the_reference() -> None:
    there = {found.name for found in pkgutil.iter_modules(holdfast.__path__)}
    whole = {name.split(".")[1] for name in NAMED if isinstance(found(name), ModuleType)}
    assert there == whole | NO_API | BY_NAME
    assert {approvers.__name__, sql.__name__} <= set(NAMED)


def test_what_the_reference_names_is_there_once_and_says_what_it_is() -> None:
    assert len(set(NAMED)) == len(NAMED)
    assert [name for name in NAMED if not (found(name).__doc__ or "").strip()] == []


def test_every_page_is_in_the_navigation() -> None:
    text = (ROOT / "mkdocs.yml").read_text("utf-8")
    listed = re.findall(r"(?m)^ +- (?:[^:\n]+: )?(\S+\.md)$", text)
    docs = ROOT / "docs"
    pages = [str(page.relative_to(docs)) for page in (*docs.glob("*.md"), *docs.glob("reference/*.md"))]
    assert sorted(listed) == sorted(pages)
