"""Time travel: where a run stood after each of its records is what the core's own fold says, and the last of
them is the final state.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from fixtures import make_journal
from tests.evidence_desk import STORIES, Desk, play

import holdfast as hf
from holdfast import _core, evidence

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from holdfast.evidence import Fold


def told(fold: Fold) -> dict[str, Any]:
    """What both folds say, in the core's words."""
    return {
        "status": fold.status,
        "state": fold.state,
        "state_version": fold.state_version,
        "steps": {
            name: (step["status"], step["attempt"], step["waits"] if step["status"] == "waiting" else [])
            for name, step in fold.steps.items()
        },
        "calls": {
            name: (
                call.phase,
                call.outcome,
                call.dispatch,
                call.permit_key,
                call.opened,
                call.doubt,
                call.settled,
            )
            for name, call in fold.calls.items()
        },
        "approvals": {name: request["state"] for name, request in fold.approvals.items()},
        "used": {name: amount for name, amount in fold.used.items() if amount},
        "children": fold.children,
    }


def known(core: dict[str, Any]) -> dict[str, Any]:
    """The same of the core's fold."""
    return {
        "status": core["status"],
        "state": core.get("state"),
        "state_version": core["state_version"],
        "steps": {
            name: (step["status"], step["attempt"], step["waits"] if step["status"] == "waiting" else [])
            for name, step in core["steps"].items()
        },
        "calls": {
            name: (
                call["phase"],
                call.get("outcome"),
                call["dispatch"],
                call.get("permit_key"),
                call["opened"],
                call.get("doubt"),
                call.get("result_at"),
            )
            for name, call in core["calls"].items()
        },
        "approvals": {name: request["state"] for name, request in core["approvals"].items()},
        "used": {name: amount for name, amount in core["spending"]["used"].items() if amount},
        "children": {name: child.get("ended") for name, child in core["children"].items()},
    }


@pytest.mark.parametrize("name", STORIES)
def test_every_moment_is_what_the_core_says(name: str) -> None:
    desk, run = play(name)
    runs = [run.id, *(row["id"] for row in desk.rt.store.sql("SELECT id FROM runs WHERE id != ?", [run.id]))]
    for one in runs:
        journal = desk.rt.evidence.journal(one)
        for fact in journal:
            core = desk.rt.store.state(one, at=fact.seq)
            assert told(journal.fold(fact.seq)) == known(core), (name, fact.seq, fact.kind)
    desk.close()


@pytest.mark.parametrize("name", ["clean", "torn"])
def test_runs_of_a_store_that_was_written_once_are_travelled_through(name: str, tmp_path: Path) -> None:
    with hf.open(make_journal.unpack(name, tmp_path / name)) as store:
        rt = hf.Runtime(store)
        runs = rt.runs.list()
        assert runs
        for run in runs:
            journal = rt.evidence.journal(run.id)
            for fact in journal:
                assert told(journal.fold(fact.seq)) == known(store.state(run.id, at=fact.seq))
            causes = {one.cause for one in rt.evidence.replay_safety(journal).causes}
            assert evidence.Cause.ATTACHED in causes  # nobody wrote them with agents


@pytest.mark.parametrize("name", STORIES)
def test_travel_to_the_end_is_the_final_state(name: str) -> None:
    desk, run = play(name)
    moment, final = desk.rt.evidence.at(run), desk.rt.store.state(run.id)
    assert (moment.state, moment.status) == (final.get("state"), final["status"])
    assert moment.used == final["spending"]["used"]
    if moment.used and not final["children"]:
        for account in ("tokens", "usd_micros"):
            assert moment.costs.get(account, 0) == moment.used.get(account, 0)
    state: Any = {}
    inherited = desk.rt.evidence.journal(run).inherited
    if not inherited and moment.state is not None:
        for frame in desk.rt.evidence.frames(run):
            assert frame.patch is not None
            state = _core.merge_patch(state, frame.patch)
        assert state == moment.state
    desk.close()


@pytest.fixture
def desk() -> Iterator[Desk]:
    desk = Desk()
    yield desk
    desk.close()


def test_a_moment_shows_what_was_open_then(desk: Desk) -> None:
    run = STORIES["approved"](desk)
    asked = next(f for f in desk.rt.evidence.journal(run) if f.kind == "approval.requested")
    then, now = desk.rt.evidence.at(run, asked.seq + 1), desk.rt.evidence.at(run)
    assert (then.status, then.state) == ("waiting", {})
    (request,) = then.approvals
    assert (request["tool"], request["arguments"], request["state"]) == ("wire", {"cents": 5}, "pending")
    assert [wait["on"] for wait in then.waits] == ["approval"]
    (entry,) = then.ledger
    assert (entry.name, entry.effect, entry.phase, entry.outcome, entry.permit_key) == (
        "wire",
        "write",
        "open",
        None,
        None,
    )
    assert (now.status, now.state, now.approvals, now.waits) == ("completed", {"paid": 5}, (), ())
    (entry,) = now.ledger
    assert (entry.phase, entry.outcome, entry.result) == ("settled", "succeeded", {"cents": 5})
    assert str(entry.permit_key).startswith("hf_")
    assert json.loads(json.dumps(now.as_dict()))["ledger"][0]["name"] == "wire"


def test_frames_say_what_each_changed(desk: Desk) -> None:
    run = STORIES["plain"](desk)
    frames = list(desk.rt.evidence.frames(run))
    assert [record for frame in frames for record in frame.records] == [
        record.kind for record in desk.rt.store.read(run.id)
    ]
    patches = [frame.patch for frame in frames if frame.patch]
    assert patches == [{"asked": {"what": "a letter"}}, {"asked": {"seen": True}}]
    changes = [(c.name, c.before, c.after) for frame in frames for c in frame.ledger]
    assert ("send", None, "started") in changes
    assert ("send", "started", "settled succeeded") in changes
    assert frames[-1].status == "completed"
    assert sum(frame.costs.get("tool_calls", 0) for frame in frames) == 2


def test_a_doubt_is_seen_where_it_was(desk: Desk) -> None:
    run = STORIES["resolved"](desk)
    journal = desk.rt.evidence.journal(run)
    doubted = next(fact.seq for fact in journal if fact.kind == "effect.doubted")
    assert [entry.name for entry in desk.rt.evidence.at(run, doubted).in_doubt] == ["fax"]
    assert desk.rt.evidence.at(run).in_doubt == ()


def test_what_is_not_there_is_said(desk: Desk) -> None:
    run = STORIES["plain"](desk)
    for seq in (0, 1000):
        with pytest.raises(hf.RecordError, match="has no record"):
            desk.rt.evidence.at(run, seq)
    with pytest.raises(hf.HoldfastError, match="bad_id"):
        desk.rt.evidence.at("store")
    with pytest.raises(hf.HoldfastError, match="no_such"):
        desk.rt.evidence.at("run_01m7mk77wceaxbrp2tzgn5qqfr")


def test_erased_contents_stand_as_words_and_the_state_is_not_known(desk: Desk) -> None:
    run = STORIES["erased"](desk)
    journal = desk.rt.evidence.journal(run)
    assert desk.rt.evidence.at(journal).state is None
    assert journal.facts[0].value["input"] == evidence.ERASED
    assert journal.facts[0].gone == ("input (erased)", "seed (erased)", "state (erased)")


def test_a_journal_from_plain_data_says_the_same(desk: Desk) -> None:
    run = STORIES["forked"](desk)
    cut = desk.rt.store.state(run.id)["base"]
    store, whole = desk.rt.store, desk.rt.evidence.journal(run)

    def plain(of: str, parent: evidence.Journal | None = None) -> evidence.Journal:
        contents: dict[str, Any] = {}
        texts: list[bytes] = []
        for record in store.read(of):
            texts.append(record.text)
            contents |= record._kept.openings
        return evidence.Journal.from_plain(of, texts, contents, parent=parent)

    parent = plain(whole.facts[0].body["parent"])
    again = plain(run.id, parent)
    assert told(again.fold()) == told(whole.fold())
    assert again.place(cut) == (parent.run, cut)
    assert again.place(cut + 1) == (run.id, 1)
    lost = evidence.Journal.from_plain(run.id, [fact.text for fact in whole], {}, parent=parent)
    assert lost.facts[0].gone == ("reason (lost)",)
    forged = {whole.facts[0].body["reason"]["commit"]: {"salt": "00" * 16, "value": 1}}
    assert evidence.Journal.from_plain(run.id, [whole.facts[0].text], forged).facts[0].gone == (
        "reason (lost)",
    )
