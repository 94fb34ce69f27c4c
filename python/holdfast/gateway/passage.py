"""One call on its way, written once for threads and for asyncio: a generator that says what is to be done
and hears what came of it. The core decides what comes next; this does it.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from holdfast import _core
from holdfast.errors import CanonicalError, CommandError, HoldfastError, StoreError
from holdfast.gateway import bodies, boxes, hooks, points, reports
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
from holdfast.gateway.people import Approvals, Approve, Deny, vote_call
from holdfast.gateway.shapes import ToolError, Unfit, refuse
from holdfast.gateway.watch import LOOKS_ON, Watch
from holdfast.gateway.way import Commit, Pause, Run, Way
from holdfast.primitives import new_id
from holdfast.secrets import Secret, handle, is_handle, scrub, scrubbed, tells

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping

    from holdfast.gateway.bodies import Ran
    from holdfast.gateway.driver import Gateway
    from holdfast.gateway.tools import Tool
    from holdfast.store import Claim

Json = dict[str, Any]
PASSING = frozenset(("store_busy", "disk_full"))
"""Failures of the store that may pass: an outcome that is known is worth trying again for."""

log = logging.getLogger("holdfast.gateway")


@dataclass(frozen=True)
class Asked:
    """What agent code asks for."""

    claim: Claim
    tool: Tool[Any, Any]
    arguments: Json
    key: str | None = None
    reserve: Mapping[str, int] | None = None
    capability: str | None = None
    recorded: str | None = None
    lane: str = "0"
    secrets: dict[str, Secret[Any]] = field(default_factory=dict)
    """By parameter: the journal has only what stands for them."""
    kind: str = "tool"
    call: str | None = None
    """The id that it gets if it is new."""
    key_shared_ms: int | None = None
    """Its key is one of the whole store, and is kept for so long."""
    redact: tuple[str, ...] = ()
    """What nobody on the way is shown of the arguments, beside what rules say."""


def hidden(
    core: _core.Store, run: str, declared: tuple[str, ...], checked: Json
) -> tuple[Json, dict[str, Secret[Any]]]:
    """Arguments as JSON with handles in the place of secrets, and the secrets."""
    secrets = {name: value for name, value in checked.items() if isinstance(value, Secret)}
    if any(is_handle(value) for name, value in checked.items() if name in declared):
        raise refuse(
            "bad_arguments", "what stands for a secret is no secret: pass hf.Secret(value, name=...)"
        )
    stand_in = {
        name: handle(secret, _core.secret_digest(core, run, secret.name, secret.text()))
        for name, secret in secrets.items()
    }
    return {**checked, **stand_in}, secrets


class Passenger:
    """Drives one passage."""

    def __init__(self, gateway: Gateway, asked: Asked) -> None:
        self.gateway = gateway
        self.asked = asked
        self.tool = asked.tool
        self.box = gateway.sandbox if self.tool.options.sandbox != "none" else None
        self.way = self._passage()
        self.cause: BaseException | None = None
        self.served: Json | None = None
        self.fatal: BaseException | None = None
        self.votes: list[tuple[str, Approve | Deny]] = []
        self.overtaken = False

    def _passage(self) -> _core.Passage:
        asked, gateway, claim = self.asked, self.gateway, self.asked.claim
        core = gateway.store._core
        call: Json = {
            "arguments": {"privacy": "internal", "value": asked.arguments},
            "call": asked.call or new_id("call", at_ms=core.wall_ms),
            "dispatchers": list(gateway.approvers),
            "guards": sorted(self.box.enforces()) if self.box else [],
            "kind": asked.kind,
            "lane": asked.lane,
            "redact": list(asked.redact),
            "reserve": dict(asked.reserve or {}),
            "sandbox": self.box.tier if self.box else "none",
        }
        optional = {
            "capability": asked.capability,
            "key": asked.key,
            "key_shared_ms": asked.key_shared_ms,
            "recorded": asked.recorded,
        }
        call |= {name: value for name, value in optional.items() if value is not None}
        self.watch = Watch(self, call["call"]) if gateway.is_watched else None
        hooks_, evaluators = gateway.core_hooks, [*gateway.evaluators, *([LOOKS_ON] if self.watch else [])]
        return _core.Passage(
            core, claim.run, claim.by(), claim.core(), self.tool.core, hooks_, evaluators, call
        )

    def go(self) -> Way:
        """The whole way, from the door to what agent code gets."""
        what, detail = self.way.begin()
        while True:
            match what:
                case "commit":
                    try:
                        told = yield Commit(detail)
                    except CommandError as error:
                        if error.code != "not_in_doubt" or self.overtaken:
                            raise
                        # Somebody has resolved the doubt while the tool was asked: the journal knows how.
                        self.overtaken, self.way = True, self._passage()
                        what, detail = self.way.begin()
                        continue
                    what, detail = self._told(told)
                case "validate":
                    what, detail = self.way.answer(self._validated(detail["arguments"]))
                case "run_hook":
                    what, detail = self.way.answer((yield from self._hook(detail)))
                case "run_evaluator":
                    what, detail = self.way.answer((yield from self._evaluated(detail)))
                case "dispatch":
                    what, detail = self.way.answer((yield from self._dispatched(detail)))
                case "run":
                    body = self._pure(detail["arguments"])
                    return (yield from (self.watch.body(body) if self.watch else body))
                case "run_effect":
                    what, detail = yield from self._settled((yield from self._effect(detail)))
                case "reconcile":
                    what, detail = self.way.answer((yield from self._reconciled(detail["permit"])))
                case "wait":
                    if not (yield from self._voted()):
                        raise Suspended(detail["call"], detail["wait"])
                    self.way = self._passage()
                    what, detail = self.way.begin()
                case "stop":
                    raise Stopped(detail["call"], detail["hook"])
                case _:
                    return self._outcome(detail["call"])

    def _told(self, told: _core.Gated) -> tuple[str, Any]:
        self.served = told.served() or self.served
        if self.watch is not None:
            self.watch.gate(told.gate())
        return self.way.told(told)

    # What is asked on the way.

    def _validated(self, arguments: object) -> Json:
        try:
            if not isinstance(arguments, dict):
                return {"answer": "invalid"}
            given = self.tool.check(arguments)
        except (ToolError, CanonicalError):
            return {"answer": "invalid"}
        # Nobody puts another secret in the place of the one that agent code gave.
        if not all(given.get(name) == self.asked.arguments[name] for name in self.asked.secrets):
            return {"answer": "invalid"}
        if self.watch is not None:
            self.watch.arguments = given
        return {"answer": "valid", "arguments": given}

    @property
    def claimed(self) -> Claim:
        """The claim that it is made under."""
        return self.asked.claim

    def _hook(self, detail: Json) -> Generator[Run, Ran, Json]:
        answer = yield from points.heard(self, detail)
        told: Json = answer["told"]
        rewrites = told["answer"] == "response" and told["response"]["type"] == "rewrite_tool_result"
        if rewrites and not self._is_result(told["response"]["payload"]["value"]):
            told["answer"] = "invalid"
        return answer

    def _is_result(self, value: Any) -> bool:  # noqa: ANN401 (any JSON)
        try:
            self.tool.result(value)
        except (Unfit, CanonicalError):
            return False
        return True

    def _evaluated(self, detail: Json) -> Generator[Run, Ran, Json]:
        if detail["evaluator"] == LOOKS_ON:
            return {"answer": "evaluated", "decision": "allow"}
        evaluator = self.gateway.evaluators[detail["evaluator"]]
        subject = self.seen("policy", detail["arguments"])
        ran = yield from points.on_the_way(
            lambda: evaluator.body(subject), 1000 * evaluator.timeout, evaluator.is_async
        )
        said = ran.value if ran.error is None and not ran.timed_out else None
        if said not in ("allow", "ask", "deny"):
            return {"answer": "evaluated"}  # it failed: that denies
        return {"answer": "evaluated", "decision": said}

    def seen(self, point: str, value: object) -> hooks.Subject:
        """What hooks are shown."""
        claim = self.asked.claim
        outcome: hooks.Outcome | None = "succeeded" if point == "after_tool_call" else None
        return hooks.Subject(point, self.tool.name, claim.run, claim.agent, value, claim.step, outcome)

    # People.

    def _dispatched(self, detail: Json) -> Generator[Run, Ran, Json]:
        """Has an approver told of a request. Whatever goes wrong, the request only stands."""
        approver, approval = self.gateway.approvers[detail["dispatcher"]], detail["approval"]
        approvals = Approvals(self.gateway.store)

        def tell() -> object:
            return approver.body(approvals.get(approval))

        ran = yield from points.on_the_way(tell, 1000 * approver.timeout, approver.is_async)
        if ran.timed_out or ran.error is not None:
            code = "approval.timeout" if ran.timed_out else "approval.dispatcher_error"
            return {"answer": "dispatched", "reason_code": code, "status": "dispatcher_unavailable"}
        if isinstance(ran.value, Approve | Deny):
            self.votes.append((approval, ran.value))
        elif ran.value is not None:
            code = "approval.decision_not_allowed"
            return {"answer": "dispatched", "reason_code": code, "status": "recovery_required"}
        return {"answer": "dispatched", "status": "dispatched"}

    def _voted(self) -> Generator[Commit, Any, bool]:
        """Hands in what approvers said; whether that decided anything."""
        decided = False
        while self.votes:
            approval, said = self.votes.pop(0)
            try:
                told = yield Commit(vote_call(self.gateway.store._core, self.asked.claim.run, approval, said))
            except Exception as error:  # no role, too late, decided by another, nonsense: the request stands
                told = getattr(error, "code", type(error).__name__)
                log.warning("a vote was refused: %s", told, extra=self.asked.claim.about())
                continue
            decided |= told.gate()["state"] != "pending"
        return decided

    # Bodies.

    def _pure(self, arguments: Json) -> Generator[Run, Ran, Any]:
        call = Call("", "", self.asked.claim.run, 0)
        ran = yield self._body(arguments, call)
        if ran.timed_out:
            raise EffectFailed(
                "it timed out", code="effect_failed", tool=self.tool.name, error="TimeoutError"
            )
        if ran.error is not None:
            if tells(ran.error):
                raise EffectFailed(
                    reports.said(ran.error), tool=self.tool.name, error=type(ran.error).__name__
                ) from None
            raise ran.error
        value = ran.value.value if isinstance(ran.value, Result) else ran.value
        told = scrubbed(self.tool.told(value))
        if self.watch is not None:
            self.watch.result = told
        return self.tool.result(told)

    def _body(self, arguments: Json, call: Call) -> Run:
        options = self.tool.options
        bound = self.tool.bound(arguments, call, self.asked.secrets)
        writes = options.effect == "write"

        async def awaited() -> object:
            with bodies.living(call.id):
                return await self.tool.function(**bound)

        def called() -> object:
            with bodies.living(call.id):
                return self.tool.function(**bound)

        body = awaited if self.tool.is_async else called
        return Run(body, options.timeout, self.tool.is_async, settles=writes)

    def _effect(self, detail: Json) -> Generator[Commit | Run, Any, Json]:
        permit: Json = detail["permit"]
        if self.expired(permit):
            return reports.not_begun("PermitExpired", "permit_expired", "the body could not begin in time")
        call = Call(permit["call"], permit["key"], self.asked.claim.run, permit["dispatch"])
        if self.box is not None:
            return (yield from boxes.ran(self, self.box, permit, call))
        try:
            body = self._body(permit["arguments"], call)
        except Exception as error:
            told = "the recorded arguments no longer fit"
            return reports.not_begun(type(error).__qualname__, "bad_arguments", told)
        try:
            ran: Ran = yield body
        except HoldfastError as error:  # the body could not be started
            return reports.not_begun(type(error).__name__, error.code)
        report, self.fatal = reports.of_body(self.tool, ran)
        self.cause = None if tells(ran.error) else ran.error
        return report

    def expired(self, permit: Json) -> bool:
        """Whether it is too late for a body to begin."""
        boot_id, boot_ms = self.gateway.store._core.boot
        return bool(boot_id != permit["boot_id"] or boot_ms > permit["start_by"])

    def _settled(self, answer: Json) -> Generator[Commit | Pause, Any, tuple[str, Any]]:
        """Has an outcome written: again while the store is busy or full, and as a late report when another
        worker has the step by now."""
        try:
            _, detail = self.way.answer(answer)
        except HoldfastError:  # something in it cannot be written down; that it ended, and how, can
            answer = reports.bare(answer)
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
                if error.code in ("stale_fence", "run_ended"):
                    yield from self._late()
                raise
        if answer["answer"] == "ran":
            self.served = reports.fresh(answer["report"], self.tool)
            if self.watch is not None:
                self.watch.ended = True
        if self.fatal is not None:
            if self.watch is not None and not isinstance(self.fatal, Suspended | Stopped):
                self.watch.over(self.served or {})
            raise self.fatal
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
        if ask is None or call.id in bodies.LIVING:
            return {"answer": "reconciled"}  # the body is alive in this very process: nobody can tell yet
        ran = yield from points.on_the_way(
            lambda: ask(call), options.timeout * 1000, bodies.is_coroutine(ask)
        )
        told = ran.value if ran.error is None and not ran.timed_out else CannotTell()
        if isinstance(told, DidNotHappen):
            return {"answer": "reconciled", "resolution": "did_not_happen"}
        if isinstance(told, Happened):
            answer: Json = {"answer": "reconciled", "resolution": "happened"}
            try:
                value = scrubbed(self.tool.told(told.value))
            except (Unfit, CanonicalError):
                return {"answer": "reconciled"}  # nothing that could be recorded: a person has to look
            answer["result"] = {"privacy": "internal", "value": value}
            return answer | ({"external_id": scrub(told.external_id)} if told.external_id else {})
        return {"answer": "reconciled"}

    # What agent code gets.

    def _outcome(self, call: str) -> Any:  # noqa: ANN401 (the tool says what it is)
        served = self.served or {}
        if self.watch is not None:
            self.watch.over(served)
        return given(self.tool, call, served, self.cause)


def given(made: Tool[Any, Any], call: str, served: Json, cause: BaseException | None = None) -> Any:  # noqa: ANN401
    """What agent code gets of a call that has ended: its result, or the error that stands for its outcome.

    The same live, when the step is run again, and when somebody replays the run; the cause is known only
    live.
    """
    tool = made.name
    outcome = served.get("outcome")
    failure = served.get("failure") or served.get("output_error") or {}
    message = str(served.get("message") or failure.get("error") or outcome)
    match outcome:
        case "succeeded":
            if served.get("erased"):
                raise OutcomeError("the result was erased", code="content_erased", call=call, tool=tool)
            try:
                return made.result(served.get("result"))
            except Unfit:
                told = "it happened, and what is recorded of it is not what the tool declares"
                raise OutcomeError(told, code="output_invalid", call=call, tool=tool) from None
        case "denied_by_rule" | "denied_by_person":
            raise _denied(served, call, tool)
        case "no_effect":
            code = failure.get("code")
            known = code if code in ("sandbox_missing", "permit_expired") else "no_effect"
            raise NoEffect(message, code=known, call=call, tool=tool) from cause
        case "unrecordable":
            code = failure.get("code") or "result_unrecordable"
            told = "it happened, and what it returned cannot be given back"
            raise OutcomeError(told, code=code, call=call, tool=tool) from cause
        case "compensated":
            raise EffectFailed("it was undone", code="compensated", call=call, tool=tool)
        case _:
            error = failure.get("error", "EffectFailed")
            raise EffectFailed(message, call=call, tool=tool, error=error) from cause


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


def unknown_tool(name: str) -> ToolError:
    """There is no such tool here."""
    return ToolError(f"no tool is called {name}", code="no_such_tool", fix=fix("no_such_tool"))
