"""A run as one page that a person can read: no script, nothing from elsewhere, safe whatever tools returned.

The page is written for hostile contents. Its content security policy allows its own style sheet by hash and
nothing else; every text in it is escaped, characters that hide or turn the reading direction are shown as
their escapes, and long values are cut, which is said. It streams: the run is read twice, first for what the
top of the page says, then for the list of records. Tables of calls end after so many rows, which is said too.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from itertools import islice
from typing import IO, TYPE_CHECKING, Any

from holdfast.exports import page
from holdfast.exports.contents import CLASSES, LEAVES, Missing, privacy, value
from holdfast.exports.cut import Exported, cut
from holdfast.exports.files import opened
from holdfast.exports.page import code, shown, tag, text, when
from holdfast.exports.story import Story, walk
from holdfast.exports.style import POLICY, STYLE

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from holdfast.exports.calls import Call, Doubt
    from holdfast.exports.contents import Content
    from holdfast.exports.cut import Cut, Source
    from holdfast.exports.files import Out
    from holdfast.exports.story import Approval
    from holdfast.runtime import Run
    from holdfast.store import Record, Report, Store

ROWS_MAX = 2000
"""Calls that are drawn; more are counted, and those that went wrong are drawn all the same, up to as many."""
PREVIEW = 300
"""Characters of a value among others."""
RECORD = 2000
"""Characters of a value in the list of records, and of the run's own."""
GROUP = 500
"""Records in one fold of the list."""


def html(store: Source, run: Run | str, out: Out, *, content: Content = True) -> Exported:
    """Writes a page about a run.

    Args:
        store: a store or a runtime.
        run: a run, or its id.
        out: a path, or a file that is open for bytes.
        content: which of users' values are on it, see :mod:`holdfast.exports.contents`.
    """
    where = cut(store, run, only_runs=True)
    told = _Told(where, content)
    with opened(out) as file:
        for part in (*_top(told), *_middle(told)):
            file.write(part.encode())
        _records(file, where, content)
        file.write(b"</body></html>\n")
    return Exported(where.stream, where.last, where.head, where.last)


@dataclass
class _Told:
    """What the top of the page says."""

    where: Cut
    content: Content
    story: Story = field(init=False)
    report: Report = field(init=False)
    calls: list[Call] = field(default_factory=list)
    wrong: list[Call] = field(default_factory=list)
    """Those beyond the rows of the table that went wrong."""
    total: int = 0
    input: str | None = None
    strictest: int = 0
    """The strictest class of what the state was made from."""

    def __post_init__(self) -> None:
        look = page.looks(self.content, PREVIEW)
        self.story = Story(self.where, look)
        for record, call in walk(self.where, self.story):
            self.strictest = max(self.strictest, _strictness(self.where.store, record))
            if record.kind == "run.created":
                self.input = look(record, "input")
            if call is not None:
                self._keep(call)
        self.calls.sort(key=lambda call: call.opened_seq)
        self.report = self.where.store.verify(self.where.stream)

    def _keep(self, call: Call) -> None:
        self.total += 1
        if len(self.calls) < ROWS_MAX:
            self.calls.append(call)
        elif len(self.wrong) < ROWS_MAX and page.tone(call.outcome) == "bad":
            self.wrong.append(call)

    @property
    def listed(self) -> list[Call]:
        return [*self.calls, *self.wrong]

    @property
    def span(self) -> tuple[int, int]:
        return self.story.created_at, self.story.seen_at


# The top.


def _top(told: _Told) -> Iterator[str]:
    story, where = told.story, told.where
    name = f"{story.agent} {where.stream}"
    yield "<!doctype html>\n"
    yield '<html lang="en"><head><meta charset="utf-8">'
    yield f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1">'
    yield '<meta name="referrer" content="no-referrer"><meta name="robots" content="noindex">'
    yield f"<title>{text(name)}</title><style>{STYLE}</style></head>\n<body>\n"
    status = _status(told)
    yield f"<h1>{text(story.agent)} {tag(status)}</h1>\n<p>{code(where.stream)}</p>\n"
    yield _alarms(told)
    yield page.facts(_summary(told))


def _status(told: _Told) -> str:
    if told.story.end is not None:
        return told.story.status
    status = told.where.store.sql("SELECT status FROM runs WHERE id = ?", [told.where.stream])
    return str(status[0]["status"]) if status else "open"


def _alarms(told: _Told) -> str:
    story = told.story
    alarms = []
    if not told.report.ok:
        alarms.append(f"The journal does not verify: {text(told.report.first_bad)}")
    alarms += [
        f"{code(call.name)} is in doubt: nobody knows whether it happened"
        for call in told.listed
        if call.outcome == "in_doubt"
    ]
    alarms += [
        f"{code(asked.tool)} waits for approval since {when(asked.requested_at)}"
        for asked in story.approvals.values()
        if asked.status == "pending" and story.end is None
    ]
    listed = "".join(f"<li>{alarm}</li>" for alarm in alarms[:50])
    more = f"<p>and {len(alarms) - 50} more</p>" if len(alarms) > 50 else ""
    return f'<div class="alarm"><ul>{listed}</ul>{more}</div>\n' if alarms else ""


def _summary(told: _Told) -> Iterator[tuple[str, str | None]]:
    story, where, report = told.story, told.where, told.report
    end = story.end
    yield "role", text(story.role) if story.role != story.agent else None
    yield "mode", text(story.mode) if story.mode != "live" else None
    yield "begun", f"{when(story.created_at)} by {code(story.by)}"
    yield "ended", f"{when(end.at)} ({text(end.body['reason'])})" if end else None
    yield "lasted", page.lasted((end.at if end else story.seen_at) - story.created_at)
    if story.failure:
        yield "failure", code(" ".join(str(told) for told in story.failure.values() if isinstance(told, str)))
    cost = story.cost
    money = f"{cost.usd_micros / 1_000_000:.6f}".rstrip("0").rstrip(".")
    yield "cost", f"{money} USD, {cost.tokens:,} tokens" if cost.entries else "none recorded"
    yield "calls", f"{told.total:,}"
    verified = "verified" if report.ok else "not verified"
    guarantee = f"What this shows: {report.guarantee}." if report.ok else ""
    yield "journal", f"{tag(verified)} {where.last:,} records. {text(guarantee)}"
    yield "head", code(where.head)
    yield "session", code(story.session) if story.session else None
    yield "parent", code(story.parent) if story.parent else None
    yield "fork of", f"{code(story.fork['parent'])} at record {story.fork['at']}" if story.fork else None
    yield "labels", shown(story.labels) if story.labels else None
    yield "erased", f"{story.erased:,} contents" if story.erased else None
    yield "input", told.input
    if end is not None and "result" in end.body:
        yield "result", shown(value(end, end.body["result"], told.content, most=page.READ_MAX), RECORD)
    if end is not None and "message" in (story.failure or {}):
        message = end.body["failure"]["message"]
        yield "message", shown(value(end, message, told.content, most=page.READ_MAX), RECORD)


# The middle: what happened.


def _middle(told: _Told) -> Iterator[str]:
    yield "<h2>Timeline</h2>\n"
    yield from _timeline(told)
    yield from _table(
        "Approvals",
        ("tool", "asked", "decision", "by", "when", "reason"),
        [_asked(asked) for asked in list(told.story.approvals.values())[:ROWS_MAX]],
    )
    effects = [call for call in told.listed if call.dispatches and call.effect == "write"]
    yield from _table(
        "Effects",
        ("tool", "outcome", "key", "sent off", "external id", "took"),
        [_effect(call) for call in effects],
    )
    yield from _table(
        "Doubts",
        ("tool", "since", "cause", "resolution", "by", "when", "error"),
        [
            [*_cells(call.name, when(doubt.at), doubt.cause), *_resolved(doubt)]
            for call in told.listed
            for doubt in call.doubts
        ],
    )
    yield from _table(
        "Costs",
        ("model", "entries", "input tokens", "output tokens", "tokens", "USD"),
        [
            _cells(model or "-", c.entries, c.input_tokens, c.output_tokens, c.tokens, c.usd_micros / 1e6)
            for model, c in sorted(told.story.costs.items())
        ],
    )
    yield f"<h2>State at the end</h2>\n{_state(told)}\n"
    package = [(part, code(digest)) for part, digest in sorted(told.story.package.items())]
    policies = [("policy in force", code(policy)) for policy in sorted(told.story.policies)]
    yield f"<h2>Package</h2>\n{page.facts([*package, *policies])}\n"


def _timeline(told: _Told) -> Iterator[str]:
    yield page.head(("what", "how it ended", "verdicts", "after", "took", "when", "arguments and result"))
    story, whole = told.story, told.span
    by_attempt: dict[tuple[str, int], list[Call]] = {}
    for call in told.listed:
        by_attempt.setdefault((call.step, call.attempt), []).append(call)
    for key in sorted({*story.attempts, *by_attempt}, key=lambda key: (_start(told, key, by_attempt), key)):
        attempt = story.attempts.get(key)
        if attempt is not None:
            took = page.lasted(attempt.seen_at - attempt.started_at)
            drawn = page.bar(attempt.started_at, attempt.seen_at, whole, attempt.outcome)
            name = f"step {text(attempt.name)}, attempt {attempt.n}"
            workers = f'<span class="dim">{text(", ".join(dict.fromkeys(attempt.workers)))}</span>'
            after = page.lasted(attempt.started_at - whole[0])
            yield page.row((name, tag(attempt.outcome), "", after, took, drawn, workers), "step")
        yield from (page.row(_call(call, whole), "call") for call in by_attempt.get(key, []))
    yield page.TAIL
    if told.total > len(told.listed):
        more = told.total - len(told.listed)
        yield f"<p>{more:,} calls are not drawn here; the records below have them.</p>\n"


def _start(told: _Told, key: tuple[str, int], calls: dict[tuple[str, int], list[Call]]) -> int:
    attempt = told.story.attempts.get(key)
    return attempt.started_at if attempt is not None else calls[key][0].opened_at


def _call(call: Call, whole: tuple[int, int]) -> tuple[str, ...]:
    end = call.ended_at or call.opened_at
    what = f"{call.kind}, {call.effect}, {call.risk} risk"
    name = f'{code(call.name)}<div class="dim">{text(what)}</div>'
    verdicts = "<br>".join(
        f'{text(said.by)}: {tag(said.said)} <span class="dim">{text(said.why)}</span>'
        for said in call.verdicts
    )
    values = [("", call.arguments), ("came to ", call.result), ("failed: ", call.message)]
    told = "".join(f'<div><span class="dim">{what}</span>{value}</div>' for what, value in values if value)
    took = page.lasted(end - call.opened_at) if call.ended else ""
    after, drawn = page.lasted(call.opened_at - whole[0]), page.bar(call.opened_at, end, whole, call.outcome)
    return name, tag(call.outcome), verdicts, after, took, drawn, told


def _asked(asked: Approval) -> list[str]:
    who = ", ".join(asked.by)
    if asked.edited_by:
        who += f" (edited by {', '.join(asked.edited_by)})"
    reason = asked.reason or text(asked.reason_code or "")
    asked_at, decided_at = when(asked.requested_at), when(asked.decided_at)
    return [code(asked.tool), asked_at, tag(asked.status), text(who), decided_at, reason]


def _effect(call: Call) -> list[str]:
    sent = ", ".join(f"{sent.n}: {sent.status}" for sent in call.dispatches)
    known = [sent.elapsed_ms for sent in call.dispatches if sent.elapsed_ms is not None]
    took = page.lasted(sum(known)) if known else ""
    outcome, key = tag(call.outcome), code(call.key)
    return [code(call.name), outcome, key, text(sent), text(call.external_id or ""), took]


def _resolved(doubt: Doubt) -> list[str]:
    resolution = tag(doubt.resolution or "in_doubt")
    why = f"{code(doubt.error or '')} {doubt.message or ''}"
    return [resolution, text(doubt.by or ""), when(doubt.resolved_at), why]


def _cells(*told: object) -> list[str]:
    return [text("" if each is None else f"{each:,}" if isinstance(each, int) else each) for each in told]


def _table(title: str, names: tuple[str, ...], rows: Iterable[list[str]]) -> Iterator[str]:
    made = "".join(page.row(cells) for cells in rows)
    if made:
        yield f"<h2>{text(title)}</h2>\n{page.head(names)}{made}{page.TAIL}"


def _state(told: _Told) -> str:
    where, strictest = told.where, CLASSES[told.strictest]
    if told.strictest >= LEAVES[told.content]:
        return f'<p class="gone">withheld ({strictest})</p>'
    fold = where.store.state(where.stream, at=where.last)
    if "state" not in fold:
        return f"<p>{shown(Missing('erased', 0, strictest)).replace(' (0 bytes)', '')}</p>"
    return f"<pre>{shown(fold['state'], 20_000)}</pre>"


def _strictness(store: Store, record: Record) -> int:
    """How strict the class is of what a record adds to the state; a fork begins with its ancestors'."""
    if record.kind in ("run.created", "state.patched"):
        part = record.body["state" if record.kind == "run.created" else "patch"]
        return CLASSES.index(privacy(record, part))
    if record.kind != "run.forked":
        return 0
    until = record.body["at"]
    before = islice(store.read(record.body["parent"]), until)
    return max(_strictness(store, inherited) for inherited in before)


# The records.


def _records(file: IO[bytes], where: Cut, content: Content) -> None:
    file.write(
        f"<h2>Records</h2>\n<p>All {where.last:,}, as they were hashed; values beside them.</p>\n".encode()
    )
    for record in where.records():
        if record.seq % GROUP == 1:
            last = min(where.last, record.seq + GROUP - 1)
            file.write(f"<details><summary>{record.seq:,} to {last:,}</summary>\n".encode())
            file.write(page.head(("seq", "when", "kind", "by", "what", "hash")).encode())
        file.write(page.row(_record(record, content)).encode())
        if record.seq % GROUP == 0 or record.seq == where.last:
            file.write(f"{page.TAIL}</details>\n".encode())


def _record(record: Record, content: Content) -> tuple[str, ...]:
    contents = record.contents()
    bare = _bare(record.body, [id(each) for each in contents.values()])
    told = f"<code>{page.cut(json.dumps(bare, ensure_ascii=False), RECORD)}</code>" if bare else ""
    for place, each in contents.items():
        known = shown(value(record, each, content, most=page.READ_MAX), RECORD)
        told += f'<div><span class="dim">{text(place)}</span> {known}</div>'
    by = f"{record.by['type']} {record.by['id']}"
    return str(record.seq), when(record.at), text(record.kind), text(by), told, code(record.hash[7:19])


def _bare(body: Any, contents: list[int]) -> Any:  # noqa: ANN401 (JSON of any shape)
    """A body without its contents."""
    if isinstance(body, dict):
        kept = {name: each for name, each in body.items() if id(each) not in contents}
        return {name: _bare(each, contents) for name, each in kept.items()}
    return (
        [_bare(each, contents) for each in body if id(each) not in contents]
        if isinstance(body, list)
        else body
    )
