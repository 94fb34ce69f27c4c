"""The fold of the stand-alone verifier: it comes to the statuses that the core comes to, for every story and
for random agents that crash, and it finds forged statuses and records that could not come where they stand.
"""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING, Any

import pytest
from tests.bundle_desk import Case, case
from tests.evidence_desk import STORIES, play
from tests.test_evidence_attack import changed
from tests.test_evidence_bundle import alone, remade, unpacked
from tests.test_runtime_fuzz import build_of, crashed, grown

from holdfast import _core, canonical, evidence
from holdfast.evidence import standalone_fold
from holdfast.evidence.standalone_files import sha256
from holdfast.evidence.standalone_streams import frame
from holdfast.store.door import Store

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

SEEDS = range(25)


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Case]:
    made = case(tmp_path_factory.mktemp("alone"))
    yield made
    made.runtime.close()


def agreed(store: Store, run: str, target: Path) -> dict[str, Any]:
    """Exports a run; both verifiers find it good. Its facts."""
    evidence.export(store, run, target)
    found = evidence.verify(target)
    assert (found.ok, alone(target)[0]) == (True, 0), (found, alone(target))
    return found.facts


@pytest.mark.parametrize("name", STORIES)
def test_both_verifiers_come_to_the_same_for_every_story(name: str, tmp_path: Path) -> None:
    desk, _ = play(name)
    for one in desk.rt.runs.list():
        facts = agreed(desk.rt.store, one.id, tmp_path / one.id)
        core = desk.rt.store.state(one.id)
        assert core is not None
        assert facts["status"] == one.status
        assert facts["steps"] == {step: known["status"] for step, known in core["steps"].items()}
        assert facts["approvals"] == {ask: known["state"] for ask, known in core["approvals"].items()}
        phases = {call: known["phase"] for call, known in core["calls"].items()}
        assert {call: known["phase"] for call, known in facts["calls"].items()}.items() <= phases.items()
    desk.close()


@pytest.mark.parametrize("seed", SEEDS)
def test_both_verifiers_come_to_the_same_for_random_agents_that_crash(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    build = build_of(grown(rng, 3))
    run, _ = crashed(build, rng.randrange(0, 12), rng.choice(("before", "after")))
    mortal = run._runtime.store
    store = Store(mortal._core, "memory:", mortal.clock)
    for row in store.sql("SELECT id FROM runs"):
        agreed(store, row["id"], tmp_path / row["id"])


def test_it_knows_every_kind_of_record_that_holdfast_does() -> None:
    records: Any = _core.schemas()
    kinds = {name for name in records["kinds"] if not name.startswith("x.")}
    assert kinds == standalone_fold.KINDS


def _first(facts: Any, part: str) -> str:
    return str(min(facts[part]))


FORGED: dict[str, Callable[[Any], None]] = {
    "status": lambda facts: facts.update(status="running"),
    "steps": lambda facts: facts["steps"].update({_first(facts, "steps"): "failed"}),
    "approvals": lambda facts: facts["approvals"].update({_first(facts, "approvals"): "denied"}),
    "calls": lambda facts: facts["calls"][_first(facts, "calls")].update(phase="doubted"),
}


@pytest.mark.parametrize("part", FORGED)
def test_a_forged_status_is_found_by_both(part: str, desk: Case, tmp_path: Path) -> None:
    evidence.export(desk.store, desk.runs["approved"], tmp_path / "b.zip")
    folder = unpacked(tmp_path / "b.zip", tmp_path / "f")
    changed(folder, "facts.json", FORGED[part])
    found = evidence.verify(remade(folder))
    assert (found.code, part in (found.what or "")) == ("facts_forged", True)
    assert (alone(folder)[1].startswith("facts_forged"), f"its {part}" in alone(folder)[1]) == (True, True)


def rechained(folder: Path, store: str, run: str, change: Callable[[list[Any]], None]) -> Path:
    """A journal that was written anew after a change: numbers, chain and manifest fit; no seal, no proof."""
    path = folder / "streams" / f"{run}.jsonl"
    frames = []
    for line in path.read_text("utf-8").splitlines():
        kept, records = frame(line)
        contents = {name: {"salt": salt, "value": json.loads(text)} for name, (salt, text) in kept.items()}
        frames.append((contents, [record for record, _ in records]))
    whole: list[Any] = [[record, contents] for contents, own in frames for record in own]
    change(whole)
    head = sha256(b"holdfast/stream/v1\n", store.encode(), b"\n", run.encode())
    lines = []
    for seq, (record, kept) in enumerate(whole, 1):
        record.update(seq=seq, prev=head)
        text = canonical.dumps(record)
        head = sha256(b"holdfast/record/v1\n", text)
        held = {name: content for name, content in kept.items() if name.encode() in text}
        lines.append(b'{"contents":' + canonical.dumps(held) + b',"records":[' + text + b"]}\n")
    path.write_bytes(b"".join(lines))
    for name in ("proofs.json", "seal.txt"):
        (folder / name).unlink(missing_ok=True)
    return remade(folder)


def without(kind: str) -> Callable[[list[Any]], None]:
    """The first record of a kind is left out."""

    def change(records: list[Any]) -> None:
        del records[next(at for at, (record, _) in enumerate(records) if record["kind"] == kind)]

    return change


def twice(kind: str) -> Callable[[list[Any]], None]:
    """The first record of a kind is there twice."""

    def change(records: list[Any]) -> None:
        at = next(at for at, (record, _) in enumerate(records) if record["kind"] == kind)
        records.insert(at + 1, [dict(records[at][0]), records[at][1]])

    return change


def said(kind: str, **body: object) -> Callable[[list[Any]], None]:
    """The first record of a kind says something else."""

    def change(records: list[Any]) -> None:
        next(record for record, _ in records if record["kind"] == kind)["body"].update(body)

    return change


ILLEGAL = {
    "a claim of nothing": without("step.created"),
    "a step that is there twice": twice("step.created"),
    "a completion without a claim": without("step.claimed"),
    "two claims": twice("step.claimed"),
    "a waking without a wait": without("step.waiting"),
    "a call without its opening": without("call.opened"),
    "a call that is there twice": twice("call.opened"),
    "a payment that was never sent off": without("effect.started"),
    "a payment that was sent off twice": twice("effect.started"),
    "a payment with two outcomes": twice("effect.settled"),
    "a write that timed out": said("effect.settled", status="timed_out"),
    "a decision that nobody asked for": without("approval.requested"),
    "two decisions": twice("approval.decided"),
    "a request that is there twice": twice("approval.requested"),
    "a denied call that was sent off": said("policy.decided", decision="deny"),
    "two ends": twice("run.finished"),
}


@pytest.mark.parametrize("what", ILLEGAL)
def test_a_journal_that_could_not_have_been_is_found_without_holdfast(
    what: str, desk: Case, tmp_path: Path
) -> None:
    """Whoever writes everything anew, without a seal, has to write something that can be."""
    run = desk.runs["approved"]
    evidence.export(desk.store, run, tmp_path / "b.zip")
    good = rechained(unpacked(tmp_path / "b.zip", tmp_path / "good"), desk.store.id, run, lambda _: None)
    assert (evidence.verify(good).ok, alone(good)[0]) == (True, 0), "without a seal nobody can tell"
    folder = rechained(unpacked(tmp_path / "b.zip", tmp_path / "f"), desk.store.id, run, ILLEGAL[what])
    assert evidence.verify(folder).code == "record_illegal", evidence.verify(folder)
    assert alone(folder)[1].startswith(f"record_illegal in {run} at record"), alone(folder)
