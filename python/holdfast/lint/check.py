"""The check: files in, a report out. No file can make it fail: what cannot be read is a problem, and named.

Each file is read for itself. Nothing of it is imported or run.
"""

from __future__ import annotations

import ast
import io
import os
import tokenize
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.lint.known import Known
from holdfast.lint.packs import Pack, enabled
from holdfast.lint.reach import Seen, of_agents, of_tools
from holdfast.lint.report import Finding, Problem, Report, fingerprint
from holdfast.lint.rules import BY_ID
from holdfast.lint.statements import Statements
from holdfast.lint.suppress import Suppressions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from holdfast.lint.report import Trouble
    from holdfast.lint.rules import Severity

BYTES_MOST = 1 << 20
SKIPPED = frozenset(("__pycache__", "node_modules", "site-packages"))


class _TroubleError(Exception):
    def __init__(self, code: Trouble, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True)
class Settings:
    """Which rules are looked for, how severe they are, and what they are about."""

    known: Known
    enabled: frozenset[str]
    severities: dict[str, Severity]

    @classmethod
    def of(cls, packs: Iterable[Pack | str | Path], select: Iterable[str], ignore: Iterable[str]) -> Settings:
        """Settings from packs and choices; a later pack wins over an earlier one."""
        read = [pack if isinstance(pack, Pack) else Pack.load(pack) for pack in packs]
        calls: dict[str, str] = {}
        severities: dict[str, Severity] = {rule.id: rule.severity for rule in BY_ID.values()}
        for pack in read:
            calls.update(pack.calls)
            severities.update(pack.severities)
        return cls(Known(calls), enabled(read, select, ignore), severities)


def check(
    paths: Iterable[str | Path],
    *,
    packs: Iterable[Pack | str | Path] = (),
    select: Iterable[str] = (),
    ignore: Iterable[str] = (),
) -> Report:
    """Checks files, and all Python files in folders, for acting behind the runtime's back.

    Args:
        paths: files and folders. Folders that begin with a dot, environments and caches are left out.
        packs: what a project adds to the rules.
        select: only these rules: ids, beginnings of ids (``HF1``) or names.
        ignore: but not these.

    Raises:
        PackError: a pack or a choice cannot be read. Nothing was checked.
    """
    settings = Settings.of(packs, select, ignore)
    files = 0
    findings: list[Finding] = []
    suppressed: list[Finding] = []
    problems: list[Problem] = []
    for path in _files(paths, problems):
        files += 1
        try:
            for found in _file(path, settings):
                (findings if found.reason is None else suppressed).append(found)
        except _TroubleError as error:
            problems.append(Problem(_shown(path), error.code, str(error)))
    return Report(
        files,
        tuple(sorted(findings, key=_place)),
        tuple(sorted(suppressed, key=_place)),
        tuple(problems),
        tuple(rule for rule in BY_ID if rule in settings.enabled),
    )


def check_source(
    source: str | bytes,
    path: str = "<source>",
    *,
    packs: Iterable[Pack | str | Path] = (),
    select: Iterable[str] = (),
    ignore: Iterable[str] = (),
) -> Report:
    """Checks one source text, as :func:`check` does files."""
    settings = Settings.of(packs, select, ignore)
    rules = tuple(rule for rule in BY_ID if rule in settings.enabled)
    data = source.encode("utf-8", "surrogatepass") if isinstance(source, str) else source
    try:
        found = _source(data, path, settings)
    except _TroubleError as error:
        return Report(1, problems=(Problem(path, error.code, str(error)),), enabled=rules)
    open_ones = tuple(one for one in found if one.reason is None)
    return Report(1, open_ones, tuple(one for one in found if one.reason is not None), enabled=rules)


def _place(found: Finding) -> tuple[str, int, int, str]:
    return found.path, found.line, found.column, found.rule


def _files(paths: Iterable[str | Path], problems: list[Problem]) -> Iterator[Path]:
    """Files, and those in folders; a folder that cannot be listed is a problem."""

    def unlisted(error: OSError) -> None:
        problems.append(Problem(_shown(Path(error.filename)), "unreadable", error.strerror or str(error)))

    seen: set[Path] = set()
    for given in paths:
        path = Path(given)
        for found in _inside(path, unlisted) if path.is_dir() else [path]:
            if found not in seen:
                seen.add(found)
                yield found


def _inside(folder: Path, unlisted: Callable[[OSError], None]) -> Iterator[Path]:
    for at, folders, files in os.walk(folder, onerror=unlisted):
        here = Path(at)
        folders[:] = sorted(
            name
            for name in folders
            if not name.startswith(".") and name not in SKIPPED and not (here / name / "pyvenv.cfg").exists()
        )
        for name in sorted(files):
            if name.endswith((".py", ".pyw")):
                yield here / name


def _file(path: Path, settings: Settings) -> list[Finding]:
    try:
        if path.exists() and not path.is_file():  # a pipe would be waited for
            raise _TroubleError("unreadable", "it is no file")
        with path.open("rb") as file:
            data = file.read(BYTES_MOST + 1)
    except FileNotFoundError:
        raise _TroubleError("no_such_file", "there is no such file") from None
    except (OSError, ValueError) as error:
        raise _TroubleError("unreadable", getattr(error, "strerror", None) or str(error)) from None
    return _source(data, _shown(path), settings)


def _shown(path: Path) -> str:
    """A path as it is reported: from here, if it is below; so it is the same in every checkout."""
    full = Path(os.path.normpath(Path.cwd() / path))
    return full.relative_to(Path.cwd()).as_posix() if full.is_relative_to(Path.cwd()) else path.as_posix()


def _source(data: bytes, path: str, settings: Settings) -> list[Finding]:
    try:
        text, tree = _parsed(data)
        reader = Statements(tree, settings.known)
        reader.read()
        cut = Suppressions(text)
        seen = [*of_agents(reader.units.values(), cut), *of_tools(reader.declared, cut, reader.outward)]
        seen = [one for one in seen if one.rule in settings.enabled]
        seen += [one for one in _about_suppressions(cut, settings) if one.rule in settings.enabled]
    except (RecursionError, MemoryError):
        raise _TroubleError("too_deep", "it is nested too deeply to be read") from None
    return _findings(seen, path, text.split("\n"), settings)


def _parsed(data: bytes) -> tuple[str, ast.Module]:
    if len(data) > BYTES_MOST:
        raise _TroubleError("too_large", f"it has more than {BYTES_MOST} bytes")
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
        text = data.decode(encoding).removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about the code that is checked
            return text, ast.parse(text)
    except SyntaxError as error:
        where = f" (line {error.lineno})" if error.lineno else ""
        raise _TroubleError("not_python", f"{error.msg}{where}") from None
    except (ValueError, LookupError) as error:
        raise _TroubleError("not_python", str(error)) from None


def _about_suppressions(cut: Suppressions, settings: Settings) -> Iterator[Seen]:
    for at, told in cut.bad:
        yield Seen("HF901", at, f"This {BY_ID['HF901'].what}: {told}. {BY_ID['HF901'].fix}", "comment", "")
    for at, rule in cut.idle():
        if rule in settings.enabled:
            told = f"Allowing {rule} {BY_ID['HF902'].what} here. {BY_ID['HF902'].fix}"
            yield Seen("HF902", at, told, rule, "")


def _column(lines: list[str], line: int, column: int) -> int:
    """A column in characters; Python's own count bytes."""
    text = lines[line - 1] if line <= len(lines) else ""
    return column if text.isascii() else len(text.encode()[: column - 1].decode(errors="ignore")) + 1


def _findings(seen: list[Seen], path: str, lines: list[str], settings: Settings) -> list[Finding]:
    counted: dict[tuple[str, str, str], int] = {}
    found = []
    for one in sorted(seen, key=lambda one: (one.at.line, one.at.column, one.rule, one.callable)):
        key = (one.rule, one.function, one.callable)
        counted[key] = counted.get(key, 0) + 1
        found.append(
            Finding(
                one.rule,
                settings.severities[one.rule],
                path,
                one.at.line,
                _column(lines, one.at.line, one.at.column),
                one.at.end_line,
                _column(lines, one.at.end_line, one.at.end_column),
                one.message,
                one.callable,
                one.function,
                one.agent,
                one.via,
                one.reason,
                fingerprint(one.rule, path, one.function, one.callable, counted[key]),
            )
        )
    return found
