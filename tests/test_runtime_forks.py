"""What a fork does with what the run that it came from has done: it gets what that came to, and does nothing
again. Where nobody can say what it came to, or where it wants more of it than there was, a person decides.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from tests.gateway_desk import Desk
from tests.runtime_desk import Provider, address, kinds, provider, rt

import holdfast as hf

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["address", "provider", "rt"]  # fixtures

REPEATS = "CommandError: the run that this is a fork of has done it"


def test_a_fork_gets_what_its_parents_writes_came_to(
    rt: hf.Runtime, provider: Provider, tmp_path: Path
) -> None:
    @rt.agent
    async def pays(ctx: hf.Context) -> list[str]:
        return [await ctx.call("send", what="first"), await ctx.call("send", what="second")]

    run = rt.run_sync(pays)
    fork = rt.resume_sync(rt.fork(run, at=3, by="dana"))
    assert fork.result == run.result == ["receipt for first", "receipt for second"]
    assert provider.sent == {"first": 1, "second": 1}

    served = [record.body for record in rt.store.read(fork.id) if record.kind == "call.served"]
    settled = (record for record in rt.store.read(run.id) if record.kind == "effect.settled")
    sent = [json.loads(record.text)["call"] for record in settled]
    assert [(body["by_run"], body["by_call"]) for body in served] == [(run.id, call) for call in sent]
    assert "effect.started" not in kinds(rt, fork)

    assert rt.store.verify().ok
    assert rt.evidence.replay(fork).same
    rt.evidence.export(fork, tmp_path / "fork.zip")
    assert rt.evidence.verify(tmp_path / "fork.zip").ok
    command = [sys.executable, "-I", str(tmp_path / "fork.zip")]
    alone = subprocess.run(command, capture_output=True, text=True, check=False)
    assert alone.returncode in (0, 4), alone.stdout + alone.stderr  # 4: there is no seal to check


def test_each_of_several_equal_writes_is_served_once_and_no_more_of_them_are_made(
    rt: hf.Runtime, provider: Provider
) -> None:
    wanted = [2]

    @rt.agent(attempts=1)
    async def pays(ctx: hf.Context) -> list[str]:
        return [await ctx.call("send", what="the same") for _ in range(wanted[0])]

    run = rt.run_sync(pays)
    (first, _) = (record.seq for record in rt.store.read(run.id) if record.kind == "effect.settled")
    early, between = rt.fork(run, at=3, by="dana"), rt.fork(run, at=first, by="dana")
    more = rt.fork(run, at=first, by="dana")
    assert rt.resume_sync(early).result == ["receipt for the same"] * 2
    assert rt.resume_sync(between).result == ["receipt for the same"] * 2
    assert [kinds(rt, one).count("call.served") for one in (early, between)] == [2, 1]
    wanted[0] = 3
    assert str(rt.resume_sync(more).error) == REPEATS
    assert provider.sent == {"the same": 2}


def test_what_a_fork_was_served_it_is_served_again_when_its_code_runs_again(
    rt: hf.Runtime, provider: Provider
) -> None:
    @rt.agent
    async def pays(ctx: hf.Context) -> str:
        receipt = await ctx.call("send", what="it")
        return f"{receipt}, {await ctx.signal('go')}"

    run = rt.run_sync(pays)
    fork = rt.resume_sync(rt.fork(run, at=3, by="dana"))
    assert fork.status == "waiting"
    rt.signal(fork, "go", "gone")
    assert rt.resume_sync(fork).result == "receipt for it, gone"
    assert (provider.sent, kinds(rt, fork).count("call.served")) == ({"it": 1}, 1)


def test_nobody_is_asked_about_what_was_done_already(rt: hf.Runtime, provider: Provider) -> None:
    @rt.agent
    async def wires(ctx: hf.Context) -> str:
        return str(await ctx.call("wire", cents=5))

    run = rt.run_sync(wires)
    (request,) = rt.approvals.list()
    rt.approvals.approve(request.id, by="dana")
    assert rt.resume_sync(run).status == "completed"
    fork = rt.resume_sync(rt.fork(run, at=3, by="dana"))
    assert (fork.status, fork.result) == ("completed", "receipt for wire 5")
    assert (provider.sent, rt.approvals.list()) == ({"wire 5": 1}, [])


def test_a_call_that_is_open_at_the_cut_takes_the_outcome_that_it_had_later(
    rt: hf.Runtime, provider: Provider
) -> None:
    @rt.agent
    async def wires(ctx: hf.Context) -> str:
        return str(await ctx.call("wire", cents=7))

    run = rt.run_sync(wires)
    (opened,) = (record.seq for record in rt.store.read(run.id) if record.kind == "approval.requested")
    (request,) = rt.approvals.list()
    rt.approvals.approve(request.id, by="dana")
    rt.resume_sync(run)
    fork = rt.resume_sync(rt.fork(run, at=opened, by="dana"))
    assert (fork.status, fork.result, provider.sent) == ("completed", "receipt for wire 7", {"wire 7": 1})
    assert "call.opened" not in kinds(rt, fork)


def test_a_fork_of_a_fork_gets_what_the_first_run_did(rt: hf.Runtime, provider: Provider) -> None:
    @rt.agent
    async def pays(ctx: hf.Context) -> str:
        return str(await ctx.call("send", what="it"))

    run = rt.run_sync(pays)
    fork = rt.fork(run, at=3, by="dana")
    again = rt.resume_sync(rt.fork(rt.resume_sync(fork), at=1, by="dana"))
    assert (again.result, provider.sent) == ("receipt for it", {"it": 1})


def test_what_did_not_happen_is_done_and_what_failed_is_for_a_person(
    rt: hf.Runtime, provider: Provider
) -> None:
    broken: list[Exception] = [hf.NoEffect("closed")]

    @rt.tool(effect="write")
    def pay(what: str) -> str:
        if broken:
            raise broken.pop()
        return provider.send(what)

    @rt.agent(attempts=1)
    async def pays(ctx: hf.Context, what: str) -> str:
        return str(await ctx.call("pay", what=what))

    nothing = rt.run_sync(pays, "a")
    broken.append(hf.EffectFailed("the card is blocked"))
    failed = rt.run_sync(pays, "b")
    assert (nothing.status, failed.status) == ("failed", "failed")
    assert rt.resume_sync(rt.fork(nothing, at=3, by="dana")).result == "receipt for a"
    assert str(rt.resume_sync(rt.fork(failed, at=3, by="dana")).error) == REPEATS
    assert provider.sent == {"a": 1}
    performs = rt.fork(failed, at=3, by="dana", effects="perform")
    assert rt.resume_sync(performs).result == "receipt for b"


@pytest.mark.parametrize("how", ["happened", "did_not_happen"])
def test_what_is_in_doubt_there_is_not_done_here_before_somebody_has_said(
    rt: hf.Runtime, provider: Provider, how: str
) -> None:
    lost = [TimeoutError("no answer")]

    @rt.tool(effect="write")
    def pay(what: str) -> str:
        receipt = provider.send(what)
        if lost:
            raise lost.pop()
        return receipt

    @rt.agent(attempts=1)
    async def pays(ctx: hf.Context) -> str:
        return str(await ctx.call("pay", what="it"))

    run = rt.run_sync(pays)
    assert run.status == "waiting"
    assert str(rt.resume_sync(rt.fork(run, at=3, by="dana")).error) == REPEATS
    (doubt,) = rt.effects.list(in_doubt=True)
    if how == "happened":
        rt.effects.resolve(doubt.id, by="dana", happened="told")
    else:
        rt.effects.resolve(doubt.id, by="dana", did_not_happen=True)
    fork = rt.resume_sync(rt.fork(run, at=3, by="dana"))
    assert (fork.result, provider.sent["it"]) == (("told", 1) if how == "happened" else ("receipt for it", 2))


# What an attack on the first version found.


def test_a_key_that_stands_for_another_call_is_a_conflict_in_a_fork_too() -> None:
    """It was given that call's place and this one's outcome: a wire that nobody made had succeeded."""
    desk = Desk()

    @desk.gate.tool(effect="write", approval="always")
    def wire(cents: int) -> str:
        raise AssertionError(f"nobody approved {cents}")

    @desk.gate.tool(effect="write")
    def send(what: str) -> str:
        return f"sent {what}"

    with pytest.raises(hf.Suspended):
        desk.call(wire, "k", cents=5)
    (asked,) = (record.seq for record in desk.store.read(desk.run) if record.kind == "approval.requested")
    assert desk.call(send, "j", what="it") == "sent it"
    fork = hf.Runtime(desk.store).fork(desk.run, at=asked, by="dana")
    claim = desk.store.claim(worker="w2", run=fork.id)
    assert claim is not None
    with pytest.raises(hf.CommandError, match="idempotency_conflict"):
        desk.gate.call(claim, send, key="k", what="it")
    assert desk.gate.call(claim, send, key="new", what="it") == "sent it"
    assert "call.served" in [record.kind for record in desk.store.read(fork.id)]


def test_a_result_is_served_as_the_hooks_there_have_left_it(rt: hf.Runtime, provider: Provider) -> None:
    @rt.hook("after_tool_call", rights=["rewrite_tool_result"])
    def louder(subject: hf.gateway.Subject) -> Any:
        return hf.gateway.rewrite(f"{subject.value}!")

    @rt.agent
    async def pays(ctx: hf.Context) -> str:
        return str(await ctx.call("send", what="it"))

    run = rt.run_sync(pays)
    fork = rt.resume_sync(rt.fork(run, at=3, by="dana"))
    again = rt.resume_sync(rt.fork(fork, at=1, by="dana"))
    assert {one.result for one in (run, fork, again)} == {"receipt for it!"}
    assert provider.sent == {"it": 1}


def test_a_fork_starts_no_child_that_its_parent_has_started(rt: hf.Runtime, provider: Provider) -> None:
    @rt.agent
    async def child(ctx: hf.Context) -> str:
        return str(await ctx.call("send", what="it"))

    @rt.agent(attempts=1)
    async def parent(ctx: hf.Context) -> str:
        return str(await (await ctx.spawn(child)))

    run = rt.run_sync(parent)
    assert str(rt.resume_sync(rt.fork(run, at=3, by="dana")).error) == REPEATS
    assert provider.sent == {"it": 1}
    performs = rt.fork(run, at=3, by="dana", effects="perform")
    assert (rt.resume_sync(performs).result, provider.sent) == ("receipt for it", {"it": 2})


def test_what_was_sent_counts_not_only_what_was_asked_for(rt: hf.Runtime, provider: Provider) -> None:
    wanted = ["the short form"]

    @rt.hook("before_tool_call", rights=["modify_tool_request"])
    def spelled_out(_: hf.gateway.Subject) -> Any:
        return hf.gateway.rewrite({"what": "the long form"}) if wanted == ["the short form"] else None

    @rt.agent(attempts=1)
    async def pays(ctx: hf.Context) -> str:
        return str(await ctx.call("send", what=wanted[0]))

    run = rt.run_sync(pays)
    wanted[0] = "the long form"
    fork = rt.resume_sync(rt.fork(run, at=3, by="dana"))
    assert (fork.result, provider.sent) == ("receipt for the long form", {"the long form": 1})


def test_what_another_run_did_for_the_parent_is_not_done_again(rt: hf.Runtime, provider: Provider) -> None:
    key: list[hf.Key | None] = [hf.Key("order 42", scope="store")]

    @rt.agent(attempts=1)
    async def pays(ctx: hf.Context) -> str:
        return str(await ctx.call("send", what="it", key=key[0]))

    rt.run_sync(pays)
    served = rt.run_sync(pays)
    key[0] = None
    fork = rt.resume_sync(rt.fork(served, at=3, by="dana"))
    assert (fork.result, provider.sent) == ("receipt for it", {"it": 1})


def test_nobody_stays_asked_about_a_call_that_was_served(rt: hf.Runtime, provider: Provider) -> None:
    @rt.agent
    async def wires(ctx: hf.Context) -> list[Any]:
        both = await asyncio.gather(ctx.call("wire", cents=5), ctx.signal("go"))
        return [*both, await ctx.signal("end")]

    run = rt.run_sync(wires)
    fork = rt.resume_sync(rt.fork(run, at=3, by="dana"))
    (mine,) = (request for request in rt.approvals.list() if request.run == run.id)
    rt.approvals.approve(mine.id, by="dana")
    rt.signal(run, "go", 1)
    rt.resume_sync(run)
    rt.signal(fork, "go", 2)
    fork = rt.resume_sync(fork)
    assert ([request.tool for request in rt.approvals.list()], fork.status) == ([], "waiting")
    rt.signal(fork, "end", 3)
    fork = rt.resume_sync(fork)
    assert (fork.result, provider.sent) == (["receipt for wire 5", 2, 3], {"wire 5": 1})
    assert rt.store.verify().ok
    assert rt.evidence.replay(fork).same


def test_a_fork_between_a_try_that_did_nothing_and_the_one_that_did_gets_the_latter(
    rt: hf.Runtime, provider: Provider
) -> None:
    broken: list[Exception] = [hf.NoEffect("closed")]

    @rt.tool(effect="write")
    def pay(what: str) -> str:
        if broken:
            raise broken.pop()
        return provider.send(what)

    @rt.agent(attempts=3, backoff=0.001)
    async def pays(ctx: hf.Context) -> str:
        return str(await ctx.call("pay", what="it"))

    run = rt.run_sync(pays)
    assert run.result == "receipt for it"
    settled, _ = (record.seq for record in rt.store.read(run.id) if record.kind == "effect.settled")
    fork = rt.resume_sync(rt.fork(run, at=settled + 1, by="dana"))
    assert (fork.result, provider.sent) == ("receipt for it", {"it": 1})


def test_a_fork_of_a_fork_is_served_each_effect_once(rt: hf.Runtime, provider: Provider) -> None:
    wanted = [1]

    @rt.agent(attempts=1)
    async def pays(ctx: hf.Context) -> list[str]:
        return [await ctx.call("send", what="it") for _ in range(wanted[0])]

    fork = rt.resume_sync(rt.fork(rt.run_sync(pays), at=3, by="dana"))
    wanted[0] = 2
    assert str(rt.resume_sync(rt.fork(fork, at=1, by="dana")).error) == REPEATS
    assert provider.sent == {"it": 1}
