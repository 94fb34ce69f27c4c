"""What Holdfast raises: one class per operation, a stable ``code`` for programs, text for people.

Every code has a page in ``docs/errors``. Messages never contain users' values, only places and types.
"""

from __future__ import annotations


class HoldfastError(Exception):
    """The base of everything that Holdfast raises on purpose.

    Attributes:
        code: the stable code, as in ``docs/errors``.
        fix: what to do about it, in one sentence.
        path: where in the value, when there is a value.
    """

    def __init__(self, message: str, *, code: str, fix: str = "", path: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.fix = fix
        self.path = path

    def __str__(self) -> str:
        text = f"{self.code}: {self.args[0]}"
        return f"{text}. {self.fix}" if self.fix else text


class CanonicalError(HoldfastError, ValueError):
    """A value that has no canonical bytes, or text that is not JSON."""


class RecordError(HoldfastError, ValueError):
    """A record, a contract or an id that is not what it should be."""


class CommandError(HoldfastError):
    """A command on a run that was refused. It has changed nothing."""


class StoreError(HoldfastError):
    """A store that cannot be opened or used, or that took nothing more."""


class StateError(HoldfastError, ValueError):
    """A state that cannot be patched."""


class VerifyError(HoldfastError):
    """The first thing that is wrong with a stream, a bundle, a seal or a key.

    Attributes:
        stream: the stream's id, where it is about one.
        seq: the place of the first bad record, where it is about one.
    """

    def __init__(
        self, message: str, *, code: str, fix: str = "", stream: str | None = None, seq: int | None = None
    ) -> None:
        super().__init__(message, code=code, fix=fix)
        self.stream = stream
        self.seq = seq
