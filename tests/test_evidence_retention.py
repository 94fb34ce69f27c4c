"""Old runs go into bundles and their values leave the store; what stays still verifies."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING

import pytest
from tests.bundle_desk import Case, case
from typer.testing import CliRunner

import holdfast as hf
from holdfast import evidence
from holdfast.cli import app_for
from holdfast.evidence import retention

if TYPE_CHECKING:
    from pathlib import Path

APP = app_for("")
CLI = CliRunner()


@pytest.fixture
def desk(tmp_path: Path) -> Case:
    return case(tmp_path)


def test_runs_go_when_they_are_old_ended_and_sealed_and_the_rest_still_verifies(
    desk: Case, tmp_path: Path
) -> None:
    store = desk.store
    assert retention.plan(store, older_than=3600) == [], "all of them are new"
    due = {one.run: one.hindered for one in retention.plan(store, older_than=-1)}
    assert sorted(set(map(str, due.values()))) == ["forked", "unsealed"]
    assert desk.runs["erased"] not in due, "it has nothing left"
    assert list(retention.apply(store, tmp_path / "archive", older_than=-1, by="dana")) == []
    seal = store.seal(desk.key)

    done = list(retention.apply(store, tmp_path / "archive", older_than=-1, by="dana", key=desk.key))
    assert {one.run for one in done} == due.keys()
    assert all(one.erased > 0 for one in done)
    assert retention.plan(store, older_than=-1) == []
    report = store.verify(seals=[seal.checkpoint], keys=[desk.public])
    assert report.ok, report.problems
    assert (report.contents, report.blobs) == (report.contents, 0)
    for one in done:
        found = evidence.verify(one.path, keys=[desk.public], seals=[seal.checkpoint])
        assert (found.ok, found.run, found.sealed) == (True, one.run, found.records)
    costly = evidence.verify(tmp_path / "archive" / f"{desk.runs['costly']}.zip")
    assert costly.facts["state"]["text"].startswith("long long"), "the bundle has the values"
    with pytest.raises(hf.RecordError, match="content_erased"):
        _ = [record.value for record in store.read(desk.runs["plain"])]
    last = [record for record in store.read(desk.runs["plain"]) if record.kind == "content.erased"][-1]
    assert last.body["reason"].startswith("archived as sha256:")
    again = evidence.export(store, desk.runs["forked"], tmp_path / "again.zip")
    assert evidence.verify(again.path).ok, "also a fork whose parent's values are gone"
    desk.runtime.close()


def test_a_crash_between_bundle_and_erasing_loses_nothing_and_a_damaged_bundle_erases_nothing(
    desk: Case, tmp_path: Path
) -> None:
    store, run = desk.store, desk.runs["plain"]
    store.seal(desk.key)
    archive = tmp_path / "archive"
    archive.mkdir()
    evidence.export(store, run, archive / f"{run}.zip", include=retention.KEPT)  # and then it died
    whole = (archive / f"{run}.zip").read_bytes()
    (archive / f"{run}.zip").write_bytes(whole[:-1])
    with pytest.raises(hf.VerifyError, match="bundle_altered"):
        list(retention.apply(store, archive, older_than=-1, by="dana"))
    assert [record.value for record in store.read(run)], "its values are still there"
    (archive / f"{run}.zip").write_bytes(whole)
    done = {one.run: one for one in retention.apply(store, archive, older_than=-1, by="dana")}
    assert (archive / f"{run}.zip").read_bytes() == whole
    assert done[run].erased > 0
    desk.runtime.close()


def test_a_backup_is_tried_before_it_is_needed(desk: Case, tmp_path: Path) -> None:
    desk.store.seal(desk.key)
    desk.store.backup(tmp_path / "backup")
    desk.runtime.close()
    report = retention.readiness(tmp_path / "backup")
    assert report.ok
    assert (report.contents > 20, report.blobs > 0) == (True, True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["backup", "log.key", "runs"]
    (blob, *_) = [path for path in (tmp_path / "backup" / "blobs").rglob("*") if path.is_file()]
    blob.write_bytes(blob.read_bytes()[:-1])
    assert CLI.invoke(APP, ["readiness", str(tmp_path / "backup")]).exit_code == 3


def test_the_command_line_plans_and_applies(desk: Case, tmp_path: Path) -> None:
    desk.runtime.close()
    store = ("--store", str(tmp_path / "runs"))
    due = CLI.invoke(APP, ["retention", "plan", "--older-than", "0s", *store])
    assert (due.exit_code, "unsealed" in due.output, "journal seal" in due.output) == (0, True, True)
    CLI.invoke(APP, ["journal", "seal", "--key", str(desk.key), *store])
    words = ["--older-than", "0s", "--archive", str(tmp_path / "archive"), "--by", "dana", "--json", *store]
    done = CLI.invoke(APP, ["retention", "apply", *words])
    assert done.exit_code == 0, done.output
    assert desk.runs["approved"] in {one["run"] for one in json.loads(done.output)}
    assert (
        json.loads(CLI.invoke(APP, ["retention", "plan", "--older-than", "0s", "--json", *store]).output)
        == []
    )
    assert CLI.invoke(APP, ["retention", "plan", "--older-than", "soon", *store]).exit_code == 2
    assert CLI.invoke(APP, ["verify", *store]).exit_code == 0
    shutil.rmtree(tmp_path / "archive")
