"""Evidence: what happened, proved to those who do not trust us; read back, replayed, compared and reviewed.

docs/EVIDENCE.md and docs/PAST.md are the guides.
"""

from holdfast.evidence.attribution import By, Failure, Owner, Recovery, Spent
from holdfast.evidence.bundle import OPEN, Exported, export
from holdfast.evidence.diff import Diff, Difference
from holdfast.evidence.face import Evidence
from holdfast.evidence.fold import Entry, Fold
from holdfast.evidence.journal import ERASED, LOST, WITHHELD, Fact, Gone, Journal
from holdfast.evidence.ledger import Refused
from holdfast.evidence.picture import Dimension
from holdfast.evidence.replay import Divergence, Replay, Replayed, Sketch, Verdict
from holdfast.evidence.retention import Archived, Due, readiness
from holdfast.evidence.review import Check, Finding, Review, Severity, review
from holdfast.evidence.safety import Cause, Safety, Unsafe
from holdfast.evidence.shadow import Shadow
from holdfast.evidence.travel import Change, Frame, Moment
from holdfast.evidence.verifying import Verified, verify

__all__ = [
    "ERASED",
    "LOST",
    "OPEN",
    "WITHHELD",
    "Archived",
    "By",
    "Cause",
    "Change",
    "Check",
    "Diff",
    "Difference",
    "Dimension",
    "Divergence",
    "Due",
    "Entry",
    "Evidence",
    "Exported",
    "Fact",
    "Failure",
    "Finding",
    "Fold",
    "Frame",
    "Gone",
    "Journal",
    "Moment",
    "Owner",
    "Recovery",
    "Refused",
    "Replay",
    "Replayed",
    "Review",
    "Safety",
    "Severity",
    "Shadow",
    "Sketch",
    "Spent",
    "Unsafe",
    "Verdict",
    "Verified",
    "export",
    "readiness",
    "review",
    "verify",
]
