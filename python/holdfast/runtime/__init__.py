"""The runtime: agents that survive. docs/GETTING_STARTED.md is the guide."""

from holdfast.runtime.agents import Agent, AgentError, Fatal, Retry
from holdfast.runtime.context import Child, Context, StateConflict
from holdfast.runtime.ends import StepTimeout
from holdfast.runtime.guard import guard
from holdfast.runtime.looking import Cost, Metrics
from holdfast.runtime.notes import Artifact, Checkpoint, NoteError
from holdfast.runtime.plans import Planned
from holdfast.runtime.runs import Failed, Listed, Run, RunError, Runs
from holdfast.runtime.runtime import Runtime
from holdfast.runtime.simple import run
from holdfast.runtime.sync import SyncContext
from holdfast.runtime.worker import Summary, Worker

__all__ = [
    "Agent",
    "AgentError",
    "Artifact",
    "Checkpoint",
    "Child",
    "Context",
    "Cost",
    "Failed",
    "Fatal",
    "Listed",
    "Metrics",
    "NoteError",
    "Planned",
    "Retry",
    "Run",
    "RunError",
    "Runs",
    "Runtime",
    "StateConflict",
    "StepTimeout",
    "Summary",
    "SyncContext",
    "Worker",
    "guard",
    "run",
]
