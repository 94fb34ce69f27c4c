"""Stories of calls at the gateway: what they declare, how they end, what agent code gets."""

from __future__ import annotations

from typing import Any

import pytest
from tests.gateway_desk import Desk, refunds

import holdfast as hf


def test_a_call_is_written_down_before_it_acts_and_served_when_it_is_made_again() -> None:
    desk = Desk()
    refund = refunds(desk)
    before = desk.kinds()
    assert desk.call(refund, "k1", order="42", cents=1999) == {"id": "r1"}
    assert desk.since(before) == ["call.opened", "policy.decided", "effect.started", "effect.settled"]
    assert desk.call(refund, "k1", cents=1999, order="42") == {"id": "r1"}
    assert desk.call("refund", "k2", order="42", cents=1999) == {"id": "r2"}
    assert [cents for _, cents, _ in desk.happened] == [1999, 1999]
    assert len({key for _, _, key in desk.happened}) == 2
    with pytest.raises(hf.CommandError) as refused:
        desk.call(refund, "k1", order="42", cents=2000)
    assert refused.value.code == "idempotency_conflict"
    assert desk.store.verify().ok


def test_a_permit_is_behind_a_barrier_before_the_body_begins(tmp_path: Any) -> None:
    store = hf.open(tmp_path / "runs")
    gate = hf.Gateway(store)
    store.create_run(agent="support")
    claim = store.claim(worker="w1", lease=30)
    assert claim is not None
    syncs: list[int] = []

    @gate.tool(effect="write")
    def send() -> None:
        syncs.append(store.stats()["syncs"])

    store.barrier()
    before = store.stats()["syncs"]
    gate.call(claim, send, key="k1")
    assert syncs[0] > before
    store.close()


def test_results_come_back_through_their_declared_type_live_and_served() -> None:
    desk = Desk()

    @desk.gate.tool(effect="read")
    def pair() -> tuple[int, str]:
        return (1, "a")

    assert desk.call(pair, "k1") == desk.call(pair, "k1") == (1, "a")
    assert isinstance(desk.call(pair, "k1"), tuple)


def test_a_declared_result_with_its_external_id_has_the_shape_of_what_is_in_it() -> None:
    desk = Desk()

    @desk.gate.tool(effect="write")
    def pay(cents: int) -> hf.Result[tuple[int, str]]:
        return hf.Result((cents, "eur"), external_id="p-7")

    @desk.gate.tool(effect="read")
    def anything() -> hf.Result:  # type: ignore[type-arg]
        return hf.Result({"n": 1})

    assert pay.shape.output == {
        "maxItems": 2,
        "minItems": 2,
        "prefixItems": [{"type": "integer"}, {"type": "string"}],
        "type": "array",
    }
    got: Any = desk.call(pay, "k1", cents=7)
    assert got == desk.call(pay, "k1", cents=7) == (7, "eur")
    settled = [r.body for r in desk.store.read(desk.run) if r.kind == "effect.settled"]
    assert [body["external_id"] for body in settled] == ["p-7"]
    assert desk.call(anything, "k2") == {"n": 1}


def test_arguments_that_do_not_fit_are_refused_without_their_values() -> None:
    desk = Desk()
    refund = refunds(desk)
    for bad in (
        {"order": "42"},
        {"order": "42", "cents": "hunter2"},
        {"order": "4", "cents": 1, "x": "hunter2"},
    ):
        with pytest.raises(hf.ToolError) as refused:
            desk.call(refund, "k1", **bad)
        assert refused.value.code == "bad_arguments"
        assert "hunter2" not in str(refused.value)
    assert "call.opened" not in desk.kinds()


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({}, "effect_required"),
        ({"effect": "mail"}, "effect_required"),
        ({"effect": "write", "risk": "huge"}, "bad_tool"),
        ({"effect": "write", "approval": "maybe"}, "bad_tool"),
        ({"effect": "write", "timeout": 0}, "bad_tool"),
        ({"effect": "read", "idempotent": hf.Keyed(ttl=1)}, "bad_tool"),
    ],
)
def test_a_tool_that_declares_nonsense_is_not_registered(options: dict[str, Any], code: str) -> None:
    desk = Desk()
    with pytest.raises(hf.ToolError) as refused:
        desk.gate.tool(**options)(lambda: None)
    assert refused.value.code == code
    assert desk.gate.tools == {}


def test_a_name_that_is_taken_and_a_parameter_called_key_are_refused() -> None:
    desk = Desk()
    refunds(desk)
    with pytest.raises(hf.ToolError) as taken:
        refunds(desk)
    assert taken.value.code == "tool_exists"

    def odd(key: str) -> None: ...

    with pytest.raises(hf.ToolError) as reserved:
        desk.gate.tool(effect="read")(odd)
    assert reserved.value.code == "bad_tool"


def test_a_write_that_raises_is_in_doubt_until_a_person_says_what_became_of_it() -> None:
    desk = Desk()

    @desk.gate.tool(effect="write")
    def pay() -> str:
        desk.happened.append(1)
        raise ConnectionError("the line is dead")

    with pytest.raises(hf.Suspended) as waits:
        desk.call(pay, "k1")
    assert waits.value.wait["on"] == "doubt"
    effects = hf.Effects(desk.store)
    (doubt,) = effects.list()
    assert (doubt.tool, doubt.cause, doubt.arguments, doubt.dispatch) == ("pay", "raised", {}, 1)
    effects.resolve(doubt.id, by="dana", happened="receipt 7", reason="seen at the provider")
    assert desk.call(pay, "k1") == "receipt 7"
    assert desk.happened == [1]
    with pytest.raises(hf.CommandError) as over:
        effects.resolve(doubt.id, by="dana", did_not_happen=True)
    assert over.value.code == "not_in_doubt"


def test_what_a_body_says_about_its_failure_is_what_agent_code_gets_each_time() -> None:
    desk = Desk()

    @desk.gate.tool(effect="write")
    def declined() -> None:
        desk.happened.append("declined")
        raise hf.EffectFailed("card declined")

    @desk.gate.tool(effect="read")
    def broken() -> None:
        raise KeyError("nothing here")

    for _ in range(2):
        with pytest.raises(hf.EffectFailed, match="card declined"):
            desk.call(declined, "k1")
        with pytest.raises(hf.EffectFailed, match="nothing here"):
            desk.call(broken, "k2")
    assert desk.happened == ["declined"]


def test_what_did_not_happen_is_tried_again_under_the_same_key_as_often_as_the_tool_says() -> None:
    desk = Desk()
    keys = []

    @desk.gate.tool(effect="write", attempts=3)
    def flaky(call: hf.Call) -> str:
        keys.append((call.key, call.dispatch))
        if call.dispatch < 3:
            raise hf.NoEffect("refused")
        return "done"

    assert desk.call(flaky, "k1") == "done"
    assert [dispatch for _, dispatch in keys] == [1, 2, 3]
    assert len({key for key, _ in keys}) == 1

    @desk.gate.tool(effect="write")
    def never() -> None:
        raise hf.NoEffect("refused")

    with pytest.raises(hf.NoEffect):
        desk.call(never, "k2")


def test_a_keyed_write_in_doubt_is_sent_off_again_and_one_that_reconciles_is_asked() -> None:
    desk = Desk()
    provider: dict[str, str] = {}

    @desk.gate.tool(effect="write", idempotent=hf.Keyed(ttl=3600))
    def keyed(call: hf.Call) -> str:
        first = call.key not in provider
        provider.setdefault(call.key, "receipt 1")
        if first:
            raise ConnectionError("the answer was lost")
        return provider[call.key]

    assert desk.call(keyed, "k1") == "receipt 1"
    assert len(provider) == 1

    def ask(call: hf.Call) -> object:
        return hf.Happened(ledger[call.key]) if call.key in ledger else hf.DidNotHappen()

    ledger: dict[str, str] = {}
    tries = []

    @desk.gate.tool(effect="write", reconcile=ask, attempts=2)
    def asked(lose: bool, call: hf.Call) -> str:
        tries.append(call.dispatch)
        if lose and call.dispatch == 1:
            raise ConnectionError("lost on the way there")
        ledger[call.key] = "receipt 2"
        raise ConnectionError("lost on the way back")

    assert desk.call(asked, "k2", lose=False) == "receipt 2"
    assert desk.call(asked, "k3", lose=True) == "receipt 2"
    assert tries == [1, 1, 2]


def test_a_result_that_is_not_what_was_declared_is_no_reason_to_do_it_again() -> None:
    desk = Desk()

    @desk.gate.tool(effect="write")
    def pay() -> int:
        desk.happened.append(1)
        return "many"  # type: ignore[return-value]

    @desk.gate.tool(effect="write")
    def open_file() -> object:
        desk.happened.append(2)
        return object()

    for _ in range(2):
        with pytest.raises(hf.OutcomeError) as invalid:
            desk.call(pay, "k1")
        assert invalid.value.code == "output_invalid"
        with pytest.raises(hf.OutcomeError) as odd:
            desk.call(open_file, "k2")
        assert odd.value.code == "result_unrecordable"
    assert desk.happened == [1, 2]
