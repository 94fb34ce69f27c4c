"""Holdfast: a durable, provable runtime for AI agents.

What works today is the foundation: :mod:`holdfast.canonical`, :mod:`holdfast.primitives`,
:mod:`holdfast.records` and :mod:`holdfast.contracts`.
"""

from holdfast._core import __version__
from holdfast.errors import CanonicalError, CommandError, HoldfastError, RecordError, StateError, VerifyError

__all__ = [
    "CanonicalError",
    "CommandError",
    "HoldfastError",
    "RecordError",
    "StateError",
    "VerifyError",
    "__version__",
]
