"""Profiles of the property tests: `make test` takes seconds, `make faults` as long as it takes."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

# A shared machine can stall any single case, so no case has a deadline: pytest's timeout is the guard.
settings.register_profile("short", max_examples=300, deadline=None)
settings.register_profile(
    "long", max_examples=20_000, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("short")
