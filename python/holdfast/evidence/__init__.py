"""Evidence: what proves a run to somebody who does not trust whoever keeps the store."""

from holdfast.evidence.bundle import OPEN, Exported, export
from holdfast.evidence.verifying import Verified, verify

__all__ = ["OPEN", "Exported", "Verified", "export", "verify"]
