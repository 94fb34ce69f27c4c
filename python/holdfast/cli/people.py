"""What people decide: approvals, effects in doubt, the active policy. A noun alone lists.

What is shown of a request is what the decision is bound to, and nothing that an agent wrote about it.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast import _core
from holdfast.cli import output
from holdfast.cli.store import DEFAULT, AsJson, Url, reading, writing
from holdfast.gateway import Approvals, Capabilities, Effects, ForSession, Grants, Policy
from holdfast.store.commands import human

if TYPE_CHECKING:
    from holdfast.gateway import Capability, Request

By = Annotated[str, typer.Option("--by", metavar="NAME", help="Who decides.")]
Why = Annotated[str | None, typer.Option("--reason", help="Why; it stays in the journal.")]
Approval = Annotated[str, typer.Argument(metavar="APPROVAL", help="The id of a request.")]
STATUSES = ("pending", "approved", "approved_for_session", "denied", "timed_out", "superseded", "cancelled")
Status = Annotated[str, typer.Option("--status", help="pending, approved, denied, ... or all.")]


def add_to(app: typer.Typer) -> None:
    """Adds the commands."""
    approvals = typer.Typer(help="Requests for approval.")
    approvals.callback(invoke_without_command=True)(_approvals)
    approvals.command("list")(_list)
    approvals.command("show")(_show)
    approvals.command("approve")(_approve)
    approvals.command("deny")(_deny)
    approvals.command("edit")(_edit)
    app.add_typer(approvals, name="approvals")
    effects = typer.Typer(help="Effects that nobody knows the outcome of.")
    effects.callback(invoke_without_command=True)(_effects)
    effects.command("list")(_doubts)
    effects.command("resolve")(_resolve)
    app.add_typer(effects, name="effects")
    grants = typer.Typer(help="Leave that people gave.")
    grants.callback(invoke_without_command=True)(_grants)
    grants.command("list")(_grant_list)
    grants.command("revoke")(_grant_revoke)
    app.add_typer(grants, name="grants")
    capabilities = typer.Typer(help="What runs may reach.")
    capabilities.callback(invoke_without_command=True)(_capabilities)
    capabilities.command("list")(_capability_list)
    capabilities.command("revoke")(_capability_revoke)
    app.add_typer(capabilities, name="capabilities")
    policy = typer.Typer(help="The active policy.")
    policy.callback(invoke_without_command=True)(_policy)
    policy.command("show")(_active)
    policy.command("check")(_check)
    policy.command("activate")(_activate)
    app.add_typer(policy, name="policy")


def _at(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def _approvals(context: typer.Context, store: Url = DEFAULT, as_json: AsJson = False) -> None:
    """List, show, approve or deny requests; alone, list those that wait."""
    if context.invoked_subcommand is None:
        _list(store=store, as_json=as_json)


def _list(status: Status = "pending", store: Url = DEFAULT, as_json: AsJson = False) -> None:
    """List requests, the oldest first."""
    if status != "all" and status not in STATUSES:
        told = f"{status} is no status of a request: it is one of {', '.join(STATUSES)}, or all"
        raise typer.BadParameter(output.visible(told), param_hint="--status")
    with reading(store) as opened:
        found = Approvals(opened).list(None if status == "all" else status)
    if as_json:
        output.print_json([asdict(request) for request in found])
        return
    columns = ("approval", "tool", "risk", "arguments", "status", "votes", "until")
    rows = [
        (
            request.id,
            request.tool,
            request.risk,
            output.as_json(request.arguments),
            request.status,
            f"{len(request.votes)} of {request.quorum}",
            _at(request.expires_at),
        )
        for request in found
    ]
    output.grid(columns, rows)


def _print(request: Request, as_json: bool) -> None:
    if as_json:
        output.print_json(asdict(request))
        return
    shown = asdict(request) | {
        "arguments": output.as_json(request.arguments),
        "requested_at": _at(request.requested_at),
        "expires_at": _at(request.expires_at),
        "redacted": ", ".join(request.redacted) or "nothing",
        "roles": ", ".join(request.roles) or "anybody",
        "votes": ", ".join(f"{who} {vote}" for who, vote in request.votes.items()) or "none",
    }
    output.facts(shown.items())


def _show(approval: Approval, store: Url = DEFAULT, as_json: AsJson = False) -> None:
    """Print one request: everything that the decision is bound to."""
    with reading(store) as opened:
        _print(Approvals(opened).get(approval), as_json)


def _approve(
    approval: Approval,
    by: By,
    reason: Why = None,
    session_uses: Annotated[
        int | None, typer.Option("--session-uses", help="Also for so many further calls of the session.")
    ] = None,
    session_for: Annotated[
        float, typer.Option("--session-for", metavar="SECONDS", help="How long the session may go on.")
    ] = 3600.0,
    session_when: Annotated[
        str, typer.Option("--session-when", metavar="JSON", help="For which arguments, as in a policy.")
    ] = "{}",
    store: Url = DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Vote for a request. The call goes on when the quorum is met."""
    session = None
    if session_uses is not None:
        session = ForSession(_object(session_when), session_uses, session_for)
    with writing(store) as opened:
        _print(Approvals(opened).approve(approval, by=by, reason=reason, session=session), as_json)


def _object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise typer.BadParameter("this is not a JSON object")
    return value


def _edit(
    approval: Approval,
    arguments: Annotated[Path, typer.Argument(metavar="FILE", help="The new arguments, as JSON.")],
    by: By,
    reason: Why = None,
    store: Url = DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Put other arguments in the place of a request's. It is asked anew; no vote is carried over."""
    try:
        given = _object(arguments.read_text("utf-8"))
    except (OSError, UnicodeDecodeError):
        raise typer.BadParameter("the file cannot be read") from None
    with writing(store) as opened:
        _print(Approvals(opened).edit(approval, given, by=by, reason=reason), as_json)


def _grants(context: typer.Context, store: Url = DEFAULT, as_json: AsJson = False) -> None:
    """List or revoke leave; alone, list it."""
    if context.invoked_subcommand is None:
        _grant_list(store=store, as_json=as_json)


def _grant_list(
    of: Annotated[str | None, typer.Option("--of", metavar="ID", help="Only of this session or run.")] = None,
    store: Url = DEFAULT,
    as_json: AsJson = False,
) -> None:
    """List grants, the oldest first."""
    with reading(store) as opened:
        found = Grants(opened).list(stream=of)
    if as_json:
        output.print_json([asdict(grant) for grant in found])
        return
    columns = ("grant", "of", "tool", "spent", "constraints", "revoked", "until")
    rows = [
        (
            grant.id,
            grant.stream,
            grant.tool,
            f"{grant.spent} of {grant.uses}",
            output.as_json(list(grant.constraints)),
            "yes" if grant.revoked else "no",
            _at(grant.expires_at),
        )
        for grant in found
    ]
    output.grid(columns, rows)


def _grant_revoke(
    grant: Annotated[str, typer.Argument(metavar="GRANT", help="Its id.")],
    by: By,
    reason: Why = None,
    store: Url = DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Take leave back. What it has let act is not undone."""
    with writing(store) as opened:
        Grants(opened).revoke(grant, by=by, reason=reason)
    if as_json:
        output.print_json({"grant": grant, "revoked": True})
    else:
        output.say(f"revoked {grant}")


def _capabilities(context: typer.Context, store: Url = DEFAULT, as_json: AsJson = False) -> None:
    """List or revoke what runs may reach; alone, list what the newest runs hold."""
    if context.invoked_subcommand is None:
        with reading(store) as opened:
            rows = opened.sql("SELECT id FROM runs ORDER BY stream DESC LIMIT 100")
            held = [(row["id"], one) for row in rows for one in Capabilities(opened).list(row["id"])]
        _print_held(held, as_json)


def _capability_list(
    run: Annotated[str, typer.Argument(metavar="RUN")], store: Url = DEFAULT, as_json: AsJson = False
) -> None:
    """List what a run holds; one without any that is not restricted holds everything."""
    with reading(store) as opened:
        found = Capabilities(opened).list(run)
    _print_held([(run, one) for one in found], as_json)


def _print_held(held: list[tuple[str, Capability]], as_json: bool) -> None:
    if as_json:
        output.print_json([{"run": run, **asdict(one)} for run, one in held])
        return
    columns = ("run", "capability", "target", "rights", "constraints", "made of", "revoked", "handed to")
    rows = [
        (
            run,
            one.id,
            one.target,
            ", ".join(one.rights),
            output.as_json(list(one.constraints)),
            one.parent or "",
            "yes" if one.revoked else "no",
            one.to or "",
        )
        for run, one in held
    ]
    output.grid(columns, rows)


def _capability_revoke(
    run: Annotated[str, typer.Argument(metavar="RUN")],
    capability: Annotated[str, typer.Argument(metavar="CAPABILITY", help="Its id.")],
    by: By,
    reason: Why = None,
    store: Url = DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Take a capability back, and all that was made of it."""
    with writing(store) as opened:
        Capabilities(opened).revoke(run, capability, by=by, reason=reason)
    if as_json:
        output.print_json({"run": run, "capability": capability, "revoked": True})
    else:
        output.say(f"revoked {capability}")


def _deny(
    approval: Approval, by: By, reason: Why = None, store: Url = DEFAULT, as_json: AsJson = False
) -> None:
    """Vote against a request, which decides."""
    with writing(store) as opened:
        _print(Approvals(opened).deny(approval, by=by, reason=reason), as_json)


def _effects(context: typer.Context, store: Url = DEFAULT, as_json: AsJson = False) -> None:
    """List or resolve writes that may or may not have happened; alone, list them."""
    if context.invoked_subcommand is None:
        _doubts(store=store, as_json=as_json)


def _doubts(
    in_doubt: Annotated[
        bool, typer.Option("--in-doubt/--all", help="Only those in doubt, or also those on their way.")
    ] = True,
    store: Url = DEFAULT,
    as_json: AsJson = False,
) -> None:
    """List writes in doubt, with the key that the provider knows them by."""
    with reading(store) as opened:
        found = Effects(opened).list(in_doubt=in_doubt)
    if as_json:
        output.print_json([asdict(doubt) for doubt in found])
        return
    rows = [
        (doubt.id, doubt.tool, output.as_json(doubt.arguments), doubt.cause, doubt.key) for doubt in found
    ]
    output.grid(("call", "tool", "arguments", "cause", "key"), rows)


def _resolve(
    call: Annotated[str, typer.Argument(metavar="DOUBT", help="Its id, as effects list has it.")],
    by: By,
    happened: Annotated[
        Path | None, typer.Option("--happened", metavar="FILE", help="It happened; its result, as JSON.")
    ] = None,
    did_not_happen: Annotated[
        bool, typer.Option("--did-not-happen", help="It did not, and no longer can.")
    ] = False,
    compensated: Annotated[bool, typer.Option("--compensated", help="It happened and was undone.")] = False,
    external_id: Annotated[
        str | None, typer.Option("--external-id", help="What the provider calls it.")
    ] = None,
    reason: Why = None,
    force: Annotated[
        bool, typer.Option("--force", help="Although it might still happen; this is recorded.")
    ] = False,
    store: Url = DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Say what became of a write; its run goes on from there."""
    if sum((happened is not None, did_not_happen, compensated)) != 1:
        output.complain("usage: say one of --happened FILE, --did-not-happen, --compensated")
        raise typer.Exit(output.USAGE)
    said: dict[str, Any] = {"did_not_happen": did_not_happen, "compensated": compensated}
    if happened is not None:
        said["happened"] = _result(happened)
    with writing(store) as opened:
        Effects(opened).resolve(call, by=by, external_id=external_id, reason=reason, force=force, **said)
    if as_json:
        output.print_json({"call": call, "resolved": True})
    else:
        output.say(f"resolved {output.visible(call)}")


def _result(file: Path) -> object:
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        output.complain(f"usage: {output.visible(str(file))} cannot be read as JSON: {type(error).__name__}")
        raise typer.Exit(output.USAGE) from None


def _policy(context: typer.Context, store: Url = DEFAULT, as_json: AsJson = False) -> None:
    """Show, check or activate a policy; alone, show the active one."""
    if context.invoked_subcommand is None:
        _active(store=store, as_json=as_json)


def _active(store: Url = DEFAULT, as_json: AsJson = False) -> None:
    """Print the active policy."""
    with writing(store) as opened:
        found = _core.active_policy(opened._core)
    if as_json:
        output.print_json(None if found is None else {"digest": found[0], "policy": found[1]})
    elif found is None:
        output.say("no policy was ever activated: risky writes ask, the rest is allowed")
    else:
        output.say(found[0])
        rows = [(rule["name"], rule["decide"], output.short(rule)) for rule in found[1]["rules"]]
        output.grid(("rule", "decides", "when"), rows)


PolicyFile = Annotated[Path, typer.Argument(metavar="FILE", help="A policy in TOML.", exists=True)]


def _check(file: PolicyFile, as_json: AsJson = False) -> None:
    """Read a policy and print its digest; nothing is activated."""
    digest = Policy.load(file).digest
    output.print_json({"digest": digest}) if as_json else output.say(digest)


def _activate(file: PolicyFile, by: By, store: Url = DEFAULT, as_json: AsJson = False) -> None:
    """Make a policy the active one. Requests under the old one are asked anew."""
    policy = Policy.load(file)
    with writing(store) as opened:
        digest = _core.activate_policy(opened._core, human(by), policy.core())
    output.print_json({"digest": digest}) if as_json else output.say(f"active: {digest}")
