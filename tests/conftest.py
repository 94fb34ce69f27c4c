"""Profiles of the property tests (`make test` takes seconds, `make faults` as long as it takes), and what is
said when the tests are over.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import HealthCheck, settings
from tests import closing

if TYPE_CHECKING:
    import pytest

# A shared machine can stall any single case, so no case has a deadline: pytest's timeout is the guard.
settings.register_profile("short", max_examples=300, deadline=None)
settings.register_profile(
    "long", max_examples=20_000, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("short")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Says what was counted, and what was not run."""
    closing.summarize(terminalreporter)
