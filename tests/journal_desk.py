"""A run on the core in memory, and ways to forge its journal: a worker that refunds a customer vanishes,
another takes over, a person answers.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from holdfast import _core
from holdfast.errors import CommandError

if TYPE_CHECKING:
    from collections.abc import Callable

STORE = _core.id_new("sto", 1_763_251_200_000, bytes(10))
RUN = _core.id_new("run", 1_763_251_200_000, bytes(10))
STEP = _core.id_new("step", 1_763_251_200_000, bytes(10))
LEASE_MS = 30_000
TICKET = "my parcel never came"

DANA = {"id": "dana", "type": "human"}
SYSTEM = {"id": "holdfast", "type": "system"}


def _worker(name: str) -> dict[str, str]:
    return {"id": name, "type": "worker"}


def _package() -> dict[str, str]:
    parts = {"agent": "1", "python": "3.11"}
    digests = ("hooks", "instructions", "models", "policy", "tools")
    return parts | {part: _core.canonical_digest(part, domain="holdfast/package/v1") for part in digests}


@dataclass
class World:
    """A journal in memory, a clock that is moved by hand, and who holds the step."""

    journal: _core.Journal = field(default_factory=lambda: _core.Journal(STORE))
    wall_ms: int = 1_763_251_200_000
    boot_ms: int = 1_000
    requests: int = 0

    def ask(self, by: dict[str, str], command: str, **arguments: Any) -> list[dict[str, Any]]:
        """Has the core decide a command; returns the records that it wrote."""
        self.requests += 1
        entropy = _core.canonical_digest(self.requests).removeprefix("sha256:")
        request = {"by": by, "entropy": entropy, "command": {"command": command, **arguments}}
        now = {"boot_id": "demo", "boot_ms": self.boot_ms, "wall_ms": self.wall_ms}
        return [json.loads(text) for text in self.journal.transact(request, now)]

    def tick(self, ms: int) -> None:
        """Moves both clocks."""
        self.wall_ms += ms
        self.boot_ms += ms

    def claim(self, name: str) -> dict[str, Any]:
        """A worker takes the step."""
        written = self.ask(
            _worker(name),
            "claim",
            step=STEP,
            worker=name,
            lease_ms=LEASE_MS,
            package=_package(),
            strict=False,
        )
        return {"step": STEP, "fence": written[-1]["fence"]}


def _value(value: object, privacy: str = "internal") -> dict[str, object]:
    return {"privacy": privacy, "value": value}


def _create(world: World) -> None:
    run = {
        "agent": "support",
        "id": RUN,
        "input": _value(TICKET, "sensitive"),
        "labels": {},
        "mode": "live",
        "package": _package(),
        "priority": 0,
        "role": "support",
        "state": _value({}),
    }
    step = {
        "after": [],
        "id": STEP,
        "kind": "replayed",
        "name": "main",
        "queue": "default",
        "retry": {"backoff_max_ms": 60_000, "backoff_ms": 1_000, "max_attempts": 3},
    }
    world.ask(DANA, "create", run=run, steps=[step])


def play(say: Callable[[str], None]) -> World:
    """Plays the run and says what happens."""
    world = World()
    _create(world)
    first = world.claim("w1")
    world.ask(
        _worker("w1"), "patch", claim=first, patch=_value({"order": "42", "cents": 1999}), expected_version=0
    )
    say("w1 has the step, commits what it will refund, and is never heard of again")
    world.tick(LEASE_MS)
    world.ask(SYSTEM, "recover", step=STEP)
    second = world.claim("w2")
    say(f"its lease runs out; w2 takes over under fence {'.'.join(map(str, second['fence']))}")
    try:
        world.ask(_worker("w1"), "complete", claim=first, result=_value("refunded"))
    except CommandError as refused:
        say(f"w1 wakes up and wants to finish: [bold]{refused.code}[/bold], nothing written")
    world.ask(_worker("w2"), "wait", claim=second, waits=[{"on": "signal", "subject": "approved"}])
    say("w2 waits for a person and lets go of the step: waiting is a state, not a process")
    world.tick(3_600_000)
    world.ask(DANA, "signal", name="approved", payload=_value({"by": "dana"}))
    third = world.claim("w3")
    receipt = _value({"receipt": "re_7"}, "sensitive")
    world.ask(_worker("w3"), "complete", claim=third, result=receipt, patch=_value({"done": True}))
    say("an hour later dana answers; w3 goes on from the journal and completes the run")
    return world


def _flip(records: list[bytes]) -> list[bytes]:
    """One flipped bit in the name of who wrote record 3."""
    return [
        text.replace(b'"id":"w1"', b'"id":"w3"', 1) if n == 3 else text for n, text in enumerate(records, 1)
    ]


def forgeries(
    records: list[bytes], openings: dict[str, Any]
) -> list[tuple[str, list[bytes], dict[str, Any]]]:
    """Ways to alter the past: what is told, the records, the contents."""
    patch = next(
        json.loads(text)["body"]["patch"]["commit"] for text in records if b'"state.patched"' in text
    )
    richer = {**openings, patch: {**openings[patch], "value": {"order": "42", "cents": 199_900}}}
    return [
        ("one byte of record 3 changed", _flip(records), openings),
        ("record 5 removed", records[:4] + records[5:], openings),
        ("records 6 and 7 swapped", [*records[:5], records[6], records[5], *records[7:]], openings),
        ("the end cut off", records[:9], openings),
        ("another amount put beside record 4", records, richer),
    ]
