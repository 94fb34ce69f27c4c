"""What many records share: names, actors, fences, failures, amounts."""

from typing import Literal, TypeAlias

from holdfast.records.base import U32, U64, Content, Fact, Flag, Name, Sha256, Token

ActorType: TypeAlias = Literal["worker", "human", "agent", "hook", "system"]

EffectClass: TypeAlias = Literal["pure", "read", "write", "internal"]
"""What a call does to the world."""

Risk: TypeAlias = Literal["low", "medium", "high", "critical"]

FailureSource: TypeAlias = Literal[
    "agent",
    "tool",
    "model",
    "hook",
    "policy",
    "approval",
    "budget",
    "sandbox",
    "state",
    "runtime",
    "store",
]
"""Where a failure came from."""

Account: TypeAlias = Literal["tokens", "usd_micros", "tool_calls", "children", "concurrency", "wall_ms"]
"""What can be accounted."""

OnExceeded: TypeAlias = Literal["refuse", "ask"]

SandboxTier: TypeAlias = Literal["none", "subprocess", "bubblewrap", "container", "wasm", "remote"]
"""Where a tool's body runs."""

PackagePart: TypeAlias = Literal["agent", "hooks", "instructions", "models", "policy", "python", "tools"]
"""The parts of a :class:`Package`."""


class Actor(Fact):
    """Who did it. The id is opaque: names live in an erasable directory."""

    id: Name
    type: ActorType


class Failure(Fact):
    """How something failed. The message is a content: exceptions quote users' values."""

    code: Token | None = None
    error: Name
    message: Content | None = None
    retryable: Flag
    source: FailureSource


class Amounts(Fact):
    """Amounts of an account; money in millionths of a US dollar."""

    children: U64 | None = None
    tokens: U64 | None = None
    tool_calls: U64 | None = None
    usd_micros: U64 | None = None


class Budget(Fact):
    """What a run may use. Accounts are spent; `wall_ms`, `memory_bytes`, `mailbox` and `concurrency` are
    limits at any time.
    """

    children: U64 | None = None
    concurrency: U64 | None = None
    mailbox: U64 | None = None
    memory_bytes: U64 | None = None
    on_exceeded: OnExceeded
    tokens: U64 | None = None
    tool_calls: U64 | None = None
    usd_micros: U64 | None = None
    wall_ms: U64 | None = None


class Package(Fact):
    """Everything that changes behaviour, part by part."""

    agent: Name
    hooks: Sha256
    instructions: Sha256
    models: Sha256
    policy: Sha256
    python: Name
    tools: Sha256


class RetryPolicy(Fact):
    """When a step is tried again."""

    backoff_max_ms: U64
    backoff_ms: U64
    max_attempts: U32
