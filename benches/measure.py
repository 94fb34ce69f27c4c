"""How a figure is taken: every contestant once per round, the order rotated, medians with quartiles.

Rounds are interleaved so that a machine that slows down slows everybody down; ratios are taken within a
round for the same reason.
"""

from __future__ import annotations

import gc
import statistics
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

ROUNDS = 101
SECONDS_PER_TIMING = 0.005


@dataclass(frozen=True)
class Spread:
    """A median and the quartiles around it."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, samples: list[float]) -> Spread:
        """The spread of some samples."""
        low, median, high = statistics.quantiles(samples, n=4, method="inclusive")
        return cls(median, low, high)

    def __str__(self) -> str:
        return f"{self.median:.2f} ({self.low:.2f} to {self.high:.2f})"


@dataclass(frozen=True)
class Figure:
    """One contestant: microseconds per call, and how many times the first contestant's time that is."""

    name: str
    microseconds: Spread
    ratio: Spread


def seconds(call: Callable[[], object], repeats: int) -> float:
    """The time of ``repeats`` calls."""
    begun = time.perf_counter()
    for _ in range(repeats):
        call()
    return time.perf_counter() - begun


def repeats_for(call: Callable[[], object]) -> int:
    """So many calls that one timing is long enough to be told from noise."""
    repeats = 1
    while (took := seconds(call, repeats)) < SECONDS_PER_TIMING / 4:
        repeats *= 2
    return max(1, round(repeats * SECONDS_PER_TIMING / took))


def compare(contestants: Mapping[str, Callable[[], object]]) -> list[Figure]:
    """Times the contestants against each other; the first one is the measure of the ratios."""
    names = list(contestants)
    repeats = {name: repeats_for(call) for name, call in contestants.items()}
    samples: dict[str, list[float]] = {name: [] for name in names}
    gc.collect()
    gc.disable()
    try:
        for turn in range(ROUNDS):
            first = turn % len(names)
            for name in names[first:] + names[:first]:
                samples[name].append(seconds(contestants[name], repeats[name]) / repeats[name] * 1e6)
    finally:
        gc.enable()
    ours = samples[names[0]]
    return [
        Figure(name, Spread.of(found), Spread.of([a / b for a, b in zip(found, ours, strict=True)]))
        for name, found in samples.items()
    ]


def table(figures: list[Figure], notes: Mapping[str, str]) -> str:
    """The figures as a Markdown table."""
    lines = ["| contestant | microseconds | times ours | what it does |", "| --- | --- | --- | --- |"]
    lines += [f"| {f.name} | {f.microseconds} | {f.ratio} | {notes[f.name]} |" for f in figures]
    return "\n".join(lines)
