"""Holdfast: a durable, provable runtime for AI agents.

What works today is the journal: :func:`open` a store, create runs, append records, claim work, verify. Under
it lie :mod:`holdfast.canonical`, :mod:`holdfast.primitives`, :mod:`holdfast.records` and
:mod:`holdfast.contracts`.
"""

from holdfast._core import __version__
from holdfast.errors import (
    CanonicalError,
    CommandError,
    HoldfastError,
    RecordError,
    StateError,
    StoreError,
    VerifyError,
)
from holdfast.store import Claim, Record, Report, Store, doctor, restore
from holdfast.store import open_store as open

__all__ = [
    "CanonicalError",
    "Claim",
    "CommandError",
    "HoldfastError",
    "Record",
    "RecordError",
    "Report",
    "StateError",
    "Store",
    "StoreError",
    "VerifyError",
    "__version__",
    "doctor",
    "open",
    "restore",
]
