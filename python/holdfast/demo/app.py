"""The program of the demonstration: one agent, one tool. It is what a user would write.

With ``HOLDFAST_DEMO_LEDGER=off`` the agent pays behind Holdfast's back, as plain code would.
"""

from __future__ import annotations

import json
import os
from typing import Any
from urllib.request import Request, urlopen

import holdfast as hf

PROVIDER = os.environ.get("HOLDFAST_DEMO_PROVIDER", "http://127.0.0.1:1")
LEDGER = os.environ.get("HOLDFAST_DEMO_LEDGER", "on")

rt = hf.Runtime(
    os.environ.get("HOLDFAST_DEMO_STORE", "./runs"),
    policy=hf.Policy.of(
        hf.gateway.rule("ask", tool="refund", when={"args.cents": {"min": 5000}}),
        hf.gateway.rule("allow", tool="refund", when={"args.cents": {"max": 4999}}),
    ),
)


def _ask(path: str, body: object | None = None) -> Any:  # noqa: ANN401 (JSON)
    data = None if body is None else json.dumps(body).encode()
    with urlopen(Request(f"{PROVIDER}{path}", data), timeout=60) as answer:  # noqa: S310 (this machine)
        return json.load(answer)


def _booked(call: hf.Call) -> hf.Happened[dict[str, Any]] | hf.DidNotHappen:
    """Asks the provider whether a refund was booked under a key."""
    found = _ask(f"/refunds?key={call.key}")
    return hf.Happened(found[0], external_id=found[0]["id"]) if found else hf.DidNotHappen()


@rt.tool(effect="write", risk="high", reconcile=_booked)
def refund(order: str, cents: int, call: hf.Call) -> dict[str, Any]:
    """Gives money back."""
    return dict(_ask("/refunds", {"order": order, "cents": cents, "key": call.key}))


@rt.agent
async def support(ctx: hf.Context, ticket: str, order: str, cents: int) -> str:
    """Answers a complaint."""
    await ctx.log(f"about {ticket}")
    if LEDGER == "off":
        # holdfast: allow HF103 because the demonstration shows what happens without a ledger
        told = _ask("/refunds", {"order": order, "cents": cents, "key": "none"})
    else:
        told = await ctx.call(refund, order=order, cents=cents)
    return f"refunded {cents / 100:.2f}, receipt {told['id']}"
