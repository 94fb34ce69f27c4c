"""Audits and repairs: what they found, for programs and for people."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from holdfast import _core
from holdfast.visible import Shown

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Watch = Callable[[int, int], None]


@dataclass(frozen=True)
class Problem(Shown):
    """One thing that is wrong."""

    code: str
    what: str
    stream: str | None = None
    seq: int | None = None
    pos: int | None = None

    def __str__(self) -> str:
        place = "" if self.stream is None else f" in {self.stream}"
        place += "" if self.seq is None else f" at record {self.seq}"
        return f"{self.code}{place}: {self.what}"


@dataclass(frozen=True)
class Report(Shown):
    """What an audit found."""

    ok: bool
    records: int
    frames: int
    streams: int
    contents: int
    """Values that were opened and compared with what was committed to."""
    blobs: int
    erased: int
    problems: list[Problem]
    problem_count: int
    guarantee: str
    """What the audit shows, and what it cannot."""
    head: str | None = None
    """Where the audited stream ends, if it was one: keep it elsewhere."""
    sealed: int = 0
    """How many commits are under the newest seal."""

    @property
    def first_bad(self) -> Problem | None:
        """The first thing that is wrong."""
        return self.problems[0] if self.problems else None


@dataclass(frozen=True)
class Seal(Shown):
    """A signed head of the whole journal."""

    size: int
    """How many commits it covers."""
    root: str
    """Of the tree over them, in hex."""
    checkpoint: str
    """The signed note: keep it where whoever keeps the store cannot change it."""
    pos: int
    """The frame that records it."""


@dataclass(frozen=True)
class Findings(Shown):
    """What a doctor found and did."""

    healthy: bool
    report: Report
    poisoned: str | None
    """Why the store was poisoned, if it was."""
    truncated: tuple[int, int] | None
    """Where the journal ends and where it was once durable, if that is further."""
    rebuilt: int
    advice: list[str] = field(default_factory=list)
    stats: dict[str, Any] = field(default_factory=dict)


def report_of(told: dict[str, Any]) -> Report:
    """The core's report."""
    problems = [Problem(**problem) for problem in told["listed"]]
    same = ("records", "frames", "streams", "contents", "blobs", "erased", "guarantee", "head", "sealed")
    fields: dict[str, Any] = {name: told.get(name) for name in same}
    return Report(ok=told["problems"] == 0, problems=problems, problem_count=told["problems"], **fields)


def watched(work: Callable[[_core.Progress], Any], watch: Watch | None, every: float = 0.1) -> Any:  # noqa: ANN401
    """Runs long work; ``watch`` hears how far it has come, and Ctrl-C stops it."""
    progress = _core.Progress()
    if watch is None:
        return work(progress)
    done: list[Any] = []
    failed: list[BaseException] = []
    over = threading.Event()

    def run() -> None:
        try:
            done.append(work(progress))
        except BaseException as error:  # handed to the caller below
            failed.append(error)
        finally:
            over.set()

    threading.Thread(target=run, name="holdfast-audit", daemon=True).start()
    try:
        while not over.wait(every):
            watch(progress.done, progress.total)
    except BaseException:
        progress.stop()
        over.wait()
        raise
    if failed:
        raise failed[0]
    watch(progress.done, progress.total)
    return done[0]


def doctor(
    url: str | Path, *, rebuild: bool = False, accept_loss: bool = False, watch: Watch | None = None
) -> Findings:
    """Looks at a store, repairs what is derived if asked to, and lifts the poison if all is well.

    Args:
        url: where the store is.
        rebuild: make every row anew from the journal; leases count as expired afterwards.
        accept_loss: go on without acknowledged records that are missing at the end.
        watch: hears how many frames were audited, and of how many.
    """
    told = watched(lambda p: _core.store_doctor(str(url), rebuild, accept_loss, p), watch)
    truncated = told["truncated"]
    return Findings(
        healthy=told["healthy"],
        report=report_of(told["report"]),
        poisoned=told["poisoned"],
        truncated=None if truncated is None else (truncated[0], truncated[1]),
        rebuilt=told["rebuilt"],
        advice=told["advice"],
        stats=told["stats"],
    )


def restore(backup: str | Path, target: str | Path) -> dict[str, Any]:
    """Makes a store from a backup, in a folder that does not exist yet, under a new epoch.

    Every run that was open waits on ``restored`` until a person resumes it: what it did after the backup
    is unknown here.
    """
    return _core.store_restore(str(backup), str(target))


def copy_store(source: str | Path, target: str | Path, *, watch: Watch | None = None) -> dict[str, Any]:
    """Copies a store to another address, where none is yet, also from one engine to another.

    Every record arrives byte for byte, with the seals over them, and the whole is audited on arrival. The
    copy has a new epoch, and every run that is open in it waits on ``restored`` until a person resumes it:
    the store that it was copied from may go on.

    Args:
        source: where the store is.
        target: where the copy is to be: a folder that does not exist, or a schema with no store in it.
        watch: hears how many frames were copied, and then audited, and of how many.
    """
    told: dict[str, Any] = watched(lambda p: _core.store_copy(str(source), str(target), p), watch)
    return told


def migrations(url: str | Path) -> list[dict[str, Any]]:
    """The schema's migrations, and which of them a store has."""
    return _core.store_plan(str(url))
