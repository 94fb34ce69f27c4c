r"""A run as an in-toto Statement (v1): what somebody can sign and a policy engine can read.

The subject is the run's journal: its digest is the hash of the last record, which every record before it
leads to. That is ``sha256("holdfast/record/v1\n" + text)`` of that record, see docs/FORMAT.md. The predicate
says who did what, under which package and policies, what it came to, and who approved: words, ids, digests
and counts, no user's value. It is made of integers, strings, booleans, lists and objects only.

The statement is a plain dict. To sign it, put ``canonical.dumps(statement)`` into an envelope of the type
:data:`PAYLOAD_TYPE`.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from holdfast.errors import VerifyError
from holdfast.exports.cut import cut
from holdfast.exports.story import Story, walk
from holdfast.gateway.outcomes import fix

if TYPE_CHECKING:
    from holdfast.exports.cut import Cut, Source
    from holdfast.exports.story import Approval
    from holdfast.runtime import Run

TYPE: Final = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE: Final = "urn:holdfast:attestation:run:v1"
PAYLOAD_TYPE: Final = "application/vnd.in-toto+json"
Json = dict[str, Any]


def statement(store: Source, run: Run | str) -> Json:
    """What can be said of a run, after its journal was verified.

    Raises:
        VerifyError: the journal is not what was written; nothing is said about such a run.
        CommandError: ``no_such_run``.
    """
    where = cut(store, run, only_runs=True)
    report = where.store.verify(where.stream)
    bad = report.first_bad
    if bad is not None:
        told = f"the run does not verify: {bad.what}"
        raise VerifyError(told, code=bad.code, fix=fix(bad.code), stream=where.stream, seq=bad.seq or 0)
    story, counts = Story(where), Counter[tuple[str, str]]()
    doubts = Counter[str]()
    for _, call in walk(where, story):
        if call is not None:
            counts[call.effect, call.outcome] += 1
            doubts.update("open" if doubt.resolution is None else "resolved" for doubt in call.doubts)
    predicate = _predicate(where, story)
    predicate["calls"] = _nested(counts)
    predicate["doubts"] = {"open": doubts["open"], "resolved": doubts["resolved"]}
    predicate["verified"] = {"guarantee": report.guarantee, "records": where.last}
    digest = where.head.removeprefix("sha256:")
    return {
        "_type": TYPE,
        "subject": [{"name": where.stream, "digest": {"sha256": digest}}],
        "predicateType": PREDICATE_TYPE,
        "predicate": predicate,
    }


def _predicate(where: Cut, story: Story) -> Json:
    cost = story.cost
    told: Json = {
        "run": where.stream,
        "store": where.store.id,
        "agent": story.agent,
        "role": story.role,
        "mode": story.mode,
        "by": story.by,
        "session": story.session,
        "parent": story.parent,
        "fork": story.fork,
        "created_at": story.created_at,
        "ended_at": None if story.end is None else story.end.at,
        "outcome": _outcome(story),
        "package": story.package,
        "packages": story.packages,
        "policies": sorted(story.policies),
        "approvals": [_approval(asked) for asked in story.approvals.values()],
        "cost": {"tokens": cost.tokens, "usd_micros": cost.usd_micros},
        "erased": story.erased,
    }
    return _given(told)


def _outcome(story: Story) -> Json:
    if story.end is None:
        return {"status": "open"}
    body, failure = story.end.body, story.failure or {}
    told = {"status": body["status"], "reason": body["reason"]}
    told |= {"result": body["result"]["commit"]} if "result" in body else {}
    return told | {name: failure[name] for name in ("error", "code", "source") if name in failure}


def _approval(asked: Approval) -> Json:
    return _given(
        {
            "approval": asked.id,
            "call": asked.call,
            "tool": asked.tool,
            "status": asked.status,
            "requested_at": asked.requested_at,
            "decided_at": asked.decided_at,
            "by": asked.by,
            "edited_by": asked.edited_by,
            "reason_code": asked.reason_code,
            "digest": asked.digest,
        }
    )


def _given(told: Json) -> Json:
    return {name: value for name, value in told.items() if value is not None}


def _nested(counts: Counter[tuple[str, str]]) -> dict[str, dict[str, int]]:
    """Calls by effect and outcome."""
    nested: dict[str, dict[str, int]] = {}
    for (effect, outcome), count in sorted(counts.items()):
        nested.setdefault(effect, {})[outcome] = count
    return nested
