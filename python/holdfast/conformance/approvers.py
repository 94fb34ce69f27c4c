"""The conformance suite for approvers: run it on yours.

    from holdfast.conformance.approvers import CLAUSES, run

    results = run(MyHarness())            # a result per clause
    assert results.ok, results

    @pytest.mark.parametrize("clause", CLAUSES, ids=str)
    def test_my_approver(clause):         # or a test per clause
        clause.check(MyHarness())

An approver tells people of a request and may hand in what one of them said. It is asked from any thread, by
several at once, and again after a crash. A harness makes one of yours and plays the people on its other side,
see :class:`Harness`. docs/CONFORMANCE.md tells more.
"""

from __future__ import annotations

import traceback
from functools import partial
from typing import TYPE_CHECKING

from holdfast.cli.output import visible
from holdfast.conformance import suite
from holdfast.conformance.approvers_clauses import (
    HOSTILE,
    MARK,
    TOOL,
    Chapter,
    decides,
    looks,
    refused,
    request,
    tell,
    told,
)
from holdfast.conformance.approvers_surface import AnyApprover, Harness, Said
from holdfast.conformance.suite import Broken, NotApplicable, Result, Results, expect, same, together
from holdfast.gateway import Approve, Deny

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from holdfast.conformance.approvers_clauses import Place

__all__ = [
    "CLAUSES",
    "AnyApprover",
    "Broken",
    "Clause",
    "Harness",
    "NotApplicable",
    "Result",
    "Results",
    "Said",
    "run",
]

PEOPLE = Chapter()
clause = PEOPLE.clause
MANY = 8


# What it answers.


@clause("answer.nothing")
def answer_nothing(place: Place) -> None:
    """While nobody has said anything it returns None, and nothing that could be taken for an answer."""
    approver = place.open("nothing", "nothing")
    same([told(approver, request()) for _ in range(2)], [None, None], "its answers")


@clause("answer.yes")
def answer_yes(place: Place) -> None:
    """A person's yes comes back as an Approve that names the person."""
    said = told(place.open("yes"), request())
    expect(type(said) is Approve, f"a yes came back as {suite.short(said)}")
    same(said.by, place.harness.person, "who said yes")
    expect(said.session is None, "it allows a session what nobody was asked about")


@clause("answer.no")
def answer_no(place: Place) -> None:
    """A person's no comes back as a Deny that names the person."""
    said = told(place.open("no"), request())
    expect(type(said) is Deny, f"a no came back as {suite.short(said)}")
    same(said.by, place.harness.person, "who said no")


@clause("answer.to_one_request")
def to_one_request(place: Place) -> None:
    """What a person said of one request says nothing of the next, even if that looks the same."""
    approver = place.open("yes", "nothing")
    expect(decides(told(approver, request())), "a yes was lost")
    same(told(approver, request()), None, "its answer to a request that nobody has answered")


@clause("answer.after_seeing_all")
def after_seeing_all(place: Place) -> None:
    """Nobody's yes is handed in who was not shown all of the arguments, to their last character."""
    for arguments in ({"to": MARK}, {"a": "x" * 5000, "to": "y" * 5000 + MARK}):
        said, _ = refused(place.open("yes"), request(arguments))
        shown = MARK.encode() in place.heard()
        expect(shown or not isinstance(said, Approve), "a yes counts for arguments that were not shown")


# Whom it tells.


@clause("tell.which")
def tell_which(place: Place) -> None:
    """People are told the id of the request and the name of the tool."""
    asked = request()
    told(place.open("nothing"), asked)
    expect(asked.id.encode() in place.heard(), "nobody was told the request's id")
    expect(TOOL.encode() in place.heard(), "nobody was told the tool's name")


@clause("tell.at_once")
def tell_at_once(place: Place) -> None:
    """It can be asked from any thread, by several at once, and each request is told."""
    approver, asked = place.open(), [request() for _ in range(MANY)]
    said = together([partial(tell, approver, each) for each in asked], "asking it at once")
    same(said, [None] * MANY, "its answers")
    missing = [each.id for each in asked if each.id.encode() not in place.heard()]
    same(missing, [], "requests that nobody was told of")


@clause("tell.one_yes_for_one")
def one_yes_for_one(place: Place) -> None:
    """Of several requests at once, one yes allows one."""
    approver, asked = place.open("yes"), [request() for _ in range(MANY)]
    said = together([partial(tell, approver, each) for each in asked], "asking it at once")
    same(sum(map(decides, said)), 1, "how many requests one yes has answered")


@clause("tell.twice")
def tell_twice(place: Place) -> None:
    """Asked again about a request, it answers for nobody, and whatever it tells names that request."""
    approver, asked = place.open("nothing", "nothing"), request()
    same(told(approver, asked), None, "its first answer")
    before = place.heard()
    same(told(approver, asked), None, "its second answer")
    again = place.heard()[len(before) :]
    expect(not again or asked.id.encode() in again, "what it told again does not name the request")


@clause("request.left_alone")
def left_alone(place: Place) -> None:
    """The request is as it was afterwards, down to its arguments."""
    asked = request({"a": {"b": [1, 2]}, "to": MARK})
    before = looks(asked)
    told(place.open("nothing"), asked)
    same(looks(asked), before, "the request after people were told")


# What it is not to be talked into.


@clause("hostile.decides_nothing")
def decides_nothing(place: Place) -> None:
    """Whatever the arguments are, it answers for nobody: it tells of them, or raises."""
    for what, arguments in HOSTILE.items():
        said, _ = refused(place.open("nothing"), request(arguments))
        same(said, None, f"its answer to {what}")


@clause("hostile.terminal")
def hostile_terminal(place: Place) -> None:
    """Nothing of a request reaches a terminal that moves it, hides there or begins a line of its own."""
    if not place.harness.terminal:
        raise NotApplicable("what people are told is not written to a terminal")
    for what, arguments in HOSTILE.items():
        refused(place.open("nothing"), request(arguments))
        for line in place.heard().decode("utf-8", "surrogateescape").split("\n"):
            seen = (line.isascii() and line.isprintable()) or visible(line) == line
            expect(seen, f"a terminal is shown what cannot be seen: {what}")
            begins = line.startswith(("approve? [y/n] y", "yes"))
            expect(not begins, f"a request writes a line of its own: {what}")


# When nobody can be told.


@clause("down.raises")
def down_raises(place: Place) -> None:
    """When nobody could be told it raises, and does not answer instead."""
    said, error = refused(place.open("down"), request())
    expect(error is not None, f"nobody could be told, and it returned {suite.short(said)}")


@clause("down.recovers")
def down_recovers(place: Place) -> None:
    """After that it tells of the next request."""
    approver, asked = place.open("down", "nothing"), request()
    refused(approver, request())
    same(told(approver, asked), None, "its answer when people can be told again")
    expect(asked.id.encode() in place.heard(), "nobody was told when they could be told again")


# Under a gateway.


@clause("gateway.waits")
def gateway_waits(place: Place) -> None:
    """While nobody has said anything the call waits, and the request stands for everybody else."""
    gate = place.gate("nothing", "nothing", "nothing")
    same(gate.call(), "waits", "what the call came to")
    same((gate.happened, len(gate.requests()), gate.voters()), ([], 1, []), "what happened")
    gate.approve("erik")
    same(
        (gate.call(), gate.happened, gate.voters()), ("done", [1999], ["erik"]), "after a yes from elsewhere"
    )


@clause("gateway.yes")
def gateway_yes(place: Place) -> None:
    """A yes releases the call once, and the journal says whose yes it was."""
    gate = place.gate("yes")
    same((gate.call(), gate.call()), ("done", "done"), "what the call came to, made twice")
    same(
        (gate.happened, gate.voters()), ([1999], [place.harness.person]), "what happened, and who allowed it"
    )


@clause("gateway.no")
def gateway_no(place: Place) -> None:
    """After a no nothing happens, however often the call is made."""
    gate = place.gate("no", "yes")
    same((gate.call(), gate.call()), ("denied", "denied"), "what the call came to, made twice")
    same((gate.happened, gate.voters()), ([], [place.harness.person]), "what happened, and who denied it")


@clause("gateway.down")
def gateway_down(place: Place) -> None:
    """While it is down nothing is released, the journal says so, and others can decide."""
    gate = place.gate("down", "down", "down")
    same(gate.call(), "waits", "what the call came to")
    same((gate.happened, len(gate.requests()), gate.voters()), ([], 1, []), "what happened")
    same(gate.tellings()[-1], "dispatcher_unavailable", "what the journal says about telling people")
    gate.approve("erik")
    same((gate.call(), gate.happened), ("done", [1999]), "after a yes from elsewhere")


# What it keeps to itself.


@clause("secret.not_told")
def secret_not_told(place: Place) -> None:
    """What it has to keep to itself is in nothing that it tells, answers or prints of itself."""
    approver, asked = place.open("nothing"), request()
    said = told(approver, asked)
    _keeps(place, place.heard().decode("latin-1") + repr(approver) + str(approver) + repr(said))


@clause("secret.not_in_errors")
def secret_not_in_errors(place: Place) -> None:
    """Nor is it in an error, or in one that led to it."""
    _, error = refused(place.open("down"), request())
    _keeps(place, "" if error is None else "".join(traceback.format_exception(error)))


def _keeps(place: Place, text: str) -> None:
    if not place.harness.secrets:
        raise NotApplicable("it has no secrets")
    for secret in place.harness.secrets:
        expect(secret not in text, "a secret of its own is told")


Clause = suite.Clause[Harness]
CLAUSES: tuple[Clause, ...] = tuple(PEOPLE.clauses)


def run(
    harness: Harness,
    *,
    clauses: Iterable[Clause] = CLAUSES,
    watch: Callable[[Result], None] | None = None,
) -> Results:
    """Tries every clause, each on a new approver, and goes on after one that fails.

    Args:
        harness: how to get at the approver and its people.
        clauses: which ones, in this order.
        watch: hears each result as it comes.
    """
    return suite.tried(clauses, harness, watch)
