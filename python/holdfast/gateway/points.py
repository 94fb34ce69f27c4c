"""Hook points that are about no call, or about its sandbox: the hooks of a point are asked in their order,
what they say is written down, and what follows from it is done by who asked.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from holdfast import _core
from holdfast.gateway import hooks
from holdfast.gateway.way import Commit, Run

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping

    from holdfast.gateway.bodies import Ran
    from holdfast.gateway.driver import Gateway
    from holdfast.store import Claim

Json = dict[str, Any]

GO: Json = {"act": "go", "context": []}


@dataclass(frozen=True)
class Nobody:
    """What stands in the place of a claim where nobody works on a run."""

    run: str
    agent: str
    actor: Json

    def by(self) -> Json:
        """Who asks."""
        return self.actor

    def core(self) -> None:
        """No claim."""


class Asks(Protocol):
    """Who asks hooks: a call on its way, or a step."""

    @property
    def gateway(self) -> Gateway:
        """Whose hooks."""

    @property
    def claimed(self) -> Claim | Nobody:
        """The claim that it is made under."""

    def seen(self, point: str, value: object) -> hooks.Subject:
        """What hooks are shown."""


def on_the_way(body: Callable[[], Any], timeout_ms: float, is_async: bool) -> Generator[Run, Ran, Ran]:
    """A body on the way. Interrupted, it has said nothing: whoever comes again asks anew."""
    ran = yield Run(body, timeout_ms / 1000, is_async)
    if ran.error is not None and not isinstance(ran.error, Exception):
        raise ran.error
    return ran


def heard(asks: Asks, detail: Json) -> Generator[Run, Ran, Json]:
    """What one hook came to."""
    point, hook = detail["point"], asks.gateway.hooks[detail["hook"]]
    subject = hook.shows(asks.seen(point, detail["subject"]))
    ran = yield from on_the_way(lambda: hook.body(subject), detail["timeout_ms"], hook.is_async)
    return {"answer": "hook", "elapsed_ms": ran.elapsed_ms, "told": hooks.told(ran, point)}


def asked(
    asks: Asks,
    point: str,
    subject: Mapping[str, Any],
    *,
    call: tuple[str, int] | None = None,
    ended: bool = False,
) -> Generator[Any, Any, Json]:
    """Asks the hooks of a point, has their answers written, and says what follows."""
    told, claim = dict(subject), asks.claimed
    for observer in asks.gateway.observers(point):
        observer.tell(asks.seen(point, told))
    held = None if ended else claim.core()
    found = _core.Round.open(claim.run, claim.by(), held, call, point, told, asks.gateway.core_hooks)
    if found is None:
        return GO
    what, detail = found.begin()
    while what != "commit":
        what, detail = found.answer((yield from heard(asks, detail)))
    gated: _core.Gated = yield Commit(detail)
    ruled: Json = gated.gate()["ruled"]
    return ruled
