"""What a capability or a grant allows: rights and argument constraints."""

from typing import Literal, TypeAlias

from holdfast.records.base import U32, U64, Fact, Flag, GrantId, Json, Key, Name, SessionId

Right: TypeAlias = Literal["call", "open", "read", "write", "send", "monitor", "kill", "spawn", "grant"]

Comparison: TypeAlias = Literal["equals", "one_of", "max", "min", "glob"]
"""How a constraint compares the argument with its value."""


class Constraint(Fact):
    """One restriction on an argument; an unknown one denies."""

    argument: Key
    """Dotted path into the arguments: `order.cents`."""
    comparison: Comparison
    value: Json
    """A JSON scalar, or a list of them for `one_of`."""


class Grant(Fact):
    """Leave to use a tool, as it is listed and shown."""

    constraints: list[Constraint]
    expires_at: U64
    grant: GrantId
    revoked: Flag
    session: SessionId | None = None
    tool: Name
    uses_left: U32
