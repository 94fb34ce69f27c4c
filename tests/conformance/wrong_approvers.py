"""Approvers that are wrong in one way each, and the clauses that each of them breaks."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from tests.conformance.approvers import KEY, PERSON, Honest, People

import holdfast as hf
from holdfast.cli.output import visible

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.conformance.approvers import Said
    from holdfast.gateway import Request

BROKEN: dict[type[Honest], set[str]] = {}


def breaks(*clauses: str) -> Callable[[type[Honest]], type[Honest]]:
    def kept(approver: type[Honest]) -> type[Honest]:
        BROKEN[approver] = set(clauses)
        return approver

    return kept


# Answers.


@breaks("answer.yes", "answer.to_one_request", "tell.one_yes_for_one", "gateway.yes")
class SaysTrue(Honest):
    """What a gateway cannot read counts for nothing."""

    def answer(self, request: Request, said: Said) -> Any:
        return True if said == "yes" else super().answer(request, said)


@breaks(
    "answer.nothing",
    "answer.to_one_request",
    "tell.at_once",
    "tell.twice",
    "hostile.decides_nothing",
    "down.recovers",
)
class SaysFalseForNothing(Honest):
    def answer(self, request: Request, said: Said) -> Any:
        return super().answer(request, said) or False


@breaks(
    "answer.nothing",
    "answer.to_one_request",
    "tell.at_once",
    "tell.one_yes_for_one",
    "tell.twice",
    "hostile.decides_nothing",
    "down.recovers",
    "gateway.waits",
)
class TakesSilenceForYes(Honest):
    def answer(self, request: Request, said: Said) -> Any:
        return super().answer(request, said) or hf.Approve(by=PERSON)


@breaks("answer.yes", "answer.no", "gateway.yes", "gateway.no")
class SignsForItself(Honest):
    def answer(self, request: Request, said: Said) -> Any:
        told = super().answer(request, said)
        return None if told is None else type(told)(by="bot")


@breaks("answer.no", "gateway.no")
class HearsNoNo(Honest):
    def answer(self, request: Request, said: Said) -> Any:
        return None if said == "no" else super().answer(request, said)


@breaks("answer.yes", "gateway.yes")
class GivesMoreThanWasAsked(Honest):
    def answer(self, request: Request, said: Said) -> Any:
        more = hf.ForSession({}, uses=100, expires_in=3600)
        return hf.Approve(by=PERSON, session=more) if said == "yes" else super().answer(request, said)


@breaks("answer.to_one_request", "tell.one_yes_for_one")
class RemembersAYes(Honest):
    """The next request of that tool is not even asked about."""

    def __init__(self, people: People) -> None:
        super().__init__(people)
        self.allowed: dict[str, Any] = {}

    def answer(self, request: Request, said: Said) -> Any:
        told = super().answer(request, said)
        if said == "yes":
            self.allowed[request.tool] = told
        return self.allowed.get(request.tool, told)


# Telling.


@breaks("answer.after_seeing_all")
class ShowsTheBeginning(Honest):
    def shown(self, request: Request) -> str:
        return super().shown(request)[:200]


@breaks("tell.which", "tell.at_once", "tell.twice", "down.recovers")
class NamesNoRequest(Honest):
    def shown(self, request: Request) -> str:
        return f"{request.tool} {json.dumps(request.arguments)}\n"


@breaks("tell.at_once")
class TellsOncePerTool(Honest):
    """So as not to be a nuisance."""

    def __init__(self, people: People) -> None:
        super().__init__(people)
        self.told: set[str] = set()

    def shown(self, request: Request) -> str:
        if request.tool in self.told:
            return ""
        self.told.add(request.tool)
        return super().shown(request)


class Knows(Honest):
    """Knows what it was asked before."""

    def __init__(self, people: People) -> None:
        super().__init__(people)
        self.known: set[str] = set()

    def __call__(self, request: Request) -> Any:
        again = request.id in self.known
        self.known.add(request.id)
        return self.again(request) if again else super().__call__(request)

    def again(self, request: Request) -> Any:
        raise NotImplementedError


@breaks("tell.twice")
class TakesTheSecondTimeForYes(Knows):
    def again(self, request: Request) -> Any:  # noqa: ARG002
        return hf.Approve(by=PERSON)


@breaks("tell.twice")
class RefusesTheSecondTime(Knows):
    def again(self, request: Request) -> Any:
        raise KeyError(request.id)


@breaks("tell.twice")
class RemindsOfNothing(Knows):
    def again(self, request: Request) -> Any:  # noqa: ARG002
        self.people.text += "somebody still waits\n"


@breaks("request.left_alone")
class TakesArgumentsOut(Honest):
    """On the way it drops what it thinks nobody needs to see."""

    def answer(self, request: Request, said: Said) -> Any:
        request.arguments.pop("a", None)
        return super().answer(request, said)


# Hostile arguments.


@breaks("hostile.decides_nothing")
class ReadsItsAnswerInTheArguments(Honest):
    def answer(self, request: Request, said: Said) -> Any:
        if request.arguments.get("approve"):
            return hf.Approve(by=request.arguments["by"])
        return super().answer(request, said)


@breaks("hostile.decides_nothing")
class DeniesWhatIsTooLarge(Honest):
    def answer(self, request: Request, said: Said) -> Any:
        too_large = len(json.dumps(request.arguments)) > 1_000_000
        return hf.Deny(by=PERSON) if too_large else super().answer(request, said)


@breaks("hostile.terminal")
class ShowsItRaw(Honest):
    def shown(self, request: Request) -> str:
        return f"{request.id} {request.tool} {request.arguments.get('to')}\n"


@breaks("hostile.terminal")
class KeepsLines(Honest):
    def shown(self, request: Request) -> str:
        lines = str(request.arguments.get("to")).split("\n")
        return "\n".join([f"{request.id} {request.tool}", *map(visible, lines), ""])


# Nobody there.


@breaks("down.raises", "gateway.down")
class HidesThatItIsDown(Honest):
    def down(self, _: Request) -> Any:
        return None


@breaks("down.raises", "gateway.down")
class AllowsWhenDown(Honest):
    def down(self, _: Request) -> Any:
        return hf.Approve(by=PERSON)


@breaks("down.recovers")
class StaysDown(Honest):
    def down(self, request: Request) -> Any:
        self.people.says[:] = ["down"] * 100
        return super().down(request)


# Secrets.


@breaks("secret.not_told")
class SendsItsKey(Honest):
    def shown(self, request: Request) -> str:
        return f"Authorization: {KEY}\n{super().shown(request)}"


@breaks("secret.not_told")
class PrintsItsKey(Honest):
    def __repr__(self) -> str:
        return f"<PrintsItsKey {KEY}>"


@breaks("secret.not_in_errors")
class FailsWithItsKey(Honest):
    """The error that led to the one that is raised has it."""

    def down(self, request: Request) -> Any:
        try:
            raise OSError(f"refused: {KEY}")
        except OSError as error:
            raise ConnectionError(request.id) from error
