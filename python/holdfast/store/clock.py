"""A clock that stands until it is moved: for tests of leases, timers and expiries."""

from __future__ import annotations

from holdfast import _core


class FakeClock:
    """Passed to :func:`holdfast.open`, it is the only clock that the store reads.

    >>> clock = FakeClock()
    >>> clock.advance(seconds=90)
    >>> clock.wall_ms
    1763251290000
    """

    def __init__(
        self, wall_ms: int = 1_763_251_200_000, boot_ms: int = 1_000_000, boot: str = "boot-1"
    ) -> None:
        self.wall_ms = wall_ms
        self.boot_ms = boot_ms
        self.boot = boot
        self.core = _core.FakeClock(self._now())

    def _now(self) -> dict[str, str | int]:
        return {"boot_id": self.boot, "boot_ms": self.boot_ms, "wall_ms": self.wall_ms}

    def advance(self, *, seconds: float) -> None:
        """Time passes, on the wall and since boot."""
        self.wall_ms += round(seconds * 1000)
        self.boot_ms += round(seconds * 1000)
        self.core.set(self._now())

    def set_wall(self, wall_ms: int) -> None:
        """Somebody sets the wall clock; the time since boot goes on as before."""
        self.wall_ms = wall_ms
        self.core.set(self._now())

    def reboot(self) -> None:
        """The machine is started again."""
        self.boot, self.boot_ms = f"{self.boot}+", 1
        self.core.set(self._now())
