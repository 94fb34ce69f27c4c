"""Stores that cannot be opened: each is refused with its own code and a word on what to do, nothing is
changed, and the store opens again when the cause is gone.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import pytest
from tests.faults import disks

import holdfast as hf

if TYPE_CHECKING:
    from collections.abc import Callable

    NotRun = Callable[[str], NoReturn]


def tree(folder: Path) -> dict[str, object]:
    """Everything below a folder, byte for byte, except what is made anew by whoever opens a store."""
    found: dict[str, object] = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        empty_log = path.name == "holdfast.db-wal" and path.stat().st_size == 0  # a reader's SQLite leaves it
        if empty_log or any(part in disks.FLEETING for part in path.parts):
            continue
        found[name] = (
            str(path.readlink()) if path.is_symlink() else path.read_bytes() if path.is_file() else None
        )
    return found


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A small closed store."""
    folder = tmp_path / "store"
    with hf.open(folder) as opened:
        run = opened.create_run(agent="a", input={"n": 1})
        opened.append(run, "note.logged", {"text": "one"}, barrier=True)
    return folder


def opens_again(folder: Path) -> None:
    with hf.open(folder) as opened:
        assert opened.verify().ok
        (row,) = opened.sql("SELECT id FROM runs")
        seq = opened.append(row["id"], "note.logged", {"text": "again"}, barrier=True)
        assert len(list(opened.read(row["id"]))) == seq


def change(folder: Path, sql: str, *values: object) -> None:
    with closing(sqlite3.connect(folder / "holdfast.db")) as connection:
        connection.execute(sql, values)
        connection.commit()


def codes(folder: Path) -> tuple[str, str]:
    """What opening for reading and for writing says."""
    return disks.refusal(hf.open, folder, read_only=True), disks.refusal(hf.open, folder)


# Permissions. Root may do anything, so that right is taken away from the child.


def attempts(folder: Path, not_run: NotRun, role: str = "attempts") -> Any:
    command = [sys.executable, "-m", "tests.faults.odd_disks", role, str(folder)]
    if os.geteuid() == 0:
        if shutil.which("setpriv") is None:
            not_run("permissions mean nothing to root, and there is no setpriv to drop its rights")
        rights = "-dac_override,-dac_read_search"
        command = ["setpriv", "--bounding-set", rights, "--inh-caps", rights, *command]
    done = subprocess.run(command, env=disks.environment(), capture_output=True, text=True, check=False)
    return disks.answer(done)


@pytest.mark.parametrize(
    ("name", "mode"),
    [
        (".", 0o500),
        (".", 0o000),
        ("holdfast.db", 0o400),
        ("holdfast.db", 0o000),
        ("holdfast.lock", 0o000),
        ("holdfast.turn", 0o400),
        ("holdfast.mark", 0o400),
        ("processes", 0o500),
    ],
)
def test_wrong_permissions_are_told_as_such(name: str, mode: int, store: Path, not_run: NotRun) -> None:
    before, was = tree(store), (store / name).stat().st_mode
    (store / name).chmod(mode)
    try:
        told = attempts(store, not_run)
    finally:
        (store / name).chmod(was)
    assert told["write"][0] in ("no_permission", "read_only_store"), told
    if mode == 0o000:
        assert told["read"][0] == "no_permission", told
    else:  # a reader may manage with less
        assert told["read"][0] in ("accepted", "no_permission"), told
    assert tree(store) == before
    opens_again(store)


def test_a_folder_that_may_not_be_made_is_told_as_such(tmp_path: Path, not_run: NotRun) -> None:
    (tmp_path / "closed").mkdir(mode=0o500)
    told = attempts(tmp_path / "closed" / "store", not_run)
    assert told["read"][0] == "no_such_store"
    assert told["write"][0] == "no_permission"
    assert list((tmp_path / "closed").iterdir()) == []


def test_blobs_that_may_not_be_written_are_told_as_such(store: Path, not_run: NotRun) -> None:
    (store / "blobs").chmod(0o500)
    assert attempts(store, not_run, "put_blob") == "no_permission"
    (store / "blobs").chmod(0o700)
    assert list((store / "blobs").iterdir()) == []
    opens_again(store)


def test_the_files_of_a_store_are_its_owners_alone(store: Path) -> None:
    shared = {str(p.relative_to(store)): oct(p.stat().st_mode & 0o777) for p in [store, *store.rglob("*")]}
    assert {name: mode for name, mode in shared.items() if mode not in ("0o600", "0o700")} == {}


def test_a_closed_store_holds_no_files(tmp_path: Path) -> None:
    opened = hf.open(tmp_path / "store")
    opened.close()
    held = [path.readlink() for path in Path("/proc/self/fd").iterdir() if path.is_symlink()]
    # Whoever closed it may unmount the disk.
    assert [str(path) for path in held if str(path).startswith(str(tmp_path))] == []


# Things that are no store.


def test_nothing_is_made_by_who_only_reads(tmp_path: Path) -> None:
    for missing in (tmp_path / "none", tmp_path / "deep" / "none"):
        assert disks.refusal(hf.open, missing, read_only=True) == "no_such_store"
        assert disks.refusal(hf.doctor, missing) == "no_such_store"
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "empty").mkdir()
    assert disks.refusal(hf.open, tmp_path / "empty", read_only=True) == "no_such_store"
    assert list((tmp_path / "empty").iterdir()) == []
    hf.open(tmp_path / "empty").close()
    with hf.open(tmp_path / "empty", read_only=True) as opened:
        assert opened.verify().ok


def test_a_plain_file_is_no_store_and_stays_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    assert codes(tmp_path / "file") == ("not_a_store", "not_a_store")
    assert disks.refusal(hf.doctor, tmp_path / "file") == "not_a_store"
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.parametrize("name", ["notes.txt", "main.py", ".git", "holdfast.db.bak"])
def test_a_folder_with_other_things_is_not_made_a_store(name: str, tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / name).write_text("mine")
    before = tree(tmp_path)
    assert codes(tmp_path / "home") == ("not_a_store", "not_a_store")
    assert tree(tmp_path) == before


def other_program(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE mine (x)")
        connection.execute("INSERT INTO mine VALUES ('kept')")
        connection.commit()


def marked_by_another(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA application_id = 77")
        connection.commit()


FOREIGN: dict[str, Callable[[Path], object]] = {
    "text": lambda path: path.write_text("just some text, " * 500),
    "one byte": lambda path: path.write_bytes(b"S"),
    "zeros": lambda path: path.write_bytes(bytes(8192)),
    "another program's database": other_program,
    "a database that another program marked": marked_by_another,
}


@pytest.mark.parametrize("what", FOREIGN)
def test_a_database_that_is_not_ours_is_refused_and_stays_as_it_is(what: str, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    FOREIGN[what](folder / "holdfast.db")
    before = tree(folder)
    assert codes(folder) == ("not_a_store", "not_a_store")
    assert disks.refusal(hf.doctor, folder) == "not_a_store"
    assert tree(folder) == before
    assert [path.name for path in folder.iterdir()] == ["holdfast.db"]


def test_a_folder_in_the_place_of_the_database_is_refused(tmp_path: Path) -> None:
    (tmp_path / "folder" / "holdfast.db").mkdir(parents=True)
    assert codes(tmp_path / "folder") == ("not_a_store", "not_a_store")


@pytest.mark.parametrize(
    "name", ["holdfast.lock", "holdfast.turn", "holdfast.mark", "holdfast.db", "blobs", "processes"]
)
def test_a_link_in_the_place_of_a_file_is_not_followed(name: str, store: Path, tmp_path: Path) -> None:
    away = tmp_path / "elsewhere"
    shutil.move(store / name, away)
    (store / name).symlink_to(away)
    before = tree(tmp_path)
    writing = disks.refusal(hf.open, store)
    reading = disks.refusal(hf.open, store, read_only=True)
    after = tree(tmp_path)
    (store / name).unlink()
    shutil.move(away, store / name)
    assert writing in ("not_a_store", "store_failed", "no_permission"), writing
    assert reading in ("not_a_store", "store_failed", "no_permission"), reading
    assert after == before
    opens_again(store)


def test_a_link_to_the_whole_folder_is_as_good_as_the_folder(store: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(store)
    opens_again(tmp_path / "link")
    opens_again(store)


# Stores of another version.


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["min_writer"], ("accepted", "newer_store")),
        (["min_writer", "min_reader"], ("newer_store", "newer_store")),
    ],
)
def test_a_store_of_a_newer_version_is_refused(
    names: list[str], expected: tuple[str, str], store: Path
) -> None:
    for name in names:
        change(store, "INSERT INTO meta VALUES (?, '99') ON CONFLICT (name) DO UPDATE SET value = '99'", name)
    before = tree(store)
    assert tuple(code.partition(":")[0] for code in codes(store)) == expected
    assert tree(store) == before
    change(store, "DELETE FROM meta WHERE name IN ('min_writer', 'min_reader')")
    opens_again(store)


def test_a_newer_version_whose_change_was_only_an_addition_is_no_hindrance(store: Path) -> None:
    change(store, "INSERT INTO migrations VALUES (99, 'more', 'sha256:00', 1)")
    change(store, "CREATE TABLE more (x)")
    with hf.open(store, read_only=True) as opened:
        assert opened.verify().ok
    opens_again(store)


def test_a_store_that_becomes_newer_under_an_open_handle_takes_no_more(store: Path) -> None:
    with hf.open(store) as opened:
        (row,) = opened.sql("SELECT id FROM runs")
        # Another process migrates it: a second SQLite in this process would take our locks away.
        sql = "INSERT INTO meta VALUES ('min_writer', '99') ON CONFLICT (name) DO UPDATE SET value = '99'"
        script = "import sqlite3, sys; c = sqlite3.connect(sys.argv[1]); c.execute(sys.argv[2]); c.commit()"
        subprocess.run([sys.executable, "-c", script, store / "holdfast.db", sql], check=True)
        append = ("note.logged", {"text": "late"})
        assert disks.refusal(opened.append, row["id"], *append) == "newer_store"
        assert len(list(opened.read(row["id"]))) == 3
        assert disks.refusal(opened.create_run, agent="a") == "newer_store"
    change(store, "DELETE FROM meta WHERE name = 'min_writer'")
    opens_again(store)


def test_a_migration_that_is_not_the_one_that_was_applied_is_refused(store: Path) -> None:
    change(store, "UPDATE migrations SET name = name || '!', checksum = replace(checksum, 'a', 'b')")
    before = tree(store)
    assert codes(store) == ("migration_changed", "migration_changed")
    assert tree(store) == before
    change(store, "UPDATE migrations SET checksum = 'x'")
    assert disks.refusal(hf.open, store) == "migration_changed"


# Poison, backups, filesystems.


def test_a_poisoned_store_is_refused_until_doctor_finds_it_well(store: Path) -> None:
    (store / "POISONED").write_text("a sync failed")
    with hf.open(store, read_only=True) as opened:
        assert opened.verify().ok
    before = tree(store)
    with pytest.raises(hf.StoreError, match="a sync failed") as refused:
        hf.open(store)
    assert refused.value.code == "store_poisoned"
    assert "doctor" in str(refused.value)
    assert tree(store) == before
    findings = hf.doctor(store)
    assert (findings.healthy, findings.poisoned) == (True, "a sync failed")
    opens_again(store)


def test_a_poisoned_and_damaged_store_stays_poisoned(store: Path) -> None:
    (store / "POISONED").write_text("a sync failed")
    change(store, "UPDATE frames SET body = replace(body, 'note', 'nope') WHERE pos = 3")
    findings = hf.doctor(store)
    assert not findings.healthy
    assert findings.advice
    assert disks.refusal(hf.open, store) == "store_poisoned"


def test_a_store_poisoned_by_another_process_takes_no_more(store: Path) -> None:
    with hf.open(store) as opened:
        (row,) = opened.sql("SELECT id FROM runs")
        (store / "POISONED").write_text("elsewhere")
        assert disks.refusal(opened.append, row["id"], "note.logged", {"text": "x"}) == "store_poisoned"
        assert len(list(opened.read(row["id"]))) == 3
    assert hf.doctor(store).healthy
    opens_again(store)


def test_a_backup_is_no_store_and_a_store_is_no_backup(store: Path, tmp_path: Path) -> None:
    backup, target = tmp_path / "backup", tmp_path / "restored"
    with hf.open(store) as opened:
        opened.backup(backup)
        assert disks.refusal(opened.backup, backup) == "target_exists"
    before = tree(backup)
    assert disks.refusal(hf.open, backup) == "not_a_store"
    assert disks.refusal(hf.open, backup, read_only=True) == "not_a_store"
    assert {name: data for name, data in tree(backup).items() if name in before} == before
    assert disks.refusal(hf.restore, store, target) == "bad_backup"
    assert disks.refusal(hf.restore, tmp_path / "none", target) == "bad_backup"
    assert not target.exists()
    hf.restore(backup, target)
    assert disks.refusal(hf.restore, backup, target) == "target_exists"
    (tmp_path / "occupied").mkdir()
    assert disks.refusal(hf.restore, backup, tmp_path / "occupied") == "target_exists"
    opens_again(target)
    opens_again(store)


@pytest.mark.parametrize("how", ["cut", "flipped", "garbage"])
def test_a_damaged_backup_is_not_restored(how: str, store: Path, tmp_path: Path) -> None:
    backup = tmp_path / "backup"
    with hf.open(store) as opened:
        run = opened.create_run(agent="b", input="findme" * 10)
        opened.append(run, "x.test.n", {"data": {}}, blobs={"content": opened.put_blob(b"a blob")})
        opened.backup(backup)
    database = backup / "holdfast.db"
    data = database.read_bytes()
    if how == "cut":
        database.write_bytes(data[: len(data) // 2])
    elif how == "garbage":
        database.write_bytes(b"not a backup at all")
    else:
        (blob,) = (path for path in (backup / "blobs").rglob("*") if path.is_file())
        blob.write_bytes(blob.read_bytes()[:-1] + b"!")
    expected = "blob_forged" if how == "flipped" else "bad_backup"
    assert disks.refusal(hf.restore, backup, tmp_path / "restored") == expected
    assert sorted(path.name for path in tmp_path.iterdir()) == ["backup", "store"]


def test_what_an_interrupted_backup_or_restore_left_is_no_store_and_in_nobodys_way(
    store: Path, tmp_path: Path
) -> None:
    backup, target = tmp_path / "backup", tmp_path / "restored"
    with hf.open(store) as opened:
        for left in (tmp_path / ".backup.new", tmp_path / ".restored.new"):
            (left / "blobs").mkdir(parents=True)
            (left / "holdfast.db").write_bytes((store / "holdfast.db").read_bytes()[:5000])
        opened.backup(backup)
        hf.restore(backup, target)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["backup", "restored", "store"]
    opens_again(target)


def in_namespace(role: str, folder: Path, not_run: NotRun) -> Any:
    command = disks.in_namespace([sys.executable, "-m", "tests.faults.odd_disks", role, str(folder)])
    if command is None:
        not_run(f"{role}: a mount of its own needs unshare and a mount namespace")
    done = subprocess.run(command, env=disks.environment(), capture_output=True, text=True, check=False)
    return disks.answer(done)


def test_a_filesystem_over_a_network_or_in_a_program_is_refused_with_a_word_on_why(
    tmp_path: Path, not_run: NotRun
) -> None:
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        not_run("a FUSE mount needs /dev/fuse")
    told = in_namespace("fuse", tmp_path, not_run)
    assert told["listed"] is True
    for code, message in (
        told["open"],
        told["below"],
    ):  # the mount itself, and a folder that is yet to be made
        assert code == "network_filesystem"
        assert "FUSE" in message
        assert "locks" in message


def test_a_disk_that_is_mounted_for_reading_only_is_told_as_such(tmp_path: Path, not_run: NotRun) -> None:
    assert in_namespace("read_only_mount", tmp_path, not_run) == {
        "make": "read_only_store",
        "open": "read_only_store",
        "backup": "read_only_store",
        "append": "accepted: 3",
        "verify": "True",
    }
