"""Exports: what leaves is what was hashed, by its privacy, as far as it is durable, and in bounded memory."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import sqlite3
import subprocess
import sys
import tracemalloc
from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from tests.exports_desk import Office, office, told
from tests.support import refusal

import holdfast as hf
from holdfast import canonical, exports, primitives
from holdfast.exports.contents import CLASSES
from holdfast.exports.cut import cut
from holdfast.exports.story import Story, walk

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from opentelemetry.sdk.trace import ReadableSpan

__all__ = ["office", "told"]  # fixtures
Told = tuple[hf.Store, str]
Lines = list[dict[str, Any]]


def lines(store: hf.Store, run: str, **options: Any) -> tuple[list[bytes], Lines]:
    out = io.BytesIO()
    exports.jsonl(store, run, out, **options)
    raw = out.getvalue().splitlines()
    return raw, [json.loads(line) for line in raw]


def record_of(line: bytes) -> bytes:
    """The record's own bytes, cut out of the line."""
    begin = line.index(b'"record":') + len(b'"record":')
    return line[begin : line.index(b',"store":"sto_')]


def test_lines_hold_the_bytes_that_were_hashed_and_lead_to_the_head(told: Told) -> None:
    store, run = told
    raw, parsed = lines(store, run)
    texts = [record_of(line) for line in raw]
    (owner,) = {line["store"] for line in parsed}
    head = primitives.verify_chain(owner, run, texts, head=parsed[-1]["hash"])
    assert (owner, head.seq, head.hash) == (store.id, len(raw), store.verify(run).head)
    assert [primitives.check_record(text) for text in texts] == [line["hash"] for line in parsed]
    assert all(canonical.dumps(json.loads(text)) == text for text in texts)
    assert all(line.keys() == {"hash", "record", "store", "values"} for line in parsed)

    forged = [*texts[:6], texts[6].replace(b"usd_micros", b"usd_macros"), *texts[7:]]
    with pytest.raises(hf.VerifyError) as caught:
        primitives.verify_chain(owner, run, forged)
    assert caught.value.seq == 7


def test_values_stand_beside_the_record_by_their_places(told: Told) -> None:
    store, run = told
    raw, parsed = lines(store, run)
    for line, record in zip(parsed, store.read(run), strict=True):
        assert line["values"].keys() == record.contents().keys()
        for place, content in record.contents().items():
            known, value = line["values"][place], None if place == "seed" else record.open(content)
            if place == "seed":
                assert known == {"missing": "withheld"}, "the key of all call digests is a secret"
            elif isinstance(value, bytes):
                assert base64.b64decode(known["base64"]) == value == b"\x89PNG\x00\xff"
            else:
                assert known == {"value": value}
    assert b"\x00" not in b"".join(raw)
    without = lines(store, run, content=False)[1]
    assert {json.dumps(known) for line in without for known in line["values"].values()} == {
        '{"missing": "withheld"}'
    }


@pytest.mark.parametrize(
    ("content", "leave"),
    [(False, []), (True, ["public", "internal"]), ("sensitive", CLASSES[:-1])],
)
def test_what_leaves_is_a_question_of_privacy_and_secrets_never_do(content: Any, leave: list[str]) -> None:
    with hf.open("memory:") as store:
        run = store.create_run(agent="a", privacy="public")
        for token in CLASSES:
            store.append(run, "note.logged", {"text": f"marked {token}"}, privacy=token)
        claim = store.claim(worker="w")
        assert claim is not None
        store.patch(claim, {"x": "marked sensitive state"}, expected_version=0, privacy="sensitive")
        store.finish(claim, result="marked public end", privacy="public")

        _, parsed = lines(store, run, content=content)
        notes = [line["values"]["text"] for line in parsed if line["record"]["kind"] == "note.logged"]
        assert notes == [
            {"value": f"marked {token}"} if token in leave else {"missing": "withheld"} for token in CLASSES
        ]
        out = io.BytesIO()
        exports.html(store, run, out, content=content)
        page = out.getvalue().decode()
        shown = [token for token in CLASSES if f"marked {token}&quot;" in page]
        assert shown == list(leave)
        assert ("marked sensitive state" in page) == (content == "sensitive")
        assert "marked" not in json.dumps(exports.statement(store, run))


def test_a_record_s_own_class_counts_where_it_is_stricter() -> None:
    with hf.open("memory:") as store:
        run = store.create_run(agent="a")
        blob = store.put_blob(b"picture", media="image/png", privacy="public")
        art = {"artifact": primitives.new_id("art"), "kind": "image", "name": "p", "media": "image/png"}
        body = {**art, "derived_from": []}
        store.append(run, "artifact.created", body, blobs={"content": blob}, privacy="sensitive")
        assert lines(store, run)[1][-1]["values"] == {"content": {"missing": "withheld"}}
        kept = lines(store, run, content="sensitive")[1][-1]["values"]["content"]
        assert base64.b64decode(kept["base64"]) == b"picture"


def test_what_was_erased_is_exported_as_erased(told: Told, tmp_path: Path) -> None:
    store, run = told
    store.forget(run, by="dana", reason="asked to")
    raw, parsed = lines(store, run, content="sensitive")
    words = [known for line in parsed for place, known in line["values"].items() if place != "seed"]
    assert len(words) > 20
    assert all(known == {"missing": "erased"} for known in words)
    primitives.verify_chain(store.id, run, [record_of(line) for line in raw], head=parsed[-1]["hash"])

    exports.html(store, run, tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert "erased (" in page
    assert "owned" not in page
    assert page.count("<dt>erased</dt>") == 1
    assert (
        exports.statement(store, run)["predicate"]["erased"]
        == parsed[-1]["record"]["body"]["commits"].__len__()
    )


def test_only_what_was_there_leaves_and_only_when_it_is_durable(tmp_path: Path) -> None:
    with hf.open(tmp_path / "s") as store:
        run = store.create_run(agent="a")
        for _ in range(8):  # more than one page of the reader
            store.append_many(run, [("note.logged", {"text": "x" * 2000}) for _ in range(500)])
        before = store.stats()["barriers"]

        class Busy(io.BytesIO):
            def write(self, data: Any) -> int:
                if not self.getvalue():
                    assert store.stats()["barriers"] > before, "nothing leaves before the barrier"
                    store.append(run, "note.logged", {"text": "while it is written"})
                return super().write(data)

        out = Busy()
        done = exports.jsonl(store, run, out)
        written = [json.loads(line) for line in out.getvalue().splitlines()]
        assert len(written) == done.records == done.items == 4002
        assert done.head == written[-1]["hash"]
        assert done.head != store.verify(run).head
    with hf.open(tmp_path / "s", read_only=True) as reader:
        assert exports.jsonl(reader, run, io.BytesIO()).records == 4003


def test_the_calls_of_an_export_are_those_of_the_core(told: Told) -> None:
    store, run = told
    where = cut(store, run)
    mine = {call.id: call for _, call in walk(where, Story(where)) if call is not None}
    theirs = store.state(run)["calls"]
    assert mine.keys() == theirs.keys()
    for call, known in zip([mine[call] for call in theirs], theirs.values(), strict=True):
        assert (call.outcome, len(call.dispatches), call.opened_seq) == (
            known["outcome"],
            known["dispatch"],
            known["opened"],
        )
        assert (call.key or None) == known.get("permit_key", known.get("key"))
    assert {call.outcome for call in mine.values()} == {"succeeded", "denied_by_person"}


def test_a_fork_knows_the_calls_it_began_with(office: Office) -> None:
    run = office.rt.run_sync("support", "t")
    opened = [record for record in office.rt.store.read(run.id) if record.kind == "policy.decided"]
    fork = office.rt.fork(run.id, at=opened[0].seq, by="dana")
    office.rt.resume_sync(fork)
    where = cut(office.rt.store, fork)
    story = Story(where)
    calls = [call for _, call in walk(where, story) if call is not None]
    theirs = office.rt.store.state(fork.id)["calls"]
    settled = {call.id: call.outcome for call in calls}
    assert [call.name for call in calls if call.opened_seq == 0] == ["look"]
    assert settled == {name: theirs[name].get("outcome", theirs[name]["phase"]) for name in settled}
    assert (story.agent, story.fork) == ("support", {"parent": run.id, "at": opened[0].seq})
    page = io.BytesIO()
    exports.html(office.rt, fork, page)
    assert f"<code>{run.id}</code> at record {opened[0].seq}" in page.getvalue().decode()


def test_a_statement_says_who_did_what_and_who_allowed_it(told: Told) -> None:
    store, run = told
    made = exports.statement(store, run)
    assert made == exports.statement(store, run) == json.loads(canonical.dumps(made))
    predicate = made.pop("predicate")
    head = store.verify(run).head
    assert head is not None
    assert made == {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [{"name": run, "digest": {"sha256": head.removeprefix("sha256:")}}],
        "predicateType": exports.PREDICATE_TYPE,
    }
    fold = store.state(run)
    assert predicate["calls"] == {
        "internal": {"succeeded": 6},
        "read": {"succeeded": 1},
        "write": {"denied_by_person": 1, "succeeded": 2},
    }
    assert predicate["package"] == fold["package"]
    decided = {call["decided"][1] for call in fold["calls"].values() if "decided" in call}
    assert predicate["policies"] == sorted(decided)
    assert predicate["outcome"].items() >= {"status": "completed", "reason": "normal"}.items()
    assert predicate["cost"] == {"tokens": 120, "usd_micros": 12500}
    assert predicate["doubts"] == {"open": 0, "resolved": 1}
    assert [(asked["tool"], asked["status"], asked["by"]) for asked in predicate["approvals"]] == [
        ("refund", "approved", ["human dana"]),
        ("wire", "denied", ["human eve"]),
    ]
    assert predicate["approvals"][0]["decided_at"] - predicate["approvals"][0]["requested_at"] == 60_000
    last = list(store.read(run))[-1]
    payload = b"holdfast/record/v1\n" + last.text
    assert made["subject"][0]["digest"] == {"sha256": hashlib.sha256(payload).hexdigest()}


def test_nothing_is_said_of_a_run_that_was_tampered_with(tmp_path: Path) -> None:
    folder = tmp_path / "s"
    with hf.open(folder) as store:
        run = store.create_run(agent="a", input="a parcel")
    with sqlite3.connect(folder / "holdfast.db") as database:
        database.execute("update frames set contents = replace(contents, 'a parcel', 'a present')")
    database.close()
    with hf.open(folder, read_only=True) as store:
        assert refusal(exports.statement, store, run)[0] == "content_forged"
        values = lines(store, run)[1][0]["values"]
        assert values["input"] == {"missing": "forged"}
        out = io.BytesIO()
        exports.html(store, run, out)
        page = out.getvalue().decode()
        assert "not verified" in page
        assert "The journal does not verify: content_forged" in page
        assert "a present" not in page


def test_a_failed_export_leaves_the_old_file(tmp_path: Path) -> None:
    kept = tmp_path / "run.jsonl"
    kept.write_text("old")
    with hf.open(tmp_path / "s") as store:
        run = store.create_run(agent="a", input="small")
        store.append(run, "note.logged", {"text": "x" * 100_000})
        (blob,) = [path for path in (tmp_path / "s" / "blobs").rglob("*") if path.is_file()]
        blob.unlink()
        blob.mkdir()  # it cannot be read any more, which is found in the middle of the export
        for write in (exports.jsonl, exports.html):
            assert refusal(write, store, "run_01ka4zc83ve008000000000000", kept)[0] == "no_such_run"
            assert refusal(write, store, "nonsense", kept)[0] == "no_such_run"
            assert refusal(write, store, run, kept)[0] == "store_failed"
    assert refusal(exports.jsonl, store, run, kept)[0] == "store_closed"
    assert kept.read_text() == "old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run.jsonl", "s"]


def test_sessions_and_the_store_s_own_stream_are_lines_too_but_no_pages() -> None:
    with hf.open("memory:") as store:
        session = store.create_session()
        assert [line["record"]["kind"] for line in lines(store, "store")[1]] == ["store.created"]
        assert [line["record"]["kind"] for line in lines(store, session)[1]] == ["session.created"]
        assert refusal(exports.html, store, session, io.BytesIO())[0] == "no_such_run"
        assert refusal(exports.otlp, store, session, "http://127.0.0.1:1")[0] == "no_such_run"
        assert refusal(exports.statement, store, "store")[0] == "no_such_run"


BLOCKED = """
import sys
sys.modules[sys.argv[1]] = None
import holdfast as hf
from holdfast import exports
store = hf.open("memory:")
run = store.create_run(agent="a")
try:
    if sys.argv[1] == "pyarrow":
        exports.parquet(store, "x")
    exports.otlp(store, run, "http://127.0.0.1:1")
except exports.ExportError as error:
    print(error.code, error)
"""


@pytest.mark.parametrize(("package", "extra"), [("opentelemetry", "otel"), ("pyarrow", "parquet")])
def test_a_missing_extra_names_the_command_that_installs_it(package: str, extra: str, tmp_path: Path) -> None:
    command = [sys.executable, "-c", BLOCKED, package]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.startswith("extra_missing extra_missing: ")
    assert f"pip install 'holdfast[{extra}]'" in done.stdout
    assert list(tmp_path.iterdir()) == []


class Sink(io.RawIOBase):
    """Takes everything and keeps nothing."""

    def __init__(self) -> None:
        self.taken = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self.taken += len(data)
        return len(data)


class Blind(SpanExporter):
    """Takes every span and keeps none."""

    def export(self, _: Sequence[ReadableSpan]) -> SpanExportResult:
        return SpanExportResult.SUCCESS


@pytest.fixture(scope="module")
def long_run() -> Told:
    """A run of more than 20,000 records and 60 MB of contents."""
    rt = hf.Runtime("memory:")

    @rt.tool(effect="read")
    def add(n: int) -> int:
        return n + 1

    @rt.agent
    async def many(ctx: hf.Context) -> int:
        n = 0
        for _ in range(1500):
            n = await ctx.call(add, n=n)
        return n

    run = rt.start_sync("many")
    for _ in range(30):
        rt.store.append_many(run.id, [("note.logged", {"text": "x" * 4000}) for _ in range(500)])
    assert rt.resume_sync(run).result == 1500
    return rt.store, run.id


def peak(work: Callable[[], object]) -> int:
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


MOST = 40_000_000


@pytest.mark.parametrize(
    "form", ["jsonl", "html", "otlp", "parquet", "parquet_calls", "parquet_costs", "statement"]
)
def test_a_long_run_is_exported_in_bounded_memory(long_run: Told, form: str) -> None:
    store, run = long_run
    sink = Sink()
    make = getattr(exports, form)
    if form in ("statement", "otlp"):
        rest = [Blind()] if form == "otlp" else []
        assert peak(lambda: make(store, run, *rest)) < MOST
        return
    places = (sink, run) if form.startswith("parquet") else (run, sink)
    assert peak(lambda: make(store, *places)) < MOST
    least = {"jsonl": 60_000_000, "html": 30_000_000, "parquet": 1_000_000}.get(form, 1)
    assert sink.taken > least


def test_the_measure_of_memory_would_notice_a_list(long_run: Told) -> None:
    store, run = long_run

    def whole() -> object:
        return [record.value for record in store.read(run)]

    assert peak(whole) > MOST
