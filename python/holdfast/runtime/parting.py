"""Where code and journal part: what a person is shown of it, and where a fork for the new code begins."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.errors import CommandError, RecordError
from holdfast.gateway.outcomes import fix

if TYPE_CHECKING:
    from holdfast.store import Record, Store

Json = dict[str, Any]
TOLD = ("call", "kind", "name", "effect", "lane")


def newest(store: Store, run: str, step: str) -> Record | None:
    """What the journal says of the divergence that a step waits for."""
    found = None
    for record in store.read(run):
        if record.kind == "replay.diverged" and record.fields["step"] == step:
            found = record
    return found


def side_by_side(store: Store, run: str, step: str) -> Json | None:
    """Both sides. Of what the code asked for instead, the journal has the arguments' digest only."""
    record = newest(store, run, step)
    if record is None:
        return None
    fold, attempted = store.state(run), record.body.get("attempted")
    return {
        "step": step,
        "why": record.body["why"],
        "recorded": [_told(one) | _opened(store, run, _seq(fold, one)) for one in _known(record)],
        "attempted": None if attempted is None else _told(attempted),
    }


def _known(record: Record) -> list[Json]:
    return [sketch for sketch in record.body["recorded"] if "call" in sketch]


def _told(sketch: Json) -> Json:
    return {name: sketch[name] for name in TOLD if name in sketch}


def _seq(fold: Json, sketch: Json) -> int:
    """Where a call was opened in this journal; not above zero, if in that of the run that it is a fork of."""
    return int(fold["calls"][sketch["call"]]["opened"]) - int(fold["base"])


def _opened(store: Store, run: str, seq: int) -> Json:
    """Where a call was opened, and what with, as far as anybody may see it."""
    record = next(store.read(run, after=seq - 1), None) if seq > 0 else None
    content = None if record is None else record.body.get("arguments")
    if record is None or content is None:
        return {}
    if content["privacy"] in ("sensitive", "secret"):
        return {"seq": record.seq, "arguments": f"(withheld: {content['privacy']})"}
    try:
        return {"seq": record.seq, "arguments": record.open(content)}
    except RecordError as error:
        if error.code != "content_erased":
            raise
        return {"seq": record.seq, "arguments": "(erased)"}


def before(store: Store, run: str, step: str) -> int:
    """The last record that says nothing of the calls that the code no longer makes.

    Raises:
        CommandError: ``bad_fork_point``: there are none, or a run that this one is a fork of made them.
    """
    record, fold = newest(store, run, step), store.state(run)
    at = min((_seq(fold, sketch) for sketch in ([] if record is None else _known(record))), default=0) - 1
    if at < 1:
        code = "bad_fork_point"
        raise CommandError("no call of this run is where the code went another way", code=code, fix=fix(code))
    return at
