"""A process beside a server's main one, which clients reach: HTTP, JSON and tokens are its work.

It answers completions as the main process does where it is alone (`api.py`), with engines at the
other end of a link. A connection that asks anything else goes to the main process for good.
"""

from __future__ import annotations

import mmap
import os
import socket
from itertools import count
from multiprocessing.connection import Connection
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from sharegen.common import confined
from sharegen.engine.text.vocabulary import Vocabulary
from sharegen.errors import SharegenError
from sharegen.job.machine import tokenizer_of
from sharegen.serve.api import Api, json_answer
from sharegen.serve.asked import Reader
from sharegen.serve.engine_loop import for_serving
from sharegen.serve.faults import Refusal
from sharegen.serve.handing import hand_over
from sharegen.serve.http_messages import Asked, Changed, End, Left, Open, Opened, Prepare, Told
from sharegen.serve.link import Link
from sharegen.serve.listening import Listener
from sharegen.serve.metrics import ServerCounts
from sharegen.serve.ticket import Ticket
from sharegen.workload import chat


class LinkedEngines:
    """Engines at the other end of a link, as `api.py` asks them."""

    def __init__(self, link: Link, prepared: Prepare) -> None:
        self.keys = count(prepared.place, prepared.processes)
        self.ends = False
        self._link = link
        self._tickets: dict[int, Ticket] = {}

    def submit(self, ticket: Ticket) -> None:
        """A ticket is sent to the main process."""
        self._tickets[ticket.requests[0].key] = ticket
        self._link.say(Asked(ticket.requests, ticket.streams))

    def cancel(self, ticket: Ticket) -> None:
        """Nobody waits for a ticket any more."""
        key = ticket.requests[0].key
        if self._tickets.pop(key, None) is not None:
            self._link.say(Left(key))

    def hear(self, told: Told) -> None:
        """There are news of a ticket."""
        ticket = self._tickets.get(told.key)
        if ticket is None:
            return
        ticket.left -= len(told.finished)
        if told.error is not None or not ticket.left:
            del self._tickets[told.key]
        ticket.put(told.news(ticket.requests))


class _HttpProcess:
    """The process as a whole. channel: where connections are handed over; line: to the main
    process; sock: where clients come; counts: the server's."""

    def __init__(
        self,
        prepared: Prepare,
        tokenizer: Any,
        opened: Open,
        channel: socket.socket,
        line: socket.socket,
        sock: socket.socket,
        counts: ServerCounts,
    ) -> None:
        self._line = line
        self._link = Link(self._hear, lambda: os._exit(1))  # nobody is left to answer
        self._engines = LinkedEngines(self._link, prepared)
        limits, names = prepared.limits, prepared.names
        reader = Reader(prepared.configuration, tokenizer, names, opened.context, limits)
        self._api = Api(
            self._engines, reader, names[0], opened.fingerprint, tokenizer,
            Vocabulary.of(tokenizer).utf8, limits, prepared.key, prepared.is_local, counts,
        )  # fmt: skip
        self._api.add([Route("/{path:path}", _elsewhere)])
        self.listener = Listener(
            self._api.app, sock, limits, counts, [self._connect],
            lambda client, received: hand_over(channel, client, received),
        )  # fmt: skip

    async def _connect(self) -> None:
        await self.listener.loop.create_connection(lambda: self._link, sock=self._line)

    def _hear(self, message: object) -> None:
        match message:
            case Told():
                self._engines.hear(message)
            case Changed():
                self._api.fingerprint = message.fingerprint
            case End():
                self._api.ends = True
                self.listener.end(message.at_once)


async def _elsewhere(request: Request) -> Response:
    """Whoever sends requests before the answers to others are there, and not completions alone."""
    said = "this was sent before the answer to another request was there: ask it again"
    answer = json_answer(Refusal(421, said).body, 421)
    answer.headers["connection"] = "close"
    return answer


def main(descriptor: int) -> None:
    """The process: the main one is at the other end of its descriptor."""
    channel = socket.socket(fileno=descriptor)
    _, descriptors, _, _ = socket.recv_fds(channel, 1, 3)
    if len(descriptors) < 3:
        return  # the main process is gone
    line, listening, memory = descriptors
    said = Connection(os.dup(line))
    try:
        prepared: Prepare = said.recv()
        tokenizer = tokenizer_of(prepared.configuration, computes=False)
        confined.prepare(chat.render)
        opened: Open = said.recv()
    except (EOFError, SharegenError):
        return  # the main process is gone, or says itself what is wrong with the model
    counts = ServerCounts(mmap.mmap(memory, 0), prepared.place)
    process = _HttpProcess(
        prepared, tokenizer, opened, channel, socket.socket(fileno=line),
        socket.socket(fileno=listening), counts,
    )  # fmt: skip
    said.send(Opened())
    said.close()
    with for_serving():
        process.listener.start()
        process.listener.join(None)
