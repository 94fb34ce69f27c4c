"""What a tool declares, and how an error is told to programs."""

from typing import Literal, TypeAlias

from holdfast.records.base import U32, U64, Fact, Flag, Json, Name, Text, Token
from holdfast.records.common import EffectClass, Risk

ToolApproval: TypeAlias = Literal["never", "policy", "always"]

SandboxNeed: TypeAlias = Literal["none", "preferred", "required"]


class ToolSpec(Fact):
    """A tool as it is registered."""

    approval: ToolApproval
    compensates: Flag
    description: Text | None = None
    effect: EffectClass
    input: dict[str, Json]
    """JSON Schema of the arguments."""
    key_ttl_ms: U64 | None = None
    """How long the idempotency key protects at the provider."""
    max_attempts: U32
    name: Name
    output: dict[str, Json] | None = None
    """JSON Schema of the result."""
    reconciles: Flag
    risk: Risk
    sandbox: SandboxNeed
    secrets: list[Name]
    """Parameters that are never stored."""
    timeout_ms: U64
    version: Name


class ErrorInfo(Fact):
    """An error, as the command line and other processes see it."""

    code: Token
    fix: Text
    message: Text
    path: Text | None = None
