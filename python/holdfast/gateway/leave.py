"""What may be used: grants that people gave, and capabilities that runs hold."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from holdfast import _core
from holdfast.errors import CommandError
from holdfast.gateway.outcomes import fix
from holdfast.gateway.people import outside
from holdfast.gateway.policy import conditions
from holdfast.primitives import new_id
from holdfast.store.commands import human, payload
from holdfast.visible import Listing, Shown

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from holdfast.store import Claim, Store


@dataclass(frozen=True)
class Grant(Shown):
    """Leave to use a tool: for one call, or for a session."""

    id: str
    stream: str
    """The run or the session that has it."""
    tool: str
    uses: int
    spent: int
    expires_at: int
    revoked: bool
    constraints: tuple[dict[str, Any], ...]


class Grants:
    """Leave that people gave, and taking it back."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def list(self, *, stream: str | None = None) -> Sequence[Grant]:
        """Grants, the oldest first: of a session or a run, or all."""
        rows = self._store.sql(
            "SELECT grants.*, streams.id AS held_by, (SELECT count(*) FROM grant_uses"
            " WHERE grant_id = grants.id) AS used FROM grants JOIN streams ON key = stream"
            " WHERE streams.id = ?1 OR ?1 IS NULL ORDER BY grants.id",
            [stream],
        )
        return Listing(self._grant(row) for row in rows)

    def _grant(self, row: Mapping[str, Any]) -> Grant:
        folded = self._store.state(row["held_by"])["grants"][row["id"]]
        return Grant(
            id=row["id"],
            stream=row["held_by"],
            tool=row["tool"],
            uses=row["uses"],
            spent=row["spent"] + row["used"],
            expires_at=row["expires_at"],
            revoked=bool(row["revoked"]),
            constraints=tuple(folded.get("constraints", ())),
        )

    def revoke(self, grant: str, *, by: str, reason: str | None = None) -> None:
        """Takes it back. What it has let act is not undone; what comes again under it is asked about."""
        outside()
        sql = "SELECT streams.id FROM grants JOIN streams ON key = stream WHERE grants.id = ?"
        rows = self._store.sql(sql, [grant])
        if not rows:
            code = "no_such_grant"
            raise CommandError("there is no such grant", code=code, fix=fix(code))
        stream = str(rows[0]["id"])
        if stream.startswith("ses_"):
            _core.revoke_session_grant(self._store._core, human(by), stream, grant, reason)
            return
        command: dict[str, Any] = {"command": "revoke", "grant": grant}
        if reason is not None:
            command["reason"] = payload(reason, "internal")
        self._store._core.run(_core.Call.command(stream, human(by), command, "barrier"))


@dataclass(frozen=True)
class Capability(Shown):
    """What a run may reach, and how far."""

    id: str
    target: str
    """A glob over the names of tools."""
    rights: tuple[str, ...]
    constraints: tuple[dict[str, Any], ...]
    expires_at: int | None
    parent: str | None
    revoked: bool
    to: str | None
    """The run that it was handed to."""


def capability(
    target: str,
    *,
    rights: Sequence[str] = ("call",),
    when: Mapping[str, object] | None = None,
    expires_at: int | None = None,
) -> dict[str, Any]:
    """A capability for ``store.create_run(capabilities=[...])``: such a run reaches only what it is given.

    Args:
        target: a glob over the names of tools; with the right ``spawn``, over those of agents.
        rights: of ``call``, ``open``, ``read``, ``write``, ``send``, ``monitor``, ``kill``, ``spawn`` and
            ``grant``.
        when: which arguments, as in a policy.
        expires_at: until when, in milliseconds since the epoch.
    """
    given: dict[str, Any] = {
        "constraints": conditions(dict(when or {}), "when"),
        "rights": list(rights),
        "target": target,
    }
    return given | ({} if expires_at is None else {"expires_at": expires_at})


class Capabilities:
    """What runs hold: made less of, handed on, taken back."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def list(self, run: str) -> Sequence[Capability]:
        """What a run holds or held. One that was not restricted holds everything its agent registered."""
        held = self._store.state(run)["capabilities"]["held"]
        return Listing(
            Capability(
                id=key,
                target=one["target"],
                rights=tuple(one["rights"]),
                constraints=tuple(one["constraints"]),
                expires_at=one.get("expires_at"),
                parent=one.get("parent"),
                revoked=one["revoked"],
                to=one.get("to"),
            )
            for key, one in held.items()
        )

    def attenuate(
        self,
        claim: Claim,
        parent: str,
        *,
        rights: Sequence[str] = ("call",),
        when: Mapping[str, object] | None = None,
        expires_at: int | None = None,
    ) -> str:
        """Makes one that allows less, and returns its id. What restricts the parent restricts it too."""
        new = new_id("cap", at_ms=self._store._core.wall_ms)
        command: dict[str, Any] = {
            "capability": new,
            "claim": claim.core(),
            "command": "attenuate",
            "constraints": conditions(dict(when or {}), "when"),
            "parent": parent,
            "rights": list(rights),
        }
        if expires_at is not None:
            command["expires_at"] = expires_at
        self._store._core.run(_core.Call.command(claim.run, claim.by(), command, "commit"))
        return new

    def transfer(self, claim: Claim, capability: str, *, to: str) -> None:
        """Hands one to another run; it needs the right ``grant``, and is no longer held here."""
        command = {"capability": capability, "claim": claim.core(), "command": "transfer", "to": to}
        self._store._core.run(_core.Call.command(claim.run, claim.by(), command, "barrier"))

    def revoke(self, run: str, capability: str, *, by: str, reason: str | None = None) -> None:
        """Takes one back, and with it all that was made of it, wherever that is."""
        outside()
        command: dict[str, Any] = {"capability": capability, "command": "revoke_capability"}
        if reason is not None:
            command["reason"] = payload(reason, "internal")
        self._store._core.run(_core.Call.command(run, human(by), command, "barrier"))
