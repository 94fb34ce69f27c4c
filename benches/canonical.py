"""The digest of a typical tool call, and its canonical bytes alone, against what else there is."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import jcs
import orjson
import rfc8785

from holdfast import canonical
from measure import ROUNDS, compare, table

PACKAGES = ["jcs", "orjson", "rfc8785"]
CALL: Any = {
    "tool": "refund",
    "version": "3",
    "arguments": {
        "order": "ord_20481",
        "cents": 1999,
        "currency": "EUR",
        "reason": "parcel never arrived, customer called twice",
        "notify": True,
        "lines": [{"sku": "A-100", "qty": 1}, {"sku": "B-7", "qty": 2}],
    },
    "run": "run_01jd8x5m2kfz9",
    "step": "step_01jd8x5m2",
    "attempt": 1,
    "risk": "high",
    "effect": "write",
    "labels": {"team": "support", "region": "eu-central"},
    "ratio": 0.125,
    "parent": None,
    "tags": ["refund", "priority"],
}
NOTES = {
    "holdfast": "RFC 8785, refusals and limits; the digest has a domain",
    "orjson, sorted": "not canonical: code point order, its own number text",
    "json, sorted": "not canonical: code point order, Python's number text, spaces",
    "rfc8785": "RFC 8785, in Python",
    "jcs": "RFC 8785, in Python",
}


def section() -> str:
    """Measures and tells."""
    expected = canonical.dumps(CALL)
    if not expected == rfc8785.dumps(CALL) == jcs.canonicalize(CALL):
        raise SystemExit("the encoders disagree: there is nothing to compare")
    dumps = {
        "holdfast": lambda: canonical.dumps(CALL),
        "orjson, sorted": lambda: orjson.dumps(CALL, option=orjson.OPT_SORT_KEYS),
        "json, sorted": lambda: json.dumps(CALL, sort_keys=True).encode(),
        "rfc8785": lambda: rfc8785.dumps(CALL),
        "jcs": lambda: jcs.canonicalize(CALL),
    }
    digests = {
        "holdfast": lambda: canonical.digest(CALL),
        "orjson, sorted": lambda: hashlib.sha256(orjson.dumps(CALL, option=orjson.OPT_SORT_KEYS)).hexdigest(),
        "json, sorted": lambda: hashlib.sha256(json.dumps(CALL, sort_keys=True).encode()).hexdigest(),
        "rfc8785": lambda: hashlib.sha256(rfc8785.dumps(CALL)).hexdigest(),
        "jcs": lambda: hashlib.sha256(jcs.canonicalize(CALL)).hexdigest(),
    }
    hashed = {name: note if name == "holdfast" else f"{note}; then hashlib" for name, note in NOTES.items()}
    return f"""## Canonical bytes

A tool call of {len(CALL)} keys, nested, {len(expected)} bytes in canonical form. {ROUNDS} rounds in one
process, each contestant timed once per round in rotated order; medians, quartiles in brackets; ratios are
taken within a round.

### Digest (SHA-256, as text)

{table(compare(digests), hashed)}

### Bytes only

{table(compare(dumps), NOTES)}
"""
