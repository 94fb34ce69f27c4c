"""Verifies an evidence bundle of Holdfast with nothing but Python's standard library.

    python bundle.zip                  (the bundle contains this file)
    python __main__.py FOLDER_OR_ZIP [--key NAME+ID+KEY] [--seal FILE]

It checks: that the container and every file are as the manifest says; the hash chain of every stream; every
content against what was committed to; that state, calls, approvals, costs and end follow from the records;
that the streams are under the seal; and, where the package ``cryptography`` is installed, its signature.

A verifier that comes with a bundle proves nothing until its own hash is the published one: compare the
SHA-256 of ``__main__.py`` and ``standalone_files.py`` with what Holdfast's release says, or use ``holdfast
evidence verify``. It shares no code with Holdfast. Exit code 0: all good; 3: something is wrong and named.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if __package__:
    from holdfast.evidence.standalone_files import (
        Bad,
        Container,
        Json,
        canonical,
        checkpoint,
        leads_to,
        parse,
        sha256,
        signed,
    )
else:  # in a bundle
    from standalone_files import (  # type: ignore[import-not-found,no-redef]
        Bad,
        Container,
        Json,
        canonical,
        checkpoint,
        leads_to,
        parse,
        sha256,
        signed,
    )

if TYPE_CHECKING:
    from collections.abc import Iterator

BUNDLE = "holdfast/bundle/v1"
DECODE = json.JSONDecoder().raw_decode
EVIDENCE = (
    "effect.late",
    "effect.resolved",
    "refusal.noted",
    "content.erased",
    "cost.recorded",
    "note.logged",
)


# Streams.


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
        self.heads: dict[int, str] = {}
        self.wanted: int | None = None
        self.state: Any = None
        self.version = 0
        self.forked: Json | None = None
        self.calls: dict[str, Json] = {}
        self.approvals: dict[str, str | None] = {}
        self.costs: dict[str, int] = {}
        self.end: Json | None = None

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
        if seq == self.wanted:
            self.heads[seq] = self.head
        if seq == self.fork_at:
            self.forked = {"state": self.state, "version": self.version, "head": self.head}

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
        if (
            self.end is not None
            and kind not in EVIDENCE
            and kind != "run.retried"
            and not kind.startswith("hook.")
        ):
            raise self.bad("record_illegal", f"{kind} cannot follow the end of the run")
        if kind == "state.patched":
            if body["base"] != self.version or body["next"] != self.version + 1:
                raise self.bad("record_illegal", "it is for another version of the state")
            self.version = body["next"]
            there, patch = self.value(body["patch"], kept)
            self.state = merge(self.state, patch) if there and self.state is not None else None
        elif kind == "run.finished":
            self.end = {"reason": body["reason"], "status": body["status"]}
        elif kind == "run.retried":
            self.end = None
        elif kind == "cost.recorded":
            for account, amount in body["amounts"].items():
                self.costs[account] = self.costs.get(account, 0) + amount
        elif kind == "approval.requested":
            self.approvals[body["approval"]] = None
        elif kind == "approval.decided":
            self.approvals[body["approval"]] = body["decision"]
        else:
            self.ledger(kind, record, body)
        return None

    def begin(self, kind: str, body: Json, kept: dict[str, tuple[str, str]]) -> None:
        """The first record."""
        if kind == "run.created":
            _, self.state = self.value(body["state"], kept)
        elif kind == "run.forked":
            if self.parent is None or self.parent["head"] != body["head"]:
                raise self.bad("record_illegal", "it was forked from something else")
            self.state, self.version = self.parent["state"], self.parent["version"]
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
            if record.get("dispatch") != len(call["started"]) + 1 and self.parent is None:
                raise self.bad("record_illegal", "a call was sent off out of turn")
            call["started"].append(seq)
        elif kind == "effect.settled":
            call["settled"] = body["status"]
        elif kind == "effect.doubted":
            call["doubted"] += 1
        elif kind == "effect.resolved":
            call["resolved"] = body["resolution"]

    def facts(self) -> Json:
        """What a bundle has to claim."""
        found = {
            "approvals": self.approvals,
            "calls": self.calls,
            "costs": self.costs,
            "end": self.end,
            "head": self.head,
            "records": self.seq,
            "state": self.state,
            "state_version": self.version,
        }
        return {name: value for name, value in found.items() if value is not None}


class Verification:
    """One bundle."""

    def __init__(self, path: str, keys: list[str], seal: str | None) -> None:
        self.container = Container(path)
        self.keys, self.kept = keys, seal
        self.said: list[str] = []
        self.odd = ""

    def run(self) -> list[str]:
        """What was found to be good; the first thing that is not is raised."""
        try:
            text = self.container.read("manifest.json")
            manifest = parse(text, "manifest.json")
            self.files(manifest, text)
            self.seal(manifest)
            self.streams(manifest)
            if self.odd or self.container.damaged:
                raise Bad("bundle_altered", self.odd or f"{self.container.damaged[0]}: its sum is wrong")
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise Bad("bundle_altered", f"something is not of its shape: {error!r}"[:200]) from None
        finally:
            self.container.close()
        return self.said

    def files(self, manifest: Json, text: bytes) -> None:
        """Every file is as the manifest says, and there are no others."""
        if manifest["bundle"] != BUNDLE or canonical(manifest).encode() != text:
            raise Bad("bundle_altered", "the manifest is not one, or not in its canonical form")
        names = [row["name"] for row in manifest["files"]]
        if names != sorted(set(names)) or set(names) | {"manifest.json"} != set(self.container.places):
            raise Bad("bundle_altered", "files are missing, added, or named twice")
        for row in manifest["files"]:
            digest, count = hashlib.sha256(), 0
            for piece in self.container.pieces(row["name"]):
                digest.update(piece)
                count += len(piece)
            if digest.hexdigest() == row["sha256"] and count == row["bytes"]:
                continue
            self.odd = self.odd or f"{row['name']}: it is not what the manifest says"
            if not row["name"].startswith("streams/"):  # of these the first bad record is named, if one is
                raise Bad("bundle_altered", self.odd)
        self.said.append(f"{len(names)} files are as the manifest says")

    def seal(self, manifest: Json) -> None:
        """The seal, its signature, and a copy of it that was kept elsewhere."""
        self.size, self.root = 0, b""
        if "seal.txt" not in self.container.places:
            if self.keys or self.kept:
                raise Bad("seal_unsigned", "the bundle has no seal")
            self.said.append(
                "no seal: that the end is missing or that everything was written anew cannot show"
            )
            return
        text = self.container.read("seal.txt").decode()
        origin, self.size, self.root = checkpoint(text)
        if not origin.startswith(f"holdfast/{manifest['store']}/"):
            raise Bad("bad_seal", "the seal is of another store")
        for key in self.keys:
            self.said.append(signed(text, key))
        if self.kept is not None and checkpoint(self.kept) != (origin, self.size, self.root):
            raise Bad("seal_mismatch", "the seal is not the one that was kept elsewhere")

    def streams(self, manifest: Json) -> None:
        """Every stream, each after what it came from."""
        blobs = self.blobs()
        there = "proofs.json" in self.container.places
        proofs = parse(self.container.read("proofs.json"), "proofs.json") if there else {}
        withheld, left, parent = set(manifest["withheld"]), set(), None
        for name in manifest["streams"]:
            stream = Stream(manifest["store"], name, blobs, parent, manifest["forks"].get(name))
            proof = proofs.get(name)
            if proof is not None:
                self.proven(name, proof)
                stream.wanted = proof["last_seq"]
            self.audit(stream)
            if proof is not None and stream.heads.get(proof["last_seq"]) != proof["head"]:
                raise Bad("proof_invalid", "the sealed frame is not in the stream", name)
            for commit, seq in stream.missing.items():
                if commit in withheld:
                    left.add(commit)
                elif commit not in stream.erased:
                    raise Bad("content_lost", f"the content {commit} is not there", name, seq)
            parent = stream.forked
            if name == manifest["run"]:
                self.facts(stream)
                self.covered(stream, proof)
            sealed = "" if proof is None else f", {proof['last_seq']} of them under the seal"
            self.said.append(f"{name}: {stream.seq} records{sealed}")
        if left != withheld:
            raise Bad(
                "bundle_altered", "the manifest withholds contents that no record has, or that are there"
            )

    def covered(self, stream: Stream, proof: Json | None) -> None:
        """A good seal over nothing of the run would prove nothing."""
        if proof is None and (self.keys or self.kept):
            raise Bad("proof_invalid", "no record of the run is under the seal", stream.stream)
        if proof is not None and proof["last_seq"] < stream.seq:
            told = (
                f"records {proof['last_seq'] + 1} to {stream.seq} are NOT under the seal: they prove nothing"
            )
            self.said.append(told)

    def audit(self, stream: Stream) -> None:
        """The lines of a stream's file."""
        rest = b""
        name = f"streams/{stream.stream}.jsonl"
        if name not in self.container.places:
            raise Bad("bundle_altered", f"{name} is missing")
        for piece in self.container.pieces(name):
            *whole, rest = (rest + piece).split(b"\n")
            for line in whole:
                try:
                    text = line.decode("utf-8")
                except UnicodeDecodeError:
                    raise stream.bad("record_unreadable", "it is not UTF-8") from None
                stream.line(text)
        if rest:
            raise stream.bad("bundle_altered", "the file's last line does not end")

    def proven(self, name: str, proof: Json) -> None:
        """A proof leads to the seal's root."""
        first, last, head = proof["first_seq"], proof["last_seq"], proof["head"]
        text = f'{{"first_seq":{first},"head":"{head}","last_seq":{last},"stream":"{name}"}}'
        leaf = hashlib.sha256(b"\x00holdfast/frame/v1\n" + text.encode()).digest()
        path = [bytes.fromhex(one) for one in proof["path"]]
        if not leads_to(leaf, proof["leaf"], self.size, path, self.root):
            raise Bad("proof_invalid", "the path does not lead to the root", name)

    def blobs(self) -> dict[str, int]:
        """Contents that are files: salt and bytes."""
        found = {}
        for name in self.container.places:
            if name.startswith("blobs/"):
                data = self.container.read(name)
                commit = "sha256:" + name.removeprefix("blobs/")
                if sha256(b"holdfast/content/v1\n", data) != commit:
                    raise Bad("bundle_altered", f"{name}: it is not what was committed to")
                found[commit] = len(data) - 16
        return found

    def facts(self, stream: Stream) -> None:
        """The summary says what follows from the records."""
        claimed, found = parse(self.container.read("facts.json"), "facts.json"), stream.facts()
        for part in sorted({*claimed, *found}):
            if claimed.get(part) != found.get(part):
                raise Bad("facts_forged", f"its {part} is not what follows from the records")


def main(arguments: list[str]) -> int:
    """The command."""
    keys, seal = [], None
    called = Path(sys.argv[0])
    own = str(called if called.is_file() and called.suffix != ".py" else Path(__file__).resolve().parent)
    left = list(arguments)
    while left:
        word = left.pop(0)
        if word == "--key" and left:
            keys.append(left.pop(0))
        elif word == "--seal" and left:
            seal = Path(left.pop(0)).read_text("utf-8")
        elif word.startswith("-"):
            print(__doc__)
            return 2
        else:
            own = word
    try:
        for line in Verification(own, keys, seal).run():
            print(line)
    except Bad as bad:
        print(f"BAD {bad}")
        return 3
    print("GOOD")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
