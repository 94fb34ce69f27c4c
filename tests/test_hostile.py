"""Values and text made to break an encoder: each ends in an error with a code, soon and in little memory.

Every case runs in a process of its own (tests/hostile.py) that may have 512 MB of address space and
reports how long each call took. A crash, a RecursionError or a MemoryError would show as another code
than the one expected.
"""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from tests import hostile

SECONDS_MAX = 5.0


@pytest.mark.parametrize("name", hostile.cases())
def test_it_ends_in_an_error_with_a_code_soon_and_in_little_memory(name: str) -> None:
    case = hostile.cases()[name]
    # The guard is generous because a machine may be busy; what counts is the child's own processor time.
    done = subprocess.run(
        [sys.executable, hostile.__file__, name], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, f"the process died with {done.returncode}: {done.stderr}"
    report = json.loads(done.stdout)
    assert [(call["function"], call["code"]) for call in report["calls"]] == [
        (function, case.code) for function in case.functions
    ]
    assert max(call["seconds"] for call in report["calls"]) < SECONDS_MAX, report
    assert report["sane"], "after the refusals, an ordinary value no longer had its bytes"
