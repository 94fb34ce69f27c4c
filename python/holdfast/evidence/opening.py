"""A bundle as a journal: what travels through, compares or reviews a run does so from its bundle too.

Only a bundle that verifies is opened. Contents that it withholds are not there, as erased ones are not.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast import _core
from holdfast.errors import VerifyError
from holdfast.evidence.container import opened
from holdfast.evidence.journal import Journal
from holdfast.evidence.standalone_streams import frame
from holdfast.evidence.verifying import verify
from holdfast.gateway.outcomes import fix

if TYPE_CHECKING:
    from holdfast.evidence.standalone_files import Container


def journal(path: str | Path) -> tuple[Journal, bool]:
    """The journal of a bundle's run, and whether all of it is under the seal.

    Raises:
        VerifyError: the bundle is not good; with what is wrong with it.
    """
    found = verify(path)
    if not found.ok:
        code = found.code or "bundle_altered"
        told = (found.what or "").removeprefix(f"{code}: ")
        raise VerifyError(told, code=code, fix=fix(code), stream=found.stream, seq=found.seq)
    files = opened(Path(path))
    try:
        manifest = _core.manifest_read(files.read("manifest.json"))
        whole: Journal | None = None
        for name in manifest["streams"]:
            if name.startswith("run_"):
                whole = _stream(files, manifest, name, whole)
            if name == manifest["run"]:
                break
    finally:
        files.close()
    assert whole is not None
    return whole, found.sealed == found.records


def _stream(files: Container, manifest: dict[str, Any], name: str, parent: Journal | None) -> Journal:
    texts: list[bytes] = []
    frames: list[int] = []
    contents: dict[str, Any] = {}
    blobs = {f"sha256:{one[6:]}": files.read(one)[16:] for one in files.places if one.startswith("blobs/")}
    for number, line in enumerate(files.read(f"streams/{name}.jsonl").decode().split("\n")[:-1], 1):
        kept, records = frame(line)
        for commit, (salt, text) in kept.items():
            contents[commit] = {"salt": salt, "value": _core.canonical_loads(text)}
        texts += [text.encode() for _, text in records]
        frames += [number] * len(records)
    own = {"frames": frames, "store": manifest["store"], "withheld": manifest["withheld"]}
    return Journal.from_plain(name, texts, contents, blobs=blobs, parent=parent, **own)
