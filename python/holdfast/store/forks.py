"""What a forked child must not inherit: the locks of its parent's stores.

A lock lives as long as any copy of its descriptor, so a child that outlives a killed parent would keep the
parent's turn, its place among the processes and its locks on the database. After a fork the child points
every descriptor on a store's files elsewhere; its copy of the handle is of no use anyway, every call on it
raises ``store_forked``.
"""

from __future__ import annotations

import os
import resource
import weakref
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from holdfast.store.door import Store

LOCKED = ("holdfast.db", "holdfast.db-shm", "holdfast.lock", "holdfast.turn")
_open: weakref.WeakKeyDictionary[Store, Path] = weakref.WeakKeyDictionary()


def opened(store: Store, folder: Path | None) -> None:
    """The store has its files there; one in memory has none."""
    if folder is not None:
        _open[store] = folder


def closed(store: Store) -> None:
    """The store has its files open no more."""
    _open.pop(store, None)


def _files(folder: Path) -> Iterable[tuple[int, int]]:
    """The files that can be locked, by device and number. Some come and go while this looks."""
    names = [folder / name for name in LOCKED]
    with suppress(OSError):
        names += [Path(entry) for entry in os.scandir(folder / "processes")]
    for name in names:
        with suppress(OSError):
            found = name.stat(follow_symlinks=False)
            yield found.st_dev, found.st_ino


def _descriptors() -> Iterable[int]:
    try:
        return [int(entry.name) for entry in os.scandir("/dev/fd")]
    except OSError:
        return range(3, resource.getrlimit(resource.RLIMIT_NOFILE)[0])


def _let_go() -> None:
    files = {file for folder in set(_open.values()) for file in _files(folder)}
    _open.clear()
    if not files:
        return
    nowhere = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for number in _descriptors():
        try:
            found = os.fstat(number)
        except OSError:
            continue  # the one that the list was read with
        if (found.st_dev, found.st_ino) in files:
            os.dup2(nowhere, number, inheritable=False)
    os.close(nowhere)


def _rest() -> None:
    """Waits for whoever writes a log back: a child forked in the middle of that could never open a store."""
    for store in list(_open):
        store._core.rest()


os.register_at_fork(before=_rest, after_in_child=_let_go)
