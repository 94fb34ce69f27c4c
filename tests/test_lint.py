"""The boundary lint: guilty stories are found where they say, innocent ones are not, ours are clean."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from holdfast import lint

ROOT = Path(__file__).parent.parent
TOLD = re.compile(r"#\s+(HF\d{3}(?: HF\d{3})*)$")
GUIDES = ["README.md", *sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").glob("*.md"))]


def stories(name: str) -> dict[str, str]:
    """The blocks of a page, by their titles."""
    page = (ROOT / "tests" / "lint" / name).read_text(encoding="utf-8")
    found = re.findall(r"^### ([^\n]+)\n```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert len(found) == len(dict(found)) == page.count("\n### "), "titles are unique, and each has a block"
    return dict(found)


GUILTY, INNOCENT = stories("guilty.md"), stories("innocent.md")


def expected(block: str) -> tuple[str, set[tuple[int, str]]]:
    """A story without its answers, and the answers: line and rule."""
    lines, answers = [], set()
    for at, line in enumerate(block.splitlines(), 1):
        told = TOLD.search(line)
        answers |= {(at, rule) for rule in (told[1].split() if told else [])}
        lines.append(line[: told.start()].rstrip() if told else line)
    return "\n".join(lines) + "\n", answers


@pytest.mark.parametrize("title", GUILTY)
def test_a_guilty_story_is_found_where_it_says_and_nowhere_else(title: str) -> None:
    source, answers = expected(GUILTY[title])
    report = lint.check_source(source)
    assert answers, "a guilty story says what is found"
    assert {(found.line, found.rule) for found in report.findings} == answers, str(report)
    assert report.problems == ()


@pytest.mark.parametrize("title", INNOCENT)
def test_nothing_is_found_in_an_innocent_story(title: str) -> None:
    report = lint.check_source(INNOCENT[title])
    assert str(report) == ""


def test_the_tables_are_as_long_as_was_promised() -> None:
    assert len(GUILTY) >= 60
    assert len(INNOCENT) >= 60


def test_every_rule_is_found_in_some_story() -> None:
    found = {rule for block in GUILTY.values() for _, rule in expected(block)[1]}
    assert found == {rule.id for rule in lint.RULES}


@pytest.mark.parametrize("name", GUIDES)
def test_the_python_of_our_guides_is_clean(name: str) -> None:
    page = (ROOT / name).read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    assert str(lint.check_source("\n".join(blocks), name)) == ""


def test_our_own_programs_are_clean_and_say_why_where_they_act_on_purpose() -> None:
    report = lint.check([ROOT / "python/holdfast/demo", ROOT / "benches/peer_jobs"])
    assert str(report) == ""
    assert report.files > 5
    assert [(found.rule, found.path.rpartition("/")[2]) for found in report.suppressed] == [
        ("HF303", "holdfast_job.py"),
        ("HF303", "holdfast_long.py"),
        ("HF303", "holdfast_pg_job.py"),
        ("HF103", "app.py"),
    ]
    assert report.suppressed[-1].reason == "the demonstration shows what happens without a ledger"
    assert (report.suppressed[-1].agent, report.suppressed[-1].via) == ("support", ("_ask",))
