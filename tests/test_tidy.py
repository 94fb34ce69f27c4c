"""Style and layering are tests: the rules of tests/tidy.py hold for every file, and each was seen to fail."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest
from tests import tidy

from holdfast import _core

ROOT = Path(__file__).parent.parent
# What .gitignore names, and what is no text.
SKIPPED = {"target", ".venv", "dist", "site", "__pycache__", ".mypy_cache", ".ruff_cache", ".pytest_cache",
           ".hypothesis", "proptest-regressions", ".git"}  # fmt: skip
BINARY = {".so", ".db", ".bin", ".png", ".whl", ".gz"}
# The planted violations below, and the patterns that find them.
ABOUT_RULES = {"tests/test_tidy.py", "tests/tidy.py"}


def committed() -> list[str]:
    found = []
    for path in sorted(ROOT.rglob("*")):
        parts = path.relative_to(ROOT).parts
        skipped = any(part in SKIPPED or part.startswith("target-") for part in parts)
        if path.is_file() and not skipped and path.suffix not in BINARY:
            found.append("/".join(parts))
    return found


def long_function(opening: str, line: str, closing: str) -> str:
    return opening + line * 75 + closing


PLANTED: list[tuple[str, str, str]] = [
    ("size", "python/holdfast/big.py", "x = 1\n" * 601),
    ("size", "rust/core/src/big.rs", "// a line\n" * 601),
    ("size", "tests/rust/big.rs", "// a line\n" * 801),
    ("python_functions", "python/holdfast/long.py", long_function("def long():\n", "    x = 1\n", "")),
    ("python_functions", "tests/test_long.py", long_function("async def test_long():\n", "    x = 1\n", "")),
    (
        "rust_functions",
        "rust/core/src/a.rs",
        long_function("pub fn a(x: &str) -> u8 {\n", '    b("}");\n', "}\n"),
    ),
    (
        "rust_functions",
        "rust/core/src/a.rs",
        long_function("impl A { fn a()\nwhere T: X {\n", "{ '}'; }\n", "} }\n"),
    ),
    ("forbidden", "rust/core/src/clock.rs", "use std::time::SystemTime;\n"),
    ("forbidden", "rust/core/src/clock.rs", "let t = Instant::now();\n"),
    ("forbidden", "rust/core/src/deep/er.rs", "fn f() { std::fs::read(p); }\n"),
    ("forbidden", "rust/core/src/a.rs", "use std::net::TcpStream;\n"),
    ("forbidden", "rust/core/src/a.rs", "std::thread::spawn(f);\n"),
    ("forbidden", "rust/core/src/a.rs", "use pyo3::prelude::*;\n"),
    ("forbidden", "rust/core/src/a.rs", "let x = rand::random();\n"),
    ("forbidden", "rust/core/src/a.rs", "use holdfast_store::Store;\n"),
    ("forbidden", "rust/core/src/ids.rs", "use crate::records::Record;\n"),
    ("forbidden", "rust/core/src/limits.rs", "use crate::error::Code;\n"),
    ("forbidden", "rust/core/src/canonical/a.rs", "use crate::records::Record;\n"),
    ("forbidden", "rust/core/src/canonical/a.rs", "serde_json::to_vec(&x);\n"),
    ("forbidden", "rust/core/src/records/run.rs", "use crate::gateway::Ask;\n"),
    ("forbidden", "rust/core/src/policy.rs", "use crate::approval::Grant;\n"),
    ("forbidden", "rust/bridge/src/a.rs", "let f = std::fs::File::open(p);\n"),
    ("forbidden", "rust/bridge/src/a.rs", "x.unwrap();\n"),
    ("forbidden", "rust/bridge/src/a.rs", 'x.expect("y");\n'),
    ("forbidden", "rust/store/src/a.rs", "use pyo3::prelude::*;\n"),
    ("forbidden", "rust/store/src/a.rs", "std::thread::sleep(d);\n"),
    ("forbidden", "tests/rust/a.rs", "std::thread::sleep(d);\n"),
    ("forbidden", "python/holdfast/adapters/x.py", "from holdfast import _core\n"),
    ("forbidden", "python/holdfast/exports/x.py", "from holdfast import _core\n"),
    ("forbidden", "python/holdfast/a.py", "import hashlib\n"),
    ("forbidden", "python/holdfast/a.py", "    from hmac import digest\n"),
    ("forbidden", "tests/test_a.py", "time.sleep(1)\n"),
    ("forbidden", "tests/test_a.py", "await asyncio.sleep(0.1)\n"),
    ("forbidden", "Makefile", "# TODO: later\n"),
    ("forbidden", "rust/core/src/a.rs", "// FIXME\n"),
    ("forbidden", "docs/a.md", "see /work/main/x\n"),
    ("forbidden", "rust/core/src/a.rs", 'let p = "/root/.cargo";\n'),
    ("forbidden", "pyproject.toml", "path = '/home/me/x'\n"),
    ("unsafe", "rust/core/src/a.rs", "unsafe { f() }\n"),
    ("unsafe", "rust/bridge/src/a.rs", "unsafe fn f() {}\n"),
    ("unsafe", "rust/bridge/src/walk.rs", "//! Walks.\nunsafe fn f() {}\n"),
    ("dead_matches", "tests/rust/a.rs", "fn t() {\n    matches!(r, Err(X { .. }));\n}\n"),
    (
        "dead_matches",
        "rust/core/src/a.rs",
        "fn t() {\n    f();\n    let _ = matches!(\n r,\n Ok(())\n );\n}\n",
    ),
    ("init_only_exports", "python/holdfast/__init__.py", "def f():\n    pass\n"),
    ("init_only_exports", "python/holdfast/x/__init__.py", "import a\nx = a.b()\n"),
    ("ascii_only", "python/holdfast/a.py", "x = '\u2014'\n"),
    ("ascii_only", "rust/core/src/a.rs", "// \u00e9\n"),
]

ALLOWED: list[tuple[str, str]] = [
    (
        "rust/core/src/a.rs",
        long_function("#[cfg(test)]\nmod tests {\n    fn a() {\n", "        b();\n", "    }\n}\n"),
    ),
    (
        "rust/core/src/a.rs",
        '// std::fs is named\nlet x = "std::thread";\n#[cfg(test)]\nmod tests {\n    use std::fs;\n}\n',
    ),
    ("rust/core/src/policy.rs", "use crate::records::Record;\n"),
    ("rust/core/src/ids.rs", "use crate::error::Code;\n"),
    ("rust/bridge/src/a.rs", "x.unwrap_or(0); x.expect_it();\n"),
    ("rust/bridge/src/walk.rs", "//! Safety argument: the GIL is held.\nunsafe fn f() {}\n"),
    ("rust/bridge/src/a.rs", "#![deny(unsafe_code)] // not unsafe\n"),
    ("rust/core/src/a.rs", "fn a(b: u8) -> bool {\n    matches!(b, b'a' | b'\"')\n}\n"),
    ("tests/rust/a.rs", "assert!(matches!(r, Ok(_)));\n"),
    ("tests/rust/stories.rs", "// a line\n" * 800),
    ("python/holdfast/__init__.py", '"""Doc."""\n\nfrom holdfast.a import b\n\n__all__ = ["b"]\n'),
    ("docs/a.md", "https://example.org/home/ caf\u00e9 .github/workflows\n"),
    ("tests/test_a.py", "await asyncio.sleep(0)\n"),
]


@pytest.mark.parametrize("path", [path for path in committed() if path not in ABOUT_RULES])
def test_every_file_keeps_the_rules(path: str) -> None:
    assert tidy.problems(path, (ROOT / path).read_text(encoding="utf-8")) == []


def test_the_rules_themselves_are_small_too() -> None:
    for path in ABOUT_RULES:
        text = (ROOT / path).read_text(encoding="utf-8")
        assert [
            *tidy.size(path, text),
            *tidy.python_functions(path, text),
            *tidy.ascii_only(path, text),
        ] == []


@pytest.mark.parametrize(("rule", "path", "text"), PLANTED)
def test_a_planted_violation_is_found(rule: str, path: str, text: str) -> None:
    assert list(tidy.RULES[rule](path, text)), f"{rule} did not see it"


@pytest.mark.parametrize(("path", "text"), ALLOWED)
def test_what_is_allowed_is_left_alone(path: str, text: str) -> None:
    assert tidy.problems(path, text) == []


def test_every_rule_and_every_forbidden_thing_was_seen_to_fail() -> None:
    assert {rule for rule, _, _ in PLANTED} == tidy.RULES.keys()
    seen = [
        problem
        for rule, path, text in PLANTED
        if rule == "forbidden"
        for problem in tidy.forbidden(path, text)
    ]
    unseen = {why for _, _, why in tidy.FORBIDDEN if not any(problem.endswith(why) for problem in seen)}
    assert unseen == set()


def test_every_error_code_has_its_page() -> None:
    pages = {path.stem: path.read_text(encoding="utf-8") for path in (ROOT / "docs" / "errors").glob("*.md")}
    assert tidy.error_pages({code for code, _ in _core.error_codes()}, pages) == []


def test_missing_stale_and_untitled_error_pages_are_found() -> None:
    assert tidy.error_pages({"a", "b"}, {"b": "# b\n\n## How to fix it\n", "c": "# x\n"}) == [
        "write docs/errors/a.md: the code has no page",
        "remove docs/errors/c.md: there is no such code",
        "docs/errors/c.md: begin with '# c' and have '## How to fix it'",
    ]


def test_no_fixture_was_edited_and_none_is_unlisted() -> None:
    made = runpy.run_path(str(ROOT / "fixtures" / "manifest.py"))["manifest"]()
    kept = (ROOT / "fixtures" / "MANIFEST.sha256").read_text(encoding="ascii")
    difference = sorted(set(made.splitlines()) ^ set(kept.splitlines()))
    assert difference == [], "fixtures are added, never edited; after adding one: python fixtures/manifest.py"


def test_a_changed_or_added_fixture_is_seen(tmp_path: Path) -> None:
    manifest = runpy.run_path(str(ROOT / "fixtures" / "manifest.py"))["manifest"]
    (tmp_path / "records").mkdir()
    (tmp_path / "records" / "a.json").write_text("{}", encoding="ascii")
    (tmp_path / "make.py").write_text("", encoding="ascii")
    before = manifest(tmp_path)
    (tmp_path / "records" / "a.json").write_text("[]", encoding="ascii")
    changed = manifest(tmp_path)
    (tmp_path / "b.json").write_text("[]", encoding="ascii")
    assert [line.split("  ")[1] for line in before.splitlines()] == ["records/a.json"]
    assert len({before, changed, manifest(tmp_path)}) == 3


def test_every_fixture_is_named_by_a_test() -> None:
    tests = [path for path in (ROOT / "tests").rglob("*") if path.suffix in (".py", ".rs")]
    text = "".join(
        path.read_text(encoding="utf-8") for path in tests if path.name not in ("test_tidy.py", "tidy.py")
    )
    lines = (ROOT / "fixtures" / "MANIFEST.sha256").read_text(encoding="ascii").splitlines()
    assert tidy.unused_fixtures([line.split("  ")[1] for line in lines], text) == []


def test_a_fixture_that_no_test_names_is_found() -> None:
    tests = 'fixture("numbers.json") and FIXTURES / "records" and fixtures/journal'
    names = ["canonical/numbers.json", "records/run.created.json", "journal/v1/a.jsonl", "spare/left.json"]
    assert tidy.unused_fixtures(names, tests) == ["fixtures/spare/left.json: no test names it"]
