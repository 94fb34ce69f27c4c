"""Bodies that need Holdfast itself: what a call is, what a secret is, and what a result may say."""

from __future__ import annotations

from typing import Any

import holdfast as hf
from holdfast.conformance import sandbox_bodies


def called(what: str, call: hf.Call) -> list[Any]:
    """What it is told of its call."""
    return [what, call.id, call.key, call.run, call.dispatch]


def opened(token: hf.Secret[str]) -> list[Any]:
    """Has the secret, and says where else it stands."""
    value = token.reveal()
    return [value[::-1], sandbox_bodies.searched(value)]


def say(what: str) -> hf.Result[Any]:
    """Ends with a word of Holdfast's."""
    if what == "no effect":
        raise hf.NoEffect("the order was not there")
    if what == "failed":
        raise hf.EffectFailed("the card was refused", code="refused", error="CardError")
    return hf.Result({"id": 1}, external_id="ch_1", usage={"tokens": 3})
