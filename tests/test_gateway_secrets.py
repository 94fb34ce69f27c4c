"""Secrets are looked for raw, encoded and escaped in everything that is kept, shown, logged or raised."""

from __future__ import annotations

import base64
import json
import logging
import pickle
import traceback
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, quote_plus

import pytest
from tests.gateway_desk import Desk

import holdfast as hf
from holdfast import gateway as gw

if TYPE_CHECKING:
    from pathlib import Path

VALUE = 'hunter2/"\u00fc+& key\\'
SPELLINGS = [
    VALUE,
    json.dumps(VALUE)[1:-1],
    json.dumps(VALUE, ensure_ascii=False)[1:-1],
    repr(VALUE)[1:-1],
    quote(VALUE, safe=""),
    quote(VALUE),
    quote_plus(VALUE),
    base64.b64encode(VALUE.encode()).decode(),
    base64.urlsafe_b64encode(VALUE.encode()).decode().rstrip("="),
    VALUE.encode().hex(),
]


def clean(text: str | bytes) -> None:
    text = text.decode("utf-8", "replace") if isinstance(text, bytes) else text
    for spelled in SPELLINGS:
        assert spelled not in text
        assert json.dumps(spelled)[1:-1] not in text


def everything(store: hf.Store, run: str) -> str:
    told = [json.dumps(store.state(run))]
    for record in store.read(run):
        told += [json.dumps(record.body), json.dumps(record.value)]
    told += [json.dumps(row, default=str) for row in store.sql("SELECT body, contents FROM frames")]
    return "\n".join(map(str, told))


def charging(desk: Desk, seen: list[Any]) -> Any:
    @desk.gate.tool(effect="write")
    def charge(how: str, token: hf.Secret[str]) -> Any:
        value = token.reveal()
        seen.append(value)
        match how:
            case "raise":
                raise ConnectionError(f"cannot log in with {value} or {quote_plus(value)}")
            case "fail":
                raise hf.EffectFailed(f"refused: {base64.b64encode(value.encode()).decode()}")
            case "nothing":
                raise hf.NoEffect(f"not sent: {json.dumps(value)}")
            case "chain":
                try:
                    raise KeyError(value)
                except KeyError as error:
                    raise hf.EffectFailed("refused") from error
            case "note":
                noted = hf.EffectFailed("refused")
                noted.add_note(value)
                raise noted
            case "external":
                return hf.Result("ok", external_id=f"id-{value}")
        return {"echo": value, value: [f"x{quote(value)}y"]}

    return charge


@pytest.mark.parametrize("how", ["return", "raise", "fail", "nothing", "chain", "note", "external"])
def test_a_secret_is_given_to_the_body_and_found_nowhere_else(
    how: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    desk = Desk()
    seen: list[Any] = []
    shown: list[Any] = []
    charge = charging(desk, seen)

    @desk.gate.hook("before_tool_call", rights=["deny"])
    def look(subject: gw.Subject) -> None:
        shown.append(subject.value)

    @desk.gate.hook("after_tool_call", rights=["rewrite_tool_result"])
    def after(subject: gw.Subject) -> None:
        shown.append(subject.value)

    secret = hf.Secret(VALUE, name="stripe")
    told = ""
    for _ in range(2):  # live, and served
        try:
            told += repr(desk.call(charge, "k1", how=how, token=secret))
        except BaseException as error:
            told += "".join(traceback.format_exception(error))
    assert seen == [VALUE] or how == "nothing"
    for text in (told, everything(desk.store, desk.run), repr(shown), caplog.text, repr(secret), str(secret)):
        clean(text)
    assert "stripe" in everything(desk.store, desk.run)
    desk.store.backup(tmp_path / "kept")
    for file in (tmp_path / "kept").rglob("*"):
        if file.is_file():
            clean(file.read_bytes())


def test_a_pure_tool_that_raises_with_a_secret_does_not_tell_it() -> None:
    desk = Desk()

    @desk.gate.tool(effect="pure")
    def check(token: hf.Secret[str]) -> None:
        raise ValueError(token.reveal())

    with pytest.raises(hf.EffectFailed) as failed:
        desk.call(check, "k1", token=hf.Secret(VALUE, name="t"))
    clean("".join(traceback.format_exception(failed.value)))


def test_the_same_secret_is_the_same_call_and_another_is_not() -> None:
    desk = Desk()
    seen: list[Any] = []
    charge = charging(desk, seen)
    first = hf.Secret("correct horse", name="t")
    assert desk.call(charge, "k1", how="x", token=first) == desk.call(
        charge, "k1", how="x", token=hf.Secret("correct horse", name="t")
    )
    with pytest.raises(hf.CommandError) as conflict:
        desk.call(charge, "k1", how="x", token=hf.Secret("battery staple", name="t"))
    assert (conflict.value.code, seen) == ("idempotency_conflict", ["correct horse"])


def test_nobody_puts_another_secret_in_the_place_of_the_one_that_was_given() -> None:
    desk = Desk()
    seen: list[Any] = []
    charge = charging(desk, seen)

    @desk.gate.hook("before_tool_call", rights=["modify_tool_request"])
    def swap(subject: gw.Subject) -> gw.Response:
        return gw.rewrite({**subject.value, "token": {"$secret": "other", "digest": "hmac:00"}})

    with pytest.raises(hf.Denied):
        desk.call(charge, "k1", how="x", token=hf.Secret("correct horse", name="t"))
    assert seen == []


def test_a_secret_is_refused_wherever_it_would_be_stored() -> None:
    desk = Desk()
    seen: list[Any] = []
    charge = charging(desk, seen)
    secret = hf.Secret(VALUE, name="t")
    for refused in (
        lambda: desk.store.create_run(agent="a", input={"deep": [secret]}),
        lambda: desk.store.finish(desk.claim, result=secret),
        lambda: hf.values.to_json({"a": secret}),
    ):
        with pytest.raises(hf.CanonicalError) as error:
            refused()  # type: ignore[no-untyped-call]
        assert error.value.code == "secret_value"
    with pytest.raises(hf.ToolError) as plain:
        desk.call(charge, "k1", how="x", token=VALUE)
    assert plain.value.code == "bad_arguments"
    clean(str(plain.value))
    with pytest.raises(hf.ToolError):
        desk.call(charge, "k1", how=secret, token=secret)
    with pytest.raises(TypeError):
        pickle.dumps(secret)
    with pytest.raises(ValueError, match="at least"):
        hf.Secret("abc", name="short")
    assert seen == []


def test_a_secret_in_what_a_hook_answers_is_taken_out() -> None:
    desk = Desk()
    seen: list[Any] = []
    charge = charging(desk, seen)
    secret = hf.Secret(VALUE, name="t")

    @desk.gate.hook("before_tool_call", rights=["deny"])
    def tell(_: gw.Subject) -> gw.Response:
        return gw.deny("no.way", f"because of {VALUE}")

    with pytest.raises(hf.Denied) as denied:
        desk.call(charge, "k1", how="x", token=secret)
    clean(str(denied.value) + everything(desk.store, desk.run))


def test_a_secret_of_bytes_is_kept_out_too() -> None:
    desk = Desk()
    raw = b"\x00\xff\x10secret"

    @desk.gate.tool(effect="read")
    def sign(with_: hf.Secret[bytes]) -> str:
        return with_.reveal().hex() + base64.b64encode(with_.reveal()).decode()

    told = desk.call(sign, "k1", with_=hf.Secret(raw, name="k"))
    assert raw.hex() not in told
    assert base64.b64encode(raw).decode().rstrip("=") not in told
    assert raw.hex() not in everything(desk.store, desk.run)


def test_what_cannot_even_be_printed_is_settled_all_the_same() -> None:
    desk = Desk()
    secret = hf.Secret(VALUE, name="t")

    class Mute(Exception):  # noqa: N818
        def __str__(self) -> str:
            raise RuntimeError

        __repr__ = __str__

    @desk.gate.tool(effect="write")
    def send(how: str) -> None:
        if how == "mute":
            raise Mute(VALUE)
        raise hf.EffectFailed(error=7, code=VALUE)  # type: ignore[arg-type]

    with pytest.raises(hf.Suspended):
        desk.call(send, "k1", how="mute")
    with pytest.raises(hf.EffectFailed):
        desk.call(send, "k2", how="odd")
    phases = [call["phase"] for call in desk.store.state(desk.run)["calls"].values()]
    assert phases == ["doubted", "settled"]
    clean(everything(desk.store, desk.run))
    assert secret.name == "t"


def test_a_secret_that_is_no_text_is_refused_when_it_is_made() -> None:
    with pytest.raises(ValueError, match="as bytes"):
        hf.Secret("pass\udcff-word", name="env")


@pytest.mark.parametrize("before", ["", "u", "us", "use", "user:"])
def test_a_secret_inside_of_base64_hex_and_percents_is_found(before: str) -> None:
    secret = hf.Secret("correct horse battery", name="t")
    value = secret.reveal()
    for spelled in (
        base64.b64encode(f"{before}{value}:after".encode()).decode(),
        f"{before}{value}".encode().hex().upper(),
        "".join(f"%{byte:02X}" for byte in value.encode()),
    ):
        told = hf.secrets.scrub(f"a {spelled} b")
        assert "[secret t]" in told
        assert spelled not in told


def test_what_stands_for_a_secret_is_no_secret() -> None:
    desk = Desk()
    seen: list[Any] = []
    charge = charging(desk, seen)
    for forged in ({"$secret": "bank", "digest": "x"}, {"$secret": {"a": 1}, "digest": [1]}):
        with pytest.raises(hf.ToolError) as refused:
            desk.call(charge, "k1", how="x", token=forged)
        assert refused.value.code == "bad_arguments"
    assert seen == []


def test_what_agent_code_raises_and_returns_has_no_secret_in_it() -> None:
    for fails in (True, False):
        desk = Desk()
        secret = hf.Secret(VALUE, name="t")

        def work(_: gw.Step, fails: bool = fails, secret: Any = secret) -> str:
            if fails:
                raise ValueError(f"bad {secret.reveal()}")
            return f"used {secret.reveal()}"

        desk.gate.attempt(desk.claim, work)
        clean(everything(desk.store, desk.run))


def test_an_outcome_that_another_call_had_is_not_this_calls_own() -> None:
    desk = Desk()
    sent: list[str] = []
    inner = desk.gate.tool(effect="write", name="inner")(lambda: (_ for _ in ()).throw(hf.NoEffect()))

    @desk.gate.tool(effect="write")
    def outer() -> None:
        sent.append("POST")
        desk.call(inner, "inner")

    for _ in range(2):
        with pytest.raises((hf.Suspended, hf.CommandError)):
            desk.call(outer, "k1")
    assert sent == ["POST"]
