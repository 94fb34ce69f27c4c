"""What the fault tests share: the build with planted faults, and an honest count of what was not run.

``mutants`` is the path of a build made with ``--cfg mutants`` (``HOLDFAST_MUTANTS_PYTHON``): a harness must
find the planted fault, or its zero means nothing. Where it is missing the test is not run, the session
says so at its end, and under ``CI`` it fails. ``not_run`` does the same for whatever else a machine lacks.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import pytest
from tests import closing
from tests.faults.processes import Zygote

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

BUILD = "HOLDFAST_MUTANTS_PYTHON"


@pytest.fixture
def not_run(request: pytest.FixtureRequest) -> Callable[[str], NoReturn]:
    """Ends a test that this machine cannot run, and has the session count it."""
    return lambda what: closing.not_run(request, what)


@pytest.fixture
def mutants(request: pytest.FixtureRequest) -> str:
    """The PYTHONPATH of the build with planted faults."""
    path = os.environ.get(BUILD, "")
    if not path:
        closing.not_run(request, f"set {BUILD} to the PYTHONPATH of a build with --cfg mutants")
    assert (Path(path) / "holdfast").is_dir(), f"{BUILD} is {path!r}, and there is no holdfast in it"
    return path


@pytest.fixture
def zygote() -> Iterator[Zygote]:
    """Forks processes that use the build under test."""
    with Zygote() as forks:
        yield forks
