"""A line to a PostgreSQL server that breaks when it is told to.

It listens on a free port of the loopback and passes everything on to the server's socket. It reads the
client's messages so far that it knows a COMMIT when it sees one, and asks for each of them, and for each
COMMIT, what is to become of it. What the server answers it passes on unread.
"""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from types import TracebackType

PATIENCE = 30.0


class Fate(Enum):
    """What becomes of a message."""

    GO = "it is passed on"
    CUT = "the line is cut before it"
    BLIND = "the line is cut as soon as it was passed on"
    LOST = "it is passed on, the server acts on it, and the line is cut before its answer"


def merciful(_: bool) -> Fate:
    """Everything goes through."""
    return Fate.GO


class _Line:
    """One connection through the proxy."""

    def __init__(self, proxy: Proxy, client: socket.socket, server: socket.socket) -> None:
        self.proxy, self.client, self.server = proxy, client, server
        self._commits: set[bytes] = set()
        self._silent = threading.Event()
        self._answered = threading.Event()
        self._begun = False

    def start(self) -> None:
        for pump in (self._up, self._down):
            threading.Thread(target=self._run, args=(pump,), daemon=True).start()

    def _run(self, pump: Callable[[], None]) -> None:
        with suppress(OSError):
            pump()
        self.cut()

    def cut(self) -> None:
        self._answered.set()
        for end in (self.client, self.server):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def _up(self) -> None:
        rest, fate = b"", Fate.GO
        while data := self.client.recv(1 << 16):
            rest += data
            whole: list[bytes] = []
            while message := self._first(rest):
                rest = rest[len(message) :]
                if fate is Fate.GO:
                    fate = self.proxy.judge(self._is_commit(message))
                    if fate is Fate.CUT:
                        self.server.sendall(b"".join(whole))
                        return
                whole.append(message)
                if fate is not Fate.GO and message[:1] == b"S":  # the server acts at the end of a request
                    self._end(b"".join(whole), fate)
                    return
            self.server.sendall(b"".join(whole))

    def _end(self, last: bytes, fate: Fate) -> None:
        self._silent.set()
        self.server.sendall(last)
        if fate is Fate.LOST:
            self._answered.wait(PATIENCE)

    def _down(self) -> None:
        seen = b""
        while data := self.server.recv(1 << 16):
            if not self._silent.is_set():
                self.client.sendall(data)
            seen = seen[-16:] + data
            if self._silent.is_set() and b"COMMIT\0" in seen:
                self._answered.set()

    def _first(self, data: bytes) -> bytes:
        """The first whole message; the very first has no letter before its length."""
        at = 1 if self._begun else 0
        if len(data) < at + 4:
            return b""
        end = at + int.from_bytes(data[at : at + 4], "big")
        if len(data) < end:
            return b""
        self._begun = True
        return data[:end]

    def _is_commit(self, message: bytes) -> bool:
        if message[:1] == b"P":  # Parse: the statement's name, its text
            name, text, *_ = message[5:].split(b"\0")
            if text == b"COMMIT":
                self._commits.add(name)
        if message[:1] == b"B":  # Bind: the portal's name, the statement's
            return message[5:].split(b"\0")[1] in self._commits
        return False


class Proxy:
    """The proxy; :attr:`judge` may be replaced at any time."""

    def __init__(self, server: Path) -> None:
        self.judge: Callable[[bool], Fate] = merciful
        self._server = str(server / ".s.PGSQL.5432")
        self._lines: list[_Line] = []
        self._door = socket.create_server(("127.0.0.1", 0))

    def url(self, direct: str) -> str:
        """The address of a store, through the proxy."""
        schema = direct.rpartition("schema=")[2]
        port = self._door.getsockname()[1]
        return f"postgresql://holdfast@127.0.0.1:{port}/postgres?sslmode=disable&schema={schema}"

    def __enter__(self) -> Proxy:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._door.accept()
                client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                server = socket.socket(socket.AF_UNIX)
                try:
                    server.connect(self._server)
                except OSError:
                    server.close()
                    client.close()  # the server is being started
                    continue
                line = _Line(self, client, server)
                self._lines.append(line)
                line.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with suppress(OSError):
            self._door.shutdown(socket.SHUT_RDWR)
        self._door.close()
        for line in self._lines:
            line.cut()
