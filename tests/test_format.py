"""docs/FORMAT.md is current, and its worked example is what the core computes."""

from __future__ import annotations

import re
import subprocess
import sys

from tests.support import ROOT

from holdfast import _core
from holdfast.records import read_record

PAGE = ROOT / "docs" / "FORMAT.md"


def test_the_generated_parts_of_the_page_are_current() -> None:
    command = [sys.executable, "-m", "fixtures.format_tables", "--check"]
    made = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (made.returncode, made.stderr) == (0, ""), "run: python -m fixtures.format_tables"


def test_the_example_is_what_the_core_reads_and_hashes() -> None:
    page = PAGE.read_text()
    shown = dict(re.findall(r"^([a-z_' ]+):\n  (.+)$", page, re.MULTILINE))
    text = shown["canonical bytes of the record"].encode()
    record = read_record(text)
    assert (len(text), record.hash()) == (int(shown["their length"]), shown["hash of the record"])
    assert _core.record_check(text) == shown["hash of the record"]
    assert record.model_dump()["body"]["arguments"]["commit"] == shown["commit"]
    assert record.model_dump()["body"]["call_digest"] == shown["call_digest"]
    assert record.stream == shown["stream"]


def test_the_page_names_every_tag_of_a_digest_and_every_prefix_of_an_id() -> None:
    page = PAGE.read_text()
    core = ROOT / "rust" / "core" / "src"
    tags = re.findall(r'"(holdfast/[a-z-]+/v\d+)";', (core / "canonical" / "digest.rs").read_text())
    prefixes = re.findall(r'^    \w+Id = "(\w+)";', (core / "ids.rs").read_text(), re.MULTILINE)
    assert (len(tags), len(prefixes)) == (14, 10)
    assert [name for name in [*tags, *prefixes] if f"| `{name}` |" not in page] == []
