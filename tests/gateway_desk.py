"""A store, a gateway and a claimed step, for stories of calls."""

from __future__ import annotations

from typing import Any

import holdfast as hf


class Desk:
    """A store, a gateway and a claimed step; a list of what happened outside."""

    def __init__(self, **options: Any) -> None:
        self.store = hf.open(options.pop("url", "memory:"))
        self.gate = hf.Gateway(self.store, policy=options.pop("policy", None), by="dana")
        self.run = self.store.create_run(agent="support", **options)
        claim = self.store.claim(worker="w1", lease=30)
        assert claim is not None
        self.claim = claim
        self.happened: list[Any] = []

    def call(self, tool: Any, key: str, **arguments: Any) -> Any:
        return self.gate.call(self.claim, tool, key=key, **arguments)

    def kinds(self) -> list[str]:
        return [record.kind for record in self.store.read(self.run)]

    def since(self, kinds: list[str]) -> list[str]:
        return self.kinds()[len(kinds) :]


def refunds(desk: Desk, **options: Any) -> Any:
    @desk.gate.tool(**{"effect": "write", **options})
    def refund(order: str, cents: int, call: hf.Call) -> dict[str, str]:
        desk.happened.append((order, cents, call.key))
        return {"id": f"r{len(desk.happened)}"}

    return refund
