"""Engines that are wrong about claims, leases and clocks."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from tests.conformance.passing import KnowsClaims, Passing, breaks

from holdfast.store import FakeClock

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from holdfast.conformance.store import AnyStore
    from holdfast.store import Claim

    Entry = tuple[str, Mapping[str, Any]]


@breaks("fence.invented", "fence.stale_after_release", "fence.stale_after_recovery", "lease.reboot")
class LetsAStaleFenceFinish(KnowsClaims):
    def finish(self, claim: Claim, *, result: object = None, privacy: str = "internal") -> None:
        self.inner.finish(self.newest.get(claim.step, claim), result=result, privacy=privacy)


@breaks(
    "claim.one_worker_each",
    "claim.many_threads",
    "claim.queues",
    "claim.agents",
    "claim.concurrency_key",
    "claim.concurrency_key_among_many",
    "lease.expires",
    "lease.heartbeat_prolongs",
    "lease.wall_clock_jumps",
)
class HandsAStepToTwo(KnowsClaims):
    def claim(self, **options: Any) -> Claim | None:
        claim = super().claim(**options)
        if claim is None:
            for held in list(self.newest.values()):
                if self.inner.state(held.run)["steps"][held.step]["status"] == "running":
                    return held
        return claim


@breaks("fence.grows", "fence.stale_after_release", "fence.stale_after_recovery", "lease.reboot")
class ReusesFences(KnowsClaims):
    """Every claim has fence 1, as if the lease alone were the guard."""

    def claim(self, **options: Any) -> Claim | None:
        claim = super().claim(**options)
        return None if claim is None else dataclasses.replace(claim, fence=(1, 1))

    def _real(self, claim: Claim) -> Claim:
        return self.newest[claim.step] if claim.fence == (1, 1) else claim

    def append(self, run: str, kind: str, body: Mapping[str, Any], **options: Any) -> int:
        if options.get("claim") is not None:
            options["claim"] = self._real(options["claim"])
        return self.inner.append(run, kind, body, **options)

    def append_many(self, run: str, entries: Iterable[Entry], **options: Any) -> range:
        if options.get("claim") is not None:
            options["claim"] = self._real(options["claim"])
        return self.inner.append_many(run, entries, **options)

    def heartbeat(self, claim: Claim, *, lease: float | None = None) -> None:
        self.inner.heartbeat(self._real(claim), lease=lease)

    def patch(self, claim: Claim, patch: Mapping[str, Any], **options: Any) -> int:
        return self.inner.patch(self._real(claim), patch, **options)

    def wait(self, claim: Claim, waits: Sequence[Mapping[str, Any]]) -> None:
        self.inner.wait(self._real(claim), waits)

    def release(self, claim: Claim, *, reason: str = "shutdown") -> None:
        self.inner.release(self._real(claim), reason=reason)

    def finish(self, claim: Claim, **options: Any) -> None:
        self.inner.finish(self._real(claim), **options)

    def fail(self, claim: Claim, error: BaseException | str, **options: Any) -> None:
        self.inner.fail(self._real(claim), error, **options)


@breaks(
    "refused.limit_exceeded",
    "fence.invented",
    "fence.stale_after_release",
    "fence.stale_after_use",
    "fence.stale_after_recovery",
    "lease.heartbeat_prolongs",
    "lease.reboot",
)
class IgnoresHeartbeats(Passing):
    def heartbeat(self, claim: Claim, **_: Any) -> None:
        self.inner.state(claim.run)


@breaks("claim.queues", "claim.agents")
class IgnoresFilters(Passing):
    def claim(self, *, worker: str, lease: float = 60.0, **_: Any) -> Claim | None:
        return self.inner.claim(worker=worker, lease=lease)


@breaks("order.priority")
class IgnoresPriorities(Passing):
    def create_run(self, *, agent: str, **options: Any) -> str:
        options.pop("priority", None)
        return self.inner.create_run(agent=agent, **options)


@breaks("order.deadline")
class IgnoresDeadlines(Passing):
    def create_run(self, *, agent: str, **options: Any) -> str:
        options.pop("deadline", None)
        return self.inner.create_run(agent=agent, **options)


@breaks("claim.concurrency_key", "claim.concurrency_key_among_many")
class IgnoresConcurrencyKeys(Passing):
    def create_run(self, *, agent: str, **options: Any) -> str:
        options.pop("concurrency_key", None)
        return self.inner.create_run(agent=agent, **options)


@breaks("fail.backs_off", "wait.timer_wakes")
class ClaimsBeforeTheTime(Passing):
    """Not-before and timers are not looked at."""

    def claim(self, **options: Any) -> Claim | None:
        if self.clock is None:
            return self.inner.claim(**options)
        now = self.clock.wall_ms
        self.clock.set_wall(now + 3_600_000)
        try:
            return self.inner.claim(**options)
        finally:
            self.clock.set_wall(now)


# Clocks: what is inside reads another clock than the one that the suite moves.


class OtherClock(Passing):
    """Sets the clock of the engine inside before every claim."""

    def claim(self, **options: Any) -> Claim | None:
        if self.clock is None:
            return self.inner.claim(**options)
        true = (self.clock.wall_ms, self.clock.boot_ms, self.clock.boot)
        self.clock.wall_ms, self.clock.boot_ms, self.clock.boot = self.seen(self.clock)
        self.clock.advance(seconds=0)
        try:
            return self.inner.claim(**options)
        finally:
            self.clock.wall_ms, self.clock.boot_ms, self.clock.boot = true
            self.clock.advance(seconds=0)

    def seen(self, clock: FakeClock) -> tuple[int, int, str]:
        raise NotImplementedError


@breaks("lease.heartbeat_prolongs", "lease.wall_clock_jumps")
class LeasesOnTheWallClock(OtherClock):
    def seen(self, clock: FakeClock) -> tuple[int, int, str]:
        return clock.wall_ms, clock.wall_ms, clock.boot


@breaks("lease.reboot")
class LeasesOutliveTheBoot(OtherClock):
    def seen(self, clock: FakeClock) -> tuple[int, int, str]:
        return clock.wall_ms, clock.boot_ms, FakeClock().boot


@breaks("claim.nothing_to_do", "claim.concurrency_key")
class RepeatsFinishedWork(KnowsClaims):
    def claim(self, **options: Any) -> Claim | None:
        claim = super().claim(**options)
        done = [
            held for held in list(self.newest.values()) if self.inner.state(held.run)["status"] == "completed"
        ]
        return done[0] if claim is None and done else claim


@breaks("contents.resolved", "claim.brings_the_work")
class BringsNoInput(Passing):
    def claim(self, **options: Any) -> Claim | None:
        claim = self.inner.claim(**options)
        return None if claim is None else dataclasses.replace(claim, input=None)


@breaks("claim.concurrency_key", "order.age")
class LastInFirstOut(Passing):
    def __init__(self, inner: AnyStore, clock: FakeClock | None) -> None:
        super().__init__(inner, clock)
        self.runs = 0

    def create_run(self, *, agent: str, **options: Any) -> str:
        self.runs += 1
        options["priority"] = options.get("priority", 0) + self.runs
        return self.inner.create_run(agent=agent, **options)


@breaks("order.ageing")
class StarvesTheUnimportant(Passing):
    """However old a step is, a higher priority comes first."""

    def create_run(self, *, agent: str, **options: Any) -> str:
        options["priority"] = options.get("priority", 0) * 10_000
        return self.inner.create_run(agent=agent, **options)


@breaks("lease.costs_attempts", "fail.ends_the_run")
class TriesForEver(Passing):
    def create_run(self, *, agent: str, **options: Any) -> str:
        return self.inner.create_run(agent=agent, **{**options, "attempts": 1000})
