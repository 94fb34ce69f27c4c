"""Stories of what is done to a store beside those who work on it: rows made anew, contents erased."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import holdfast as hf

if TYPE_CHECKING:
    from pathlib import Path


def test_rows_that_are_made_anew_strand_no_step_that_somebody_had(tmp_path: Path) -> None:
    with hf.open(tmp_path / "runs") as store:
        run = store.create_run(agent="a")
        held = store.claim(worker="w1", lease=3600)
        assert held is not None
        assert hf.doctor(tmp_path / "runs", rebuild=True).report.ok
        again = store.claim(worker="w2", lease=3600)
        assert again is not None
        assert (again.run, again.fence > held.fence) == (run, True)
        with pytest.raises(hf.CommandError, match="stale_fence"):
            store.finish(held)
        assert store.verify().ok


def test_what_another_process_erased_is_gone_from_what_this_one_had_in_mind(tmp_path: Path) -> None:
    with hf.open(tmp_path / "runs") as one, hf.open(tmp_path / "runs") as two:
        run = one.create_run(agent="a", state={"name": "dana"})
        claim = one.claim(worker="w1")
        assert claim is not None
        one.fail(claim, "no", retryable=False)
        two.append(run, "note.logged", {"text": "two knows the run"})
        one.forget(run, by="dana")
        two.retry(run, by="dana")
        told = [store.state(run).get("state") for store in (one, two)]
        again = two.claim(worker="w2")
        assert again is not None
        assert (told, again.state) == ([None, None], None)
