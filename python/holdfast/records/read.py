"""Reading facts from outside: pydantic's complaints become the core's codes and paths.

One table maps pydantic's error types to codes; what is not in it is ``bad_value``. Of several faults
the one is told that the core would find first: fields in their order, and what is missing after them.
Messages name fields and tokens, never values.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeVar

from pydantic import TypeAdapter, ValidationError

from holdfast._core import canonical_dumps, canonical_loads, error_codes
from holdfast.errors import RecordError
from holdfast.records.base import NULL, WIRE

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

T = TypeVar("T")

FIXES: Final = dict(error_codes())

CODES: Final[dict[str, str]] = {
    "missing": "missing_field",
    "no_content": "missing_field",
    "union_tag_not_found": "missing_field",
    "beside": "unknown_field",
    "extra_forbidden": "unknown_field",
    "literal_error": "unknown_token",
    "union_tag_invalid": "unknown_token",
    "bool_type": "wrong_type",
    "dict_type": "wrong_type",
    "int_type": "wrong_type",
    "list_type": "wrong_type",
    "model_attributes_type": "wrong_type",
    "model_type": "wrong_type",
    "string_type": "wrong_type",
    "tuple_type": "wrong_type",
    "bad_length": "bad_value",
    "greater_than_equal": "bad_value",
    "less_than_equal": "bad_value",
    "string_pattern_mismatch": "bad_value",
    "string_too_long": "bad_value",
    "value_error": "bad_value",
}
"""The code of each error type that our models can raise. Any other is ``bad_value``."""


def refusal(code: str, path: str, message: str) -> RecordError:
    """The error of a record or a contract."""
    return RecordError(f"{message} (at {path})", code=code, fix=FIXES[code], path=path)


def read(adapter: TypeAdapter[T], value: object) -> T:
    """Reads a typed value from JSON as Python objects, as the core would read it.

    Raises:
        RecordError: with the code and the path of the first fault.
        CanonicalError: if the value is not JSON.
    """
    tree = canonical_loads(canonical_dumps(value))  # so that 1.0 is 1 and nothing but JSON comes through
    try:
        return adapter.validate_python(tree, context=WIRE, by_alias=True, by_name=False)
    except ValidationError as error:
        raise _first(error, tree) from None


def _first(error: ValidationError, tree: object) -> RecordError:
    faults = [_Fault(detail, tree) for detail in error.errors(include_url=False)]
    fault = min(faults, key=lambda fault: fault.order)
    return refusal(fault.code, fault.path, fault.message)


class _Fault:
    """One complaint of pydantic, in the core's words."""

    def __init__(self, detail: ErrorDetails, tree: object) -> None:
        context: dict[str, Any] = detail.get("ctx", {})
        kind, found = detail["type"], detail["input"]
        steps = _within(detail["loc"], tree, missing=kind == "missing")
        tag = str(context.get("discriminator", "")).strip("'")
        if kind == "missing":
            *steps, name = steps
        elif kind == "union_tag_not_found":
            name = tag
        elif kind == "no_content":
            name = context["field"]
        elif kind == "beside":
            steps.append(context["field"])
        elif kind == "union_tag_invalid":
            steps.append(tag)
            found = found[tag]
        self.code = CODES.get(kind, "bad_value")
        if found is NULL or (self.code == "unknown_token" and not isinstance(found, str)):
            self.code = "wrong_type"
        self.path = _spell(steps)
        # What is missing is found after everything that is there.
        self.order = [(0, step) for step in steps] + ([(1, "")] if self.code == "missing_field" else [])
        match self.code:
            case "missing_field":
                self.message = f"missing field '{name}'"
            case "unknown_field":
                self.message = f"unknown field '{str(steps[-1])[:64]}'"
            case _:
                self.message = "null where a field may be absent" if found is NULL else detail["msg"]


def _within(location: tuple[int | str, ...], tree: object, *, missing: bool) -> list[int | str]:
    """The steps of a location that lead through the value: pydantic names the tags of unions as well."""
    steps: list[int | str] = []
    for step in location:
        match tree:
            case dict() if step in tree:
                tree = tree[step]
            case list() if isinstance(step, int) and step < len(tree):
                tree = tree[step]
            case _ if not (missing and step is location[-1]):
                continue
        steps.append(step)
    return steps


def _spell(steps: list[int | str]) -> str:
    return "$" + "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in steps)
