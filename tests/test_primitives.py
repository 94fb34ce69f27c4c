"""The primitives as somebody uses them who wants nothing else of Holdfast."""

from __future__ import annotations

import hashlib
import hmac
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support import fixture, refusal

from holdfast import primitives as p
from holdfast.errors import RecordError, StateError, VerifyError

STORE = "sto_01ka4zc83ve008000000000000"


def chain(stream: str, count: int) -> list[bytes]:
    """The texts of a stream of notes, linked with hashlib."""
    note = fixture("records/note.logged.json")["good"][1]["record"]
    prev = "sha256:" + hashlib.sha256(f"holdfast/stream/v1\n{STORE}\n{stream}".encode()).hexdigest()
    texts = []
    for seq in range(1, count + 1):
        record: dict[str, Any] = note | {"prev": prev, "seq": seq, "stream": stream}
        texts.append(p.dumps(record))
        prev = "sha256:" + hashlib.sha256(b"holdfast/record/v1\n" + texts[-1]).hexdigest()
    return texts


def test_a_chain_verifies_and_its_first_bad_record_is_named() -> None:
    stream = p.new_id("run")
    texts = chain(stream, 5)
    assert p.verify_chain(STORE, stream, iter(texts)) == (5, p.check_record(texts[-1]))
    assert p.verify_chain(STORE, stream, texts[:2]).seq == 2
    other = p.new_id("run")
    stories = {
        "chain_broken": (1, p.new_id("sto"), texts),
        "record_missing": (3, STORE, texts[:2] + texts[3:]),
        "record_moved": (4, STORE, texts[:3] + chain(other, 1)),
        "record_unreadable": (2, STORE, [texts[0], texts[1].replace(b":", b": ", 1)]),
    }
    for code, (seq, store, bad) in stories.items():
        with pytest.raises(VerifyError) as raised:
            p.verify_chain(store, stream, bad)
        assert (raised.value.code, raised.value.seq, raised.value.stream) == (code, seq, stream)
    altered = texts[1].replace(b'"at":17', b'"at":18')
    with pytest.raises(VerifyError) as raised:
        p.verify_chain(STORE, stream, [texts[0], altered, *texts[2:]])
    assert (raised.value.code, raised.value.seq) == ("chain_broken", 3)


def test_ids_are_new_ordered_in_time_and_have_one_spelling() -> None:
    before = p.new_id("call", at_ms=time.time_ns() // 1_000_000 - 1)
    made = [p.new_id("call") for _ in range(100)]
    assert len(set(made)) == 100
    assert all(before < one and p.check_id(one) == "call" for one in made)
    for bad in (made[0].upper(), made[0][5:], "call_" + "0" * 26, "order_42", ""):
        assert refusal(p.check_id, bad)[0] == "bad_id"
    with pytest.raises(RecordError, match="bad_id"):
        p.new_id("order")


def test_the_hook_matrix_is_typed_and_complete() -> None:
    matrix = p.hook_matrix()
    assert len(matrix) == 22
    assert all("observe" in row.classes for row in matrix.values())
    critical = sorted(point for point, row in matrix.items() if row.security_critical)
    assert critical == [
        "before_approval_request",
        "before_isolation_process_start",
        "before_run_complete",
        "before_subagent_start",
        "before_tool_call",
    ]


def test_checks_give_canonical_bytes_or_a_code_and_a_path() -> None:
    good = fixture("records/call.opened.json")["good"][0]
    assert p.check_record(good["bytes"].encode()) == good["hash"]
    assert p.check_body("call.opened", good["record"]["body"]) == p.dumps(good["record"]["body"])
    assert p.check_contract("budget", {"on_exceeded": "ask"}) == b'{"on_exceeded":"ask"}'
    assert refusal(p.check_contract, "budget", {"on_exceeded": "maybe"}) == ("unknown_token", "$.on_exceeded")
    assert refusal(p.check_body, "call.opened", {}) == ("missing_field", "$")
    invalid = fixture("contracts/hook_spec.json")["invalid"][0]
    assert refusal(p.check_hook_spec, invalid["value"])[0] == invalid["code"]


STATES = st.recursive(
    st.booleans() | st.integers(-(2**53) + 1, 2**53 - 1) | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text("abc", max_size=2), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(
    before=st.dictionaries(st.text("abc", max_size=2), STATES), after=st.dictionaries(st.text("abc"), STATES)
)
def test_the_patch_between_two_states_leads_from_one_to_the_other(before: Any, after: Any) -> None:
    assert p.merge_patch(before, p.merge_diff(before, after)) == after


def test_a_state_with_null_has_no_patch() -> None:
    with pytest.raises(StateError) as raised:
        p.merge_diff({}, {"note": None})
    assert raised.value.code == "state_null"


def test_a_sealed_value_opens_with_its_salt_and_a_changed_one_does_not() -> None:
    sealed = p.seal({"cents": 1999}, privacy="sensitive")
    commit = str(sealed.content["commit"])
    p.check_opening(commit, sealed.opening)
    assert p.seal({"cents": 1999}).content["commit"] != commit, "every sealing has its own salt"
    salt = bytes.fromhex(str(sealed.opening["salt"]))
    expected = hashlib.sha256(b"holdfast/content/v1\n" + salt + b'{"cents":1999}').hexdigest()
    assert commit == f"sha256:{expected}"
    assert refusal(p.check_opening, commit, {**sealed.opening, "value": {"cents": 1}})[0] == "content_forged"
    assert refusal(p.check_opening, commit, {"value": 1})[0] == "missing_field"
    assert refusal(lambda: p.seal(1, privacy="hidden"))[0] == "unknown_token"


def test_a_call_digest_is_keyed_by_the_runs_seed() -> None:
    seed = bytes(range(32))
    key = hmac.digest(seed, b"holdfast/call-key/v1\n", "sha256")
    identity = b'{"arguments":{"order":"42"},"kind":"tool","name":"refund"}'
    expected = hmac.new(key, b"holdfast/call/v1\n" + identity, "sha256").hexdigest()
    assert p.call_digest(seed.hex(), "tool", "refund", {"order": "42"}) == f"hmac:{expected}"
    assert refusal(p.call_digest, "00", "tool", "refund", {})[0] == "bad_value"
