"""Where an export goes: a file that gets its name only when it is whole, or anything that takes bytes."""

from __future__ import annotations

import os
import tempfile
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING

from holdfast.errors import HoldfastError
from holdfast.gateway.outcomes import fix

if TYPE_CHECKING:
    from collections.abc import Iterator

Out = str | Path | IO[bytes]
EXTRAS = {"otel": "opentelemetry", "parquet": "pyarrow"}


class ExportError(HoldfastError):
    """An export that could not be made: ``extra_missing`` or ``export_failed``."""


def failed(code: str, message: str) -> ExportError:
    """The error of a code."""
    return ExportError(message, code=code, fix=fix(code))


@contextmanager
def extra(name: str) -> Iterator[None]:
    """Imports what only an extra installs.

    Raises:
        ExportError: ``extra_missing``, with the command that installs it.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != EXTRAS[name]:
            raise
        command = f"pip install 'holdfast[{name}]'"
        raise failed("extra_missing", f"{EXTRAS[name]} is not installed: {command}") from None


@contextmanager
def opened(out: Out) -> Iterator[IO[bytes]]:
    """A file for the bytes of an export; if the export fails, there is none, or the one that was there."""
    if not isinstance(out, str | Path):
        yield out
        return
    target = Path(out)
    made, part = tempfile.mkstemp(prefix=f".{target.name}.", suffix=".part", dir=target.parent)
    try:
        with os.fdopen(made, "wb") as file:
            yield file
        Path(part).replace(target)
    except BaseException:
        with suppress(OSError):
            Path(part).unlink()
        raise
