"""A governed call from Python: two hooks, ten rules, a budget and the ledger, on a store in memory."""

from __future__ import annotations

import asyncio
import itertools
import time
from typing import TYPE_CHECKING, Any

import holdfast as hf
from holdfast import gateway as gw
from measure import Spread

if TYPE_CHECKING:
    from collections.abc import Callable

PACKAGES: list[str] = []
ROUNDS, CALLS, GOAL = 15, 100, 60.0


def _policy() -> hf.Policy:
    condition = 'when = {{ "args.cents" = {{ max = 5 }} }}'
    rule = f'[[rule]]\nname = "{{0}}"\ntool = "other{{0}}"\n{condition}\ndecide = "deny"\n'
    return hf.Policy.load("".join(rule.format(n) for n in range(10)))


def _gateway(hooks: int, *, rules: bool) -> tuple[hf.Gateway, Any]:
    store = hf.open("memory:")
    gate = hf.Gateway(store, policy=_policy() if rules else None)
    for n in range(hooks):

        async def observe(_: gw.Subject) -> None:
            return None

        gate.hook("before_tool_call", name=f"hook{n}")(observe)

    @gate.tool(effect="write")
    async def pay(order: str, cents: int) -> dict[str, str]:
        return {"id": order, "cents": str(cents)}

    return gate, pay


def _claimed(gate: hf.Gateway) -> hf.Claim:
    gate.store.create_run(agent="bench", budget={"on_exceeded": "refuse", "tool_calls": 10**9})
    claim = gate.store.claim(worker="w", lease=3600)
    assert claim is not None
    return claim


def _timed(work: Callable[[hf.Claim, int], Any], gate: hf.Gateway) -> float:
    """Microseconds per call, on a new run each round: what a run has behind it is measured elsewhere."""
    claim = _claimed(gate)

    async def calls() -> float:
        begun = time.perf_counter()
        for n in range(CALLS):
            await work(claim, n)
        return (time.perf_counter() - begun) / CALLS * 1e6

    return asyncio.run(calls())


def section() -> str:
    """Measures and returns Markdown."""
    keys = itertools.count()
    contestants: dict[str, tuple[hf.Gateway, Callable[[hf.Claim, int], Any]]] = {}

    def add(name: str, hooks: int, *, rules: bool, again: bool = False) -> None:
        gate, tool = _gateway(hooks, rules=rules)

        def call(claim: hf.Claim, n: int) -> Any:  # noqa: ANN401
            key = "the same" if again else f"k{next(keys)}-{n}"
            return gate.acall(claim, tool, key=key, order="42", cents=1999)

        contestants[name] = (gate, call)

    add("2 hooks, 10 rules, budget", 2, rules=True)
    add("10 rules, budget", 0, rules=True)
    add("budget", 0, rules=False)
    add("2 hooks, 10 rules, served again", 2, rules=True, again=True)
    samples: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(ROUNDS):
        for name, (gate, call) in contestants.items():
            samples[name].append(_timed(call, gate))
    ours = samples["2 hooks, 10 rules, budget"]
    rows = [
        f"| {name} | {Spread.of(found)} | {Spread.of([a / b for a, b in zip(found, ours, strict=True)])} |"
        for name, found in samples.items()
    ]
    lines = "\n".join(rows)
    return f"""## The gateway

One write through the gateway from asyncio, on a store in memory: opened, decided, permitted, run, settled.
{ROUNDS} interleaved rounds of {CALLS} calls, each on a run of its own; microseconds per call. The goal for
the first row is {GOAL:.0f} beyond the body, which does nothing.

| what is in the way | microseconds | of the first row |
| --- | --- | --- |
{lines}
"""


if __name__ == "__main__":
    print(section())
