"""What the lint says and to whom: JSON, SARIF, suppressions, rule packs, exit codes, and its own page."""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from holdfast import lint
from holdfast.cli import app_for
from holdfast.lint.report import VERSION
from holdfast.lint.sarif import sarif

APP = app_for("")
ROOT = Path(__file__).parent.parent
ACTS = """import subprocess

def helper(path):
    subprocess.run(["rm", path])

@rt.agent
async def clerk(ctx, path):
    helper(path)
    return open(path).read()
"""


def holdfast(folder: Path, *arguments: str) -> tuple[int, str, str]:
    with contextlib.chdir(folder):
        done = CliRunner().invoke(APP, ["lint", *arguments])
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, done.stdout, done.stderr


def rules(report: lint.Report) -> list[str]:
    return [found.rule for found in report.findings]


# What a finding says.


def test_a_finding_names_the_agent_the_way_to_it_and_what_to_do() -> None:
    process, read = lint.check_source(ACTS, "a.py").findings
    assert str(process) == (
        "a.py:4:5: error HF101 subprocess.run starts or signals a process, in helper, which clerk calls. "
        "Put it into a tool and call it with ctx.call, or pass it to ctx.do."
    )
    assert (process.agent, process.via, process.function) == ("clerk", ("helper",), "helper")
    assert (process.column, process.end_line, process.end_column) == (5, 4, 33)
    assert (read.rule, read.severity, read.line, read.via) == ("HF206", "warning", 9, ())


def test_columns_count_characters() -> None:
    source = 'import os\n@rt.agent\ndef clerk(ctx):\n    "\u00e9\u00e9"; os.remove("a")\n'
    (found,) = lint.check_source(source).findings
    assert (found.line, found.column, found.end_column) == (4, 11, 25)


def test_a_fingerprint_outlives_a_move_and_tells_two_alike_apart() -> None:
    twice = ACTS.replace("    helper(path)\n", "    helper(path)\n    open(path)\n")
    before = {found.fingerprint for found in lint.check_source(twice, "a.py").findings}
    after = {found.fingerprint for found in lint.check_source("# moved\n\n" + twice, "a.py").findings}
    elsewhere = {found.fingerprint for found in lint.check_source(twice, "b.py").findings}
    assert len(before) == 3
    assert before == after
    assert before.isdisjoint(elsewhere)


def test_the_report_as_json_has_the_fields_that_its_page_lists() -> None:
    told = lint.check_source(ACTS + "x = (\n", "a.py").to_json()
    assert told["problems"] == [
        {"path": "a.py", "code": "not_python", "message": "'(' was never closed (line 10)"}
    ]
    told = lint.check_source(ACTS, "a.py").to_json()
    assert (told["version"], told["files"]) == (VERSION, 1)
    assert told["counts"] == {"error": 1, "warning": 1, "note": 0}
    page = (ROOT / "docs" / "LINT.md").read_text(encoding="utf-8")
    section = page.split("## JSON")[1].split("\n## ")[0]
    listed = set(re.findall(r"^\| `(\w+)`", section, re.MULTILINE))
    assert listed == told.keys() | told["findings"][0].keys() | {"code"}
    assert json.loads(json.dumps(told)) == told


# Suppressions.


def test_what_is_suppressed_is_reported_with_its_reason() -> None:
    source = ACTS.replace('["rm", path])', '["rm", path])  # holdfast: allow HF101 because it is a copy')
    report = lint.check_source(source)
    assert rules(report) == ["HF206"]
    (allowed,) = report.suppressed
    assert (allowed.rule, allowed.reason) == ("HF101", "it is a copy")


def test_a_call_on_the_way_is_suppressed_for_its_agent_only() -> None:
    source = ACTS.replace(
        "    helper(path)\n", "    helper(path)  # holdfast: allow HF101 because it is a copy\n"
    )
    assert rules(lint.check_source(source)) == ["HF206"]
    other = source + "\n@rt.agent\nasync def other(ctx):\n    helper('a')\n"
    process, read, idle = sorted(lint.check_source(other).findings, key=lambda found: found.rule)
    assert (process.rule, process.agent, read.rule) == ("HF101", "other", "HF206")
    assert (idle.rule, idle.line) == ("HF902", 8)


def test_a_comment_at_the_end_of_a_line_is_about_that_line_only() -> None:
    source = ACTS.replace(
        "(path):\n    sub", "(path):\n    x = 1  # holdfast: allow HF101 because x\n    sub"
    )
    assert sorted(rules(lint.check_source(source))) == ["HF101", "HF206", "HF902"]


def test_what_is_not_looked_for_needs_no_suppression_and_none_is_idle_then() -> None:
    source = ACTS.replace('["rm", path])', '["rm", path])  # holdfast: allow HF101 because it is a copy')
    assert rules(lint.check_source(source, ignore=["HF101"])) == ["HF206"]
    assert rules(lint.check_source(source, select=["HF2"])) == ["HF206"]


# Packs and choices.

PACK = """
name = "shop"
disable = ["HF206"]

[severity]
HF203 = "error"

[calls]
HF108 = ["shop.payments.refund", "shop.mail.*", "shop.Client"]
"""


def test_a_pack_adds_callables_disables_rules_and_sets_severities(tmp_path: Path) -> None:
    (tmp_path / "shop.toml").write_text(PACK)
    source = """import os
from shop import payments, Client
from shop.mail import outbox

@rt.agent
async def clerk(ctx):
    open("a")
    os.getenv("A")
    payments.refund("42")
    payments.look("42")
    outbox.send("hello")
    with Client() as c:
        c.close()
        c.pay()
"""
    report = lint.check_source(source, packs=[tmp_path / "shop.toml"])
    found = [(found.line, found.rule, found.severity) for found in report.findings]
    assert found == [
        (8, "HF203", "error"),
        (9, "HF108", "error"),
        (11, "HF108", "error"),
        (12, "HF108", "error"),
        (14, "HF108", "error"),
    ]
    assert "HF206" not in report.enabled
    assert lint.Pack.load(tmp_path / "shop.toml").name == "shop"


BAD_PACKS = [
    ("desable = []", "unknown word 'desable'"),
    ("name = 3", "a name is a string"),
    ('disable = "HF101"', "this is a list"),
    ('disable = ["HF1"]', "there is no rule 'HF1'"),
    ("disable = [1]", "there is no rule 1"),
    ('severity = "error"', "severity is a table of rules"),
    ('[severity]\nHF101 = "fatal"', "a severity is one of note, warning, error"),
    ('[severity]\nHF199 = "error"', "there is no rule 'HF199'"),
    ("[severity]\nHF101 = 1", "a severity is one of"),
    ('[calls]\nHF303 = ["a.b"]', "HF303 is not about callables"),
    ('[calls]\nHF101 = "a.b"', "this is a list"),
    ('[calls]\nHF101 = ["a b"]', "a callable is a dotted name"),
    ('[calls]\nHF101 = ["a.*.b"]', "a callable is a dotted name"),
    ('[calls]\nHF101 = ["a", "a"]', "a is there twice"),
    ("[calls\n", "it is no TOML"),
    ("a = \udcff", "it is no TOML"),
]


@pytest.mark.parametrize(("text", "told"), BAD_PACKS)
def test_a_typo_in_a_pack_is_an_error_that_names_it(text: str, told: str, tmp_path: Path) -> None:
    pack = tmp_path / "pack.toml"
    pack.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(lint.PackError) as caught:
        lint.check_source("", packs=[pack])
    assert (caught.value.code, told in str(caught.value)) == ("bad_pack", True), str(caught.value)


def test_a_pack_that_is_not_there_and_a_rule_that_does_not_exist_are_errors(tmp_path: Path) -> None:
    with pytest.raises(lint.PackError, match="it cannot be read"):
        lint.check([], packs=[tmp_path / "none.toml"])
    with pytest.raises(lint.PackError, match="no rule is called 'HF7'"):
        lint.check([], select=["HF7"])


def test_rules_are_chosen_by_id_by_beginning_and_by_name() -> None:
    assert rules(lint.check_source(ACTS, select=["process"])) == ["HF101"]
    assert rules(lint.check_source(ACTS, select=["HF206"])) == ["HF206"]
    assert rules(lint.check_source(ACTS, select=["HF"], ignore=["HF1"])) == ["HF206"]


# SARIF.


def required(value: dict[str, Any], *keys: str) -> None:
    assert value.keys() >= set(keys), f"{sorted(value)} lacks {sorted(set(keys) - value.keys())}"


def test_sarif_has_what_its_schema_requires_and_code_hosts_need() -> None:
    suppressed = ACTS.replace("open(path).read()", "open(path)  # holdfast: allow HF206 because it is small")
    log = sarif(lint.check_source(suppressed, "src/a b.py"))
    assert json.loads(json.dumps(log)) == log
    assert (log["version"], log["$schema"].endswith("sarif-schema-2.1.0.json")) == ("2.1.0", True)
    (run,) = log["runs"]
    required(run, "tool", "results", "invocations", "columnKind")
    driver = run["tool"]["driver"]
    required(driver, "name", "semanticVersion", "rules")
    assert [rule["id"] for rule in driver["rules"]] == [rule.id for rule in lint.RULES]
    for rule in driver["rules"]:
        required(rule, "id", "name", "shortDescription", "fullDescription", "help", "defaultConfiguration")
        assert rule["defaultConfiguration"]["level"] in ("error", "warning", "note")
        assert rule["name"].isalnum()
    process, read = run["results"]
    for result in (process, read):
        required(result, "ruleId", "ruleIndex", "level", "message", "locations", "partialFingerprints")
        assert driver["rules"][result["ruleIndex"]]["id"] == result["ruleId"]
        place = result["locations"][0]["physicalLocation"]
        assert place["artifactLocation"] == {"uri": "src/a%20b.py", "uriBaseId": "%SRCROOT%"}
        assert all(isinstance(number, int) and number >= 1 for number in place["region"].values())
        assert re.fullmatch(r"sha256:[0-9a-f]{64}", result["partialFingerprints"]["holdfastLint/v1"])
    assert "suppressions" not in process
    assert read["suppressions"] == [{"kind": "inSource", "justification": "it is small"}]
    assert run["invocations"] == [{"executionSuccessful": True, "toolExecutionNotifications": []}]


def test_sarif_tells_of_files_that_were_not_read() -> None:
    log = sarif(lint.check_source(b"\xff\xfe", "/elsewhere/a.py"))
    (call,) = log["runs"][0]["invocations"]
    assert call["executionSuccessful"] is False
    (note,) = call["toolExecutionNotifications"]
    required(note, "level", "message", "descriptor", "locations")
    assert note["descriptor"] == {"id": "not_python"}
    assert note["locations"][0]["physicalLocation"]["artifactLocation"] == {"uri": "/elsewhere/a.py"}


# The command line.


def test_exit_codes_say_clean_findings_errors_and_wrong_use(tmp_path: Path) -> None:
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "clean.py").write_text("x = 1\n")
    assert holdfast(tmp_path, "app") == (0, "1 file(s): clean\n", "")
    (tmp_path / "app" / "agents.py").write_text(ACTS)
    code, out, errors = holdfast(tmp_path, "app")
    assert (code, errors) == (3, "")
    assert out.startswith("app/agents.py:4:5: error HF101 subprocess.run starts or signals a process")
    assert out.endswith("2 file(s): 1 error(s), 1 warning(s)\n")
    (tmp_path / "app" / "notes.py").write_text("dear diary\n")
    code, out, errors = holdfast(tmp_path, "app", "gone.py")
    assert (code, "HF101" in out) == (1, True), "the other files are still checked"
    assert errors.splitlines() == [
        "app/notes.py: not_python: invalid syntax (line 1)",
        "gone.py: no_such_file: there is no such file",
    ]
    assert holdfast(tmp_path)[0] == 2
    assert holdfast(tmp_path, "app", "--select", "HF7")[0] == 2
    assert holdfast(tmp_path, "app", "--format", "xml")[0] == 2


def test_what_fails_is_chosen_by_severity_by_rules_and_by_packs(tmp_path: Path) -> None:
    (tmp_path / "agents.py").write_text(ACTS)
    (tmp_path / "pack.toml").write_text('[severity]\nHF101 = "note"\n')
    assert holdfast(tmp_path, "agents.py", "--fail-on", "never")[0] == 0
    assert holdfast(tmp_path, "agents.py", "--ignore", "HF101")[0] == 0
    assert holdfast(tmp_path, "agents.py", "--ignore", "HF101", "--fail-on", "warning")[0] == 3
    assert holdfast(tmp_path, "agents.py", "--select", "HF101,HF206", "--ignore", "process,file-read")[0] == 0
    assert holdfast(tmp_path, "agents.py", "--pack", "pack.toml")[0] == 0
    assert holdfast(tmp_path, "agents.py", "--pack", "pack.toml", "--fail-on", "note")[0] == 3
    (tmp_path / "pack.toml").write_text("desable = []\n")
    code, out, errors = holdfast(tmp_path, "agents.py", "--pack", "pack.toml")
    assert (code, out, errors.startswith("bad_pack: unknown word 'desable'")) == (1, "", True)


def test_json_and_sarif_are_printed_whole_and_the_same_each_time(tmp_path: Path) -> None:
    (tmp_path / "agents.py").write_text(ACTS)
    code, out, errors = holdfast(tmp_path, str(tmp_path / "agents.py"), "--format", "json")
    told = json.loads(out)
    assert (code, errors, [found["rule"] for found in told["findings"]]) == (3, "", ["HF101", "HF206"])
    assert told["findings"][0]["path"] == "agents.py", "from here, so that it is the same in every checkout"
    assert holdfast(tmp_path, "./agents.py", "--json")[1] == out
    code, first, _ = holdfast(tmp_path, "agents.py", "--format", "sarif")
    assert (code, json.loads(first)["version"]) == (3, "2.1.0")
    assert holdfast(tmp_path, "agents.py", "--format", "sarif")[1] == first


def test_folders_are_walked_without_environments_and_caches(tmp_path: Path) -> None:
    for folder in ("app", ".git", "__pycache__", "env", "app/deep"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "a.py").write_text(ACTS)
    (tmp_path / "env" / "pyvenv.cfg").write_text("")
    (tmp_path / "app" / "notes.txt").write_text("no Python")
    report = lint.check([tmp_path, tmp_path / "app" / "a.py"])
    assert report.files == 2
    assert {Path(found.path).parent.name for found in report.findings} == {"app", "deep"}


def test_hostile_names_reach_no_terminal_as_they_are(tmp_path: Path) -> None:
    (tmp_path / "a\x1b[31m.py").write_text("dear diary\n")
    code, out, errors = holdfast(tmp_path, ".")
    assert (code, "\x1b" in out + errors, "\\u001b[31m.py" in errors) == (1, False, True)


def test_it_is_a_command_of_the_program(tmp_path: Path) -> None:
    (tmp_path / "agents.py").write_text(ACTS)
    command = [sys.executable, "-m", "holdfast", "lint", "agents.py"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (3, "")
    assert "agents.py:4:5: error HF101" in done.stdout


# Its page.


def test_the_page_lists_every_rule_as_the_table_has_it() -> None:
    page = (ROOT / "docs" / "LINT.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (HF\d+) \| (.+?) \| (.+?) \| (.+?) \| (.+?) \| (.+?) \|$", page, re.MULTILINE)
    assert rows == [(rule.id, rule.name, rule.severity, rule.what, rule.why, rule.fix) for rule in lint.RULES]
