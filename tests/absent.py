"""What a test needs and this machine or build does not have: the session says at its end what was not run."""

from __future__ import annotations

from typing import NoReturn

import pytest

NOT_RUN = pytest.StashKey[dict[str, list[str]]]()


def not_run(request: pytest.FixtureRequest, what: str) -> NoReturn:
    """The test needs what is not here, and the session says so at its end."""
    request.config.stash.setdefault(NOT_RUN, {}).setdefault(what, []).append(request.node.nodeid)
    pytest.skip(f"not run: {what}")
