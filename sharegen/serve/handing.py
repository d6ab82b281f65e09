"""Connections of clients from one process to another, with what was read of them already.

They go over a socket of packets. A packet has some of what was read; with the last one comes the
connection itself.
"""

from __future__ import annotations

import socket
from collections.abc import Callable

_PACKET = 64 << 10  # bytes, which such sockets have room for anywhere


def channel() -> tuple[socket.socket, socket.socket]:
    """Both ends of a socket of packets."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def hand_over(into: socket.socket, client: socket.socket, received: bytes) -> None:
    """Give a connection away; the caller closes its own end. Raises OSError."""
    rest = len(received) - len(received) % _PACKET
    for start in range(0, rest, _PACKET):
        into.send(b"+" + received[start : start + _PACKET])
    socket.send_fds(into, [b"." + received[rest:]], [client.fileno()])


class Receiving:
    """The end at which connections come. take: called with each, and what was read of it."""

    def __init__(self, source: socket.socket, take: Callable[[socket.socket, bytes], None]) -> None:
        source.setblocking(False)
        self._source, self._take = source, take
        self._received = bytearray()

    def fileno(self) -> int:
        return self._source.fileno()

    def read(self) -> bool:
        """Take what has come; False where nothing more will."""
        while True:
            try:
                packet, descriptors, _, _ = socket.recv_fds(self._source, 1 + _PACKET, 1)
            except BlockingIOError:
                return True
            except OSError:
                return False
            if not packet:
                return False
            self._received += packet[1:]
            for descriptor in descriptors:
                received, self._received = bytes(self._received), bytearray()
                self._take(socket.socket(fileno=descriptor), received)
