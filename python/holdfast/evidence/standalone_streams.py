"""The streams of a bundle, as the verifier in it reads them: chain, contents, and what follows from them.
Standard library only; see ``__main__.py`` beside it.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if __package__:
    from holdfast.evidence.standalone_files import Bad, Json, sha256
    from holdfast.evidence.standalone_fold import Illegal, Run
else:  # in a bundle
    from standalone_files import Bad, Json, sha256  # type: ignore[import-not-found,no-redef]
    from standalone_fold import Illegal, Run  # type: ignore[import-not-found,no-redef]

if TYPE_CHECKING:
    from collections.abc import Iterator

DECODE = json.JSONDecoder().raw_decode
EVIDENCE = (
    *("content.erased", "cost.recorded", "effect.late", "effect.resolved", "hook.", "note.", "refusal.noted"),
    *("run.retried", "x."),
)
"""What may follow the end of a run."""
SHOWS = {
    "whole": "the run has ended under the seal: nothing that acts can follow, and only notes, costs and late"
    " reports could be left out",
    "may_be_retried": "the run has failed under the seal: nothing here shows that nobody retried it before"
    " the seal",
    "open": "this run had not ended; nothing here shows that it did not go on before the seal",
    "unsealed": "nothing of the run is under a seal: nothing here shows that it did not go on",
}
"""How much of a run a bundle shows to be there. What is not in it only the store can show."""


def values(text: str, at: int) -> tuple[dict[str, tuple[str, str]], int]:
    """Salt and text of each content that stands at a place, and where they end."""
    found: dict[str, tuple[str, str]] = {}
    if text[at : at + 1] != "{":
        raise ValueError
    at += 1
    while text[at] != "}":
        if found:
            at = past(text, at, ",")
        name, at = DECODE(text, at)
        salt, at = DECODE(text, past(text, at, ':{"salt":'))
        begin = past(text, at, ',"value":')
        _, end = DECODE(text, begin)
        at = past(text, end, "}")
        if name in found:
            raise ValueError
        found[name] = (salt, text[begin:end])
    return found, at + 1


def frame(text: str) -> tuple[dict[str, tuple[str, str]], list[tuple[Any, str]]]:
    """The contents of a line, and its records with their texts."""
    kept, at = values(text, past(text, 0, '{"contents":'))
    at = past(text, at, ',"records":[')
    records = []
    while True:
        record, end = DECODE(text, at)
        records.append((record, text[at:end]))
        if text[end] != ",":
            break
        at = end + 1
    if text[end:] != "]}":
        raise ValueError
    return kept, records


def past(text: str, at: int, mark: str) -> int:
    """The place after a mark that must stand there."""
    if not text.startswith(mark, at):
        raise ValueError
    return at + len(mark)


def contents_of(value: object) -> Iterator[Json]:
    """Every reference to a content in a body."""
    if isinstance(value, dict):
        if value.keys() == {"bytes", "commit", "media", "privacy"}:
            yield value
        else:
            for inner in value.values():
                yield from contents_of(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from contents_of(inner)


def merge(target: object, patch: object) -> object:
    """RFC 7396."""
    if not isinstance(patch, dict):
        return patch
    result = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merge(result.get(key), value)
    return result


def shows(sealed: int, end: Json | None) -> str:
    """The word for how much of a run is shown, by its last sealed record and by how and where it ended."""
    if not sealed:
        return "unsealed"
    if end is None or end["seq"] > sealed:
        return "open"
    return "may_be_retried" if end["status"] == "failed" else "whole"


def plain(value: object) -> str:
    """A value as text: one is not true, and not a fraction."""
    return json.dumps(value, sort_keys=True)


class Stream:
    """One stream on its way through the audit."""

    def __init__(
        self, store: str, stream: str, blobs: dict[str, int], parent: Json | None, fork_at: int | None
    ) -> None:
        self.stream, self.blobs, self.parent, self.fork_at = stream, blobs, parent, fork_at
        self.head = sha256(b"holdfast/stream/v1\n", store.encode(), b"\n", stream.encode())
        self.seq = self.at = 0
        self.erased: set[str] = set()
        self.missing: dict[str, int] = {}
        self.named: set[str] = set()
        self.heads: dict[int, str] = {}
        self.wanted: set[int] = set()
        self.state: Any = None
        self.version = 0
        self.session: str | None = None
        self.forked: Json | None = None
        self.run: Run | None = None
        self.calls: dict[str, Json] = {}
        self.grants: dict[str, str | None] = {}
        self.spent: set[tuple[str, str]] = set()
        self.asked: set[str] = set()
        self.costs: dict[str, int] = {}
        self.end: Json | None = None
        self.ended: Json | None = None

    def bad(self, code: str, what: str) -> Bad:
        """Something is wrong with the next record."""
        return Bad(code, what, self.stream, self.seq + 1)

    def line(self, text: str) -> None:
        """A frame."""
        try:
            kept, records = frame(text)
        except (ValueError, IndexError, TypeError, RecursionError):
            raise self.bad("record_unreadable", "a frame cannot be read") from None
        opened: set[str] = set()
        for record, own in records:
            self.record(record, own, kept, opened)
        if set(kept) - opened:
            raise self.bad("bundle_altered", "contents stand beside a frame that no record of it has")

    def record(self, record: Json, text: str, kept: dict[str, tuple[str, str]], opened: set[str]) -> None:
        """The next record: its place, its chain, its contents, and what follows from it."""
        try:
            stream, seq, at, prev = record["stream"], record["seq"], record["at"], record["prev"]
            kind, body = record["kind"], record["body"]
        except (KeyError, TypeError):
            raise self.bad("record_unreadable", "it is no record") from None
        if stream != self.stream:
            raise self.bad("record_moved", "it belongs to another stream")
        if seq != self.seq + 1:
            raise self.bad("record_missing", f"its seq is {seq}")
        if prev != self.head:
            raise self.bad("chain_broken", "its prev is not the hash of the record before it")
        if at < self.at:
            raise self.bad("time_went_back", "its time is before that of the record before it")
        if kind == "content.erased":
            self.erased.update(body["commits"])
        for content in contents_of(body):
            self.content(content, kept, opened)
        self.fold(kind, record, body, kept)
        self.seq, self.at = seq, at
        self.head = sha256(b"holdfast/record/v1\n", text.encode())
        if seq in self.wanted:
            self.heads[seq] = self.head
        if seq == self.fork_at:
            run = None if self.run is None else self.run.fork()
            self.forked = {"state": self.state, "version": self.version, "head": self.head, "run": run}

    def content(self, content: Json, kept: dict[str, tuple[str, str]], opened: set[str]) -> None:
        """A content is what was committed to, or it is not there."""
        commit = content["commit"]
        if commit in kept:
            salt, text = kept[commit]
            data = text.encode()
            if sha256(b"holdfast/content/v1\n", bytes.fromhex(salt), data) != commit:
                raise self.bad("content_forged", f"the content {commit} is not what was committed to")
            opened.add(commit)
        elif commit in self.blobs:
            if self.blobs[commit] != content["bytes"]:
                raise self.bad("content_forged", f"the content {commit} has another length")
            self.named.add(commit)
        else:
            self.missing[commit] = self.seq + 1

    def value(self, content: Json, kept: dict[str, tuple[str, str]]) -> tuple[bool, Any]:
        """Whether a value is there, and the value."""
        found = kept.get(content["commit"])
        return (False, None) if found is None else (True, json.loads(found[1]))

    def fold(self, kind: str, record: Json, body: Json, kept: dict[str, tuple[str, str]]) -> None:
        """What follows from a record."""
        if self.seq == 0:
            return self.begin(kind, body, kept)
        if self.end is not None and not kind.startswith(EVIDENCE):
            raise self.bad("record_illegal", f"{kind} cannot follow the end of the run")
        try:
            judged = self.run is not None and self.run.apply(kind, record, body)
        except Illegal as why:
            raise self.bad("record_illegal", str(why)) from None
        if kind == "state.patched" and judged:
            if body["base"] != self.version or body["next"] != self.version + 1:
                raise self.bad("record_illegal", "it is for another version of the state")
            self.version = body["next"]
            there, patch = self.value(body["patch"], kept)
            self.state = merge(self.state, patch) if there and self.state is not None else None
        elif kind == "run.finished":
            self.end = {"reason": body["reason"], "status": body["status"]}
            self.ended = {"seq": record["seq"], "status": body["status"]}
        elif kind == "run.retried":
            self.end = self.ended = None
        elif kind == "cost.recorded":
            for account, amount in body["amounts"].items():
                self.costs[account] = self.costs.get(account, 0) + amount
        else:
            self.leave(kind, str(record.get("call")), body)
            self.ledger(kind, record, body)
        return None

    def leave(self, kind: str, call: str, body: Json) -> None:
        """What people allowed: nothing that they had to be asked about begins without it. What a fork has
        inherited is judged in the stream that it came from."""
        if kind == "policy.decided":
            (self.asked.add if body["decision"] == "ask" else self.asked.discard)(call)
        elif kind == "grant.created":
            self.grants[body["grant"]] = body.get("digest")
        elif kind == "grant.spent":
            grant, digest = body["grant"], body.get("digest")
            if grant in self.grants and (digest is None or digest != self.grants[grant]):
                raise self.bad("record_illegal", "the grant is bound to something else")
            known = grant in self.grants or self.parent is not None
            if not known and (digest is not None or self.session is None):
                raise self.bad("record_illegal", "no such grant")
            self.spent.add((call, grant))
        elif kind == "effect.started" and call in self.calls:
            if "grant" not in body and call in self.asked:
                raise self.bad("record_illegal", "nobody has allowed it")
            if "grant" in body and (call, body["grant"]) not in self.spent:
                raise self.bad("record_illegal", "its grant was not spent by it")

    def begin(self, kind: str, body: Json, kept: dict[str, tuple[str, str]]) -> None:
        """The first record."""
        self.session = body.get("session") if kind == "run.created" else None
        if kind == "run.created":
            _, self.state = self.value(body["state"], kept)
            self.run = Run(body)
        elif kind == "run.forked":
            if self.parent is None or self.parent["head"] != body["head"]:
                raise self.bad("record_illegal", "it was forked from something else")
            self.state, self.version = self.parent["state"], self.parent["version"]
            self.run = self.parent["run"]
        elif kind not in ("store.created", "session.created"):
            raise self.bad("record_illegal", "a stream begins with its own creation")

    def ledger(self, kind: str, record: Json, body: Json) -> None:
        """What becomes of calls."""
        name = str(record.get("call"))
        seq = record["seq"]
        if kind == "call.opened":
            facts = {key: body[key] for key in ("effect", "kind", "name")}
            self.calls[name] = {"doubted": 0, **facts, "opened": seq, "started": []}
            return
        call = self.calls.get(name)
        if call is None:
            return  # a call that a fork inherited has its line in the parent's
        if kind == "effect.started":
            call["started"].append(seq)
        elif kind == "call.served":
            call["served"], call["settled"] = body["by_run"], body["status"]
        elif kind == "effect.settled":
            call["settled"] = body["status"]
        elif kind == "effect.doubted":
            call["doubted"] += 1
        elif kind == "effect.resolved":
            call["resolved"] = body["resolution"]

    def facts(self) -> Json:
        """What a bundle has to claim."""
        run = self.run
        if run is None:
            raise Bad("bundle_altered", "it is not the stream of a run", self.stream)
        for name, call in self.calls.items():
            if name in run.calls:
                call["phase"] = run.calls[name]["phase"]
        found = {
            "approvals": {name: asked["state"] for name, asked in run.approvals.items()},
            "calls": self.calls,
            "costs": self.costs,
            "end": self.end,
            "head": self.head,
            "records": self.seq,
            "state": self.state,
            "state_version": self.version,
            "status": run.status(),
            "steps": {name: step["status"] for name, step in run.steps.items()},
        }
        return {name: value for name, value in found.items() if value is not None}
