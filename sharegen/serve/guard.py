"""Who may ask: what stands before every endpoint."""

from __future__ import annotations

import hmac
import json
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sharegen.serve.faults import Refusal
from sharegen.serve.limits import Limits
from sharegen.serve.metrics import ServerCounts

_OPEN = ("/health",)  # for whoever watches over the server
_LOCAL = ("localhost", "127.0.0.1", "[::1]")


class Guard:
    """Turns away who has no key, and on a loopback address who was sent by another site's page.

    Such a page can ask a server of its reader's machine by a name of its own that it lets point
    there (DNS rebinding); the name gives it away. It can also send forms and empty bodies anywhere;
    browsers say then where it comes from. key: what clients bring, or None.
    """

    def __init__(
        self, app: ASGIApp, key: str | None, is_local: bool, limits: Limits, counts: ServerCounts
    ) -> None:
        self._app = app
        self._limits = limits
        self._key = None if key is None else f"Bearer {key}".encode()
        self._is_local = is_local
        self._counts = counts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._counts.answer(message["status"])
            await send(message)

        refusal = self._refusal(scope)
        if refusal is None:
            await self._app(scope, receive, counted)
            return
        # The connection stays open: closed before a large body is sent, it would take the answer
        # with it.
        body = json.dumps(refusal.body).encode()
        headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
        await counted({"type": "http.response.start", "status": refusal.status, "headers": headers})
        await counted({"type": "http.response.body", "body": body})

    def _refusal(self, scope: Scope) -> Refusal | None:
        most = self._limits.headers
        if sum(len(name) + len(value) for name, value in scope["headers"]) > most:
            return Refusal(
                431, f"the headers have more than {most:,} bytes (--max-headers): send less"
            )
        if self._counts.total("connections") > self._limits.connections:
            return Refusal(
                503,
                f"{self._limits.connections:,} connections are open already (--max-connections): "
                "ask again later, or close some",
            )
        given: dict[bytes, Any] = dict(scope["headers"])
        if self._key is not None and scope["path"] not in _OPEN:
            brought = given.get(b"authorization", b"")
            if not hmac.compare_digest(brought, self._key):
                what = "wrong API key" if brought else "this server takes an API key"
                return Refusal(
                    401, f"{what}: send it as `Authorization: Bearer KEY`", code="invalid_api_key"
                )
        if self._key is None and b"origin" in given:  # the page of a site, which has one of its own
            origin = given[b"origin"].decode("latin-1").partition("://")[2]
            if origin.lower() != given.get(b"host", b"").decode("latin-1").lower():
                return Refusal(
                    403,
                    "this server was asked by a page of another site: give it an --api-key, "
                    "which such a page does not have",
                )
        if self._key is None and self._is_local:
            host = given.get(b"host", b"localhost").decode("latin-1")
            name = host if host.endswith("]") else host.rpartition(":")[0] or host
            if name.lower() not in _LOCAL:
                return Refusal(
                    403,
                    f"this server answers as localhost, and was asked as {name!r:.80}: give it an "
                    "--api-key to ask it by another name",
                )
        return None
