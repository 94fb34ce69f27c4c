"""Cancelling a run. Whoever works on it asks the hooks of its run; where nobody does it ends at once, and who
cancelled it asks them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from holdfast import _core
from holdfast.gateway import hooks, points
from holdfast.gateway.way import Commit
from holdfast.store import asks
from holdfast.store.commands import human

if TYPE_CHECKING:
    from collections.abc import Generator

    from holdfast.gateway.driver import Gateway

Json = dict[str, Any]

ASKED = "on_run_cancel_requested"
ENDED = "after_run_terminal"


@dataclass(frozen=True)
class Canceller:
    """Who has cancelled a run that nobody worked on."""

    gateway: Gateway
    claimed: points.Nobody

    def seen(self, point: str, value: object) -> hooks.Subject:
        """What hooks are shown."""
        return hooks.Subject(point, "", self.claimed.run, self.claimed.agent, value)


def cancel(gateway: Gateway, run: str, by: str) -> None:
    """Asks a run to stop, and the hooks of its end if that has ended it."""
    from holdfast.gateway.driver import drive

    store, actor = gateway.store, human(by)
    status = store._run(_core.Call.command(run, actor, {"command": "cancel"}, "barrier"))[4]
    heard = any(hook.spec["point"] in (ASKED, ENDED) for hook in gateway.hooks.values())
    if status != "cancelled" or not heard:
        return  # a worker has it, and asks
    agent = store.sql("SELECT agent FROM runs WHERE id = ?", [run])[0]["agent"]
    drive(store, _asks(Canceller(gateway, points.Nobody(run, agent, actor))))


def _asks(canceller: Canceller) -> Generator[Any, Any, None]:
    yield from _requested(canceller)
    yield from points.asked(canceller, ENDED, {"status": "cancelled"}, ended=True)


def _requested(canceller: Canceller) -> Generator[Any, Any, None]:
    """The run has no step that could hold what hooks say here: it becomes a note each."""
    gateway, run, subject = canceller.gateway, canceller.claimed.run, {"agent": canceller.claimed.agent}
    for observer in gateway.observers(ASKED):
        observer.tell(canceller.seen(ASKED, subject))
    by = canceller.claimed.by()
    found = _core.Round.open(run, by, None, None, ASKED, subject, gateway.core_hooks)
    if found is None:
        return
    what, detail = found.begin()
    while what != "commit":
        answer = yield from points.heard(canceller, detail)
        said = _said(answer["told"])
        if said is not None:
            body = {"level": "warning", "text": f"{ASKED}: {said}"}
            note = asks.append(gateway.store._core, run, "note.logged", body, by=detail["hook"])
            assert note.call is not None
            yield Commit(note.call)
        what, detail = found.answer(answer)


def _said(told: Json) -> str | None:
    if told["answer"] != "response":
        return str(told["answer"])
    response = told["response"]
    if response["type"] == "observe_only":
        return None
    return ": ".join(filter(None, (response["type"], response["payload"].get("summary"))))
