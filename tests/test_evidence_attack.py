"""What an attack on bundles has found, as stories: forgeries that passed, and good bundles that did not."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import zipfile
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from tests.bundle_desk import Case, case
from tests.test_evidence_bundle import alone, remade, unpacked
from typer.testing import CliRunner

import holdfast as hf
from holdfast import _core, canonical, evidence, keys
from holdfast.cli import app_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

APP = app_for("")
CLI = CliRunner()


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Case]:
    made = case(tmp_path_factory.mktemp("attack"))
    made.store.seal(made.key)
    yield made
    made.runtime.close()


def changed(folder: Path, name: str, change: Callable[[Any], None]) -> None:
    """Another JSON in the place of a file's."""
    value: Any = canonical.loads((folder / name).read_bytes())
    change(value)
    (folder / name).write_bytes(canonical.dumps(value))


def _without(name: str, proofs: Any) -> None:
    del proofs[name]


def refused(folder: Path, desk: Case) -> tuple[str | None, str]:
    """The codes by which both verifiers refuse a forged folder, with the key."""
    found, (code, told) = evidence.verify(folder, keys=[desk.public]), alone(folder, desk.public)
    assert (found.ok, code) == (False, 3), (found, told)
    return found.code, told.partition(":")[0].partition(" ")[0]


def test_a_bundle_without_its_run_proves_nothing(desk: Case, tmp_path: Path) -> None:
    evidence.export(desk.store, desk.runs["plain"], tmp_path / "b.zip")
    folder = unpacked(tmp_path / "b.zip", tmp_path / "f")
    changed(folder, "manifest.json", lambda manifest: manifest.update(streams=[]))
    assert refused(remade(folder), desk) == ("bundle_altered", "bundle_altered")
    changed(folder, "manifest.json", lambda manifest: manifest.update(streams=2 * [desk.runs["plain"]]))
    assert refused(remade(folder), desk) == ("bundle_altered", "bundle_altered")


def test_streams_beside_the_run_are_under_the_seal_too(tmp_path: Path) -> None:
    rt = hf.Runtime(tmp_path / "runs", policy='[[rule]]\nname = "all"\ntool = "*"\ndecide = "allow"\n')

    @rt.tool(effect="write")
    def pay(order: str) -> str:
        return order

    @rt.agent
    async def support(ctx: hf.Context) -> str:
        return await ctx.call(pay, order="1")

    with rt:
        session = rt.store.create_session(by="dana")
        run = rt.run_sync(support, session=session).id
        public = keys.generate("example.com/log", tmp_path / "k")
        rt.store.seal(tmp_path / "k")
        evidence.export(rt.store, run, tmp_path / "b.zip")
    found = evidence.verify(tmp_path / "b.zip", keys=[public])
    assert set(found.streams) == {run, session, "store"}
    assert all(one["sealed"] for one in found.streams.values())
    for name in (session, "store"):
        folder = unpacked(tmp_path / "b.zip", tmp_path / f"unproven-{name}")
        changed(folder, "proofs.json", partial(_without, name))
        assert evidence.verify(remade(folder), keys=[public]).code == "proof_invalid"
        assert alone(folder, public)[1].startswith("proof_invalid")
        folder = unpacked(tmp_path / "b.zip", tmp_path / f"empty-{name}")
        changed(folder, "proofs.json", partial(_without, name))
        (folder / "streams" / f"{name}.jsonl").write_bytes(b"")
        assert not evidence.verify(remade(folder)).ok
        assert alone(folder)[0] == 3
    folder = unpacked(tmp_path / "b.zip", tmp_path / "gone")
    (folder / "streams" / f"{session}.jsonl").unlink()
    changed(folder, "manifest.json", lambda manifest: manifest["streams"].remove(session))
    changed(folder, "proofs.json", lambda proofs: proofs.pop(session))
    assert evidence.verify(remade(folder)).code == "bundle_altered"
    assert alone(folder)[0] == 3


def rechained(folder: Path, run: str, kept: Callable[[Any], bool]) -> Path:
    """A bundle whose run lacks records, or has changed ones, chained anew as a forger would."""
    path = folder / "streams" / f"{run}.jsonl"
    lines, last, seq = [], None, 0
    for line in path.read_text("utf-8").splitlines():
        frame: Any = canonical.loads(line)
        frame["records"] = [record for record in frame["records"] if kept(record)]
        for record in frame["records"]:
            seq += 1
            record["seq"], record["prev"] = seq, last or record["prev"]
            last = canonical.digest(record, domain="holdfast/record/v1")
        lines += [canonical.dumps(frame).decode()] if frame["records"] else []
    path.write_text("".join(f"{line}\n" for line in lines), "utf-8")
    return remade(folder)


def _silent(record: Any) -> bool:
    if record["kind"] == "effect.started":
        del record["body"]["grant"]
    return not record["kind"].startswith("grant.")


LEFT_OUT: dict[str, tuple[Callable[[Any], bool], str]] = {
    "that it was granted": (lambda record: record["kind"] != "grant.created", "no such grant"),
    "that it was spent": (lambda record: record["kind"] != "grant.spent", "its grant was not spent by it"),
    "that anybody was asked": (_silent, "nobody has allowed it"),
}


@pytest.mark.parametrize("what", LEFT_OUT)
def test_an_effect_without_the_leave_that_it_had_is_found_by_both(
    what: str, desk: Case, tmp_path: Path
) -> None:
    run, (kept, why) = desk.runs["approved"], LEFT_OUT[what]
    evidence.export(desk.store, run, tmp_path / "b.zip")
    folder = unpacked(tmp_path / "b.zip", tmp_path / "f")
    forged = rechained(folder, run, kept)
    found, (code, told) = evidence.verify(forged), alone(forged)
    assert (found.code, code, told.partition(" ")[0].rstrip(":")) == ("record_illegal", 3, "record_illegal")
    assert why in str(found.what)
    assert why in told


FORGED: dict[str, Callable[[Any], None]] = {
    "one for true": lambda facts: facts["state"].update(done=1),
    "an invented part": lambda facts: facts.update(invented=None),
    "a missing part": lambda facts: facts.pop("costs"),
}


@pytest.mark.parametrize("what", FORGED)
def test_facts_are_compared_to_the_letter(what: str, desk: Case, tmp_path: Path) -> None:
    evidence.export(desk.store, desk.runs["plain"], tmp_path / "b.zip")
    folder = unpacked(tmp_path / "b.zip", tmp_path / "f")
    changed(folder, "facts.json", FORGED[what])
    assert refused(remade(folder), desk)[1] == "facts_forged"


ODD: dict[str, Callable[[Any], None]] = {
    "another key": lambda manifest: manifest.update(more=1),
    "another contract": lambda manifest: manifest["contracts"].update(record=2),
    "a fork of nothing": lambda manifest: manifest["forks"].update({"../x": 1}),
    "a fork at nothing": lambda manifest: manifest["forks"].update({manifest["run"]: 1}),
    "a file that no bundle has": lambda manifest: manifest["files"].append(
        {
            "bytes": 0,
            "name": "zzz",
            "sha256": "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
        }
    ),
}


@pytest.mark.parametrize("what", ODD)
def test_a_manifest_of_another_shape_is_refused_by_both(what: str, desk: Case, tmp_path: Path) -> None:
    evidence.export(desk.store, desk.runs["plain"], tmp_path / "b.zip")
    folder = unpacked(tmp_path / "b.zip", tmp_path / "f")
    if "file" in what:
        (folder / "zzz").touch()
    changed(folder, "manifest.json", ODD[what])
    assert refused(folder, desk) == ("bundle_altered", "bundle_altered")


def test_a_blob_that_no_record_names_is_found_and_named(desk: Case, tmp_path: Path) -> None:
    """It is what its name commits to, and the manifest covers it: only that nobody speaks of it is wrong."""
    evidence.export(desk.store, desk.runs["costly"], tmp_path / "b.zip")
    folder = unpacked(tmp_path / "b.zip", tmp_path / "f")
    data = b"s" * 16 + b"smuggled"
    commit = hashlib.sha256(b"holdfast/content/v1\n" + data).hexdigest()
    (folder / "blobs" / commit).write_bytes(data)
    assert refused(remade(folder), desk) == ("bundle_altered", "bundle_altered")
    assert f"blobs/{commit}: no record names it" in (evidence.verify(folder).what or "")
    assert f"blobs/{commit}: no record names it" in alone(folder)[1]


def test_what_was_erased_does_not_pass_for_withheld(desk: Case, tmp_path: Path) -> None:
    evidence.export(desk.store, desk.runs["erased"], tmp_path / "b.zip")
    folder = unpacked(tmp_path / "b.zip", tmp_path / "f")
    kinds = {record.kind: record.body for record in desk.store.read(desk.runs["erased"])}
    gone = min(kinds["content.erased"]["commits"])
    changed(folder, "manifest.json", lambda manifest: manifest["withheld"].append(gone))
    changed(folder, "manifest.json", lambda manifest: manifest["withheld"].sort())
    assert refused(remade(folder), desk) == ("bundle_altered", "bundle_altered")
    assert f"withholds {gone}, which was erased" in (evidence.verify(folder).what or "")
    assert f"withholds {gone}, which was erased" in alone(folder)[1]


def test_a_run_that_waits_for_a_person_and_one_with_notes_after_its_end_verify(
    desk: Case, tmp_path: Path
) -> None:
    rt = desk.runtime
    waiting = rt.run_sync("careful", "9")
    assert waiting.status == "waiting"
    noted = rt.run_sync("support", "10").id
    rt.store.append(noted, "x.acme.audited", {"data": {"by": "ann"}})
    for run in (waiting.id, noted):
        evidence.export(rt.store, run, tmp_path / f"{run}.zip")
        assert evidence.verify(tmp_path / f"{run}.zip").ok, evidence.verify(tmp_path / f"{run}.zip")
        assert alone(tmp_path / f"{run}.zip")[0] == 0
    rt.cancel(waiting, by="dana")


def test_the_verifier_in_a_folder_adds_nothing_to_it(
    desk: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    evidence.export(desk.store, desk.runs["plain"], tmp_path / "bundle")
    for _ in range(2):
        monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
        command = [sys.executable, "__main__.py"]
        done = subprocess.run(
            command, cwd=tmp_path / "bundle", capture_output=True, text=True, check=False, timeout=60
        )
        assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "GOOD"), done.stdout + done.stderr
    monkeypatch.chdir(tmp_path / "bundle")
    assert evidence.verify(".").ok


def test_a_statement_may_be_another_keys_and_a_witness_may_sign_a_kept_copy(
    desk: Case, tmp_path: Path
) -> None:
    exporter = keys.generate("example.com/exporter", tmp_path / "e.key")
    witness = keys.generate("w.example/1", tmp_path / "w.key", witness=True)
    evidence.export(desk.store, desk.runs["plain"], tmp_path / "b.zip", key=tmp_path / "e.key")
    kept = _core.note_cosign(desk.store.seals(1)[0].checkpoint, keys.read(tmp_path / "w.key"), 1_700_000_000)
    found = evidence.verify(tmp_path / "b.zip", keys=[desk.public, exporter, witness], seals=[kept])
    assert found.ok, found
    assert found.signed_by[1].endswith("at 1700000000")
    assert [name.partition("+")[0] for name in found.statement_by] == ["example.com/exporter"]
    with pytest.raises(hf.VerifyError, match="bad_key"):
        desk.store.seal(tmp_path / "w.key")
    with pytest.raises(hf.VerifyError, match="bad_key"):
        keys.rotate(tmp_path / "w.key", tmp_path / "w2.key")


def test_too_many_files_and_files_that_are_too_large_end_quickly(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "many.zip", "w") as out:
        for n in range(3):
            out.writestr(f"f{n}", b"")
    assert evidence.verify(tmp_path / "many.zip").code == "bundle_altered"
    (tmp_path / "huge").mkdir()
    with (tmp_path / "huge" / "manifest.json").open("wb") as out:
        out.truncate(1 << 33)
    assert evidence.verify(tmp_path / "huge").code == "bundle_altered"
    assert alone(tmp_path / "huge")[0] == 3
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "manifest.json").write_text("[" * 5000)
    assert evidence.verify(tmp_path / "deep").code == "bundle_altered"
    assert alone(tmp_path / "deep")[0] == 3


def test_bad_files_on_the_command_line_are_told_without_a_traceback(desk: Case, tmp_path: Path) -> None:
    evidence.export(desk.store, desk.runs["plain"], tmp_path / "b.zip")
    (tmp_path / "odd").write_bytes(b"\xff\xfe")
    public, folder = desk.public, str(desk.folder / "runs")
    for words, code in (
        (["evidence", "verify", str(tmp_path / "b.zip"), "--seal", str(tmp_path / "none")], 2),
        (["keys", "follow", public, str(tmp_path / "odd")], 2),
        (["keys", "generate", "x", "-o", str(tmp_path / "none" / "k")], 1),
        (["evidence", "export", "store", "-o", str(tmp_path / "s.zip"), "--store", folder], 1),
        (["evidence", "export", desk.runs["plain"], "-o", str(tmp_path / "b.zip"), "--store", folder], 1),
        (["evidence", "export", desk.runs["plain"], "-o", str(tmp_path / "no" / "b"), "--store", folder], 1),
    ):
        done = CLI.invoke(APP, words)
        assert done.exit_code == code, (words, done.output)
        assert "Traceback" not in done.output
        assert isinstance(done.exception, SystemExit | None)
    (tmp_path / "bad.key").write_text("PRIVATE+KEY+x")
    with pytest.raises(hf.VerifyError, match="bad_key"):
        evidence.export(desk.store, desk.runs["plain"], tmp_path / "signed.zip", key=tmp_path / "bad.key")
    assert not (tmp_path / "signed.zip").exists(), "nothing is half done"
