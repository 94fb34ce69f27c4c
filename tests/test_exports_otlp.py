"""Spans as a real endpoint gets them, over HTTP and as protobuf: their tree, times, names, links and ids."""

from __future__ import annotations

import gzip
import threading
from collections import defaultdict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from tests.exports_desk import Office, office, told
from tests.support import refusal

import holdfast as hf
from holdfast import exports

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from opentelemetry.sdk.trace import ReadableSpan

__all__ = ["office", "told"]  # fixtures


class Collector(ThreadingHTTPServer):
    """An endpoint that decodes and keeps what it is sent."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.requests: list[ExportTraceServiceRequest] = []
        self.paths: set[str] = set()
        self.refuses = False

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    @property
    def spans(self) -> list[Span]:
        scopes = [
            scope
            for request in self.requests
            for spans in request.resource_spans
            for scope in spans.scope_spans
        ]
        return [span for scope in scopes for span in scope.spans]


class Handler(BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        data = self.rfile.read(int(self.headers["content-length"]))
        if self.headers.get("content-encoding") == "gzip":
            data = gzip.decompress(data)
        self.server.paths.add(self.path)
        if not self.server.refuses:
            self.server.requests.append(ExportTraceServiceRequest.FromString(data))
        self.send_response(400 if self.server.refuses else 200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def collector() -> Iterator[Collector]:
    server = Collector()
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def attributes(of: Any) -> dict[str, Any]:
    found = {}
    for pair in of.attributes:
        kind = pair.value.WhichOneof("value")
        value = getattr(pair.value, kind)
        found[pair.key] = [each.string_value for each in value.values] if kind == "array_value" else value
    return found


def ms(span: Span) -> float:
    return (span.end_time_unix_nano - span.start_time_unix_nano) / 1_000_000


def tree(spans: Sequence[Span]) -> dict[str, Any]:
    """The names of spans, nested, in the order of their starts."""
    below: dict[bytes, list[Span]] = defaultdict(list)
    for span in sorted(spans, key=lambda span: span.start_time_unix_nano):
        below[span.parent_span_id].append(span)

    def under(parent: bytes) -> list[Any]:
        return [[span.name, under(span.span_id)] for span in below.get(parent, [])]

    (root,) = under(b"")
    return {root[0]: root[1]}


def test_a_run_arrives_as_a_tree_of_spans_with_the_times_of_its_records(
    office: Office, collector: Collector
) -> None:
    run = office.run()
    done = exports.otlp(office.rt, run, collector.url)
    spans = {span.name: span for span in collector.spans}
    assert collector.paths == {"/v1/traces"}
    assert done.items == len(collector.spans) == 14
    child = office.rt.store.sql("select id from runs where parent = ?", [run.id])[0]["id"]
    assert tree(collector.spans) == {
        "invoke_agent support": [
            [
                "step main",
                [
                    ["chat gpt-x", []],
                    ["execute_tool look", [["dispatch look", []], ["dispatch look", []]]],
                    ["execute_tool refund", [["dispatch refund", []]]],
                    ["execute_tool wire", []],
                    ["child helper", []],
                    [f"receive {child}", []],
                    ["artifact picture.png", []],
                    ["execute_tool post", [["dispatch post", []]]],
                ],
            ]
        ]
    }
    took = {name: ms(span) for name, span in spans.items() if not name.startswith(("dispatch", "receive"))}
    assert took == {
        "invoke_agent support": 97_000,
        "step main": 97_000,
        "chat gpt-x": 0,
        "execute_tool look": 1_000,
        "execute_tool refund": 62_000,
        "execute_tool wire": 0,
        "child helper": 0,
        "artifact picture.png": 0,
        "execute_tool post": 31_000,
    }
    settled = [record for record in office.rt.store.read(run.id) if record.kind == "effect.settled"]
    measured = {record.fields.get("call"): record.body["elapsed_ms"] for record in settled}
    refund = attributes(spans["execute_tool refund"])["holdfast.call.id"]
    assert ms(spans["dispatch refund"]) == measured[refund] >= 20, "as its worker measured it"
    begun = next(office.rt.store.read(run.id)).at
    assert spans["invoke_agent support"].start_time_unix_nano == begun * 1_000_000


def test_names_are_those_of_the_conventions_and_values_stay_at_home(
    office: Office, collector: Collector
) -> None:
    run = office.run()
    exports.otlp(office.rt, run, collector.url + "/v1/traces")
    told = {span.name: attributes(span) for span in collector.spans}
    assert (
        told["invoke_agent support"].items()
        >= {
            "gen_ai.operation.name": "invoke_agent",
            "gen_ai.agent.name": "support",
            "gen_ai.usage.input_tokens": 100,
            "gen_ai.usage.output_tokens": 20,
            "holdfast.run.id": run.id,
            "holdfast.run.status": "completed",
            "holdfast.cost.usd_micros": 12_500,
        }.items()
    )
    assert (
        told["chat gpt-x"].items()
        >= {
            "gen_ai.operation.name": "chat",
            "gen_ai.request.model": "gpt-x",
            "gen_ai.provider.name": "openai",
            "gen_ai.usage.input_tokens": 100,
            "gen_ai.usage.output_tokens": 20,
        }.items()
    )
    refund = told["execute_tool refund"]
    assert (
        refund.items()
        >= {
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": "refund",
            "gen_ai.tool.type": "function",
            "gen_ai.tool.call.id": refund["holdfast.call.id"],
            "holdfast.call.outcome": "succeeded",
            "holdfast.call.effect": "write",
        }.items()
    )
    assert not {"gen_ai.tool.call.arguments", "gen_ai.tool.call.result"} & refund.keys()
    sent = b"".join(request.SerializeToString() for request in collector.requests)
    assert not [word for word in (b"owned", b"AAAA", b"1999", b"looks") if word in sent]

    collector.requests.clear()
    exports.otlp(office.rt, run, collector.url, content=True)
    told = {span.name: attributes(span) for span in collector.spans}
    assert told["execute_tool refund"]["gen_ai.tool.call.arguments"] == '{"cents":1999,"order":"42"}'
    assert told["execute_tool refund"]["gen_ai.tool.call.result"] == "(too_large)"
    assert "<script>" in told["execute_tool look"]["gen_ai.tool.call.result"]


def test_what_went_wrong_is_an_error_with_its_events(office: Office, collector: Collector) -> None:
    run = office.run()
    exports.otlp(office.rt, run, collector.url)
    spans = {span.name: span for span in collector.spans}
    states = {name: span.status.code for name, span in spans.items()}
    assert states["invoke_agent support"] == states["execute_tool refund"] == Status.STATUS_CODE_OK
    assert states["execute_tool wire"] == states["dispatch post"] == Status.STATUS_CODE_ERROR
    assert spans["execute_tool wire"].status.message == "denied_by_person"
    events = {name: [event.name for event in span.events] for name, span in spans.items()}
    assert events["execute_tool wire"] == ["policy.decided", "approval.requested", "approval.decided"]
    assert events["execute_tool post"] == [
        "policy.decided",
        "effect.started",
        "effect.doubted",
        "effect.resolved",
    ]
    assert events["step main"][:2] == ["note.logged", "step.waiting"]
    resolved = attributes(spans["execute_tool post"].events[-1])
    assert (resolved["holdfast.resolution"], resolved["holdfast.by"]) == ("happened", "human dana")

    @office.rt.agent(attempts=1)
    async def failing(_: hf.Context) -> None:
        raise ValueError("secret plans")

    collector.requests.clear()
    exports.otlp(office.rt, office.rt.run_sync(failing), collector.url)
    spans = {span.name: span for span in collector.spans}
    for name in ("invoke_agent failing", "step main"):
        assert spans[name].status.code == Status.STATUS_CODE_ERROR
        assert attributes(spans[name])["error.type"] == "ValueError"
        (event,) = spans[name].events
        assert (event.name, attributes(event)["exception.type"]) == ("exception", "ValueError")
    assert b"secret plans" not in collector.requests[0].SerializeToString()


def test_ids_follow_from_the_run_and_no_two_runs_share_one(office: Office, collector: Collector) -> None:
    run = office.run()
    exports.otlp(office.rt, run, collector.url)
    first = [(span.trace_id, span.span_id, span.name) for span in collector.spans]
    collector.requests.clear()
    exports.otlp(office.rt, run, collector.url)
    assert [(span.trace_id, span.span_id, span.name) for span in collector.spans] == first
    assert len({span for _, span, _ in first}) == len(first)
    assert {len(trace) for trace, _, _ in first} == {16}

    fork = office.rt.fork(run.id, at=10, by="dana")
    office.rt.resume_sync(fork)
    (child,) = office.rt.store.sql("select id from runs where parent = ?", [run.id])
    collector.requests.clear()
    for other in (fork.id, child["id"]):
        exports.otlp(office.rt, other, collector.url)
    others = [(span.trace_id, span.span_id) for span in collector.spans]
    assert not {span for _, span in others} & {span for _, span, _ in first}
    assert len({trace for trace, _ in others}) == 2
    (root,) = {(trace, span) for trace, span, name in first if name == "invoke_agent support"}
    links = {
        span.name: [(link.trace_id, link.span_id, attributes(link)["holdfast.link"]) for link in span.links]
        for span in collector.spans
        if not span.parent_span_id
    }
    assert links == {"invoke_agent support": [(*root, "fork")], "invoke_agent helper": [(*root, "parent")]}


def test_an_open_run_is_exported_as_it_stands(office: Office, collector: Collector) -> None:
    run = office.rt.run_sync("support", "t")
    exports.otlp(office.rt, run, collector.url)
    told = {span.name: attributes(span) for span in collector.spans}
    assert told["invoke_agent support"]["holdfast.run.status"] == "open"
    assert told["step main"]["holdfast.step.outcome"] == "waiting"
    assert told["execute_tool refund"]["holdfast.call.outcome"] == "open"


def test_an_endpoint_that_refuses_is_an_error_and_so_is_no_address(
    office: Office, collector: Collector
) -> None:
    run = office.rt.run_sync("support", "t")
    collector.refuses = True
    assert refusal(exports.otlp, office.rt, run, collector.url) == ("export_failed", None)
    assert refusal(exports.otlp, office.rt, run, "localhost:4318") == ("export_failed", None)


class Counting(SpanExporter):
    """An exporter of one's own."""

    def __init__(self) -> None:
        self.batches: list[int] = []

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.batches.append(len(spans))
        return SpanExportResult.SUCCESS


def test_spans_leave_in_batches_while_the_run_is_read() -> None:
    with hf.Runtime("memory:") as rt:

        @rt.tool(effect="read")
        def add(n: int) -> int:
            return n + 1

        @rt.agent
        async def many(ctx: hf.Context) -> None:
            for n in range(300):
                await ctx.call(add, n=n)

        mine = Counting()
        done = exports.otlp(rt, rt.run_sync(many), mine)
    assert mine.batches == [256, 256, 90]
    assert done.items == 602
