"""Stories of the hook points around runs and processes, and of tools that come from elsewhere."""

from __future__ import annotations

from typing import Any

import pytest
from tests.gateway_desk import Desk, refunds

import holdfast as hf
from holdfast import gateway as gw


def ruled(desk: Desk) -> list[tuple[str, str]]:
    records = [record for record in desk.store.read(desk.run) if record.kind == "hook.ruled"]
    return [(record.body["point"], record.body["outcome"]) for record in records]


def work(_: gw.Step) -> str:
    return "done"


def test_hooks_around_a_run_hear_of_it_in_its_order() -> None:
    desk = Desk()
    heard = []
    for point in ("run_starting", "before_run_complete", "after_run_terminal"):

        @desk.gate.hook(point, name=point, failure="fail_run")
        def hear(subject: gw.Subject) -> None:
            heard.append((subject.point, subject.value))

    assert desk.gate.attempt(desk.claim, work) == "completed"
    assert heard == [
        ("run_starting", {"agent": "support", "attempt": 1}),
        ("before_run_complete", {"result": "done"}),
        ("after_run_terminal", {"status": "completed"}),
    ]
    assert [outcome for _, outcome in ruled(desk)] == ["completed"] * 3
    assert desk.store.verify().ok


def test_a_hook_puts_context_in_when_a_run_starts() -> None:
    desk = Desk()

    @desk.gate.hook("run_starting", rights=["inject_context"])
    def remember(_: gw.Subject) -> gw.Response:
        return gw.inject_context("the customer is angry", {"since": 3})

    seen: list[Any] = []
    desk.gate.attempt(desk.claim, lambda step: seen.extend(step.context))
    assert seen == ["the customer is angry", {"since": 3}]


def test_a_hook_stops_a_run_before_it_starts_and_nothing_is_done() -> None:
    desk = Desk()

    @desk.gate.hook("run_starting", rights=["stop_run"])
    def stop(_: gw.Subject) -> gw.Response:
        return gw.stop_run("maintenance")

    heard = []

    @desk.gate.hook("on_run_cancel_requested", rights=["request_cleanup_repair"])
    def clean(_: gw.Subject) -> gw.Response:
        heard.append("cancelled")
        return gw.request_cleanup("a folder is left")

    refund = refunds(desk)
    assert desk.gate.attempt(desk.claim, lambda s: s.call(refund, key="k", order="1", cents=1)) == "cancelled"
    assert (desk.happened, heard, desk.store.state(desk.run)["phase"]) == ([], ["cancelled"], "cancelled")


@pytest.mark.parametrize(
    ("answer", "came_to", "phase"),
    [
        (gw.request_retry("not yet"), "failed", "open"),
        (gw.repair_needed("books.open"), "waiting", "open"),
        (None, "completed", "completed"),
    ],
)
def test_what_a_hook_says_before_a_run_completes(answer: Any, came_to: str, phase: str) -> None:
    desk = Desk()
    rights = ["request_retry", "stop_completion_with_repair_needed"]
    desk.gate.hook("before_run_complete", rights=rights, name="audit")(lambda _: answer)
    assert desk.gate.attempt(desk.claim, work) == came_to
    assert desk.store.state(desk.run)["phase"] == phase


@pytest.mark.parametrize(
    ("failure", "came_to"), [("deny", "failed"), ("interrupt_run", "waiting"), ("fail_run", "failed")]
)
@pytest.mark.parametrize("point", ["run_starting", "before_run_complete"])
def test_a_hook_that_fails_lets_no_run_start_or_complete(point: Any, failure: Any, came_to: str) -> None:
    desk = Desk()
    refund = refunds(desk)

    @desk.gate.hook(point, failure=failure, rights=["stop_run"] if point == "run_starting" else [])
    def broken(_: gw.Subject) -> None:
        raise RuntimeError

    assert desk.gate.attempt(desk.claim, lambda s: s.call(refund, key="k", order="1", cents=1)) == came_to
    assert len(desk.happened) == (0 if point == "run_starting" else 1)
    assert desk.store.state(desk.run)["phase"] != "completed"


def test_somebody_cancels_and_the_step_ends_as_cancelled() -> None:
    desk = Desk()
    refund = refunds(desk)
    heard: list[str] = []
    desk.gate.hook("on_run_cancel_requested", name="hear")(lambda subject: heard.append(subject.point))

    def cancelled_meanwhile(step: gw.Step) -> None:
        desk.store.cancel(desk.run, by="dana")
        step.call(refund, key="k", order="1", cents=1)

    assert desk.gate.attempt(desk.claim, cancelled_meanwhile) == "cancelled"
    assert (desk.happened, heard) == ([], ["on_run_cancel_requested"])


def test_a_hook_hears_of_a_decision_before_what_was_approved_runs_and_a_failing_one_stops_it() -> None:
    for fails in (False, True):
        desk = Desk()
        refund = refunds(desk, risk="high")
        heard: list[str] = []

        @desk.gate.hook("after_approval_decision", failure="deny")
        def hear(subject: gw.Subject, fails: bool = fails, heard: Any = heard) -> None:
            heard.append(subject.value["decision"])
            if fails:
                raise RuntimeError

        with pytest.raises(hf.Suspended):
            desk.call(refund, "k1", order="1", cents=1)
        (request,) = hf.Approvals(desk.store).list()
        hf.Approvals(desk.store).approve(request.id, by="dana")
        if fails:
            with pytest.raises(hf.Denied):
                desk.call(refund, "k1", order="1", cents=1)
        else:
            desk.call(refund, "k1", order="1", cents=1)
        assert (heard, len(desk.happened)) == (["approved"], 0 if fails else 1)


def test_hooks_at_points_that_nobody_calls_are_refused() -> None:
    desk = Desk()
    for point in ("before_model_call", "on_model_delta", "before_compaction"):
        with pytest.raises(hf.RecordError) as refused:
            desk.gate.hook(point)(lambda _: None)  # type: ignore[arg-type]
        assert refused.value.code == "point_not_live"


SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 20}, "days": {"type": "integer", "minimum": 1}},
    "required": ["city"],
    "additionalProperties": False,
}


def test_a_tool_from_elsewhere_is_checked_by_its_schemas_on_both_sides() -> None:
    desk = Desk()
    answers: list[Any] = [{"degrees": 21}, {"degrees": "warm"}]

    @desk.gate.foreign_tool(
        "weather",
        input_schema=SCHEMA,
        output_schema={"type": "object", "properties": {"degrees": {"type": "number"}}},
        effect="read",
    )
    def weather(arguments: dict[str, Any], call: hf.Call) -> Any:
        assert arguments["city"] == "K\u00f6ln"
        assert call.key.startswith("hf_")
        return answers.pop(0)

    assert desk.call(weather, "k1", city="K\u00f6ln", days=2) == {"degrees": 21}
    for wrong, path in (
        ({"city": "s3cret", "days": 0}, "$.days"),
        ({"days": 1}, "$"),
        ({"city": 5}, "$.city"),
    ):
        with pytest.raises(hf.ToolError) as refused:
            desk.call(weather, "k2", **wrong)
        assert (refused.value.code, refused.value.path) == ("bad_arguments", path)
        assert "s3cret" not in str(refused.value)
    with pytest.raises(hf.OutcomeError) as unfit:
        desk.call(weather, "k3", city="K\u00f6ln")
    assert unfit.value.code == "output_invalid"


@pytest.mark.parametrize("schema", [{"type": "no such type"}, {"$ref": "https://elsewhere.example/x.json"}])
def test_a_schema_that_is_none_or_lies_elsewhere_is_refused(schema: dict[str, Any]) -> None:
    desk = Desk()
    with pytest.raises(hf.RecordError) as refused:
        desk.gate.foreign_tool("t", input_schema=schema, effect="read")(lambda *_: None)
    assert refused.value.code == "bad_schema"
    with pytest.raises(hf.ToolError) as required:
        desk.gate.foreign_tool("t", input_schema=SCHEMA)(lambda *_: None)
    assert required.value.code == "effect_required"


def parent(**options: Any) -> tuple[Desk, Any]:
    desk = Desk(budget={"on_exceeded": "refuse", "tool_calls": 10}, **options)
    work = lambda step: step.join(step.spawn("typist", {"page": 1}, key="p1", escrow={"tool_calls": 4}))  # noqa: E731
    return desk, work


def typist(desk: Desk) -> hf.Claim:
    claim = desk.store.claim(worker="w2", lease=30, agents=["typist"])
    assert claim is not None
    return claim


def again(desk: Desk, work: Any) -> str:
    claim = desk.store.claim(worker="w1", lease=30, agents=["support"])
    assert claim is not None
    return desk.gate.attempt(claim, work)


def test_a_child_is_spawned_once_has_its_slice_and_its_parent_goes_on_from_its_result() -> None:
    desk, work = parent()
    refund = refunds(desk)
    assert desk.gate.attempt(desk.claim, work) == "waiting"
    (child,) = desk.store.state(desk.run)["children"]
    assert desk.store.state(desk.run)["spending"]["escrowed"] == {child: {"tool_calls": 4}}
    claim = typist(desk)
    assert (claim.run, claim.input) == (child, {"page": 1})
    job = lambda step: step.call(refund, key="k", order="1", cents=1)  # noqa: E731
    assert desk.gate.attempt(claim, job) == "completed"
    assert again(desk, work) == "completed"
    spending = desk.store.state(desk.run)["spending"]
    assert (spending["escrowed"], spending["used"]["tool_calls"]) == ({}, 1)
    assert desk.kinds().count("child.spawned") == 1
    assert desk.store.verify().ok


def test_a_child_that_was_written_down_and_not_made_is_made_by_the_next_attempt() -> None:
    desk, work = parent()
    made = desk.gate.store._core

    class Dies:
        """The store of a process that dies between the two commits."""

        def __getattr__(self, name: str) -> Any:
            return getattr(made, name)

        def run(self, call: Any) -> Any:
            told = made.run(call)
            if desk.kinds()[-2:] == ["child.spawned", "budget.escrowed"]:
                raise KeyboardInterrupt
            return told

    desk.store._core = Dies()  # type: ignore[assignment]
    with pytest.raises(KeyboardInterrupt):
        desk.gate.attempt(desk.claim, work)
    desk.store._core = made
    assert desk.store.claim(worker="w2", agents=["typist"]) is None
    assert desk.gate.attempt(desk.claim, work) == "waiting"
    assert typist(desk).input == {"page": 1}
    assert desk.kinds().count("child.spawned") == 1


def test_a_child_that_fails_raises_in_its_parent_and_a_key_is_for_one_child() -> None:
    desk, work = parent()
    desk.gate.attempt(desk.claim, work)
    desk.store.fail(typist(desk), "no paper", retryable=False)
    caught: list[str] = []

    def careful(step: gw.Step) -> None:
        try:
            work(step)
        except hf.EffectFailed as error:
            caught.append(error.error)
        for wrong in (lambda: step.spawn("writer", key="p1"), lambda: step.join("run_none")):
            with pytest.raises(hf.CommandError) as refused:
                wrong()
            caught.append(refused.value.code)

    assert again(desk, careful) == "completed"
    assert caught == ["ChildFailed", "idempotency_conflict", "no_such_child"]


def test_hooks_change_or_forbid_a_child_and_hear_of_its_end() -> None:
    desk, work = parent()
    heard: list[Any] = []
    rights = ["deny", "modify_subagent_request"]
    changed = gw.rewrite({"input": {"page": 2}, "escrow": {"tool_calls": 99, "tokens": 5}})
    answers: list[Any] = [gw.deny("no.children"), changed]
    desk.gate.hook("before_subagent_start", rights=rights, name="look")(lambda _: answers.pop(0))

    @desk.gate.hook("after_subagent_terminal", rights=["request_usage_rollup_repair"])
    def hear(subject: gw.Subject) -> gw.Response:
        heard.append(subject.value["status"])
        return gw.request_usage_repair("it took long")

    def stubborn(step: gw.Step) -> Any:
        with pytest.raises(hf.Denied):
            work(step)
        return work(step)

    assert desk.gate.attempt(desk.claim, stubborn) == "waiting"
    claim = typist(desk)
    assert claim.input == {"page": 2}
    assert desk.store.state(claim.run)["budget"]["tool_calls"] == 4  # never more than was asked for
    desk.store.finish(claim, result="typed")
    assert again(desk, work) == "completed"
    assert heard == ["completed"]


def test_a_restricted_runs_children_are_restricted_too() -> None:
    may_spawn = hf.capability("typist", rights=["spawn"])
    desk, work = parent(capabilities=[hf.capability("refund"), may_spawn])
    refund = refunds(desk)
    desk.gate.attempt(desk.claim, work)
    job = lambda step: step.call(refund, key="k", order="1", cents=1)  # noqa: E731
    assert desk.gate.attempt(typist(desk), job) == "failed"
    assert desk.happened == []


def test_a_restricted_run_has_children_only_by_a_capability_that_allows_it() -> None:
    only_page_two = hf.capability("typ*", rights=["spawn"], when={"args.page": 2})
    for held in ([hf.capability("*")], [hf.capability("clerk", rights=["spawn"])], [only_page_two]):
        desk, work = parent(capabilities=held)
        with pytest.raises(hf.CommandError) as refused:
            desk.gate.attempt(desk.claim, work)
        assert refused.value.code == "no_such_capability"
        assert desk.store.state(desk.run)["children"] == {}
    desk, work = parent(capabilities=[hf.capability("typ*", rights=["spawn"], when={"args.page": 1})])
    assert desk.gate.attempt(desk.claim, work) == "waiting"
    assert typist(desk).input == {"page": 1}


def test_a_restricted_run_makes_no_more_for_a_child_than_it_holds_and_hands_on_what_it_does() -> None:
    desk = Desk(
        capabilities=[
            hf.capability("refund", rights=["call", "grant"]),
            hf.capability("typist", rights=["spawn"]),
        ]
    )
    refund = refunds(desk)
    spawn = {"key": "page", "on_parent_end": "hand_on"}

    def work(step: gw.Step) -> None:
        with pytest.raises(hf.CommandError) as refused:
            step.spawn("typist", **spawn, capabilities=[hf.capability("*")])  # type: ignore[arg-type]
        assert refused.value.code == "capability_exceeded"
        assert "child.spawned" not in desk.kinds()
        child = step.spawn("typist", **spawn, capabilities=[])  # type: ignore[arg-type]
        held = hf.Capabilities(desk.store)
        own = next(one for one in held.list(step.claim.run) if one.target == "refund")
        when = {"args.cents": {"max": 5}}
        less = held.attenuate(step.claim, own.id, rights=["call", "grant"], when=when)
        held.transfer(step.claim, less, to=child)

    assert desk.gate.attempt(desk.claim, work) == "completed"
    claim = typist(desk)
    desk.gate.call(claim, refund, key="k1", order="1", cents=5)
    with pytest.raises(hf.Denied):
        desk.gate.call(claim, refund, key="k2", order="1", cents=6)
    assert [cents for _, cents, _ in desk.happened] == [5]


def test_a_tool_from_elsewhere_has_no_property_that_calls_use_themselves() -> None:
    for taken in ("key", "reserve", "capability"):
        schema = {"type": "object", "properties": {taken: {"type": "string"}}}
        with pytest.raises(hf.ToolError) as refused:
            Desk().gate.foreign_tool("kv", input_schema=schema, effect="read")(lambda *_: None)
        assert refused.value.code == "bad_tool"
