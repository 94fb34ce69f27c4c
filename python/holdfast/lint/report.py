"""What was found: findings, what was suppressed, and files that could not be read."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from holdfast import _core
from holdfast.lint.rules import BY_ID, SEVERITIES

if TYPE_CHECKING:
    from holdfast.lint.rules import Severity

VERSION = 1
"""Of the JSON. A field that is added does not change it."""

Trouble: TypeAlias = Literal["no_such_file", "unreadable", "too_large", "not_python", "too_deep"]


@dataclass(frozen=True)
class Finding:
    """One thing that a rule is about.

    Attributes:
        callable: what it is about: a dotted name, a tool, a comment.
        agent: the agent that reaches it, if it is about one.
        via: the functions on the way from the agent to the place.
        reason: why it is allowed, if somebody said so.
        fingerprint: stays the same when lines above it change.
    """

    rule: str
    severity: Severity
    path: str
    line: int
    column: int
    end_line: int
    end_column: int
    message: str
    callable: str
    function: str
    agent: str | None = None
    via: tuple[str, ...] = ()
    reason: str | None = None
    fingerprint: str = ""

    def told(self) -> dict[str, Any]:
        """As JSON."""
        rule = BY_ID[self.rule]
        return {**asdict(self), "via": list(self.via), "name": rule.name, "why": rule.why, "fix": rule.fix}

    def __str__(self) -> str:
        return f"{self.path}:{self.line}:{self.column}: {self.severity} {self.rule} {self.message}"


@dataclass(frozen=True)
class Problem:
    """A file that could not be checked."""

    path: str
    code: Trouble
    message: str

    def __str__(self) -> str:
        return f"{self.path}: {self.code}: {self.message}"


@dataclass(frozen=True)
class Report:
    """What a check found, sorted by place."""

    files: int = 0
    findings: tuple[Finding, ...] = ()
    suppressed: tuple[Finding, ...] = ()
    problems: tuple[Problem, ...] = ()
    enabled: tuple[str, ...] = field(default_factory=lambda: tuple(BY_ID))

    @property
    def ok(self) -> bool:
        """Whether every file was checked and nothing was found."""
        return not self.findings and not self.problems

    def at_least(self, severity: Severity) -> tuple[Finding, ...]:
        """Findings of this severity or a higher one."""
        least = SEVERITIES.index(severity)
        return tuple(found for found in self.findings if SEVERITIES.index(found.severity) >= least)

    def to_json(self) -> dict[str, Any]:
        """As JSON; docs/LINT.md has the fields."""
        return {
            "version": VERSION,
            "files": self.files,
            "counts": {
                severity: sum(found.severity == severity for found in self.findings)
                for severity in reversed(SEVERITIES)
            },
            "findings": [found.told() for found in self.findings],
            "suppressed": [found.told() for found in self.suppressed],
            "problems": [asdict(problem) for problem in self.problems],
        }

    def __str__(self) -> str:
        return "\n".join(map(str, (*self.findings, *self.problems)))


def fingerprint(rule: str, path: str, function: str, name: str, nth: int) -> str:
    """What a finding is known by: where it is, but for the line."""
    words = {"callable": name, "function": function, "path": path, "rule": rule}
    # Names of files and strings in source may hold half a character, which has no canonical bytes.
    whole = {word: text.encode("utf-8", "backslashreplace").decode() for word, text in words.items()}
    place = {**whole, "nth": nth}
    return _core.canonical_digest(place, domain="holdfast/lint/v1")
