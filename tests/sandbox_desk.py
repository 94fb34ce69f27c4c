"""What tests of sandboxes share: bubblewrap where it can be had, a user without rights, what was not run."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tests.closing import not_run
from tests.support import ROOT

from holdfast.sandbox import Bubblewrap, SandboxError

if TYPE_CHECKING:
    import pytest

IS_ROOT = os.geteuid() == 0


@functools.cache
def install() -> None:
    """Once, and only where it can work."""
    if shutil.which("bwrap") is None and IS_ROOT and shutil.which("apt-get"):
        command = "apt-get update -qq && apt-get install -y -qq --no-install-recommends bubblewrap"
        subprocess.run(["sh", "-c", command], check=False, capture_output=True)


def needs_bubblewrap(request: pytest.FixtureRequest) -> None:
    """Bubblewrap works here, or the test is counted as not run."""
    install()
    try:
        Bubblewrap().check()
    except SandboxError as error:
        not_run(request, str(error))


def nobody(request: pytest.FixtureRequest, folder: Path, command: list[str]) -> str:
    """Runs a command as a user without rights, who finds the interpreter and this tree where they are."""
    script, before = "", ["unshare", "--mount", "sh", "-c"]
    for number, place in enumerate({sys.base_prefix, str(ROOT)}):
        closed = [path for path in Path(place).parents if not path.stat().st_mode & 0o001]
        if closed:
            kept = folder / str(number)
            kept.mkdir()
            script += f"mount --bind {place} {kept}; mount -t tmpfs -o mode=755 none {closed[-1]};"
            script += f"mkdir -p {place}; mount --bind {kept} {place};"
    user = "exec setpriv --reuid 65534 --regid 65534 --clear-groups"
    whole = [*before, f'set -e; {script} {user} "$@"', "sh", *command] if IS_ROOT else command
    done = subprocess.run(whole, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        not_run(request, f"as nobody: {done.stderr}")
    return done.stdout
