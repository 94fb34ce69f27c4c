"""The core's journal as Python drives it: what a command writes, what it refuses, time travel, proof."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests import journal_desk as demo

from holdfast import CommandError, RecordError, VerifyError, _core


def played() -> demo.World:
    return demo.play(lambda _: None)


def kinds(world: demo.World) -> list[str]:
    return [json.loads(text)["kind"] for text in world.journal.records()]


def test_a_run_that_is_killed_waits_and_goes_on_is_told_whole_by_its_journal() -> None:
    world = played()
    assert kinds(world) == [
        "run.created",
        "step.created",
        "step.claimed",
        "state.patched",
        "lease.expired",
        "step.claimed",
        "step.waiting",
        "signal.received",
        "step.woken",
        "step.claimed",
        "state.patched",
        "step.completed",
        "run.finished",
    ]
    state: Any = world.journal.state()
    assert (state["status"], state["state"], state["state_version"]) == (
        "completed",
        {"cents": 1999, "done": True, "order": "42"},
        2,
    )


def test_any_point_of_the_past_can_be_visited() -> None:
    world = played()
    told: list[Any] = [world.journal.state(seq) for seq in range(1, 14)]
    assert [state["status"] for state in told] == [
        *["pending"] * 2,
        *["running"] * 4,
        *["waiting"] * 2,
        *["running"] * 4,
        "completed",
    ]
    assert [state["state_version"] for state in told] == [0, 0, 0, *[1] * 7, 2, 2, 2]
    assert told[-1] == world.journal.state()


def test_a_refused_command_has_a_code_and_changes_nothing() -> None:
    world = played()
    before = (world.journal.records(), world.journal.state())
    rows: list[tuple[str, dict[str, Any], str]] = [
        ("recover", {"step": demo.STEP}, "run_ended"),
        ("pause", {}, "run_ended"),
        ("retry_run", {}, "not_failed"),
        ("complete", {"claim": {"step": demo.STEP, "fence": [1, 1]}}, "stale_fence"),
        (
            "append",
            {"entries": [{"kind": "run.finished", "body": {}, "privacy": "internal"}]},
            "kind_reserved",
        ),
    ]
    for command, arguments, code in rows:
        with pytest.raises(CommandError) as refused:
            world.ask(demo.DANA, command, **arguments)
        assert refused.value.code == code
        assert refused.value.fix
    assert (world.journal.records(), world.journal.state()) == before


def test_a_request_that_is_none_is_refused_before_anything_is_decided() -> None:
    world = played()
    rows: list[tuple[str, dict[str, Any], str]] = [
        ("teleport", {}, "unknown_token"),
        ("recover", {}, "missing_field"),
        ("recover", {"step": "step_42"}, "bad_value"),
        ("recover", {"step": demo.STEP, "now": 1}, "unknown_field"),
        ("cancel", {"reason": {"privacy": "hidden", "value": 1}}, "unknown_token"),
    ]
    for command, arguments, code in rows:
        with pytest.raises(RecordError) as refused:
            world.ask(demo.DANA, command, **arguments)
        assert refused.value.code == code, command
    with pytest.raises(RecordError, match="bad_id"):
        _core.Journal("nowhere")


def test_the_same_requests_at_the_same_times_make_the_same_bytes() -> None:
    assert played().journal.records() == played().journal.records()


def test_users_values_stand_beside_the_records_and_never_in_them() -> None:
    world = played()
    records = b"".join(world.journal.records())
    for secret in (b"parcel", b"1999", b"re_7"):
        assert secret not in records
    values = [opening["value"] for opening in world.journal.openings().values()]
    assert demo.TICKET in values
    assert {"receipt": "re_7"} in values


def test_a_kept_head_shows_a_missing_end_and_without_one_nothing_can() -> None:
    world = played()
    records, openings = world.journal.records(), world.journal.openings()
    seq, head = _core.run_verify(demo.STORE, demo.RUN, records, openings)
    assert seq == 13
    assert _core.run_verify(demo.STORE, demo.RUN, records[:9], openings)[0] == 9
    with pytest.raises(VerifyError) as found:
        _core.run_verify(demo.STORE, demo.RUN, records[:9], openings, head)
    assert (found.value.code, found.value.seq, found.value.stream) == ("head_mismatch", 10, demo.RUN)
    assert _core.run_verify(demo.STORE, demo.RUN, records, {}, head) == (13, head)


def test_every_forgery_of_a_run_is_found_and_named() -> None:
    world = played()
    records, openings = world.journal.records(), world.journal.openings()
    _, head = _core.run_verify(demo.STORE, demo.RUN, records, openings)
    found = []
    for told, forged, contents in demo.forgeries(records, openings):
        with pytest.raises(VerifyError) as caught:
            _core.run_verify(demo.STORE, demo.RUN, forged, contents, head)
        found.append(f"{told}: {caught.value.code} at record {caught.value.seq}")
    assert found == [
        "one byte of record 3 changed: chain_broken at record 4",
        "record 5 removed: record_missing at record 5",
        "records 6 and 7 swapped: record_missing at record 6",
        "the end cut off: head_mismatch at record 10",
        "another amount put beside record 4: content_forged at record 4",
    ]
