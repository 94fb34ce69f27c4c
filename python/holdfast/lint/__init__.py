"""The boundary lint: finds agents' code that acts behind the runtime's back. docs/LINT.md is the guide."""

from holdfast.lint.check import check, check_source
from holdfast.lint.packs import Pack, PackError
from holdfast.lint.report import Finding, Problem, Report
from holdfast.lint.rules import RULES, Rule
from holdfast.lint.sarif import sarif

__all__ = [
    "RULES",
    "Finding",
    "Pack",
    "PackError",
    "Problem",
    "Report",
    "Rule",
    "check",
    "check_source",
    "sarif",
]
