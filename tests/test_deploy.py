"""The files of docs/deploy and the commands of docs/FLEET.md are what they say: they parse, they fit the
schemas of Kubernetes, systemd accepts them, their commands exist, and their probes ask the real thing."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import kubernetes_validate
import pytest
import typer
import yaml
from tests import closing
from tests.support import ROOT

from holdfast.cli import app_for
from holdfast.gateway.tools import Options

APP = app_for("")
pytest_plugins = ["tests.postgres"]
DEPLOY = ROOT / "docs" / "deploy"
MANIFESTS = sorted(DEPLOY.glob("kubernetes/*.yaml"))
UNIT = DEPLOY / "holdfast-worker@.service"
KUBERNETES = ["1.30", "1.37"]


def manifest(name: str) -> Any:
    return yaml.safe_load((DEPLOY / "kubernetes" / f"{name}.yaml").read_text())


def container(name: str) -> dict[str, Any]:
    found: dict[str, Any] = manifest(name)["spec"]["template"]["spec"]["containers"][0]
    return found


def parsed(words: list[str]) -> dict[str, Any]:
    """What the command line makes of a command, without doing it; raises if there is no such command."""
    command: Any = typer.main.get_command(APP)
    left = list(words)
    while isinstance(command, click.Group) or hasattr(command, "commands"):
        if not left or left[0].startswith("-"):
            return {}
        name = left.pop(0)
        assert name in command.commands, f"there is no command {name}: {shlex.join(words)}"
        command = command.commands[name]
    return dict(command.make_context(command.name, left).params)


def fits(words: list[str]) -> None:
    """A command in prose may leave out what it must be given; its options exist."""
    try:
        parsed(words)
    except Exception as error:
        if type(error).__name__ != "MissingParameter":
            raise AssertionError(f"{shlex.join(words)}: {error}") from error


def unit() -> dict[str, str]:
    lines = [line for line in UNIT.read_text().splitlines() if "=" in line and not line.startswith("#")]
    return dict(line.split("=", 1) for line in lines)


def image() -> dict[str, str]:
    lines = [line for line in (DEPLOY / "Containerfile").read_text().splitlines() if line[:1].isupper()]
    return {line.split()[0]: line.split(None, 1)[1] for line in lines}


# Kubernetes.


@pytest.mark.parametrize("version", KUBERNETES)
@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.name)
def test_a_manifest_fits_the_schemas_of_kubernetes(path: Path, version: str) -> None:
    kubernetes_validate.validate(yaml.safe_load(path.read_text()), version, strict=True)


def test_a_manifest_with_a_typo_or_a_wrong_type_does_not_fit() -> None:
    assert [path.stem for path in MANIFESTS] == ["migrate", "secret", "worker"]
    for change in ({"terminationGracePeriod": 210}, {"terminationGracePeriodSeconds": "210"}):
        wrong = manifest("worker")
        wrong["spec"]["template"]["spec"] |= change
        with pytest.raises(kubernetes_validate.ValidationError):
            kubernetes_validate.validate(wrong, KUBERNETES[-1], strict=True)


def test_what_the_manifests_say_to_each_other_is_the_same() -> None:
    deployment, secret = manifest("worker"), manifest("secret")
    template = deployment["spec"]["template"]
    assert deployment["spec"]["selector"]["matchLabels"] == template["metadata"]["labels"]
    assert list(secret["stringData"]) == ["HOLDFAST_STORE"]
    worker, migrate = container("worker"), container("migrate")
    for one in (worker, migrate):
        assert one["envFrom"] == [{"secretRef": {"name": secret["metadata"]["name"]}}]
        assert one["image"] == worker["image"]
    assert {volume["name"] for volume in template["spec"]["volumes"]} == {
        mount["name"] for mount in worker["volumeMounts"]
    }
    for name in ("worker", "migrate"):
        user = manifest(name)["spec"]["template"]["spec"]["securityContext"]["runAsUser"]
        assert str(user) == image()["USER"]


def grace_is_enough(grace: int, options: dict[str, Any]) -> bool:
    drain: float = options["drain"]
    return grace > drain + Options.timeout


def test_the_commands_exist_and_whoever_ends_a_worker_waits_long_enough() -> None:
    options = parsed(container("worker")["args"])
    assert options["alive"].parent == Path(container("worker")["volumeMounts"][0]["mountPath"])
    spec = manifest("worker")["spec"]["template"]["spec"]
    assert grace_is_enough(spec["terminationGracePeriodSeconds"], options)
    assert not grace_is_enough(150, options)
    assert parsed(container("migrate")["args"])["plan"] is False
    assert json.loads(image()["ENTRYPOINT"]) == ["holdfast"]
    assert parsed(json.loads(image()["CMD"]))["module"] == options["module"] == "app:rt"
    program, *words = shlex.split(unit()["ExecStart"])
    told = parsed(words)
    assert (Path(program).name, told["name"]) == ("holdfast", "%H-%i")
    assert grace_is_enough(int(unit()["TimeoutStopSec"]), told)
    assert told["alive"].parent.name == unit()["RuntimeDirectory"]
    for words in (["worker", "app:rt", "--drains", "1"], ["migrates"], ["worker", "app:rt", "--lease", "0"]):
        with pytest.raises(AssertionError):
            fits(words)


@pytest.mark.parametrize(("probe", "seconds"), [("readinessProbe", 30), ("livenessProbe", 600)])
def test_a_probe_tells_a_file_that_was_touched_lately_from_one_that_was_not(
    probe: str, seconds: int, tmp_path: Path
) -> None:
    alive = tmp_path / "alive"
    there = str(parsed(container("worker")["args"])["alive"])
    command = [word.replace(there, str(alive)) for word in container("worker")[probe]["exec"]["command"]]

    def healthy() -> bool:
        return subprocess.run(command, capture_output=True, check=False, timeout=30).returncode == 0

    assert not healthy()  # it is not there yet
    alive.touch()
    assert healthy()
    long_ago = alive.stat().st_mtime - seconds - 5
    os.utime(alive, (long_ago, long_ago))
    assert not healthy()


# systemd.


def test_systemd_accepts_the_unit(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    if shutil.which("systemd-analyze") is None:
        closing.not_run(request, "there is no systemd-analyze here", chosen=True)
    program = shlex.split(unit()["ExecStart"])[0]

    def complaints(text: str) -> str:
        path = tmp_path / "holdfast-worker@1.service"
        path.write_text(text)
        done = subprocess.run(
            ["systemd-analyze", "verify", "--man=no", str(path)], capture_output=True, text=True, check=False
        )
        return done.stderr

    # The program of the unit is not installed here: something that is stands for it.
    text = UNIT.read_text().replace(program, str(shutil.which("true")))
    assert complaints(text) == ""
    assert "KillMod" in complaints(text.replace("KillMode", "KillMod"))


# The guides.


def shells(page: str) -> list[str]:
    """The commands of a page's shell blocks."""
    blocks = "\n".join(re.findall(r"^```bash\n(.*?)^```", page, re.MULTILINE | re.DOTALL))
    return re.findall(r"^holdfast (.+)$", blocks, re.MULTILINE)


def test_the_commands_of_the_guide_run_from_top_to_bottom(tmp_path: Path, postgres_url: str) -> None:
    (tmp_path / "app.py").write_text("import holdfast as hf\n\nrt = hf.Runtime()\n")
    commands = shells((ROOT / "docs" / "FLEET.md").read_text())
    assert len(commands) == 6
    for line in commands:
        words = shlex.split(line.replace("/run/agents", str(tmp_path)))
        words += ["--until-idle"] if words[0] == "worker" else []
        done = subprocess.run(
            [sys.executable, "-m", "holdfast", *words],
            cwd=tmp_path,
            env={**os.environ, "HOLDFAST_STORE": postgres_url},
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert done.returncode == 0, (line, done.stderr)


@pytest.mark.parametrize("guide", ["FLEET.md", "POSTGRESQL.md"])
def test_every_command_of_a_guide_exists_with_its_options(guide: str) -> None:
    page = (ROOT / "docs" / guide).read_text()
    prose = re.sub(r"^```.*?^```", "", page, flags=re.MULTILINE | re.DOTALL)
    found = shells(page) + re.findall(r"`holdfast\s([^`]+)`", prose)
    assert len(found) >= 3
    for line in found:
        fits(shlex.split(line, comments=True))


def test_every_file_is_led_to_by_the_guide() -> None:
    page = (ROOT / "docs" / "FLEET.md").read_text()
    links = set(re.findall(r"\]\((deploy/[^)]+)\)", page))
    assert links == {str(path.relative_to(DEPLOY.parent)) for path in DEPLOY.rglob("*") if path.is_file()}
