"""Stories of large contents outside the database: in a bucket, and in a folder that machines share.

The S3 server is moto's, a process of its own on a free port of this machine. It comes from PyPI, so that
every clone has it (the servers that people run for themselves are downloads from elsewhere), it honours
``If-None-Match`` when an object is created, and it can be told to check credentials. It speaks S3 only, so
nothing here is shown of Google's and Microsoft's services.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import urllib.request
from typing import TYPE_CHECKING
from urllib.parse import quote

import psycopg
import pytest
from tests import closing

import holdfast as hf
from holdfast import _core

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.postgres import Server

pytest_plugins = ["tests.postgres"]
SECRET = "hunter2"
LARGE = "a large content " * 10_000
# Whose request it is; who does not check credentials reads no more of it than this.
SIGNED = "AWS4-HMAC-SHA256 Credential=k/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=x"


class Storage:
    """An S3 server, and what the tests do to it behind Holdfast's back."""

    def __init__(self) -> None:
        setpriv = shutil.which("setpriv")
        ends_with_us = [setpriv, "--pdeathsig", "KILL", "--"] if setpriv else []
        self._process = subprocess.Popen(
            [*ends_with_us, sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", "0"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "PYTHONWARNINGS": "ignore", "PYTHONUNBUFFERED": "1"},
        )
        assert self._process.stdout is not None
        said = ""
        for line in self._process.stdout:
            said += line
            if found := re.search(r"http://127\.0\.0\.1:\d+", line):
                self.url = found[0]
                break
        else:
            raise AssertionError(f"the server did not start: {said}")
        self._process.stdout.close()  # it goes on without being heard
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def stop(self) -> None:
        self._process.kill()
        self._process.wait(60)

    def ask(self, method: str, path: str, data: bytes | None = None) -> bytes:
        headers = {"Authorization": SIGNED, "Content-Type": "application/octet-stream"}
        request = urllib.request.Request(f"{self.url}/{path}", data, headers, method=method)
        with self._opener.open(request, timeout=60) as answer:
            read: bytes = answer.read()
        return read

    def names(self, bucket: str) -> list[str]:
        """Every blob in the bucket; the marks of stores are left out."""
        keys = re.findall(r"<Key>([^<]*)</Key>", self.ask("GET", f"{bucket}?list-type=2").decode())
        return [key for key in keys if not key.endswith("/store")]


@pytest.fixture(scope="module")
def server() -> Iterator[Storage]:
    running = Storage()
    yield running
    running.stop()


@pytest.fixture
def buckets(request: pytest.FixtureRequest) -> None:
    """A build that knows of no buckets is not asked about them."""
    if not _core.BUCKETS:
        closing.not_run(request, "this build speaks to no buckets (make OBJECTS=1 test)", chosen=True)


@pytest.fixture
def storage(buckets: None, request: pytest.FixtureRequest) -> Storage:  # noqa: ARG001
    return request.getfixturevalue("server")  # type: ignore[no-any-return]


def settings(monkeypatch: pytest.MonkeyPatch, storage: Storage) -> None:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_ENDPOINT", storage.url)
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


@pytest.fixture
def bucket(storage: Storage, postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """An empty bucket, with the name of the schema."""
    settings(monkeypatch, storage)
    name = postgres_url.rpartition("schema=")[2].replace("_", "-")
    storage.ask("PUT", name)
    return name


@pytest.fixture
def url(postgres_url: str, bucket: str) -> str:
    return f"{postgres_url}&blobs=s3://{bucket}/agents/large"


def refused(url: str) -> tuple[str, str]:
    with pytest.raises(hf.errors.StoreError) as caught:
        hf.open(url)
    assert SECRET not in str(caught.value)
    return caught.value.code, str(caught.value)


def ended_run(store: hf.Store) -> str:
    """A run with a large note, which has come to its end."""
    run = store.create_run(agent="clerk")
    store.append(run, "note.logged", {"text": LARGE})
    store.cancel(run, by="dana")
    return run


def test_a_run_with_large_contents_keeps_them_in_the_bucket_until_it_is_forgotten(
    storage: Storage, bucket: str, url: str
) -> None:
    with hf.Runtime(url) as rt:

        @rt.tool(effect="read")
        def fetch(what: str) -> str:
            return what + LARGE

        @rt.agent
        async def clerk(ctx: hf.Context, what: str) -> int:
            return len(await ctx.call("fetch", what=what))

        run = rt.run_sync(clerk, "the page: ")
        assert (run.status, run.result) == ("completed", len("the page: " + LARGE))
        (name,) = storage.names(bucket)
        assert re.fullmatch(r"agents/large/sto_[0-9a-z]+/([0-9a-f]{2})/\1[0-9a-f]{62}", name)
        assert rt.store.sql("SELECT count(*) AS n FROM blobs") == [{"n": 0}], "none in the database"
        assert rt.store.stats()["blobs"] == 1

        report = rt.store.verify()
        assert (report.ok, report.blobs) == (True, 1)
        rt.store.forget(run.id, by="dana")
        assert storage.names(bucket) == []
        assert rt.store.verify().ok


def test_a_flipped_byte_and_a_missing_object_are_found_and_named(
    storage: Storage, bucket: str, url: str
) -> None:
    with hf.open(url) as store:
        run = ended_run(store)
        (name,) = storage.names(bucket)
        commit = "sha256:" + name.rpartition("/")[2]
        stored = storage.ask("GET", f"{bucket}/{name}")
        flipped = bytes([*stored[:-1], stored[-1] ^ 1])
        for there, code in ((flipped, "blob_forged"), (None, "no_such_blob")):
            storage.ask("DELETE", f"{bucket}/{name}")
            if there is not None:
                storage.ask("PUT", f"{bucket}/{name}", there)
            bad = store.verify().first_bad
            assert bad is not None
            assert (bad.code, bad.stream, bad.seq, commit in bad.what) == (code, run, 3, True)
            with pytest.raises(hf.errors.StoreError) as caught:
                store.get_blob(commit)
            assert caught.value.code == code
        storage.ask("PUT", f"{bucket}/{name}", stored)
        assert store.verify().ok


def test_two_handles_share_the_bucket_and_collect_only_what_is_their_own(
    storage: Storage, bucket: str, url: str, postgres_url: str
) -> None:
    other_store = f"{postgres_url}x&blobs=s3://{bucket}/agents/large"
    with hf.open(url) as one, hf.open(url) as two, hf.open(other_store) as other:
        theirs = other.put_blob(b"another store's")
        kept, left = one.put_blob(b"kept"), two.put_blob(b"left")
        assert (one.get_blob(left), two.get_blob(kept)) == (b"left", b"kept")
        run = two.create_run(agent="clerk")
        two.append(run, "x.acme.scan", {"data": {}}, blobs={"content": kept})
        assert len(storage.names(bucket)) == 3

        assert one.gc() == (0, 0), "young ones are left alone"
        assert one.gc(older_than=0, dry_run=True)[0] == 1
        assert one.gc(older_than=0)[0] == 1
        assert sorted(name.rpartition("/")[2] for name in storage.names(bucket)) == sorted(
            blob["commit"].removeprefix("sha256:") for blob in (theirs, kept)
        )
        with pytest.raises(hf.errors.StoreError, match=r"^no_such_blob: "):
            two.append(run, "x.acme.scan", {"data": {}}, blobs={"content": left})
        assert (one.verify().ok, other.get_blob(theirs)) == (True, b"another store's")


def test_a_listing_of_several_pages_is_read_to_its_end(storage: Storage, bucket: str, url: str) -> None:
    with hf.open(url) as store:
        commit = store.put_blob(b"the last of them")["commit"]
        (name,) = storage.names(bucket)
        folder = name.removesuffix(commit.removeprefix("sha256:")).rpartition("/")[0].rpartition("/")[0]
        for number in range(1001):  # they come before it, and are no blobs
            storage.ask("PUT", f"{bucket}/{folder}/!{number}", b"x")
        assert store.gc(older_than=0)[0] == 1


@pytest.mark.usefixtures("buckets")
def test_a_server_that_is_gone_is_told_and_nothing_is_half_done(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = Storage()
    try:
        settings(monkeypatch, storage)
        storage.ask("PUT", "mine")
        with hf.open(f"{postgres_url}&blobs=s3://mine") as store:
            run = store.create_run(agent="clerk")
            store.append(run, "note.logged", {"text": LARGE})
            storage.stop()
            for ask in (
                lambda: store.append(run, "note.logged", {"text": LARGE}),
                lambda: store.put_blob(b"x"),
                lambda: store.gc(older_than=0),
                store.verify,
                lambda: [record.value for record in store.read(run)],
            ):
                with pytest.raises(hf.errors.StoreError) as caught:
                    ask()
                assert caught.value.code == "store_unreachable"
                assert "large contents cannot be reached: s3://mine: no connection" in str(caught.value)
            other = store.create_run(agent="clerk")
            assert store.append(other, "note.logged", {"text": "small"}) == 3, "others go on"
            kinds = [row["kind"] for row in store.sql("SELECT kind FROM events WHERE stream = ?", [run])]
            assert sorted(kinds) == ["note.logged", "run.created", "step.created"]
    finally:
        storage.stop()


def test_a_store_stays_with_the_place_that_it_was_made_with(bucket: str, url: str, postgres_url: str) -> None:
    hf.open(url).close()
    hf.open(f"{url}/").close()  # the same
    code, told = refused(postgres_url)
    place = f"s3://{bucket}/agents/large"
    assert (code, f"in {place}, not in its database" in told) == ("other_blobs", True)
    code, told = refused(f"{postgres_url}&blobs=s3://{bucket}")
    assert (code, f"in {place}, not in s3://{bucket}." in told) == ("other_blobs", True)
    hf.open(f"{postgres_url}x").close()
    code, told = refused(f"{postgres_url}x&blobs=s3://{bucket}")
    assert (code, f"in its database, not in s3://{bucket}." in told) == ("other_blobs", True)


def test_no_store_is_made_where_its_large_contents_could_not_be_put(
    storage: Storage, bucket: str, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, told = refused(f"{postgres_url}&blobs=s3://nobody-made-this")
    assert (code, "there is no such bucket" in told) == ("store_unreachable", True)
    storage.ask("POST", "moto-api/reset-auth", b"0")  # from now on it checks who asks
    try:
        assert refused(f"{postgres_url}&blobs=s3://{bucket}")[0] == "no_permission"
    finally:
        storage.ask("POST", "moto-api/reset-auth", b"inf")
    for bad in (f"s3://key:{SECRET}@{bucket}", f"ftp://{SECRET}", "relative", f"s3://{bucket}?a={SECRET}"):
        assert refused(f"{postgres_url}&blobs={quote(bad, safe='')}")[0] == "bad_url"
    monkeypatch.setenv("AWS_ALLOW_HTTP", SECRET)
    assert refused(f"{postgres_url}&blobs=s3://{bucket}")[0] == "bad_url"
    with hf.open(postgres_url) as store:  # nothing was decided yet
        assert store.verify().ok


def test_a_shared_folder_keeps_them_and_one_that_nobody_mounted_is_noticed(
    postgres_url: str, postgres_running: Server, tmp_path: Path
) -> None:
    shared = tmp_path / "shared"
    url = f"{postgres_url}&blobs={quote(str(shared), safe='')}"
    assert refused(url)[0] == "store_unreachable"
    shared.mkdir()
    with hf.open(url) as store:
        run = ended_run(store)
        (file,) = (path for path in shared.rglob("*") if path.is_file())
        assert (file.parents[2], file.parent.name) == (shared, file.name[:2])
        assert store.verify().blobs == 1
        with psycopg.connect(postgres_running.schema(), autocommit=True) as connection:
            schema = postgres_url.rpartition("schema=")[2]
            kept = connection.execute(f"SELECT value FROM {schema}.meta WHERE name = 'blobs'".encode())
            assert kept.fetchall() == [(f"file://{shared}",)]
    shared.rename(tmp_path / "away")
    shared.mkdir()  # an empty mount point
    code, told = refused(f"{postgres_url}&blobs={quote(f'file://{shared}/', safe='')}")
    assert (code, "there is no folder" in told) == ("store_unreachable", True)
    shared.rmdir()
    (tmp_path / "away").rename(shared)
    with hf.open(url) as store:
        store.forget(run, by="dana")
        assert [path for path in shared.rglob("*") if path.is_file()] == []
