"""Where the server listens, and its thread: uvicorn over one socket, with bounds of our own."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import socket
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from sharegen.errors import UsageError
from sharegen.serve.limits import Limits

_BACKLOG = 4096
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


class Listener:
    """The thread that listens. app: what answers; sock: where, bound already.

    beside: what runs on the same event loop, and ends by itself when it is told to.
    """

    def __init__(
        self,
        app: Any,
        sock: socket.socket,
        limits: Limits,
        beside: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self._beside = beside
        _allow_descriptors(limits.connections)
        config = uvicorn.Config(
            app,
            http=_protocol(limits.client_seconds, limits.headers),
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            log_level="critical",
            server_header=False,
            proxy_headers=False,  # who asks is nobody's business here
            backlog=_BACKLOG,
            limit_concurrency=limits.connections,
            h11_max_incomplete_event_size=limits.headers,
            timeout_graceful_shutdown=max(1, int(limits.grace)),
            timeout_keep_alive=max(1, int(limits.client_seconds)),
        )
        self.server = uvicorn.Server(config)
        self._sock = sock
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
        beside = None if self._beside is None else asyncio.ensure_future(self._beside())
        await self.server.serve(sockets=[self._sock])
        if beside is not None:
            await beside

    @property
    def is_over(self) -> bool:
        """Whether nobody listens any more, and all were answered."""
        return not self._thread.is_alive()

    def end(self, at_once: bool = False) -> None:
        """Take no more connections; those that are open have their grace, or none."""
        self.server.should_exit = True
        self.server.force_exit = self.server.force_exit or at_once

    def join(self, seconds: float) -> None:
        """Wait until it is over, so long at most; it may not have begun."""
        if self._thread.ident is not None:
            self._thread.join(seconds)


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

    Not that of a stream, whose first piece may come later.
    """

    def __init__(self, most: int) -> None:
        super().__init__(h11.SERVER, most)
        self._head: list[bytes] = []

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


def _protocol(seconds: float, most: int) -> type[H11Protocol]:
    """uvicorn's, for clients that send the head of a request within so many seconds, and so what is
    left of a body that was answered before its end. most: bytes of the head."""

    class Protocol(H11Protocol):
        _late: asyncio.TimerHandle | None = None

        def __init__(self, config: uvicorn.Config, *args: Any, **named: Any) -> None:
            super().__init__(config, *args, **named)
            self.conn = _Connection(most)

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._watch()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self._watch()

        def connection_lost(self, exc: Exception | None) -> None:
            self._let_be()
            super().connection_lost(exc)

        def _watch(self) -> None:
            theirs = self.conn.their_state
            is_unread = theirs is h11.SEND_BODY and self.conn.our_state is h11.DONE
            if theirs is not h11.IDLE and not is_unread:  # the head is there: bodies have a timer
                self._let_be()
            elif self._late is None:
                self._late = self.loop.call_later(seconds, self.transport.close)

        def _let_be(self) -> None:
            if self._late is not None:
                self._late.cancel()
                self._late = None

    return Protocol
