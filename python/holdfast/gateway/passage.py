"""One call on its way, written once for threads and for asyncio: a generator that says what is to be done
and hears what came of it. The core decides what comes next; this does it.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from pydantic import ValidationError

from holdfast import _core
from holdfast.errors import CanonicalError, CommandError, HoldfastError, StoreError
from holdfast.gateway import hooks
from holdfast.gateway.outcomes import (
    BudgetRefused,
    Call,
    CannotTell,
    Denied,
    DidNotHappen,
    EffectFailed,
    Happened,
    NoEffect,
    OutcomeError,
    Result,
    Stopped,
    Suspended,
    fix,
)
from holdfast.gateway.tools import ToolError
from holdfast.primitives import new_id

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping

    from holdfast.gateway.bodies import Ran
    from holdfast.gateway.driver import Gateway
    from holdfast.gateway.tools import Tool
    from holdfast.store import Claim

Json = dict[str, Any]
PASSING = frozenset(("store_busy", "disk_full"))
"""Failures of the store that may pass: an outcome that is known is worth trying again for."""


@dataclass(frozen=True)
class Commit:
    """A call of the store."""

    call: _core.Call


@dataclass(frozen=True)
class Run:
    """A body, and how long it may take."""

    body: Callable[[], Any]
    timeout: float
    is_async: bool
    settles: bool = False
    """Whoever waits for it does so to the end, also when it is cancelled: it is a write's."""


@dataclass(frozen=True)
class Pause:
    """A moment, before something is tried again."""

    seconds: float


Way: TypeAlias = "Generator[Commit | Run | Pause, Any, Any]"


@dataclass(frozen=True)
class Asked:
    """What agent code asks for."""

    claim: Claim
    tool: Tool[Any, Any]
    arguments: Json
    key: str | None = None
    reserve: Mapping[str, int] | None = None
    recorded: str | None = None
    lane: str = "0"


class Passenger:
    """Drives one passage."""

    def __init__(self, gateway: Gateway, asked: Asked) -> None:
        self.gateway = gateway
        self.asked = asked
        self.tool = asked.tool
        core = gateway.store._core
        call: Json = {
            "arguments": {"privacy": "internal", "value": asked.arguments},
            "call": new_id("call", at_ms=core.wall_ms),
            "kind": "tool",
            "lane": asked.lane,
            "reserve": dict(asked.reserve or {}),
            "sandbox": "none",
        }
        optional = {"key": asked.key, "recorded": asked.recorded}
        call |= {name: value for name, value in optional.items() if value is not None}
        claim = asked.claim
        hooks_, evaluators = gateway.core_hooks, list(gateway.evaluators)
        self.way = _core.Passage(
            core, claim.run, claim.by(), claim.core(), self.tool.core, hooks_, evaluators, call
        )
        self.cause: BaseException | None = None
        self.live: object = None
        self.served: Json | None = None
        self.fatal: BaseException | None = None

    def go(self) -> Way:
        """The whole way, from the door to what agent code gets."""
        what, detail = self.way.begin()
        while True:
            match what:
                case "commit":
                    told = yield Commit(detail)
                    what, detail = self._told(told)
                case "validate":
                    what, detail = self.way.answer(self._validated(detail["arguments"]))
                case "run_hook":
                    what, detail = self.way.answer((yield from self._hook(detail)))
                case "run_evaluator":
                    what, detail = self.way.answer((yield from self._evaluated(detail)))
                case "run":
                    return (yield from self._pure(detail["arguments"]))
                case "run_effect":
                    what, detail = yield from self._settled((yield from self._effect(detail["permit"])))
                case "reconcile":
                    what, detail = self.way.answer((yield from self._reconciled(detail["permit"])))
                case "wait":
                    raise Suspended(detail["call"], detail["wait"])
                case "stop":
                    raise Stopped(detail["call"], detail["hook"])
                case _:
                    return self._outcome(detail["call"])

    def _told(self, told: _core.Gated) -> tuple[str, Any]:
        self.served = told.served() or self.served
        return self.way.told(told)

    # What is asked on the way.

    def _validated(self, arguments: object) -> Json:
        try:
            if not isinstance(arguments, dict):
                return {"answer": "invalid"}
            return {"answer": "valid", "arguments": self.tool.check(arguments)}
        except (ToolError, CanonicalError):
            return {"answer": "invalid"}

    def _hook(self, detail: Json) -> Generator[Run, Ran, Json]:
        claim = self.asked.claim
        point, value = detail["point"], detail["subject"]
        hook = self.gateway.hooks[detail["hook"]]
        subject = hook.shows(hooks.Subject(point, self.tool.name, claim.run, claim.agent, value))
        ran = yield from self._run(lambda: hook.body(subject), detail["timeout_ms"], hook.is_async)
        told: Json
        if ran.timed_out:
            told = {"answer": "timed_out"}
        elif ran.error is not None:
            told = {"answer": "failed"}
        else:
            answer = ran.value if ran.value is not None else hooks.OBSERVED
            told = {"answer": "failed"}
            if isinstance(answer, hooks.Response):
                told = {"answer": "response", "response": answer.at(point)}
                if point == "after_tool_call" and answer.kind == "rewrite" and not self._is_result(answer):
                    told["answer"] = "invalid"
        return {"answer": "hook", "elapsed_ms": ran.elapsed_ms, "told": told}

    def _is_result(self, answer: hooks.Response) -> bool:
        try:
            self.tool.result(answer.payload["value"])
        except (ValidationError, CanonicalError):
            return False
        return True

    def _evaluated(self, detail: Json) -> Generator[Run, Ran, Json]:
        evaluator = self.gateway.evaluators[detail["evaluator"]]
        claim = self.asked.claim
        value = detail["arguments"]
        subject = hooks.Subject("policy", self.tool.name, claim.run, claim.agent, value)
        ran = yield from self._run(
            lambda: evaluator.body(subject), 1000 * evaluator.timeout, evaluator.is_async
        )
        said = ran.value if ran.error is None and not ran.timed_out else None
        if said not in ("allow", "ask", "deny"):
            return {"answer": "evaluated"}  # it failed: that denies
        return {"answer": "evaluated", "decision": said}

    def _run(self, body: Callable[[], Any], timeout_ms: float, is_async: bool) -> Generator[Run, Ran, Ran]:
        """A body on the way. Interrupted, it has said nothing: the call is asked about anew another time."""
        ran = yield Run(body, timeout_ms / 1000, is_async)
        if ran.error is not None and not isinstance(ran.error, Exception):
            raise ran.error
        return ran

    # Bodies.

    def _pure(self, arguments: Json) -> Generator[Run, Ran, Any]:
        call = Call("", "", self.asked.claim.run, 0)
        ran = yield self._body(arguments, call)
        if ran.timed_out:
            raise EffectFailed(
                "it timed out", code="effect_failed", tool=self.tool.name, error="TimeoutError"
            )
        if ran.error is not None:
            raise ran.error
        return self.tool.result(self.tool.told(_plain(ran.value)))

    def _body(self, arguments: Json, call: Call) -> Run:
        options = self.tool.options
        bound = self.tool.bound(arguments, call)
        writes = options.effect == "write"
        return Run(lambda: self.tool.function(**bound), options.timeout, self.tool.is_async, settles=writes)

    def _effect(self, permit: Json) -> Generator[Run, Ran, Json]:
        boot_id, boot_ms = self.gateway.store._core.boot
        if boot_id != permit["boot_id"] or boot_ms > permit["start_by"]:
            failure = _failure("PermitExpired", code="permit_expired")
            return _ran("no_effect", 0, failure=failure, message="the body could not begin in time")
        call = Call(permit["call"], permit["key"], self.asked.claim.run, permit["dispatch"])
        for observer in self.gateway.observers("before_tool_call"):
            observer.tell(self._seen("before_tool_call", permit["arguments"]))
        try:
            body = self._body(permit["arguments"], call)
        except Exception as error:
            failure = _failure(type(error).__qualname__, code="bad_arguments")
            return _ran("no_effect", 0, failure=failure, message="the recorded arguments no longer fit")
        try:
            ran = yield body
        except HoldfastError as error:  # the body could not be started
            return _ran("no_effect", 0, failure=_failure(type(error).__name__, code=error.code), message="")
        return self._report(ran)

    def _seen(self, point: str, value: object) -> hooks.Subject:
        claim = self.asked.claim
        return hooks.Subject(point, self.tool.name, claim.run, claim.agent, value)

    def _report(self, ran: Ran) -> Json:
        writes = self.tool.options.effect == "write"
        error = ran.error
        self.cause = error
        if ran.timed_out:
            failure = _failure("TimeoutError", code="tool_timeout")
            if writes:
                return _unknown("timed_out", failure, "it did not end in time", over=ran.over)
            return _ran("timed_out", ran.elapsed_ms, failure=failure, message="it did not end in time")
        if error is None:
            return self._succeeded(ran)
        if isinstance(error, NoEffect):
            return _ran("no_effect", ran.elapsed_ms, failure=_failure("NoEffect"), message=_said(error))
        if isinstance(error, EffectFailed):
            failure = _failure(error.error, code=error.code)
            return _ran("failed", ran.elapsed_ms, failure=failure, message=_said(error))
        failure = _failure(type(error).__qualname__)
        if not isinstance(error, Exception):
            self.fatal = error  # raised again once the journal knows
            if not writes:
                return _ran("cancelled", ran.elapsed_ms, failure=failure)
        if writes:
            return _unknown("raised", failure, _said(error), over=True)
        return _ran("failed", ran.elapsed_ms, failure=failure, message=_said(error))

    def _succeeded(self, ran: Ran) -> Json:
        """It happened, whatever it returned: a result that is no good is never a reason to do it again."""
        extra: Json = {}
        if isinstance(ran.value, Result):
            extra = {"external_id": ran.value.external_id, "usage": ran.value.usage}
        try:
            value = self.tool.told(_plain(ran.value))
        except ValidationError:
            extra["output_error"] = _failure("ValidationError", code="output_invalid")
        except Exception as error:
            extra["output_error"] = _failure(type(error).__qualname__, code="result_unrecordable")
            self.cause = error
        else:
            self.live = value
            extra["result"] = {"privacy": "internal", "value": value}
        for observer in self.gateway.observers("after_tool_call"):
            observer.tell(self._seen("after_tool_call", self.live))
        extra = {name: value for name, value in extra.items() if value is not None}
        return _ran("succeeded", ran.elapsed_ms, **extra)

    def _settled(self, answer: Json) -> Generator[Commit | Pause, Any, tuple[str, Any]]:
        """Has an outcome written: again while the store is busy or full, and as a late report when another
        worker has the step by now."""
        try:
            _, detail = self.way.answer(answer)
        except HoldfastError:  # something in it cannot be written down; that it ended, and how, can
            answer = _bare(answer)
            _, detail = self.way.answer(answer)
        waited = 0.0
        while True:
            try:
                told = yield Commit(detail)
                break
            except StoreError as error:
                if error.code not in PASSING or waited >= self.asked.claim.lease:
                    raise
                yield Pause(0.05)
                waited += 0.05
                _, detail = self.way.retry()
            except CommandError as error:
                if error.code == "stale_fence":
                    yield from self._late()
                raise
        if self.fatal is not None:
            raise self.fatal
        if answer["answer"] == "ran":
            self.served = _fresh(answer["report"], self.tool)
        return self.way.told(told)

    def _late(self) -> Generator[Commit, Any, None]:
        late = self.way.late()
        if late is None:
            return
        try:
            yield Commit(late)
        except CommandError:
            return  # somebody has decided without us; what we know changes nothing

    def _reconciled(self, permit: Json) -> Generator[Run, Ran, Json]:
        options = self.tool.options
        call = Call(permit["call"], permit["key"], self.asked.claim.run, permit["dispatch"])
        ask = options.reconcile
        assert ask is not None
        ran = yield from self._run(
            lambda: ask(call), options.timeout * 1000, inspect.iscoroutinefunction(ask)
        )
        told = ran.value if ran.error is None and not ran.timed_out else CannotTell()
        if isinstance(told, DidNotHappen):
            return {"answer": "reconciled", "resolution": "did_not_happen"}
        if isinstance(told, Happened):
            answer: Json = {"answer": "reconciled", "resolution": "happened"}
            try:
                value = self.tool.told(told.value)
            except (ValidationError, CanonicalError):
                return {"answer": "reconciled"}  # nothing that could be recorded: a person has to look
            answer["result"] = {"privacy": "internal", "value": value}
            return answer | ({"external_id": told.external_id} if told.external_id else {})
        return {"answer": "reconciled"}

    # What agent code gets.

    def _outcome(self, call: str) -> Any:  # noqa: ANN401 (the tool says what it is)
        served, tool = self.served or {}, self.tool.name
        outcome = served.get("outcome")
        failure = served.get("failure") or served.get("output_error") or {}
        message = str(served.get("message") or failure.get("error") or outcome)
        match outcome:
            case "succeeded":
                if served.get("erased"):
                    raise OutcomeError("the result was erased", code="content_erased", call=call, tool=tool)
                try:
                    return self.tool.result(served.get("result"))
                except ValidationError:
                    told = "it happened, and what is recorded of it is not what the tool declares"
                    raise OutcomeError(told, code="output_invalid", call=call, tool=tool) from None
            case "denied_by_rule" | "denied_by_person":
                raise _denied(served, call, tool)
            case "no_effect":
                raise NoEffect(message, call=call, tool=tool) from self.cause
            case "unrecordable":
                code = failure.get("code") or "result_unrecordable"
                told = "it happened, and what it returned cannot be given back"
                raise OutcomeError(told, code=code, call=call, tool=tool) from self.cause
            case "compensated":
                raise EffectFailed("it was undone", code="compensated", call=call, tool=tool)
            case _:
                error = failure.get("error", "EffectFailed")
                raise EffectFailed(message, call=call, tool=tool, error=error) from self.cause


def _denied(served: Json, call: str, tool: str) -> Denied:
    reasons = served.get("reasons") or []
    codes = [str(reason["code"]) for reason in reasons]
    by = [
        f"{reason['code']} ({reason['rule']})" if reason.get("rule") else reason["code"] for reason in reasons
    ]
    message = f"{tool} was denied: {', '.join(by) or served['outcome']}"
    if codes == ["budget.exceeded"]:
        return BudgetRefused(message, code="budget_refused", call=call, tool=tool, reasons=reasons)
    return Denied(message, call=call, tool=tool, reasons=reasons)


def _plain(value: object) -> object:
    return value.value if isinstance(value, Result) else value


def _said(error: BaseException) -> str:
    return str(error.args[0]) if error.args else ""


def _failure(error: str, *, code: str | None = None) -> Json:
    failure: Json = {"error": error or "Error", "retryable": False, "source": "tool"}
    return failure | ({"code": code} if code else {})


def _ran(status: str, elapsed_ms: int, message: str | None = None, **extra: Any) -> Json:  # noqa: ANN401
    report: Json = {"elapsed_ms": elapsed_ms, "status": status, "unruled": False, **extra}
    if message is not None:
        report["message"] = {"privacy": "internal", "value": message}
    return {"answer": "ran", "report": report}


def _unknown(cause: str, failure: Json, message: str, *, over: bool) -> Json:
    told = {"privacy": "internal", "value": message}
    return {"answer": "unknown", "cause": cause, "failure": failure, "message": told, "over": over}


def _bare(answer: Json) -> Json:
    """An answer without anything that a body made up."""
    if answer["answer"] == "unknown":
        return _unknown(answer["cause"], _failure("Error"), "", over=answer["over"])
    report = answer["report"]
    if report["status"] == "succeeded":
        failure = _failure("RecordError", code="result_unrecordable")
        return _ran("succeeded", report["elapsed_ms"], output_error=failure)
    return _ran(report["status"], report["elapsed_ms"], failure=_failure("Error"))


OUTCOMES = {"succeeded": "succeeded", "no_effect": "no_effect", "cancelled": "cancelled"}


def _fresh(report: Json, tool: Tool[Any, Any]) -> Json:
    """What the journal would say of an outcome that was written a moment ago."""
    status = report["status"]
    failed = "write_failed" if tool.options.effect == "write" else "read_failed"
    outcome = "unrecordable" if "output_error" in report else OUTCOMES.get(status, failed)
    return {
        "failure": report.get("failure"),
        "message": (report.get("message") or {}).get("value"),
        "outcome": outcome,
        "output_error": report.get("output_error"),
        "result": (report.get("result") or {}).get("value"),
    }


def unknown_tool(name: str) -> ToolError:
    """There is no such tool here."""
    return ToolError(f"no tool is called {name}", code="no_such_tool", fix=fix("no_such_tool"))
