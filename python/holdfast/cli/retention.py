"""The commands that let old runs go, and that try a backup before it is needed."""

from __future__ import annotations

import re
from dataclasses import asdict
from pathlib import Path  # noqa: TC003 (typer reads annotations)
from typing import Annotated

import typer

from holdfast.cli import output
from holdfast.cli.store import DEFAULT, AsJson, Url, reading, show_audit, writing
from holdfast.evidence import retention

UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
Age = Annotated[
    str, typer.Option("--older-than", metavar="AGE", help="Since a run last changed: 12h, 30d, 8w.")
]


def add_to(app: typer.Typer) -> None:
    """Adds the commands."""
    group = typer.Typer(no_args_is_help=True, help="Let the values of old runs go into bundles.")
    group.command("plan")(_plan)
    group.command("apply")(_apply)
    app.add_typer(group, name="retention")
    app.command("readiness")(_readiness)


def _seconds(age: str) -> int:
    found = re.fullmatch(r"(\d{1,6})([smhdw])", age)
    if found is None:
        raise typer.BadParameter("an age is a number and one of s, m, h, d, w", param_hint="--older-than")
    return int(found[1]) * UNITS[found[2]]


def _plan(older_than: Age, url: Url = DEFAULT, as_json: AsJson = False) -> None:
    """List the ended runs whose values could go, and what hinders some of them. Nothing is changed."""
    with reading(url) as store:
        due = retention.plan(store, older_than=_seconds(older_than))
    if as_json:
        output.print_json([asdict(one) for one in due])
        return
    rows = [(one.run, one.agent, one.status, one.records, one.hindered or "") for one in due]
    output.grid(("run", "agent", "status", "records", "hindered"), rows)
    if any(one.hindered == "unsealed" for one in due):
        output.say("Seal first: holdfast journal seal.")


def _apply(
    older_than: Age,
    archive: Annotated[Path, typer.Option("--archive", metavar="FOLDER", help="Where the bundles go.")],
    by: Annotated[str, typer.Option("--by", help="Who lets them go; it stays in the journal.")],
    key: Annotated[Path | None, typer.Option("--key", metavar="FILE", help="Signs a statement each.")] = None,
    url: Url = DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Write each run that is due into a bundle, verify the bundle, then erase the run's values."""
    with writing(url) as store:
        done = list(retention.apply(store, archive, older_than=_seconds(older_than), by=by, key=key))
    if as_json:
        output.print_json([{**asdict(one), "path": str(one.path)} for one in done])
        return
    output.grid(("run", "bundle", "erased"), [(one.run, str(one.path), one.erased) for one in done])


def _readiness(
    backup: Annotated[Path, typer.Argument(metavar="BACKUP", help="What `holdfast backup` made.")],
    as_json: AsJson = False,
) -> None:
    """Restore a backup on trial and open everything in it. Exit code 3 if anything is wrong."""
    show_audit(retention.readiness(backup), as_json=as_json)
