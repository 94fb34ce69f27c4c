"""For every hook point that the runtime calls, a real run registers a hook and sees what it changed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tests import sandboxed_tools

import holdfast as hf

if TYPE_CHECKING:
    from collections.abc import Iterator

heard: list[tuple[str, Any]] = []


@pytest.fixture
def rt() -> Iterator[hf.Runtime]:
    heard.clear()
    with hf.Runtime("memory:", suspend_grace=0.02, sandbox=hf.sandbox.Subprocess()) as runtime:

        @runtime.tool(effect="write")
        def pay(cents: int) -> str:
            heard.append(("pay", cents))
            return f"paid {cents}"

        @runtime.tool(effect="write", approval="always")
        def wire(cents: int) -> str:
            return f"wired {cents}"

        @runtime.agent
        async def pays(ctx: hf.Context, cents: int) -> list[Any]:
            return [await ctx.call("pay", cents=cents), ctx.injected]

        @runtime.agent
        async def wires(ctx: hf.Context) -> str:
            return str(await ctx.call("wire", cents=1))

        yield runtime


def test_before_a_tool_is_called_arguments_are_rewritten(rt: hf.Runtime) -> None:
    @rt.hook("before_tool_call", rights=["modify_tool_request"])
    def halves(subject: hf.gateway.Subject) -> object:
        return hf.gateway.rewrite({"cents": subject.value["cents"] // 2})

    assert rt.run_sync("pays", 10).result == ["paid 5", []]
    assert heard == [("pay", 5)]


def test_after_a_tool_was_called_its_result_is_rewritten(rt: hf.Runtime) -> None:
    @rt.hook("after_tool_call", rights=["rewrite_tool_result"])
    async def hides(subject: hf.gateway.Subject) -> object:
        return hf.gateway.rewrite(str(subject.value).upper())

    assert rt.run_sync("pays", 10).result == ["PAID 10", []]


def test_when_a_run_is_starting_context_is_put_in(rt: hf.Runtime) -> None:
    @rt.hook("run_starting", rights=["inject_context"])
    def greets(subject: hf.gateway.Subject) -> object:
        return hf.gateway.inject_context(f"hello {subject.agent}")

    assert rt.run_sync("pays", 1).result == ["paid 1", ["hello pays"]]


def test_when_a_run_is_starting_it_can_be_stopped(rt: hf.Runtime) -> None:
    @rt.hook("run_starting", rights=["stop_run"])
    def stops(_: hf.gateway.Subject) -> object:
        return hf.gateway.stop_run("not.today")

    assert rt.run_sync("pays", 1).status == "cancelled"
    assert heard == []


def test_before_and_after_a_person_is_asked(rt: hf.Runtime) -> None:
    @rt.hook("before_approval_request", rights=["modify_approval_request"])
    def two(_: hf.gateway.Subject) -> object:
        return hf.gateway.rewrite({"quorum": 2})

    @rt.hook("after_approval_decision")
    def notes(subject: hf.gateway.Subject) -> None:
        heard.append(("decided", subject.value["decision"]))

    run = rt.run_sync("wires")
    (request,) = rt.approvals.list()
    assert request.quorum == 2
    rt.approvals.approve(request.id, by="dana")
    assert rt.resume_sync(run).status == "waiting"
    rt.approvals.approve(request.id, by="eve")
    assert rt.resume_sync(run).result == "wired 1"
    assert heard == [("decided", "approved")]


def test_before_a_child_starts_and_after_it_has_ended(rt: hf.Runtime) -> None:
    @rt.hook("before_subagent_start", rights=["modify_subagent_request"])
    def cheaper(subject: hf.gateway.Subject) -> object:
        return hf.gateway.rewrite({"input": {"cents": subject.value["input"]["cents"] - 1}})

    @rt.hook("after_subagent_terminal", rights=["request_usage_rollup_repair"])
    def notes(subject: hf.gateway.Subject) -> object:
        heard.append(("child", subject.value["status"]))
        return hf.gateway.request_usage_repair()

    @rt.agent
    async def parent(ctx: hf.Context) -> Any:
        return await (await ctx.spawn("pays", 10))

    assert rt.run_sync(parent).result == ["paid 9", []]
    assert heard == [("pay", 9), ("child", "completed")]


def test_a_child_that_a_hook_denies_is_not_made(rt: hf.Runtime) -> None:
    @rt.hook("before_subagent_start", rights=["deny"])
    def never(_: hf.gateway.Subject) -> object:
        return hf.gateway.deny("no.children")

    @rt.agent
    async def parent(ctx: hf.Context) -> str:
        try:
            await ctx.spawn("pays", 10)
        except hf.Denied as denied:
            return str(denied.reasons[0]["rule"])
        return "made"

    assert rt.run_sync(parent).result == "never"
    assert rt.runs.list(agent="pays") == []


def test_around_the_process_of_a_sandbox(rt: hf.Runtime) -> None:
    rt.tool(effect="read", sandbox="required", name="boxed")(sandboxed_tools.add)

    @rt.hook("before_isolation_process_start", rights=["deny"])
    def starts(subject: hf.gateway.Subject) -> None:
        heard.append(("starts", subject.value["tier"]))

    @rt.hook("after_isolation_process_exit", rights=["request_cleanup_repair"])
    def ends(subject: hf.gateway.Subject) -> object:
        heard.append(("ends", subject.value["end"]))
        return hf.gateway.request_cleanup()

    @rt.agent
    async def boxes(ctx: hf.Context) -> int:
        return int(await ctx.call("boxed", a=1, b=2))

    assert rt.run_sync(boxes).result == 3
    assert heard == [("starts", "subprocess"), ("ends", "exited")]


def test_before_a_run_completes_a_hook_wants_it_once_more(rt: hf.Runtime) -> None:
    seen: list[int] = []

    @rt.hook("before_run_complete", rights=["request_retry"])
    def again(_: hf.gateway.Subject) -> object:
        seen.append(1)
        return hf.gateway.request_retry() if len(seen) == 1 else None

    @rt.agent(backoff=0.001)
    async def tries(ctx: hf.Context) -> int:
        return ctx.attempt

    assert rt.run_sync(tries).result == 2
    assert len(seen) == 2


def test_when_a_run_is_to_be_cancelled_and_when_it_has_ended(rt: hf.Runtime) -> None:
    @rt.hook("on_run_cancel_requested", rights=["request_cleanup_repair"])
    def cleans(subject: hf.gateway.Subject) -> object:
        heard.append(("cancel", subject.agent))
        return hf.gateway.request_cleanup()

    @rt.hook("after_run_terminal")
    def ended(subject: hf.gateway.Subject) -> None:
        heard.append(("ended", subject.value["status"]))

    @rt.agent
    async def cancels_itself_late(ctx: hf.Context) -> None:
        await ctx.do("ask to be cancelled", rt.store.cancel, ctx.run, by="dana", effect="read")
        await ctx.call("pay", cents=1)

    assert rt.run_sync(cancels_itself_late).status == "cancelled"
    assert heard == [("cancel", "cancels_itself_late"), ("ended", "cancelled")]


@pytest.mark.parametrize("begun", [False, True])
def test_a_run_that_nobody_works_on_ends_at_once_and_who_cancels_it_asks_the_hooks(
    rt: hf.Runtime, begun: bool
) -> None:
    def said(point: str) -> Any:
        return lambda subject: heard.append((f"{point} observed", subject.value))

    points: Any = ("on_run_cancel_requested", "after_run_terminal")
    for point in points:
        options: Any = {"blocking": False, "failure": "fail_open_observe_only"}
        rt.hook(point, name=point, **options)(said(point))

    @rt.hook("on_run_cancel_requested", rights=["request_cleanup_repair"], phase="early")
    async def cleans(subject: hf.gateway.Subject) -> object:
        heard.append(("cancel", subject.agent))
        return hf.gateway.request_cleanup("a folder is left")

    @rt.hook("on_run_cancel_requested", phase="late")
    def breaks(_: hf.gateway.Subject) -> None:
        raise RuntimeError("out of order")

    @rt.hook("on_run_cancel_requested")
    def quiet(subject: hf.gateway.Subject) -> None:
        heard.append(("quiet", subject.agent))

    @rt.hook("after_run_terminal")
    def ended(subject: hf.gateway.Subject) -> None:
        heard.append(("ended", subject.value["status"]))

    run = rt.run_sync("wires") if begun else rt.start_sync("wires")
    before = [record.kind for record in rt.store.read(run.id)]
    rt.cancel(run, by="dana")
    for point in points:
        assert all(observer.drain(10) for observer in rt.gateway.observers(point))
    asked = [one for one in heard if "observed" not in one[0]]
    assert asked == [("cancel", "wires"), ("quiet", "wires"), ("ended", "cancelled")]
    assert sorted(one for one in heard if "observed" in one[0]) == [
        ("after_run_terminal observed", {"status": "cancelled"}),
        ("on_run_cancel_requested observed", {"agent": "wires"}),
    ]
    records = list(rt.store.read(run.id))[len(before) :]
    told = [record for record in records if record.kind in ("note.logged", "hook.ruled")]
    assert [(record.kind, record.by["id"], record.value.get("text")) for record in told] == [
        ("note.logged", "cleans", "on_run_cancel_requested: request_cleanup_repair: a folder is left"),
        ("note.logged", "breaks", "on_run_cancel_requested: failed"),
        ("hook.ruled", "ended", None),
    ]
    assert (rt.runs.get(run.id).status, rt.store.verify().ok) == ("cancelled", True)
    with pytest.raises(hf.CommandError) as over:
        rt.cancel(run, by="dana")
    assert (over.value.code, len(heard)) == ("run_ended", 5)


def test_a_run_that_somebody_works_on_is_asked_about_by_who_does(rt: hf.Runtime) -> None:
    points: Any = ("on_run_cancel_requested", "after_run_terminal")
    for point in points:
        rt.hook(point, name=point)(lambda subject: heard.append((subject.point, None)))
    run = rt.start_sync("wires")
    claim = rt.store.claim(worker="w1", lease=30)
    assert claim is not None
    for _ in range(2):
        rt.gateway.cancel(run.id, by="dana")
    assert heard == []
    assert rt.gateway.attempt(claim, lambda step: step.call("wire", key="k", cents=1)) == "cancelled"
    assert heard == [("on_run_cancel_requested", None), ("after_run_terminal", None)]


def test_a_hook_that_fails_stops_what_it_guards(rt: hf.Runtime) -> None:
    @rt.hook("before_tool_call", rights=["deny"], failure="interrupt_run")
    def breaks(_: hf.gateway.Subject) -> object:
        raise RuntimeError("out of order")

    run = rt.run_sync("pays", 1)
    assert ([wait["on"] for wait in run.waiting_on], heard) == (["interrupted"], [])


def test_the_points_that_the_runtime_does_not_call_are_refused(rt: hf.Runtime) -> None:
    with pytest.raises(hf.HoldfastError) as refused:
        rt.hook("before_model_call")(lambda _: None)  # type: ignore[arg-type]
    assert refused.value.code == "point_not_live"


def test_a_hook_that_is_declared_beforehand_is_given_to_several_runtimes() -> None:
    seen = []

    @hf.hook("before_tool_call", rights=["deny"])
    def small_sums_only(subject: hf.gateway.Subject) -> object:
        return hf.gateway.deny("spending.too_much") if subject.value["cents"] > 10 else None

    watches = hf.hook("after_run_terminal", blocking=False, name="watches")(lambda one: seen.append(one.run))

    def came_to(cents: int) -> tuple[str, str]:
        with hf.Runtime("memory:", hooks=[small_sums_only, watches]) as rt:

            @rt.tool(effect="write")
            def pay(cents: int) -> str:
                return f"paid {cents}"

            @rt.agent
            async def pays(ctx: hf.Context) -> str:
                return await ctx.call(pay, cents=cents)

            run = rt.run_sync(pays)
            assert rt.gateway.observers("after_run_terminal")[0].drain(5)
            assert seen.pop() == run.id
            return run.status, str(run.error or run.result)

    assert came_to(10) == ("completed", "paid 10")
    status, told = came_to(11)
    assert (status, "spending.too_much" in told) == ("failed", True)


def test_hooks_that_cannot_be_registered_are_refused_by_name() -> None:
    with pytest.raises(hf.HoldfastError) as refused:
        hf.hook("before_model_call")(lambda _: None)  # type: ignore[arg-type]
    assert refused.value.code == "point_not_live"
    twice = hf.hook("run_starting", name="twice")(lambda _: None)
    with pytest.raises(hf.HoldfastError) as refused:
        hf.Runtime("memory:", hooks=[twice, twice])
    assert refused.value.code == "hook_exists"
    with pytest.raises(TypeError, match=r"print is no hook: declare one with hf\.hook"):
        hf.Runtime("memory:", hooks=[print])  # type: ignore[list-item]
