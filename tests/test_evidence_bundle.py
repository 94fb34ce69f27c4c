"""Bundles: what is exported verifies, for Holdfast and for the verifier inside; no changed byte does."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.bundle_desk import Case, case
from typer.testing import CliRunner

import holdfast as hf
from holdfast import _core, canonical, evidence, keys
from holdfast.cli import app_for
from holdfast.evidence import opening, standalone
from holdfast.evidence import standalone_files as files
from holdfast.evidence.bundle import VERIFIER
from holdfast.evidence.standalone_streams import SHOWS

APP = app_for("")
ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Any:
    made = case(tmp_path_factory.mktemp("evidence"))
    made.store.seal(made.key)
    yield made
    made.runtime.close()


RUNS = ("plain", "failed", "costly", "approved", "forked", "erased")


def alone(path: Path, *keys: str) -> tuple[int, str]:
    """What the verifier says that shares no code with Holdfast."""
    try:
        told = "\n".join(standalone.Verification(str(path), list(keys), None).run())
    except files.Bad as bad:
        return 3, str(bad)
    return 0, told


def unpacked(path: Path, target: Path) -> Path:
    """A bundle's folder, to be changed."""
    container = files.Container(str(path))
    for name in container.places:
        whole = target / name
        whole.parent.mkdir(parents=True, exist_ok=True)
        whole.write_bytes(container.read(name))
    container.close()
    return target


def remade(folder: Path) -> Path:
    """A bundle whose manifest was made anew after a change, as a forger would."""
    manifest: Any = canonical.loads((folder / "manifest.json").read_bytes())
    rows: list[Any] = []
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_file() and name != "manifest.json":
            digest = _core.FileHash()
            digest.update(path.read_bytes())
            sha256, count = digest.end()
            rows.append({"bytes": count, "name": name, "sha256": sha256})
    manifest["files"] = sorted(rows, key=lambda row: str(row["name"]))
    (folder / "manifest.json").write_bytes(canonical.dumps(manifest))
    return folder


@pytest.mark.parametrize("name", RUNS)
def test_what_is_exported_verifies_in_a_folder_and_in_one_file(name: str, desk: Case, tmp_path: Path) -> None:
    run = desk.runs[name]
    one = evidence.export(desk.store, run, tmp_path / "bundle.zip", key=desk.key)
    evidence.export(desk.store, run, tmp_path / "bundle")
    for path in (tmp_path / "bundle.zip", tmp_path / "bundle"):
        found = evidence.verify(path, keys=[desk.public])
        assert (found.ok, found.code, found.what) == (True, None, None)
        assert (found.run, found.records, found.sealed) == (run, one.records, one.records)
        assert found.signed_by == ["+".join(desk.public.split("+")[:2])]
        assert alone(path)[0] == 0, alone(path)
    assert evidence.verify(tmp_path / "bundle.zip", keys=[desk.public]).statement_by
    if name == "costly":
        assert evidence.verify(tmp_path / "bundle").facts["costs"] == {"tokens": 20, "usd_micros": 2000}
        assert len(list((tmp_path / "bundle" / "blobs").iterdir())) == 1
    state = desk.store.state(run)
    assert state is not None
    assert evidence.verify(tmp_path / "bundle").facts.get("state") == state.get("state")


def test_the_same_run_gives_the_same_bytes(desk: Case, tmp_path: Path) -> None:
    for name in ("a.zip", "b.zip"):
        evidence.export(desk.store, desk.runs["approved"], tmp_path / name)
    assert (tmp_path / "a.zip").read_bytes() == (tmp_path / "b.zip").read_bytes()


def test_the_bundle_verifies_itself_without_holdfast(desk: Case, tmp_path: Path) -> None:
    evidence.export(desk.store, desk.runs["costly"], tmp_path / "bundle.zip")
    command = [sys.executable, "-I", str(tmp_path / "bundle.zip"), "--key", desk.public]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "GOOD"), done.stdout + done.stderr
    assert "under the seal" in done.stdout


def test_what_is_sensitive_stays_out_unless_it_is_asked_for(desk: Case, tmp_path: Path) -> None:
    store = desk.store
    run = store.create_run(agent="import", input={"ssn": "078-05-1120"}, privacy="sensitive")
    claim = store.claim(worker="w", run=run)
    assert claim is not None
    store.finish(claim, result="ok")
    hidden = evidence.export(store, run, tmp_path / "hidden")
    shown = evidence.export(store, run, tmp_path / "shown", include=("public", "internal", "sensitive"))
    assert hidden.withheld == shown.withheld + 1 + 1  # the input and the initial state
    texts = {path: path.read_bytes() for path in (tmp_path / "hidden").rglob("*") if path.is_file()}
    assert not [path for path, text in texts.items() if b"078-05-1120" in text]
    assert b"078-05-1120" in (tmp_path / "shown" / "streams" / f"{run}.jsonl").read_bytes()
    for path in (tmp_path / "hidden", tmp_path / "shown"):
        assert evidence.verify(path).ok
        assert alone(path)[0] == 0


def test_every_changed_byte_of_a_bundle_is_found_by_both(desk: Case, tmp_path: Path) -> None:
    """Each byte of a small bundle that is not the verifier's or a schema's, and a sample of those."""
    evidence.export(desk.store, desk.runs["approved"], tmp_path / "good.zip")
    good = (tmp_path / "good.zip").read_bytes()
    container = files.Container(str(tmp_path / "good.zip"))
    places = container.places
    container.close()
    large = [places[name] for name in (*VERIFIER, "schemas.json")]
    dice, named = random.Random(7), 0
    free = [at for at in range(len(good)) if not any(b <= at < b + n for b, n in large)]
    chosen = dice.sample(free, 1500) + [
        begin + dice.randrange(size) for begin, size in large for _ in range(50)
    ]
    bad = tmp_path / "bad.zip"
    for at in chosen:
        changed = bytearray(good)
        changed[at] ^= 1 << dice.randrange(8)
        bad.write_bytes(changed)
        found = evidence.verify(bad)
        assert not found.ok, at
        named += found.seq is not None
        assert alone(bad)[0] == 3, at
    assert named > 700, "of a damaged stream the first bad record is named"
    for cut in (1, 100, len(good) // 2):
        bad.write_bytes(good[:-cut])
        assert not evidence.verify(bad).ok
        assert alone(bad)[0] == 3
    bad.write_bytes(good + b"x")
    assert not evidence.verify(bad).ok
    assert alone(bad)[0] == 3


def _lines(path: Path) -> list[str]:
    return path.read_text("utf-8").splitlines(keepends=True)


def _changes(folder: Path, run: str, dice: random.Random) -> str:
    """One change of a bundle's insides, whose manifest will be made anew; what it was."""
    stream = folder / "streams" / f"{run}.jsonl"
    lines = _lines(stream)
    what = dice.choice(["flip", "drop", "swap", "twice", "cut", "facts", "proof", "seal", "withhold"])
    at = dice.randrange(len(lines))
    if what == "flip":
        data = bytearray(stream.read_bytes())
        data[dice.randrange(len(data))] ^= 1 << dice.randrange(8)
        stream.write_bytes(data)
    elif what == "drop":
        stream.write_text("".join(lines[:at] + lines[at + 1 :]))
    elif what == "swap":
        other = (at + 1) % len(lines)
        lines[at], lines[other] = lines[other], lines[at]
        stream.write_text("".join(lines))
    elif what == "twice":
        stream.write_text("".join([*lines[: at + 1], lines[at], *lines[at + 1 :]]))
    elif what == "cut":
        stream.write_text("".join(lines[:-1]))
    elif what == "facts":
        facts = canonical.loads((folder / "facts.json").read_bytes())
        assert isinstance(facts, dict)
        part = dice.choice(sorted(facts))
        facts[part] = {"forged": True} if isinstance(facts[part], dict) else 7
        (folder / "facts.json").write_bytes(canonical.dumps(facts))
    elif what == "proof":
        proofs: Any = canonical.loads((folder / "proofs.json").read_bytes())
        proof = proofs[run]
        proof[dice.choice(["leaf", "first_seq", "last_seq"])] += 1
        (folder / "proofs.json").write_bytes(canonical.dumps(proofs))
    elif what == "seal":
        text = (folder / "seal.txt").read_text("utf-8").split("\n")
        text[1] = str(int(text[1]) + 1)
        (folder / "seal.txt").write_text("\n".join(text))
    else:
        manifest: Any = canonical.loads((folder / "manifest.json").read_bytes())
        manifest["withheld"].append("sha256:" + "0" * 64)
        manifest["withheld"].sort()
        (folder / "manifest.json").write_bytes(canonical.dumps(manifest))
    return what


@pytest.mark.parametrize("name", RUNS)
def test_a_forger_who_makes_the_manifest_anew_is_found_by_both(name: str, desk: Case, tmp_path: Path) -> None:
    evidence.export(desk.store, desk.runs[name], tmp_path / "good.zip")
    dice = random.Random(name)
    seen = set()
    for n in range(60):
        folder = unpacked(tmp_path / "good.zip", tmp_path / f"b{n}")
        what = _changes(folder, desk.runs[name], dice)
        seen.add(what)
        remade(folder)
        found, (code, told) = evidence.verify(folder, keys=[desk.public]), alone(folder, desk.public)
        assert (found.ok, code) == (False, 3), (n, what, found, told)
    assert len(seen) >= 7


def test_a_run_that_was_cut_off_is_found_against_the_seal(desk: Case, tmp_path: Path) -> None:
    """Its chain is good and its summary is made anew: only the seal knows that there was more."""
    evidence.export(desk.store, desk.runs["plain"], tmp_path / "good")
    cut = unpacked(tmp_path / "good", tmp_path / "cut")
    stream = cut / "streams" / f"{desk.runs['plain']}.jsonl"
    stream.write_text("".join(_lines(stream)[:-1]))
    remade(cut)
    found = evidence.verify(cut)
    assert (found.ok, found.code) == (False, "proof_invalid")
    assert alone(cut)[1].startswith("proof_invalid")
    # Without its proof it is a good bundle of a shorter run, and says that nothing of it is sealed.
    (cut / "proofs.json").unlink()
    audit = _core.BundleAudit(desk.store.id)
    audit.begin(desk.runs["plain"], None, None)
    audit.push(stream.read_bytes())
    manifest: Any = canonical.loads((cut / "manifest.json").read_bytes())
    audit.end(manifest["withheld"])
    (cut / "facts.json").write_bytes(audit.facts(desk.runs["plain"]))
    shorter = evidence.verify(remade(cut))
    assert (shorter.ok, shorter.sealed) == (True, 0)
    assert alone(cut)[0] == 0
    # But whoever asks for the seal is told that it covers nothing of this.
    seal = (cut / "seal.txt").read_text("utf-8")
    assert evidence.verify(cut, seals=[seal]).code == "proof_invalid"
    assert evidence.verify(cut, keys=[desk.public]).code == "proof_invalid"
    assert alone(cut, desk.public)[1].startswith("proof_invalid")


def test_records_after_the_seal_are_told_apart(tmp_path: Path) -> None:
    made = case(tmp_path)
    with made.runtime:
        run = made.store.create_run(agent="import")
        made.store.seal(made.key)
        made.store.append(run, "note.logged", {"text": "later"})
        evidence.export(made.store, run, tmp_path / "bundle")
    found = evidence.verify(tmp_path / "bundle", keys=[made.public])
    assert (found.ok, found.sealed, found.records) == (True, 2, 3)
    assert "records 3 to 3 are not" in found.guarantee
    assert "records 3 to 3 are NOT under the seal" in alone(tmp_path / "bundle", made.public)[1]


def test_how_much_of_a_run_is_shown_is_said_by_a_word_that_stays(tmp_path: Path) -> None:
    made = case(tmp_path)
    with made.runtime as rt:
        store = rt.store
        waiting = rt.run_sync("careful", "9").id
        late = store.create_run(agent="import")
        stopped = rt.run_sync("careful", "10").id
        rt.cancel(stopped, by="dana")
        rt.resume_sync(stopped)
        unsealed = rt.run_sync("support", "11").id
        evidence.export(store, unsealed, tmp_path / "none")
        store.seal(made.key)
        claim = store.claim(worker="w", run=late)
        assert claim is not None
        store.finish(claim, result="after the seal")
        (after,) = [store.create_run(agent="import")]
        words = {
            made.runs["plain"]: "whole",
            stopped: "whole",
            made.runs["forked"]: "whole",
            made.runs["failed"]: "may_be_retried",
            waiting: "open",
            late: "open",
            after: "unsealed",
        }
        for run, word in words.items():
            evidence.export(store, run, tmp_path / run)
            found = evidence.verify(tmp_path / run)
            assert (found.ok, found.shows, found.to_json()["shows"]) == (True, word, word), found
            assert SHOWS[word] in found.guarantee
            assert f"\n{word}: {SHOWS[word]}" in alone(tmp_path / run)[1]
    assert (evidence.verify(tmp_path / "none").shows, "unsealed: " in alone(tmp_path / "none")[1]) == (
        "unsealed",
        True,
    )
    (tmp_path / "none" / "facts.json").unlink()
    assert evidence.verify(tmp_path / "none").shows == "nothing"


def test_what_a_statement_says_of_the_run_is_checked(desk: Case, tmp_path: Path) -> None:
    """A key that signs a statement about the right bundle, and the wrong number of records."""
    path = tmp_path / "a.zip"
    evidence.export(desk.store, desk.runs["plain"], path, key=desk.key)
    found = evidence.verify(path, keys=[desk.public])
    assert "says that the store had no more of the run" in found.guarantee
    envelope = tmp_path / "a.zip.dsse.json"
    told: Any = json.loads(_core.envelope_open(envelope.read_bytes(), desk.public))
    told["predicate"]["records"] += 1
    envelope.write_bytes(_core.envelope_sign(canonical.dumps(told), keys.read(desk.key)))
    found = evidence.verify(path, keys=[desk.public])
    assert (found.ok, found.code, "something else of the run" in (found.what or "")) == (
        False,
        "bundle_altered",
        True,
    )


def test_a_seal_of_another_key_a_forged_one_and_none_are_told_apart(desk: Case, tmp_path: Path) -> None:
    evidence.export(desk.store, desk.runs["plain"], tmp_path / "bundle")
    stranger = keys.generate("example.com/refunds", tmp_path / "stranger.key")
    assert evidence.verify(tmp_path / "bundle", keys=[stranger]).code == "seal_unsigned"
    assert evidence.verify(tmp_path / "bundle", keys=["nonsense"]).code == "bad_key"
    changed = unpacked(tmp_path / "bundle", tmp_path / "changed")
    text = (changed / "seal.txt").read_text("utf-8").split("\n")
    text[1] = str(int(text[1]) + 1)
    (changed / "seal.txt").write_text("\n".join(text))
    assert evidence.verify(remade(changed), keys=[desk.public]).code == "seal_forged"
    with hf.open("memory:") as store:
        run = store.create_run(agent="import")
        evidence.export(store, run, tmp_path / "unsealed")
    plain = evidence.verify(tmp_path / "unsealed")
    assert plain.ok
    assert "without a seal" in plain.guarantee
    assert evidence.verify(tmp_path / "unsealed", seals=["x"]).code == "seal_unsigned"


def test_a_statement_about_another_bundle_is_found(desk: Case, tmp_path: Path) -> None:
    evidence.export(desk.store, desk.runs["plain"], tmp_path / "a.zip", key=desk.key)
    evidence.export(desk.store, desk.runs["failed"], tmp_path / "b.zip", key=desk.key)
    (tmp_path / "a.zip.dsse.json").write_bytes((tmp_path / "b.zip.dsse.json").read_bytes())
    found = evidence.verify(tmp_path / "a.zip", keys=[desk.public])
    assert (found.ok, found.code) == (False, "bundle_altered")
    envelope = json.loads((tmp_path / "b.zip.dsse.json").read_text())
    assert envelope["payloadType"] == "application/vnd.in-toto+json"


@pytest.mark.parametrize("name", RUNS)
def test_a_bundle_is_read_as_its_run_is(name: str, desk: Case, tmp_path: Path) -> None:
    run, live = desk.runs[name], desk.runtime.evidence
    evidence.export(desk.store, run, tmp_path / "bundle.zip")
    journal, sealed = opening.journal(tmp_path / "bundle.zip")
    assert sealed
    assert live.diff(run, journal).same
    assert live.at(run).state == live.at(journal).state
    told, found = live.review(run), evidence.review(journal, sealed=sealed)
    assert [(one.check, one.passed) for one in told.findings] == [
        (one.check, one.passed) for one in found.findings
    ]
    done = CliRunner().invoke(APP, ["evidence", "review", str(tmp_path / "bundle.zip")])
    assert done.exit_code == (0 if found.ok else 3), done.output
    same = CliRunner().invoke(APP, ["evidence", "diff", *(2 * [str(tmp_path / "bundle.zip")])])
    assert same.exit_code == 0, same.output
    (tmp_path / "bundle.zip").write_bytes(b"PK")
    with pytest.raises(hf.VerifyError, match="bundle_altered"):
        opening.journal(tmp_path / "bundle.zip")


def test_a_target_that_exists_is_left_alone(desk: Case, tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    with pytest.raises(hf.HoldfastError, match="target_exists"):
        evidence.export(desk.store, desk.runs["plain"], tmp_path / "there")
    with pytest.raises(hf.HoldfastError, match="no_such_run"):
        evidence.export(desk.store, "run_01m7mz6eamf9hadzbd63t2e97t", tmp_path / "new.zip")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["there"]
    assert evidence.verify(tmp_path / "nowhere.zip").code == "bundle_altered"
