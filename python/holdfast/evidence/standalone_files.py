"""What the verifier in a bundle reads with: the container, JSON, hashes, the tree, signatures. Standard
library only; see ``__main__.py`` beside it.
"""

from __future__ import annotations

import base64
import hashlib
import json
import struct
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

if TYPE_CHECKING:
    from collections.abc import Iterator

PIECE = 1 << 20
WHOLE = 1 << 26
"""A file that is read at once has no more bytes than this; streams and blobs are read otherwise."""
FILES = 0xFFFF
"""A ZIP of the one form has no more files."""
Json = dict[str, Any]


class Bad(Exception):  # noqa: N818 (it is what is said of a bundle)
    """What is wrong, first found: a code, and where."""

    def __init__(self, code: str, what: str, stream: str | None = None, seq: int | None = None) -> None:
        place = f" in {stream}" if stream else ""
        place += f" at record {seq}" if seq else ""
        super().__init__(f"{code}{place}: {what}")
        self.code, self.stream, self.seq = code, stream, seq


# The container: a folder, or a ZIP of stored files in one exact form.


def local(name: bytes, crc: int, size: int) -> bytes:
    """The header before a file."""
    return struct.pack("<4s5H3I2H", b"PK\x03\x04", 20, 0, 0, 0, 33, crc, size, size, len(name), 0) + name


def central(name: bytes, crc: int, size: int, offset: int) -> bytes:
    """Its line in the directory."""
    fields = (
        b"PK\x01\x02",
        788,
        20,
        0,
        0,
        0,
        33,
        crc,
        size,
        size,
        len(name),
        0,
        0,
        0,
        0,
        0o644 << 16,
        offset,
    )
    return struct.pack("<4s6H3I5H2I", *fields) + name


def ending(count: int, size: int, offset: int) -> bytes:
    """The end of the directory."""
    return struct.pack("<4s4H2IH", b"PK\x05\x06", 0, 0, count, count, size, offset, 0)


def scan(file: BinaryIO) -> tuple[dict[str, tuple[int, int]], list[str]]:
    """Where the files of a ZIP are, and those whose sum is wrong; another form than our own is refused."""
    found: dict[str, tuple[int, int]] = {}
    damaged = []
    directory, offset = bytearray(), 0
    while True:
        file.seek(offset)
        head = file.read(30)
        if head[:4] != b"PK\x03\x04" or len(head) < 30:
            break
        crc, size, _, length = struct.unpack("<IIIH", head[14:28])
        name = file.read(length)
        if head + name != local(name, crc, size):
            raise Bad("bundle_altered", f"the container is not in its one form at byte {offset}")
        at, left, sum_ = file.tell(), size, 0
        while left:
            piece = file.read(min(left, PIECE))
            if not piece:
                raise Bad("bundle_altered", "the container ends in the middle of a file")
            sum_, left = zlib.crc32(piece, sum_), left - len(piece)
        try:
            text = name.decode("ascii")
        except UnicodeDecodeError:
            raise Bad("bundle_altered", "a file's name is not plain") from None
        if text in found or len(found) == FILES or at + size > 0xFFFFFFFF:
            raise Bad("bundle_altered", f"{text} is there twice, or is one too many")
        if sum_ != crc:
            damaged.append(text)
        directory += central(name, crc, size, offset)
        found[text] = (at, size)
        offset = at + size
    file.seek(offset)
    rest = file.read(len(directory) + 23)
    if not found or rest != bytes(directory) + ending(len(found), len(directory), offset):
        raise Bad("bundle_altered", "the container's directory is not that of its files")
    return found, damaged


class Container:
    """The files of a bundle."""

    def __init__(self, path: str) -> None:
        self.path = Path(path)
        self.zip: BinaryIO | None = None
        self.places: dict[str, tuple[int, int]] = {}
        self.damaged: list[str] = []
        """Files whose sum is wrong; what is wrong in them is better said by who reads them."""
        if self.path.is_dir():
            for whole in sorted(self.path.rglob("*")):
                inner = whole.relative_to(self.path).as_posix()
                if whole.is_symlink():
                    raise Bad("bundle_altered", f"{inner} is a link")
                if whole.is_file():
                    self.places[inner] = (0, whole.stat().st_size)
                elif not whole.is_dir():
                    raise Bad("bundle_altered", f"{inner} is neither a file nor a folder")
        else:
            try:
                self.zip = self.path.open("rb")
            except OSError as error:
                raise Bad("bundle_altered", f"it cannot be opened: {error.strerror}") from None
            try:
                self.places, self.damaged = scan(self.zip)
            except Bad:
                self.zip.close()
                raise

    def pieces(self, name: str) -> Iterator[bytes]:
        """The bytes of a file, piece by piece."""
        at, size = self.places[name]
        file = self.zip if self.zip is not None else (self.path / name).open("rb")
        try:
            while size:
                file.seek(at)
                piece = file.read(min(size, PIECE))
                if not piece:
                    return
                at, size = at + len(piece), size - len(piece)
                yield piece
        finally:
            if self.zip is None:
                file.close()

    def read(self, name: str) -> bytes:
        """A whole file."""
        if name not in self.places:
            raise Bad("bundle_altered", f"{name} is missing")
        if self.places[name][1] > WHOLE and not name.startswith(("blobs/", "streams/")):
            raise Bad("bundle_altered", f"{name} is larger than any that Holdfast writes")
        return b"".join(self.pieces(name))

    def close(self) -> None:
        """Lets go of it."""
        if self.zip is not None:
            self.zip.close()


# Canonical JSON.


def order(key: str) -> bytes:
    """Keys are in the order of their UTF-16 code units."""
    return key.encode("utf-16-be", "surrogatepass")


def canonical(value: Any) -> str:  # noqa: ANN401 (any JSON)
    """The canonical text of JSON without fractions, which is all that a manifest has."""
    if isinstance(value, dict):
        inner = (
            f"{json.dumps(key, ensure_ascii=False)}:{canonical(value[key])}"
            for key in sorted(value, key=order)
        )
        return "{" + ",".join(inner) + "}"
    if isinstance(value, list):
        return "[" + ",".join(canonical(one) for one in value) + "]"
    return json.dumps(value, ensure_ascii=False)


def members(pairs: list[tuple[str, Any]]) -> Json:
    """An object without duplicate keys."""
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key is there twice")
    return found


def parse(data: bytes, name: str) -> Any:  # noqa: ANN401 (any JSON)
    """JSON, strictly."""
    try:
        return json.loads(data.decode("utf-8"), object_pairs_hook=members)
    except (ValueError, RecursionError):
        raise Bad("bundle_altered", f"{name} is not JSON") from None


def sha256(*parts: bytes) -> str:
    """A digest as records write it."""
    return "sha256:" + hashlib.sha256(b"".join(parts)).hexdigest()


# The tree.


def node(left: bytes, right: bytes) -> bytes:
    """Two subtrees."""
    return hashlib.sha256(b"\x01" + left + right).digest()


def leads_to(leaf: bytes, n: int, size: int, path: list[bytes], root: bytes) -> bool:
    """Whether a path leads from the n-th leaf to the root of a tree (RFC 9162, 2.1.3.2)."""
    if n >= size:
        return False
    at, last = n, size - 1
    for step in path:
        if last == 0:
            return False
        if at & 1 or at == last:
            leaf = node(step, leaf)
            while not at & 1 and at:
                at, last = at >> 1, last >> 1
        else:
            leaf = node(leaf, step)
        at, last = at >> 1, last >> 1
    return last == 0 and leaf == root


def goes_on(old: tuple[int, bytes], new: tuple[int, bytes], path: list[bytes]) -> bool:
    """Whether a path shows that a tree begins with an older one (RFC 9162, 2.1.4.2)."""
    (size, root), (new_size, new_root) = old, new
    if size in (0, new_size):
        return size <= new_size and not path and (size == 0 or root == new_root)
    steps = [root, *path] if size & (size - 1) == 0 else list(path)
    if size > new_size or not steps:
        return False
    at, last = size - 1, new_size - 1
    while at & 1:
        at, last = at >> 1, last >> 1
    before = after = steps[0]
    for step in steps[1:]:
        if last == 0:
            return False
        if at & 1 or at == last:
            before, after = node(step, before), node(step, after)
            while not at & 1 and at:
                at, last = at >> 1, last >> 1
        else:
            after = node(after, step)
        at, last = at >> 1, last >> 1
    return last == 0 and (before, after) == (root, new_root)


def checkpoint(text: str) -> tuple[str, int, bytes]:
    """Origin, size and root of a seal."""
    try:
        lines = text[: text.rindex("\n\n") + 1].split("\n")
        return lines[0], int(lines[1]), base64.b64decode(lines[2], validate=True)
    except (ValueError, IndexError):
        raise Bad("bad_seal", "the seal cannot be read") from None


def signed(text: str, key: str) -> str | None:
    """Who has signed a seal, and when, if a witness; None if there is nothing here to check that with."""
    name, _, rest = key.partition("+")
    _, _, coded = rest.partition("+")
    try:
        public = base64.b64decode(coded, validate=True)
    except ValueError:
        raise Bad("bad_key", "the key is not <name>+<id>+<key>") from None
    if len(public) != 33 or public[0] not in (1, 4):
        raise Bad("bad_key", "the key is not <name>+<id>+<key>")
    number = hashlib.sha256(name.encode() + b"\n" + public).digest()[:4]
    at = text.rindex("\n\n") + 1
    body = text[:at]
    marks = [line.split(" ") for line in text[at + 1 :].splitlines()]
    own = [base64.b64decode(parts[2]) for parts in marks if len(parts) == 3 and parts[1] == name]
    found = next((mark[4:] for mark in own if mark[:4] == number), None)
    if found is None:
        raise Bad("seal_unsigned", f"no signature of the key {name} is on the seal")
    who = name
    if public[0] == 4:  # a witness signs with a time
        when, found = int.from_bytes(found[:8], "big"), found[8:]
        body, who = f"cosignature/v1\ntime {when}\n{body}", f"{name} at {when}"
    try:
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    except ImportError:
        return None
    try:
        Ed25519PublicKey.from_public_bytes(public[1:]).verify(found, body.encode())
    except (InvalidSignature, ValueError):
        raise Bad("seal_forged", f"the signature of {name} is not its own, or of another text") from None
    return who
