"""Breaks each rule of the core on purpose and sees that a test notices.

The mutants of the store need real processes and disks: tests/faults plants those.

One extra build of the core's tests with ``--cfg mutants``; the mutant is chosen at run time by
``HOLDFAST_MUTANT``. First the suite must pass with none, or a killed mutant means nothing.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "rust/core/src/mutants.rs"
SUITES = (
    *("gateway", "leave", "own", "runs", "waiting", "folding", "matching", "chain", "evidence", "bundle"),
    *("model", "schedules"),
)


def names(*, of_store: bool = False) -> list[str]:
    """The mutants of the core, or of the store, as the table in ``mutants.rs`` lists them."""
    table = SOURCE.read_text().split("mutants! {", 2)[-1].split("\n}")[0]
    found = re.findall(r"^    /// (.*)\n    ([A-Z]\w+),$", table, re.MULTILINE)
    return [name for about, name in found if about.startswith("The store:") == of_store]


def build() -> list[str]:
    """Builds the suites with the mutants in, and returns their binaries."""
    command = ["cargo", "test", "--locked", "--no-run", "-p", "holdfast-core", "--message-format=json"]
    command += [word for suite in SUITES for word in ("--test", suite)]
    environment = {**os.environ, "RUSTC_WORKSPACE_WRAPPER": str(ROOT / "tests/mutants-rustc")}
    built = subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, check=True, text=True)
    messages = (json.loads(line) for line in built.stdout.splitlines() if line.startswith("{"))
    return [message["executable"] for message in messages if message.get("executable")]


def failing(binaries: list[str], mutant: str) -> str | None:
    """The first suite that fails under a mutant."""
    environment = {
        **os.environ,
        "HOLDFAST_MUTANT": mutant,
        "PROPTEST_CASES": "256",
        "PROPTEST_MAX_SHRINK_ITERS": "0",
        "RUST_BACKTRACE": "0",
    }
    for binary in binaries:
        done = subprocess.run([binary, "-q"], env=environment, capture_output=True, timeout=300, check=False)
        if done.returncode != 0:
            return re.sub(r"-[0-9a-f]+$", "", Path(binary).name)
    return None


def main() -> int:
    """Runs every mutant and says which suite noticed it."""
    binaries = build()
    if len(binaries) != len(SUITES):
        print(f"expected the suites {SUITES}, built {binaries}")
        return 1
    broken = failing(binaries, "")
    if broken is not None:
        print(f"the suite {broken} fails without a mutant: nothing was shown")
        return 1
    mutants = names()
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        noticed = list(pool.map(lambda mutant: failing(binaries, mutant), mutants))
    for mutant, suite in zip(mutants, noticed, strict=True):
        print(f"  {mutant:<22} {f'noticed by {suite}' if suite else 'SURVIVED'}")
    survived = noticed.count(None)
    print(f"mutants: {len(mutants) - survived} of {len(mutants)} noticed")
    return 1 if survived or not mutants else 0


if __name__ == "__main__":
    sys.exit(main())
