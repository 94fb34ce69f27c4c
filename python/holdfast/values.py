"""Python values as JSON, by one rule.

pydantic's JSON mode decides what a value becomes, with two exceptions that make the result the same
in every process: sets become lists sorted by canonical bytes (their own order changes from process
to process), and NaN and infinities are refused (pydantic would write null).

Models and dataclasses are dumped by pydantic itself, aliases and custom serializers included, and the
dump is then compared with the object it came from, part by part, to find the lists that were sets.
Where a custom serializer changed a set so that its parts are no longer recognised, the value is
refused: an order that nobody chose must not reach a digest.
"""

from __future__ import annotations

import dataclasses
import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from enum import Enum
from typing import Final, NoReturn, TypeAlias, cast

from pydantic import BaseModel, RootModel
from pydantic_core import to_jsonable_python

from holdfast._core import canonical_dumps, error_codes
from holdfast.errors import CanonicalError
from holdfast.secrets import Secret

Json: TypeAlias = dict[str, "Json"] | list["Json"] | str | int | float | bool | None
"""What JSON can say."""

DEPTH_MAX: Final = 64
"""The core's limit on nesting; kept here too because a walk in Python has to stop on its own."""
VALUES_MAX: Final = 1_000_000
"""The core's limit on values: shared references can make a small object endless."""

_AS_IS: Final = frozenset({str, int, bool, type(None)})
_FIXES: Final = dict(error_codes())


def to_json(value: object) -> Json:
    """Turns a Python value into JSON; what is JSON already comes back equal.

    Raises:
        CanonicalError: with the path of what has no JSON form (``not_json``), is not finite
            (``not_finite``), has keys that become the same text (``duplicate_key``) or that are no
            text at all (``key_not_string``), or is over the limits (``too_deep``, ``too_many_values``).
    """
    # Nearly every value is JSON already. The encoder finds out in a tenth of the time that a walk in
    # Python takes; after it, pydantic has nothing left to decide and only copies.
    try:
        canonical_dumps(value)
    except CanonicalError as error:
        if error.code in ("too_deep", "too_many_values"):
            raise
        return _walked(value)
    return cast("Json", to_jsonable_python(value))


def _walked(value: object) -> Json:
    try:
        return _Walk().value(value, 0)
    except _RefusedError as refused:
        path = "$" + "".join(reversed(refused.steps))
        message = f"{refused.args[0]} (at {path})"
        error = CanonicalError(message, code=refused.code, fix=_FIXES[refused.code], path=path)
        raise error from refused.__cause__


class _RefusedError(Exception):
    """A refusal on its way out; every level that it passes adds its step of the path."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.steps: list[str] = []


class _Walk:
    """One conversion: what is left of the number of values that it may visit."""

    def __init__(self) -> None:
        self.room = VALUES_MAX

    def value(self, value: object, depth: int) -> Json:
        """Any value; the exact types of JSON come first because they are nearly all of them."""
        kind = type(value)
        if kind in _AS_IS:
            return value  # type: ignore[return-value]  # one of str, int, bool and None
        if kind is float:
            return _finite(value)  # type: ignore[arg-type]  # exactly a float
        if isinstance(value, dict):
            return self.mapping(value, depth)
        if isinstance(value, list | tuple | deque):
            return self.sequence(value, depth)
        return self.other(value, depth)

    def other(self, value: object, depth: int) -> Json:
        """What is neither a JSON type nor a container of one shape."""
        match value:
            case Enum():
                return self.value(value.value, depth)
            case str():
                return str.__str__(value)
            case int():
                return int.__int__(value)
            case float():
                return _finite(float.__float__(value))
            case set() | frozenset():
                return _in_order(self.sequence(value, depth, in_set=True))
            case BaseModel():
                return self.dumped(value, depth)
            case Secret():
                _refuse("secret_value", "a secret is not stored")
            case type():
                _refuse("not_json", f"a value of type {_name(value)} is not JSON")
            case Iterator():
                return self.sequence(value, depth)
        if dataclasses.is_dataclass(value):
            return self.dumped(value, depth)
        return self.value(_pydantic(value), depth)

    def sequence(self, items: Iterable[object], depth: int, *, in_set: bool = False) -> list[Json]:
        """The items in their order. The place of an item in a set means nothing, so no path names it."""
        self.enter(depth)
        result: list[Json] = []
        for item in items:
            self.count()
            try:
                result.append(self.value(item, depth + 1))
            except _RefusedError as refused:
                refused.steps.append("" if in_set else f"[{len(result)}]")
                raise
        return result

    def mapping(self, members: dict[object, object], depth: int) -> dict[str, Json]:
        """The members under their keys' text."""
        self.enter(depth)
        result: dict[str, Json] = {}
        for key, member in members.items():
            self.count()
            text = key if type(key) is str else _key(key)
            if text in result:
                _refuse("duplicate_key", "two keys of an object become the same text", _step(text))
            try:
                result[text] = self.value(member, depth + 1)
            except _RefusedError as refused:
                refused.steps.append(_step(text))
                raise
        return result

    def dumped(self, value: object, depth: int) -> Json:
        """A model or dataclass, by pydantic, with its sets in order."""
        self.enter(depth)
        _Walk().measure(value, depth)
        return self.aligned(value, _pydantic(value), depth)

    def measure(self, value: object, depth: int) -> bool:
        """Visits all that pydantic will dump, within the limits; says whether there is a set in it."""
        parts = _parts(value)
        if parts is None:
            return False
        self.enter(depth)
        found = isinstance(value.value if isinstance(value, Enum) else value, set | frozenset)
        for step, part in parts:
            self.count()
            try:
                found |= self.measure(part, depth + 1)
            except _RefusedError as refused:
                refused.steps.append(step)
                raise
        return found

    def aligned(self, value: object, dump: object, depth: int) -> Json:
        """The dump of ``value`` with every list that was a set in order."""
        self.count()
        if isinstance(value, Enum):
            return self.aligned(value.value, dump, depth)
        if isinstance(value, RootModel):
            return self.aligned(value.root, dump, depth)
        if isinstance(value, float) and not math.isfinite(value) and not isinstance(dump, str):
            return _finite(value)
        if not isinstance(dump, list | dict):
            return self.value(dump, depth)
        if isinstance(value, Iterator):
            _refuse("not_json", "an iterator inside a model cannot be looked at twice")
        if isinstance(value, set | frozenset | list | tuple | deque):
            if isinstance(dump, list) and len(value) == len(dump):
                return self.aligned_list(value, dump, depth)
        elif isinstance(dump, dict):
            parts = self.named(value, dump, depth)
            if parts is not None:
                return self.aligned_dict(parts, dump, depth)
        if _Walk().measure(value, depth):
            _refuse("not_json", "a set that a custom serializer changed has no order of its own")
        return self.value(dump, depth)

    def named(self, value: object, dump: dict[str, object], depth: int) -> dict[str, object] | None:
        """What stands behind each member of a dump that must be looked at, if that can be told."""
        if isinstance(value, dict):
            if len(value) != len(dump):
                self.mapping(dict.fromkeys(value), depth)  # refuses two keys that became one
                return None
            moved = any(type(key) is str and key != name for key, name in zip(value, dump, strict=True))
            return None if moved else dict(zip(dump, value.values(), strict=True))
        if isinstance(value, BaseModel) or _is_data(value):
            parts = _fields(value)
            own = any(key not in parts and isinstance(dump[key], list | dict) for key in dump)
            return None if own else parts
        return None

    def aligned_list(self, value: Iterable[object], dump: list[object], depth: int) -> list[Json]:
        """Items beside their dumps: a set that nobody touches is iterated in the same order each time."""
        in_set = isinstance(value, set | frozenset)
        result: list[Json] = []
        for item, dumped in zip(value, dump, strict=True):
            try:
                result.append(self.aligned(item, dumped, depth + 1))
            except _RefusedError as refused:
                refused.steps.append("" if in_set else f"[{len(result)}]")
                raise
        return _in_order(result) if in_set else result

    def aligned_dict(self, parts: dict[str, object], dump: dict[str, object], depth: int) -> dict[str, Json]:
        """Members beside their dumps; a scalar that only the dump has is its serializer's own."""
        result: dict[str, Json] = {}
        for key, dumped in dump.items():
            try:
                result[key] = self.aligned(parts.get(key), dumped, depth + 1)
            except _RefusedError as refused:
                refused.steps.append(_step(key))
                raise
        return result

    def enter(self, depth: int) -> None:
        """Refuses a level too many; also what ends a value that contains itself."""
        if depth >= DEPTH_MAX:
            _refuse("too_deep", f"nested deeper than {DEPTH_MAX} levels")

    def count(self) -> None:
        """Refuses a value too many; also what ends an endless iterator."""
        self.room -= 1
        if self.room <= 0:
            _refuse("too_many_values", f"more than {VALUES_MAX} values")


def _refuse(code: str, message: str, *steps: str) -> NoReturn:
    refused = _RefusedError(code, message)
    refused.steps.extend(steps)
    raise refused


def _name(value: object) -> str:
    return type(value).__qualname__


def _finite(value: float) -> float:
    if not math.isfinite(value):
        _refuse("not_finite", "NaN and infinities are not JSON")
    return value


def _pydantic(value: object) -> object:
    """What pydantic makes of a value. Its reasons may quote the value, so ours name only the type."""
    try:
        return to_jsonable_python(value)
    except Exception as error:
        refused = _RefusedError("not_json", f"a value of type {_name(value)} is not JSON")
        raise refused from error


def _key(key: object) -> str:
    """A key's text, as pydantic gives it; containers as keys would need an order of their own."""
    if isinstance(key, Enum):
        return _key(key.value)
    if isinstance(key, float):
        _finite(key)
    if _parts(key) is not None:
        _refuse("key_not_string", f"an object key of type {_name(key)} is not a string")
    if isinstance(key, str):
        return str.__str__(key)
    dump = _pydantic({key: None})
    (text,) = dump if isinstance(dump, dict) else ("",)
    return text


def _step(key: str) -> str:
    """One more member in a path, spelled as the core spells it."""
    if 0 < len(key) <= 64 and key.isascii() and key.replace("_", "a").isalnum():
        return f".{key}"
    return '["' + "".join(map(_shown, key[:32])) + ("..." if len(key) > 32 else "") + '"]'


def _shown(character: str) -> str:
    short = {"\t": "\\t", "\n": "\\n", "\r": "\\r", "'": "\\'", '"': '\\"', "\\": "\\\\"}
    plain = " " <= character <= "~"
    return short.get(character) or (character if plain else f"\\u{{{ord(character):x}}}")


def _in_order(items: list[Json]) -> list[Json]:
    """Items of a set, sorted by their canonical bytes."""
    by_bytes: Callable[[Json], bytes] = canonical_dumps
    return sorted(items, key=by_bytes)


def _is_data(value: object) -> bool:
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


def _fields(value: object) -> dict[str, object]:
    """What a model or dataclass holds, by the names that its dump uses."""
    if not isinstance(value, BaseModel):
        aliases = getattr(type(value), "__pydantic_fields__", {})
        names = [field.name for field in dataclasses.fields(value)]  # type: ignore[arg-type]
        return {_alias(aliases.get(name), name): getattr(value, name, None) for name in names}
    kind = type(value)
    fields = {_alias(field, name): getattr(value, name, None) for name, field in kind.model_fields.items()}
    computed = {
        _alias(field, name): _computed(value, name) for name, field in kind.model_computed_fields.items()
    }
    return {**(value.model_extra or {}), **fields, **computed}


def _computed(model: BaseModel, name: str) -> object:
    """A computed field, computed again: the order inside a new set may be another than in the dump."""
    try:
        value: object = getattr(model, name)
    except Exception as error:
        raise _RefusedError("not_json", "a computed field raised an error") from error
    if _set_in_set(value, DEPTH_MAX):
        _refuse("not_json", "a computed field that holds sets in sets has no order of its own", _step(name))
    return value


def _set_in_set(value: object, levels: int) -> bool:
    parts = [part for _, part in _parts(value) or ()] if levels else []
    if isinstance(value, set | frozenset):
        return any(_Walk().measure(part, 0) for part in parts)
    return any(_set_in_set(part, levels - 1) for part in parts)


def _alias(field: object, name: str) -> str:
    alias = getattr(field, "serialization_alias", None) or getattr(field, "alias", None)
    return alias if isinstance(alias, str) else name


def _parts(value: object) -> Iterable[tuple[str, object]] | None:
    """The steps to what is inside a container, a model or a dataclass, and None for anything else."""
    if isinstance(value, Enum):
        return _parts(value.value)
    if isinstance(value, dict):
        return ((_step(key) if isinstance(key, str) else "[?]", part) for key, part in value.items())
    if isinstance(value, list | tuple | deque):
        return ((f"[{at}]", part) for at, part in enumerate(value))
    if isinstance(value, set | frozenset):
        return (("", part) for part in value)
    if isinstance(value, RootModel):
        return iter([("", value.root)])
    if isinstance(value, BaseModel) or _is_data(value):
        return ((_step(key), part) for key, part in _fields(value).items())
    return None
