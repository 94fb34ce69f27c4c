"""Random calls against a store and against a model of a few lines.

Seqs, versions, statuses, states and refusals are the same at every step, and what was written verifies.
The model knows runs of one step; time is moved by hand.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from tests.support import refusal

import holdfast as hf
from holdfast.store import Claim, FakeClock

if TYPE_CHECKING:
    from collections.abc import Callable

LEASE_MS = 30_000
ATTEMPTS = 2
NAMES = st.sampled_from(["go", "stop"])
PICK = st.integers(0, 3)


@dataclass
class Run:
    """What a run with one step should be."""

    seq: int = 2
    version: int = 0
    state: dict[str, int] = field(default_factory=dict)
    step: str = "pending"  # or running, retry, waiting, ended
    end: str | None = None
    claim: Claim | None = None
    lease_until: int = 0
    claimed: bool = False
    progressed: bool = False
    tries: int = 0
    due: int = 0
    cancel: bool = False
    waits_for: str | None = None
    signals: set[str] = field(default_factory=set)

    def status(self) -> str:
        if self.end or self.step == "waiting":
            return self.end or "waiting"
        return "running" if self.claimed else "pending"

    def finish(self, end: str, records: int) -> None:
        self.seq += records
        self.step, self.end = "ended", end

    def let_go(self, step: str) -> None:
        """The worker has let go of the step; a run that is to be cancelled ends with it."""
        self.seq += 1
        self.step = step
        if self.cancel:
            self.finish("cancelled", 2)


class Door(RuleBasedStateMachine):
    """The door and the model, side by side."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = FakeClock()
        self.store = hf.open("memory:", clock=self.clock)
        self.runs: dict[str, Run] = {}
        self.stale: list[Claim] = []

    def pick(self, at: int) -> tuple[str, Run]:
        ids = list(self.runs)
        return ids[at % len(ids)], self.runs[ids[at % len(ids)]]

    def held(self, at: int) -> tuple[Run, Claim] | None:
        live = [(run, run.claim) for run in self.runs.values() if run.claim is not None]
        return live[at % len(live)] if live else None

    def drop(self, run: Run) -> None:
        assert run.claim is not None
        self.stale.append(run.claim)
        run.claim = None

    @rule(n=st.integers(0, 9))
    def create(self, n: int) -> None:
        if len(self.runs) < 4:
            run = self.store.create_run(agent="a", state={"n": n}, attempts=ATTEMPTS, barrier=False)
            self.runs[run] = Run(state={"n": n})

    @precondition(lambda self: self.runs)
    @rule(at=PICK, count=st.integers(1, 3))
    def note(self, at: int, count: int) -> None:
        run, model = self.pick(at)
        seqs = self.store.append_many(run, [("note.logged", {"text": "x"})] * count)
        assert seqs == range(model.seq + 1, model.seq + count + 1)
        model.seq += count

    def recover(self) -> None:
        for run in self.runs.values():
            if run.step != "running" or run.lease_until > self.clock.boot_ms:
                continue
            self.drop(run)
            exhausted = not run.progressed and run.tries + 1 >= ATTEMPTS
            run.tries += 0 if run.progressed else 1
            cancelled = run.cancel
            run.let_go("pending")
            if exhausted and not cancelled:
                run.finish("failed", 2)

    @rule()
    def claim(self) -> None:
        claim = self.store.claim(worker="w", lease=LEASE_MS / 1000)
        self.recover()
        now = self.clock.wall_ms
        ready = {
            id
            for id, run in self.runs.items()
            if not run.cancel and (run.step == "pending" or (run.step == "retry" and run.due <= now))
        }
        assert (claim is None) == (not ready)
        if claim is not None:
            assert claim.run in ready
            run = self.runs[claim.run]
            assert (claim.state, claim.state_version) == (run.state, run.version)
            run.seq, run.step, run.claim, run.claimed = run.seq + 1, "running", claim, True
            run.progressed, run.lease_until = False, self.clock.boot_ms + LEASE_MS

    @rule(at=PICK)
    def heartbeat(self, at: int) -> None:
        if found := self.held(at):
            self.store.heartbeat(found[1])
            found[0].lease_until = self.clock.boot_ms + LEASE_MS

    @rule(at=PICK, n=st.integers(0, 9), off=st.sampled_from([0, 0, 1, -1]))
    def patch(self, at: int, n: int, off: int) -> None:
        if not (found := self.held(at)):
            return
        run, claim = found
        version = max(0, run.version + off)
        code, _ = refusal(lambda: self.store.patch(claim, {"n": n}, expected_version=version))
        if version != run.version:
            assert code == "state_conflict"
            return
        assert code == f"accepted: {version + 1}"
        run.seq, run.version, run.state, run.progressed = run.seq + 1, version + 1, {"n": n}, True

    @rule(at=PICK)
    def release(self, at: int) -> None:
        if found := self.held(at):
            self.store.release(found[1])
            self.drop(found[0])
            found[0].let_go("pending")

    @rule(at=PICK)
    def finish(self, at: int) -> None:
        if found := self.held(at):
            self.store.finish(found[1], result=None)
            self.drop(found[0])
            found[0].finish("completed", 2)

    @rule(at=PICK, retryable=st.booleans())
    def fail(self, at: int, retryable: bool) -> None:
        if not (found := self.held(at)):
            return
        run, claim = found
        self.store.fail(claim, "no", retryable=retryable)
        self.drop(run)
        if run.cancel:
            run.finish("cancelled", 2)
        elif retryable and run.tries + 1 < ATTEMPTS:
            run.seq, run.step, run.tries = run.seq + 1, "retry", run.tries + 1
            (step,) = self.store.state(claim.run)["steps"].values()
            run.due = step["not_before"]
            assert self.clock.wall_ms < run.due <= self.clock.wall_ms + 1000 * 2**run.tries
        else:
            run.finish("failed", 2)

    @rule(at=PICK, name=NAMES)
    def wait(self, at: int, name: str) -> None:
        if not (found := self.held(at)):
            return
        run, claim = found
        code, _ = refusal(lambda: self.store.wait(claim, [{"on": "signal", "subject": name}]))
        if run.cancel or name in run.signals:
            assert code == ("cancel_requested" if run.cancel else "wait_over")
            return
        assert code == "accepted: None"
        self.drop(run)
        run.seq, run.step, run.waits_for = run.seq + 1, "waiting", name

    @precondition(lambda self: self.runs)
    @rule(at=PICK, name=NAMES)
    def signal(self, at: int, name: str) -> None:
        run, model = self.pick(at)
        code, _ = refusal(lambda: self.store.signal(run, name))
        assert code == ("run_ended" if model.end else "accepted: None")
        if not model.end:
            model.seq += 1
            model.signals.add(name)
            if model.step == "waiting" and model.waits_for == name:
                model.seq, model.step = model.seq + 1, "pending"

    @precondition(lambda self: self.runs)
    @rule(at=PICK)
    def cancel(self, at: int) -> None:
        run, model = self.pick(at)
        code, _ = refusal(lambda: self.store.cancel(run, by="dana"))
        assert code == ("run_ended" if model.end else "accepted: None")
        if model.end or model.cancel:
            return
        if model.step == "running":
            model.seq, model.cancel = model.seq + 1, True
        else:
            model.finish("cancelled", 3)

    @precondition(lambda self: self.runs)
    @rule(at=PICK)
    def retry(self, at: int) -> None:
        run, model = self.pick(at)
        code, _ = refusal(lambda: self.store.retry(run, by="dana"))
        if model.end != "failed":
            assert code == "not_failed"
            return
        assert code == "accepted: None"
        model.seq, model.step, model.end, model.tries, model.cancel = model.seq + 1, "pending", None, 0, False

    @rule(seconds=st.integers(1, 40))
    def later(self, seconds: int) -> None:
        self.clock.advance(seconds=seconds)

    @precondition(lambda self: self.stale)
    @rule(at=st.integers(0, 50), what=st.integers(0, 3))
    def come_late(self, at: int, what: int) -> None:
        claim = self.stale[at % len(self.stale)]
        works: list[Callable[[], Any]] = [
            lambda: self.store.heartbeat(claim),
            lambda: self.store.finish(claim, result="late"),
            lambda: self.store.append(claim.run, "note.logged", {"text": "late"}, claim=claim),
            lambda: self.store.patch(claim, {"n": -1}, expected_version=self.runs[claim.run].version),
        ]
        assert refusal(works[what]) == ("stale_fence", None)

    @invariant()
    def agrees(self) -> None:
        query = "SELECT runs.id, status, state_version, last_seq FROM runs JOIN streams ON key = stream"
        rows = {
            row["id"]: (row["status"], row["state_version"], row["last_seq"]) for row in self.store.sql(query)
        }
        assert rows == {id: (run.status(), run.version, run.seq) for id, run in self.runs.items()}

    def teardown(self) -> None:
        report = self.store.verify()
        assert (report.problems, report.records) == ([], 1 + sum(run.seq for run in self.runs.values()))
        for id, run in self.runs.items():
            assert self.store.state(id)["state"] == run.state
        self.store.close()


TestTheDoorAndAModelAgree = Door.TestCase
TestTheDoorAndAModelAgree.settings = settings(
    max_examples=settings().max_examples // 3, stateful_step_count=60, deadline=None
)
