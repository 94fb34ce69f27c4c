"""The gateway: tools, hooks, policy, approvals and effects over a store. docs/GATEWAY.md is the guide."""

from holdfast.gateway.driver import Evaluator, Gateway, Step
from holdfast.gateway.hooks import Hook, Response, Subject, deny, request_approval, request_retry, rewrite
from holdfast.gateway.outcomes import (
    BudgetRefused,
    Call,
    CannotTell,
    Denied,
    DidNotHappen,
    EffectFailed,
    Happened,
    Keyed,
    NoEffect,
    OutcomeError,
    Result,
    Stopped,
    Suspended,
)
from holdfast.gateway.people import Approvals, Doubt, Effects, Request
from holdfast.gateway.policy import Policy, PolicyError
from holdfast.gateway.tools import Tool, ToolError

__all__ = [
    "Approvals",
    "BudgetRefused",
    "Call",
    "CannotTell",
    "Denied",
    "DidNotHappen",
    "Doubt",
    "EffectFailed",
    "Effects",
    "Evaluator",
    "Gateway",
    "Happened",
    "Hook",
    "Keyed",
    "NoEffect",
    "OutcomeError",
    "Policy",
    "PolicyError",
    "Request",
    "Response",
    "Result",
    "Step",
    "Stopped",
    "Subject",
    "Suspended",
    "Tool",
    "ToolError",
    "deny",
    "request_approval",
    "request_retry",
    "rewrite",
]
