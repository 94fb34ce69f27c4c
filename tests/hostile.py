"""Values and text made to break an encoder, and a process that meets one of them.

``python tests/hostile.py <name>`` makes the value, calls each function on it within 512 MB of address
space, and prints how each call ended and how long it took. Nothing heavy is imported: there are many.
"""

from __future__ import annotations

import importlib
import json
import resource
import sys
import time
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

MEMORY_MAX = 512 * 1024 * 1024
DEEP = 100_000
HUGE = 100 * 1024 * 1024


def deep_list() -> Any:
    value: Any = 0
    for _ in range(DEEP):
        value = [value]
    return value


def deep_dict() -> Any:
    value: Any = 0
    for _ in range(DEEP):
        value = {"a": value}
    return value


def deep_tuple() -> Any:
    value: Any = 0
    for _ in range(DEEP):
        value = (value,)
    return value


def loop_list() -> Any:
    value: list[Any] = []
    value.append(value)
    return value


def loop_dict() -> Any:
    value: dict[str, Any] = {}
    value["a"] = [value]
    return value


def bomb(seed: Any, levels: int = 60) -> Any:
    """A few small lists that say 2**levels values."""
    for _ in range(levels):
        seed = [seed, seed]
    return seed


def unsorted_keys(count: int, last: str) -> str:
    """An object whose keys come in a bad order, one member more at its end."""
    keys = ",".join(f'"{(n * 7919) % count}":0' for n in range(count))
    return f"{{{keys},{last}:0}}"


OBJECTS: dict[str, tuple[str, Callable[[], Any]]] = {
    "a list 100,000 deep": ("too_deep", deep_list),
    "a dict 100,000 deep": ("too_deep", deep_dict),
    "a tuple 100,000 deep": ("too_deep", deep_tuple),
    "a list that contains itself": ("too_deep", loop_list),
    "a dict that contains itself": ("too_deep", loop_dict),
    "a bomb of shared references": ("too_many_values", lambda: bomb([])),
    "a bomb of shared strings": ("too_large", lambda: bomb("x" * 1_000_000, 20)),
    "a bomb of shared dicts": ("too_many_values", lambda: bomb({"b": 1, "a": 2})),
    "a million and one numbers": ("too_many_values", lambda: [0] * 1_000_001),
    "a million and one empty lists": ("too_many_values", lambda: [[]] * 1_000_001),
    "a million and one keys": ("too_many_values", lambda: {str(n): n for n in range(1_000_001)}),
    "a number of 5,000 digits": ("integer_too_large", lambda: [10**5000]),
    "a number of 3,000,000 bits": ("integer_too_large", lambda: {"n": -(1 << 3_000_000)}),
    "a set": ("not_json", lambda: [[{1}]]),
}
STRINGS: dict[str, tuple[str, Callable[[], Any]]] = {
    "100 MB of ASCII": ("too_large", lambda: "x" * HUGE),
    "100 MB of Latin-1": ("too_large", lambda: "\u00e9" * HUGE),
    "100 MB of wide characters": ("too_large", lambda: "\u20ac" * (HUGE // 2)),
    "100 MB of emoji": ("too_large", lambda: "\U0001f600" * (HUGE // 4)),
    "100 MB of characters to escape": ("too_large", lambda: "\x00" * HUGE),
    "a key of 100 MB of ASCII": ("too_large", lambda: {"x" * HUGE: 1}),
    "a key of 100 MB of Latin-1": ("too_large", lambda: {"\u00e9" * HUGE: 1}),
    "16 MB that escapes make larger": ("too_large", lambda: ["\x01" * (16 * 1024 * 1024 - 10), 1]),
    "a surrogate after 10 MB": ("lone_surrogate", lambda: "x" * 10_000_000 + "\ud800"),
    "a surrogate in a key": ("lone_surrogate", lambda: {"a": {"\udfff": 1}}),
    "surrogates the wrong way round": ("lone_surrogate", lambda: ["\udc00\ud800"]),
}
TEXTS: dict[str, tuple[str, Callable[[], Any]]] = {
    "arrays 100,000 deep": ("too_deep", lambda: "[" * DEEP),
    "objects 100,000 deep": ("too_deep", lambda: '{"a":' * DEEP),
    "100 MB of text": ("too_large", lambda: b'"' + b"x" * HUGE + b'"'),
    "100 MB of text as str": ("too_large", lambda: "x" * HUGE),
    "100 MB of Latin-1 as str": ("too_large", lambda: "\u00e9" * HUGE),
    "100 MB of space": ("too_large", lambda: b" " * HUGE),
    "16 MB of space": ("bad_json", lambda: b" " * (16 * 1024 * 1024)),
    "16 MB of opened strings": ("bad_json", lambda: b'"' + b"\\\\" * (8 * 1024 * 1024 - 1)),
    "a million and one values": ("too_many_values", lambda: "[" + "0," * 1_000_000 + "0]"),
    "a million and one empty arrays": ("too_many_values", lambda: "[" + "[]," * 1_000_000 + "[]]"),
    "5,000 digits": ("integer_too_large", lambda: "[" + "9" * 5000 + "]"),
    "1,000,000 digits": ("integer_too_large", lambda: "1" + "0" * 1_000_000),
    "16,000,000 digits": ("integer_too_large", lambda: "7" * 16_000_000),
    "an exponent of 1,000,000 digits": ("number_out_of_range", lambda: "1e" + "9" * 1_000_000),
    "the same key twice": ("duplicate_key", lambda: '{"a":1,"a":1}'),
    "the same key twice among 400,000": ("duplicate_key", lambda: unsorted_keys(400_000, '"7919"')),
    "the same key 400,000 times": ("duplicate_key", lambda: "{" + '"a":0,' * 400_000 + '"a":0}'),
    "a surrogate": ("lone_surrogate", lambda: r'["\ud800"]'),
    "a str with a surrogate": ("lone_surrogate", lambda: '"\ud800"'),
}


class Case(NamedTuple):
    """What to make, which functions (module and name) refuse it, and with which code."""

    make: Callable[[], Any]
    code: str
    functions: list[str]


def cases() -> dict[str, Case]:
    """Every case by its name."""
    table = {}
    for name, (code, make) in OBJECTS.items():
        table[name] = Case(make, code, ["canonical.dumps", "canonical.digest"])
        if code in ("too_deep", "too_many_values"):  # the rest is JSON, or to_json makes it JSON
            table[name].functions.append("values.to_json")
    for name, (code, make) in STRINGS.items():
        table[name] = Case(make, code, ["canonical.dumps", "canonical.digest"])
    for name, (code, make) in TEXTS.items():
        table[name] = Case(make, code, ["canonical.loads", "canonical.dumps_text"])
    return table


def main(name: str) -> None:
    """Makes the argument, calls, and says how each call ended."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_MAX, MEMORY_MAX))
    case = cases()[name]
    argument = case.make()
    reports = []
    for function in case.functions:
        module, _, attribute = function.partition(".")
        call = getattr(importlib.import_module(f"holdfast.{module}"), attribute)
        begun = time.process_time()
        try:
            call(argument)
            code = "nothing was refused"
        except BaseException as error:
            code = getattr(error, "code", repr(error)[:200])
        reports.append({"function": function, "code": code, "seconds": time.process_time() - begun})
    dumps = importlib.import_module("holdfast.canonical").dumps
    sane = dumps({"b": [1], "a": None}) == b'{"a":null,"b":[1]}'
    print(json.dumps({"calls": reports, "sane": sane}))


if __name__ == "__main__":
    main(sys.argv[1])
