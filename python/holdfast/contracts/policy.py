"""Policy as data: rules, what they decide, what they oblige to."""

from typing import Literal, TypeAlias

from holdfast.contracts.capability import Constraint
from holdfast.records.base import U32, U64, Fact, Labels, Name
from holdfast.records.common import EffectClass, Risk, SandboxTier

Decision: TypeAlias = Literal["allow", "ask", "deny"]
"""What policy says about a call. `deny` wins over `ask` wins over `allow`."""

ObligationKind: TypeAlias = Literal["sandbox", "redact", "approvers"]


class Obligation(Fact):
    """What must hold when the call runs; one that cannot be enforced is a refusal."""

    fields: list[Name]
    kind: ObligationKind
    quorum: U32 | None = None
    roles: list[Name]
    tier: SandboxTier | None = None


class Approvers(Fact):
    """Who must approve when a rule asks."""

    expires_ms: U64
    quorum: U32
    roles: list[Name]


class Rule(Fact):
    """One rule. Every condition that is given must hold; a list holds if one of it does."""

    agents: list[Name]
    approvers: Approvers | None = None
    capabilities: list[Name]
    decide: Decision
    effects: list[EffectClass]
    labels: Labels
    name: Name
    not_after: U64 | None = None
    """Unix milliseconds."""
    not_before: U64 | None = None
    obligations: list[Obligation]
    risks: list[Risk]
    roles: list[Name]
    sessions: list[Name]
    tools: list[Name]
    """Globs."""
    when: list[Constraint]


class Policy(Fact):
    """A policy; its digest is its version."""

    approvers: dict[str, list[Name]]
    """Who has which role when deciding."""
    rules: list[Rule]
