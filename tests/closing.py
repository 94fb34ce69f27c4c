"""What the session says when the tests are over: what they counted, and what this machine or build could not
run. pytest swallows what a passing test prints, and a skip that nobody reads passes for a pass.

Lines travel with a test's reports, so that they arrive from other processes, too.
"""

from __future__ import annotations

import os
from collections import defaultdict
from typing import TYPE_CHECKING, NoReturn

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterable

PROPERTY = "holdfast-closing"
ABSENT = "tests that were not run"


def tell(request: pytest.FixtureRequest, section: str, line: str) -> None:
    """Has a line printed when the tests are over."""
    request.node.user_properties.append((PROPERTY, (section, line)))


def not_run(request: pytest.FixtureRequest, what: str, *, chosen: bool = False) -> NoReturn:
    """The test needs what is not here. Where everything must be run it fails, unless that was chosen."""
    if os.environ.get("CI") and not chosen:
        pytest.fail(f"not run, and CI must run everything: {what}")
    tell(request, ABSENT, f"{request.node.nodeid}: {what}")
    pytest.skip(f"not run: {what}")


def summarize(terminal: pytest.TerminalReporter) -> None:
    """Prints what was told, by section."""
    told: defaultdict[str, list[str]] = defaultdict(list)
    for report in _ends(terminal.stats.values()):
        for name, value in report.user_properties:
            if name == PROPERTY and isinstance(value, tuple | list):
                section, line = value
                told[section].append(line)
    for section, lines in sorted(told.items()):
        terminal.section(section)
        for line in lines:
            terminal.line(line)
        if section == ABSENT:
            terminal.line(f"{len(lines)} not run")


def _ends(stats: Iterable[list[object]]) -> Iterable[pytest.TestReport]:
    """The last report of each test: it has all that was told."""
    found = (report for reports in stats for report in reports if isinstance(report, pytest.TestReport))
    return {report.nodeid: report for report in found if report.when == "teardown"}.values()
