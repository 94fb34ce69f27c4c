"""A real browser for the tests: Chromium without a window, and a proxy that hears whatever it asks for.

A test module that says ``pytest_plugins = ["tests.chromium"]`` has the fixture ``browser``. Where Chromium is
missing, root installs it (``tests/faults/tools.sh`` does so too); otherwise the tests that need it are not
run, the session says so at its end, and under ``CI`` they fail.
"""

from __future__ import annotations

import os
import shutil
import signal
import socketserver
import subprocess
import threading
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest
from tests import closing

if TYPE_CHECKING:
    from pathlib import Path

WHAT = "no Chromium was found, and none could be installed"
PATIENCE = 90.0
NAMES = ("chromium", "chromium-browser", "google-chrome")
QUIET = (
    "--headless",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--enable-logging=stderr",
    "--virtual-time-budget=3000",
    "--proxy-bypass-list=<-loopback>",
)


def _found() -> str | None:
    return next((path for name in NAMES if (path := shutil.which(name))), None)


def _installed() -> str | None:
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        return None
    quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for words in (["update"], ["install", "-y", "--no-install-recommends", "chromium"]):
        subprocess.run(["apt-get", "-qq", *words], env=quiet, check=False, capture_output=True, timeout=600)
    return _found()


class Proxy(socketserver.ThreadingTCPServer):
    """Hears the first line of every request, and answers none."""

    allow_reuse_address = daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Ear)
        self.heard: list[str] = []


class _Ear(socketserver.StreamRequestHandler):
    server: Proxy

    def handle(self) -> None:
        self.server.heard.append(self.rfile.readline(4096).decode("latin-1"))
        self.wfile.write(b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n")


@dataclass
class Opened:
    """What became of a page."""

    dom: str
    said: str
    """On the console and in the log."""
    asked: list[str]
    """The first lines of its requests."""


class Browser:
    """Opens pages, one process each."""

    def __init__(self, program: str, folder: Path) -> None:
        self._program, self._folder = program, folder

    def open(self, page: Path) -> Opened:
        """Opens a file, lets time pass for it, and returns the document as it is then."""
        with Proxy() as proxy:
            thread = threading.Thread(target=proxy.serve_forever, daemon=True)
            thread.start()
            dom, said = self._run(page, proxy.server_address[1])
            proxy.shutdown()
            thread.join()
        return Opened(dom, said, proxy.heard)

    def _run(self, page: Path, port: int) -> tuple[str, str]:
        own = [f"--user-data-dir={self._folder}", f"--proxy-server=http://127.0.0.1:{port}"]
        own += ["--no-sandbox"] if os.geteuid() == 0 else []
        command = [self._program, *QUIET, *own, "--dump-dom", page.absolute().as_uri()]
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
        ) as process:
            try:
                out, said = process.communicate(timeout=PATIENCE)
            finally:  # it has processes of its own, and a dialog would keep them for ever
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
        assert process.returncode == 0, said
        return out, said


@pytest.fixture
def browser(request: pytest.FixtureRequest, tmp_path: Path) -> Browser:
    """A browser."""
    program = _found() or _installed()
    if program is None:
        closing.not_run(request, WHAT)
    return Browser(program, tmp_path / "profile")
