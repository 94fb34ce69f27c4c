"""What an approver looks like from outside, and how the suite gets at somebody's, as Protocols."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.gateway import Request

Said = Literal["yes", "no", "nothing", "down"]
"""What becomes of a request: a person says yes or no, or nothing so far; or nobody can be told."""


class AnyApprover(Protocol):
    """A function that tells people of a request; plain, or ``async def``."""

    def __call__(self, request: Request, /) -> Any:  # noqa: ANN401 (what it may be is what the suite tries)
        """None, or an :class:`holdfast.Approve` or :class:`holdfast.Deny` with what a person said.

        Raises when it could not tell anybody.
        """


class Harness(Protocol):
    """How the suite gets at somebody's approver, and at the people on its other side. One at a time."""

    @property
    def person(self) -> str:
        """Who says yes and no: what ``by`` of their answer is."""

    @property
    def secrets(self) -> Sequence[str]:
        """What the approver has to keep to itself: a key, a token."""

    @property
    def terminal(self) -> bool:
        """Whether what people are told is written to a terminal."""

    def open(self, says: Sequence[Said]) -> AnyApprover:
        """A new approver, and people who have heard of nothing.

        The first request comes to ``says[0]``, the second to ``says[1]`` and so on, also if it is the same
        one again; when there are no more, nobody says anything. May raise ``NotApplicable`` with the reason:
        an approver that only tells is never handed a yes.
        """

    def heard(self) -> bytes:
        """All that has come out on the other side so far, byte for byte."""

    def destroy(self) -> None:
        """Ends both sides, also where opening failed; another may be opened afterwards."""
