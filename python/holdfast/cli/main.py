"""The app: what is asked of no store (demo, schema), and the commands of one. What takes long to import is
imported when it is asked for: a person who approves something waits for no lint.

Exit codes: 0 done, 1 error, 2 usage, 3 a check or verification failed, 4 the run waits for someone.
"""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer

from holdfast import _core
from holdfast.cli import output, people, runs, store


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"holdfast {_core.__version__}")
        raise typer.Exit


def _main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Holdfast."""


def _demo(
    folder: Annotated[str | None, typer.Option("--folder", help="Where to play; a new folder, else.")] = None,
    without_ledger: Annotated[
        bool, typer.Option("--without-ledger", help="What happens without it: two refunds, exit 3.")
    ] = False,
) -> None:
    """Kill a worker in the middle of a payment and see one refund; approve another; catch a forgery."""
    from holdfast import demo

    raise typer.Exit(demo.main(folder, ledger=not without_ledger))


def _schema(
    name: Annotated[
        str | None, typer.Argument(help="A record kind or a contract; without one, list them.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="List them as JSON.")] = False,
) -> None:
    """Print the JSON Schema of a record kind or a contract."""
    schemas = _core.schemas()
    kinds, contracts, definitions = schemas["kinds"], schemas["contracts"], schemas["$defs"]
    assert isinstance(kinds, dict)
    assert isinstance(contracts, dict)
    if name is None:
        listed = [*kinds, *contracts]
        typer.echo(json.dumps(listed, indent=2) if as_json else "\n".join(listed))
        return
    found = kinds.get(name, contracts.get(name))
    if not isinstance(found, dict):
        output.complain(
            f"unknown_kind: no record kind or contract is called {name!r}; list them with: holdfast schema"
        )
        raise typer.Exit(output.USAGE)
    typer.echo(json.dumps({**found, "$defs": definitions}, indent=2))


def app_for(command: str) -> typer.Typer:
    """The app with at least one command, if there is one of that name; without a name, with all of them."""
    app = typer.Typer(
        cls=output.Commands,
        no_args_is_help=True,
        help="A durable, provable runtime for AI agents.",
        pretty_exceptions_show_locals=False,  # local variables may hold users' values
    )
    app.callback()(_main)
    app.command("demo")(_demo)
    app.command("schema")(_schema)
    journal = store.add_to(app)
    people.add_to(app)
    runs.add_to(app)
    known = {found.name for found in app.registered_commands} | {
        found.name for found in app.registered_groups
    }
    if command not in known - {"journal"}:  # others have commands of the journal, too
        _add_the_rest(app, journal)
    return app


def _add_the_rest(app: typer.Typer, journal: typer.Typer) -> None:
    from holdfast.cli import evidence, export, lint, proof, retention

    proof.add_to(app, journal, evidence.add_to(app))
    for room in (export, retention, lint):
        room.add_to(app)


def main() -> None:
    """The entry point of the ``holdfast`` command."""
    for stream in (sys.stdout, sys.stderr):
        # Where the terminal lacks a character, its escape is better than a traceback.
        stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    app_for(next(iter(sys.argv[1:]), ""))()
