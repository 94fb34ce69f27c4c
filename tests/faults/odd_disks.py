"""What the children of test_refusals.py do: stores on filesystems that are not a local disk, or that cannot
be written, in a mount namespace of their own; and opening without the right to override permissions.

The FUSE server is the smallest that answers: it has an empty root folder and nothing else.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import struct
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from tests.faults import disks

import holdfast as hf

if TYPE_CHECKING:
    from collections.abc import Callable

LOOKUP, GETATTR, STATFS, INIT = 1, 3, 17, 26
UNANSWERED = (2, 36, 42)  # the kernel forgets nodes and interrupts, and wants no answer
S_IFDIR = 0o040000


def serve(device: int) -> None:
    """Answers the kernel's questions about an empty folder until it is unmounted."""
    while True:
        try:
            asked = os.read(device, 1 << 20)
        except OSError:
            return
        _, question, unique = struct.unpack_from("<IIQ", asked)
        body, error = b"", 0
        if question == INIT:
            body = struct.pack("<IIIIHHIIHHI28x", 7, 31, 65536, 0, 0, 0, 65536, 1, 0, 0, 0)
        elif question == GETATTR:
            body = struct.pack("<QII", 1, 0, 0)
            body += struct.pack(
                "<QQQQQQIIIIIIIIII", 1, 0, 0, 0, 0, 0, 0, 0, 0, S_IFDIR | 0o755, 2, 0, 0, 0, 4096, 0
            )
        elif question == STATFS:
            body = struct.pack("<QQQQQIIII24x", 100, 100, 100, 100, 100, 4096, 255, 4096, 0)
        elif question in UNANSWERED:
            continue
        else:
            error = errno.ENOENT if question == LOOKUP else errno.ENOSYS
        with suppress(FileNotFoundError):  # whoever asked does not wait any more
            os.write(device, struct.pack("<IiQ", 16 + len(body), -error, unique) + body)


def fuse(folder: str) -> None:
    """Opens a store on a FUSE mount."""
    device = os.open("/dev/fuse", os.O_RDWR)
    options = f"fd={device},rootmode=40000,user_id={os.getuid()},group_id={os.getgid()}"
    libc = ctypes.CDLL(None, use_errno=True)
    # The mount comes first: a device that is not mounted yet refuses to be read, and the server would end.
    if libc.mount(b"test", folder.encode(), b"fuse", 0, options.encode()) != 0:
        raise OSError(ctypes.get_errno(), "cannot mount FUSE")
    server = os.fork()
    if server == 0:
        try:
            serve(device)
        finally:
            os._exit(0)
    os.close(device)  # without its server the mount answers with errors instead of waiting
    told = {"open": told_of(folder), "below": told_of(f"{folder}/store"), "listed": os.path.isdir(folder)}  # noqa: PTH112
    libc.umount2(folder.encode(), 2)
    os.kill(server, 9)
    os.waitpid(server, 0)
    print(json.dumps(told))


def told_of(folder: str, **options: bool) -> list[str]:
    """The code and the message of opening a store."""
    try:
        hf.open(folder, **options).close()  # type: ignore[arg-type]
    except hf.HoldfastError as error:
        return [error.code, str(error)]
    return ["accepted", ""]


def read_only_mount(folder: str) -> None:
    """A store on a filesystem that is mounted for reading only, and writable again."""
    root = Path(folder)
    subprocess.run(["mount", "-t", "tmpfs", "none", folder], check=True)
    with hf.open(root / "store") as store:
        run = store.create_run(agent="a", input=1)
    del store
    subprocess.run(["mount", "-o", "remount,bind,ro", folder], check=True)
    told = {
        "make": disks.refusal(hf.open, root / "new"),
        "open": disks.refusal(hf.open, root / "store"),
        "backup": disks.refusal(hf.restore, root / "store", root / "restored"),
    }
    subprocess.run(["mount", "-o", "remount,bind,rw", folder], check=True)
    with hf.open(root / "store") as store:
        told["append"] = disks.refusal(store.append, run, "note.logged", {"text": "on"}, barrier=True)
        told["verify"] = str(store.verify().ok)
    print(json.dumps(told))


def attempts(folder: str) -> None:
    """Opens a store for writing and for reading, and tells what became of it."""
    print(json.dumps({"read": told_of(folder, read_only=True), "write": told_of(folder)}))


def put_blob(folder: str) -> None:
    with hf.open(folder) as store:
        print(json.dumps(disks.refusal(store.put_blob, b"x")))


ROLES: dict[str, Callable[[str], None]] = {
    "attempts": attempts,
    "fuse": fuse,
    "put_blob": put_blob,
    "read_only_mount": read_only_mount,
}

if __name__ == "__main__":
    ROLES[sys.argv[1]](sys.argv[2])
