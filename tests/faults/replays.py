"""What every store of a fault test has to stand afterwards: each of its runs is run again against its journal
and comes to the same, nothing acts, nothing is written, and time travel to the end is the state that the
store has. Bundles of them are good for both verifiers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.evidence import Journal, Verdict, standalone
from holdfast.evidence.travel import moment

if TYPE_CHECKING:
    from pathlib import Path

    import holdfast as hf

ENDED = "SELECT id FROM runs WHERE status IN ('completed', 'failed', 'cancelled') ORDER BY stream"
FRAMES = "SELECT pos, head FROM frames ORDER BY pos"


def travelled(store: hf.Store) -> int:
    """Travels to the end of every run of a store; how many there were. Needs no program."""
    rows = store.sql("SELECT id FROM runs ORDER BY stream")
    for row in rows:
        run = row["id"]
        final, end = store.state(run), moment(Journal.of(store, run))
        assert final is not None
        assert (end.state, end.state_version, end.status) == (
            final.get("state"),
            final["state_version"],
            final["status"],
        ), run
    return len(rows)


def bundled(rt: hf.Runtime, folder: Path) -> int:
    """The runs with the longest journals, as bundles, are good for both verifiers; how many there were."""
    sql = "SELECT runs.id FROM runs JOIN streams ON streams.key = runs.stream ORDER BY last_seq DESC LIMIT 40"
    for row in (rows := rt.store.sql(sql)):
        path = folder / f"{row['id']}.zip"
        rt.evidence.export(row["id"], path)
        found = rt.evidence.verify(path)
        assert found.ok, found
        standalone.Verification(str(path), [], None).run()  # it raises what is wrong
        assert found.facts["status"] == rt.runs.get(row["id"]).status
    return len(rows)


def replayed(rt: hf.Runtime, acted: Any) -> int:
    """Replays every ended run; how many there were. ``acted`` says what the world has seen."""
    before, seen = rt.store.sql(FRAMES), acted()
    ended = [row["id"] for row in rt.store.sql(ENDED)]
    for run in ended:
        replay = rt.evidence.replay(run)
        assert replay.verdict is Verdict.SAME, (run, rt.runs.get(run).status, replay)
        for step in replay.steps:
            if step.recorded["status"] in ("completed", "failed"):
                assert step.replayed == step.recorded, run
    assert acted() == seen, "a replay has acted"
    assert rt.store.sql(FRAMES) == before, "a replay has written"
    travelled(rt.store)
    return len(ended)
