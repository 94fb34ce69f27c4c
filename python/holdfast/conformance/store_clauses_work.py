"""Clauses about what becomes of work: outcomes, retries, waits, cancellation, state."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

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
from holdfast.conformance.suite import same, together

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.conformance.store_clauses import Place

WORK = Chapter()
clause = WORK.clause
WORKERS = 8
SIGNAL = [{"on": "signal", "subject": "go"}]


# Outcomes.


@clause("finish.ends_the_run")
def finish_ends(place: Place) -> None:
    """Finishing the last step completes the run with the result, as its last record."""
    store = place.open()
    run = a_run(store)
    store.finish(claimed(store), result={"rows": 3})
    record = last(store, run)
    same((record.kind, record.value["status"]), ("run.finished", "completed"), "the end of the run")
    same_json(record.value["result"], {"rows": 3}, "the result of the run")
    same(status(store, run), "completed", "the status of the run")


@clause("fail.backs_off")
def backs_off(place: Place) -> None:
    """A failed attempt is followed by another, but only later."""
    store, clock = place.open_at()
    run = a_run(store, attempts=3)
    store.fail(claimed(store), ValueError("broken"))
    unclaimed(store, "its next attempt is not due")
    clock.advance(seconds=120)
    claim = claimed(store)
    same((claim.run, claim.attempt), (run, 2), "run and attempt of the second claim")


@clause("fail.ends_the_run")
def fail_ends(place: Place) -> None:
    """A failure that is not retryable, or the last attempt's, fails the run."""
    store, clock = place.open_at()
    hopeless = a_run(store, attempts=5)
    store.fail(claimed(store), "broken", retryable=False)
    same(status(store, hopeless), "failed", "the status after a failure that is not retryable")
    run = a_run(store, attempts=2)
    for _ in range(2):
        store.fail(claimed(store), "broken")
        clock.advance(seconds=120)
    same(status(store, run), "failed", "the status after the last attempt")
    same(last(store, run).value["failure"]["message"], "broken", "the message of the failure")
    unclaimed(store, "both runs have failed")


@clause("retry.reopens")
def retry_reopens(place: Place) -> None:
    """A failed run can be opened again by a person, and then completes; no other can (not_failed)."""
    store = place.open()
    run = a_run(store)
    refused(store, "not_failed", [run], {"retry of an open run": lambda: store.retry(run, by="dana")})
    store.fail(claimed(store), "broken", retryable=False)
    store.retry(run, by="dana")
    claim = claimed(store)
    same(claim.run, run, "the run that was opened again")
    store.finish(claim)
    refused(store, "not_failed", [run], {"retry of a completed run": lambda: store.retry(run, by="dana")})


# Waits.


@clause("wait.signal_wakes")
def signal_wakes(place: Place) -> None:
    """A waiting step is nobody's until the signal that it waits for comes, and no other."""
    store = place.open()
    run = a_run(store)
    store.wait(claimed(store), SIGNAL)
    same(status(store, run), "waiting", "the status of a run that waits")
    unclaimed(store, "it waits for a signal")
    store.signal(run, "other")
    unclaimed(store, "another signal came than the one it waits for")
    store.signal(run, "go", {"ok": True}, by="dana")
    claim = claimed(store)
    same((claim.run, claim.attempt), (run, 1), "run and attempt of the step that woke")
    store.finish(claim)


@clause("wait.timer_wakes")
def timer_wakes(place: Place) -> None:
    """A timer wakes its step at its time, and not before."""
    store, clock = place.open_at()
    run = a_run(store)
    store.wait(claimed(store), [{"on": "timer", "until": clock.wall_ms + 60_000}])
    clock.advance(seconds=59)
    unclaimed(store, "its timer has not fired")
    clock.advance(seconds=2)
    same(claimed(store).run, run, "the run whose timer fired")


@clause("wait.nothing_lost")
def nothing_lost(place: Place) -> None:
    """A wait for what is already there is refused (wait_over), so that no wake-up is lost."""
    store, clock = place.open_at()
    run = a_run(store)
    claim = claimed(store)
    store.signal(run, "go")
    works: dict[str, Callable[[], object]] = {
        "wait for a signal that came": lambda: store.wait(claim, SIGNAL),
        "wait for now": lambda: store.wait(claim, [{"on": "timer", "until": clock.wall_ms}]),
    }
    refused(store, "wait_over", [run], works)
    store.finish(claim)


@clause("wait.races_with_its_signal")
def races(place: Place) -> None:
    """A signal that is sent while the step begins to wait is never lost."""
    store = place.open()
    for _ in range(10):
        run = a_run(store)
        claim = claimed(store)
        same(claim.run, run, "the run that was claimed")
        works: list[Callable[[], bool]] = [
            partial(taken, partial(store.wait, claim, SIGNAL), "wait_over"),
            partial(taken, partial(store.signal, run, "go"), ""),
        ]
        waited, _ = together(works, "wait and signal")
        store.finish(claimed(store) if waited else claim)
        same(status(store, run), "completed", "the status of the run")


@clause("wait.needs_an_end")
def needs_an_end(place: Place) -> None:
    """A wait for nothing, or for what can never come, is refused."""
    store = place.open()
    run = a_run(store)
    claim = claimed(store)
    refused(store, "nothing_to_wait_for", [run], {"wait": lambda: store.wait(claim, [])})
    refused(store, "bad_wait", [run], {"wait": lambda: store.wait(claim, [{"on": "signal"}])})
    store.finish(claim)


@clause("cancel.without_a_worker")
def cancel_without(place: Place) -> None:
    """A run that nobody works on is cancelled at once, pending or waiting, and never claimed again."""
    store = place.open()
    waiting = a_run(store)
    store.wait(claimed(store), SIGNAL)
    pending = a_run(store)
    for run in (waiting, pending):
        store.cancel(run, by="dana")
        same(status(store, run), "cancelled", "the status of a run that was cancelled")
    unclaimed(store, "both runs are cancelled")


@clause("cancel.asks_the_worker")
def cancel_asks(place: Place) -> None:
    """A run that is worked on ends when its worker lets go, is given to nobody else, and is asked once."""
    store = place.open()
    run = a_run(store)
    claim = claimed(store)
    store.cancel(run, by="dana")
    same(status(store, run), "running", "the status of a run whose worker was asked to stop")
    before = len(list(store.read(run)))
    store.cancel(run, by="dana")
    same(len(list(store.read(run))), before, "the records after it was asked a second time")
    waits: dict[str, Callable[[], object]] = {"wait": lambda: store.wait(claim, SIGNAL)}
    refused(store, "cancel_requested", [run], waits)
    store.release(claim)
    same(status(store, run), "cancelled", "the status after the worker let go")
    unclaimed(store, "the run is cancelled")


# State.


@clause("state.patches_merge")
def patches_merge(place: Place) -> None:
    """A patch merges into the state (RFC 7396) and answers with the next version."""
    store = place.open()
    run = a_run(store, state={"n": 1, "keep": {"a": 1, "b": 2}})
    claim = claimed(store)
    version = store.patch(claim, {"n": None, "keep": {"b": 3}}, expected_version=claim.state_version)
    same(version, claim.state_version + 1, "the version that a patch answers with")
    store.patch(claim, {"more": [1]}, expected_version=version)
    same_json(store.state(run)["state"], {"keep": {"a": 1, "b": 3}, "more": [1]}, "the state")
    same(store.state(run)["state_version"], version + 1, "the version of the state")
    store.release(claim)
    again = claimed(store)
    same_json([again.state, again.state_version], [store.state(run)["state"], version + 1], "the next claim")


@clause("state.version_guards")
def version_guards(place: Place) -> None:
    """A patch for another version than the state's is refused (state_conflict)."""
    store = place.open()
    run = a_run(store, state={"n": 0})
    claim = claimed(store)
    version = store.patch(claim, {"n": 1}, expected_version=claim.state_version)
    works: dict[str, Callable[[], object]] = {
        "patch for an older version": lambda: store.patch(claim, {"n": 2}, expected_version=version - 1),
        "patch for a newer version": lambda: store.patch(claim, {"n": 2}, expected_version=version + 1),
    }
    refused(store, "state_conflict", [run], works)
    store.patch(claim, {"n": 2}, expected_version=version)
    same_json(store.state(run)["state"], {"n": 2}, "the state after the right patch")


@clause("state.one_patch_wins")
def one_patch_wins(place: Place) -> None:
    """Of patches for one version that are made at the same time, one is taken."""
    store = place.open()
    run = a_run(store)
    claim = claimed(store)
    version = claim.state_version

    def patch(at: int) -> bool:
        change = {"winner": at}
        return taken(lambda: store.patch(claim, change, expected_version=version), "state_conflict")

    won = together([partial(patch, at) for at in range(WORKERS)], "patch")
    same(sum(won), 1, "patches that were taken")
    same_json(store.state(run)["state"], {"winner": won.index(True)}, "the state")
    same(store.state(run)["state_version"], version + 1, "the version of the state")


@clause("state.time_travel")
def time_travel(place: Place) -> None:
    """The fold at a record is what the fold was when that record was the newest."""
    store = place.open()
    run = a_run(store, state={"n": 0})
    claim = claimed(store)
    seen: dict[int, Any] = {}
    steps: list[Callable[[], object]] = [
        lambda: store.append(run, NOTE, {"text": "a"}, claim=claim),
        lambda: store.patch(claim, {"n": 1}, expected_version=claim.state_version),
        lambda: store.signal(run, "go"),
        lambda: store.patch(claim, {"n": 2, "m": 1}, expected_version=claim.state_version + 1),
        lambda: store.finish(claim, result="done"),
        lambda: store.append(run, NOTE, {"text": "late"}),
    ]
    for step in steps:
        step()
        seen[last(store, run).seq] = store.state(run)
    for seq, state in seen.items():
        same(store.state(run, at=seq), state, f"the fold at record {seq}")
    states = [state["state"] for state in seen.values()]
    same(states[:4], [{"n": 0}, {"n": 1}, {"n": 1}, {"n": 2, "m": 1}], "the states on the way")
