"""Contracts that are not records: hooks and approvals as their source spells them, cell by cell and token
by token, and every contract read and written the same in both languages.
"""

from __future__ import annotations

from typing import Any, get_args

import pytest
from tests.support import REMAKE, fixture, names, refusal

from holdfast import _core, canonical
from holdfast.contracts import (
    CONTRACTS,
    ApprovalDecisionKind,
    ApprovalLifecycleStatus,
    ApprovalRequest,
    ApprovalTerminalStatus,
    HookClass,
    HookPoint,
    SourceApproval,
    SourceDenial,
    SourceEffectStatus,
    SourceRef,
    read_contract,
)
from holdfast.primitives import hook_matrix
from holdfast.records import write

NAMES = names("contracts")
MATRIX = fixture("hooks/matrix.json")
TOKENS = fixture("approvals/tokens.json")
CELLS = [(row, cls) for row in MATRIX["points"] for cls in MATRIX["classes"]]


def test_every_contract_has_fixtures_and_a_twin() -> None:
    schemas: Any = _core.schemas()
    assert set(NAMES) == set(CONTRACTS) == set(schemas["contracts"]), REMAKE
    assert (
        refusal(read_contract, "invoice", {})
        == refusal(_core.contract_check, "invoice", {})
        == ("unknown_kind", "$")
    )


@pytest.mark.parametrize("name", NAMES)
def test_a_good_contract_is_read_and_written_the_same_in_both_languages(name: str) -> None:
    for good in fixture(f"contracts/{name}.json")["good"]:
        fact = read_contract(name, good["value"])
        assert write(fact) == good["value"], good["name"]
        assert (
            canonical.dumps(write(fact))
            == good["bytes"].encode()
            == _core.contract_check(name, good["value"])
        )


@pytest.mark.parametrize("name", NAMES)
def test_a_bad_contract_is_refused_with_the_same_code_at_the_same_place(name: str) -> None:
    for bad in fixture(f"contracts/{name}.json")["refused"]:
        here = refusal(read_contract, name, bad["value"])
        there = refusal(_core.contract_check, name, bad["value"])
        assert (here[0], here) == (bad["code"], there), bad["name"]


def test_the_faults_of_a_tag_and_of_every_shape_under_it_have_fixtures() -> None:
    sorts = {"no_tag", "an_unknown_tag", "a_tag_that_is_no_text", "an_unknown_field_beside_the_tag"}
    for name, inside in (
        ("hook_response", ["observe_only", "inject_context", "modify_projection", "deny"]),
        ("source_approval_record", ["dispatch_intent", "dispatch_result", "responded"]),
    ):
        found = {bad["name"] for bad in fixture(f"contracts/{name}.json")["refused"]}
        assert sorts <= found
        for tag in inside:
            assert any(bad.startswith(f"a_null_for_what_is_absent_in_{tag}.") for bad in found), (name, tag)


def test_inside_a_union_the_path_leads_through_the_value_and_null_is_refused() -> None:
    for value, expected in (
        ({"payload": {"code": "No!"}, "type": "deny"}, ("bad_value", "$.payload.code")),
        ({"payload": {"code": "no", "summary": None}, "type": "deny"}, ("wrong_type", "$.payload.summary")),
        ({"payload": {}, "type": "observe_only", "more": 1}, ("unknown_field", "$.more")),
        ({"payload": {}, "type": "perhaps"}, ("unknown_token", "$.type")),
        ({"payload": {}, "type": 0}, ("wrong_type", "$.type")),
        ({"payload": {}}, ("missing_field", "$")),
        ({"payload": {}, "more": 1}, ("missing_field", "$")),
        ({"type": "perhaps"}, ("missing_field", "$")),
        ({"payload": {}, "type": "perhaps", "more": 1}, ("unknown_field", "$.more")),
        ({"payload": {"code": "No!"}, "type": "deny", "zz": 1, "more": 1}, ("unknown_field", "$.more")),
    ):
        assert refusal(read_contract, "hook_response", value) == expected
        assert refusal(_core.contract_check, "hook_response", value) == expected


def test_the_matrix_has_22_points_and_20_classes_in_both_languages() -> None:
    points = [row["point"] for row in MATRIX["points"]]
    assert (len(points), len(MATRIX["classes"]), len(CELLS)) == (22, 20, 440)
    assert points == list(get_args(HookPoint)) == list(hook_matrix())
    assert MATRIX["classes"] == list(get_args(HookClass))


@pytest.mark.parametrize(("row", "cls"), CELLS, ids=[f"{row['point']}-{cls}" for row, cls in CELLS])
def test_a_cell_of_the_matrix_is_as_the_source_has_it(row: dict[str, Any], cls: str) -> None:
    point = hook_matrix()[row["point"]]
    assert (cls in point.classes, point.security_critical) == (cls in row["allowed"], row["security"])


def test_every_class_has_a_response_and_observe_is_spelled_observe_only() -> None:
    tags = {good["value"]["type"] for good in fixture("contracts/hook_response.json")["good"]}
    assert tags == {"observe_only" if cls == "observe" else cls for cls in MATRIX["classes"]}


def test_a_hook_may_declare_what_the_rules_allow_and_nothing_else() -> None:
    found = fixture("contracts/hook_spec.json")
    for good in found["good"]:
        _core.hook_spec_check(good["value"])
    for bad in found["invalid"]:
        assert write(read_contract("hook_spec", bad["value"])) == bad["value"]
        assert refusal(_core.hook_spec_check, bad["value"])[0] == bad["code"], bad["name"]
    rules = {code for code, _ in _core.error_codes() if code.startswith("hook_")}
    rules.remove("hook_exists")  # about several hooks, not about one declaration
    assert {bad["code"] for bad in found["invalid"]} == rules


def test_the_tokens_of_approvals_are_those_of_the_source() -> None:
    assert list(get_args(ApprovalDecisionKind)) == TOKENS["decision_kind"]
    assert list(get_args(ApprovalLifecycleStatus)) == TOKENS["lifecycle_status"]
    assert list(get_args(ApprovalTerminalStatus)) == TOKENS["terminal_status"]
    assert list(get_args(SourceEffectStatus)) == TOKENS["effect_status"]
    assert (
        set(TOKENS["releases_tool_execution"])
        <= set(TOKENS["terminal_status"])
        <= set(TOKENS["lifecycle_status"])
    )


def test_an_approval_request_has_the_21_fields_of_the_source() -> None:
    fields = ApprovalRequest.model_fields
    assert sorted(fields) == sorted(TOKENS["request_fields"])
    assert len(fields) == 21
    assert [name for name, field in fields.items() if not field.is_required()] == TOKENS["request_optional"]


def test_the_source_shapes_are_tagged_and_spell_what_is_absent_as_null() -> None:
    decisions = fixture("contracts/source_decision.json")["good"]
    records = fixture("contracts/source_approval_record.json")["good"]
    assert {good["value"]["decision"] for good in decisions} == set(TOKENS["decision_tags"])
    assert {good["value"]["record_type"] for good in records} == set(TOKENS["record_tags"])
    nobody = {"actor_ref": None, "decision": "denied", "reason_code": "approval.denied"}
    assert write(SourceDenial(decision="denied", reason_code="approval.denied")) == nobody
    assert write(read_contract("source_decision", nobody)) == nobody
    del nobody["actor_ref"]
    assert read_contract("source_decision", nobody) == SourceDenial(
        decision="denied", reason_code="approval.denied"
    )
    dana = SourceRef(id="user.dana", kind="user", privacy="internal", trust="trusted")
    approval = SourceApproval(actor_ref=dana, decision="approved_for_session")
    assert read_contract("source_decision", write(approval)) == approval
