"""Stories of agents that take back what they did."""

from __future__ import annotations

from typing import Any

import pytest

import holdfast as hf
from holdfast import testing


def office(store: hf.Store, world: list[Any], **options: Any) -> hf.Runtime:
    """Trips that are booked, and can be taken back."""
    rt = hf.Runtime(store, suspend_grace=0.02, replay_grace=0.5)

    def cancel(arguments: dict[str, str], result: dict[str, str], _: hf.Call) -> str:
        if arguments["what"] == "ship":
            raise hf.EffectFailed("it has sailed")
        world.append(("cancelled", arguments["what"], result["ticket"]))
        return f"{result['ticket']} is void"

    @rt.tool(effect="write", compensate=cancel, **options)
    def book(what: str) -> dict[str, str]:
        world.append(("booked", what))
        return {"ticket": f"the ticket of the {what}"}

    @rt.tool(effect="read")
    def weather(day: int) -> str:
        return f"day {day}: rain"

    @rt.agent
    async def travels(ctx: hf.Context) -> list[Any]:
        said: list[Any] = [await ctx.call(book, key="train", what="train")]
        said.append(await ctx.call(weather, day=1))
        hotel = await ctx.call(book, key="hotel", what="hotel")
        said.append(await ctx.compensate(book, key="train", reason="it rains"))
        said.append(await ctx.call(weather, day=2))
        said.append(await ctx.compensate("book", key="train"))  # made again, it is served
        with pytest.raises(hf.EffectFailed) as undone:
            await ctx.call(book, key="train", what="train")
        return [*said, hotel, undone.value.code]

    @rt.agent
    async def refuses(ctx: hf.Context, what: str) -> str:
        if what != "nothing":
            await ctx.call(book, key="k", what=what)
        try:
            return str(await ctx.compensate(book if what != "other" else "weather", key="k"))
        except (hf.Denied, hf.EffectFailed, hf.CommandError) as error:
            return error.code

    return rt


CAME_TO = [
    {"ticket": "the ticket of the train"},
    "day 1: rain",
    "the ticket of the train is void",
    "day 2: rain",
    "the ticket of the train is void",
    {"ticket": "the ticket of the hotel"},
    "compensated",
]
WORLD = [("booked", "train"), ("booked", "hotel"), ("cancelled", "train", "the ticket of the train")]


def outcomes(rt: hf.Runtime, run: hf.Run) -> dict[str, str | None]:
    calls = rt.store.state(run.id)["calls"].values()
    return {one.get("key", one["name"]).partition(" ")[0]: one.get("outcome") for one in calls}


def test_an_agent_takes_back_what_it_did_once_and_runs_again_as_it_ran() -> None:
    store, world = hf.open("memory:"), list[Any]()
    rt = office(store, world)
    run = rt.run_sync("travels")
    assert (run.result, world) == (CAME_TO, WORLD)
    assert outcomes(rt, run) == {
        "train": "compensated",
        "weather": "succeeded",
        "hotel": "succeeded",
        "undo": "succeeded",
    }
    (mark,) = [record for record in store.read(run.id) if record.kind == "effect.compensated"]
    assert mark.value["reason"] == "it rains"
    assert (rt.evidence.replay(run).same, world) == (True, WORLD)
    # A fork is served what its parent has done and undone.
    at = next(record.seq for record in store.read(run.id) if record.kind == "step.completed") - 1
    assert rt.resume_sync(rt.fork(run, at=at, by="dana")).result == CAME_TO
    assert (world, store.verify().ok) == (WORLD, True)


@pytest.mark.parametrize("options", [{}, {"approval": "always"}])
def test_it_survives_a_crash_at_every_frame(options: Any) -> None:
    def build(store: hf.Store, world: list[Any]) -> testing.Scene:
        rt = office(store, world, **options)
        return testing.Scene(rt, rt.agents["travels"])

    report = testing.crash_everywhere(build)
    assert report.result == CAME_TO
    assert any("effect.compensated" in boundary.records for boundary in report.boundaries)


def test_what_undoes_it_asks_as_the_tool_does_and_what_was_denied_or_failed_is_not_undone() -> None:
    store, world = hf.open("memory:"), list[Any]()
    rt = office(store, world, approval="always")
    for decide, came_to, outcome in (
        (rt.approvals.approve, "the ticket of the train is void", "compensated"),
        (rt.approvals.deny, "denied", "succeeded"),
    ):
        run = rt.run_sync("refuses", "train")
        rt.approvals.approve(rt.approvals.list()[0].id, by="dana")
        run = rt.resume_sync(run)
        (request,) = rt.approvals.list()
        assert (request.tool, outcomes(rt, run)["k"]) == ("book.undo", "succeeded")
        decide(request.id, by="dana")
        run = rt.resume_sync(run)
        assert (run.result, outcomes(rt, run)["k"]) == (came_to, outcome)
    rt = office(hf.open("memory:"), world)
    run = rt.run_sync("refuses", "ship")
    assert (run.result, outcomes(rt, run)["k"]) == ("effect_failed", "succeeded")


def test_only_a_call_of_that_tool_that_happened_is_undone() -> None:
    rt = office(hf.open("memory:"), [])
    assert [rt.run_sync("refuses", what).result for what in ("nothing", "other")] == ["no_such_call"] * 2


def test_a_plain_agent_takes_back_too_and_its_undoing_gets_what_hooks_left_of_the_call() -> None:
    world: list[Any] = []
    rt = office(hf.open("memory:"), world)
    rt.gateway.activate('[[rule]]\ndecide = "allow"\nredact = ["args.what"]\n', by="dana")
    seen: list[Any] = []
    rt.hook("before_tool_call")(lambda subject: seen.append(subject.value))

    @rt.hook("after_tool_call", rights=["rewrite_tool_result"])
    def stamps(subject: hf.gateway.Subject) -> object:
        return hf.gateway.rewrite({"ticket": "stamped"}) if subject.tool == "book" else None

    @rt.agent
    def plain(ctx: hf.SyncContext) -> list[Any]:
        booked = ctx.call("book", key="k", what="train")
        undone = ctx.compensate("book", key="k")
        return [booked, undone, ctx.signal("go")]

    run = rt.run_sync(plain)
    rt.signal(run, "go", "gone")
    assert rt.resume_sync(run).result == [{"ticket": "stamped"}, "stamped is void", "gone"]
    assert world == [("booked", "train"), ("cancelled", "train", "stamped")]
    undoing = {"arguments": {"what": "[redacted arguments.what]"}, "result": {"ticket": "stamped"}}
    assert seen == [{"what": "[redacted what]"}, undoing]
