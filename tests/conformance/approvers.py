"""An approver of a third party that keeps every clause, its harness, and those of our own approvers."""

from __future__ import annotations

import io
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import holdfast as hf
from holdfast.approvers import Console, Webhook
from holdfast.conformance.approvers import NotApplicable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from holdfast.conformance.approvers import AnyApprover, Said
    from holdfast.gateway import Request

PERSON = "dana"
KEY = "whsec-c29tZSBrZXk"


class People:
    """Who is on the other side: what they hear, and what they say to it."""

    def __init__(self, says: Sequence[Said] = ()) -> None:
        self.says = list(says)
        self.text = ""
        self.turn = threading.Lock()

    def next(self) -> Said:
        return self.says.pop(0) if self.says else "nothing"


class Honest:
    """Keeps every clause; the wrong ones break one thing each."""

    def __init__(self, people: People) -> None:
        self.people = people

    def __repr__(self) -> str:
        return f"<{type(self).__name__}>"

    def __call__(self, request: Request) -> Any:
        with self.people.turn:
            said = self.people.next()
            if said == "down":
                return self.down(request)
            self.people.text += self.shown(request)
            return self.answer(request, said)

    def down(self, _: Request) -> Any:
        raise ConnectionError("nobody is there")

    def shown(self, request: Request) -> str:
        return f"{request.id} {request.tool} {json.dumps(request.arguments)}\n"

    def answer(self, _: Request, said: Said) -> Any:
        if said == "yes":
            return hf.Approve(by=PERSON)
        return hf.Deny(by=PERSON) if said == "no" else None


class Around:
    """A harness of an approver that is made of people."""

    person, secrets, terminal = PERSON, (KEY,), True

    def __init__(self, make: Callable[[People], AnyApprover]) -> None:
        self.make = make
        self.people = People()

    def open(self, says: Sequence[Said]) -> AnyApprover:
        self.people = People(says)
        return self.make(self.people)

    def heard(self) -> bytes:
        return self.people.text.encode("utf-8", "surrogatepass")

    def destroy(self) -> None:
        self.people = People()


def awaited(people: People) -> AnyApprover:
    """The same as an ``async def``."""
    inner = Honest(people)

    async def approver(request: Request) -> Any:
        return inner(request)

    return approver


class Terminal(io.StringIO):
    """Both directions of a terminal, and whoever sits there."""

    def __init__(self, says: Sequence[Said]) -> None:
        super().__init__()
        self.people = People(says)

    def write(self, text: str) -> int:
        if self.people.says[:1] == ["down"]:
            self.people.next()
            raise OSError("the line is cut")
        self.people.text += text
        return len(text)

    def readline(self, _: int | None = -1, /) -> str:  # type: ignore[override]
        return {"yes": "y\n", "no": "n\n"}.get(self.people.next(), "\n")


class AtTheConsole:
    """:class:`holdfast.approvers.Console`."""

    person, secrets, terminal = PERSON, (), True

    def open(self, says: Sequence[Said]) -> AnyApprover:
        self.line = Terminal(says)
        return Console(by=PERSON, asks=self.line, hears=self.line)

    def heard(self) -> bytes:
        return self.line.people.text.encode("utf-8", "surrogatepass")

    def destroy(self) -> None:
        pass


class Server(ThreadingHTTPServer):
    """Takes webhooks, or is not well."""

    daemon_threads = True

    def __init__(self, codes: list[int]) -> None:
        super().__init__(("127.0.0.1", 0), Receiver)
        self.codes = codes
        self.heard = b""
        self.turn = threading.Lock()


class Receiver(BaseHTTPRequestHandler):
    """Answers with the next code."""

    server: Server

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        with self.server.turn:
            self.server.heard += bytes(self.headers) + body
            code = self.server.codes.pop(0) if self.server.codes else 200
        self.send_response(code)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


class OverTheWeb:
    """:class:`holdfast.approvers.Webhook`, to a server on this machine."""

    person, secrets, terminal = PERSON, (KEY,), False

    def __init__(self) -> None:
        self.server: Server | None = None

    def open(self, says: Sequence[Said]) -> AnyApprover:
        if {"yes", "no"} & set(says):
            raise NotApplicable("a webhook only tells: people decide elsewhere")
        attempts = 2
        codes = [code for said in says for code in ([503] * attempts if said == "down" else [200])]
        self.server = Server(codes)
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.01,))
        self.thread.start()
        url = f"http://127.0.0.1:{self.server.server_address[1]}/hook"
        return Webhook(url, secret=hf.Secret(KEY, name="hook"), attempts=attempts, backoff=0.001)

    def heard(self) -> bytes:
        assert self.server is not None
        with self.server.turn:
            return self.server.heard

    def destroy(self) -> None:
        if self.server is not None:
            self.server.shutdown()
            self.thread.join()
            self.server.server_close()
            self.server = None
