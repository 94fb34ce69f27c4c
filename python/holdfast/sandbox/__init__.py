"""Sandboxes: a tool's body in a fresh interpreter, and an honest word about what keeps it in.

Code that runs in the process of the agent is never called sandboxed. ``base.py`` has the contract,
``process.py`` and ``bubblewrap.py`` the two tiers, ``child.py`` is what runs inside.
"""

from holdfast.sandbox.base import Done, Failure, Job, Limits, Sandbox, SandboxError
from holdfast.sandbox.bubblewrap import Bubblewrap
from holdfast.sandbox.process import Subprocess

__all__ = [
    "Bubblewrap",
    "Done",
    "Failure",
    "Job",
    "Limits",
    "Sandbox",
    "SandboxError",
    "Subprocess",
]
