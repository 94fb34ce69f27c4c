"""Hostile bodies against each tier: what a tier says it enforces holds, and the same body gets through where
nothing is enforced, so that each of these tests is known to be able to fail.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.sandbox_desk import IS_ROOT, needs_bubblewrap, nobody
from tests.support import ROOT

from holdfast import Call
from holdfast.sandbox import Bubblewrap, Done, Job, Limits, SandboxError, Subprocess
from holdfast.secrets import Secret

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from holdfast.sandbox import Sandbox

    Make = Callable[..., Sandbox]

MIB = 1 << 20
NOTHING = {"code": None, "effect_failed": False, "message": "", "no_effect": False}
NO_ANSWER = Done("exited", 0, started=True)
CONTROL = "import json, sys; from tests import sandbox_bodies as b; \
print(json.dumps(getattr(b, sys.argv[1])(**json.loads(sys.argv[2]))))"


@pytest.fixture
def bubblewrap(request: pytest.FixtureRequest) -> Make:
    needs_bubblewrap(request)
    return Bubblewrap


def subprocess_(**options: Any) -> Subprocess:
    """Takes what the other tier takes; all files are readable and writable anyway."""
    return Subprocess(**{name: value for name, value in options.items() if not name.endswith("able")})


@pytest.fixture(params=["subprocess", "bubblewrap"])
def tier(request: pytest.FixtureRequest) -> Make:
    made: Make = subprocess_
    return made if request.param == "subprocess" else request.getfixturevalue("bubblewrap")


class Fifo:
    """Open as long as any process that opened it lives: a death can be heard."""

    def __init__(self, folder: Path) -> None:
        self.path = str(folder / "fifo")
        os.mkfifo(self.path)
        self.line = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK)

    def pid(self) -> int:
        """Waits for the number of the process that has it open, in its own counting."""
        assert select.select([self.line], [], [], 60)[0]
        return int(os.read(self.line, 99))

    def is_held(self) -> bool:
        try:
            return os.read(self.line, 9) != b""
        except BlockingIOError:
            return True


@pytest.fixture
def fifo(tmp_path: Path) -> Iterator[Fifo]:
    made = Fifo(tmp_path)
    yield made
    os.close(made.line)


def job(body: str, **arguments: Any) -> Job:
    own = {name: arguments.pop(name) for name in ("timeout", "limits") if name in arguments}
    return Job(f"tests.sandbox_bodies:{body}", arguments, **{"timeout": 60.0, **own})


def ran(sandbox: Sandbox, body: str, **arguments: Any) -> Done:
    return replace(sandbox.run(job(body, **arguments)), elapsed_ms=0)


def unprotected(body: str, **arguments: Any) -> Any:
    """The positive control: the same body in a process that nobody keeps in, descriptors and all."""
    command = [sys.executable, "-c", CONTROL, body, json.dumps(arguments)]
    with subprocess.Popen(command, cwd=ROOT, close_fds=False, stdout=subprocess.PIPE) as control:
        assert control.stdout  # a line of it, for what outlives it has it open too
        return json.loads(control.stdout.readline())


def returned(value: Any, **more: Any) -> Done:
    return Done("exited", 0, started=True, returned=True, value=value, **more)


def raised(kind: str, **said: Any) -> Done:
    error: Any = NOTHING | {"type": kind} | said
    return replace(NO_ANSWER, error=error)


# What goes in and what comes out.


def test_a_body_begins_with_nothing_of_ours(
    tier: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PLANTED", "secret")
    with (tmp_path / "secret").open("w") as secret, socket.create_server(("127.0.0.1", 0)) as server:
        for line in (secret, server):
            os.set_inheritable(line.fileno(), True)
        assert {str(tmp_path / "secret"), "socket"} <= set(unprotected("surroundings")["lines"])
        done = ran(tier(environment={"GIVEN": "1"}), "surroundings")
    environment = {"GIVEN": "1", "LANG": "C.UTF-8", "PATH": "/usr/local/bin:/usr/bin:/bin"}
    told: Any = done.value
    told["environment"].pop("PWD", None)  # bubblewrap's
    assert done == returned(
        {
            "AS": [512 * MIB] * 2,
            "CORE": [0, 0],
            "CPU": [61, 62],
            "CapEff": "0" * 16,
            "CapPrm": "0" * 16,
            "FSIZE": [64 * MIB] * 2,
            "NOFILE": [64, 64],
            "NoNewPrivs": "1",
            "environment": environment,
            "files": [],
            "lines": [*["/dev/null"] * 3, "pipe"],
            "umask": 0o77,
        }
    )


def test_what_a_body_says_comes_back_whole(tier: Make) -> None:
    sandbox = tier(limits=Limits(output_bytes=5000))
    assert ran(sandbox, "later", value=7) == returned(7)
    assert ran(sandbox, "give", kind="set") == returned([1, 2, 3])
    result = returned({"id": 1}, external_id="ch_1", usage={"tokens": 3})
    assert ran(sandbox, "say", what="result") == result
    nothing = {"message": "the order was not there", "no_effect": True, "code": "no_effect"}
    assert ran(sandbox, "say", what="no effect") == raised("NoEffect", **nothing)
    failed = {"message": "the card was refused", "effect_failed": True, "code": "refused"}
    assert ran(sandbox, "say", what="failed") == raised("CardError", **failed)
    assert ran(sandbox, "shout", size=9_999_999) == raised("ValueError", message="x" * 2048)
    assert ran(sandbox, "mute") == raised("MuteError")


@pytest.mark.parametrize("kind", ["nan", "object", "deep", "digits", "bytes", "huge"])
def test_a_result_that_cannot_be_told_still_happened(kind: str) -> None:
    done = ran(Subprocess(limits=Limits(output_bytes=5000)), "give", kind=kind)
    assert done.error is not None
    assert done.error["type"] == ("output_too_large" if kind == "huge" else "not_json")
    assert done == replace(raised(**{"kind": "", **done.error}), returned=True)  # type: ignore[arg-type]


def test_what_never_began_had_no_effect(tier: Make) -> None:
    sandbox, off = tier(), threading.Event()
    off.set()
    jobs = {
        "No module named 'nowhere'": Job("nowhere:x", {}),
        "module 'tests.sandbox_bodies' has no attribute 'nothing'": job("nothing"),
        "missing a required argument: 'path'": job("read"),
        "put it into a module that can be imported": Job("__main__:x", {}),
        "Object of type object is not JSON serializable": job("read", path=object()),
        "a number of seconds above zero": job("crash", timeout=0),
        "the body did not begin in time": job("crash", timeout=0.001),
    }
    for message, asked in jobs.items():
        done = sandbox.run(asked)
        assert done.error is not None
        assert message in done.error["message"]
        assert (done.end, done.started, done.returned) == ("not_started", False, False)
        assert done.error["no_effect"]
    done = sandbox.run(job("crash"), off)
    assert (done.end, done.started) == ("not_started", False)


def test_a_tool_gets_what_it_declares_and_its_call(tier: Make, tmp_path: Path) -> None:
    (tmp_path / "desk.py").write_text(
        "from __future__ import annotations\n"
        "import datetime, holdfast as hf\n"
        "from holdfast.gateway.tools import Options, Tool\n"
        "def plain(day: str, call: hf.Call): return [day, call.key, call.dispatch]\n"
        "from holdfast.secrets import Secret\n"
        "def typed(day: datetime.date, pin: Secret[str], call: hf.Call):\n"
        "    return [day.year if pin.reveal() == '1234' else 0, call.key, call.dispatch]\n"
        "tool = Tool(typed, Options(effect='write'))\n"
    )
    sandbox, call = tier(path=[tmp_path]), Call("c", "k", "r", 2).__dict__
    plain = sandbox.run(Job("desk:plain", {"day": "2024-02-29"}, call))
    assert replace(plain, elapsed_ms=0) == returned(["2024-02-29", "k", 2])
    arguments: Any = {"day": "2024-02-29", "pin": {"$secret": "pin", "digest": ""}}
    told = sandbox.run(Job("desk:tool", arguments, call, secrets={"pin": Secret("1234", name="pin")}))
    assert replace(told, elapsed_ms=0) == returned([2024, "k", 2])


def test_code_that_took_our_lines_is_never_called(tier: Make, tmp_path: Path) -> None:
    own = tmp_path / "own"
    (tmp_path / "greedy.py").write_text(
        "import os\n"
        "os.closerange(3, 256)\n"
        f"lines = [os.open({str(own)!r}, os.O_WRONLY | os.O_CREAT | os.O_APPEND) for _ in range(32)]\n"
        "def body(): os.write(lines[0], b'called')\n"
    )
    done = tier(path=[tmp_path], writable=[tmp_path]).run(Job("greedy:body", {}))
    assert (done.end, done.started, done.exit_code) == ("not_started", False, 1)
    assert own.read_text() == ""


# Getting out.


def test_no_other_end_is_taken_for_an_answer(tier: Make, tmp_path: Path) -> None:
    sandbox, own = tier(writable=[tmp_path]), tmp_path / "own"
    assert ran(sandbox, "leave", code=3) == replace(NO_ANSWER, exit_code=3)
    assert ran(sandbox, "crash") == Done("killed", -signal.SIGSEGV, started=True)
    assert ran(sandbox, "forge", honest="honest") == returned("honest")
    assert ran(sandbox, "forge_and_leave") == NO_ANSWER
    assert ran(sandbox, "both_return") == returned("parent")
    assert ran(sandbox, "close_everything", path=str(own)) == replace(NO_ANSWER, exit_code=1)
    assert own.read_text() == ""
    assert ran(sandbox, "supervisor") == returned([])
    assert "environ" in unprotected("supervisor")


def test_memory_and_processor_time_end_and_cannot_be_had_back(tier: Make) -> None:
    sandbox = tier(limits=Limits(memory_bytes=128 * MIB, cpu_seconds=1))
    assert {"cpu", "memory"} <= sandbox.enforces()
    more = Limits(memory_bytes=512 * MIB, cpu_seconds=9)
    asked: list[tuple[str, dict[str, Any]]] = [
        ("burn", {"seconds": 5}),
        ("burn", {"seconds": 5, "deaf": True}),
        ("burn", {"seconds": 1.2, "limits": more}),
        ("allocate", {"mebibytes": 256}),
        ("allocate", {"mebibytes": 256, "limits": more}),
    ]
    with ThreadPoolExecutor() as threads:
        done = list(threads.map(lambda each: ran(sandbox, each[0], **each[1]), asked))
    assert done == [
        Done("killed", -signal.SIGXCPU, started=True),
        Done("killed", -signal.SIGKILL, started=True),
        returned(1.2),
        raised("MemoryError"),
        returned(256 * MIB),
    ]


def test_nothing_outlives_the_timeout_or_its_body(tier: Make, tmp_path: Path, fifo: Fifo) -> None:
    sandbox = tier(writable=[tmp_path])
    assert "time" in sandbox.enforces()
    for then, end in (("return", returned("returned")), ("stay", Done("timed_out", -9, started=True))):
        assert ran(sandbox, "daemon", fifo=fifo.path, then=then, timeout=2) == end
        assert fifo.pid()
        assert not fifo.is_held()
    done = ran(sandbox, "respawn", fifo=fifo.path, width=3, timeout=2)
    assert (done.end, done.started, done.returned) == ("timed_out", True, False)
    assert select.select([fifo.line], [], [], 0)[0]
    assert os.read(fifo.line, 9) == b"1\n" * 3
    assert not fifo.is_held()
    assert ran(sandbox, "fork_many", count=300, fifo=fifo.path).value in range(1, 301)
    assert not fifo.is_held()
    assert unprotected("daemon", fifo=fifo.path, then="return") == "returned"
    left = fifo.pid()
    assert fifo.is_held()
    os.kill(left, signal.SIGKILL)


def test_a_call_that_is_cancelled_leaves_nothing(tier: Make, tmp_path: Path, fifo: Fifo) -> None:
    off, told = threading.Event(), []
    asked, sandbox = job("daemon", fifo=fifo.path), tier(writable=[tmp_path])
    thread = threading.Thread(target=lambda: told.append(sandbox.run(asked, off)))
    thread.start()
    assert fifo.pid()
    with warnings.catch_warnings(action="ignore") if sys.version_info > (3, 12) else nullcontext():
        copy = os.fork()  # it has our ends of all pipes
    if copy == 0:
        signal.pause()
        os._exit(1)
    off.set()
    thread.join()
    os.kill(copy, signal.SIGKILL)
    os.waitpid(copy, 0)
    assert not fifo.is_held()
    assert [replace(done, elapsed_ms=0) for done in told] == [Done("killed", -9, started=True)]


def test_everything_dies_with_a_parent_that_is_killed(tier: Make, tmp_path: Path, fifo: Fifo) -> None:
    sandbox = f"Bubblewrap(writable=[{str(tmp_path)!r}])" if tier is Bubblewrap else "Subprocess()"
    target = f"Job('tests.sandbox_bodies:daemon', {{'fifo': {fifo.path!r}}})"
    code = f"from holdfast.sandbox import *; {sandbox}.run({target})"
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    parent = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, env=environment)
    assert fifo.pid()
    assert fifo.is_held()
    parent.kill()
    parent.wait()
    assert select.select([fifo.line], [], [], 60)[0]
    assert not fifo.is_held()
    for room in Path("/dev").glob(f"holdfast-{parent.pid}-*"):
        shutil.rmtree(room)


@pytest.mark.parametrize("then", ["stop", "kill"])
def test_a_body_that_attacks_its_supervisor(tier: Make, tmp_path: Path, fifo: Fifo, then: str) -> None:
    done = ran(tier(writable=[tmp_path]), "daemon", fifo=fifo.path, then=then, timeout=1.5)
    left = fifo.pid()
    if tier is Bubblewrap:  # there it is the first process, which nobody inside can signal
        assert done == Done("timed_out", -9, started=True)
    elif then == "stop":
        assert done == Done("timed_out", started=True)
    else:  # the hole that the class owns up to: what happened is unknown, and a daemon is left
        assert done == Done("killed", started=True)
        assert fifo.is_held()
        os.kill(left, signal.SIGKILL)
        assert select.select([fifo.line], [], [], 60)[0]
    assert not fifo.is_held()


def test_bubblewrap_keeps_files_away(bubblewrap: Make, tmp_path: Path) -> None:
    (tmp_path / "seen").mkdir()
    (tmp_path / "seen" / "a").write_text("a")
    (tmp_path / "b").write_text("b")
    name = f"holdfast-{os.urandom(8).hex()}"
    outside = [Path.home() / name, Path("/usr") / name, tmp_path / "seen" / "x", Path("/") / name]
    sandbox = bubblewrap(readable=[tmp_path / "seen"])
    for path in [*outside, Path("/dev/x"), Path("/proc/sys/kernel/hostname"), tmp_path / "seen" / "a"]:
        done = ran(sandbox, "write", path=str(path))
        assert done.error is not None
        assert done.error["type"] in ("OSError", "FileNotFoundError", "PermissionError"), path
    assert ran(sandbox, "write", path=str(tmp_path / "x")) == returned("written")  # to a folder of its own
    assert not any(path.exists() for path in [*outside, tmp_path / "x"])
    assert ran(sandbox, "read", path=str(tmp_path / "seen" / "a")) == returned("a")
    hidden = raised("FileNotFoundError", message=f"[Errno 2] No such file or directory: '{tmp_path}/b'")
    assert ran(sandbox, "read", path=str(tmp_path / "b")) == hidden
    few = Limits(file_bytes=4 * MIB)
    for folder in ("/tmp", "/dev/shm"):
        done = ran(sandbox, "fill", folder=folder, mebibytes=9, limits=few)
        assert done == raised("OSError", message="[Errno 28] No space left on device")
    assert ran(Subprocess(), "fill", folder=str(tmp_path), mebibytes=9, limits=few) == returned(9)
    assert ran(sandbox, "new_namespace") == returned(-1)
    mode = Path("/dev/full").stat().st_mode
    ran(sandbox, "change_mode", path="/dev/full")
    assert Path("/dev/full").stat().st_mode == mode
    for control in (Subprocess(), bubblewrap(writable=[tmp_path])):
        assert ran(control, "read", path=str(tmp_path / "b")) == returned("b")
        assert ran(control, "write", path=str(tmp_path / "x")) == returned("written")
        (tmp_path / "x").unlink()


def test_bubblewrap_keeps_the_network_and_other_processes_away(bubblewrap: Make) -> None:
    name = f"\0holdfast-{os.getpid()}"
    planted = {"PLANTED": f"secret-{os.getpid()}"}
    command = [sys.executable, "-c", "print(flush=True); input()"]
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.socket(socket.AF_UNIX) as abstract,
        subprocess.Popen(command, env=planted, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other,
    ):
        abstract.bind(name)
        abstract.listen()
        assert other.stdout
        assert other.stdout.readline()
        tries = [(int(socket.AF_INET), list(server.getsockname())), (int(socket.AF_UNIX), name)]
        for family, address in tries:
            done = ran(bubblewrap(), "connect", family=family, address=address)
            assert done == raised("ConnectionRefusedError", message="[Errno 111] Connection refused")
            for control in (Subprocess(), bubblewrap(network=True)):
                assert ran(control, "connect", family=family, address=address) == returned("connected")
        assert ran(bubblewrap(), "environments", planted=planted["PLANTED"]) == returned(0)
        assert unprotected("environments", planted=planted["PLANTED"]) == 1
        other.communicate(b"\n")


def test_the_folder_of_a_body_is_removed_with_all_that_is_in_it() -> None:
    done = ran(Subprocess(), "litter")
    assert done == returned(done.value)
    assert not Path(str(done.value)).exists()


# What a tier says about itself.


def test_each_tier_says_what_it_enforces_here(bubblewrap: Make) -> None:
    own = set() if IS_ROOT else {"processes"}  # root is exempt
    assert Subprocess().enforces() == {"cpu", "memory", "time"} | own
    assert bubblewrap().enforces() == {"cpu", "filesystem", "memory", "network", "time"} | own
    assert bubblewrap(network=True).enforces() == {"cpu", "filesystem", "memory", "time"} | own
    assert (Subprocess().tier, bubblewrap().tier) == ("subprocess", "bubblewrap")


NOBODY = """
import json; from holdfast.sandbox import *
few, many = Limits(processes=9), Limits(processes=999)
for sandbox in (Subprocess(), Bubblewrap()):
    jobs = [Job("tests.sandbox_bodies:fork_many", {"count": 300}, limits=limits) for limits in (few, many)]
    made = [sandbox.run(job).value for job in jobs]
    print(json.dumps([sorted(sandbox.enforces()), *made]))
"""


def test_processes_are_limited_where_the_user_is_not_root(
    request: pytest.FixtureRequest, bubblewrap: Make, tmp_path: Path
) -> None:
    lines = nobody(request, tmp_path, [sys.executable, "-c", NOBODY]).splitlines()
    guards = sorted(bubblewrap().enforces() | {"processes"})
    assert [json.loads(line) for line in lines] == [
        [["cpu", "memory", "processes", "time"], 9, 300],
        [guards, 9, 300],
    ]


CHECK = """
import holdfast.sandbox as s
try: print("no error", s.Bubblewrap().check())
except s.SandboxError as error: print(error.code, s.Bubblewrap().enforces(), error)
"""


def test_where_bubblewrap_does_not_work_it_is_refused(
    request: pytest.FixtureRequest, bubblewrap: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    off = 'echo 0 > /proc/sys/user/max_user_namespaces; exec "$@"'
    command = ["unshare", "--user", "--map-root-user", "sh", "-c", off, "sh", sys.executable, "-c", CHECK]
    told = nobody(request, tmp_path, command)
    assert told.startswith("sandbox_unavailable frozenset() sandbox_unavailable: the sandbox bubblewrap does")
    assert "namespace" in told
    monkeypatch.setenv("PATH", str(tmp_path))
    missing = bubblewrap()
    with pytest.raises(SandboxError, match="there is no bwrap on the PATH"):
        missing.check()
    assert missing.enforces() == frozenset()
    assert missing.run(job("crash")).end == "not_started"
