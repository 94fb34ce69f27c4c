"""Keys that seal: one line each. The secret one lives in a file that only its owner reads and never in a
store; the public one is for everybody who verifies.
"""

from __future__ import annotations

import os
from pathlib import Path

from holdfast import _core
from holdfast.errors import StoreError, VerifyError
from holdfast.secrets import Secret
from holdfast.store.reading import FIXES

ROTATED = "holdfast/rotated/v1"
Key = Secret[str] | str | Path


def generate(name: str, path: str | Path, *, witness: bool = False) -> str:
    """Makes a key, writes its secret line into a new file and returns the public one.

    Args:
        name: who signs, for example ``example.com/refunds``; it stands on every seal.
        path: a file that does not exist yet.
        witness: a key that says when it has seen a seal, instead of one that seals.
    """
    secret, public = _core.key_generate(name, witness)
    _write(Path(path), secret)
    return public


def _write(path: Path, secret: str) -> None:
    try:
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise StoreError(f"{path} exists", code="target_exists", fix=FIXES["target_exists"]) from None
    except OSError as error:
        told = f"cannot write {path}: {error.strerror}"
        raise StoreError(told, code="no_permission", fix=FIXES["no_permission"]) from None
    with os.fdopen(file, "w") as out:
        out.write(f"{secret}\n")


def read(key: Key) -> str:
    """The secret line of a key: of a file, or as it was passed. A plain text is always a file's name."""
    if isinstance(key, Secret):
        return str(key.reveal()).strip()
    try:
        return Path(key).read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        told = f"the key cannot be read: {type(error).__name__}"
        raise VerifyError(told, code="bad_key", fix=FIXES["bad_key"]) from None


def sealing(key: Key) -> str:
    """The secret line of a key that seals; a witness's does not."""
    secret = read(key)
    if _core.key_read(_core.key_public(secret))[1]:
        raise VerifyError("a witness's key does not seal", code="bad_key", fix=FIXES["bad_key"])
    return secret


def public(key: Key) -> str:
    """The public line of a secret key."""
    return _core.key_public(read(key))


def rotate(old: Key, path: str | Path, *, name: str | None = None) -> tuple[str, str]:
    """Makes a new key in the place of an old one: its public line, and a statement that both have signed.

    Publish the statement beside the old public line: who trusts the old key can follow to the new one.
    """
    secret = sealing(old)
    before = _core.key_public(secret)
    called = name or before.partition("+")[0]
    fresh, after = _core.key_generate(called, False)
    _write(Path(path), fresh)
    return after, _core.note_sign(f"{ROTATED}\n{before}\n{after}\n", [secret, fresh])


def follow(trusted: str, statement: str) -> str:
    """The key that a statement of rotation hands over to, if the trusted key and the new one say so."""
    text, _ = _core.note_open(statement, trusted)
    lines = text.splitlines()
    if len(lines) != 3 or lines[0] != ROTATED or lines[1] != trusted:
        told = "the statement is not about this key's rotation"
        raise VerifyError(told, code="bad_seal", fix=FIXES["bad_seal"])
    _core.note_open(statement, lines[2])
    return lines[2]
