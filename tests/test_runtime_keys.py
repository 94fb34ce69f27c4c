"""Keys of the whole store: what one run does under a key, no other run does. The stories are told again on a
PostgreSQL server (test_postgres_runtime.py).
"""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from tests.runtime_desk import Provider, address, approve_all, kinds, provider, rt

import holdfast as hf
from holdfast.store import FakeClock

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["address", "provider", "rt"]  # fixtures

KEY = hf.Key("order 42", scope="store")


def facts(rt: hf.Runtime, run: hf.Run, kind: str) -> list[dict[str, Any]]:
    return [record.value for record in rt.store.read(run.id) if record.kind == kind]


@pytest.fixture
def pays(rt: hf.Runtime) -> hf.Agent[..., Any]:
    """An agent that sends one thing under the key of its order."""

    @rt.agent(attempts=1)
    async def pay(ctx: hf.Context, what: str, tool: str = "send") -> str:
        return str(await ctx.call(tool, what=what, key=KEY))

    return pay


def test_what_one_run_did_no_other_does(rt: hf.Runtime, provider: Provider, pays: hf.Agent[..., Any]) -> None:
    first, second = rt.run_sync(pays, "refund"), rt.run_sync(pays, "refund")
    assert (first.result, second.result, provider.sent) == (*2 * ["receipt for refund"], {"refund": 1})
    (served,) = facts(rt, second, "call.served")
    assert (served["by_run"], served["status"], served["result"]) == (
        first.id,
        "succeeded",
        "receipt for refund",
    )
    assert "effect.started" not in kinds(rt, second), "it never had a permit"
    (opened,) = facts(rt, second, "call.opened")
    assert (opened["key"], opened["key_scope"]) == ("order 42", "store")
    other = rt.run_sync(pays, "another refund")
    assert other.error is not None
    assert other.error.code == "idempotency_conflict"
    assert provider.sent == {"refund": 1}
    assert rt.store.verify().ok


def test_whoever_comes_second_waits_until_the_outcome_of_the_first_is_known(
    rt: hf.Runtime, provider: Provider
) -> None:
    @rt.tool(effect="write")
    def breaks(what: str) -> str:
        provider.send(what)
        raise RuntimeError("the line is dead")

    @rt.agent
    async def pay(ctx: hf.Context) -> str:
        return await ctx.call(breaks, what="refund", key=KEY)

    first, second, third = (rt.run_sync(pay) for _ in range(3))
    assert [run.waiting_on[0]["on"] for run in (first, second, third)] == ["doubt", "key", "key"]
    assert (second.waiting_on[0]["subject"], provider.sent) == ("order 42", {"refund": 1})
    assert rt.worker().run_until_idle_sync().completed == 0, "nothing has come of it yet"
    (doubt,) = rt.effects.list(in_doubt=True)
    rt.effects.resolve(doubt.id, by="dana", happened="no. 7")
    rt.worker().run_until_idle_sync()
    assert [rt.runs.get(run.id).result for run in (first, second, third)] == 3 * ["no. 7"]
    assert provider.sent == {"refund": 1}
    assert rt.store.verify().ok


def test_a_person_is_asked_for_each_run_and_one_of_them_acts(rt: hf.Runtime, provider: Provider) -> None:
    @rt.agent
    async def pay(ctx: hf.Context) -> str:
        return str(await ctx.call("wire", cents=5, key=KEY))

    first, second = rt.run_sync(pay), rt.run_sync(pay)
    assert [wait["on"] for run in (first, second) for wait in run.waiting_on] == ["approval", "approval"]
    assert approve_all(rt) == 2
    rt.worker().run_until_idle_sync()
    assert [rt.runs.get(run.id).result for run in (first, second)] == 2 * ["receipt for wire 5"]
    assert provider.sent == {"wire 5": 1}
    spent = [kind for run in (first, second) for kind in kinds(rt, run) if kind == "grant.spent"]
    assert len(spent) == 1, "a grant is not spent on what somebody else did"


def test_nobody_learns_by_a_key_what_it_may_not_do(
    rt: hf.Runtime, provider: Provider, pays: hf.Agent[..., Any]
) -> None:
    rt.run_sync(pays, "refund")

    @rt.hook("before_tool_call", rights=["deny"])
    def no(_: object) -> object:
        return hf.gateway.deny("not.this.one")

    second = rt.run_sync(pays, "refund")
    assert (second.status, second.result) == ("failed", None)
    assert "call.served" not in kinds(rt, second)
    assert provider.sent == {"refund": 1}


@pytest.mark.parametrize("how", [hf.NoEffect("refused at the door"), hf.EffectFailed("no such account")])
def test_what_did_nothing_leaves_the_key_and_what_failed_is_everybodys(
    rt: hf.Runtime, provider: Provider, how: Exception
) -> None:
    @rt.tool(effect="write")
    def tries(what: str) -> str:
        provider.send(what)
        if provider.sent[what] == 1:
            raise how
        return "done"

    @rt.agent(attempts=1)
    async def pay(ctx: hf.Context) -> str:
        return await ctx.call(tries, what="refund", key=KEY)

    first, second = rt.run_sync(pay), rt.run_sync(pay)
    if isinstance(how, hf.NoEffect):
        assert (first.status, second.result, provider.sent) == ("failed", "done", {"refund": 2})
    else:
        assert (first.status, second.status, provider.sent) == ("failed", "failed", {"refund": 1})
        assert str(second.error) == str(first.error)
        (served,) = facts(rt, second, "call.served")
        assert (served["status"], served["failure"]["message"]) == ("failed", "no such account")
    assert rt.store.verify().ok


def test_what_was_undone_can_be_done_again_and_only_by_whom_did_it(
    rt: hf.Runtime, provider: Provider
) -> None:
    def undo(arguments: dict[str, str], _: str, __: hf.Call) -> str:
        return provider.send(f"undo {arguments['what']}")

    @rt.tool(effect="write", compensate=undo)
    def book(what: str) -> str:
        return provider.send(what)

    def travels(*, back: bool) -> None:
        run = rt.store.create_run(agent="travels")
        claim = rt.store.claim(worker="w", run=run)
        assert claim is not None
        rt.gateway.call(claim, book, key=KEY, what="hotel")
        if back:
            rt.gateway.compensate(claim, rt.store.state(run)["keys"]["order 42"])
        rt.store.finish(claim)

    travels(back=True)
    travels(back=False)
    with pytest.raises(hf.HoldfastError, match="no_such_call"):
        travels(back=True)
    assert provider.sent == {"hotel": 2, "undo hotel": 1}
    assert rt.store.verify().ok


def test_a_secret_is_the_same_by_its_name(rt: hf.Runtime, provider: Provider) -> None:
    @rt.tool(effect="write")
    def charge(what: str, token: hf.Secret[str]) -> str:
        assert token.reveal() == "tok_1"
        return provider.send(what)

    @rt.agent
    async def pay(ctx: hf.Context) -> str:
        return await ctx.call(charge, what="card", token=hf.Secret("tok_1", name="card"), key=KEY)

    assert [rt.run_sync(pay).result for _ in range(2)] == 2 * ["receipt for card"]
    assert provider.sent == {"card": 1}


def test_a_run_that_was_forgotten_still_has_its_key(
    rt: hf.Runtime, provider: Provider, pays: hf.Agent[..., Any]
) -> None:
    first = rt.run_sync(pays, "refund")
    rt.store.forget(first.id, by="dana")
    second = rt.run_sync(pays, "refund")
    assert second.error is not None
    assert second.error.code == "key_forgotten"
    assert provider.sent == {"refund": 1}
    assert rt.store.verify().ok


def test_a_fork_of_the_holder_does_not_hold_what_its_parent_does(
    rt: hf.Runtime, provider: Provider, pays: hf.Agent[..., Any]
) -> None:
    first = rt.run_sync(pays, "refund")
    places = {record.kind: record.seq for record in rt.store.read(first.id)}
    fork = rt.resume_sync(rt.fork(first, at=places["effect.settled"], by="dana"))
    assert (fork.result, rt.run_sync(pays, "refund").result) == (first.result, first.result)
    assert provider.sent == {"refund": 1}
    assert rt.store.verify().ok


def test_a_key_of_the_store_is_for_calls_and_says_how_long_it_is_kept(rt: hf.Runtime) -> None:
    for bad in ({"scope": "galaxy"}, {"ttl": 5}, {"scope": "store", "ttl": 0}, {"scope": "store", "ttl": -1}):
        with pytest.raises(hf.HoldfastError, match="bad_arguments"):
            hf.Key("k", **bad)

    @rt.agent(attempts=1)
    async def asks(ctx: hf.Context) -> None:
        await ctx.approval("publish", key=KEY)  # type: ignore[arg-type]

    @rt.agent(attempts=1)
    async def far(ctx: hf.Context) -> None:
        await ctx.call("send", what="x", key=hf.Key("k", scope="store", ttl=1e12))

    assert "only calls" in str(rt.run_sync(asks).error)
    assert "horizon_ms" in str(rt.run_sync(far).error)


def test_a_result_is_ruled_about_where_it_is_served(rt: hf.Runtime, provider: Provider) -> None:
    @rt.hook("after_tool_call", rights=["rewrite_tool_result"])
    def hides(subject: hf.gateway.Subject) -> object:
        return hf.gateway.rewrite("***") if subject.agent == "intern" else None

    async def pay(ctx: hf.Context) -> str:
        return str(await ctx.call("send", what="refund", key=KEY))

    for name in ("admin", "intern"):
        rt.agent(name=name)(pay)
    assert [rt.run_sync(name).result for name in ("admin", "intern")] == ["receipt for refund", "***"]
    assert provider.sent == {"refund": 1}
    assert rt.store.verify().ok


def test_who_may_not_do_it_cannot_guess_what_was_done(rt: hf.Runtime, pays: hf.Agent[..., Any]) -> None:
    rt.run_sync(pays, "refund")
    rt.hook("before_tool_call", rights=["deny"])(lambda _: hf.gateway.deny("not.this.one"))
    errors = [rt.run_sync(pays, what).error for what in ("refund", "a guess")]
    assert {error.code for error in errors if error is not None} == {"denied"}, errors


def test_a_runs_own_key_may_be_called_like_one_of_the_store(rt: hf.Runtime, provider: Provider) -> None:
    @rt.tool(effect="write")
    def tries(what: str) -> str:
        if provider.send(what) and provider.sent[what] == 1:
            raise hf.NoEffect("not now")
        return "done"

    @rt.agent(attempts=1)
    async def pay(ctx: hf.Context) -> str:
        return await ctx.call(tries, what="refund", key=KEY)

    first = rt.resume_sync(rt.start_sync(pay, key="order 42"))
    assert (first.status, rt.run_sync(pay).result, provider.sent) == ("failed", "done", {"refund": 2})
    assert rt.store.verify().ok


def test_a_call_that_was_served_is_not_the_one_that_did_it(provider: Provider) -> None:
    """It was sent off and did nothing; then another run did it; then it is served."""
    clock = FakeClock()
    rt = hf.Runtime("memory:", clock=clock)

    def undo(*_: object) -> str:
        return provider.send("undo")

    @rt.tool(effect="write", compensate=undo)
    def book(what: str) -> str:
        if provider.send(what) and provider.sent[what] == 1:
            raise hf.NoEffect("not now")
        return f"booking {provider.sent[what]}"

    def claimed() -> hf.Claim:
        claim = rt.store.claim(worker="w", run=rt.store.create_run(agent="travels"))
        assert claim is not None
        return claim

    one, two, three = claimed(), claimed(), claimed()
    with pytest.raises(hf.NoEffect):
        rt.gateway.call(one, book, key=KEY, what="hotel")
    for claim in (two, one):
        assert rt.gateway.call(claim, book, key=KEY, what="hotel") == "booking 2"
        clock.advance(seconds=1)  # what is said of a key later counts for more
    with pytest.raises(hf.HoldfastError, match="no_such_call"):
        rt.gateway.compensate(one, rt.store.state(one.run)["keys"]["order 42"])
    rt.gateway.compensate(two, rt.store.state(two.run)["keys"]["order 42"])
    assert rt.gateway.call(three, book, key=KEY, what="hotel") == "booking 3"
    assert (provider.sent, rt.store.verify().ok) == ({"hotel": 3, "undo": 1}, True)
    rt.close()


DIES = """
import os, sys
import holdfast as hf
with hf.Runtime(sys.argv[1], suspend_grace=0.05) as rt:
    rt.tool(effect="read", name="fetch")(lambda what: os._exit(9))
    @rt.agent
    async def look(ctx):
        return await ctx.call("fetch", what="row", key=hf.Key("order 42", scope="store"))
    rt.run_sync(look)
"""


def test_a_read_that_nobody_will_end_has_nobody_wait(tmp_path: Path, provider: Provider) -> None:
    """Its worker died in it, and its run was cancelled. In a fork that was cut in it, it is simply read."""
    died = subprocess.run([sys.executable, "-c", DIES, str(tmp_path / "runs")], check=False)
    assert died.returncode == 9
    with hf.Runtime(tmp_path / "runs", suspend_grace=0.05) as rt:
        rt.tool(effect="read", name="fetch")(provider.send)

        @rt.agent
        async def look(ctx: hf.Context) -> str:
            return str(await ctx.call("fetch", what="row", key=KEY))

        (left,) = rt.runs.list()
        started = [record.seq for record in rt.store.read(left.id) if record.kind == "effect.started"]
        fork = rt.fork(left.id, at=started[0], by="dana")
        rt.cancel(left.id, by="dana")
        assert (rt.run_sync(look).result, provider.sent) == ("receipt for row", {"row": 1})
        assert (rt.resume_sync(fork).result, provider.sent) == ("receipt for row", {"row": 2})
        assert rt.store.verify().ok


def test_a_key_is_given_up_when_its_time_is_over(tmp_path: Path, provider: Provider) -> None:
    clock, week = FakeClock(), hf.Key("order 42", scope="store", ttl=7 * 86_400)
    with hf.Runtime(tmp_path / "runs", clock=clock, suspend_grace=0.05) as rt:

        @rt.agent
        async def pay(ctx: hf.Context) -> str:
            def send() -> str:
                return provider.send("refund") + f" {provider.sent['refund']}"

            return str(await ctx.do("send", send, effect="write", key=week))

        first = rt.run_sync(pay)
        clock.advance(seconds=6 * 86_400)
        assert rt.run_sync(pay).result == first.result == "receipt for refund 1"
        clock.advance(seconds=86_400)
        later = [rt.run_sync(pay) for _ in range(2)]
        assert [run.result for run in later] == 2 * ["receipt for refund 2"]
        holder = "SELECT streams.id FROM keys JOIN streams ON streams.key = keys.run WHERE scope = 'store'"
        assert rt.store.sql(holder) == [{"id": later[0].id}]
        assert rt.store.verify().ok, "who had it before is no error"
    assert hf.doctor(tmp_path / "runs", rebuild=True).report.ok
    with hf.open(tmp_path / "runs") as store:
        assert store.sql(holder) == [{"id": later[0].id}], "rows that are made anew are the same"


def test_what_became_known_late_is_kept_from_then_on(tmp_path: Path, provider: Provider) -> None:
    clock = FakeClock()
    with hf.Runtime(tmp_path / "runs", clock=clock, suspend_grace=0.05) as rt:

        @rt.tool(effect="write")
        def breaks(what: str) -> str:
            provider.send(what)
            raise RuntimeError("the line is dead")

        @rt.agent
        async def pay(ctx: hf.Context) -> str:
            return await ctx.call(breaks, what="refund", key=hf.Key("order 42", scope="store", ttl=3600))

        first, second = rt.run_sync(pay), rt.run_sync(pay)
        clock.advance(seconds=7200)
        (doubt,) = rt.effects.list(in_doubt=True)
        rt.effects.resolve(doubt.id, by="dana", happened="no. 7")
        rt.worker().run_until_idle_sync()
        assert [rt.runs.get(run.id).result for run in (first, second)] == ["no. 7", "no. 7"]
        assert (provider.sent, rt.store.verify().ok) == ({"refund": 1}, True)
