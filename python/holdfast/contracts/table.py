"""The contracts by name, and reading one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pydantic import TypeAdapter

from holdfast.contracts.approval import ApprovalBrokerOutcome, ApprovalRequest, BudgetAccount
from holdfast.contracts.capability import Grant
from holdfast.contracts.hook import HookInput, HookResponse, HookSpec
from holdfast.contracts.policy import Policy
from holdfast.contracts.source import SourceApprovalRecord, SourceDecision
from holdfast.contracts.tool import ErrorInfo, ToolSpec
from holdfast.records.common import Budget
from holdfast.records.read import read, refusal

if TYPE_CHECKING:
    from holdfast.records.base import Fact

CONTRACTS: Final[dict[str, TypeAdapter[Any]]] = {
    "approval_broker_outcome": TypeAdapter(ApprovalBrokerOutcome),
    "approval_request": TypeAdapter(ApprovalRequest),
    "budget": TypeAdapter(Budget),
    "budget_account": TypeAdapter(BudgetAccount),
    "error_info": TypeAdapter(ErrorInfo),
    "grant": TypeAdapter(Grant),
    "hook_input": TypeAdapter(HookInput),
    "hook_response": TypeAdapter(HookResponse),
    "hook_spec": TypeAdapter(HookSpec),
    "policy": TypeAdapter(Policy),
    "source_approval_record": TypeAdapter(SourceApprovalRecord),
    "source_decision": TypeAdapter(SourceDecision),
    "tool_spec": TypeAdapter(ToolSpec),
}
"""How each contract is read; the names are the core's."""


def read_contract(name: str, value: object) -> Fact:
    """Reads a contract from JSON as Python objects.

    Raises:
        RecordError: with the core's code and the path of the fault; ``unknown_kind`` for another name.

    >>> read_contract("budget", {"on_exceeded": "ask", "usd_micros": 5_000_000}).usd_micros
    5000000
    """
    adapter = CONTRACTS.get(name)
    if adapter is None:
        raise refusal("unknown_kind", "$", "not the name of a contract")
    fact: Fact = read(adapter, value)
    return fact
