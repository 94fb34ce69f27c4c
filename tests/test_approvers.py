"""People are told of requests at a terminal and by webhook; whatever goes wrong, nothing is released."""

from __future__ import annotations

import asyncio
import io
import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import TYPE_CHECKING, Any

import pytest

import holdfast as hf
from holdfast.approvers import Console, Webhook, check_signature

if TYPE_CHECKING:
    from collections.abc import Iterator

SECRET = "a shared secret"


class Receiver(BaseHTTPRequestHandler):
    """Takes webhooks, after it has answered with what it was told to."""

    got: list[tuple[dict[str, Any], bytes]]
    answers: list[int]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        code = self.answers.pop(0) if self.answers else 200
        self.got.append(({name.lower(): value for name, value in self.headers.items()}, body))
        self.send_response(code)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def url() -> Iterator[str]:
    Receiver.got, Receiver.answers = [], []
    server = HTTPServer(("127.0.0.1", 0), Receiver)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}/hook"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def rt() -> Iterator[hf.Runtime]:
    with hf.Runtime("memory:", suspend_grace=0.02) as runtime:

        @runtime.tool(effect="write", approval="always")
        def wire(cents: int) -> str:
            return f"sent {cents}"

        @runtime.agent
        async def wires(ctx: hf.Context) -> str:
            return str(await ctx.call("wire", cents=7))

        yield runtime


def told(rt: hf.Runtime, run: hf.Run) -> list[str]:
    return [r.body["status"] for r in rt.store.read(run.id) if r.kind == "approval.dispatched"]


def test_a_webhook_is_signed_tried_again_and_decides_nothing(rt: hf.Runtime, url: str) -> None:
    Receiver.answers[:] = [503, 500]
    rt.approver(timeout=10.0)(Webhook(url, secret=hf.Secret(SECRET, name="hook"), backoff=0.001))
    run = rt.run_sync("wires")
    assert run.status == "waiting"
    assert len(Receiver.got) == 3
    headers, body = Receiver.got[-1]
    data = json.loads(body)["data"]
    assert (data["tool"], data["arguments"], data["run"]) == ("wire", {"cents": 7}, run.id)
    assert {one["webhook-id"] for one, _ in Receiver.got} == {data["id"]}
    assert check_signature(SECRET, headers, body)
    assert not check_signature("another secret", headers, body)
    assert not check_signature(SECRET, headers, body + b" ")
    assert told(rt, run)[-1] == "dispatched"
    rt.approvals.approve(data["id"], by="dana")
    assert rt.resume_sync(run).result == "sent 7"


def test_a_receiver_that_refuses_leaves_the_request_standing(rt: hf.Runtime, url: str) -> None:
    Receiver.answers[:] = [403]
    rt.approver(timeout=10.0)(Webhook(url, secret=hf.Secret(SECRET, name="hook"), backoff=0.001))
    run = rt.run_sync("wires")
    assert (run.status, len(Receiver.got)) == ("waiting", 1)
    assert told(rt, run)[-1] == "dispatcher_unavailable"
    (request,) = rt.approvals.list()
    assert request.status == "pending"


def test_nobody_there_leaves_the_request_standing(rt: hf.Runtime) -> None:
    down = Webhook("http://127.0.0.1:9", secret=hf.Secret(SECRET, name="hook"), attempts=2, backoff=0.001)
    rt.approver(timeout=10.0)(down)
    run = rt.run_sync("wires")
    assert (run.status, len(rt.approvals.list())) == ("waiting", 1)


def test_a_webhook_goes_over_a_safe_line_only() -> None:
    for url in (
        "http://example.org/hook",
        "http://localhost.example.org/",
        "http://127.0.0.1.example.org/",
        "http://localhost@example.org/",
        "http://example.org\\@localhost/",
        "https://dana:secret@example.org/",
        "https:///hook",
        "ftp://localhost/",
        "localhost",
    ):
        with pytest.raises(ValueError, match="https, or http on this machine"):
            Webhook(url, secret=hf.Secret(SECRET, name="hook"))
    for url in ("https://example.org", "http://LOCALHOST:80/a", "http://127.0.0.1:9", "http://[::1]:9/"):
        Webhook(url, secret=hf.Secret(SECRET, name="hook"))


@pytest.mark.parametrize(
    ("said", "status"), [("y\n", "completed"), ("n\n", "failed"), ("\n", "waiting"), ("", "waiting")]
)
def test_whoever_sits_at_the_console_decides_or_does_not(rt: hf.Runtime, said: str, status: str) -> None:
    asks = io.StringIO()
    rt.approver(timeout=10.0)(Console(by="dana", asks=asks, hears=io.StringIO(said)))
    assert rt.run_sync("wires").status == status
    assert '"cents": 7' in asks.getvalue()


@pytest.mark.parametrize("console", [Console(), Console(asks=io.StringIO(), hears=io.StringIO(""))])
def test_without_anybody_at_a_terminal_nobody_was_told(
    rt: hf.Runtime, console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", None)  # as in a process without a console
    rt.approver(timeout=10.0)(console)
    run = rt.run_sync("wires")
    told = [r.body for r in rt.store.read(run.id) if r.kind == "approval.dispatched"]
    assert [(body["status"], body.get("reason_code")) for body in told] == [
        ("dispatch_intent_recorded", None),
        ("dispatcher_unavailable", "approval.dispatcher_error"),
    ]
    assert (run.status, len(rt.approvals.list())) == ("waiting", 1)


class Pager:
    """An approver that is an object, and asks over the network."""

    def __init__(self) -> None:
        self.paged: list[str] = []

    async def __call__(self, request: hf.gateway.Request) -> hf.gateway.Approve:
        await asyncio.sleep(0)
        self.paged.append(request.tool)
        return hf.gateway.Approve(by="dana")


def test_an_approver_may_be_an_object_that_is_awaited(rt: hf.Runtime) -> None:
    pager = Pager()
    rt.approver(timeout=10.0)(pager)
    assert (rt.run_sync("wires").status, pager.paged) == ("completed", ["wire"])
    assert list(rt.gateway.approvers) == ["Pager"]
