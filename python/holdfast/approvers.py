"""Approvers that come with Holdfast: they tell people of requests, at a terminal or by a signed webhook.

Register one with ``rt.approver(timeout=...)(approver)``. Whatever happens to it, nothing is released by
that: the request stands, and anybody who may decide can do so from elsewhere.
"""

from __future__ import annotations

import base64
import getpass
import json
import sys
import threading
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, TextIO
from urllib.parse import urlsplit

from holdfast import _core
from holdfast.gateway.people import Approve, Deny

if TYPE_CHECKING:
    from holdfast.gateway.people import Request
    from holdfast.secrets import Secret

PASSING = frozenset((408, 425, 429, 500, 502, 503, 504))
"""Answers after which another try may come to something else."""
HERE = frozenset(("127.0.0.1", "localhost", "::1"))
"""Names of this machine: what is sent there crosses no line."""


class Console:
    """Asks whoever sits at this terminal. Without one nobody is told: it raises, and the request stands.

    Args:
        by: who sits there; the system's user, unless given.
        asks, hears: where the question goes and the answer comes from.
    """

    __name__ = "console"

    def __init__(
        self, *, by: str | None = None, asks: TextIO | None = None, hears: TextIO | None = None
    ) -> None:
        self._by = by
        self._asks = asks
        self._hears = hears
        self._one_at_a_time = threading.Lock()

    def __call__(self, request: Request) -> Approve | Deny | None:
        """Shows what the decision is bound to, and waits for yes or no.

        Raises:
            EOFError: there is no terminal, or nobody at it any more.
        """
        asks, hears = self._asks or sys.stderr, self._hears or sys.stdin
        if hears is None or (self._hears is None and not hears.isatty()):
            raise EOFError("there is no terminal to ask at")
        with self._one_at_a_time:
            # As ASCII, so that nothing in it can move the cursor or hide.
            shown = json.dumps({"arguments": request.arguments, "tool": request.tool, "risk": request.risk})
            asks.write(f"{request.id} in {request.run}\n  {shown}\napprove? [y/n, enter: later] ")
            asks.flush()
            line = hears.readline()
        if not line:
            raise EOFError("nobody is at the terminal any more")
        said = line.strip().lower()
        by = self._by or getpass.getuser()
        if said in ("y", "yes"):
            return Approve(by=by, reason="at the console")
        return Deny(by=by, reason="at the console") if said in ("n", "no") else None


class Webhook:
    """Tells a URL of each request, signed as Standard Webhooks has it, and tries again while it is down.

    The receiver checks ``webhook-signature`` over ``{webhook-id}.{webhook-timestamp}.{body}``; the id is the
    request's, so that one which comes twice is known. It answers nothing that counts: people decide with
    ``holdfast approvals``, or through a program of yours that calls ``rt.approvals``.

    Args:
        url: where to; ``https``, or ``http`` on this machine.
        secret: what the signature is made with.
        attempts: how often it is tried.
        backoff: seconds before the second try; they double.
        arguments: whether the request's arguments are sent along.
    """

    __name__ = "webhook"

    def __init__(
        self,
        url: str,
        *,
        secret: Secret[str] | Secret[bytes],
        attempts: int = 5,
        backoff: float = 0.5,
        timeout: float = 10.0,
        arguments: bool = True,
    ) -> None:
        where = urlsplit(url)
        safe = where.scheme == "https" or (where.scheme == "http" and where.hostname in HERE)
        if not safe or not where.hostname or "@" in where.netloc:
            raise ValueError("a webhook's url is https, or http on this machine, and names no user")
        if attempts < 1:
            raise ValueError("a webhook is tried at least once")
        self._url, self._secret, self._timeout = url, secret, timeout
        self._attempts, self._backoff, self._arguments = attempts, backoff, arguments

    def __call__(self, request: Request) -> None:
        """Sends it; raises if nobody took it."""
        from urllib.error import HTTPError, URLError  # it takes long to import, and few programs need it

        told = asdict(request)
        if not self._arguments:
            del told["arguments"]
        body = json.dumps({"type": "approval.requested", "data": told}, sort_keys=True).encode()
        for left in reversed(range(self._attempts)):
            try:
                return self._send(request.id, body)
            except (HTTPError, URLError, TimeoutError, ConnectionError) as error:
                final = isinstance(error, HTTPError) and error.code not in PASSING
                if isinstance(error, HTTPError):
                    error.close()
                if final or not left:
                    raise ConnectionError(f"the webhook was not taken: {type(error).__name__}") from None
            threading.Event().wait(self._backoff * 2 ** (self._attempts - 1 - left))
        return None

    def _send(self, name: str, body: bytes) -> None:
        from urllib.request import Request as HttpRequest
        from urllib.request import urlopen

        at = str(int(time.time()))
        value = self._secret.reveal()
        key = value.encode() if isinstance(value, str) else value
        signed = _core.hmac_sha256(key, f"{name}.{at}.".encode() + body)
        headers = {
            "Content-Type": "application/json",
            "webhook-id": name,
            "webhook-signature": f"v1,{base64.b64encode(signed).decode()}",
            "webhook-timestamp": at,
        }
        asked = HttpRequest(self._url, body, headers, method="POST")  # noqa: S310 (checked above)
        with urlopen(asked, timeout=self._timeout) as answer:  # noqa: S310
            answer.read(1024)


def check_signature(secret: str | bytes, headers: dict[str, Any], body: bytes) -> bool:
    """For receivers: whether a webhook is signed with the secret."""
    key = secret.encode() if isinstance(secret, str) else secret
    signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
    expected = base64.b64encode(_core.hmac_sha256(key, signed)).decode()
    given = str(headers["webhook-signature"]).split()
    return any(len(one) == len(expected) + 3 and one == f"v1,{expected}" for one in given)
