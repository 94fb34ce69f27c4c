"""Runs and workers from the command line, on a program of one's own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pathlib import Path

PROGRAM = """
import holdfast as hf

rt = hf.Runtime("runs", suspend_grace=0.05, replay_grace=0.1)


@rt.tool(effect="write", approval="always")
def pay(cents: int) -> str:
    with open("ledger", "a") as ledger:
        ledger.write(f"{cents}\\n")
    return f"paid {cents}"


@rt.agent(budget={"tool_calls": 5})
async def payer(ctx: hf.Context, cents: int) -> str:
    return await ctx.call(pay, cents=cents)


@rt.agent
async def waiter(ctx: hf.Context) -> str:
    return str(await ctx.signal("go"))


@rt.agent(attempts=1)
async def failer(ctx: hf.Context) -> str:
    if not ctx.state.get("mended"):
        raise ValueError("broken")
    return "fine"


@rt.agent
async def changer(ctx: hf.Context) -> str:
    with open("amount") as amount:
        cents = int(amount.read())
    await ctx.do("book", lambda cents: cents, cents, effect="write")
    return str(await ctx.signal("go"))


@rt.agent(step_timeout=900)
async def sleeper(ctx: hf.Context) -> None:
    await ctx.sleep(3600)


@rt.agent
async def named(ctx: hf.Context, key: str, *, budget: str = "none", arguments: int = 0) -> str:
    return f"{key} {budget} {arguments}"
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "program.py").write_text(PROGRAM)
    return tmp_path


def holdfast(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "HOLDFAST_STORE"}
    command = [sys.executable, "-m", "holdfast", *arguments]
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=60
    )


def told(folder: Path, *arguments: str, code: int = 0) -> Any:
    done = holdfast(folder, *arguments, "--json")
    assert done.returncode == code, done.stderr
    return json.loads(done.stdout)


def test_a_run_is_started_approved_and_finished_by_a_worker(folder: Path) -> None:
    run = told(folder, "runs", "start", "program:rt", "payer", "--input", '{"cents": 7}', "--key", "k")
    assert run["status"] == "pending"
    assert (
        told(folder, "runs", "start", "program:rt", "payer", "--input", '{"cents": 7}', "--key", "k")["id"]
        == run["id"]
    )
    summary = told(folder, "worker", "program:rt", "--until-idle")
    assert (summary["claimed"], summary["waiting"]) == (1, 1)
    shown = holdfast(folder, "runs", "show", run["id"])
    assert "holdfast approvals approve apr_" in shown.stdout
    assert holdfast(folder, "runs", "resume", "program:rt", run["id"]).returncode == 4
    (request,) = told(folder, "approvals")
    told(folder, "approvals", "approve", request["id"], "--by", "dana")
    done = told(folder, "runs", "resume", "program:rt", run["id"])
    assert (done["status"], done["result"]) == ("completed", "paid 7")
    assert (folder / "ledger").read_text() == "7\n"
    assert told(folder, "budget", "show", run["id"])["tool_calls"]["used"] == 1
    free = told(folder, "runs", "start", "program:rt", "waiter")["id"]
    (bound,) = told(folder, "budget")  # of the runs that have one
    assert (bound["run"], bound["budget"]["tool_calls"]["left"]) == (run["id"], 4)
    listed = holdfast(folder, "budget").stdout
    assert (f"{run['id']}  payer  completed  1 of 5" in listed, free in listed) == (True, False)
    told(folder, "runs", "cancel", free, "--by", "dana")
    tailed = holdfast(folder, "runs", "tail", run["id"], "--json").stdout.splitlines()
    assert json.loads(tailed[-1])["kind"] == "run.finished"
    (listed,) = told(folder, "runs", "list", "--status", "completed")
    assert (listed["id"], listed["status"]) == (run["id"], "completed")
    assert [one["id"] for one in told(folder, "runs")] == [free, run["id"]]
    assert told(folder, "metrics")["runs"] == {"cancelled": 1, "completed": 1}
    assert 'holdfast_runs{status="completed"} 1' in holdfast(folder, "metrics", "--prometheus").stdout


def test_how_long_an_attempt_may_take_is_shown(folder: Path) -> None:
    run = told(folder, "runs", "start", "program:rt", "sleeper")
    assert [(step["name"], step["timeout_ms"]) for step in run["steps"]] == [("main", 900_000)]
    assert "main pending (at most 900 s)" in holdfast(folder, "runs", "show", run["id"]).stdout


def test_input_arrives_whole_whatever_its_fields_are_called(folder: Path) -> None:
    given = '{"key": "the lock\'s", "budget": "small", "arguments": 7}'
    start = ("runs", "start", "program:rt", "named", "--input", given, "--key", "the run's")
    run = told(folder, *start, "--run")
    assert (run["status"], run["result"]) == ("completed", "the lock's small 7")
    assert told(folder, *start)["id"] == run["id"]


def test_runs_are_signalled_paused_cancelled_retried_and_forked(folder: Path) -> None:
    run = told(folder, "runs", "start", "program:rt", "waiter", "--run", code=4)["id"]
    assert "holdfast runs signal RUN go" in holdfast(folder, "runs", "show", run).stdout
    assert told(folder, "runs", "pause", run, "--by", "dana", "--reason", "a look")["status"] == "paused"
    assert told(folder, "runs", "unpause", run, "--by", "dana")["status"] == "waiting"
    fork = told(folder, "runs", "fork", run, "--at", "3", "--by", "dana")["id"]
    told(folder, "runs", "signal", run, "go", "--value", '{"n": 1}')
    assert told(folder, "runs", "resume", "program:rt", run)["result"] == "{'n': 1}"
    assert told(folder, "runs", "cancel", fork, "--by", "dana")["status"] == "cancelled"

    failed = told(folder, "runs", "start", "program:rt", "failer", "--run", code=1)
    assert failed["error"] == {"error": "ValueError", "message": "broken", "code": None}
    assert told(folder, "runs", "retry", failed["id"], "--by", "dana")["status"] in ("pending", "running")
    assert holdfast(folder, "runs", "decide", failed["id"], "retry", "--by", "dana").stderr.startswith(
        "nothing_to_decide: "
    )


def test_a_divergence_is_shown_side_by_side_and_forked(folder: Path) -> None:
    (folder / "amount").write_text("1")
    run = told(folder, "runs", "start", "program:rt", "changer", "--run", code=4)["id"]
    (folder / "amount").write_text("2")
    told(folder, "runs", "signal", run, "go")
    parted = told(folder, "runs", "resume", "program:rt", run, code=4)["divergence"]
    (recorded,) = parted["recorded"]
    shown = holdfast(folder, "runs", "show", run).stdout
    assert "divergence (holdfast runs decide RUN retry|accept|fork --by NAME)" in shown
    place = f"book (task, write, lane 0) at record {recorded['seq']}"
    assert [line.split("  ", 1) for line in shown.splitlines()[-3:]] == [
        [f"diverged: {parted['why']}"],
        ["recorded", f" {place} {json.dumps(recorded['arguments'])}"],
        ["attempted", "book (task, write, lane 0)"],
    ]
    fork = told(folder, "runs", "decide", run, "fork", "--by", "dana")
    assert (fork["id"] != run, fork["status"], fork["divergence"]) == (True, "running", None)
    assert told(folder, "runs", "resume", "program:rt", fork["id"], code=4)["waiting_on"][0]["on"] == "signal"
    assert told(folder, "runs", "decide", run, "accept", "--by", "dana")["id"] == run


@pytest.mark.parametrize("told_by", [signal.SIGTERM, signal.SIGINT])
def test_a_worker_ends_in_order_when_it_is_told_to(folder: Path, told_by: signal.Signals) -> None:
    told(folder, "runs", "start", "program:rt", "sleeper")
    command = [sys.executable, "-m", "holdfast", "worker", "program:rt", "--name", "w7"]
    with subprocess.Popen(
        command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as worker:
        assert worker.stderr is not None
        assert "worker w7 works on runs" in worker.stderr.readline()
        while told(folder, "metrics")["waiting"] != {"timer": 1}:
            assert worker.poll() is None
        worker.send_signal(told_by)
        out, _ = worker.communicate(timeout=60)
    assert worker.returncode == 0
    assert "waiting" in out


def test_a_status_that_no_run_has_is_refused_with_those_that_there_are(folder: Path) -> None:
    done = holdfast(folder, "runs", "list", "--status", "wrong\x1b")
    said = " ".join(done.stderr.replace("\u2502", " ").split())
    assert (done.returncode, done.stdout, "\x1b" in done.stderr) == (2, "", False)
    assert "it is one of pending, running, waiting, paused, completed, failed, cancelled" in said


def test_wrong_names_are_said_clearly(folder: Path) -> None:
    for arguments, code, said in (
        (("worker", "nowhere:rt"), 1, "no_such_runtime: "),
        (("worker", "program:pay"), 1, "no_such_runtime: program:pay is no runtime"),
        (("runs", "start", "program:rt", "nobody"), 1, "no_such_agent: "),
        (("runs", "start", "program:rt", "payer", "--input", "[]"), 2, ""),
        (("runs", "start", "program:rt", "payer"), 1, "bad_input: "),
        (("runs", "show", "run_01m7mk77wceaxbrp2tzgn5qqfr"), 1, "no_such_"),
    ):
        done = holdfast(folder, *arguments)
        assert (done.returncode, done.stderr.startswith(said)) == (code, True), (arguments, done.stderr)
