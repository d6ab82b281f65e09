"""The endpoint: HTTP requests in, tickets to the engine, answers out.

All of it runs in the thread that listens, on one event loop; what a body costs to read (templates,
tokenising) in a second thread, and in a third where the body is large: to tokenise megabytes takes
seconds, for which nobody else waits. A body that was read before is not read again.
"""

from __future__ import annotations

import asyncio
import random
import sys
import time
import traceback
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import BaseRoute, Route
from starlette.types import Receive, Scope, Send

from sharegen.engine.core.request import Request as EngineRequest
from sharegen.results.export.openai import Answerer, Endpoint, Spell
from sharegen.serve.answers import ServedAnswer, as_json, event
from sharegen.serve.asked import ParsedRequest, Reader
from sharegen.serve.bodies import Bodies
from sharegen.serve.faults import Refusal
from sharegen.serve.guard import Guard
from sharegen.serve.limits import Limits
from sharegen.serve.metrics import ServerCounts
from sharegen.serve.read_bodies import ReadBodies
from sharegen.serve.ticket import Engines, News, Ticket

_LARGE = 256 << 10  # bytes of a body that others do not wait for


class Api:
    """The endpoints of completions, and what stands before all others.

    engines: what answers. name: of the model. key: what clients have to bring, or None. is_local:
    whether it listens on this machine alone.
    """

    def __init__(
        self,
        engines: Engines,
        reader: Reader,
        name: str,
        fingerprint: str,
        tokenizer: Any,
        spell: Spell,
        limits: Limits,
        key: str | None,
        is_local: bool,
        counts: ServerCounts,
    ) -> None:
        self.counts = counts
        self.ends = False  # whether new requests are turned away
        self._engines, self._reader, self._limits = engines, reader, limits
        self._name, self.fingerprint = name, fingerprint
        self._tokenizer, self._spell = tokenizer, spell
        # Names of answers. Whoever asks the system for random numbers lets another thread have
        # Python meanwhile, and waits for it: 0.1 to 0.2 ms under load.
        self._random = random.Random()
        self.bodies = Bodies(limits, counts)
        self._read = ReadBodies(self._begin_to_read)
        self._reading = ThreadPoolExecutor(1, thread_name_prefix="sharegen-read")
        self._reading_large = ThreadPoolExecutor(1, thread_name_prefix="sharegen-read-large")
        guard = Middleware(Guard, key=key, is_local=is_local, limits=limits, counts=counts)
        self.app = Starlette(
            routes=[
                Route("/v1/completions", partial(self._complete, "text"), methods=["POST"]),
                Route("/v1/chat/completions", partial(self._complete, "chat"), methods=["POST"]),
            ],
            middleware=[guard],
            exception_handlers={
                Refusal: _refused,
                ClientDisconnect: _left,
                HTTPException: _no_such,
                Exception: _broken,
            },
        )

    def add(self, routes: Sequence[BaseRoute]) -> None:
        """Answer more paths. Before the first request."""
        self.app.router.routes.extend(routes)

    def tell(self, news: list[tuple[Ticket, News]]) -> None:
        """Hand out what the engine has told. In the thread that listens."""
        for ticket, each in news:
            ticket.put(each)

    # -- completions ------------------------------------------------------------------------------

    async def _complete(self, endpoint: Endpoint, request: Request) -> Response:
        self.counts.change("open", 1)
        stream: Response | None = None
        try:
            self._refuse_more()
            asked = await self._asked(endpoint, request)
            answer, ticket = self.submit(asked, asked.requests(self._engines.keys.__next__))
            if not asked.delivery.stream:
                return json_answer(await self._whole(request, answer, ticket))
            stream = await self._stream(request, answer, ticket)
            return stream
        except ClientDisconnect:
            self.counts.change("left", 1)
            return Response(status_code=499)  # which nobody reads
        finally:
            if stream is None:
                self.counts.change("open", -1)

    def _refuse_more(self) -> None:
        if self.ends or self._engines.ends:
            raise Refusal(503, "the server is ending: ask another one")
        if self.counts.total("open") > self._limits.requests:
            raise Refusal(
                429,
                f"{self._limits.requests:,} requests wait or run already (--max-requests): ask "
                "again later",
                code="too_many_requests",
            )

    async def _asked(self, endpoint: Endpoint, request: Request) -> ParsedRequest:
        async with self.bodies.of(request) as body:
            return await self._read.read(endpoint, body)

    def _begin_to_read(self, endpoint: Endpoint, body: bytes) -> asyncio.Future[ParsedRequest]:
        by = self._reading if len(body) <= _LARGE else self._reading_large
        loop = asyncio.get_running_loop()
        return loop.run_in_executor(by, self._reader.read, endpoint, body)

    def submit(
        self, asked: ParsedRequest, requests: Sequence[EngineRequest]
    ) -> tuple[ServedAnswer, Ticket]:
        """Send requests to the engines; the ticket tells what comes of them, the answer adds up."""
        ticket = Ticket(requests, streams=bool(asked.delivery.stream))
        created = int(time.time())

        def by() -> Answerer:
            return Answerer(self._name, self.fingerprint, created)

        name = f"{self._random.getrandbits(128):032x}"
        answer = ServedAnswer(asked, requests, name, by, self._tokenizer, self._spell)
        self._engines.submit(ticket)
        return answer, ticket

    async def _whole(
        self, request: Request, answer: ServedAnswer, ticket: Ticket
    ) -> dict[str, Any]:
        """The answer when all of it is there. Raises Refusal, or ClientDisconnect."""
        gone = _leaving(ticket, request)
        try:
            while not answer.is_whole:
                answer.add((await _next(ticket)).finished)
        finally:
            gone.cancel()
            if not answer.is_whole:
                self._engines.cancel(ticket)
        if answer.error is not None:
            raise Refusal(500, answer.error)
        return answer.body()

    async def _stream(self, request: Request, answer: ServedAnswer, ticket: Ticket) -> Response:
        """The answer from its first token on: what is wrong before it is no stream."""
        gone = _leaving(ticket, request)
        try:
            first = await _next(ticket)
        except BaseException:
            self._engines.cancel(ticket)
            raise
        finally:
            gone.cancel()
        return _Stream(_events(answer, ticket, first), partial(self._end_stream, answer, ticket))

    def _end_stream(self, answer: ServedAnswer, ticket: Ticket) -> None:
        self.counts.change("open", -1)
        if not answer.is_whole:
            self.counts.change("left", 1)
            self._engines.cancel(ticket)


class _Stream(StreamingResponse):
    """Server-sent events. end: called when the client has them all, or has gone, whatever comes."""

    def __init__(self, events: AsyncIterator[bytes], end: Callable[[], None]) -> None:
        super().__init__(events, media_type="text/event-stream")
        self._end = end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._end()


async def _events(answer: ServedAnswer, ticket: Ticket, news: News) -> AsyncIterator[bytes]:
    """The events of a stream, from the first news on."""
    while True:
        said = b"".join(map(event, answer.chunks(news)))
        if said:
            yield said
        if answer.is_whole:
            break
        news = await ticket.news()
        if news.error is not None:
            yield event(_failure(news).body)
            return
    if answer.error is not None:
        yield event(Refusal(500, answer.error).body)
        return
    if answer.asked.delivery.with_usage:
        yield event(answer.usage_chunk())
    yield event("[DONE]")


async def _next(ticket: Ticket) -> News:
    """The next news of a ticket. Raises Refusal for an error, ClientDisconnect if nobody waits."""
    news = await ticket.news()
    if ticket.is_left:
        raise ClientDisconnect
    if news.error is not None:
        raise _failure(news)
    return news


def _leaving(ticket: Ticket, request: Request) -> asyncio.Future[None]:
    """What tells a ticket when its client has gone, until it is cancelled."""

    def tell(gone: asyncio.Future[None]) -> None:
        if not gone.cancelled():
            ticket.leave()

    gone = asyncio.ensure_future(disconnected(request))
    gone.add_done_callback(tell)
    return gone


async def disconnected(request: Request) -> None:
    """Wait until the client has gone; all of its body was read."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def refusing(paths: Sequence[str], refusal: Refusal) -> list[BaseRoute]:
    """Paths that are there only where the server was started so."""

    async def refuse(request: Request) -> Response:
        raise refusal

    return [Route(path, refuse, methods=["GET", "POST", "DELETE"]) for path in paths]


def _failure(news: News) -> Refusal:
    assert news.error is not None
    return Refusal(500 if news.is_ours else 400, news.error)


def json_answer(values: Any, status: int = 200) -> Response:
    """The JSON of an object."""
    return Response(as_json(values), status, media_type="application/json")


async def _left(request: Request, error: Exception) -> Response:
    return Response(status_code=499)  # which nobody reads


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, Refusal)
    response = json_answer(error.body, error.status)
    if error.status == 429:
        response.headers["retry-after"] = "1"
    if error.status in (408, 413):
        response.headers["connection"] = "close"  # the rest of the body is not read
    return response


async def _broken(request: Request, error: Exception) -> Response:
    """A defect of the server's own: where it is goes to stderr, without its words, which may be a
    prompt's."""
    place = "".join(traceback.format_tb(error.__traceback__))
    print(f"sharegen: {type(error).__name__} in an answer, at\n{place}", end="", file=sys.stderr)
    said = f"the server has a defect: {type(error).__name__}; its stderr says where"
    return json_answer(Refusal(500, said).body, 500)


async def _no_such(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    path, allowed = repr(request.url.path)[:80], (error.headers or {}).get("Allow", "")
    use = " or ".join(sorted(allowed.split(", ")))
    said = {
        404: f"there is no {path} here",
        405: f"{path} does not take {request.method}: use {use}",
    }
    refusal = Refusal(error.status_code, said.get(error.status_code, error.detail))
    response = json_answer(refusal.body, error.status_code)
    response.headers.update(error.headers or {})
    return response
