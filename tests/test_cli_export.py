"""``holdfast export``: every format from a terminal, and words that are wrong."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest
from pyarrow import parquet
from tests.exports_desk import Office

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


@pytest.fixture
def run(folder: Path) -> str:
    office = Office(str(folder / "runs"))
    try:
        return office.run().id
    finally:
        office.rt.close()


def export(folder: Path, *arguments: str) -> tuple[int, str, str]:
    environment = {name: value for name, value in os.environ.items() if name != "HOLDFAST_STORE"}
    command = [sys.executable, "-m", "holdfast", "export", *arguments]
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=60
    )
    return done.returncode, done.stdout, done.stderr


def test_every_format_from_a_terminal(folder: Path, run: str) -> None:
    code, printed, said = export(folder, run)
    lines = [json.loads(line) for line in printed.strip().split("\n")]
    assert (code, said, len(lines)) == (0, "", 58)
    assert lines[3]["values"]["arguments"]["value"]["level"] == "info"

    code, printed, _ = export(folder, run, "--no-content", "-o", "run.jsonl", "--json")
    assert (code, json.loads(printed)) == (
        0,
        {
            "format": "jsonl",
            "head": lines[-1]["hash"],
            "items": 58,
            "records": 58,
            "stream": run,
            "to": "run.jsonl",
        },
    )
    assert "owned" not in (folder / "run.jsonl").read_text()

    assert export(folder, run, "-f", "html", "-o", "run.html")[:2] == (
        0,
        "58 records of 58 records to run.html\n",
    )
    assert (folder / "run.html").read_text().startswith("<!doctype html>")
    assert (folder / "run.html").stat().st_mode & 0o077 == 0

    code, printed, _ = export(folder, run, "--format", "statement")
    assert (code, json.loads(printed)["subject"][0]["name"]) == (0, run)

    code, printed, _ = export(folder, "-f", "parquet", "--table", "calls", "-o", "calls.parquet")
    assert (code, printed) == (0, "10 rows of 64 records to calls.parquet\n")
    assert parquet.read_table(folder / "calls.parquet").num_rows == 10


def test_values_do_not_go_to_a_terminal_as_they_are(folder: Path, run: str) -> None:
    def on_terminal(*arguments: str) -> tuple[int, str]:
        ours, theirs = pty.openpty()
        command = [sys.executable, "-m", "holdfast", "export", run, *arguments]
        with subprocess.Popen(command, cwd=folder, stdout=theirs, stderr=subprocess.PIPE) as process:
            os.close(theirs)
            read = b""
            with suppress(OSError):  # the other end is closed
                while more := os.read(ours, 65536):
                    read += more
            os.close(ours)
            process.communicate(timeout=60)
        return process.returncode, read.decode()

    assert on_terminal() == on_terminal("-f", "html") == (2, "")
    code, printed = on_terminal("-f", "statement")
    assert (code, json.loads(printed)["subject"][0]["name"]) == (0, run)
    assert printed.isascii()


def test_wrong_words_are_usage_and_what_cannot_be_is_an_error(folder: Path, run: str) -> None:
    for arguments, code, said in (
        ((), 2, "say which run"),
        ((run, "-f", "csv"), 2, "csv"),
        ((run, "-f", "otlp"), 2, "--endpoint"),
        ((run, "--endpoint", "http://127.0.0.1:1"), 2, "only otlp"),
        ((run, "-f", "parquet"), 2, "-o FILE"),
        ((run, "--json"), 2, "-o FILE"),
        ((run, "-o", "nowhere/x"), 2, "no such folder"),
        ((run, "-f", "otlp", "--endpoint", "localhost:1"), 1, "export_failed: "),
        (("run_01m7mk77wceaxbrp2tzgn5qqfr",), 1, "no_such_run: "),
        ((run, "-o", "runs"), 1, "export_failed: "),
        ((run, "--store", "elsewhere"), 1, "no_such_store: "),
    ):
        done = export(folder, *arguments)
        assert (done[0], done[1], said in " ".join(done[2].split())) == (code, "", True), (arguments, done)
    assert sorted(path.name for path in folder.iterdir()) == ["runs"]
