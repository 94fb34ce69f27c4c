"""SIGKILL of writing processes at random moments, several writers and a killer on one folder.

What a writer said that the store had acknowledged must be there afterwards, with its hash, in a journal
without gaps that verifies; the next process goes on at once; and what a dead worker held can be had at
once, whatever its lease says. The same harness must lose records on a build that answers before COMMIT.
"""

from __future__ import annotations

import random
import select
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
from tests.faults.processes import Child, Zygote, new_seed, percentile, seconds
from tests.faults.replays import travelled

import holdfast

if TYPE_CHECKING:
    from pathlib import Path

    from holdfast import Store

WRITERS = 4
KILLS = 400
MOST_SECONDS = 75.0


@dataclass
class Acked:
    """What the writers said."""

    tokens: dict[tuple[str, int], str] = field(default_factory=dict)
    hashes: dict[tuple[str, int], str] = field(default_factory=dict)
    runs: set[str] = field(default_factory=set)
    ended: set[str] = field(default_factory=set)
    versions: dict[str, int] = field(default_factory=dict)
    fences: dict[str, list[int]] = field(default_factory=dict)
    began: list[float] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    def take(self, lines: list[list[Any]]) -> None:
        for word, *rest in lines:
            match word:
                case "a":
                    self.tokens[rest[0], rest[1]] = rest[2]
                case "h":
                    self.hashes[rest[0], rest[1]] = rest[2]
                case "run":
                    self.runs.add(rest[0])
                case "end":
                    self.ended.add(rest[0])
                case "patch":
                    self.versions[rest[0]] = max(self.versions.get(rest[0], 0), rest[1])
                case "claim":
                    self.fences[rest[0]] = max(self.fences.get(rest[0], []), rest[1])
                case "began":
                    self.began.append(rest[0])
                case "error":
                    self.errors.append(rest[0])

    def count(self) -> int:
        """Acknowledgements that must hold."""
        parts = (self.tokens, self.runs, self.ended, self.versions, self.fences)
        return sum(len(part) for part in parts)


@dataclass
class Hunt:
    """Several writers and a killer, and what came of it."""

    zygote: Zygote
    folder: Path
    seed: int
    acked: Acked = field(default_factory=Acked)
    kills: int = 0

    def start(self) -> None:
        with holdfast.open(self.folder) as store:
            self.shared = store.create_run(agent="shared")
        self.chance = random.Random(self.seed)
        self.children = [self.writer(number) for number in range(WRITERS)]

    def writer(self, number: int) -> Child:
        return self.zygote.start("writer", self.folder, self.shared, self.seed * 1_000_000 + number)

    def listen(self, until: float) -> None:
        """Hears the writers out, so that none of them waits for us."""
        while (left := until - time.monotonic()) > 0:
            alive = [child for child in self.children if not child.over]
            for child in select.select(alive, [], [], left)[0]:
                self.acked.take(child.hear())
                child.said.clear()

    def kill_one(self) -> None:
        """After 1 to 30 ms one dies, at that moment or right after its next word; another takes its place."""
        self.listen(time.monotonic() + self.chance.uniform(0.001, 0.030))
        place = self.chance.randrange(WRITERS)
        victim = self.children[place]
        if self.chance.random() < 0.7:
            # An answer that left too early is caught before its commit.
            select.select([victim], [], [], 1.0)
        self.finish(victim)
        self.kills += 1
        self.children[place] = self.writer(WRITERS + self.kills)

    def finish(self, child: Child) -> None:
        child.kill()
        self.acked.take(child.said)
        child.said.clear()

    def until(self, kills: int, most_seconds: float) -> None:
        """Kills; a long tier goes on until its time is up."""
        end = time.monotonic() + (seconds() or most_seconds)
        while time.monotonic() < end and (seconds() is not None or self.kills < kills):
            self.kill_one()
            if self.acked.errors:
                break
        for child in self.children:
            self.finish(child)


def missing(store: Store, acked: Acked) -> list[str]:
    """Acknowledgements that the store does not know of, and records that are not what was acknowledged."""
    wrong: list[str] = []
    wanted: dict[str, list[int]] = {}
    for run, seq in acked.tokens.keys() | acked.hashes.keys():
        wanted.setdefault(run, []).append(seq)
    known = {row["id"] for row in store.sql("SELECT id FROM streams")}
    for run in sorted((acked.runs | wanted.keys()) - known):
        wrong.append(f"{run} is missing, with {len(wanted.pop(run, []))} records")
    for run, seqs in wanted.items():
        records = list(store.read(run))
        if [record.seq for record in records] != list(range(1, len(records) + 1)):
            wrong.append(f"{run} has gaps")
        for seq in seqs:
            if seq > len(records):
                wrong.append(f"{run} {seq} is missing")
            elif acked.tokens.get((run, seq), text := records[seq - 1].value.get("text")) != text:
                wrong.append(f"{run} {seq} is another record")
            elif acked.hashes.get((run, seq), records[seq - 1].hash) != records[seq - 1].hash:
                wrong.append(f"{run} {seq} has another hash")
    for run in acked.ended & known:
        if store.state(run)["status"] != "completed":
            wrong.append(f"the end of {run} is missing")
    for run, version in acked.versions.items():
        if run in known and store.state(run)["state_version"] < version:
            wrong.append(f"the version {version} of {run} is missing")
    for run, fence in acked.fences.items():
        if run in known and store.state(run)["last_fence"] < fence:
            wrong.append(f"the fence {fence} of {run} is missing, and would be given out again")
    return wrong


def take_over(store: Store) -> tuple[int, int]:
    """Claims whatever the dead have left: how many steps there were, and how many could be had at once."""
    left = store.sql("SELECT count(*) AS n FROM steps WHERE agent = 'job' AND status NOT IN ('completed')")
    had = 0
    while store.claim(worker="heir", lease=60, agents=["job"]) is not None:
        had += 1
    return left[0]["n"], had


@pytest.mark.timeout(7200)
def test_writers_that_are_killed_at_random_moments_lose_nothing_that_was_acknowledged(
    zygote: Zygote, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hunt = Hunt(zygote, tmp_path / "store", new_seed())
    hunt.start()
    hunt.until(KILLS, MOST_SECONDS)
    begun = time.perf_counter()
    with holdfast.open(hunt.folder) as store:
        store.append(hunt.shared, "note.logged", {"text": "next"}, barrier=True)
        at_once = (time.perf_counter() - begun) * 1000
        lost, report = missing(store, hunt.acked), store.verify()
        runs = travelled(store)
        left, had = take_over(store)
        processes = store.stats()["processes"]
    with capsys.disabled():
        print(
            f"\nkill -9: kills={hunt.kills} acked={hunt.acked.count()} lost={len(lost)}"
            f" records={report.records} taken over={had}/{left} open+append"
            f" p50={percentile(hunt.acked.began, 0.5):.1f} p99={percentile(hunt.acked.began, 0.99):.1f} ms,"
            f" after the last kill {at_once:.1f} ms seed={hunt.seed}"
        )
    assert hunt.acked.errors == []
    assert lost == []
    assert report.ok, report.problems
    assert runs >= len(hunt.acked.runs), "time travel to the end of each run is the state that it has"
    assert hunt.kills >= 300
    # The dead ones' claims were for an hour; only their process locks say that they are gone.
    assert left == had > 0
    assert len(processes) == 1, "the dead are not listed"
    assert percentile(hunt.acked.began, 0.99) < 5000


def test_the_harness_finds_records_that_were_acknowledged_before_they_were_committed(
    mutants: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Zygote(mutants, "AnswerEarly") as zygote:
        hunt = Hunt(zygote, tmp_path / "store", new_seed())
        hunt.start()
        lost: list[str] = []
        while not lost and hunt.kills < 1000:
            hunt.kill_one()
            if hunt.kills % 50 == 0:
                with holdfast.open(hunt.folder) as store:
                    lost = missing(store, hunt.acked)
        for child in hunt.children:
            hunt.finish(child)
    with capsys.disabled():
        print(f"\nkill -9, AnswerEarly: kills={hunt.kills} acked={hunt.acked.count()} lost={len(lost)}")
    assert lost != []
