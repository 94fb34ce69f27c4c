"""A run as OpenTelemetry spans: run > attempts of steps > calls > dispatches, with the times of the records.

Names are those of OpenTelemetry's semantic conventions for generative AI, where they have one; everything
else is ``holdfast.*``. Ids follow from the run's, so a run that is exported twice has the same spans, and two
runs never share one. Children and forks are traces of their own, linked with their parents both ways.

Users' values stay out unless asked for (``content=``). A run that has not ended is exported as it stands;
export it again when it has.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from holdfast.exports.contents import at
from holdfast.exports.cut import Exported, cut
from holdfast.exports.files import extra, failed
from holdfast.exports.story import Story, walk

if TYPE_CHECKING:
    from collections.abc import Iterator

    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.trace.export import SpanExporter

    from holdfast.exports.contents import Content
    from holdfast.exports.cut import Cut, Source
    from holdfast.runtime import Run
    from holdfast.store import Record

BATCH = 256
VALUE_BYTES_MAX = 64 * 1024
"""Longer values are left out: collectors refuse them."""


def otlp(
    store: Source, run: Run | str, exporter: SpanExporter | str, *, content: Content = False
) -> Exported:
    """Sends the spans of a run.

    Args:
        store: a store or a runtime.
        run: a run, or its id.
        exporter: a span exporter of the OpenTelemetry SDK, or the address of an OTLP endpoint over HTTP
            (``http://localhost:4318``; ``/v1/traces`` is added where no path is given).
        content: which of users' values leave, see :mod:`holdfast.exports.contents`.

    Raises:
        ExportError: ``extra_missing``; ``export_failed`` if the endpoint did not take them.
    """
    with extra("otel"):
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.trace.export import SpanExportResult

    where, sent = cut(store, run, only_runs=True), 0
    target = OTLPSpanExporter(endpoint=_address(exporter)) if isinstance(exporter, str) else exporter
    try:
        for batch in _batches(spans(where, content)):
            if target.export(batch) is not SpanExportResult.SUCCESS:
                raise failed("export_failed", f"the endpoint did not take spans {sent + 1} and following")
            sent += len(batch)
    finally:
        if isinstance(exporter, str):
            target.shutdown()
    return Exported(where.stream, where.last, where.head, sent)


def _address(endpoint: str) -> str:
    if urlsplit(endpoint).scheme not in ("http", "https"):
        raise failed("export_failed", "an endpoint is an address that begins with http:// or https://")
    return endpoint if urlsplit(endpoint).path.strip("/") else endpoint.rstrip("/") + "/v1/traces"


def _batches(made: Iterator[ReadableSpan]) -> Iterator[list[ReadableSpan]]:
    batch: list[ReadableSpan] = []
    for span in made:
        batch.append(span)
        if len(batch) == BATCH:
            yield batch
            batch = []
    if batch:
        yield batch


def spans(where: Cut, content: Content) -> Iterator[ReadableSpan]:
    """The spans of a run: each call when it is complete, then attempts, then the run."""
    from holdfast.exports.spans import Trace

    def look(record: Record, place: str) -> object:
        return at(record, place, content, most=VALUE_BYTES_MAX)

    story = Story(where, look)
    trace = Trace(story, where)
    for record, call in walk(where, story):
        trace.hear(record, look)
        if call is not None:
            yield from trace.call(call)
    yield from trace.rest()
