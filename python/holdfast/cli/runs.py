"""Runs and workers from the command line, on users' own modules: ``holdfast worker module:rt``.

A noun alone lists. What only reads opens the store for reading; what runs code imports the module that has
it.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import signal
import sys
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path  # noqa: TC003 (typer reads annotations)
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast import config
from holdfast.cli import output
from holdfast.cli.store import DEFAULT, AsJson, Url, reading, writing
from holdfast.errors import HoldfastError
from holdfast.gateway.outcomes import fix
from holdfast.runtime import Runtime
from holdfast.runtime.budgets import ACCOUNTS
from holdfast.store.door import shown

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.runtime import Run, Summary, Worker

WAITS = 4
STATUSES = ("pending", "running", "waiting", "paused", "completed", "failed", "cancelled")
By = Annotated[str, typer.Option("--by", metavar="NAME", help="Who does it.")]
Why = Annotated[str | None, typer.Option("--reason", help="Why; it stays in the journal.")]
RunId = Annotated[str, typer.Argument(metavar="RUN", help="The id of a run.")]
Module = Annotated[
    str, typer.Argument(metavar="MODULE:RUNTIME", help="Where the runtime is, as in app.agents:rt.")
]


def add_to(app: typer.Typer) -> None:
    """Adds the commands."""
    runs = typer.Typer(help="Runs: list, show, follow, resume, cancel, retry, and so on.")
    runs.callback(invoke_without_command=True)(_runs)
    for name, command in (
        ("list", _list),
        ("show", _show),
        ("tail", _tail),
        ("start", _start),
        ("resume", _resume),
        ("cancel", _cancel),
        ("retry", _retry),
        ("signal", _signal),
        ("pause", _pause),
        ("unpause", _unpause),
        ("release", _release),
        ("decide", _decide),
        ("fork", _fork),
    ):
        runs.command(name)(command)
    app.add_typer(runs, name="runs")
    app.command("worker")(_worker)
    app.command("metrics")(_metrics)
    budget = typer.Typer(help="Budgets of runs.")
    budget.callback(invoke_without_command=True)(_budgets)
    budget.command("show")(_budget)
    budget.command("raise")(_raise)
    app.add_typer(budget, name="budget")


def load(where: str) -> Runtime:
    """The runtime that a module has.

    Raises:
        HoldfastError: ``no_such_runtime``: the module cannot be imported, or has none of that name.
    """
    module, _, name = where.partition(":")
    if os.getcwd() not in sys.path:  # noqa: PTH109 (a path as it is in sys.path)
        sys.path.insert(0, os.getcwd())  # noqa: PTH109
    try:
        found = getattr(importlib.import_module(module), name or "rt")
    except (ImportError, AttributeError, ValueError) as error:
        raise _no_runtime(f"{where}: {error}") from None
    if not isinstance(found, Runtime):
        raise _no_runtime(f"{where} is no runtime but a {type(found).__name__}")
    return found


def _no_runtime(message: str) -> HoldfastError:
    return HoldfastError(message, code="no_such_runtime", fix=fix("no_such_runtime"))


@contextmanager
def looking(url: str) -> Iterator[Runtime]:
    """A runtime over a store that is open for reading."""
    with reading(url) as store:
        yield Runtime(store)


@contextmanager
def _acting(url: str) -> Iterator[Runtime]:
    with writing(url) as store:
        yield Runtime(store)


def when(ms: int) -> str:
    """A time for people."""
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%SZ")


# Looking.


def _runs(context: typer.Context, store: Url = DEFAULT, as_json: AsJson = False) -> None:
    """Runs; alone, list the newest."""
    if context.invoked_subcommand is None:
        _list(store=store, as_json=as_json)


def _list(
    status: Annotated[str | None, typer.Option("--status", help="Only those that are so.")] = None,
    agent: Annotated[str | None, typer.Option("--agent", help="Only of this agent.")] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, max=10_000)] = 100,
    store: Url = DEFAULT,
    as_json: AsJson = False,
) -> None:
    """List runs, the newest first."""
    if status is not None and status not in STATUSES:
        told = f"{status} is no status of a run: it is one of {', '.join(STATUSES)}"
        raise typer.BadParameter(output.visible(told), param_hint="--status")
    with looking(store) as rt:
        found = rt.runs.list(status=status, agent=agent, limit=limit)
    if as_json:
        return output.print_json([asdict(run) for run in found])
    rows = [(run.id, run.agent, run.status, when(run.created_at), run.parent or run.session) for run in found]
    return output.grid(("run", "agent", "status", "since", "of"), rows)


def _facts(run: Run) -> dict[str, Any]:
    return {
        "id": run.id,
        "agent": run.agent,
        "status": run.status,
        "session": run.session,
        "state": run.state,
        "result": run.result,
        "error": None if run.error is None else asdict(run.error),
        "waiting_on": run.waiting_on,
        "steps": run.steps,
        "divergence": run.divergence,
    }


def _print(run: Run, as_json: bool) -> None:
    facts = _facts(run)
    if as_json:
        return output.print_json(facts)
    parted = facts.pop("divergence")
    shown = {name: value for name, value in facts.items() if value not in (None, [], {})}
    shown["steps"] = ", ".join(_step(step) for step in facts["steps"])
    waits = [_wait(wait) for wait in facts["waiting_on"]]
    if waits:
        shown["waiting_on"] = "; ".join(waits)
    output.facts(
        (name, value if isinstance(value, str) else output.short(value)) for name, value in shown.items()
    )
    if parted is not None:
        _side_by_side(parted)
    return None


def _side_by_side(parted: dict[str, Any]) -> None:
    """What was recorded, and what the code does now."""
    output.say(f"diverged: {parted['why']}")
    sides = [("recorded", one, "green") for one in parted["recorded"]]
    if parted["attempted"] is not None:
        sides.append(("attempted", parted["attempted"], "red"))
    for side, call, style in sides:
        told = f"{side:<9}  {call['name']} ({call['kind']}, {call['effect']}, lane {call['lane']})"
        told += f" at record {call['seq']}" if "seq" in call else ""
        told += f" {output.short(call['arguments'])}" if "arguments" in call else ""
        output.say(told, style=style)


def _step(step: dict[str, Any]) -> str:
    told = f"{step['name']} {step['status']}"
    return f"{told} (at most {step['timeout_ms'] / 1000:g} s)" if "timeout_ms" in step else told


HELP = {
    "approval": "holdfast approvals approve {subject} --by NAME",
    "doubt": "holdfast effects",
    "signal": "holdfast runs signal RUN {subject}",
    "divergence": "holdfast runs decide RUN retry|accept|fork --by NAME",
    "package": "holdfast runs decide RUN continue|refuse --by NAME",
    "paused": "holdfast runs unpause RUN --by NAME",
    "interrupted": "holdfast runs release RUN --by NAME",
    "restored": "holdfast runs release RUN --by NAME",
    "budget": "holdfast budget raise RUN --tool-calls N --by NAME",
}


def _wait(wait: dict[str, Any]) -> str:
    told = f"{wait['on']} {wait.get('subject') or ''}".strip()
    if wait["on"] == "timer":
        return f"{told} until {when(wait['until'])}"
    helps = HELP.get(wait["on"])
    return f"{told} ({helps.format(subject=wait.get('subject', ''))})" if helps else told


def _show(run: RunId, store: Url = DEFAULT, as_json: AsJson = False) -> None:
    """Print one run: where it stands, what it came to, what it waits for."""
    with looking(store) as rt:
        _print(rt.runs.get(run), as_json)


def _tail(
    run: RunId,
    after: Annotated[int, typer.Option("--after", help="Only records after this one.")] = 0,
    store: Url = DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Follow a run's records as they come, until it has ended."""
    with looking(store) as rt:
        rt.runs.get(run)
        for record in rt.store.tail(run, after=after):
            if as_json:
                line = {"seq": record.seq, "at": record.at, "kind": record.kind, "body": record.body}
                typer.echo(output.as_json(line))
            else:
                typer.echo(
                    f"{record.seq:>6}  {when(record.at)}  {record.kind:<22}  {output.short(record.body, 100)}"
                )
            sys.stdout.flush()


def _metrics(
    prometheus: Annotated[bool, typer.Option("--prometheus", help="As text for Prometheus.")] = False,
    store: Url = DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Count what is queued, running and waiting, and why."""
    with looking(store) as rt:
        metrics = rt.metrics()
    if prometheus:
        typer.echo(metrics.prometheus(), nl=False)
    elif as_json:
        output.print_json(metrics.as_dict())
    else:
        output.facts(
            (name, value if isinstance(value, int) else output.short(value))
            for name, value in metrics.as_dict().items()
        )


def _budgets(context: typer.Context, store: Url = DEFAULT, as_json: AsJson = False) -> None:
    """Budgets of runs; alone, list those of the newest runs that have one: what was used, of how much."""
    if context.invoked_subcommand is not None:
        return None
    with looking(store) as rt:
        found = [(run, rt.budget(run.id)) for run in rt.runs.list()]
    bound = [(run, told) for run, told in found if any(row["limit"] is not None for row in told.values())]
    if as_json:
        return output.print_json(
            [{"run": run.id, "agent": run.agent, "status": run.status, "budget": told} for run, told in bound]
        )
    rows = [(run.id, run.agent, run.status, *map(_used, told.values())) for run, told in bound]
    return output.grid(("run", "agent", "status", *ACCOUNTS), rows)


def _used(account: dict[str, int | None]) -> str:
    return str(account["used"]) if account["limit"] is None else f"{account['used']} of {account['limit']}"


def _budget(run: RunId, store: Url = DEFAULT, as_json: AsJson = False) -> None:
    """Print a run's budget: limits, what was used, what is left."""
    with looking(store) as rt:
        told = rt.budget(run)
    if as_json:
        return output.print_json(told)
    columns = ("limit", "raised", "used", "reserved", "escrowed", "left")
    return output.grid(
        ("account", *columns), [(name, *(row[c] for c in columns)) for name, row in told.items()]
    )


# Acting.


def _arguments(text: str) -> dict[str, Any]:
    try:
        given = json.loads(text)
    except ValueError:
        given = None
    if not isinstance(given, dict):
        raise typer.BadParameter("the input is a JSON object: the agent's arguments by name")
    return given


def _start(
    module: Module,
    agent: Annotated[str, typer.Argument(metavar="AGENT", help="The agent's name.")],
    given: Annotated[str, typer.Option("--input", metavar="JSON", help="Its arguments, by name.")] = "{}",
    key: Annotated[str | None, typer.Option("--key", help="A run that has it is found instead.")] = None,
    drive: Annotated[bool, typer.Option("--run", help="Run it here, too.")] = False,
    as_json: AsJson = False,
) -> None:
    """Start a run of an agent of yours, for a worker to take, or here with --run."""
    with load(module) as rt:
        run = rt.start_sync(agent, arguments=_arguments(given), key=key)
        if drive:
            run = rt.resume_sync(run)
        _print(run, as_json)
        raise typer.Exit(_code(run, drive))


def _code(run: Run, driven: bool = True) -> int:
    if run.status in ("failed", "cancelled"):
        return output.ERROR
    return WAITS if driven and run.status != "completed" else 0


def _resume(module: Module, run: RunId, as_json: AsJson = False) -> None:
    """Run a run here until it ends (0), fails (1) or waits for someone (4)."""
    with load(module) as rt:
        done = rt.resume_sync(run)
        _print(done, as_json)
        raise typer.Exit(_code(done))


def _after(rt: Runtime, run: str, as_json: bool) -> None:
    _print(rt.runs.get(run), as_json)


def _cancel(run: RunId, by: By, store: Url = DEFAULT, as_json: AsJson = False) -> None:
    """Ask a run to stop; without a worker it ends at once."""
    with _acting(store) as rt:
        rt.cancel(run, by=by)
        _after(rt, run, as_json)


def _retry(run: RunId, by: By, store: Url = DEFAULT, as_json: AsJson = False) -> None:
    """Open a failed run again."""
    with _acting(store) as rt:
        rt.retry(run, by=by)
        _after(rt, run, as_json)


def _signal(
    run: RunId,
    name: Annotated[str, typer.Argument(help="The signal's name.")],
    value: Annotated[str, typer.Option("--value", metavar="JSON", help="What it carries.")] = "null",
    by: Annotated[str, typer.Option("--by", metavar="NAME")] = "holdfast",
    store: Url = DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Send a signal to a run."""
    try:
        told = json.loads(value)
    except ValueError:
        raise typer.BadParameter("a signal's value is JSON") from None
    with _acting(store) as rt:
        rt.signal(run, name, told, by=by)
        _after(rt, run, as_json)


def _pause(run: RunId, by: By, reason: Why = None, store: Url = DEFAULT, as_json: AsJson = False) -> None:
    """Pause a run: nobody claims it, and one that runs stops at its next call."""
    with _acting(store) as rt:
        rt.pause(run, by=by, reason=reason)
        _after(rt, run, as_json)


def _unpause(run: RunId, by: By, reason: Why = None, store: Url = DEFAULT, as_json: AsJson = False) -> None:
    """Let a paused run go on."""
    with _acting(store) as rt:
        rt.unpause(run, by=by, reason=reason)
        _after(rt, run, as_json)


More = Annotated[int | None, typer.Option(min=1, metavar="N", help="So many more.")]


def _raise(
    run: RunId,
    by: By,
    tool_calls: More = None,
    tokens: More = None,
    usd_micros: More = None,
    children: More = None,
    reason: Why = None,
    store: Url = DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Give a run more of what its budget bounds; steps that wait for it go on."""
    amounts = {"tool_calls": tool_calls, "tokens": tokens, "usd_micros": usd_micros, "children": children}
    with _acting(store) as rt:
        rt.raise_budget(run, by=by, reason=reason, **amounts)
        _after(rt, run, as_json)


def _release(run: RunId, by: By, store: Url = DEFAULT, as_json: AsJson = False) -> None:
    """Let a run go on that waits for a person after a restore, an interruption or for its budget."""
    with _acting(store) as rt:
        rt.release(run, by=by)
        _after(rt, run, as_json)


def _decide(
    run: RunId,
    decision: Annotated[str, typer.Argument(help="retry, accept or fork; continue, wait or refuse.")],
    by: By,
    reason: Why = None,
    module: Annotated[
        str | None, typer.Option("--module", metavar="MODULE:RUNTIME", help="Whose package goes on.")
    ] = None,
    store: Url = DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Decide about a run whose code diverged from its journal, or whose package changed.

    After a divergence: retry when the code was fixed, accept when what it no longer does is to be abandoned,
    fork to leave the run as it is and go on in a new one, which is printed. About a package: continue, wait
    or refuse.
    """
    if module is not None:
        with load(module) as rt:
            return _print(rt.decide(run, decision, by=by, reason=reason), as_json)
    if decision == "continue":
        raise typer.BadParameter("to continue under a new package, say which program has it: --module app:rt")
    with _acting(store) as rt:
        return _print(rt.decide(run, decision, by=by, reason=reason), as_json)


def _fork(
    run: RunId,
    at: Annotated[int, typer.Option("--at", min=1, help="The last record that the fork begins with.")],
    by: By,
    reason: Why = None,
    store: Url = DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Make a new run that begins with another's records; what that has done is not done again."""
    with _acting(store) as rt:
        _print(rt.fork(run, at=at, by=by, reason=reason), as_json)


# Workers.


def _worker(
    module: Module,
    concurrency: Annotated[
        int | None, typer.Option("--concurrency", "-c", min=1, help="How many steps at once; 8.")
    ] = None,
    lease: Annotated[
        float | None, typer.Option("--lease", min=0.2, help="Seconds between life and death; 60.")
    ] = None,
    queue: Annotated[list[str] | None, typer.Option("--queue", help="Only these queues.")] = None,
    until_idle: Annotated[bool, typer.Option("--until-idle", help="End when nothing is left to do.")] = False,
    name: Annotated[str | None, typer.Option("--name", help="As it stands in the journal.")] = None,
    own_package: Annotated[
        bool, typer.Option("--own-package", help="Leave runs of other versions of the program to theirs.")
    ] = False,
    drain: Annotated[
        float | None, typer.Option("--drain", min=0, help="Seconds after a signal; then as after a second.")
    ] = None,
    alive: Annotated[
        Path | None, typer.Option("--alive", metavar="FILE", help="Touched when the store has answered.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Run the agents of a program of yours. Start as many on one store as you like.

    SIGTERM and Ctrl-C claim nothing more and let what runs come to its next wait or end; a second one gives
    it back as soon as the tools that are on their way have answered.
    """
    if alive is not None and not alive.parent.is_dir():
        raise typer.BadParameter(f"there is no folder {alive.parent}", param_hint="--alive")
    options: dict[str, Any] = {"alive": alive, "own_package": own_package, "queues": queue or []}
    if name is not None:
        options["name"] = name
    with load(module) as rt:
        concurrency = config.setting("concurrency", concurrency, 8)
        worker = rt.worker(concurrency=concurrency, lease=lease, **options)
        summary = asyncio.run(_serve(rt, worker, until_idle, drain))
    if as_json:
        output.print_json(asdict(summary))
    else:
        output.facts(asdict(summary).items())


async def _serve(rt: Runtime, worker: Worker, until_idle: bool, drain: float | None) -> Summary:
    loop = asyncio.get_running_loop()
    later: list[asyncio.TimerHandle] = []

    def stop() -> None:
        again = worker.stopping
        worker.stop(release=again)
        for timer in later:
            timer.cancel()
        if drain is not None and not again:
            later.append(loop.call_later(drain, stop))

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    place = shown(str(rt.store.url))  # opening it says at once that it cannot be opened
    output.complain(f"worker {worker.name} works on {place}: {', '.join(rt.agent_names())}")
    return await (worker.run_until_idle() if until_idle else worker.serve())
