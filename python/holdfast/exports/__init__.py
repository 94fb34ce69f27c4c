"""Runs for other eyes: JSONL, one HTML page, OpenTelemetry spans, Parquet tables, an in-toto statement.

Exports only read, and only what is durable leaves. They stream: memory does not grow with the length of a
run. Users' values leave by their privacy, see :mod:`holdfast.exports.contents`. docs/EXPORTS.md is the guide.
"""

from holdfast.exports.contents import Content
from holdfast.exports.cut import Exported
from holdfast.exports.files import ExportError
from holdfast.exports.html import html
from holdfast.exports.jsonl import jsonl
from holdfast.exports.otlp import otlp
from holdfast.exports.parquet import parquet, parquet_calls, parquet_costs
from holdfast.exports.statement import PAYLOAD_TYPE, PREDICATE_TYPE, statement

__all__ = [
    "Content",
    "ExportError",
    "Exported",
    "PAYLOAD_TYPE",
    "PREDICATE_TYPE",
    "html",
    "jsonl",
    "otlp",
    "parquet",
    "parquet_calls",
    "parquet_costs",
    "statement",
]
