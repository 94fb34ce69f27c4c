"""Verifies an evidence bundle of Holdfast with nothing but Python's standard library.

    python bundle.zip                  (the bundle contains this file)
    python __main__.py FOLDER_OR_ZIP [--key NAME+ID+KEY] [--seal FILE]

The seal of ``--seal`` is one that you have kept: the bundle's own, or an older one that it goes on from.

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
import re
import struct
import sys
from pathlib import Path

sys.dont_write_bytecode = sys.dont_write_bytecode or not __package__  # nothing is added to a bundle
if __package__:
    from holdfast.evidence.standalone_files import (
        Bad,
        Container,
        Json,
        canonical,
        checkpoint,
        goes_on,
        leads_to,
        parse,
        sha256,
        signed,
    )
    from holdfast.evidence.standalone_streams import SHOWS, Stream, plain, shows
else:  # in a bundle
    from standalone_files import (  # type: ignore[import-not-found,no-redef]
        Bad,
        Container,
        Json,
        canonical,
        checkpoint,
        goes_on,
        leads_to,
        parse,
        sha256,
        signed,
    )
    from standalone_streams import (  # type: ignore[import-not-found,no-redef]
        SHOWS,
        Stream,
        plain,
        shows,
    )


BUNDLE = "holdfast/bundle/v1"
NAMES = {
    "README.txt",
    "__main__.py",
    "earlier.json",
    "facts.json",
    "proofs.json",
    "schemas.json",
    "seal.txt",
    "standalone_files.py",
    "standalone_fold.py",
    "standalone_streams.py",
}
ODD = (LookupError, TypeError, AttributeError, ValueError, RecursionError, OSError, struct.error)


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


def hashes(path: list[str]) -> list[bytes]:
    """The hashes of a proof."""
    if not all(re.fullmatch("[0-9a-f]{64}", one) for one in path):
        raise Bad("proof_invalid", "it is no proof")
    return [bytes.fromhex(one) for one in path]


def older(data: bytes) -> list[Json]:
    """Older seals: the text of each, what shows that the newer one goes on from it, proofs under it."""
    found = parse(data, "earlier.json")
    whole = isinstance(found, list) and canonical(found).encode() == data
    if not whole or not found or any(one.keys() != {"path", "proofs", "seal"} for one in found):
        raise Bad("bundle_altered", "earlier.json: it is not older seals, or not in its canonical form")
    return list(found)


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
        """The seal, its signature, and a copy of it, or an older one, that was kept elsewhere."""
        self.size, self.root = 0, b""
        self.then: dict[tuple[str, int, bytes], Json] = {}
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
            who = signed(text, key)
            self.unchecked |= who is None
            if who is not None:
                self.said.append(f"the seal is signed by {who}")
            else:
                self.said.append("the signature was NOT checked: the package cryptography is not installed")
        self.earlier(manifest)
        own = (origin, self.size, self.root)
        if self.kept is not None and checkpoint(self.kept) not in (own, *self.then):
            raise Bad("seal_mismatch", "the seal is not the one that was kept, and does not go on from it")

    def earlier(self, manifest: Json) -> None:
        """Older seals, which the bundle's own goes on from."""
        there = "earlier.json" in self.container.places
        for one in older(self.container.read("earlier.json")) if there else ():
            origin, size, root = checkpoint(one["seal"])
            path = hashes(one["path"])
            if not origin.startswith(f"holdfast/{manifest['store']}/") or not goes_on(
                (size, root), (self.size, self.root), path
            ):
                raise Bad("proof_invalid", "an older seal is not what the newer one goes on from")
            if not one["proofs"].keys() <= set(manifest["streams"]):
                raise Bad("proof_invalid", "there are proofs of streams that are not there")
            self.then[origin, size, root] = one["proofs"]

    def streams(self, manifest: Json) -> None:
        """Every stream, each after what it came from."""
        blobs = self.blobs()
        there = "proofs.json" in self.container.places
        proofs = parse(self.container.read("proofs.json"), "proofs.json") if there else {}
        if not proofs.keys() <= set(manifest["streams"]):
            raise Bad("proof_invalid", "there are proofs of streams that are not there")
        withheld, parent = set(manifest["withheld"]), None
        left: set[str] = set()
        named: set[str] = set()
        for name in manifest["streams"]:
            stream = Stream(manifest["store"], name, blobs, parent, manifest["forks"].get(name))
            proof = proofs.get(name)
            wanted = self.proven(name, proof)
            stream.wanted = {one["last_seq"] for one in wanted}
            self.audit(stream)
            if any(stream.heads.get(one["last_seq"]) != one["head"] for one in wanted):
                raise Bad("proof_invalid", "the sealed frame is not in the stream", name)
            named |= stream.named
            for commit, seq in stream.missing.items():
                if commit in withheld and commit not in stream.erased:
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
        if odd := withheld - left:
            told = f"the manifest withholds {min(odd)}, which was erased, or is there, or no record has"
            raise Bad("bundle_altered", told)
        if odd := blobs.keys() - named:
            raise Bad("bundle_altered", f"blobs/{min(odd)[7:]}: no record names it")

    def whole(self, name: str, stream: Stream, proof: Json | None, manifest: Json) -> None:
        """A good seal over nothing of a stream would prove nothing. What was forked is bound by its fork."""
        if not stream.seq:
            raise Bad("record_missing", "the stream is empty", name)
        if proof is None and name not in manifest["forks"] and (self.keys or self.kept):
            raise Bad("proof_invalid", "nothing of it is under the seal", name)
        if name == manifest["run"] and stream.session and stream.session not in manifest["streams"]:
            raise Bad("bundle_altered", "the stream of its session is missing", name)

    def covered(self, stream: Stream, proof: Json | None) -> None:
        """How much of the run is shown to be there, and what came after the seal is told apart."""
        word = shows(0 if proof is None else proof["last_seq"], stream.ended)
        self.said.append(f"{word}: {SHOWS[word]}")
        if proof is not None and proof["last_seq"] < stream.seq:
            told = (
                f"records {proof['last_seq'] + 1} to {stream.seq} are NOT under the seal: they prove nothing"
            )
            self.said.append(told)
        for (origin, size, root), proofs in self.then.items():
            if self.kept is not None and checkpoint(self.kept) == (origin, size, root):
                then = proofs.get(stream.stream, {"last_seq": 0})["last_seq"]
                told = (
                    f"the seal goes on from the one over {size} commits that was kept:"
                    f" {then} of {stream.seq} records were there by then"
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

    def proven(self, name: str, proof: Json | None) -> list[Json]:
        """The proofs of a stream: each leads to the root of its seal."""
        found = [] if proof is None else [(proof, self.size, self.root)]
        found += [(all_[name], size, root) for (_, size, root), all_ in self.then.items() if name in all_]
        for one, size, root in found:
            self.leads(name, one, size, root)
        return [one for one, _, _ in found]

    def leads(self, name: str, proof: Json, size: int, root: bytes) -> None:
        """A proof leads to a root."""
        whole = [type(proof[part]) is int for part in ("first_seq", "last_seq", "leaf")]
        if len(proof) != 5 or not all(whole):
            raise Bad("proof_invalid", "it is no proof", name)
        first, last, head = proof["first_seq"], proof["last_seq"], proof["head"]
        text = f'{{"first_seq":{first},"head":"{head}","last_seq":{last},"stream":"{name}"}}'
        leaf = hashlib.sha256(b"\x00holdfast/frame/v1\n" + text.encode()).digest()
        if not leads_to(leaf, proof["leaf"], size, hashes(proof["path"]), root):
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
