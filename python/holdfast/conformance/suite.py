"""What every conformance suite is made of: clauses in chapters, their results, and the words that they use.

A clause is a function of a place, which a harness of the part's author makes; its docstring is its text. It
raises :class:`Broken` where the part does not keep it and :class:`NotApplicable` where the harness cannot do
what it needs. Ids of clauses are stable. Nothing here knows what is tried.
"""

from __future__ import annotations

import threading
import unittest
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, Literal, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from rich.table import Table

T = TypeVar("T")
PATIENCE_SECONDS = 60.0
"""After this long, work that has not come to an end never will."""

Verdict = Literal["passed", "failed", "not_applicable"]
VERDICTS: tuple[Verdict, ...] = ("passed", "failed", "not_applicable")


class Broken(AssertionError):  # noqa: N818 (it says what the part is)
    """The part does not keep a clause."""


class NotApplicable(unittest.SkipTest):
    """The clause cannot be tried on this part, and why; test runners take it for a skip."""


class AnyPlace(Protocol):
    """Where one clause is tried."""

    def leave(self) -> None:
        """Closes and removes everything."""


H = TypeVar("H", contravariant=True)
P = TypeVar("P", bound=AnyPlace)


@dataclass(frozen=True)
class Clause(Generic[H]):
    """One sentence of the contract, and how to try it."""

    id: str
    text: str
    trial: Callable[[H], None] = field(repr=False, compare=False)

    def check(self, harness: H) -> None:
        """Tries it at a new place.

        Raises:
            Broken: the part does not keep it.
            NotApplicable: it cannot be tried on this part.
        """
        try:
            self.trial(harness)
        except (Broken, NotApplicable):
            raise
        except Exception as error:
            raise Broken(f"{type(error).__name__}: {error}") from error

    def __str__(self) -> str:
        return self.id


class Chapter(Generic[H, P]):
    """Collects the clauses of one module, in order.

    Args:
        place: makes the place where one clause is tried.
    """

    def __init__(self, place: Callable[[H], P]) -> None:
        self._place = place
        self.clauses: list[Clause[H]] = []

    def clause(self, name: str) -> Callable[[Callable[[P], None]], Callable[[P], None]]:
        """Makes a clause of a function."""

        def made(work: Callable[[P], None]) -> Callable[[P], None]:
            def trial(harness: H) -> None:
                place = self._place(harness)
                try:
                    work(place)
                finally:
                    place.leave()

            self.clauses.append(Clause(name, " ".join((work.__doc__ or "").split()), trial))
            return work

        return made


# What comes of it.


@dataclass(frozen=True)
class Result:
    """How a part did on one clause."""

    clause: Clause[Any]
    verdict: Verdict
    reason: str = ""
    """What is wrong, or why the clause could not be tried."""

    def __str__(self) -> str:
        told = f"{self.verdict.replace('_', ' ')}: {self.clause.id}: {self.clause.text}"
        return f"{told}\n    {self.reason}" if self.reason else told


@dataclass(frozen=True)
class Results:
    """How a part did on all of them."""

    results: tuple[Result, ...]

    def __iter__(self) -> Iterator[Result]:
        return iter(self.results)

    def __len__(self) -> int:
        return len(self.results)

    def __getitem__(self, clause: str) -> Result:
        return next(result for result in self if result.clause.id == clause)

    def ids(self, verdict: Verdict) -> list[str]:
        """The ids of the clauses with that verdict, in order."""
        return [result.clause.id for result in self if result.verdict == verdict]

    @property
    def ok(self) -> bool:
        """No clause failed, and at least one was kept."""
        return not self.ids("failed") and bool(self.ids("passed"))

    def __str__(self) -> str:
        counts = ", ".join(f"{len(self.ids(verdict))} {verdict.replace('_', ' ')}" for verdict in VERDICTS)
        return "\n".join([counts, *(str(result) for result in self if result.verdict != "passed")])

    def __rich__(self) -> Table:
        from rich.table import Table

        table = Table("clause", "verdict", "what it says, or what is wrong")
        styles = {"passed": "green", "failed": "bold red", "not_applicable": "dim"}
        for result in self:
            told = result.reason or result.clause.text
            table.add_row(
                result.clause.id, result.verdict.replace("_", " "), told, style=styles[result.verdict]
            )
        return table


def tried(clauses: Iterable[Clause[H]], harness: H, watch: Callable[[Result], None] | None) -> Results:
    """Tries clauses, each at a new place, and goes on after one that fails.

    Args:
        clauses: which ones, in this order.
        harness: how to get at the part.
        watch: hears each result as it comes.
    """
    results = []
    for clause in clauses:
        result = _tried(clause, harness)
        results.append(result)
        if watch is not None:
            watch(result)
    return Results(tuple(results))


def _tried(clause: Clause[H], harness: H) -> Result:
    try:
        clause.check(harness)
    except NotApplicable as reason:
        return Result(clause, "not_applicable", str(reason))
    except Broken as broken:
        return Result(clause, "failed", str(broken))
    return Result(clause, "passed")


# What clauses say.


def expect(holds: bool, otherwise: str) -> None:
    """What has to hold, and what is wrong if it does not."""
    if not holds:
        raise Broken(otherwise)


def same(found: object, expected: object, what: str) -> None:
    """Two values have to be equal."""
    if found != expected:
        raise Broken(f"{what}: expected {short(expected)}, found {short(found)}")


def short(value: object) -> str:
    """A value in a sentence."""
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]}..."


# What clauses do.


def within(work: Callable[[], T], what: str) -> T:
    """The result of work that has to come to an end; a part that hangs is broken, not the suite."""
    return together([work], what)[0]


def together(works: Sequence[Callable[[], T]], what: str) -> list[T]:
    """The results of works that begin at the same time, each in its own thread."""
    results: dict[int, T] = {}
    errors: list[BaseException] = []
    start = threading.Barrier(len(works))

    def one(number: int, work: Callable[[], T]) -> None:
        try:
            start.wait(PATIENCE_SECONDS)
            results[number] = work()
        except BaseException as error:  # handed to the caller below
            errors.append(error)

    threads = [threading.Thread(target=one, args=each, daemon=True) for each in enumerate(works)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_SECONDS)
        expect(not thread.is_alive(), f"{what} did not come to an end")
    if errors:
        raise errors[0]
    return [results[number] for number in range(len(works))]
