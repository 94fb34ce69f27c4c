"""The house rules as functions over (path, text): each returns what is wrong, line by line.

tests/test_tidy.py runs them over the tree and over planted violations. A rule that needs more than one
file (error pages, fixtures) is there.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from fnmatch import fnmatch

LINES_MAX = 600
STORY_LINES_MAX = 800  # of tests/rust, where a file is a book of stories
FUNCTION_LINES_MAX = 70
Rule = Callable[[str, str], Iterator[str]]

ROOMS = ("hooks", "capability", "policy", "approval", "budget", "ledger")
MEETING = ("gateway", "run", "call", "matching", "fence", "evidence")

# Where, what may not stand there, and why. Rust is looked at without comments, strings and test modules.
FORBIDDEN: list[tuple[str, str, str]] = [
    ("rust/core/src/*", r"\bstd::(fs|net|thread)\b", "the core does no I/O and has no threads"),
    ("rust/core/src/*", r"\b(SystemTime|Instant)\b", "time is an argument"),
    ("rust/core/src/*", r"\b(pyo3|holdfast_store|rusqlite|tokio\w*)\b", "the core knows nobody above it"),
    ("rust/core/src/*", r"\brand(_\w+)?::|\bgetrandom\b", "randomness is an argument"),
    ("rust/core/src/ids.rs", r"\bcrate::(?!error\b|limits\b)", "ids stand on nothing of ours"),
    ("rust/core/src/limits.rs", r"\bcrate::", "limits stand on nothing of ours"),
    (
        "rust/core/src/canonical/*",
        r"\bcrate::(?!error\b|limits\b|ids\b|canonical\b)",
        "canonical stands below all",
    ),
    ("rust/core/src/canonical/*", r"\bserde_json::(to_\w+|ser\b)", "only our writer makes bytes"),
    ("rust/core/src/records/*", rf"\bcrate::({'|'.join(ROOMS + MEETING)})\b", "records know no room"),
    *(
        (
            f"rust/core/src/{room}.rs",
            rf"\bcrate::(?!{room}\b)({'|'.join(ROOMS)})\b",
            "rooms do not know each other",
        )
        for room in ROOMS
    ),
    ("rust/bridge/src/*", r"\bstd::(fs|net)\b", "the bridge touches no files and no sockets"),
    (
        "rust/bridge/src/*",
        r"\.(unwrap|expect)\(|\bpanic!|\bunreachable!",
        "a panic must not cross into Python",
    ),
    ("rust/store/src/*", r"\bpyo3\b", "the store does not know Python"),
    ("rust/*", r"\bthread::sleep\b", "wait on an event instead"),
    ("python/holdfast/adapters/*", r"\b_core\b", "adapters use the public API"),
    ("python/holdfast/exports/*", r"\b_core\b", "exports read through the public API"),
    ("python/holdfast/*", r"(?m)^\s*(import|from) (hashlib|hmac)\b", "Python does not hash, the core does"),
    ("*.py", r"\btime\.sleep\b", "wait on an event instead"),
    ("tests/*", r"\basyncio\.sleep\((?!0\))", "wait on an event, or drive a fake clock"),
    ("tests/rust/*", r"\bthread::sleep\b", "wait on an event instead"),
    ("*", r"\b(TODO|FIXME|XXX)\b", "do it, or write it down where plans are kept"),
    ("*", r"(?<![\w.])/(work|root|home)/", "a path of one machine"),
]

ALONE = (
    "python/holdfast/evidence/standalone.py",
    "python/holdfast/evidence/standalone_files.py",
    "python/holdfast/evidence/standalone_fold.py",
    "python/holdfast/evidence/standalone_streams.py",
)
"""The verifier in a bundle: it shares no code with the core, so it hashes by itself."""


def numbered(text: str, found: re.Match[str]) -> int:
    """The line that a match stands on."""
    return text.count("\n", 0, found.start()) + 1


def bare_rust(text: str) -> str:
    """Rust without comments and the insides of strings, every newline kept."""
    token = re.compile(
        r'//[^\n]*|/\*.*?\*/|\bb?r(#*)".*?"\1|b?"(?:\\.|[^"\\])*"|' + r"b?'(?:\\.[^']*|[^'\\])'", re.DOTALL
    )

    def blank(found: re.Match[str]) -> str:
        lines = "\n" * found[0].count("\n")
        return lines if found[0].startswith(("//", "/*")) else f'"{lines}"'

    return token.sub(blank, text)


def closing(text: str, at: int) -> int:
    """Where the bracket that opens at ``at`` is closed."""
    pairs = {"{": "}", "(": ")"}
    opening, depth = text[at], 0
    for end in range(at, len(text)):
        depth += (text[end] == opening) - (text[end] == pairs[opening])
        if depth == 0:
            return end
    return len(text) - 1


def without_tests(text: str) -> str:
    """Bare Rust without its test modules, every newline kept."""
    while found := re.search(r"#\[cfg\(test\)\]\s*mod \w+ \{", text):
        end = closing(text, found.end() - 1) + 1
        text = text[: found.start()] + "\n" * text.count("\n", found.start(), end) + text[end:]
    return text


def size(path: str, text: str) -> Iterator[str]:
    """Files are small."""
    lines = text.count("\n")
    ceiling = STORY_LINES_MAX if path.startswith("tests/rust/") else LINES_MAX
    if path.endswith((".py", ".pyi", ".rs")) and lines > ceiling:
        yield f"{lines} lines, the ceiling is {ceiling}: cut it"


def python_functions(path: str, text: str) -> Iterator[str]:
    """A function fits on a screen."""
    if not path.endswith(".py"):
        return
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if lines > FUNCTION_LINES_MAX:
                yield f"line {node.lineno}: {node.name} has {lines} lines, the most is {FUNCTION_LINES_MAX}"


def rust_functions(path: str, text: str) -> Iterator[str]:
    """A function fits on a screen, test modules aside."""
    if not path.endswith(".rs"):
        return
    code = without_tests(bare_rust(text))
    for found in re.finditer(r"\bfn (\w+)[^;{]*\{", code):
        lines = code.count("\n", found.start(), closing(code, found.end() - 1)) + 1
        if lines > FUNCTION_LINES_MAX:
            line = numbered(code, found)
            yield f"line {line}: {found[1]} has {lines} lines, the most is {FUNCTION_LINES_MAX}"


def forbidden(path: str, text: str) -> Iterator[str]:
    """What only some rooms may touch."""
    code = without_tests(bare_rust(text)) if path.endswith(".rs") else text
    for where, pattern, why in FORBIDDEN:
        if fnmatch(path, where) and not (path in ALONE and "hash" in why):
            looked_at = text if where == "*" else code
            for found in re.finditer(pattern, looked_at):
                yield f"line {numbered(looked_at, found)}: {found[0].strip()!r} may not stand here: {why}"


UNSAFE = ("rust/bridge/src/walk.rs", "rust/store/src/sqlite/locks.rs")


def unsafe(path: str, text: str) -> Iterator[str]:
    """Two files may be unsafe, and say why they are sound."""
    if not path.endswith(".rs"):
        return
    found = re.search(r"\bunsafe\b", bare_rust(text))
    if found and path not in UNSAFE:
        yield f"line {numbered(bare_rust(text), found)}: only {' and '.join(UNSAFE)} may be unsafe"
    if found and path in UNSAFE and not re.search(r"(?m)^//! Safety argument", text):
        yield "unsafe without a safety argument in the module's documentation"


def dead_matches(path: str, text: str) -> Iterator[str]:
    """``matches!`` as a statement asserts nothing."""
    code = bare_rust(text) if path.endswith(".rs") else ""
    for found in re.finditer(r"[{};]\s*(?:let _ = )?matches!\(", code):
        if code[closing(code, found.end() - 1) + 1 :].lstrip().startswith(";"):
            line = code.count("\n", 0, found.end()) + 1
            yield f"line {line}: a bare matches! asserts nothing: put it into assert!"


def init_only_exports(path: str, text: str) -> Iterator[str]:
    """``__init__.py`` re-exports and does nothing else."""
    if not path.endswith("/__init__.py"):
        return
    for node in ast.parse(text).body:
        names = [ast.unparse(target) for target in node.targets] if isinstance(node, ast.Assign) else []
        docstring = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        imports = isinstance(node, ast.Import | ast.ImportFrom)
        if not (docstring or imports or names in (["__all__"], ["__version__"])):
            yield f"line {node.lineno}: __init__.py only re-exports"


def ascii_only(path: str, text: str) -> Iterator[str]:
    """Other characters stand in documents and fixtures, where they are meant; in code they hide."""
    if path.endswith(".md") or path.startswith(("docs/", "fixtures/")):
        return
    for found in re.finditer(r"[^\x00-\x7f]", text):
        yield f"line {numbered(text, found)}: {found[0]!a} is not ASCII: use an escape"


RULES: dict[str, Rule] = {
    rule.__name__: rule
    for rule in (
        size,
        python_functions,
        rust_functions,
        forbidden,
        unsafe,
        dead_matches,
        init_only_exports,
        ascii_only,
    )
}


def problems(path: str, text: str) -> list[str]:
    """Everything that is wrong with one file."""
    return [f"{path}: {name}: {problem}" for name, rule in RULES.items() for problem in rule(path, text)]


def error_pages(codes: set[str], pages: dict[str, str]) -> list[str]:
    """One page per error code, with the code as its title, and no page without a code."""
    missing = [f"write docs/errors/{code}.md: the code has no page" for code in sorted(codes - pages.keys())]
    stale = [f"remove docs/errors/{page}.md: there is no such code" for page in sorted(pages.keys() - codes)]
    untitled = [
        f"docs/errors/{page}.md: begin with '# {page}' and have '## How to fix it'"
        for page, text in sorted(pages.items())
        if not text.startswith(f"# {page}\n") or "\n## How to fix it\n" not in text
    ]
    return missing + stale + untitled


def unused_fixtures(fixtures: list[str], tests: str) -> list[str]:
    """Fixtures that no test names, neither the file nor its folder."""
    return [
        f"fixtures/{name}: no test names it"
        for name in fixtures
        if not any(f'"{part}"' in tests or f"fixtures/{part}" in tests for part in (*name.split("/"), name))
    ]
