"""Where the server listens, and its thread: uvicorn over one socket, with bounds of our own."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import resource
import socket
import threading
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from sharegen.errors import UsageError
from sharegen.serve.limits import Limits
from sharegen.serve.metrics import ServerCounts

_BACKLOG = 4096
_PAUSE = 1.0  # seconds without new connections where the system has no room for them
_COLLECTED = 60.0
"""Seconds after which garbage is looked for, however little is new: each connection leaves some in
circles, and a server with few clients would keep that of an hour."""

_COMPLETIONS = (b"POST /v1/completions ", b"POST /v1/chat/completions ")

HandOver = Callable[[socket.socket, bytes], None]

_LOOPBACK = ("localhost", "127.0.0.1", "::1")


def is_local(host: str) -> bool:
    """Whether an address is this machine's alone."""
    return host in _LOOPBACK


def bound(host: str, port: int, limits: Limits) -> socket.socket:
    """A socket at an address, which clients cannot reach yet. Raises UsageError where it is taken.

    Whoever takes nothing of an answer for a while, or has vanished, is dropped by the system.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio sends at once, and not when the client has confirmed what came before, only where the
    # protocol is named.
    found = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        milliseconds = int(1000 * limits.client_seconds)
        found.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, milliseconds)
    try:
        found.bind((host, port))
    except (OSError, OverflowError) as error:
        found.close()
        why = getattr(error, "strerror", None) or str(error)
        raise UsageError(
            f"--host {host} --port {port}: cannot listen there: {why}: choose another --port"
        ) from None
    return found


class _Server(uvicorn.Server):
    """uvicorn's, over a socket from which other processes may take connections, too.

    So it takes one at a time: whoever is busy leaves the others to those that are not.
    """

    def __init__(self, config: uvicorn.Config, sock: socket.socket, accepts: bool) -> None:
        super().__init__(config)
        self._sock, self._accepts = sock, accepts
        self._connecting: set[asyncio.Task[Any]] = set()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=[])
        if self._accepts:
            self.accept()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        asyncio.get_running_loop().remove_reader(self._sock)
        self._sock.close()
        await super().shutdown(sockets=[])

    def accept(self) -> None:
        """Take connections from the socket."""
        if not self.should_exit:
            self._sock.setblocking(False)
            asyncio.get_running_loop().add_reader(self._sock, self._accept_one)

    def _accept_one(self) -> None:
        try:
            client, _ = self._sock.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return  # another process was faster, or the client is gone
        except OSError:  # no descriptors, or no memory: some may be free in a while
            loop = asyncio.get_running_loop()
            loop.remove_reader(self._sock)
            loop.call_later(_PAUSE, self.accept)
            return
        self.take(client)

    def take(self, client: socket.socket, received: bytes = b"") -> None:
        """Answer at a connection. received: what was read of it already."""
        client.setblocking(False)
        loop = asyncio.get_running_loop()

        def protocol() -> asyncio.Protocol:
            made = self.config.http_protocol_class(  # type: ignore[call-arg, operator]
                config=self.config, server_state=self.server_state,
                app_state=self.lifespan.state, _loop=loop,
            )  # fmt: skip
            made.received = received  # type: ignore[attr-defined]
            return made  # type: ignore[no-any-return]

        task = loop.create_task(loop.connect_accepted_socket(protocol, client))
        self._connecting.add(task)
        task.add_done_callback(self._connecting.discard)


class Listener:
    """The thread that listens. app: what answers; sock: where, bound already.

    besides: what runs on the same event loop, and ends by itself when it is told to. hand_over:
    given a connection whose next request is no completion, and what was read of it; None where
    all are answered here. accepts: whether connections are taken from the socket.
    """

    def __init__(
        self,
        app: Any,
        sock: socket.socket,
        limits: Limits,
        counts: ServerCounts,
        besides: Sequence[Callable[[], Awaitable[None]]] = (),
        hand_over: HandOver | None = None,
        accepts: bool = True,
    ) -> None:
        self._besides = besides
        _allow_descriptors(limits.connections)
        config = uvicorn.Config(
            app,
            http=_protocol(limits, counts, hand_over),
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            log_level="critical",
            server_header=False,
            proxy_headers=False,  # who asks is nobody's business here
            h11_max_incomplete_event_size=limits.headers,
            timeout_graceful_shutdown=max(1, int(limits.grace)),
            timeout_keep_alive=max(1, int(limits.client_seconds)),
        )
        self.server = _Server(config, sock, accepts)
        sock.listen(_BACKLOG)  # from here on clients wait, and are not turned away
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="sharegen-serve", daemon=True)

    def start(self) -> None:
        """Begin to answer."""
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        with contextlib.suppress(asyncio.CancelledError):
            self.loop.run_until_complete(self._serve())

    async def _serve(self) -> None:
        besides = [asyncio.ensure_future(beside()) for beside in self._besides]
        collecting = asyncio.ensure_future(_collect())
        await self.server.serve()
        collecting.cancel()
        await asyncio.gather(*besides)

    @property
    def is_over(self) -> bool:
        """Whether nobody listens any more, and all were answered."""
        return not self._thread.is_alive()

    def end(self, at_once: bool = False) -> None:
        """Take no more connections; those that are open have their grace, or none."""
        self.server.should_exit = True
        self.server.force_exit = self.server.force_exit or at_once

    def join(self, seconds: float | None) -> None:
        """Wait until it is over, so long at most; it may not have begun."""
        if self._thread.ident is not None:
            self._thread.join(seconds)


async def _collect() -> None:
    while True:
        await asyncio.sleep(_COLLECTED)
        gc.collect()


def _allow_descriptors(connections: int) -> None:
    """Let the process have as many sockets as there may be connections, if the system does."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + 512  # files of its own
    if soft < wanted:
        most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, most), hard))


class _Connection(h11.Connection):
    """h11's, where the head of an answer leaves with its body: one packet for the client, not two.

    Not that of a stream, whose first piece may come later. What h11 raises for bytes that are no
    HTTP holds itself, by its traceback, and so the connection, until garbage is collected: here it
    is raised without.
    """

    def __init__(self, most: int) -> None:
        super().__init__(h11.SERVER, most)
        self._head: list[bytes] = []

    def next_event(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        try:
            return super().next_event()
        except h11.RemoteProtocolError as error:
            raise error.with_traceback(None) from None

    def send_with_data_passthrough(self, event: h11.Event) -> list[bytes] | None:
        data = super().send_with_data_passthrough(event)
        if isinstance(event, h11.Response) and _has_length(event):
            self._head = data or []
            return []
        if self._head and data is not None:
            data, self._head = [*self._head, *data], []
        return data


def _has_length(answer: h11.Response) -> bool:
    return any(name == b"content-length" for name, _ in answer.headers)


def _protocol(
    limits: Limits, counts: ServerCounts, hand_over: HandOver | None
) -> type[H11Protocol]:
    """uvicorn's, for clients that send the head of a request within so many seconds, and so what is
    left of a body that was answered before its end."""

    class Protocol(H11Protocol):
        received = b""
        _late: asyncio.TimerHandle | None = None

        def __init__(self, config: uvicorn.Config, *args: Any, **named: Any) -> None:
            super().__init__(config, *args, **named)
            self.conn = _Connection(limits.headers)

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            counts.change("connections", 1)
            self._watch()
            if self.received:
                self.data_received(self.received)

        def data_received(self, data: bytes) -> None:
            if hand_over is not None and self._begins_for_others(data):
                self._unset_keepalive_if_required()
                with contextlib.suppress(OSError):  # nobody takes it any more
                    hand_over(self.transport.get_extra_info("socket"), data)
                self.transport.abort()  # which closes this process's end alone
                return
            super().data_received(data)
            self._watch()

        def _begins_for_others(self, data: bytes) -> bool:
            """Whether a request begins that is no completion, and all before it is answered."""
            return not (
                data.startswith(_COMPLETIONS)
                or self.conn.their_state is not h11.IDLE
                or self.conn.trailing_data[0]
                or self.transport.get_write_buffer_size()  # type: ignore[attr-defined]
            )

        def connection_lost(self, exc: Exception | None) -> None:
            self._let_be()
            counts.change("connections", -1)
            super().connection_lost(exc)

        def _watch(self) -> None:
            theirs = self.conn.their_state
            is_unread = theirs is h11.SEND_BODY and self.conn.our_state is h11.DONE
            if theirs is not h11.IDLE and not is_unread:  # the head is there: bodies have a timer
                self._let_be()
            elif self._late is None:
                seconds = limits.client_seconds
                self._late = self.loop.call_later(seconds, self.transport.close)

        def _let_be(self) -> None:
            if self._late is not None:
                self._late.cancel()
                self._late = None

    return Protocol
