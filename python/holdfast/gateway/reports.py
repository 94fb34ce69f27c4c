"""How a body's end is told to the core: what is known of it, what is not, and no secret in either."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.errors import HoldfastError
from holdfast.gateway.outcomes import EffectFailed, NoEffect, Result
from holdfast.gateway.shapes import Unfit
from holdfast.secrets import scrub, scrubbed

if TYPE_CHECKING:
    from holdfast.gateway.bodies import Ran
    from holdfast.gateway.tools import Tool
    from holdfast.sandbox import Done

Json = dict[str, Any]

OUTCOMES = {"succeeded": "succeeded", "no_effect": "no_effect", "cancelled": "cancelled"}


def said(error: BaseException) -> str:
    """What an error says, without any secret; nothing, if it cannot even say that."""
    try:
        return scrub(str(error.args[0])) if error.args else ""
    except Exception:
        return ""


def failure(error: object, *, code: object = None, source: str = "tool") -> Json:
    """A failure, as the record has it. A body makes up what it is called: nothing of it is taken on trust."""
    name = scrub(error) if isinstance(error, str) else ""
    told: Json = {"error": name or "Error", "retryable": False, "source": source}
    return told | ({"code": code} if isinstance(code, str) and code and scrub(code) == code else {})


def ran(status: str, elapsed_ms: int, message: str | None = None, **extra: Any) -> Json:  # noqa: ANN401
    """The body ended, and how is known."""
    report: Json = {"elapsed_ms": elapsed_ms, "status": status, "unruled": False, **extra}
    if message is not None:
        report["message"] = {"privacy": "internal", "value": message}
    return {"answer": "ran", "report": report}


def unknown(cause: str, told: Json, message: str, *, over: bool, sandbox: Json | None = None) -> Json:
    """Nobody knows whether it happened."""
    content = {"privacy": "internal", "value": message}
    answer = {"answer": "unknown", "cause": cause, "failure": told, "message": content, "over": over}
    return answer | ({"sandbox": sandbox} if sandbox else {})


def bare(answer: Json) -> Json:
    """An answer without anything that a body made up."""
    if answer["answer"] == "unknown":
        return unknown(answer["cause"], failure("Error"), "", over=answer["over"])
    report = answer["report"]
    if report["status"] == "succeeded":
        told = failure("RecordError", code="result_unrecordable")
        return ran("succeeded", report["elapsed_ms"], output_error=told)
    return ran(report["status"], report["elapsed_ms"], failure=failure("Error"))


def fresh(report: Json, tool: Tool[Any, Any]) -> Json:
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


def not_begun(error: str, code: str, message: str = "") -> Json:
    """It provably did not happen: the body never began."""
    return ran("no_effect", 0, failure=failure(error, code=code), message=message)


def of_body(tool: Tool[Any, Any], ended: Ran) -> tuple[Json, BaseException | None]:
    """How a body in this process ended, and what is to be raised again once the journal knows."""
    writes, error = tool.options.effect == "write", ended.error
    if ended.timed_out:
        told, message = failure("TimeoutError", code="tool_timeout"), "it did not end in time"
        if writes:
            return unknown("timed_out", told, message, over=ended.over), None
        return ran("timed_out", ended.elapsed_ms, failure=told, message=message), None
    if error is None:
        return succeeded(tool, ended.value, ended.elapsed_ms), None
    own = getattr(error, "call", None) is None  # else it speaks of another call, which this one made
    if isinstance(error, NoEffect) and own:
        return ran("no_effect", ended.elapsed_ms, failure=failure("NoEffect"), message=said(error)), None
    if isinstance(error, EffectFailed) and own:
        told = failure(error.error, code=error.code)
        return ran("failed", ended.elapsed_ms, failure=told, message=said(error)), None
    told = failure(type(error).__qualname__)
    fatal = None if isinstance(error, Exception) else error
    if writes:
        return unknown("raised", told, said(error), over=ended.over), fatal
    if fatal is not None:
        return ran("cancelled", ended.elapsed_ms, failure=told), fatal
    return ran("failed", ended.elapsed_ms, failure=told, message=said(error)), None


def succeeded(tool: Tool[Any, Any], value: object, elapsed_ms: int, **extra: Any) -> Json:  # noqa: ANN401
    """It happened, whatever it returned: a result that is no good is never a reason to do it again."""
    if isinstance(value, Result):
        extra |= {"external_id": value.external_id, "usage": value.usage}
        value = value.value
    try:
        told = scrubbed(tool.told(value))
    except Unfit:
        extra["output_error"] = failure("ValidationError", code="output_invalid")
    except Exception as error:
        code = error.code if isinstance(error, HoldfastError) and error.code == "secret_value" else None
        extra["output_error"] = failure(type(error).__qualname__, code=code or "result_unrecordable")
    else:
        extra["result"] = {"privacy": "internal", "value": told}
    external_id = extra.get("external_id")
    if isinstance(external_id, str):
        extra["external_id"] = scrub(external_id)
    kept = {name: part for name, part in extra.items() if part is not None}
    return ran("succeeded", elapsed_ms, **kept)


def of_sandbox(tool: Tool[Any, Any], done: Done) -> Json:
    """How a body in a process of its own ended. Everything of it is dead by now."""
    finished: Json = {"end": done.end} | ({} if done.exit_code is None else {"exit_code": done.exit_code})
    writes, error, elapsed = tool.options.effect == "write", done.error, done.elapsed_ms
    if done.returned and error is None:
        value = Result(done.value, done.external_id, done.usage)
        return succeeded(tool, value, elapsed, sandbox=finished)
    told = failure("SandboxError", code="sandbox_failed", source="sandbox")
    message = "its process ended without an answer"
    if error is not None:
        told = failure(error["type"], code=error["code"] or None)
        message = scrub(error["message"])
    if done.returned:
        return ran(
            "succeeded", elapsed, output_error=told | {"code": "result_unrecordable"}, sandbox=finished
        )
    if not done.started or (error is not None and error["no_effect"]):
        return ran("no_effect", elapsed, failure=told, message=message, sandbox=finished)
    if error is not None and error["effect_failed"]:
        return ran("failed", elapsed, failure=told, message=message, sandbox=finished)
    if done.end == "timed_out":
        told, message = failure("TimeoutError", code="tool_timeout"), "it did not end in time"
        if not writes:
            return ran("timed_out", elapsed, failure=told, message=message, sandbox=finished)
        return unknown("timed_out", told, message, over=True, sandbox=finished)
    if writes:
        return unknown("raised", told, message, over=True, sandbox=finished)
    return ran("failed", elapsed, failure=told, message=message, sandbox=finished)
