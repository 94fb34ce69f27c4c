"""What a forked child must not inherit: the locks of its parent's stores.

A lock lives as long as any copy of its descriptor, so a child that outlives a killed parent would keep the
parent's turn and its place among the processes. After a fork the child points those descriptors elsewhere;
its copy of the handle is of no use anyway, every call on it raises ``store_forked``.
"""

from __future__ import annotations

import os
import weakref
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.store.door import Store

_open: weakref.WeakKeyDictionary[Store, list[int]] = weakref.WeakKeyDictionary()


def opened(store: Store, descriptors: list[int]) -> None:
    """The store has these locks."""
    _open[store] = descriptors


def closed(store: Store) -> None:
    """The store has none any more: their numbers may be anybody's."""
    _open.pop(store, None)


def _let_go() -> None:
    descriptors = [number for numbers in _open.values() for number in numbers]
    _open.clear()
    if not descriptors:
        return
    nowhere = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for number in descriptors:
        os.dup2(nowhere, number, inheritable=False)
    os.close(nowhere)


os.register_at_fork(after_in_child=_let_go)
