"""What code that runs again sees and does: the state after a conflict, timers, forks, limits."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from tests.runtime_desk import Provider, address, approve_all, kinds, provider, rt

import holdfast as hf
from holdfast import testing

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["address", "provider", "rt"]  # fixtures


def test_a_conflict_at_the_end_of_a_step_that_has_committed_is_tried_with_the_fresh_state(
    rt: hf.Runtime,
) -> None:
    async def story() -> hf.Run:
        both = asyncio.Barrier(2)
        met: set[str] = set()

        @rt.step(backoff=0.001, attempts=10)
        async def adds(ctx: hf.Context, name: str) -> int:
            ctx.state[name] = "begun"
            await ctx.commit()
            seen = int(ctx.state.get("sum", 0))
            if name not in met:
                met.add(name)
                await both.wait()
            ctx.state["sum"] = seen + 1
            return seen

        @rt.agent
        async def fan(ctx: hf.Context) -> None:
            first = await ctx.add_step(adds, "a")
            await ctx.add_step(adds, "b")
            await ctx.add_step(adds, "c", after=[first])

        met.add("c")
        return await rt.run(fan)

    run = rt._sync(story())
    assert run.status == "completed", run.error
    assert run.state == {"a": "begun", "b": "begun", "c": "begun", "sum": 3}


def test_the_fresh_state_is_the_same_in_every_later_attempt(rt: hf.Runtime) -> None:
    seen: list[tuple[str, int]] = []

    async def story() -> hf.Run:
        both = asyncio.Barrier(2)

        @rt.step(backoff=0.001)
        async def adds(ctx: hf.Context, name: str) -> str:
            seen.append((name, int(ctx.state.get("sum", 0))))
            if len(seen) <= 2:
                await both.wait()
            ctx.state["sum"] = int(ctx.state.get("sum", 0)) + 1
            await ctx.commit()
            return str(await ctx.signal(name))

        @rt.agent
        async def fan(ctx: hf.Context) -> None:
            await ctx.add_step(adds, "a")
            await ctx.add_step(adds, "b")

        return await rt.run(fan)

    run = rt._sync(story())
    assert (run.status, run.state) == ("waiting", {"sum": 2}), run.error
    assert sorted(n for _, n in seen) == [0, 0, 1]
    for name in "ab":
        rt.signal(run, name, "go")
    again = len(seen)
    run = rt.resume_sync(run)
    assert (run.status, run.state) == ("completed", {"sum": 2}), (run.waiting_on, run.error)
    assert sorted(n for _, n in seen[again:]) == [0, 1], "each sees what it saw when it was recorded"


def test_a_timer_that_came_due_meanwhile_waits_for_calls_that_were_made_before_it() -> None:
    clock = testing.FakeClock()
    provider = Provider()
    with hf.Runtime("memory:", clock=clock, suspend_grace=0.05, replay_grace=0.2) as rt:

        @rt.tool(effect="pure")
        async def think() -> int:
            for _ in range(200):
                await asyncio.sleep(0)
            return 1

        @rt.tool(effect="write", approval="always")
        def wire(cents: int) -> str:
            return provider.send(f"wire {cents}")

        @rt.agent
        async def impatient(ctx: hf.Context) -> str:
            try:
                async with ctx.timeout(60):
                    return str(await ctx.call("wire", cents=await ctx.call("think")))
            except TimeoutError:
                return "too late"

        run = rt.run_sync(impatient)
        assert {wait["on"] for wait in run.waiting_on} == {"approval", "timer"}
        clock.advance(seconds=61)  # the worker was down when the timer was due
        run = rt.resume_sync(run)
        assert (run.status, run.result, provider.sent) == ("completed", "too late", {})


def test_a_fork_that_is_cut_while_a_timer_is_open_sleeps_as_long_as_its_parent() -> None:
    clock = testing.FakeClock()
    with hf.Runtime("memory:", clock=clock, suspend_grace=0.05, replay_grace=0.2) as rt:

        @rt.agent
        async def sleeper(ctx: hf.Context) -> str:
            await ctx.sleep(3600)
            try:
                async with ctx.timeout(60):
                    await ctx.signal("never")
            except TimeoutError:
                return "done"
            return "signalled"

        run = rt.run_sync(sleeper)
        (first,) = [record.seq for record in rt.store.read(run.id) if record.kind == "timer.set"]
        early = rt.resume_sync(rt.fork(run, at=first, by="dana"))
        assert [wait["on"] for wait in early.waiting_on] == ["timer"]
        clock.advance(seconds=3600)
        run, early = rt.resume_sync(run), rt.resume_sync(early)
        assert (run.status, early.status) == ("waiting", "waiting")
        _, second = [record.seq for record in rt.store.read(run.id) if record.kind == "timer.set"]
        clock.advance(seconds=60)
        ended = [rt.resume_sync(one) for one in (run, early, rt.fork(run, at=second, by="dana"))]
        assert [(one.status, one.result) for one in ended] == [("completed", "done")] * 3
        late = rt.resume_sync(rt.fork(run, at=first, by="dana"))
        assert [wait["on"] for wait in late.waiting_on] == ["timer", "signal"], "slept out, and in the second"


def test_a_step_that_hangs_is_ended_and_tried_again(rt: hf.Runtime, provider: Provider) -> None:
    tries: list[int] = []

    @rt.agent(step_timeout=0.05, backoff=0.001)
    async def hangs(ctx: hf.Context) -> str:
        tries.append(ctx.attempt)
        receipt = str(await ctx.call("send", what="once"))
        if len(tries) < 3:
            await asyncio.Event().wait()
        return receipt

    run = rt.run_sync(hangs)
    assert (run.result, tries, provider.sent) == ("receipt for once", [1, 2, 3], {"once": 1})
    assert run.steps[0]["timeout_ms"] == 50
    failures = [r.body["failure"] for r in rt.store.read(run.id) if r.kind == "step.retry_scheduled"]
    told = {"code": "step_timeout", "error": "StepTimeout", "retryable": True, "source": "agent"}
    assert [{**failure, "message": None} for failure in failures] == [{**told, "message": None}] * 2


def test_a_step_that_always_hangs_fails_and_its_cleanups_run(rt: hf.Runtime) -> None:
    cleaned: list[str] = []

    @rt.agent(step_timeout=0.02, attempts=1)
    async def hangs(ctx: hf.Context) -> None:
        ctx.on_cleanup(lambda: cleaned.append("up"))
        await asyncio.Event().wait()

    run = rt.run_sync(hangs)
    assert run.error is not None
    assert (run.status, run.error.code, cleaned) == ("failed", "step_timeout", ["up"])
    assert "took longer than the 0.02 s" in str(run.error)


def test_time_without_a_process_does_not_count(rt: hf.Runtime) -> None:
    @rt.agent(step_timeout=5)
    async def waits(ctx: hf.Context) -> Any:
        return await ctx.call("wire", cents=1)

    run = rt.run_sync(waits)
    approve_all(rt)
    assert rt.resume_sync(run).result == "receipt for wire 1"
    assert "step.retry_scheduled" not in kinds(rt, run)
    for wrong in (0, -1, float("inf"), float("nan")):
        with pytest.raises(hf.HoldfastError, match="step_timeout"):
            rt.agent(name=f"a{wrong}", step_timeout=wrong)(waits.function)


def test_a_run_has_steps_from_its_beginning(rt: hf.Runtime, provider: Provider) -> None:
    @rt.step
    async def fetch(ctx: hf.Context, region: str) -> None:
        ctx.state[region] = await ctx.call("send", what=region)

    @rt.step(name="total")
    async def adds_up(ctx: hf.Context, title: str) -> str:
        return f"{title}: {', '.join(sorted(ctx.state))}"

    @rt.agent
    async def report(ctx: hf.Context, week: int) -> None:
        await ctx.log(f"week {week}")

    steps = {
        "sum": adds_up.planned("all", after=["eu", "us", "main"]),
        "eu": fetch.planned("eu"),
        "us": fetch.planned(region="us", after=["eu"]),
    }
    run = rt.start_sync(report, 7, steps=steps)
    assert {step["status"] for step in run.steps} == {"pending"}
    assert rt.worker(concurrency=4).run_until_idle_sync().failed == 0
    run.refresh()
    assert (run.status, run.result) == ("completed", "all: eu, us")
    assert {step["name"]: step["status"] for step in run.steps} == dict.fromkeys(
        ("main", "eu", "us", "sum"), "completed"
    )
    assert provider.sent == {"eu": 1, "us": 1}
    done = rt.store.sql("SELECT step FROM events WHERE stream = ? AND kind = 'step.completed'", [run.id])
    names = {step["id"]: step["name"] for step in run.steps}
    order = [names[row["step"]] for row in done]
    assert order.index("eu") < order.index("us") < order.index("sum")
    assert rt.run_sync(report, 8, steps=steps).result == "all: eu, us"


def test_a_plan_that_cannot_be_is_refused_before_anything_is_made(rt: hf.Runtime) -> None:
    @rt.step
    async def part(ctx: hf.Context, n: int = 0) -> None:
        await ctx.log(str(n))

    @rt.agent
    async def whole(ctx: hf.Context) -> None:
        await ctx.log("whole")

    stranger: Any = hf.Runtime("memory:").step(name="stranger")(part.function)
    cycle = {"a": part.planned(after=["b"]), "b": part.planned(after=["a"])}
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"a": part.planned(after=["b"])}, "bad_step"),
        (cycle, "bad_step"),
        ({"main": part.planned()}, "bad_step"),
        ({"a": part}, "bad_step"),
        ({"a": stranger.planned()}, "no_such_agent"),
    ]
    for steps, code in wrong:
        with pytest.raises(hf.HoldfastError) as refused:
            rt.start_sync(whole, steps=steps)
        assert refused.value.code == code, steps
    with pytest.raises(hf.HoldfastError, match="n"):
        part.planned("no number")
    assert rt.runs.list() == []


def test_code_reads_how_far_it_had_come(rt: hf.Runtime) -> None:
    seen: list[Any] = []

    @rt.agent
    async def consumer(ctx: hf.Context) -> list[int]:
        read = [0]
        before = await ctx.newest_checkpoint("orders", "mailer")
        for offset in (3, 7):
            await ctx.stream_checkpoint("orders", "mailer", offset, partial={"sum": offset}, watermark=1)
            await ctx.stream_checkpoint("orders", "other", 100)
        newest = await ctx.newest_checkpoint("orders", "mailer")
        seen.append((before, newest))
        await ctx.signal("go")
        await ctx.stream_checkpoint("orders", "mailer", 9)
        last = await ctx.newest_checkpoint("orders", "mailer")
        assert newest is not None
        assert last is not None
        return [*read, newest.offset, last.offset]

    run = rt.run_sync(consumer)
    rt.signal(run, "go")
    run = rt.resume_sync(run)
    assert (run.status, run.result) == ("completed", [0, 7, 9]), run.error
    first, again = seen
    assert first == again == (None, hf.runtime.Checkpoint("orders", "mailer", 7, 1, None, {"sum": 7}))
    cut = next(r.seq for r in rt.store.read(run.id) if r.kind == "step.waiting")
    fork = rt.fork(run, at=cut, by="dana")
    found = hf.runtime.notes.newest(rt.store, fork.id, "orders", "mailer")
    assert found is not None
    assert found["offset"] == 7, "a fork has come as far as its parent had"


def test_a_call_that_was_given_up_is_served_by_its_key_when_the_code_makes_it_after_all() -> None:
    """Accepting a divergence abandons what the code no longer makes; made later it is not made twice."""
    sent: list[int] = []

    def version(number: int) -> hf.Runtime:
        rt = hf.Runtime(store, suspend_grace=0.05, replay_grace=0.1)

        @rt.tool(effect="write")
        def send(n: int) -> int:
            sent.append(n)
            return n

        @rt.agent(attempts=1)
        async def sends(ctx: hf.Context) -> list[Any]:
            first = [await ctx.call(send, n=9)] if number == 2 else []
            return [*first, await ctx.call(send, n=1, key="k"), await ctx.signal("go")]

        return rt

    with hf.open("memory:") as store:
        old, new = version(1), version(2)
        run = old.run_sync("sends")
        old.signal(run, "go", "gone")
        assert new.resume_sync(run).status == "waiting"
        new.decide(run, "accept", by="dana")
        run = new.resume_sync(run)
        assert (run.status, run.result, sent) == ("completed", [9, 1, "gone"], [1, 9])
        assert new.evidence.replay(run.id).verdict == "same"
        assert store.verify().ok


def test_what_a_program_is_follows_what_is_registered_and_activated_while_it_runs(rt: hf.Runtime) -> None:
    """A run says what it was begun with; under ``strict_packages`` that is compared when it goes on."""
    rt.strict_packages = True

    @rt.agent
    async def waits(ctx: hf.Context) -> Any:
        return await ctx.signal("go")

    def packages(run: hf.Run) -> dict[str, str]:
        return dict(next(iter(rt.store.read(run.id))).body["package"])

    before = rt.run_sync(waits)
    rt.gateway.activate(hf.Policy.of(hf.gateway.rule("deny", tool="drop*")), by="dana")
    after = rt.run_sync(waits)
    changed = {part for part, digest in packages(after).items() if packages(before)[part] != digest}
    assert changed == {"policy"}
    for run in (before, after):
        rt.signal(run, "go", 1)
    assert rt.resume_sync(after).status == "completed"
    stopped = rt.resume_sync(before)
    assert (stopped.status, [wait["on"] for wait in stopped.waiting_on or []]) == ("waiting", ["package"])

    @rt.gateway.evaluator()
    def strict(_: hf.gateway.Subject) -> str:
        return "allow"

    rt.sandbox(hf.sandbox.Subprocess())
    newest = rt.run_sync(waits)
    changed = {part for part, digest in packages(newest).items() if packages(after)[part] != digest}
    assert changed == {"hooks", "tools"}


@pytest.mark.parametrize(
    "kind",
    [
        "image",
        "audio",
        "video",
        "frame",
        "audio_segment",
        "video_segment",
        "transcript",
        "embedding",
        "derived",
    ],
)
def test_media_of_every_kind_are_kept_or_pointed_at_with_what_they_were_derived_from(
    rt: hf.Runtime, kind: Any
) -> None:
    @rt.agent
    async def records(ctx: hf.Context) -> None:
        source = await ctx.media(kind, "kept", b"\x00\x01", media="application/x-made")
        await ctx.media(kind, "elsewhere", uri="s3://bucket/made", derived_from=[source])
        with pytest.raises(hf.HoldfastError, match="bad_value"):
            await ctx.media(kind, "neither")
        await ctx.stream_checkpoint("made", "reader", 1, chunk=7, backpressure="paused", partial=[kind])

    run = rt.run_sync(records)
    assert run.status == "completed", run.error
    kept, elsewhere = rt.artifacts.list(run)
    assert (kept.kind, rt.artifacts.open(kept), kept.media) == (kind, b"\x00\x01", "application/x-made")
    assert (elsewhere.kind, elsewhere.uri, elsewhere.derived_from) == (kind, "s3://bucket/made", (kept.id,))
    (made,) = (record.value for record in rt.store.read(run.id) if record.kind == "checkpoint.created")
    assert (made["chunk"], made["backpressure"], made["partial"]) == (7, "paused", [kind])


INTERRUPTED = """
import sys
import threading
import holdfast as hf
rt = hf.Runtime(sys.argv[1])

@rt.tool(effect="write")
def send(what: str) -> str:
    with open(sys.argv[1] + ".sent", "a") as sent:
        sent.write(what)
    return "sent"

@rt.tool(effect="read")
def look() -> str:
    if sys.argv[2:] == ["for ever"]:
        print("looking", flush=True)
        threading.Event().wait()
    return "seen"

@rt.agent
async def works(ctx: hf.Context) -> list[str]:
    return [await ctx.call(send, what="it"), await ctx.call(look)]

if __name__ == "__main__":
    run = rt.run_sync(works, key="one")
    print(run.status, run.result)
"""


def test_a_program_that_is_interrupted_gives_back_what_it_had_and_the_next_one_goes_on(
    tmp_path: Path,
) -> None:
    """Nobody waits for a lease, and nothing is sent twice."""
    command = [sys.executable, "-c", INTERRUPTED, str(tmp_path / "runs")]
    pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen([*command, "for ever"], **pipes) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == "looking\n"
        first.send_signal(signal.SIGINT)
        _, errors = first.communicate(timeout=60)
    assert (first.returncode != 0, "KeyboardInterrupt" in errors) == (True, True), errors
    with hf.open(tmp_path / "runs") as store:
        (row,) = store.sql("SELECT id FROM runs")
        claim = store.claim(worker="w2", run=row["id"])
        assert claim is not None
        store.release(claim)
    second = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert second.stdout.splitlines()[-1] == "completed ['sent', 'seen']"
    assert (tmp_path / "runs.sent").read_text() == "it"
