"""Another machine: a network namespace with a line to it that can be cut without a word. What listens there
passes everything on to a socket of this machine's files, so that a server need not know of it.

``python -m tests.faults.elsewhere <address> <port> <socket>`` is what runs there. Needs root and iproute2.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import subprocess
import sys
from typing import TYPE_CHECKING

from tests.support import ROOT

if TYPE_CHECKING:
    from types import TracebackType

PORT = 5432


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


class Elsewhere:
    """A machine of its own, and its line."""

    def __init__(self, socket: str) -> None:
        self._name = f"hf{secrets.token_hex(3)}"
        net = f"10.{secrets.randbelow(200) + 20}.{secrets.randbelow(250)}"
        self._socket, self._here, self.address = socket, f"{net}.1", f"{net}.2"
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Elsewhere:
        name = self._name
        _ip("netns", "add", name)
        _ip("link", "add", f"{name}a", "type", "veth", "peer", "name", f"{name}b", "netns", name)
        _ip("addr", "add", f"{self._here}/30", "dev", f"{name}a")
        _ip("link", "set", f"{name}a", "up")
        _ip("-n", name, "addr", "add", f"{self.address}/30", "dev", f"{name}b")
        self.mend()
        command = [sys.executable, "-m", "tests.faults.elsewhere", self.address, str(PORT), self._socket]
        self._process = subprocess.Popen(
            ["ip", "netns", "exec", name, *command],
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "ready\n"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
        _ip("link", "del", f"{self._name}a")
        _ip("netns", "del", self._name)

    def cut(self) -> None:
        """From now on nothing comes from there, not even that nobody is there."""
        _ip("-n", self._name, "link", "set", f"{self._name}b", "down")

    def mend(self) -> None:
        """The line is back."""
        _ip("-n", self._name, "link", "set", f"{self._name}b", "up")


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while some := await reader.read(65536):
        writer.write(some)
        await writer.drain()
    writer.close()


async def _serve(address: str, port: int, socket: str) -> None:
    async def line(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answers, asks = await asyncio.open_unix_connection(socket)
        await asyncio.gather(_pass_on(reader, asks), _pass_on(answers, writer), return_exceptions=True)

    server = await asyncio.start_server(line, address, port)
    print("ready", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(_serve(sys.argv[1], int(sys.argv[2]), sys.argv[3]))
