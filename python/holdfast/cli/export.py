"""``holdfast export``: a run for other eyes. Reads only, beside live processes.

Without ``-o`` the export goes to standard output, for jsonl, html and statement; users' values not to a
terminal, though, which might act on them. With it, or with an endpoint, what is printed is a sentence about
it, or a JSON object with ``--json``.
"""

from __future__ import annotations

import sys
from contextlib import contextmanager
from dataclasses import asdict
from enum import StrEnum
from errno import EPIPE
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from holdfast import canonical, exports
from holdfast.cli import output
from holdfast.cli.store import DEFAULT, AsJson, Url, reading
from holdfast.exports import files

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from holdfast.exports import Content, Exported


class Format(StrEnum):
    """What it becomes."""

    JSONL = "jsonl"
    HTML = "html"
    OTLP = "otlp"
    PARQUET = "parquet"
    STATEMENT = "statement"


class Table(StrEnum):
    """What of it goes into a Parquet file."""

    RECORDS = "records"
    CALLS = "calls"
    COSTS = "costs"


TABLES: dict[Table, Callable[..., Exported]] = {
    Table.RECORDS: exports.parquet,
    Table.CALLS: exports.parquet_calls,
    Table.COSTS: exports.parquet_costs,
}


def add_to(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("export")(_export)


def _wrong(message: str) -> NoReturn:
    raise typer.BadParameter(message)


def _check(form: Format, run: str | None, out: str | None, endpoint: str | None, as_json: bool) -> None:
    if run is None and form is not Format.PARQUET:
        _wrong("say which run")
    if form is Format.OTLP and (endpoint is None or out is not None):
        _wrong("otlp goes to an --endpoint, as in --endpoint http://localhost:4318")
    if form is not Format.OTLP and endpoint is not None:
        _wrong("only otlp goes to an endpoint")
    if form is Format.PARQUET and out is None:
        _wrong("parquet goes into a file: -o FILE")
    if out is not None and not Path(out).absolute().parent.is_dir():
        _wrong("there is no such folder to write into")
    if out is None and form in (Format.JSONL, Format.HTML) and sys.stdout.isatty():
        _wrong("users' values do not go to a terminal as they are: -o FILE, or redirect it")
    if as_json and out is None and form in (Format.JSONL, Format.HTML):
        _wrong("--json tells about a file: -o FILE")


def _export(
    run: Annotated[str | None, typer.Argument(metavar="RUN", help="A run; for parquet, all if none.")] = None,
    form: Annotated[Format, typer.Option("--format", "-f", help="What it becomes.")] = Format.JSONL,
    out: Annotated[str | None, typer.Option("--output", "-o", metavar="FILE", help="Where to.")] = None,
    endpoint: Annotated[str | None, typer.Option("--endpoint", metavar="URL", help="For otlp.")] = None,
    content: Annotated[
        bool | None,
        typer.Option("--content/--no-content", help="Users' values; by default not for otlp."),
    ] = None,
    sensitive: Annotated[
        bool, typer.Option("--sensitive", help="Also values that are marked as sensitive.")
    ] = False,
    table: Annotated[Table, typer.Option("--table", help="For parquet.")] = Table.RECORDS,
    store: Url = DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Export a run: jsonl, html, otlp, parquet or statement."""
    _check(form, run, out, endpoint, as_json)
    chosen = form is not Format.OTLP if content is None else content
    wanted: Content = "sensitive" if sensitive else chosen
    target = out or sys.stdout.buffer
    with reading(store) as opened, _writing():
        if form is Format.STATEMENT:
            _state(exports.statement(opened, str(run)), out)
            return
        if form is Format.OTLP:
            done = exports.otlp(opened, str(run), str(endpoint), content=wanted)
        elif form is Format.PARQUET:
            done = TABLES[table](opened, target, run)
        else:
            write = exports.jsonl if form is Format.JSONL else exports.html
            done = write(opened, str(run), target, content=wanted)
    if out is not None or form is Format.OTLP:
        _say(done, form, str(out or endpoint), as_json)


def _state(statement: dict[str, Any], out: str | None) -> None:
    if out is None and sys.stdout.isatty():
        output.print_json(statement)
        return
    with files.opened(out or sys.stdout.buffer) as file:
        file.write(canonical.dumps(statement))


@contextmanager
def _writing() -> Iterator[None]:
    """Says in one line that a file could not be written; a reader that has gone is no error of ours."""
    try:
        yield
    except OSError as error:
        if error.errno == EPIPE:
            raise
        output.complain(f"export_failed: {error.strerror}")
        raise typer.Exit(output.ERROR) from None


def _say(done: Exported, form: Format, where: str, as_json: bool) -> None:
    if as_json:
        output.print_json({**asdict(done), "format": form.value, "to": where})
    else:
        what = {Format.OTLP: "spans", Format.PARQUET: "rows"}.get(form, "records")
        output.say(f"{done.items:,} {what} of {done.records:,} records to {where}")
