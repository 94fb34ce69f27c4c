"""The tier ``bubblewrap``: a body that sees no file, no process and no network but what it is given.

bubblewrap does what its arguments say and no more; here they are. The body has namespaces of its own for
users, processes, mounts, network, IPC and host name, no capabilities and no further user namespaces. Its
root cannot be written to and holds only the interpreter, the body's package and what the user names,
read-only; ``/tmp`` and ``/dev/shm`` are small and gone afterwards. The supervisor is the first process of
its namespace: the body can neither kill nor stop it, and its end is the end of everything.

Not kept away: system calls (there is no filter: a hole in the kernel is a hole here), and sockets that lie
in a readable folder. Where bubblewrap is missing or does not work, nothing weaker is used instead.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import stat
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import holdfast
from holdfast.sandbox.base import Limits, SandboxError
from holdfast.sandbox.process import DEFAULTS, Spawned

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from holdfast.sandbox.base import Job

ISOLATION = [
    *("--unshare-all", "--unshare-user", "--disable-userns", "--cap-drop", "ALL"),
    *("--new-session", "--die-with-parent", "--as-pid-1"),
]
DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/etc/ld.so.cache", "/etc/localtime")
NETWORK = ("resolv.conf", "hosts", "nsswitch.conf", "ssl", "pki", "ca-certificates")
SCRATCH, ROOM, SHARED = "/tmp", "/tmp/.room", "/dev/shm"  # noqa: S108 (the body's own)
PACKAGE = str(Path(holdfast.__file__).parent)


class Bubblewrap(Spawned):
    """A process in namespaces of its own.

    Attributes:
        readable: paths that the body may read, at the same place.
        writable: paths that it may write, at the same place.
        network: whether it has the machine's network; then ``network`` is not enforced.
    """

    tier = "bubblewrap"

    def __init__(
        self,
        limits: Limits = DEFAULTS,
        path: Sequence[str | os.PathLike[str]] = (),
        environment: Mapping[str, str] | None = None,
        *,
        readable: Sequence[str | os.PathLike[str]] = (),
        writable: Sequence[str | os.PathLike[str]] = (),
        network: bool = False,
    ) -> None:
        super().__init__(limits, path, environment)
        self.readable = tuple(str(Path(entry).absolute()) for entry in readable)
        self.writable = tuple(str(Path(entry).absolute()) for entry in writable)
        self.network = network
        guards = {"filesystem"} if network else {"filesystem", "network"}
        self.guards = Spawned.guards | guards

    def check(self) -> None:
        """Whether it works here, tried out once.

        Raises:
            SandboxError: ``sandbox_unavailable``.
        """
        _found()
        super().check()

    @contextmanager
    def _room(self) -> Iterator[str]:
        """The folder of the device nodes: root's body would own the machine's, and gets some for itself."""
        if Path(os.devnull).stat().st_uid != os.geteuid():
            yield "/dev"
            return
        with tempfile.TemporaryDirectory(prefix=f"holdfast-{os.getpid()}-", dir="/dev") as room:
            for name in DEVICES:
                os.mknod(f"{room}/{name}", stat.S_IFCHR | 0o600, Path("/dev", name).stat().st_rdev)
            yield room

    def _command(self, job: Job, room: str) -> list[str]:
        size = str((job.limits or self.limits).file_bytes)
        etc = [f"/etc/{name}" for name in NETWORK] if self.network else []
        installed = [path for path in sys.path if Path(path).name in ("site-packages", "dist-packages")]
        own = [sys.prefix, sys.base_prefix, str(Path(sys.base_prefix).resolve()), PACKAGE, *self.path]
        # The environment is bubblewrap's own: on its command line everybody could read it.
        return [
            _found(),
            *ISOLATION,
            *(["--share-net"] if self.network else []),
            *["--proc", "/proc", "--remount-ro", "/proc"],
            *["--dev", "/dev", "--remount-ro", "/dev", "--size", size, "--tmpfs", SHARED],
            *(word for name in DEVICES for word in ("--dev-bind", f"{room}/{name}", f"/dev/{name}")),
            *["--size", size, "--tmpfs", SCRATCH, "--dir", ROOM],
            *_bound("--ro-bind-try", [*SYSTEM, *etc, *installed]),
            *_bound("--ro-bind", [*own, *_code(job.target), *self.readable]),
            *_bound("--bind", self.writable),
            *["--remount-ro", "/", "--chdir", ROOM, "--"],
        ]

    def _unavailable(self, message: str) -> SandboxError:
        return _unavailable(message)


def _unavailable(message: str) -> SandboxError:
    fix = "Install bubblewrap 0.8 or newer and allow user namespaces, or choose a tier that keeps less away."
    return SandboxError(message, code="sandbox_unavailable", fix=fix)


def _found() -> str:
    found = shutil.which("bwrap")
    if found is None:
        raise _unavailable("bubblewrap is not installed: there is no bwrap on the PATH")
    return found


def _bound(option: str, paths: Iterable[str]) -> list[str]:
    return [word for path in dict.fromkeys(paths) for word in (option, path, path)]


def _code(target: str) -> list[str]:
    """The body's own package or module, wherever this process would find it; nothing beside it."""
    try:
        spec = importlib.util.find_spec(target.partition(":")[0].partition(".")[0])
    except (ImportError, ValueError):
        return []
    if spec is None:
        return []
    origin = [spec.origin] if spec.has_location and spec.origin else []
    return [str(Path(path).absolute()) for path in spec.submodule_search_locations or origin]
