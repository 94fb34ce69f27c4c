"""A little payment provider, as a process of its own: it books refunds, and answers questions about them.

It books whatever it is told, as often as it is told: it honours no key. It answers the first refund of an
order only when it is let go, so that there is a moment in which money has moved and nobody knows.
"""

from __future__ import annotations

import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlparse


class Books:
    """The provider's own ledger."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.refunds: list[dict[str, Any]] = []
        self.slow = threading.Event()
        """Whether answers are given at once."""

    def book(self, order: str, cents: int, key: str) -> dict[str, Any]:
        """Moves money."""
        with self._lock:
            refund = {"id": f"re_{len(self.refunds) + 1}", "order": order, "cents": cents, "key": key}
            self.refunds.append(refund)
            return refund


class Desk(BaseHTTPRequestHandler):
    """What it is asked over HTTP."""

    books: Books

    def do_POST(self) -> None:
        """``/refunds`` books one; ``/answer`` lets answers go."""
        told = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or "{}")
        if self.path == "/answer":
            self.books.slow.set()
            return self._say({})
        refund = self.books.book(told["order"], told["cents"], told["key"])
        self.books.slow.wait(timeout=120)
        return self._say(refund)

    def do_GET(self) -> None:
        """``/refunds``, all of them or those of a key."""
        wanted = parse_qs(urlparse(self.path).query).get("key")
        return self._say([refund for refund in self.books.refunds if not wanted or refund["key"] in wanted])

    def _say(self, value: object) -> None:
        body = json.dumps(value).encode()
        try:
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
        except OSError:
            return  # whoever asked is dead

    def log_message(self, *_: object) -> None:
        """Says nothing."""


def main() -> None:
    """Serves on a free port of this machine, says which, and ends with its standard input."""
    Desk.books = Books()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Desk)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    sys.stdout.write(f"http://127.0.0.1:{server.server_address[1]}\n")
    sys.stdout.flush()
    sys.stdin.read()


if __name__ == "__main__":
    main()
