"""Runs as people and programs see them: where each stands, what it came to, and what it waits for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from holdfast.errors import CommandError
from holdfast.gateway.outcomes import fix
from holdfast.runtime import parting
from holdfast.visible import Listing, Shown

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from holdfast.runtime.runtime import Runtime
    from holdfast.store import Record

Json = dict[str, Any]
ENDED = frozenset(("completed", "failed", "cancelled"))


@dataclass(frozen=True)
class Failed:
    """How a run failed."""

    error: str
    """The name of the error's class."""
    message: str | None
    code: str | None

    def __str__(self) -> str:
        return self.error if not self.message else f"{self.error}: {self.message}"


class RunError(CommandError):
    """A run that did not complete, where its result was asked for."""


class Run(Shown):
    """A run. What it says is read when it is asked for; :meth:`refresh` reads it anew."""

    def __init__(self, runtime: Runtime, run: str, known: Mapping[str, Any] | None = None) -> None:
        self._runtime = runtime
        self.id = run
        self._known: Json = dict(known or {})

    def refresh(self) -> Run:
        """Forgets what was read."""
        self._known.clear()
        return self

    def _fold(self) -> Json:
        if "fold" not in self._known:
            self._known["fold"] = self._runtime.store.state(self.id)
        return self._known["fold"]  # type: ignore[no-any-return]

    @property
    def status(self) -> str:
        """``pending``, ``running``, ``waiting``, ``paused``, ``completed``, ``failed`` or ``cancelled``."""
        if "status" not in self._known:
            rows = self._runtime.store.sql("SELECT status FROM runs WHERE id = ?", [self.id])
            if not rows:
                raise CommandError("there is no such run", code="no_such_run", fix=fix("no_such_run"))
            self._known["status"] = rows[0]["status"]
        return self._known["status"]  # type: ignore[no-any-return]

    @property
    def agent(self) -> str:
        """Whose work it is."""
        return str(self._fold()["agent"])

    @property
    def session(self) -> str | None:
        """The session that it belongs to."""
        return self._fold().get("session")

    @property
    def state(self) -> Json:
        """Its state."""
        return self._fold()["state"]  # type: ignore[no-any-return]

    @property
    def steps(self) -> list[Json]:
        """Its steps: name, status, attempt, what they wait for, and how long an attempt may take, if said."""
        known = ("id", "name", "status", "attempt", "waits", "timeout_ms")
        steps = self._fold()["steps"].values()
        return [{key: step[key] for key in known if key in step} for step in steps]

    @property
    def waiting_on(self) -> list[Json]:
        """What its steps wait for: ``{"on": "approval", "subject": ...}`` and so on."""
        waiting = (step for step in self.steps if step["status"] == "waiting")
        return [wait for step in waiting for wait in step["waits"]]

    @property
    def divergence(self) -> Json | None:
        """Where its code and its journal part, both sides, if a step waits for a person to decide about it:
        ``recorded`` is what the code no longer asks for, ``attempted`` what it asked for instead."""
        for step in self.steps:
            if step["status"] == "waiting" and any(wait["on"] == "divergence" for wait in step["waits"]):
                return parting.side_by_side(self._runtime.store, self.id, step["id"])
        return None

    @property
    def result(self) -> Any:  # noqa: ANN401 (the agent says what it is)
        """What it came to; None unless it is completed."""
        if "result" not in self._known:
            end = self._end()
            value = None if end is None or self.status != "completed" else end.value.get("result")
            self._known["result"] = self._runtime.result_of(self.id, value)
        return self._known["result"]

    @property
    def error(self) -> Failed | None:
        """How it failed, if it did."""
        end = self._end() if self.status == "failed" else None
        if end is None or "failure" not in end.body:
            return None
        failure, told = end.body["failure"], (end.value.get("failure") or {}).get("message")
        return Failed(failure["error"], told if isinstance(told, str) else None, failure.get("code"))

    def _end(self) -> Record | None:
        if self.status not in ENDED:
            return None
        end = self._fold().get("end")
        if end is None:
            return None
        return next(self._runtime.store.read(self.id, after=end["seq"] - 1))

    def value(self) -> Any:  # noqa: ANN401
        """The result, or the error raised.

        Raises:
            RunError: it failed, was cancelled or has not ended.
        """
        if self.status == "completed":
            return self.result
        code = {"failed": "run_failed", "cancelled": "run_cancelled"}.get(self.status, "run_not_ended")
        told = f"the run is {self.status}" + (f": {self.error}" if self.error else "")
        raise RunError(told, code=code, fix=fix(code))

    def __repr__(self) -> str:
        return f"<Run {self.id} {self.status}>"

    def _facts(self) -> list[tuple[str, object]]:
        return [("id", self.id), ("status", self.status)]


@dataclass(frozen=True)
class Listed(Shown):
    """A run in a list."""

    id: str
    agent: str
    status: str
    created_at: int
    session: str | None
    parent: str | None


class Runs:
    """The runs of a store."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    def list(self, *, status: str | None = None, agent: str | None = None, limit: int = 100) -> list[Listed]:
        """Runs, the newest first."""
        rows = self._runtime.store.sql(
            "SELECT id, agent, status, created_at, session, parent FROM runs"
            " WHERE (status = ?1 OR ?1 IS NULL) AND (agent = ?2 OR ?2 IS NULL) ORDER BY stream DESC LIMIT ?3",
            [status, agent, limit],
        )
        return Listing(Listed(**row) for row in rows)

    def get(self, run: str) -> Run:
        """One run.

        Raises:
            CommandError: ``no_such_run``.
        """
        found = Run(self._runtime, run)
        _ = found.status  # says that there is none
        return found.refresh()

    def __iter__(self) -> Iterator[Listed]:
        return iter(self.list())
