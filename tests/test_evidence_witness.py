"""Witnesses: what they signed stays with the store's seals and goes into bundles; both verifiers check it."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from tests.bundle_desk import Case, case
from tests.test_evidence_bundle import remade, unpacked
from typer.testing import CliRunner

import holdfast as hf
from holdfast import _core, evidence, keys
from holdfast.cli import app_for
from holdfast.evidence import standalone
from holdfast.evidence import standalone_files as files

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

APP = app_for("")
SEEN = 1_700_000_000


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Case]:
    made = case(tmp_path_factory.mktemp("witness"))
    yield made
    made.runtime.close()


def witness(folder: Path, name: str) -> tuple[Path, str]:
    """A witness's key."""
    path = folder / f"{name}.key"
    return path, keys.generate(f"{name}.example/w", path, witness=True)


def cosigned(seal: str, secret: Path, seconds: int = SEEN) -> str:
    """What a witness gives back."""
    return _core.note_cosign(seal, keys.read(secret), seconds)


def alone(path: Path, *public: str) -> tuple[int, str]:
    """What the stand-alone verifier says."""
    try:
        return 0, "\n".join(standalone.Verification(str(path), list(public), None).run())
    except files.Bad as bad:
        return 3, str(bad)


def test_a_bundle_has_what_the_witnesses_of_its_seal_have_signed(desk: Case, tmp_path: Path) -> None:
    first, second = witness(tmp_path, "ann"), witness(tmp_path, "bob")
    seal = desk.store.seal(desk.key)
    frames = desk.store.sql("SELECT count(*) AS n FROM frames")
    evidence.export(desk.store, desk.runs["plain"], tmp_path / "before.zip")
    assert evidence.verify(tmp_path / "before.zip", keys=[first[1]]).code == "seal_unsigned"
    for who, when in ((first, SEEN), (second, SEEN + 60)):
        kept = desk.runtime.evidence.witnessed(cosigned(seal.checkpoint, who[0], when), keys=[who[1]])
    assert (kept.size, kept.root, kept.pos) == (seal.size, seal.root, seal.pos)
    assert desk.store.seals(1) == [kept]
    assert desk.store.sql("SELECT count(*) AS n FROM frames") == frames, "a signature is no record"
    assert desk.store.seal(desk.key) == kept, "so there is nothing to seal anew"
    evidence.export(desk.store, desk.runs["plain"], tmp_path / "b.zip")
    found = evidence.verify(tmp_path / "b.zip", keys=[desk.public, first[1], second[1]])
    assert found.ok, found
    assert [one.partition(" at ")[2] for one in found.signed_by] == ["", str(SEEN), str(SEEN + 60)]
    code, told = alone(tmp_path / "b.zip", desk.public, first[1], second[1])
    assert (code, f"signed by ann.example/w at {SEEN}" in told) == (0, True), told
    command = [sys.executable, "-I", str(tmp_path / "b.zip"), "--key", first[1]]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "GOOD"), done.stdout
    assert desk.store.verify(seals=[kept.checkpoint], keys=[desk.public, first[1]]).ok
    # The first word of a witness stays: it says more than a later one.
    again = desk.store.witnessed(cosigned(seal.checkpoint, first[0], SEEN + 999), keys=[first[1]])
    assert again == kept


def test_only_good_signatures_of_the_named_keys_on_this_stores_seals_are_taken(
    desk: Case, tmp_path: Path
) -> None:
    ann, bob = witness(tmp_path, "carl"), witness(tmp_path, "dora")
    seal = desk.store.seal(desk.key)
    both = cosigned(cosigned(seal.checkpoint, ann[0]), bob[0])
    with pytest.raises(hf.VerifyError, match="seal_unsigned"):
        desk.store.witnessed(cosigned(seal.checkpoint, bob[0]), keys=[ann[1]])
    body, marks = both.rsplit("\n\n", 1)
    lines = body.split("\n")
    other = "\n".join([lines[0], "99999", *lines[2:]]) + "\n\n" + marks
    with pytest.raises(hf.VerifyError, match="bad_seal"):
        desk.store.witnessed(cosigned(other, ann[0]), keys=[ann[1]])
    swapped = "\n".join([*lines[:2], "A" * 43 + "=", *lines[3:]]) + "\n\n" + marks
    with pytest.raises(hf.VerifyError, match="bad_seal"):
        desk.store.witnessed(cosigned(swapped, ann[0]), keys=[ann[1]])
    name = ann[1].partition("+")[0]
    marks = "\n".join(line[:-8] + "AAAAAAA=" if name in line else line for line in marks.split("\n"))
    with pytest.raises(hf.VerifyError, match="seal_forged"):
        desk.store.witnessed(f"{body}\n\n{marks}", keys=[ann[1]])
    kept = desk.store.witnessed(both, keys=[ann[1]])
    signed = _core.checkpoint_read(kept.checkpoint)["signatures"]
    assert (name in signed, bob[1].partition("+")[0] in signed) == (True, False)


def test_a_forged_word_of_a_witness_is_found_by_both(desk: Case, tmp_path: Path) -> None:
    ann = witness(tmp_path, "emma")
    seal = desk.store.seal(desk.key)
    desk.store.witnessed(cosigned(seal.checkpoint, ann[0]), keys=[ann[1]])
    evidence.export(desk.store, desk.runs["plain"], tmp_path / "b.zip")
    folder = unpacked(tmp_path / "b.zip", tmp_path / "bad")
    mark = ann[1].partition("+")[0]
    text = (folder / "seal.txt").read_text("utf-8").split("\n")
    later = cosigned(seal.checkpoint, ann[0], SEEN + 1).split("\n")
    early = next(at for at, line in enumerate(text) if mark in line)
    late = next(line for line in later if mark in line)
    text[early] = text[early][:-60] + late[-60:]  # the time of one, the signature of the other
    (folder / "seal.txt").write_text("\n".join(text), "utf-8")
    assert evidence.verify(remade(folder), keys=[ann[1]]).code == "seal_forged"
    assert alone(folder, ann[1])[1].startswith("seal_forged")


def test_a_witness_from_the_command_line_to_the_bundle(desk: Case, tmp_path: Path) -> None:
    url, seal, secret = str(desk.folder / "runs"), tmp_path / "seal.txt", tmp_path / "w.key"

    def told(*words: str) -> str:
        done = CliRunner().invoke(APP, list(words))
        assert done.exit_code == 0, done.output
        return done.stdout

    line = told("keys", "generate", "cli.example/w", "-o", str(secret), "--witness").strip()
    told("journal", "seal", "--key", str(desk.key), "-o", str(seal), "--store", url)
    told("keys", "witness", str(seal), "--key", str(secret), "--store", url)
    told("journal", "witnessed", str(seal), "--key", line, "--store", url)
    told("evidence", "export", desk.runs["plain"], "-o", str(tmp_path / "b.zip"), "--store", url)
    said = told("evidence", "verify", str(tmp_path / "b.zip"), "--key", line, "--json")
    assert '"signed_by": ["cli.example/w' in said.replace("\n", "").replace("  ", "")
    stranger = keys.generate("x.example/w", tmp_path / "x.key", witness=True)
    done = CliRunner().invoke(APP, ["journal", "witnessed", str(seal), "--key", stranger, "--store", url])
    assert (done.exit_code, "seal_unsigned" in done.output) == (3, True), done.output
