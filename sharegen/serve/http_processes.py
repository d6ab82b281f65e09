"""The processes that clients reach, as the main one has them: it has the engines, and all else.

What they ask comes as tickets of the one engine loop; a connection that asks anything but
completions is handed over. Whoever dies costs its own clients their answers. The last one's place
is taken by the main process.
"""

from __future__ import annotations

import asyncio
import mmap
import os
import socket
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from multiprocessing.connection import Connection

from sharegen.common.cores import available_cores
from sharegen.engine.core.request import Request
from sharegen.engine.parallel.early import begin
from sharegen.errors import SharegenError, UsageError
from sharegen.serve.handing import Receiving, channel
from sharegen.serve.http_messages import Asked, Changed, End, Left, Open, Opened, Prepare, Told
from sharegen.serve.link import Link
from sharegen.serve.metrics import ServerCounts
from sharegen.serve.ticket import Engines, News, Ticket

_PROGRAM = "sharegen.serve.http_process"
_END_SECONDS = 5.0  # for a process that was killed to be gone
_MOST = 4  # that are begun unasked: a process of the openai client asks less than one answers
_CORES_EACH = 4  # clients on the same machine take more of them than the server does

Start = Callable[[str, int], "subprocess.Popen[bytes]"]
Take = Callable[[socket.socket, bytes], None]


def beside(on_cpu: bool) -> int:
    """How many a server gets that is not told: on a CPU, or with few cores, the engines need all.

    On an H100 with 16 cores a load of 1,000 requests was 7% faster with four of them.
    """
    if on_cpu or sys.platform != "linux":
        return 0
    found = available_cores() // _CORES_EACH
    return min(found, _MOST) if found > 1 else 0


class HttpProcesses:
    """So many processes, which begin to import at once. Close them.

    prepare: what they are made from; sock: where clients come. start: starts a module with a
    descriptor.
    """

    def __init__(
        self, number: int, prepare: Prepare, sock: socket.socket, start: Start = begin
    ) -> None:
        if number and sys.platform != "linux":
            raise UsageError("--http-processes: needs Linux: leave it out")
        self.number = number
        with tempfile.TemporaryFile() as file:  # which goes when nobody has it open any more
            file.truncate(ServerCounts.size_of(number + 1))
            self.counts = ServerCounts(mmap.mmap(file.fileno(), 0))
            made = (replace(prepare, place=place) for place in range(1, number + 1))
            self._all = [
                _HttpProcess(each, sock, file.fileno(), self.counts, start) for each in made
            ]
        self._left = set(self._all)

    def open(self, opened: Open) -> None:
        """Let them answer, and wait until they do. Raises SharegenError where one does not."""
        try:
            for each in self._all:
                each.line.send(opened)
            for each in self._all:
                assert isinstance(each.line.recv(), Opened)
        except (EOFError, OSError):
            raise SharegenError(
                "an HTTP process has ended before it could answer: see above, or start the server "
                "with --http-processes 0"
            ) from None

    async def run(self, engines: Engines, take: Take, accept: Callable[[], None]) -> None:
        """Hear them until all have ended. take: takes connections over; accept: called when the
        last one is gone that was not to end."""
        waited = [asyncio.ensure_future(each.run(engines, take)) for each in self._all]
        for ended in asyncio.as_completed(waited):
            place, is_early = await ended
            self._left = {each for each in self._left if each.place != place}
            if is_early:
                warnings.warn(
                    f"HTTP process {place} is gone, and its clients' answers", stacklevel=1
                )
                if not self._left:
                    accept()

    def change(self, fingerprint: str) -> None:
        """On the event loop: the model is another one."""
        for each in self._left:
            each.link.say(Changed(fingerprint))

    def end(self, at_once: bool) -> None:
        """On the event loop: let them take nothing more, and end when all is answered."""
        for each in self._left:
            each.ends = True
            each.link.say(End(at_once))

    @property
    def pids(self) -> list[int]:
        """Their processes."""
        return [each.pid for each in self._all]

    def close(self) -> None:
        """End them at once."""
        for each in self._all:
            each.close()


class _HttpProcess:
    """One process, as the main one has it."""

    def __init__(
        self,
        prepare: Prepare,
        sock: socket.socket,
        memory: int,
        counts: ServerCounts,
        start: Start,
    ) -> None:
        self.place = prepare.place
        self.ends = False  # whether it was told to
        self.link = Link(self._hear, self._set_gone)
        self._counts = counts
        self._gone = asyncio.Event()
        self._tickets: dict[int, _RemoteTicket] = {}
        self._engines: Engines
        self._channel, theirs = channel()
        self._sock, line = socket.socketpair()
        with theirs, line:
            self._process = start(_PROGRAM, theirs.fileno())
            handed = [line.fileno(), sock.fileno(), memory]
            socket.send_fds(self._channel, [b"."], handed)
        self.pid = self._process.pid
        self.line = Connection(os.dup(self._sock.fileno()))
        with suppress(OSError):  # one that ended at once is told by its silence
            self.line.send(prepare)

    async def run(self, engines: Engines, take: Take) -> tuple[int, bool]:
        """Hear it until it is gone; its number, and whether it was not to end yet."""
        self._engines = engines
        self.line.close()
        loop = asyncio.get_running_loop()
        receiving = Receiving(self._channel, take)

        def read() -> None:
            if not receiving.read():
                loop.remove_reader(self._channel)

        loop.add_reader(self._channel, read)
        await loop.create_connection(lambda: self.link, sock=self._sock)
        await self._gone.wait()
        loop.remove_reader(self._channel)
        for ticket in list(self._tickets.values()):
            self._engines.cancel(ticket)
        self._counts.let_go(self.place)
        return self.place, not self.ends

    def _set_gone(self) -> None:
        self._gone.set()

    def _hear(self, message: object) -> None:
        match message:
            case Asked():
                ticket = _RemoteTicket(message.requests, message.streams, self._tell)
                self._tickets[ticket.key] = ticket
                self._engines.submit(ticket)
            case Left():
                left = self._tickets.pop(message.key, None)
                if left is not None:
                    self._engines.cancel(left)

    def _tell(self, ticket: _RemoteTicket, news: News) -> None:
        if self._tickets.get(ticket.key) is ticket:
            self.link.say(Told.of(ticket.key, news))
            ticket.unfinished -= len(news.finished)
            if news.error is not None or not ticket.unfinished:
                del self._tickets[ticket.key]

    def close(self) -> None:
        self._process.kill()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_SECONDS)
        for each in (self._sock, self._channel, self.line):
            each.close()


class _RemoteTicket(Ticket):
    """One of another process, which its news are sent to. unfinished: samples it has no news of."""

    def __init__(
        self,
        requests: Sequence[Request],
        streams: bool,
        tell: Callable[[_RemoteTicket, News], None],
    ) -> None:
        super().__init__(requests, streams)
        self.key = requests[0].key
        self.unfinished = self.left
        self._tell = tell

    def put(self, news: News) -> None:
        self._tell(self, news)
