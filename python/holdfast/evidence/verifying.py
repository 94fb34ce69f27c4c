"""Verifying a bundle: files, chain, contents, fold, facts, proofs and signatures. Python reads the files; the
core says whether what is in them can be.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast import _core, canonical
from holdfast.errors import CanonicalError, HoldfastError, RecordError, VerifyError
from holdfast.evidence import standalone
from holdfast.evidence.bundle import VERIFIER, digest_of, envelope_of, mismatch, statement_of
from holdfast.evidence.container import altered, opened
from holdfast.evidence.standalone_files import Bad
from holdfast.evidence.standalone_streams import SHOWS, shows
from holdfast.gateway.outcomes import fix
from holdfast.visible import Shown

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.evidence.standalone_files import Container

Json = dict[str, Any]


@dataclass(frozen=True)
class Verified(Shown):
    """What the audit of a bundle came to."""

    ok: bool
    run: str | None = None
    records: int = 0
    sealed: int = 0
    """How many of the run's records are under the seal."""
    opened: int = 0
    erased: int = 0
    withheld: int = 0
    shows: str = "nothing"
    """How much of the run is shown to be there: ``whole``, ``may_be_retried``, ``open`` or ``unsealed``;
    ``nothing`` if the bundle is not good."""
    streams: Json = field(default_factory=dict)
    """Each stream of the bundle: its records, and how many of them are under the seal."""
    kept: list[Json] = field(default_factory=list)
    """Each seal that was given: how many commits it covers, and how many of the run's records."""
    signed_by: list[str] = field(default_factory=list)
    """Keys that were given and have signed the seal; a witness with the second in which it saw it."""
    statement_by: list[str] = field(default_factory=list)
    """Keys that were given and have signed the statement beside the bundle."""
    code: str | None = None
    what: str | None = None
    stream: str | None = None
    seq: int | None = None
    guarantee: str = ""
    """What was shown, and what cannot be."""
    facts: Json = field(default_factory=dict)
    verifier: dict[str, str] = field(default_factory=dict)
    """The hashes of the verifier in the bundle: compare them with the published ones before you run it."""

    def to_json(self) -> Json:
        """For programs."""
        return asdict(self)


class _Audit:
    """One bundle on its way."""

    def __init__(self, path: Path, keys: Sequence[str], seals: Sequence[str]) -> None:
        self.path, self.keys, self.seals = path, list(keys), list(seals)
        self.files: Container = opened(path)
        self.told: Json = {}
        self.odd: VerifyError | None = None
        self.unsigned: VerifyError | None = None
        self.signed: set[str] = set()
        self.said: list[str] = ["every record follows from the one before, and the summary from the records"]

    def run(self) -> Json:
        """What was found; the first thing that is wrong is raised."""
        text = self.files.read("manifest.json") if "manifest.json" in self.files.places else b""
        manifest = _core.manifest_read(text)
        if not standalone.is_manifest(manifest):
            raise altered("manifest.json", "it is not one, or names files that no bundle has")
        self.run_id: str = manifest["run"]
        self.store: str = manifest["store"]
        self._files(manifest)
        self.audit = _core.BundleAudit(manifest["store"])
        self._blobs()
        self._seal(manifest)
        self._streams(manifest)
        if self.odd is not None:
            raise self.odd
        if self.files.damaged:
            raise altered(self.files.damaged[0], "its sum is wrong")
        self._facts(manifest["run"], self.files.read("facts.json"))
        self._statement()
        if unsigned := [key for key in self.keys if key not in self.signed]:
            raise self.unsigned or self._unsigned(unsigned[0])
        self.told["facts"] = self.audit_facts(manifest["run"])
        return {**self.told, "run": manifest["run"], "guarantee": "; ".join(self.said)}

    def _facts(self, run: str, claimed: bytes) -> None:
        """There is one text of what follows from the records; of another, the part that differs is named."""
        if claimed != self.audit.facts(run):
            self.audit.check_facts(run, claimed)
            raise altered("facts.json", "it is not in its canonical form")

    @staticmethod
    def _unsigned(key: str) -> VerifyError:
        told = f"the key {_core.key_read(key)[0]} has signed neither the seal nor the statement"
        return VerifyError(told, code="seal_unsigned", fix=fix("seal_unsigned"))

    def audit_facts(self, run: str) -> Json:
        """The facts, as they follow from the records."""
        facts = canonical.loads(self.audit.facts(run))
        assert isinstance(facts, dict)
        return facts

    def _files(self, manifest: Json) -> None:
        names = {row["name"] for row in manifest["files"]}
        if odd := names.symmetric_difference(self.files.places.keys() - {"manifest.json"}):
            raise altered(min(odd), "it is missing, or was added")
        for row in manifest["files"]:
            digest = _core.FileHash()
            for piece in self.files.pieces(row["name"]):
                digest.update(piece)
            if digest.end() != (row["sha256"], row["bytes"]):
                self.odd = self.odd or altered(row["name"], "it is not what the manifest says")
                if not row["name"].startswith("streams/"):  # of these the first bad record is named
                    raise self.odd
            if row["name"] in VERIFIER:
                self.told.setdefault("verifier", {})[row["name"]] = row["sha256"]

    def _blobs(self) -> None:
        for name in self.files.places:
            if name.startswith("blobs/"):
                self.audit.blob(f"sha256:{name.removeprefix('blobs/')}", self.files.read(name))

    def _seal(self, manifest: Json) -> None:
        self.told["signed_by"] = []
        self.earlier: list[Json] = []
        self.held: list[int | None] = []
        if "seal.txt" not in self.files.places:
            if self.seals:
                raise VerifyError("the bundle has no seal", code="seal_unsigned", fix=fix("seal_unsigned"))
            self.said.append(
                "without a seal it cannot show that the end is missing or that everything was written anew"
            )
            return
        seal = self.files.read("seal.txt").decode("utf-8", "replace")
        self.audit.seal(seal)
        self._earlier(manifest, seal)
        self.held = [self._kept(seal, kept) for kept in self.seals]
        copies = [kept for kept, at in zip(self.seals, self.held, strict=True) if at is None]
        for key in self.keys:
            self._signed(key, [seal, *copies])
        if not self.keys and not self.seals:
            self.said.append("nobody's signature was checked: pass the key that the seal is signed with")

    def _signed(self, key: str, seals: list[str]) -> None:
        """A key has signed the bundle's seal or a kept copy of it, which a witness may have signed later."""
        name, _ = _core.key_read(key)
        for seal in seals:
            try:
                _, when = _core.note_open(seal, key)
            except VerifyError as error:
                if error.code != "seal_unsigned":
                    raise
                self.unsigned = self.unsigned or error
                continue
            self.signed.add(key)
            self.told["signed_by"].append(name if when is None else f"{name} at {when}")
            return

    def _earlier(self, manifest: Json, seal: str) -> None:
        """Older seals that the bundle has: its own seal goes on from each."""
        if "earlier.json" not in self.files.places:
            return
        self.earlier = standalone.older(self.files.read("earlier.json"))
        for older in self.earlier:
            origin = _core.checkpoint_read(older["seal"])["origin"]
            ours = origin.startswith(f"holdfast/{manifest['store']}/")
            if not ours or not _core.consistency_check(older["seal"], seal, older["path"]):
                told = "an older seal in it is not what the newer one goes on from"
                raise VerifyError(told, code="proof_invalid", fix=fix("proof_invalid"))
            if not older["proofs"].keys() <= set(manifest["streams"]):
                raise altered("earlier.json", "it has proofs of streams that are not there")

    def _kept(self, seal: str, kept: str) -> int | None:
        """Which of the older seals a kept one is; none if it is the bundle's own."""
        other = _core.checkpoint_read(kept)
        for at, known in enumerate([seal, *(older["seal"] for older in self.earlier)]):
            own = _core.checkpoint_read(known)
            if all(own[part] == other[part] for part in ("origin", "size", "root")):
                return at - 1 if at else None
        own = _core.checkpoint_read(seal)
        raise mismatch(
            f"the bundle is under a seal over {own['size']} commits, the kept one over {other['size']}, and"
            " nothing in the bundle leads from one to the other: have it exported since the kept seal"
        )

    def _streams(self, manifest: Json) -> None:
        proofs = self._json("proofs.json") if "proofs.json" in self.files.places else {}
        if not proofs.keys() <= set(manifest["streams"]):
            raise altered("proofs.json", "it has proofs of streams that are not there")
        left: set[str] = set()
        named: set[str] = set()
        for name in manifest["streams"]:
            file = f"streams/{name}.jsonl"
            if file not in self.files.places:
                raise altered(file, "it is missing")
            self.audit.begin(name, proofs.get(name), manifest["forks"].get(name))
            for older in self.earlier:
                if name in older["proofs"]:
                    self.audit.earlier(older["seal"], older["proofs"][name])
            for piece in self.files.pieces(file):
                self.audit.push(piece)
            counts = self.audit.end(manifest["withheld"])
            left.update(counts["withheld"])
            named.update(counts["named"])
            self._whole(name, counts, manifest)
            if name == manifest["run"]:
                keep = ("records", "sealed", "opened", "erased")
                self.told |= {part: counts[part] for part in keep}
                self.told["withheld"] = len(counts["withheld"])
                self._then(name, counts)
        if odd := set(manifest["withheld"]) - left:
            told = f"it withholds {min(odd)}, which was erased, or is there, or no record has"
            raise altered("manifest.json", told)
        blobs = {f"sha256:{name[6:]}" for name in self.files.places if name.startswith("blobs/")}
        if odd := blobs - named:
            raise altered(f"blobs/{min(odd)[7:]}", "no record names it")
        self._covered()

    def _then(self, run: str, counts: Json) -> None:
        """What of the run each kept seal covers."""
        proven = [at for at, older in enumerate(self.earlier) if run in older["proofs"]]
        sealed = dict(zip(proven, counts["earlier"], strict=True))
        self.told["kept"] = []
        for kept, at in zip(self.seals, self.held, strict=False):
            size = _core.checkpoint_read(kept)["size"]
            covered = counts["sealed"] if at is None else sealed.get(at, 0)
            self.told["kept"].append({"sealed": covered, "size": size})
            if at is None:
                self.said.append("the seal is the one that was kept elsewhere")
                continue
            told = (
                f"the seal goes on from the one over {size} commits that was kept elsewhere, and {covered} of"
                f" {counts['records']} records of the run were there by then"
            )
            self.said.append(told)
            if not self.keys:
                self.said.append("what came since then stands under a seal whose signature nobody checked")

    def _whole(self, name: str, counts: Json, manifest: Json) -> None:
        """A good seal over nothing of a stream would prove nothing. What was forked is bound by its fork."""
        self.told.setdefault("streams", {})[name] = {part: counts[part] for part in ("records", "sealed")}
        if not counts["records"]:
            raise altered(f"streams/{name}.jsonl", "it is empty")
        if not counts["sealed"] and name not in manifest["forks"] and (self.keys or self.seals):
            told = "nothing of the stream is under the seal"
            raise VerifyError(told, code="proof_invalid", fix=fix("proof_invalid"), stream=name)
        state = self.audit.state(name) if name == manifest["run"] else None
        session = state and not state.get("fork") and state.get("session")
        if session and session not in manifest["streams"]:
            raise altered("manifest.json", "the stream of the run's session is missing")

    def _covered(self) -> None:
        """How much of the run is under the seal, and what that cannot show."""
        sealed, records = self.told["sealed"], self.told["records"]
        if sealed:
            self.said.append(f"{sealed} of {records} records of the run are under the seal")
        state = self.audit.state(self.run_id) or {}
        word = shows(sealed, state.get("end"))
        self.told["shows"] = word
        self.said.append(SHOWS[word])
        if 0 < sealed < records:
            told = (
                f"records {sealed + 1} to {records} are not: whoever made the bundle could have written them"
            )
            self.said.append(told)

    def _json(self, name: str) -> Json:

        text = self.files.read(name)
        found = canonical.loads(text)
        if not isinstance(found, dict) or canonical.dumps(found) != text:
            raise altered(name, "it is no object, or not in its canonical form")
        return found

    def _statement(self) -> None:
        self.told["statement_by"] = []
        if not envelope_of(self.path).exists():
            return
        for key in self.keys:
            name, witness = _core.key_read(key)
            if witness:
                continue
            try:
                told = statement_of(self.path, key)
            except VerifyError as error:
                if error.code != "seal_unsigned":
                    raise
                continue
            self.signed.add(key)
            if told["subject"][0]["digest"]["sha256"] != digest_of(self.path):
                raise altered(envelope_of(self.path).name, "it speaks of another bundle")
            if told["predicate"] != self._predicate():
                raise altered(envelope_of(self.path).name, "it says something else of the run")
            self.told["statement_by"].append(name)
            self.said.append(f"{name} says that the store had no more of the run when this was exported")

    def _predicate(self) -> Json:
        facts = self.audit_facts(self.run_id)
        own = {"head": facts["head"], "records": facts["records"], "sealed": self.told["sealed"]}
        return {**own, "run": self.run_id, "store": self.store}


def verify(path: str | Path, *, keys: Sequence[str] = (), seals: Sequence[str] = ()) -> Verified:
    """Verifies a bundle; whatever is wrong is in the answer, not raised.

    Args:
        path: a folder or a file.
        keys: public lines of keys; each must have signed the seal.
        seals: texts of seals that were kept elsewhere; the bundle's must be the same, or the bundle must show
            that its own goes on from them.
    """
    audit: _Audit | None = None
    try:
        audit = _Audit(Path(path).resolve(), keys, seals)
        return Verified(ok=True, **audit.run())
    except VerifyError as error:
        return Verified(False, code=error.code, what=str(error), stream=error.stream, seq=error.seq)
    except (CanonicalError, RecordError) as error:
        return Verified(ok=False, code="bundle_altered", what=str(error))
    except HoldfastError as error:
        return Verified(ok=False, code=error.code, what=str(error))
    except Bad as bad:
        return Verified(ok=False, code=bad.code, what=str(bad), stream=bad.stream, seq=bad.seq)
    except standalone.ODD as error:
        return Verified(
            ok=False, code="bundle_altered", what=f"something is not of its shape: {error!r}"[:200]
        )
    finally:
        if audit is not None:
            audit.files.close()
