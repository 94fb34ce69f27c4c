"""Tables for analysts, as Parquet files: records, calls, costs. No users' values, only what was hashed.

Rows are written in groups as they are read, so memory does not grow with the store. Times are UTC with
milliseconds. What a row does not have is null.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast import canonical
from holdfast.exports.cut import Exported, cut, cuts
from holdfast.exports.files import extra, opened
from holdfast.exports.story import Story, walk

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from holdfast.exports.calls import Call
    from holdfast.exports.cut import Cut, Source
    from holdfast.exports.files import Out
    from holdfast.runtime import Run
    from holdfast.store import Record

Row = dict[str, Any]
GROUP = 8192
"""Rows in a group."""
RECORDS = {
    "stream": "string",
    "seq": "int64",
    "at": "time",
    "kind": "string",
    "step": "string",
    "attempt": "int64",
    "call": "string",
    "dispatch": "int64",
    "lane": "string",
    "by_type": "string",
    "by_id": "string",
    "cause": "int64",
    "privacy": "string",
    "body": "string",
    "hash": "string",
}
CALLS = {
    "run": "string",
    "agent": "string",
    "call": "string",
    "kind": "string",
    "name": "string",
    "version": "string",
    "effect": "string",
    "risk": "string",
    "step": "string",
    "attempt": "int64",
    "opened_at": "time",
    "ended_at": "time",
    "outcome": "string",
    "dispatches": "int64",
    "elapsed_ms": "int64",
    "key": "string",
    "external_id": "string",
    "decision": "string",
    "doubts": "int64",
    "error": "string",
    "error_code": "string",
    "child": "string",
}
COSTS = {
    "run": "string",
    "agent": "string",
    "seq": "int64",
    "at": "time",
    "step": "string",
    "call": "string",
    "model": "string",
    "provider": "string",
    "input_tokens": "int64",
    "output_tokens": "int64",
    "tokens": "int64",
    "usd_micros": "int64",
}


def parquet(store: Source, out: Out, run: Run | str | None = None) -> Exported:
    """Writes records, one a row: of a run or another stream, or of everything.

    ``body`` is JSON as it was hashed: users' values stand in it as commitments.

    Raises:
        ExportError: ``extra_missing``.
    """
    return _written(store, out, run, RECORDS, _records)


def parquet_calls(store: Source, out: Out, run: Run | str | None = None) -> Exported:
    """Writes calls, one a row, of a run or of all: what, how, how long, and how it ended."""
    return _written(store, out, run, CALLS, _calls)


def parquet_costs(store: Source, out: Out, run: Run | str | None = None) -> Exported:
    """Writes recorded costs, one a row, of a run or of all."""
    return _written(store, out, run, COSTS, _costs)


def _written(
    store: Source,
    out: Out,
    run: Run | str | None,
    columns: dict[str, str],
    rows: Callable[[Cut], Iterator[Row]],
) -> Exported:
    with extra("parquet"):
        from holdfast.exports.tables import Table
    one, records = None if run is None else cut(store, run), 0
    with opened(out) as file, Table(file, columns, GROUP) as table:
        for where in cuts(store) if one is None else (one,):
            records += where.last
            for row in rows(where):
                table.add(row)
    if one is None:
        return Exported(None, records, None, table.rows)
    return Exported(one.stream, records, one.head, table.rows)


def _records(where: Cut) -> Iterator[Row]:
    same = ("stream", "seq", "at", "kind", "step", "attempt", "call", "dispatch", "lane", "cause", "privacy")
    for record in where.records():
        fields = record.fields
        row = {name: fields.get(name) for name in same}
        row["by_type"], row["by_id"] = record.by["type"], record.by["id"]
        row["body"], row["hash"] = canonical.dumps(record.body).decode(), record.hash
        yield row


def _calls(where: Cut) -> Iterator[Row]:
    if not where.stream.startswith("run_"):
        return
    story = Story(where)
    for _, call in walk(where, story):
        if call is not None:
            yield _call(where, story, call)


def _call(where: Cut, story: Story, call: Call) -> Row:
    same = (
        "kind",
        "name",
        "version",
        "effect",
        "risk",
        "step",
        "attempt",
        "opened_at",
        "ended_at",
        "outcome",
    )
    row = {name: getattr(call, name) for name in (*same, "key", "external_id", "child")}
    elapsed = [sent.elapsed_ms for sent in call.dispatches if sent.elapsed_ms is not None]
    decisions = [verdict.said for verdict in call.verdicts if verdict.by == "policy"]
    failure = call.failure or {}
    return row | {
        "run": where.stream,
        "agent": story.agent,
        "call": call.id,
        "dispatches": len(call.dispatches),
        "elapsed_ms": sum(elapsed) if elapsed else None,
        "decision": decisions[-1] if decisions else None,
        "doubts": len(call.doubts),
        "error": failure.get("error"),
        "error_code": failure.get("code"),
    }


def _costs(where: Cut) -> Iterator[Row]:
    if not where.stream.startswith("run_"):
        return
    story = Story(where)
    for record in where.records():
        story.apply(record)
        if record.kind == "cost.recorded":
            yield _cost(where, story, record)


def _cost(where: Cut, story: Story, record: Record) -> Row:
    body, amounts = record.body, record.body["amounts"]
    row = {name: body.get(name) for name in ("model", "provider", "input_tokens", "output_tokens")}
    row |= {name: record.fields.get(name) for name in ("seq", "at", "step", "call")}
    row |= {name: amounts.get(name) for name in ("tokens", "usd_micros")}
    return row | {"run": where.stream, "agent": story.agent}
