"""Stories of the low-level door: what is written, what is refused, and that a refusal changes nothing.

Each story runs on a store in memory and on one in a folder, with a clock that is moved by hand.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest
from tests.support import refusal

import holdfast as hf
from holdfast import _core
from holdfast.store import Claim, FakeClock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

DOOR = {"note.logged", "cost.recorded", "artifact.created", "checkpoint.created"}
INLINE_BYTES_MAX = 64 * 1024


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture(params=["memory", "folder"])
def store(request: pytest.FixtureRequest, tmp_path: Path, clock: FakeClock) -> Iterator[hf.Store]:
    with hf.open("memory:" if request.param == "memory" else tmp_path / "s", clock=clock) as opened:
        yield opened
        report = opened.verify()
    assert (report.ok, report.problems) == (True, []), "every story ends with a store that verifies"


def taken(store: hf.Store, worker: str = "w1", **options: Any) -> Claim:
    """A claim that must be had."""
    claim = store.claim(worker=worker, **options)
    assert claim is not None
    return claim


def kinds(store: hf.Store, run: str, after: int = 0) -> list[str]:
    return [record.kind for record in store.read(run, after=after)]


def status(store: hf.Store, run: str) -> str:
    """Of the run, as its fold and as its row have it."""
    row = store.sql("SELECT status FROM runs WHERE id = ?", [run])
    folded = str(store.state(run)["status"])
    assert row == [{"status": folded}]
    return folded


def step_of(store: hf.Store, run: str) -> dict[str, Any]:
    (step,) = store.state(run)["steps"].values()
    assert isinstance(step, dict)
    return step


def refused(store: hf.Store, run: str, work: Callable[..., object], *arguments: object) -> str:
    """The code of a refusal, after which the run is what it was."""
    before = store.state(run)
    code, _ = refusal(work, *arguments)
    assert store.state(run) == before
    return code


def test_a_run_is_created_claimed_patched_and_finished(store: hf.Store, clock: FakeClock) -> None:
    run = store.create_run(
        agent="import",
        input={"file": "a.csv"},
        state={"rows": 0},
        by="dana",
        labels={"team": "ops"},
        step="load",
    )
    assert status(store, run) == "pending"
    claim = taken(store, lease=30)
    assert (claim.run, claim.agent, claim.name, claim.worker) == (run, "import", "load", "w1")
    assert (claim.fence, claim.attempt, claim.state_version, claim.lease) == ((1, 1), 1, 0, 30.0)
    assert (claim.input, claim.state) == ({"file": "a.csv"}, {"rows": 0})
    assert "a.csv" not in repr(claim)
    assert (status(store, run), store.claim(worker="w2")) == ("running", None)

    clock.advance(seconds=1)
    assert store.patch(claim, {"rows": 3, "file": "a.csv"}, expected_version=0) == 1
    assert store.append(run, "note.logged", {"text": "half way"}, claim=claim) == 5
    assert store.patch(claim, {"file": None}, expected_version=1) == 2
    store.finish(claim, result={"rows": 3})
    assert status(store, run) == "completed"
    assert (store.state(run)["state"], store.state(run)["state_version"]) == ({"rows": 3}, 2)

    records = list(store.read(run))
    assert [(record.seq, record.kind, record.by["id"]) for record in records] == [
        (1, "run.created", "dana"),
        (2, "step.created", "dana"),
        (3, "step.claimed", "w1"),
        (4, "state.patched", "w1"),
        (5, "note.logged", "w1"),
        (6, "state.patched", "w1"),
        (7, "step.completed", "w1"),
        (8, "run.finished", "w1"),
    ]
    assert [record.at for record in records] == [1_763_251_200_000] * 3 + [1_763_251_201_000] * 5
    assert records[0].value["input"] == {"file": "a.csv"}
    assert records[3].value["patch"] == {"rows": 3, "file": "a.csv"}
    assert records[4].value == {"level": "info", "text": "half way"}
    assert records[7].value["result"] == {"rows": 3}
    assert store.claim(worker="w2") is None


def test_a_patch_for_another_version_is_refused(store: hf.Store) -> None:
    run = store.create_run(agent="import", state={"n": 0})
    claim = taken(store)
    assert store.patch(claim, {"n": 1}, expected_version=0) == 1
    for version in (0, 2, 99):
        conflict = refused(store, run, lambda at=version: store.patch(claim, {"n": 9}, expected_version=at))
        assert conflict == "state_conflict"
    assert store.patch(claim, {"n": 2}, expected_version=1) == 2
    assert store.state(run)["state"] == {"n": 2}


def test_a_failure_is_tried_again_after_growing_pauses_until_the_tries_are_used_up(
    store: hf.Store, clock: FakeClock
) -> None:
    run = store.create_run(agent="import", attempts=3)
    for attempt, longest in ((1, 1000), (2, 2000)):
        claim = taken(store)
        assert claim.attempt == attempt
        store.fail(claim, ValueError("no such file"))
        due = step_of(store, run)["not_before"]
        assert longest / 2 <= due - clock.wall_ms <= longest
        clock.set_wall(due - 1)
        assert store.claim(worker="early") is None
        clock.set_wall(due)
    store.fail(taken(store), "gave up")
    assert (status(store, run), store.claim(worker="late")) == ("failed", None)
    assert kinds(store, run, after=2) == ["step.claimed", "step.retry_scheduled"] * 2 + [
        "step.claimed",
        "step.failed",
        "run.finished",
    ]
    first, last = list(store.read(run))[3], list(store.read(run))[7]
    assert first.value["failure"] == {
        "error": "ValueError",
        "message": "no such file",
        "retryable": True,
        "source": "agent",
    }
    assert last.value["failure"]["message"] == "gave up"


def test_a_failure_for_good_ends_the_run_and_a_person_opens_it_again(store: hf.Store) -> None:
    run = store.create_run(agent="import", state={"kept": 1}, attempts=1)
    assert refused(store, run, lambda: store.retry(run, by="dana")) == "not_failed"
    store.fail(taken(store), "broken", retryable=False)
    assert status(store, run) == "failed"
    store.retry(run, by="dana")
    assert status(store, run) == "running"
    claim = taken(store, "w2")
    assert (claim.fence, claim.attempt, claim.state) == ((1, 2), 2, {"kept": 1})
    store.finish(claim, result=None)
    assert status(store, run) == "completed"
    assert refused(store, run, lambda: store.retry(run, by="dana")) == "not_failed"
    assert kinds(store, run, after=3) == [
        "step.failed",
        "run.finished",
        "run.retried",
        "step.claimed",
        "step.completed",
        "run.finished",
    ]


def test_a_lease_holds_while_it_is_renewed_and_is_lost_for_good(store: hf.Store, clock: FakeClock) -> None:
    run = store.create_run(agent="import")
    old = taken(store, lease=30)
    for _ in range(3):
        clock.advance(seconds=29)
        store.heartbeat(old)
    assert kinds(store, run) == ["run.created", "step.created", "step.claimed"], "renewals are no records"
    store.heartbeat(old, lease=100)
    clock.advance(seconds=99)
    assert store.claim(worker="w2") is None
    clock.advance(seconds=1)
    new = taken(store, "w2")
    assert (new.fence, new.attempt) == ((1, 2), 2)
    stale: list[Callable[[], object]] = [
        lambda: store.heartbeat(old),
        lambda: store.patch(old, {"n": 1}, expected_version=0),
        lambda: store.append(run, "note.logged", {"text": "late"}, claim=old),
        lambda: store.wait(old, [{"on": "signal", "subject": "go"}]),
        lambda: store.release(old),
        lambda: store.fail(old, "late"),
        lambda: store.finish(old, result="late"),
    ]
    assert [refused(store, run, work) for work in stale] == ["stale_fence"] * 7
    store.finish(new, result="in time")
    assert list(store.read(run))[-1].value["result"] == "in time"


def test_a_clock_that_jumps_shortens_no_lease_and_a_reboot_ends_it(store: hf.Store, clock: FakeClock) -> None:
    run = store.create_run(agent="import")
    claim = taken(store, lease=30)
    for wall_ms in (clock.wall_ms + 86_400_000, 1):
        clock.set_wall(wall_ms)
        assert store.claim(worker="w2") is None
        store.heartbeat(claim)
    clock.reboot()
    assert taken(store, "w2").fence == (1, 2)
    times = [record.at for record in store.read(run)]
    assert times == sorted(times), "records never go back in time"


def test_a_step_whose_workers_vanish_without_a_trace_fails_in_the_end(
    store: hf.Store, clock: FakeClock
) -> None:
    run = store.create_run(agent="import", attempts=2)
    taken(store, lease=1)
    clock.advance(seconds=2)
    taken(store, "w2", lease=1)
    clock.advance(seconds=2)
    assert store.claim(worker="w3") is None
    assert status(store, run) == "failed"
    assert list(store.read(run))[-1].value["failure"]["code"] == "attempts_exhausted"


def test_a_released_step_costs_no_attempt(store: hf.Store) -> None:
    run = store.create_run(agent="import", attempts=1)
    for n in range(1, 4):
        claim = taken(store)
        assert (claim.attempt, claim.fence) == (1, (1, n))
        store.release(claim)
    assert refused(store, run, lambda: store.release(claim)) == "stale_fence"
    store.finish(taken(store), result=None)
    assert status(store, run) == "completed"


def test_a_step_waits_for_a_signal_and_for_a_timer_without_a_worker(
    store: hf.Store, clock: FakeClock
) -> None:
    run = store.create_run(agent="import")
    claim = taken(store)
    assert refused(store, run, lambda: store.wait(claim, [])) == "nothing_to_wait_for"
    assert refused(store, run, lambda: store.wait(claim, [{"on": "signal"}])) == "bad_wait"
    store.wait(claim, [{"on": "signal", "subject": "go"}])
    assert (status(store, run), store.claim(worker="w2")) == ("waiting", None)
    assert store.sql("SELECT what, subject FROM waits") == [{"what": "signal", "subject": "go"}]
    store.signal(run, "other", {"n": 1})
    assert status(store, run) == "waiting"
    store.signal(run, "go", {"n": 2}, by="dana")
    assert status(store, run) == "running"
    again = taken(store, "w2")
    assert again.attempt == 1
    assert refused(store, run, lambda: store.wait(again, [{"on": "signal", "subject": "go"}])) == "wait_over"

    until = clock.wall_ms + 60_000
    store.wait(again, [{"on": "timer", "until": until}])
    clock.set_wall(until - 1)
    assert (status(store, run), store.claim(worker="w3")) == ("waiting", None)
    clock.set_wall(until)
    last = taken(store, "w3")
    assert refused(store, run, lambda: store.wait(last, [{"on": "timer", "until": until}])) == "wait_over"
    store.finish(last, result=None)
    assert kinds(store, run, after=3) == [
        "step.waiting",
        "signal.received",
        "signal.received",
        "step.woken",
        "step.claimed",
        "step.waiting",
        "step.woken",
        "step.claimed",
        "step.completed",
        "run.finished",
    ]
    signals = [record.value for record in store.read(run) if record.kind == "signal.received"]
    assert [(sent["name"], sent["payload"]) for sent in signals] == [("other", {"n": 1}), ("go", {"n": 2})]


def test_a_cancelled_run_ends_at_once_or_with_its_worker(store: hf.Store) -> None:
    idle = store.create_run(agent="import")
    store.cancel(idle, by="dana")
    assert (status(store, idle), store.claim(worker="w1")) == ("cancelled", None)
    assert kinds(store, idle, after=2) == ["run.cancel_requested", "step.cancelled", "run.finished"]
    for late in (
        lambda: store.cancel(idle, by="dana"),
        lambda: store.signal(idle, "go"),
        lambda: store.resume(idle, by="dana"),
    ):
        assert refused(store, idle, late) == "run_ended"

    busy = store.create_run(agent="import")
    claim = taken(store)
    store.cancel(busy, by="dana")
    assert status(store, busy) == "running", "its worker is asked, not killed"
    before = kinds(store, busy)
    store.cancel(busy, by="dana")
    assert kinds(store, busy) == before, "who got no answer asks again, and nothing more is written"
    go = [{"on": "signal", "subject": "go"}]
    assert refused(store, busy, lambda: store.wait(claim, go)) == "cancel_requested"
    store.fail(claim, "stopped because it was asked to")
    assert status(store, busy) == "cancelled"


def test_one_key_is_one_run(store: hf.Store) -> None:
    run = store.create_run(agent="import", input={"file": "a.csv", "n": 1}, key="a.csv")
    assert store.create_run(agent="import", input={"n": 1, "file": "a.csv"}, key="a.csv") == run
    before = store.stats()["frames"]
    for agent, value in (("import", {"file": "b.csv", "n": 1}), ("export", {"file": "a.csv", "n": 1})):
        with pytest.raises(hf.CommandError) as caught:
            store.create_run(agent=agent, input=value, key="a.csv")
        assert caught.value.code == "key_conflict"
        assert run in str(caught.value)
    assert store.stats()["frames"] == before
    assert store.create_run(agent="import", input={"file": "b.csv", "n": 1}, key="b.csv") != run
    with pytest.raises(TypeError, match="no option 'color'"):
        store.create_run(agent="import", color="red")


def test_a_claim_takes_the_best_step_that_the_worker_may_have(store: hf.Store) -> None:
    slow = store.create_run(agent="export", priority=-1)
    first = store.create_run(agent="import", concurrency_key="db")
    urgent = store.create_run(agent="import", priority=5, concurrency_key="db")
    other = store.create_run(agent="import", queue="gpu")
    assert taken(store, agents=["export"]).run == slow
    claim = taken(store, queues=["default"])
    assert claim.run == urgent, "priority before age"
    assert store.claim(worker="w2", queues=["default"]) is None, "its concurrency key is taken"
    assert taken(store, queues=["gpu"]).run == other
    store.finish(claim, result=None)
    assert taken(store, "w2").run == first


@pytest.mark.parametrize("lease", [0.01, 10 * 86_400.0])
def test_a_lease_out_of_bounds_is_refused_and_not_taken_for_a_lack_of_work(
    store: hf.Store, lease: float
) -> None:
    run = store.create_run(agent="import")
    assert refused(store, run, lambda: store.claim(worker="w1", lease=lease)) == "limit_exceeded"
    claim = taken(store)
    assert refused(store, run, lambda: store.heartbeat(claim, lease=lease)) == "limit_exceeded"


def test_the_door_takes_notes_costs_artifacts_checkpoints_and_vendors_only(store: hf.Store) -> None:
    run = store.create_run(agent="import")
    reserved = {token for token, *_ in _core.record_kinds()} - DOOR - {"x.*"}
    assert len(reserved) > 60
    for kind in [*sorted(reserved), "teleported", "note.x"]:
        assert refused(store, run, lambda kind=kind: store.append(run, kind, {})) == "kind_reserved", kind
    assert refused(store, run, lambda: store.append(run, "x.", {"data": {}})) == "unknown_kind"
    written = [
        store.append(run, "note.logged", {"text": "a", "level": "warning"}, by="dana"),
        store.append(run, "x.acme.scan", {"data": {"page": 1}, "content": [1, 2]}, privacy="sensitive"),
    ]
    assert written == [3, 4]
    note, scan = store.read(run, after=2)
    assert (note.value, note.by) == ({"level": "warning", "text": "a"}, {"id": "dana", "type": "human"})
    assert scan.value == {"data": {"page": 1}, "content": [1, 2]}
    assert scan.body["content"]["privacy"] == scan.fields["privacy"] == "sensitive"


def test_the_best_step_is_found_among_queues_agents_and_packages(store: hf.Store) -> None:
    asked = [("a", "q1", 0), ("b", "q2", 5), ("a", "q2", 3), ("c", "q1", 4), ("b", "q1", 1), ("a", "q1", 2)]
    runs = {}
    for agent, queue, priority in asked:
        package = {"agent": f"v{priority % 2}"}
        run = store.create_run(agent=agent, queue=queue, priority=priority, package=package)
        runs[run] = (agent, queue, priority)

    def order(**filters: Any) -> list[tuple[str, str, int]]:
        claims = []
        while claim := store.claim(worker="w", **filters):
            claims.append(claim)
        for claim in claims:
            store.release(claim)
        return [runs[claim.run] for claim in claims]

    best_first = sorted(asked, key=lambda one: -one[2])
    assert order() == best_first
    assert order(agents=["a", "c"]) == [one for one in best_first if one[0] in "ac"]
    assert order(queues=["q1"]) == [one for one in best_first if one[1] == "q1"]
    assert order(queues=["q1", "q2"], agents=["a"]) == [one for one in best_first if one[0] == "a"]
    assert order(agents=["d"]) == order(queues=["q3"]) == []


def test_a_worker_needs_its_claim_while_a_lease_is_live(store: hf.Store) -> None:
    run = store.create_run(agent="import")
    entry = {"body": {"level": "info", "text": "a"}, "kind": "note.logged", "privacy": "internal"}
    worker = {"id": "w1", "type": "worker"}

    def bare() -> object:
        return store._core.run(_core.Call.append(run, worker, None, [entry], "commit"))

    bare()  # nobody has the step
    claim = taken(store)
    assert refused(store, run, bare) == "claim_needed"
    store.append(run, "note.logged", {"text": "under the claim"}, claim=claim)
    store.append(run, "note.logged", {"text": "from a person"}, by="dana")
    fields = [record.fields for record in store.read(run, after=4)]
    assert [(field.get("fence"), field["by"]["type"]) for field in fields] == [
        ([1, 1], "worker"),
        (None, "human"),
    ]
    assert fields[0]["step"] == claim.step
    store.finish(claim, result=None)
    store.append(run, "note.logged", {"text": "after the end"}, by="dana")
    assert status(store, run) == "completed"


def test_records_that_are_appended_together_are_written_together_or_not(store: hf.Store) -> None:
    run = store.create_run(agent="import")
    notes = [("note.logged", {"text": f"note {n}"}) for n in range(50)]
    assert store.append_many(run, notes) == range(3, 53)
    records = list(store.read(run, after=2))
    assert len({record.position for record in records}) == 1, "one frame"
    assert [record.value["text"] for record in records] == [f"note {n}" for n in range(50)]
    for bad in (("run.finished", {}), ("note.logged", {"level": "loud", "text": "x"})):
        assert refused(store, run, lambda bad=bad: store.append_many(run, [*notes, bad])) in (
            "kind_reserved",
            "unknown_token",
        )
    assert store.append_many(run, []) == range(0)
    too_many = [("note.logged", {"text": "x"})] * 10_001
    assert refused(store, run, lambda: store.append_many(run, too_many)) == "limit_exceeded"
    assert store.append(run, "note.logged", {"text": "next"}, barrier=True) == 53


def test_large_contents_are_kept_as_blobs(store: hf.Store) -> None:
    # A JSON text has two quotes more than its characters.
    texts = ["x" * (INLINE_BYTES_MAX - 2), "y" * (INLINE_BYTES_MAX - 1), "z" * 1_000_000]
    run = store.create_run(agent="import", input="i" * 100_000, state={"s": "s" * 100_000})
    for text in texts:
        store.append(run, "note.logged", {"text": text})
    assert store.stats()["blobs"] == 4
    assert [record.value["text"] for record in store.read(run, after=2)] == texts
    claim = taken(store)
    assert (len(claim.input), len(claim.state["s"])) == (100_000, 100_000)
    store.patch(claim, {"s": None, "t": "t" * 100_000}, expected_version=0)
    assert store.state(run)["state"] == {"t": "t" * 100_000}
    assert store.gc(older_than=0) == (0, 0)
    assert store.verify().blobs == 5


def test_a_blob_is_kept_referred_to_read_and_collected(store: hf.Store) -> None:
    run = store.create_run(agent="import")
    data, left = bytes(range(256)) * 40, b"nobody wants this"
    kept, unused = store.put_blob(data, media="image/png", privacy="sensitive"), store.put_blob(left)
    assert (kept["bytes"], kept["media"], kept["privacy"]) == (len(data), "image/png", "sensitive")
    assert (store.get_blob(kept), store.get_blob(kept["commit"])) == (data, data)
    assert store.put_blob(data)["commit"] != kept["commit"], "salted: equal bytes cannot be told"
    store.append(run, "x.acme.scan", {"data": {}}, blobs={"content": kept})
    (record,) = store.read(run, after=2)
    assert (record.body["content"], record.value["content"]) == (kept, data)
    count, size = store.gc(older_than=0, dry_run=True)
    assert (count, store.get_blob(unused)) == (2, left)
    assert store.gc(older_than=0) == (count, size)
    assert refusal(store.get_blob, unused) == ("no_such_blob", None)
    assert refused(store, run, lambda: with_blob(store, run, unused)) == "no_such_blob"
    assert refused(store, run, lambda: with_blob(store, run, kept, "data")) == "unknown_field"
    assert store.get_blob(kept) == data


def with_blob(store: hf.Store, run: str, blob: dict[str, Any], position: str = "content") -> int:
    return store.append(run, "x.acme.scan", {"data": {}}, blobs={position: blob})


def test_a_young_blob_is_left_alone(store: hf.Store) -> None:
    blob = store.put_blob(b"referred to in a moment")
    assert store.gc() == (0, 0)
    assert store.get_blob(blob) == b"referred to in a moment"


def test_a_blob_that_is_not_what_the_entry_says_is_refused(store: hf.Store) -> None:
    # Otherwise the record could never be verified, or the run never be folded again.
    run = store.create_run(agent="import")
    blob = store.put_blob(b"not JSON")
    assert refused(store, run, lambda: with_blob(store, run, {**blob, "bytes": 5})) == "bad_value"
    json_media = {**blob, "media": "application/json"}
    assert refused(store, run, lambda: with_blob(store, run, json_media)) in ("bad_json", "bad_value")


def test_two_runs_refer_to_one_blob_and_one_is_forgotten(store: hf.Store) -> None:
    first, second = store.create_run(agent="a"), store.create_run(agent="b")
    blob = store.put_blob(b"shared")
    with_blob(store, first, blob)
    with_blob(store, second, blob)
    assert store.verify().problems == []
    store.cancel(first, by="dana")
    store.forget(first, by="dana")
    assert list(store.read(second))[-1].value["content"] == b"shared"


def test_forgetting_erases_what_was_said_and_leaves_a_chain_that_holds(store: hf.Store) -> None:
    run = store.create_run(agent="import", input="hunter2", state={"password": "hunter2"}, key="k")
    other = store.create_run(agent="other", input="kept")
    store.append(run, "note.logged", {"text": "hunter2" * 20_000})
    assert refused(store, run, lambda: store.forget(run, by="dana")) == "run_open"
    store.finish(taken(store, agents=["import"]), result="hunter2")
    hashes = [record.hash for record in store.read(run)]
    assert store.forget(run, by="dana", reason="she asked") == 5
    records = list(store.read(run))
    assert [record.hash for record in records[:-1]] == hashes
    assert (records[-1].kind, records[-1].body["reason"]) == ("content.erased", "she asked")
    with pytest.raises(hf.RecordError) as caught:
        _ = records[0].value
    assert caught.value.code == "content_erased"
    assert (store.state(run)["status"], store.state(run).get("state")) == ("completed", None)
    assert (store.forget(run, by="dana"), store.stats()["blobs"]) == (0, 0)
    assert next(iter(store.read(other))).value["input"] == "kept"
    report = store.verify()
    assert (report.ok, report.erased) == (True, 5)
    whole = store.sql("SELECT group_concat(body || coalesce(contents, '')) AS w FROM frames")
    assert "hunter2" not in whole[0]["w"]


@pytest.mark.parametrize("many", [False, True], ids=["one run", "many runs"])
def test_sixteen_threads_append_at_once(store: hf.Store, many: bool) -> None:
    runs = [store.create_run(agent="import") for _ in range(16 if many else 1)]
    told: list[list[int]] = [[] for _ in range(16)]
    start = threading.Barrier(16)

    def work(n: int) -> None:
        start.wait()
        run = runs[n % len(runs)]
        told[n] = [store.append(run, "note.logged", {"text": f"{n}.{k}"}) for k in range(200)]

    threads = [threading.Thread(target=work, args=(n,)) for n in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for at, run in enumerate(runs):
        mine = [seqs for n, seqs in enumerate(told) if n % len(runs) == at]
        assert all(seqs == sorted(seqs) for seqs in mine)
        count = 200 * len(mine)
        assert sorted(seq for seqs in mine for seq in seqs) == list(range(3, count + 3)), "dense"
        texts = {record.seq: record.value["text"] for record in store.read(run, after=2)}
        for n, seqs in enumerate(told):
            if n % len(runs) == at:
                assert [texts[seq] for seq in seqs] == [f"{n}.{k}" for k in range(200)]
    assert store.verify().records == 1 + 2 * len(runs) + 3200


def test_two_handles_on_one_folder_notice_what_the_other_wrote(tmp_path: Path) -> None:
    with hf.open(tmp_path / "s") as one, hf.open(tmp_path / "s") as other:
        run = one.create_run(agent="import", state={"n": 0})
        seqs = [door.append(run, "note.logged", {"text": "x"}) for _ in range(20) for door in (one, other)]
        assert seqs == list(range(3, 43))
        claim = taken(one)
        assert other.claim(worker="w2") is None
        assert other.patch(claim, {"n": 1}, expected_version=0) == 1
        assert refused(one, run, lambda: one.patch(claim, {"n": 2}, expected_version=0)) == "state_conflict"
        one.finish(claim, result=None)
        assert refused(other, run, lambda: other.signal(run, "go")) == "run_ended"
        assert (status(other, run), one.verify().records) == ("completed", 47)


SECRET = "hunter2"


def test_messages_never_contain_what_users_said(store: hf.Store) -> None:
    run = store.create_run(agent="import", input=SECRET, key=SECRET, state={"p": SECRET})
    claim = taken(store)
    nul = SECRET + "\0"
    works: list[Callable[[], object]] = [
        lambda: store.create_run(agent="other", input=SECRET, key=SECRET),
        lambda: store.create_run(agent=nul),
        lambda: store.create_run(agent="a", privacy=SECRET),
        lambda: store.create_run(agent="a", input={SECRET}),
        lambda: store.append(run, "note.logged", {"text": SECRET, "level": SECRET}),
        lambda: store.append(run, "note.logged", {"text": [SECRET, float("nan")]}),
        lambda: store.append(run, SECRET, {"text": "x"}),
        lambda: store.append(run, "note.logged", {"text": "x"}, by=nul),
        lambda: store.append(SECRET, "note.logged", {"text": "x"}),
        lambda: store.append(run, "x.acme.scan", {"data": {}}, blobs={"content": {"commit": SECRET}}),
        lambda: store.patch(claim, {"p": SECRET}, expected_version=7),
        lambda: store.signal(run, nul, SECRET),
        lambda: store.forget(run, by="dana", reason=SECRET * 1000),
        lambda: store.get_blob(SECRET),
        lambda: list(store.read(SECRET)),
        lambda: store.verify(heads={run: SECRET}),
        lambda: store.sql(f"SELECT '{SECRET}', nowhere FROM runs"),
        lambda: store.sql("SELECT ?", [SECRET, SECRET]),
        lambda: hf.open(f"postgresql://dana:{SECRET}@db/runs"),
    ]
    for at, work in enumerate(works):
        with pytest.raises(hf.HoldfastError) as caught:
            work()
        assert SECRET not in f"{caught.value} {caught.value!r} {caught.value.path}", at
