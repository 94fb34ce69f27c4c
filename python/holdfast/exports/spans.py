"""Spans of the OpenTelemetry SDK, made of what records told: names, attributes, events, links and ids."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags

from holdfast import __version__, canonical
from holdfast.exports.calls import actor
from holdfast.exports.contents import Missing

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from holdfast.exports.calls import Call, Dispatch
    from holdfast.exports.contents import Look
    from holdfast.exports.cut import Cut
    from holdfast.exports.story import Attempt, Story
    from holdfast.store import Record

DOMAIN = "holdfast/otlp/v1"
SCOPE = InstrumentationScope("holdfast", __version__)
EVENTS_MAX = 128
"""Events of one span; the rest are counted."""
QUIET = frozenset(("log", "now"))
"""Calls that last no time and are no spans: what is logged is an event of its attempt."""
GOOD = frozenset(("succeeded", "compensated", "no_effect", "cancelled", "abandoned", "open", "running"))
FAILED = frozenset(("failed", "timed_out", "in_doubt"))
MODELS = frozenset(("model", "model_call"))
TOLD = frozenset(
    (
        "approval.decided",
        "approval.edited",
        "approval.requested",
        "approval.timed_out",
        "budget.refused",
        "call.cancelled",
        "call.served",
        "effect.compensated",
        "effect.doubted",
        "effect.late",
        "effect.resolved",
        "effect.settled",
        "effect.started",
        "grant.spent",
        "hook.ruled",
        "policy.decided",
    )
)
"""What becomes an event of its call."""
STEPPED = frozenset(("lease.expired", "lease.released", "replay.diverged", "step.waiting", "step.woken"))
"""What becomes an event of its attempt."""
PLAIN = ("cause", "code", "decision", "hook", "level", "outcome", "point", "resolution", "source", "status")
"""Fields of bodies that are words of ours, and go along with an event."""


def trace_id(run: str) -> int:
    """The trace of a run: 128 bits that follow from its id."""
    return int(_digest(["trace", run])[:32], 16) or 1


def span_id(run: str, *of: str | int) -> int:
    """A span of a run: 64 bits that follow from the ids. A fork has its parent's calls, under its own run."""
    return int(_digest([run, *of])[:16], 16) or 1


def _digest(value: list[Any]) -> str:
    return canonical.digest(value, domain=DOMAIN).removeprefix("sha256:")


def place(run: str, *of: str | int) -> SpanContext:
    """Where a span is."""
    return SpanContext(trace_id(run), span_id(run, *of), is_remote=False, trace_flags=TraceFlags(1))


def nanoseconds(ms: int) -> int:
    """A record's time as spans have it."""
    return ms * 1_000_000


class Trace:
    """Makes the spans of one run while its records stream by."""

    def __init__(self, story: Story, cut: Cut) -> None:
        self._story, self._cut, self._run = story, cut, cut.stream
        self._resource = Resource.create({"service.name": "holdfast", "holdfast.store.id": cut.store.id})
        self._events: dict[object, list[Event]] = {}
        self._dropped: dict[object, int] = {}

    def hear(self, record: Record, look: Look) -> None:
        """Keeps what a record adds to a span that is not complete yet."""
        fields, step = record.fields, (record.fields.get("step"), record.fields.get("attempt"))
        if record.kind == "note.logged" and step in self._story.attempts:
            text = _text(look(record, "text"))
            more = {"holdfast.note.text": text} if text is not None else {}
            self._add(step, record, more)
        elif record.kind in STEPPED:
            self._add(step, record, {})
        elif record.kind in TOLD and "call" in fields:
            self._add(fields["call"], record, {})

    def _add(self, of: object, record: Record, more: Mapping[str, str]) -> None:
        events = self._events.setdefault(of, [])
        if len(events) == EVENTS_MAX:
            self._dropped[of] = self._dropped.get(of, 0) + 1
            return
        told = {f"holdfast.{name}": str(record.body[name]) for name in PLAIN if name in record.body}
        told |= {"holdfast.by": actor(record), "holdfast.seq": str(record.seq), **more}
        events.append(Event(record.kind, told, nanoseconds(record.at)))

    def call(self, call: Call) -> Iterator[ReadableSpan]:
        """The span of a complete call, and one for each time that it was sent off."""
        events = self._take(call.id)
        if call.kind in QUIET:
            return
        end = call.ended_at or self._story.seen_at
        links = [_link(call.child, "child")] if call.child else []
        yield self._span(
            call_name(call),
            place(self._run, "call", call.id),
            (call.opened_at, end),
            parent=place(self._run, "attempt", call.step, call.attempt),
            attributes={**call_attributes(call), **self._count(call.id)},
            events=[*events, *_exception(call.failure, _text(call.message), end)],
            links=links,
            kind=SpanKind.CLIENT if call.kind in MODELS else SpanKind.INTERNAL,
            status=_status(call.outcome not in GOOD, call.outcome),
        )
        for dispatch in call.dispatches:
            yield self._dispatch(call, dispatch)

    def _dispatch(self, call: Call, dispatch: Dispatch) -> ReadableSpan:
        end = dispatch.ended_at or self._story.seen_at
        if dispatch.elapsed_ms is not None:  # measured where it ran; the record came a little later
            end = dispatch.started_at + dispatch.elapsed_ms
        return self._span(
            f"dispatch {call.name}",
            place(self._run, "dispatch", call.id, dispatch.n),
            (dispatch.started_at, end),
            parent=place(self._run, "call", call.id),
            attributes={"holdfast.dispatch": dispatch.n, "holdfast.dispatch.status": dispatch.status},
            status=_status(dispatch.status in FAILED, dispatch.status),
        )

    def rest(self) -> Iterator[ReadableSpan]:
        """The attempts of steps, and the run."""
        for attempt in self._story.attempts.values():
            yield self._attempt(attempt)
        yield self._root()

    def _attempt(self, attempt: Attempt) -> ReadableSpan:
        key, failure = (attempt.step, attempt.n), attempt.failure
        told = {
            "holdfast.step.id": attempt.step,
            "holdfast.step.name": attempt.name,
            "holdfast.step.attempt": attempt.n,
            "holdfast.step.outcome": attempt.outcome,
            "holdfast.workers": list(dict.fromkeys(attempt.workers)),
        }
        told |= {"error.type": failure["error"]} if failure else {}
        return self._span(
            f"step {attempt.name}",
            place(self._run, "attempt", attempt.step, attempt.n),
            (attempt.started_at, attempt.seen_at),
            parent=place(self._run, "run"),
            attributes={**told, **self._count(key)},
            events=[*self._take(key), *_exception(failure, None, attempt.seen_at)],
            status=_status(attempt.outcome == "failed", attempt.outcome),
        )

    def _root(self) -> ReadableSpan:
        story = self._story
        end = story.end.at if story.end is not None else story.seen_at
        links = [_link(story.parent, "parent")] if story.parent else []
        if story.fork is not None:
            links.append(_link(story.fork["parent"], "fork"))
        return self._span(
            f"invoke_agent {story.agent}",
            place(self._run, "run"),
            (story.created_at, end),
            attributes=run_attributes(story, self._cut),
            events=_exception(story.failure, None, end),
            links=links,
            status=_status(story.status == "failed", story.status),
        )

    def _take(self, of: object) -> list[Event]:
        return self._events.pop(of, [])

    def _count(self, of: object) -> dict[str, int]:
        dropped = self._dropped.pop(of, 0)
        return {"holdfast.events.dropped": dropped} if dropped else {}

    def _span(
        self,
        name: str,
        context: SpanContext,
        times: tuple[int, int],
        **parts: Any,  # noqa: ANN401
    ) -> ReadableSpan:
        start, end = times
        return ReadableSpan(
            name,
            context,
            resource=self._resource,
            instrumentation_scope=SCOPE,
            start_time=nanoseconds(start),
            end_time=nanoseconds(max(start, end)),
            **parts,
        )


def call_name(call: Call) -> str:
    """As the conventions name it, if they do."""
    operation = operation_of(call)
    return f"{operation or call.kind} {call.name}"


def operation_of(call: Call) -> str | None:
    """The operation of a call in the conventions' words."""
    if call.kind in MODELS:
        return "chat"
    return "execute_tool" if call.kind in ("tool", "task") else None


def call_attributes(call: Call) -> dict[str, Any]:
    """What is said about a call."""
    told: dict[str, Any] = {
        "holdfast.call.id": call.id,
        "holdfast.call.kind": call.kind,
        "holdfast.call.effect": call.effect,
        "holdfast.call.risk": call.risk,
        "holdfast.call.outcome": call.outcome,
        "holdfast.call.dispatches": len(call.dispatches),
        "holdfast.call.key": call.key,
        "holdfast.call.external_id": call.external_id,
        "holdfast.child.run.id": call.child,
        "gen_ai.operation.name": operation_of(call),
        "error.type": call.failure["error"] if call.failure and call.outcome not in GOOD else None,
    }
    if operation_of(call) == "execute_tool":
        told |= {
            "gen_ai.tool.name": call.name,
            "gen_ai.tool.type": "function",
            "gen_ai.tool.call.id": call.id,
            "gen_ai.tool.call.arguments": _text(call.arguments),
            "gen_ai.tool.call.result": _text(call.result),
        }
    if call.kind in MODELS:
        told |= {"gen_ai.request.model": call.name}
    return _given(told | _usage(call.cost))


def _usage(cost: Mapping[str, Any] | None) -> dict[str, Any]:
    if cost is None:
        return {}
    return {
        "gen_ai.provider.name": cost.get("provider"),
        "gen_ai.usage.input_tokens": cost.get("input_tokens"),
        "gen_ai.usage.output_tokens": cost.get("output_tokens"),
        "holdfast.cost.usd_micros": cost["amounts"].get("usd_micros"),
    }


def run_attributes(story: Story, cut: Cut) -> dict[str, Any]:
    """What is said about a run."""
    cost = story.cost
    return _given(
        {
            "gen_ai.operation.name": "invoke_agent",
            "gen_ai.agent.name": story.agent,
            "gen_ai.conversation.id": story.session,
            "gen_ai.usage.input_tokens": cost.input_tokens or None,
            "gen_ai.usage.output_tokens": cost.output_tokens or None,
            "error.type": story.failure["error"] if story.failure else None,
            "holdfast.run.id": cut.stream,
            "holdfast.run.status": story.status,
            "holdfast.run.reason": story.end.body["reason"] if story.end else None,
            "holdfast.run.mode": story.mode,
            "holdfast.run.by": story.by,
            "holdfast.run.head": cut.head,
            "holdfast.run.records": cut.last,
            "holdfast.cost.usd_micros": cost.usd_micros or None,
        }
    )


def _given(told: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in told.items() if value is not None}


def _text(value: Any) -> str | None:  # noqa: ANN401 (any JSON, bytes, or what is missing)
    """A value as an attribute; what did not leave is no attribute, what was erased says so."""
    if value is None or isinstance(value, bytes):
        return None
    if isinstance(value, Missing):
        return f"({value.why})" if value.why != "withheld" else None
    return value if isinstance(value, str) else canonical.dumps(value).decode()


def _link(run: str, what: str) -> Link:
    return Link(place(run, "run"), {"holdfast.link": what, "holdfast.run.id": run})


def _status(bad: bool, told: str) -> Status:
    if bad:
        return Status(StatusCode.ERROR, told)
    return Status(StatusCode.OK if told in ("succeeded", "completed") else StatusCode.UNSET)


def _exception(failure: Mapping[str, Any] | None, message: str | None, at: int) -> list[Event]:
    if not failure:
        return []
    told = {"exception.type": failure["error"], "exception.message": message}
    told |= {"holdfast.failure.code": failure.get("code"), "holdfast.failure.source": failure["source"]}
    return [Event("exception", _given(told), nanoseconds(at))]
