"""The runtime: agents that survive. docs/GETTING_STARTED.md is the guide."""

from holdfast.runtime.agents import Agent, AgentError, Fatal, Retry
from holdfast.runtime.context import Child, Context, StateConflict
from holdfast.runtime.guard import guard
from holdfast.runtime.looking import Cost, Metrics
from holdfast.runtime.notes import Artifact, NoteError
from holdfast.runtime.runs import Failed, Listed, Run, RunError, Runs
from holdfast.runtime.runtime import Runtime
from holdfast.runtime.simple import run
from holdfast.runtime.sync import SyncContext
from holdfast.runtime.worker import Summary, Worker

__all__ = [
    "Agent",
    "AgentError",
    "Artifact",
    "Child",
    "Context",
    "Cost",
    "Failed",
    "Fatal",
    "Listed",
    "Metrics",
    "NoteError",
    "Retry",
    "Run",
    "RunError",
    "Runs",
    "Runtime",
    "StateConflict",
    "Summary",
    "SyncContext",
    "Worker",
    "guard",
    "run",
]
