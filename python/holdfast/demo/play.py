"""What ``holdfast demo`` plays, in under a minute: an agent refunds a customer and its worker is killed
right after the payment left; another worker takes over; a second refund waits for a person, who decides in
a process of her own; then the journal is verified, one byte of a copy is flipped, and the verifier points
at it.

Nothing is simulated: the workers are processes, the kill is SIGKILL, the provider is an HTTP server whose own
books are read at the end. Without the ledger (``--without-ledger``) the same story ends with two refunds.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

from rich.console import Console
from rich.text import Text

TWICE, PATIENCE = 3, 60.0


class Stage:
    """The processes of the play, and its folder."""

    def __init__(self, folder: Path, *, ledger: bool) -> None:
        self.folder = folder
        self.store = folder / "runs"
        self.console = Console(highlight=False, emoji=False, soft_wrap=True)
        self.provider = subprocess.Popen(
            [sys.executable, "-m", "holdfast.demo.provider"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.provider.stdout is not None
        self.url = self.provider.stdout.readline().strip()
        self.environment = {
            **os.environ,
            "HOLDFAST_DEMO_LEDGER": "on" if ledger else "off",
            "HOLDFAST_DEMO_PROVIDER": self.url,
            "HOLDFAST_DEMO_STORE": str(self.store),
            "HOLDFAST_STORE": str(self.store),
        }

    def say(self, text: str, style: str = "") -> None:
        """One line for people."""
        self.console.print(Text(text, style=style))

    def scene(self, text: str) -> None:
        """A new part of the play."""
        self.say(f"\n{text}", "bold")

    def holdfast(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """The command line, as a process of its own."""
        return subprocess.run(  # noqa: S603 (ourselves)
            [sys.executable, "-m", "holdfast", *arguments],
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
        )

    def told(self, *arguments: str) -> Any:  # noqa: ANN401 (JSON)
        """What the command line prints with ``--json``."""
        done = self.holdfast(*arguments, "--json")
        if not done.stdout:
            raise RuntimeError(done.stderr)
        return json.loads(done.stdout)

    def worker(self) -> subprocess.Popen[bytes]:
        """A worker, as a process of its own."""
        command = [sys.executable, "-m", "holdfast", "worker", "holdfast.demo.app:rt", "--until-idle"]
        return subprocess.Popen(  # noqa: S603 (ourselves)
            command, env=self.environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )

    def start(self, **given: object) -> str:
        """Starts a run; its id."""
        made = self.told("runs", "start", "holdfast.demo.app:rt", "support", "--input", json.dumps(given))
        return str(made["id"])

    def books(self, path: str = "/refunds", body: bytes | None = None) -> Any:  # noqa: ANN401 (JSON)
        """The provider's own books, over HTTP."""
        with urlopen(Request(f"{self.url}{path}", body), timeout=PATIENCE) as answer:  # noqa: S310 (here)
            return json.load(answer)

    def until(self, what: str, met: Any) -> None:  # noqa: ANN401 (a condition)
        """Waits for something to come true."""
        end, pause = time.monotonic() + PATIENCE, threading.Event()
        while not met():
            if time.monotonic() > end:
                raise RuntimeError(f"waited {PATIENCE:.0f} s for {what}")
            pause.wait(0.02)

    def close(self) -> None:
        """Ends the provider."""
        self.provider.terminate()
        self.provider.communicate()


def main(folder: str | None = None, *, ledger: bool = True) -> int:
    """Plays it; 0 if all came as it should, 3 if money moved twice or a check failed."""
    root = Path(folder or tempfile.mkdtemp(prefix="holdfast-demo-"))
    root.mkdir(parents=True, exist_ok=True)
    if (root / "runs").exists():
        Console().print(Text(f"{root / 'runs'} is there already: name another folder"))
        return 1
    stage = Stage(root, ledger=ledger)
    try:
        refunds = _killed(stage)
        if not ledger:
            stage.say(f"\nWithout the ledger the customer got {refunds} refunds.", "bold red")
            return TWICE if refunds != 1 else 1
        ok = refunds == 1 and _approved(stage) and _verified(stage)
    finally:
        stage.close()
    _next(stage, ok)
    return 0 if ok else TWICE


def _killed(stage: Stage) -> int:
    stage.scene("1. A worker is killed right after the payment left")
    run = stage.start(ticket="my parcel never came", order="42", cents=1999)
    stage.say(f"   a customer wants 19.99 back: {run}")
    worker = stage.worker()
    stage.until("the provider to book it", lambda: stage.books())
    worker.send_signal(signal.SIGKILL)
    worker.wait()
    stage.say(
        "   the provider has booked the refund, and has not answered yet; the worker is dead (SIGKILL)",
        "yellow",
    )
    stage.books("/answer", b"{}")
    stage.worker().wait()
    status = stage.told("runs", "show", run)
    refunds = [refund for refund in stage.books() if refund["order"] == "42"]
    stage.say(f"   another worker took over: {status['status']}, {status['result']}")
    style = "green" if len(refunds) == 1 else "red"
    stage.say(
        f"   the provider's own books have {len(refunds)} refund(s) for order 42: {_ids(refunds)}", style
    )
    return len(refunds)


def _ids(refunds: list[dict[str, Any]]) -> str:
    return ", ".join(refund["id"] for refund in refunds)


def _approved(stage: Stage) -> bool:
    stage.scene("2. A large refund waits for a person, without a process")
    run = stage.start(ticket="the piano arrived broken", order="43", cents=99900)
    stage.worker().wait()
    (request,) = stage.told("approvals", "list")
    stage.say(f"   no process runs; holdfast approvals shows: {request['tool']} {request['arguments']}")
    done = stage.holdfast("approvals", "approve", request["id"], "--by", "dana", "--reason", "seen")
    stage.say(f"   dana approves it from another process (exit {done.returncode})")
    stage.worker().wait()
    status = stage.told("runs", "show", run)
    refunds = [refund for refund in stage.books() if refund["order"] == "43"]
    stage.say(f"   {status['status']}, {status['result']}; the provider's books: {_ids(refunds)}", "green")
    return status["status"] == "completed" and len(refunds) == 1


def _verified(stage: Stage) -> bool:
    stage.scene("3. Anybody can prove it offline, and any change shows")
    key, seal, bundle = stage.folder / "log.key", stage.folder / "seal.txt", stage.folder / "evidence.zip"
    public = stage.holdfast("keys", "generate", "demo.example/refunds", "-o", str(key)).stdout.strip()
    stage.holdfast("journal", "seal", "--key", str(key), "-o", str(seal), "--store", str(stage.store))
    run = stage.told("runs", "list")[-1]["id"]
    done = stage.told("evidence", "export", run, "-o", str(bundle))
    stage.say(
        f"   the journal is sealed, and {done['records']} records of the first run are exported: {bundle}"
    )
    clean = stage.holdfast("evidence", "verify", str(bundle), "--key", public, "--seal", str(seal))
    style = "red" if clean.returncode else "green"
    stage.say(f"   holdfast evidence verify: {'BAD' if clean.returncode else 'good, under the seal'}", style)
    command = [sys.executable, "-I", str(bundle)]
    alone = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 (ourselves)
    said = (alone.stdout.splitlines() or ["nothing"])[-1]
    stage.say(
        f"   python evidence.zip, with nothing of Holdfast: {said}", "red" if alone.returncode else "green"
    )
    forged = _forged(stage, bundle)
    stage.say(f"   one bit of a copy is flipped: {forged}", "yellow")
    return clean.returncode == alone.returncode == 0 and "BAD" in forged


def _forged(stage: Stage, bundle: Path) -> str:
    """What the verifier says of a copy in which one bit of a payment's outcome is another."""
    copy, data = stage.folder / "forged.zip", bytearray(bundle.read_bytes())
    data[data.find(b'"kind":"effect.') - 40] ^= 1
    copy.write_bytes(data)
    return stage.holdfast("evidence", "verify", str(copy)).stdout.strip()


def _next(stage: Stage, ok: bool) -> None:
    stage.say("\nAll as it should be." if ok else "\nSomething is not as it should be: see above.", "bold")
    stage.say(f"Look around in {stage.folder}:")
    for command in (
        "runs",
        "verify",
        "journal tail RUN",
        "sql 'select kind, count(*) from events group by kind'",
    ):
        stage.say(f"  holdfast {command} --store {stage.store}")
    stage.say("And see what happens without the ledger: holdfast demo --without-ledger")
