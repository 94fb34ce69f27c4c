"""Rule packs: what a project adds to the rules, in TOML, read strictly. A typo is an error.

.. code-block:: toml

    name = "shop"
    disable = ["HF206"]

    [severity]
    HF203 = "error"

    [calls]
    HF108 = ["shop.payments.refund", "shop.mail.*"]
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.errors import HoldfastError
from holdfast.lint.rules import BY_ID, SEVERITIES, chosen

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from holdfast.lint.rules import Severity

WORDS = ("calls", "disable", "name", "severity")
CALLABLE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*(\.\*)?")
CALLS = frozenset(rule for rule in BY_ID if rule < "HF300" and rule not in ("HF111", "HF205"))
FIX = "Correct the place that the message names; docs/LINT.md lists the words."


class PackError(HoldfastError, ValueError):
    """A rule pack, or a choice of rules, that cannot be read. Nothing was checked."""


def refuse(message: str, path: str) -> PackError:
    """An error with its place."""
    return PackError(f"{message} (at {path})", code="bad_pack", fix=FIX, path=path)


@dataclass(frozen=True)
class Pack:
    """What a project adds to the rules.

    Attributes:
        calls: callables and the rule that they count for.
        disabled: rules that are left out.
        severities: rules that are more or less severe here.
    """

    name: str = ""
    calls: Mapping[str, str] = field(default_factory=dict)
    disabled: frozenset[str] = frozenset()
    severities: Mapping[str, Severity] = field(default_factory=dict)

    @classmethod
    def load(cls, path: str | Path) -> Pack:
        """Reads a pack from a file.

        Raises:
            PackError: it cannot be read, or says what no pack says.
        """
        try:
            text = Path(path).read_bytes().decode("utf-8")
            table = tomllib.loads(text)
        except OSError as error:
            raise refuse(f"it cannot be read: {error.strerror}", str(path)) from None
        except (UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as error:
            raise refuse(f"it is no TOML: {error}", str(path)) from None
        return cls.of(table, str(path))

    @classmethod
    def of(cls, table: Mapping[str, Any], where: str = "pack") -> Pack:
        """Reads a pack from parsed TOML."""
        unknown = sorted(table.keys() - set(WORDS))
        if unknown:
            raise refuse(f"unknown word {unknown[0]!r}; known are {', '.join(WORDS)}", where)
        name = table.get("name", "")
        if not isinstance(name, str):
            raise refuse("a name is a string", f"{where}: name")
        return cls(
            name,
            _calls(_table(table, "calls", where), f"{where}: calls"),
            frozenset(_rule(rule, f"{where}: disable") for rule in _list(table.get("disable", []), where)),
            _severities(_table(table, "severity", where), f"{where}: severity"),
        )


def _table(table: Mapping[str, Any], word: str, where: str) -> Mapping[str, Any]:
    found = table.get(word, {})
    if not isinstance(found, dict):
        raise refuse(f"{word} is a table of rules", f"{where}: {word}")
    return found


def _list(value: object, where: str) -> list[Any]:
    if not isinstance(value, list):
        raise refuse("this is a list", where)
    return value


def _rule(value: object, where: str) -> str:
    if not isinstance(value, str) or value not in BY_ID:
        raise refuse(f"there is no rule {value!r}", where)
    return value


def _calls(table: Mapping[str, Any], where: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for rule, names in table.items():
        place = f"{where}.{rule}"
        if _rule(rule, where) not in CALLS:
            raise refuse(f"{rule} is not about callables", place)
        for name in _list(names, place):
            if not isinstance(name, str) or not CALLABLE.fullmatch(name):
                raise refuse("a callable is a dotted name, or all under one: 'shop.mail.*'", place)
            if name in found:
                raise refuse(f"{name} is there twice", place)
            found[name] = rule
    return found


def _severities(table: Mapping[str, Any], where: str) -> dict[str, Severity]:
    found: dict[str, Severity] = {}
    for rule, severity in table.items():
        if severity not in SEVERITIES:
            raise refuse(f"a severity is one of {', '.join(SEVERITIES)}", f"{where}.{_rule(rule, where)}")
        found[_rule(rule, where)] = severity
    return found


def enabled(packs: Iterable[Pack], select: Iterable[str], ignore: Iterable[str]) -> frozenset[str]:
    """The rules that are looked for.

    Raises:
        PackError: a word names no rule.
    """
    try:
        wanted = chosen(list(select)) or set(BY_ID)
        left_out = chosen(list(ignore))
    except KeyError as error:
        raise refuse(f"no rule is called {error.args[0]!r}", "select or ignore") from None
    return frozenset(wanted - left_out - frozenset().union(*(pack.disabled for pack in packs)))
