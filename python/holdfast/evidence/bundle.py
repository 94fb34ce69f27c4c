"""Exporting a run as evidence: everything that proves it, in files, the same bytes for the same input.

A bundle holds the run's frames as they were hashed, what opens their contents (as far as their privacy
allows), the streams that it stands on (what it was forked from, its session, the policies that decided), a
summary, the seal and the proofs that lead to it, schemas, and a verifier in plain Python. Nothing leaves
before it is durable, and every bundle was audited while it was written.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from holdfast import _core, canonical
from holdfast import keys as keyring
from holdfast.errors import CommandError, StoreError, VerifyError
from holdfast.evidence.container import Folder, pack
from holdfast.gateway.outcomes import fix
from holdfast.visible import Shown

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from holdfast.keys import Key
    from holdfast.store import Store

Json = dict[str, Any]
Privacy = Literal["public", "internal", "content_refs_only", "sensitive", "secret"]
OPEN: tuple[Privacy, ...] = ("public", "internal")
"""What goes out unless more is asked for."""
ALL = 2**53 - 1
VERIFIER = {
    "__main__.py": "standalone.py",
    "standalone_files.py": "standalone_files.py",
    "standalone_fold.py": "standalone_fold.py",
    "standalone_streams.py": "standalone_streams.py",
}
"""The verifier in a bundle, and what it is here."""
README = """This is a bundle of evidence about one run of an agent, made by Holdfast.

Verify it with nothing but Python:   python bundle.zip      (or: python __main__.py in the folder)
Verify it with Holdfast:             holdfast evidence verify bundle.zip --key NAME+ID+KEY

The verifier in here is a convenience: it proves something only if its hash is the published one.
streams/   one line per commit: the records as they were hashed, and what opens their contents
facts.json what follows from them: state, calls, approvals, costs, how the run ended
seal.txt   the signed head of the whole journal; proofs.json leads from the streams to it
earlier.json  older seals, and what shows that this one goes on from them
"""


@dataclass(frozen=True)
class Exported(Shown):
    """A bundle that was written."""

    path: Path
    run: str
    records: int
    sealed: int
    """How many of them are under the seal."""
    withheld: int
    """Contents that are there and were left out."""
    envelope: Path | None = None
    """The signed statement beside it."""


class _Exporter:
    """Writes one bundle."""

    def __init__(
        self, store: Store, run: str, folder: Folder, include: Sequence[str], since: Sequence[str]
    ) -> None:
        self.store, self.run, self.folder = store, run, folder
        self.core = store._core
        self.include = list(include)
        self.audit = _core.BundleAudit(store.id)
        self.withheld: set[str] = set()
        self.proofs: Json = {}
        self.counts: dict[str, Json] = {}
        self.seal = next(iter(_core.store_seals(self.core, 1)), None)
        self.earlier = self._earlier(since)

    def files(self) -> None:
        """Everything but the manifest."""
        state = self.store.state(self.run) if self.run.startswith("run_") else None
        if state is None:
            raise CommandError("there is no such run", code="no_such_run", fix=fix("no_such_run"))
        self.forks = self._forks(state)
        streams = [*self.forks, self.run]
        streams += [state["session"]] if state.get("session") else []
        policies = self._policies(state)
        ends = {row["id"]: row["last_seq"] for row in self.store.sql("SELECT id, last_seq FROM streams")}
        self.store.barrier()  # what is committed later is another bundle's
        plan = {name: min(self._until(name), ends[name]) for name in streams}
        if policies:
            streams.append("store")
            plan["store"] = policies
        self.streams = streams
        self._blobs(streams, plan)
        if self.seal is not None:
            self.audit.seal(self.seal["checkpoint"])
            self._text("seal.txt", self.seal["checkpoint"].encode())
        for name in streams:
            self._stream(name, plan[name])
        self._text("facts.json", self.audit.facts(self.run))
        if self.proofs:
            self._text("proofs.json", canonical.dumps(self.proofs))
        if self.earlier:
            self._text("earlier.json", canonical.dumps(self.earlier))
        self._text("schemas.json", canonical.dumps(_core.schemas()))
        self._text("README.txt", README.encode())
        for name, source in VERIFIER.items():
            self._text(name, resources.files("holdfast.evidence").joinpath(source).read_bytes())

    def _text(self, name: str, data: bytes) -> None:
        self.folder.write(name, iter((data,)))

    def _earlier(self, since: Sequence[str]) -> list[Json]:
        """Older seals, and what shows that the newest one goes on from them; proofs are added on the way."""
        found: dict[int, Json] = {}
        for text in since:
            told = _core.checkpoint_read(text)
            if self.seal is None or not told["origin"].startswith(f"holdfast/{self.store.id}/"):
                raise mismatch("the seal is another store's, or this store has none")
            if told["size"] > self.seal["size"]:
                raise mismatch(f"the seal covers {told['size']} commits, the newest {self.seal['size']}")
            path = _core.store_consistency(self.core, told["size"], self.seal["size"])
            if not _core.consistency_check(text, self.seal["checkpoint"], path):
                raise mismatch("the store does not begin with what the seal covers")
            if told["size"] < self.seal["size"]:
                found[told["size"]] = {"path": path, "proofs": {}, "seal": text}
        return [found[size] for size in sorted(found)]

    def _forks(self, state: Json) -> dict[str, int]:
        """What a run was forked from, oldest first, and after which record."""
        found: dict[str, int] = {}
        while fork := state.get("fork"):
            found = {fork["parent"]: fork["at"], **found}
            parent = self.store.state(fork["parent"])
            assert parent is not None
            state = parent
        return found

    def _until(self, name: str) -> int:
        """A run that was forked goes up to the fork; if values of it were erased since, to its end."""
        at = self.forks.get(name, ALL)
        later = self.store.read(name, after=at) if at < ALL else ()
        return ALL if any(record.kind == "content.erased" for record in later) else at

    def _policies(self, state: Json) -> int:
        """The place of the last policy in the store's stream that decided something in the run."""
        decided = (call["decided"] for call in state["calls"].values() if call.get("decided"))
        used = {policy for _, policy in decided}
        last = 0
        for record in self.store.read("store") if used else ():
            if record.kind == "policy.activated" and record.body["policy"] in used:
                last = record.seq
        return last

    def _pages(self, stream: str, until: int) -> Iterator[tuple[bytes, list[str]]]:
        after, more = 0, True
        while more:
            text, after, more, withheld, blobs = _core.store_export(
                self.core, stream, after, until, self.include
            )
            self.withheld.update(withheld)
            yield text, blobs

    def _blobs(self, streams: list[str], plan: dict[str, int]) -> None:
        """Contents that are bytes are files; they are audited before the streams that name them."""
        if not self.store.sql("SELECT 1 FROM blob_refs LIMIT 1"):
            return
        names = {blob for name in streams for _, blobs in self._pages(name, plan[name]) for blob in blobs}
        for name in sorted(names):
            data = _core.store_salted_blob(self.core, name)
            self.audit.blob(name, data)
            self._text(f"blobs/{name.removeprefix('sha256:')}", data)

    def _stream(self, name: str, until: int) -> None:
        proof = None
        if self.seal is not None:
            proof = _core.store_inclusion(self.core, name, self.seal["size"], until)
        self.audit.begin(name, proof, self.forks.get(name))
        if proof is not None:
            self.proofs[name] = proof
        for older in self.earlier:
            size = _core.checkpoint_read(older["seal"])["size"]
            if (then := _core.store_inclusion(self.core, name, size, until)) is not None:
                self.audit.earlier(older["seal"], then)
                older["proofs"][name] = then

        def lines() -> Iterator[bytes]:
            for text, _ in self._pages(name, until):
                self.audit.push(text)
                yield text

        self.folder.write(f"streams/{name}.jsonl", lines())
        self.counts[name] = self.audit.end(sorted(self.withheld))

    def manifest(self) -> bytes:
        """What the bundle is made of."""
        told = {
            "bundle": "holdfast/bundle/v1",
            "contracts": {"record": 1, "rules": 1},
            "files": sorted(self.folder.rows, key=lambda row: str(row["name"])),
            "forks": self.forks,
            "run": self.run,
            "store": self.store.id,
            "streams": self.streams,
            "withheld": sorted({one for count in self.counts.values() for one in count["withheld"]}),
        }
        return canonical.dumps(told)


def export(
    store: Store,
    run: str,
    target: str | Path,
    *,
    include: Sequence[Privacy] = OPEN,
    key: Key | None = None,
    since: Sequence[str] = (),
) -> Exported:
    """Writes the evidence of a run into a new folder, or into one file if the target ends in ``.zip``.

    Args:
        store: where the run is.
        run: the run.
        target: where to.
        include: contents of these classes of privacy go out; others are named as withheld.
        key: signs a statement about the bundle, an in-toto statement in a DSSE envelope beside it.
        since: texts of older seals that readers have kept; the bundle shows that its own goes on from them,
            and what of the run was there by then.
    """
    path = Path(target)
    one_file = path.suffix == ".zip"
    if path.exists() or (key is not None and envelope_of(path).exists()):
        raise StoreError(f"{path} exists", code="target_exists", fix=fix("target_exists"))
    if not path.absolute().parent.is_dir():
        raise StoreError(f"there is no folder for {path}", code="no_permission", fix=fix("no_permission"))
    secret = None if key is None else keyring.sealing(key)
    with tempfile.TemporaryDirectory(prefix="holdfast-", dir=path.parent) as kept:
        folder = Folder(Path(kept) / "bundle")
        exporter = _Exporter(store, run, folder, include, since)
        exporter.files()
        folder.write("manifest.json", iter((exporter.manifest(),)))
        if one_file:
            pack(folder, path)
        else:
            shutil.move(folder.path, path)
    envelope = None if secret is None else _signed(path, exporter, secret)
    own = exporter.counts[run]
    return Exported(path, run, own["records"], own["sealed"], len(own["withheld"]), envelope)


def mismatch(told: str) -> VerifyError:
    """Seals do not fit."""
    return VerifyError(told, code="seal_mismatch", fix=fix("seal_mismatch"))


def digest_of(path: Path) -> str:
    """The SHA-256 of a bundle's one file, or of a folder's manifest, which covers all others."""
    digest = _core.FileHash()
    with (path / "manifest.json" if path.is_dir() else path).open("rb") as file:
        while piece := file.read(1 << 20):
            digest.update(piece)
    return digest.end()[0]


def envelope_of(path: Path) -> Path:
    """Where the signed statement about a bundle lies."""
    return path.with_name(f"{path.name}.dsse.json")


def _signed(path: Path, exporter: _Exporter, secret: str) -> Path:
    own = exporter.counts[exporter.run]
    statement = {
        "_type": "https://in-toto.io/Statement/v1",
        "predicate": {
            "head": own["head"],
            "records": own["records"],
            "run": exporter.run,
            "sealed": own["sealed"],
            "store": exporter.store.id,
        },
        "predicateType": "https://holdfast.dev/bundle/v1",
        "subject": [{"digest": {"sha256": digest_of(path)}, "name": path.name}],
    }
    target = envelope_of(path)
    target.write_bytes(_core.envelope_sign(canonical.dumps(statement), secret))
    return target


def statement_of(path: Path, key: str) -> Json:
    """What the envelope beside a bundle says, once the key is found to have signed it."""
    told: Json = json.loads(_core.envelope_open(envelope_of(path).read_bytes(), key))
    return told
