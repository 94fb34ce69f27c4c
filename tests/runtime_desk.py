"""A runtime with two tools, and a world that counts what was sent to it."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest

import holdfast as hf

if TYPE_CHECKING:
    from collections.abc import Iterator


class Provider:
    """The outside world: counts what was sent to it, attempts and not keys."""

    def __init__(self) -> None:
        self.sent: Counter[str] = Counter()

    def send(self, what: str) -> str:
        self.sent[what] += 1
        return f"receipt for {what}"


@pytest.fixture
def provider() -> Provider:
    return Provider()


@pytest.fixture
def address() -> str:
    """Where the store is; a module that has another fixture of this name tells the stories there."""
    return "memory:"


@pytest.fixture
def rt(provider: Provider, address: str) -> Iterator[hf.Runtime]:
    with hf.Runtime(address, suspend_grace=0.05, replay_grace=0.2) as runtime:

        @runtime.tool(effect="write")
        def send(what: str) -> str:
            return provider.send(what)

        @runtime.tool(effect="write", approval="always")
        async def wire(cents: int) -> str:
            return provider.send(f"wire {cents}")

        yield runtime


def kinds(rt: hf.Runtime, run: hf.Run) -> list[str]:
    return [record.kind for record in rt.store.read(run.id)]


def approve_all(rt: hf.Runtime) -> int:
    requests = rt.approvals.list()
    for request in requests:
        rt.approvals.approve(request.id, by="dana")
    return len(requests)
