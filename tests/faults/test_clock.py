"""Clocks that jump: backwards, forwards, and to another boot.

A lease is measured since boot, so that nobody who sets the wall clock shortens or prolongs it; after a
reboot it has ended. The order of records never depends on a clock, and a stale claim changes nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import holdfast
from holdfast.store import FakeClock

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.faults.processes import Zygote

    from holdfast import Claim, Store

HOUR = 3_600_000
DAYS = 10 * 24 * HOUR
NOTE = "note.logged"


def claimed(store: Store, lease: float = 60) -> Claim:
    store.create_run(agent="a")
    claim = store.claim(worker="w1", lease=lease)
    assert claim is not None
    return claim


def refusal(error: pytest.ExceptionInfo[holdfast.CommandError]) -> str:
    return error.value.code


@pytest.mark.parametrize("jump", [-HOUR, DAYS], ids=["an hour back", "ten days on"])
def test_setting_the_wall_clock_neither_shortens_nor_prolongs_a_lease(tmp_path: Path, jump: int) -> None:
    clock = FakeClock()
    with holdfast.open(tmp_path / "store", clock=clock) as store:
        claim = claimed(store)
        clock.set_wall(clock.wall_ms + jump)
        clock.advance(seconds=59)
        assert store.claim(worker="w2") is None
        version = store.patch(claim, {"step": 1}, expected_version=0)
        store.heartbeat(claim, lease=60)
        clock.set_wall(clock.wall_ms + jump)
        clock.advance(seconds=59)
        assert store.claim(worker="w2") is None
        clock.advance(seconds=2)
        taken = store.claim(worker="w2")
        assert taken is not None
        assert taken.fence > claim.fence
        assert (taken.state, taken.state_version) == ({"step": 1}, version)
        with pytest.raises(holdfast.CommandError) as stale:
            store.finish(claim)
        assert refusal(stale) == "stale_fence"
        store.finish(taken)
        assert store.state(claim.run)["status"] == "completed"
        assert store.verify().ok


@pytest.mark.parametrize("jump", [-HOUR, DAYS], ids=["an hour back", "ten days on"])
def test_records_keep_their_order_when_the_wall_clock_jumps(tmp_path: Path, jump: int) -> None:
    clock = FakeClock()
    folder = tmp_path / "store"
    with holdfast.open(folder, clock=clock) as store:
        run = store.create_run(agent="a")
        texts = []
        for count in range(6):
            texts.append(f"note {count}")
            store.append(run, NOTE, {"text": texts[-1]})
            clock.set_wall(clock.wall_ms + (jump if count % 2 == 0 else -jump))
    # Whoever opens it under another time finds the same, and goes on.
    with holdfast.open(folder, clock=FakeClock(wall_ms=clock.wall_ms - DAYS)) as store:
        store.append(run, NOTE, {"text": "later"}, barrier=True)
        records = list(store.read(run))
        assert [record.seq for record in records] == list(range(1, len(records) + 1))
        assert [record.value["text"] for record in records if record.kind == NOTE] == [*texts, "later"]
        assert store.verify().ok


def test_a_reboot_ends_every_lease_whatever_the_clocks_say(tmp_path: Path) -> None:
    clock = FakeClock(boot_ms=1_000)
    with holdfast.open(tmp_path / "store", clock=clock) as store:
        claim = claimed(store, lease=24 * 3600)
        clock.reboot()
        # The new boot's clock starts again from nothing: the old lease would seem to have days to run.
        taken = store.claim(worker="w2", lease=60)
        assert taken is not None
        assert taken.run == claim.run
        lates: list[Callable[[Claim], object]] = [store.heartbeat, store.finish, store.release]
        for late in lates:
            with pytest.raises(holdfast.CommandError) as stale:
                late(claim)
            assert refusal(stale) == "stale_fence"
        store.finish(taken, result="second")
        assert store.verify().ok


def test_a_suspended_machine_wakes_with_its_leases_run_out(tmp_path: Path) -> None:
    clock = FakeClock()
    with holdfast.open(tmp_path / "store", clock=clock) as store:
        claim = claimed(store, lease=60)
        clock.advance(seconds=8 * 3600)  # the time since boot counts while the machine sleeps
        taken = store.claim(worker="w2", lease=60)
        assert taken is not None
        with pytest.raises(holdfast.CommandError) as stale:
            store.patch(claim, {"late": True}, expected_version=0)
        assert refusal(stale) == "stale_fence"
        assert store.state(claim.run)["state"] == {}


def test_a_timer_waits_for_the_wall_clock_and_survives_its_jumps(tmp_path: Path) -> None:
    clock = FakeClock()
    with holdfast.open(tmp_path / "store", clock=clock) as store:
        claim = claimed(store)
        store.wait(claim, [{"on": "timer", "until": clock.wall_ms + HOUR}])
        clock.set_wall(clock.wall_ms - HOUR)
        clock.advance(seconds=3600)
        assert store.claim(worker="w2") is None, "by the clock on the wall it is still early"
        clock.set_wall(clock.wall_ms + DAYS)
        woken = store.claim(worker="w2")
        assert woken is not None
        assert woken.run == claim.run
        assert store.verify().ok


def test_an_expired_worker_that_was_only_slow_changes_nothing(zygote: Zygote, tmp_path: Path) -> None:
    """Two processes, two clocks that disagree: the store's rows decide, not the worker's belief."""
    folder = tmp_path / "store"
    behind, ahead = FakeClock(), FakeClock()
    ahead.advance(seconds=3600)
    with holdfast.open(folder, clock=behind) as slow, holdfast.open(folder, clock=ahead) as quick:
        claim = claimed(slow, lease=60)
        taken = quick.claim(worker="w2", lease=60)
        assert taken is not None
        assert taken.run == claim.run
        with pytest.raises(holdfast.CommandError) as stale:
            slow.finish(claim, result="late")
        assert refusal(stale) == "stale_fence"
        # A process that knows nothing of either clock reads the same.
        other = zygote.start("holder", folder)
        other.told("open")
        quick.finish(taken, result="in time")
        assert slow.state(claim.run)["status"] == "completed"
        assert slow.verify().ok
