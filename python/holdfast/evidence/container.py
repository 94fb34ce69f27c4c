"""Bundles on a disk: a folder, or one ZIP of stored files in one exact form, so that no byte of it is free.

The form is defined once, in the verifier that goes into every bundle:
:mod:`holdfast.evidence.standalone_files`.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

from holdfast import _core
from holdfast.errors import StoreError, VerifyError
from holdfast.evidence import standalone_files as standalone
from holdfast.gateway.outcomes import fix

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from typing import BinaryIO

ZIP_BYTES_MAX = 0xFFFF_FFFF
"""A ZIP without extensions has four gigabytes at most; a folder has no such limit."""


class Folder:
    """A folder that a bundle is written to, file by file, in the order of the calls."""

    def __init__(self, path: Path) -> None:
        if path.exists():
            raise StoreError(f"{path} exists", code="target_exists", fix=fix("target_exists"))
        path.mkdir(parents=True)
        self.path = path
        self.rows: list[dict[str, object]] = []
        self.sums: dict[str, int] = {}
        """The CRC-32 of each file: who packs them need not read them for that."""

    def write(self, name: str, pieces: Iterator[bytes]) -> None:
        """Writes a file and keeps its hash for the manifest."""
        whole = self.path / name
        whole.parent.mkdir(exist_ok=True)
        digest, sum_ = _core.FileHash(), 0
        with whole.open("wb") as file:
            for piece in pieces:
                digest.update(piece)
                sum_ = zlib.crc32(piece, sum_)
                file.write(piece)
        sha256, count = digest.end()
        self.sums[name] = sum_
        self.rows.append({"bytes": count, "name": name, "sha256": sha256})


def pack(folder: Folder, target: Path) -> None:
    """One file of a folder's files, in the order of their names."""
    names = sorted(folder.sums)
    sizes = {name: (folder.path / name).stat().st_size for name in names}
    total = sum(sizes.values())
    if total + 256 * (len(names) + 1) > ZIP_BYTES_MAX or len(names) > standalone.FILES:
        raise StoreError(
            "the bundle is too large for one file: export it into a folder",
            code="limit_exceeded",
            fix=fix("limit_exceeded"),
        )
    hidden = target.with_name(f".{target.name}.new")
    with hidden.open("wb") as out:
        directory = b""
        for name in names:
            offset, row = out.tell(), (name.encode("ascii"), folder.sums[name], sizes[name])
            out.write(standalone.local(*row))
            _copied(folder.path / name, out)
            directory += standalone.central(*row, offset)
        at = out.tell()
        out.write(directory + standalone.ending(len(names), len(directory), at))
    hidden.replace(target)


def _copied(path: Path, out: BinaryIO) -> None:
    """Adds a file's bytes."""
    with path.open("rb") as file:
        while piece := file.read(standalone.PIECE):
            out.write(piece)


def opened(path: Path) -> standalone.Container:
    """A bundle to be read; what is not in its form is refused."""
    try:
        return standalone.Container(str(path))
    except standalone.Bad as bad:
        raise VerifyError(str(bad).partition(": ")[2], code=bad.code, fix=fix(bad.code)) from None


def altered(file: str, what: str) -> VerifyError:
    """A file of a bundle is not as it was exported."""
    return VerifyError(f"{file}: {what}", code="bundle_altered", fix=fix("bundle_altered"))
