"""The core's primitives, for those who only want these: no store, no runtime, nothing is kept.

Canonical bytes and digests (RFC 8785):

>>> dumps({"order": "42", "cents": 1999.0})
b'{"cents":1999,"order":"42"}'
>>> digest({"order": "42"})[:23]
'sha256:45fc36c29d97d2b5'

Merge patches (RFC 7396) and the patch between two states:

>>> merge_patch({"cents": 1999, "note": "?"}, {"note": None, "paid": True})
{'cents': 1999, 'paid': True}
>>> merge_diff({"cents": 1999, "note": "?"}, {"cents": 1999, "paid": True})
{'note': None, 'paid': True}

Ids, records, contracts and hooks, checked as the core checks them:

>>> new_id("run", at_ms=1763251200123, random=bytes(10))
'run_01ka4zc83ve008000000000000'
>>> check_id("run_01ka4zc83ve008000000000000")
'run'
>>> check_body("state.conflict", {"expected": 3, "actual": 4})
b'{"actual":4,"expected":3}'
>>> check_contract("budget", {"on_exceeded": "maybe"})
Traceback (most recent call last):
holdfast.errors.RecordError: unknown_token: unknown token, expected one of refuse ask (at $.on_exceeded)...
>>> sorted(hook_matrix()["before_tool_call"].classes)
['deny', 'modify_tool_request', 'observe', 'request_approval']

The hash chain of a stream: each record holds the hash of the one before, the first that of the stream.

>>> verify_chain("sto_01ka4zc83ve008000000000000", "store", []).seq
0
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, NamedTuple, cast

from holdfast import _core
from holdfast._core import merge_diff, merge_patch
from holdfast.canonical import digest, dumps, dumps_text, loads

if TYPE_CHECKING:
    from collections.abc import Iterable

    from holdfast.contracts import HookClass, HookPoint

__all__ = [
    "Head",
    "HookRow",
    "check_body",
    "check_contract",
    "check_hook_spec",
    "check_id",
    "check_record",
    "digest",
    "dumps",
    "dumps_text",
    "hook_matrix",
    "loads",
    "merge_diff",
    "merge_patch",
    "new_id",
    "verify_chain",
]


class Head(NamedTuple):
    """Where a stream ends."""

    seq: int
    hash: str


class HookRow(NamedTuple):
    """What holds at a point where hooks run."""

    security_critical: bool
    """A hook here may never fail open."""
    classes: frozenset[HookClass]
    """The classes of response that are allowed."""


def new_id(prefix: str, *, at_ms: int | None = None, random: bytes | None = None) -> str:
    """A new id (UUIDv7) of the type with that prefix: ``run``, ``step``, ``call``, ``apr`` and so on.

    Args:
        prefix: the type.
        at_ms: the time in it, in milliseconds since the epoch; now, unless given.
        random: ten random bytes, unless given.
    """
    at_ms = time.time_ns() // 1_000_000 if at_ms is None else at_ms
    return _core.id_new(prefix, at_ms, os.urandom(10) if random is None else random)


def check_id(text: str) -> str:
    """The prefix of a well-formed id; raises ``RecordError`` (``bad_id``) for anything else."""
    return _core.id_check(text)


def check_record(text: bytes) -> str:
    """The hash of a record that can be read; raises ``RecordError`` with code and path."""
    return _core.record_check(text)


def check_body(kind: str, body: object) -> bytes:
    """The canonical bytes of a kind's body; raises ``RecordError`` with code and path."""
    return _core.body_check(kind, body)


def check_contract(name: str, value: object) -> bytes:
    """The canonical bytes of a contract; raises ``RecordError`` with code and path."""
    return _core.contract_check(name, value)


def check_hook_spec(spec: object) -> None:
    """Checks a hook's declaration against the rules of registration; raises ``RecordError``."""
    _core.hook_spec_check(spec)


def hook_matrix() -> dict[HookPoint, HookRow]:
    """Which classes of response are allowed at which point."""
    return {
        cast("HookPoint", point): HookRow(critical, frozenset(cast("list[HookClass]", classes)))
        for point, critical, classes in _core.hook_matrix()
    }


def verify_chain(store: str, stream: str, records: Iterable[bytes], *, head: str | None = None) -> Head:
    """Checks the records of a stream, in order and from the first, and returns where it ends.

    Args:
        store: the store's id, part of what the first record's ``prev`` is made from.
        stream: ``store``, a run's id or a session's.
        records: the records' text, as stored.
        head: the hash of the last record, if it was kept elsewhere. Without it, records that are missing
            at the end cannot be noticed.

    Raises:
        VerifyError: with the place of the first bad record.
    """
    return Head(*_core.chain_verify(store, stream, list(records), head))
