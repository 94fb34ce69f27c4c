"""The examples in docs/errors raise what they say, and docs/ERRORS.md leads to every page."""

from __future__ import annotations

import doctest
import re
import tempfile
from pathlib import Path

import pytest

from holdfast import _core

FOLDER = Path(__file__).parent.parent / "docs" / "errors"
PAGES = [page for page in sorted(FOLDER.glob("*.md")) if ">>> " in page.read_text(encoding="utf-8")]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_example_raises_what_the_page_says(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # where examples put their stores
    text = page.read_text(encoding="utf-8").replace("```", "\n")  # a fence would be read as output
    example = doctest.DocTestParser().get_doctest(text, {}, page.stem, str(page), 0)
    results = doctest.DocTestRunner(verbose=False).run(example)
    assert results.failed == 0
    assert results.attempted > 0
    assert f"Error: {page.stem}: " in text, "the example raises something else"


def test_the_pages_were_found() -> None:
    assert len(PAGES) >= 40


def test_the_index_has_every_code_once_with_what_to_do() -> None:
    index = (FOLDER.parent / "ERRORS.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| \[`(\w+)`\]\(errors/(\w+)\.md\) \| (.+) \|$", index, re.MULTILINE)
    expected = sorted((code, code, fix) for code, fix in _core.error_codes())
    assert sorted(rows) == expected, "edit docs/ERRORS.md: one row per code, with its fix of error.rs"
