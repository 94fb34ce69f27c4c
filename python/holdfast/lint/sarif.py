"""The report as SARIF 2.1.0, which code hosts show beside the lines."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from holdfast import _core
from holdfast.lint.rules import RULES

if TYPE_CHECKING:
    from holdfast.lint.report import Finding, Problem, Report
    from holdfast.lint.rules import Rule

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"


def sarif(report: Report) -> dict[str, Any]:
    """A SARIF log with one run: rules, results with stable fingerprints, and files that were not read."""
    places = {rule.id: at for at, rule in enumerate(RULES)}
    notes = [_notification(problem) for problem in report.problems]
    return {
        "$schema": SCHEMA,
        "version": "2.1.0",
        "runs": [
            {
                "tool": {
                    "driver": {
                        "name": "holdfast lint",
                        "semanticVersion": _core.__version__,
                        "rules": [_rule(rule) for rule in RULES],
                    }
                },
                "columnKind": "unicodeCodePoints",
                "invocations": [
                    {"executionSuccessful": not notes, "toolExecutionNotifications": notes},
                ],
                "results": [
                    _result(found, places[found.rule]) for found in (*report.findings, *report.suppressed)
                ],
            }
        ],
    }


def _rule(rule: Rule) -> dict[str, Any]:
    return {
        "id": rule.id,
        "name": "".join(word.capitalize() for word in rule.name.split("-")),
        "shortDescription": {"text": f"{rule.name}: {rule.what}"},
        "fullDescription": {"text": rule.why},
        "help": {"text": rule.fix},
        "defaultConfiguration": {"level": rule.severity},
    }


def _location(path: str) -> dict[str, Any]:
    inside = not PurePosixPath(path).is_absolute() and ".." not in PurePosixPath(path).parts
    # What is no path of the checkout is named as it is; hosts then show no line, and nothing wrong.
    location: dict[str, Any] = {"uri": quote(path.encode("utf-8", "surrogatepass"), safe="/")}
    return {**location, "uriBaseId": "%SRCROOT%"} if inside else location


def _result(found: Finding, at: int) -> dict[str, Any]:
    result: dict[str, Any] = {
        "ruleId": found.rule,
        "ruleIndex": at,
        "level": found.severity,
        "message": {"text": found.message},
        "locations": [
            {
                "physicalLocation": {
                    "artifactLocation": _location(found.path),
                    "region": {
                        "startLine": found.line,
                        "startColumn": found.column,
                        "endLine": found.end_line,
                        "endColumn": found.end_column,
                    },
                },
                "logicalLocations": [{"fullyQualifiedName": found.function or "<module>"}],
            }
        ],
        "partialFingerprints": {"holdfastLint/v1": found.fingerprint},
    }
    if found.reason is not None:
        result["suppressions"] = [{"kind": "inSource", "justification": found.reason}]
    return result


def _notification(problem: Problem) -> dict[str, Any]:
    return {
        "level": "error",
        "descriptor": {"id": problem.code},
        "message": {"text": problem.message},
        "locations": [{"physicalLocation": {"artifactLocation": _location(problem.path)}}],
    }
