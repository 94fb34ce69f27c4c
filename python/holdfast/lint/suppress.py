"""Suppressions: ``# holdfast: allow HF101 because REASON``, on a line of the statement or the line before it.

A comment of its own is about the statement that follows; comments may stand above each other. One without a
reason, or with a rule that does not exist, suppresses nothing and is a finding; so is one that nothing needs.
"""

from __future__ import annotations

import io
import re
import tokenize
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from holdfast.lint.rules import BY_ID
from holdfast.lint.values import Span

if TYPE_CHECKING:
    from collections.abc import Iterator

COMMENT = re.compile(r"#+\s*holdfast\s*:(.*)", re.I | re.S)
ALLOW = re.compile(r"\s*allow\s+((?:HF\d+[\s,]+)+)because\s+(\S.*)", re.S)
NEVER = frozenset(("HF901", "HF902"))  # suppressions are not suppressed


@dataclass
class Comment:
    """One suppression."""

    rules: tuple[str, ...]
    reason: str
    alone: bool
    at: Span
    used: set[str] = field(default_factory=set)


class Suppressions:
    """The suppressions of one file."""

    def __init__(self, text: str) -> None:
        self.comments: dict[int, Comment] = {}
        self.bad: list[tuple[Span, str]] = []
        self.alone: set[int] = set()
        for line, column, comment, alone in _comments(text):
            if alone:
                self.alone.add(line)
            found = COMMENT.match(comment)
            if found:
                end = column + len(comment)
                self._read(found[1], Span(line, column + 1, line, end + 1, line, line), alone)

    def _read(self, text: str, at: Span, alone: bool) -> None:
        found = ALLOW.fullmatch(text)
        if not found:
            self.bad.append((at, "it does not read: allow RULES because REASON"))
            return
        rules = tuple(dict.fromkeys(re.findall(r"HF\d+", found[1])))
        unknown = [rule for rule in rules if rule not in BY_ID or rule in NEVER]
        if unknown:
            self.bad.append((at, f"there is no {unknown[0]} to allow"))
            return
        self.comments[at.line] = Comment(rules, found[2].strip(), alone, at)

    def names(self, rule: str) -> bool:
        """Whether any suppression is about a rule."""
        return any(rule in comment.rules for comment in self.comments.values())

    def _at(self, rule: str, at: Span) -> Iterator[Comment]:
        lines = list(range(at.first, at.last + 1)) if at.last - at.first < 1000 else [at.line]
        above = at.first - 1
        while above in self.alone:
            lines.append(above)
            above -= 1
        for line in lines:
            comment = self.comments.get(line)
            if comment is not None and rule in comment.rules:
                yield comment

    def reason(self, rule: str, at: Span) -> str | None:
        """Why a rule is allowed here, if it is."""
        return next((comment.reason for comment in self._at(rule, at)), None)

    def take(self, rule: str, at: Span) -> str | None:
        """The same, and the suppression was needed."""
        for comment in self._at(rule, at):
            comment.used.add(rule)
            return comment.reason
        return None

    def idle(self) -> Iterator[tuple[Span, str]]:
        """Rules that were allowed where nothing needed it."""
        for comment in self.comments.values():
            for rule in comment.rules:
                if rule not in comment.used:
                    yield comment.at, rule


def _comments(text: str) -> Iterator[tuple[int, int, str, bool]]:
    try:
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.COMMENT:
                line, column = token.start
                yield line, column, token.string, not token.line[:column].strip()
    except (tokenize.TokenError, SyntaxError, RecursionError):
        # The file was parsed, so this is a place that the tokenizer sees differently; what was read counts.
        return
