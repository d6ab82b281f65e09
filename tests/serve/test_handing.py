"""Connections go from one process to another with what was read of them."""

from __future__ import annotations

import socket

import pytest

from sharegen.serve.handing import Receiving, channel, hand_over


@pytest.mark.parametrize("size", [0, 1, 65535, 65536, 65537, 200_000])
def test_a_connection_comes_with_what_was_read_of_it(size: int) -> None:
    into, source = channel()
    ours, client = socket.socketpair()
    taken: list[tuple[socket.socket, bytes]] = []
    receiving = Receiving(source, lambda sock, received: taken.append((sock, received)))
    read = bytes(place % 251 for place in range(size))
    with into, source, ours:
        for _ in range(2):
            into.setblocking(False)  # there is room for it
            hand_over(into, client, read)
            assert receiving.read()
        client.close()
        [(found, received), (other, again)] = taken
        assert received == again == read
        with other, found:
            found.sendall(b"answer")
            assert ours.recv(16) == b"answer"
        into.close()
        assert not receiving.read()
