"""How commands talk: tables for people, JSON for programs, errors on stderr, and a bar for long work.

Whatever comes from a store may be hostile, so nothing of it reaches a terminal as it is: what cannot be
seen is printed as the escape that JSON has for it, and markup is never interpreted. Errors are
``code: message. fix``, without a traceback.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import sys
from typing import TYPE_CHECKING, Any, TextIO

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text
from typer.core import TyperGroup

from holdfast.errors import HoldfastError, VerifyError
from holdfast.visible import visible as visible

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from holdfast.store.reports import Watch

ERROR, USAGE, CHECK_FAILED = 1, 2, 3
DAMAGE = frozenset(("blob_forged", "content_forged", "content_lost", "store_corrupt", "store_truncated"))
"""Errors that mean: something was checked, and it is not as it was written."""

WIDE = 1000  # columns of what is no terminal: nothing there is folded


class Commands(TyperGroup):
    """Says errors in one line, and with an exit code."""

    def invoke(self, ctx: typer.Context) -> Any:  # type: ignore[override]  # noqa: ANN401
        """Runs the command."""
        try:
            return super().invoke(ctx)
        except HoldfastError as error:
            complain(str(error))
            failed = isinstance(error, VerifyError) or error.code in DAMAGE
            raise typer.Exit(CHECK_FAILED if failed else ERROR) from None


def plain(value: Any) -> Any:  # noqa: ANN401 (JSON of any shape)
    """A value as JSON has it: bytes are hex, and numbers that JSON lacks are words."""
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {str(key): plain(inner) for key, inner in value.items()}
    return [plain(inner) for inner in value] if isinstance(value, list | tuple) else value


def as_json(value: object, *, indent: int | None = None) -> str:
    """JSON in ASCII, without anything that a terminal could act on."""
    return json.dumps(plain(value), indent=indent)


def short(value: object, most: int = 160) -> str:
    """A value on one line."""
    text = visible(json.dumps(plain(value), ensure_ascii=False))
    return text if len(text) <= most else f"{text[: most - 3]}..."


def cell(value: object) -> Text:
    """A value in a table."""
    if isinstance(value, bytes):
        return Text(value.hex())
    return Text(visible(value) if isinstance(value, str) else "" if value is None else short(value))


def console(file: TextIO | None = None) -> Console:
    """A console that interprets nothing, and is without colour where that is asked for."""
    file = file or sys.stdout
    width = None if file.isatty() else WIDE
    colors = None if os.environ.get("NO_COLOR") else "auto"
    # "auto" is a value of rich's own literal type, which mypy cannot see through the condition.
    return Console(file=file, width=width, color_system=colors, markup=False, emoji=False, highlight=False)  # type: ignore[arg-type]


def say(text: str, style: str = "") -> None:
    """One paragraph for people."""
    console().print(Text(visible(text), style=style), soft_wrap=True)


def complain(text: str) -> None:
    """One line on stderr."""
    typer.echo(visible(text), err=True)


def print_json(value: object) -> None:
    """One document for programs."""
    typer.echo(as_json(value, indent=2))


def text_of(path: Path) -> str:
    """The text of a file that was named; a usage error if there is none."""
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise typer.BadParameter(f"{path} cannot be read: {type(error).__name__}") from None


@contextlib.contextmanager
def written(path: Path) -> Iterator[TextIO]:
    """A new file that was named; a usage error if it cannot be."""
    try:
        file = path.open("x", encoding="utf-8")
    except OSError as error:
        raise typer.BadParameter(f"{path} cannot be written: {error.strerror}") from None
    with file:
        yield file


def facts(rows: Iterable[tuple[str, object]]) -> None:
    """Names and values, one a line."""
    named = [(visible(name), cell(value)) for name, value in rows]
    width = max((len(name) for name, _ in named), default=0)
    for name, value in named:
        console().print(Text(f"{name:<{width}}  ").append_text(value), soft_wrap=True)


def grid(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """A table with a head."""
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for column in columns:
        table.add_column(cell(column), overflow="fold")
    for row in rows:
        table.add_row(*(cell(value) for value in row))
    console().print(table)


@contextlib.contextmanager
def watching(what: str) -> Iterator[Watch]:
    """Hears how far long work has come: a bar if a person watches stderr, else nothing.

    Long work is always watched, because that is what lets Ctrl-C stop it.
    """
    if not sys.stderr.isatty():
        yield lambda _done, _total: None
        return
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TextColumn("{task.fields[told]}"))
    with Progress(*columns, TimeElapsedColumn(), console=console(sys.stderr), transient=True) as bar:
        task = bar.add_task(what, total=None, told="")

        def watch(done: int, total: int) -> None:
            told = f"{done} of {total} frames" if total else ""
            bar.update(task, completed=done, total=total or None, told=told)

        yield watch
