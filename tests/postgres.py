"""A real PostgreSQL for the tests: a server of their own, on a socket in a folder that goes away with it.

A test module that says ``pytest_plugins = ["tests.postgres"]`` has the fixture ``postgres``, the address of
an empty schema for psycopg, and ``postgres_url``, that of a store. The server is started once per session, as
another user where we are root, because it refuses root. Where its programs are missing, root installs them;
otherwise the tests that need them are not run, the session says so at its end, and under ``CI`` they fail.
"""

from __future__ import annotations

import os
import pwd
import secrets
import shutil
import signal
import subprocess
import tempfile
import threading
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import psycopg
import pytest
from tests import closing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

WHAT = "no PostgreSQL server (initdb, postgres) was found, and none could be installed"
READY = "database system is ready to accept connections"
PATIENCE = 60.0
# Nothing has to outlive the session, and workers that were killed leave connections behind for a moment.
SETTINGS = {
    "listen_addresses": "",
    "fsync": "off",
    "full_page_writes": "off",
    "max_connections": "50",
    "lc_messages": "C",
}


def programs() -> Path | None:
    """Where the server's programs are, installed if need be and if we may."""
    return _found() or _installed()


def _found() -> Path | None:
    """The folder of the newest server's programs."""
    folders = sorted(
        Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: float(path.parent.name), reverse=True
    )
    on_path = shutil.which("initdb")
    folders += [Path(on_path).resolve().parent] if on_path else []
    return next(
        (path for path in folders if (path / "initdb").exists() and (path / "postgres").exists()), None
    )


def _installed() -> Path | None:
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        return None
    quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for words in (["update"], ["install", "-y", "--no-install-recommends", "postgresql"]):
        subprocess.run(["apt-get", "-qq", *words], env=quiet, check=False, capture_output=True, timeout=600)
    return _found()


def _account() -> dict[str, Any]:
    """Who runs it: another user where we are root."""
    if os.geteuid() != 0:
        return {}
    names = {entry.pw_name for entry in pwd.getpwall()}
    entry = pwd.getpwnam("postgres" if "postgres" in names else "nobody")
    return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}


def _ends_with_us() -> list[str]:
    """So that no server is left when the session is killed."""
    setpriv = shutil.which("setpriv")
    return [setpriv, "--pdeathsig", "QUIT", "--"] if setpriv else []


class Server:
    """A server process and its folder."""

    def __init__(self, programs: Path, settings: Mapping[str, str] | None = None) -> None:
        self._settings = SETTINGS if settings is None else settings
        self.folder = Path(tempfile.mkdtemp(prefix="holdfast-pg-"))
        self._programs = programs
        self._account = _account()
        self._schemas = 0
        self._said: deque[str] = deque(maxlen=50)
        try:
            self._make()
            self._process = self._start()
        except BaseException:
            shutil.rmtree(self.folder)
            raise

    def _make(self) -> None:
        if self._account:
            os.chown(self.folder, self._account["user"], self._account["group"])
        subprocess.run(
            [
                self._programs / "initdb",
                "-D",
                self.folder / "data",
                "-U",
                "holdfast",
                "-A",
                "trust",
                "-E",
                "UTF8",
                "--locale=C",
                "-N",
            ],
            check=True,
            capture_output=True,
            cwd=self.folder,
            timeout=PATIENCE,
            **self._account,
        )

    def _start(self) -> subprocess.Popen[str]:
        data = self.folder / "data"
        settings = [word for name, value in self._settings.items() for word in ("-c", f"{name}={value}")]
        process = subprocess.Popen(
            [*_ends_with_us(), self._programs / "postgres", "-D", data, "-k", self.folder, *settings],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            cwd=self.folder,
            **self._account,
        )
        ready = threading.Event()
        threading.Thread(target=self._listen, args=(process, ready), daemon=True).start()
        if not ready.wait(PATIENCE) or process.poll() is not None:
            process.kill()
            raise AssertionError(f"the server did not start: {''.join(self._said)}")
        return process

    def _listen(self, process: subprocess.Popen[str], ready: threading.Event) -> None:
        assert process.stderr is not None
        with process.stderr as lines:
            for line in lines:
                self._said.append(line)
                if READY in line:
                    ready.set()
        process.wait()
        ready.set()  # it ended, and nobody has to wait for it any longer

    def schema(self) -> str:
        """The address of a new schema, which is made much faster than a database."""
        self._schemas += 1
        address = f"host={self.folder} user=holdfast dbname=postgres"
        with psycopg.connect(address, autocommit=True) as connection:
            connection.execute(f"CREATE SCHEMA test_{self._schemas}".encode())
        return f"{address} options='-c search_path=test_{self._schemas}'"

    def url(self) -> str:
        """The address of the database, for ``holdfast.open``."""
        return f"postgresql://holdfast@/postgres?host={quote(str(self.folder), safe='')}"

    def restart(self) -> None:
        """As after a crash of it: every connection is cut, and what no synchronous commit had reached may be
        lost. Not from a thread that ends before the session does: the server would end with it."""
        self._process.send_signal(signal.SIGQUIT)
        self._process.wait(PATIENCE)
        self._process = self._start()

    def stop(self) -> None:
        """At once, and nothing is left of it."""
        self._process.send_signal(signal.SIGQUIT)
        self._process.wait(PATIENCE)
        shutil.rmtree(self.folder)


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[Callable[[], Server | None]]:
    """The server, which is started when it is first asked for."""
    started: list[Server | None] = []

    def server() -> Server | None:
        if not started:
            found = programs()
            started.append(Server(found) if found else None)
        return started[0]

    yield server
    for running in started:
        if running is not None:
            running.stop()


@pytest.fixture
def postgres(postgres_running: Server) -> str:
    """The address of an empty schema, for ``psycopg.connect``."""
    return postgres_running.schema()


@pytest.fixture
def postgres_url(postgres_running: Server) -> str:
    """The address of a store in a schema of its own, for ``holdfast.open``."""
    return f"{postgres_running.url()}&schema=store_{secrets.token_hex(8)}"


@pytest.fixture
def postgres_running(request: pytest.FixtureRequest, postgres_server: Callable[[], Server | None]) -> Server:
    """The server; a test that asks for it is not run where there is none."""
    server = postgres_server()
    if server is None:
        closing.not_run(request, WHAT)
    return server
