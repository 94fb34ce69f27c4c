"""Child programs of the fault tests. Each opens its own handle, does its work, and says on its line what
the store acknowledged, after the call returned and never before: what is said must never be lost.

Run as ``workers.py zygote FD``: it imports holdfast once and forks a program per order (processes.py).
It imports nothing of the tests, so that the build that it uses is the one on its PYTHONPATH.
"""

from __future__ import annotations

import ctypes
import json
import multiprocessing
import os
import random
import select
import signal
import socket
import sqlite3
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

import holdfast

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from holdfast import Claim, Store

PR_SET_PDEATHSIG, PR_SET_PTRACER, ANYONE = 1, 0x59616D61, -1
NOTE = "note.logged"
HANGS = 5.0  # seconds after which a forked child is called hanging


class Line:
    """The child's end of the line to the test."""

    def __init__(self, wire: socket.socket) -> None:
        self.wire = wire
        self._heard = wire.makefile("r")

    def say(self, *words: object) -> None:
        """One write, so that lines of several threads do not mix."""
        os.write(self.wire.fileno(), json.dumps(words).encode() + b"\n")

    def hear(self) -> list[Any]:
        """Waits for an order; the end of the test ends the child."""
        text = self._heard.readline()
        if not text:
            os._exit(0)
        order: list[Any] = json.loads(text)
        return order

    def orders(self) -> Iterator[list[Any]]:
        while True:
            yield self.hear()


def code_of(work: Callable[[], object]) -> str:
    """How a call ended: ``ok``, or the error's code."""
    try:
        work()
    except holdfast.HoldfastError as error:
        return error.code
    return "ok"


# SIGKILL at random moments


class Writer:
    """Several threads that do everything that a worker does, until they are killed."""

    def __init__(self, line: Line, folder: str, shared: str, seed: int) -> None:
        self.line, self.shared, self.seed = line, shared, seed
        begun = time.perf_counter()
        self.store = holdfast.open(folder)
        seq = self.store.append(shared, NOTE, {"text": f"{seed} begins"}, barrier=True)
        line.say("began", (time.perf_counter() - begun) * 1000)
        line.say("a", shared, seq, f"{seed} begins")
        self.runs = [shared]

    def go(self) -> None:
        threads = [threading.Thread(target=self.loop, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def loop(self, number: int) -> None:
        chance = random.Random(f"{self.seed} {number}")
        try:
            for count in range(1_000_000):
                token = f"{self.seed} {number} {count}"
                if number == 0 and chance.random() < 0.1:
                    # A long turn: if answers left early, those who share it would hear long before COMMIT.
                    self.many(chance, token)
                elif number == 1 and chance.random() < 0.2:
                    self.work(chance, token)
                else:
                    self.one(chance, token)
        except BaseException:
            self.line.say("error", traceback.format_exc())

    def one(self, chance: random.Random, token: str) -> None:
        run, barrier = chance.choice(self.runs[-20:]), chance.random() < 0.3
        seq = self.store.append(run, NOTE, {"text": token}, barrier=barrier)
        self.line.say("a", run, seq, token)
        if chance.random() < 0.2:
            record = next(self.store.read(run, after=seq - 1))
            self.line.say("h", run, seq, record.hash)

    def many(self, chance: random.Random, token: str) -> None:
        bodies = [(NOTE, {"text": token}) for _ in range(chance.choice((10, 50, 100)))]
        seqs = self.store.append_many(self.shared, bodies, barrier=chance.random() < 0.3)
        self.line.say("a", self.shared, seqs[0], token)
        self.line.say("a", self.shared, seqs[-1], token)

    def work(self, chance: random.Random, token: str) -> None:
        """A job from its creation, or from a dead worker's hands, to its end or to our own death."""
        run = self.store.create_run(agent="job", attempts=1000, barrier=chance.random() < 0.5)
        self.line.say("run", run)
        self.runs.append(run)
        claim = self.store.claim(worker=f"w{self.seed}", lease=3600, agents=["job"])
        if claim is None:
            return
        self.line.say("claim", claim.run, claim.fence)
        version = self.store.patch(claim, {"token": token}, expected_version=claim.state_version)
        self.line.say("patch", claim.run, version)
        if chance.random() < 0.7:
            self.store.finish(claim, result=token)
            self.line.say("end", claim.run)


def writer(line: Line, folder: str, shared: str, seed: int) -> None:
    Writer(line, folder, shared, seed).go()


# One run, one folder, several processes


def appender(line: Line, folder: str, run: str, name: str, many: int = 1, barrier: bool = False) -> None:
    """Appends to one run as fast as it can, until it is told to stop."""
    store = holdfast.open(folder)
    line.say("open")
    count = 0
    while not select.select([line.wire], [], [], 0)[0]:
        count += 1
        token = f"{name} {count}"
        entries = [(NOTE, {"text": token}) for _ in range(many)]
        seqs = store.append_many(run, entries, barrier=barrier)
        line.say("a", run, seqs[-1], token)
    line.say("stopped", count)
    store.close()
    line.hear()


def stepper(line: Line, folder: str, run: str) -> None:
    """Appends once per order, and says how that ended."""
    store = holdfast.open(folder)
    line.say("open")
    for (token,) in line.orders():
        try:
            seq = store.append(run, NOTE, {"text": token})
            line.say("a", run, seq, token)
        except holdfast.HoldfastError as error:
            line.say("refused", error.code)


def waiter(line: Line, folder: str, run: str, times: int) -> None:
    """Single appends next to a busy process: how long each took, in ms."""
    store = holdfast.open(folder)
    for count in range(times):
        begun = time.perf_counter()
        seq = store.append(run, NOTE, {"text": f"waiter {count}"}, barrier=True)
        line.say("took", (time.perf_counter() - begun) * 1000, seq)
    store.close()


def holder(line: Line, folder: str) -> None:
    """Opens the store, and closes it when told to."""
    store = holdfast.open(folder)
    line.say("open")
    line.hear()
    store.close()
    line.say("closed")


# Python's own SQLite on the live file


def look_with_python(folder: str) -> int:
    """What the documentation tells people not to do."""
    own = sqlite3.connect(Path(folder) / "holdfast.db")
    count: int = own.execute("SELECT count(*) FROM frames").fetchone()[0]
    own.close()
    return count


def intruder(line: Line, folder: str, run: str) -> None:
    """Has the store open, looks at it with Python's sqlite3 and writes on, as it is told."""
    store = holdfast.open(folder)
    line.say("open")
    count = 0
    for order, times in line.orders():
        if order == "look":
            line.say("looked", look_with_python(folder))
        elif order == "append":
            for _ in range(times):
                count += 1
                try:
                    seq = store.append(run, NOTE, {"text": f"in {count}"}, barrier=True)
                except holdfast.HoldfastError as error:
                    line.say("refused", error.code)
                    break
                line.say("a", run, seq, f"in {count}")
            line.say("did")


def busy_intruder(line: Line, folder: str, run: str) -> None:
    """Threads append without a pause while another one looks with Python's sqlite3."""
    store = holdfast.open(folder)
    looked = threading.Event()

    def append(number: int) -> None:
        for count in range(1_000_000):
            token = f"busy {number} {count}"
            try:
                seq = store.append(run, NOTE, {"text": token})
            except holdfast.HoldfastError as error:
                line.say("refused", error.code)
                return
            line.say("a", run, seq, token)
            if looked.is_set():
                return

    threads = [threading.Thread(target=append, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    line.say("open")
    line.hear()
    for _ in range(100):
        look_with_python(folder)
    looked.set()
    for thread in threads:
        thread.join()
    line.say("did")
    line.hear()


# Fork


def uses(store: Store, run: str, claim: Claim) -> dict[str, Callable[[], object]]:
    """What a child might try on its parent's handle."""
    return {
        "append": lambda: store.append(run, NOTE, {"text": "child"}),
        "barrier": lambda: store.append(run, NOTE, {"text": "child"}, barrier=True),
        "create_run": lambda: store.create_run(agent="child"),
        "claim": lambda: store.claim(worker="child"),
        "heartbeat": lambda: store.heartbeat(claim),
        "read": lambda: list(store.read(run)),
        "sql": lambda: store.sql("SELECT 1"),
        "put_blob": lambda: store.put_blob(b"child"),
    }


def try_in_child(store: Store, run: str, claim: Claim, use: str, ending: str) -> tuple[str, str]:
    """Forks; how the use ended in the child, and how the child ended."""
    ours, its = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(its, code_of(uses(store, run, claim)[use]).encode())
        if ending == "exit":
            sys.exit(0)  # the interpreter goes down in order and drops the handle
        if ending == "close":
            store.close()
        os._exit(0)
    os.close(its)
    told = os.read(ours, 1000).decode() if select.select([ours], [], [], HANGS)[0] else "hangs"
    dead = os.pidfd_open(pid)
    end = "ended" if select.select([dead], [], [], HANGS)[0] else "does not end"
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    for descriptor in (ours, dead):
        os.close(descriptor)
    return told, end


def forker(line: Line, folder: str, run: str, threads: int, rounds: int) -> None:
    """Forks while threads append; children try to use the handle."""
    store = holdfast.open(folder)
    store.create_run(agent="mine")
    claim = store.claim(worker="parent", lease=3600, agents=["mine"])
    assert claim is not None
    stop = threading.Event()

    def append(number: int) -> None:
        for count in range(1_000_000):
            seq = store.append(run, NOTE, {"text": f"thread {number} {count}"})
            line.say("a", run, seq, f"thread {number} {count}")
            if stop.is_set():
                return

    working = [threading.Thread(target=append, args=(number,)) for number in range(threads)]
    for thread in working:
        thread.start()
    endings, hung = ("_exit", "close", "exit"), 0
    for count in range(rounds):
        for use in uses(store, run, claim):
            told, end = try_in_child(store, run, claim, use, endings[count % 3])
            line.say("fork", use, endings[count % 3], told, end)
            seq = store.append(run, NOTE, {"text": f"parent {use} {count}"}, barrier=True)
            line.say("a", run, seq, f"parent {use} {count}")
            hung += "hangs" in told or end != "ended"
        if hung > 2:
            break  # it is shown: no need to wait for the rest
    stop.set()
    for thread in working:
        thread.join()
    store.heartbeat(claim)
    store.finish(claim)
    line.say("ok", store.verify().ok)
    store.close()


def pooler(line: Line, folder: str, run: str) -> None:
    """The same with multiprocessing, which forks and leaves by its own way."""
    store = holdfast.open(folder)
    fork = multiprocessing.get_context("fork")
    ours, its = fork.Pipe()

    def use() -> None:
        its.send(code_of(lambda: store.append(run, NOTE, {"text": "child"})))
        store.close()

    for count in range(5):
        process = fork.Process(target=use)
        process.start()
        told = ours.recv() if ours.poll(HANGS) else "hangs"
        process.join(HANGS)
        line.say("fork", told, process.exitcode)
        process.kill()
        process.join()
        seq = store.append(run, NOTE, {"text": f"pooler {count}"}, barrier=True)
        line.say("a", run, seq, f"pooler {count}")
    line.say("ok", store.verify().ok)
    store.close()


def orphaner(line: Line, folder: str, run: str) -> None:
    """Claims a job, forks a child that goes on living, and writes until it is killed."""
    store = holdfast.open(folder)
    store.create_run(agent="job")
    claim = store.claim(worker="doomed", lease=3600, agents=["job"])
    assert claim is not None
    lives, born = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(born, b"!")  # from here on it may outlive its parent: a fork has returned
        while line.hear() != ["end"]:
            pass
        os._exit(0)
    os.read(lives, 1)
    line.say("claim", claim.run, child)
    while True:
        store.append_many(run, [(NOTE, {"text": "x"})] * 100)


# One scripted run, for crashes at every system call


def script(line: Line, folder: str) -> None:
    """Everything once, from an empty folder to a store that was closed and opened again."""
    ctypes.CDLL(None).prctl(PR_SET_PTRACER, ANYONE, 0, 0, 0)
    line.say("ready")
    line.hear()
    store = holdfast.open(folder)
    run = store.create_run(agent="job", attempts=1000, input={"file": "a.csv"})
    line.say("run", run)
    line.say("a", run, store.append(run, NOTE, {"text": "first"}, barrier=True), "first")
    claim = store.claim(worker="w", lease=3600)
    assert claim is not None
    line.say("claim", run, claim.fence)
    line.say("a", run, store.append(run, NOTE, {"text": "second"}, claim=claim), "second")
    line.say("patch", run, store.patch(claim, {"step": 1}, expected_version=0))
    blob = store.put_blob(b"blob" * 50_000)
    line.say("blob", blob["commit"])
    seq = store.append(run, "x.test.blob", {"data": {}}, claim=claim, blobs={"content": blob})
    line.say("b", run, seq, blob["commit"])
    store.finish(claim, result={"rows": 3})
    line.say("end", run)
    store.close()
    line.say("closed")
    store = holdfast.open(folder)
    other = store.create_run(agent="job", attempts=1000, barrier=False)
    line.say("run", other)
    line.say("a", other, store.append(other, NOTE, {"text": "third"}, barrier=True), "third")
    store.close()
    line.say("done")


# The zygote


PROGRAMS: dict[str, Callable[..., None]] = {
    program.__name__: program
    for program in (
        writer,
        appender,
        stepper,
        waiter,
        holder,
        intruder,
        busy_intruder,
        forker,
        pooler,
        orphaner,
        script,
    )
}


def run_program(order: list[Any], wire: socket.socket, zygote: int) -> None:
    """One program, in a child of the zygote."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != zygote:
        os._exit(1)
    program, *arguments = order
    line = Line(wire)
    try:
        PROGRAMS[program](line, *arguments)
    except Exception:
        line.say("error", traceback.format_exc())
    line.say("over")
    os._exit(0)


def zygote(descriptor: int) -> None:
    """Forks a program for every order, until the line is closed."""
    home = os.getpid()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for them: pidfds tell
    with socket.socket(fileno=descriptor) as line:
        line.sendall(f"{Path(holdfast.__file__).resolve().parent}\n".encode())
        while True:
            order, descriptors, _, _ = socket.recv_fds(line, 1 << 16, 1)
            if not order:
                return
            wire = socket.socket(fileno=descriptors[0])
            pid = os.fork()
            if pid == 0:
                line.close()
                run_program(json.loads(order), wire, home)
            wire.close()
            line.sendall(pid.to_bytes(4, "big"))


if __name__ == "__main__":
    zygote(int(sys.argv[2]))
