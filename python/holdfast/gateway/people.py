"""What people see and decide, from any process: requests for approval, effects in doubt."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from holdfast import _core
from holdfast.errors import CommandError
from holdfast.gateway.bodies import INSIDE
from holdfast.gateway.outcomes import fix
from holdfast.gateway.policy import conditions
from holdfast.secrets import scrub
from holdfast.store.commands import human, payload
from holdfast.values import to_json
from holdfast.visible import Listing, Shown

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from holdfast.store import Record, Store
    from holdfast.values import Json


MISSING: Any = object()
"""Stands where nothing was said: a result may be None."""


def outside() -> None:
    """Refuses the code of agents, tools and hooks, as far as it can be told."""
    if INSIDE.get():
        code = "self_approval"
        raise CommandError("agents, tools and hooks decide nothing", code=code, fix=fix(code))


@dataclass(frozen=True)
class ForSession:
    """What an approver allows a session from now on, beside the call that was asked about.

    Attributes:
        when: which arguments, as in a policy: ``{"args.cents": {"max": 5000}}``; ``{}`` is any.
        uses: for how many calls.
        expires_in: for how many seconds.
    """

    when: Mapping[str, object]
    uses: int
    expires_in: float

    def scope(self, at_ms: int) -> dict[str, Any]:
        """The contract ``GrantScope``."""
        expires_at = at_ms + round(self.expires_in * 1000)
        constraints = conditions(dict(self.when), "when")
        return {"constraints": constraints, "expires_at": expires_at, "uses": self.uses}


@dataclass(frozen=True)
class Approve:
    """A person's yes, as an approver hands it in."""

    by: str
    reason: str | None = None
    session: ForSession | None = None


@dataclass(frozen=True)
class Deny:
    """A person's no."""

    by: str
    reason: str | None = None


def vote_call(core: _core.Store, run: str, approval: str, said: Approve | Deny) -> _core.Call:
    """A vote, as a call of the store."""
    command: dict[str, Any] = {"approval": approval, "command": "vote", "vote": "denied"}
    if isinstance(said, Approve):
        command["vote"] = "approved"
        if said.session is not None:
            command |= {"scope": said.session.scope(core.wall_ms), "vote": "approved_for_session"}
    if said.reason is not None:
        command["reason"] = payload(scrub(said.reason), "internal")
    return _core.Call.command(run, human(said.by), command, "barrier")


@dataclass(frozen=True)
class Request(Shown):
    """A request for approval. What is shown is what the decision is bound to.

    Where a rule obliges to redact, markers stand in the arguments, ``[redacted card]``, and the decision is
    bound to what stands behind them. Edited arguments may keep them.
    """

    id: str
    run: str
    call: str
    tool: str
    version: str | None
    arguments: Any
    effect: str
    risk: str
    status: str
    quorum: int
    roles: tuple[str, ...]
    votes: dict[str, str]
    requested_at: int
    expires_at: int
    digest: str
    sandbox: str
    """Where its body would run."""
    redacted: tuple[str, ...] = ()
    """The arguments that are not shown."""


@dataclass(frozen=True)
class Doubt(Shown):
    """A write that may or may not have happened."""

    id: str
    """The call and its dispatch: what is said about this one resolves no other."""
    run: str
    tool: str
    arguments: Any
    key: str
    """The idempotency key that the provider was given: look it up there."""
    cause: str
    dispatch: int
    redacted: tuple[str, ...] = ()
    """The arguments that are not shown."""


def _redacted(state: dict[str, Any], call: str | None) -> tuple[str, ...]:
    """What people are not shown of a call's arguments."""
    return tuple(state["calls"].get(call, {}).get("redacted", ()))


def _shown(arguments: object, redacted: tuple[str, ...]) -> Any:  # noqa: ANN401 (any JSON)
    return _core.redacted(arguments, list(redacted)) if redacted else arguments


class Approvals:
    """Requests for approval, and decisions about them."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def list(self, status: str | None = "pending", *, limit: int = 100) -> Sequence[Request]:
        """Requests of a status (``None``: all), the oldest first."""
        rows = self._store.sql(
            "SELECT approvals.id, streams.id AS run FROM approvals JOIN streams ON key = run"
            " WHERE approvals.status = ?1 OR ?1 IS NULL ORDER BY approvals.id LIMIT ?2",
            [status, limit],
        )
        return Listing(self._request(row["run"], row["id"]) for row in rows)

    def get(self, approval: str) -> Request:
        """One request."""
        return self._request(self._run(approval), approval)

    def _run(self, approval: str) -> str:
        sql = "SELECT streams.id AS run FROM approvals JOIN streams ON key = run WHERE approvals.id = ?"
        rows = self._store.sql(sql, [approval])
        if not rows:
            code = "no_such_approval"
            raise CommandError("there is no such request for approval", code=code, fix=fix(code))
        return str(rows[0]["run"])

    def _request(self, run: str, approval: str) -> Request:
        state = self._store.state(run)
        found = state["approvals"][approval]
        asked, record = found["requested"], self._shows(run, state, found)
        redacted = _redacted(state, found.get("call"))
        return Request(
            id=approval,
            run=run,
            call=found.get("call", ""),
            tool=asked["tool"],
            version=asked.get("version"),
            arguments=_shown(record.value["arguments"], redacted),
            effect=asked["effect"],
            risk=asked["risk"],
            status=found["state"],
            quorum=found["quorum"],
            roles=tuple(asked["roles"]),
            votes=dict(found["votes"]),
            requested_at=record.at,
            expires_at=found["expires_at"],
            digest=found["digest"],
            sandbox=asked["sandbox"],
            redacted=redacted,
        )

    def _shows(self, run: str, state: dict[str, Any], found: dict[str, Any]) -> Record:
        """The record with the arguments that a request is about."""
        return next(self._store.read(run, after=found["arguments"]["position"] - state["base"] - 1))

    def approve(
        self, approval: str, *, by: str, reason: str | None = None, session: ForSession | None = None
    ) -> Request:
        """A vote for it. The call goes on when the quorum is met.

        Args:
            approval: the request.
            by: who votes.
            reason: why; it stays in the journal.
            session: also for further calls of the run's session, if everybody of the quorum says so.
        """
        return self._vote(approval, Approve(by, reason, session))

    def deny(self, approval: str, *, by: str, reason: str | None = None) -> Request:
        """A vote against it, which decides."""
        return self._vote(approval, Deny(by, reason))

    def _vote(self, approval: str, said: Approve | Deny) -> Request:
        outside()
        run = self._run(approval)
        self._store._core.run(vote_call(self._store._core, run, approval, said))
        return self._request(run, approval)

    def edit(
        self, approval: str, arguments: Mapping[str, object], *, by: str, reason: str | None = None
    ) -> Request:
        """Puts other arguments in the place of those that were shown.

        The request is over with that. The call goes through hooks and policy with the new arguments, and if
        it still has to be approved, a new request is made; nobody's vote is carried over.

        What was shown as ``[redacted ...]`` stays what it is where the marker is left in its place.

        Raises:
            CommandError: ``edit_denied`` if the active policy denies them, ``bad_arguments`` if a marker
                stands where it stands for nothing.
        """
        outside()
        run = self._run(approval)
        given, privacy = self._restored(run, approval, to_json(dict(arguments)))
        command: dict[str, Any] = {
            "approval": approval,
            "arguments": payload(given, privacy),
            "command": "edit",
        }
        if reason is not None:
            command["reason"] = payload(reason, "internal")
        self._store._core.run(_core.Call.command(run, human(by), command, "barrier"))
        return self._request(run, approval)

    def _restored(self, run: str, approval: str, given: Json) -> tuple[Json, str]:
        """Edited arguments with what stands behind their markers, and who may see them."""
        state = self._store.state(run)
        found = state["approvals"][approval]
        redacted = _redacted(state, found.get("call"))
        if not redacted:
            return given, "internal"
        real = self._shows(run, state, found).value["arguments"]
        restored = _core.restored(given, real, list(redacted))
        if restored is None:
            code = "bad_arguments"
            told = "a marker of the arguments stands where nothing was redacted"
            raise CommandError(told, code=code, fix=fix(code))
        return restored, "sensitive"


class Effects:
    """Effects that nobody knows the outcome of, and their resolution."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def list(self, *, in_doubt: bool = True) -> Sequence[Doubt]:
        """Writes in doubt, of every run; with ``in_doubt=False`` also those on their way."""
        phases = ("doubted",) if in_doubt else ("doubted", "started")
        return Listing(doubt for run in self._runs() for doubt in self._of(run, phases))

    def _runs(self) -> Sequence[str]:
        rows = self._store.sql("SELECT id FROM runs WHERE status <> 'completed' ORDER BY stream")
        return [str(row["id"]) for row in rows]

    def _of(self, run: str, phases: tuple[str, ...]) -> Iterator[Doubt]:
        state = self._store.state(run)
        for call in state["calls"].values():
            if call["phase"] in phases and call["effect"] == "write":
                place = call["effective"]["position"] - state["base"]
                record = next(self._store.read(run, after=place - 1))
                redacted = _redacted(state, call["id"])
                yield Doubt(
                    id=f"{call['id']}.{call['dispatch']}",
                    run=run,
                    tool=call["name"],
                    arguments=_shown(record.value["arguments"], redacted),
                    key=call["permit_key"],
                    cause=call.get("doubt", "running"),
                    dispatch=call["dispatch"],
                    redacted=redacted,
                )

    def resolve(
        self,
        doubt: str,
        *,
        by: str,
        happened: object = MISSING,
        did_not_happen: bool = False,
        compensated: bool = False,
        external_id: str | None = None,
        reason: str | None = None,
        force: bool = False,
    ) -> None:
        """A person says what became of a write; its run goes on from there.

        Args:
            doubt: its id, as :meth:`list` has it.
            by: who says so.
            happened: the result that agent code gets: it happened, and the tool is not called again.
            did_not_happen: it provably did not, and no longer can; it is sent off again under its key.
            compensated: it happened, and was undone.
            external_id: what the provider calls it.
            reason: how it was found out.
            force: although the permit might still act; this is recorded.
        """
        outside()
        said = [happened is not MISSING, did_not_happen, compensated]
        if sum(said) != 1:
            raise TypeError("say one of happened=, did_not_happen=True, compensated=True")
        call, _, dispatch = doubt.partition(".")
        if not dispatch.isdecimal():
            raise CommandError(
                "a doubt is a call and its dispatch", code="no_such_call", fix=fix("no_such_call")
            )
        run = next((run for run in self._runs() if call in self._store.state(run)["calls"]), None)
        if run is None:
            raise CommandError("no run has this call", code="no_such_call", fix=fix("no_such_call"))
        resolution = "happened" if said[0] else "did_not_happen" if said[1] else "compensated"
        command: dict[str, Any] = {"call": call, "command": "resolve", "dispatch": int(dispatch)}
        command |= {"force": force, "resolution": resolution}
        if said[0]:
            command["result"] = payload(happened, "internal")
        if external_id is not None:
            command["external_id"] = external_id
        if reason is not None:
            command["reason"] = payload(reason, "internal")
        asked = _core.Call.command(run, human(by), command, "barrier")
        self._store._core.run(asked)
