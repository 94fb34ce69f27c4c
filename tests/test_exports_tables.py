"""Parquet files, read back with pyarrow: the same rows as the journal has, and in groups."""

from __future__ import annotations

import io
import json
from typing import TYPE_CHECKING, Any

import pytest
from pyarrow import parquet
from tests.exports_desk import Office, office, told

import holdfast as hf
from holdfast import exports

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


__all__ = ["office", "told"]  # fixtures


def rows(write: Callable[..., object], *arguments: Any) -> list[dict[str, Any]]:
    store, *rest = arguments
    out = io.BytesIO()
    write(store, out, *rest)
    return parquet.read_table(io.BytesIO(out.getvalue())).to_pylist()  # type: ignore[no-any-return]


def test_records_are_rows_of_what_was_hashed(office: Office, tmp_path: Path) -> None:
    run, store = office.run(), office.rt.store
    done = exports.parquet(office.rt, tmp_path / "records.parquet", run)
    read = parquet.read_table(tmp_path / "records.parquet").to_pylist()
    records = list(store.read(run.id))
    assert (done.items, done.records, done.head) == (len(records), len(records), records[-1].hash)
    for row, record in zip(read, records, strict=True):
        fields = record.fields
        assert json.loads(row.pop("body")) == record.body
        assert round(row.pop("at").timestamp() * 1000) == record.at
        assert row == {
            **{name: fields.get(name) for name in row},
            "by_type": record.by["type"],
            "by_id": record.by["id"],
            "hash": record.hash,
        }
    assert "owned" not in (tmp_path / "records.parquet").read_bytes().decode("latin-1")


def test_without_a_run_everything_is_exported(office: Office) -> None:
    office.run()
    read = rows(exports.parquet, office.rt)
    counted = office.rt.store.sql("select id, last_seq from streams order by key")
    assert {row["id"]: row["last_seq"] for row in counted} == {
        stream: sum(1 for row in read if row["stream"] == stream)
        for stream in dict.fromkeys(row["stream"] for row in read)
    }
    assert len(counted) == 3


def test_calls_and_costs_are_tables_of_their_own(office: Office) -> None:
    run = office.run()
    calls = {row["name"]: row for row in rows(exports.parquet_calls, office.rt) if row["kind"] == "tool"}
    assert {
        name: (row["effect"], row["outcome"], row["dispatches"], row["decision"], row["doubts"])
        for name, row in calls.items()
    } == {
        "look": ("read", "succeeded", 2, "allow", 0),
        "refund": ("write", "succeeded", 1, "ask", 0),
        "wire": ("write", "denied_by_person", 0, "ask", 0),
        "post": ("write", "succeeded", 1, "allow", 1),
    }
    assert {row["run"] for row in calls.values()} == {run.id}
    took = calls["refund"]["ended_at"] - calls["refund"]["opened_at"]
    assert (took.total_seconds(), calls["refund"]["elapsed_ms"] >= 20) == (62.0, True)
    (cost,) = rows(exports.parquet_costs, office.rt, run)
    assert (cost["model"], cost["provider"], cost["usd_micros"], cost["tokens"]) == (
        "gpt-x",
        "openai",
        12_500,
        120,
    )
    assert (cost["input_tokens"], cost["output_tokens"], cost["agent"]) == (100, 20, "support")


def test_groups_go_to_the_file_as_they_fill(tmp_path: Path) -> None:
    with hf.open("memory:") as store:
        run = store.create_run(agent="a")
        for _ in range(20):
            store.append_many(run, [("note.logged", {"text": "x"}) for _ in range(500)])
        exports.parquet(store, tmp_path / "r.parquet", run)
    file = parquet.ParquetFile(tmp_path / "r.parquet")
    assert [file.metadata.row_group(at).num_rows for at in range(file.num_row_groups)] == [8192, 1810]


def test_an_empty_table_has_its_columns() -> None:
    with hf.open("memory:") as store:
        out = io.BytesIO()
        exports.parquet_costs(store, out)
        table = parquet.read_table(io.BytesIO(out.getvalue()))
    assert (table.num_rows, table.column_names[:4]) == (0, ["run", "agent", "seq", "at"])
    with pytest.raises(hf.CommandError, match="no_such_run"):
        exports.parquet(hf.open("memory:"), io.BytesIO(), "run_x")
