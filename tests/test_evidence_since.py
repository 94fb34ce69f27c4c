"""A reader who kept an older seal: a bundle under a later one shows that it goes on from it, and what of the
run was there by then. Both verifiers say the same.
"""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from tests.bundle_desk import Case, case
from tests.test_evidence_attack import changed
from tests.test_evidence_bundle import remade, unpacked
from typer.testing import CliRunner

import holdfast as hf
from holdfast import evidence, keys
from holdfast.cli import app_for
from holdfast.evidence import standalone
from holdfast.evidence import standalone_files as files

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

APP = app_for("")
SEALS = 5


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Case]:
    made = case(tmp_path_factory.mktemp("since"))
    yield made
    made.runtime.close()


@pytest.fixture(scope="module")
def story(desk: Case) -> tuple[str, list[str], list[int]]:
    """A run that grows between seals: the seals, oldest first, and how many records each covers."""
    run = desk.store.create_run(agent="import")
    seals, records = [], []
    for n in range(SEALS):
        seals.append(desk.store.seal(desk.key).checkpoint)
        records.append(2 + 3 * n)
        desk.store.append_many(run, [("note.logged", {"text": f"note {n} {m}"}) for m in range(3)])
        desk.runtime.run_sync("support", f"beside {n}")
    desk.store.seal(desk.key)
    return run, seals, records


def alone(path: Path, seal: str, *public: str) -> tuple[int, str]:
    """What the stand-alone verifier says to a reader with a seal."""
    try:
        return 0, "\n".join(standalone.Verification(str(path), list(public), seal).run())
    except files.Bad as bad:
        return 3, str(bad)


def test_every_older_seal_holds_and_says_what_was_there(
    desk: Case, story: tuple[str, list[str], list[int]], tmp_path: Path
) -> None:
    run, seals, records = story
    done = evidence.export(desk.store, run, tmp_path / "b.zip", since=seals)
    for seal, covered in zip(seals, records, strict=True):
        found = evidence.verify(tmp_path / "b.zip", keys=[desk.public], seals=[seal])
        size = int(seal.split("\n")[1])
        assert (found.ok, found.kept) == (True, [{"sealed": covered, "size": size}]), found
        told = f"{covered} of {done.records} records"
        assert told in found.guarantee
        assert "nobody checked" not in found.guarantee
        code, said = alone(tmp_path / "b.zip", seal, desk.public)
        assert code == 0
        assert told in said
    both = evidence.verify(tmp_path / "b.zip", seals=seals[:2])
    assert [one["sealed"] for one in both.kept] == records[:2]
    assert "a seal whose signature nobody checked" in both.guarantee, "an older seal vouches for no later one"


def test_a_bundle_that_leads_nowhere_is_refused_with_what_to_do(
    desk: Case, story: tuple[str, list[str], list[int]], tmp_path: Path
) -> None:
    run, seals, _ = story
    evidence.export(desk.store, run, tmp_path / "plain.zip")
    found = evidence.verify(tmp_path / "plain.zip", seals=[seals[0]])
    assert (found.ok, found.code) == (False, "seal_mismatch")
    assert "exported since the kept seal" in (found.what or "")
    assert alone(tmp_path / "plain.zip", seals[0])[1].startswith("seal_mismatch")
    # The seal that it was exported under needs no proof, and takes no room.
    own = desk.store.seals(1)[0].checkpoint
    evidence.export(desk.store, run, tmp_path / "own.zip", since=[own])
    assert (tmp_path / "own.zip").read_bytes() == (tmp_path / "plain.zip").read_bytes()
    assert evidence.verify(tmp_path / "own.zip", seals=[own]).ok
    assert alone(tmp_path / "own.zip", own)[0] == 0


def test_a_seal_that_the_store_does_not_go_on_from_is_refused_when_exporting(
    desk: Case, story: tuple[str, list[str], list[int]], tmp_path: Path
) -> None:
    run, seals, _ = story
    lines = seals[0].split("\n")
    with hf.open("memory:") as other:
        other.create_run(agent="import")
        foreign = other.seal(desk.key).checkpoint
    rewritten = "\n".join([lines[0], lines[1], foreign.split("\n")[2], *lines[3:]])
    ahead = "\n".join([lines[0], "9999", *lines[2:]])
    for text in (foreign, rewritten, ahead):
        with pytest.raises(hf.VerifyError, match="seal_mismatch"):
            evidence.export(desk.store, run, tmp_path / "b.zip", since=[text])
    with hf.open("memory:") as unsealed:
        alone_ = unsealed.create_run(agent="import")
        with pytest.raises(hf.VerifyError, match="seal_mismatch"):
            evidence.export(unsealed, alone_, tmp_path / "b.zip", since=[foreign])
    assert not (tmp_path / "b.zip").exists()


def test_a_key_that_signed_only_the_older_seal_has_not_signed_the_bundle(
    desk: Case, story: tuple[str, list[str], list[int]], tmp_path: Path
) -> None:
    run, seals, _ = story
    witness = keys.generate("w.example/1", tmp_path / "w.key", witness=True)
    (tmp_path / "old.txt").write_text(seals[0], "utf-8")
    assert (
        CliRunner()
        .invoke(APP, ["keys", "witness", str(tmp_path / "old.txt"), "--key", str(tmp_path / "w.key")])
        .exit_code
        == 0
    )
    old = (tmp_path / "old.txt").read_text("utf-8")
    evidence.export(desk.store, run, tmp_path / "b.zip", since=[old])
    assert evidence.verify(tmp_path / "b.zip", seals=[old], keys=[desk.public]).ok
    assert evidence.verify(tmp_path / "b.zip", seals=[old], keys=[witness]).code == "seal_unsigned"


FORGED: dict[str, Callable[[Any], None]] = {
    "another path": lambda older: older[0]["path"].__setitem__(0, "0" * 64),
    "no path": lambda older: older[0].update(path=[]),
    "an odd path": lambda older: older[0]["path"].__setitem__(0, "x"),
    "another proof": lambda older: next(iter(older[0]["proofs"].values())).update(leaf=0),
    "a later record": lambda older: next(iter(older[0]["proofs"].values())).update(last_seq=3),
    "another seal": lambda older: older[0].update(seal=older[1]["seal"]),
    "another part": lambda older: older[0].update(more=1),
    "no seals": lambda older: older.clear(),
    "a proof of something else": lambda older: older[0]["proofs"].update(
        store=next(iter(older[0]["proofs"].values()))
    ),
}


@pytest.mark.parametrize("what", FORGED)
def test_forged_proofs_are_found_by_both_whatever_the_reader_kept(
    what: str, desk: Case, story: tuple[str, list[str], list[int]], tmp_path: Path
) -> None:
    run, seals, _ = story
    evidence.export(desk.store, run, tmp_path / "good.zip", since=seals[1:3])
    folder = unpacked(tmp_path / "good.zip", tmp_path / "bad")
    changed(folder, "earlier.json", FORGED[what])
    remade(folder)
    for kept in ([], [seals[1]], [seals[2]]):
        found = evidence.verify(folder, seals=kept)
        assert (found.ok, found.code) != (True, None)
        assert found.code in ("proof_invalid", "bundle_altered"), found
    with pytest.raises(files.Bad) as caught:
        standalone.Verification(str(folder), [], None).run()
    assert caught.value.code in ("proof_invalid", "bundle_altered")


def test_from_the_command_line_and_without_holdfast(
    desk: Case, story: tuple[str, list[str], list[int]], tmp_path: Path
) -> None:
    run, seals, _ = story
    (tmp_path / "old.txt").write_text(seals[2], "utf-8")
    words = ["evidence", "export", run, "-o", str(tmp_path / "b.zip"), "--store", str(desk.folder / "runs")]
    done = CliRunner().invoke(APP, [*words, "--since", str(tmp_path / "old.txt")])
    assert done.exit_code == 0, done.output
    words = ["evidence", "verify", str(tmp_path / "b.zip"), "--seal", str(tmp_path / "old.txt")]
    done = CliRunner().invoke(APP, [*words, "--key", desk.public])
    assert done.exit_code == 0, done.output
    assert "goes on from" in done.output
    command = [sys.executable, "-I", str(tmp_path / "b.zip"), "--seal", str(tmp_path / "old.txt")]
    told = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (told.returncode, told.stdout.splitlines()[-1]) == (0, "GOOD"), told.stdout + told.stderr
    assert "goes on from the one over" in told.stdout


def test_the_trees_of_both_verifiers_agree_on_every_pair_of_sizes() -> None:
    """Against each other, from leaves, up to a size at which every shape has come by."""

    def root(leaves: list[bytes]) -> bytes:
        if len(leaves) == 1:
            return leaves[0]
        split = 1 << (len(leaves) - 1).bit_length() - 1
        return files.node(root(leaves[:split]), root(leaves[split:]))

    def path(old: int, leaves: list[bytes], *, whole: bool = True) -> list[bytes]:
        if old == len(leaves):
            return [] if whole else [root(leaves)]
        split = 1 << (len(leaves) - 1).bit_length() - 1
        if old <= split:
            return [*path(old, leaves[:split], whole=whole), root(leaves[split:])]
        return [*path(old - split, leaves[split:], whole=False), root(leaves[:split])]

    leaves = [bytes([n]) * 32 for n in range(40)]
    for new in range(1, 40):
        for old in range(1, new + 1):
            one, other = (old, root(leaves[:old])), (new, root(leaves[:new]))
            steps = path(old, leaves[:new])
            assert files.goes_on(one, other, steps), (old, new)
            for at in range(len(steps)):
                assert not files.goes_on(one, other, [*steps[:at], b"\x00" * 32, *steps[at + 1 :]])
            assert not files.goes_on(one, other, [*steps, b"\x00" * 32])
            if old < new:
                assert not files.goes_on(other, one, steps)
