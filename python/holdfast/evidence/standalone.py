"""Verifies an evidence bundle of Holdfast with nothing but Python's standard library.

    python bundle.zip                  (the bundle contains this file)
    python __main__.py FOLDER_OR_ZIP [--key NAME+ID+KEY] [--seal FILE]

It checks: that the container and every file are as the manifest says; the hash chain of every stream; every
content against what was committed to; that state, calls, approvals, costs and end follow from the records;
that the streams are under the seal; and, where the package ``cryptography`` is installed, its signature.

A verifier that comes with a bundle proves nothing until its own hash is the published one: compare the
SHA-256 of ``__main__.py`` and ``standalone_files.py`` with what Holdfast's release says, or use ``holdfast
evidence verify``. It shares no code with Holdfast. Exit code 0: all good; 3: something is wrong and named;
4: good, but a signature that was asked for could not be checked.
"""

from __future__ import annotations

import hashlib
import json
import re
import struct
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.dont_write_bytecode = sys.dont_write_bytecode or not __package__  # nothing is added to a bundle
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
    *("content.erased", "cost.recorded", "effect.late", "effect.resolved", "hook.", "note.", "refusal.noted"),
    *("run.retried", "x."),
)
"""What may follow the end of a run."""
NAMES = {
    "README.txt",
    "__main__.py",
    "facts.json",
    "proofs.json",
    "schemas.json",
    "seal.txt",
    "standalone_files.py",
}
ODD = (LookupError, TypeError, AttributeError, ValueError, RecursionError, OSError, struct.error)


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


def plain(value: object) -> str:
    """A value as text: one is not true, and not a fraction."""
    return json.dumps(value, sort_keys=True)


def is_manifest(manifest: Json) -> bool:
    """Whether a manifest has the shape of one, and names only files that a bundle has."""
    rows, streams, forks = manifest["files"], manifest["streams"], manifest["forks"]
    files, own = {row["name"] for row in rows}, {f"streams/{name}.jsonl" for name in streams}
    odd = {name for name in files - NAMES - own if not re.fullmatch("blobs/[0-9a-f]{64}", name)}
    return all(
        (
            manifest["bundle"] == BUNDLE,
            manifest.keys()
            == {"bundle", "contracts", "files", "forks", "run", "store", "streams", "withheld"},
            manifest["contracts"] == {"record": 1, "rules": 1},
            all(row.keys() == {"bytes", "name", "sha256"} and type(row["bytes"]) is int for row in rows),
            isinstance(streams, list) and len(set(streams)) == len(streams),
            manifest["run"] in streams and manifest["run"] not in forks,
            manifest["withheld"] == sorted(set(manifest["withheld"])),
            all(type(at) is int and at > 0 and name in streams for name, at in forks.items()),
            not odd and files >= {"facts.json", *own},
        )
    )


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
        self.session: str | None = None
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
        if self.end is not None and not kind.startswith(EVIDENCE):
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
        self.session = body.get("session") if kind == "run.created" else None
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
        self.unchecked = False
        self.reached = False

    def run(self) -> list[str]:
        """What was found to be good; the first thing that is not is raised."""
        try:
            text = self.container.read("manifest.json")
            manifest = parse(text, "manifest.json")
            self.files(manifest, text)
            self.seal(manifest)
            self.streams(manifest)
            if not self.reached:
                raise Bad("bundle_altered", "the run is not among the streams")
            if self.odd or self.container.damaged:
                raise Bad("bundle_altered", self.odd or f"{self.container.damaged[0]}: its sum is wrong")
        except ODD as error:
            told = f"something is not of its shape: {type(error).__name__} {error}"
            raise Bad("bundle_altered", told[:200]) from None
        finally:
            self.container.close()
        return self.said

    def files(self, manifest: Json, text: bytes) -> None:
        """Every file is as the manifest says, and there are no others."""
        if canonical(manifest).encode() != text or not is_manifest(manifest):
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
            name = key.partition("+")[0]
            if signed(text, key):
                self.said.append(f"the seal is signed by {name}")
            else:
                self.unchecked = True
                self.said.append("the signature was NOT checked: the package cryptography is not installed")
        if self.kept is not None and checkpoint(self.kept) != (origin, self.size, self.root):
            raise Bad("seal_mismatch", "the seal is not the one that was kept elsewhere")

    def streams(self, manifest: Json) -> None:
        """Every stream, each after what it came from."""
        blobs = self.blobs()
        there = "proofs.json" in self.container.places
        proofs = parse(self.container.read("proofs.json"), "proofs.json") if there else {}
        if not proofs.keys() <= set(manifest["streams"]):
            raise Bad("proof_invalid", "there are proofs of streams that are not there")
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
            self.whole(name, stream, proof, manifest)
            if name == manifest["run"]:
                self.reached = True
                self.facts(stream)
                self.covered(stream, proof)
            sealed = "" if proof is None else f", {proof['last_seq']} of them under the seal"
            self.said.append(f"{name}: {stream.seq} records{sealed}")
        if left != withheld:
            raise Bad(
                "bundle_altered", "the manifest withholds contents that no record has, or that are there"
            )

    def whole(self, name: str, stream: Stream, proof: Json | None, manifest: Json) -> None:
        """A good seal over nothing of a stream would prove nothing. What was forked is bound by its fork."""
        if not stream.seq:
            raise Bad("record_missing", "the stream is empty", name)
        if proof is None and name not in manifest["forks"] and (self.keys or self.kept):
            raise Bad("proof_invalid", "nothing of it is under the seal", name)
        if name == manifest["run"] and stream.session and stream.session not in manifest["streams"]:
            raise Bad("bundle_altered", "the stream of its session is missing", name)

    def covered(self, stream: Stream, proof: Json | None) -> None:
        """What came after the seal is told apart."""
        if proof is not None and proof["last_seq"] < stream.seq:
            told = (
                f"records {proof['last_seq'] + 1} to {stream.seq} are NOT under the seal: they prove nothing"
            )
            self.said.append(told)

    def audit(self, stream: Stream) -> None:
        """The lines of a stream's file."""
        rest: list[bytes] = []
        name = f"streams/{stream.stream}.jsonl"
        if name not in self.container.places:
            raise Bad("bundle_altered", f"{name} is missing")
        for piece in self.container.pieces(name):
            first, *more = piece.split(b"\n")
            rest.append(first)
            if not more:
                continue  # the end of the line is yet to come
            whole, rest = [b"".join(rest), *more[:-1]], [more[-1]] if more[-1] else []
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
        whole = [type(proof[part]) is int for part in ("first_seq", "last_seq", "leaf")]
        hashes = [re.fullmatch("[0-9a-f]{64}", one) for one in proof["path"]]
        if len(proof) != 5 or not all(whole) or not all(hashes):
            raise Bad("proof_invalid", "it is no proof", name)
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
                if len(data) < 16 or sha256(b"holdfast/content/v1\n", data) != commit:
                    raise Bad("bundle_altered", f"{name}: it is not what was committed to")
                found[commit] = len(data) - 16
        return found

    def facts(self, stream: Stream) -> None:
        """The summary says what follows from the records."""
        claimed, found = parse(self.container.read("facts.json"), "facts.json"), stream.facts()
        for part in sorted({*claimed, *found}):
            if part not in claimed or part not in found or plain(claimed[part]) != plain(found[part]):
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
            seal = left.pop(0)
        elif word.startswith("-"):
            print(__doc__)
            return 2
        else:
            own = word
    try:
        kept = None if seal is None else Path(seal).read_text("utf-8")
        verification = Verification(own, keys, kept)
        for line in verification.run():
            print(line)
    except (OSError, UnicodeDecodeError):
        print("BAD the seal's file cannot be read")
        return 3
    except Bad as bad:
        print(ascii(f"BAD {bad}")[1:-1])
        return 3
    print("GOOD, BUT A SIGNATURE WAS NOT CHECKED" if verification.unchecked else "GOOD")
    return 4 if verification.unchecked else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
