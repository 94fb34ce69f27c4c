"""Evidence: what happened, read back, replayed, compared and reviewed. docs/EVIDENCE.md is the guide."""

from holdfast.evidence.diff import Diff, Difference
from holdfast.evidence.face import Evidence
from holdfast.evidence.fold import Entry, Fold
from holdfast.evidence.journal import ERASED, LOST, Fact, Gone, Journal
from holdfast.evidence.picture import Dimension
from holdfast.evidence.replay import Divergence, Replay, Replayed, Sketch, Verdict
from holdfast.evidence.review import Check, Finding, Review, Severity, review
from holdfast.evidence.safety import Cause, Safety, Unsafe
from holdfast.evidence.travel import Change, Frame, Moment

__all__ = [
    "ERASED",
    "LOST",
    "Cause",
    "Change",
    "Check",
    "Diff",
    "Difference",
    "Dimension",
    "Divergence",
    "Entry",
    "Evidence",
    "Fact",
    "Finding",
    "Fold",
    "Frame",
    "Gone",
    "Journal",
    "Moment",
    "Replay",
    "Replayed",
    "Review",
    "Safety",
    "Severity",
    "Sketch",
    "Unsafe",
    "Verdict",
    "review",
]
