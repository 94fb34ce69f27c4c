"""Settings: an argument before the environment before the nearest file before the default, and strictly."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.support import ROOT

import holdfast as hf
from holdfast import config
from holdfast.config import SETTINGS, ConfigError, setting, variable

if TYPE_CHECKING:
    from collections.abc import Callable

# For each: what the environment says and what that is, the same for the file, and what neither may say.
SAMPLES: dict[str, tuple[str, object, str, object, list[str], list[str]]] = {
    "store": ("memory:", "memory:", '"sqlite:///x"', "sqlite:///x", [], ["1", '""', "[]", '"a\\u0000b"']),
    "policy": ("a.toml", Path("a.toml"), '"/b.toml"', Path("/b.toml"), [], ["true", '""']),
    "concurrency": ("3", 3, "5", 5, ["0", "1.5", "many", "-1"], ["0", "true", '"x"', "1e400", "nan"]),
    "lease": ("2.5", 2.5, "9", 9.0, ["0.1", "nan", "inf", "1 min"], ["0", "true", "inf"]),
    "poll": ("0.5", 0.5, "0.25", 0.25, ["0", "-1"], ["0.0", "[]"]),
    "suspend_grace": ("0", 0.0, "3", 3.0, ["-0.1", "soon"], ["-1", "false"]),
    "replay_grace": ("4", 4.0, "0.0", 0.0, ["-1", "nan"], ['"later"']),
    "strict_packages": ("on", True, "true", True, ["maybe", "2"], ["1", '"perhaps"', "[]"]),
}


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """A project whose pyproject.toml says this; the tests work in a folder inside it."""
    for name in SETTINGS:
        monkeypatch.delenv(variable(name), raising=False)
    inside = tmp_path / "app" / "deep"
    inside.mkdir(parents=True)
    monkeypatch.chdir(inside)

    def says(text: str) -> Path:
        (tmp_path / "pyproject.toml").write_text(text)
        return tmp_path

    says("")
    return says


@pytest.mark.parametrize("name", SETTINGS)
def test_an_argument_comes_before_the_environment_before_the_file_before_the_default(
    name: str, project: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    word, in_environment, line, in_file, _, _ = SAMPLES[name]
    given, default = object(), object()
    assert setting(name, None, default) is default
    project(f"[tool.holdfast]\n{name} = {line}\n")
    assert setting(name, None, default) == in_file
    monkeypatch.setenv(variable(name), word)
    assert setting(name, None, default) == in_environment
    assert setting(name, given, default) is given
    monkeypatch.setenv(variable(name), "")
    assert setting(name, None, default) == in_file, "an empty variable is none"


@pytest.mark.parametrize("name", SETTINGS)
def test_a_value_that_cannot_be_is_refused_wherever_it_stands(
    name: str, project: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    *_, words, lines = SAMPLES[name]
    for word in words:
        monkeypatch.setenv(variable(name), word)
        with pytest.raises(ConfigError) as caught:
            setting(name, None, None)
        assert (caught.value.code, caught.value.path) == ("bad_value", variable(name))
    monkeypatch.delenv(variable(name), raising=False)
    assert lines
    for line in lines:
        root = project(f"[tool.holdfast]\n{name} = {line}\n")
        with pytest.raises(ConfigError) as caught:
            setting("lease", None, None)  # whoever looks: a file is right, or it is not
        assert (caught.value.code, caught.value.path) == ("bad_value", f"tool.holdfast.{name}")
        assert str(root / "pyproject.toml") in str(caught.value)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("[tool.holdfast]\nconcurency = 3\n", "unknown_field"),
        ("[tool.holdfast.worker]\nlease = 3\n", "unknown_field"),
        ("[tool]\nholdfast = 3\n", "bad_value"),
        ("[tool.holdfast\n", "bad_value"),
        ("tool = 3\n", None),
        ("[tool.other]\nconcurency = 3\n", None),
    ],
)
def test_a_file_is_read_strictly_and_what_is_not_ours_is_left_alone(
    text: str, code: str | None, project: Callable[[str], Path]
) -> None:
    project(text)
    if code is None:
        assert setting("concurrency", None, 1) == 1
        return
    with pytest.raises(ConfigError) as caught:
        setting("concurrency", None, 1)
    assert caught.value.code == code
    assert caught.value.fix
    if code == "unknown_field":
        assert ", ".join(SETTINGS) in str(caught.value)


def test_the_nearest_file_counts_and_its_paths_are_from_its_folder(project: Callable[[str], Path]) -> None:
    root = project('[tool.holdfast]\nstore = "state/runs"\npolicy = "rules.toml"\nlease = 9\n')
    assert setting("store", None, "") == str(root / "state" / "runs")
    assert setting("policy", None, Path()) == root / "rules.toml"
    near = root / "app" / "pyproject.toml"
    near.write_text("[project]\nname = 'app'\n")
    assert setting("lease", None, 1.0) == 1.0, "the nearest file has nothing to say"
    near.write_text("[tool.holdfast]\nlease = 7\n")
    assert setting("lease", None, 1.0) == 7.0
    assert setting("store", None, "runs") == "runs"


RULES = '[[rule]]\neffect = "write"\ndecide = "deny"\n'


def refused(rt: hf.Runtime) -> bool:
    """Whether a policy keeps a write from happening."""

    @rt.tool(effect="write")
    def send() -> str:
        return "sent"

    @rt.agent
    async def sender(ctx: hf.Context) -> str:
        try:
            return str(await ctx.call("send"))
        except hf.Denied:
            return "denied"

    return bool(rt.run_sync("sender").result == "denied")


def test_a_runtime_opens_the_store_and_the_policy_that_are_configured_when_it_is_used(
    project: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    root = project('[tool.holdfast]\nstore = "state"\npolicy = "rules.toml"\n')
    (root / "rules.toml").write_text(RULES)
    with hf.Runtime() as rt:
        assert not (root / "state").exists(), "nothing is opened before it is used"
        assert refused(rt)
    assert (root / "state").is_dir()
    assert not (Path.cwd() / "runs").exists()
    late = hf.Runtime()
    monkeypatch.setenv("HOLDFAST_STORE", str(root / "other"))
    with late:
        assert late.store.url == str(root / "other")
    with hf.Runtime("memory:", policy="[[rule]]\neffect = 'write'\ndecide = 'allow'\n") as rt:
        assert not refused(rt), "an argument comes first"
    # Who is handed a store that is open may only look at it.
    with hf.open(root / "state", read_only=True) as store:
        assert len(hf.Runtime(store).runs.list()) == 1
    with hf.open("memory:") as store, hf.Runtime(store) as rt:
        assert not refused(rt)


@pytest.mark.usefixtures("project")
def test_without_any_setting_everything_is_as_it_was() -> None:
    with hf.Runtime() as rt:
        assert (rt.strict_packages, rt.suspend_grace, rt.replay_grace) == (False, 1.0, 30.0)
        worker = rt.worker()
        assert (worker.concurrency, worker.lease, worker.poll) == (1, 60.0, 0.2)
        assert rt.store.url == "./runs"


def test_runtimes_and_workers_are_as_configured(
    project: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    project(
        "[tool.holdfast]\nstrict_packages = true\nsuspend_grace = 0.5\nreplay_grace = 3\n"
        "concurrency = 4\nlease = 5\npoll = 0.1\n"
    )
    monkeypatch.setenv("HOLDFAST_LEASE", "6")
    rt = hf.Runtime("memory:", replay_grace=2.0)
    assert (rt.strict_packages, rt.suspend_grace, rt.replay_grace) == (True, 0.5, 2.0)
    worker = rt.worker(concurrency=2)
    assert (worker.concurrency, worker.lease, worker.poll) == (2, 6.0, 0.1)
    assert rt.worker(poll=0.7, lease=1.0).poll == 0.7
    assert not hf.Runtime("memory:", strict_packages=False).strict_packages


APP = "import holdfast as hf\nrt = hf.Runtime()\n"


def holdfast(folder: Path, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
    command = [sys.executable, "-m", "holdfast", *arguments]
    return subprocess.run(command, cwd=folder, env=kept | more, capture_output=True, text=True, check=False)


def test_the_command_line_finds_the_store_of_its_project(project: Callable[[str], Path]) -> None:
    root = project('[tool.holdfast]\nstore = "state"\n')
    with hf.open(root / "state") as store:
        expected = store.id
    found = holdfast(Path.cwd(), "stats", "--json")
    assert json.loads(found.stdout)["store"] == expected, found.stderr
    away = holdfast(Path.cwd(), "stats", "--store", "runs")
    assert away.stderr.startswith("no_such_store"), "an option comes first"
    project("[tool.holdfast]\nshop = 1\n")
    wrong = holdfast(Path.cwd(), "runs", "--json")
    assert (wrong.returncode, wrong.stderr.partition(":")[0]) == (1, "unknown_field")
    assert "Traceback" not in wrong.stderr


def test_a_worker_of_the_command_line_is_as_configured(project: Callable[[str], Path]) -> None:
    project("")
    (Path.cwd() / "app.py").write_text(APP)
    idle = ("worker", "app:rt", "--until-idle")
    wrong = holdfast(Path.cwd(), *idle, HOLDFAST_CONCURRENCY="0")
    assert (wrong.returncode, wrong.stderr.partition(":")[0]) == (1, "bad_value")
    assert holdfast(Path.cwd(), *idle, "-c", "1", HOLDFAST_CONCURRENCY="0").returncode == 0
    late = holdfast(Path.cwd(), *idle, HOLDFAST_LEASE="0")
    assert (late.returncode, late.stderr.partition(":")[0]) == (1, "bad_value")


def test_the_guide_lists_every_setting() -> None:
    page = (ROOT / "docs" / "HOWTO.md").read_text(encoding="utf-8")
    section = page.split("## Configure it")[1].split("\n## ")[0]
    rows: list[Any] = re.findall(r"(?m)^\| `(\w+)` \| `(\w+)` \| .+ \| (.+) \|$", section)
    assert rows == [(name, variable(name), each.about) for name, each in SETTINGS.items()]
    assert SAMPLES.keys() == SETTINGS.keys()
    assert config.FILE in section
