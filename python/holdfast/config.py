"""Settings: what was passed, else ``HOLDFAST_*`` of the environment, else ``[tool.holdfast]`` of the nearest
``pyproject.toml``, else the default.

The table of settings is closed. The environment and the file are read where a setting is used, not when
something is imported. The nearest file is that of the working folder or of the first folder above it that has
one, whether or not it has the table; a path in it is from its own folder, one in the environment from the
working folder. An empty variable is none. A word in the table that is not known (``unknown_field``) and a
value that cannot be (``bad_value``) are errors; nothing is guessed.
"""

from __future__ import annotations

import functools
import math
import os
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

from holdfast.errors import HoldfastError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

T = TypeVar("T")
FILE = "pyproject.toml"
WORDS = {
    "1": True,
    "true": True,
    "yes": True,
    "on": True,
    "0": False,
    "false": False,
    "no": False,
    "off": False,
}


class ConfigError(HoldfastError, ValueError):
    """A setting that is not known, or that has a value which it cannot have; ``path`` says where."""


@dataclass(frozen=True)
class Setting:
    """One line of the table.

    Attributes:
        read: makes the value of a text or of what TOML has; raises ValueError with what it has to be.
        about: what it sets.
    """

    read: Callable[[object], object]
    about: str


def _text(value: object) -> str:
    if not isinstance(value, str) or not value or "\0" in value:
        raise ValueError("is a text that is not empty")
    return value


class Place(str):
    """A folder or a URL."""

    __slots__ = ()


def _place(value: object) -> Place:
    return Place(_text(value))


def _path(value: object) -> Path:
    return Path(_text(value))


def _number(value: object) -> float | None:
    """A finite number; a word of the environment counts as what it spells."""
    if isinstance(value, bool):
        return None
    try:
        number = float(value) if isinstance(value, int | float | str) else math.nan
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def _seconds(least: float) -> Callable[[object], float]:
    def read(value: object) -> float:
        number = _number(value)
        if number is None or number < least:
            raise ValueError(f"is a number of seconds, at least {least:g}")
        return number

    return read


def _count(value: object) -> int:
    number = _number(value)
    if number is None or number < 1 or number != int(number):
        raise ValueError("is a whole number, at least 1")
    return int(number)


def _flag(value: object) -> bool:
    known = value if isinstance(value, bool) else WORDS.get(value.lower()) if isinstance(value, str) else None
    if known is None:
        raise ValueError("is true or false")
    return known


SETTINGS: Mapping[str, Setting] = {
    "store": Setting(_place, "the store, where none is given: a folder, or a URL"),
    "policy": Setting(_path, "the file of the policy of a runtime that opens its store itself"),
    "concurrency": Setting(_count, "how many steps a worker runs at once"),
    "lease": Setting(_seconds(0.2), "seconds that a step is a worker's without a heartbeat"),
    "poll": Setting(_seconds(0.001), "seconds between a worker's looks for work when there is none"),
    "suspend_grace": Setting(_seconds(0), "seconds without a call after which a waiting attempt rests"),
    "replay_grace": Setting(_seconds(0), "seconds before recorded calls that are not made are a divergence"),
    "strict_packages": Setting(_flag, "whether a run of another version of the program waits for a person"),
}
"""Every setting there is, by its name in the file; :func:`variable` is its name in the environment."""


def variable(name: str) -> str:
    """What a setting is called in the environment."""
    return f"HOLDFAST_{name.upper()}"


def setting(name: str, given: T | None, default: T) -> T:
    """A setting: what was given, else what the environment says, else the file, else the default.

    Raises:
        ConfigError: ``bad_value`` or ``unknown_field``.
    """
    if given is not None:
        return given
    word = os.environ.get(variable(name))
    if word:
        return cast("T", _read(name, word, variable(name)))
    found = from_file().get(name)
    return default if found is None else cast("T", found)


def from_file() -> Mapping[str, Any]:
    """What the nearest file says; nothing, where there is none.

    Raises:
        ConfigError: ``bad_value`` or ``unknown_field``.
    """
    here = Path.cwd()
    for folder in (here, *here.parents):
        path = folder / FILE
        try:
            found = path.stat()
        except OSError:
            continue
        return _table(str(path), found.st_mtime_ns, found.st_size)
    return {}


@functools.lru_cache(maxsize=8)
def _table(path: str, _changed: int, _size: int) -> Mapping[str, Any]:
    """The table of a file, as it was at that time."""
    try:
        tool = tomllib.loads(Path(path).read_text(encoding="utf-8")).get("tool", {})
    except (OSError, ValueError) as error:
        raise _refuse("bad_value", f"{path} is no TOML that can be read: {error}", path) from None
    table = tool.get("holdfast", {}) if isinstance(tool, dict) else {}
    if not isinstance(table, dict):
        raise _refuse("bad_value", f"tool.holdfast in {path} is a table", path)
    made = {}
    for name, value in table.items():
        if name not in SETTINGS:
            known = ", ".join(SETTINGS)
            message = f"tool.holdfast in {path} has a setting that is not known; there are: {known}"
            raise _refuse("unknown_field", message, f"tool.holdfast.{name}")
        made[name] = _from(Path(path).parent, _read(name, value, f"tool.holdfast.{name}", f" in {path}"))
    return made


def _from(folder: Path, value: object) -> object:
    """A path from the folder of its file; a URL, and all that is no path, is what it is."""
    if isinstance(value, Place):
        return value if ":" in value else str(folder / value)
    return folder / value if isinstance(value, Path) else value


def _read(name: str, value: object, place: str, where: str = "") -> object:
    try:
        return SETTINGS[name].read(value)
    except ValueError as error:
        raise _refuse("bad_value", f"{place}{where} {error}", place) from None


def _refuse(code: str, message: str, path: str) -> ConfigError:
    from holdfast import _core

    return ConfigError(message, code=code, fix=dict(_core.error_codes())[code], path=path)
