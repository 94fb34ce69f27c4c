"""What every fact is made of: the base model and the types of fields.

A :class:`Fact` is the Python twin of a Rust struct: closed, frozen and strict, with the same fields,
patterns and tokens. What is absent is omitted: a fact is written without its ``None`` fields, and the
readers in :mod:`holdfast.records.read` refuse an explicit null (``WIRE`` is how they say that the value
comes from outside). Code may construct facts with ``None``. Nulls inside free maps are data and stay.
"""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Final, Literal, TypeAlias, cast

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    JsonValue,
    SerializerFunctionWrapHandler,
    Strict,
    StringConstraints,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    model_serializer,
    model_validator,
)
from pydantic_core import PydanticCustomError

Json: TypeAlias = JsonValue
"""What JSON can say, as pydantic checks it."""

WIRE: Final = object()
"""The validation context of values from outside, where null does not stand for absent."""

NULL: Final = object()
"""Put in the place of such a null, so that its field refuses it in its turn."""

NAME_CHARS_MAX: Final = 256
KEY_CHARS_MAX: Final = 512
TEXT_CHARS_MAX: Final = 2048
RECORD_BYTES_MAX: Final = 256 * 1024
INTEGER_MAX: Final = 2**53 - 1


class Nullable:
    """Marks an optional field that is written as null when it is absent: the source's spelling."""


class Fact(BaseModel):
    """A closed, frozen, strict model that is written without what is absent."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        strict=True,
        validate_by_name=True,
        validate_by_alias=True,
        serialize_by_alias=True,
    )

    omitted: ClassVar[frozenset[str]] = frozenset()
    """The fields, under all their names, that are omitted when they are absent."""

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:  # noqa: ANN401 (pydantic's signature)
        super().__pydantic_init_subclass__(**kwargs)
        absent = {
            name: field
            for name, field in cls.model_fields.items()
            if not field.is_required() and not any(isinstance(mark, Nullable) for mark in field.metadata)
        }
        cls.omitted = frozenset(absent) | {field.alias for field in absent.values() if field.alias}

    @model_validator(mode="before")
    @classmethod
    def _refuse_null(cls, value: object, info: ValidationInfo) -> object:
        # On the whole model, not per field: pydantic allows no such validator on a union's tag.
        if info.context is WIRE and isinstance(value, Mapping):
            nulls = [name for name in cls.omitted & value.keys() if value[name] is None]
            if nulls:
                return {**value, **dict.fromkeys(nulls, NULL)}
        return value

    @model_serializer(mode="wrap")
    def _omit_absent(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        written: dict[str, Any] = handler(self)
        return {key: value for key, value in written.items() if value is not None or key not in self.omitted}


def adjacent(tag: str, content: str) -> BeforeValidator:
    """Marks a union whose tag and content stand side by side: what else stands there is found first."""

    def check(value: object) -> object:
        if isinstance(value, Mapping) and isinstance(value.get(tag), str):
            for name in sorted(value.keys() - {tag, content}):
                raise PydanticCustomError("beside", "neither tag nor content", {"field": name})
            if content not in value:
                raise PydanticCustomError("no_content", "a tag without content", {"field": content})
        return value

    return BeforeValidator(check)


def _pair(value: object, handler: ValidatorFunctionWrapHandler) -> tuple[int, int]:
    """JSON has no tuples; a list of another length is a bad value, and told after what is in it."""
    if not isinstance(value, list):
        return cast("tuple[int, int]", handler(value))
    pair: tuple[int, int] = handler((*value, 0, 0)[:2])
    if len(value) != 2:
        raise PydanticCustomError("bad_length", "a fence has two numbers")
    return pair


# A UUIDv7 in 26 characters has its version in the eleventh and its variant in the fourteenth.
_BODY: Final = "_[0-7][0-9a-hjkmnp-tv-z]{9}[ef][0-9a-hjkmnp-tv-z]{2}[89abrstv][0-9a-hjkmnp-tv-z]{12}"
_PRINTABLE: Final = r"^[^\u0000-\u001f\u007f]+$"

U64: TypeAlias = Annotated[int, Strict(), Field(ge=0, le=INTEGER_MAX)]
U32: TypeAlias = Annotated[int, Strict(), Field(ge=0, le=2**32 - 1)]
I32: TypeAlias = Annotated[int, Strict(), Field(ge=-(2**31), le=2**31 - 1)]
Flag: TypeAlias = Annotated[bool, Strict()]

Name: TypeAlias = Annotated[
    str, StringConstraints(strict=True, pattern=_PRINTABLE, max_length=NAME_CHARS_MAX)
]
"""A name that people see: agent, tool, queue, worker, lane, signal."""
Key: TypeAlias = Annotated[str, StringConstraints(strict=True, pattern=_PRINTABLE, max_length=KEY_CHARS_MAX)]
"""A key that callers give: idempotency, concurrency."""
Token: TypeAlias = Annotated[
    str, StringConstraints(strict=True, pattern=r"^[a-z0-9_]+(\.[a-z0-9_]+)*$", max_length=NAME_CHARS_MAX)
]
"""A code for programs: ``approval.timeout``."""
Media: TypeAlias = Annotated[
    str,
    StringConstraints(
        strict=True, pattern=r"^[A-Za-z0-9!#$&^_.+-]+/[A-Za-z0-9!#$&^_.+-]+$", max_length=NAME_CHARS_MAX
    ),
]
"""A media type without parameters."""
Text: TypeAlias = Annotated[
    str, StringConstraints(strict=True, pattern=r"^[\s\S]*$", max_length=TEXT_CHARS_MAX)
]
"""Short free text that holds no user's value: a summary that was made to be shown."""

Sha256: TypeAlias = Annotated[str, StringConstraints(strict=True, pattern="^sha256:[0-9a-f]{64}$")]
Hmac256: TypeAlias = Annotated[str, StringConstraints(strict=True, pattern="^hmac:[0-9a-f]{64}$")]

StoreId: TypeAlias = Annotated[str, StringConstraints(strict=True, pattern="^sto" + _BODY + "$")]
RunId: TypeAlias = Annotated[str, StringConstraints(strict=True, pattern="^run" + _BODY + "$")]
SessionId: TypeAlias = Annotated[str, StringConstraints(strict=True, pattern="^ses" + _BODY + "$")]
StepId: TypeAlias = Annotated[str, StringConstraints(strict=True, pattern="^step" + _BODY + "$")]
CallId: TypeAlias = Annotated[str, StringConstraints(strict=True, pattern="^call" + _BODY + "$")]
ApprovalId: TypeAlias = Annotated[str, StringConstraints(strict=True, pattern="^apr" + _BODY + "$")]
GrantId: TypeAlias = Annotated[str, StringConstraints(strict=True, pattern="^grant" + _BODY + "$")]
ArtifactId: TypeAlias = Annotated[str, StringConstraints(strict=True, pattern="^art" + _BODY + "$")]
EnvelopeId: TypeAlias = Annotated[str, StringConstraints(strict=True, pattern="^env" + _BODY + "$")]
CapabilityId: TypeAlias = Annotated[str, StringConstraints(strict=True, pattern="^cap" + _BODY + "$")]
StreamId: TypeAlias = Annotated[
    str, StringConstraints(strict=True, pattern="^(store|(run|ses)" + _BODY + ")$")
]
"""What owns a journal: the store, a run or a session."""

Labels: TypeAlias = dict[str, str]
Fence: TypeAlias = Annotated[tuple[U32, U32], WrapValidator(_pair)]
"""The right to work on a step, as a number that only grows: (epoch of the store, n-th claim)."""

Privacy: TypeAlias = Literal["public", "internal", "content_refs_only", "sensitive", "secret"]
"""Who may see a content or a record."""


class Content(Fact):
    """A user's value as a record holds it."""

    bytes: U64
    """Length of the committed bytes."""
    commit: Sha256
    """Over the salt and the bytes."""
    media: Media
    """``application/json`` means canonical JSON; anything else, raw bytes."""
    privacy: Privacy
