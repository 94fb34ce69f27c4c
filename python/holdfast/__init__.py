"""Holdfast: a durable, provable runtime for AI agents.

What works today: :func:`open` a store, create runs, claim work, verify; and put a :class:`Gateway` over it,
which governs the calls of tools. Under it lie :mod:`holdfast.canonical`, :mod:`holdfast.primitives`,
:mod:`holdfast.records` and :mod:`holdfast.contracts`.
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
from holdfast.gateway import (
    Approvals,
    BudgetRefused,
    Call,
    CannotTell,
    Denied,
    DidNotHappen,
    EffectFailed,
    Effects,
    Gateway,
    Happened,
    Keyed,
    NoEffect,
    OutcomeError,
    Policy,
    PolicyError,
    Result,
    Stopped,
    Suspended,
    Tool,
    ToolError,
)
from holdfast.store import Claim, Record, Report, Store, doctor, restore
from holdfast.store import open_store as open

__all__ = [
    "Approvals",
    "BudgetRefused",
    "Call",
    "CannotTell",
    "CanonicalError",
    "Claim",
    "CommandError",
    "Denied",
    "DidNotHappen",
    "EffectFailed",
    "Effects",
    "Gateway",
    "Happened",
    "HoldfastError",
    "Keyed",
    "NoEffect",
    "OutcomeError",
    "Policy",
    "PolicyError",
    "Record",
    "RecordError",
    "Report",
    "Result",
    "StateError",
    "Stopped",
    "Store",
    "StoreError",
    "Suspended",
    "Tool",
    "ToolError",
    "VerifyError",
    "__version__",
    "doctor",
    "open",
    "restore",
]
