"""Canonical bytes (RFC 8785 over I-JSON): the only bytes that Holdfast hashes.

``dumps`` and ``digest`` take exactly dict, list, tuple, str, int, float, bool and None; anything else
is refused with the path of the value. :func:`holdfast.values.to_json` turns other Python values into
these. The functions are the core's own: nothing stands between a caller and the encoder.

>>> dumps({"order": "42", "cents": 1999.0})
b'{"cents":1999,"order":"42"}'
>>> dumps_text('{ "b": 1e2, "a": 1 }')
b'{"a":1,"b":100}'
>>> digest({}, domain="acme/invoice/v1")[:23]
'sha256:53628dfeff483bc9'
>>> loads(b'{"cents":1999}')
{'cents': 1999}
"""

from __future__ import annotations

from holdfast._core import canonical_digest as digest
from holdfast._core import canonical_dumps as dumps
from holdfast._core import canonical_loads as loads
from holdfast._core import canonical_text as dumps_text

__all__ = ["digest", "dumps", "dumps_text", "loads"]
