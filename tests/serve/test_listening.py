"""The thread that listens: it can be told to end before it has begun."""

from __future__ import annotations

import asyncio
import gc
import socket
import time
import weakref
from contextlib import closing
from typing import Any

import h11
import pytest

from sharegen.serve import listening
from sharegen.serve.limits import Limits
from sharegen.serve.listening import Listener, _Connection, bound
from sharegen.serve.metrics import ServerCounts


async def app(scope: Any, receive: Any, send: Any) -> None:
    raise AssertionError("nobody asks")


def test_it_ends_when_it_was_told_so_before_it_began() -> None:
    """A signal may come between the base URL's print and the start."""
    with closing(bound("127.0.0.1", 0, Limits())) as sock:
        listener = Listener(app, sock, Limits(), ServerCounts())
        listener.end()
        listener.join(0.0)
        assert listener.is_over
        listener.start()
        listener.join(60)
        assert listener.is_over


async def whether_at_once(scope: Any, receive: Any, send: Any) -> None:
    """Say of the connection that asks whether it waits for confirmations."""
    transports = asyncio.get_running_loop()._transports.values()  # type: ignore[attr-defined]
    [transport] = [each for each in transports if each.get_extra_info("peername")]
    found = transport.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
    await send({"type": "http.response.start", "status": 200 if found else 500, "headers": []})
    await send({"type": "http.response.body", "body": b""})


def test_answers_wait_for_no_confirmation() -> None:
    """Which a client delays by 40 ms, where an answer comes in two pieces."""
    with closing(bound("127.0.0.1", 0, Limits())) as sock:
        listener = Listener(whether_at_once, sock, Limits(), ServerCounts())
        listener.start()
        try:
            with socket.create_connection(sock.getsockname(), timeout=60) as client:
                client.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
                assert client.recv(4096).startswith(b"HTTP/1.1 200")
        finally:
            listener.end()
            listener.join(60)


async def said(scope: Any, receive: Any, send: Any) -> None:
    """An answer that says its length on one path, and a stream on another."""
    sized = [(b"content-length", b"5")] if scope["path"] == "/sized" else []
    await send({"type": "http.response.start", "status": 200, "headers": sized})
    await send({"type": "http.response.body", "body": b"whole"})


@pytest.mark.parametrize(
    ("asked", "ends"),
    [
        ("GET /sized", b"\r\n\r\nwhole"),
        ("HEAD /sized", b"content-length: 5\r\nConnection: close\r\n\r\n"),
        ("GET /stream", b"\r\n\r\n5\r\nwhole\r\n0\r\n\r\n"),
    ],
)
def test_an_answer_is_whole_whose_head_leaves_with_its_body(asked: str, ends: bytes) -> None:
    with closing(bound("127.0.0.1", 0, Limits())) as sock:
        listener = Listener(said, sock, Limits(), ServerCounts())
        listener.start()
        try:
            with socket.create_connection(sock.getsockname(), timeout=60) as client:
                client.sendall(f"{asked} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n".encode())
                found = b""
                while piece := client.recv(4096):
                    found += piece
            assert found.startswith(b"HTTP/1.1 200")
            assert found.lower().endswith(ends.lower())
        finally:
            listener.end()
            listener.join(60)


def test_bytes_that_are_no_http_leave_nothing_behind() -> None:
    """No garbage that waits for a collection, which comes rarely in a server."""

    def misunderstood() -> weakref.ref[_Connection]:
        connection = _Connection(1 << 16)
        connection.receive_data(b"nonsense\r\n\r\n")
        with pytest.raises(h11.RemoteProtocolError) as raised:
            connection.next_event()
        assert raised.value.error_status_hint == 400
        del raised
        return weakref.ref(connection)

    gc.disable()
    try:
        assert misunderstood()() is None
    finally:
        gc.enable()


class _Circle:
    """Garbage that only a collection finds."""

    def __init__(self) -> None:
        self.itself = self


@pytest.mark.slow
def test_garbage_is_looked_for_however_little_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listening, "_COLLECTED", 0.05)
    gc.disable()
    try:
        left = weakref.ref(_Circle())
        with closing(bound("127.0.0.1", 0, Limits())) as sock:
            listener = Listener(app, sock, Limits(), ServerCounts())
            listener.start()
            until = time.monotonic() + 60
            while left() is not None and time.monotonic() < until:
                time.sleep(0.05)
            listener.end()
            listener.join(60)
            assert left() is None and listener.is_over
    finally:
        gc.enable()
