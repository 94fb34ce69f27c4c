"""Review: every check was seen to fail, by a run that was made for it, and to pass; where the runtime would
not let it come to that, the journal is forged.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from tests.evidence_desk import STORIES, Desk, play

import holdfast as hf  # noqa: TC001 (annotations of agents are read when they are registered)
from holdfast.evidence import Check, Journal, Severity, review

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture
def desk() -> Iterator[Desk]:
    desk = Desk()
    yield desk
    desk.close()


def forged(journal: Journal, desk: Desk, change: Callable[[list[dict[str, Any]]], None]) -> Journal:
    """The same journal with other records, as somebody would hand it in."""
    records = [json.loads(fact.text) for fact in journal]
    contents: dict[str, Any] = {}
    for record in desk.rt.store.read(journal.run):
        contents |= record._kept.openings
    change(records)
    return Journal.from_plain(journal.run, [json.dumps(one).encode() for one in records], contents)


def kind(records: list[dict[str, Any]], wanted: str) -> dict[str, Any]:
    return next(record for record in records if record["kind"] == wanted)


MADE: dict[Check, tuple[str, Any]] = {
    Check.OPEN_APPROVALS: ("waiting", None),
    Check.IN_DOUBT: ("doubted", None),
    Check.UNLEDGERED: ("plain", "no_permit"),
    Check.UNGRANTED: ("approved", "no_grant"),
    Check.DENIED_RAN: ("plain", "denied"),
    Check.SEQ_GAPS: ("plain", "gap"),
    Check.BUDGET_OVERRUN: ("made", "small_budget"),
    Check.COST_CAP: ("made", None),
    Check.LOST_CONTENT: ("plain", "lost"),
    Check.FAILED_STEPS: ("failed", None),
    Check.NEWER_FORMAT: ("plain", "newer"),
    Check.ABANDONED_CALLS: ("diverged", None),
    Check.ACCEPTED_DIVERGENCES: ("diverged", None),
    Check.ERASED_CONTENT: ("erased", None),
    Check.UNFINISHED: ("paused", None),
    Check.UNSEALED: ("plain", None),
}


def no_permit(records: list[dict[str, Any]]) -> None:
    sent = [record for record in records if record["kind"] == "effect.started"][-1]
    sent["kind"], sent["body"] = "note.logged", {"level": "info", "text": sent["body"]["arguments"]}
    del sent["call"]


def no_grant(records: list[dict[str, Any]]) -> None:
    del kind(records, "effect.started")["body"]["grant"]


def denied(records: list[dict[str, Any]]) -> None:
    kind(records, "policy.decided")["body"]["decision"] = "deny"


def gap(records: list[dict[str, Any]]) -> None:
    del records[5]


def small_budget(records: list[dict[str, Any]]) -> None:
    kind(records, "run.created")["body"]["budget"]["usd_micros"] = 1


def lost(records: list[dict[str, Any]]) -> None:
    kind(records, "effect.settled")["body"]["result"]["commit"] = "sha256:" + 64 * "0"


def newer(records: list[dict[str, Any]]) -> None:
    kind(records, "run.finished")["v"] = 2


def test_there_is_a_run_for_every_check() -> None:
    assert MADE.keys() == set(Check)


@pytest.mark.parametrize("check", list(Check))
def test_a_check_fails_for_the_run_that_was_made_for_it(desk: Desk, check: Check) -> None:
    name, forgery = MADE[check]
    journal = desk.rt.evidence.journal(STORIES[name](desk))
    if forgery is not None:
        journal = forged(journal, desk, globals()[forgery])
    found = desk.rt.evidence.review(journal, max_usd=0.5).of(check)
    assert not found.passed
    assert found.seqs
    assert found.details
    assert all(seq in [fact.seq for fact in journal] for seq in found.seqs)


@pytest.mark.parametrize("check", [check for check in Check if MADE[check][1] is not None])
def test_and_passes_for_the_same_run_unforged(desk: Desk, check: Check) -> None:
    run = STORIES[MADE[check][0]](desk)
    assert desk.rt.evidence.review(run).of(check).passed


CLEAN = {
    "plain",
    "fork_served",
    "approved",
    "resolved",
    "no_effect",
    "tried_again",
    "timed",
    "signalled",
    "together",
    "keyed",
}
BLOCKED = {"waiting", "doubted", "failed", "fork_refused", "paused"}


@pytest.mark.parametrize("name", sorted(CLEAN | BLOCKED))
def test_a_run_is_blocked_only_for_a_reason(name: str) -> None:
    desk, run = play(name)
    told = desk.rt.evidence.review(run)
    assert told.ok is (name in CLEAN), told.failed
    if name in CLEAN:
        assert [finding.check for finding in told.failed] == [Check.UNSEALED]
        assert told.failed[0].severity is Severity.WARNING
    desk.close()


def test_a_risky_write_that_a_rule_allowed_is_told_with_the_rule() -> None:
    rules = '[[rule]]\nname = "small wires are fine"\ntool = "wire"\ndecide = "allow"\n'
    desk = Desk(policy=rules)

    async def payer(ctx: hf.Context) -> object:
        return await ctx.call("wire", cents=5)

    found = desk.rt.evidence.review(desk.run(payer)).of(Check.UNGRANTED)
    assert found.passed
    assert "small wires are fine" in found.details[0]
    desk.close()


def test_the_ledger_cannot_be_left_out(desk: Desk) -> None:
    """Records of effects without the calls that they belong to are no clean run."""
    journal = desk.rt.evidence.journal(STORIES["plain"](desk))

    def no_calls(records: list[dict[str, Any]]) -> None:
        records[:] = [record for record in records if record["kind"] != "call.opened"]
        for seq, record in enumerate(records, 1):
            record["seq"] = seq

    told = desk.rt.evidence.review(forged(journal, desk, no_calls))
    assert not told.of(Check.UNLEDGERED).passed


def test_a_cap_on_costs_is_a_blocker_above_it_only(desk: Desk) -> None:
    run = STORIES["made"](desk)
    for most, fine in ((None, True), (0.75, True), (0.74, False)):
        assert desk.rt.evidence.review(run, max_usd=most).of(Check.COST_CAP).passed is fine


def test_a_seal_is_asked_for(desk: Desk) -> None:
    journal = desk.rt.evidence.journal(STORIES["plain"](desk))
    assert review(journal, sealed=True).failed == ()
