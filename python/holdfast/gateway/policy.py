"""Policies: rules as data, from TOML or from Python, read strictly. A typo is an error, never a rule that
quietly does not hold.
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from holdfast import _core
from holdfast.errors import HoldfastError
from holdfast.gateway.outcomes import fix

if TYPE_CHECKING:
    from collections.abc import Mapping

COMPARISONS = {"equals": "equals", "max": "max", "min": "min", "one_of": "one_of", "glob": "glob"}
LISTS = {
    "agent": "agents",
    "capability": "capabilities",
    "effect": "effects",
    "risk": "risks",
    "role": "roles",
    "session": "sessions",
    "tool": "tools",
}
WORDS = frozenset(
    (*LISTS, "approvers", "decide", "labels", "name", "not_after", "not_before", "redact", "sandbox", "when")
)
GUARDS = frozenset(("cpu", "filesystem", "memory", "network", "processes", "time"))
UNITS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
DAY_MS = 86_400_000
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class PolicyError(HoldfastError, ValueError):
    """A policy that cannot be read. The one that was active stays."""


def _refuse(message: str, path: str) -> PolicyError:
    return PolicyError(f"{message} (at {path})", code="bad_policy", fix=fix("bad_policy"), path=path)


def _known(table: Mapping[str, Any], words: frozenset[str], path: str) -> None:
    unknown = sorted(table.keys() - words)
    if unknown:
        raise _refuse(f"unknown word {unknown[0]!r}; known are {', '.join(sorted(words))}", path)


def _list(value: object) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]


def _duration(value: object, path: str) -> int:
    found = re.fullmatch(r"(\d+)(ms|s|m|h|d)", value) if isinstance(value, str) else None
    if not found:
        raise _refuse("a duration is a number and a unit, such as '30m' or '2h'", path)
    return int(found[1]) * UNITS[found[2]]


def _time(value: object, path: str) -> object:
    """A point in time: as TOML writes one, with its offset, or in milliseconds since the epoch."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if not isinstance(value, datetime) or value.tzinfo is None:
        raise _refuse("a time has a date, a time of day and an offset: 2027-01-01T00:00:00Z", path)
    return (value - EPOCH) // timedelta(milliseconds=1)


def conditions(table: object, path: str) -> list[dict[str, Any]]:
    """Conditions on arguments, as constraints: ``{"args.cents": {"max": 5000}}``."""
    if not isinstance(table, dict):
        raise _refuse("when is a table of arguments", path)
    constraints: list[dict[str, Any]] = []
    for argument, wanted in table.items():
        place = f"{path}.{argument}"
        if not argument.startswith("args."):
            raise _refuse("a condition names an argument: 'args.cents'", place)
        if not isinstance(wanted, dict):
            wanted = {"equals": wanted}
        _known(wanted, frozenset(COMPARISONS), place)
        constraints += [
            {"argument": argument.removeprefix("args."), "comparison": COMPARISONS[word], "value": value}
            for word, value in wanted.items()
        ]
    return constraints


def _approvers(table: object, path: str) -> dict[str, Any]:
    if not isinstance(table, dict):
        raise _refuse("approvers is a table", path)
    _known(table, frozenset(("expires", "quorum", "roles")), path)
    expires = _duration(table["expires"], f"{path}.expires") if "expires" in table else DAY_MS
    quorum = table.get("quorum", 1)
    if not isinstance(quorum, int) or isinstance(quorum, bool) or quorum < 1:
        raise _refuse("a quorum is a whole number above zero", f"{path}.quorum")
    return {"expires_ms": expires, "quorum": quorum, "roles": _list(table.get("roles", []))}


def _sandbox(wanted: object, path: str) -> dict[str, Any]:
    """A tier, or a tier and what it must enforce: ``{ tier = "subprocess", enforce = ["memory"] }``."""
    table = wanted if isinstance(wanted, dict) else {"tier": wanted}
    _known(table, frozenset(("enforce", "tier")), path)
    if "tier" not in table:
        raise _refuse("a sandbox has a tier", path)
    unknown = sorted(set(map(str, _list(table.get("enforce", [])))) - GUARDS)
    if unknown:
        raise _refuse(f"unknown guard {unknown[0]!r}; known are {', '.join(sorted(GUARDS))}", path)
    fields = _list(table.get("enforce", []))
    return {"fields": fields, "kind": "sandbox", "roles": [], "tier": table["tier"]}


def _redact(wanted: object, path: str) -> dict[str, Any]:
    """The arguments that nobody on the way is shown: ``["args.card", "args.customer.email"]``."""
    fields = _list(wanted)
    if not fields:
        raise _refuse("say which arguments: redact = ['args.card']", path)
    for name in fields:
        parts = name.split(".") if isinstance(name, str) else []
        if len(parts) < 2 or parts[0] != "args" or not all(parts):
            raise _refuse("what is redacted is an argument: 'args.card'", path)
    return {"fields": [name.removeprefix("args.") for name in fields], "kind": "redact", "roles": []}


def _rule(table: object, at: int) -> dict[str, Any]:
    path = f"rule[{at}]"
    if not isinstance(table, dict):
        raise _refuse("a rule is a table", path)
    _known(table, WORDS, path)
    if "decide" not in table:
        raise _refuse("a rule decides: allow, ask or deny", path)
    if not isinstance(table.get("labels", {}), dict):
        raise _refuse("labels is a table", f"{path}.labels")
    rule: dict[str, Any] = {
        "decide": table["decide"],
        "labels": dict(table.get("labels", {})),
        "name": table.get("name", f"rule {at + 1}"),
        "obligations": [],
        "when": conditions(table.get("when", {}), f"{path}.when"),
    }
    rule |= {plural: _list(table[word]) if word in table else [] for word, plural in LISTS.items()}
    rule |= {
        word: _time(table[word], f"{path}.{word}") for word in ("not_after", "not_before") if word in table
    }
    if "approvers" in table and table["decide"] == "deny":
        raise _refuse("a rule that denies asks nobody: leave approvers out", f"{path}.approvers")
    if "approvers" in table:
        rule["approvers"] = _approvers(table["approvers"], f"{path}.approvers")
    if "sandbox" in table:
        rule["obligations"].append(_sandbox(table["sandbox"], f"{path}.sandbox"))
    if "redact" in table:
        rule["obligations"].append(_redact(table["redact"], f"{path}.redact"))
    return rule


def rule(decide: Literal["allow", "ask", "deny"], /, **words: Any) -> dict[str, Any]:  # noqa: ANN401
    """A rule, with the words that it has in TOML: ``rule("ask", tool="refund*", risk=["high"])``."""
    return {"decide": decide, **words}


@dataclass(frozen=True)
class Policy:
    """Rules, and who has which role when deciding.

    ``deny`` wins over ``ask`` wins over ``allow``. Where no rule holds, writes of high or critical risk ask
    and everything else is allowed.
    """

    rules: list[dict[str, Any]] = field(default_factory=list)
    approvers: dict[str, list[str]] = field(default_factory=dict)

    @classmethod
    def load(cls, source: Mapping[str, Any] | str | Path) -> Policy:
        """Reads a policy from a TOML file, TOML text or parsed TOML.

        Raises:
            PolicyError: ``bad_policy``, with the place of what is wrong.
        """
        if isinstance(source, str | Path):
            try:
                inline = isinstance(source, str) and "\n" in source
                text = str(source) if inline else Path(source).read_text("utf-8")
                table: Mapping[str, Any] = tomllib.loads(text)
            except (OSError, UnicodeDecodeError) as error:
                raise _refuse(f"the file cannot be read: {type(error).__name__}", "$") from None
            except tomllib.TOMLDecodeError as error:
                raise _refuse(f"not TOML: {error}", "$") from None
        else:
            table = source
        _known(table, frozenset(("approvers", "rule")), "$")
        rules = [_rule(rule, at) for at, rule in enumerate(_list(table.get("rule", [])))]
        people = table.get("approvers", {})
        if not isinstance(people, dict):
            raise _refuse("approvers is a table: a name, and the roles that it has", "approvers")
        approvers = {name: _list(roles) for name, roles in people.items()}
        policy = cls(rules, approvers)
        _ = policy.digest  # the core reads it too, and refuses what it does not know
        return policy

    @classmethod
    def of(cls, *rules: Mapping[str, Any], approvers: Mapping[str, list[str]] | None = None) -> Policy:
        """A policy of rules that were made by :func:`rule`, read as strictly as TOML.

        Args:
            rules: the rules.
            approvers: who has which role when deciding.

        Raises:
            PolicyError: ``bad_policy``, with the place of what is wrong.
        """
        return cls.load({"approvers": dict(approvers or {}), "rule": [dict(one) for one in rules]})

    def core(self) -> dict[str, Any]:
        """The contract ``Policy``."""
        return {"approvers": self.approvers, "rules": self.rules}

    @property
    def digest(self) -> str:
        """Its version: the same rules have the same digest."""
        try:
            return _core.policy_digest(self.core())
        except HoldfastError as error:
            raise _refuse(str(error.args[0]), error.path or "$") from None
