"""Secrets: values that tools get and nobody keeps. What is stored of one is its name and a digest that says
nothing without the run's seed; wherever a text of ours could hold its value, the value is taken out.
"""

from __future__ import annotations

import base64
import json
import re
import threading
import weakref
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeVar
from urllib.parse import quote, quote_plus

from pydantic_core import core_schema

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
    from pydantic.json_schema import JsonSchemaValue

T = TypeVar("T", str, bytes)

SHORTEST = 4
"""A shorter value would be taken out of texts that have nothing to do with it."""

HANDLE = "$secret"


class Secret(Generic[T]):
    """A value that is given to a tool and never stored, logged or shown.

    A tool declares a parameter as ``hf.Secret[str]`` and calls :meth:`reveal` where it needs the value. Agent
    code passes ``hf.Secret(value, name="stripe")``, in every attempt anew: the journal has only the name.
    """

    __slots__ = ("__weakref__", "_value", "name")

    def __init__(self, value: T, *, name: str) -> None:
        if not isinstance(value, str | bytes):
            raise TypeError("a secret is a str or bytes")
        if len(value) < SHORTEST:
            raise ValueError(f"a secret has at least {SHORTEST} characters")
        if isinstance(value, str) and any("\ud800" <= character <= "\udfff" for character in value):
            raise ValueError("a secret that is no text is given as bytes")
        self._value: T = value
        self.name: str = name
        with _LOCK:
            _LIVING.add(self)

    def reveal(self) -> T:
        """The value itself. Give it to the provider, and to nobody else."""
        return self._value

    def text(self) -> str:
        """The value as a text, for digests and for taking it out of others."""
        return self._value if isinstance(self._value, str) else self._value.decode("latin-1")

    def __repr__(self) -> str:
        return f"Secret(name={self.name!r})"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a secret is not pickled")

    @classmethod
    def __get_pydantic_core_schema__(
        cls, source: object, handler: GetCoreSchemaHandler
    ) -> core_schema.CoreSchema:
        """Takes a secret, or what stands for one in the journal."""
        return core_schema.no_info_plain_validator_function(_secret_or_handle)

    @classmethod
    def __get_pydantic_json_schema__(
        cls, schema: core_schema.CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        """What stands for a secret in the journal."""
        text = {"type": "string"}
        members = {HANDLE: text, "digest": text}
        return {"properties": members, "required": [HANDLE, "digest"], "type": "object"}


_LOCK = threading.Lock()
_LIVING: weakref.WeakSet[Secret[Any]] = weakref.WeakSet()


def _secret_or_handle(value: object) -> object:
    if isinstance(value, Secret) or is_handle(value):
        return value
    raise ValueError("pass a secret as hf.Secret(value, name=...)")


def is_handle(value: object) -> bool:
    """Whether a value stands for a secret."""
    return isinstance(value, dict) and value.keys() == {HANDLE, "digest"}


def handle(secret: Secret[Any], digest: str) -> dict[str, str]:
    """What stands for a secret in the journal."""
    return {HANDLE: secret.name, "digest": digest}


def _spellings(secret: Secret[Any]) -> Iterator[str]:
    """How a value may come to stand in a text."""
    text = secret.text()
    raw = text.encode("utf-8") if isinstance(secret.reveal(), str) else secret.reveal()
    yield text
    for ascii_only in (True, False):
        escaped = json.dumps(text, ensure_ascii=ascii_only)[1:-1]
        yield escaped
        yield escaped.replace("/", "\\/")
    yield repr(text)[1:-1]
    yield repr(raw)[2:-1]
    yield from _base64(raw)
    yield quote(raw, safe="")
    yield quote(raw)
    yield quote_plus(raw)
    yield raw.hex()
    yield "".join(f"%{byte:02x}" for byte in raw)


def _base64(raw: bytes) -> Iterator[str]:
    """The characters that stand for the value alone, wherever it begins in what was encoded."""
    for before in range(3):
        padded = b"\0" * before + raw
        whole = len(padded) // 3 * 3
        begin = 4 if before else 0  # the first group is made of what stands before it, too
        for encoded in (base64.b64encode(padded[:whole]), base64.urlsafe_b64encode(padded[:whole])):
            if len(encoded) - begin >= SHORTEST:
                yield encoded.decode()[begin:]


def _known() -> list[tuple[str, str]]:
    with _LOCK:
        living = list(_LIVING)
    found = {spelled: secret.name for secret in living for spelled in _spellings(secret)}
    # The longest first, so that no part of one is left where it is a part of another.
    return sorted(found.items(), key=lambda item: -len(item[0]))


def scrub(text: str) -> str:
    """A text without the values of any secret of this process."""
    if not _LIVING:
        return text
    for spelled, name in _known():
        if spelled in text:
            text = text.replace(spelled, f"[secret {name}]")
        elif _is_hex(spelled) and spelled in text.lower():
            text = re.sub(re.escape(spelled), f"[secret {name}]", text, flags=re.IGNORECASE)
    return text


def _is_hex(spelled: str) -> bool:
    """Hex and percent-encoding are the same in capitals."""
    return all(character in "0123456789abcdef%" for character in spelled)


def scrubbed(value: Any) -> Any:  # noqa: ANN401 (any JSON)
    """The same for every text in a JSON value."""
    if not _LIVING:
        return value
    if isinstance(value, str):
        return scrub(value)
    if isinstance(value, list):
        return [scrubbed(item) for item in value]
    if isinstance(value, dict):
        return {scrub(name): scrubbed(item) for name, item in value.items()}
    return value


def holds_secret(value: object) -> bool:
    """Whether a secret stands anywhere in a value of lists and dicts."""
    if not _LIVING:
        return False
    if isinstance(value, list | tuple):
        return any(holds_secret(item) for item in value)
    if isinstance(value, dict):
        return any(holds_secret(item) for item in value.values())
    return isinstance(value, Secret)


def tells(error: BaseException | None) -> bool:
    """Whether an error, or one that led to it, has a secret in what it would print."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        try:
            told = "\n".join((str(error), repr(error), *map(str, getattr(error, "__notes__", ()))))
        except Exception:
            return True  # it cannot say what it is: nobody prints it
        if scrub(told) != told:
            return True
        members = getattr(error, "exceptions", ())
        if any(tells(member) for member in members):
            return True
        error = error.__cause__ or error.__context__
    return False
