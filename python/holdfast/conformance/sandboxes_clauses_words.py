"""Clauses about what a sandbox says: of itself, of what never began, of what a body returned or raised."""

from __future__ import annotations

import threading
from functools import partial
from typing import TYPE_CHECKING, Any

from holdfast.conformance.sandboxes_clauses import GUARDS, TOOLS, Chapter, done, not_begun, returned
from holdfast.conformance.suite import expect, same, short, together
from holdfast.sandbox import Job, Limits
from holdfast.secrets import Secret

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.conformance.sandboxes_clauses import Place

WORDS = Chapter()
clause = WORDS.clause
MANY = 4
VALUES: list[Any] = [
    None,
    True,
    0,
    -1.5,
    2**53 - 1,
    "caf\u00e9 \u65e5\u672c \U0001f600 \u0000 \u202e \"'\\",
    [],
    {"b": [1, {"a": None}], "a": "\n"},
]
SECRET = "holdfast-secret-91f3"  # noqa: S105 (it opens nothing)


@clause("says.what_it_is")
def what_it_is(place: Place) -> None:
    """It has a tier, and says in the words of the contract what it enforces, each time the same."""
    sandbox = place.open()
    expect(isinstance(sandbox.tier, str) and bool(sandbox.tier), "it has no tier")
    first = sandbox.enforces()
    expect(isinstance(first, frozenset), f"what it enforces is a {type(first).__name__}, not a frozenset")
    same(sorted(first - GUARDS), [], "words that the contract does not have")
    same(sandbox.enforces(), first, "what it says that it enforces, the second time")


# What never began.


@clause("start.not_importable")
def not_importable(place: Place) -> None:
    """A body that cannot be imported was never called: a provable no effect, with the reason."""
    sandbox = place.open()
    not_begun(done(sandbox, Job("holdfast_nowhere:body", {})), "a module that is not there")
    not_begun(place.ran(sandbox, "nothing_of_that_name"), "a name that is not there")
    not_begun(place.ran(sandbox, "raises_when_found"), "a module that raises when it is looked at")


@clause("start.bad_arguments")
def bad_arguments(place: Place) -> None:
    """A body whose arguments do not fit, or are no JSON, was never called."""
    sandbox = place.open()
    not_begun(place.ran(sandbox, "echo"), "an argument that is missing")
    not_begun(place.ran(sandbox, "echo", value=1, more=2), "an argument that is not taken")
    not_begun(place.ran(sandbox, "echo", value=object()), "an argument that is no JSON")
    not_begun(place.ran(sandbox, "echo", value=float("nan")), "an argument that is no number")


@clause("start.no_time")
def no_time(place: Place) -> None:
    """A body that has no time was never called."""
    sandbox = place.open()
    for timeout in (0, -1, 0.0001):
        not_begun(place.ran(sandbox, "echo", timeout=timeout, value=1), f"a timeout of {timeout}")


@clause("start.cancelled")
def start_cancelled(place: Place) -> None:
    """A job that was cancelled before returns nothing."""
    off = threading.Event()
    off.set()
    found = done(place.open(), place.job("stay", timeout=10.0), off)
    same(found.returned, False, "whether a job that was cancelled before has returned")
    expect(found.end in ("not_started", "killed"), f"a job that was cancelled before ended as {found.end}")


# What came of it.


@clause("return.value")
def return_value(place: Place) -> None:
    """What a body returns comes back the same, also from one that is awaited."""
    sandbox = place.open()
    returned(place.ran(sandbox, "echo", value=VALUES), VALUES, "what a body returned")
    returned(place.ran(sandbox, "later", value=VALUES), VALUES, "what a body returned that was awaited")


@clause("return.untellable")
def return_untellable(place: Place) -> None:
    """What is no JSON cannot be told, and it happened all the same (not_json)."""
    sandbox = place.open()
    for kind in ("nan", "object", "deep", "digits", "bytes"):
        found = place.ran(sandbox, "give", kind=kind)
        told = (found.started, found.returned, found.value, found.error and found.error["type"])
        same(told, (True, True, None, "not_json"), f"a result that is no JSON: {kind}")
        same(found.error and found.error["no_effect"], False, "whether what happened had no effect")


@clause("return.too_large")
def return_too_large(place: Place) -> None:
    """What is larger than the limit is not told in part, and it happened all the same (output_too_large)."""
    found = place.ran(place.open(Limits(output_bytes=5000)), "give", kind="huge")
    told = (found.started, found.returned, found.value, found.error and found.error["type"])
    same(told, (True, True, None, "output_too_large"), "a result that is too large")


@clause("return.result")
def return_result(place: Place) -> None:
    """An external id and usage come back with the value."""
    found = done(place.open(), Job(f"{TOOLS}:say", {"what": "result"}))
    returned(found, {"id": 1}, "a result")
    same(
        (found.external_id, dict(found.usage or {})), ("ch_1", {"tokens": 3}), "what a result says beside it"
    )


@clause("raise.told")
def raise_told(place: Place) -> None:
    """What a body raised comes back as its type and words, and not as a no effect."""
    found = place.ran(place.open(), "shout", size=5)
    same((found.end, found.started, found.returned), ("exited", True, False), "how it ended")
    error: Mapping[str, Any] = found.error or {}
    same((error.get("type"), error.get("message")), ("ValueError", "xxxxx"), "what it raised")
    same(
        (error.get("no_effect"), error.get("effect_failed")), (False, False), "what its error says of effects"
    )


@clause("raise.bounded")
def raise_bounded(place: Place) -> None:
    """Its words are bounded, and one that cannot say what it is has none."""
    sandbox = place.open()
    for size in (9_999_999, 0):
        found = place.ran(sandbox, "shout", size=size)
        same((found.started, found.returned, found.error is None), (True, False, False), "how it ended")
        length = len(found.error["message"]) if found.error else 0
        expect(length <= 1 << 16, f"the words of an error have {length} characters")


@clause("raise.effects")
def raise_effects(place: Place) -> None:
    """NoEffect and EffectFailed are known as such."""
    sandbox = place.open()
    nothing: Mapping[str, Any] = done(sandbox, Job(f"{TOOLS}:say", {"what": "no effect"})).error or {}
    same((nothing.get("no_effect"), nothing.get("effect_failed")), (True, False), "NoEffect")
    failed: Mapping[str, Any] = done(sandbox, Job(f"{TOOLS}:say", {"what": "failed"})).error or {}
    same((failed.get("no_effect"), failed.get("effect_failed")), (False, True), "EffectFailed")
    same((failed.get("code"), failed.get("message")), ("refused", "the card was refused"), "its words")


# What goes in.


@clause("call.told")
def call_told(place: Place) -> None:
    """A body that takes its call is told id, key, run and dispatch."""
    call: Mapping[str, Any] = {"dispatch": 2, "id": "c", "key": "k", "run": "r"}
    found = done(place.open(), Job(f"{TOOLS}:called", {"what": "x"}, call))
    returned(found, ["x", "c", "k", "r", 2], "what a body is told of its call")


@clause("secret.told")
def secret_told(place: Place) -> None:
    """A secret reaches the body, and stands in no environment, command line or file that it can see."""
    arguments: Mapping[str, Any] = {"token": {"$secret": "token", "digest": ""}}
    secrets = {"token": Secret(SECRET, name="token")}
    found = done(place.open(), Job(f"{TOOLS}:opened", arguments, secrets=secrets))
    returned(found, [SECRET[::-1], []], "the secret, and where else it stands")


@clause("threads.each_its_own")
def threads_each_its_own(place: Place) -> None:
    """Jobs from several threads at once each get their own answer."""
    sandbox = place.open()
    jobs = [place.job("echo", value=[number]) for number in range(MANY)]
    found = together([partial(sandbox.run, job) for job in jobs], "jobs at once")
    same([each.value for each in found], [[number] for number in range(MANY)], f"answers: {short(found)}")
