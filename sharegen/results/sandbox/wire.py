"""What travels between the processes: frames of our own code, messages of a program.

A frame has a small JSON header and a payload of bytes, which is what a program said, carried
untouched. A message is bytes behind their length; the process that runs a program reads requests
and writes replies as messages, so whatever the program itself writes there is a reply at most.
"""

from __future__ import annotations

import json
import os
import struct
from typing import Any

REQUEST, REPLY = 3, 4
"""Descriptors on which a session's messages arrive and leave."""

_LENGTHS = struct.Struct("!II")
_LENGTH = struct.Struct("!I")
_CHUNK = 1 << 20


class Closed(Exception):
    """The other side went away, or what it sent is no frame."""


def send(descriptor: int, header: Any, payload: bytes = b"") -> None:
    """Write one frame. Raises OSError when nobody reads it."""
    text = json.dumps(header).encode()
    _write(descriptor, _LENGTHS.pack(len(text), len(payload)) + text + payload)


def receive(descriptor: int) -> tuple[Any, bytes]:
    """Read one frame. Raises Closed at the end of the stream."""
    header_size, payload_size = _LENGTHS.unpack(_exactly(descriptor, _LENGTHS.size))
    header = json.loads(_exactly(descriptor, header_size))
    return header, _exactly(descriptor, payload_size)


def read_message(descriptor: int) -> bytes:
    """Read one message. Raises Closed at the end of the stream."""
    return _exactly(descriptor, *_LENGTH.unpack(_exactly(descriptor, _LENGTH.size)))


def write_message(descriptor: int, message: bytes) -> None:
    _write(descriptor, pack_message(message))


def pack_message(message: bytes) -> bytes:
    return _LENGTH.pack(len(message)) + message


def message_size(buffer: bytearray) -> int | None:
    """The size of the message that a buffer begins with, its length included."""
    if len(buffer) < _LENGTH.size:
        return None
    return _LENGTH.size + _LENGTH.unpack_from(buffer)[0]


def message_body(buffer: bytearray, size: int) -> bytes:
    return bytes(buffer[_LENGTH.size : size])


def _write(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def _exactly(descriptor: int, size: int) -> bytes:
    parts = []
    while size:
        try:
            part = os.read(descriptor, min(size, _CHUNK))
        except ConnectionError as error:
            raise Closed("the connection was reset") from error
        if not part:
            raise Closed("the stream ended")
        parts.append(part)
        size -= len(part)
    return b"".join(parts)
