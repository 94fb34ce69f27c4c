"""The store's commands as people and programs use them: what they print, exit codes, hostile content.

Every command runs as its own process on a real folder. Damage is done with Python's sqlite3 to stores
that nobody has open.
"""

from __future__ import annotations

import contextlib
import json
import os
import pty
import shutil
import sqlite3
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

import holdfast as hf
from holdfast.store.clock import FakeClock

if TYPE_CHECKING:
    from pathlib import Path

HOSTILE = (
    "\x1b[2J\x1b]0;owned\x07[bold]b[/bold] \u202eevil\u2066 \u200b\u3164\U000e0041\x7f\x9b31m\r\n:smile:"
)
"""Clears the screen, names the window, is rich markup, turns text around, hides, has C1 codes."""
NAME = "[bold]b[/bold]\u202eevil\u200b\u3164\x9b31m"
"""What a name may hold of it."""
PRINTABLE = {chr(code) for code in range(0x20, 0x7F)} | {"\n"}


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "holdfast", *arguments]


def environment(**more: str) -> dict[str, str]:
    unset = ("HOLDFAST_STORE", "NO_COLOR", "FORCE_COLOR", "COLUMNS")
    kept = {name: value for name, value in os.environ.items() if name not in unset}
    return {**kept, "TERM": "xterm-256color", **more}


def holdfast(*arguments: str, cwd: Path | None = None, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*arguments),
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        stdin=subprocess.DEVNULL,
        cwd=cwd,
        env=environment(**env),
    )


def on_terminal(*arguments: str, fds: str = "012", typed: str = "", **env: str) -> tuple[int, str]:
    """Runs a command with some of its descriptors on a terminal: the exit code, and what stood there."""
    master, slave = pty.openpty()
    other = subprocess.DEVNULL
    stdin, stdout, stderr = (slave if fd in fds else other for fd in "012")
    process = subprocess.Popen(
        command(*arguments), stdin=stdin, stdout=stdout, stderr=stderr, env=environment(**env)
    )
    os.close(slave)
    os.write(master, typed.encode())
    seen = b""
    with contextlib.suppress(OSError):  # a terminal that nobody has open any more answers with EIO
        while read := os.read(master, 65536):
            seen += read
    os.close(master)
    return process.wait(timeout=60), seen.decode()


def told(done: subprocess.CompletedProcess[str]) -> Any:
    """The JSON that a command printed."""
    return json.loads(done.stdout)


def filled(folder: Path) -> str:
    """A closed store with one completed run of 7 records: 7 contents, of which the last two are one."""
    with hf.open(folder) as store:
        run = store.create_run(agent="import", input={"file": "a.csv"})
        store.append(run, "note.logged", {"text": "first"})
        store.append(run, "note.logged", {"text": "second"})
        claim = store.claim(worker="w1")
        assert claim is not None
        store.finish(claim, result={"rows": 3})
    return run


def damage(folder: Path, statement: str, *parameters: object) -> None:
    """Changes a closed store behind our back."""
    connection = sqlite3.connect(folder / "holdfast.db")
    with connection:
        changed = connection.execute(statement, parameters).rowcount
    connection.close()
    assert changed == 1


def test_verify_says_what_it_found_and_what_that_shows(tmp_path: Path) -> None:
    run = filled(tmp_path / "s")
    url = ("--store", str(tmp_path / "s"))
    done = holdfast("verify", *url)
    assert (done.returncode, done.stderr) == (0, "")
    lines = dict(line.split(maxsplit=1) for line in done.stdout.splitlines()[:8])
    assert lines == {"streams": "2", "frames": "6", "records": "8", "contents": "7", "blobs": "0"} | {
        "erased": "0",
        "problems": "0",
        "sealed": "0",
    }
    assert done.stdout.splitlines()[8] == "verified"
    assert "what this shows: every record follows from the one before" in done.stdout

    report = told(holdfast("verify", run, "--json", *url))
    assert (report["ok"], report["records"], report["problems"], report["first_bad"]) == (True, 7, [], None)
    kept = holdfast("verify", "--head", f"{run}={report['head']}", *url)
    assert kept.returncode == 0
    assert "the streams whose heads were kept elsewhere" in kept.stdout

    other = "sha256:" + "0" * 64
    moved = holdfast("verify", run, "--head", f"{run}={other}", "--json", *url)
    assert moved.returncode == 3
    assert told(moved)["first_bad"]["code"] == "head_mismatch"
    assert f"head_mismatch in {run} at record 8: " in moved.stderr
    assert holdfast("verify", "--head", "nothing", *url).returncode == 2


FLIPS = [
    ("body", '"level":"info"', '"level":"infp"', "record_unreadable"),
    ("body", '"bytes":8', '"bytes":9', "store_corrupt"),
    ("contents", '"second"', '"sebond"', "content_forged"),
]


@pytest.mark.parametrize(("column", "found", "flipped", "code"), FLIPS)
def test_one_flipped_byte_is_named_with_its_stream_and_seq(
    tmp_path: Path, column: str, found: str, flipped: str, code: str
) -> None:
    run = filled(tmp_path / "s")
    damage(
        tmp_path / "s",
        f"UPDATE frames SET {column} = replace({column}, ?, ?) WHERE first_seq = 4",
        found,
        flipped,
    )
    done = holdfast("verify", "--store", str(tmp_path / "s"))
    assert done.returncode == 3
    assert "NOT VERIFIED" in done.stdout
    assert "what this shows" not in done.stdout, "a bad store shows nothing"
    assert done.stderr.startswith(f"first bad: {code} in {run} at record 4: ")
    as_json = holdfast("verify", "--json", "--store", str(tmp_path / "s"))
    first = told(as_json)["first_bad"]
    assert (as_json.returncode, first["code"], first["stream"], first["seq"]) == (3, code, run, 4)


def test_damage_that_opening_finds_is_a_failed_check_too(tmp_path: Path) -> None:
    run = filled(tmp_path / "s")
    damage(tmp_path / "s", "UPDATE frames SET body = replace(body, 'info', 'infp') WHERE first_seq = 4")
    refused = holdfast("forget", run, "--by", "dana", "--yes", "--store", str(tmp_path / "s"))
    assert (refused.returncode, refused.stdout) == (3, "")
    assert refused.stderr.startswith(f"store_corrupt: damaged: frame 4 of {run}: ")


def test_doctor_heals_a_poisoned_folder_and_only_a_well_one(tmp_path: Path) -> None:
    folder, url = tmp_path / "s", ("--store", str(tmp_path / "s"))
    run = filled(folder)
    with hf.open(folder) as live:
        (folder / "POISONED").write_text("a sync failed")
        with pytest.raises(hf.StoreError) as caught:
            live.append(run, "note.logged", {"text": "another process poisoned it"})
    assert caught.value.code == "store_poisoned"
    refused = holdfast("gc", *url)
    assert (refused.returncode, refused.stdout) == (1, "")
    assert refused.stderr.startswith("store_poisoned: the store takes nothing more: a sync failed. ")
    assert holdfast("verify", *url).returncode == 0, "reading goes on"

    done = holdfast("doctor", *url)
    assert done.returncode == 0
    assert "poisoned: a sync failed" in done.stdout
    assert "the mark is lifted" in done.stdout
    assert done.stdout.splitlines()[-1] == "healthy"
    with hf.open(folder) as store:
        store.append(run, "note.logged", {"text": "well again"})

    (folder / "POISONED").write_text("a sync failed")
    damage(folder, "UPDATE frames SET body = replace(body, 'info', 'infp') WHERE first_seq = 4")
    ill = holdfast("doctor", "--json", *url)
    findings = told(ill)
    assert (ill.returncode, findings["healthy"], findings["poisoned"]) == (3, False, "a sync failed")
    assert findings["report"]["first_bad"]["seq"] == 4
    assert findings["advice"] == ["The journal or its files are damaged: restore a backup into a new folder."]
    assert (folder / "POISONED").exists()


def test_doctor_makes_rows_anew_when_asked_to(tmp_path: Path) -> None:
    folder, url = tmp_path / "s", ("--store", str(tmp_path / "s"))
    filled(folder)
    damage(folder, "UPDATE runs SET status = 'failed'")
    found = holdfast("verify", *url)
    assert found.returncode == 3
    assert "rows_differ" in found.stderr
    looked = holdfast("doctor", *url)
    assert (looked.returncode, looked.stdout.splitlines()[-1]) == (3, "NOT HEALTHY")
    assert "make them anew with --rebuild" in looked.stdout
    rebuilt = holdfast("doctor", "--rebuild", *url)
    assert rebuilt.returncode == 0
    assert "rebuilt: the rows of 2 streams" in rebuilt.stdout
    assert holdfast("verify", *url).returncode == 0


def test_doctor_goes_on_without_a_lost_end_only_when_told_to(tmp_path: Path) -> None:
    folder, older = tmp_path / "s", tmp_path / "older"
    run = filled(folder)
    shutil.copytree(folder, older)
    with hf.open(folder) as store:
        store.append(run, "note.logged", {"text": "durable"}, barrier=True)
    shutil.copy(folder / "holdfast.mark", older / "holdfast.mark")  # knows of a frame that is not there
    url = ("--store", str(older))
    refused = holdfast("gc", *url)
    assert refused.returncode == 3
    assert refused.stderr.startswith("store_truncated: the journal ends at position 6, but position 7")
    looked = holdfast("doctor", *url)
    assert looked.returncode == 3
    assert "truncated: it ends at frame 6, and frame 7 was durable" in looked.stdout
    assert holdfast("doctor", "--accept-loss", *url).returncode == 0
    with hf.open(older) as store:
        assert store.append(run, "note.logged", {"text": "goes on"}) == 8


def test_tail_prints_one_line_per_record(tmp_path: Path) -> None:
    clock = FakeClock()
    with hf.open(tmp_path / "s", clock=clock) as store:
        run = store.create_run(agent="import", by="dana")
        clock.advance(seconds=1.5)
        store.append(run, "note.logged", {"text": "caf\u00e9 " + "x" * 300})
        blob = store.put_blob(b"\x00\xff", media="image/png")
        store.append(run, "x.acme.scan", {"data": {}}, blobs={"content": blob})
    url = ("--store", str(tmp_path / "s"))
    done = holdfast("journal", "tail", run, *url)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert [line.split("  ")[:4] for line in lines] == [
        ["2025-11-16T00:00:00.000Z", "1", "run.created", "human:dana"],
        ["2025-11-16T00:00:00.000Z", "2", "step.created", "human:dana"],
        ["2025-11-16T00:00:01.500Z", "3", "note.logged", "system:holdfast"],
        ["2025-11-16T00:00:01.500Z", "4", "x.acme.scan", "system:holdfast"],
    ]
    assert "caf\u00e9 xxx" in lines[2]
    assert lines[2].endswith("xxx...")

    as_json = holdfast("journal", "tail", run, "--after", "2", "--json", *url)
    records = [json.loads(line) for line in as_json.stdout.splitlines()]
    with hf.open(tmp_path / "s", read_only=True) as store:
        read = list(store.read(run, after=2))
    assert [record["hash"] for record in records] == [record.hash for record in read]
    assert [record["body"] for record in records] == [record.body for record in read]
    assert records[0]["value"] == read[0].value
    assert records[1]["value"]["content"] == "00ff"
    assert [record["erased"] for record in records] == [False, False]


def test_hostile_content_cannot_play_with_the_terminal(tmp_path: Path) -> None:
    with hf.open(tmp_path / "s") as store:
        run = store.create_run(agent=NAME, by=NAME, labels={HOSTILE: HOSTILE})
        store.append(run, "note.logged", {"text": HOSTILE}, by=NAME)
        store.append(run, "x.acme.note", {"data": {HOSTILE: HOSTILE}, "content": {HOSTILE: [HOSTILE]}})
    url = ("--store", str(tmp_path / "s"))
    commands = (
        ("journal", "tail", run),
        ("journal", "tail", run, "--json"),
        ("sql", 'SELECT agent, labels, agent AS "[red]\x1b[2J" FROM runs'),
        ("sql", 'SELECT agent, labels, agent AS "[red]\x1b[2J" FROM runs', "--json"),
        ("verify", "\x1b[2J" + run),
        ("verify", "--store", str(tmp_path / "\x1b[2J\u202e[bold]")),
    )
    for arguments in commands:
        done = holdfast(*arguments, *(() if "--store" in arguments else url), NO_COLOR="1")
        assert set(done.stdout + done.stderr) <= PRINTABLE, arguments
        assert "Traceback" not in done.stderr
    tail = holdfast("journal", "tail", run, *url).stdout
    seen = (
        r"\u001b[2J\u001b]0;owned\u0007[bold]b[/bold] \u202eevil\u2066 \u200b\u3164\udb40\udc41\u007f\u009b"
    )
    line = tail.splitlines()[2]
    assert seen in line, "markup is text, and what is invisible is shown"
    assert r"  human:[bold]b[/bold]\u202eevil\u200b\u3164\u009b31m  " in line
    assert ":smile:" in tail
    head, row = holdfast(*commands[2], *url).stdout.splitlines()
    assert head.split() == ["agent", "labels", r"[red]\u001b[2J"]
    assert row.count(r"[bold]b[/bold]\u202eevil\u200b\u3164\u009b31m") == 2
    rows = told(holdfast(*commands[3], *url))
    assert rows[0]["agent"] == NAME, "for programs it is what it is"


def test_tail_follows_until_the_run_ends(tmp_path: Path) -> None:
    with hf.open(tmp_path / "s") as store:
        run = store.create_run(agent="import")
    following = subprocess.Popen(
        command("journal", "tail", run, "--follow", "--json", "--store", str(tmp_path / "s")),
        stdout=subprocess.PIPE,
        text=True,
        env=environment(),
    )
    assert following.stdout is not None
    seen = [json.loads(following.stdout.readline()) for _ in range(2)]  # it follows
    work = (
        "import holdfast, sys\n"
        "with holdfast.open(sys.argv[1]) as store:\n"
        "    store.append(sys.argv[2], 'note.logged', {'text': 'from elsewhere'})\n"
        "    store.finish(store.claim(worker='w1'), result=1)\n"
    )
    subprocess.run([sys.executable, "-c", work, str(tmp_path / "s"), run], check=True, timeout=60)
    rest, _ = following.communicate(timeout=60)
    seen += [json.loads(line) for line in rest.splitlines()]
    assert following.returncode == 0
    assert [(record["seq"], record["kind"]) for record in seen] == [
        (1, "run.created"),
        (2, "step.created"),
        (3, "note.logged"),
        (4, "step.claimed"),
        (5, "step.completed"),
        (6, "run.finished"),
    ]


def test_a_reader_that_goes_away_is_no_traceback(tmp_path: Path) -> None:
    with hf.open(tmp_path / "s") as store:
        run = store.create_run(agent="import")
        store.append_many(run, [("note.logged", {"text": "x" * 100})] * 3000)
    reading = subprocess.Popen(
        command("journal", "tail", run, "--store", str(tmp_path / "s")),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
    )
    assert reading.stdout is not None
    assert reading.stderr is not None
    assert "run.created" in reading.stdout.readline()
    reading.stdout.close()
    assert "Traceback" not in reading.stderr.read()
    assert reading.wait(timeout=60) == 1
    reading.stderr.close()


def test_backup_and_restore_start_a_new_epoch(tmp_path: Path) -> None:
    folder, url = tmp_path / "s", ("--store", str(tmp_path / "s"))
    filled(folder)
    with hf.open(folder) as store:
        waiting = store.create_run(agent="import")
        made = holdfast("backup", str(tmp_path / "b"), "--json", *url)  # while it is open elsewhere
    assert made.returncode == 0
    assert told(made) == {"store": store.id, "epoch": 1, "pos": 7, "blobs": 0}
    again = holdfast("backup", str(tmp_path / "b"), *url)
    assert (again.returncode, again.stderr.split(":")[0]) == (1, "target_exists")

    restored = holdfast("restore", str(tmp_path / "b"), str(tmp_path / "r"))
    assert restored.returncode == 0
    assert [line.split()[:2] for line in restored.stdout.splitlines()[:3]] == [
        ["epoch", "2"],
        ["store", store.id],
        ["waiting", "1"],
    ]
    with hf.open(tmp_path / "r") as copy:
        assert copy.state(waiting)["status"] == "waiting"
        assert copy.verify().ok
    wrong = holdfast("restore", str(folder), str(tmp_path / "r2"), "--json")
    assert (wrong.returncode, wrong.stderr.split(":")[0]) == (1, "bad_backup")
    assert not (tmp_path / "r2").exists()
    opened = holdfast("stats", "--store", str(tmp_path / "b"))
    assert (opened.returncode, opened.stderr.split(":")[0]) == (1, "not_a_store")


def test_gc_removes_what_nothing_refers_to(tmp_path: Path) -> None:
    url = ("--store", str(tmp_path / "s"))
    with hf.open(tmp_path / "s") as store:
        run = store.create_run(agent="import")
        kept = store.put_blob(b"kept")
        store.append(run, "x.acme.scan", {"data": {}}, blobs={"content": kept})
        store.put_blob(b"left over")
    young = told(holdfast("gc", "--json", *url))
    assert young == {"blobs": 0, "bytes": 0, "dry_run": False}
    dry = told(holdfast("gc", "--older-than", "0", "--dry-run", "--json", *url))
    assert (dry["blobs"], dry["dry_run"]) == (1, True)
    assert holdfast("gc", "--older-than", "0", *url).stdout == f"removed 1 blobs of {dry['bytes']} bytes\n"
    assert told(holdfast("gc", "--older-than", "0", "--json", *url))["blobs"] == 0
    with hf.open(tmp_path / "s", read_only=True) as store:
        assert store.get_blob(kept) == b"kept"
        assert store.verify().ok
    for wrong in ("nan", "-1", "inf", "soon"):
        assert holdfast("gc", "--older-than", wrong, *url).returncode == 2


def test_forget_asks_first_and_leaves_a_journal_that_verifies(tmp_path: Path) -> None:
    url = ("--store", str(tmp_path / "s"))
    run = filled(tmp_path / "s")
    asked = ("forget", run, "--by", "dana", *url)
    nobody = holdfast(*asked)
    assert (nobody.returncode, nobody.stdout) == (2, "")
    assert nobody.stderr.startswith("confirmation_needed: ")
    code, seen = on_terminal(*asked, typed="n\n")
    assert (code, f"Erase every content of {run} for good? [y/N]" in seen) == (1, True)
    assert "first" in holdfast("journal", "tail", run, *url).stdout, "nothing is gone yet"

    code, seen = on_terminal(*asked, "--reason", "she asked", typed="y\n")
    assert (code, f"erased 6 contents of {run}" in seen) == (0, True)
    assert told(holdfast(*asked, "--yes", "--json")) == {"erased": 0, "run": run}
    tail = holdfast("journal", "tail", run, *url).stdout
    assert '{"level": "info", "text": "(erased)"}' in tail
    assert "first" not in tail
    lines = holdfast("journal", "tail", run, "--json", *url).stdout.splitlines()
    records = [json.loads(line) for line in lines]
    assert [(note["erased"], note["value"]["text"]) for note in records[2:4]] == [(True, "(erased)")] * 2
    last = records[-1]
    assert (last["kind"], last["body"]["reason"], last["by"]["id"]) == ("content.erased", "she asked", "dana")
    audited = told(holdfast("verify", "--json", *url))
    assert (audited["ok"], audited["contents"], audited["erased"]) == (True, 0, 6)


def test_an_open_run_is_not_forgotten(tmp_path: Path) -> None:
    with hf.open(tmp_path / "s") as store:
        run = store.create_run(agent="import")
    refused = holdfast("forget", run, "--by", "dana", "--yes", "--store", str(tmp_path / "s"))
    assert refused.returncode == 1
    assert refused.stderr.startswith("run_open: the run is pending, and an open run needs its contents. ")


def test_sql_reads_and_nothing_else(tmp_path: Path) -> None:
    run = filled(tmp_path / "s")
    url = ("--store", str(tmp_path / "s"))
    table = holdfast("sql", "SELECT id, last_seq FROM streams ORDER BY key; ", *url)
    assert (table.returncode, table.stderr) == (0, "")
    assert [line.split() for line in table.stdout.splitlines()] == [
        ["id", "last_seq"],
        ["store", "1"],
        [run, "7"],
    ]
    query = "SELECT x'00ff' AS b, 9e999 AS far, NULL AS none, 1 AS a, 2 AS a -- and more"
    rows = told(holdfast("sql", query, "--json", *url))
    assert rows == [{"b": "00ff", "far": "inf", "none": None, "a": 1, "a:1": 2}]
    cut = holdfast(
        "sql", "WITH k AS (SELECT kind FROM events) SELECT * FROM k", "--limit", "2", "--json", *url
    )
    assert (cut.returncode, len(told(cut))) == (0, 2)
    assert cut.stderr == "there are more than 2 rows: ask for them with --limit\n"
    whole = holdfast("sql", "SELECT kind FROM events", "--limit", "8", "--json", *url)
    assert (len(told(whole)), whole.stderr) == (8, "")
    assert holdfast("sql", "SELECT 1 WHERE 0", *url).stdout == ""
    for writing in ("DELETE FROM frames", "WITH a AS (SELECT 1) DELETE FROM frames", "SELECT 1; SELECT 2"):
        refused = holdfast("sql", writing, *url)
        assert (refused.returncode, refused.stderr.split(":")[0]) == (1, "bad_sql")


def test_stats_and_migrations_are_told(tmp_path: Path) -> None:
    filled(tmp_path / "s")
    url = ("--store", str(tmp_path / "s"))
    stats = told(holdfast("stats", "--json", *url))
    assert (stats["frames"], stats["streams"], stats["runs"]) == (6, 2, {"completed": 1})
    shown = dict(line.split(maxsplit=1) for line in holdfast("stats", *url).stdout.splitlines())
    assert (shown["frames"], shown["store"], shown["runs"]) == ("6", stats["store"], '{"completed": 1}')
    journal = {"number": 1, "name": "journal", "additive": True, "applied": True, "older_processes": 0}
    assert told(holdfast("migrate", "--plan", "--json", *url))[0] == journal
    for arguments in (("migrate", "--plan"), ("migrate",)):
        assert "journal  applied" in holdfast(*arguments, *url).stdout


def test_reading_commands_work_beside_a_live_store_and_leave_no_trace(tmp_path: Path) -> None:
    folder = tmp_path / "s"
    with hf.open(folder) as store:
        run = store.create_run(agent="import")
        claim = store.claim(worker="w1")
        assert claim is not None
        entered = (folder / "processes").stat().st_mtime_ns  # who writes puts a name in here
        for arguments in (("verify",), ("stats",), ("sql", "SELECT 1"), ("journal", "tail", run)):
            assert holdfast(*arguments, "--store", str(folder)).returncode == 0
        assert (folder / "processes").stat().st_mtime_ns == entered
        store.finish(claim, result=None)


def test_no_command_makes_a_store_where_there_is_none(tmp_path: Path) -> None:
    commands = [
        ("verify",),
        ("doctor",),
        ("journal", "tail", "store"),
        ("backup", "b"),
        ("gc",),
        ("forget", "run_01m7k5f913effvtsjs4r0x90ry", "--by", "dana", "--yes"),
        ("migrate",),
        ("migrate", "--plan"),
        ("sql", "SELECT 1"),
        ("stats",),
    ]
    for arguments in commands:
        done = holdfast(*arguments, cwd=tmp_path)
        assert (done.returncode, done.stdout) == (1, ""), arguments
        assert done.stderr.startswith("no_such_store: there is no store in ./runs. "), arguments
        assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []
    elsewhere = holdfast("doctor", "--store", "memory:")
    assert (elsewhere.returncode, elsewhere.stderr.split(":")[0]) == (1, "bad_url")
    secret = holdfast("stats", "--store", "mysql://dana:hunter2@db/x")
    assert (secret.returncode, secret.stderr.split(":")[0]) == (1, "bad_url")
    assert "hunter2" not in secret.stderr


def test_the_store_is_named_by_option_environment_or_habit(tmp_path: Path) -> None:
    ids = {}
    for name in ("runs", "other", "third"):
        with hf.open(tmp_path / name) as store:
            ids[name] = store.id

    def named(*arguments: str, **env: str) -> str:
        return str(told(holdfast("stats", "--json", *arguments, cwd=tmp_path, **env))["store"])

    assert named() == ids["runs"]
    assert named(HOLDFAST_STORE="other") == ids["other"]
    assert named("--store", "sqlite:///third", HOLDFAST_STORE="other") == ids["third"]
    doctor = holdfast("doctor", "--json", "--store", "sqlite:///third", cwd=tmp_path)
    assert told(doctor)["stats"]["store"] == ids["third"]


def test_colours_are_for_terminals_that_want_them(tmp_path: Path) -> None:
    filled(tmp_path / "s")
    arguments = ("verify", "--store", str(tmp_path / "s"))
    code, seen = on_terminal(*arguments, fds="1")
    assert (code, "\x1b[32mverified" in seen) == (0, True)
    code, seen = on_terminal(*arguments, fds="1", NO_COLOR="1")
    assert (code, "\x1b" in seen, "verified" in seen) == (0, False, True)
    assert "\x1b" not in holdfast(*arguments).stdout


def test_a_bar_is_shown_only_when_a_person_watches(tmp_path: Path) -> None:
    filled(tmp_path / "s")
    code, seen = on_terminal("verify", "--store", str(tmp_path / "s"), fds="2")
    assert (code, "auditing" in seen, "6 of 6 frames" in seen) == (0, True, True)
    assert holdfast("verify", "--store", str(tmp_path / "s")).stderr == ""
