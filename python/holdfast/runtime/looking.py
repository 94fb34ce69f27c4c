"""What a runtime tells about runs (artifacts, costs, counts, what is due), and the decisions that
need a look at the journal first.
"""

from __future__ import annotations

import asyncio
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from holdfast.errors import CommandError
from holdfast.gateway.outcomes import fix
from holdfast.primitives import new_id
from holdfast.runtime import parting
from holdfast.runtime.notes import Artifact
from holdfast.runtime.runs import ENDED, Run
from holdfast.runtime.worker import Worker
from holdfast.store.commands import human, payload
from holdfast.visible import Listing, Shown

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from holdfast.runtime.agents import Agent
    from holdfast.runtime.runtime import Runtime
    from holdfast.store import Claim, Record

Json = dict[str, Any]
POLL = 0.2
"""Seconds between looks at a run that another worker has, or that waits for time."""

OPTIONS = frozenset(
    (
        *("arguments", "budget", "capabilities", "concurrency_key", "deadline", "key", "labels", "priority"),
        *("role", "session", "steps"),
    )
)
"""What a run may be started with; the rest are its agent's arguments."""


async def begun(
    runtime: Runtime, agent: Agent[..., Any], args: tuple[object, ...], options: Mapping[str, Any]
) -> tuple[str, Claim | None]:
    """Makes a run and claims it in one turn of the store. It rides on the first barrier of its work."""
    own = {name: value for name, value in options.items() if name in OPTIONS}
    given = agent.whole(args, {name: value for name, value in options.items() if name not in OPTIONS}, own)
    made = runtime.creates(agent, given, own, barrier=False)
    assert made.call is not None
    if own.get("key") is not None:
        return made.answer(await runtime.store.aio.run(made.call)), None  # it may be there already
    run = made.run
    assert run is not None
    return run, await Worker(runtime, run=run).begin(made.call)


async def drive(runtime: Runtime, run: str, lease: float, claim: Claim | None = None) -> Run:
    """Works on one run, and on its children, until only a person or another run can help."""
    while True:
        claimed, status = await _pass(runtime, run, lease, claim)
        claim = None
        if status in ENDED:
            return Run(runtime, run, {"status": status})
        if claimed:
            continue
        family = [run, *_descendants(runtime, run)]
        due = min((at for one in family if (at := next_due(runtime, one)) is not None), default=None)
        wait = None if due is None else (due - runtime.store._core.wall_ms) / 1000
        if wait is not None and not (wait > 0 and runtime.store.clock is not None):
            await asyncio.sleep(max(0.001, min(wait, POLL)))
        elif any(_elsewhere(runtime, one) for one in family):
            await asyncio.sleep(POLL)
        else:
            return Run(runtime, run)


async def _pass(runtime: Runtime, run: str, lease: float, claim: Claim | None = None) -> tuple[int, str]:
    """Runs what is ready of a run and of its children, without waiting for time; how many attempts that
    were, and how the run stands."""
    worker = Worker(runtime, concurrency=16, lease=lease, run=run, stays=False)
    claimed = (await worker.drive(claim)).claimed
    status = worker.left if worker.left in ENDED else runtime.status_of(run)
    if status in ENDED:
        return claimed, status
    children = _open_children(runtime, run)
    passed = await asyncio.gather(*(_pass(runtime, child, lease) for child in children))
    return claimed + sum(attempts for attempts, _ in passed), status


def _descendants(runtime: Runtime, run: str) -> list[str]:
    found = _open_children(runtime, run)
    return found + [inner for child in found for inner in _descendants(runtime, child)]


def _elsewhere(runtime: Runtime, run: str) -> bool:
    """Whether another worker has a step of the run."""
    sql = "SELECT 1 FROM steps JOIN streams ON key = run WHERE streams.id = ? AND status = 'running' LIMIT 1"
    return bool(runtime.store.sql(sql, [run]))


def _open_children(runtime: Runtime, run: str) -> list[str]:
    rows = runtime.store.sql(
        "SELECT id, agent FROM runs WHERE parent = ?1"
        " AND status NOT IN ('completed', 'failed', 'cancelled', 'paused')",
        [run],
    )
    return [row["id"] for row in rows if row["agent"] in runtime.agents]


def next_due(runtime: Runtime, run: str | None) -> int | None:
    """When the next timer or retry is due, of a run or of all that this runtime has the agents for."""
    agents = runtime.agent_names()
    marks = ", ".join(f"?{n}" for n in range(2, 2 + len(agents))) or "NULL"
    where = f"steps.agent IN ({marks}) AND (streams.id = ?1 OR ?1 IS NULL)"
    rows = runtime.store.sql(  # only marks are put together: every value is a parameter
        "SELECT min(at) AS at FROM ("  # noqa: S608
        f"SELECT min(due) AS at FROM steps JOIN streams ON key = steps.run WHERE due IS NOT NULL AND {where}"
        " UNION ALL SELECT min(until) FROM waits"
        " JOIN steps ON steps.run = waits.run AND steps.id = waits.step"
        f" JOIN streams ON key = steps.run WHERE waits.what = 'timer' AND {where}) AS ahead",
        [run, *agents],
    )
    at = rows[0]["at"]
    return None if at is None else int(at)


def decision(runtime: Runtime, run: str, decided: str) -> Json:
    """The command that a decision about a run is."""
    waiting = [step for step in Run(runtime, run).steps if step["status"] == "waiting"]
    for step in waiting:
        on = {wait["on"] for wait in step["waits"]}
        if "divergence" in on:
            record = parting.newest(runtime.store, run, step["id"])
            calls = [] if record is None else [sketch["call"] for sketch in record.body["recorded"]]
            return {
                "command": "decide_divergence",
                "decision": decided,
                "step": step["id"],
                "unclaimed": calls if decided == "accept" else [],
            }
        if "package" in on:
            package = runtime.package() if decided == "continue" else runtime.store.state(run)["package"]
            return {"command": "decide_package", "decision": decided, "package": package, "step": step["id"]}
    code = "nothing_to_decide"
    raise CommandError("no step of the run waits for a decision", code=code, fix=fix(code))


def forked(runtime: Runtime, run: str, command: Json, by: str, reason: str | None) -> Run:
    """The fork that a decision about a divergence is."""
    if command["command"] != "decide_divergence":
        raise CommandError("a package is not forked from", code="bad_fork_point", fix=fix("bad_fork_point"))
    store, step = runtime.store, command["step"]
    at, record = parting.before(store, run, step), parting.newest(store, run, step)
    assert record is not None
    # Its id follows from the divergence: who asks again, having heard no answer, gets the same fork.
    new = new_id("run", at_ms=record.at, random=bytes.fromhex(record.hash.partition(":")[2][:20]))
    try:
        return fork(runtime, run, at, by, "serve", reason, new)
    except CommandError as error:
        if error.code != "run_exists":
            raise
        return Run(runtime, new)


def fork(
    runtime: Runtime, run: str, at: int, by: str, effects: str, reason: str | None, new: str | None = None
) -> Run:
    """A fork of a run."""
    store = runtime.store
    new = new or new_id("run", at_ms=store._core.wall_ms)
    command: Json = {
        "command": "fork",
        "effects": effects,
        "labels": {},
        "package": store.state(run)["package"],
        "run": new,
    }
    if reason is not None:
        command["reason"] = payload(reason, "internal")
    store._core.fork(run, at, human(by), command)
    return Run(runtime, new)


class Artifacts:
    """What runs made."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    def _records(self, run: str) -> Iterator[Record]:
        return (record for record in self._runtime.store.read(run) if record.kind == "artifact.created")

    def list(self, run: str | Run) -> list[Artifact]:
        """The artifacts of a run, the oldest first."""
        run = run if isinstance(run, str) else run.id
        return Listing(
            Artifact(
                record.body["artifact"],
                run,
                record.body["name"],
                record.body["kind"],
                record.body["media"],
                record.body["content"]["bytes"] if "content" in record.body else None,
                record.value.get("uri") if "uri" in record.body else None,
                tuple(record.body["derived_from"]),
            )
            for record in self._records(run)
        )

    def open(self, artifact: Artifact) -> bytes:
        """The bytes of an artifact, checked against what was recorded."""
        for record in self._records(artifact.run):
            if record.body["artifact"] == artifact.id and "content" in record.body:
                return self._runtime.store.get_blob(record.body["content"])
        code = "no_such_artifact"
        raise CommandError("there is no such artifact, or it is kept elsewhere", code=code, fix=fix(code))


@dataclass(frozen=True)
class Cost(Shown):
    """What something cost."""

    run: str
    seq: int
    at: int
    usd: float
    tokens: int
    model: str | None
    provider: str | None


class Costs:
    """What runs cost."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    def list(self, run: str | Run) -> list[Cost]:
        """The recorded costs of a run."""
        run, found = run if isinstance(run, str) else run.id, Listing[Cost]()
        for record in self._runtime.store.read(run):
            if record.kind == "cost.recorded":
                body, amounts = record.body, record.body["amounts"]
                usd = amounts.get("usd_micros", 0) / 1_000_000
                model, provider = body.get("model"), body.get("provider")
                tokens = amounts.get("tokens", 0)
                found.append(Cost(run, record.seq, record.at, usd, tokens, model, provider))
        return found

    def total(self, run: str | Run) -> Json:
        """Their sum."""
        costs = self.list(run)
        return {"tokens": sum(cost.tokens for cost in costs), "usd": sum(cost.usd for cost in costs)}


@dataclass(frozen=True)
class Metrics(Shown):
    """Counts of a store."""

    runs: dict[str, int]
    """By status."""
    queued: int
    running: int
    waiting: dict[str, int]
    """Steps that wait, by what for."""
    records: int
    oldest_queued_ms: int | None

    @classmethod
    def of(cls, runtime: Runtime) -> Metrics:
        """Counts them."""
        store = runtime.store
        runs = store.sql("SELECT status, count(*) AS n FROM runs GROUP BY status")
        steps = store.sql(
            "SELECT count(*) FILTER (WHERE ready = 1) AS queued,"
            " count(*) FILTER (WHERE status = 'running') AS running FROM steps"
        )[0]
        waits = store.sql("SELECT what, count(*) AS n FROM waits GROUP BY what")
        oldest = store.sql(
            "SELECT min(runs.created_at) AS at FROM steps JOIN runs ON runs.stream = steps.run"
            " WHERE ready = 1"
        )[0]["at"]
        records = store.sql("SELECT coalesce(sum(last_seq), 0) AS n FROM streams")[0]["n"]
        return cls(
            {row["status"]: row["n"] for row in runs},
            steps["queued"],
            steps["running"],
            {row["what"]: row["n"] for row in waits},
            records,
            None if oldest is None else max(0, store._core.wall_ms - oldest),
        )

    def prometheus(self) -> str:
        """The same as text for Prometheus."""
        lines = ["# TYPE holdfast_runs gauge"]
        lines += [
            f'holdfast_runs{{status="{status}"}} {count}' for status, count in sorted(self.runs.items())
        ]
        lines += ["# TYPE holdfast_steps_queued gauge", f"holdfast_steps_queued {self.queued}"]
        lines += ["# TYPE holdfast_steps_running gauge", f"holdfast_steps_running {self.running}"]
        lines += ["# TYPE holdfast_steps_waiting gauge"]
        lines += [
            f'holdfast_steps_waiting{{on="{what}"}} {count}' for what, count in sorted(self.waiting.items())
        ]
        lines += ["# TYPE holdfast_records_total counter", f"holdfast_records_total {self.records}"]
        return "\n".join(lines) + "\n"

    def as_dict(self) -> Json:
        """The same as JSON."""
        return asdict(self)
