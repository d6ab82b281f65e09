"""The bodies of requests: of no more bytes, and in no more time, than there may be."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager

from starlette.requests import Request

from sharegen.serve.faults import Refusal
from sharegen.serve.limits import Limits
from sharegen.serve.metrics import ServerCounts

_PASSED = 16  # times the bytes of a body that may be, which are read to say that they are too many


class Bodies:
    """What clients have sent and nobody has read yet."""

    def __init__(self, limits: Limits, counts: ServerCounts) -> None:
        self._limits, self._counts = limits, counts

    @asynccontextmanager
    async def of(self, request: Request) -> AsyncIterator[bytes]:
        """Open a block with the JSON text of a request, which counts as held meanwhile.

        Raises Refusal for another type, for too many bytes and for a client that takes too long.
        """
        check_type(request, "application/json")
        body = bytearray()
        try:
            async with in_time(self._limits.client_seconds):
                await self._receive(request, body)
            yield bytes(body)
        finally:
            self._counts.change("held", -len(body))

    async def _receive(self, request: Request, body: bytearray) -> None:
        async for chunk in bounded(request, self._limits.body, "--max-body"):
            if self._counts.total("held") + len(chunk) > self._limits.bodies:
                raise Refusal(429, "too many large requests at once: ask again later")
            self._counts.change("held", len(chunk))
            body += chunk


def check_type(request: Request, wanted: str) -> None:
    """Raise Refusal for a body of another type."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != wanted:
        raise Refusal(415, f"the body is of type {kind or 'none'!r:.80}: send {wanted}")


@asynccontextmanager
async def in_time(seconds: float) -> AsyncIterator[None]:
    """Open a block that a client may take so long for. Raises Refusal when that is over."""
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError:
        raise Refusal(408, f"the body took longer than {seconds:g} s (--client-timeout)") from None


async def bounded(request: Request, most: int, flag: str) -> AsyncGenerator[bytes, None]:
    """The pieces of a body. Raises Refusal where it has more bytes than `most`, which `flag` says.

    Whoever sends too much hears of it when all is sent, and nothing is kept: an answer before that
    would be lost with the connection.
    """
    too_large = Refusal(
        413, f"the body has more than {most:,} bytes ({flag}): send less", code="body_too_large"
    )
    said = declared_length(request)
    if said > most and "expect" in request.headers:  # it waits for a word before it sends
        raise too_large
    passed = 0
    async for chunk in request.stream():
        passed += len(chunk)
        if passed > _PASSED * most:
            raise too_large
        if max(passed, said) <= most:
            yield chunk
    if max(passed, said) > most:
        raise too_large


def declared_length(request: Request) -> int:
    """Bytes that a body says it has; 0 where it says nothing of them."""
    declared = request.headers.get("content-length", "0")
    return int(declared) if declared.isdecimal() else 0
