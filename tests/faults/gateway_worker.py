"""A worker that pays through a gateway, says where it is, and stops there until it is told to go on.

``python -m tests.faults.gateway_worker FOLDER LEDGER TOOL [step]``; the provider is a file: one line per
payment, with the key that it was made under.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import holdfast as hf


class Provider:
    """Payments, as the other side keeps them."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def paid(self) -> list[str]:
        return self.path.read_text().split() if self.path.exists() else []

    def pay(self, key: str, *, honours_keys: bool) -> str:
        if not (honours_keys and key in self.paid()):
            with self.path.open("a") as ledger:
                ledger.write(f"{key}\n")
                ledger.flush()
                os.fsync(ledger.fileno())
        return f"receipt for {key}"


def main(folder: str, ledger: str, which: str, *stops: str) -> int:
    """Takes the step and works on it; says `claimed`, `before`, `after` and how it ended."""
    provider = Provider(Path(ledger))

    def reach(point: str) -> None:
        print(point, flush=True)
        if point in stops:
            sys.stdin.readline()  # until it is killed, or told to go on

    store = hf.open(folder)
    gate = hf.Gateway(store)

    def ask(call: hf.Call) -> object:
        found = call.key in provider.paid()
        return hf.Happened(f"receipt for {call.key}") if found else hf.DidNotHappen()

    def pay(cents: int, call: hf.Call) -> str:
        assert cents == 1999
        reach("before")
        receipt = provider.pay(call.key, honours_keys=which == "keyed")
        reach("after")
        return receipt

    options: dict[str, dict[str, Any]] = {
        "keyed": {"idempotent": hf.Keyed(ttl=3600)},
        "reconciled": {"reconcile": ask},
        "plain": {},
    }
    tool = gate.tool(effect="write", name="pay", **options[which])(pay)
    claim = store.claim(worker=f"w{os.getpid()}", lease=30)
    if claim is None:
        print("nothing", flush=True)
        return 0
    reach("claimed")

    def work(step: hf.gateway.Step) -> object:
        paid = step.call(tool, key="payment", cents=1999)
        reach("settled")
        return paid

    print(gate.attempt(claim, work), flush=True)
    store.close()
    return 0


def syncs(folder: str) -> int:
    """Prints how many syncs there were between asking for a write and its body."""
    store = hf.open(folder)
    gate = hf.Gateway(store)
    store.create_run(agent="support")
    claim = store.claim(worker="w1", lease=30)
    assert claim is not None
    store.barrier()
    before = store.stats()["syncs"]
    tool = gate.tool(effect="write", name="send")(lambda: print(store.stats()["syncs"] - before))
    gate.call(claim, tool, key="k1")
    store.close()
    return 0


if __name__ == "__main__":
    sys.exit(syncs(sys.argv[2]) if sys.argv[1] == "syncs" else main(*sys.argv[1:]))
