"""``holdfast lint``: finds agents' code that acts behind the runtime's back. No store is asked.

Exit codes: 0 clean, 1 a file or a pack could not be read (the other files were checked), 2 usage, 3 findings
at or above ``--fail-on``.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast import lint
from holdfast.cli import output
from holdfast.lint.rules import BY_ID, SEVERITIES, chosen

if TYPE_CHECKING:
    from holdfast.lint import Report


class Format(StrEnum):
    """How a report is printed."""

    TEXT = "text"
    JSON = "json"
    SARIF = "sarif"


class FailOn(StrEnum):
    """The least severe finding that fails the check."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"
    NEVER = "never"


def add_to(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("lint")(_lint)


def _rules(value: list[str] | None) -> list[str]:
    words = [word for given in value or [] for word in given.replace(",", " ").split()]
    try:
        chosen(words)
    except KeyError as error:
        raise typer.BadParameter(f"no rule is called {error.args[0]!r}") from None
    return words


def _lint(
    paths: Annotated[list[str], typer.Argument(metavar="PATH...", help="Files, and folders of them.")],
    form: Annotated[Format, typer.Option("--format", help="How to print it.")] = Format.TEXT,
    as_json: Annotated[bool, typer.Option("--json", help="The same as --format json.")] = False,
    pack: Annotated[
        list[str] | None, typer.Option("--pack", metavar="FILE.toml", help="A rule pack; may be repeated.")
    ] = None,
    select: Annotated[
        list[str] | None,
        typer.Option("--select", metavar="RULES", callback=_rules, help="Only these: HF101, HF1, a name."),
    ] = None,
    ignore: Annotated[
        list[str] | None, typer.Option("--ignore", metavar="RULES", callback=_rules, help="But not these.")
    ] = None,
    fail_on: Annotated[FailOn, typer.Option("--fail-on", help="What exit code 3 is for.")] = FailOn.ERROR,
) -> None:
    """Find agents' code that acts behind the runtime's back."""
    report = lint.check(paths, packs=pack or (), select=select or (), ignore=ignore or ())
    if as_json or form is Format.JSON:
        output.print_json(report.to_json())
    elif form is Format.SARIF:
        output.print_json(lint.sarif(report))
    else:
        _print(report)
    for problem in report.problems:
        output.complain(str(problem))
    if report.problems:
        raise typer.Exit(output.ERROR)
    least = next((severity for severity in SEVERITIES if severity == fail_on.value), None)
    if least is not None and report.at_least(least):
        raise typer.Exit(output.CHECK_FAILED)


def _print(report: Report) -> None:
    for found in report.findings:
        output.say(str(found))
        output.say(f"    {BY_ID[found.rule].why}")
    counts = report.to_json()["counts"]
    told = ", ".join(f"{number} {severity}(s)" for severity, number in counts.items() if number)
    suppressed = f", {len(report.suppressed)} suppressed" if report.suppressed else ""
    output.say(f"{report.files} file(s): {told or 'clean'}{suppressed}")
