"""Stories of the obligation to redact: hooks and people see markers, the tool gets the values."""

from __future__ import annotations

import io
import json
from typing import TYPE_CHECKING, Any

import pytest
from tests.gateway_desk import Desk
from typer.testing import CliRunner

import holdfast as hf
from holdfast import _core, exports
from holdfast import gateway as gw
from holdfast.cli import app_for

if TYPE_CHECKING:
    from pathlib import Path

APP = app_for("")
CARD = "4242-4242-4242-4242"
POLICY = """
[[rule]]
tool = "pay*"
when = { "args.cents" = { min = 1000 } }
decide = "ask"
redact = ["args.card", "args.to.email"]
"""
SHOWN = {"card": "[redacted card]", "cents": 2000, "to": {"email": "[redacted to.email]", "name": "Ada"}}
TO = {"email": "ada@example.org", "name": "Ada"}


class Till(Desk):
    """A desk with a tool that pays, and what hooks and approvers have seen of it."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"policy": POLICY, **options})
        self.seen: list[Any] = []

        @self.gate.tool(effect="write", compensate=self.undo)
        def pay(card: str, cents: int, to: dict[str, str]) -> str:
            self.happened.append((card, cents, to["email"]))
            return "paid"

        self.pay = pay

    def work(self, step: gw.Step) -> None:
        step.call(self.pay, key="p1", card=CARD, cents=2000, to=TO)

    def undo(self, arguments: dict[str, Any], result: str, call: hf.Call) -> None:
        assert call.key
        self.happened.append((result, arguments["card"]))

    def watched(self) -> Till:
        @self.gate.hook("before_tool_call", rights=["deny"])
        def before(subject: gw.Subject) -> None:
            self.seen.append(subject.value)

        return self

    def request(self) -> gw.Request:
        (request,) = hf.Approvals(self.store).list()
        return request


def hidden(text: str) -> bool:
    return CARD not in text and TO["email"] not in text


def test_hooks_observers_and_approvers_see_markers_and_the_tool_gets_what_stands_behind_them() -> None:
    till = Till().watched()
    heard: list[Any] = []

    @till.gate.hook("before_approval_request", rights=["deny"])
    def asked(subject: gw.Subject) -> None:
        till.seen.append(subject.value)

    @till.gate.hook("before_tool_call", blocking=False)
    def observer(subject: gw.Subject) -> None:
        heard.append(subject.value)

    @till.gate.approver()
    def desk(request: gw.Request) -> None:
        till.seen.append(request.arguments)

    assert till.gate.attempt(till.claim, till.work) == "waiting"
    assert till.seen == [SHOWN, SHOWN, SHOWN]
    request = till.request()
    assert (request.arguments, request.redacted) == (SHOWN, ("card", "to.email"))

    hf.Approvals(till.store).approve(request.id, by="dana")
    claim = till.store.claim(worker="w2", lease=30)
    assert claim is not None
    assert till.gate.attempt(claim, till.work) == "completed"
    assert till.happened == [(CARD, 2000, TO["email"])]
    for one in till.gate.observers("before_tool_call"):
        assert one.drain(10)
    assert heard == [SHOWN]
    assert till.store.verify().ok


def test_a_rule_hides_before_anybody_knows_whether_its_conditions_hold() -> None:
    till = Till().watched()
    assert till.call(till.pay, "p1", card=CARD, cents=5, to=TO) == "paid"
    assert till.seen == [{**SHOWN, "cents": 5}]
    (decided,) = [record for record in till.store.read(till.run) if record.kind == "policy.decided"]
    assert decided.body["decision"] == "allow"
    assert decided.body["obligations"] == [{"fields": ["card", "to.email"], "kind": "redact", "roles": []}]


def test_a_hook_that_rewrites_keeps_what_it_was_not_shown_and_puts_no_marker_in_its_place() -> None:
    made: list[Any] = []
    till = Till()

    @till.gate.hook("before_tool_call", rights=["modify_tool_request"])
    def cheaper(subject: gw.Subject) -> object:
        return gw.rewrite({**subject.value, "cents": 1, **made[-1]})

    for n, (more, paid) in enumerate(
        (
            ({}, (CARD, 1, TO["email"])),
            ({"card": "other"}, ("other", 1, TO["email"])),
            ({"to": {"email": "[redacted card]", "name": "x"}}, (CARD, 1, CARD)),
        )
    ):
        made.append(more)
        till.call(till.pay, f"p{n}", card=CARD, cents=5, to=TO)
        assert till.happened[-1] == paid
    made.append({"card": "[redacted nothing]"})
    with pytest.raises(hf.Denied):
        till.call(till.pay, "p9", card=CARD, cents=5, to=TO)
    assert len(till.happened) == 3
    said = [record.value for record in till.store.read(till.run) if record.kind == "hook.ruled"]
    assert hidden(json.dumps(said))


def test_an_approver_edits_around_the_markers() -> None:
    till = Till()
    assert till.gate.attempt(till.claim, till.work) == "waiting"
    approvals, request = hf.Approvals(till.store), till.request()
    with pytest.raises(hf.CommandError) as refused:
        approvals.edit(request.id, {**SHOWN, "card": "[redacted cards]"}, by="dana")
    assert refused.value.code == "bad_arguments"
    approvals.edit(request.id, {**SHOWN, "cents": 7}, by="dana")
    claim = till.store.claim(worker="w2", lease=30)
    assert claim is not None
    assert till.gate.attempt(claim, till.work) == "completed"
    assert till.happened == [(CARD, 7, TO["email"])]


def test_doubts_and_undoing_show_no_more() -> None:
    till = Till()

    @till.gate.tool(effect="write")
    def pay_lost(card: str, cents: int) -> None:
        raise ConnectionError(f"{card} {cents}")

    with pytest.raises(hf.Suspended):
        till.call(pay_lost, "p1", card=CARD, cents=5)
    (doubt,) = hf.Effects(till.store).list()
    assert doubt.arguments == {"card": "[redacted card]", "cents": 5}

    till = Till().watched()
    till.call(till.pay, "p1", card=CARD, cents=5, to=TO)
    (call,) = till.store.state(till.run)["calls"]
    till.gate.activate('[[rule]]\ntool = "pay"\nredact = ["args.card"]\ndecide = "allow"\n', by="dana")
    till.gate.compensate(till.claim, call)
    assert till.happened == [(CARD, 5, TO["email"]), ("paid", CARD)]
    to = {"email": "[redacted arguments.to.email]", "name": "Ada"}
    undone = {"card": "[redacted arguments.card]", "cents": 5, "to": to}
    assert till.seen[-1] == {"arguments": undone, "result": "paid"}


def test_what_is_printed_and_exported_has_none_of_it(tmp_path: Path) -> None:
    url = str(tmp_path / "store")
    till = Till(url=url)
    assert till.gate.attempt(till.claim, till.work) == "waiting"
    request = till.request()
    for write in (exports.jsonl, exports.html):
        out = io.BytesIO()
        write(till.store, till.run, out)
        assert hidden(out.getvalue().decode())
    whole = io.BytesIO()
    exports.jsonl(till.store, till.run, whole, content="sensitive")
    assert CARD in whole.getvalue().decode()  # whoever asks for what is sensitive gets it
    till.store.close()
    told = []
    for words in (
        ("approvals", "--json"),
        ("approvals",),
        ("approvals", "show", request.id),
        ("journal", "tail", till.run),
        ("journal", "tail", till.run, "--json"),
    ):
        done = CliRunner().invoke(APP, [*words, "--store", url])
        assert done.exit_code == 0
        told.append(done.output)
    assert hidden("".join(told))
    assert "[redacted card]" in told[0]
    assert "(withheld: sensitive)" in told[3]


def test_a_rule_that_cannot_be_kept_is_refused_when_it_is_read() -> None:
    for redact in ("[]", '["card"]', '["args."]', '["result.card"]', "[5]"):
        with pytest.raises(gw.PolicyError) as refused:
            hf.Policy.load(f'[[rule]]\ndecide = "allow"\nredact = {redact}\n')
        assert (refused.value.code, refused.value.path) == ("bad_policy", "rule[0].redact")


def test_the_decision_is_bound_to_the_values_and_not_to_their_markers() -> None:
    digests = []
    for card in (CARD, "other"):
        till = Till()
        with pytest.raises(hf.Suspended):
            till.call(till.pay, "p1", card=card, cents=2000, to=TO)
        state = till.store.state(till.run)
        ((approval, found),) = state["approvals"].items()
        record = next(till.store.read(till.run, after=found["arguments"]["position"] - 1))
        assert record.value["arguments"]["card"] == card
        assert record.body["arguments"]["privacy"] == "sensitive"
        digests.append((approval, found["digest"]))
    assert len(set(digests)) == 2
    assert _core.restored(SHOWN, {"card": CARD, "cents": 1, "to": TO}, ["card", "to.email"])["card"] == CARD


def test_what_a_body_says_of_its_failure_is_as_private_as_what_it_was_given(tmp_path: Path) -> None:
    """It may quote its arguments."""
    rule = {"tool": "lose*", "decide": "allow", "redact": ["args.card"]}
    rt = hf.Runtime(tmp_path / "runs", policy={"rule": [rule]})

    @rt.tool(effect="write")
    def lose(card: str) -> str:
        raise OSError(f"lost {card}")

    @rt.tool(effect="read")
    def lose_read(card: str) -> str:
        raise OSError(f"lost {card}")

    @rt.agent(attempts=1)
    async def agent(ctx: hf.Context, tool: str) -> None:
        await ctx.call(tool, card=CARD)

    runs = [rt.run_sync(agent, tool) for tool in ("lose", "lose_read")]
    assert [run.status for run in runs] == ["waiting", "failed"]
    failures = {
        record.kind: record.body["failure"]["message"]["privacy"]
        for run in runs
        for record in rt.store.read(run.id)
        if record.kind in ("effect.doubted", "effect.settled", "step.failed", "run.finished")
    }
    rt.close()
    said = ("effect.doubted", "effect.settled", "step.failed", "run.finished")
    assert failures == dict.fromkeys(said, "sensitive")
    for run in runs:
        told = CliRunner().invoke(APP, ["journal", "tail", run.id, "--store", str(tmp_path / "runs")])
        assert (told.exit_code, CARD in told.output) == (0, False)
