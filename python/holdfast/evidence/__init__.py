"""Evidence: what happened, read back, replayed, compared and reviewed. docs/EVIDENCE.md is the guide."""

from holdfast.evidence.face import Evidence
from holdfast.evidence.fold import Entry, Fold
from holdfast.evidence.journal import ERASED, LOST, Fact, Gone, Journal
from holdfast.evidence.travel import Change, Frame, Moment

__all__ = [
    "ERASED",
    "LOST",
    "Change",
    "Entry",
    "Evidence",
    "Fact",
    "Fold",
    "Frame",
    "Gone",
    "Journal",
    "Moment",
]
