"""One record a line: its canonical text as it was hashed, its hash, and its values.

Each line is one JSON object in canonical form:

.. code-block:: json

    {"hash":"sha256:..","record":{"at":1,"body":{}},"store":"sto_..","values":{"arguments":{"value":{"order":"42"}}}}

- ``record`` stands in the line byte for byte as it was hashed, so that the chain can be checked from the file
  alone; ``store`` is what the first record's ``prev`` is made from.
- ``values`` has an entry for each content of the record, by its place in the body: ``{"value": ..}``, or
  ``{"base64": ..}`` for bytes that are no JSON, or ``{"missing": "erased"}``. What is missing was ``erased``,
  ``withheld`` (by its privacy, or because no values were asked for), is ``lost`` or ``forged``.
"""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

from holdfast import canonical
from holdfast.exports.contents import Missing, value
from holdfast.exports.cut import Exported, cut
from holdfast.exports.files import opened

if TYPE_CHECKING:
    from holdfast.exports.contents import Content
    from holdfast.exports.cut import Source
    from holdfast.exports.files import Out
    from holdfast.runtime import Run
    from holdfast.store import Record


def jsonl(store: Source, run: Run | str, out: Out, *, content: Content = True) -> Exported:
    """Writes the records of a run, a session or the store itself, one a line.

    Args:
        store: a store or a runtime.
        run: a run, or the id of a stream.
        out: a path, or a file that is open for bytes.
        content: which of users' values leave, see :mod:`holdfast.exports.contents`.
    """
    where = cut(store, run)
    own = b',"store":' + canonical.dumps(where.store.id)
    with opened(out) as file:
        for record in where.records():
            file.write(_line(record, own, content))
    return Exported(where.stream, where.last, where.head, where.last)


def _line(record: Record, own: bytes, wanted: Content) -> bytes:
    # Put together by hand: a line may be longer than what the encoder takes as one value.
    values = [
        canonical.dumps(place) + b":" + _told(value(record, content, wanted))
        for place, content in sorted(record.contents().items())
    ]
    told = (b'{"hash":', canonical.dumps(record.hash), b',"record":', record.text)
    return b"".join((*told, own, b',"values":{', b",".join(values), b"}}\n"))


def _told(value: Any) -> bytes:  # noqa: ANN401 (any JSON, bytes, or what is missing)
    if isinstance(value, Missing):
        return b'{"missing":"' + value.why.encode() + b'"}'
    if isinstance(value, bytes):
        return b'{"base64":"' + base64.b64encode(value) + b'"}'
    return b'{"value":' + canonical.dumps(value) + b"}"
