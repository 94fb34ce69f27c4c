"""The rules: a closed table. An id stays for ever; what a rule says about itself may be improved.

The hundreds act behind the runtime's back, the two hundreds come out differently when an agent's code runs
again, the three hundreds are about what tools declare, the nine hundreds about suppressions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

Severity: TypeAlias = Literal["error", "warning", "note"]

SEVERITIES: tuple[Severity, ...] = ("note", "warning", "error")
"""From the least to the most severe."""


@dataclass(frozen=True)
class Rule:
    """One thing that the lint looks for.

    Attributes:
        id: as in ``HF101``.
        name: the same for people, in a word or two.
        severity: unless a pack says otherwise.
        what: what was found, in one clause.
        why: what goes wrong with it.
        fix: what to do instead.
    """

    id: str
    name: str
    severity: Severity
    what: str
    why: str
    fix: str


UNSEEN = (
    "Nothing is asked, recorded or protected, and it happens again each time the agent's code runs again."
)
TOOL = "Put it into a tool and call it with ctx.call, or pass it to ctx.do."

RULES: tuple[Rule, ...] = (
    Rule("HF101", "process", "error", "starts or signals a process", UNSEEN, TOOL),
    Rule(
        "HF102",
        "file-write",
        "error",
        "changes files",
        UNSEEN,
        "Put it into a tool, pass it to ctx.do, or keep what was made with ctx.artifact.",
    ),
    Rule("HF103", "network", "error", "talks over the network", UNSEEN, TOOL),
    Rule("HF104", "mail", "error", "reads or sends mail", UNSEEN, TOOL),
    Rule(
        "HF105",
        "model",
        "error",
        "asks a model",
        "The answer is another each time, and what it cost is in no budget.",
        "Put it into a tool and call it with ctx.call, or pass it to ctx.do; record its cost.",
    ),
    Rule("HF106", "cloud", "error", "uses a cloud or cluster", UNSEEN, TOOL),
    Rule(
        "HF107",
        "database",
        "error",
        "uses a database",
        UNSEEN,
        "Put it into a tool (hf.sql.once makes writes exactly-once), or pass it to ctx.do.",
    ),
    Rule("HF108", "service", "error", "uses a service of others", UNSEEN, TOOL),
    Rule(
        "HF109",
        "dynamic-code",
        "error",
        "runs code that cannot be read here",
        "Nobody can tell what it does, this lint included.",
        "Name what is meant, or put it into a tool with a sandbox.",
    ),
    Rule(
        "HF110",
        "thread",
        "error",
        "runs code beside the agent",
        "Threads and processes end in another order each time, and outlive the agent's attempt.",
        "Use asyncio tasks of the agent (lanes), ctx.do, ctx.spawn or ctx.add_step.",
    ),
    Rule(
        "HF111",
        "direct-tool",
        "error",
        "is a tool that is called as a plain function",
        "Called directly a tool is the function itself: nothing is governed and nothing is recorded.",
        "Call it with ctx.call(tool, ...).",
    ),
    Rule(
        "HF112",
        "direct-runtime",
        "error",
        "drives the runtime from inside an agent",
        "It happens again each time the agent's code runs again.",
        "Use ctx.spawn, ctx.add_step or ctx.signal; what has no such form belongs into a tool.",
    ),
    Rule(
        "HF201",
        "clock",
        "error",
        "reads a clock",
        "It is another time when the agent's code runs again.",
        "Use await ctx.now().",
    ),
    Rule(
        "HF202",
        "chance",
        "error",
        "draws at random",
        "It is another draw when the agent's code runs again.",
        "Use ctx.random() or ctx.uuid(), or random.Random(seed) with a seed of the context.",
    ),
    Rule(
        "HF203",
        "environment",
        "warning",
        "reads the environment of the process",
        "It is another process when the agent's code runs again, perhaps on another machine.",
        "Read it when the module is imported, or pass it as the run's input.",
    ),
    Rule(
        "HF204",
        "waiting",
        "error",
        "waits by a clock of the process",
        "The wait is lost with the process and begins anew in the next one.",
        "Use await ctx.sleep(...) or async with ctx.timeout(...).",
    ),
    Rule(
        "HF205",
        "attempt",
        "error",
        "decides what the code does",
        "Code that does something else in another attempt no longer fits its own journal.",
        "Decide by what calls returned; retries of tools are declared on the tool.",
    ),
    Rule(
        "HF206",
        "file-read",
        "warning",
        "reads files or input",
        "What is read is not recorded, so it may be something else when the agent's code runs again.",
        "Read it in a tool with effect='read', or pass it as the run's input.",
    ),
    Rule(
        "HF301",
        "impure",
        "error",
        "is declared pure, and reaches outside",
        "What is pure is neither governed nor protected, and may be done again at any time.",
        "Declare effect='read' or effect='write'.",
    ),
    Rule(
        "HF302",
        "read-writes",
        "error",
        "is declared a read, and writes",
        "A read is done again after a crash without asking anybody.",
        "Declare effect='write'.",
    ),
    Rule(
        "HF303",
        "unprotected-write",
        "warning",
        "writes, and says nothing about a repeat",
        "A worker that dies in the middle leaves a doubt, which waits for a person.",
        "Give call.key to the provider and declare idempotent=hf.Keyed(ttl=...), or write reconcile=.",
    ),
    Rule(
        "HF304",
        "unasked-risk",
        "warning",
        "is of high risk, and never asks",
        "approval='never' lets it happen without a person, unless a policy asks.",
        "Leave approval out, or say approval='always'.",
    ),
    Rule(
        "HF901",
        "bad-suppression",
        "error",
        "is no suppression",
        "A suppression names rules that exist, and says why; one that does not suppresses nothing.",
        "Write: # holdfast: allow HF101 because REASON",
    ),
    Rule(
        "HF902",
        "idle-suppression",
        "warning",
        "suppresses nothing",
        "It would hide the next thing that somebody writes there.",
        "Remove it.",
    ),
)

BY_ID: dict[str, Rule] = {rule.id: rule for rule in RULES}


def chosen(words: list[str]) -> set[str]:
    """The ids that words name: an id, the beginning of some (``HF1``), or a rule's name.

    Raises:
        KeyError: a word names no rule.
    """
    found: set[str] = set()
    for word in words:
        named = {
            rule.id for rule in RULES if rule.name == word or (word[:2] == "HF" and rule.id.startswith(word))
        }
        if not named:
            raise KeyError(word)
        found |= named
    return found
