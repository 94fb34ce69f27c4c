"""Tries the built wheel and sdist as a user would, in empty environments outside the tree.

``python tests/wheel_check.py dist`` first asks auditwheel whether the wheel is a manylinux wheel. Then,
with the oldest and the newest Python (3.11 or newer) that it finds, it installs the wheel and its
dependencies into a new environment, without a Rust compiler on PATH, and runs the demo there. At last
it builds the sdist once, with Rust, to see that nothing is missing from it.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

Version = tuple[int, int, int]
OLDEST: Version = (3, 11, 0)


def say(line: str) -> None:
    """Prints at once, so that the order with the tools' own output is kept."""
    print(f"wheel_check: {line}", flush=True)


def run(*command: str | Path, cwd: Path, path: str | None = None) -> None:
    """Runs a command away from the tree and its environment variables, and shows what it says."""
    environment = {
        key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "VIRTUAL_ENV"))
    }
    if path is not None:
        environment["PATH"] = path
    subprocess.run([str(part) for part in command], cwd=cwd, env=environment, check=True)


def version_of(python: Path) -> Version | None:
    """The version of an interpreter that works, has venv and is CPython; None for anything else."""
    probe = "import sys, venv, ensurepip; print(sys.implementation.name, *sys.version_info[:3])"
    try:
        done = subprocess.run([python, "-c", probe], capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    name, *numbers = done.stdout.split()
    return (int(numbers[0]), int(numbers[1]), int(numbers[2])) if name == "cpython" else None


def pythons() -> dict[Version, Path]:
    """Every Python on PATH and under pyenv that is new enough, by version."""
    folders = [Path(folder) for folder in os.environ.get("PATH", "").split(os.pathsep) if folder]
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    folders += sorted((pyenv / "versions").glob("*/bin"))
    found: dict[Version, Path] = {}
    for folder in folders:
        for python in sorted(folder.glob("python3*")):
            if re.fullmatch(r"python3(\.\d+)?", python.name):
                version = version_of(python)
                if version and version >= OLDEST:
                    found.setdefault(version, python)
    return dict(sorted(found.items()))


def without_rust() -> str:
    """PATH without the folders that hold a Rust compiler."""
    folders = os.environ.get("PATH", "").split(os.pathsep)
    kept = [
        folder
        for folder in folders
        if not any(shutil.which(tool, path=folder) for tool in ("cargo", "rustc"))
    ]
    path = os.pathsep.join(kept)
    if shutil.which("cargo", path=path) or shutil.which("rustc", path=path):
        raise SystemExit("wheel_check: could not take Rust off PATH")
    return path


def audit(wheel: Path) -> None:
    """Fails unless auditwheel finds the wheel to be manylinux."""
    command = [sys.executable, "-m", "auditwheel", "show", str(wheel)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    text = " ".join(done.stdout.split())
    tag = re.search(r'is consistent with the following platform tag: "(manylinux_\w+)"', text)
    if not tag or tag[1] not in wheel.name:
        raise SystemExit(f"wheel_check: {wheel.name} is no manylinux wheel: {text}")
    say(f"{wheel.name} is {tag[1]}")


def environment(python: Path, folder: Path) -> Path:
    """A new, empty environment; returns its interpreter."""
    run(python, "-m", "venv", folder / "venv", cwd=folder)
    return folder / "venv" / "bin" / "python"


def install(python: Path, folder: Path, package: Path, path: str | None) -> None:
    """Installs one file, named by its path so that nothing else can be it, and what it depends on."""
    run(
        python,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        package,
        cwd=folder,
        path=path,
    )


def try_wheel(version: Version, python: Path, wheel: Path, command: list[str]) -> None:
    """The wheel alone, as a user without Rust gets it."""
    path = without_rust()
    with tempfile.TemporaryDirectory(prefix="holdfast-wheel-") as name:
        folder = Path(name)
        ours = environment(python, folder)
        install(ours, folder, wheel, path)
        say(f"Python {'.'.join(map(str, version))}, no Rust on PATH: {' '.join(command)}")
        run(ours, *command, cwd=folder, path=path)
        run(ours, "-c", "import holdfast.canonical", cwd=folder, path=path)


def try_sdist(version: Version, python: Path, sdist: Path) -> None:
    """The sdist, built with Rust: what it lacks cannot be found outside it."""
    with tempfile.TemporaryDirectory(prefix="holdfast-sdist-") as name:
        folder = Path(name)
        ours = environment(python, folder)
        say(f"Python {'.'.join(map(str, version))}: building {sdist.name}")
        install(ours, folder, sdist, None)
        probe = "from holdfast import canonical; print('from the sdist:', canonical.digest({}))"
        run(ours, "-c", probe, cwd=folder)


def only(folder: Path, pattern: str) -> Path:
    """The one file of its kind."""
    found = sorted(folder.glob(pattern))
    if len(found) != 1:
        raise SystemExit(f"wheel_check: expected one {pattern} in {folder}, found {len(found)}")
    return found[0].resolve()


def main() -> None:
    """Checks everything and says plainly with what."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("dist", type=Path, help="the folder with one wheel and one sdist")
    parser.add_argument("--command", nargs=argparse.REMAINDER, help="what to run instead of the demo")
    options = parser.parse_args()
    wheel, sdist = only(options.dist, "*.whl"), only(options.dist, "*.tar.gz")
    audit(wheel)
    found = pythons()
    if not found:
        raise SystemExit("wheel_check: there is no Python 3.11 or newer here")
    versions = list(found)
    chosen = sorted({versions[0], versions[-1]})
    say(f"found {', '.join('.'.join(map(str, v)) for v in versions)}; trying the oldest and the newest")
    for version in chosen:
        try_wheel(version, found[version], wheel, options.command or ["-m", "holdfast", "demo"])
    try_sdist(chosen[-1], found[chosen[-1]], sdist)
    say(f"passed with Python {' and '.join('.'.join(map(str, v)) for v in chosen)}")


if __name__ == "__main__":
    main()
