"""The commands of a store: audit it, mend it, read it, copy it, erase from it.

``verify``, ``journal tail``, ``sql`` and ``stats`` open it for reading only, so they work beside live
processes and change nothing. No command here makes a store where there is none, except ``restore`` and
``copy``, and ``migrate`` in a database that is there.
``--store`` says which one, else ``HOLDFAST_STORE``, else the nearest pyproject.toml, else ``./runs``.
"""

from __future__ import annotations

import math
import re
import sys
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path  # noqa: TC003 (typer reads annotations)
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from holdfast import _core, config
from holdfast.cli import output
from holdfast.errors import RecordError, StoreError
from holdfast.store import copy_store, doctor, migrations, open_store, restore
from holdfast.store.reading import resolved

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.store import Findings, Record, Report, Store

SHOWN = 20  # problems that people are shown; --json has all that are listed
ERASED = "(erased)"
SERVERS = ("postgres://", "postgresql://")
READING = re.compile(r"\s*(select|with|values)\b", re.IGNORECASE)

Url = Annotated[
    str,
    typer.Option(
        "--store", envvar="HOLDFAST_STORE", metavar="URL", help="A folder, sqlite:///path or postgresql://..."
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
RunId = Annotated[str, typer.Argument(metavar="RUN", help="A run, a session or 'store'.")]
# Asked when a command is called without --store: click calls a default that can be called.
DEFAULT = cast("str", lambda: config.setting("store", None, "./runs"))


def add_to(app: typer.Typer) -> typer.Typer:
    """Adds the commands; returns those of the journal, for what others add to them."""
    for name, command in (
        ("verify", _verify),
        ("doctor", _doctor),
        ("stats", _stats),
        ("sql", _sql),
        ("backup", _backup),
        ("restore", _restore),
        ("copy", _copy),
        ("gc", _gc),
        ("forget", _forget),
        ("migrate", _migrate),
    ):
        app.command(name)(command)
    journal = typer.Typer(no_args_is_help=True, help="Read the journal, and seal it.")
    journal.command("tail")(_tail)
    journal.callback()(lambda: None)  # keeps `tail` a word of its own
    app.add_typer(journal, name="journal")
    return journal


def _lasting(url: str) -> str:
    """The address of a store that outlives a process."""
    if url != "memory:":
        return url
    fix = dict(_core.error_codes())["bad_url"]
    raise StoreError("this needs a store that lasts", code="bad_url", fix=fix)


@contextmanager
def writing(url: str, *, migrate: bool = False) -> Iterator[Store]:
    """A store that is there already, for writing."""
    migrations(_lasting(url))  # says that there is none, where opening would make one
    with open_store(url, migrate=migrate) as store:
        yield store


def reading(url: str) -> Store:
    """A store, for reading only."""
    return open_store(url, read_only=True)


# Audits.


def _heads(given: list[str]) -> dict[str, str]:
    pairs = [head.partition("=") for head in given]
    if not all(stream and head for stream, _, head in pairs):
        raise typer.BadParameter("a head is STREAM=HASH", param_hint="--head")
    return {stream: head for stream, _, head in pairs}


def _told(report: Report) -> dict[str, Any]:
    first = report.first_bad
    return {**asdict(report), "first_bad": None if first is None else asdict(first)}


def _show_report(report: Report) -> None:
    names = ("streams", "frames", "records", "contents", "blobs", "erased", "sealed", "head")
    rows = [(name, getattr(report, name)) for name in names if getattr(report, name) is not None]
    output.facts([*rows, ("problems", report.problem_count)])
    for problem in report.problems[:SHOWN]:
        output.say(str(problem), style="red")
    if report.problem_count > SHOWN:
        output.say(f"and {report.problem_count - SHOWN} more; --json lists up to {len(report.problems)}")


def _verify(
    run: Annotated[
        str | None, typer.Argument(metavar="[RUN]", help="One run, one session or 'store'; else all.")
    ] = None,
    head: Annotated[
        list[str] | None,
        typer.Option("--head", metavar="STREAM=HASH", help="Where a stream ended, as it was kept elsewhere."),
    ] = None,
    seal: Annotated[
        list[Path] | None, typer.Option("--seal", metavar="FILE", help="A seal that was kept elsewhere.")
    ] = None,
    key: Annotated[
        list[str] | None,
        typer.Option("--key", metavar="LINE", help="The public line of a key that seals are signed with."),
    ] = None,
    store: Url = DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Audit the journal: chain, contents, blobs, rows, files, seals. Exit code 3 if anything is wrong."""
    heads, seals = _heads(head or []), [output.text_of(one) for one in seal or ()]
    with reading(store) as opened, output.watching("auditing") as watch:
        report = opened.verify(run, heads=heads, seals=seals, keys=key or (), watch=watch)
    show_audit(report, as_json=as_json)


def show_audit(report: Report, *, as_json: bool) -> None:
    """What an audit found; exit code 3 if anything is wrong."""
    if as_json:
        output.print_json(_told(report))
    else:
        _show_report(report)
        output.say("verified" if report.ok else "NOT VERIFIED", style="green" if report.ok else "bold red")
    if report.ok and not as_json:
        output.say(f"what this shows: {report.guarantee}")  # of a bad store it would not be true
    if not report.ok:
        output.complain(f"first bad: {report.first_bad}")
        raise typer.Exit(output.CHECK_FAILED)


def _show_findings(findings: Findings) -> None:
    _show_report(findings.report)
    if findings.poisoned is not None:
        output.say(f"poisoned: {findings.poisoned}", style="red")
    if findings.truncated is not None:
        output.say("truncated: it ends at frame {}, and frame {} was durable".format(*findings.truncated))
    if findings.rebuilt:
        output.say(f"rebuilt: the rows of {findings.rebuilt} streams")
    for advice in findings.advice:
        output.say(advice, style="yellow")
    output.say(
        "healthy" if findings.healthy else "NOT HEALTHY", style="green" if findings.healthy else "bold red"
    )


def _doctor(
    rebuild: Annotated[
        bool, typer.Option("--rebuild", help="Make every row anew from the journal; leases count as expired.")
    ] = False,
    accept_loss: Annotated[
        bool, typer.Option("--accept-loss", help="Go on without durable records that are missing at the end.")
    ] = False,
    store: Url = DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Say what is wrong with a store and what to do, and lift the poison if all is well."""
    with output.watching("examining") as watch:
        findings = doctor(_lasting(store), rebuild=rebuild, accept_loss=accept_loss, watch=watch)
    if as_json:
        output.print_json({**asdict(findings), "report": _told(findings.report)})
    else:
        _show_findings(findings)
    if not findings.healthy:
        raise typer.Exit(output.CHECK_FAILED)


def _stats(store: Url = DEFAULT, as_json: AsJson = False) -> None:
    """Print what the store is and how large: sizes, counts, processes."""
    with reading(store) as opened:
        stats = opened.stats()
    if as_json:
        output.print_json(stats)
    else:
        output.facts(stats.items())


# Reading.


def _when(at: int) -> str:
    try:
        told = datetime.fromtimestamp(at / 1000, UTC).isoformat(timespec="milliseconds")
    except (OverflowError, ValueError, OSError):
        return str(at)  # a forged time
    return told.removesuffix("+00:00") + "Z"


def _value(record: Record) -> tuple[Any, bool]:
    """What a record says, and whether a content of it was erased: then all of them show as erased.

    What is sensitive or secret is not printed; an export can be asked for the one, and nothing for the other.
    """

    def opening(content: dict[str, Any]) -> Any:  # noqa: ANN401 (any JSON, or bytes)
        withheld = content["privacy"] in ("sensitive", "secret")
        return f"(withheld: {content['privacy']})" if withheld else record.open(content)

    try:
        return resolved(record.kind, record.body, opening), False
    except RecordError as error:
        if error.code != "content_erased":
            raise
    return _erased(record.body), True


def _erased(body: Any) -> Any:  # noqa: ANN401 (JSON of any shape)
    if isinstance(body, dict):
        content = body.keys() == {"bytes", "commit", "media", "privacy"}
        return ERASED if content else {name: _erased(value) for name, value in body.items()}
    return [_erased(value) for value in body] if isinstance(body, list) else body


def _line(record: Record, *, as_json: bool) -> str:
    value, erased = _value(record)
    if as_json:
        return output.as_json({**record.fields, "erased": erased, "hash": record.hash, "value": value})
    by = output.visible(f"{record.by['type']}:{record.by['id']}")
    return f"{_when(record.at)}  {record.seq}  {output.visible(record.kind)}  {by}  {output.short(value)}"


def _tail(
    run: RunId,
    after: Annotated[int, typer.Option("--after", min=0, max=2**53, help="Begin after this record.")] = 0,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Wait for more, until the run has ended.")
    ] = False,
    store: Url = DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Print the records of a run, one a line: time, seq, kind, by whom, and what."""
    with reading(store) as opened:
        records = opened.tail(run, after=after) if follow else opened.read(run, after=after)
        for record in records:
            typer.echo(_line(record, as_json=as_json))


def _sql(
    query: Annotated[str, typer.Argument(help="One reading statement; docs/STORE.md lists the tables.")],
    limit: Annotated[int, typer.Option("--limit", min=1, max=100_000, help="Rows at most.")] = 1000,
    store: Url = DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Run one reading statement and print its rows."""
    bare = query.strip().removesuffix(";")
    # Cut where the rows are made: the store refuses answers without a bound. A newline ends a comment.
    bounded = f"SELECT * FROM (\n{bare}\n) AS asked LIMIT {limit + 1}" if READING.match(bare) else query  # noqa: S608
    with reading(store) as opened:
        rows = opened.sql(bounded)
    if as_json:
        output.print_json(rows[:limit])
    elif rows:
        output.grid(list(rows[0]), [list(row.values()) for row in rows[:limit]])
    if len(rows) > limit:
        output.complain(f"there are more than {limit} rows: ask for them with --limit")


# Copies, erasure, care.


def _show(told: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        output.print_json(told)
    else:
        output.facts(told.items())


def _backup(
    target: Annotated[str, typer.Argument(metavar="TARGET", help="A folder that does not exist yet.")],
    store: Url = DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Copy the store while others write. A copy is not a store: restore it."""
    with writing(store) as opened:
        told = opened.backup(target)
    _show(told, as_json=as_json)


def _restore(
    backup: Annotated[str, typer.Argument(metavar="BACKUP", help="What `holdfast backup` made.")],
    target: Annotated[str, typer.Argument(metavar="TARGET", help="A folder that does not exist yet.")],
    as_json: AsJson = False,
) -> None:
    """Make a store from a backup, under a new epoch. Runs that were open wait until a person resumes them."""
    told = restore(backup, target)
    _show(told, as_json=as_json)
    if told["waiting"] and not as_json:
        output.say("runs that were open wait: what they did after the backup is unknown here")


def _copy(
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="The address of a store.")],
    target: Annotated[str, typer.Argument(metavar="TARGET", help="An address where no store is yet.")],
    as_json: AsJson = False,
) -> None:
    """Copy a store to another address or engine. Open runs wait there until a person resumes them."""
    with output.watching("copying") as watch:
        told = copy_store(_lasting(source), _lasting(target), watch=watch)
    _show(told, as_json=as_json)
    if told["waiting"] and not as_json:
        output.say("runs that are open wait in the copy: the store that it was copied from may go on")


def _hours(hours: float) -> float:
    if not 0 <= hours < math.inf:
        raise typer.BadParameter("hours are 0 or more")
    return hours


def _gc(
    older_than: Annotated[
        float, typer.Option("--older-than", metavar="HOURS", callback=_hours, help="Leave younger ones.")
    ] = 24.0,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would go.")] = False,
    store: Url = DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Remove blobs that no record refers to."""
    with writing(store) as opened:
        count, size = opened.gc(older_than=older_than * 3600, dry_run=dry_run)
    if as_json:
        output.print_json({"blobs": count, "bytes": size, "dry_run": dry_run})
    else:
        output.say(f"{'would remove' if dry_run else 'removed'} {count} blobs of {size} bytes")


def _forget(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run that has ended.")],
    by: Annotated[str, typer.Option("--by", metavar="NAME", help="Who erases it.")],
    reason: Annotated[str | None, typer.Option("--reason", help="Why; it stays in the journal.")] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    store: Url = DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Erase every content of a run, for good. The records stay and verify."""
    if not yes and not sys.stdin.isatty():
        output.complain("confirmation_needed: erasing is for good, and nobody can be asked here. Pass --yes.")
        raise typer.Exit(output.USAGE)
    with writing(store) as opened:
        if not yes and not typer.confirm(f"Erase every content of {output.visible(run)} for good?", err=True):
            output.complain("nothing was erased")
            raise typer.Exit(output.ERROR)
        erased = opened.forget(run, by=by, reason=reason)
    if as_json:
        output.print_json({"erased": erased, "run": run})
    else:
        output.say(f"erased {erased} contents of {run}")


def _migrate(
    plan: Annotated[bool, typer.Option("--plan", help="Only list the migrations.")] = False,
    store: Url = DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Bring the store's schema up to this version, also where older processes cannot live with it.

    In a database that has none, it makes one.
    """
    if not plan and store.startswith(SERVERS):
        # Whoever names a database that is there means it; a folder that is not there may be a typo.
        open_store(store, migrate=True).close()
    elif not plan:
        with writing(store, migrate=True):
            pass
    planned = migrations(_lasting(store))
    if as_json:
        output.print_json(planned)
        return
    state = {True: "applied", False: "pending"}
    rows = [
        (each["number"], each["name"], state[each["applied"]], each["additive"], each["older_processes"])
        for each in planned
    ]
    output.grid(("number", "name", "state", "additive", "older processes"), rows)
