"""The past from the command line: travel, replay, compare, review, attribute.

What only looks opens the store for reading. A check that failed, or a comparison that found something, is
exit code 3.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli import output
from holdfast.cli.runs import Module, RunId, load, looking, when
from holdfast.cli.store import DEFAULT, AsJson, Url
from holdfast.evidence import By, Dimension, Journal, opening, review
from holdfast.runtime import Runtime

if TYPE_CHECKING:
    from holdfast.evidence import Divergence, Frame

SHOWN = 5  # details of a check that people are shown; --json has all


def add_to(app: typer.Typer) -> typer.Typer:
    """Adds the commands; returns those of evidence, for what others add to them."""
    app.command("travel")(_travel)
    app.command("replay")(_replay)
    evidence = typer.Typer(no_args_is_help=True, help="Runs as evidence: export, verify, compare, review.")
    evidence.callback()(lambda: None)
    for name, command in (
        ("diff", _diff),
        ("golden", _golden),
        ("review", _review),
        ("costs", _costs),
        ("failures", _failures),
    ):
        evidence.command(name)(command)
    app.add_typer(evidence, name="evidence")
    return evidence


# Time travel.


def _travel(
    run: RunId,
    at: Annotated[
        int | None, typer.Option("--at", min=1, help="After this record; else frame by frame.")
    ] = None,
    store: Url = DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Print where a run stood after a record, or frame by frame what changed."""
    with looking(store) as rt:
        if at is None:
            return _frames(list(rt.evidence.frames(run)), as_json)
        found = rt.evidence.at(run, at)
    if as_json:
        return output.print_json(found.as_dict())
    output.facts(
        [
            ("record", f"{found.seq} at {when(found.at)}"),
            ("status", found.status),
            ("state", "(erased)" if found.state is None else output.short(found.state)),
            ("costs", output.short(found.costs)),
            ("waits", output.short(list(found.waits))),
            ("approvals", output.short([request["approval"] for request in found.approvals])),
        ]
    )
    rows = [
        (entry.opened, entry.name, entry.effect, entry.phase, entry.outcome, entry.permit_key)
        for entry in found.ledger
    ]
    return output.grid(("opened", "call", "effect", "phase", "outcome", "key"), rows)


def _frames(frames: list[Frame], as_json: bool) -> None:
    if as_json:
        return output.print_json([frame.as_dict() for frame in frames])
    rows = [
        (
            str(frame.first) if frame.first == frame.last else f"{frame.first}-{frame.last}",
            when(frame.at),
            frame.status,
            ", ".join(frame.records),
            None if not frame.patch else output.short(frame.patch, 60),
            "; ".join(f"{change.name} {change.after}" for change in frame.ledger),
        )
        for frame in frames
    ]
    return output.grid(("records", "at", "status", "kinds", "state", "ledger"), rows)


# Replay.


def _replay(
    module: Module,
    run: RunId,
    pure: Annotated[bool, typer.Option("--pure", help="Run bodies of tools that declare no effect.")] = False,
    as_json: AsJson = False,
) -> None:
    """Run a run's code again against what was recorded: 0 if it came to the same, 3 if not. Nothing acts."""
    with load(module) as rt:
        safety, replay = rt.evidence.replay_safety(run), rt.evidence.replay(run, pure=pure)
    if as_json:
        output.print_json({**replay.as_dict(), "unsafe": [asdict(cause) for cause in safety.causes]})
    else:
        rows = [(step.name, step.verdict, step.why) for step in replay.steps]
        output.grid(("step", "replay", "why"), rows)
        for cause in safety.causes:
            output.say(f"unsafe: {cause}", style="yellow")
        if replay.divergence is not None:
            _side_by_side(replay.divergence)
    raise typer.Exit(0 if replay.same else output.CHECK_FAILED)


def _side_by_side(divergence: Divergence) -> None:
    for recorded in divergence.recorded:
        output.say(f"recorded   {recorded}", style="red")
    if divergence.attempted is not None:
        output.say(f"attempted  {divergence.attempted}", style="red")


# Comparing.

Side = Annotated[str, typer.Argument(help="A run, the bundle of one, or the file of a golden one.")]


def _side(given: str) -> str | bytes | Journal:
    path = Path(given)
    if path.is_dir() or path.suffix == ".zip":
        return opening.journal(path)[0]
    return path.read_bytes() if path.is_file() else given


def _dimensions(given: str) -> set[Dimension]:
    if given == "all":
        return set(Dimension)
    try:
        return {Dimension(name.strip()) for name in given.split(",") if name.strip()}
    except ValueError as error:
        known = ", ".join(Dimension)
        raise typer.BadParameter(f"{error}: one of {known}, or all", param_hint="--fail-on") from None


def _diff(
    one: Side,
    other: Side,
    fail_on: Annotated[str, typer.Option("--fail-on", help="Dimensions, by commas, or 'all'.")] = "all",
    store: Url = DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Print what differs between two runs, by dimension: 3 if it is one of --fail-on."""
    wanted = _dimensions(fail_on)
    sides = [_side(one), _side(other)]
    if not any(isinstance(side, str) for side in sides):
        found = Runtime("memory:").evidence.diff(*sides)
    else:
        with looking(store) as rt:
            found = rt.evidence.diff(*sides)
    if as_json:
        output.print_json([asdict(difference) for difference in found.differences])
    elif found.same:
        output.say("no difference", style="green")
    else:
        rows = [
            (
                f"{difference.dimension}{difference.where}",
                output.short(difference.one),
                output.short(difference.other),
            )
            for difference in found.differences
        ]
        output.grid(("where", "one", "other"), rows)
    raise typer.Exit(output.CHECK_FAILED if found.dimensions & wanted else 0)


def _golden(
    run: RunId,
    out: Annotated[Path | None, typer.Option("--out", help="Where to keep it; else it is printed.")] = None,
    store: Url = DEFAULT,
) -> None:
    """Print a run as a small document without ids and times, to compare later runs with."""
    with looking(store) as rt:
        golden = rt.evidence.golden(run)
    if out is None:
        typer.echo(output.as_json(json.loads(golden), indent=2))
    else:
        out.write_bytes(golden)


# Reviewing.


def _review(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run, or the bundle of one.")],
    max_usd: Annotated[float | None, typer.Option("--max-usd", min=0, help="What it may have cost.")] = None,
    store: Url = DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Check a run: 3 if a check fails that is a blocker."""
    if Path(run).exists():
        journal, sealed = opening.journal(run)
        told = review(journal, max_usd=max_usd, sealed=sealed)
    else:
        with looking(store) as rt:
            told = rt.evidence.review(run, max_usd=max_usd)
    if as_json:
        output.print_json({"run": run, "ok": told.ok, "findings": [asdict(one) for one in told.findings]})
    else:
        rows = [
            (
                finding.check,
                "passed" if finding.passed else finding.severity,
                ", ".join(map(str, finding.seqs)),
                "; ".join(finding.details[:SHOWN]),
            )
            for finding in told.findings
        ]
        output.grid(("check", "told", "records", "what"), rows)
    raise typer.Exit(0 if told.ok else output.CHECK_FAILED)


# Attributing.


def _costs(
    by: Annotated[By, typer.Option("--by", help="What they are added up by.")] = By.AGENT,
    run: Annotated[list[str] | None, typer.Option("--run", help="Only these runs.")] = None,
    store: Url = DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Print what runs cost, the dearest first."""
    with looking(store) as rt:
        told = rt.evidence.costs(by, runs=run or None)
    if as_json:
        return output.print_json([asdict(one) for one in told])
    rows = [(one.name, f"{one.usd:.6f}", one.tokens, one.calls, one.runs) for one in told]
    return output.grid((by, "usd", "tokens", "calls", "runs"), rows)


def _failures(
    run: Annotated[list[str] | None, typer.Option("--run", help="Only these runs.")] = None,
    store: Url = DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Print how runs failed, by a signature that the same bug has in every run."""
    with looking(store) as rt:
        told = rt.evidence.failures(runs=run or None)
    if as_json:
        return output.print_json([asdict(one) for one in told])
    rows = [
        (
            one.signature,
            one.count,
            f"{one.owner} {one.name}",
            f"{one.error} {one.message}",
            one.recovery,
            one.to_do,
        )
        for one in told
    ]
    return output.grid(("signature", "times", "whose", "what", "recovery", "to do"), rows)
