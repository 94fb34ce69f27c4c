"""Engines that are wrong about outcomes, waits and state."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.conformance.passing import KnowsClaims, Passing, breaks

from holdfast.errors import HoldfastError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from holdfast.conformance.store import AnyStore
    from holdfast.store import Claim, FakeClock


@breaks("state.version_guards", "state.one_patch_wins")
class IgnoresVersions(Passing):
    def patch(self, claim: Claim, patch: Mapping[str, Any], *, expected_version: int, **options: Any) -> int:
        for version in (expected_version, *range(1000)):
            try:
                return self.inner.patch(claim, patch, expected_version=version, **options)
            except HoldfastError as error:
                if error.code != "state_conflict":
                    raise
        return expected_version


@breaks("state.patches_merge")
class ReplacesInsteadOfMerging(Passing):
    def patch(self, claim: Claim, patch: Mapping[str, Any], **options: Any) -> int:
        state = self.inner.state(claim.run)["state"]
        return self.inner.patch(claim, {**dict.fromkeys(state), **patch}, **options)


@breaks("fence.stale_after_release", "release.costs_nothing", "state.patches_merge")
class ReleaseCostsAnAttempt(Passing):
    def release(self, claim: Claim, *, reason: str = "shutdown") -> None:
        self.inner.heartbeat(claim)  # a stale one is refused as ever
        if self.inner.state(claim.run)["cancel_requested"]:
            self.inner.release(claim, reason=reason)
        else:
            self.inner.fail(claim, reason)


@breaks("wait.signal_wakes")
class AnySignalWakes(KnowsClaims):
    def __init__(self, inner: AnyStore, clock: FakeClock | None) -> None:
        super().__init__(inner, clock)
        self.awaited: dict[str, str] = {}

    def wait(self, claim: Claim, waits: Sequence[Mapping[str, Any]]) -> None:
        self.inner.wait(claim, waits)
        self.awaited[claim.run] = waits[0].get("subject", "")

    def signal(self, run: str, name: str, value: object = None, *, by: str = "holdfast") -> None:
        self.inner.signal(run, self.awaited.get(run, name), value, by=by)


@breaks(
    "append.after_the_end",
    "cancel.without_a_worker",
    "cancel.asks_the_worker",
    "verify.everything",
    "verify.one_run",
    "verify.kept_heads",
    "stats.count_runs",
)
class IgnoresCancels(Passing):
    """A cancel is answered and forgotten."""

    def cancel(self, run: str, **_: Any) -> None:
        self.inner.state(run)


@breaks("state.time_travel")
class KnowsOnlyNow(Passing):
    def state(self, stream: str, **_: Any) -> Mapping[str, Any]:
        return self.inner.state(stream)


@breaks("retry.reopens")
class RetriesAnything(Passing):
    def retry(self, run: str, *, by: str) -> None:
        try:
            self.inner.retry(run, by=by)
        except HoldfastError as error:
            if error.code != "not_failed":
                raise


@breaks("wait.nothing_lost", "wait.races_with_its_signal")
class LosesWakeUps(Passing):
    """A step waits for what is already there, and so for ever."""

    def wait(self, claim: Claim, waits: Sequence[Mapping[str, Any]]) -> None:
        _wait_for_ever(self.inner, claim, waits, "wait_over")


@breaks("wait.needs_an_end")
class WaitsForNothing(Passing):
    def wait(self, claim: Claim, waits: Sequence[Mapping[str, Any]]) -> None:
        _wait_for_ever(self.inner, claim, waits, "nothing_to_wait_for")


def _wait_for_ever(inner: AnyStore, claim: Claim, waits: Sequence[Mapping[str, Any]], code: str) -> None:
    try:
        inner.wait(claim, waits)
    except HoldfastError as error:
        if error.code != code:
            raise
        inner.wait(claim, [{"on": "signal", "subject": "never"}])
