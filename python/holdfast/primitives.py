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
    from holdfast.values import Json

__all__ = [
    "Head",
    "HookRow",
    "Sealed",
    "call_digest",
    "check_body",
    "check_contract",
    "check_hook_spec",
    "check_id",
    "check_opening",
    "check_record",
    "digest",
    "dumps",
    "dumps_text",
    "hook_matrix",
    "loads",
    "merge_diff",
    "merge_patch",
    "new_id",
    "seal",
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
    return _core.id_new(prefix, at_ms, random)


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


class Sealed(NamedTuple):
    """A value as a record holds it, and what is kept beside the record to open it."""

    content: dict[str, Json]
    opening: dict[str, Json]


def seal(value: object, *, privacy: str = "internal", salt: bytes | None = None) -> Sealed:
    """Commits to a value under a salt of 16 random bytes; without the salt, the commitment tells nothing.

    >>> sealed = seal({"cents": 1999}, salt=bytes(16))
    >>> sealed.content["bytes"], sealed.opening
    (14, {'salt': '00000000000000000000000000000000', 'value': {'cents': 1999}})
    """
    return Sealed(*_core.content_seal(value, os.urandom(16) if salt is None else salt, privacy))


def check_opening(commit: str, opening: object) -> None:
    """Checks that an opening (``{"salt": .., "value": ..}``) is what was committed to.

    Raises:
        RecordError: ``content_forged`` if it is not.
    """
    _core.content_check(commit, opening)


def call_digest(seed: str, kind: str, name: str, arguments: object) -> str:
    """The identity of a call under a run's seed (64 hex digits): ``hmac:<hex>``.

    >>> call_digest("00" * 32, "tool", "refund", {"order": "42"})[:15]
    'hmac:6050b33ae2'
    """
    return _core.call_digest(seed, kind, name, arguments)


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
