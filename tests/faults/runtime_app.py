"""The program whose workers are killed: agents over tools of each kind of protection, and an outside ledger
that counts attempts. Each attempt to act appends one line to a file of its own, so that no two writers
share one.
"""

from __future__ import annotations

import os
import signal
import time
import uuid
from contextlib import suppress
from pathlib import Path

import holdfast as hf

ROOT = Path(os.environ.get("HOLDFAST_TEST_ROOT", "."))
LEDGER = ROOT / "ledger"
rt = hf.Runtime(os.environ.get("HOLDFAST_TEST_STORE") or ROOT / "runs", suspend_grace=0.05, replay_grace=2.0)


def attempts() -> list[tuple[str, str]]:
    """What the world has seen: (what, key), one for each attempt."""
    if not LEDGER.exists():
        return []
    lines = (
        path.read_text().strip().split("\t") for path in sorted(LEDGER.iterdir()) if path.suffix == ".sent"
    )
    return [(what, key) for what, key in lines]


def _send(what: str, key: str, name: str | None = None) -> None:
    """One attempt, whole or not at all: a name that is there was sent."""
    LEDGER.mkdir(exist_ok=True)
    new = LEDGER / f"{uuid.uuid4().hex}.new"
    new.write_text(f"{what}\t{key}\n")
    with suppress(FileExistsError):  # a link is made once, whoever comes at the same time
        os.link(new, LEDGER / f"{name or new.stem}.sent")


def _slowly() -> None:
    """Gives a killer time to hit the middle."""
    end = time.monotonic() + 0.002
    while time.monotonic() < end:
        pass


@rt.tool(effect="write", idempotent=hf.Keyed(ttl=3600))
def keyed(what: str, call: hf.Call) -> str:
    """A provider that honours its key: a repeat does nothing new, also beside a worker that woke up late."""
    _slowly()
    _send(what, call.key, name=call.key)
    _slowly()
    return what


def _look(call: hf.Call) -> object:
    found = any(key == call.key for _, key in attempts())
    return hf.Happened("found") if found else hf.DidNotHappen()


@rt.tool(effect="write", reconcile=_look)
def reconciled(what: str, call: hf.Call) -> str:
    """A provider that can be asked."""
    _slowly()
    _send(what, call.key)
    _slowly()
    return what


def _dies(where: str) -> None:
    """Is killed here, once for each time that the test asked for it: chance alone may miss the middle."""
    with suppress(FileNotFoundError):
        (ROOT / f"die {where}").unlink()
        os.kill(os.getpid(), signal.SIGKILL)


@rt.tool(effect="write")
def unprotected(what: str, call: hf.Call) -> str:
    """A provider that can neither be asked nor told a key: a person has to look."""
    _slowly()
    _dies("before it is sent")
    _send(what, call.key)
    _dies("after it was sent")
    _slowly()
    return what


@rt.tool(effect="write", approval="always")
def approved(what: str, call: hf.Call) -> str:
    """A person is asked first."""
    _send(what, call.key)
    return what


@rt.tool(effect="read")
def look(what: str) -> str:
    """Something that may be looked at twice."""
    return what


@rt.agent(attempts=50, backoff=0.01, backoff_max=0.05)
async def busy(ctx: hf.Context, name: str) -> list[str]:
    """Acts in each way, and keeps count in its state."""
    done = [await ctx.call(keyed, what=f"{name} keyed")]
    done.append(await ctx.call(look, what=name))
    ctx.state["half"] = name
    await ctx.commit()
    done.append(await ctx.call(reconciled, what=f"{name} reconciled"))
    done.append(await ctx.call(unprotected, what=f"{name} unprotected"))
    return done


@rt.agent(attempts=50, backoff=0.01, backoff_max=0.05)
async def twin(ctx: hf.Context, name: str) -> list[str]:
    """Several runs do the same, under keys of the store."""
    done = []
    for tool in (reconciled, unprotected):
        key = hf.Key(f"{name} {tool.name}", scope="store")
        done.append(await ctx.call(tool, what=f"{name} {tool.name}", key=key))
    return done


@rt.agent(attempts=50, backoff=0.01, backoff_max=0.05)
async def asking(ctx: hf.Context, name: str) -> str:
    """Waits for a person in the middle."""
    await ctx.call(reconciled, what=f"{name} before")
    return await ctx.call(approved, what=f"{name} approved")
