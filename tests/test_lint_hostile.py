"""Whatever a file holds, the lint ends with a report: findings or problems, and never a traceback."""

from __future__ import annotations

import ast
import json
import os
import warnings
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.test_lint import GUILTY, INNOCENT, expected

from holdfast import lint
from holdfast.lint.check import BYTES_MOST
from holdfast.lint.sarif import sarif

if TYPE_CHECKING:
    from pathlib import Path

AGENT = "@rt.agent\ndef clerk(ctx):\n"
PIECES = st.sampled_from([expected(block)[0] for block in (*GUILTY.values(), *INNOCENT.values())])


def reported(source: bytes | str) -> lint.Report:
    report = lint.check_source(source)
    for problem in report.problems:
        assert problem.code in ("not_python", "too_deep", "too_large")
        assert problem.message
    return report


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=400))
def test_any_bytes_end_in_a_report(data: bytes) -> None:
    reported(data)


@settings(max_examples=300, deadline=None)
@given(st.text(max_size=200), st.sampled_from(["", "# coding: utf-7\n", "# coding: rot13\n", "#!x\n\ufeff"]))
def test_any_text_ends_in_a_report(text: str, opening: str) -> None:
    reported(opening + text)


@settings(max_examples=150, deadline=None)
@given(st.lists(PIECES, min_size=1, max_size=4), st.data())
def test_stories_that_are_cut_joined_and_scrambled_end_in_a_report(
    pieces: list[str], data: st.DataObject
) -> None:
    lines = "".join(pieces).splitlines()
    for _ in range(data.draw(st.integers(0, 4))):
        at = data.draw(st.integers(0, max(0, len(lines) - 1)))
        action = data.draw(st.sampled_from(["drop", "twice", "swap", "indent"]))
        match action:
            case "drop":
                del lines[at : at + 1]
            case "twice":
                lines[at:at] = lines[at : at + 2]
            case "swap":
                lines[at : at + 2] = reversed(lines[at : at + 2])
            case _:
                lines[at : at + 1] = ["    " + line for line in lines[at : at + 1]]
    reported("\n".join(lines))


EXPRESSIONS = st.recursive(
    st.sampled_from(["x", "os", "ctx", "run", "self", "open", "'w'", "1", "Path('a')", "ctx.attempt"]),
    lambda inner: st.one_of(
        st.tuples(inner, inner).map(lambda two: f"({two[0]})({two[1]})"),
        inner.map(lambda one: f"({one}).system"),
        inner.map(lambda one: f"[{one} for x in {one}]"),
        inner.map(lambda one: f"(lambda x={one}: x)"),
        st.tuples(inner, inner).map(lambda two: f"({two[0]} or {two[1]})"),
        st.tuples(inner, inner).map(lambda two: f"({two[0]})[{two[1]}]"),
        st.tuples(inner, inner).map(lambda two: f"getattr({two[0]}, {two[1]})"),
        st.tuples(inner, inner).map(lambda two: f"{{'a': {two[0]}, **{two[1]}}}"),
        st.tuples(inner, inner).map(lambda two: f"({two[0]} / {two[1]} if x else (y := {two[0]}))"),
        inner.map(lambda one: f"partial({one}, *{one})"),
        inner.map(lambda one: f"map(*{one})"),
        st.tuples(inner, inner).map(lambda two: f"map({two[0]}, {two[1]})"),
        st.tuples(inner, inner).map(lambda two: f"ctx.do({two[0]}, {two[1]}, effect=x)"),
        st.tuples(inner, inner).map(lambda two: f"rt.tool({two[0]}, **{two[1]})({two[0]})"),
        inner.map(lambda one: f"super().a({one}).b"),
    ),
    max_leaves=16,
)


@settings(max_examples=200, deadline=None)
@given(st.lists(EXPRESSIONS, min_size=1, max_size=5))
def test_any_valid_code_is_read_without_a_problem(parts: list[str]) -> None:
    body = "".join(f"    x = {part}\n    self.x[0], y = {part}\n    run = x\n" for part in parts)
    source = "import os\nfrom functools import partial\nfrom pathlib import Path\n" + AGENT + body
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ast.parse(source)
    assert reported(source).problems == ()


def nested(times: int, opening: str, inner: str, closing: str) -> str:
    return AGENT + "    x = " + opening * times + inner + closing * times + "\n"


DEEP = {
    "brackets": nested(150, "[", "1", "]"),
    "too many brackets": nested(5000, "[", "1", "]"),
    "attributes": nested(3000, "", "a" + ".b" * 3000, ""),
    "calls": nested(1, "", "f" + "()" * 3000, ""),
    "signs": nested(3000, "-", "1", ""),
    "lambdas": nested(300, "lambda: ", "1", ""),
    "conditions": nested(300, "1 if 1 else ", "1", ""),
    "strings": nested(1, "", "'a'" + " + 'a'" * 20000, ""),
    "blocks": AGENT + "".join(f"{' ' * (at + 4)}if x:\n" for at in range(90)) + " " * 94 + "pass\n",
    "loops": AGENT + "".join(f"{' ' * (at + 4)}for x in x:\n" for at in range(90)) + " " * 94 + "x = [x]\n",
    "functions": AGENT + "".join(f"{' ' * (at + 4)}def f():\n" for at in range(90)) + " " * 94 + "pass\n",
    "classes": "".join(f"{' ' * at}class A(A):\n" for at in range(90)) + " " * 91 + "x = A().x\n",
    "a class that makes itself": "class A:\n    x: A = field(default_factory=A)\n" + AGENT + "    A()\n",
    "a class of itself": "class A(A, B): pass\nclass B(A): pass\n" + AGENT + "    A().x()\n    B().y()\n",
    "methods": nested(1, "", "x" + ".get('a', {})" * 80, ""),
    "modes": nested(80, "open('a', ", "'w'", ")"),
    "declarations": nested(60, "ctx.do('a', print, effect=", "'read'", ")"),
    "tools": nested(30, "rt.tool(effect=", "'read'", ")(print)"),
    "alternatives": nested(80, "(x or ", "y", ")"),
    "comprehensions": nested(60, "[", "x for x in y", " for x in y]"),
}


@pytest.mark.timeout(60)
@pytest.mark.parametrize("what", DEEP)
def test_deep_nesting_ends_in_a_report(what: str) -> None:
    reported(DEEP[what])


LONG = {
    "branches": AGENT + "".join(f"    if x:\n        y{at} = x\n" for at in range(20000)),
    "elifs": AGENT
    + "    if x:\n        pass\n"
    + "".join(f"    elif x == {n}:\n        y = 1\n" for n in range(300)),
    "names": "import os\n"
    + AGENT
    + "".join(f"    a{at} = os.remove\n    a{at}('x')\n" for at in range(10000)),
    "functions": "".join(f"def f{at}(x):\n    return f{at + 1}(x)\n" for at in range(10000))
    + AGENT
    + "    f0(1)\n",
    "agents": "import os\n"
    + "".join(AGENT.replace("clerk", f"c{at}") + "    os.remove('a')\n" for at in range(5000)),
    "classes": "".join(f"class C{n}(C{n - 1}):\n    def f(self):\n        self.g()\n" for n in range(1000))
    + AGENT
    + "    C999().f()\n",
    "suppressions": AGENT + "    # holdfast: allow HF101 because x\n" * 10000 + "    pass\n",
    "a list": "import os\nx = [" + "os.remove, " * 50000 + "]\n" + AGENT + "    x[0]('a')\n",
    "targets": AGENT + "    " + "x = " * 100_000 + "[" + "y, " * 100_000 + "]\n",
    "a line": AGENT + "    x = '" + "a" * 900_000 + "'\n",
    "values": AGENT + "".join(f"    x = [x, C{at}(x)]\n    y = y.a{at}\n" for at in range(2000)),
}


@pytest.mark.timeout(60)
@pytest.mark.parametrize("what", LONG)
def test_long_files_are_read_in_bounded_time(what: str) -> None:
    assert len(LONG[what]) <= BYTES_MOST
    assert reported(LONG[what]).problems == ()


def test_what_is_too_large_is_named_and_not_read(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_bytes(b"#" * (BYTES_MOST + 1))
    (tmp_path / "b.py").write_bytes(b"#" * BYTES_MOST)
    report = lint.check([tmp_path])
    assert [(problem.path.rpartition("/")[2], problem.code) for problem in report.problems] == [
        ("a.py", "too_large")
    ]


def test_what_is_no_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "gone.py").symlink_to(tmp_path / "nowhere")
    (tmp_path / "loop.py").symlink_to(tmp_path / "loop.py")
    (tmp_path / "folder.py").mkdir()
    report = lint.check([tmp_path, "a\0b.py"])
    assert [problem.code for problem in report.problems] == ["no_such_file", "unreadable", "unreadable"]


def test_what_cannot_be_listed_or_would_be_waited_for_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "closed").mkdir()
    os.mkfifo(tmp_path / "pipe.py")
    listed = os.scandir

    def scandir(path: str) -> object:
        if str(path).endswith("closed"):
            raise PermissionError(13, "Permission denied", str(path))
        return listed(path)

    monkeypatch.setattr(os, "scandir", scandir)
    report = lint.check([tmp_path])
    assert {(problem.path.rpartition("/")[2], problem.message) for problem in report.problems} == {
        ("closed", "Permission denied"),
        ("pipe.py", "it is no file"),
    }


def test_half_characters_in_names_are_reported_like_others(tmp_path: Path) -> None:
    source = "import requests\n" + AGENT + '    ctx.do("\\ud800", requests.post, effect="read")\n'
    path = tmp_path / os.fsdecode(b"\xff.py")
    path.write_text(source)
    report = lint.check([path])
    assert [(found.rule, found.callable) for found in report.findings] == [("HF302", "\ud800")]
    assert json.loads(json.dumps(sarif(report)))["runs"][0]["results"][0]["ruleId"] == "HF302"
    assert json.dumps(report.to_json()).isascii()
