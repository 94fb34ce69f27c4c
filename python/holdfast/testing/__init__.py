"""For tests of agents: a clock that is moved by hand, approvals by the dozen, a model that follows a script,
and crashes at every boundary of the journal. docs/HOWTO.md shows them.
"""

from holdfast.store.clock import FakeClock
from holdfast.testing.crashes import Boundary, Crash, CrashReport, Scene, crash_at, crash_everywhere
from holdfast.testing.people import MemoryStore, ScriptedModel, approve_all, deny_all

__all__ = [
    "Boundary",
    "Crash",
    "CrashReport",
    "FakeClock",
    "MemoryStore",
    "Scene",
    "ScriptedModel",
    "approve_all",
    "crash_at",
    "crash_everywhere",
    "deny_all",
]
