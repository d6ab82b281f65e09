"""What two processes of a server say to each other: pickled, many messages at a time.

What is said in one turn of the event loop goes together: so the news of a step cost one packet.
"""

from __future__ import annotations

import asyncio
import pickle
import struct
from collections.abc import Callable
from typing import Any

_LENGTH = struct.Struct("<Q")


class Link(asyncio.Protocol):
    """One end, on an event loop. hear: called with each message; lost: when the other is gone."""

    def __init__(self, hear: Callable[[Any], None], lost: Callable[[], None]) -> None:
        self._hear, self._lost = hear, lost
        self._transport: asyncio.Transport | None = None
        self._said: list[Any] = []
        self._come = bytearray()

    def say(self, message: object) -> None:
        """In the thread of the event loop; what is said before it is connected waits."""
        self._said.append(message)
        if len(self._said) == 1 and self._transport is not None:
            asyncio.get_running_loop().call_soon(self._send)

    def _send(self) -> None:
        if self._said and self._transport is not None:
            data = pickle.dumps(self._said, pickle.HIGHEST_PROTOCOL)
            self._said = []
            self._transport.write(_LENGTH.pack(len(data)) + data)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._send()

    def data_received(self, data: bytes) -> None:
        self._come += data
        while len(self._come) >= _LENGTH.size:
            [length] = _LENGTH.unpack_from(self._come)
            end = _LENGTH.size + length
            if len(self._come) < end:
                return
            messages = pickle.loads(memoryview(self._come)[_LENGTH.size : end])
            del self._come[:end]
            for message in messages:
                self._hear(message)

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost()
