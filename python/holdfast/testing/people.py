"""Stand-ins for people and models."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.store import open_store

if TYPE_CHECKING:
    from collections.abc import Iterable

    from holdfast.runtime import Runtime
    from holdfast.store import Store
    from holdfast.store.clock import FakeClock


def MemoryStore(clock: FakeClock | None = None) -> Store:  # noqa: N802 (reads as what it makes)
    """A store that keeps nothing."""
    return open_store("memory:", clock=clock)


def approve_all(runtime: Runtime, *, by: str = "dana") -> int:
    """Approves every request that is open; how many there were."""
    requests = runtime.approvals.list()
    for request in requests:
        runtime.approvals.approve(request.id, by=by)
    return len(requests)


def deny_all(runtime: Runtime, *, by: str = "dana", reason: str | None = None) -> int:
    """Denies every request that is open; how many there were."""
    requests = runtime.approvals.list()
    for request in requests:
        runtime.approvals.deny(request.id, by=by, reason=reason)
    return len(requests)


class ScriptedModel:
    """Answers with what it was given, one after another; what it was asked is in ``prompts``.

    >>> model = ScriptedModel(["yes", "no"])
    >>> model("shall we?"), model("really?")
    ('yes', 'no')
    """

    def __init__(self, answers: Iterable[Any]) -> None:
        self._answers = list(answers)
        self.prompts: list[Any] = []

    def __call__(self, prompt: Any) -> Any:  # noqa: ANN401 (any prompt, any answer)
        """The next answer."""
        self.prompts.append(prompt)
        if len(self.prompts) > len(self._answers):
            raise AssertionError(
                f"the script has {len(self._answers)} answers, and this is question {len(self.prompts)}"
            )
        return self._answers[len(self.prompts) - 1]
