"""Children of a run: spawned once under a key, with a slice of the budget in escrow, and joined.

The parent's journal says first that there is a child, and under which id, which follows from the run and the
key; then the child's run is made from that. Whoever dies in between, the next attempt makes it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from holdfast import _core
from holdfast.errors import CommandError
from holdfast.gateway.outcomes import Denied, EffectFailed, Stopped, Suspended, fix
from holdfast.primitives import new_id
from holdfast.store import commands
from holdfast.values import to_json

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from holdfast.gateway.attempts import Step

Json = dict[str, Any]
OnParentEnd = Literal["end", "hand_on"]

ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"


def child_of(run: str, key: str) -> str:
    """The id of the child that a run spawns under a key: the same in every attempt."""
    number = 0
    for character in run.partition("_")[2]:
        number = number << 5 | ALPHABET.index(character)
    digest = _core.canonical_digest([run, key], domain="holdfast/child/v1").removeprefix("sha256:")
    return new_id("run", at_ms=number >> 80, random=bytes.fromhex(digest)[:10])


def spawn(
    step: Step,
    agent: str,
    value: object,
    *,
    key: str,
    escrow: Mapping[str, int] | None,
    on_parent_end: OnParentEnd,
    capabilities: Sequence[Mapping[str, Any]] | None,
) -> str:
    """Spawns a child, or finds the one that was spawned under the key."""
    store, claim = step.gateway.store, step.claim
    child, wanted = child_of(claim.run, key), to_json(value)
    parent = store.state(claim.run)
    if capabilities and parent["capabilities"]["restricted"]:
        code = "capability_exceeded"
        told = "a restricted run gives its children nothing of its own making: transfer what it holds"
        raise CommandError(told, code=code, fix=fix(code))
    if child not in parent["children"]:
        request = _allowed(step, {"agent": agent, "escrow": dict(escrow or {}), "input": wanted, "key": key})
        command: Json = {
            "agent": agent,
            "child": child,
            "claim": claim.core(),
            "command": "spawn",
            "escrow": request["escrow"],
            "input": commands.payload(request["input"], "internal"),
            "on_parent_end": on_parent_end,
        }
        store._core.run(_core.Call.command(claim.run, claim.by(), command, "barrier"))
    spawned = next(
        record
        for record in store.read(claim.run)
        if record.kind == "child.spawned" and record.body["child"] == child
    )
    if spawned.body["agent"] != agent:
        code = "idempotency_conflict"
        raise CommandError("the key was used for a child of another agent", code=code, fix=fix(code))
    _make(step, child, spawned.body, spawned.value["input"], capabilities)
    return child


def _allowed(step: Step, subject: Json) -> Json:
    return allowed(step.asks("before_subagent_start", subject), subject)


def allowed(ruled: Json, subject: Json) -> Json:
    """What hooks make of a request for a child: other input, less escrow."""
    hook = str(ruled.get("hook"))
    match ruled["act"]:
        case "go":
            pass
        case "interrupt":
            raise Suspended("", {"on": "interrupted"})
        case "fail" | "stop":
            raise Stopped("", hook)
        case _:
            reason = {"code": "hook.denied", "rule": hook}
            raise Denied(f"{subject['agent']} was denied: hook.denied ({hook})", reasons=[reason])
    changed = ruled.get("value", {})
    if not isinstance(changed, dict) or not isinstance(changed.get("escrow", {}), dict):
        raise Denied(f"{subject['agent']} was denied: a hook made nonsense of the request")
    escrow = {
        account: min(most, changed.get("escrow", {}).get(account, most))
        for account, most in subject["escrow"].items()
    }
    return {"escrow": escrow, "input": changed.get("input", subject["input"])}


def _make(
    step: Step, child: str, body: Json, value: object, capabilities: Sequence[Mapping[str, Any]] | None
) -> None:
    """Makes the child's run, unless it is there."""
    store, claim = step.gateway.store, step.claim
    parent = store.state(claim.run)
    at_ms = store._core.wall_ms
    options: Json = {}
    if body["escrow"]:
        options["budget"] = {"on_exceeded": "refuse", **body["escrow"]}
    if capabilities is not None or parent["capabilities"]["restricted"]:
        options["capabilities"] = [dict(one) for one in capabilities or ()]
    run = commands.new_run(body["agent"], value, {}, options, at_ms)
    run |= {"id": child, "parent": claim.run}
    if "session" in parent:
        run["session"] = parent["session"]
    first = commands.new_step("main", {}, at_ms)
    try:
        store._core.run(_core.Call.create(claim.by(), run, [first], "barrier"))
    except CommandError as error:
        if error.code != "run_exists":
            raise


def join(step: Step, child: str) -> Any:  # noqa: ANN401 (the child says what it is)
    """What a child came to.

    Raises:
        Suspended: it has not ended.
        EffectFailed: it failed or was cancelled.
    """
    store, claim = step.gateway.store, step.claim
    found = store.state(claim.run)["children"].get(child)
    if found is None:
        raise CommandError("there is no such child", code="no_such_child", fix=fix("no_such_child"))
    if found.get("ended") is None:
        raise Suspended("", {"on": "child", "subject": child})
    ended = [
        record
        for record in store.read(claim.run)
        if record.kind == "child.ended" and record.body["child"] == child
    ][-1]
    step.asks("after_subagent_terminal", {"child": child, "status": ended.body["status"]})
    if ended.body["status"] != "completed":
        raise EffectFailed(f"the child {ended.body['status']}", error="ChildFailed")
    return ended.value.get("result")
