"""What runs inside a sandbox: a supervisor, which starts the body in a process of its own and outlives it.

Started by ``process.py`` as ``python -I child.py CONTROL BEGIN REPORT``, by nobody else. It stands alone:
the standard library only, because every import is paid for in every run.

- CONTROL is read: one line of JSON, the request. Its end, at any time, means: kill everything.
- BEGIN is written by the body's process: one byte, directly before it calls the body.
- REPORT is written by the supervisor alone, which the body cannot look into: a line of JSON about the
  body's process, then what that process answered.

At the end every process that descends from the body is killed, also daemons: the supervisor adopts orphans,
and is done when the kernel says that it has no child left.
"""

from __future__ import annotations

import ctypes
import importlib
import inspect
import json
import os
import resource
import select
import signal
import sys
import time
from contextlib import suppress
from types import CoroutineType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

PDEATHSIG, DUMPABLE, SUBREAPER, NO_NEW_PRIVS, CAPABILITIES = 1, 4, 36, 38, 0x20080522
ENVELOPE, MESSAGE_MAX, NAME_MAX = 1 << 14, 2048, 128  # an envelope is what an answer has beside its value
OUTCOMES = "holdfast.gateway.outcomes"
FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
LIBC = ctypes.CDLL(None, use_errno=True)
Said = dict[str, Any]


def _prctl(option: int, value: int) -> None:
    if LIBC.prctl(*map(ctypes.c_ulong, (option, value, 0, 0, 0))) != 0:
        raise OSError(ctypes.get_errno(), f"prctl {option}")


def main(control: int, begin: int, report: int) -> None:
    """Has the body run, and reports."""
    for line in (control, begin, report):
        os.set_inheritable(line, False)
    with os.fdopen(control, "rb", closefd=False) as asked:
        text = asked.readline()
    if not text.endswith(b"\n"):
        return  # the parent is gone, or has changed its mind
    request = json.loads(text)
    _prctl(NO_NEW_PRIVS, 1)
    _prctl(SUBREAPER, 1)
    _prctl(DUMPABLE, 0)  # before the fork: a moment later the body could look into this process
    listed = os.open(f"/proc/self/task/{os.getpid()}/children", os.O_RDONLY)
    answers, answer = os.pipe()
    supervisor, body = os.getpid(), os.fork()
    if body == 0:
        try:
            for line in (control, report, answers, listed):
                os.close(line)
            _perform(request, begin, answer, supervisor)
        finally:
            os._exit(1)
    for line in (begin, answer):
        os.close(line)
    said = bytearray()
    end = _watched(request, body, control, answers, said)
    code = _swept(body, listed)
    _heard(answers, said, request)
    end = "killed" if end == "exited" and code < 0 else end
    with os.fdopen(report, "wb") as out, suppress(BrokenPipeError):
        out.write(json.dumps({"end": end, "exit_code": code}).encode() + b"\n" + said)
    with suppress(OSError):  # the parent tries it again
        remove(request["room"])


def _woken(parent: int) -> int:
    """A line that speaks when the parent dies, however it dies and whoever still holds its pipes."""
    awake, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    signal.signal(signal.SIGTERM, lambda *_: None)
    if os.getpid() != 1:  # bubblewrap has seen to it that its first process dies with it
        _prctl(PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:
            os.write(wake, b"!")
    return awake


def _watched(request: Said, body: int, control: int, answers: int, said: bytearray) -> str:
    """Waits for the body's process, at most until the deadline, and hears what it answers meanwhile."""
    exited, awake = os.pidfd_open(body), _woken(request["parent"])
    os.set_blocking(answers, False)
    poll = select.poll()
    for line in (exited, awake, control, answers):
        poll.register(line, select.POLLIN)
    while True:
        left = request["deadline"] - time.monotonic()
        ready = dict(poll.poll(min(max(0.0, left), 3600.0) * 1000))
        if answers in ready and not _heard(answers, said, request):
            poll.unregister(answers)
        if exited in ready:
            return "exited"
        if control in ready or awake in ready:
            return "killed"
        if left <= 0:
            return "timed_out"


def _heard(answers: int, said: bytearray, request: Said) -> bool:
    """Reads what is there; False when there will be nothing more that counts."""
    while len(said) <= request["limits"]["output_bytes"] + ENVELOPE:
        try:
            data = os.read(answers, 1 << 16)
        except BlockingIOError:
            return True
        if not data:
            return False
        said += data
    return False


def _swept(body: int, listed: int) -> int:
    """Kills and buries every descendant; the exit code of the body's process."""
    code = 0
    while True:  # orphans become children; the kernel's list of those outruns what forks and leaves
        found = os.pread(listed, 1 << 16, 0).rpartition(b" ")[0].split()  # the last may be cut off
        for pid in found:
            os.kill(int(pid), signal.SIGKILL)
        wait = 0 if found else os.WNOHANG
        try:
            while (ended := os.waitpid(-1, wait)) != (0, 0):
                code = os.waitstatus_to_exitcode(ended[1]) if ended[0] == body else code
                wait = os.WNOHANG
        except ChildProcessError:
            return code


def remove(room: str) -> None:
    """A folder with all that a body put there: of any depth and mode, links never followed."""
    names: list[str] = []
    here = os.open(room, FOLDER)
    try:
        while (full := _full(here)) is not None or names:
            if full is not None:
                os.chmod(full, 0o700, dir_fd=here)
                there = os.open(full, FOLDER, dir_fd=here)
                names.append(full)
            else:
                there = os.open("..", FOLDER, dir_fd=here)
                os.rmdir(names.pop(), dir_fd=there)
            os.close(here)
            here = there
    finally:
        os.close(here)
    os.rmdir(room)  # noqa: PTH106 (pathlib costs more than all of this)


def _full(here: int) -> str | None:
    """Empties a folder, but for a first one in it that is not empty."""
    for entry in list(os.scandir(here)):
        try:
            (os.rmdir if entry.is_dir(follow_symlinks=False) else os.unlink)(entry.name, dir_fd=here)
        except OSError:
            return entry.name
    return None


def _perform(request: Said, begin: int, answer: int, supervisor: int) -> None:
    """The body's process: gives up what the body shall not have, calls it and answers."""
    me, leave = os.getpid(), os._exit
    lines = {line: os.fstat(line)[:3] for line in (begin, answer)}  # code may close and reuse their numbers
    try:
        _confined(request, supervisor)
        function, arguments = _bound(request)
    except BaseException as error:
        said = json.dumps({"error": _told(error)})
    else:
        if os.fstat(begin)[:3] != lines[begin]:
            return
        os.write(begin, b"!")
        os.close(begin)
        said = _called(function, arguments, request["limits"]["output_bytes"])
    if os.getpid() == me and os.fstat(answer)[:3] == lines[answer]:
        with os.fdopen(answer, "w") as out:
            out.write(request["token"] + said)
        leave(0)


def _confined(request: Said, supervisor: int) -> None:
    with open(os.devnull, "r+b", buffering=0) as null:  # noqa: PTH123 (pathlib costs more than all of this)
        for line in range(3):
            os.dup2(null.fileno(), line)
    _prctl(PDEATHSIG, signal.SIGKILL)
    if os.getppid() != supervisor:
        raise ProcessLookupError("the supervisor is gone")
    _prctl(DUMPABLE, 1)
    _limited(request["limits"])
    if LIBC.capset((ctypes.c_uint32 * 2)(CAPABILITIES, 0), (ctypes.c_uint32 * 6)()) != 0:
        raise OSError(ctypes.get_errno(), "capset")  # with capabilities root could lift its limits again
    sys.path[:] = request["path"]


def _limited(limits: Said) -> None:
    cpu, user = limits["cpu_seconds"], os.getuid()
    running = 0  # the kernel counts all threads of the user, whoever started them
    for entry in os.scandir("/proc"):
        with suppress(OSError):  # it may be gone at any moment
            if entry.name.isdigit() and entry.stat().st_uid == user:
                running += sum(1 for _ in os.scandir(f"/proc/{entry.name}/task"))
    wanted = {
        resource.RLIMIT_AS: limits["memory_bytes"],
        resource.RLIMIT_CPU: cpu + 1,
        resource.RLIMIT_FSIZE: limits["file_bytes"],
        resource.RLIMIT_NOFILE: limits["open_files"],
        resource.RLIMIT_NPROC: limits["processes"] and limits["processes"] + running,
        resource.RLIMIT_CORE: 0,
    }
    for kind, most in wanted.items():
        _, hard = resource.getrlimit(kind)
        hard = most if hard == resource.RLIM_INFINITY else min(most, hard)
        # A second before the end, a signal that says what it is for; it can be ignored, the end cannot.
        resource.setrlimit(kind, (min(cpu, hard) if kind == resource.RLIMIT_CPU else hard, hard))


def _bound(request: Said) -> tuple[Callable[..., Any], Said]:
    module, _, names = request["target"].partition(":")
    found: Any = importlib.import_module(module)
    for name in names.split("."):
        found = getattr(found, name)
    given: Said = request["arguments"]
    if outcomes := sys.modules.get(OUTCOMES):
        call = outcomes.Call(**request["call"])
        if hasattr(found, "function") and hasattr(found, "bound"):  # a Tool
            secrets = {to: _secret(*told) for to, told in request["secrets"].items()}
            return found.function, found.bound(given, call, secrets)
        shape = importlib.import_module("holdfast.gateway.shapes").Signature(names, found)
        secrets = {to: _secret(*told) for to, told in request["secrets"].items()}
        return found, shape.bound(given, call, secrets)
    inspect.signature(found).bind(**given)
    return found, given


def _secret(name: str, text: str, raw: bool) -> object:
    kind = sys.modules["holdfast.secrets"].Secret
    return kind(text.encode("latin-1") if raw else text, name=name)


def _called(function: Callable[..., Any], arguments: Said, most: int) -> str:
    try:
        value = function(**arguments)
        if isinstance(value, CoroutineType):
            value = importlib.import_module("asyncio").run(value)
    except BaseException as error:
        return json.dumps({"error": _told(error)})
    said: Said = {"returned": True}
    try:
        if _is_ours(value, "Result"):
            said |= {"external_id": value.external_id, "usage": value.usage and dict(value.usage)}
            value = value.value
        # By our rule; where nobody has imported it, it is only asked about what the encoder cannot take.
        said["value"] = _as_json(value) if OUTCOMES in sys.modules else value
        text = json.dumps(said, allow_nan=False, default=_as_json)
        if len(text) <= most:
            return text
        wrong = {"type": "output_too_large", "message": f"{len(text)} bytes as JSON, the most is {most}"}
    except BaseException as error:
        wrong = _told(error) | {"type": "output_too_large" if isinstance(error, MemoryError) else "not_json"}
    return json.dumps({"returned": True, "error": wrong})


def _as_json(value: object) -> object:
    return importlib.import_module("holdfast.values").to_json(value)


def _is_ours(value: object, name: str) -> bool:
    """Whether it is of a class of ours; where that was never imported, nothing is."""
    return OUTCOMES in sys.modules and isinstance(value, getattr(sys.modules[OUTCOMES], name))


def _told(error: BaseException) -> Said:
    failed = _is_ours(error, "EffectFailed")
    told: Said = {"effect_failed": failed, "no_effect": _is_ours(error, "NoEffect")}
    told["type"] = type(error).__qualname__[:NAME_MAX]
    with suppress(BaseException):  # it may not even be able to say what it is
        first = error.args[0] if error.args else ""
        message = first if isinstance(first, str) else str(error)
        if secrets := sys.modules.get("holdfast.secrets"):  # before it is cut: a part of a secret is one, too
            message = secrets.scrub(message)
        told["message"] = message[:MESSAGE_MAX]
        told["code"] = str(getattr(error, "code", ""))[:NAME_MAX]
        told["type"] = str(error.error)[:NAME_MAX] if failed else told["type"]  # type: ignore[attr-defined]
    return told


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
