"""A rolling restart: worker processes of two versions of one program on one PostgreSQL. Old runs go on under
the new version or wait for a person, as the program says; either is in the journal. No worker takes a run of
an agent that its program does not have.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import holdfast as hf

pytest_plugins = ["tests.postgres"]
PROGRAM = """
import os
from pathlib import Path
import holdfast as hf

VERSION, STRICT = os.environ["PROGRAM_VERSION"], os.environ["PROGRAM_STRICT"] == "yes"
rt = hf.Runtime(os.environ["HOLDFAST_STORE"], suspend_grace=0.05, strict_packages=STRICT)

@rt.tool(effect="write")
def wire(what: str, call: hf.Call) -> str:
    with (Path(__file__).parent / "ledger").open("a") as ledger:
        ledger.write(f"{what} by {VERSION}\\n")
    return VERSION

@rt.agent(version=VERSION)
async def pay(ctx: hf.Context, what: str) -> list[str]:
    first = await ctx.call(wire, what=f"{what} first")
    await ctx.signal("go")
    return [first, await ctx.call(wire, what=f"{what} second")]

if VERSION == "2":
    @rt.agent
    async def extra(ctx: hf.Context) -> str:
        return VERSION
"""


class Fleet:
    """The program's versions: as a runtime here, and as worker processes."""

    def __init__(self, folder: Path, store: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.monkeypatch = folder, monkeypatch
        self.opened: list[hf.Runtime] = []
        (folder / "program.py").write_text(PROGRAM)
        monkeypatch.setenv("HOLDFAST_STORE", store)

    def _is(self, version: str, *, strict: bool) -> None:
        self.monkeypatch.setenv("PROGRAM_VERSION", version)
        self.monkeypatch.setenv("PROGRAM_STRICT", "yes" if strict else "no")

    def runtime(self, version: str, *, strict: bool = False) -> hf.Runtime:
        self._is(version, strict=strict)
        spec = importlib.util.spec_from_file_location("program", self.folder / "program.py")
        assert spec is not None
        assert spec.loader is not None
        module: Any = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        self.opened.append(module.rt)
        return self.opened[-1]

    def workers(self, *versions: str, strict: bool = False) -> None:
        """Worker processes of these versions at the same time, until they find nothing to do."""
        command = [sys.executable, "-m", "holdfast", "worker", "program:rt", "--until-idle"]
        running = []
        for number, version in enumerate(versions):
            self._is(version, strict=strict)
            named = [*command, "--name", f"v{version}-{number}"]
            running.append(
                subprocess.Popen(named, cwd=self.folder, env=os.environ.copy(), stderr=subprocess.PIPE)
            )
        for worker in running:
            _, told = worker.communicate(timeout=120)
            assert worker.returncode == 0, told.decode()

    def ledger(self) -> list[str]:
        return sorted((self.folder / "ledger").read_text().splitlines())


@pytest.fixture
def fleet(tmp_path: Path, postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Fleet]:
    made = Fleet(tmp_path, postgres_url, monkeypatch)
    yield made
    for runtime in made.opened:
        runtime.close()


def bodies(rt: hf.Runtime, run: hf.Run, kind: str) -> list[dict[str, Any]]:
    return [record.body for record in rt.store.read(run.id) if record.kind == kind]


def test_old_runs_go_on_under_the_new_version_and_the_journal_says_so(fleet: Fleet) -> None:
    old, new = fleet.runtime("1"), fleet.runtime("2")
    runs = [old.start_sync("pay", f"p{n}") for n in range(4)]
    extra = new.start_sync("extra")
    fleet.workers("1", "1")
    assert [run.refresh().status for run in runs] == ["waiting"] * 4
    assert extra.refresh().status == "pending", "no worker of the old version has this agent"
    for run in runs:
        old.signal(run, "go")
    fleet.workers("2", "1", "2")
    versions = [run.refresh().result for run in runs]
    assert [(run.status, result[0]) for run, result in zip(runs, versions, strict=True)] == [
        ("completed", "1")
    ] * 4
    assert fleet.ledger() == sorted(
        f"p{n} {which} by {by}"
        for n, result in enumerate(versions)
        for which, by in zip(("first", "second"), result, strict=True)
    )
    for run, (_, last) in zip(runs, versions, strict=True):
        claims = [body["worker"][1] for body in bodies(new, run, "step.claimed")]
        changes = bodies(new, run, "run.resumed")
        assert (claims[0], claims[-1]) == ("1", last)
        assert len(changes) == sum(a != b for a, b in pairwise(claims))
        assert all("agent" in change["changed"] for change in changes)
    assert [body["worker"][1] for body in bodies(new, extra, "step.claimed")] == ["2"]
    assert (extra.refresh().result, new.store.verify().ok) == ("2", True)


def test_under_strict_packages_old_runs_wait_for_a_person_whose_word_is_in_the_journal(fleet: Fleet) -> None:
    old, new = fleet.runtime("1", strict=True), fleet.runtime("2", strict=True)
    goes_on, ends = old.start_sync("pay", "a"), old.start_sync("pay", "b")
    fleet.workers("1", strict=True)
    for run in (goes_on, ends):
        old.signal(run, "go")
    fleet.workers("2", strict=True)
    for run in (goes_on, ends):
        assert [wait["on"] for wait in run.refresh().waiting_on] == ["package"]
        assert len(bodies(new, run, "step.claimed")) == 1, "nobody has claimed it for the new version"
    assert fleet.ledger() == ["a first by 1", "b first by 1"]
    new.decide(goes_on, "continue", by="dana")
    new.decide(ends, "refuse", by="dana")
    fleet.workers("2", "2", strict=True)
    assert (goes_on.refresh().status, ends.refresh().status) == ("completed", "cancelled")
    assert goes_on.refresh().result == ["1", "2"]
    assert [body["decision"] for body in bodies(new, goes_on, "package.decided")] == ["continue"]
    assert [body["decision"] for body in bodies(new, ends, "package.decided")] == ["refuse"]
    assert fleet.ledger() == ["a first by 1", "a second by 2", "b first by 1"]
    assert new.store.verify().ok
