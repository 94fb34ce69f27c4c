"""Clauses about claims: who gets a step, in which order, for how long, and what a lost claim may do."""

from __future__ import annotations

import dataclasses
import itertools
from functools import partial
from typing import TYPE_CHECKING

from holdfast.conformance.store_clauses import (
    NOTE,
    Chapter,
    a_run,
    claimed,
    last,
    refused,
    same_json,
    status,
    taken,
    unclaimed,
)
from holdfast.conformance.suite import Broken, NotApplicable, expect, same, together

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.conformance.store_clauses import Place
    from holdfast.conformance.store_surface import AnyStore
    from holdfast.store import Claim

CLAIMS = Chapter()
clause = CLAIMS.clause
WORKERS = 8
SIGNAL = [{"on": "signal", "subject": "go"}]


def commands(store: AnyStore, claim: Claim) -> dict[str, Callable[[], object]]:
    """Everything that a worker can do under a claim."""
    return {
        "heartbeat": lambda: store.heartbeat(claim),
        "patch": lambda: store.patch(claim, {"n": 1}, expected_version=claim.state_version),
        "append": lambda: store.append(claim.run, NOTE, {"text": "?"}, claim=claim),
        "append_many": lambda: store.append_many(claim.run, [(NOTE, {"text": "?"})] * 2, claim=claim),
        "wait": lambda: store.wait(claim, SIGNAL),
        "release": lambda: store.release(claim),
        "fail": lambda: store.fail(claim, "broken"),
        "fail for good": lambda: store.fail(claim, "broken", retryable=False),
        "finish": lambda: store.finish(claim, result="done"),
    }


def changes_nothing(store: AnyStore, claim: Claim) -> None:
    """A claim that no longer holds is refused whatever it asks."""
    refused(store, "stale_fence", [claim.run], commands(store, claim))


# Claims.


@clause("claim.nothing_to_do")
def nothing_to_do(place: Place) -> None:
    """Without work that can run, a claim is None."""
    store = place.open()
    unclaimed(store, "the store is empty")
    run = a_run(store)
    store.finish(claimed(store))
    unclaimed(store, "the only run has ended")
    same(status(store, run), "completed", "the status of the run")


@clause("claim.brings_the_work")
def brings_the_work(place: Place) -> None:
    """A claim brings run, step, agent, input, state with its version, attempt and worker."""
    store = place.open()
    run = a_run(store, agent="import", input={"file": "a.csv"}, state={"n": 1}, step="load")
    claim = claimed(store, worker="w1", lease=30.0)
    same((claim.run, claim.agent, claim.name, claim.worker), (run, "import", "load", "w1"), "the claim")
    same((claim.attempt, claim.lease), (1, 30.0), "attempt and lease of a first claim")
    same_json(claim.input, {"file": "a.csv"}, "the input of a claim")
    same_json(claim.state, {"n": 1}, "the state of a claim")
    same(claim.state_version, store.state(run)["state_version"], "the version of the state")
    same(status(store, run), "running", "the status of a claimed run")


@clause("claim.one_worker_each")
def one_worker_each(place: Place) -> None:
    """A step that is held is given to nobody else."""
    store = place.open()
    runs = {a_run(store) for _ in range(3)}
    given = [claimed(store, worker=f"w{number}").run for number in range(3)]
    same(set(given), runs, "the runs that three workers got")
    unclaimed(store, "every step is held")


@clause("claim.many_threads")
def many_threads(place: Place) -> None:
    """Among threads that claim at the same time, each step goes to one."""
    store = place.open()
    runs = [a_run(store) for _ in range(3 * WORKERS)]
    given = together([lambda: _claim_all(store)] * WORKERS, "claim")
    same(sorted(run for each in given for run in each), sorted(runs), "the runs that all workers got")


@clause("claim.two_handles")
def two_handles(place: Place) -> None:
    """Among handles that claim at the same time, each step goes to one."""
    one = place.open()
    two = place.second()
    runs = [a_run(one) for _ in range(3 * WORKERS)]
    given = together([lambda: _claim_all(one), lambda: _claim_all(two)] * 3, "claim")
    same(sorted(run for each in given for run in each), sorted(runs), "the runs that all workers got")


def _claim_all(store: AnyStore) -> list[str]:
    given = []
    while (claim := store.claim(worker="worker")) is not None:
        given.append(claim.run)
        if len(given) > 100:
            raise Broken("claims go on for ever")
    return given


@clause("claim.queues")
def queues(place: Place) -> None:
    """A worker that names queues gets steps of these only."""
    store = place.open()
    fast, slow = a_run(store, queue="fast"), a_run(store, queue="slow")
    unclaimed(store, "it is in another queue", queues=["other"])
    same(claimed(store, queues=["other", "slow"]).run, slow, "the run from the queue that was named")
    unclaimed(store, "it is in another queue", queues=["slow"])
    same(claimed(store).run, fast, "the run that is left for a worker of any queue")


@clause("claim.agents")
def agents(place: Place) -> None:
    """A worker that names agents gets steps of these only."""
    store = place.open()
    one, two = a_run(store, agent="one"), a_run(store, agent="two")
    unclaimed(store, "it is another agent's", agents=["three"])
    same(claimed(store, agents=["two"]).run, two, "the run of the agent that was named")
    unclaimed(store, "it is another agent's", agents=["two"])
    same(claimed(store).run, one, "the run that is left for a worker of any agent")


@clause("claim.concurrency_key")
def concurrency_key(place: Place) -> None:
    """Of steps with one concurrency key one runs at a time, and those that wait hold up no other step."""
    store = place.open()
    runs = [a_run(store, concurrency_key="account-7") for _ in range(50)]
    free = a_run(store, concurrency_key="account-8")
    given = []
    for number in range(3):
        claim = claimed(store)
        given.append(claim.run)
        if number == 0:
            same(claimed(store).run, free, "the run under another key")
        unclaimed(store, "another step runs under its concurrency key")
        store.finish(claim)
    same(given, runs[:3], "the runs under one key, one after the other")


@clause("claim.concurrency_key_among_many")
def key_among_many(place: Place) -> None:
    """Of workers that claim at the same time, on any handle, one gets a step of a concurrency key."""
    one = place.open()
    handles = [one, _second_or(place, one)]
    for number in range(2 * WORKERS):
        a_run(one, concurrency_key=f"account-{number % 2}")
    works = [partial(handles[at % 2].claim, worker=f"w{at}") for at in range(WORKERS)]
    given = [claim for claim in together(works, "claim") if claim is not None]
    keys = [one.state(claim.run)["steps"][claim.step]["concurrency_key"] for claim in given]
    same(len(keys), len(set(keys)), "claims and the keys that they hold")
    expect(bool(keys), "nobody got a step")


def _second_or(place: Place, one: AnyStore) -> AnyStore:
    """Another handle where there can be one."""
    try:
        return place.second()
    except NotApplicable:
        return one


@clause("order.age")
def order_of_age(place: Place) -> None:
    """Of equals the oldest comes first."""
    store, clock = place.open_at()
    runs = []
    for _ in range(4):
        runs.append(a_run(store))
        clock.advance(seconds=2)
    same([claimed(store).run for _ in runs], runs, "the order of claims")


@clause("order.priority")
def order_of_priority(place: Place) -> None:
    """A higher priority comes before a lower one that is a little older."""
    store, clock = place.open_at()
    runs = {}
    for priority in (-1, 0, 2, 1):
        runs[priority] = a_run(store, priority=priority)
        clock.advance(seconds=2)
    expected = [runs[priority] for priority in (2, 1, 0, -1)]
    same([claimed(store).run for _ in runs], expected, "the order of claims")


@clause("order.ageing")
def order_of_ageing(place: Place) -> None:
    """What has waited long enough comes before a higher priority, so that nothing starves."""
    store, clock = place.open_at()
    patient = a_run(store, priority=0)
    clock.advance(seconds=3600)
    eager = a_run(store, priority=1)
    same([claimed(store).run for _ in range(2)], [patient, eager], "the order of claims")


@clause("order.deadline")
def order_of_deadline(place: Place) -> None:
    """Of the same priority and age, the earlier deadline comes first, and none comes last."""
    store, clock = place.open_at()
    none = a_run(store)
    later = a_run(store, deadline=clock.wall_ms + 7_200_000)
    sooner = a_run(store, deadline=clock.wall_ms + 3_600_000)
    same([claimed(store).run for _ in range(3)], [sooner, later, none], "the order of claims")


# Fences and leases.


@clause("fence.grows")
def grows(place: Place) -> None:
    """The fences of a run strictly grow, over releases, lost leases, failures and retries."""
    store, clock = place.open_at()
    run = a_run(store, attempts=10)
    fences = []
    for released in (False, True, False, True):
        claim = claimed(store, lease=10.0)
        fences.append(claim.fence)
        if released:
            store.release(claim)
        clock.advance(seconds=20)
    claim = claimed(store)
    store.fail(claim, "broken", retryable=False)
    store.retry(run, by="dana")
    fences += [claim.fence, claimed(store).fence]
    expect(all(a < b for a, b in itertools.pairwise(fences)), f"fences do not grow: {fences}")


@clause("fence.invented")
def invented(place: Place) -> None:
    """A fence that nobody was given changes nothing (stale_fence)."""
    store = place.open()
    a_run(store)
    claim = claimed(store)
    for step in (-1, 1):
        forged = dataclasses.replace(claim, fence=(claim.fence[0], claim.fence[1] + step))
        changes_nothing(store, forged)
    store.finish(claim)


@clause("fence.stale_after_release")
def stale_after_release(place: Place) -> None:
    """A claim that was given back changes nothing, before and after the step is claimed again."""
    store = place.open()
    a_run(store)
    claim = claimed(store)
    store.release(claim)
    changes_nothing(store, claim)
    newer = claimed(store)
    changes_nothing(store, claim)
    store.finish(newer)
    changes_nothing(store, claim)


@clause("fence.stale_after_use")
def stale_after_use(place: Place) -> None:
    """A claim ends with the outcome that it reported: it reports no second one."""
    store = place.open()
    outcomes: list[Callable[[Claim], None]] = [
        lambda claim: store.finish(claim, result=1),
        lambda claim: store.fail(claim, "broken", retryable=False),
        lambda claim: store.fail(claim, "broken"),
        lambda claim: store.wait(claim, SIGNAL),
    ]
    for outcome in outcomes:
        run = a_run(store)
        claim = claimed(store)
        same(claim.run, run, "the run that was claimed")
        outcome(claim)
        changes_nothing(store, claim)


@clause("fence.stale_after_recovery")
def stale_after_recovery(place: Place) -> None:
    """After its lease ran out and another worker has the step, the first worker changes nothing."""
    store, clock = place.open_at()
    run = a_run(store)
    lost = claimed(store, worker="slow", lease=10.0)
    clock.advance(seconds=11)
    held = claimed(store, worker="next")
    expect(held.fence > lost.fence, "the second claim has no newer fence")
    changes_nothing(store, lost)
    store.finish(held, result="by the second")
    changes_nothing(store, lost)
    same(last(store, run).value["result"], "by the second", "the result of the run")


@clause("fence.stale_on_every_handle")
def stale_on_every_handle(place: Place) -> None:
    """The same holds when the step was taken over through another handle."""
    one, clock = place.open_at()
    two = place.second()
    a_run(one)
    lost = claimed(one, worker="slow", lease=10.0)
    one.append(lost.run, NOTE, {"text": "mine"}, claim=lost)
    clock.advance(seconds=11)
    held = claimed(two, worker="next")
    changes_nothing(one, lost)
    changes_nothing(two, lost)
    two.finish(held)
    changes_nothing(one, lost)


@clause("fence.one_outcome")
def one_outcome(place: Place) -> None:
    """Of outcomes that are reported under one claim at the same time, one counts."""
    store = place.open()
    run = a_run(store)
    claim = claimed(store)
    works = [partial(taken, partial(store.finish, claim, result=at), "stale_fence") for at in range(WORKERS)]
    won = together(works, "finish")
    same(sum(won), 1, "outcomes that were taken")
    same(last(store, run).value["result"], won.index(True), "the result")
    ends = [record for record in store.read(run) if record.kind == "run.finished"]
    same(len(ends), 1, "ends of the run")


@clause("lease.expires")
def expires(place: Place) -> None:
    """A step is given to another worker once its lease has run out, and not before."""
    store, clock = place.open_at()
    run = a_run(store)
    claimed(store, lease=10.0)
    clock.advance(seconds=9)
    unclaimed(store, "its lease holds")
    clock.advance(seconds=2)
    claim = claimed(store, worker="next")
    same((claim.run, claim.attempt), (run, 2), "run and attempt of the second claim")


@clause("lease.heartbeat_prolongs")
def heartbeat_prolongs(place: Place) -> None:
    """A heartbeat prolongs the lease from now on, and writes no record."""
    store, clock = place.open_at()
    run = a_run(store)
    claim = claimed(store, lease=10.0)
    before = last(store, run).seq
    for _ in range(5):
        clock.advance(seconds=8)
        store.heartbeat(claim)
        unclaimed(store, "its worker sends heartbeats")
    store.heartbeat(claim, lease=100.0)
    clock.advance(seconds=90)
    unclaimed(store, "the lease was prolonged by more")
    same(last(store, run).seq, before, "the end of the run after heartbeats")
    store.finish(claim)


@clause("lease.wall_clock_jumps")
def wall_clock_jumps(place: Place) -> None:
    """A wall clock that jumps neither shortens a lease nor prolongs it."""
    store, clock = place.open_at()
    a_run(store)
    claimed(store, lease=10.0)
    clock.set_wall(clock.wall_ms + 86_400_000)
    unclaimed(store, "only the wall clock went on")
    clock.set_wall(clock.wall_ms - 2 * 86_400_000)
    clock.advance(seconds=9)
    unclaimed(store, "its lease holds")
    clock.advance(seconds=2)
    claimed(store, worker="next")


@clause("lease.reboot")
def reboot(place: Place) -> None:
    """No lease outlives the machine's boot."""
    store, clock = place.open_at()
    a_run(store)
    lost = claimed(store, lease=3600.0)
    clock.reboot()
    claimed(store, worker="next")
    changes_nothing(store, lost)


@clause("lease.costs_attempts")
def costs_attempts(place: Place) -> None:
    """A step that loses all of its workers fails for good when its attempts are used up."""
    store, clock = place.open_at()
    run = a_run(store, attempts=2)
    for attempt in (1, 2):
        same(claimed(store, lease=10.0).attempt, attempt, "the attempt")
        clock.advance(seconds=11)
    unclaimed(store, "its attempts are used up")
    same(status(store, run), "failed", "the status of a run whose workers were all lost")


@clause("release.costs_nothing")
def release_costs_nothing(place: Place) -> None:
    """A step that is given back can be claimed at once, and it costs no attempt."""
    store = place.open()
    run = a_run(store, attempts=1)
    for _ in range(3):
        claim = claimed(store)
        same((claim.run, claim.attempt), (run, 1), "run and attempt")
        store.release(claim)
    store.finish(claimed(store))
