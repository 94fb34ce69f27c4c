"""Whether a call that a rule knows writes, for tools that say they only read."""

from __future__ import annotations

import re

from holdfast.lint.known import names_in

HTTP = frozenset(("post", "put", "patch", "delete"))
SENDS = frozenset(
    ("send", "sendall", "sendto", "sendmsg", "sendmail", "send_message", "send_json", "send_bytes")
)
WORDS = names_in(
    """
    add append archive assign attach bulk cancel capture charge commit confirm copy create deactivate
    decr delete detach drop edit executemany executescript expire flushall flushdb hset import incr
    index insert invite kick lpush merge modify move patch pay post publish push put refund remove
    rename replace reply revoke rpush run sadd save schedule send set start stop submit terminate
    transfer trash update upload upsert void write xadd
    """
)
SQL = re.compile(
    r"\s*(insert|update|delete|replace|merge|create|drop|alter|truncate|grant|revoke|copy|call|vacuum)\b",
    re.I,
)
READ_WORDS = frozenset(
    ("create_engine", "create_async_engine", "create_pool", "create_client", "create_session")
)


def writes(rule: str, name: str, first: list[str]) -> bool:
    """Whether a callable of this name writes; ``first`` is what its first argument may be."""
    last = name.rpartition(".")[2]
    word = re.split(r"(?<=[a-z])(?=[A-Z])|_", last)[0].lower()
    match rule:
        case "HF102":
            return True
        case "HF103":
            asked = last in ("request", "stream") and any(text.lower() in HTTP for text in first)
            return last in HTTP or last in SENDS or asked
        case "HF104":
            return word in ("send", "sendmail", "delete", "store", "append", "copy", "expunge")
        case "HF107" if last in ("execute", "fetch", "fetchrow", "fetchval", "query", "sql"):
            return any(SQL.match(text) for text in first)
        case "HF106" | "HF107" | "HF108":
            posts = re.search(r"_(post|update|delete|schedule|add)", last) is not None  # chat_postMessage
            return (word in WORDS or posts) and last not in READ_WORDS
        case _:
            return False
