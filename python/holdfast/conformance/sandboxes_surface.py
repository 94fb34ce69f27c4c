"""How the conformance suite gets at somebody's sandbox."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.sandbox import Limits, Sandbox


class Harness(Protocol):
    """How the suite gets at somebody's sandbox. One at a time.

    Bodies are found as ``holdfast.conformance.sandbox_bodies``, unless a harness has an attribute ``bodies``
    with another name of that module: without Holdfast around it, each run saves some hundred milliseconds.
    """

    def open(self, limits: Limits, *, readable: Sequence[str] = (), writable: Sequence[str] = ()) -> Sandbox:
        """A new sandbox with these limits, whose bodies may read and write these folders at their place.

        May raise ``NotApplicable`` with the reason why it cannot be done.
        """

    def destroy(self) -> None:
        """Ends what a sandbox may have left."""
