"""Sandboxes that are wrong in one way each, and the clauses that each of them breaks."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from tests.conformance.sandboxes import PATH, Passing

from holdfast.sandbox import Done, Job, Limits, Subprocess

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

BROKEN: dict[type[Passing], set[str]] = {}
ROOMY = {"memory_bytes": 8 << 30, "cpu_seconds": 600, "processes": 9999, "output_bytes": 1 << 24}


def breaks(*clauses: str) -> Callable[[type[Passing]], type[Passing]]:
    def kept(sandbox: type[Passing]) -> type[Passing]:
        BROKEN[sandbox] = set(clauses)
        return sandbox

    return kept


class Says(Passing):
    """Says something else about what became of a job; all of these ask the honest one once, and each lies."""

    truths: ClassVar[dict[str, Done]] = {}

    def run(self, job: Job, cancelled: threading.Event | None = None) -> Done:
        off = cancelled is not None and cancelled.is_set()
        name = repr((job.target, sorted(job.arguments), job, self.limits, off))
        if name not in self.truths:
            self.truths[name] = super().run(job, cancelled)
        return self.said(self.truths[name])

    def said(self, done: Done) -> Done:
        raise NotImplementedError


def is_unknown(done: Done) -> bool:
    return done.started and not done.returned and done.error is None


# What is certain.


@breaks("start.not_importable", "start.bad_arguments", "start.no_time", "start.cancelled")
class NeverRulesAnythingOut(Says):
    """What did not begin is taken for something that nobody knows."""

    def said(self, done: Done) -> Done:
        return done if done.started else replace(done, end="exited", started=True, error=None)


@breaks(
    "unknown.left",
    "unknown.killed",
    "unknown.forged",
    "end.timeout",
    "end.descendants",
    "end.cancelled",
    "enforces.time",
    "enforces.cpu",
)
class RulesOutWhatItDoesNotKnow(Says):
    """No answer, no effect: the most expensive mistake of all."""

    def said(self, done: Done) -> Done:
        return replace(done, end="not_started", started=False) if is_unknown(done) else done


@breaks("unknown.left", "unknown.forged")
class BelievesAnExitCode(Says):
    def said(self, done: Done) -> Done:
        return replace(done, returned=True) if is_unknown(done) and done.exit_code == 0 else done


@breaks("return.untellable", "return.too_large")
class TakesWhatItCannotTellForFailed(Says):
    def said(self, done: Done) -> Done:
        return replace(done, returned=False) if done.error else done


@breaks("return.too_large")
class TellsAPart(Passing):
    def run(self, job: Job, cancelled: threading.Event | None = None) -> Done:
        done = super().run(
            replace(job, limits=replace(job.limits or self.limits, output_bytes=1 << 24)), cancelled
        )
        most = (job.limits or self.limits).output_bytes
        return replace(done, value=done.value[:most]) if isinstance(done.value, str) else done


@breaks("raise.told")
class TakesErrorsForNoEffect(Says):
    def said(self, done: Done) -> Done:
        if done.started and not done.returned and done.error and not done.error["effect_failed"]:
            return replace(done, error=done.error | {"no_effect": True})
        return done


@breaks("raise.effects")
class KnowsNoWordsOfOurs(Says):
    def said(self, done: Done) -> Done:
        if done.started and done.error:
            silent: Any = done.error | {"no_effect": False, "effect_failed": False}
            return replace(done, error=silent)
        return done


@breaks("raise.bounded")
class TellsEverything(Says):
    def said(self, done: Done) -> Done:
        if done.error and len(done.error["message"]) > 1000:
            whole: Any = done.error | {"message": done.error["message"] * 4000}
            return replace(done, error=whole)
        return done


@breaks(
    "raise.told", "raise.bounded", "raise.effects", "return.untellable", "return.too_large", "enforces.memory"
)
class RaisesWhatABodyRaised(Says):
    def said(self, done: Done) -> Done:
        if done.started and done.error:
            raise RuntimeError(done.error["type"])
        return done


@breaks("unknown.left", "unknown.killed")
class HidesTheExitCode(Says):
    def said(self, done: Done) -> Done:
        return replace(done, exit_code=1 if done.exit_code else done.exit_code)


@breaks("return.result")
class ForgetsWhatAResultSays(Says):
    def said(self, done: Done) -> Done:
        return replace(done, external_id=None, usage=None)


@breaks("return.value", "threads.each_its_own", "call.told", "secret.told", "clean.folder")
class TellsListsAsText(Says):
    def said(self, done: Done) -> Done:
        return replace(done, value=json.dumps(done.value)) if isinstance(done.value, list) else done


@breaks("unknown.forked")
class BelievesTheLastToSpeak(Says):
    def said(self, done: Done) -> Done:
        return replace(done, value="child") if done.value == "parent" else done


# What goes in.


@breaks("call.told")
class LosesTheCall(Passing):
    def run(self, job: Job, cancelled: threading.Event | None = None) -> Done:
        return super().run(replace(job, call=None), cancelled)


class WithVariables(Passing):
    """Bodies with variables of a sandbox that does not think twice."""

    def variables(self, job: Job) -> dict[str, str]:
        raise NotImplementedError

    def run(self, job: Job, cancelled: threading.Event | None = None) -> Done:
        return Subprocess(self.limits, PATH, self.variables(job)).run(job, cancelled)


@breaks("secret.told")
class PutsSecretsIntoTheEnvironment(WithVariables):
    def variables(self, job: Job) -> dict[str, str]:
        return {f"SECRET_{name}": secret.text() for name, secret in job.secrets.items()}


@breaks("clean.environment")
class PassesTheEnvironmentOn(WithVariables):
    def variables(self, job: Job) -> dict[str, str]:  # noqa: ARG002
        return dict(os.environ)


class Littered(Subprocess):
    """One folder for all."""

    clears = False

    def __init__(self, limits: Limits) -> None:
        super().__init__(limits, PATH)
        self.folder = tempfile.TemporaryDirectory()

    @contextmanager
    def _room(self) -> Iterator[str]:
        yield self.folder.name


@breaks("clean.folder")
class SharesOneFolder(Passing):
    def __init__(self, limits: Limits) -> None:
        super().__init__(limits)
        self.inner = self.shared = Littered(limits)

    def end(self) -> None:
        self.shared.folder.cleanup()


@breaks("threads.each_its_own")
class OneAtATime(Passing):
    def __init__(self, limits: Limits) -> None:
        super().__init__(limits)
        self.turn = threading.Lock()

    def run(self, job: Job, cancelled: threading.Event | None = None) -> Done:
        if not self.turn.acquire(blocking=False):
            return Done("not_started")
        try:
            return super().run(job, cancelled)
        finally:
            self.turn.release()


@breaks("start.cancelled", "end.cancelled")
class CannotBeCancelled(Passing):
    def run(self, job: Job, cancelled: threading.Event | None = None) -> Done:  # noqa: ARG002
        return super().run(replace(job, timeout=min(job.timeout, 3.0)))


@breaks("start.no_time", "end.timeout", "enforces.time")
class GivesALittleMoreTime(Passing):
    """And calls it an end by itself."""

    def run(self, job: Job, cancelled: threading.Event | None = None) -> Done:
        done = super().run(
            replace(job, timeout=job.timeout + 1.0 if job.timeout < 2 else job.timeout), cancelled
        )
        return replace(done, end="killed") if done.end == "timed_out" else done


@breaks("end.again")
class DoesNotGetOverIt(Passing):
    """After a timeout it takes nothing more."""

    worn = False

    def run(self, job: Job, cancelled: threading.Event | None = None) -> Done:
        done = Done("not_started") if self.worn else super().run(job, cancelled)
        self.worn |= done.end == "timed_out"
        return done


# What it says of itself.


@breaks("enforces.cpu", "enforces.memory", "return.too_large")
class LimitsNothing(Passing):
    """It says what the kernel could enforce, if it were asked to."""

    def run(self, job: Job, cancelled: threading.Event | None = None) -> Done:
        loose: Any = asdict(job.limits or self.limits) | ROOMY
        return super().run(replace(job, limits=Limits(**loose)), cancelled)

    def enforces(self) -> frozenset[str]:
        return super().enforces() - {"processes"}


@breaks("enforces.cpu", "enforces.memory")
class HasOneSizeForAll(Passing):
    """What a job is given in its own right is not looked at."""

    def run(self, job: Job, cancelled: threading.Event | None = None) -> Done:
        return super().run(replace(job, limits=None), cancelled)

    def enforces(self) -> frozenset[str]:
        return super().enforces() - {"processes"}


@breaks("enforces.filesystem", "enforces.network", "enforces.processes")
class ClaimsEverything(Passing):
    def enforces(self) -> frozenset[str]:
        return super().enforces() | {"filesystem", "network", "processes"}

    def run(self, job: Job, cancelled: threading.Event | None = None) -> Done:
        loose = replace(job.limits or self.limits, processes=9999)
        return super().run(replace(job, limits=loose), cancelled)


@breaks("says.what_it_is")
class SaysMoreThanTheContract(Passing):
    def enforces(self) -> frozenset[str]:
        return super().enforces() | {"everything"}


# The one that everybody writes first.

BARE = """
import importlib, json, sys
asked = json.load(sys.stdin)
sys.path[:0] = asked["path"]
module, _, name = asked["target"].partition(":")
value = getattr(importlib.import_module(module), name)(**asked["arguments"])
print(json.dumps({"value": value}), flush=True)
"""


@breaks(
    "start.not_importable",
    "start.bad_arguments",
    "return.value",
    "return.untellable",
    "return.too_large",
    "return.result",
    "raise.told",
    "raise.bounded",
    "raise.effects",
    "call.told",
    "secret.told",
    "start.cancelled",
    "start.no_time",
    "unknown.forged",
    "end.descendants",
    "end.cancelled",
    "clean.environment",
    "clean.descriptors",
    "clean.folder",
    "enforces.memory",
)
class Bare(Passing):
    """A process, its output taken for the answer."""

    def __init__(self, limits: Limits) -> None:
        super().__init__(limits)
        self.mark = f"bare-{os.urandom(8).hex()}"

    def enforces(self) -> frozenset[str]:
        return frozenset(("memory", "time"))

    def check(self) -> None:
        pass

    def run(self, job: Job, cancelled: threading.Event | None = None) -> Done:  # noqa: ARG002
        asked = {"arguments": dict(job.arguments), "path": [*map(str, PATH), *sys.path], "target": job.target}
        command = [sys.executable, "-c", BARE]
        with tempfile.TemporaryFile() as out:
            # A file, because what outlives the body would keep a pipe open.
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=subprocess.DEVNULL,
                close_fds=False,
                env=os.environ | {"BARE": self.mark},
                cwd=tempfile.gettempdir(),
            )
            with suppress(subprocess.TimeoutExpired, BrokenPipeError, TypeError):
                text = json.dumps(asked).encode()
                process.communicate(text, timeout=min(max(job.timeout, 0.001), 4.0))
            timed_out = process.poll() is None
            process.kill()
            process.wait()
            out.seek(0)
            said = out.read().splitlines()
        code = process.returncode
        if timed_out:
            return Done("timed_out", code, started=True)
        if code != 0 or not said:
            return Done("killed" if code < 0 else "exited", code, started=True)
        with suppress(ValueError):
            return Done("exited", 0, started=True, returned=True, value=json.loads(said[-1]).get("value"))
        return Done("exited", 0, started=True)

    def end(self) -> None:
        for entry in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if self.mark.encode() in (entry / "environ").read_bytes():
                    os.kill(int(entry.name), signal.SIGKILL)
        Path(tempfile.gettempdir(), "left").unlink(missing_ok=True)
