"""Records in both languages: every kind has fixtures made by an independent encoder; each language reads
them, writes the same bytes, gets the same hash, and refuses the same faults with the same code.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any, get_args

import pytest
from pydantic import ValidationError
from pydantic_core.core_schema import ErrorType
from tests.support import REMAKE, ROOT, fixture, names, refusal

from holdfast import _core, canonical
from holdfast.contracts import Constraint, HookStop, HookStopResponse
from holdfast.records import (
    BODIES,
    EnvelopeReceived,
    Extension,
    Record,
    RunPaused,
    StateConflict,
    read_body,
    read_record,
    write,
)
from holdfast.records.base import RECORD_BYTES_MAX, Json
from holdfast.records.read import CODES

KINDS = names("records")


def full(kind: str) -> dict[str, Any]:
    record: dict[str, Any] = fixture(f"records/{kind}.json")["good"][0]["record"]
    return record


def test_every_kind_has_fixtures_and_every_fixture_a_kind() -> None:
    assert set(KINDS) == (set(BODIES) - {"x.*"}) | {"x.acme.shipped"}, REMAKE


def test_the_fixtures_are_what_the_independent_script_makes() -> None:
    command = [sys.executable, "-m", "fixtures.make", "--check"]
    made = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (made.returncode, made.stdout, made.stderr) == (0, "", ""), REMAKE


@pytest.mark.parametrize("kind", KINDS)
def test_a_good_record_is_read_written_and_hashed_the_same_in_both_languages(kind: str) -> None:
    goods = fixture(f"records/{kind}.json")["good"]
    assert [good["name"] for good in goods][:2] == ["full", "least"]
    for good in goods:
        text = good["bytes"].encode()
        record = read_record(text)
        assert (record.kind, write(record)) == (kind, good["record"])
        assert (record.bytes(), record.hash()) == (text, good["hash"])
        assert _core.record_check(text) == good["hash"]
        assert read_record(good["bytes"]) == record
        assert type(record.body) is BODIES["x.*" if kind.startswith("x.") else kind]
        assert _core.body_check(kind, good["record"]["body"]) == canonical.dumps(write(record.body))


@pytest.mark.parametrize("kind", KINDS)
def test_a_bad_record_is_refused_with_the_same_code_at_the_same_place(kind: str) -> None:
    found = fixture(f"records/{kind}.json")
    bodies = [good["record"]["body"] for good in found["good"]]
    sorts = {
        "a_missing_field",
        "a_wrong_type",
        "an_unknown_token",
        "an_unknown_field",
        "a_null_for_what_is_absent",
        "a_list_for_an_object",
        "a_token_that_is_an_object",
        "a_body_that_is_a_list",
        "a_newer_version",
    }
    assert sorts <= {bad["name"] for bad in found["refused"]}
    for bad in found["refused"]:
        text = canonical.dumps(bad["record"])
        here, there = refusal(read_record, text), refusal(_core.record_check, text)
        assert (here[0], here) == (bad["code"], there), bad["name"]
        body = bad["record"].get("body")
        if body is not None and body not in bodies:
            here, there = refusal(read_body, kind, body), refusal(_core.body_check, kind, body)
            assert (here[0], here) == (bad["code"], there), bad["name"]


def test_what_is_absent_is_omitted_and_null_in_free_maps_is_kept() -> None:
    assert write(RunPaused(reason=None)) == write(RunPaused()) == {}
    assert refusal(read_body, "run.paused", {"reason": None}) == ("wrong_type", "$.reason")
    data: dict[str, Json] = {"note": None, "list": [None], "map": {"a": None}}
    assert write(Extension(data=data)) == {"data": data}
    assert read_body("x.acme.seen", {"data": data}) == Extension(data=data)
    constraint = Constraint(argument="cents", comparison="equals", value=None)
    assert write(constraint) == {"argument": "cents", "comparison": "equals", "value": None}
    stop = HookStopResponse(payload=HookStop(code="no", extras={"a": None}), type="deny")
    assert write(stop) == {"payload": {"code": "no", "extras": {"a": None}}, "type": "deny"}


def test_python_names_are_for_code_and_wire_names_for_the_wire() -> None:
    made = EnvelopeReceived(envelope=_core.id_new("env", 1, bytes(10)), from_="store", kind="signal")
    assert write(made)["from"] == "store"
    assert read_body("envelope.received", write(made)) == made
    twisted = {("from_" if key == "from" else key): value for key, value in write(made).items()}
    assert refusal(read_body, "envelope.received", twisted) == ("unknown_field", "$.from_")
    assert refusal(_core.body_check, "envelope.received", twisted) == ("unknown_field", "$.from_")


def test_a_fact_is_frozen_closed_and_strict() -> None:
    conflict = StateConflict(actual=4, expected=3)
    with pytest.raises(ValidationError, match="frozen"):
        conflict.actual = 5  # type: ignore[misc]
    for fields in ({"actual": 4}, {"actual": "4", "expected": 3}, {"actual": 4, "expected": 3, "more": 1}):
        with pytest.raises(ValidationError):
            StateConflict.model_validate(fields)


def test_a_number_is_read_by_its_value_and_not_by_its_spelling() -> None:
    for spelled in (4, 4.0):
        assert read_body("state.conflict", {"actual": spelled, "expected": 3}) == StateConflict(
            actual=4, expected=3
        )
        assert (
            _core.body_check("state.conflict", {"actual": spelled, "expected": 3})
            == b'{"actual":4,"expected":3}'
        )


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("call.opened", {"zz": 1, "arguments": 7}),
        ("call.opened", {"zz": 1}),
        ("step.waiting", {"waits": [{"on": "timer"}, {"on": 5, "call": "call_1"}, {}]}),
        ("step.failed", {"failure": {"error": "", "source": "sky"}}),
        ("run.created", {}),
    ],
)
def test_of_several_faults_both_languages_tell_the_same_one(kind: str, body: object) -> None:
    assert refusal(read_body, kind, body) == refusal(_core.body_check, kind, body)


def test_a_record_stands_in_its_place() -> None:
    text = fixture("records/store.created.json")["good"][0]["bytes"]
    record = read_record(text)
    fields = {name: getattr(record, name) for name in Record.model_fields}
    assert Record(**fields) == record
    for wrong in (
        {"kind": "note.logged"},
        {"body": RunPaused()},
        {"seq": 0},
        {"stream": full("run.paused")["stream"]},
    ):
        with pytest.raises(ValidationError):
            Record(**(fields | wrong))


def test_text_that_is_not_canonical_too_large_or_not_json_is_refused() -> None:
    record = full("note.logged")
    loose = json.dumps(record).encode()
    large = canonical.dumps(full("x.acme.shipped") | {"body": {"data": {"a": "x" * RECORD_BYTES_MAX}}})
    for text, code in ((loose, "not_canonical"), (large, "record_too_large"), (b"{", "bad_json")):
        assert refusal(read_record, text) == refusal(_core.record_check, text)
        assert refusal(read_record, text)[0] == code


def test_a_newer_record_schema_is_told_as_such() -> None:
    for newer in ({"v": 2}, {"v": 2, "kind": "note.sung"}, {"v": 2, "body": {"verse": 1}}):
        text = canonical.dumps(full("note.logged") | newer)
        assert refusal(read_record, text) == refusal(_core.record_check, text) == ("newer_format", "$.v")
    zero = canonical.dumps(full("note.logged") | {"v": 2, "seq": 0})
    loose = json.dumps(full("note.logged") | {"v": 2}).encode()
    for text, expected in ((zero, ("bad_value", "$.seq")), (loose, ("not_canonical", "$"))):
        assert refusal(read_record, text) == refusal(_core.record_check, text) == expected


def test_the_table_of_codes_knows_only_error_types_that_exist_and_codes_of_the_core() -> None:
    ours = {"bad_length", "beside", "no_content"}
    assert set(CODES) - ours <= set(get_args(ErrorType))
    assert set(CODES.values()) <= {code for code, _ in _core.error_codes()}


@pytest.mark.parametrize(
    "module", ["holdfast.contracts", "holdfast.contracts.policy", "holdfast.records.govern"]
)
def test_either_package_can_be_imported_first(module: str) -> None:
    subprocess.run([sys.executable, "-W", "error", "-c", f"import {module}"], check=True)
