"""Tools whose bodies run in a process of their own: a sandbox imports them from here."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any, NoReturn

import holdfast as hf

gate = hf.Gateway(hf.open("memory:"))


@gate.tool(effect="write", sandbox="required", timeout=10.0)
def book(folder: str, how: str, call: hf.Call) -> dict[str, Any]:
    """Leaves a mark, and ends as it is told."""
    with (Path(folder) / "ledger").open("a") as ledger:
        ledger.write(f"{call.key}\n")
    match how:
        case "raise":
            raise ConnectionError("the line broke")
        case "nothing":
            raise hf.NoEffect("the shop is closed")
        case "fail":
            raise hf.EffectFailed("refused", code="card_declined")
        case "die":
            os.kill(os.getpid(), signal.SIGKILL)
        case "hang":
            signal.pause()
        case "result":
            return hf.Result({"pid": os.getpid()}, external_id="b-7")  # type: ignore[return-value]
    return {"pid": os.getpid()}


@gate.tool(effect="read", sandbox="preferred", timeout=10.0)
def pid() -> int:
    """Whose process runs it."""
    return os.getpid()


@gate.tool(effect="read", sandbox="required", timeout=10.0)
def opened(token: hf.Secret[str]) -> str:
    """Has the secret, and tells it."""
    return f"{len(token.reveal())} {token.reveal()}"


@gate.tool(effect="read", sandbox="required", timeout=10.0)
def told(token: hf.Secret[str]) -> None:
    """Raises with the secret in its message."""
    raise ValueError(f"bad key: {token.reveal()}")


def plain(amounts: set[int], token: hf.Secret[str]) -> str:
    """A function that is no tool here."""
    return f"{type(amounts).__name__} {len(token.reveal())}"


def refuses(why: str) -> NoReturn:
    """Never returns."""
    raise hf.EffectFailed(why)


def add(a: int, b: int) -> int:
    """For a tool of another gateway."""
    return a + b
