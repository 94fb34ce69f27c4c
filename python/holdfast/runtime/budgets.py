"""Budgets of runs: what stands in the account, what a person adds to it, and what a child takes along."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.store.commands import payload

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.runtime.runtime import Runtime

Json = dict[str, Any]
ACCOUNTS = ("tool_calls", "tokens", "usd_micros", "children")


def told(runtime: Runtime, run: str) -> Json:
    """A run's budget, by account."""
    fold = runtime.store.state(run)
    limits, spending = fold.get("budget") or {}, fold["spending"]
    found: Json = {}
    for account in ACCOUNTS:
        used = (spending.get("used") or {}).get(account) or 0
        reserved = sum(amounts.get(account) or 0 for amounts in spending["reserved"].values())
        held = sum(amounts.get(account) or 0 for amounts in spending["escrowed"].values())
        raised = (spending.get("raised") or {}).get(account) or 0
        limit = None if limits.get(account) is None else limits[account] + raised
        left = None if limit is None else limit - used - reserved - held
        found[account] = {
            "limit": limit,
            "raised": raised,
            "used": used,
            "reserved": reserved,
            "escrowed": held,
            "left": left,
        }
    return found


def raises(amounts: Mapping[str, int | None], reason: str | None) -> Json:
    """The command that gives a run more than its budget."""
    unknown = sorted(amounts.keys() - set(ACCOUNTS))
    if unknown:
        raise TypeError(f"no account is called {unknown[0]!r}; there are {', '.join(ACCOUNTS)}")
    command: Json = {"amounts": {name: more for name, more in amounts.items() if more is not None}}
    if reason is not None:
        command["reason"] = payload(reason, "internal")
    return command | {"command": "raise"}


def child_budget(own: Mapping[str, Any] | None, slice_: Mapping[str, int]) -> Json | None:
    """What a child may use: its slice of its parent's budget, under the limits of its own; without a slice,
    what any run of its agent may."""
    if not slice_:
        return {"on_exceeded": "refuse", **own} if own else None
    limits = {name: limit for name, limit in (own or {}).items() if name not in ACCOUNTS}
    return {"on_exceeded": "refuse", **limits, **slice_}


def escrowed(own: Mapping[str, Any] | None, wanted: Mapping[str, int] | None) -> dict[str, int]:
    """What leaves a parent's budget for a child: what is wanted, and never more than its agent declares."""
    declared = {name: most for name, most in (own or {}).items() if name in ACCOUNTS and most is not None}
    asked = wanted or {}
    return declared | {name: min(most, declared.get(name, most)) for name, most in asked.items()}
