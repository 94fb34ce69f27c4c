"""The commands that prove: seals, keys, bundles of evidence.

A seal is worth something when it is kept where whoever keeps the store cannot change it: ``journal seal``
prints it for that. Secret keys are files; nothing here prints one.
"""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast import _core, evidence, keys
from holdfast.cli import output
from holdfast.cli.store import DEFAULT, AsJson, Url, reading, writing

if TYPE_CHECKING:
    from holdfast.evidence import Verified

KeyFile = Annotated[Path, typer.Option("--key", metavar="FILE", help="The file of the secret key.")]
Keys = Annotated[
    list[str] | None,
    typer.Option("--key", metavar="LINE", help="A public line that must have signed; again for more."),
]
Seals = Annotated[
    list[Path] | None, typer.Option("--seal", metavar="FILE", help="A seal that was kept elsewhere.")
]


def add_to(app: typer.Typer, journal: typer.Typer, group: typer.Typer) -> None:
    """Adds the commands: to the journal's, to the evidence's, and the keys'."""
    journal.command("seal")(_seal)
    journal.command("seals")(_seals)
    journal.command("witnessed")(_witnessed)
    group.command("export")(_export)
    group.command("verify")(_verify)
    own = typer.Typer(no_args_is_help=True, help="Keys that seal.")
    for name, command in (
        ("generate", _generate),
        ("publish", _publish),
        ("rotate", _rotate),
        ("follow", _follow),
        ("witness", _witness),
    ):
        own.command(name)(command)
    app.add_typer(own, name="keys")


def _seal(
    key: KeyFile,
    url: Url = DEFAULT,
    out: Annotated[Path | None, typer.Option("-o", "--out", help="Write the seal here too.")] = None,
    by: Annotated[str, typer.Option("--by", help="Who seals.")] = "holdfast",
    as_json: AsJson = False,
) -> None:
    """Sign a head over everything that was committed so far, and print it: keep it elsewhere."""
    with writing(url) as store:
        seal = store.seal(key, by=by)
    if out is not None:
        out.write_text(seal.checkpoint, "utf-8")
    if as_json:
        output.print_json(asdict(seal))
    else:
        typer.echo(seal.checkpoint, nl=False)


def _seals(url: Url = DEFAULT, as_json: AsJson = False) -> None:
    """List the seals, newest first."""
    with reading(url) as store:
        found = store.seals()
    if as_json:
        output.print_json([asdict(seal) for seal in found])
        return
    signed = [_core.checkpoint_read(seal.checkpoint)["signatures"] for seal in found]
    rows = [(seal.size, seal.root, ", ".join(names)) for seal, names in zip(found, signed, strict=True)]
    output.grid(("commits", "root", "signed by"), rows)


def _witnessed(
    seal: Annotated[Path, typer.Argument(help="The file of a seal, as its witnesses gave it back.")],
    key: Annotated[list[str], typer.Option("--key", metavar="LINE", help="A witness's public line.")],
    url: Url = DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Keep what witnesses have signed on a seal: bundles take it along."""
    with writing(url) as store:
        kept = store.witnessed(output.text_of(seal), keys=key)
    if as_json:
        output.print_json(asdict(kept))
    else:
        typer.echo(kept.checkpoint, nl=False)


def _export(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run.")],
    out: Annotated[Path | None, typer.Option("-o", "--out", help="A new folder, or a file *.zip.")] = None,
    url: Url = DEFAULT,
    key: Annotated[
        Path | None, typer.Option("--key", metavar="FILE", help="Signs a statement about it.")
    ] = None,
    include: Annotated[
        list[str] | None,
        typer.Option("--include", metavar="CLASS", help="Contents of this privacy too: sensitive, secret."),
    ] = None,
    since: Annotated[
        list[Path] | None,
        typer.Option("--since", metavar="FILE", help="An older seal that readers have; again for more."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write the evidence of a run: records, contents, proofs and a verifier, to be checked by anybody."""
    classes, older = [*evidence.OPEN, *(include or ())], [output.text_of(one) for one in since or ()]
    with writing(url) as store:
        target = out or Path(f"{run}.zip")
        done = evidence.export(store, run, target, include=classes, key=key, since=older)
    told = {name: value if value is None else str(value) for name, value in asdict(done).items()}
    if as_json:
        output.print_json({**told, "records": done.records, "sealed": done.sealed, "withheld": done.withheld})
        return
    output.facts(told.items())
    if done.sealed < done.records:
        output.say("Not all of it is under a seal: holdfast journal seal, then export again.")


def _verify(
    path: Annotated[Path, typer.Argument(metavar="BUNDLE", help="A folder or a file.")],
    key: Keys = None,
    seal: Seals = None,
    as_json: AsJson = False,
) -> None:
    """Verify a bundle: files, chain, contents, summary, proofs, signatures. Exit code 3 if one is wrong."""
    texts = [output.text_of(one) for one in seal or ()]
    found = evidence.verify(path, keys=key or (), seals=texts)
    if as_json:
        output.print_json({name: value for name, value in found.to_json().items() if name != "facts"})
    else:
        _tell(found)
    if not found.ok:
        raise typer.Exit(output.CHECK_FAILED)


def _tell(found: Verified) -> None:
    if not found.ok:
        where = "" if found.stream is None else f" in {found.stream}"
        where += "" if found.seq is None else f" at record {found.seq}"
        output.say(f"BAD{where}: {found.what}", "bold red")
        return
    rows = ("run", "shows", "records", "sealed", "opened", "erased", "withheld", "verifier")
    told: list[tuple[str, object]] = [(name, getattr(found, name)) for name in rows]
    told += [("seal signed by", ", ".join(found.signed_by)), ("statement by", ", ".join(found.statement_by))]
    output.facts(told)
    output.say(f"good: {found.guarantee}", "green")


def _generate(
    name: Annotated[str, typer.Argument(help="Who signs, for example example.com/refunds.")],
    out: Annotated[Path, typer.Option("-o", "--out", help="A new file for the secret line.")],
    witness: Annotated[bool, typer.Option("--witness", help="A key that says when it saw a seal.")] = False,
) -> None:
    """Make a key: its secret line goes into a file, its public one is printed."""
    typer.echo(keys.generate(name, out, witness=witness))


def _publish(
    key: Annotated[Path, typer.Argument(metavar="FILE", help="The file of the secret key.")],
) -> None:
    """Print the public line of a key."""
    typer.echo(keys.public(key))


def _rotate(
    key: Annotated[Path, typer.Argument(metavar="FILE", help="The file of the old secret key.")],
    out: Annotated[Path, typer.Option("-o", "--out", help="A new file for the new secret line.")],
    statement: Annotated[Path, typer.Option("--statement", help="Where the signed statement goes.")],
) -> None:
    """Make a new key in the place of an old one, and a statement that both have signed."""
    with output.written(statement) as told:  # before the key is made: it could not be signed again
        public, text = keys.rotate(key, out)
        told.write(text)
    typer.echo(public)


def _follow(
    trusted: Annotated[str, typer.Argument(metavar="LINE", help="The public line that you trust.")],
    statement: Annotated[Path, typer.Argument(help="A statement of its rotation.")],
) -> None:
    """Print the key that took a trusted one's place, if both say so."""
    typer.echo(keys.follow(trusted, output.text_of(statement)))


def _witness(
    seal: Annotated[Path, typer.Argument(help="A seal's file; the signature is added to it.")],
    key: KeyFile,
    old: Annotated[
        Path | None, typer.Option("--after", metavar="FILE", help="The seal that this witness saw last.")
    ] = None,
    url: Url = DEFAULT,
) -> None:
    """Sign a seal as a witness, once it is shown to begin with what the last one covers."""
    text = output.text_of(seal)
    if old is not None:
        before = output.text_of(old)
        with reading(url) as store:
            path = store.consistency(before, text)
        if not _core.consistency_check(before, text, path):
            output.complain("seal_mismatch: the log does not begin with what was seen before")
            raise typer.Exit(output.CHECK_FAILED)
    seal.write_text(_core.note_cosign(text, keys.read(key), int(time.time())), "utf-8")
